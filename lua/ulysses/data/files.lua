-- files.lua - finds the files that a name or a pattern stands for, and reads their bytes.
local ffi = require 'ffi'
local buffer = require 'string.buffer'
local core = require 'ulysses.core'
local open_file = require 'ulysses.open_file'
local refuse = require 'ulysses.refuse'
local suggest = require 'ulysses.suggest'

ffi.cdef [[
typedef struct ulysses_file ulysses_file;
ulysses_file *popen(const char *command, const char *mode);
int pclose(ulysses_file *file);
size_t fread(void *to, size_t size, size_t n, void *file);
]]

local CHUNK = 2 ^ 16
local NO_SUCH_FILE = 2 -- ENOENT

-- For sh: nothing in it is special any more, or nothing but what patterns are made of.
local function quote(path) return "'" .. path:gsub("'", "'\\''") .. "'" end
local function quote_pattern(path) return (path:gsub('[^%w/._*?%[%]-]', '\\%0')) end

-- Lists the names that sh finds for a pattern; those of folders end in '/'.
local function list(pattern)
  local pipe = assert(io.popen('LC_ALL=C ls -dp -- ' .. quote_pattern(pattern) .. ' 2>/dev/null'))
  local names = {}
  for name in pipe:lines() do names[#names + 1] = name end
  pipe:close()
  return names
end

-- Says that there is no such file, and which one was meant.
local function refuse_missing(path)
  local folder, name = path:match '^(.*/)(.-)$'
  folder, name = folder or '', name or path
  if folder ~= '' and #list(folder) == 0 then
    refuse("data.read: no file '%s', for there is no folder '%s'", path, folder)
  end
  local names = {}
  local shown = {}
  for _, file in ipairs(list(folder .. '*')) do
    if not file:match '/$' then
      local known = file:sub(#folder + 1)
      names[#names + 1], shown[known] = known, file
    end
  end
  refuse("data.read: no file '%s'%s", path, suggest(name, names, shown))
end

-- Whether there is such a file; refuses one that is there and cannot be read.
local function can_be_read(path)
  local file, why, code = open_file(path, 'rb')
  if file then file:close() end
  if not file and code ~= NO_SUCH_FILE then refuse('data.read: cannot read %s', why) end
  return file ~= nil
end

--- The files a pattern (docs/*.md) or a name stands for, sorted. Refuses what stands for none.
---@param pattern string
---@return string[]
local function find(pattern)
  if pattern:sub(1, 2) == '~/' then pattern = (os.getenv 'HOME' or '~') .. pattern:sub(2) end
  if core.system.kind_of(pattern) == 'folder' then
    refuse("data.read: '%s' is a folder; its files are %s/*", pattern, (pattern:gsub('/+$', '')))
  end
  if can_be_read(pattern) then return { pattern } end
  local files = {}
  for _, name in ipairs(pattern:find '[*?[]' and list(pattern) or {}) do
    if not name:match '/$' and can_be_read(name) then files[#files + 1] = name end
  end
  if #files == 0 then refuse_missing(pattern) end
  return files
end

-- Appends all that a C file has.
local function drain(file, bytes)
  repeat
    local to, room = bytes:reserve(CHUNK)
    local n = tonumber(ffi.C.fread(to, 1, room, file))
    bytes:commit(n)
  until n == 0
end

local function read_gzipped(path, bytes)
  local pipe = ffi.C.popen('gzip -dc -- ' .. quote(path) .. ' 2>/dev/null', 'r')
  if pipe == nil then refuse("data.read: cannot start gzip for '%s'", path) end
  drain(pipe, bytes)
  local status = ffi.C.pclose(pipe)
  if status == 127 * 256 then refuse("data.read: '%s' needs gzip, which is not installed", path) end
  if status ~= 0 then
    refuse("data.read: '%s' is damaged: gzip fails after %d bytes of text", path, #bytes)
  end
end

--- The bytes of a file, unpacked if its name ends in .gz, without a byte-order mark. They are no
--- Lua string, so that a big text is there once; bytes:free() drops them.
---@param path string
---@return userdata a string.buffer
local function read(path)
  local file, why = open_file(path, 'rb')
  if not file then refuse('data.read: cannot read %s', why) end
  local bytes = buffer.new()
  if path:match '%.gz$' then
    read_gzipped(path, bytes)
  else
    local size = file:seek 'end' or 0
    file:seek 'set'
    bytes:reserve(size + 1)
    drain(file, bytes)
    if #bytes < size then refuse("data.read: cannot read '%s' to its end", path) end
  end
  file:close()
  local first = ffi.string(bytes:ref(), math.min(#bytes, 3))
  if first == '\239\187\191' then bytes:skip(3) end
  return bytes
end

return { find = find, read = read }
