-- init.lua - ul.recipe: a table of settings, a way to override its leaves, and what trains.
local raise = require 'ulysses.raise'
local core = require 'ulysses.core'
local check_limits = require 'ulysses.recipe.limits'
local notice = require 'ulysses.notice'
local open_file = require 'ulysses.open_file'
local refuse = require 'ulysses.refuse'
local source = require 'ulysses.recipe.source'
local suggest = require 'ulysses.suggest'
local utf8 = require 'ulysses.utf8'
local value = require 'ulysses.recipe.value'

---@class Recipe
---@field name string
---@field settings table the defaults
---@field train? fun(cfg: table): ...
---@field run? fun(cfg: table): ... of a recipe that trains nothing
---@field limits? table<string, table> what settings of a command line may be, by path: { least =,
--- above =, most = } of numbers, or a list of words
local Recipe = {}
Recipe.__index = Recipe
function Recipe.__tostring(self)
  local lines = { ("recipe '%s'"):format(self.name) }
  for _, leaf in ipairs(self.leaves) do
    lines[#lines + 1] = ('  %s=%s'):format(leaf.path, value.write(leaf.default))
  end
  return table.concat(lines, '\n')
end

local WIDTH = 100 -- of what is printed

-- As a shell wants it.
local function quote(text)
  if not text:find '[%s\'"$`\\;&|<>()*?#]' then return text end
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- ---- what settings there are ----

-- Lists the leaves in the order in which they are written (sorted where there is no source), as
-- { path =, kind =, default =, comment = }, and the names of inner tables.
local function collect(self, settings, prefix, written)
  local keys = {}
  for key in pairs(settings) do
    if type(key) ~= 'string' or not key:find '^[%a_][%w_]*$' then
      raise("recipe '%s': %s%s is no name for a setting", self.name, prefix, tostring(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b)
    local i, j = written[prefix .. a], written[prefix .. b]
    if i and j then return i.order < j.order end
    if i or j then return i ~= nil end
    return a < b
  end)
  for _, key in ipairs(keys) do
    local path, default = prefix .. key, settings[key]
    local at = written[path] or {}
    if type(default) == 'table' and not value.is_none(default) and not value.is_list(default) then
      self.inner[path] = true
      collect(self, default, path .. '.', written)
    else
      local kind, wrong = value.kind_of(default, at.literal)
      if not kind then
        raise("recipe '%s': %s is %s; a setting is a number, a string, a boolean or a list of "
              .. 'these', self.name, path, wrong)
      end
      if value.is_none(default) then default = nil end
      local leaf = { path = path, kind = kind, default = default }
      self.leaves[#self.leaves + 1], self.leaf_at[path] = leaf, leaf
    end
  end
end

-- The source of the chunk at this level of the stack.
local function source_at(info)
  if info.source:sub(1, 1) ~= '@' then return info.source end
  local file = io.open(info.source:sub(2))
  local text = file and file:read '*a' or ''
  if file then file:close() end
  return text
end

local function new(name, settings, info)
  local self = setmetatable({
    name = name, settings = settings, path = info.source:gsub('^@', ''),
    leaves = {}, leaf_at = {}, inner = {},
  }, Recipe)
  local read = source.parse(source_at(info), name, info.currentline)
  self.about, self.entries = read.about, read.entries
  local written = {}
  for i, entry in ipairs(read.entries) do
    if entry.path then written[entry.path] = { order = i, literal = entry.literal } end
  end
  collect(self, settings, '', written)
  return self
end

-- ---- configured settings ----

local function split(path)
  local outer, last = path:match '^(.*)%.(.-)$'
  return outer or '', last or path
end

local function get(settings, path)
  local outer, last = split(path)
  for name in outer:gmatch '[^.]+' do settings = rawget(settings, name) end
  return rawget(settings, last)
end

local function set(settings, path, given)
  local outer, last = split(path)
  for name in outer:gmatch '[^.]+' do settings = rawget(settings, name) end
  rawset(settings, last, given)
end

-- The sentence about a name that no setting has.
local function unknown(self, path, candidates, shown)
  return ("%s: no setting '%s'%s"):format(self.name, path, suggest(path, candidates, shown))
end

-- The defaults, in tables that raise for a name they do not have.
local function copy_of(self, settings, prefix)
  local copy, known = {}, {}
  for key, default in pairs(settings) do
    known[#known + 1] = key
    if self.inner[prefix .. key] then
      copy[key] = copy_of(self, default, prefix .. key .. '.')
    elseif type(default) ~= 'table' then
      copy[key] = default
    elseif not value.is_none(default) then
      copy[key] = { unpack(default) }
    end
  end
  local function check(key)
    if settings[key] == nil then
      raise('%s', (unknown(self, tostring(key), known):gsub("'", "'" .. prefix, 1)))
    end
  end
  return setmetatable(copy, {
    __index = function(_, key) check(key) end,
    __newindex = function(t, key, given)
      check(key)
      rawset(t, key, given)
    end,
    __tostring = function(t) return self:listing(t, prefix) end,
  })
end

-- The leaf that `path` names, or nil and a sentence that says what it should have been. A table
-- that has a leaf `path` stands for that: model=folder.
local function find_leaf(self, path)
  local leaf = self.leaf_at[path] or self.inner[path] and self.leaf_at[path .. '.path']
  if leaf then return leaf end
  local candidates, shown = {}, {}
  for _, known in ipairs(self.leaves) do
    local _, last = split(known.path)
    candidates[#candidates + 1] = known.path
    if not path:find('.', 1, true) and not shown[last] then
      candidates[#candidates + 1], shown[last] = last, known.path
    end
    if self.inner[path] and known.path:sub(1, #path + 1) == path .. '.' then
      return nil, ('%s: %s is a table; set one of its leaves, such as %s'):format(self.name, path,
                                                                                 known.path)
    end
  end
  return nil, unknown(self, path, candidates, shown)
end

local function wrong_type(self, leaf, given)
  local text, is_text = value.wanted(leaf.kind), (leaf.kind.element or leaf.kind).name == 'string'
  local wrong = is_text and type(given) == 'string' and utf8.first_wrong(given)
  if wrong then
    return ("%s: %s is no UTF-8 from byte %d on: '%s'"):format(self.name, leaf.path, wrong,
                                                              utf8.escaped(given))
  end
  if leaf.kind.name == 'integer' and leaf.default and (tonumber(given) or 0) % 1 > 0 then
    text = ('%s (the default is %d; written as %d.0 it would take fractions)'):format(
      text, leaf.default, leaf.default)
  end
  return ("%s: %s wants %s, got '%s'%s"):format(self.name, leaf.path, text, tostring(given),
                                               value.hint(leaf.kind, tostring(given)))
end

-- "; did you mean model=path?" for what is written as an option of other programs is: '--model',
-- with its value behind a '=' or as the argument that follows.
local function meant(self, argument, following)
  local name, text = argument:match '^%-+([^=]+)=?(.*)$'
  if not name then return '' end
  name = name:gsub('-', '_')
  local leaf, sentence = find_leaf(self, name)
  if not leaf then return #name > 1 and sentence:match '; did you mean .*$' or '' end
  local given = argument:find '=' and text
    or following and not following:find '^%-' and not following:find '^[%w_.]+=' and following
    or leaf.kind.name == 'boolean' and 'true' or value.write(leaf.default)
  return ('; did you mean %s=%s?'):format(name, quote(given))
end

-- Applies 'key=value'; `seen` has what was set before, `following` is the next argument. Refuses
-- what does not fit.
local function apply_argument(self, cfg, argument, seen, following)
  local path, text = argument:match '^([^=]+)=(.*)$'
  if not path or path:sub(1, 1) == '-' then
    refuse("%s: '%s' is not of the form key=value%s", self.name, argument,
           meant(self, argument, following))
  end
  local leaf, sentence = find_leaf(self, path)
  if not leaf then refuse('%s', sentence) end
  path = leaf.path
  if seen[path] then
    refuse("%s: %s is set twice, to '%s' and to '%s'", self.name, path, seen[path], text)
  end
  local ok, read = value.read(leaf.kind, text)
  if not ok then refuse('%s', wrong_type(self, leaf, text)) end
  set(cfg, path, read)
  seen[path] = text
end

-- Applies a table like the recipe's own; `fail` gets a sentence about what does not fit.
local function apply_table(self, cfg, given, prefix, fail)
  local keys = {}
  for key in pairs(given) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local path, item = prefix .. key, given[key]
    if self.inner[path] and type(item) == 'table' then
      apply_table(self, cfg, item, path .. '.', fail)
    else
      local leaf, sentence = find_leaf(self, path)
      if not leaf then fail(sentence) end
      local ok = value.fits(leaf.kind, item)
      if type(item) == 'string' and not ok then ok, item = value.read(leaf.kind, item) end
      if not ok then fail(wrong_type(self, leaf, value.write(given[key]))) end
      set(cfg, leaf.path, item)
    end
  end
end

-- config=FILE: settings from a JSON file, such as an earlier run keeps.
local function apply_file(self, cfg, path)
  local open = path:find '^/dev/fd/' and io.open or open_file -- config=<(a command) of a shell
  local file, why = open(path, 'r')
  if not file then refuse('%s: cannot read %s', self.name, why) end
  local text = file:read '*a' or ''
  file:close()
  local given, sentence = require('ulysses.json').decode(text)
  if type(given) ~= 'table' then
    refuse('%s: %s: %s', self.name, path, sentence or 'it holds no table of settings')
  end
  apply_table(self, cfg, given, '', function(wrong) refuse('%s (in %s)', wrong, path) end)
end

--- The settings with `overrides` applied. Strings are 'key=value' as on a command line, where a
--- number may end in K, M or G (2^10, 2^20, 2^30), a list is written a,b,c, and config=FILE reads a
--- JSON file first. What has a name is like the recipe's own table:
---     recipe:configure { model = { dim = 8 }, 'steps=4K' }
--- Only what the recipe has may be set, to values of the type that it has there.
---@param overrides table|nil
---@return table cfg reading or setting a name that is not there raises
function Recipe:configure(overrides)
  local cfg, named, seen = copy_of(self, self.settings, ''), {}, {}
  for key, given in pairs(overrides or {}) do
    if type(key) == 'string' then named[key] = given end
  end
  apply_table(self, cfg, named, '', function(sentence) raise('%s', sentence) end)
  local arguments = {}
  for _, argument in ipairs(overrides or {}) do
    local path = not self.leaf_at.config and argument:match '^config=(.*)$'
    if path then apply_file(self, cfg, path) else arguments[#arguments + 1] = argument end
  end
  for i, argument in ipairs(arguments) do
    apply_argument(self, cfg, argument, seen, arguments[i + 1])
  end
  return cfg
end

--- The settings as tables without a metatable, lists copied: for JSON, for comparing.
---@param cfg table
---@return table
function Recipe.plain(cfg)
  local copy = {}
  for key, item in pairs(cfg) do
    copy[key] = type(item) == 'table' and Recipe.plain(item) or item
  end
  return copy
end

--- Iterates over path ('model.dim') and value of all settings, in the order they are written in.
---@param cfg table
function Recipe:each(cfg)
  local i = 0
  return function()
    i = i + 1
    local leaf = self.leaves[i]
    if leaf then return leaf.path, get(cfg, leaf.path) end
  end
end

-- One setting to a line, those below `prefix`.
function Recipe:listing(cfg, prefix)
  local lines = {}
  for _, leaf in ipairs(self.leaves) do
    if leaf.path:sub(1, #prefix) == prefix then
      local path = leaf.path:sub(#prefix + 1)
      lines[#lines + 1] = ('%s = %s'):format(path, value.write(get(cfg, path)))
    end
  end
  return table.concat(lines, '\n')
end

-- Whether a table has other values than these, in the folder that its `path` names.
local function is_elsewhere(self, cfg, path)
  local outer, last = split(path)
  return last ~= 'path' and self.leaf_at[outer .. '.path'] ~= nil
    and get(cfg, outer .. '.path') ~= nil
end

--- All settings in a few lines, a star behind those that are not the recipe's defaults. Of a model
--- that is a folder's (model=folder) that folder alone, which has the rest.
---@param cfg table
---@return string
function Recipe:describe(cfg)
  local lines, line = {}, self.name .. ':'
  for _, leaf in ipairs(self.leaves) do
    if not is_elsewhere(self, cfg, leaf.path) then
      local text = value.write(get(cfg, leaf.path))
      local changed = text ~= value.write(leaf.default)
      text = (' %s=%s%s'):format(leaf.path, quote(text), changed and '*' or '')
      if #line + #text > WIDTH then
        lines[#lines + 1], line = line, ' '
      end
      line = line .. text
    end
  end
  lines[#lines + 1] = line
  return table.concat(lines, '\n')
end

-- ---- the command line ----

-- Breaks text at spaces into lines of at most `width`.
local function wrap(text, width)
  local lines, line = {}, ''
  for word in text:gmatch '%S+' do
    if line ~= '' and #line + 1 + #word > width then
      lines[#lines + 1], line = line, ''
    end
    line = line == '' and word or line .. ' ' .. word
  end
  lines[#lines + 1] = line
  return lines
end

--- What --help prints: what the recipe's file begins with, and all settings with their defaults and
--- comments.
---@return string
function Recipe:help()
  local lines, rows, width = {}, {}, 0
  for i, line in ipairs(self.about) do lines[i] = line end
  if #lines > 0 then lines[#lines + 1] = '' end
  lines[#lines + 1] = ('Settings of %s, each to be overridden by key=value:'):format(self.name)
  local shown = {}
  local function add(leaf, comment)
    if not leaf or shown[leaf] then return end
    shown[leaf] = true
    local text = ('  %s=%s'):format(leaf.path, quote(value.write(leaf.default)))
    rows[#rows + 1] = { text, comment or leaf.kind.optional and value.wanted(leaf.kind) or nil }
    if #text <= 44 then width = math.max(width, #text) end
  end
  for _, entry in ipairs(self.entries) do
    if entry.heading or self.inner[entry.path] and entry.comment then
      rows[#rows + 1] = { '  -- ' .. (entry.heading or entry.comment) }
    else
      add(self.leaf_at[entry.path], entry.comment)
    end
  end
  for _, leaf in ipairs(self.leaves) do add(leaf) end
  for _, row in ipairs(rows) do
    local comment = wrap(row[2] or '', WIDTH - width - 2)
    local space = (' '):rep(math.max(2, width + 2 - #row[1]))
    lines[#lines + 1] = (row[1] .. space .. comment[1]):match '^(.-)%s*$'
    for i = 2, #comment do lines[#lines + 1] = (' '):rep(width + 2) .. comment[i] end
  end
  lines[#lines + 1] = 'Numbers may end in K, M or G (8K is 8192); config=FILE reads a JSON file.'
  return table.concat(lines, '\n')
end

-- Where a step of training needs more memory than there is: what the recipe has against that.
local function advice_on_memory(cfg)
  local less = {}
  for _, name in ipairs { 'recompute', 'offload', 'shard' } do
    if rawget(cfg, name) == false then less[#less + 1] = name .. '=true' end
  end
  if rawget(cfg, 'sp') then less[#less + 1] = 'more ranks (sp=N)' end
  local text = 'ulysses-lua --plan, before the script, says what a step takes of memory'
  if #less == 0 then return text end
  return ('%s; less with %s'):format(text, table.concat(less, ', '))
end

--- Ends a recipe's file. Where the file runs as a script, reads the command line, prints the
--- settings and calls train(cfg), or run(cfg) of a recipe that trains nothing, whose settings go to
--- stderr; where it is required, does nothing. Returns the recipe.
---@return Recipe
function Recipe:main()
  if not arg or arg[0] ~= self.path then return self end
  for _, argument in ipairs(arg) do
    if argument == '--help' or argument == '-h' then
      print(self:help())
      return self
    end
  end
  local cfg = self:configure { unpack(arg) }
  local go = self.train or self.run
  if core.planning() and not self.train and self.run then
    refuse("--plan: '%s' trains nothing, and what is planned is a step of training", self.name)
  end
  if not go then raise("recipe '%s': it has no function train(cfg)", self.name) end
  if self.train then print(self:describe(cfg)) else notice(self:describe(cfg)) end
  io.flush() -- before what may be refused
  check_limits(self, cfg)
  if self.train then require('ulysses.frames').advise_on_memory(advice_on_memory(cfg)) end
  go(cfg)
  return self
end

--- ul.recipe 'name' { settings }: numbers, strings, booleans, lists of these, and tables of
--- settings. A default that is written without a point (8, not 8.0) takes whole numbers alone;
--- ul.none 'string' is a setting without a value.
---@param name string
---@return fun(settings: table): Recipe
return function(name)
  if type(name) ~= 'string' then raise('recipe: expected a name, got a %s', type(name)) end
  local info = debug.getinfo(2, 'Sl')
  return function(settings)
    if type(settings) ~= 'table' then
      raise("recipe '%s': expected a table of settings, got a %s", name, type(settings))
    end
    return new(name, settings, info)
  end
end
