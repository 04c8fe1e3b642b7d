-- llama3.lua - a Llama 3, trained from scratch on bytes of text, or from where another has left it.
--
--   ulysses-lua recipes/llama3.lua                           as below
--   ulysses-lua recipes/llama3.lua steps=2000 model.dim=512  any setting is overridden like this
--   ulysses-lua recipes/llama3.lua model=path/to/folder lr=1e-5 data=book.txt save=better
local refuse = require 'ulysses.refuse'
local ul = require 'ulysses'
local nn, F = ul.nn, ul.F

local recipe = ul.recipe 'llama3' {
  model = { vocab = 260, dim = 256, n_layers = 4, n_heads = 8, n_kv_heads = 4, ffn = 688,
            rope_theta = 500000, eps = 1e-5,
            tied = false,          -- whether embedding and head are one matrix
            path = ul.none 'string' }, -- a folder as downloaded: its model and tokenizer go on
  data = ul.data.sample(),         -- a file of text, or a pattern: 'docs/*.md'
  max_tokens = ul.none 'integer',  -- the longest text that what is saved is meant for; without:
                                   -- as it was, or seq_len
  rope_theta = ul.none 'number',   -- of a folder's model, in place of its own
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model, or bytes
  held_out = 0.05,                 -- the share of the text, at its end, kept for the test; 0: none
  seq_len = 256, batch = 4,        -- tokens in a row; rows in a step
  accumulate = 1,                  -- parts that a step is done in, to save memory
  recompute = false,               -- backward computes layers again: less memory, a third more time
  offload = false,                 -- inputs of layers and AdamW's state wait off the device
  sp = 1,                          -- ranks that share each sequence (--ranks); others share rows
  ring = 0,                        -- parts of sp in a ring; 0: as few as there must be
  tp = 1,                          -- ranks that share each weight and the tokens of an sp rank
  shard = false,                   -- each rank keeps a slice of weights, gradients, AdamW's state
  steps = 800, lr = 1.4e-3,
  warmup = 50,                     -- steps in which lr rises; then it falls to a tenth
  clip = 1.0,                      -- the largest norm of a step's gradient
  weight_decay = 0.1, seed = 1,
  dtype = ul.none 'string',        -- of the weights; without: that of the model's folder, or f32
  out = 'runs/llama3',             -- where the run is kept and resumed; '' keeps nothing
  save_every = 100, keep = 2,      -- steps between checkpoints; how many stay
  save = ul.none 'string',         -- a folder for the model at the end, which Transformers loads
  log_every = 10, tensorboard = false,
  prompt = 'A hacker is',          -- what a text begins with that is written at the end
  sample = 300,                    -- tokens that follow
}

local Attention = nn.class 'Attention'
function Attention:init(c, mesh)
  local q, kv = nn.head_shares(mesh.tp, c.n_heads, c.n_kv_heads)
  self.head_dim, self.mesh = c.dim / c.n_heads, mesh
  self.wq = nn.ColumnLinear(c.dim, c.n_heads * self.head_dim, { share = q })
  self.wk = nn.ColumnLinear(c.dim, c.n_kv_heads * self.head_dim, { share = kv })
  self.wv = nn.ColumnLinear(c.dim, c.n_kv_heads * self.head_dim, { share = kv })
  self.wo = nn.RowLinear(c.n_heads * self.head_dim, c.dim,
                         { share = q, std = 0.02 / math.sqrt(2 * c.n_layers) })
end
function Attention:forward(x, rope, docs, cache)
  local q, k, v = nn.columns(x, self.wq, self.wk, self.wv)
  local B, T = q:size()                      -- T: this sp rank's tokens of each row
  q = F.rope(q:view(B, T, -1, self.head_dim), rope)
  k = F.rope(k:view(B, T, -1, self.head_dim), rope)
  v = v:view(B, T, -1, self.head_dim)
  local o = ul.ulysses.attention(q, k, v, { mesh = self.mesh, causal = true, docs = docs,
                                            cache = cache })
  return self.wo(o:view(B, T, -1))
end

local FeedForward = nn.class 'FeedForward'
function FeedForward:init(c, mesh)
  self.gate = nn.ColumnLinear(c.dim, c.ffn, { group = mesh.tp })
  self.up = nn.ColumnLinear(c.dim, c.ffn, { group = mesh.tp })
  self.down = nn.RowLinear(c.ffn, c.dim,
                           { group = mesh.tp, std = 0.02 / math.sqrt(2 * c.n_layers) })
end
function FeedForward:forward(x) return self.down(F.swiglu(nn.columns(x, self.gate, self.up))) end

local Block = nn.class 'Block'
function Block:init(c, mesh, attention)
  self.attention_norm = nn.RMSNorm(c.dim, { eps = c.eps })
  self.attention = attention
  self.ffn_norm = nn.RMSNorm(c.dim, { eps = c.eps })
  self.ffn = FeedForward(c, mesh)
end
function Block:forward(x, rope, docs, cache)
  local y, h = self.ffn_norm(self.attention(self.attention_norm(x), rope, docs, cache), x)
  return h + self.ffn(y)                     -- h = x + attention, y = norm(h)
end

local Llama = nn.class 'Llama'
Llama.Attention = Attention                  -- another model may have another (see mistral.lua)
Llama.uses_cache = true                      -- when it writes, logits() may be given one
function Llama:init(c, mesh)
  self.rope_theta, self.mesh = c.rope_theta, mesh or ul.mesh()
  self.embed = nn.Embedding(c.vocab, c.dim, { std = c.tied and 0.02 or 0.5 }):shard(self.mesh)
  self.layers = nn.List()
  for _ = 1, c.n_layers do                   -- one is whole at a time where weights are sharded
    self.layers:append(Block(c, self.mesh, self.Attention(c, self.mesh)):shard(self.mesh))
  end
  self.norm = nn.RMSNorm(c.dim, { eps = c.eps }):shard(self.mesh)
  self.head = c.tied and self.embed
    or nn.Linear(c.dim, c.vocab, { std = 1 / c.dim }):shard(self.mesh)
end
function Llama:hidden(inputs, positions, docs, cache)
  local x, head_dim = self.embed(inputs), self.layers[1].attention.head_dim
  positions = self.mesh.tp:all_gather(positions, { dim = -1 })
  local rope = F.rope_table(positions, head_dim, { theta = self.rope_theta, dtype = x:dtype() })
  local call = self.offload and ul.offload or self.recompute and ul.recompute
    or function(block, ...) return block(...) end
  for i, block in ipairs(self.layers) do
    x = call(block, x, rope, docs, cache and cache:layer(i))
  end
  return self.norm(x)
end
function Llama:forward(batch)
  local x = self:hidden(batch.inputs, batch.positions, batch.docs)
  return batch:mean(F.linear_cross_entropy(x, self.head.weight, batch.targets))
end
--- What comes after each token of inputs [B, T], which all ranks have whole: [B, T, vocab], or of
--- the last one alone where { last = true } is given: [B, 1, vocab]. { cache = } knows what came
--- before them.
function Llama:logits(inputs, given)
  local T, device, cache = inputs:size(2), inputs:device(), given and given.cache
  local positions = cache and cache:positions(T, device)
    or ul.arange(T, { dtype = 'i64', device = device })
  local x = self:hidden(self.mesh:slice(inputs), self.mesh:slice(positions, positions:dim()), nil,
                        cache)
  x = self.mesh:gather(x)
  if given and given.last then x = x:narrow(2, T, 1) end
  return F.linear(x, self.head.weight)
end
recipe.model = Llama

-- What is to be other than in the config.json of a folder.
local function changed(cfg)
  return { max_position_embeddings = cfg.max_tokens, rope_theta = cfg.rope_theta }
end

-- What is wrong is said before there is a model, for that takes long.
local function check(cfg)
  if cfg.model.path then
    ul.hf.outline(cfg.model.path, changed(cfg), function(outline)
      if cfg.tokenizer then ul.tokenizer.check_vocab(cfg.tokenizer, outline.settings.vocab) end
    end)
  else
    ul.tokenizer.check_vocab(cfg.tokenizer or 'bytes', cfg.model.vocab, 'model.vocab')
  end
  if not cfg.model.path and cfg.rope_theta then
    refuse 'rope_theta is for a model=path/to/folder; that of a new model is model.rope_theta'
  end
  if cfg.save then
    ul.hf.check_folder(cfg.save, 'model', cfg.tokenizer or cfg.model.path or 'bytes')
  end
end

-- Model: another class, of the same settings.
local function new_model(cfg, Model)
  local ranks = { sp = cfg.sp, ring = cfg.ring, tp = cfg.tp, shard = cfg.shard }
  if cfg.model.path then
    local model, tokenizer = ul.hf.load(cfg.model.path, { mesh = ranks, dtype = cfg.dtype,
                                                          config = changed(cfg) })
    for name in pairs(cfg.model) do          -- the record has what the folder says
      if name ~= 'path' then cfg.model[name] = model.settings[name] end
    end
    return model, tokenizer
  end
  ranks.heads = cfg.model.n_heads
  return (Model or Llama)(cfg.model, ul.mesh(ranks)):to(cfg.dtype or 'f32')
    :init_weights { seed = cfg.seed }
end

-- What the run has begun with, and come to on text that it has not learned.
local function say_losses(cfg, run, text, held_out)
  local function say(...) print(('%-14s %.4f  (%s %.4f)'):format(...)) end
  local vocab = run.model.head.weight:size(1)
  say('first loss', run.losses[1], 'ln of the vocabulary', math.log(vocab))
  if not held_out then return end
  local loss, perplexity = run:eval(held_out:pack(cfg.seq_len):batch(cfg.batch))
  say('held-out loss', loss, 'bigram entropy of the text', text:bigram_entropy())
  print(('perplexity     %.2f'):format(perplexity))
end

function recipe.train(cfg, Model)
  check(cfg)
  local model, tokenizer = new_model(cfg, Model)
  local mesh = model.mesh
  model.recompute, model.offload = cfg.recompute, cfg.offload
  if cfg.model.path and not (cfg.tokenizer or tokenizer) then
    print(("'%s' has no tokenizer: text is taken as bytes"):format(cfg.model.path))
  end
  tokenizer = cfg.tokenizer or tokenizer or 'bytes'
  local optim = ul.optim.adamw(model, { lr = cfg.lr, weight_decay = cfg.weight_decay,
                                        offload = cfg.offload })
  local text = ul.data.read(cfg.data):tokenize(tokenizer)
  local train, held_out = text, nil
  if cfg.held_out > 0 then train, held_out = text:hold_out(cfg.held_out) end
  local data = train:pack(cfg.seq_len):shuffle { seed = cfg.seed }:batch(cfg.batch):shard(mesh)
  local run = ul.run { dir = cfg.out, config = cfg, fixed = { 'rope_theta', 'model.rope_theta' },
                       model = model, optim = optim, data = data, keep = cfg.keep,
                       log_every = cfg.log_every, tensorboard = cfg.tensorboard }
  if cfg.warmup >= cfg.steps then
    print(('lr rises in all of the %d steps, for warmup=%d'):format(cfg.steps, cfg.warmup))
  end
  for step, batch in run:steps(cfg.steps) do -- resumes by itself
    optim.lr = ul.optim.cosine(step, cfg)
    for micro in batch:micros(cfg.accumulate) do
      model(micro):backward()                -- each loss arrives divided by the step's labels
    end
    local norm = optim:clip(cfg.clip)
    optim:step()                             -- and clears the gradients
    run:log { grad_norm = norm, lr = optim.lr }
    if step % cfg.save_every == 0 then run:save() end
  end
  if run.on_meta then return model, run end  -- nothing was computed, so nothing was learnt

  say_losses(cfg, run, text, held_out)
  local how = { tokenizer = tokenizer, context = cfg.seq_len, n = cfg.sample }
  local sample = cfg.prompt .. run:sample(cfg.prompt, how)
  print('a sample:\n' .. sample:gsub('[^%C\n\t]', '?')) -- no orders to the terminal
  if run.dir then print('the report: ' .. run:report()) end
  if cfg.save then
    run:after(function()
      ul.hf.save(cfg.save, model, tokenizer, { settings = cfg.model,
                                               max_tokens = cfg.max_tokens or cfg.seq_len })
    end)
    print('saved: ' .. cfg.save)
  end
  return model, run
end

return recipe:main()
