-- first_session_spec.lua - what a reader of docs/guide.md types first: a model of two layers,
-- defined and trained at the prompt, stopped by Ctrl-C, and gone on with.
local program = require 'tests.program'
local pty = require 'tests.pty'

local CTRL_C, CTRL_D, TAB = '\3', '\4', '\t'
local PROMPT = 'ul> $'

-- The programs of the section "A first model", line by line.
local function lines_of_the_guide()
  local file, lines = assert(io.open 'docs/guide.md'), {}
  local section = file:read('*a'):match '## A first model\n(.-)\n## '
  file:close()
  for block in section:gmatch '```lua\n(.-)```' do
    for text in block:gmatch '([^\n]*)\n' do lines[#lines + 1] = text end
  end
  return lines
end

describe('a first session', function()
  it('defines and trains a model, and is not lost at Ctrl-C', function()
    local state = os.tmpname()
    os.remove(state)
    local terminal = pty.start(('unset LD_PRELOAD; XDG_STATE_HOME=%s TERM=xterm NO_COLOR=1 %s')
                               :format(state, program.path))
    finally(function()
      terminal:close()
      os.execute('rm -rf ' .. state)
    end)
    terminal:expect(PROMPT)
    local losses = {}
    for _, text in ipairs(lines_of_the_guide()) do
      if text == 'learn(300)' then
        terminal:enter(text)
        for step = 100, 300, 100 do
          losses[#losses + 1] = tonumber((terminal:expect('\n' .. step .. '\t(%d[%d.e-]*)\r')))
        end
        terminal:expect(PROMPT)
      else
        terminal:enter(text)
        terminal:expect '\n'
        terminal:expect '> $' -- or ..>
        assert.is_nil(terminal.before:match 'stdin:', terminal.before)
      end
    end
    -- the product of two numbers between -1 and 1 has a variance of 1 / 9
    assert.equal(3, #losses)
    assert.is_true(losses[3] < 0.01, tostring(losses[3]))

    -- the same function goes on, is stopped, and the model is what it was
    terminal:enter 'learn(1e9)'
    terminal:expect '\n300\t'
    terminal:type(CTRL_C)
    terminal:expect 'interrupted!'
    terminal:expect(PROMPT)
    terminal:enter 'product = net(ul.tensor { { 0.5, 0.5 } }):item() print(product)'
    local product = tonumber((terminal:expect '\n(0%.%d+)\r'))
    terminal:expect(PROMPT)
    assert.is_true(math.abs(product - 0.25) < 0.1, tostring(product))
    terminal:enter 'learn(100)'
    assert.is_true(tonumber((terminal:expect '\n100\t(%d[%d.e-]*)\r')) < 0.01)
    terminal:expect(PROMPT)

    terminal:enter '?ul.nn.Linear'
    terminal:expect 'bias'
    terminal:expect(PROMPT)
    terminal:type('net.do' .. TAB .. '.cla' .. TAB .. '\r')
    terminal:expect 'Linear\r'
    terminal:expect(PROMPT)
    terminal:enter 'net(ul.ones(3))'
    terminal:expect 'linear: '
    terminal:expect(PROMPT)
    terminal:type(CTRL_D)
    assert.equal(0, terminal:ended())
  end)
end)
