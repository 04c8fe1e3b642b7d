-- cases_spec.lua - no public op is left without a case.
local core = require 'ulysses.core'
local cases = require 'tests.cases'

describe('cases', function()
  it('hold everything that core offers', function()
    local known = {}
    for name in pairs(cases.not_ops) do known[name] = true end
    for _, case in ipairs(cases.list) do known[case.op] = true end
    for _, functions in ipairs { core.functional, core.methods, core } do
      for name, f in pairs(functions) do
        if type(f) == 'function' then assert(known[name], name .. ' has no case') end
      end
    end
  end)

  it('have names of their own', function()
    local seen = {}
    for _, case in ipairs(cases.list) do
      assert.is_nil(seen[case.name], case.name)
      seen[case.name] = true
    end
  end)

  it('are what docs/ops.md says', function()
    local file = assert(io.open 'docs/ops.md')
    local text = file:read '*a'
    file:close()
    assert(text == require 'tests.ops_table', 'docs/ops.md is out of date: see tests/ops_table.lua')
  end)
end)
