-- ranks_spec.lua - the program on several ranks: their output, errors, signals, and how they end.

local program = require 'tests.program'
local terminal = require 'tests.pty'

-- mpirun does not free all it has; what others set for it is not what is tested.
local SETTINGS = 'export ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1; unset UL_RANK_OUTPUT; '

local function shell(command) return program.shell(SETTINGS .. command) end

-- The same for a script: $S in the command is its file, $F a folder of its own.
local function with_script(text, command)
  local folder = os.tmpname()
  os.remove(folder)
  local output, status = shell(([[mkdir %s && F=%s S=script.lua; cd $F; P=$(realpath $OLDPWD/$P)
    cat >$S <<'END'
%s
END
    %s]]):format(folder, folder, text, command))
  os.execute('rm -r ' .. folder)
  return output, status
end

-- In a script: tells the file pids who runs, when all do.
local TELL = [[
  local rank = os.getenv 'OMPI_COMM_WORLD_RANK'
  local file = io.open('pids', 'a')
  file:write(io.open('/proc/self/stat'):read '*n', '\n')
  file:close()
  local function lines(name)
    local n = 0
    for _ in io.lines(name) do n = n + 1 end
    return n
  end
  while lines 'pids' < 3 do end
]]
-- In the shell: waits for that; says how many of them are left in the end (dead ones that nobody
-- has asked about do not count).
local WAIT = 'i=0; until [ "$(cat pids 2>/dev/null | wc -l)" = 3 ] || [ $((i += 1)) = 200 ]; '
  .. 'do sleep 0.05; done; sleep 0.2; '
local LEFT = '; sleep 0.3; for p in $(cat pids); do ps -o stat= -p $p; done | grep -vc ^Z'

describe('ulysses-lua --ranks', function()
  local function refuses(sentence, arguments)
    assert.same({ 'ulysses-lua: ' .. sentence .. '\n', 1 }, { shell('$P ' .. arguments) })
  end

  it('refuses what it cannot start, with one sentence', function()
    refuses('--ranks needs a number', '--ranks')
    refuses('--ranks needs a number from 1 to 256, not 0', '--ranks 0 x.lua')
    refuses('--ranks needs a number from 1 to 256, not 2x', '--ranks 2x x.lua')
    refuses('--ranks needs a number from 1 to 256, not 1000', '--ranks 1000 x.lua')
    refuses('--ranks 9 cannot be placed: --hosts a:4,b:4 has room for 8',
            '--ranks 9 --hosts a:4,b:4 x.lua')
    refuses('--hosts needs names and numbers of ranks, as in a:4,b:4, not a:x',
            '--ranks 2 --hosts a:x x.lua')
    refuses('--hosts needs --ranks N', '--hosts a:4 x.lua')
    refuses('--ranks with -i needs a script in a file, or none', '--ranks 2 -i -')
    assert.same({ "ulysses-lua: --ranks needs Open MPI's mpirun, and there is no mpirun (Debian: "
                    .. 'apt install openmpi-bin)\n', 1 },
                { shell 'PATH=/nowhere $P --ranks 2 x.lua' })
    local another = "^ulysses%-lua: %-%-ranks needs Open MPI's mpirun, but ls is another: [^\n]*\n$"
    assert.matches(another, (shell 'UL_MPIRUN=ls $P --ranks 2 x.lua'))
    assert.same({ 'ulysses-lua: --ranks starts ranks by itself, but this is one that a launcher '
                    .. 'has started\n', 1 },
                { shell 'OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 $P --ranks 2 x.lua' })
  end)

  it('1 is the program itself', function()
    assert.same({ 'nil\tscript.lua\ta\n', 0 }, { with_script(
      'print(os.getenv "OMPI_COMM_WORLD_SIZE", arg[0], ...)',
      'PATH=/nowhere:$PATH UL_MPIRUN=none $P --ranks 1 $S a') })
  end)

  it('is quiet where a launcher has started it', function()
    local as = 'OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK='
    assert.equal('a\n', (shell(as .. '0 $P -e "print \'a\'"')))
    assert.equal('', (shell(as .. '1 $P -e "print \'a\'"')))
    assert.equal('a\n', (shell(as .. '1 UL_RANK_OUTPUT=all $P -e "print \'a\'"')))
    assert.same({ "[rank 1] ulysses-lua: --threads needs a number from 1 to 256, not 0\n", 1 },
                { shell(as .. '1 $P --threads 0') })
  end)
end)

describe('ranks', function()
  before_each(function()
    program.needs_mpirun()
  end)

  it('run a script with its arguments; rank 0 prints', function()
    local script = [[
      local g = require('ulysses').group()
      local sum = g:all_reduce(require('ulysses').tensor { g.rank + 1 }):item()
      g:barrier()
      print(g.size, sum, arg[0], ...)
      print(require('ulysses.core').system.columns())]]
    assert.same({ '3\t6\tscript.lua\ta\tb c\n\n', 0 },
                { with_script(script, '$P --ranks 3 $S a "b c"') })
    assert.same({ '2\t3\tscript.lua\n\n', 0 },
                { with_script(script, '$P --ranks 2 --hosts localhost:2 $S') })
    assert.equal('1\n1\n', (shell 'UL_RANK_OUTPUT=all $P --ranks 2 -e "print(1)"'))
    local as_root = 'export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; '
    assert.equal('2\n', (shell(as_root .. [[mpirun --oversubscribe -n 2 $P -e \
      "print(require('ulysses').group().size)"]])))
  end)

  it('run a script that comes on standard input', function()
    assert.same({ '2\ta\n', 0 },
                { with_script('print(require("ulysses").group().size, ...)',
                              '$P --ranks 2 - a <$S') })
    local output, status = with_script('error "sad"', '$P --ranks 2 <$S')
    assert.equal('ulysses-lua: stdin:1: sad\n', (output:gsub('^%[rank %d%] ', '')))
    assert.equal(1, status)
  end)

  it('end when one fails, with its sentence', function()
    local fails = "local g = require('ulysses').group()\n"
      .. "if g.rank == 1 then require 'ulysses.refuse' 'no luck here' end\n"
      .. 'g:barrier()'
    assert.same({ '[rank 1] ulysses-lua: no luck here\n', 1 },
                { with_script(fails, '$P --ranks 3 $S') })
    -- what they have in common is said once
    local output, status = shell '$P --ranks 3 nothing.lua'
    assert.equal('ulysses-lua: cannot open nothing.lua: No such file or directory\n',
                 (output:gsub('^%[rank %d%] ', '')))
    assert.equal(1, status)
    assert.equal(3, select(2, shell '$P --ranks 2 -e "os.exit(3)"'))
    assert.same({ '', 143 }, { shell '$P --ranks 2 -e "ul.group() os.exit(143)"' }) -- no signal
    assert.equal('a\1b\n', (shell [[$P --ranks 2 -e "if ul.group().rank == 0 then
      io.stderr:write('a\1b\n') end"]]))
    -- mpirun does not always say which rank it was
    output, status = with_script(TELL .. [[
      if rank == '1' then os.execute 'kill -9 $PPID' end
      while true do end]], '$P --ranks 3 $S' .. LEFT)
    assert.same({ 'ulysses-lua: rank was ended by signal 9 (Killed)\n0\n', 1 },
                { (output:gsub(': a rank', ': rank'):gsub('rank 1', 'rank')), status })
  end)

  it('end by SIGTERM, and when the front process is killed', function()
    local loops = TELL .. 'while true do end'
    for number, status in pairs { [15] = 143, [9] = 137 } do
      local command = '$P --ranks 3 $S & front=$!; %skill -%d $front; wait $front; echo $?%s'
      local pause = number == 9 and '; sleep 2' or ''
      local output = with_script(loops, command:format(WAIT, number, pause) .. LEFT)
      assert.equal(status .. '\n0\n', output:match '%d+\n%d+\n$', number)
    end
  end)

  it('end by a signal that came before they were there', function()
    local slow = os.tmpname()
    finally(function() os.remove(slow) end)
    local file = io.open(slow, 'w')
    file:write [[#!/bin/sh
      # as mpirun itself, which hears and forgets until it has ranks
      trap : USR1 USR2
      [ "$1" = --version ] || sleep 1
      exec mpirun "$@"
    ]]
    file:close()
    os.execute('chmod +x ' .. slow)
    local ends = 'local t = os.time() while os.time() < t + 10 do end'
    local command = 'export UL_MPIRUN=%s; $P --ranks 2 $S & front=$!; sleep 0.7; kill -%d $front; '
      .. 'wait $front; echo $?'
    local output = with_script(ends, command:format(slow, 15))
    assert.equal('143\n', output:match '%d+\n$', output)
  end)

  it('end by Ctrl-C, and by themselves where it is watched', function()
    local watches = TELL .. [[
      local signals = require('ulysses.core').signals
      if arg[1] then signals.watch(true) end
      local watching = io.open('watching', 'a')
      watching:write(rank, '\n')
      watching:close()
      while lines 'watching' < 3 do end
      print 'ready'
      while not signals.pending() do end
      local done = io.open('done', 'a')
      done:write(signals.take(), '\n')
      done:close()
      while lines 'done' < 3 do end
      print 'all done']]
    local folder = os.tmpname()
    os.remove(folder)
    os.execute('mkdir ' .. folder)
    local file = io.open(folder .. '/script.lua', 'w')
    file:write(watches)
    file:close()
    local path = io.popen('realpath ' .. program.path):read '*l'
    for argument, expected in pairs { [''] = 130, watch = 0 } do
      -- a shell makes what it starts in the background deaf to Ctrl-C
      local command = ('cd %s; rm -f pids watching done; '
        .. 'env --default-signal=INT %s --ranks 3 script.lua %s'):format(folder, path, argument)
      local front = terminal.start(SETTINGS .. command)
      front:expect 'ready'
      front:type '\3'
      if argument == 'watch' then front:expect 'all done' end
      assert.equal(expected, front:ended())
      front:close()
    end
    os.execute('rm -r ' .. folder)
  end)
end)
