-- helper.lua - what the specs share: the closing line, and assertions and printing for tensors.
local busted = require 'busted'
local assert = require 'luassert'

-- The closing line. busted's own totals are not last, and their words vary with the numbers.
local total = { passed = 0, failed = 0, skipped = 0 }
local outcome = { success = 'passed', pending = 'skipped' }

local function count(kind)
  total[kind] = total[kind] + 1
end

busted.subscribe({ 'test', 'end' }, function(_, _, status)
  count(outcome[status] or 'failed')
  return nil, true
end)
-- A file that does not load and a setup that raises belong to no test.
for _, event in ipairs { 'error', 'failure' } do
  busted.subscribe({ event }, function(element)
    if element.descriptor ~= 'it' then count('failed') end
    return nil, true
  end)
end
busted.subscribe({ 'exit' }, function()
  print(('%d passed, %d failed, %d skipped'):format(total.passed, total.failed, total.skipped))
  io.flush()
  return nil, true
end)

-- Settings of the whole process: the files that follow rest on them, so that each is to be left as
-- it was found.
local settings = {
  'attention_backend', 'default_device', 'deterministic', 'isa', 'tf32', 'threads',
}
local found = {}

busted.subscribe({ 'file', 'start' }, function()
  local ul = require 'ulysses'
  for _, name in ipairs(settings) do found[name] = ul[name]() end
  return nil, true
end)
busted.subscribe({ 'file', 'end' }, function(file)
  local ul = require 'ulysses'
  for _, name in ipairs(settings) do
    local left = ul[name]()
    if left ~= found[name] then
      count('failed')
      print(('%s leaves ul.%s as %s; it found %s'):format(file.name, name, tostring(left),
                                                          tostring(found[name])))
      local set = ul['set_' .. name] or ul[name]
      set(found[name])
    end
  end
  return nil, true
end)

-- assert.near(expected, actual, tolerance): numbers, tables of them however deep, and tensors.
-- The gap may be `tolerance` times max(1, |expected|); NaN equals NaN.
local function plain(value)
  if type(value) == 'userdata' then return value:tolist() end
  return value
end

local function find_gap(expected, actual, tolerance, path)
  if type(expected) ~= type(actual) then
    return ('%s: a %s where a %s was expected'):format(path, type(actual), type(expected))
  end
  if type(expected) == 'table' then
    if #expected ~= #actual then
      return ('%s: %d elements where %d were expected'):format(path, #actual, #expected)
    end
    for i = 1, #expected do
      local gap = find_gap(expected[i], actual[i], tolerance, path .. '[' .. i .. ']')
      if gap then return gap end
    end
    return nil
  end
  local same = expected == actual or (expected ~= expected and actual ~= actual)
  local close = math.abs(expected - actual) <= tolerance * math.max(1, math.abs(expected))
  if not (same or close) then
    return ('%s: %.10g where %.10g was expected, tolerance %g'):format(path, actual, expected,
                                                                       tolerance)
  end
  return nil
end

local function near(state, arguments)
  local gap = find_gap(plain(arguments[1]), plain(arguments[2]), arguments[3] or 1e-6, 'value')
  if gap then state.failure_message = gap end
  return gap == nil
end
assert:register('assertion', 'near', near)

assert:add_formatter(function(value)
  if type(value) == 'userdata' then return tostring(value) end
end)
