-- hosts.lua - ranks on two hosts (namespaces.sh), all cases at once: what they compute, and what a
-- broken cable or a missing host ends with.

local program = require('tests.program').path

-- Prints each loss of a small training run over all ranks, and the sum of each weight, to the last
-- bit. `code` runs on rank 0 before the third step.
local function training(code)
  return [[
    local mesh = ul.mesh { sp = 2 }
    local model = require('recipes.llama3').model({ vocab = 260, dim = 16, n_layers = 1,
      n_heads = 4, n_kv_heads = 2, ffn = 32, rope_theta = 500000, eps = 1e-5, tied = false }, mesh)
    model:init_weights { seed = 1 }
    local text = {}
    for i = 1, 60 do text[i] = i .. ' hosts share ' .. i * i .. ' sequences. ' end
    local data = ul.data.from(text):tokenize 'bytes':pack(65):batch(4):shuffle { seed = 1 }
    local run = ul.run { model = model, optim = ul.optim.adamw(model, { lr = 3e-3 }), log_every = 0,
                         data = data:shard(mesh) }
    for step, batch in run:steps(6) do
      if step == 3 and ul.group().rank == 0 then ]] .. code .. [[ end
      model(batch):backward()
      run.optim:clip(0.5)
      run.optim:step()
    end
    for _, loss in ipairs(run.losses) do print(('%.17g'):format(loss)) end
    for name, weight in model:named_parameters() do
      print(('%s %.17g'):format(name, weight:detach():to 'f64':sum():item()))
    end]]
end

local CUT = "os.execute 'ip link set cable down'"
local alone = { name = 'a run on one host', options = '--ranks 4', 'embed', script = training '' }

-- Each begins by telling which ranks are where.
local HOSTS = [[
  local g = ul.group()
  local here = io.open('/proc/sys/kernel/hostname'):read '*l'
]]

return {
  { name = 'a cable that stays cut', 'ulysses-lua: host b is lost: it is down, or the network to '
    .. 'it is; the ranks on all hosts have been ended\n', fails = true, script = training(CUT) },
  { name = 'a cable that is cut for 8 seconds', same_as = alone,
    script = training(CUT .. "\nos.execute '(sleep 8; ip link set cable up) &'") },
  alone,
  { name = 'a run on two hosts', same_as = alone, script = training '' },
  { name = 'collectives', environment = 'UL_COMM_CHECK=1', 'all is well\n', script = HOSTS .. [[
      assert(here == (g.rank < 2 and 'a' or 'b'), here)
      local x = ul.tensor { { g.rank + 1, 10 * g.rank } }
      local function is(t, ...) assert(table.concat(t:reshape(-1):tolist(), ' ') == ..., t) end
      is(g:all_reduce(x), '10 60')
      is(g:all_gather(x), '1 0 2 10 3 20 4 30')
      is(g:broadcast_(x:clone(), 3), '4 30')
      local own = ul.tensor { g.rank, g.rank + 10, g.rank + 20, g.rank + 30 }
      is(g:reduce_scatter(own), tostring(6 + 40 * g.rank))
      is(g:all_to_all(own), ('%d %d %d %d'):format(10 * g.rank, 10 * g.rank + 1, 10 * g.rank + 2,
                                                   10 * g.rank + 3))
      local large = ul.arange(0, 300000):add(g.rank)
      assert((g:all_reduce(large) - ul.arange(0, 300000) * 4 - 6):abs():max():item() == 0)
      local pair = g:split(g.rank % 2, g.rank) -- one on each host
      is(pair:all_gather(ul.tensor { g.rank }), ('%d %d'):format(g.rank % 2, g.rank % 2 + 2))
      g:barrier()
      print 'all is well']] },
  -- Of what a rank of a sends in an all_to_all of four, two parts in three go to b. The cable also
  -- counts headers, and what confirms the other side's packets.
  { name = 'a cable that counts as groups do', 'all is well\n', script = HOSTS .. [[
      local function sent()
        return tonumber(io.open '/proc/net/dev':read '*a':match('cable:' .. (' +%d+'):rep(8)
                                                                .. ' +(%d+)'))
      end
      local q, k = ul.ones(1, 2048, 16, 64):requires_grad_(), ul.ones(1, 2048, 4, 64)
      local function layer()
        local heads = g:shard_heads({ q, k:requires_grad_(), k }, { q_heads = 16 })
        g:shard_tokens(heads[1], { heads = 16 }):backward(q:detach())
      end
      layer()
      g:reset_counts()
      g:barrier()
      local before = sent()
      for _ = 1, 5 do layer() end
      g:barrier()
      local on_cable = sent() - before
      local counted = g:all_gather(ul.tensor({ g:counts().all_to_all.bytes },
                                             { dtype = 'f64' })):tolist()
      local ratio = on_cable / ((counted[here == 'a' and 1 or 3] + counted[here == 'a' and 2 or 4])
                                * 2 / 3)
      print(('%.4f'):format(ratio))
      assert(math.abs(ratio - 1) < 0.05, ratio)
      g:barrier()
      print 'all is well']] },
  { name = 'a script on standard input', input = true, 'a a b b\n', script = HOSTS .. [[
      local names = g:all_gather(ul.tensor { here:byte() }):tolist()
      for i, byte in ipairs(names) do names[i] = string.char(byte) end
      print(table.concat(names, ' '))]] },
  { name = 'an error on another host', fails = true, '[rank 3] ulysses-lua: no luck on b\n',
    script = HOSTS .. [[
      if g.rank == 3 then require 'ulysses.refuse' ('no luck on %s', here) end
      g:barrier()]] },
  { name = 'a rank that is killed on another host', fails = true,
    'ulysses-lua: rank 2 was ended by signal 9 (Killed)\n', script = HOSTS .. [[
      g:barrier()
      if g.rank == 2 then os.execute 'kill -9 $PPID' end
      g:barrier()]] },
  { name = 'a host that is not there', options = '--ranks 2 --hosts a:1,c:1', fails = true,
    'ulysses-lua: a host could not be started on: for each of --hosts, ssh HOST orted --version',
    script = '' },
}, program
