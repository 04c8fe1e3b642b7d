-- checkpoint_faults_spec.lua - saving on disks that fail: whatever step of it fails, or is the last
-- before the program is killed, there is a whole checkpoint, and the next save works.
local ul = require 'ulysses'
local core = require 'ulysses.core'
local checkpoints = require 'tests.checkpoints'
local program = require 'tests.program'
local checkpoint = ul.checkpoint

local folder

local function names_in(path)
  local list = assert(core.folder_list(path))
  table.sort(list)
  return list
end

-- What undisturbed runs to each step end with.
local expected = {}

local function expect(folder_of_run, step)
  if not expected[step] then
    local other = checkpoints.folder()
    local model, optimizer = checkpoints.run(other, step)
    expected[step] = checkpoints.values(model, optimizer)
    core.path_remove(other)
  end
  local model, optimizer, at = checkpoints.run(folder_of_run, 0)
  assert.equal(step, at)
  assert.same(expected[step], checkpoints.values(model, optimizer))
end

-- How many steps on the disk a save takes after two others.
local function count_steps()
  local first
  checkpoints.run(folder, 3, { before = function(step)
    if step == 3 then first = ul.debug.writes() end
  end })
  local count = ul.debug.writes() - first
  core.path_remove(folder)
  return count
end

-- A shell command that runs Lua code, with `folder` in it, in the program. The shell waits for it,
-- and says so itself where it is killed.
local function lua(code)
  local script = folder .. '.lua'
  local file = assert(io.open(script, 'w'))
  file:write(("local folder, checkpoints = '%s', require 'tests.checkpoints'\n"):format(folder),
             "local ul = require 'ulysses'\n", code)
  file:close()
  return program.path .. ' ' .. script .. '; exit $?'
end

describe('a checkpoint', function()
  before_each(function()
    folder = checkpoints.folder()
  end)
  after_each(function()
    ul.debug.fail_write(0)
    core.path_remove(folder)
    os.remove(folder .. '.lua')
  end)

  it('outlives a save of which any step fails', function()
    local count = count_steps()
    assert.is_true(count > 25)
    local kinds, outcomes = { 'ENOSPC', 'EIO', 'EFBIG' }, {}
    for n = 1, count do
      checkpoints.run(folder, 2)
      local ok, refused = pcall(checkpoints.run, folder, 3, {
        before = function() ul.debug.fail_write(n, kinds[n % 3 + 1]) end,
      })
      assert.is_false(ok)
      assert.equal(folder, refused.sentence:sub(1, #folder), tostring(refused))
      assert.matches(': cannot be .*: [%w /]+$', refused.sentence)
      local steps = checkpoint.steps(folder)
      outcomes[steps[#steps]] = true
      -- The folder of a save that failed is gone at once.
      if not refused.sentence:find('step-1', 1, true) then
        assert.is_nil(core.folder_list(folder .. '/step-3.tmp'))
      end
      expect(folder, steps[#steps])
      checkpoints.run(folder, 4)
      assert.same({ 'latest', 'step-3', 'step-4' }, names_in(folder))
      expect(folder, 4)
      core.path_remove(folder)
    end
    assert.same({ [2] = true, [3] = true }, outcomes)
  end)

  it('outlives being replaced, whatever step of it fails', function()
    local model = checkpoints.model(1)
    local function save(n)
      return checkpoint.save(folder, 1, { model = model, state = { n = n } })
    end
    save(0)
    local first = ul.debug.writes()
    save(1)
    local count, last = ul.debug.writes() - first, 1
    for n = 1, count do
      ul.debug.fail_write(n, 'EIO')
      assert.is_false((pcall(save, n + 1)))
      assert.same({ 1 }, checkpoint.steps(folder))
      assert.is_not_nil(core.folder_list(folder .. '/step-1'))
      local found = checkpoint.load(folder, { warn = error }).n
      assert.is_true(found == last or found == n + 1)
      last = found
    end
    save(99)
    assert.same({ 'latest', 'step-1' }, names_in(folder))
    assert.equal(99, checkpoint.load(folder).n)
  end)

  it('outlives the program, killed at any step', function()
    local count = count_steps()
    local outcomes = {}
    for n = 1, count do
      checkpoints.run(folder, 2)
      local _, status = program.shell(lua([[
        checkpoints.run(folder, 3, { before = function() ul.debug.fail_write(]] .. n
        .. [[, 'SIGKILL') end })]]))
      assert.equal(137, status)
      local steps = checkpoint.steps(folder)
      outcomes[steps[#steps]] = true
      expect(folder, steps[#steps])
      checkpoints.run(folder, 4)
      assert.same({ 'latest', 'step-3', 'step-4' }, names_in(folder))
      expect(folder, 4)
      core.path_remove(folder)
    end
    assert.same({ [2] = true, [3] = true }, outcomes)
  end)

  it('is not saved into a folder that another process saves into', function()
    local model, optimizer = checkpoints.run(folder, 1)
    local held = core.system.lock(folder .. '/saving.lock')
    assert(core.folder_make(folder .. '/step-9.tmp')) -- what that one is at
    local given = { model = model, optim = optimizer }
    local function save() return checkpoint.save(folder, 2, given) end
    assert.error_matches(save, ': another process is saving into it %(process %d+%)')
    checkpoint.load(folder, given)
    assert.same({ 'latest', 'saving.lock', 'step-1', 'step-9.tmp' }, names_in(folder))
    held:release() -- as when it was killed
    save()
    assert.same({ 'latest', 'step-1', 'step-2' }, names_in(folder))
  end)

  it('that was being replaced when the program was killed is there', function()
    local save = [[
      local model = checkpoints.model(1)
      ul.checkpoint.save(folder, 1, { model = model, optim = ul.optim.sgd(model) })
    ]]
    local model = checkpoints.model(1)
    local optimizer = ul.optim.sgd(model)
    local first
    for _ = 1, 2 do
      first = ul.debug.writes()
      checkpoint.save(folder, 1, { model = model, optim = optimizer })
    end
    for n = 1, ul.debug.writes() - first do
      local _, status = program.shell(lua(('ul.debug.fail_write(%d, "SIGKILL")\n%s'):format(n,
                                                                                        save)))
      assert.equal(137, status)
      assert.same({ 1 }, checkpoint.steps(folder))
      assert.equal(1, checkpoint.load(folder, { model = model, warn = error }).step)
      -- Who goes on from it tidies up first.
      local given = { model = model, optim = optimizer, warn = error }
      assert.equal(1, checkpoint.load(folder, given).step)
      assert.same({ 'latest', 'step-1' }, names_in(folder))
    end
  end)

  it('is finished before Ctrl-C is an error', function()
    local output = program.shell(lua [[
      local core, ffi = require 'ulysses.core', require 'ffi'
      ffi.cdef 'int raise(int);'
      local function once(name)
        local real = core[name]
        core[name] = function(...)
          core[name] = real
          ffi.C.raise(2)
          return real(...)
        end
      end
      core.signals.prompt(true)
      once 'file_write'
      print(pcall(checkpoints.run, folder, 1))
      print(#ul.checkpoint.steps(folder))
      core.signals.prompt(true)
      once 'no_grad'
      local model = checkpoints.model(2, 'bf16')
      print(pcall(ul.checkpoint.load, folder, { model = model }))
      core.signals.prompt(false)
      local expected = checkpoints.values((checkpoints.run(folder, 0)))
      for name, value in pairs(checkpoints.values(model)) do
        assert(ul.json.encode(value) == ul.json.encode(expected[name]), name)
      end
    ]])
    assert.equal('false\tinterrupted!\n1\nfalse\tinterrupted!\n', output)
  end)

  it('outlives a limit on the size of files', function()
    checkpoints.run(folder, 1, { width = 2000 })
    local output, status = program.shell('ulimit -f 32; ' .. lua [[
      print(select(2, pcall(checkpoints.run, folder, 2, { width = 2000 })))
    ]])
    assert.equal(folder .. '/step-2.tmp/model.safetensors.tmp: cannot be written: File too large\n',
                 output)
    assert.equal(0, status)
    assert.same({ 'latest', 'step-1' }, names_in(folder))
    local _, _, step = checkpoints.run(folder, 2, { width = 2000 })
    assert.equal(2, step)
  end)

  describe('on a small disk', function()
    -- Runs code with a disk of its own, that nobody else sees, at `folder`.
    local function on_disk(disk, code)
      local mount = ('mount -t tmpfs -o %s none %s'):format(disk, folder)
      local inside = ("sh -c '%s && %s'"):format(mount, lua(code))
      return program.shell(('mkdir %s; if unshare -rm %s -c : 2>/dev/null; then unshare -rm %s; '
                            .. 'else unshare -m %s; fi'):format(folder, 'sh', inside, inside))
    end

    local function try(disk, code)
      local output, status = on_disk(disk, 'print "mounted"\n' .. code)
      local rest = output:match '^mounted\n(.*)$'
      if rest then assert.equal(0, status, output) end
      return rest
    end

    it('is not begun where there is no room for it', function()
      local output = try('size=700k', [[
        local last = 0
        local _, refused = pcall(checkpoints.run, folder, 100,
                                 { width = 2000, before = function(step) last = step end })
        print(refused)
        local steps = ul.checkpoint.steps(folder)
        print(last, table.concat(steps, ' '))
        checkpoints.run(folder, last - 1, { width = 2000 })
      ]])
      if not output then return pending 'no disk can be mounted here' end
      assert.matches('^' .. folder .. ': a checkpoint needs 3%d%d kB, and the disk has %d+ kB '
                     .. 'free\n3\t1 2\n$', output)
    end)

    it('is not spoilt by a disk without room for another file', function()
      local output = try('size=4m,nr_inodes=12', [[
        print(select(2, pcall(checkpoints.run, folder, 2)))
        print(select(3, checkpoints.run(folder, 0)))
        for _, name in ipairs(require('ulysses.core').folder_list(folder)) do
          assert(not name:match 'tmp', name)
        end
      ]])
      if not output then return pending 'no disk can be mounted here' end
      assert.matches('^' .. folder .. '/step%-2.tmp.*: cannot be created: No space left on '
                     .. 'device\n1\n$', output)
    end)

    it('leaves a file of tensors alone that the new one has no room beside', function()
      local output = try('size=400k', [[
        local path = folder .. '/x.safetensors'
        ul.safetensors.save(path, { x = ul.ones(60000) })
        print(select(2, pcall(ul.safetensors.save, path, { x = ul.zeros(60000) })))
        print(ul.safetensors.open(path):get 'x':sum():item(), io.open(path .. '.tmp'))
      ]])
      if not output then return pending 'no disk can be mounted here' end
      assert.equal(folder .. '/x.safetensors.tmp: cannot be written: No space left on device\n'
                   .. '60000\tnil\n', (output:gsub('(60000\tnil).-\n', '%1\n')))
    end)
  end)
end)
