-- data_files_spec.lua - text from files: plain, gzipped, by pattern, and what is refused.
local program = require 'tests.program'
local ul = require 'ulysses'

local root

local function shell(command) assert(os.execute(command) == 0, command) end

local function write(name, text)
  local file = assert(io.open(root .. '/' .. name, 'wb'))
  file:write(text)
  file:close()
  return root .. '/' .. name
end

-- The sentence of the refusal that f ends in, with $ for the folder.
local function sentence(f, ...)
  local ok, refusal = pcall(f, ...)
  assert.is_false(ok)
  assert.is_table(refusal)
  return (tostring(refusal):gsub(root:gsub('%W', '%%%0'), '$'))
end

local function tokens(pattern) return ul.data.read(pattern):tokenize('bytes').tokens:tolist() end

describe('files of text', function()
  before_each(function()
    root = os.tmpname()
    os.remove(root)
    shell('mkdir ' .. root)
  end)
  after_each(function() shell('rm -rf ' .. root) end)

  it('are read plain, gzipped and by pattern', function()
    local path = write('a.txt', 'hello')
    write('b.txt', 'you')
    shell(('mkdir %s/c.txt'):format(root))
    assert.same({ 'hello' }, ul.data.read(path):documents())
    assert.same({ 104, 101, 108, 108, 111, 257 }, tokens(path))
    assert.same({ 'hello', 'you' }, ul.data.read(root .. '/*.txt'):documents())
    assert.same({ 'you' }, ul.data.read(root .. '/[b-z].txt'):documents())
    shell(('gzip -k %s/*.txt 2>/dev/null || true'):format(root))
    assert.same({ 'hello' }, ul.data.read(path .. '.gz'):documents())
    assert.same({ 104, 101, 108, 108, 111, 257 }, tokens(path .. '.gz'))
  end)

  it('lose the byte-order mark that some programs begin with', function()
    local mark = '\239\187\191'
    local path = write('marked.txt', mark .. 'h\195\169' .. mark)
    assert.same({ 'h\195\169' .. mark }, ul.data.read(path):documents())
    shell('gzip -k ' .. path)
    assert.same({ 104, 195, 169, 239, 187, 191, 257 }, tokens(path .. '.gz'))
    assert.same({ 239, 187, 257 }, tokens(write('half.txt', mark:sub(1, 2))))
    path = write('chats.jsonl', mark .. '{"text":"a"}\r\n' .. mark .. '{"text":"b"}\r\n')
    assert.equal(2, #ul.data.chat(path):tokenize('bytes').starts)
  end)

  it('of any size and any bytes arrive whole', function()
    local parts = {}
    for i = 1, 50000 do parts[i] = string.char(i % 256, i * 7 % 251, 10, 0) end
    local text = table.concat(parts)
    local path = write('big', text)
    assert.equal(text, ul.data.read(path):documents()[1])
    shell('gzip ' .. path)
    assert.equal(text, ul.data.read(path .. '.gz'):documents()[1])
    local corpus = ul.data.read(path .. '.gz'):tokenize 'bytes'
    assert.equal(ul.data.from(text):tokenize('bytes'):hash(), corpus:hash())
  end)

  it('may have any name', function()
    local name = "it's $(touch pwned) `x` \"y\" ;&|<> %s"
    local path = write(name, 'in')
    assert.same({ 'in' }, ul.data.read(path):documents())
    assert.same({ 'in' }, ul.data.read((path:gsub('touch', 't*'))):documents())
    shell(('gzip %s'):format(write('plain', 'packed')))
    assert(os.rename(root .. '/plain.gz', path .. '.gz'))
    assert.same({ 'packed' }, ul.data.read(path .. '.gz'):documents())
    assert.is_nil(io.open 'pwned')
  end)

  it('lie below the home folder', function()
    local home = os.getenv 'HOME'
    if not home then return pending 'no HOME' end
    assert.matches(home:gsub('%W', '%%%0') .. '/no such file',
                   sentence(ul.data.read, '~/no such file'))
  end)

  it('that are missing are named, and one of a like name', function()
    write('guide.md', 'x')
    assert.equal("data.read: no file '$/gude.md'; did you mean '$/guide.md'?",
                 sentence(ul.data.read, root .. '/gude.md'))
    assert.equal("data.read: no file '$/zzzz.txt'", sentence(ul.data.read, root .. '/zzzz.txt'))
    assert.equal("data.read: no file '$/*.txt'", sentence(ul.data.read, root .. '/*.txt'))
    assert.equal("data.read: no file '$/dox/a.md', for there is no folder '$/dox/'",
                 sentence(ul.data.read, root .. '/dox/a.md'))
    assert.matches("data_files_spec.lua:%d+: data.read: expected the name of a file, got a nil",
                   select(2, pcall(function() ul.data.read() end)))
  end)

  it('that are folders, empty or damaged are refused', function()
    assert.equal("data.read: '$' is a folder; its files are $/*", sentence(ul.data.read, root))
    local empty = write('empty.txt', '')
    assert.equal("data.read: '$/empty.txt' is empty", sentence(tokens, empty))
    local path = write('a.txt', ('some words and more\n'):rep(100000))
    shell('gzip ' .. path)
    shell(('head -c 3000 %s.gz > %s.cut.gz'):format(path, path))
    assert.matches("^data.read: '%$/a.txt.cut.gz' is damaged: gzip fails after %d+ bytes of text$",
                   sentence(tokens, path .. '.cut.gz'))
    assert.matches("'%$/b.gz' is damaged: gzip fails after 0 bytes",
                   sentence(tokens, write('b.gz', 'no gzip')))
  end)

  it('that may not be read are refused', function()
    local path = write('secret', 'x')
    shell('chmod 000 ' .. path)
    local file = io.open(path)
    if file then
      file:close()
      return pending 'this user may read everything'
    end
    assert.equal('data.read: cannot read $/secret: Permission denied', sentence(tokens, path))
  end)
end)

-- What a script says that a launcher has started like this.
local function said_by(variables, text)
  local path = os.tmpname()
  local file = io.open(path, 'w')
  file:write(text)
  file:close()
  local output, status = program.shell(('%s $P %s'):format(variables, path))
  os.remove(path)
  assert.equal(0, status, output)
  return output
end

describe('the sample', function()
  it('is the documentation where the text is missing, and says so when read', function()
    local sample = require 'ulysses.data.sample'
    local path = sample.sample '/no such file'
    assert.matches('docs/%*%.md$', path)
    local said, stderr = '', io.stderr
    rawset(io, 'stderr', { write = function(_, ...) said = said .. table.concat { ... } end,
                           flush = function() end })
    local ok, text = pcall(ul.data.read, path)
    pcall(ul.data.read, path)
    rawset(io, 'stderr', stderr)
    assert.is_true(ok)
    assert.matches('# ', text:documents()[1])
    assert.matches('^data.sample: .*taking the documentation of this project instead\n$', said)
    assert.equal(1, select(2, said:gsub('instead', '')))
  end)

  it('is announced by the first of several ranks', function()
    if not program.path then pending 'no program beside the module' end
    local text = "local ul = require 'ulysses'\nul.data.read(require 'ulysses.data.sample'.sample "
      .. "'/no such file')"
    for first, second in pairs {
      ['OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0'] =
        'OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1',
      ['WORLD_SIZE=2 RANK=0'] = 'WORLD_SIZE=2 RANK=1',
      ['SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0'] = 'SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1',
    } do
      assert.matches('^data.sample: ', said_by(first, text))
      assert.equal('', said_by(second, text))
    end
  end)
end)
