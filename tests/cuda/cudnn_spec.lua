-- cudnn_spec.lua - attention by cuDNN, with the library of cudnn_fake.cc in its place: numbers of
-- its graphs, who runs, and what is said where cuDNN can not. A process for each, since a library
-- is looked for once.
local folder = (os.getenv 'UL_CUDA_BACKEND' or ''):match '^(.*)/[^/]*$' or '.'
local fakes = folder .. '/fake_cudnn'

local function is_there(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

-- What a command prints, its errors too.
local function output(env, command)
  local words = {}
  for name, value in pairs(env) do words[#words + 1] = ("%s='%s'"):format(name, value) end
  local pipe = io.popen(('env %s %s 2>&1'):format(table.concat(words, ' '), command))
  local text = pipe:read '*a'
  pipe:close()
  return text
end

local function with_fake(env)
  env.UL_CUDA_LIB_PATH = fakes
  return env
end

-- What one call of attention comes to: forward and backward, the error or the report. With `tokens`
-- it is about so many, in documents of 32.
local function attempt(env, backend, heads, dim, before, tokens)
  local file = os.tmpname()
  local f = assert(io.open(file, 'w'))
  f:write(([[
    local ul = require 'ulysses'
    ul.attention_backend '%s'
    %s
    local function x(n) return ul.randn(1, %d, n, %d):to 'bf16':to 'cuda':requires_grad_() end
    local q, k, v = x(%d), x(1), x(1)
    local tokens, docs = q:size(2), nil
    if tokens > 24 then docs = ul.arange(0, tokens + 1, 32, { dtype = 'i64' }):to 'cuda' end
    local ok, why = pcall(function()
      local y = ul.F.attention(q, k, v, { causal = true, docs = docs })
      ul.backward({ y }, { ul.ones_like(y:detach()) })
    end)
    if not ok then print(why) end
    print(ul.attention_report())
  ]]):format(backend, before or '', tokens or 24, dim, heads))
  f:close()
  local text = output(env, 'luajit ' .. file)
  os.remove(file)
  return text
end

describe('attention by cuDNN', function()
  if not is_there(fakes .. '/libcudnn.so.9') then
    pending('its stand-in is not built')
    return
  end
  if os.getenv 'CUEMU_ORDER' == 'random' then
    pending('has no two threads that meet: one order is enough')
    return
  end

  local ways = {
    { 'in any order', {}, 'any_order', 'backward: 15 calls by cuDNN, engine 77' },
    { 'in one order on Hopper', { FAKE_CUDNN_VERSION = 92500 }, 'in_order',
      'backward: 15 calls by cuDNN, engine 6' },
    { 'in one order on Blackwell', { CUEMU_CAPABILITY = 100 }, 'in_order',
      'backward: 15 calls by cuDNN, engine 5' },
  }
  for _, way in ipairs(ways) do
    it('gives what the cpu gives in f64, ' .. way[1], function()
      local command = 'luajit tests/cuda/cudnn_attention.lua cudnn ' .. way[3]
      local text = output(with_fake(way[2]), command)
      assert.truthy(text:find('16 passed, 0 failed', 1, true), text)
      assert.truthy(text:find('forward: 16 calls by cuDNN, engine 77', 1, true), text)
      assert.truthy(text:find(way[4], 1, true), text)
    end)
  end

  local function says(text, ...)
    for _, words in ipairs { ... } do assert.truthy(text:find(words, 1, true), text) end
  end

  it('runs forward only, where backward would not be in one order', function()
    says(attempt(with_fake {}, 'auto', 1, 16, nil, 1024), 'forward: 1 call by cuDNN, engine 77',
         'backward: 1 call by our own kernel: its backward adds in any order, or needs memory '
           .. 'quadratic in the tokens, on this GPU with this version')
    says(attempt(with_fake {}, 'auto', 1, 16, 'ul.deterministic(false)', 1024),
         'backward: 1 call by cuDNN')
    says(attempt(with_fake {}, 'native', 4, 64),
         'forward: 1 call by our own kernel: the native one was asked for')
    says(attempt(with_fake {}, 'auto', 4, 64),
         'forward: 1 call by our own kernel: rows of under 1024 tokens do not repay')
  end)

  it('leaves what needs much memory to our own kernel', function()
    says(attempt(with_fake { FAKE_CUDNN_WORKSPACE = 1200000000 }, 'auto', 1, 16, nil, 1024),
         'forward: 1 call by our own kernel: its 1144 MiB of scratch memory are over a sixteenth')
  end)

  it('refuses a backward in one order that is asked for, and says what helps', function()
    says(attempt(with_fake {}, 'cudnn', 4, 64),
         'cuda: attention (backward): cuDNN was asked for, but its backward adds in any order',
         'cuDNN 9.19.0', 'deterministic(false)', "attention_backend 'auto'")
  end)

  it('says which head sizes it does not take', function()
    says(attempt(with_fake {}, 'cudnn', 4, 100),
         'cuda: attention: cuDNN was asked for, but the head size is not divisible by 8 '
           .. '(head size 100, cuDNN 9.19.0)')
    says(attempt(with_fake {}, 'cudnn', 4, 256),
         'but no engine of cuDNN takes this shape (head size 256')
    says(attempt(with_fake {}, 'auto', 1, 200, nil, 1024),
         'forward: 1 call by our own kernel: no engine of cuDNN takes this shape')
    says(attempt(with_fake {}, 'cudnn', 4, 264), 'but the head size is over 256')
  end)

  it('says that the library is too old, or can not use the device', function()
    says(attempt(with_fake { FAKE_CUDNN_VERSION = 91001 }, 'cudnn', 4, 64),
         'but libcudnn.so.9 is 9.10.1, and 9.10.2 or newer is needed (head size 64)')
    says(attempt(with_fake { FAKE_CUDNN_VERSION = 91001 }, 'auto', 1, 16, nil, 1024), 'no cuDNN',
         'forward: 1 call by our own kernel: libcudnn.so.9 is 9.10.1')
    says(attempt(with_fake { FAKE_CUDNN_CREATE = 1001 }, 'cudnn', 4, 64),
         'but cuDNN 9.19.0 can not use this device: FAKE_BAD_PARAM')
  end)

  it('says where the library has been looked for', function()
    local preload = ('%s %s'):format(os.getenv 'LD_PRELOAD' or '', fakes .. '/hide_library.so')
    local hidden = { LD_PRELOAD = preload, HIDE_LIBRARY = 'libcudnn.so',
                     UL_CUDA_LIB_PATH = '/nowhere' }
    says(attempt(hidden, 'cudnn', 4, 64),
         'but no libcudnn.so.9 in UL_CUDA_LIB_PATH (/nowhere), the loader')
    says(attempt(hidden, 'auto', 1, 16, nil, 1024), 'no cuDNN',
         'forward: 1 call by our own kernel: no libcudnn.so.9 in')
  end)

  it('leaves gradients that add up to our own kernel, even where cuDNN is asked for', function()
    says(attempt(with_fake {}, 'cudnn', 2, 64, [[
      ul.deterministic(false)
      local q = ul.randn(1, 24, 2, 64):to 'bf16':to 'cuda':requires_grad_()
      local x = q * 1
      local y = ul.F.attention(x, q, q, { causal = true })
      local z = ul.F.attention(x, q, q, { causal = true })
      ul.backward({ y, z }, { ul.ones_like(y:detach()), ul.ones_like(y:detach()) })
    ]]), 'backward: 1 call by our own kernel: gradients are added to what is there')
  end)
end)
