-- run.lua - runs tests/dist/*_spec.lua on 1, 2, 3, 4 and 8 ranks, then the faults and two
-- hosts; adds up.
--
--   luajit tests/dist/run.lua [part of the names of specs; faults; hosts]
--
-- Where UL_CUDA_BACKEND is set, ranks that share a GPU instead, which tests/cuemu pretends.
-- UL_TEST_LIMIT: seconds that the specs on so many ranks may take together (300); what is shorter
-- has a part of that.
local passed, failed, skipped = 0, 0, 0
local pattern = arg[1] or ''

local function shell(command)
  local pipe = io.popen(('(%s) 2>&1; echo "=$?"'):format(command))
  local text = pipe:read '*a'
  pipe:close()
  local output, status = text:match '^(.*)=(%d+)\n$'
  return output, tonumber(status)
end

local LIMIT = tonumber((os.getenv 'UL_TEST_LIMIT' or '300'):match '^[1-9]%d*$')
if not LIMIT then
  print(("dist: UL_TEST_LIMIT must be whole seconds, not '%s'"):format(os.getenv 'UL_TEST_LIMIT'))
  print '0 passed, 1 failed, 0 skipped'
  os.exit(1)
end

local interpreter = arg[-1]
local settings = 'OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UL_THREADS=1 '
  .. 'OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none '

--- Runs a Lua file on so many ranks, for this part of the limit at most.
local function ranks(n, environment, file, part)
  return shell(('%s %s timeout -k 5 %d mpirun --oversubscribe -np %d %s %s'):format(
    settings, environment, math.ceil(part * LIMIT), n, interpreter, file))
end

local function report(title, ok, output)
  if ok then
    passed = passed + 1
  else
    failed = failed + 1
    print(('dist: %s failed:\n%s'):format(title, output))
  end
end

-- ---- specs ----

-- Where the ranks of a job are that has come to no end, a line each.
local function places_in(folder, n)
  local lines = {}
  for rank = 0, n - 1 do
    local file = io.open(folder .. '/' .. rank)
    local place = file and file:read '*a' or 'has not begun'
    lines[#lines + 1] = ('  rank %d: %s\n'):format(rank, place)
    if file then file:close() end
  end
  return table.concat(lines)
end

-- Those of these names, or all.
local function specs(n, environment, names)
  local list = {}
  for name in io.popen('ls tests/dist/*_spec.lua'):lines() do
    local short = name:match '([%w_]+)_spec'
    local wanted = not names or (' ' .. names .. ' '):find(' ' .. short .. ' ', 1, true)
    if wanted and name:find(pattern, 1, true) then list[#list + 1] = name end
  end
  if #list == 0 then return end
  local folder = shell 'mktemp -d':gsub('\n', '')
  local begun = os.time()
  local output, status = ranks(n, 'UL_COMM_CHECK=1 UL_COMM_TIMEOUT=20 UL_TEST_PLACES=' .. folder
                               .. ' ' .. environment,
                               'tests/dist/rank.lua ' .. table.concat(list, ' '), 1)
  local good, bad = output:match '(%d+) passed, (%d+) failed, 0 skipped'
  passed, failed = passed + (good or 0), failed + (bad or 1)
  if status ~= 0 or bad ~= '0' then
    if bad == '0' then failed = failed + 1 end
    local over = os.time() - begun >= LIMIT
    print(('dist: %d ranks %s, exit %d%s:\n%s%s'):format(
      n, environment, status, over and (', not done in %d s'):format(LIMIT) or '',
      output:sub(-4000), bad and '' or places_in(folder, n)))
  end
  shell('rm -r ' .. folder)
end

-- ---- faults ----

local function fault(case)
  local name = os.tmpname()
  local file = io.open(name, 'w')
  file:write("local ul = require 'ulysses'\n", case.script)
  file:close()
  local output, status
  if case.ranks then
    output, status = ranks(case.ranks, case.environment or '', name, 0.3)
  else
    output, status = shell(('%s timeout -k 5 %d %s %s'):format(
      case.environment, math.ceil(0.3 * LIMIT), interpreter, name))
  end
  os.remove(name)
  shell(('rm -rf %s.run'):format(name)) -- the folder of a case that has one
  local good = status ~= 0 and status ~= 124 and status ~= 137 or case.status == status
  for _, words in ipairs(case) do good = good and output:find(words, 1, true) end
  report(case.name, good, ('exit %d:\n%s'):format(status, output))
end

-- ---- two hosts ----

local NAMESPACES = 'tests/dist/namespaces.sh'

-- Starts a case; what it prints is read later.
local function start(case, program)
  case.file = os.tmpname()
  local file = io.open(case.file, 'w')
  file:write("local ul = require 'ulysses'\n", case.script)
  file:close()
  local options = case.options or '--ranks 4 --hosts a:2,b:2'
  case.pipe = io.popen(('(UL_THREADS=1 %s timeout -k 5 %d %s %s %s %s) 2>&1; echo "=$?"'):format(
    case.environment or '', math.ceil(0.4 * LIMIT),
    options:find 'hosts' and NAMESPACES or '', program, options,
    case.input and '- <' .. case.file or case.file))
end

local function finish(case)
  case.output, case.status = case.pipe:read '*a':match '^(.*)=(%d+)\n$'
  case.pipe:close()
  os.remove(case.file)
end

local function judge(case)
  local good = (case.status ~= '0') == (case.fails or false) and case.status ~= '124'
  for _, words in ipairs(case) do good = good and case.output:find(words, 1, true) end
  if case.same_as then good = good and case.output == case.same_as.output end
  report(case.name, good, ('exit %s:\n%s'):format(case.status, case.output))
end

local function hosts()
  local cases, program = dofile 'tests/dist/hosts.lua'
  local output, status = shell(NAMESPACES .. ' true')
  if status ~= 0 then
    local forbidden = status == 77 -- by the system; what is missing can be installed
    skipped, failed = skipped + (forbidden and #cases or 0), failed + (forbidden and 0 or 1)
    print('dist: ' .. output:gsub('\n', ''))
    return
  end
  for _, case in ipairs(cases) do start(case, program) end
  for _, case in ipairs(cases) do finish(case) end
  for _, case in ipairs(cases) do judge(case) end
end

-- ---- NCCL, which tests/cuemu pretends too ----

local NCCL = 'CUEMU_DEVICES=8 UL_TEST_DEVICE=cuda UL_CUDA_LIB_PATH=build/release/fake '

-- What launchers that start no MPI say to a rank.
local LAUNCHERS = {
  torchrun = 'RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$size LOCAL_WORLD_SIZE=$size GROUP_RANK=0 '
    .. 'MASTER_ADDR=127.0.0.1 MASTER_PORT=$port',
  slurm = 'SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=$size SLURM_STEP_NUM_TASKS=$size '
    .. 'SLURM_NODEID=0 SLURM_JOB_ID=$port SLURM_STEP_NODELIST="127.0.0.[1-2,7]"',
}

-- Ranks that nobody but themselves connects, as a launcher starts them; all are waited for.
local function apart(case)
  local name, program = os.tmpname(), 'build/release/ulysses-lua'
  local file = io.open(name, 'w')
  file:write("local ul = require 'ulysses'\n", case.script)
  file:close()
  local command = {}
  for rank = 0, case.apart - 1 do
    local launcher = LAUNCHERS[case.launcher or 'torchrun']:gsub('%$(%w+)', {
      rank = rank, size = case.apart, port = 20000 + os.time() % 20000,
    })
    command[#command + 1] = ('%s UL_THREADS=1 CUEMU_DEVICES=8 UL_CUDA_LIB_PATH=build/release/fake '
      .. '%s timeout -k 5 %d %s --device cuda %s & p%d=$!'):format(
      launcher, case.environment or '', math.ceil(0.2 * LIMIT), program, name, rank)
  end
  for rank = 0, case.apart - 1 do
    command[#command + 1] = ('wait $p%d; echo "rank %d: $?"'):format(rank, rank)
  end
  local output = shell(table.concat(command, '\n'))
  os.remove(name)
  if case.needs and output:find('no ' .. case.needs, 1, true) then
    skipped = skipped + 1
    print(('dist: %s: skipped, there is no %s'):format(case.name, case.needs))
    return
  end
  -- None has waited until UL_COMM_TIMEOUT, which is far beyond its part of the limit (status 124).
  local good = not output:find ': 124\n'
  for _, words in ipairs(case) do good = good and output:find(words, 1, true) end
  report(case.name, good, output)
end

local function nccl()
  specs(2, NCCL .. 'UL_COMM_CUDA=nccl', 'cuda groups tp')
  specs(3, NCCL .. 'UL_COMM_CUDA=nccl FAKE_NCCL_VERSION=22703', 'cuda groups')
  -- each stream's work as early, and as late, as events let it
  specs(2, NCCL .. 'UL_COMM_CUDA=nccl CUEMU_STREAMS=compute', 'cuda chunks prefetch collector')
  specs(2, NCCL .. 'UL_COMM_CUDA=nccl CUEMU_STREAMS=exchange', 'cuda chunks prefetch collector')
  if not ('nccl'):find(pattern, 1, true) then return end
  for _, case in ipairs(dofile 'tests/dist/nccl.lua') do
    if case.apart then
      apart(case)
    else
      case.environment = NCCL .. (case.environment or '')
      fault(case)
    end
  end
end

if select(2, shell 'mpirun --version | grep "Open MPI"') ~= 0 then
  failed = 1
  print 'dist: there is no mpirun of Open MPI (Debian: apt install openmpi-bin)'
elseif os.getenv 'UL_CUDA_BACKEND' then
  specs(1, 'UL_TEST_DEVICE=cuda:0', 'cuda groups')
  specs(2, 'UL_TEST_DEVICE=cuda:0', 'cuda groups tp ulysses')
  specs(3, 'UL_TEST_DEVICE=cuda:0', 'cuda groups ring')
  nccl()
else
  for _, n in ipairs { 1, 2, 3, 4, 8 } do specs(n, '') end
  specs(3, 'UL_COMM_MESSAGE=1000')
  specs(3, 'UL_TEST_INTERRUPTIBLE=1 UL_COMM_MESSAGE=1000')
  if ('faults'):find(pattern, 1, true) then
    for _, case in ipairs(dofile 'tests/dist/faults.lua') do fault(case) end
  end
  if ('hosts'):find(pattern, 1, true) then hosts() end
end
print(('%d passed, %d failed, %d skipped'):format(passed, failed, skipped))
os.exit(failed == 0 and 0 or 1)
