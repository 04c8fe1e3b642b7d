-- checkpoint.lua - ul.checkpoint: a run's state on the disk, whole or not there, and back.
--
-- Files are written to step-N.tmp, each is on the disk before the manifest is, and then the folder
-- gets its name: whenever the program is killed, every step-N is whole. Loading checks the hashes
-- all the same, for disks lie and files are copied half.
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local folder = require 'ulysses.checkpoint.folder'
local manifest = require 'ulysses.checkpoint.manifest'
local notice = require 'ulysses.notice'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local restore = require 'ulysses.checkpoint.restore'
local uninterrupted = require 'ulysses.uninterrupted'
local write = require 'ulysses.checkpoint.write'

---@class checkpoint
local checkpoint = {}

local function check_dir(caller, dir)
  if type(dir) ~= 'string' or dir == '' then
    raise('%s: the folder must be a string, got %s', caller, tostring(dir))
  end
  return (dir:gsub('(.)/+$', '%1'))
end

local function must(ok, sentence)
  if not ok then refuse('%s', sentence) end
  return ok
end

--- The steps that have a checkpoint in `dir`, in rising order; none where there is no such folder.
---@param dir string
---@return integer[]
function checkpoint.steps(dir)
  dir = check_dir('checkpoint.steps', dir)
  local names, steps = folder.find(dir)
  must(names, steps)
  return steps
end

-- The ranks that save or load together, where there are several: those of the mesh that was given,
-- or else the optimizer's.
local function group_of(read)
  local mesh = read.mesh or read.optim and read.optim.mesh
  local group = read.group or mesh and mesh.world
  if group and group.size > 1 and group.transport ~= 'plan' then return group end
end

-- Keeps other processes from saving into the folder: what it returns lets them again. Or nil where
-- that cannot be, false where one is at work, and why, or which.
local function take(dir)
  local path = dir .. '/saving.lock'
  local lock, why = core.system.lock(path)
  if not lock then return lock, why end
  return function()
    core.path_remove(path)
    lock:release()
  end
end

local function must_take(dir)
  local let_go, why = take(dir)
  if let_go == nil then refuse('%s/saving.lock: cannot be created: %s', dir, why) end
  return let_go or refuse('%s: another process is saving into it (process %d); save elsewhere, or '
                          .. 'after it', dir, why)
end

-- Ends what a killed program left behind; what another is at is its own.
local function tidy(dir)
  local let_go = take(dir)
  if not let_go then return end
  folder.tidy(dir)
  let_go()
end

local function save(dir, name, step, read)
  local group, let_go = group_of(read), function() end
  local write_files = write(dir, name, step, read, group)
  local ok, problem = pcall(function()
    agree.first(group, 'checkpoint.save', function()
      must(core.folder_make(dir))
      let_go = must_take(dir)
      must(folder.tidy(dir))
    end)
    write_files()
    agree.first(group, 'checkpoint.save', function()
      must(folder.finish(dir, name))
      if read.keep then must(folder.prune(dir, step, read.keep)) end
    end)
  end)
  let_go()
  if not ok then error(problem, 0) end
end

--- Writes dir/step-N: the model's parameters, the optimizer's state, the random numbers' state, and
--- `state` and `config`, any plain tables. It refuses where the disk is full or fails, and where
--- another process saves into `dir`: what was there before is still there then. Afterwards at most
--- `keep` checkpoints up to this step are left (nil: all). A script that is planned writes nothing.
---
--- All ranks of `mesh`, or of a `group`, call it together, and the first one writes whole weights;
--- the optimizer's mesh need not be given. With `base`, the folder that ul.hf.load has made the
--- model of, parameters that are frozen are left out: they must be what they are there.
---@param dir string
---@param step integer
---@param given { model: table, optim: table?, state: table?, config: table?, keep: integer?,
---  mesh: Mesh?, group: Group?, base: string? }
---@return string path
function checkpoint.save(dir, step, given)
  dir = check_dir('checkpoint.save', dir)
  local read = options.read('checkpoint.save', given, {
    model = options.none, optim = options.none, state = options.none, config = options.none,
    keep = options.none, mesh = options.none, group = options.none, base = options.none,
  })
  if not read.model then raise 'checkpoint.save: a model is needed' end
  if type(step) ~= 'number' or step < 0 or step ~= math.floor(step) then
    raise('checkpoint.save: the step must be a whole number, got %s', tostring(step))
  end
  local keep = read.keep
  if keep and (type(keep) ~= 'number' or keep < 1 or keep ~= math.floor(keep)) then
    raise('checkpoint.save: keep must be at least 1, got %s', tostring(keep))
  end
  local name = ('step-%.0f'):format(step)
  if not core.planning() then uninterrupted(save, dir, name, step, read) end
  return dir .. '/' .. name
end

-- The folders that may be loaded, the newest first: `dir` itself, or those in it.
local function candidates(dir)
  if manifest.exists(dir) then return { dir } end
  local names, steps = folder.find(dir)
  must(names, steps)
  local paths = {}
  for i = #steps, 1, -1 do paths[#paths + 1] = dir .. '/' .. names[steps[i]] end
  return paths
end

-- The first of the paths that is whole, with its manifest, and a list of what is wrong with those
-- before it. check(path, content): how closely to look
local function first_whole(paths, check)
  local damaged = {}
  for _, path in ipairs(paths) do
    local content, sentence, newer = manifest.read(path)
    if newer then refuse('%s', newer) end
    local ok = content
    if ok then ok, sentence = manifest.check_sizes(path, content) end
    if ok then ok, sentence = check(path, content) end
    if ok then return path, content, damaged end
    damaged[#damaged + 1] = { path = path, sentence = sentence }
  end
  return nil, nil, damaged
end

local function refuse_all(dir, damaged)
  local parts = {}
  for i, one in ipairs(damaged) do
    if i <= 3 then parts[i] = ('%s: %s'):format(one.path:match '[^/]*$', one.sentence) end
  end
  local more = #damaged > 3 and (' (and %d more)'):format(#damaged - 3) or ''
  refuse('%s: no checkpoint is whole: %s%s', dir, table.concat(parts, '; '), more)
end

-- The newest whole checkpoint in `dir`, with its manifest; nil where there is none at all.
local function newest_whole(dir, read)
  if read.optim and not core.planning() and not manifest.exists(dir) then tidy(dir) end
  local paths = candidates(dir)
  if #paths == 0 then return nil end
  local check = core.planning() and function() return true end or manifest.check_hashes
  local path, content, damaged = first_whole(paths, check)
  if not path then refuse_all(dir, damaged) end
  for _, one in ipairs(damaged) do
    read.warn(('%s is damaged (%s); %s is used instead'):format(one.path, one.sentence,
                                                                path:match '[^/]*$'))
  end
  return path, content
end

--- Loads the newest checkpoint in `dir` that is whole, or `dir` itself where it is one, into the
--- tensors of the model and the optimizer. A damaged one is named to `warn` and passed over; where
--- all are damaged, or belong to another model, it refuses. With an optimizer the run goes on:
--- random numbers too continue where they were.
---
--- All ranks of `mesh`, or of a `group`, call it together, and the first one alone reads. Any mesh
--- will do, whatever the one was that saved; the optimizer's need not be given. Where frozen
--- weights were left out they stay as they are; `base` is the folder that they are from, where that
--- is not known to the model, and other weights there are refused. `hint` says more where the model
--- or the optimizer is another.
---@param dir string
---@param given { model: table?, optim: table?, random: boolean?, hint: string?,
---  warn: fun(sentence: string)?, mesh: Mesh?, group: Group?, base: string? }?
---@return table? state what save was given, with `step`; nil where there is no checkpoint. NaN and
---infinities come back as NaN.
function checkpoint.load(dir, given)
  dir = check_dir('checkpoint.load', dir)
  local read = options.read('checkpoint.load', given, {
    model = options.none, optim = options.none, random = false, warn = notice,
    mesh = options.none, group = options.none, base = options.none, hint = options.none,
  })
  local group, content = group_of(read), nil
  local outline = agree.first(group, 'checkpoint.load', function()
    local path
    path, content = newest_whole(dir, read)
    return path and restore.outline(path, content, read.optim ~= nil)
  end)
  if not outline then return nil end
  return uninterrupted(restore.fill, outline, content, read, group)
end

--- The config that the newest whole checkpoint was saved with; nil where there is none.
---@param dir string
---@return table? config
function checkpoint.config(dir)
  dir = check_dir('checkpoint.config', dir)
  local path, content = first_whole(candidates(dir), function() return true end)
  if not path or not content.files['config.json'] then return nil end
  local config, sentence = manifest.read_json(path, 'config.json')
  if not config then refuse('%s/%s', path, sentence) end
  return config
end

return checkpoint
