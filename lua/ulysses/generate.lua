-- generate.lua - ul.generate: text that a model writes, token by token.
local ul = require 'ulysses'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

-- ---- choosing one token ----

-- How many of the sorted logits may be chosen, and the weights of these, which sum up to the second
-- result. weights[0] belongs to the best one.
local function candidates(sorted, n, how)
  local best, weights, total = sorted[0], {}, 0
  if how.top_k then n = math.min(n, how.top_k) end
  for i = 0, n - 1 do
    local weight = math.exp((sorted[i] - best) / how.temperature)
    if weight == 0 or how.min_p and weight < how.min_p then break end
    weights[i], total = weight, total + weight
  end
  if not how.top_p then return weights, total end
  local sum = 0
  for i = 0, #weights do
    sum = sum + weights[i]
    if sum >= how.top_p * total then
      for k = i + 1, #weights do weights[k] = nil end
      return weights, sum
    end
  end
  return weights, total
end

-- The id that the random number u in [0, 1) stands for.
local function choose(logits, how, u)
  local values, index = logits:sort(1, { descending = true })
  local sorted, ids = values:data(), index:data()
  if sorted[0] ~= sorted[0] or math.abs(sorted[0]) == math.huge then
    refuse('generate: the logits of the model are not finite')
  end
  if how.temperature == 0 then return tonumber(ids[0]) end
  local weights, total = candidates(sorted, logits:numel(), how)
  local left = u * total
  for i = 0, #weights do
    left = left - weights[i]
    if left < 0 then return tonumber(ids[i]) end
  end
  return tonumber(ids[#weights])
end

-- ---- the text ----

-- No text has these in it; eos ends one.
local function forbid(logits, tokenizer)
  local x = logits:data()
  for _, id in ipairs { tokenizer.bos or -1, tokenizer.pad or -1, tokenizer.unknown or -1 } do
    if id >= 0 and id < logits:numel() and id ~= tokenizer.eos then x[id] = -math.huge end
  end
  for id = tokenizer.vocab, logits:numel() - 1 do x[id] = -math.huge end
end

-- The choice of the first of the ranks that make the logits together, for all of them: one whose
-- text went on alone would wait for the others.
local function agreed(mesh, id)
  if not mesh or mesh.sequence.size == 1 then return id end
  return mesh.sequence:broadcast_(ul.tensor({ id }, { dtype = 'i64', device = 'cpu' })):item()
end

local function next_token(model, tokens, how, u)
  local context = {}
  for i = math.max(1, #tokens - how.context + 1), #tokens do context[#context + 1] = tokens[i] end
  local inputs = ul.tensor({ context }, { dtype = 'i64' })
  local parameter = model.parameters and model:parameters()[1]
  if parameter then inputs = inputs:to(parameter:device()) end
  local logits = model:logits(inputs, { last = true })
  local last = logits[1][-1]:to('f32'):to('cpu'):clone() -- to be written to
  forbid(last, how.tokenizer)
  return agreed(how.mesh, choose(last, how, u))
end

-- n random numbers. A seed of its own leaves the generator as it is: a run that samples goes on as
-- one that does not.
local function random_numbers(n, seed)
  if not seed then return ul.rand(n, { dtype = 'f64', device = 'cpu' }) end
  local state, next_number = ul.random_state()
  ul.manual_seed(seed)
  local numbers = ul.rand(n, { dtype = 'f64', device = 'cpu' })
  ul.set_random_state(state, next_number)
  return numbers
end

local function read(given)
  local how = options.read('generate', given, {
    tokenizer = options.none, n = 200, temperature = 0.8, top_k = options.none,
    top_p = options.none, min_p = options.none, seed = options.none, context = 512,
    stream = options.none, mesh = options.none,
  })
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
  how.tokenizer = require('ulysses.tokenizer').resolve('generate', how.tokenizer or 'bytes')
  if how.stream == true then
    how.stream = function(piece)
      io.write(piece)
      io.flush()
    end
  end
  return how
end

--- Text that the model writes behind `prompt`, up to n tokens or the end of a document. Each token
--- is chosen by chance from what the logits allow: `temperature` 0 takes the likeliest, below 1 the
--- likelier ones more often; `top_k` allows so many, `top_p` the likeliest that together have this
--- probability, `min_p` those that are at least this share of the likeliest. The same seed gives
--- the same text. The model sees the last `context` tokens. `stream`: true prints the text as it
--- comes, a function is called with each piece. Ranks of a mesh write the same text together:
--- `mesh`, or else the model's own.
---@param model table with logits(inputs, { last = true }): [1, 1, vocabulary] for inputs [1, T]
---@param prompt string
---@param given { tokenizer: string|table|nil, n: integer?, temperature: number?, top_k: integer?,
---  top_p: number?, min_p: number?, seed: integer?, context: integer?,
---  stream: boolean|fun(piece: string)|nil, mesh: Mesh? }?
---@return string
local function generate(model, prompt, given)
  local how = read(given)
  if type(model) ~= 'table' or not model.logits then
    raise 'generate: the model has no method logits(inputs, { last = true })'
  end
  if type(prompt) ~= 'string' then
    raise('generate: the prompt must be a string, got a %s', type(prompt))
  end
  how.mesh = how.mesh or model.mesh
  local tokenizer = how.tokenizer
  local tokens = tokenizer.encode(prompt)
  if #tokens == 0 then tokens[1] = tokenizer.eos end -- what a text stands behind
  local written = {}
  local decoder = tokenizer.decoder and tokenizer.decoder()
  ul.scope(function()
    local random = how.n > 0 and random_numbers(how.n, how.seed):tolist() or {}
    for i = 1, how.n do
      local id = ul.no_grad(ul.scope, next_token, model, tokens, how, random[i])
      if id == tokenizer.eos then break end
      tokens[#tokens + 1], written[i] = id, id
      if how.stream then how.stream(decoder and decoder:push(id) or tokenizer.decode { id }) end
    end
  end)
  local left = how.stream and decoder and decoder:finish() or ''
  if left ~= '' then how.stream(left) end
  return tokenizer.decode(written)
end

return generate
