-- losses.lua - compares the losses of two runs, step by step.
--
--   luajit tests/gpu/losses.lua FOLDER FOLDER
local function losses_of(folder)
  local losses = {}
  for line in assert(io.open(folder .. '/metrics.jsonl')):lines() do
    local step, loss = line:match '"step": ?(%d+)', line:match '"loss": ?([-+%d.eE]+)'
    if step and loss then losses[tonumber(step)] = tonumber(loss) end
  end
  return losses
end

local one, other = losses_of(arg[1]), losses_of(arg[2])
local most, count = 0, 0
for step, loss in pairs(one) do
  most, count = math.max(most, math.abs(loss - (other[step] or math.huge))), count + 1
end
print(('%d losses, largest difference %.2g'):format(count, most))
os.exit(count > 0 and most <= 1e-4 and 0 or 1)
