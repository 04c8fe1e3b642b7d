-- pty.lua - a program on a pseudo-terminal, for specs: type into it, wait for what it prints.
local ffi = require 'ffi'

ffi.cdef [[
  int posix_openpt(int flags);
  int grantpt(int fd);
  int unlockpt(int fd);
  char *ptsname(int fd);
  int close(int fd);
  int kill(int pid, int number);
  int poll(void *fds, unsigned long n, int milliseconds);
  long read(int fd, void *buffer, unsigned long size);
  long write(int fd, const void *buffer, unsigned long size);
]]
local C = ffi.C
local O_RDWR, O_NOCTTY, O_CLOEXEC, POLLIN = 2, 256, 0x80000, 1

-- Between what is printed and what is typed, in milliseconds, as with a person: the line editor
-- changes the terminal's mode behind its prompt, and a key that comes before that is another.
local PACE = 25

---@class Terminal
local Terminal = {}
Terminal.__index = Terminal

--- Starts a shell command on a terminal of its own.
---@param command string
---@return Terminal
local function start(command)
  -- a program started later must not hold it open
  local fd = C.posix_openpt(O_RDWR + O_NOCTTY + O_CLOEXEC)
  assert(fd >= 0 and C.grantpt(fd) == 0 and C.unlockpt(fd) == 0, 'no pseudo-terminal')
  local name = ffi.string(C.ptsname(fd))
  local status = os.tmpname()
  -- the first terminal that a session leader opens is the one that Ctrl-C reaches it by
  local inner = ('exec <%s >%s 2>&1; stty rows 30 cols 200; %s; echo $? > %s'):format(
    name, name, command, status)
  os.execute(("setsid sh -c '%s' &"):format((inner:gsub("'", [['\'']]))))
  return setmetatable({ fd = fd, output = '', status_file = status }, Terminal)
end

-- Reads what there is, waiting for so many milliseconds; whether something came.
function Terminal:fill(milliseconds)
  local request = ffi.new('int[2]', self.fd, POLLIN)
  if C.poll(request, 1, milliseconds) <= 0 then return false end
  local buffer = ffi.new 'char[4096]'
  local n = tonumber(C.read(self.fd, buffer, 4096))
  if n <= 0 then return false end
  self.output = self.output .. ffi.string(buffer, n)
  return true
end

--- Types text.
---@param text string
function Terminal:type(text)
  C.poll(nil, 0, PACE)
  C.write(self.fd, text, #text)
end

--- Waits until the output since the last match has the pattern; returns what matched, or its
--- captures. Raises an error with the output after some seconds.
---@param pattern string
---@param seconds? number
function Terminal:expect(pattern, seconds)
  local deadline = os.time() + (seconds or 20)
  while true do
    local found = { self.output:find(pattern) }
    if found[1] then
      local matched = self.output:sub(found[1], found[2])
      self.before = self.output:sub(1, found[1] - 1)
      self.output = self.output:sub(found[2] + 1)
      if found[3] ~= nil then return unpack(found, 3) end
      return matched
    end
    if not self:fill(200) and os.time() > deadline then
      error(("no '%s' in:\n%s"):format(pattern, self.output), 2)
    end
  end
end

--- Types a line.
---@param line string
function Terminal:enter(line) self:type(line .. '\r') end

--- Waits until the program has ended; its exit status.
---@return integer
function Terminal:ended()
  local deadline = os.time() + 20
  while os.time() <= deadline do
    self:fill(50)
    local file = io.open(self.status_file)
    local text = file:read '*a'
    file:close()
    if text ~= '' then return tonumber(text) end
  end
  error('still there:\n' .. self.output, 2)
end

--- Closes the terminal, which ends the program.
function Terminal:close()
  C.close(self.fd)
  os.remove(self.status_file)
end

return { start = start }
