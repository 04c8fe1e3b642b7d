-- log_spec.lua - what a run shows: words for numbers, and the line on a terminal.
local core = require 'ulysses.core'
local log = require 'ulysses.log'

local columns = core.system.columns

-- What f writes to standard output, and what it prints.
local function written(f)
  local parts, write, print_before = {}, io.write, print
  rawset(io, 'write', function(...) parts[#parts + 1] = table.concat({ ... }) end)
  rawset(_G, 'print', function(text) parts[#parts + 1] = text .. '\n' end)
  local ok, problem = pcall(f)
  rawset(io, 'write', write)
  rawset(_G, 'print', print_before)
  assert(ok, problem)
  return table.concat(parts)
end

local record = { step = 7, loss = 2.34567, peak_bytes = 3.1e8 }
local pace = {
  last = 90, given = { grad_norm = 1.25, lr = 3e-4, extra = 5 }, order = { grad_norm = 1, lr = 2 },
  tokens_per_s = 12345, flops_per_s = 8.5e10, peak = 1.7e11, seconds_left = 75,
}
local whole = 'step 7/90  loss 2.3457  grad_norm 1.25  lr 0.0003  extra 5  12k tokens/s  '
  .. '85 GFLOP/s (50 %)  310 MB  eta 1:15'

describe('log', function()
  after_each(function() core.system.columns = columns end)

  it('has words for numbers', function()
    assert.same({ '0 B', '999 B', '1.0 kB', '9.9 kB', '10 kB', '1.0 MB', '310 MB', '5000 TB' },
                { log.bytes(0), log.bytes(999), log.bytes(1000), log.bytes(9940), log.bytes(9960),
                  log.bytes(999600), log.bytes(3.1e8), log.bytes(5e15) })
    assert.same({ '0:00', '0:42', '59:59', '1:00:00', '27:46:40' },
                { log.time(0), log.time(42.4), log.time(3599), log.time(3599.6), log.time(1e5) })
    assert.same({ '3', '0.3333', '1e+10', '3.3 M' },
                { log.number(3), log.number(1 / 3), log.number(1e10), log.count(3.3e6) })
  end)

  it('prints whole lines where there is no terminal', function()
    core.system.columns = function() end
    local display = log.new(3)
    assert.same({ true, false, true, true },
                { display:wants(1, 5), display:wants(2, 5), display:wants(3, 5),
                  display:wants(5, 5) })
    assert.equal(whole .. '\n', written(function() display:step(record, pace) end))
  end)

  it('draws one line on a terminal, that fits', function()
    local width
    core.system.columns = function() return width end
    for _, case in ipairs {
      { 200, whole }, { #whole + 1, whole },
      { #whole, 'step 7/90  loss 2.3457  grad_norm 1.25  lr 0.0003  extra 5  12k tokens/s  '
                .. '85 GFLOP/s (50 %)  eta 1:15' },
      { 70, 'step 7/90  loss 2.3457  grad_norm 1.25  12k tokens/s  eta 1:15' },
      { 50, 'step 7/90  loss 2.3457  12k tokens/s  eta 1:15' }, { 30, 'step 7/90  loss 2.3457' },
      { 5, 'step 7/90' },
    } do
      width = case[1]
      local display = log.new(10)
      assert.is_true(display:wants(2, 90))
      local text = written(function()
        display:step(record, pace)
        log.leave()
      end)
      assert.equal(case[2] .. '\n', text)
      assert.is_false(display:wants(3, 90)) -- so soon
      assert.is_true(display:wants(90, 90))
    end
  end)

  it('lets others print above its line', function()
    core.system.columns = function() return 200 end
    local display = log.new(10)
    local text = written(function()
      local mine = print
      display:wants(1, 9)
      display:step(record, pace)
      print 'a word'
      log.say('%d more', 2)
      display:step(record, pace)
      display:step(record, pace)
      log.leave()
      assert.equal(mine, print)
    end)
    assert.equal(whole .. '\r\27[Ka word\n2 more\n' .. whole .. '\r\27[K' .. whole .. '\n', text)
  end)
end)
