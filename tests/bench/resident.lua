-- resident.lua - by hand: what recipes hold in memory beside what the meta device counts for them.
--
--   ulysses-lua tests/bench/resident.lua                          1K, 8K and 32K tokens
--   ulysses-lua tests/bench/resident.lua 128K model.dim=512       other lengths and settings
--
-- A line for each: megabytes counted by the meta device (its tensors, the text, the scratch of
-- kernels), of tensors on the cpu, and resident beyond the start of the program; the share that
-- resident is of counted.
local resident = require 'tests.resident'

local lengths, settings = {}, { 'steps=2', 'batch=1', 'sample=1', 'out=', 'held_out=0.01' }
for _, word in ipairs(arg) do
  local list = word:match '^%d+[KM]?$' and lengths or settings
  list[#list + 1] = word
end
if #lengths == 0 then lengths = { '1K', '8K', '32K' } end

print(('%-8s %-5s %8s %10s %10s %10s %8s'):format('recipe', 'dtype', 'seq_len', 'counted',
                                                  'tensors', 'resident', 'share'))
for _, recipe in ipairs { 'llama3', 'mistral' } do
  for _, dtype in ipairs { 'f32', 'bf16' } do
    for _, length in ipairs(lengths) do
      local taken = resident('recipes/' .. recipe .. '.lua', {
        'seq_len=' .. length, 'dtype=' .. dtype, unpack(settings) })
      print(('%-8s %-5s %8s %10.1f %10.1f %10.1f %7.1f%%'):format(
        recipe, dtype, length, taken.counted / 1e6, taken.tensors / 1e6, taken.resident / 1e6,
        100 * taken.resident / taken.counted))
      io.flush()
    end
  end
end
