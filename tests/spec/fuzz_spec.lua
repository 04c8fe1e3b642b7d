-- fuzz_spec.lua - no input from Lua crashes, hangs or leaks: random calls of everything public.
--
-- UL_FUZZ_SECONDS says for how long (5), UL_FUZZ_SEED where to begin (1); UL_FUZZ_TRACE names each
-- call on stderr before it is made.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local fuzz = require 'tests.fuzz'

local seconds = tonumber(os.getenv 'UL_FUZZ_SECONDS') or 5
local seed = tonumber(os.getenv 'UL_FUZZ_SEED') or 1

describe('random calls of everything public', function()
  local threads, isa = ul.threads(), ul.isa()
  local seed_before, next_before = ul.random_state()

  setup(function() ul.set_memory_limit(home, 2 ^ 26 + ul.memory(home).live) end)
  teardown(function()
    ul.set_memory_limit(home, 0)
    ul.threads(threads)
    ul.isa(isa)
    ul.attention_backend 'auto'
    ul.deterministic(true)
    ul.tf32(false)
    ul.set_random_state(seed_before, next_before)
  end)

  it('end in a result or in an error', function()
    local finish, round = os.time() + seconds, seed
    print(('fuzz: seed %d, %g s'):format(seed, seconds))
    repeat
      local problem = fuzz.round(round, 300)
      assert.is_nil(problem, ('seed %d: %s'):format(round, tostring(problem)))
      round = round + 1
    until os.time() >= finish
    print(('fuzz: %d calls'):format((round - seed) * 300))
  end)
end)

describe('what random calls have found', function()
  it('a function on the tape whose results are no floats leaves nothing behind', function()
    collectgarbage()
    collectgarbage()
    local before = ul.memory(home).live_tensors
    ul.scope(function()
      local x = ul.ones(3):requires_grad_()
      ul.recompute(function(ids) return ids * 2 end, ul.zeros(3, { dtype = 'i64' }), x)
    end)
    assert.equal(before, ul.memory(home).live_tensors)
  end)

  it('sums of integers wrap', function()
    local x = ul.tensor({ 2LL ^ 62, 2LL ^ 62 }, { dtype = 'i64' })
    assert.equal(-2 ^ 63, x:sum():item())
    assert.same({ 2 ^ 62, -2 ^ 63 }, x:cumsum():tolist())
  end)
end)
