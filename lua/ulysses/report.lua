-- report.lua - one HTML page about a run, made from the files in its folder, that needs no other
-- file: ulysses-lua --report runs/x, run:report().
local chart = require 'ulysses.chart'
local folder = require 'ulysses.folder'
local json = require 'ulysses.json'
local log = require 'ulysses.log'
local read_files = require 'ulysses.report_files'
local style = require 'ulysses.report_style'

local nan = 0 / 0
local escape = chart.escape

-- The page shows so many samples, the latest, and so many rows of numbers.
local SAMPLES, ROWS = 12, 24

-- ---- what there is ----

local function number(value) return type(value) == 'number' and value or nan end

-- The points of one name, and what stands at a step.
local function series(steps, name, class, field)
  local one = { name = name, class = class, points = {} }
  local by_step = {}
  for i, values in ipairs(steps) do
    one.points[i] = { values.step, number(values[field]) }
    by_step[values.step] = one.points[i][2]
  end
  function one.value_at(step) return by_step[step] end
  return one
end

-- The mean of the last hundredth or so of the values, the newest weighing most.
local function smoothed(raw, class)
  local one = { name = raw.name .. ', smoothed', class = class, points = {} }
  local keep = 1 - 1 / math.max(1, #raw.points / 100)
  local sum, weight, by_step = 0, 0, {}
  for i, point in ipairs(raw.points) do
    if point[2] - point[2] == 0 then sum, weight = keep * sum + point[2], keep * weight + 1 end
    local value = weight > 0 and sum / weight or nan
    one.points[i], by_step[point[1]] = { point[1], value }, value
  end
  function one.value_at(step) return by_step[step] end
  return one
end

-- What was measured now and then: points with dots.
local function evaluations(records)
  local one = { name = 'held-out', class = 'second', points = {}, dots = true }
  for _, values in ipairs(records) do
    if values.eval_loss then
      one.points[#one.points + 1] = { values.step, number(values.eval_loss) }
    end
  end
  function one.value_at(step)
    local value
    for _, point in ipairs(one.points) do
      if point[1] <= step then value = point[2] end
    end
    return value
  end
  return one
end

local function read(dir)
  local page = read_files(dir)
  page.skipped = {}
  for _, values in ipairs(page.records) do
    if values.skipped == true then page.skipped[#page.skipped + 1] = values.step end
  end
  page.evaluations = evaluations(page.records)
  page.name = dir:gsub('/+$', ''):match '[^/]+$' or dir
  return page
end

-- ---- charts ----

local function words(value, format)
  value = number(value)
  return value - value == 0 and format(value) or 'not finite'
end

local function summary(one, format)
  local first, last = one.points[1], one.points[#one.points]
  return ('from %s at step %d to %s at step %d'):format(words(first[2], format), first[1],
                                                        words(last[2], format), last[1])
end

local function has(one)
  for _, point in ipairs(one.points) do
    if point[2] - point[2] == 0 then return true end
  end
  return false
end

local function charts(page)
  local steps, parts = page.steps, {}
  local function add(title, list, given)
    if not has(list[1]) then return end
    given = given or {}
    given.title, given.series = title, list
    given.first, given.last = steps[1].step, steps[#steps].step
    given.marks = given.marked and page.skipped or nil
    given.summary = summary(list[1], given.format or log.number)
    parts[#parts + 1] = chart.figure(given)
  end
  local loss = series(steps, 'train', #steps > 50 and 'faint' or 'first', 'loss')
  local losses = { loss }
  if #steps > 50 then losses[2] = smoothed(loss, 'first') end
  losses[#losses + 1] = page.evaluations
  add('Loss', losses, { wide = true, marked = true })
  add('Learning rate', { series(steps, 'learning rate', 'first', 'lr') }, { zero = true })
  add('Gradient norm', { series(steps, 'norm', 'first', 'grad_norm') },
      { log = true, marked = true })
  local speed = series(steps, 'tokens/s', #steps > 50 and 'faint' or 'first', 'tokens_per_s')
  add('Tokens per second', #steps > 50 and { speed, smoothed(speed, 'first') } or { speed },
      { zero = true, format = log.rate })
  add('Memory', { series(steps, 'peak', 'first', 'peak_bytes') },
      { zero = true, format = log.bytes })
  return table.concat(parts)
end

-- ---- tiles, tables, texts ----

local function decimals(value) return ('%.4f'):format(value) end

local function tiles(page)
  local last, parts = page.steps[#page.steps], {}
  local function add(name, value, note)
    parts[#parts + 1] = ('<div><dt>%s</dt><dd>%s</dd><dd class="note">%s</dd></div>'):format(
      name, escape(value), escape(note or ''))
  end
  local wanted = page.run.steps
  add('Steps', last.step, wanted and wanted > last.step and 'of ' .. wanted or nil)
  local first = page.steps[1]
  add('Training loss', words(last.loss, decimals), 'from ' .. words(first.loss, decimals))
  local evaluated = page.evaluations.points[#page.evaluations.points]
  if evaluated then
    add('Held-out loss', words(evaluated[2], decimals),
        'perplexity ' .. words(math.exp(evaluated[2]), log.number))
  end
  add('Tokens', log.count(last.tokens), ('in %s'):format(log.time(last.seconds)))
  local speed, flops = last.tokens / last.seconds, 0
  for _, values in ipairs(page.steps) do flops = flops + number(values.flops_per_s) end
  flops = flops / #page.steps
  local peak = page.run.machine and page.run.machine.peak_flops
  local note = flops - flops == 0 and flops > 0 and log.flops(flops) .. '/s' or nil
  if note and peak then note = ('%s, %.0f %% of peak'):format(note, 100 * flops / peak) end
  add('Tokens per second', log.rate(speed), note)
  add('Peak memory', log.bytes(last.peak_bytes), page.run.ranks and 'of the rank with the most')
  if #page.skipped > 0 then add('Skipped steps', #page.skipped, 'loss or gradient not finite') end
  return '<dl class="tiles">' .. table.concat(parts) .. '</dl>'
end

local function leaves(settings, prefix, list)
  local names = {}
  for name in pairs(settings) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local value, path = settings[name], prefix .. tostring(name)
    if type(value) == 'table' and value ~= json.null then
      leaves(value, path .. '.', list)
    else
      list[#list + 1] = { path, type(value) == 'number' and ('%.14g'):format(value) or value }
    end
  end
  return list
end

local function pairs_table(title, list)
  if #list == 0 then return '' end
  local rows = {}
  for i, pair in ipairs(list) do
    rows[i] = ('<tr><th scope="row">%s</th><td>%s</td></tr>'):format(escape(pair[1]),
                                                                    escape(pair[2]))
  end
  return ('<section><h2>%s</h2><table>%s</table></section>'):format(title, table.concat(rows))
end

local function machine(page)
  local run, list = page.run, {}
  local function add(name, value) if value then list[#list + 1] = { name, value } end end
  local there = run.machine or {}
  add('GPU', there.gpu)
  add('CPU', there.cpu)
  add('instruction set', there.isa)
  add(run.ranks and 'threads of a rank' or 'threads', there.threads)
  add('ranks', run.ranks)
  add(there.gpu and 'published peak' or 'measured peak',
      there.peak_flops and log.flops(there.peak_flops) .. '/s')
  add('dtype', run.dtype)
  add('parameters', run.parameters and log.count(run.parameters))
  add('begun', run.started and os.date('!%Y-%m-%d %H:%M UTC', run.started))
  add('resumed at step', run.resumed)
  add('ulysses-lua', run.version)
  return pairs_table('Machine and model', list)
end

local function samples(page)
  local parts = {}
  for i = #page.samples, math.max(1, #page.samples - SAMPLES + 1), -1 do
    local one = page.samples[i]
    parts[#parts + 1] = ('<article><h3>After step %d</h3><pre><b>%s</b>%s</pre></article>'):format(
      one.step, escape(one.prompt or ''), escape(one.text or ''))
  end
  if #parts == 0 then return '' end
  return '<section><h2>Samples</h2>' .. table.concat(parts) .. '</section>'
end

-- The same as the charts, for who reads numbers.
local function numbers(page)
  local steps, rows = page.steps, {}
  local columns = { 'loss', 'grad_norm', 'lr', 'tokens_per_s', 'peak_bytes' }
  local count = math.min(ROWS, #steps)
  for i = 1, count do
    local at = count == 1 and 1 or 1 + math.floor((i - 1) * (#steps - 1) / (count - 1) + 0.5)
    local values, cells = steps[at], {}
    for k, name in ipairs(columns) do
      local format = name == 'peak_bytes' and log.bytes or log.number
      cells[k] = ('<td>%s</td>'):format(values[name] ~= nil and words(values[name], format) or '')
    end
    rows[i] = ('<tr><th scope="row">%d</th>%s</tr>'):format(values.step, table.concat(cells))
  end
  return ('<details><summary>The numbers</summary><table class="numbers"><tr><th scope="col">step'
          .. '</th><th scope="col">loss</th><th scope="col">gradient norm</th><th scope="col">'
          .. 'learning rate</th><th scope="col">tokens/s</th><th scope="col">peak memory</th></tr>'
          .. '%s</table></details>'):format(table.concat(rows))
end

--- Writes the page about the run in a folder; refuses where there is none.
---@param dir string
---@return string path
local function write(dir)
  local page = read(dir)
  local path = dir .. '/report.html'
  folder.write(path, table.concat {
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark"><title>', escape(page.name), '</title><style>',
    style, '</style></head><body><main><h1>', escape(page.name), '</h1>', tiles(page),
    '<section class="charts" aria-label="Charts">', charts(page), '</section>', numbers(page),
    samples(page), '<div class="tables">', pairs_table('Settings',
                                                       leaves(page.run.config or {}, '', {})),
    machine(page), '</div></main></body></html>\n',
  })
  return path
end

return { write = write }
