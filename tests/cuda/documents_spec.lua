-- documents_spec.lua - offsets of documents on cuda are read once, and again when they change.
local ul = require 'ulysses'

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

describe('documents on cuda', function()
  if not there then
    pending('cuda is not here: ' .. tostring(why))
    return
  end

  local function attend(docs, batch, tokens)
    local q = ul.ones(batch, tokens, 1, 8, { device = 'cuda' })
    return ul.F.attention(q, q, q, { docs = docs })
  end

  it('are refused after a change in place, and in another shape', function()
    local docs = ul.tensor({ 0, 4, 10, 20 }, { dtype = 'i64', device = 'cuda' })
    attend(docs, 2, 10)
    attend(docs, 2, 10)
    assert.error_matches(function() attend(docs, 1, 10) end, 'docs must end with B T = 10')
    assert.error_matches(function() attend(docs, 4, 5) end,
                         'docs must include the edges of all 4 rows of 5 tokens')
    attend(docs, 1, 20)
    docs[2] = 12
    assert.error_matches(function() attend(docs, 1, 20) end, '10 follows 12')
    docs[2] = 9
    attend(docs, 1, 20)
  end)

  it('that are part of others are told apart', function()
    local all = ul.tensor({ 0, 4, 10, 0, 5, 10 }, { dtype = 'i64', device = 'cuda' })
    attend(all[{ { 1, 3 } }], 1, 10)
    attend(all[{ { 4, 6 } }], 1, 10)
    assert.error_matches(function() attend(all[{ { 2, 4 } }], 1, 10) end, 'docs must begin with 0')
  end)
end)
