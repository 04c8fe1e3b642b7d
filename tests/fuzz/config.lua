-- config.lua - what config_fuzz.c calls with each input.
local json = require 'ulysses.json'
local config = require 'ulysses.hf.config'
local config_text = require 'ulysses.hf.config_text'

-- Whatever is in a config, it is read, or refused in a sentence.
local function read(...)
  local ok, what = pcall(...)
  if ok then return what end
  if type(what) ~= 'table' or not what.refusal or #tostring(what) == 0 then error(what, 0) end
end

local function same(a, b)
  if type(a) ~= 'table' or type(b) ~= 'table' then return a == b end
  for key, value in pairs(a) do
    if not same(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

return function(text)
  local values, sentence = json.decode(text)
  if values == nil then
    if type(sentence) ~= 'string' then error 'json.decode: nil without a sentence' end
    return
  end
  if type(values) ~= 'table' or values == json.null then return end
  read(config.settings, values, 'config.json')
  if not text:match '^%s*{' then return end
  values.rope_theta = 1
  if not same(values, (json.decode(config_text(text, { rope_theta = 1 })))) then
    error 'config_text: another config than before'
  end
end
