-- chunks_spec.lua - the exchange of one chunk of heads under the attention of another.
local ul = require 'ulysses'

-- This rank's part of the same numbers.
local function part(seed, shape, dtype, first)
  ul.manual_seed(seed)
  local x = ul.randn({ shape[1], shape[2], shape[3], shape[4] }, { dtype = dtype })
  return x[{ {}, { first, first + shape.mine - 1 } }]:clone()
end

return function(test, g)
  local P, r = g.size, g.rank
  -- Values and gradients, and how many exchanges forward took.
  local function results(dtype, lengths, chunks)
    local H, Hkv, S, first = 8 * P, 4 * P, 0, 1
    for k = 1, P do
      S = S + lengths[k]
      if k <= r then first = first + lengths[k] end
    end
    local list = {}
    for i, heads in ipairs { H, Hkv, Hkv, H } do
      list[i] = part(i, { 2, S, heads, 8, mine = lengths[r + 1] }, dtype, first)
      list[i]:requires_grad_(i < 4)
    end
    g:reset_counts()
    local o = ul.ulysses.attention(list[1], list[2], list[3],
                                   { group = g, causal = true, lengths = lengths, chunks = chunks })
    local calls = P > 1 and g:counts().all_to_all.calls or 0
    o:backward(list[4])
    return { o:detach(), list[1].grad, list[2].grad, list[3].grad }, calls
  end

  test('chunks of heads give the same bits', function()
    local even, odd = {}, {}
    for k = 1, P do even[k], odd[k] = 3, k * 5 % 4 end
    for _, dtype in ipairs { 'f32', 'bf16' } do
      for _, lengths in ipairs { even, odd } do
        local want = results(dtype, lengths, 1)
        for _, chunks in ipairs { 2, 3, 4 } do
          local got, calls = results(dtype, lengths, chunks)
          assert(P == 1 or calls == 2 * (chunks == 3 and 2 or chunks), calls .. ' exchanges')
          for i = 1, 4 do
            local same = got[i]:numel() == 0 or (got[i] - want[i]):abs():max():item() == 0
            assert(same, ('%s, %d chunks: result %d'):format(dtype, chunks, i))
          end
        end
      end
    end
  end)

  test('what has not begun does not arrive', function()
    local ok, message = pcall(g.arrive, g, ul.zeros { 1, 2, 2, 2 })
    assert(not ok and tostring(message):find('once', 1, true), tostring(message))
    local x = ul.zeros { 1, 2, P, 2 }
    g:shard_heads(x, { later = true }) -- dropped
    local y = g:shard_heads({ x, x + 1 }, { later = true })
    ok = pcall(g.arrive, g, y[1])
    assert(not ok)
    assert(g:arrive(y)[2]:sum():item() == 4 * P)
  end)
end
