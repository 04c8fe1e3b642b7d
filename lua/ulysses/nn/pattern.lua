-- pattern.lua - which parameters a pattern names: 'embed', 'layers.1', 'layers.*.ffn', '*norm'.

--- Whether `pattern` names the parameter or something that it is in. A pattern is one or several
--- whole parts of a name ("layers.1" is in "layers.1.ffn.up.weight", not in "layers.10.ffn"); a
--- star stands for anything within a part.
---@param pattern string
---@param name string
---@return boolean
return function(pattern, name)
  local escaped = pattern:gsub('[^%w*]', '%%%0'):gsub('%*', '[^.]*')
  return ('.' .. name .. '.'):find('%.' .. escaped .. '%.') ~= nil
end
