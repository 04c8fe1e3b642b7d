-- dpo.lua - a model learns which of two answers is preferred: direct preference optimization, with
-- the model as it was for a reference.
--
--   ulysses-lua recipes/dpo.lua model=path/to/folder data=pairs.jsonl
--   ulysses-lua recipes/dpo.lua model=path/to/folder data=pairs.jsonl lora.rank=16 lr=5e-6
--
-- A line of the data is {"prompt": "..", "chosen": "..", "rejected": ".."}; answers may be lists of
-- messages too, with the prompt in front of them or as a list of its own.
local ul = require 'ulysses'

local recipe = ul.recipe 'dpo' {
  model = ul.none 'string',        -- a folder as downloaded, or one that hf.save has written
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model
  data = ul.none 'string',         -- .jsonl, a pair on each line
  family = ul.none 'string',       -- of conversations, where the tokenizer does not tell it
  beta = 0.1,                      -- how close the model stays to what it was
  smoothing = 0.0,                 -- the share of pairs that are the wrong way round
  seq_len = 1024,                  -- pairs with an answer that ends beyond are left out
  batch = 8,                       -- pairs in a step
  accumulate = 1,                  -- parts that a step is done in, to save memory
  recompute = true,                -- backward computes layers again: less memory, a third more time
  sp = 1, ring = 0, tp = 1,        -- ranks that share each text, and each weight (--ranks)
  lora = { rank = 0,               -- of the adapters; 0: there are none, all weights are trained
           alpha = 16, targets = {} },
  epochs = 1, steps = ul.none 'integer', -- times that all pairs are seen; steps instead
  lr = 5e-7, warmup = 10, clip = 1.0, weight_decay = 0.0,
  dtype = ul.none 'string', seed = 1,
  save = 'runs/dpo/model',         -- a folder for the model, or the adapters, at the end
}

-- Ids of a prompt with an answer, and for each whether it belongs to the answer.
local function encode(cfg, tok, prompt, answer)
  if type(answer) == 'table' then
    local messages = {}
    if type(prompt) == 'string' then prompt = { { role = 'user', content = prompt } } end
    for _, list in ipairs { prompt or {}, answer } do
      for _, message in ipairs(list) do messages[#messages + 1] = message end
    end
    return ul.chat.encode(tok.tokenizer, cfg.family, messages, { loss = 'last' })
  end
  local ids, mask = {}, {}
  for _, id in ipairs(tok.encode(prompt)) do ids[#ids + 1], mask[#mask + 1] = id, 0 end
  local rest = tok.tokenizer and tok.tokenizer:encode(answer) or tok.encode(answer)
  for _, id in ipairs(rest) do ids[#ids + 1], mask[#mask + 1] = id, 1 end
  ids[#ids + 1], mask[#mask + 1] = tok.eos, 1
  return ids, mask
end

local function read_pairs(cfg, tok)
  local list, long, n = {}, 0, 0
  for line in (ul.data.read(cfg.data or ''):documents()[1] .. '\n'):gmatch '([^\n]*)\n' do
    n = n + 1
    if line:find '%S' then
      local example, sentence = ul.json.decode(line)
      if type(example) ~= 'table' or not example.chosen or not example.rejected then
        error(('%s:%d: %s'):format(cfg.data, n, sentence or 'needs chosen and rejected'), 0)
      end
      local pair = {}
      for _, side in ipairs { 'chosen', 'rejected' } do
        local ids, mask = encode(cfg, tok, example.prompt, example[side])
        pair[side] = { ids = ids, mask = mask }
      end
      local fits = math.max(#pair.chosen.ids, #pair.rejected.ids) <= cfg.seq_len
      if fits then list[#list + 1] = pair else long = long + 1 end
    end
  end
  print(('%d pairs, %d more are longer than %d tokens'):format(#list, long, cfg.seq_len))
  return list
end

-- Rows of some pairs, filled up to one length: what was chosen, then what was rejected.
local function batch_of(pairs, tok, mesh)
  local inputs, targets, length = {}, {}, 0
  for _, pair in ipairs(pairs) do
    length = math.max(length, #pair.chosen.ids, #pair.rejected.ids)
  end
  for _, side in ipairs { 'chosen', 'rejected' } do
    for _, pair in ipairs(pairs) do
      local ids, mask, x, y = pair[side].ids, pair[side].mask, {}, {}
      for t = 1, length do
        x[t] = ids[t] or tok.pad
        y[t] = mask[t + 1] == 1 and ids[t + 1] or -100
      end
      inputs[#inputs + 1], targets[#targets + 1] = x, y
    end
  end
  local function slice(rows) return mesh:slice(ul.tensor(rows, { dtype = 'i64' })) end
  return { inputs = slice(inputs), targets = slice(targets), mesh = mesh,
           positions = mesh:slice(ul.arange(length), 1) }
end

local function scores_of(model, batch, n)
  local scores = ul.preference.log_probs(model, batch)
  return { chosen = scores:narrow(1, 1, n), rejected = scores:narrow(1, n + 1, n) }
end

function recipe.train(cfg)
  local is_adapter, how = cfg.lora.rank > 0, { sp = cfg.sp, ring = cfg.ring, tp = cfg.tp }
  if cfg.save ~= '' then
    local what = is_adapter and 'adapter' or 'model'
    ul.hf.check_folder(cfg.save, what, cfg.tokenizer or cfg.model)
  end
  local options = { mesh = how, dtype = cfg.dtype, recompute = cfg.recompute }
  local model, tokenizer = ul.hf.load(cfg.model, options)
  local mesh, reference = model.mesh, nil
  if is_adapter then
    ul.lora.add(model, { rank = cfg.lora.rank, alpha = cfg.lora.alpha, seed = cfg.seed,
                         targets = #cfg.lora.targets > 0 and cfg.lora.targets or nil })
  else
    options.mesh = mesh
    reference = ul.hf.load(cfg.model, options):freeze()
  end
  local function reference_scores(batch, n)
    if reference then return scores_of(reference, batch, n) end
    return ul.lora.without(model, scores_of, model, batch, n)
  end
  local tok = ul.tokenizer.resolve('dpo', cfg.tokenizer or tokenizer)
  local all = read_pairs(cfg, tok)
  if #all == 0 then error(('%s: has no pair that is short enough'):format(cfg.data), 0) end
  if cfg.batch % (cfg.accumulate * mesh.dp.size) ~= 0 then
    error(('dpo: batch=%d is no multiple of accumulate=%d times %d ranks with pairs of their own')
          :format(cfg.batch, cfg.accumulate, mesh.dp.size), 0)
  end
  local optim = ul.optim.adamw(model, { lr = cfg.lr, weight_decay = cfg.weight_decay, mesh = mesh })
  local steps = cfg.steps or math.ceil(cfg.epochs * #all / cfg.batch)
  local schedule = { lr = cfg.lr, warmup = math.min(cfg.warmup, steps - 1), steps = steps }

  -- The pair at a place of the endless sequence of epochs, each in another order.
  local orders = {}
  local function pair_at(place)
    local epoch = math.floor(place / #all)
    if not orders[epoch] then
      ul.manual_seed(cfg.seed + epoch)
      orders[epoch] = select(2, ul.rand(#all, { device = 'cpu' }):sort()):tolist()
    end
    return all[orders[epoch][place % #all + 1] + 1]
  end

  -- Adds the gradients of this rank's pairs among those from `first` on; what they look like.
  local function learn(first, n)
    local mine = {}
    for i = mesh.dp.rank, n - 1, mesh.dp.size do mine[#mine + 1] = pair_at(first + i) end
    local batch = batch_of(mine, tok, mesh)
    local constant = ul.no_grad(reference_scores, batch, #mine)
    local loss, seen = ul.preference.dpo(scores_of(model, batch, #mine), constant, {
      beta = cfg.beta, smoothing = cfg.smoothing, pairs = cfg.batch, mesh = mesh,
    })
    loss:backward()
    return ul.tensor({ seen.loss * #mine, seen.margin * #mine, seen.accuracy * #mine },
                     { dtype = 'f64', device = 'cpu' })
  end

  for step = 1, steps do
    ul.scope(function()
      optim.lr = ul.optim.cosine(step, schedule)
      local sums, each = ul.zeros(3, { dtype = 'f64', device = 'cpu' }), cfg.batch / cfg.accumulate
      for part = 0, cfg.accumulate - 1 do
        sums:add_(learn((step - 1) * cfg.batch + part * each, each))
      end
      local norm = optim:clip(cfg.clip)
      optim:step()
      local mean = (mesh.dp:all_reduce(sums) / cfg.batch):tolist()
      print(('step %d/%d  loss %.4f  margin %.4f  accuracy %.2f  grad_norm %.4g'):format(
        step, steps, mean[1], mean[2], mean[3], norm))
    end)
  end
  if cfg.save == '' then return model end
  local save = is_adapter and ul.lora.save or ul.hf.save
  save(cfg.save, model, cfg.tokenizer or tokenizer)
  print('saved: ' .. cfg.save)
  return model
end

return recipe:main()
