-- init.lua - what `require 'ulysses'` returns: tensors and ops of the engine, and the library.
local core = require 'ulysses.core'

core.library(debug.getinfo(1, 'S').source:match '^(.*[/\\])' or '@./')

local wanted = os.getenv 'UL_DEVICE' -- the program's --device sets it too
if wanted and wanted ~= '' then
  local ok, sentence = pcall(core.set_default_device, wanted)
  if not ok then
    require 'ulysses.refuse'('UL_DEVICE: %s', (sentence:gsub('^.-set_default_device: ', '')))
  end
end

require 'ulysses.moments' -- adds to F

local members = require 'ulysses.members'

---@class ulysses
local ul = { F = members.guard('F', core.functional) }
for _, name in ipairs {
  'tensor', 'empty', 'zeros', 'ones', 'rand', 'randn', 'full', 'randint', 'arange', 'empty_like',
  'zeros_like', 'ones_like', 'rand_like', 'randn_like', 'cat', 'stack', 'where', 'is_tensor',
  'scope', 'scoped', 'scope_begin', 'scope_end', 'no_grad', 'enable_grad', 'is_grad_enabled', 'fn',
  'backward', 'manual_seed', 'random_state', 'set_random_state', 'default_device',
  'set_default_device', 'tf32', 'memory', 'reset_peak_memory', 'set_memory_limit', 'trim_memory',
  'meta_counts', 'meta_kernels', 'reset_meta_counts', 'threads', 'isa', 'attention_backend',
  'deterministic', 'attention_report', 'flops', 'gpu', 'peak_flops', 'adamw_', 'sgd_',
  'global_norm', 'clip_grad_norm_', 'group', 'group_log',
} do
  ul[name] = assert(core[name], name)
end
for name, op in pairs(core.functional) do
  if core[name] == op then ul[name] = op end
end

--- For tests: makes the n-th allocation, or step that changes the disk, from now fail; counts them.
ul.debug = {
  fail_allocation = core.debug_fail_allocation, allocations = core.debug_allocations,
  fail_write = core.debug_fail_write, writes = core.debug_writes,
}

require 'ulysses.data_pointer'
require 'ulysses.print'

-- Parts of the library, loaded when they are first asked for.
local parts = {
  nn = 'ulysses.nn', optim = 'ulysses.optim', data = 'ulysses.data', run = 'ulysses.run',
  help = 'ulysses.help', generate = 'ulysses.generate', cache = 'ulysses.cache',
  json = 'ulysses.json', safetensors = 'ulysses.safetensors',
  tokenizer = 'ulysses.tokenizer', chat = 'ulysses.chat', hf = 'ulysses.hf',
  lora = 'ulysses.lora', preference = 'ulysses.preference',
  checkpoint = 'ulysses.checkpoint',
  recipe = 'ulysses.recipe', none = 'ulysses.recipe.none',
  mesh = 'ulysses.mesh', ulysses = 'ulysses.ulysses',
  recompute = 'ulysses.recompute', offload = 'ulysses.offload', gradcheck = 'ulysses.gradcheck',
}

return setmetatable(ul, {
  __tostring = function() return ('ulysses %s; ul.help() says more'):format(core.version) end,
  __names = function()
    local names = {}
    for name in pairs(parts) do names[#names + 1] = name end
    return names
  end,
  __index = function(self, name)
    local part = parts[name]
    if not part then
      local names = {}
      for key in pairs(self) do names[#names + 1] = key end
      for key in pairs(parts) do names[#names + 1] = key end
      members.refuse('ulysses', name, names)
    end
    local value = require(part)
    if type(value) == 'table' and not getmetatable(value) then members.guard(name, value) end
    rawset(self, name, value)
    return value
  end,
})
