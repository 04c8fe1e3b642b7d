-- recipes_spec.lua - what each recipe's model promises, and each recipe run as a program.
local program = require 'tests.program'
local ul = require 'ulysses'

local F = ul.F
local small = {
  llama3 = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48 },
  mistral = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48, head_dim = 6,
              window = 5 },
}

local function new_model(name)
  local recipe = require('recipes.' .. name)
  return recipe.model(recipe:configure({ model = small[name] }).model):init_weights { seed = 3 }
end

local function ids(B, T) return ul.randint(0, 259, { B, T }, { dtype = 'i64' }) end

for name in pairs(small) do
  describe('recipes.' .. name, function()
    it('has logits that are those its loss is made of', function()
      local model, inputs, targets = new_model(name), ids(2, 9), ids(2, 9)
      local logits = model:logits(inputs)
      assert.same({ 2, 9, 260 }, logits.shape)
      local loss = F.cross_entropy(logits, targets, { reduction = 'mean' })
      assert.near(loss:item(), model(ul.data.batch(inputs, targets)):item(), 1e-5)
      assert.same({ 2, 1, 260 }, model:logits(inputs, { last = true }).shape)
      assert.near(logits[{ {}, { 9, 9 } }], model:logits(inputs, { last = true }), 1e-5)
    end)
  end)
end

-- ---- as programs ----

-- The lines of a run's metrics.jsonl that are about steps: their losses, in order.
local function losses_in(folder)
  local losses = {}
  for line in io.lines(folder .. '/metrics.jsonl') do
    local record = ul.json.decode(line)
    if record.loss then losses[record.step] = record.loss end
  end
  return losses
end

-- On cuda that is minutes under emulation, where tests/cuda/recipes_spec.lua takes ten steps.
describe('recipes as programs #cpu', function()
  local folder

  -- Runs a recipe in a folder of its own: what it printed, and its exit status.
  local function run(name, arguments)
    local settings = { 'data=text.txt', 'seq_len=32' }
    for key, value in pairs(small[name]) do
      settings[#settings + 1] = ('model.%s=%s'):format(key, value)
    end
    return program.shell(('P=$(realpath $P); R=$PWD/recipes; cd %s; $P $R/%s.lua %s %s'):format(
      folder, name, table.concat(settings, ' '), arguments))
  end

  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    program.shell('mkdir ' .. folder)
    local file = io.open(folder .. '/text.txt', 'w')
    for i = 1, 60 do file:write(('Line %d: %d foxes jump over the dog.\n'):format(i, i * i)) end
    file:close()
  end)
  after_each(function() if folder then program.shell('rm -rf ' .. folder) end end)

  for name in pairs(small) do
    it(name .. ' trains, says what it has learnt, and goes on from there', function()
      local output, status = run(name, 'steps=4 save_every=3 log_every=1')
      assert.equal(0, status, output)
      assert.matches('\nstep 4/4  loss 5%.%d+  grad_norm ', output)
      assert.matches('\nfirst loss     5%.%d+  %(ln of the vocabulary 5%.5607%)\n', output)
      assert.matches('\nheld%-out loss  5%.%d+  %(bigram entropy of the text %d%.%d+%)\n', output)
      local sample, page = output:match '\na sample:\n(A hacker is.*)\nthe report: (%S+)\n$'
      assert.is_nil(sample:find '[%z\1-\8\11-\31\127]')
      assert.matches('<svg', io.open(folder .. '/' .. page):read '*a')
      output, status = run(name, 'steps=6')
      assert.equal(0, status, output)
      assert.matches(('\nresumed runs/%s at step 4 of 6\n'):format(name), output)
      -- The schedule knew of 4 steps at first, so only these are to be compared.
      assert.equal(0, select(2, run(name, 'steps=4 out=again')))
      local losses = losses_in(folder .. '/runs/' .. name)
      assert.equal(6, #losses)
      assert.same({ unpack(losses, 1, 4) }, losses_in(folder .. '/again'))
    end)

    it(name .. ' does not care how a step is cut', function()
      run(name, 'steps=3 out=whole')
      run(name, 'steps=3 out=cut accumulate=3')
      local whole = losses_in(folder .. '/whole')
      assert.equal(3, #whole)
      assert.near(whole, losses_in(folder .. '/cut'), 1e-5)
    end)

    it(name .. ' trains in each dtype, tied or not, and keeps nothing where told so', function()
      for dtype in ('f64 bf16'):gmatch '%S+' do
        local output, status = run(name, ('steps=2 out= model.tied=true dtype=%s'):format(dtype))
        assert.equal(0, status, output)
        assert.matches('first loss     5%.[4-7]', output)
      end
      assert.equal('text.txt\n', program.shell('ls ' .. folder))
    end)

    it(name .. ' says what may be set, and what may not', function()
      local output, status = run(name, '--help')
      assert.equal(0, status)
      assert.matches('\n  seq_len=256', output)
      assert.matches('\n  data=%S+  +a file of text', output)
      assert.matches('\n  held_out=0.05 +the share of the text', output)
      output, status = run(name, 'warm_up=3')
      assert.equal(1, status)
      assert.equal(("ulysses-lua: %s: no setting 'warm_up'; did you mean 'warmup'?\n"):format(name),
                   output)
      assert.equal('text.txt\n', program.shell('ls ' .. folder))
    end)
  end
end)
