-- chart.lua - line charts over steps as SVG: axes, ticks, thinned lines, colours of the page.
local chart = {}

local NARROW, WIDE, HEIGHT = 640, 960, 250
local LEFT, RIGHT, TOP, BOTTOM = 62, 22, 12, 34
-- A line has at most two points in each of so many columns.
local COLUMNS = 300
-- What a mouse can point at.
local TIPS = 60

local function is_finite(x) return type(x) == 'number' and x - x == 0 end

--- Text for HTML.
---@param text any
---@return string
function chart.escape(text)
  return (tostring(text):gsub('[&<>"\']', { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;',
                                             ['"'] = '&quot;', ["'"] = '&#39;' }))
end

-- ---- axes ----

-- Round numbers that cut [low, high] into about n parts.
local function linear_ticks(low, high, n, whole)
  local rough = (high - low) / n
  local unit = 10 ^ math.floor(math.log10(rough))
  local step = 10 * unit
  for _, factor in ipairs { 1, 2, 5 } do
    if factor * unit >= rough then
      step = factor * unit
      break
    end
  end
  if whole then step = math.max(1, step) end
  local ticks, first = {}, math.ceil(low / step - 1e-9)
  for i = first, math.floor(high / step + 1e-9) do ticks[#ticks + 1] = i * step + 0 end -- no -0
  return ticks, step
end

-- Powers of ten; where there are few, 2 and 5 times these too.
local function log_ticks(low, high)
  local ticks, few = {}, math.log10(high / low) < 2
  for power = math.floor(math.log10(low)), math.ceil(math.log10(high)) do
    for _, factor in ipairs(few and { 1, 2, 5 } or { 1 }) do
      local tick = factor * 10 ^ power
      if tick >= low * (1 - 1e-9) and tick <= high * (1 + 1e-9) then ticks[#ticks + 1] = tick end
    end
  end
  return ticks
end

local function range_of(series)
  local low, high = math.huge, -math.huge
  for _, one in ipairs(series) do
    for _, point in ipairs(one.points) do
      if is_finite(point[2]) then low, high = math.min(low, point[2]), math.max(high, point[2]) end
    end
  end
  return low, high
end

-- From values to places: { low, high, at = f, ticks = { value, .. } }
local function vertical_axis(given)
  local low, high = range_of(given.series)
  if low > high then low, high = 0, 1 end
  local height = HEIGHT - TOP - BOTTOM
  if given.log and low > 0 and high / low > 30 then
    local a, b = math.log(low), math.log(high)
    local function at(y) return TOP + height * (1 - (math.log(math.max(y, low)) - a) / (b - a)) end
    return { at = at, ticks = log_ticks(low, high) }
  end
  if given.zero then low = math.min(0, low) end
  local room = high > low and 0.05 * (high - low) or math.max(math.abs(high), 1e-6) * 0.1
  high = high + room
  if not (given.zero and low == 0) then low = low - room end
  local ticks, step = linear_ticks(low, high, 6)
  return { ticks = ticks, step = step,
           at = function(y) return TOP + height * (1 - (y - low) / (high - low)) end }
end

local function horizontal_axis(given)
  local low, high = given.first, given.last
  if low == high then low, high = low - 0.5, high + 0.5 end
  local width = given.width - LEFT - RIGHT
  return { ticks = linear_ticks(low, high, 6, true),
           at = function(x) return LEFT + width * (x - low) / (high - low) end }
end

-- '0.25' where ticks are 0.05 apart
local function tick_text(value, step)
  if not step then return ('%g'):format(value) end
  if value ~= 0 and (math.abs(value) < 1e-3 or math.abs(value) >= 1e6) then
    return (('%.3g'):format(value):gsub('e([+-])0*', { ['+'] = 'e', ['-'] = 'e-' }))
  end
  local digits = math.max(0, math.ceil(-math.log10(step) - 1e-9))
  return ('%%.%df'):format(digits):format(value)
end

local function axes_of(given, x, y)
  local parts, right = {}, given.width - RIGHT
  local function add(text, ...) parts[#parts + 1] = text:format(...) end
  for _, tick in ipairs(y.ticks) do
    local at = y.at(tick)
    add('<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>', LEFT, right, at, at)
    add('<text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>', LEFT - 8, at + 4,
        chart.escape(given.format and given.format(tick) or tick_text(tick, y.step)))
  end
  local base = HEIGHT - BOTTOM
  add('<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>', LEFT, right, base, base)
  for _, tick in ipairs(x.ticks) do
    local at = x.at(tick)
    add('<line class="axis" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>', at, at, base, base + 4)
    add('<text class="tick" x="%.1f" y="%d" text-anchor="middle">%d</text>', at, base + 18, tick)
  end
  return table.concat(parts)
end

-- ---- lines ----

--- At most two points for each of some 300 columns, the lowest and the highest, in their order: no
--- peak is lost. What is not finite stays as a gap.
---@param points { [1]: number, [2]: number }[] in the order of steps
---@return { [1]: number, [2]: number }[]
function chart.thin(points)
  if #points <= 2 * COLUMNS then return points end
  local kept, first, width = {}, points[1][1], (points[#points][1] - points[1][1]) / COLUMNS
  local at = 1
  while at <= #points do
    local column = math.floor((points[at][1] - first) / width)
    local low, high = at, at
    while at <= #points and math.floor((points[at][1] - first) / width) == column do
      local y = points[at][2]
      if not is_finite(points[low][2]) or is_finite(y) and y < points[low][2] then low = at end
      if not is_finite(points[high][2]) or is_finite(y) and y > points[high][2] then high = at end
      at = at + 1
    end
    kept[#kept + 1] = points[math.min(low, high)]
    if low ~= high then kept[#kept + 1] = points[math.max(low, high)] end
  end
  return kept
end

local function line_of(one, x, y)
  local path, dots, pen_up, alone = {}, {}, true, nil
  local function dot(px, py)
    dots[#dots + 1] = ('<circle class="dot %s" cx="%.1f" cy="%.1f" r="3"/>'):format(one.class, px,
                                                                                   py)
  end
  for _, point in ipairs(chart.thin(one.points)) do
    if is_finite(point[2]) then
      local px, py = x.at(point[1]), y.at(point[2])
      path[#path + 1] = ('%s%.1f %.1f'):format(pen_up and 'M' or 'L', px, py)
      alone, pen_up = pen_up and { px, py } or nil, false
      if one.dots then dot(px, py) end
    else
      if alone and not one.dots then dot(unpack(alone)) end
      pen_up, alone = true, nil
    end
  end
  if alone and not one.dots then dot(unpack(alone)) end
  local line = #path > 1 and ('<path class="line %s" d="%s"/>'):format(one.class,
                                                                      table.concat(path)) or ''
  return line .. table.concat(dots)
end

-- Strips over the chart that say what stands in them.
local function tips_of(given, x)
  local parts, count = {}, math.min(TIPS, given.last - given.first + 1)
  local width = (given.width - LEFT - RIGHT) / count
  for i = 1, count do
    local step = given.first + math.floor((i - 0.5) * (given.last - given.first + 1) / count)
    local left = count > 1 and LEFT + (i - 1) * width or x.at(step) - width / 2
    local values = {}
    for _, one in ipairs(given.series) do
      local value = one.value_at and one.value_at(step)
      if is_finite(value) then
        values[#values + 1] = ('%s %s'):format(one.name, given.format and given.format(value)
                                                         or ('%.4g'):format(value))
      end
    end
    parts[i] = ('<rect class="tip" x="%.1f" y="%d" width="%.1f" height="%d"><title>step %d: %s'
                .. '</title></rect>'):format(left, TOP, width, HEIGHT - TOP - BOTTOM, step,
                                              chart.escape(table.concat(values, ', ')))
  end
  return table.concat(parts)
end

local function marks_of(steps, x)
  local parts, before = {}, nil
  for _, step in ipairs(steps or {}) do
    local at = ('%.1f'):format(x.at(step))
    if at ~= before then
      parts[#parts + 1] = ('<path class="skip" d="M%s %dv-12"/>'):format(at, HEIGHT - BOTTOM)
    end
    before = at
  end
  return table.concat(parts)
end

local function legend_of(given)
  local parts = {}
  for _, one in ipairs(given.series) do
    if #given.series > 1 and #one.points > 0 then
      parts[#parts + 1] = ('<span><i class="key %s"></i>%s</span>'):format(one.class, one.name)
    end
  end
  if #(given.marks or {}) > 0 then
    parts[#parts + 1] = '<span><i class="key skipped"></i>skipped step</span>'
  end
  return #parts > 0 and '<p class="legend">' .. table.concat(parts) .. '</p>' or ''
end

--- A chart as a figure of HTML.
---   series  { name =, class = (a colour of the page), points = { { step, value }, .. }, dots =,
---             value_at = function(step) }, the hindmost first
---   first, last  steps at the ends of the axis;   marks  steps that were skipped
---   wide  over the page;   zero  begins at 0;   log  logarithmic where values differ much
---   format  words for values
---@param given table
---@return string
function chart.figure(given)
  given.width = given.wide and WIDE or NARROW
  local x, y = horizontal_axis(given), vertical_axis(given)
  local lines = {}
  for i, one in ipairs(given.series) do lines[i] = line_of(one, x, y) end
  return ('<figure><figcaption><h3>%s</h3>%s</figcaption><svg viewBox="0 0 %d %d" role="img" '
          .. 'aria-label="%s">%s%s%s<text class="tick" x="%d" y="%d" text-anchor="end">step</text>'
          .. '%s</svg></figure>'):format(
    chart.escape(given.title), legend_of(given), given.width, HEIGHT,
    chart.escape(given.title .. ': ' .. given.summary), axes_of(given, x, y),
    table.concat(lines), marks_of(given.marks, x), given.width - RIGHT, HEIGHT - 2,
    tips_of(given, x))
end

return chart
