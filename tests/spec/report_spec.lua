-- report_spec.lua - the page about a run, and event files for TensorBoard.
local ul = require 'ulysses'
local bit = require 'bit'
local core = require 'ulysses.core'
local chart = require 'ulysses.chart'
local report = require 'ulysses.report'
local tensorboard = require 'ulysses.tensorboard'

local folder

local function put(name, text)
  local file = assert(io.open(folder .. '/' .. name, 'wb'))
  file:write(text)
  file:close()
end

local function get(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

-- metrics.jsonl of n steps; change(values) may alter each.
local function put_steps(n, change)
  local lines = {}
  for step = 1, n do
    local values = {
      step = step, loss = 5 / math.sqrt(step), grad_norm = 1 + step % 3, lr = 1e-3, seconds = step,
      tokens = 1024 * step, tokens_per_s = 1024, peak_bytes = 3e8, flops_per_s = 1e11,
    }
    if change then change(values) end
    lines[step] = ul.json.encode(values)
  end
  put('metrics.jsonl', table.concat(lines, '\n') .. '\n')
end

-- Every tag is closed, in the right order.
local function check_tags(html)
  local open, void = {}, { meta = true, ['!doctype'] = true }
  for slash, name, inner in html:gmatch '<(/?)([%w!]+)([^<>]*)>' do
    if slash == '/' then
      assert.equal(name, table.remove(open))
    elseif not void[name] and inner:sub(-1) ~= '/' then
      open[#open + 1] = name
    end
  end
  assert.same({}, open)
end

local function page()
  local html = get(report.write(folder))
  check_tags(html)
  for _, foreign in ipairs { 'http:', 'https:', 'src=', '<link', '@import', 'url%(' } do
    assert.is_nil(html:find(foreign), foreign)
  end
  assert.is_nil(html:find '[^%a]nan[^%a]')
  return html
end

describe('report', function()
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    core.folder_make(folder)
  end)
  after_each(function() core.path_remove(folder) end)

  it('shows curves, settings, machine and samples', function()
    put_steps(120)
    put('run.json', ul.json.encode {
      steps = 200, config = { lr = 1e-3, model = { dim = 256 }, name = 'a<b' }, parameters = 3.2e6,
      dtype = 'f32', machine = { cpu = 'Abacus', isa = 'avx2', threads = 4, peak_flops = 2e11 },
    })
    put('samples.jsonl', ul.json.encode { step = 60, prompt = 'Once <', text = 'upon & a' } .. '\n')
    local file = io.open(folder .. '/metrics.jsonl', 'a')
    file:write(ul.json.encode { step = 120, eval_loss = 0.5, perplexity = 1.6 }, '\n')
    file:close()
    local html = page()
    for _, text in ipairs {
      '<h3>Loss</h3>', '<h3>Learning rate</h3>', '<h3>Gradient norm</h3>', '<h3>Memory</h3>',
      '<h3>Tokens per second</h3>', 'held%-out', 'of 200', 'model.dim', 'a&lt;b', 'Abacus',
      '<b>Once &lt;</b>upon &amp; a', 'perplexity 1.649', '100 GFLOP/s, 50 %% of peak', '3.2 M',
    } do
      assert.matches(text, html)
    end
    assert.is_nil(html:find('skipped', html:find '<body>', true))
  end)

  it('is made of one step, and of what is not finite', function()
    put_steps(1)
    assert.matches('<circle', page())
    put_steps(9, function(values)
      if values.step > 3 and values.step < 7 then
        values.loss, values.grad_norm, values.skipped = 0 / 0, 1 / 0, true
      end
    end)
    local html = page()
    local _, marks = html:gsub('class="skip"', '')
    assert.equal(2 * 3, marks) -- in the charts of loss and norm
    assert.matches('skipped step', html)
    put_steps(3, function(values) values.loss = 0 / 0 end)
    page()
    put_steps(2, function(values) values.loss, values.grad_norm, values.lr = 0, nil, nil end)
    assert.is_nil(page():find 'Learning rate</h3>')
  end)

  it('stays small, and loses no peak, however long the run is', function()
    put_steps(20000, function(values)
      if values.step == 12345 then values.loss = 77 end
    end)
    local html = page()
    assert.is_true(#html < 300000)
    local points = {}
    for step = 1, 20000 do points[step] = { step, step == 12345 and 77 or 0 } end
    local thin, most = chart.thin(points), 0
    for _, point in ipairs(thin) do most = math.max(most, point[2]) end
    assert.equal(77, most)
    assert.is_true(#thin <= 602)
    for i = 2, #thin do assert.is_true(thin[i][1] > thin[i - 1][1]) end
  end)

  local good = {
    steps = 200, config = { lr = 1e-3, list = { 1, 2 } }, parameters = 3.2e6, dtype = 'f32',
    machine = { cpu = 'Abacus', isa = 'avx2', threads = 4, peak_flops = 2e11 }, started = 1.7e9,
    resumed = 3, version = '1', ranks = '2 ranks (sp 2)',
  }

  it('is refused where its files were changed by hand', function()
    local function refusal()
      local ok, problem = pcall(report.write, folder)
      assert.is_false(ok)
      return (tostring(problem):gsub(folder:gsub('%W', '%%%0'), '$'))
    end
    put_steps(3, function(values) if values.step == 2 then values.loss = 'low' end end)
    assert.equal('report: $/metrics.jsonl: loss of step 2 is a string, not a number', refusal())
    put_steps(3, function(values) if values.step == 3 then values.seconds = nil end end)
    assert.equal('report: $/metrics.jsonl: seconds of step 3 are missing', refusal())
    put_steps(3, function(values) values.lr = { 1 } end)
    assert.equal('report: $/metrics.jsonl: lr of step 1 is a table, not a number', refusal())
    put_steps(3)
    put('run.json', '{ "steps": "many" }')
    assert.equal('report: $/run.json: steps is a string, not a number', refusal())
    put('run.json', '{ "machine": { "threads": true } }')
    assert.equal('report: $/run.json: machine.threads is a boolean, not a number', refusal())
    put('run.json', '{ "machine": 3 }')
    assert.equal('report: $/run.json: machine is a number, not a table', refusal())
    put('run.json', '{ "steps": 3, }')
    assert.matches('^report: %$/run.json: line 1, column 15: ', refusal())
    put('run.json', '3')
    assert.equal('report: $/run.json: it holds no table', refusal())
    put('run.json', '{ "steps": null, "machine": { "cpu": null, "peak_flops": null } }')
    page()
    put('samples.jsonl', '{"step":1,"prompt":["a"]}\n')
    assert.equal('report: $/samples.jsonl: prompt of step 1 is a table, not a string', refusal())
  end)

  -- Other values in place of each of the good ones, one after the other.
  it('is written or refused, whatever stands in its files', function()
    local others = { 'x', true, {}, { 1 }, { a = 1 }, ul.json.null, -1, 0, 1.5, 1e300, -1e300 }
    local function try()
      local ok, problem = pcall(report.write, folder)
      assert.is_true(ok or type(problem) == 'table', tostring(problem))
    end
    local function with_each(values, write)
      for name, kept in pairs(values) do
        for _, other in ipairs(others) do
          values[name] = other
          write()
          try()
        end
        values[name] = kept
      end
    end
    put_steps(3)
    local function put_run() put('run.json', ul.json.encode(good)) end
    with_each(good, put_run)
    with_each(good.machine, put_run)
    with_each(good.config, put_run)
    put_run()
    local lines = {
      { step = 1, loss = 5, grad_norm = 1, lr = 1e-3, seconds = 1, tokens = 10, tokens_per_s = 10,
        peak_bytes = 3e8, flops_per_s = 1e11, skipped = true },
      { step = 2, loss = 5, grad_norm = 1, lr = 1e-3, seconds = 1, tokens = 10, tokens_per_s = 10,
        peak_bytes = 3e8, flops_per_s = 1e11, eval_loss = 3, perplexity = 20 },
    }
    for _, line in ipairs(lines) do
      with_each(line, function()
        put('metrics.jsonl', ul.json.encode(lines[1]) .. '\n' .. ul.json.encode(lines[2]) .. '\n')
      end)
    end
    local sample = { step = 1, prompt = 'a', text = 'b' }
    with_each(sample, function() put('samples.jsonl', ul.json.encode(sample) .. '\n') end)
  end)

  it('is refused where there is no run', function()
    for _, text in ipairs { '', 'x', '{"step":3,"eval_loss":1}\n' } do
      put('metrics.jsonl', text)
      local ok, refusal = pcall(report.write, folder)
      assert.is_false(ok)
      assert.matches("^report: '.*' holds no run: there is no step in .*/metrics.jsonl$",
                     tostring(refusal))
    end
    local program = require 'tests.program'
    local output, status = program.shell('$P --report ' .. folder)
    assert.equal(1, status)
    assert.matches("^ulysses%-lua: report: '[^\n]*\n$", output)
    put_steps(2)
    assert.same({ folder .. '/report.html\n', 0 }, { program.shell('$P --report ' .. folder) })
  end)
end)

-- ---- TensorBoard ----

-- CRC-32C bit by bit, so as not to share the table of the writer.
local function crc32c(text)
  local crc = 0xffffffff
  for i = 1, #text do
    crc = bit.bxor(crc, text:byte(i))
    for _ = 1, 8 do
      crc = bit.bxor(bit.rshift(crc, 1), bit.band(crc, 1) * 0x82f63b78)
    end
  end
  return bit.bxor(crc, 0xffffffff) % 2 ^ 32
end

local function masked(text)
  local crc = crc32c(text)
  local rotated = math.floor(crc / 2 ^ 15) + crc % 2 ^ 15 * 2 ^ 17
  return (rotated + 0xa282ead8) % 2 ^ 32
end

local function number_at(text, at, bytes)
  local n = 0
  for i = bytes - 1, 0, -1 do n = n * 256 + text:byte(at + i) end
  return n
end

-- Value of an IEEE number of 8 or 4 bytes.
local function float_at(text, at, bytes)
  local digits, bias = bytes == 8 and 52 or 23, bytes == 8 and 1023 or 127
  local n = bytes == 8 and number_at(text, at, 6) + number_at(text, at + 6, 2) % 16 * 2 ^ 48
    or number_at(text, at, 4) % 2 ^ 23
  local top = number_at(text, at + bytes - 2, 2)
  local exponent = math.floor(top / (bytes == 8 and 16 or 128)) % (bytes == 8 and 2048 or 256)
  local value = exponent == 0 and n * 2 ^ (1 - bias - digits)
    or (1 + n / 2 ^ digits) * 2 ^ (exponent - bias)
  return top >= 32768 and -value or value
end

-- Fields of a protobuf message: list of { number, value }.
local function fields_of(text)
  local fields, at = {}, 1
  local function varint()
    local n, factor = 0, 1
    repeat
      local byte = text:byte(at)
      n, factor, at = n + byte % 128 * factor, factor * 128, at + 1
    until byte < 128
    return n
  end
  while at <= #text do
    local key = varint()
    local number, kind = math.floor(key / 8), key % 8
    local value
    if kind == 0 then
      value = varint()
    elseif kind == 2 then
      local length = varint()
      value, at = text:sub(at, at + length - 1), at + length
    else
      local bytes = kind == 1 and 8 or 4
      value, at = float_at(text, at, bytes), at + bytes
    end
    fields[#fields + 1] = { number, value }
  end
  return fields
end

local function by_number(text)
  local found = {}
  for _, field in ipairs(fields_of(text)) do found[field[1]] = field[2] end
  return found
end

-- The events of a file; the framing and both checksums of each are right.
local function events_of(text)
  local events, at = {}, 1
  while at <= #text do
    local length = number_at(text, at, 8)
    assert.equal(masked(text:sub(at, at + 7)), number_at(text, at + 8, 4))
    local data = text:sub(at + 12, at + 11 + length)
    assert.equal(masked(data), number_at(text, at + 12 + length, 4))
    events[#events + 1] = by_number(data)
    at = at + 16 + length
  end
  assert.equal(#text + 1, at)
  return events
end

describe('tensorboard', function()
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    core.folder_make(folder)
  end)
  after_each(function() core.path_remove(folder) end)

  it('checks by CRC-32C', function()
    assert.equal(0xe3069283, crc32c '123456789')
    for _, text in ipairs { '', '123456789', ('\255'):rep(32), 'ulysses' } do
      assert.equal(crc32c(text), tensorboard.crc32c(text))
    end
  end)

  it('gets every number under its name and step', function()
    local file = tensorboard.open(folder, 0)
    file:write { step = 1, loss = 2.5, lr = -0.125, skipped = true, note = 'x' }
    file:write { step = 300, loss = 1e-30 }
    file:close()
    local events = events_of(get(file.path))
    assert.equal(3, #events)
    assert.equal('brain.Event:2', events[1][3])
    assert.is_true(math.abs(events[1][1] - os.time()) < 100)
    local values = {}
    for _, field in ipairs(fields_of(events[2][5])) do
      local value = by_number(field[2])
      values[value[1]] = value[2]
    end
    assert.same({ loss = 2.5, lr = -0.125 }, values)
    assert.same({ 1, 300 }, { events[2][2], events[3][2] })
  end)

  it('forgets what comes behind the step that a run goes on from', function()
    local first, second = tensorboard.open(folder, 0), tensorboard.open(folder, 40)
    assert.not_equal(first.path, second.path)
    second:close()
    local start = events_of(get(second.path))[2]
    assert.equal(41, start[2])
    assert.equal(1, by_number(start[7])[1])
  end)
end)
