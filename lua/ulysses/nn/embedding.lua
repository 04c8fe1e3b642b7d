-- embedding.lua - nn.Embedding: a row of the table for each id.
local F = require('ulysses').F
local module = require 'ulysses.nn.module'
local options = require 'ulysses.options'

---@class Embedding
local Embedding = module.class 'Embedding'

-- A row is seen only when its id occurs: decay would wear rare ones away.
Embedding.no_decay = true

--- ids [..] (from 0) -> [.., dim]
---@param n integer how many ids there are
---@param dim integer
---@param given { std: number? }?
function Embedding:init(n, dim, given)
  self.std = options.read('nn.Embedding', given, { std = 0.02 }).std
  self.weight = module.parameter(n, dim)
  self:reset_parameters()
end

--- The row of the table for each id.
---@param ids Tensor i64 [..], from 0
---@return Tensor y [.., dim]
function Embedding:forward(ids) return F.embedding(ids, self.weight) end

function Embedding:init_parameter(_, parameter) parameter:normal_(0, self.std) end

function Embedding:describe() return (' %d x %d'):format(self.weight:size()) end

return Embedding
