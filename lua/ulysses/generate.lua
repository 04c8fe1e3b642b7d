-- generate.lua - ul.generate: text that a model writes, token by token.
local ul = require 'ulysses'
local choose = require 'ulysses.sampling'
local new_cache = require 'ulysses.cache'
local notice = require 'ulysses.notice'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local streamed = require 'ulysses.streamed'
local Writer = require 'ulysses.writer'

-- ---- reading the call ----

local function check(how)
  local function demand(ok, sentence, ...)
    if not ok then raise('generate: ' .. sentence, ...) end
  end
  local function whole(name, least)
    local value = how[name]
    demand(value == nil or type(value) == 'number' and value >= least
           and value == math.floor(value), '%s must be a whole number from %d on, got %s', name,
           least, tostring(value))
  end
  local function share(name)
    local value = how[name]
    demand(value == nil or type(value) == 'number' and value > 0 and value <= 1,
           '%s must lie above 0 and at most at 1, got %s', name, tostring(value))
  end
  whole('n', 0)
  whole('top_k', 1)
  whole('context', 1)
  share 'top_p'
  share 'min_p'
  demand(how.temperature >= 0, 'temperature must not be negative, got %g', how.temperature)
end

-- The tokenizer that texts are read with: of the call, of the model, or bytes.
local function tokenizer_for(model, given)
  if given == nil and model.source and not model.tokenizer then
    refuse("generate: '%s' has no tokenizer; give one (tokenizer = ..), or ids instead of a text",
           model.source)
  end
  return require('ulysses.tokenizer').resolve('generate', given or model.tokenizer or 'bytes')
end

-- What ends a text: ids, as a set, and strings.
local function stops_of(how, model, tokenizer)
  local ids, texts = {}, {}
  if how.eos then
    if tokenizer then ids[tokenizer.eos] = true end
    if how.kind == 'chat' then -- what ends an answer, also where no file says so
      for _, name in ipairs { '<|eot_id|>', '<|im_end|>' } do
        local id = tokenizer.tokenizer and tokenizer.tokenizer:id(name)
        if id then ids[id] = true end
      end
    end
    local known = model.config and model.config.generation
    for _, id in ipairs(known and known.eos or {}) do ids[id] = true end
  end
  local list = how.stop == nil and {} or type(how.stop) == 'table' and how.stop or { how.stop }
  for _, one in ipairs(list) do
    if type(one) == 'number' then
      ids[one] = true
    elseif type(one) ~= 'string' or one == '' then
      raise 'generate: stop wants ids, texts, or a list of these'
    else
      local tok = tokenizer and tokenizer.tokenizer
      local id = tok and tok:id(one)
      if id and select(2, tok:token(id)) then
        ids[id] = true
      elseif tokenizer then
        texts[#texts + 1] = one
      else
        raise('generate: a prompt of ids has no texts to stop at; give the id of %q', one)
      end
    end
  end
  return ids, texts
end

local function read(model, given, kind)
  local known = model.config and model.config.generation or {}
  local how = options.read('generate', given, {
    tokenizer = options.none, n = 200, temperature = known.temperature or 0.8,
    top_k = known.top_k or options.none, top_p = known.top_p or options.none,
    min_p = known.min_p or options.none, seed = options.none,
    context = model.settings and model.settings.max_tokens or 512, stream = options.none,
    mesh = options.none, stop = options.none, eos = true, cache = true, family = options.none,
    date = options.none, thinking = options.none, tools = options.none,
  })
  check(how)
  how.mesh = how.mesh or model.mesh
  how.kind = kind
  how.tokenizer = kind ~= 'ids' and tokenizer_for(model, how.tokenizer) or nil
  how.stop_ids, how.stop_texts = stops_of(how, model, how.tokenizer)
  return how
end

-- 'text', 'ids', 'chat' (messages of one conversation), or nil.
local function kind_of(prompt)
  if type(prompt) == 'string' then return 'text' end
  local first = type(prompt) == 'table' and prompt[1]
  if type(first) == 'number' then return 'ids' end
  return type(first) == 'table' and first.role ~= nil and 'chat' or nil
end

-- A list of prompts, whether it was one, and what kind they are.
local function read_prompts(prompt)
  local one = kind_of(prompt) ~= nil
  local list = one and { prompt } or prompt
  if type(list) ~= 'table' or #list == 0 then
    raise('generate: the prompt must be a string, a list of ids, or a list of these, got a%s',
          type(list) == 'table' and 'n empty table' or ' ' .. type(list))
  end
  local kind = kind_of(list[1])
  for i, item in ipairs(list) do
    if not kind or kind_of(item) ~= kind then
      raise('generate: prompt %d must be a string or a list of ids, as all of them', i)
    end
  end
  return list, one, kind
end

-- ---- tokens ----

-- No text has these in it; eos ends one.
local function forbid(logits, how)
  local tokenizer = how.tokenizer
  if not tokenizer then return end
  local x = logits:data()
  for _, id in ipairs { tokenizer.bos or -1, tokenizer.pad or -1, tokenizer.unknown or -1 } do
    if id >= 0 and id < logits:numel() and not how.stop_ids[id] then x[id] = -math.huge end
  end
  for id = tokenizer.vocab, logits:numel() - 1 do x[id] = -math.huge end
end

-- The choices of the first of the ranks that make the logits together, for all of them: one whose
-- text went on alone would wait for the others.
local function agreed(mesh, ids)
  if not mesh or mesh.sequence.size == 1 then return ids end
  local chosen = ul.tensor(ids, { dtype = 'i64', device = 'cpu' })
  return mesh.sequence:broadcast_(chosen):tolist()
end

-- n random numbers. A seed of its own leaves the generator as it is: a run that samples goes on as
-- one that does not.
local function random_numbers(n, seed)
  if n == 0 then return {} end
  if not seed then return ul.rand(n, { dtype = 'f64', device = 'cpu' }):tolist() end
  local state, next_number = ul.random_state()
  ul.manual_seed(seed)
  local numbers = ul.rand(n, { dtype = 'f64', device = 'cpu' })
  ul.set_random_state(state, next_number)
  return numbers:tolist()
end

local function device_of(model)
  local parameter = model.parameters and model:parameters()[1]
  return parameter and parameter:device()
end

-- The logits behind the last token of rows of equal length: [rows, vocabulary].
local function logits_of(model, rows, cache)
  local inputs = ul.tensor(rows, { dtype = 'i64', device = device_of(model) })
  local logits = model:logits(inputs, { last = true, cache = cache })
  return logits:narrow(2, logits:size(2), 1):view(#rows, -1):to('f32'):to('cpu')
end

-- All that a writer has to do with one token after the other: with the cache, or where the text has
-- grown beyond what it holds, by showing the model its last tokens again.
local function next_logits(model, writers, how, cache, limit)
  local found, step, of_step = {}, {}, {}
  for i, writer in ipairs(writers) do
    local tokens = writer.tokens
    if not cache or #tokens > limit then
      found[i] = logits_of(model, { writer:last(how.context) })
    elseif not writer.is_kept then
      cache.rows, writer.is_kept = { writer.row }, true
      found[i] = logits_of(model, { tokens }, cache)
    else
      step[#step + 1], of_step[#of_step + 1] = { tokens[#tokens] }, i
    end
  end
  if #step == 0 then return found end
  cache.rows = {}
  for k, i in ipairs(of_step) do cache.rows[k] = writers[i].row end
  local logits = logits_of(model, step, cache)
  for k, i in ipairs(of_step) do found[i] = logits:narrow(1, k, 1) end
  return found
end

local function next_ids(model, writers, how, cache, limit, random, t)
  local ids = {}
  for i, logits in ipairs(next_logits(model, writers, how, cache, limit)) do
    local last = logits:view(-1):clone() -- to be written to
    forbid(last, how)
    ids[i] = choose(last, how, random[(writers[i].row - 1) * how.n + t])
  end
  return agreed(how.mesh, ids)
end

-- How many tokens of a row the cache is good for; nil: there is none.
local function cache_limit(model, how)
  if not how.cache or not model.uses_cache then return nil end
  if how.mesh and how.mesh.ring.size > 1 then return nil end -- keys lie on several ranks
  return math.min(how.context, model.cache_limit and model:cache_limit() or how.context)
end

local function write_all(model, writers, how)
  local random = random_numbers(how.n * #writers, how.seed)
  local limit, longest, cache = cache_limit(model, how), 0, nil
  for _, writer in ipairs(writers) do longest = math.max(longest, #writer.tokens) end
  if limit then cache = new_cache(#writers, math.min(limit, longest + how.n)) end
  local left = writers
  for t = 1, how.n do
    if #left == 0 then break end
    local ids = ul.no_grad(ul.scope, next_ids, model, left, how, cache, limit, random, t)
    local going = {}
    for i, writer in ipairs(left) do
      if writer:add(ids[i]) then going[#going + 1] = writer end
    end
    left = going
  end
  if cache then cache:free() end
end

local function stream_of(how, n_prompts)
  local given, of_text = how.stream, n_prompts == 1 and how.kind ~= 'ids'
  if given == nil then given = streamed.at_prompt and of_text end
  if given == false or type(given) == 'function' then return given or nil end
  if given ~= true then raise('generate: stream must be true, false or a function') end
  if not of_text then
    raise 'generate: stream = true is for one text; a function gets each piece (or id) and its row'
  end
  return (not how.mesh or how.mesh.world.rank == 0) and streamed.write or nil
end

-- Says what the model does not see of a prompt, and where it sees more than it is meant for.
local function compare_length(model, writers, how)
  local longest, most = 0, model.settings and model.settings.max_tokens
  for _, writer in ipairs(writers) do longest = math.max(longest, #writer.tokens) end
  if longest > how.context then
    notice(('generate: of a prompt of %d tokens the model sees the last %d (context)'):format(
      longest, how.context))
  end
  local seen = math.min(longest + how.n, how.context)
  if most and seen > most then
    notice(('generate: texts of %d tokens are longer than the %d that the model is meant for '
            .. '(max_position_embeddings of its config.json)'):format(seen, most))
  end
end

--- Text that the model writes behind `prompt`, up to n tokens or the end of a document. Each token
--- is chosen by chance from what the logits allow: `temperature` 0 takes the likeliest, below 1 the
--- likelier ones more often; `top_k` allows so many, `top_p` the likeliest that together have this
--- probability, `min_p` those that are at least this share of the likeliest. Where they are left
--- out, those of the model's generation_config.json count. The same seed gives the same text.
---
--- A list of prompts gives a list of texts, written together. A prompt may be a list of ids too,
--- and gives ids; or the messages of a conversation, { { role = 'user', content = '..' } }, and
--- gives the answer. A text is read with the model's own tokenizer, or with `tokenizer`.
---   stop     ids and texts that end it beside the ends that the model knows; they are not part of
---            the result
---   eos      false: the end of a document does not end it
---   context  how many of the last tokens the model sees: what it is meant for, or else 512
---   stream   true prints the text as it comes, which is so at the prompt where it is left out; a
---            function is called with each piece (or id) and its row
---   family   of a conversation, and `date`, `thinking`, `tools`: as for ul.chat.encode
---   cache    false: without the keys and values of the tokens before, which is slow
---   mesh     whose ranks write the same text together; the model's own where it is left out
---@param model table with logits(inputs, { last = true }): [B, 1, vocabulary] for inputs [B, T]
---@param prompt string|integer[]|table[]|string[]|integer[][]
---@param given { tokenizer: string|table|nil, n: integer?, temperature: number?, top_k: integer?,
---  top_p: number?, min_p: number?, seed: integer?, context: integer?,
---  stream: boolean|fun(piece: string|integer, row: integer)|nil, mesh: Mesh?, eos: boolean?,
---  stop: string|integer|table|nil, cache: boolean?, family: string?, date: string?,
---  thinking: boolean?, tools: table[]|string|nil }?
---@return string|integer[]|string[]|integer[][]
local function generate(model, prompt, given)
  if type(model) ~= 'table' or not model.logits then
    raise 'generate: the model has no method logits(inputs, { last = true })'
  end
  if device_of(model) == 'meta' then
    refuse 'generate: on the meta device there are sizes alone, no text; take another (--device)'
  end
  local prompts, one, kind = read_prompts(prompt)
  local how = read(model, given, kind)
  how.stream = stream_of(how, #prompts)
  local writers, results = {}, {}
  for i, item in ipairs(prompts) do writers[i] = Writer.new(i, item, how) end
  compare_length(model, writers, how)
  ul.scope(write_all, model, writers, how)
  for i, writer in ipairs(writers) do results[i] = writer:finish() end
  if how.stream == streamed.write then streamed.finish(results[1]) end
  return one and results[1] or results
end

return generate
