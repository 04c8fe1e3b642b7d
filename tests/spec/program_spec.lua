-- program_spec.lua - the program ulysses-lua: options, scripts, exit status, tracebacks.

local program = require 'tests.program'
local run, shell = program.run, program.shell

describe('ulysses-lua', function()
  it('runs a script with its arguments', function()
    local output, status = run('print(arg[0], arg[1], ...)', 'a "b c"')
    assert.equal('script.lua\ta\ta\tb c\n', output)
    assert.equal(0, status)
    assert.same({ 3, 3 }, { select(2, run 'os.exit(3)'), select(2, run 'os.exit(3, true)') })
  end)

  it('finds the library', function()
    assert.equal('3\n', (shell '$P -e "print(require(\'ulysses\').ones(3):sum():item())"'))
    assert.equal('3\ttrue\n', (shell('$P -e "x = F.relu(ul.ones(3))" '
                                    .. '-e "print(x:sum():item(), nn.Linear(1, 1) ~= nil)"')))
    assert.equal('table\n', (shell '$P -l ulysses -e "print(type(require(\'ulysses.core\')))"'))
  end)

  it('finds the recipes from anywhere, one\'s own first', function()
    local folder = os.tmpname()
    os.remove(folder)
    local own = [[return { name = "own" }]]
    local name = [[-e 'print(require("recipes.llama3").name)']]
    local output = shell(([[
      P=$(realpath $P) && mkdir -p %s/recipes && cd %s && $P -l recipes.mistral %s
      echo '%s' >recipes/llama3.lua && $P %s
    ]]):format(folder, folder, name, own, name))
    shell('rm -r ' .. folder)
    assert.equal('llama3\nown\n', output)
  end)

  it('prints an error with the traceback from where it was raised', function()
    local output, status = run [[
      local ul = require 'ulysses'
      local function inner(x)
        local y = x + ul.ones(3)
        return y
      end
      ul.scope(function() ul.no_grad(function() inner(ul.ones(2)) end) end)
    ]]
    assert.equal(1, status)
    assert.matches('^ulysses%-lua: script.lua:3: add: shapes %[2%] and %[3%]', output)
    assert.matches("in function 'inner'", output)
  end)

  it('says little of errors that are no text', function()
    assert.same({ '', 1 }, { run 'error()' })
    assert.same({ 'ulysses-lua: (the error is no string)\n', 1 }, { run 'error {}' })
    local output = run 'error(setmetatable({}, { __tostring = function() return "own" end }))'
    assert.matches('own', output)
    assert.same({ 'ulysses-lua: cannot open nothing.lua: No such file or directory\n', 1 },
                { shell '$P nothing.lua' })
    assert.matches("script.lua:1: .*near", (run 'x ='))
  end)

  it('reads standard input', function()
    assert.equal('5\tx\n', (shell "echo 'print(2 + 3, ...)' | $P - x"))
    assert.equal('7\n', (shell "echo 'print(7)' | $P"))
  end)

  it('fails where what it prints is lost', function()
    local complaint = 'ulysses-lua: cannot write to standard output'
    assert.same({ complaint .. ': No space left on device\n', 1 },
                { shell '$P -e "print(1)" >/dev/full' })
    for _, words in ipairs {
      '-e "print(1) os.exit(0)"', '-e "print(1) os.exit(0, true)"', '--help',
      '--version', '-e "for i = 1, 1e5 do print(i) end"', '-e "io.write(1) io.flush()"',
      'recipes/llama3.lua --help', '-e "print(1) error()"',
    } do
      local output, status = shell('$P ' .. words .. ' >/dev/full')
      assert.same({ complaint, 1 }, { output:match '^[^\n:]+:[^\n:]+', status })
      assert.equal(1, select(2, output:gsub('\n', '')))
    end
    assert.same({ '', 0 }, { shell '$P -e "local x" >/dev/full' })
    assert.same({ '', 0 }, { shell '$P -e "print(1)" >&-' })
    assert.same({ '1\n2\n', 0 }, { shell '$P -e "for i = 1, 1e6 do print(i) end" | head -n 2' })
    assert.matches('cannot write to standard output', (shell [[
      trap '' PIPE; $P -e 'for i = 1, 1e6 do print(i) end' | head -n 1
    ]]))
  end)

  it('takes the options of luajit, and its own', function()
    assert.equal('1\n2\n', (shell "$P -e 'print(1)' -e 'print(2)'"))
    assert.equal('false\n', (shell "$P -joff -e 'print((jit.status()))'"))
    assert.equal('true\n', (shell "$P -O1 -e 'print((jit.status()))'"))
    assert.equal('1\n', (shell "$P --threads 1 -e 'print(require(\"ulysses\").threads())'"))
    assert.matches('^ulysses%-lua %d.*LuaJIT', (shell '$P --version'))
    assert.same({ 'ulysses-lua: cannot open nothing.lua: No such file or directory\n', 1 },
                { shell '$P nothing.lua steps=3' })
    assert.matches('^usage:', (shell '$P --help'))
    for wrong in ('--threads 0;--threads;-e;-l;-j;--nonsense;-e x='):gmatch '[^;]+' do
      local output, status = shell('$P ' .. wrong .. ' </dev/null')
      assert.equal(1, status)
      assert.matches('^ulysses%-lua: ', output)
    end
  end)
end)
