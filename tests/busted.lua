-- busted.lua - runs the specs in the interpreter that runs this file; Debian's busted picks lua5.1.
require 'busted.runner' { standalone = false }
