-- init.lua - ul.nn: modules and what they are made with.
local module = require 'ulysses.nn.module'
require 'ulysses.nn.state'
require 'ulysses.nn.sharded'
local norm = require 'ulysses.nn.norm'
local parallel = require 'ulysses.nn.parallel'

return {
  class = module.class,
  parameter = module.parameter,
  Linear = require 'ulysses.nn.linear',
  ColumnLinear = parallel.ColumnLinear,
  RowLinear = parallel.RowLinear,
  columns = parallel.columns,
  head_shares = parallel.head_shares,
  Dropout = require 'ulysses.nn.dropout',
  Embedding = require 'ulysses.nn.embedding',
  RMSNorm = norm.RMSNorm,
  LayerNorm = norm.LayerNorm,
  List = require 'ulysses.nn.list',
}
