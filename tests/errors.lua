-- errors.lua - each public function called wrongly, and the sentence that it answers with.
--
-- { name = { { what is wrong, function that does it, sentence }, ... } }. The sentence stands
-- behind the file and line of the call; one that begins with ^ is a pattern.
local all = {}
for _, part in ipairs { 'create', 'elementwise', 'group', 'layers', 'reduce', 'views' } do
  for name, cases in pairs(require('tests.errors.' .. part)) do
    assert(not all[name], name)
    all[name] = cases
  end
end
return all
