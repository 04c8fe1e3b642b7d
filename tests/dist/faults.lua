-- faults.lua - what goes wrong between ranks, and the words that each must end with: in bounded
-- time, and never with exit status 0.

-- A run over all ranks of so many steps; the code is called as f(run, rank) behind the second one.
local function training(code, steps)
  return [[
    local model = require('recipes.llama3').model({ vocab = 260, dim = 8, n_layers = 1,
      n_heads = 2, n_kv_heads = 1, ffn = 8, rope_theta = 500000, eps = 1e-5 }, ul.mesh())
    local data = ul.data.from { ('some words '):rep(100) }:tokenize 'bytes':pack(16):batch(4)
    local run = ul.run { model = model, optim = ul.optim.sgd(model), data = data:shard(ul.mesh()),
                         dir = arg[0] .. '.run', log_every = 0 }
    local function f(run, rank) ]] .. code .. [[ end
    local rank = ul.group().rank
    for step, batch in run:steps(]] .. (steps or 3) .. [[) do
      model(batch):backward()
      run.optim:step()
      if step == 2 then f(run, rank) end
    end]]
end

-- A run whose ranks share each sequence; `what` happens on rank 1 in a phase of its second step.
local function in_phase(phase, what)
  return [[
    local mesh = ul.mesh { sp = ul.group().size }
    local model = require('recipes.llama3').model({ vocab = 260, dim = 8, n_layers = 1,
      n_heads = 2, n_kv_heads = 1, ffn = 8, rope_theta = 500000, eps = 1e-5 }, mesh)
    local data = ul.data.from { ('some words '):rep(100) }:tokenize 'bytes':pack(16):batch(4)
    local optim, phase = ul.optim.sgd(model), 'none'
    local run = ul.run { model = model, optim = optim, data = data:shard(mesh),
                         dir = arg[0] .. '.run', log_every = 0 }
    local function happens(here)
      if here ~= phase or phase ~= ']] .. phase .. [[' or run.step ~= 2 or mesh.world.rank ~= 1 then
        return
      end
      ]] .. what .. [[

    end
    local norm, update = model.norm.forward, optim.update
    local pass = ul.fn { forward = function(_, x) return x:clone() end,
                         backward = function(_, g) happens 'backward' return g end }
    function model.norm:forward(x)
      happens(phase)
      return norm(self, pass(x))
    end
    function optim:update(...) happens 'optimizer' return update(self, ...) end
    for _, batch in run:steps(3) do
      phase = 'forward'
      local loss = model(batch)
      phase = 'backward'
      loss:backward()
      phase = 'sum'
      happens 'sum'
      optim:clip(1)
      phase = 'optimizer'
      optim:step()
      phase = 'save'
      happens 'save'
      run:save()
      phase = 'eval'
      run:eval(data)
    end]]
end

local KILL = [[local ffi = require 'ffi'
      ffi.cdef 'int getpid(void); int kill(int, int);'
      ffi.C.kill(ffi.C.getpid(), 9)]]

local list = {
  { name = 'a rank is killed in a collective', ranks = 3, status = 137,
    'exited on signal 9', script = [[
      local ffi = require 'ffi'
      ffi.cdef 'int getpid(void); int kill(int, int);'
      local g, x = ul.group(), ul.ones { 1000 }
      for i = 1, 1000 do
        g:all_reduce_(x)
        if g.rank == 1 and i == 10 then ffi.C.kill(ffi.C.getpid(), 9) end
      end]] },
  { name = 'a rank raises', ranks = 3, 'no luck here', script = [[
      local g, x = ul.group(), ul.ones { 1000 }
      g:all_reduce_(x)
      if g.rank == 2 then error 'no luck here' end
      g:barrier()]] },
  { name = 'a rank calls another collective', ranks = 2, environment = 'UL_COMM_TIMEOUT=2',
    'of 2 has waited', 'UL_COMM_CHECK=1 finds out which', 'group world', script = [[
      local g, x = ul.group(), ul.ones { 1000 }
      g:all_reduce_(x)
      if g.rank == 0 then g:barrier() end
      g:all_reduce_(x)
      g:barrier()]] },
  { name = 'a rank calls another collective, looked for', ranks = 2,
    environment = 'UL_COMM_CHECK=1',
    'group world: rank 0 called barrier #2, but rank 1 called all_reduce #2 of f32 [1000]',
    script = [[
      local g, x = ul.group(), ul.ones { 1000 }
      g:all_reduce_(x)
      if g.rank == 0 then g:barrier() end
      g:all_reduce_(x)]] },
  { name = 'shapes that differ', ranks = 2, environment = 'UL_COMM_TIMEOUT=2', script = [[
      local g = ul.group()
      g:all_reduce_(ul.ones { 100000 + g.rank * 7 })
      g:barrier()
      g:all_reduce_(ul.ones { 10 })]] },
  { name = 'shapes that differ, looked for', ranks = 2, environment = 'UL_COMM_CHECK=1',
    'rank 0 called all_gather #2 of f32 [*, 3], but rank 1 called all_gather #2 of f32 [*, 4]',
    script = [[
      local g = ul.group()
      g:all_gather(ul.ones { 2, 3 + g.rank })]] },
  { name = 'dtypes that differ, looked for', ranks = 2, environment = 'UL_COMM_CHECK=1',
    'rank 0 called all_reduce #1 of f32 [2], but rank 1 called all_reduce #1 of f64 [2]',
    script = [[
      local g = ul.group()
      g:all_reduce(ul.ones({ 2 }, { dtype = g.rank == 0 and 'f32' or 'f64' }))]] },
  { name = 'a rank is done before the others', ranks = 2, environment = 'UL_COMM_TIMEOUT=2',
    'of 2 has waited', 'the end of the script #2', script = [[
      local g = ul.group()
      g:barrier()
      if g.rank == 0 then g:all_gather(ul.ones { 2, 3 }) end]] },
  { name = 'a rank is done before the others, looked for', ranks = 2,
    environment = 'UL_COMM_CHECK=1', 'but rank 1 called the end of the script #2', script = [[
      local g = ul.group()
      g:barrier()
      if g.rank == 0 then g:barrier() end]] },
  { name = 'a rank leaves with a status of its own', ranks = 2, status = 3, script = [[
      local g = ul.group()
      if g.rank == 0 then os.exit(3) end
      g:barrier()]] },
  { name = 'a save by one rank', ranks = 2, environment = 'UL_COMM_TIMEOUT=2',
    'rank 0 of 2 has waited', '(run:save, which all ranks must call) of group world',
    script = training 'if rank == 0 then run:save() end' },
  { name = 'a save by one rank, looked for', ranks = 2, environment = 'UL_COMM_CHECK=1',
    'of run:save, which all ranks must call, but rank 1 called sizes #', 'of the record of step 2',
    script = training 'if rank == 0 then run:save() end' },
  { name = 'an evaluation by one rank, looked for', ranks = 3, environment = 'UL_COMM_CHECK=1',
    'but rank 2 called barrier #', 'of run:eval, which all ranks must call',
    script = training 'if rank == 2 then run:eval(run.data) end' },
  { name = 'a rank with fewer steps, looked for', ranks = 2, environment = 'UL_COMM_CHECK=1',
    'but rank 1 called barrier #', 'of checkpoint.save, which all ranks must call',
    script = training('', 'rank == 1 and 2 or 3') },
  { name = 'a rank that leaves the loop', ranks = 2, environment = 'UL_COMM_TIMEOUT=2',
    'rank 1 of 2 has waited', 'in the end of the script #',
    script = training 'if rank == 1 then os.exit(0) end' },
  { name = 'a disk that takes longer than the deadline, in vain', ranks = 2,
    environment = 'UL_COMM_CHECK=1 UL_COMM_TIMEOUT=2', 'written on 0', 'written on 1', script = [[
      local rank = ul.group().rank
      require('ulysses.agree').first(ul.group(), 'a save', os.execute, 'sleep 2.8')
      io.stderr:write('written on ' .. rank .. '\n')
      ul.group():barrier()
      error 'the end']] },
  { name = 'another launcher', environment = 'RANK=0 WORLD_SIZE=4', 'WORLD_SIZE = 4',
    'NCCL cannot be used (cuda: ', 'start with mpirun or srun --mpi=pmix', script = 'ul.group()' },
  { name = 'a launcher of another MPI', environment = 'PMI_SIZE=4 PMI_RANK=1',
    'the launcher started 4 ranks, but Open MPI formed a world of 1', script = 'ul.group()' },
  { name = 'no Open MPI', ranks = 2, environment = 'UL_MPI_LIB=/nowhere/libmpi.so',
    'several ranks need Open MPI (Debian: apt install openmpi-bin)', script = 'ul.group()' },
  { name = 'no MPI', ranks = 2, environment = 'UL_MPI_LIB=libm.so.6',
    'libm.so.6 has no MPI_Init_thread: it is not Open MPI 4 or 5', script = 'ul.group()' },
  { name = 'a deadline that is no number', ranks = 2, environment = 'UL_COMM_TIMEOUT=soon',
    "UL_COMM_TIMEOUT must be seconds (0: no limit), not 'soon'", script = 'ul.group()' },
}

for _, phase in ipairs { 'forward', 'backward', 'sum', 'optimizer', 'save', 'eval' } do
  list[#list + 1] = { name = 'a rank is killed in a step: ' .. phase, ranks = 3, status = 137,
                      'exited on signal 9', script = in_phase(phase, KILL) }
end
for _, phase in ipairs { 'forward', 'backward' } do
  list[#list + 1] = { name = 'a rank raises in a step: ' .. phase, ranks = 3, 'no luck here',
                      script = in_phase(phase, "error 'no luck here'") }
end
list[#list + 1] = { name = 'a rank calls something else in a step', ranks = 3,
                    environment = 'UL_COMM_CHECK=1', 'rank 1 called barrier #',
                    script = in_phase('forward', 'mesh.world:barrier()') }

return list
