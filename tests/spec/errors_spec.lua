-- errors_spec.lua - wrong use raises one sentence with the numbers in it, at the line of the call.
local ul = require 'ulysses'
local core = require 'ulysses.core'
local errors = require 'tests.errors'

local home = ul.default_device() -- where tensors are, unless a test says otherwise

local names = {}
for name in pairs(errors) do names[#names + 1] = name end
table.sort(names)

-- What cannot be called wrongly, and what is a part of the library rather than an op.
local excused = {
  is_tensor = true, is_alive = true, is_grad_enabled = true, F = true, debug = true, nn = true,
  optim = true, data = true, run = true, recipe = true,
}

-- Valid arguments, for what needs more than a tensor before it looks at the tensor.
local flag = ul.ones(2, 2):gt(0)
local ids = ul.tensor({ 0, 1 }, { dtype = 'i64' })
local x = ul.ones(2, 2)
local further = {
  add = { 1 }, sub = { 1 }, mul = { 1 }, div = { 1 }, pow = { 1 }, maximum = { 1 }, minimum = { 1 },
  eq = { 1 }, ne = { 1 }, lt = { 1 }, le = { 1 }, gt = { 1 }, ge = { 1 }, swiglu = { 1 },
  add_ = { 1 }, sub_ = { 1 }, mul_ = { 1 }, div_ = { 1 }, fill_ = { 1 }, copy_ = { x },
  masked_fill = { flag, 0 }, view = { 4 }, reshape = { 4 }, expand = { 2, 2 }, permute = { 2, 1 },
  transpose = { 1, 2 }, select = { 1, 1 }, narrow = { 1, 1, 1 }, unsqueeze = { 1 }, split = { 1 },
  chunk = { 1 }, to = { 'f64' }, gather = { 1, ids }, index_select = { 1, ids }, topk = { 1 },
  where = { 1, x }, matmul = { x }, linear = { x }, add_rms_norm = { x }, rope_table = { 2 },
  rope = { { cos = x, sin = x } }, embedding = { x }, attention = { x, x }, cross_entropy = { ids },
  linear_cross_entropy = { x, ids },
}

describe('a misspelt name', function()
  for path, sentence in pairs {
    ['F.softmx'] = "F has no 'softmx'; did you mean 'softmax'?",
    ['optim.adam'] = "optim has no 'adam'; did you mean 'adamw'?",
    ['nn.Parameter'] = "nn has no 'Parameter'; did you mean 'parameter'?",
    ['optims'] = "ulysses has no 'optims'; did you mean 'optim'?",
  } do
    it('is no nil: ' .. path, function()
      local ok, message = pcall(function()
        local value = ul
        for name in path:gmatch '[^.]+' do value = value[name] end
      end)
      assert.is_false(ok)
      assert.matches('^tests/spec/errors_spec.lua:%d+: ', message)
      assert.equal(sentence, message:match ': (.*)$')
    end)
  end
end)

local function each_op(visit)
  for name, op in pairs(core.functional) do visit(name, op) end
  for name, op in pairs(core.methods) do
    if not rawget(core.functional, name) then visit(name, op) end
  end
end

-- The message of an error that names this file or that of the case, split from its place.
local function message_of(call, ...)
  local ok, message = pcall(call, ...)
  assert.is_false(ok, 'no error')
  assert.equal('string', type(message))
  return message
end

describe('wrong use', function()
  for _, name in ipairs(names) do
    for _, case in ipairs(errors[name]) do
      local what, call, expected = unpack(case)
      it(('of %s: %s'):format(name, what), function()
        local info = debug.getinfo(call, 'S')
        local message = message_of(call)
        local file, line, sentence = message:match '^([^:]*):(%d+): (.*)$'
        assert.equal(info.short_src, file)
        assert.is_true(tonumber(line) >= info.linedefined
                       and tonumber(line) <= info.lastlinedefined, message)
        assert.is_nil(sentence:find '\n', sentence)
        expected = expected:gsub('on cpu', 'on ' .. home)
        if expected:sub(1, 1) == '^' then
          assert.is_truthy(sentence:match(expected), sentence)
        else
          assert.equal(expected, sentence)
        end
      end)
    end
  end

  it('is known of everything public', function()
    local missing = {}
    local function look(name)
      if not errors[name] and not excused[name] then missing[#missing + 1] = name end
    end
    each_op(look)
    for name in pairs(ul) do look(name) end
    table.sort(missing)
    assert.same({}, missing)
  end)
end)

describe('a tensor that has been freed', function()
  it('is refused by every op', function()
    each_op(function(name, op)
      local gone = ul.ones(2, 2)
      gone:free()
      if name == 'free' or name == 'cat' or name == 'stack' then return end -- lists; twice is fine
      local message = message_of(op, gone, unpack(further[name] or {}))
      assert.equal(name .. ': tensor freed by :free(), and used after that',
                   (message:gsub('^[^:]*:%d+: ', '')))
    end)
  end)

  it('is refused in lists, as a second argument and as an option', function()
    local gone = ul.ones(2, 2)
    gone:free()
    for _, call in ipairs {
      function() ul.cat { x, gone } end, function() ul.stack { x, gone } end,
      function() ul.global_norm { gone } end, function() ul.clip_grad_norm_({ gone }, 1) end,
      function() local _ = x + gone end, function() local _ = 1 - gone end,
      function() x:matmul(gone) end, function() x:copy_(gone) end, function() x[1] = gone end,
      function() ul.where(flag, x, gone) end, function() x:to(gone) end,
      function() ul.F.attention(x, x, x, { docs = gone }) end,
      function() ul.sgd_(x, x, { velocity = gone }) end, function() local _ = gone[1] end,
      function() local _ = gone.shape end, function() local _ = #gone end,
      function() ul.zeros_like(gone) end, function() ul.backward({ x }, { gone }) end,
    } do
      local message = message_of(call)
      assert.is_truthy(message:find('tensor freed by :free(), and used after that', 1, true),
                       message)
    end
  end)
end)

describe('too many arguments', function()
  -- Those take as many as they get: sizes, dims.
  local open = { view = true, reshape = true, expand = true, permute = true }

  it('are refused by every op', function()
    each_op(function(name, op)
      if open[name] then return end
      local ok, message = pcall(op, x, 1, 1, 1, 1, 1, 1, 1)
      assert.is_false(ok, name)
      local expected = '^[^:]*:%d+: ' .. name .. ': 8 arguments, at most %d are known$'
      assert.is_truthy(message:match(expected), message)
    end)
  end)
end)
