-- core.lua - what the C module has for the library alone: ulysses.core.
---@meta ulysses.core

---@class core
---@field methods table<string, function> of tensors
---@field functional table<string, function> F
---@field metatable table of tensors
local core = {}

--- Chunks whose source begins like this are the library's own, and no callers in errors.
---@param folder string
function core.library(folder) end

--- Whether a tensor has not been freed.
---@param x Tensor
---@return boolean
function core.is_alive(x) end

--- Makes each the tensor that the other was, wherever it is held.
---@param a Tensor
---@param b Tensor
function core.swap(a, b) end

--- Whether the script is planned (--plan); `true` makes it so: whatever device a script names, what
--- it makes is on meta from then on. The library may still keep data on the cpu.
---@param planned true?
---@return boolean
function core.planning(planned) end

--- Which of the ranks that a launcher has started together this is, from 0; opens no group.
---@return integer
function core.launched_rank() end

--- How many backward passes have begun so far.
---@return integer
function core.backward_passes() end

--- For tests: makes the n-th allocation from now fail; 0 turns that off.
---@param n integer
function core.debug_fail_allocation(n) end

--- For tests: how many allocations there have been.
---@return integer
function core.debug_allocations() end

--- For tests: what happens at the n-th step from now that changes the disk; 0 turns that off.
---@param n integer
---@param what 'ENOSPC'|'EIO'|'EFBIG'|'SIGKILL'
function core.debug_fail_write(n, what) end

--- For tests: how many steps have changed the disk.
---@return integer
function core.debug_writes() end

-- ---- files: all return nil and a sentence where they fail ----

--- Writes a whole file, through to the disk.
---@param path string
---@param text string
---@return integer? bytes
---@return string hash
function core.file_write(path, text) end

--- The length and the hash of a file.
---@param path string
---@return integer? bytes
---@return string hash
function core.file_sum(path) end

--- The same hash of a string.
---@param text string
---@return string
function core.hash(text) end

--- Renames a file or folder.
---@param from string
---@param to string
---@return boolean?
---@return string? sentence
function core.file_rename(from, to) end

--- Each of two files or folders gets the name of the other, in one step; not every file system
--- knows that.
---@param a string
---@param b string
---@return true|nil ok, string? sentence
function core.path_exchange(a, b) end

--- Makes `path` a link to `target`, at once.
---@param path string
---@param target string
---@return boolean?
---@return string? sentence
function core.file_point(path, target) end

--- Makes a folder.
---@param path string
---@return boolean?
---@return string? sentence
function core.folder_make(path) end

--- Sees to it that what a folder lists is on the disk.
---@param path string
---@return boolean?
---@return string? sentence
function core.folder_sync(path) end

--- Removes a file or folder.
---@param path string
---@return boolean?
---@return string? sentence
function core.path_remove(path) end

--- The names in a folder.
---@param path string
---@return string[]?
---@return string? sentence
function core.folder_list(path) end

--- How much room is left on a disk.
---@param path string
---@return integer? bytes
---@return string? sentence
function core.disk_free(path) end

--- JSON text to Lua values.
---@param text string
---@param null any stands for null
---@param array table the metatable of arrays without elements
---@return any
---@return string? sentence
function core.json_decode(text, null, array) end

--- A string as JSON; nil where it is no UTF-8.
---@param text string
---@return string?
function core.json_quote(text) end

--- Opens a safetensors file and checks its header.
---@param path string
---@return userdata?
---@return string? sentence
function core.safetensors_open(path) end

--- Writes tensors, straight from their memory.
---@param path string
---@param names string[]
---@param tensors Tensor[]
---@param metadata string[] pairs of key and value, one after the other
---@return integer? bytes
---@return string hash
function core.safetensors_save(path, names, tensors, metadata) end

--- Reads the file of a tokenizer, or what the cache has of it.
---@param path string
---@param cache string? a folder
---@return userdata?
---@return string? sentence
function core.tokenizer_load(path, cache) end

--- What makes a vocabulary from text: trainer:add(text), and then trainer:run(tokens, least), the
--- tokens' bytes and the merges.
---@param split string 'llama3', 'tekken', 'qwen2' or 'gpt2'
---@return userdata
function core.tokenizer_trainer(split) end

-- ---- the system ----

---@class system
local system = {}

--- Seconds since 1970.
---@return number
function system.now() end

--- Seconds that never go back.
---@return number
function system.clock() end

--- How many columns the terminal has that standard output is; nil where it is none.
---@return integer?
function system.columns() end

--- Whether output was lost because no program reads the pipe any more that it goes to.
---@return boolean
function system.is_unread() end

--- Cuts a file to so many bytes.
---@param path string
---@param bytes integer
---@return boolean?
---@return string? sentence
function system.cut_file(path, bytes) end

--- What lies at a path, links followed; nil where there is nothing.
---@param path string
---@return 'file'|'folder'|'pipe'|'socket'|'device'|nil
function system.kind_of(path) end

--- What a symbolic link points at, as it is written; nil where it is none.
---@param path string
---@return string?
function system.link_of(path) end

--- Whether files can be made in a folder, and why not.
---@param folder string
---@return boolean
---@return string? why
function system.may_write(folder) end

--- Whether a file system of its own begins at a folder.
---@param folder string
---@return boolean
function system.is_mount(folder) end

--- Locks a file against other processes: a lock with :release(); false and the holder's process id
--- where another process has it; nil and why the file cannot be made. Who holds it may remove the
--- file. Where the file system has no locks, nobody is kept out.
---@param path string
---@return userdata|false|nil
---@return integer|string
function system.lock(path) end

core.system = system

---@class signals
local signals = {}

--- SIGTERM, SIGHUP and SIGINT are noted from now on instead of ending the program, until as many
--- calls with false; the third Ctrl-C ends it nevertheless.
---@param on boolean
function signals.watch(on) end

--- What has been noted.
---@return 'interrupt'|'terminate'|nil
function signals.pending() end

--- What has been noted, which is forgotten then.
---@return 'interrupt'|'terminate'|nil
function signals.take() end

--- No interruption comes as an error until release().
function signals.hold() end

--- Ends what hold() began.
function signals.release() end

--- For the prompt: whether Ctrl-C raises an error in what runs.
---@param ... any
---@return any ...
function signals.prompt(...) end

core.signals = signals

return core
