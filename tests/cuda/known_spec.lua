-- known_spec.lua - what the host knows of ids on cuda is what they are there, whoever changed them.
local library = os.getenv 'UL_CUDA_BACKEND' or ''

describe('what the host knows of ids on cuda', function()
  if not library:match 'emulated' then
    pending 'is watched by the emulation, which is not here'
    return
  end
  local ffi = require 'ffi'
  local core = require 'ulysses.core'
  local ul = require 'ulysses'
  local cases = require 'tests.cases'
  ffi.cdef 'int64_t cuemu_waits;'
  local driver = ffi.load(library)
  local before

  setup(function()
    before = ul.default_device()
    ul.set_default_device 'cuda'
  end)
  teardown(function() ul.set_default_device(before) end)

  -- The values, and whether the host knew them without asking the device.
  local function look(x)
    local waits = driver.cuemu_waits
    local values = x:to('cpu'):contiguous()
    return values, driver.cuemu_waits == waits
  end

  -- What the device has: a copy that it made is never known.
  local function there(x)
    local values, was_known = look(x:clone())
    assert(not was_known or x:numel() == 0)
    return values
  end

  local function assert_right(x, what)
    assert(look(x):ne(there(x)):to('i64'):sum():item() == 0, what)
  end

  local function ids() return ul.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { dtype = 'i64' }) end

  -- Each op whose name says that it changes a tensor, and what else it is given.
  local row = ul.tensor({ 7, 0, 9 }, { dtype = 'i64', device = 'cpu' })
  local function with_row(name) return function(x) x[name](x, row:to(x:device())) end end
  local changes = {
    add_ = with_row 'add_', sub_ = with_row 'sub_', mul_ = with_row 'mul_',
    copy_ = with_row 'copy_',
    fill_ = function(x) x:fill_(7) end,
    zero_ = function(x) x:zero_() end,
    -- of a group of one, where they may change nothing
    all_reduce_ = function(x) core.group():all_reduce_(x) end,
    broadcast_ = function(x) core.group():broadcast_(x, 0) end,
  }
  local floats = { -- these refuse ids
    div_ = function(x) x:div_(x) end,
    uniform_ = function(x) x:uniform_(0, 1) end,
    normal_ = function(x) x:normal_(0, 1) end,
    adamw_ = function(x) ul.adamw_(x, x, x, x, { lr = 1, step = 1 }) end,
    sgd_ = function(x) ul.sgd_(x, x, { lr = 1 }) end,
    clip_grad_norm_ = function(x) ul.clip_grad_norm_({ x }, 1) end,
  }
  local settings = { requires_grad_ = true } -- of the handle

  it('is asked of each op that changes a tensor', function()
    local _, group = debug.getupvalue(getmetatable(core.group()).__index, 1)
    for _, functions in ipairs { core, core.methods, core.functional, group } do
      for name in pairs(functions) do
        if name:match '%w_$' then
          assert(changes[name] or floats[name] or settings[name],
                 name .. ' is to have a line in tests/cuda/known_spec.lua')
        end
      end
    end
  end)

  -- Reading from a file into a tensor is one of them.
  changes['safetensors: get into'] = function(x)
    local path = os.tmpname()
    ul.safetensors.save(path, { x = (x * x):to 'cpu' })
    local file = ul.safetensors.open(path)
    file:get('x', { into = x })
    file:close()
    os.remove(path)
  end

  -- Where the change is made in what is looked at, and how both come of the whole.
  local places = {
    itself = function(x) return x, x end,
    ['a view'] = function(x) return x:narrow(1, 2, 1), x end,
    ['what it is a view of'] = function(x) return x, x:narrow(1, 1, 1) end,
    ['a view that lies apart'] = function(x) return x:narrow(2, 1, 2):transpose(1, 2), x end,
  }
  local takes_row = { add_ = true, sub_ = true, mul_ = true, copy_ = true }

  for name, change in pairs(changes) do
    for place, parts in pairs(places) do
      it(('is forgotten by %s of %s'):format(name, place), function()
        local changed, looked_at = parts(ids())
        assert(select(2, look(looked_at)), 'was not known before')
        if takes_row[name] and changed:size(2) ~= 3 then
          changed[name](changed, ids():narrow(2, 1, 2):transpose(1, 2))
        else
          change(changed)
        end
        assert(not select(2, look(looked_at)), 'is still known')
        assert_right(looked_at, name)
      end)
    end
  end

  it('is right where an op refuses ids', function()
    for name, change in pairs(floats) do
      local x = ids()
      local taken, message = pcall(change, x)
      assert(not taken, name .. ' takes ids: it is to go to `changes`')
      assert(message:find('i64', 1, true), message)
      assert_right(x, name)
    end
  end)

  it('is right after every op that takes ids', function()
    local n = 0
    for _, case in ipairs(cases.list) do
      local inputs, some = {}, false
      for i, spec in ipairs(case.inputs) do
        inputs[i] = cases.make(spec)
        some = some or not cases.is_float(spec)
      end
      if some then
        case.call(unpack(inputs))
        for i, spec in ipairs(case.inputs) do
          if not cases.is_float(spec) then
            assert_right(inputs[i], case.name)
            n = n + 1
          end
        end
      end
    end
    assert(n > 20, n)
  end)
end)
