-- guide_spec.lua - the programs of docs/guide.md and docs/ulysses.md run, one after the other.

local program = require 'tests.program'

-- What would take long here.
local replaced = { ['ul.data.sample()'] = "'docs/*.md'", ['300'] = '3', ['1024'] = '64' }

local function blocks(name)
  local file, list = assert(io.open(name)), {}
  for block in file:read('*a'):gmatch '```lua\n(.-)```' do
    for text, other in pairs(replaced) do
      block = block:gsub(text:gsub('%p', '%%%0'), (other:gsub('%%', '%%%%')))
    end
    -- A block goes on where the one before it ended.
    list[#list + 1] = ('\n' .. block):gsub('\nlocal ', '\n')
  end
  file:close()
  return list
end

describe('guide', function()
  for _, name in ipairs { 'docs/guide.md', 'docs/ulysses.md' } do
    local reader = setmetatable({ print = function() end }, { __index = _G })
    for i, block in ipairs(blocks(name)) do
      it(('runs program %d of %s'):format(i, name), function()
        setfenv(assert(loadstring(block)), reader)()
      end)
    end
  end

  it('has a recipe that is whole', function()
    local folder = os.tmpname()
    finally(function() os.execute('rm -rf ' .. folder) end)
    os.remove(folder)
    os.execute('mkdir ' .. folder)
    local text = io.open('docs/guide.md'):read '*a'
    local file = io.open(folder .. '/mine.lua', 'w')
    file:write(text:match '```lua\n([^`]-return recipe:main%(%)\n)```', '')
    file:close()
    local here = io.popen('pwd'):read '*l'
    local path = program.path:sub(1, 1) == '/' and program.path or here .. '/' .. program.path
    local command = ("cd '%s' && '%s' %%s mine.lua steps=3 'data=%s/docs/*.md'"):format(
      folder, path, here)
    local output, status = program.shell(command:format '')
    assert.equal(0, status, output)
    assert.matches('step 3/3  loss', output)
    assert.is_not_nil(io.open(folder .. '/runs/mine/report.html'))
    output, status = program.shell(command:format '--device meta')
    assert.equal(0, status, output)
    assert.matches('plan: ', output)
  end)
end)
