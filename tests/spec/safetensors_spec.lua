-- safetensors_spec.lua - files of tensors: what is written reads back bit for bit, and a file that
-- breaks a rule of the format is refused by its name and the reason.
local ffi = require 'ffi'
local checkpoints = require 'tests.checkpoints'
local core = require 'ulysses.core'
local dtype_bytes = require 'ulysses.dtype_bytes'
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local safetensors = ul.safetensors

local folder

local function path_of(name) return folder .. '/' .. name end

local function write(name, text)
  local file = assert(io.open(path_of(name), 'wb'))
  file:write(text)
  file:close()
  return path_of(name)
end

local function read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

local function length_text(n)
  local text = ''
  for _ = 1, 8 do
    text, n = text .. string.char(n % 256), math.floor(n / 256)
  end
  return text
end

local function made(header, data) return length_text(#header) .. header .. (data or '') end

local function sentence_of(text)
  local path = write('wrong.safetensors', text)
  local file, sentence = safetensors.open(path)
  assert.is_nil(file)
  assert.equal(path .. ': ', sentence:sub(1, #path + 2))
  return sentence:sub(#path + 3)
end

local function bytes_of(tensor)
  local width = dtype_bytes[tensor:dtype()]
  local plain = tensor:contiguous():to 'cpu'
  return ffi.string(plain:data(), plain:numel() * width)
end

local function same(expected, actual)
  assert.same(expected.shape, actual.shape)
  assert.equal(expected:dtype(), actual:dtype())
  assert.equal(bytes_of(expected), bytes_of(actual))
end

-- The sentence of an error, without the place that a call's error begins with.
local function error_of(f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  return (tostring(message):gsub('^[^ ]-:%d+: ', ''))
end

describe('safetensors', function()
  setup(function()
    folder = checkpoints.folder()
    assert(require('ulysses.core').folder_make(folder))
  end)
  teardown(function() require('ulysses.core').path_remove(folder) end)
  after_each(function()
    ul.debug.fail_allocation(0)
    ul.debug.fail_write(0)
  end)

  local function everything()
    return {
      wide = ul.randn(3, 5), ['m.brain'] = ul.randn(4, 2):to 'bf16', exact = ul.rand(7):to 'f64',
      ids = ul.tensor({ -2 ^ 31, 2 ^ 31 - 1 }, { dtype = 'i32' }),
      long = ul.tensor({ -2 ^ 53, 9007199254740993LL }, { dtype = 'i64' }),
      bytes = ul.tensor({ 0, 255, 7 }, { dtype = 'u8' }),
      number = ul.tensor(3.25), empty = ul.empty(0, 4), ['h\195\169'] = ul.randn(2, 1, 2, 1, 2),
      turned = ul.randn(3, 4):transpose(1, 2), odd = ul.tensor { 0 / 0, -0.0, 1 / 0, 1e-42 },
    }
  end

  it('keeps every dtype and shape bit for bit', function()
    local tensors, path = everything(), path_of 'all.safetensors'
    local bytes, hash = safetensors.save(path, tensors)
    assert.equal(bytes, #read(path))
    assert.equal(hash, require('ulysses.core').hash(read(path)))
    local file = assert(safetensors.open(path))
    local n = 0
    for name, tensor in pairs(tensors) do
      n = n + 1
      assert.equal(tensor:dtype(), file:dtype(name))
      assert.same(tensor.shape, file:shape(name))
      same(tensor, file:get(name))
    end
    assert.equal(n, #file:names())
    assert.equal(('safetensors %s, %d tensors'):format(path, n), tostring(file))
    file:close()
    assert.equal('safetensors: the file has been closed', error_of(file.names, file))
  end)

  it('writes the widest dtypes first, aligned, then by name', function()
    local path = path_of 'order.safetensors'
    safetensors.save(path, {
      { 'b', ul.zeros(1) }, { 'a', ul.zeros(1, { dtype = 'u8' }) }, { 'c', ul.zeros(3) },
      { 'z', ul.zeros(1, { dtype = 'i64' }) }, { 'd', ul.zeros(1, { dtype = 'bf16' }) },
      { 'e', ul.zeros(1, { dtype = 'f64' }) }, { 'f', ul.zeros(1, { dtype = 'i32' }) },
    })
    local file = assert(safetensors.open(path))
    assert.same({ 'z', 'e', 'b', 'c', 'f', 'd', 'a' }, file:names())
    local text = read(path)
    assert.equal(0, (text:byte(1) + text:byte(2) * 256) % 8)
  end)

  it('writes metadata, and the format that readers expect', function()
    local path = path_of 'meta.safetensors'
    safetensors.save(path, {}, { metadata = { step = '12', title = '\195\169"\n' } })
    local file = assert(safetensors.open(path))
    assert.same({ format = 'pt', step = '12', title = '\195\169"\n' }, file:metadata())
    assert.same({}, file:names())
  end)

  it('reads rows, in another dtype, into a tensor', function()
    local path, x = path_of 'rows.safetensors', ul.randn(6, 3)
    safetensors.save(path, { x = x, b = x:to 'bf16' })
    local file = assert(safetensors.open(path))
    same(x['2:4']:contiguous(), file:get('x', { first = 2, last = 4 }))
    same(x['5:']:to 'f64', file:get('x', { first = 5, dtype = 'f64' }))
    same(x:to 'bf16':to 'f32', file:get('b', { dtype = 'f32' }))
    assert.same({ 0, 3 }, file:get('x', { first = 1, last = 0 }).shape)

    local into = ul.zeros(2, 3)
    assert.equal(into, file:get('x', { into = into, first = 3 }))
    same(x['3:4']:contiguous(), into)
    local wide = ul.zeros(3, 6, { dtype = 'f64' }):transpose(1, 2)
    file:get('x', { into = wide })
    same(x:to 'f64', wide:contiguous())
    local meta = file:get('x', { device = 'meta', last = 2 })
    assert.same({ 2, 3 }, meta.shape)
    assert.equal('meta', meta:device())
  end)

  it('converts more than a piece at a time', function()
    local path, x = path_of 'big.safetensors', ul.randn(300, 701)
    safetensors.save(path, { x = x })
    local file = assert(safetensors.open(path))
    same(x:to 'f64', file:get('x', { dtype = 'f64' }))
  end)

  it('reads every half and every truth value', function()
    local halves = ffi.new 'uint16_t[65536]'
    for i = 0, 65535 do halves[i] = i end
    local path = write('half.safetensors', made(
      '{"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]},'
      .. '"t":{"dtype":"BOOL","shape":[2],"data_offsets":[131072,131074]}}',
      ffi.string(halves, 131072) .. '\0\1'))
    local file = assert(safetensors.open(path))
    assert.equal('f16', file:dtype 'h')
    assert.equal('bool', file:dtype 't')
    same(ul.tensor({ 0, 1 }, { dtype = 'u8' }), file:get 't')
    local values = file:get('h'):tolist()
    for i = 0, 65535 do
      local sign = i >= 32768 and -1 or 1
      local exponent, fraction = math.floor(i / 1024) % 32, i % 1024
      local expected = exponent == 0 and fraction * 2 ^ -24
        or (1 + fraction / 1024) * 2 ^ (exponent - 15)
      if exponent == 31 then expected = fraction == 0 and math.huge or 0 / 0 end
      expected = sign * expected
      local value = values[i + 1]
      if not (value == expected or (value ~= value and expected ~= expected)) then
        assert.equal(expected, value)
      end
    end
    assert.equal(-math.huge, 1 / values[32769])
    same(ul.tensor({ 1, 2 ^ -24 }, { dtype = 'f64' }),
         ul.cat({ file:get('h', { first = 15361, last = 15361, dtype = 'f64' }),
                  file:get('h', { first = 2, last = 2, dtype = 'f64' }) }, 1))
  end)

  it('refuses to read what it has no dtype for, yet lists it', function()
    local path = write('f8.safetensors', made(
      '{"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2],"extra":[1]}}', 'ab'))
    local file = assert(safetensors.open(path))
    assert.equal('f8_e4m3', file:dtype 'q')
    assert.equal(path .. ": tensor 'q' is F8_E4M3, which cannot be read",
                 error_of(file.get, file, 'q'))
  end)

  it('raises what was called wrongly', function()
    local path = path_of 'calls.safetensors'
    safetensors.save(path, { weight = ul.zeros(3, 2), number = ul.tensor(1) })
    local file = assert(safetensors.open(path))
    assert.equal(("get: %s has no tensor 'wieght'; did you mean 'weight'?"):format(path),
                 error_of(file.get, file, 'wieght'))
    assert.equal("get: rows 2 to 4 of 'weight', which has 3",
                 error_of(file.get, file, 'weight', { first = 2, last = 4 }))
    assert.equal("get: 'number' has no dims, and so no rows",
                 error_of(file.get, file, 'number', { first = 2 }))
    assert.equal(path .. ": tensor 'weight' is [3, 2] in the file; [3, 3] from row 1 on do not fit",
                 error_of(file.get, file, 'weight', { into = ul.zeros(3, 3) }))
    assert.matches('takes part in differentiation',
                   error_of(file.get, file, 'weight', { into = ul.zeros(3, 2):requires_grad_() }))
    assert.equal("get: no option 'frist'; did you mean 'first'?",
                 error_of(file.get, file, 'weight', { frist = 1 }))
    assert.equal("safetensors.save: expected tensors by name, got a number for 'x'",
                 error_of(safetensors.save, path, { x = 1 }))
    assert.equal(path .. ": tensor 'x' is on meta and has no values",
                 error_of(safetensors.save, path, { x = ul.zeros(1, { device = 'meta' }) }))
    assert.equal(path .. ": two tensors have the name 'x'",
                 error_of(safetensors.save, path, { { 'x', ul.zeros(1) }, { 'x', ul.ones(1) } }))
    assert.equal(path .. ": no tensor can have the name '__metadata__'",
                 error_of(safetensors.save, path, { __metadata__ = ul.zeros(1) }))
    assert.matches('is no UTF%-8$', error_of(safetensors.save, path, { ['\255'] = ul.zeros(1) }))
    same(ul.zeros(3, 2), file:get 'weight')
  end)

  it('replaces files alone', function()
    local path = path_of 'pipe'
    os.execute('mkfifo ' .. path)
    local _, refusal = pcall(safetensors.save, path, { x = ul.zeros(1) })
    assert.equal(path .. ': cannot be replaced: it is no file', tostring(refusal))
    assert.equal('pipe', core.system.kind_of(path))
  end)

  it('refuses what is no file of tensors', function()
    local _, sentence = safetensors.open(path_of 'nowhere')
    assert.equal(path_of 'nowhere' .. ': cannot be read: No such file or directory', sentence)
    _, sentence = safetensors.open(folder)
    assert.equal(folder .. ': is no file', sentence)
    assert.equal('no safetensors: it is 0 bytes long', sentence_of '')
    assert.equal('no safetensors: it is 7 bytes long', sentence_of '1234567')
    assert.equal('no safetensors: no header', sentence_of(made ''))
    assert.equal('no safetensors: no header', sentence_of(made ' {}'))
    assert.equal('is cut off: a header of 9 bytes in a file of 10',
                 sentence_of(length_text(9) .. '{}'))
    assert.equal('no safetensors: a header of 100000001 bytes, at most 100000000',
                 sentence_of(length_text(100000001) .. '{}'))
    assert.matches('at most 100000000$', sentence_of(('\255'):rep(8) .. '{}'))
  end)

  it('refuses a header that breaks a rule', function()
    local function entry(fields) return made('{"a":{' .. fields .. '}}', 'abcdefgh') end
    for _, case in ipairs {
      { made '{', 'the header is damaged: line 1, column 1: ' },
      { made '{}x', 'the header is damaged: line 1, column 3: end of file expected' },
      { made '{"a":"\255"}', 'the header is damaged: .*unable to decode byte 0xff' },
      { made '{"a":1,"a":1}', "duplicate object key near '\"a\"'" },
      { made('{"a":[[[[[[[[1]]]]]]]]}'), '^the header nests deeper than 8$' },
      { made '{"a":1}', "^tensor 'a' has no fields$" },
      { made '{"__metadata__":[]}', '^__metadata__ is no object$' },
      { made '{"__metadata__":{"n":1}}', "^__metadata__: 'n' is no string$" },
      { entry '"shape":[2],"data_offsets":[0,8]', "^tensor 'a' has no dtype$" },
      { entry '"dtype":"f32","shape":[2],"data_offsets":[0,8]', "there is no dtype 'f32'$" },
      { entry '"dtype":"F32","data_offsets":[0,8]', 'has no shape$' },
      { entry '"dtype":"F32","shape":[2.0],"data_offsets":[0,8]', 'size 1 of its shape is no' },
      { entry '"dtype":"F32","shape":[-2],"data_offsets":[0,8]', 'size 1 of its shape is no' },
      { entry '"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]', '9 dims' },
      { entry '"dtype":"F32","shape":[2]', 'has no data_offsets$' },
      { entry '"dtype":"F32","shape":[2],"data_offsets":[0,8,8]', 'has no data_offsets$' },
      { entry '"dtype":"F32","shape":[2],"data_offsets":[0,8.5]', 'has no data_offsets$' },
      { entry '"dtype":"F32","shape":[2],"data_offsets":[-8,0]', 'has no data_offsets$' },
      { entry '"dtype":"F32","shape":[2],"data_offsets":[8,0]', 'at 0 before it begins at 8$' },
      { entry '"dtype":"F32","shape":[3],"data_offsets":[0,8]',
        'F32 %[3%] takes 12 bytes, and it has 8$' },
      { entry '"dtype":"F4","shape":[3],"data_offsets":[0,1]', 'F4 %[3%] ends within a byte$' },
      { entry '"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]',
        'is too large$' },
      { entry '"dtype":"F32","shape":[1],"data_offsets":[4,8]',
        'begins at 4 of the data, where 0 was expected$' },
      { entry '"dtype":"F32","shape":[1],"data_offsets":[0,4]', 'and its header asks for' },
      { entry '"dtype":"F64","shape":[2],"data_offsets":[0,16]', 'and its header asks for' },
    } do
      assert.matches(case[2], sentence_of(case[1]))
    end
    assert.matches("^tensor 'b' begins at 0 of the data, where 4 was expected$", sentence_of(made(
      '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
      .. '"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 'abcd')))
  end)

  it('agrees with the collected files about what is wrong', function()
    local found
    for _, place in ipairs { 'shared', '../shared', '../../shared' } do
      found = found or require('ulysses.core').folder_list(place .. '/data/safetensors')
      if found then found.place = found.place or place .. '/data/safetensors/' end
    end
    if not found then return pending 'the collection of files is not here' end
    for _, name in ipairs(found) do
      local file, sentence = safetensors.open(found.place .. name)
      if name:match '^ok_' then
        assert(file, sentence)
        for _, tensor in ipairs(file:names()) do file:get(tensor) end
      else
        assert.is_nil(file, name)
        assert.equal(found.place .. name .. ': ', sentence:sub(1, #found.place + #name + 2))
      end
    end
    assert.is_true(#found >= 25)
  end)

  it('notices a file that is cut off while it is open', function()
    local path = path_of 'cut.safetensors'
    safetensors.save(path, { x = ul.randn(1000) })
    local file = assert(safetensors.open(path))
    write('cut.safetensors', read(path):sub(1, -100))
    assert.matches('^' .. path .. ': ends at byte %d+, too early$', error_of(file.get, file, 'x'))
  end)

  it('survives every cut of a file', function()
    local path = path_of 'whole.safetensors'
    safetensors.save(path, { x = ul.randn(2), y = ul.randn(3):to 'bf16' })
    local text = read(path)
    for n = 0, #text - 1 do sentence_of(text:sub(1, n)) end
    sentence_of(text .. '\0')
  end)

  it('leaves the file before in place when a step of writing fails', function()
    local path, before = path_of 'steps.safetensors', ul.randn(5)
    safetensors.save(path, { x = before })
    local first = ul.debug.writes()
    safetensors.save(path, { x = before })
    local steps = ul.debug.writes() - first
    assert.is_true(steps >= 6)
    for _, error in ipairs { 'ENOSPC', 'EIO', 'EFBIG' } do
      for n = 1, steps do
        ul.debug.fail_write(n, error)
        -- The last step only makes sure of the name: the new file is there by then.
        local x = n == steps and before or ul.randn(5)
        local message = error_of(safetensors.save, path, { x = x })
        assert.matches('^' .. folder .. '.*: cannot be .*: [%w /]+$', message)
        same(before, assert(safetensors.open(path)):get 'x')
        assert.is_nil(io.open(path .. '.tmp'))
      end
    end
    assert.equal(path_of 'none/x.tmp' .. ': cannot be created: No such file or directory',
                 error_of(safetensors.save, path_of 'none/x', {}))
  end)

  it('lets one process at a time write a file', function()
    local path, x = path_of 'shared.safetensors', ul.randn(5)
    local held = core.system.lock(path .. '.tmp')
    assert.equal(path .. ': another process is writing it',
                 error_of(safetensors.save, path, { x = x }))
    assert.truthy(core.system.kind_of(path .. '.tmp'))
    held:release() -- as when it was killed
    safetensors.save(path, { x = x })
    same(x, assert(safetensors.open(path)):get 'x')
    assert.is_nil(core.system.kind_of(path .. '.tmp'))
  end)

  it('writes what a link points at', function()
    local x = ul.randn(5)
    assert(core.folder_make(path_of 'disk'))
    assert(core.file_point(path_of 'link', 'disk/real'))
    safetensors.save(path_of 'disk/real', { x = ul.randn(3) })
    safetensors.save(path_of 'link', { x = x })
    assert.equal('disk/real', core.system.link_of(path_of 'link'))
    same(x, assert(safetensors.open(path_of 'disk/real')):get 'x')
    assert.same({ 'real' }, core.folder_list(path_of 'disk'))
    assert(core.file_point(path_of 'null', '/dev/null'))
    assert.equal(path_of 'null' .. ': cannot be replaced: it is no file',
                 error_of(safetensors.save, path_of 'null', { x = x }))
  end)

  it('makes what a link points at, and keeps the link', function()
    local x = ul.randn(5)
    assert(core.folder_make(path_of 'far'))
    assert(core.file_point(path_of 'far/second', 'new'))
    assert(core.file_point(path_of 'first', path_of 'far/second'))
    safetensors.save(path_of 'first', { x = x })
    assert.same({ path_of 'far/second', 'new' },
                { core.system.link_of(path_of 'first'), core.system.link_of(path_of 'far/second') })
    same(x, assert(safetensors.open(path_of 'far/new')):get 'x')
    assert.same({ 'new', 'second' }, core.folder_list(path_of 'far'))
    assert(core.file_point(path_of 'gone', 'nowhere/x'))
    assert.equal(path_of 'nowhere/x.tmp' .. ': cannot be created: No such file or directory',
                 error_of(safetensors.save, path_of 'gone', { x = x }))
    assert.equal('nowhere/x', core.system.link_of(path_of 'gone'))
    assert(core.file_point(path_of 'there', 'back'))
    assert(core.file_point(path_of 'back', 'there'))
    assert.equal(path_of 'there' .. ': its links lead nowhere',
                 error_of(safetensors.save, path_of 'there', { x = x }))
  end)

  it('loses nothing that has the name it writes to first', function()
    local x, other = ul.randn(5), path_of 'other'
    safetensors.save(other, { x = x })
    for target, name in pairs { [other] = 'a.tmp', ['/dev/null'] = 'b.tmp', nowhere = 'c.tmp' } do
      assert(core.file_point(path_of(name), target))
      assert.equal(path_of(name) .. ': is no file, and in the way; move it',
                   error_of(safetensors.save, path_of(name:sub(1, 1)), { x = ul.randn(2) }))
      assert.equal(target, core.system.link_of(path_of(name)))
    end
    same(x, assert(safetensors.open(other)):get 'x')
  end)

  it('frees all when an allocation fails', function()
    local path, tensors = path_of 'memory.safetensors', { x = ul.randn(4, 3):transpose(1, 2),
                                                           y = ul.randn(2) }
    safetensors.save(path, tensors)
    local into = ul.zeros(3, 4, { dtype = 'f64' }):transpose(1, 2)
    into = into:transpose(1, 2)
    local function work()
      ul.scope(function()
        safetensors.save(path, tensors)
        local file = assert(safetensors.open(path))
        file:get('x', { into = into })
        file:get('y', { dtype = 'bf16' })
        assert(require('ulysses.core').file_sum(path))
        file:close()
      end)
    end
    work()
    collectgarbage()
    local live = ul.memory(home).live
    local count = ul.debug.allocations()
    work()
    count = ul.debug.allocations() - count
    for n = 1, count do
      ul.debug.fail_allocation(n)
      assert.is_false((pcall(work)))
      ul.debug.fail_allocation(0)
      collectgarbage()
      assert.equal(live, ul.memory(home).live)
      assert(safetensors.open(path)):close()
    end
    work()
    assert.same({ path:match '[^/]+$' }, (function()
      local left = {}
      for _, name in ipairs(require('ulysses.core').folder_list(folder)) do
        if name:match '^memory' then left[#left + 1] = name end
      end
      return left
    end)())
  end)
end)

-- Files that others have found to be read wrongly: bad_ must be refused, ok_ read, and strict_ is
-- taken by the reference reader, not by this one.
describe('files of every kind', function()
  local wrong = {
    data_no_tensors = 'is 14 bytes long, and its header asks for 10',
    dup_key_distinct = 'duplicate object key', end_before_begin = 'ends at 0 before it begins at 4',
    f4_misaligned = 'F4 [3] ends within a byte', hdr_len_100mb_plus = 'a header of 100000001 bytes',
    hdr_len_i64edge = 'a header of 9223372036854775808 bytes', hdr_zero_len = 'no header',
    hole_start = 'begins at 4 of the data', lower_dtype = "there is no dtype 'f32'",
    meta_nonstring = "__metadata__: 'a' is no string", missing_shape = 'has no shape',
    not_json = 'no safetensors', nul_padding = 'the header is damaged',
    offset_u64_overflow = 'too big integer', same_range = "'b' begins at 0 of the data",
    shape_mul_overflow = 'is too large', size_mismatch = 'takes 8 bytes, and it has 4',
    trailing_data = 'is 74 bytes long', truncated_data = 'is 76 bytes long',
    unknown_dtype = "there is no dtype 'F33'", dup_key_same = 'duplicate object key',
  }

  it('are refused for their fault, or read', function()
    local place = require 'tests.small_tokenizers'.shared()
    if not place then return pending 'shared/data is not there' end
    place = place .. 'safetensors/'
    for _, name in ipairs(core.folder_list(place)) do
      local kind, fault = name:match '^(%a+)_(.*)%.safetensors$'
      local file, why = safetensors.open(place .. name)
      if kind == 'ok' then
        for _, tensor in ipairs(assert(file, why):names()) do file:get(tensor) end
        file:close()
      elseif kind then
        assert.is_nil(file, name)
        assert.truthy(why:find(assert(wrong[fault], name), 1, true), why)
        assert.truthy(why:find(name, 1, true), why)
      end
    end
  end)
end)
