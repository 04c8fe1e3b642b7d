-- waits_spec.lua - how often the host waits for the device in a step of training.
local library = os.getenv 'UL_CUDA_BACKEND' or ''
local there = library:match 'emulated'

describe('a step of training on cuda', function()
  if not there then
    pending 'is watched by the emulation, which is not here'
    return
  end
  local ffi = require 'ffi'
  local ul = require 'ulysses'
  ffi.cdef 'int64_t cuemu_waits;'
  local driver = ffi.load(library)

  -- How often the host waits while f computes.
  local function waits(f, ...)
    local before = driver.cuemu_waits
    f(...)
    return tonumber(driver.cuemu_waits - before)
  end

  local function parameters(n, device)
    local list = {}
    for i = 1, n do
      ul.manual_seed(i)
      list[i] = ul.randn({ 3 * i, 5 }):to(device):detach()
      list[i].requires_grad = true
    end
    return list
  end

  -- An optimizer whose parameters have gradients, with its list of them.
  local function trained(n, device)
    local list = parameters(n, device)
    local optimizer = ul.optim.adamw(list, { lr = 1e-2 })
    return optimizer, list, function()
      local loss = list[1]:square():sum()
      for i = 2, n do loss = loss + list[i]:square():sum() end
      loss:backward()
    end
  end

  it('waits once for the norm, of however many parameters', function()
    for _, n in ipairs { 1, 7, 40 } do
      local optimizer, _, backward = trained(n, 'cuda')
      for _ = 1, 3 do
        assert.equal(0, waits(backward))
        assert.equal(1, waits(optimizer.clip, optimizer, 0.5))
        assert.equal(0, waits(optimizer.step, optimizer))
      end
    end
  end)

  it('waits once for the norm where nobody clips', function()
    local optimizer, _, backward = trained(9, 'cuda')
    backward()
    assert.equal(1, waits(optimizer.step, optimizer))
  end)

  it('has the norm of the cpu, with what is empty and what lies apart', function()
    local x = ul.randn { 40, 30 }
    local function list(device)
      local there_x = x:to(device)
      return { there_x, ul.zeros { 0, 3, device = device }, there_x:transpose(1, 2) }
    end
    local here, there_too = ul.global_norm(list 'cpu'), ul.global_norm(list 'cuda')
    assert.is_true(math.abs(here - there_too) <= 1e-12 * here)
    assert.equal(0, ul.global_norm { ul.zeros { 0, device = 'cuda' } })
    local mixed = list 'cuda'
    mixed[2] = x
    assert.is_true(math.abs(ul.global_norm(mixed) - here * math.sqrt(1.5)) <= 1e-12 * here)
  end)

  it('leaves out a step whose gradient is not finite, and goes on', function()
    local optimizer, list, backward = trained(5, 'cuda')
    backward()
    list[3].grad:fill_(0 / 0)
    local before = list[5]:tolist()
    local norm = optimizer:clip(1)
    optimizer:step()
    assert.is_true(norm ~= norm and optimizer.skipped)
    assert.same(before, list[5]:tolist())
    backward()
    optimizer:clip(1)
    optimizer:step()
    assert.is_false(optimizer.skipped)
    assert.equal(1, optimizer.steps)
  end)
end)
