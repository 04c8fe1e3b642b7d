-- report_files.lua - what a page about a run is made of: the files in its folder, which may have
-- been changed by hand.
local json = require 'ulysses.json'
local metrics = require 'ulysses.metrics'
local open_file = require 'ulysses.open_file'
local refuse = require 'ulysses.refuse'

local NO_SUCH_FILE = 2

-- Where a number that is too large is no number of anything.
local greatest = { step = 2 ^ 53, started = 2 ^ 40 }

-- What may stand in a line; a number that was not finite is null.
local of_line = {
  step = 'number', loss = 'number', grad_norm = 'number', lr = 'number', seconds = 'number',
  tokens = 'number', tokens_per_s = 'number', peak_bytes = 'number', flops_per_s = 'number',
  eval_loss = 'number', perplexity = 'number', skipped = 'boolean',
}
local needed = { 'seconds', 'tokens', 'peak_bytes' } -- where it is a step's

local of_sample = { step = 'number', prompt = 'string', text = 'string' }

local of_run = {
  version = 'string', config = 'table', dtype = 'string', steps = 'number', parameters = 'number',
  started = 'number', resumed = 'number', ranks = 'string',
  machine = { gpu = 'string', cpu = 'string', isa = 'string', threads = 'number',
              peak_flops = 'number' },
}

-- Refuses values of other types than `types`; name_of(key) names one in the sentence.
local function check(values, types, path, name_of)
  for key, wanted in pairs(types) do
    local value, inner = values[key], type(wanted) == 'table'
    if value ~= nil and value ~= json.null then
      local kind = inner and 'table' or wanted
      if type(value) ~= kind then
        refuse('report: %s: %s is a %s, not a %s', path, name_of(key), type(value), kind)
      elseif greatest[key] and math.abs(value) > greatest[key] then
        refuse('report: %s: %s is %g, which cannot be', path, name_of(key), value)
      elseif inner then
        check(value, wanted, path, function(name) return key .. '.' .. name end)
      end
    end
  end
end

local function check_line(values, types, path)
  check(values, types, path, function(key)
    return key == 'step' and 'a step' or ('%s of step %.14g'):format(key, values.step)
  end)
end

-- A table without what is null.
local function without_null(values)
  local copy = {}
  for key, value in pairs(values) do
    if value ~= json.null then copy[key] = value end
  end
  return copy
end

local function read_run(path)
  local file, why, code = open_file(path, 'rb')
  if not file and code == NO_SUCH_FILE then return {} end
  if not file then refuse('cannot read %s', why) end
  local run, sentence = json.decode(file:read '*a' or '')
  file:close()
  if type(run) ~= 'table' then
    refuse('report: %s: %s', path, sentence or 'it holds no table')
  end
  check(run, of_run, path, function(key) return key end)
  run = without_null(run)
  if run.machine then run.machine = without_null(run.machine) end
  return run
end

--- The steps (records with tokens), all records, those of samples, and run.json, all of the types
--- that are written; refuses others, and a folder without a step.
---@param dir string
---@return { steps: table[], records: table[], samples: table[], run: table }
return function(dir)
  local path = dir .. '/metrics.jsonl'
  local files = { records = metrics.read(path), steps = {} }
  for _, values in ipairs(files.records) do
    check_line(values, of_line, path)
    if values.tokens then files.steps[#files.steps + 1] = values end
  end
  if #files.steps == 0 then
    refuse("report: '%s' holds no run: there is no step in %s", dir, path)
  end
  for _, values in ipairs(files.steps) do
    for _, key in ipairs(needed) do
      if type(values[key]) ~= 'number' then
        refuse('report: %s: %s of step %.14g are missing', path, key, values.step)
      end
    end
  end
  path = dir .. '/samples.jsonl'
  files.samples = metrics.read_all(path)
  for _, values in ipairs(files.samples) do check_line(values, of_sample, path) end
  files.run = read_run(dir .. '/run.json')
  return files
end
