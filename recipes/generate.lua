-- generate.lua - what a model has to say: text behind a prompt, or answers in a conversation.
--
--   ulysses-lua recipes/generate.lua model=path/to/folder prompt='Once upon a time'
--   ulysses-lua recipes/generate.lua model=path/to/folder prompt='Who are you?' chat=true
--   ulysses-lua recipes/generate.lua model=path/to/folder prompts=questions.txt out=answers.jsonl
local ul = require 'ulysses'

local recipe = ul.recipe 'generate' {
  model = ul.none 'string',        -- a folder as downloaded, or one that hf.save has written
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model
  prompt = 'Once upon a time',
  prompts = ul.none 'string',      -- a file with a prompt on each line, instead
  out = ul.none 'string',          -- a file for what is written behind each; without: the screen
  chat = false,                    -- whether a prompt is what a user says, and an answer is wanted
  system = ul.none 'string',       -- what the conversation begins with
  family = ul.none 'string',       -- of conversations, where the tokenizer does not tell it
  n = 200,                         -- tokens at most
  temperature = ul.none 'number',  -- 0 takes the likeliest; without: as the model says, or 0.8
  top_k = ul.none 'integer', top_p = ul.none 'number', min_p = ul.none 'number',
  stop = {},                       -- texts that end it
  seed = ul.none 'integer',        -- the same text for the same seed
  context = ul.none 'integer',     -- the last tokens that the model sees; without: all it can
  batch = 8,                       -- prompts of a file that are answered together
  sp = 1, ring = 0, tp = 1,        -- ranks that share the text, and each weight (--ranks)
  dtype = ul.none 'string',        -- of the weights; without: that of the folder
}

-- What ul.generate takes, of one line.
local function prompt_of(cfg, line)
  if not cfg.chat then return line end
  local messages = { { role = 'user', content = line } }
  if cfg.system then table.insert(messages, 1, { role = 'system', content = cfg.system }) end
  return messages
end

local function lines_of(path)
  local list = {}
  for line in (ul.data.read(path):documents()[1] .. '\n'):gmatch '([^\n]*)\n' do
    if line:find '%S' then list[#list + 1] = line end
  end
  return list
end

-- As JSON; a model of bytes may write what is no text.
local function line_of(prompt, text)
  local ok, line = pcall(ul.json.encode, { prompt = prompt, text = text })
  return ok and line or ul.json.encode { prompt = prompt, text = (text:gsub('[\128-\255]', '?')) }
end

-- A prompt from each line, and what follows as lines of JSON.
local function answer_all(cfg, model, how)
  local lines, first = lines_of(cfg.prompts), model.mesh.world.rank == 0
  local out = io.stdout
  if cfg.out and first then out = assert(io.open(cfg.out, 'w')) end
  for from = 1, #lines, cfg.batch do
    local prompts = {}
    for i = from, math.min(#lines, from + cfg.batch - 1) do
      prompts[#prompts + 1] = prompt_of(cfg, lines[i])
    end
    for i, text in ipairs(model:generate(prompts, how)) do
      if first then
        out:write(line_of(lines[from + i - 1], text), '\n')
        out:flush()
      end
    end
  end
end

function recipe.run(cfg)
  local model = ul.hf.load(cfg.model, {
    mesh = { sp = cfg.sp, ring = cfg.ring, tp = cfg.tp }, dtype = cfg.dtype,
  })
  local how = { tokenizer = cfg.tokenizer, n = cfg.n, temperature = cfg.temperature,
                top_k = cfg.top_k, top_p = cfg.top_p, min_p = cfg.min_p, stop = cfg.stop,
                seed = cfg.seed, context = cfg.context, family = cfg.family }
  if cfg.prompts then return answer_all(cfg, model, how) end
  how.stream = true
  if not cfg.chat and model.mesh.world.rank == 0 then io.write(cfg.prompt) end
  model:generate(prompt_of(cfg, cfg.prompt), how)
  if model.mesh.world.rank == 0 then print '' end
end

return recipe:main()
