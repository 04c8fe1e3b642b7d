-- signals_spec.lua - core.signals: what is noted, what is raised, and when neither may happen.
local ffi = require 'ffi'
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local signals = require('ulysses.core').signals

ffi.cdef 'int raise(int number);'
local INT, TERM = 2, 15

-- What f raises; f is not compiled, as what is typed at the prompt is not.
local function raised(f)
  jit.off(f, true)
  local ok, message = pcall(f)
  return not ok and message or nil
end

-- Waits for an interruption that has come already, and says so where it has not.
local function wait()
  for _ = 1, 1000 do math.abs(1) end
  error 'nothing came'
end

describe('signals', function()
  after_each(function() signals.prompt(false, 0, 0) end)

  it('are noted while they are watched', function()
    signals.watch(true)
    assert.is_nil(signals.pending())
    ffi.C.raise(INT)
    assert.equal('interrupt', signals.pending())
    assert.same({ 'interrupt' }, { signals.take() })
    assert.is_nil(signals.take())
    ffi.C.raise(INT)
    ffi.C.raise(TERM)
    assert.equal('terminate', signals.pending())
    assert.equal('terminate', signals.take())
    assert.is_nil(signals.pending())
  end)

  it('stay watched until the last one stops', function()
    signals.watch(true)
    signals.watch(true)
    signals.watch(false)
    ffi.C.raise(TERM)
    assert.equal('terminate', signals.take())
    signals.watch(false)
    signals.watch(false)
    signals.watch(true)
    ffi.C.raise(INT)
    assert.equal('interrupt', signals.take())
  end)

  it('raise at the second Ctrl-C where the first is not taken', function()
    signals.watch(true)
    ffi.C.raise(INT)
    assert.equal('interrupted!', raised(function() ffi.C.raise(INT) wait() end))
    signals.take()
    assert.matches('nothing came', raised(function() ffi.C.raise(INT) wait() end))
  end)

  it('raise at the prompt, in loops, coroutines, callbacks and calls that block', function()
    signals.prompt(true, 0, 0)
    assert.equal('interrupted!', raised(function()
      ffi.C.raise(INT)
      while true do end
    end))
    signals.prompt(true, 0, 0)
    assert.matches('interrupted!$', raised(function() -- wrap adds the position
      coroutine.wrap(function() ffi.C.raise(INT) wait() end)()
    end))
    signals.prompt(true, 0, 0)
    assert.equal('interrupted!', raised(function()
      ul.scope(function() ul.no_grad(function() ffi.C.raise(INT) wait() end) end)
    end))
    assert.is_true(ul.is_grad_enabled())
    signals.prompt(true, 0, 0)
    assert.equal('interrupted!', raised(function()
      local child = io.popen 'sleep 0.1; kill -INT $PPID; sleep 0.1'
      child:read '*a'
      wait()
    end))
  end)

  it('raise once, and again where that came to nothing', function()
    signals.prompt(true, 0, 0)
    assert.equal('interrupted!', raised(function() ffi.C.raise(INT) wait() end))
    assert.matches('nothing came', raised(wait))
    assert.equal('interrupted!', raised(function() ffi.C.raise(INT) wait() end))
  end)

  it('wait for the end of what is held', function()
    signals.prompt(true, 0, 0)
    local reached
    assert.equal('interrupted!', raised(function()
      signals.hold()
      signals.hold()
      ffi.C.raise(INT)
      for _ = 1, 100 do math.abs(1) end
      signals.release()
      reached = 'inner'
      signals.release()
      reached = 'outer'
    end))
    assert.equal('inner', reached)
    signals.release() -- one too many is no harm
    assert.equal('interrupted!', raised(function() ffi.C.raise(INT) wait() end))
  end)

  it('are not lost where they come while the engine collects', function()
    signals.prompt(true, 0, 0)
    assert.equal('interrupted!', raised(function()
      ffi.gc(ffi.new 'int[1]', function() ffi.C.raise(INT) end)
      ul.set_memory_limit(home, ul.memory(home).live + 1000)
      pcall(ul.ones, 1e7) -- collects, and fails
      wait()
    end))
    ul.set_memory_limit(home, 0)
  end)

  it('leave the hook of another in place', function()
    signals.prompt(true, 0, 0)
    debug.sethook(function() end, 'l')
    local message = raised(function() ffi.C.raise(INT) wait() end)
    local _, mask = debug.gethook()
    debug.sethook()
    assert.same({ 'interrupted!', 'l' }, { message, mask })
  end)

  it('tell how it was, for a prompt inside', function()
    signals.watch(true)
    signals.hold()
    local raises, watched, held = signals.prompt(true, 0, 0)
    assert.same({ false, 1, 1 }, { raises, watched, held })
    assert.equal('interrupted!', raised(function() ffi.C.raise(INT) wait() end))
    assert.same({ true, 0, 0 }, { signals.prompt(raises, watched, held) })
    ffi.C.raise(INT)
    assert.equal('interrupt', signals.take())
  end)

  it('end the program at the third Ctrl-C, and when nothing is watched', function()
    local script = os.tmpname()
    local function status_of(text)
      local file = io.open(script, 'w')
      file:write("local ffi = require 'ffi' ffi.cdef 'int raise(int); int signal(int, void *);'",
                 'ffi.C.signal(2, nil) local signals = require("ulysses.core").signals ', text)
      file:close()
      local pipe = io.popen(('ASAN_OPTIONS=detect_leaks=0 LUA_PATH=%q LUA_CPATH=%q luajit %s 2>&1; '
                             .. 'echo $?')
                            :format(package.path, package.cpath, script))
      local output = pipe:read '*a'
      pipe:close()
      return output
    end
    local press = 'ffi.C.raise(2) '
    finally(function() os.remove(script) end)
    assert.equal('130\n', status_of('signals.watch(true) signals.hold() ' .. press:rep(3)))
    assert.equal('130\n', status_of('signals.watch(true) signals.watch(false) ' .. press))
    local late = 'signals.watch(true) signals.watch(true) %s signals.watch(false) '
      .. 'io.write "noted " io.flush() signals.watch(false) print "lost"'
    assert.equal('noted 130\n', status_of(late:format(press)))
    assert.matches('^noted .*143\n$', status_of(late:format 'ffi.C.raise(15)')) -- sh says it too
    assert.equal('done\n0\n', status_of('signals.watch(true) ' .. press .. 'print "done"'))
  end)
end)
