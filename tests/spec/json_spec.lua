-- json_spec.lua - ul.json: what is written reads back the same, and what is wrong is named.
local ul = require 'ulysses'
local json = ul.json

local function refused(text)
  local value, sentence = json.decode(text)
  assert.is_nil(value)
  return sentence
end

local function error_of(value, given)
  local ok, message = pcall(json.encode, value, given)
  assert.is_false(ok)
  return tostring(message):gsub('^.-:%d+: ', '')
end

describe('json', function()
  it('writes sorted keys on one line', function()
    assert.equal('{"a":[1,2.5,"x"],"b":{"c":true,"d":null},"e":{}}', json.encode {
      e = {}, a = { 1, 2.5, 'x' }, b = { d = json.null, c = true },
    })
  end)

  it('writes indented', function()
    assert.equal('{\n  "a": [\n    1,\n    {}\n  ],\n  "b": []\n}',
                 json.encode({ b = json.array {}, a = { 1, {} } }, { indent = 2 }))
  end)

  it('tells an empty array from an empty object', function()
    for _, text in ipairs { '[]', '{}', '[[],{}]', '{"a":[],"b":{}}' } do
      assert.equal(text, json.encode(json.decode(text)))
    end
  end)

  it('passes over a byte-order mark', function()
    assert.same({ 1 }, json.decode '\239\187\191 [1]')
    assert.matches('^line 1, column 0: ', refused '\239\187\191')
    assert.is_string(refused '[1\239\187\191]')
  end)

  it('reads every kind of value', function()
    local value = json.decode ' {"a": [1, -2.5e3, "\\u00e9\\ud83d\\ude00"], "n": null, "t": true} '
    assert.same({ 1, -2500, '\195\169\240\159\152\128' }, value.a)
    assert.equal(json.null, value.n)
    assert.is_true(value.t)
    assert.equal('null', tostring(json.null))
    assert.equal(3, (json.decode '3'))
    assert.equal('x', (json.decode '"x"'))
    assert.equal(1e30, (json.decode '1000000000000000019884624838656'))
  end)

  it('keeps every bit of a number', function()
    local values = { 0, 1, -1, 2 ^ 53, -2 ^ 53, 2 ^ 53 - 1, 0.1, 1 / 3, -1e-300, 5e-324, 1e22,
                     2 ^ 62, 2 ^ 70, 1.7976931348623157e308, 123456789.125, 3e-4 }
    for i = 1, 2000 do
      values[#values + 1] = math.random() * 10 ^ math.random(-30, 30) * (i % 2 == 0 and 1 or -1)
    end
    for _, value in ipairs(values) do assert.equal(value, (json.decode(json.encode(value)))) end
    assert.equal('9007199254740992', json.encode(2 ^ 53))
    assert.equal('0.0003', json.encode(3e-4))
    assert.equal('0.1', json.encode(0.1))
    assert.equal(-math.huge, 1 / json.decode(json.encode(-0.0)))
  end)

  it('writes what is no number as null', function()
    assert.equal('[null,null,null]', json.encode { 0 / 0, math.huge, -math.huge })
  end)

  it('keeps strings', function()
    for _, text in ipairs { '', 'a"b\\c/', 'line\nfeed\ttab', '\1', '\195\169', '\127' } do
      assert.equal(text, (json.decode(json.encode(text))))
      assert.same({ [text] = 1 }, json.decode(json.encode { [text] = 1 }))
    end
    assert.equal('nul\0nul', (json.decode(json.encode 'nul\0nul')))
  end)

  it('refuses what has no JSON, by its place', function()
    assert.equal('json.encode: a.b[2]: no JSON for a function',
                 error_of { a = { b = { 1, print } } })
    assert.equal('json.encode: the value: no JSON for a nil', error_of(nil))
    assert.equal('json.encode: a: a string that is no UTF-8', error_of { a = '\255' })
    assert.equal('json.encode: a: the key x in an array', error_of { a = { 1, x = 2 } })
    assert.equal('json.encode: the value: the key 5 in an object', error_of { [5] = 1 })
    assert.equal('json.encode: the value: the key 1.5 in an array', error_of { 1, [1.5] = 1 })
    local hole = { 1, 2, 3, 4 }
    hole[2] = nil
    assert.equal('json.encode: the value: an array with a hole', error_of(hole))
    local loop = {}
    loop.again = loop
    assert.equal('json.encode: nested deeper than 1000 tables, or a table that contains itself',
                 error_of(loop))
    assert.equal("json.encode: no option 'indnt'; did you mean 'indent'?",
                 error_of(1, { indnt = 1 }))
  end)

  it('refuses text that is wrong, by line and column', function()
    assert.matches('^line 2, column 4: duplicate object key', refused '{"a": 1,\n "a": 2}')
    assert.matches('^line 1, column 3: end of file expected', refused '1 2')
    for _, text in ipairs {
      '', ' ', '{', '[1,]', '{"a":1,}', '01', '1.', '+1', '.5', 'NaN', 'Infinity', '1e999', 'nul',
      "'a'", '"a', '"\n"', '"\\x"', '"\\ud800"', '"\255"', '"\192\128"', '{}\239\187\191', '{} {}',
      '{a:1}', '[1 2]', '{"a" 1}', '{"a\\u0000b":1}', '// c\n1', '[1', '\0',
    } do
      assert.matches('^line %d+, column %d+: ', refused(text))
    end
  end)

  it('nests deeply, and refuses to nest without end', function()
    local text = ('['):rep(1000) .. (']'):rep(1000)
    assert.equal(text, json.encode(json.decode(text)))
    assert.matches('^line 1, column %d+: maximum parsing depth reached',
                   refused(('['):rep(100000)))
  end)

  it('wants a string', function()
    local ok, message = pcall(json.decode, {})
    assert.is_false(ok)
    assert.matches('json_spec.lua:%d+: json.decode: expected a string, got a table$', message)
  end)
end)
