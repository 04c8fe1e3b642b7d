-- finetune.lua - a model that was downloaded learns answers, or a text: all its weights, or LoRA
-- adapters beside them.
--
--   ulysses-lua recipes/finetune.lua model=path/to/folder data=chats.jsonl
--   ulysses-lua recipes/finetune.lua model=path/to/folder data=chats.jsonl lora.rank=16 lr=2e-4
--   ulysses-lua --ranks 8 recipes/finetune.lua model=path/to/folder data=book.txt sp=8 seq_len=128K
local refuse = require 'ulysses.refuse'
local ul = require 'ulysses'

local recipe = ul.recipe 'finetune' {
  model = ul.none 'string',        -- a folder as downloaded, or one that hf.save has written
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model
  data = ul.none 'string',         -- .jsonl: messages, or prompt and completion; else plain text
  family = ul.none 'string',       -- of conversations, where the tokenizer does not tell it
  date = ul.none 'string',         -- '26 Jul 2024': Llama 3.1 and later have one before a talk
  learn = 'all',                   -- answers of a conversation that are learned; or 'last'
  overlong = 'drop',               -- examples longer than a row; 'cut' them, or 'refuse'
  held_out = 0.05,                 -- the share of the data, at its end, kept for the test; 0: none
  seq_len = 2048, batch = 8,       -- tokens in a row; rows in a step, if there are as many
  accumulate = 1,                  -- parts that a step is done in, to save memory
  recompute = true,                -- backward computes layers again: less memory, a third more time
  offload = false,                 -- inputs of layers and AdamW's state wait off the device
  sp = 1,                          -- ranks that share each sequence (--ranks); others share rows
  ring = 0,                        -- parts of sp in a ring; 0: as few as there must be
  tp = 1,                          -- ranks that share each weight and the tokens of an sp rank
  shard = false,                   -- each rank keeps a slice of weights, gradients, AdamW's state
  lora = { rank = 0,               -- of the adapters; 0: there are none, all weights are trained
           alpha = 16,
           targets = {} },         -- wq,wv: maps that get one; none named: all
  max_tokens = ul.none 'integer',  -- the longest text it is to be meant for; without: as it was
  rope_theta = ul.none 'number',   -- what its positions turn by: more for longer texts
  epochs = 3,                      -- times that all data is seen
  steps = ul.none 'integer',       -- instead of these
  lr = 1e-5,                       -- for adapters 10 to 20 times that
  warmup = 10,                     -- steps in which lr rises, a fifth of all at most; then it falls
  clip = 1.0, weight_decay = 0.0,
  dtype = ul.none 'string',        -- of the weights; without: that of the folder
  seed = 1,
  out = 'runs/finetune',           -- where the run is kept and resumed; '' keeps nothing
  save = ul.none 'string',         -- a folder for the model, or the adapters, at the end, which
                                   -- Transformers and PEFT load; without: model in out
  save_every = 100, keep = 1,      -- steps between checkpoints; how many stay
  merge = false,                   -- adapters become part of the model that is saved
  log_every = 1, tensorboard = false,
}

recipe.limits = {
  learn = { 'all', 'last' }, overlong = { 'drop', 'cut', 'refuse' },
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
    refuse 'finetune: data= is needed: a .jsonl file of conversations or answers, or a text'
  elseif cfg.data:find '%.json$' or cfg.data:find '%.parquet$' then
    refuse("finetune: data='%s' is no text; examples are read from JSON lines (.jsonl)", cfg.data)
  end
  if cfg.lora.rank == 0 and (cfg.merge or #cfg.lora.targets > 0) then
    refuse('finetune: %s is for adapters, and there are none: lora.rank=0',
           cfg.merge and 'merge=true' or 'lora.targets')
  end
  local is_adapter = cfg.lora.rank > 0 and not cfg.merge
  if is_adapter and (cfg.max_tokens or cfg.rope_theta) then
    refuse('finetune: %s is for a model that is saved as a whole: merge=true, or lora.rank=0',
           cfg.max_tokens and 'max_tokens' or 'rope_theta')
  end
  local source = cfg.data:find '%.jsonl' and ul.data.chat(cfg.data) or ul.data.read(cfg.data)
  ul.hf.outline(cfg.model, changed(cfg), function(outline)
    add_adapters(cfg, outline)
    if cfg.tokenizer then ul.tokenizer.check_vocab(cfg.tokenizer, outline.settings.vocab) end
  end)
  cfg.save = cfg.save or cfg.out ~= '' and cfg.out .. '/model' or ''
  if cfg.save ~= '' then
    local what = is_adapter and 'adapter' or 'model'
    ul.hf.check_folder(cfg.save, what, cfg.tokenizer or cfg.model)
  end
  return source, is_adapter
end

-- The tokens to learn from, and those to test with, where there are any.
local function read_data(cfg, source, tokenizer)
  local how = cfg.data:find '%.jsonl' and { family = cfg.family, loss = cfg.learn,
                                                date = cfg.date } or nil
  local corpus = source:tokenize(tokenizer, how)
  if cfg.held_out == 0 then return corpus end
  return corpus:hold_out(cfg.held_out)
end

local function rows_of(cfg, corpus)
  local rows = corpus:pack(cfg.seq_len, corpus.mask and { overlong = cfg.overlong } or nil)
  if corpus.mask and rows.corpus.dropped + rows.corpus.cut > 0 then
    print(('examples longer than %d tokens: %d left out, %d cut'):format(
      cfg.seq_len, rows.corpus.dropped, rows.corpus.cut))
  end
  return rows
end

-- Rows of a step, no more than there are, and how many steps there are to be. With few rows an
-- epoch is a step, and a short run is not all warm-up.
local function plan(cfg, n, ranks)
  local batch = math.min(cfg.batch, math.max(n, cfg.accumulate * ranks))
  local steps = cfg.steps or math.ceil(cfg.epochs * n / batch)
  local warmup = math.max(1, math.min(cfg.warmup, math.floor(steps / 5)))
  print(('rows of %d tokens: %d, in a step: %d; steps: %d (epochs: %.3g), lr rises in %d of them')
        :format(cfg.seq_len, n, batch, steps, steps * batch / n, warmup))
  return batch, { lr = cfg.lr, warmup = warmup, steps = steps }
end

function recipe.train(cfg)
  local source, is_adapter = check(cfg)
  local model, tokenizer = ul.hf.load(cfg.model, {
    mesh = { sp = cfg.sp, ring = cfg.ring, tp = cfg.tp, shard = cfg.shard }, dtype = cfg.dtype,
    recompute = cfg.recompute, offload = cfg.offload,
    config = changed(cfg),
  })
  add_adapters(cfg, model)
  local train, held_out = read_data(cfg, source, cfg.tokenizer or tokenizer)
  local rows = rows_of(cfg, train)
  local batch, schedule = plan(cfg, rows.n, model.mesh.dp.size)
  local optim = ul.optim.adamw(model, { lr = cfg.lr, weight_decay = cfg.weight_decay,
                                        offload = cfg.offload })
  local data = rows:shuffle { seed = cfg.seed }:batch(batch):shard(model.mesh)
  local run = ul.run { dir = cfg.out, config = cfg, fixed = { 'lora', 'rope_theta' }, model = model,
                       optim = optim, data = data, base = cfg.lora.rank > 0 and model.source or nil,
                       keep = cfg.keep, log_every = cfg.log_every, tensorboard = cfg.tensorboard }
  local test = held_out and rows_of(cfg, held_out):batch(cfg.batch)
  local before = test and run:eval(test)
  for step, rows_of_step in run:steps(schedule.steps) do -- resumes by itself
    optim.lr = ul.optim.cosine(step, schedule)
    for micro in rows_of_step:micros(cfg.accumulate) do model(micro):backward() end
    local norm = optim:clip(cfg.clip)
    optim:step()
    run:log { grad_norm = norm, lr = optim.lr }
    if step % cfg.save_every == 0 then run:save() end
  end
  if run.on_meta then return model, run end
  run:after(function()
    if test then print(('held-out loss  %.4f before, %.4f now'):format(before, run:eval(test))) end
    if run.dir then print('the report: ' .. run:report()) end
    if cfg.save == '' then return end
    local save = is_adapter and ul.lora.save or ul.hf.save
    save(cfg.save, model, cfg.tokenizer or tokenizer)
    print('saved: ' .. cfg.save)
  end)
  return model, run
end

return recipe:main()
