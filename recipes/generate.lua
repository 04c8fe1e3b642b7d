-- generate.lua - what a model has to say: text behind a prompt, or answers in a conversation.
--
--   ulysses-lua recipes/generate.lua model=path/to/folder prompt='Once upon a time'
--   ulysses-lua recipes/generate.lua model=path/to/folder prompt='Who are you?' chat=true
--   ulysses-lua recipes/generate.lua model=path/to/folder prompt='2 + 2?' chat=true tools=t.json
--   ulysses-lua recipes/generate.lua model=path/to/folder prompts=questions.txt out=answers.jsonl
--   ulysses-lua recipes/generate.lua model=path/to/folder adapter=runs/finetune/model
local refuse = require 'ulysses.refuse'
local tools = require 'ulysses.tools'
local ul = require 'ulysses'
local utf8 = require 'ulysses.utf8'

local recipe = ul.recipe 'generate' {
  model = ul.none 'string',        -- a folder as downloaded, or one that hf.save has written
  adapter = ul.none 'string',      -- LoRA adapters of it: a folder of finetune.lua, or of PEFT
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model
  prompt = ul.none 'string',       -- without: 'Once upon a time'
  prompts = ul.none 'string',      -- a file with a prompt on each line, instead
  out = ul.none 'string',          -- a file for each prompt and its text, as JSON; none: the screen
  chat = false,                    -- whether a prompt is what a user says, and an answer is wanted
  system = ul.none 'string',       -- what the conversation begins with
  family = ul.none 'string',       -- of conversations, where the tokenizer does not tell it
  date = ul.none 'string',         -- '26 Jul 2024': Llama 3.1 and later have one before a talk
  tools = ul.none 'string',        -- a JSON file: the list of tools that an answer may call
  thinking = ul.none 'boolean',    -- false: Qwen3 answers at once
  n = 200,                         -- tokens at most
  temperature = ul.none 'number',  -- 0 takes the likeliest; without: as the model says, or 0.8
  top_k = ul.none 'integer',       -- the next token is one of the so many likeliest
  top_p = ul.none 'number',        -- or of the likeliest that together have this probability
  min_p = ul.none 'number',        -- or of those that are this share of the likeliest, at least
  stop = {},                       -- texts that end it
  seed = ul.none 'integer',        -- another one, another text; without: always the same
  context = ul.none 'integer',     -- the last tokens that the model sees; without: all it can
  batch = 8,                       -- prompts of a file that are answered together
  sp = 1, tp = 1,                  -- ranks that share the text (--ranks); that share each weight
  ring = 0,                        -- parts of sp in a ring; 0: as few as there must be
  dtype = ul.none 'string',        -- of the weights; without: that of the folder
}

recipe.limits = {
  n = { least = 0, most = 2 ^ 30 }, temperature = { least = 0 }, top_k = { least = 1 },
  top_p = { above = 0, most = 1 }, min_p = { above = 0, most = 1 }, context = { least = 1 },
  batch = { most = 2 ^ 12 },
}

-- Writes, and sees whether it was written: a disk may be full.
local function put(out, name, text)
  local ok, why = out:write(text)
  if ok then ok, why = out:flush() end
  if not ok then refuse('generate: cannot write %s: %s', name, why) end
end
jit.off(put) -- compiled code that finds flush() failing calls it once more, which succeeds

-- Opens the file for answers; 'a' only sees whether that can be done.
local function open_out(path, mode)
  local out, why = io.open(path, mode)
  return out or refuse('generate: cannot write out=%s', why)
end

-- What ul.generate takes, of one line.
local function prompt_of(cfg, line)
  if not cfg.chat then return line end
  local messages = { { role = 'user', content = line } }
  if cfg.system then table.insert(messages, 1, { role = 'system', content = cfg.system }) end
  return messages
end

local function prompts_of(cfg)
  if not cfg.prompts then
    cfg.prompt = cfg.prompt or 'Once upon a time'
    return { cfg.prompt }
  end
  local list, n = {}, 0
  for _, text in ipairs(ul.data.read(cfg.prompts):documents()) do
    for line in (text .. '\n'):gmatch '([^\n]*)\n' do
      n = n + 1
      if utf8.first_wrong(line) then
        refuse("generate: prompts='%s': line %d is no UTF-8", cfg.prompts, n)
      end
      if line:find '%S' then list[#list + 1] = (line:gsub('\r$', '')) end
    end
  end
  if #list == 0 then
    refuse("generate: prompts='%s' is empty; it wants a prompt on each line", cfg.prompts)
  end
  return list
end

-- As JSON; a model of bytes may write what is no text.
local function line_of(prompt, text)
  local ok, line = pcall(ul.json.encode, { prompt = prompt, text = text })
  if not ok then
    line = ul.json.encode { prompt = prompt, text = (text:gsub('[\128-\255]', '?')) }
  end
  return line .. '\n'
end

-- What follows each prompt, as lines of JSON.
local function answer_all(cfg, lines, model, how)
  local first = model.mesh.world.rank == 0
  local out, name = io.stdout, 'to standard output'
  if cfg.out and first then out, name = open_out(cfg.out, 'w'), cfg.out end
  for from = 1, #lines, cfg.batch do
    local prompts = {}
    for i = from, math.min(#lines, from + cfg.batch - 1) do
      prompts[#prompts + 1] = prompt_of(cfg, lines[i])
    end
    for i, text in ipairs(model:generate(prompts, how)) do
      if first then put(out, name, line_of(lines[from + i - 1], text)) end
    end
  end
end

-- One text, while it is written.
local function answer(cfg, model, how)
  local first, before = model.mesh.world.rank == 0, cfg.chat and '' or cfg.prompt
  function how.stream(piece)
    if first then put(io.stdout, 'to standard output', before .. piece) end
    before = ''
  end
  model:generate(prompt_of(cfg, cfg.prompt), how)
  how.stream '\n'
end

-- What is wrong is said before the model is there, for that takes long.
local function check(cfg)
  for _, text in ipairs(cfg.stop) do
    if text == '' then refuse 'generate: stop has an empty text in it' end
  end
  for _, name in ipairs { 'system', 'family', 'date', 'tools', 'thinking' } do
    if cfg[name] ~= nil and not cfg.chat then
      refuse("generate: %s='%s' says nothing without chat=true", name, tostring(cfg[name]))
    end
  end
  if cfg.prompt and cfg.prompts then
    refuse 'generate: prompt and prompts are both set, and one of them would be ignored'
  end
  if cfg.out and cfg.out == cfg.prompts then
    refuse("generate: out='%s' is the file of the prompts, which would be lost", cfg.out)
  end
  if cfg.out then open_out(cfg.out, 'a'):close() end
  return prompts_of(cfg), cfg.tools and tools.open(cfg.tools)
end

function recipe.run(cfg)
  local lines, may_call = check(cfg)
  local model = ul.hf.load(cfg.model, {
    mesh = { sp = cfg.sp, ring = cfg.ring, tp = cfg.tp }, dtype = cfg.dtype,
    adapter = cfg.adapter,
  })
  local how = { tokenizer = cfg.tokenizer, n = cfg.n, temperature = cfg.temperature,
                top_k = cfg.top_k, top_p = cfg.top_p, min_p = cfg.min_p, stop = cfg.stop,
                seed = cfg.seed, context = cfg.context, family = cfg.family, date = cfg.date,
                tools = may_call, thinking = cfg.thinking }
  if cfg.prompts or cfg.out then return answer_all(cfg, lines, model, how) end
  return answer(cfg, model, how)
end

return recipe:main()
