-- mesh_spec.lua - a mesh in one process: what is refused, and what meta says of more ranks.
local program = require 'tests.program'
local ul = require 'ulysses'

describe('a mesh', function()
  it('is there for one rank too', function()
    local mesh = ul.mesh()
    local x = ul.randn(2, 5, 3)
    assert.equal(x, mesh:slice(x))
    assert.equal(x, mesh:gather(x))
    assert.same({ { 1, 5 } }, mesh:ranges(5))
    assert.same({ 5 }, mesh:lengths())
    assert.same({ 1, 2, 3 }, mesh:rows(3))
    assert.equal('mesh of 1: dp 1 x ring 1 x ulysses 1 x tp 1, this is rank 0', tostring(mesh))
  end)

  it('refuses what ranks cannot be cut into', function()
    local function message(given)
      local ok, problem = pcall(ul.mesh, given)
      assert.is_false(ok)
      return tostring(problem)
    end
    assert.matches('^mesh: sp = 4 needs 4 ranks or a multiple of that, and there is one: '
                   .. 'ulysses%-lua %-%-ranks 4', message { sp = 4 })
    assert.matches('sp = 2 times tp = 3 needs 6 ranks', message { sp = 2, tp = 3 })
    assert.matches('sp = 4 ranks cannot be cut into a ring of 3 parts',
                   message { sp = 4, ring = 3 })
    assert.matches('mesh: sp must be a whole number from 1 on, got 0', message { sp = 0 })
    assert.matches("no option 'rings'; did you mean 'ring'", message { rings = 2 })
    assert.matches('shard: expected a mesh', tostring(select(2, pcall(function()
      ul.data.from({ 'some text' }):tokenize('bytes'):pack(4):batch(1):shard(2)
    end))))
  end)

  it('cuts what grows with the sequence by its ranks', function()
    local function peak(recipe, sp, length)
      local command = '$P --device meta recipes/%s.lua sp=%d seq_len=%s batch=1'
      local output = program.shell(command:format(recipe, sp, length))
      return assert(tonumber(output:match 'takes (%d+) MB'), output)
    end
    for _, recipe in ipairs { 'llama3', 'mistral' } do
      local one = peak(recipe, 1, '32K') - peak(recipe, 1, '16K')
      local four = peak(recipe, 4, '32K') - peak(recipe, 4, '16K')
      assert.is_true(four <= 0.3 * one, ('%s: %d of %d MB'):format(recipe, four, one))
      assert.is_true(four >= 0.2 * one, ('%s: %d of %d MB'):format(recipe, four, one))
    end
  end)
end)
