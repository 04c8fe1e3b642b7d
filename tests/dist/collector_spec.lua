-- collector_spec.lua - sharded weights that nothing refers to any more: whether a rank's collector
-- has freed them yet changes nothing that it asks the others for.
local ul = require 'ulysses'
local nn = ul.nn

local WIDTH = 6

-- One unit of two maps and a norm.
local Block = nn.class 'Block'
function Block:init(mesh)
  self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
  self.norm = nn.RMSNorm(WIDTH)
  self:shard(mesh)
end
function Block:forward(x) return self.norm(self.down(self.up(x):tanh())) end

-- A slice is known by its parameter, which takes a cycle to go, and what it is used as another.
local function collect_all()
  for _ = 1, 6 do collectgarbage() end
end

local function forward(model, dtype)
  local x = ul.ones({ 2, WIDTH }, { dtype = dtype or 'f32' })
  for _, layer in ipairs(model) do x = layer(x) end
  return x
end

local function step(model, dtype) forward(model, dtype):sum():backward() end

return function(test, g)
  if g.size > 4 then return end
  local mesh = ul.mesh { shard = true }

  -- Calls f() where the collector runs only when c() is called, and on the last rank alone.
  local function apart(name, f)
    test(name, function()
      collect_all()
      collectgarbage 'stop'
      local ok, problem = pcall(f, function()
        if g.rank == g.size - 1 then
          collect_all()
          collectgarbage 'stop' -- a full cycle starts it again
        end
      end)
      collectgarbage 'restart'
      assert(ok, problem)
    end)
  end

  apart('weights of another dtype', function(collect)
    local block = Block(mesh)
    step { block }
    for _, dtype in ipairs { 'bf16', 'f32', 'bf16' } do
      block:to(dtype)
      step({ block }, dtype)
      collect()
      for _ = 1, 3 do step({ block }, dtype) end
    end
  end)

  apart('a weight and a layer in the place of others', function(collect)
    local block = Block(mesh)
    step { block }
    block.norm.weight = nn.parameter(ul.ones(WIDTH))
    collect()
    for _ = 1, 3 do step { block } end
    block.up = nn.Linear(WIDTH, WIDTH)
    collect()
    for _ = 1, 3 do step { block } end
  end)

  apart('a unit of which nothing is left but what was not used before', function(collect)
    local first, block, last = Block(mesh), nn.List(), Block(mesh)
    block:append(nn.Linear(WIDTH, WIDTH))
    block.spare = nn.RMSNorm(WIDTH)
    block:shard(mesh)
    for _ = 1, 2 do step { first, block[1], last } end
    block[1] = nn.Linear(WIDTH, WIDTH)
    collect()
    for _ = 1, 3 do step { block.spare, first, last } end
  end)

  apart('a model that was expected next', function(collect)
    local kept, models = Block(mesh), { Block(mesh), Block(mesh), Block(mesh) }
    for _ = 1, 2 do step { kept, models[1], models[2] } end
    models[1], models[2] = nil, nil
    collect()
    for _ = 1, 3 do step { kept, models[3] } end
    models[3] = nil
    collect()
    for _ = 1, 2 do ul.no_grad(forward, { kept }) end
    collect()
    step { kept, Block(mesh) }
  end)

  test('what was dropped is free when its place is taken', function()
    local device = ul.default_device()
    local kept, other = Block(mesh), Block(mesh)
    step { kept, Block(mesh), Block(mesh) }
    local function measure()
      for _ = 1, 2 do step { kept, other } end
      collect_all()
      return ul.memory(device).live
    end
    local live = measure()
    for _ = 1, 3 do
      step { kept, Block(mesh), Block(mesh) }
      local held = measure()
      assert(held == live, ('%d bytes, not %d'):format(held, live))
    end
  end)
end
