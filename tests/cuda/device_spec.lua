-- device_spec.lua - what is said where a GPU can not be used. Under tests/cuemu alone: it answers
-- what drivers would.
local program = require 'tests.program'

local there = (os.getenv 'UL_CUDA_BACKEND' or ''):find 'emulated'

local function refusal(environment, device)
  local output, status = program.shell(('%s $P --device %s -e 1'):format(environment,
                                                                         device or 'cuda'))
  assert.equal(1, status)
  return (output:match '^ulysses%-lua: %-%-device: ([^\n]*)\n$')
end

describe('a device that can not be used', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end

  it('is told by what its driver answers', function()
    local sentences = {
      [34] = "the libcuda.so.1 that was found is the toolkit's stub and no driver: take its folder "
        .. 'out of LD_LIBRARY_PATH',
      [35] = 'the NVIDIA driver is too old for this build: it needs CUDA 13 (driver 580) or newer',
      [100] = 'the NVIDIA driver sees no GPU (nvidia-smi lists those of the machine)',
      [999] = 'the NVIDIA driver does not answer: cuemu (error 999); nvidia-smi may say why',
    }
    for code, sentence in pairs(sentences) do
      assert.equal(sentence, refusal('CUEMU_ERROR=' .. code))
    end
    assert.equal('the NVIDIA driver sees no GPU with CUDA_VISIBLE_DEVICES=7 (nvidia-smi lists '
                 .. 'those of the machine)', refusal 'CUEMU_DEVICES=0 CUDA_VISIBLE_DEVICES=7')
  end)

  it('is one of more than there are', function()
    assert.equal('there is no cuda:2, only 2 devices', refusal('CUEMU_DEVICES=2', 'cuda:2'))
    assert.equal('there is no cuda:1, only 1 device', refusal('CUEMU_DEVICES=1', 'cuda:1'))
  end)

  it('is too old', function()
    assert.equal('cuemu has compute capability 7.0; 8.0 (Ampere) or newer is needed',
                 refusal 'CUEMU_CAPABILITY=70')
  end)
end)

describe('how fast a GPU can be', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end

  -- One step, its line, and what run.json says of the machine.
  local function run(environment)
    local folder = os.tmpname()
    os.remove(folder)
    local output, status = program.run([[
      local ul = require 'ulysses'
      local function loss() return ul.ones(4, 4):matmul(ul.ones(4, 4)):sum():item() end
      local data = { at = function() return { inputs = ul.zeros(2, 3), loss = loss } end }
      local run = ul.run { model = ul.nn.Linear(1, 1), data = data, log_every = 1, dir = arg[1] }
      for _ in run:steps(1) do end]], folder, 'UL_DEVICE=cuda ' .. environment)
    assert.equal(0, status, output)
    local file = assert(io.open(folder .. '/run.json'))
    local machine = require('ulysses.json').decode(file:read '*a').machine
    file:close()
    os.execute("rm -r '" .. folder .. "'")
    return output:match 'step 1/1[^\n]*', machine
  end

  it('is what is published of it, and not what the cpu reaches', function()
    local line, machine = run "CUEMU_NAME='NVIDIA H100 80GB HBM3'"
    assert.matches('FLOP/s %(0 %%%)', line)
    assert.equal('NVIDIA H100 80GB HBM3', machine.gpu)
    assert.equal(67e12, machine.peak_flops)
  end)

  it('is not said where nothing is known of it', function()
    local line, machine = run ''
    assert.matches('FLOP/s  ', line)
    assert.not_matches('%%', line)
    assert.equal('cuemu', machine.gpu)
    assert.is_nil(machine.peak_flops)
  end)

  it('counts each once that ranks have', function()
    program.needs_mpirun()
    local function peak(environment)
      local script = "local group = require('ulysses').group() "
        .. "local peak = require('ulysses.machine').peak('bf16', group) "
        .. "if group.rank == 0 then print('peak', peak) end"
      local output = program.shell(('UL_COMM_CUDA=mpi %s $P --ranks 2 --device cuda -e "%s"')
        :format(environment, script))
      return output:match 'peak\t([^\n]*)' or output
    end
    local name = "CUEMU_NAME='NVIDIA B200' CUEMU_DEVICES="
    assert.equal('4.5e+15', peak(name .. 2))
    assert.equal('2.25e+15', peak(name .. 1))
    assert.equal('nil', peak '')
  end)
end)

describe('memory of a small GPU', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end

  local function run(environment, text)
    local output, status = program.run(text, '', environment)
    assert.equal(0, status, output)
    return output
  end

  it('that is not there is refused in a sentence with the largest tensors', function()
    local output = run('CUEMU_MEMORY=50331648', [[
      local ul = require 'ulysses'
      local n = 2 ^ 22 - 128 -- the emulator guards what lies behind
      local held = ul.zeros { n, device = 'cuda' }
      print(pcall(function() return ul.zeros { 2 ^ 24, device = 'cuda' } end))
      held:free()
      for _ = 1, 20 do ul.zeros { n, device = 'cuda' } end -- dropped, never freed by hand
      print(ul.zeros({ n, device = 'cuda' }):numel())]])
    assert.matches('out of memory on cuda:0: 64.0 MiB wanted, 16.0 MiB in use and 3%d%.%d MiB free '
                   .. 'of 48.0 MiB; the largest tensors: 16.0 MiB from [^,\n]*:3', output)
    assert.matches('\n4194176\n$', output)
  end)

  it('that is free in pieces is refused in a sentence that says so', function()
    -- Segments of 4 MiB hold three tensors of 1.25 MiB, of which the middle one goes.
    local output = run('CUEMU_MEMORY=268435456', [[
      local ul = require 'ulysses'
      local held, n = {}, 5 * 2 ^ 16
      while true do
        local ok, x = pcall(ul.empty, { n, device = 'cuda' })
        if not ok then break end
        held[#held + 1] = x
      end
      for i = 2, 150, 3 do held[i]:free() end
      print(pcall(ul.empty, { 2 * n, device = 'cuda' }))
      local again = ul.empty { n, device = 'cuda' }
      for _, x in ipairs(held) do pcall(x.free, x) end
      print(ul.empty({ 32 * n, device = 'cuda' }):numel())]])
    local pieces, largest = output:match('out of memory on cuda:0: 2%.5 MiB wanted, [%d.]+ MiB in '
      .. 'use, ([%d.]+) MiB free in pieces, the largest of ([%d.]+) MiB, and %d%.%d MiB free of '
      .. '256%.0 MiB; the largest tensors: 1%.2 MiB')
    assert.is_true(pieces and tonumber(pieces) > 60 and tonumber(largest) < 2.5, output)
    assert.matches('\n10485760\n$', output)
  end)
end)

describe('memory of a GPU', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end
  local ul = require 'ulysses'

  it('is asked of the driver in the first two steps alone', function()
    local ffi = require 'ffi'
    ffi.cdef 'int64_t cuemu_allocations;'
    local driver = ffi.load(os.getenv 'UL_CUDA_BACKEND')
    local sizes = { 2, 40, 7, 90, 16 } -- of the batch: steps differ
    local w = ul.randn { 32, 30, device = 'cuda', requires_grad = true }
    local v = ul.randn { 30, 8, device = 'cuda', requires_grad = true }
    local optimizer = ul.optim.adamw({ w, v }, { lr = 1e-3 })
    local function step(n)
      ul.scope(function()
        local x = ul.randn { n, 32, device = 'cuda' }
        for i = 1, 3 do ul.empty { n * i * 2 ^ 14, device = 'cuda' } end -- large, and costs nothing
        x:matmul(w):silu():matmul(v):square():mean():backward()
        optimizer:step()
        optimizer:zero_grad()
      end)
    end
    for _ = 1, 2 do
      for _, n in ipairs(sizes) do step(n) end
    end
    local asked, taken = driver.cuemu_allocations, ul.memory('cuda').system_allocations
    for _ = 1, 100 do step(sizes[1 + _ % #sizes]) end
    assert.equal(asked, driver.cuemu_allocations)
    assert.equal(taken, ul.memory('cuda').system_allocations)
    assert.is_true(taken > 0)
  end)

  it('is counted: what is in use, the most that was, what is held', function()
    for _ = 1, 2 do collectgarbage() end -- what other tests have left goes now, not between
    ul.trim_memory()
    local before = ul.memory 'cuda'
    ul.reset_peak_memory()
    local x = ul.zeros { 2 ^ 20, device = 'cuda' }
    local y = ul.zeros { 2 ^ 20, device = 'cuda' }
    y:free()
    local now = ul.memory 'cuda'
    assert.equal(before.live + 2 ^ 22, now.live)
    assert.equal(before.live + 2 ^ 23, now.peak)
    assert.is_true(now.reserved >= now.live + 2 ^ 22 and now.cached >= 2 ^ 22)
    x:free()
    ul.trim_memory()
    assert.is_true(ul.memory('cuda').reserved <= before.reserved)
  end)

  it('is NaN where nothing has been written', function()
    ul.ones({ 1000, device = 'cuda' }):free()
    local x = ul.empty { 1000, device = 'cuda' }
    assert.equal(1000, x:ne(x):sum():item())
  end)
end)
