-- dpo.lua - a model learns which of two answers is preferred: direct preference optimization, with
-- the model as it was for a reference.
--
--   ulysses-lua recipes/dpo.lua model=path/to/folder data=pairs.jsonl
--   ulysses-lua recipes/dpo.lua model=path/to/folder data=pairs.jsonl lora.rank=16 lr=5e-6
--
-- A line of the data is {"prompt": "..", "chosen": "..", "rejected": ".."}; answers may be lists of
-- messages too, with the prompt in front of them or as a list of its own.
local refuse = require 'ulysses.refuse'
local ul = require 'ulysses'

local recipe = ul.recipe 'dpo' {
  model = ul.none 'string',        -- a folder as downloaded, or one that hf.save has written
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model
  data = ul.none 'string',         -- .jsonl, a pair on each line
  family = ul.none 'string',       -- of conversations, where the tokenizer does not tell it
  date = ul.none 'string',         -- '26 Jul 2024': Llama 3.1 and later have one before a talk
  beta = 0.1,                      -- how close the model stays to what it was
  smoothing = 0.0,                 -- the share of pairs that are the wrong way round
  seq_len = 1024,                  -- pairs with an answer that ends beyond are left out
  batch = 8,                       -- pairs in a step
  accumulate = 1,                  -- parts that a step is done in, to save memory
  recompute = true,                -- backward computes layers again: less memory, a third more time
  offload = false,                 -- inputs of layers and AdamW's state wait off the device
  sp = 1,                          -- ranks that share each text (--ranks); others share pairs
  ring = 0,                        -- parts of sp in a ring; 0: as few as there must be
  tp = 1,                          -- ranks that share each weight and the tokens of an sp rank
  shard = false,                   -- each rank keeps a slice of weights, gradients, AdamW's state
  lora = { rank = 0,               -- of the adapters; 0: there are none, all weights are trained
           alpha = 16,
           targets = {} },         -- wq,wv: maps that get one; none named: all
  max_tokens = ul.none 'integer',  -- the longest text it is to be meant for; without: as it was
  rope_theta = ul.none 'number',   -- what its positions turn by: more for longer texts
  epochs = 1,                      -- times that all pairs are seen
  steps = ul.none 'integer',       -- instead of these
  lr = 5e-7,                       -- for adapters 10 times that
  warmup = 10,                     -- steps in which lr rises, a fifth of all at most; then it falls
  clip = 1.0, weight_decay = 0.0,
  dtype = ul.none 'string',        -- of the weights; without: that of the folder
  seed = 1,
  out = 'runs/dpo',                -- where the run is kept and resumed; '' keeps nothing
  save = ul.none 'string',         -- a folder for the model, or the adapters, at the end, which
                                   -- Transformers and PEFT load; without: model in out
  save_every = 100, keep = 1,      -- steps between checkpoints; how many stay
  log_every = 1, tensorboard = false,
}

recipe.limits = {
  beta = { above = 0 }, smoothing = { least = 0, most = 0.5 },
  ['lora.alpha'] = { above = 0 },
}

-- What is to be other than in the folder's config.json.
local function changed(cfg)
  return { max_position_embeddings = cfg.max_tokens, rope_theta = cfg.rope_theta }
end

local function add_adapters(cfg, model)
  if cfg.lora.rank == 0 then return end
  ul.lora.add(model, { rank = cfg.lora.rank, alpha = cfg.lora.alpha, seed = cfg.seed,
                       targets = #cfg.lora.targets > 0 and cfg.lora.targets or nil })
end

-- What is wrong is said before the model is there, for that takes long. Returns the data's files.
local function check(cfg)
  if not cfg.data then
    refuse 'dpo: data= is needed: a .jsonl file of lines with prompt, chosen and rejected'
  elseif cfg.lora.rank == 0 and #cfg.lora.targets > 0 then
    refuse 'dpo: lora.targets is for adapters, and there are none: lora.rank=0'
  elseif cfg.lora.rank > 0 and (cfg.max_tokens or cfg.rope_theta) then
    refuse('dpo: %s is for a model that is saved as a whole: lora.rank=0',
           cfg.max_tokens and 'max_tokens' or 'rope_theta')
  end
  local source = ul.data.pairs(cfg.data)
  ul.hf.outline(cfg.model, changed(cfg), function(outline)
    add_adapters(cfg, outline)
    if cfg.tokenizer then ul.tokenizer.check_vocab(cfg.tokenizer, outline.settings.vocab) end
  end)
  local kind = cfg.lora.rank > 0 and 'adapter' or 'model'
  cfg.save = cfg.save or cfg.out ~= '' and cfg.out .. '/model' or ''
  if cfg.save ~= '' then ul.hf.check_folder(cfg.save, kind, cfg.tokenizer or cfg.model) end
  return source
end

-- Pairs of a step, no more than there are, and how many steps there are to be.
local function plan(cfg, n, ranks)
  local least = cfg.accumulate * ranks
  if cfg.batch % least ~= 0 then
    refuse('dpo: batch=%d is no multiple of accumulate=%d times %d ranks with pairs of their own',
           cfg.batch, cfg.accumulate, ranks)
  end
  local batch = math.min(cfg.batch, math.max(least, math.floor(n / least) * least))
  local steps = cfg.steps or math.ceil(cfg.epochs * n / batch)
  local warmup = math.max(1, math.min(cfg.warmup, math.floor(steps / 5)))
  print(('pairs: %d, in a step: %d; steps: %d (epochs: %.3g), lr rises in %d of them'):format(
    n, batch, steps, steps * batch / n, warmup))
  return batch, { lr = cfg.lr, warmup = warmup, steps = steps }
end

local function read_pairs(cfg, source, tokenizer)
  local all = source:tokenize(tokenizer, { length = cfg.seq_len, family = cfg.family,
                                           date = cfg.date })
  if all.long > 0 then
    print(('pairs longer than %d tokens: %d left out'):format(cfg.seq_len, all.long))
  end
  return all
end

local function scores_of(model, batch)
  local scores, n = ul.preference.log_probs(model, batch), batch.n
  return { chosen = scores:narrow(1, 1, n), rejected = scores:narrow(1, n + 1, n) }
end

-- The model, and what scores a batch as it was before.
local function load(cfg)
  local ranks = { sp = cfg.sp, ring = cfg.ring, tp = cfg.tp, shard = cfg.shard }
  local options = { mesh = ranks, dtype = cfg.dtype, recompute = cfg.recompute,
                    offload = cfg.offload, config = changed(cfg) }
  local model, tokenizer = ul.hf.load(cfg.model, options)
  add_adapters(cfg, model)
  if cfg.lora.rank > 0 then
    return model, tokenizer, function(batch)
      return ul.lora.without(model, scores_of, model, batch)
    end
  end
  options.mesh = model.mesh
  local reference = ul.hf.load(cfg.model, options):freeze()
  return model, tokenizer, function(batch) return scores_of(reference, batch) end
end

function recipe.train(cfg)
  local source = check(cfg)
  local model, tokenizer, reference_scores = load(cfg)
  local mesh = model.mesh
  tokenizer = cfg.tokenizer or tokenizer
  local all = read_pairs(cfg, source, tokenizer)
  local size, schedule = plan(cfg, all.n, mesh.dp.size)
  local optim = ul.optim.adamw(model, { lr = cfg.lr, weight_decay = cfg.weight_decay,
                                        offload = cfg.offload })
  local data = all:shuffle { seed = cfg.seed }:batch(size):shard(mesh)
  local run = ul.run { dir = cfg.out, config = cfg, fixed = { 'lora', 'rope_theta' }, model = model,
                       optim = optim, data = data, base = model.source, keep = cfg.keep,
                       log_every = cfg.log_every, tensorboard = cfg.tensorboard }
  local how = { beta = cfg.beta, smoothing = cfg.smoothing, pairs = size, mesh = mesh }
  for step, batch in run:steps(schedule.steps) do -- resumes by itself
    optim.lr = ul.optim.cosine(step, schedule)
    for micro in batch:micros(cfg.accumulate) do
      local constant = ul.no_grad(reference_scores, micro)
      local loss, seen = ul.preference.dpo(scores_of(model, micro), constant, how)
      micro:report(loss, seen)
      loss:backward()
    end
    local norm = optim:clip(cfg.clip)
    optim:step()
    local seen = batch:seen()
    run:log { margin = seen.margin, accuracy = seen.accuracy, grad_norm = norm, lr = optim.lr }
    if step % cfg.save_every == 0 then run:save() end
  end
  if run.on_meta then return model, run end
  run:after(function()
    if run.dir then print('the report: ' .. run:report()) end
    if cfg.save == '' then return end
    local save = cfg.lora.rank > 0 and ul.lora.save or ul.hf.save
    save(cfg.save, model, tokenizer)
    print('saved: ' .. cfg.save)
  end)
  return model, run
end

return recipe:main()
