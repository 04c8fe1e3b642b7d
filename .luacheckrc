-- .luacheckrc - what luacheck may expect.
std = 'luajit'
self = false
max_line_length = 100
ignore = { '581' } -- not (x <= y) says something else than x > y about NaN
files['tests'] = { std = '+busted' }
files['lua/ulysses/meta'] = { ignore = { '212', '241' } }
files['lua/ulysses/meta/'] = { ignore = { '212', '241' } }
files['lua/ulysses/gradcheck.lua'] = { ignore = { '581' } } -- not (x <= y) is true of NaN
files['tests/golden'] = { max_line_length = false }
