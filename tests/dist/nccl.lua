-- nccl.lua - what goes wrong where NCCL connects ranks, and ranks without MPI: `apart` of them, as
-- torchrun or another launcher starts them, else under mpirun.
-- What each launcher's ranks must see: device of the local rank, one group, one answer.
local LAUNCHED = [[
  local g = ul.group()
  local x = ul.full({ 2 }, g.rank + 1)
  assert(x:device() == 'cuda:' .. g.rank)
  assert(g:all_reduce(x):tolist()[1] == 3 and g.cuda_transport == 'nccl')
  if g.rank == 0 then print('by', g.size, os.getenv 'NCCL_COMM_ID') end]]

local TOGETHER = [[
  ul.set_default_device 'cuda'
  local g, x = ul.group(), ul.ones { 1000 }
]]

-- Exchanges of heads among three ranks: values, gradients, and by which of NCCL's calls.
local SWAPPED = [[
  local ffi, g = require 'ffi', ul.group()
  ffi.cdef 'int setenv(const char *, const char *, int);'
  local log, r = os.tmpname(), g.rank
  ffi.C.setenv('FAKE_NCCL_LOG', log, 1)
  local function same(x, y) assert((x - y):abs():max():item() == 0) end
  local function exchange(B, T, lengths, later, q_heads, kv_heads)
    local first = 0
    for i = 1, r do first = first + lengths[i] end
    local whole, mine = {}, {}
    for i, H in ipairs { q_heads, kv_heads } do
      ul.manual_seed(i)
      whole[i] = ul.randn { B, T, H, 4 }
      mine[i] = whole[i]:narrow(2, first + 1, lengths[r + 1]):clone():requires_grad_()
    end
    local y = g:shard_heads(mine, { lengths = lengths, q_heads = q_heads, later = later })
    if later then y = g:arrive(y) end
    same(y[1], whole[1]:narrow(3, q_heads / 3 * r + 1, q_heads / 3))
    same(y[2], kv_heads == 1 and whole[2] or whole[2]:narrow(3, kv_heads / 3 * r + 1, kv_heads / 3))
    local back = g:shard_tokens(y[1], { heads = q_heads, lengths = lengths, later = later })
    if later then back = g:arrive(back) end
    same(back, mine[1])
    local loss = (back * whole[1]:narrow(2, first + 1, lengths[r + 1])):sum() + (y[2] * 2):sum()
    loss:backward()
    same(mine[1].grad, mine[1])
    same(mine[2].grad, ul.full({ B, lengths[r + 1], kv_heads, 4 }, kv_heads == 1 and 6 or 2))
  end
  local function calls()
    local count = { all_to_all = 0, send = 0 }
    for line in io.lines(log) do
      local kind = line:match '^[%w_]+'
      if count[kind] then count[kind] = count[kind] + 1 end
    end
    os.remove(log)
    return ('%d and %d'):format(count.all_to_all, count.send)
  end
  for _, later in ipairs { false, true } do
    for B = 1, 2 do
      exchange(B, 6, { 2, 2, 2 }, later, 6, 3)
      exchange(B, 6, { 2, 2, 2 }, later, 3, 1)
    end
    exchange(1, 3, { 1, 1, 1 }, later, 3, 1)
  end
  local equal = r == 0 and calls()
  exchange(2, 6, { 1, 3, 2 }, true, 6, 3)
  -- one that looks equal to rank 0 alone
  local x = g:all_to_all(ul.full({ 6 + r }, r), { split = 1, cat = 1, sizes = { 2, 2, 2 + r } })
  assert(x:numel() == (r == 2 and 9 or 6))
  if r == 0 then print('equal:', equal, 'else:', calls()) end
  os.remove(log)]]

local list = {
  { name = 'equal exchanges by ncclAlltoAll', apart = 3, script = SWAPPED, 'rank 0: 0',
    'rank 1: 0', 'rank 2: 0', 'equal:\t60 and 0\telse:\t0 and 14' },
  { name = 'equal exchanges without ncclAlltoAll', apart = 3, script = SWAPPED, 'rank 0: 0',
    'rank 1: 0', 'rank 2: 0', environment = 'FAKE_NCCL_VERSION=22703',
    'equal:\t0 and 120\telse:\t0 and 14' },
  { name = 'ranks without MPI', apart = 3, 'rank 0: 0', 'rank 1: 0', 'rank 2: 0',
    'nccl\tnccl\t3\t2\tf64\t6', script = [[
      local g = ul.group()
      local sum = g:all_reduce(ul.ones { 5 }):tolist()[1]
      local part = g:split(g.rank % 2)
      local numbers = part:all_gather(ul.tensor({ g.rank }, { dtype = 'f64', device = 'cpu' }))
      assert(numbers:tolist()[1] == g.rank % 2)
      local all = g:all_reduce(ul.tensor({ g.rank + 1 }, { dtype = 'f64', device = 'cpu' }))
      local x = ul.arange(6, { dtype = 'f32' }) + g.rank * 100
      local lists = g:all_to_all(x, { split = 1, cat = 1 })
      assert(lists:tolist()[6] == 201 + 2 * g.rank)
      if g.rank == 0 then g:send(ul.full({ 3 }, 7), 1) end
      if g.rank == 1 then
        local y = ul.zeros { 3 }
        g:recv(y, 0)
        assert(y:tolist()[3] == 7)
      end
      g:barrier()
      print(g.transport, g.cuda_transport, sum, part.size, all:dtype(), all:item())]] },
  { name = 'ranks that torchrun starts', apart = 2, 'rank 0: 0', 'rank 1: 0', 'by\t2\t127.0.0.1:',
    script = LAUNCHED },
  { name = 'ranks that srun starts', apart = 2, launcher = 'slurm', 'rank 0: 0', 'rank 1: 0',
    'by\t2\t127.0.0.1:', script = LAUNCHED },
  { name = 'a batch script, one process of a job of many', apart = 1, launcher = 'slurm',
    environment = 'SLURM_STEP_NUM_TASKS= SLURM_NTASKS=8', 'rank 0: 0', 'alone\t1',
    script = "print('alone', ul.group().size)" },
  { name = 'the real NCCL, where there is no driver', apart = 2, needs = 'libnccl.so.2',
    environment = 'UL_CUDA_LIB_PATH=',
    'NCCL cannot be used (group: NCCL could not start: unhandled cuda error',
    'rank 0: 1', 'rank 1: 1', script = 'ul.group()' },
  { name = 'a rank without MPI is killed', apart = 3, 'NCCL has failed in all_reduce #',
    'of group world: remote error: rank 1 has closed its connection', 'rank 0: 75', 'rank 1: 137',
    'rank 2: 75', script = TOGETHER .. [[
      local ffi = require 'ffi'
      ffi.cdef 'int getpid(void); int kill(int, int);'
      for i = 1, 1000 do
        g:all_reduce_(x)
        if g.rank == 1 and i == 10 then ffi.C.kill(ffi.C.getpid(), 9) end
      end]] },
  { name = 'NCCL fails', ranks = 2, status = 75, environment = 'FAKE_NCCL_FAIL=1,5',
    'rank 1 of 2: NCCL has failed in all_reduce #', '(f32 [1000] on cuda) of group world',
    'system error: the network is down, as a test asked for',
    script = TOGETHER .. 'for _ = 1, 10 do g:all_reduce_(x) end' },
  { name = 'a call that is in progress for ever', apart = 2, 'rank 0: 75', 'rank 1: 75',
    environment = 'FAKE_NCCL_STUCK=1,5 UL_COMM_TIMEOUT=1', 'rank 1 of 2 has waited 1.',
    script = TOGETHER .. 'for _ = 1, 10 do g:all_reduce_(x) end' },
  { name = 'no id of NCCL', ranks = 2, environment = 'FAKE_NCCL_ID=none',
    'group: NCCL could not make an id: system error',
    script = TOGETHER .. 'g:all_reduce_(x)' },
  { name = 'a split behind exchanges that are late', ranks = 2, 'it went on',
    environment = 'CUEMU_STREAMS=compute', script = TOGETHER .. [[
      g:all_reduce_(x)
      local y = g:shard_heads(ul.ones { 1, 2, 2, 2 }, { lengths = { 2, 2 }, later = true })
      local part = g:split(0)
      assert(part.size == 2 and part:all_reduce(g:arrive(y)):sum():item() == 16)
      error 'it went on']] },
  { name = 'a rank calls another collective by NCCL', ranks = 2, status = 75,
    environment = 'UL_COMM_TIMEOUT=2', 'NCCL has failed in',
    'which sends broadcast of 4000', script = TOGETHER .. [[
      g:all_reduce_(x)
      if g.rank == 0 then g:broadcast_(x, 0) else g:all_reduce_(x) end]] },
  { name = 'ranks that share a GPU', ranks = 3,
    'ranks 0 and 1 share one GPU, which NCCL refuses: what ranks exchange goes through the host',
    'it went on', script = [[
      ul.set_default_device(ul.group().rank == 2 and 'cuda:1' or 'cuda:0')
      local g = ul.group()
      assert(g:all_reduce(ul.ones { 3 }):tolist()[1] == 3 and g.cuda_transport == 'staged')
      error 'it went on']] },
  { name = 'ranks that share a GPU, where NCCL is asked for', ranks = 2,
    environment = 'UL_COMM_CUDA=nccl', 'group world: ranks 0 and 1 share one GPU',
    script = "ul.set_default_device 'cuda:0' ul.group():all_reduce(ul.ones { 3 })" },
  { name = 'ranks that share a GPU, without MPI', apart = 2, environment = 'CUEMU_DEVICES=1',
    'two ranks share one GPU, which NCCL refuses: start one for each GPU, or with --ranks',
    'rank 0: 1', 'rank 1: 1', script = 'ul.group()' },
  { name = 'no NCCL', ranks = 2, environment = 'UL_COMM_CUDA=nccl FAKE_NCCL_VERSION=0 ',
    'rank 0 has no NCCL (', script = TOGETHER .. 'g:all_reduce(x)' },
  { name = 'a wrong choice of a transport', ranks = 2, environment = 'UL_COMM_CUDA=gloo',
    "UL_COMM_CUDA must be nccl or mpi, not 'gloo'", script = TOGETHER .. 'g:all_reduce(x)' },
  { name = 'nobody knows where rank 0 is', apart = 1, environment = 'MASTER_ADDR= WORLD_SIZE=2',
    'WORLD_SIZE = 2, but its launcher starts no MPI, and NCCL cannot be used',
    'MASTER_ADDR must be its host', script = 'ul.group()' },
}
return list
