-- gemm_spec.lua - products by cuBLASLt: tests/cuemu/fake_cublaslt.cc in its place, under emulation.
local program = require 'tests.program'

local backend = os.getenv 'UL_CUDA_BACKEND'
local folder = backend and backend:match '^(.*/)libulysses_cuda_emulated%.so$'

-- Output and exit status of a command whose emulated device opens cuBLASLt, and what the fake has
-- counted: products, those in parts, choices of an algorithm, parts rounded to the type of c.
local function with_fake(command, settings)
  local log = os.tmpname()
  local output, status = program.shell(('export CUEMU_CUBLASLT=1 UL_TEST_HALF= '
    .. 'FAKE_CUBLASLT_LOG=%s UL_CUDA_LIB_PATH=%sfakes %s; %s'):format(
      log, folder, settings or '', command))
  local counts = { 0, 0, 0, 0 }
  for line in io.lines(log) do
    local n = 0
    for count in line:gmatch '%d+' do
      n = n + 1
      counts[n] = counts[n] + tonumber(count)
    end
  end
  os.remove(log)
  return output, status, counts
end

local function script(text, settings)
  local name = os.tmpname()
  local file = io.open(name, 'w')
  file:write("local ul = require 'ulysses'\n" .. text)
  file:close()
  local output, status, counts = with_fake('$P ' .. name, settings)
  os.remove(name)
  return output, status, counts
end

describe('cuBLASLt', function()
  if not folder then
    pending 'is under test where the device is emulated'
    return
  end

  it('makes products of every layout, type, batch, bias, alpha and beta', function()
    local output, status, counts = with_fake(('%smatmul_test %s'):format(folder, backend))
    assert.equal('6 passed, 0 failed, 0 skipped\n', output)
    assert.equal(0, status)
    assert.is_true(counts[1] > 1000 and counts[2] > 50, 'it was not asked')
    assert.equal(0, counts[4])
    assert.is_true(counts[3] < counts[1] / 2, 'an algorithm is chosen anew for each')
  end)

  it('gives what the cpu gives for ops of products', function()
    local output, status, counts = with_fake(
      '$P tests/busted.lua tests/cuda/ops_spec.lua --filter=matmul --filter=linear')
    assert.equal(0, status, output)
    assert.matches('[1-9]%d* passed, 0 failed', output)
    assert.is_true(counts[1] > 100)
  end)

  it('leaves what it does not take to the kernel', function()
    local output, status, counts = with_fake(
      '$P tests/busted.lua tests/cuda/ops_spec.lua --filter=matmul', 'FAKE_CUBLASLT=no_heuristic')
    assert.equal(0, status, output)
    assert.equal(0, counts[1])
  end)

  local product = 'local x = ul.full({ 1, 1 }, 1 + 2 ^ -12, { device = "cuda" })\n'
    .. 'print(("%.17g"):format(x:matmul(ul.ones(1, 1, { device = "cuda" })):item()))'

  it('rounds f32 to tf32 where that was allowed', function()
    assert.equal('1.000244140625\n', script(product))
    assert.equal('1\n', script('assert(not ul.tf32()) assert(ul.tf32(true))\n'
                               .. product))
    assert.matches('tf32: allowed must be true or false, got 1', (script 'ul.tf32(1)'))
  end)

  describe('is refused in one sentence', function()
    it('where it does not start', function()
      local output, status = with_fake('$P --device cuda -e 1', 'FAKE_CUBLASLT=no_create')
      assert.equal('ulysses-lua: --device: cuBLASLt does not start: not initialized\n', output)
      assert.equal(1, status)
    end)

    it('where the file is another library', function()
      local other = os.tmpname()
      os.remove(other)
      local output, status = with_fake(('mkdir %s; cp %s %s/libcublasLt.so.13; '
        .. 'UL_CUDA_LIB_PATH=%s $P --device cuda -e 1; n=$?; rm -r %s; exit $n'):format(
        other, backend, other, other, other))
      assert.matches('^ulysses%-lua: %-%-device: cuBLASLt has no cublasLtCreate: [^\n]*\n$', output)
      assert.equal(1, status)
    end)

    it('where there is none', function()
      local output, status = with_fake(
        ('unset UL_CUDA_LIB_PATH; LD_PRELOAD="%s %sfake_cudnn/hide_library.so" '
          .. '$P --device cuda -e 1'):format(os.getenv 'LD_PRELOAD' or '', folder),
        'HIDE_LIBRARY=libcublasLt.so')
      assert.matches('^ulysses%-lua: %-%-device: cuBLASLt cannot be opened: no libcublasLt.so.13 '
                     .. 'in UL_CUDA_LIB_PATH %(not set%), [^\n]*\n$', output)
      assert.equal(1, status)
    end)
  end)

  it('adds the bias of each call, though one plan serves both', function()
    local output, _, counts = script [[
      local x, w = ul.ones(2, 3, { device = 'cuda' }), ul.ones(4, 3, { device = 'cuda' })
      local one = ul.full({ 4 }, 10, { device = 'cuda' })
      local two = ul.full({ 4 }, 20, { device = 'cuda' })
      local y, z = ul.F.linear(x, w, one), ul.F.linear(x, w, two)
      print(y:max():item(), z:max():item())
    ]]
    assert.equal('13\t23\n', output)
    assert.equal(1, counts[3])
  end)

  it('says which product has failed', function()
    local output, status = script(product, 'FAKE_CUBLASLT=no_matmul')
    assert.equal(1, status)
    assert.matches('cuda: cuBLASLt: 1 products %[1, 1%] x %[1, 1%] of f32: failed', output)
  end)
end)
