-- program.lua - the program ulysses-lua for specs: run in a shell, its output and exit status.
local program = {}

-- It lies beside the folder of the module that runs the specs.
for folder in package.cpath:gmatch '([^;]+)/%?%.so' do
  local file = io.open(folder .. '/ulysses-lua')
  if file then
    file:close()
    program.path = program.path or folder .. '/ulysses-lua'
  end
end

if not program.path then
  error('there is no ulysses-lua beside the module of LUA_CPATH, ' .. package.cpath, 0)
end

--- Output (errors too) and exit status of a shell command with $P for the program.
---@param command string
---@return string output
---@return integer status
function program.shell(command)
  local pipe = io.popen(('unset LD_PRELOAD; P=%s; (%s) 2>&1; echo "=$?"'):format(program.path,
                                                                               command))
  local text = pipe:read '*a'
  pipe:close()
  local output, status = text:match '^(.*)=(%d+)\n$'
  return output, tonumber(status)
end

--- The same for a script of this text with arguments; its name reads script.lua in the output.
---@param text string
---@param arguments? string
---@param environment? string NAME=value ...
---@return string output
---@return integer status
function program.run(text, arguments, environment)
  local name = os.tmpname()
  local file = io.open(name, 'w')
  file:write(text)
  file:close()
  local output, status = program.shell(('%s $P %s %s'):format(environment or '', name,
                                                      arguments or ''))
  os.remove(name)
  return output:gsub(name:gsub('%W', '%%%0'), 'script.lua'), status
end

--- Fails where ranks cannot be started: skipped, what several of them do would go untested unseen.
function program.needs_mpirun()
  if os.execute 'mpirun --version 2>/dev/null | grep -q "Open MPI"' ~= 0 then
    error('there is no mpirun of Open MPI (Debian: apt install openmpi-bin)', 0)
  end
end

return program
