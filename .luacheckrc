-- .luacheckrc - what luacheck may expect.
std = 'luajit'
self = false
max_line_length = 100
ignore = { '581' } -- not (x <= y) says something else than x > y about NaN
files['tests'] = { std = '+busted' }
files['lua/ulysses/meta.lua'] = { ignore = { '212', '111', '112', '113' } }
