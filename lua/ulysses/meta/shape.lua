-- shape.lua - other shapes of a tensor; picking and joining.
---@meta ulysses

---@class Ops
local Ops = {}
---@class Tensor
local Tensor = {}
---@class F
local F = {}

--- Another shape that shares memory. One size may be -1: what is left over (of the dims behind
--- those in front that stay as they are, where there are no elements). Refuses what strides cannot
--- express; reshape() copies then.
---@param ... integer|integer[] sizes
---@return Tensor
function Tensor:view(...) end

--- Repeats dims of size 1 without copying; -1 keeps a size.
--- ```lua
--- ul.ones(3, 1):expand(-1, 4):size(2)    --> 4
--- ```
---@param ... integer|integer[] sizes
---@return Tensor
function Tensor:expand(...) end

--- The same with its elements in order; itself where they are.
---@return Tensor
function Tensor:contiguous() end

--- Another shape: a view where that is possible, else a copy. One size may be -1.
---@param x Tensor
---@param ... integer|integer[] sizes
---@return Tensor
function Ops.reshape(x, ...) end

--- All elements in one dim.
---@param x Tensor
---@return Tensor
function Ops.flatten(x) end

--- The dims in another order.
--- ```lua
--- ul.zeros(2, 3, 4):permute(3, 1, 2):size(1)    --> 4
--- ```
---@param x Tensor
---@param ... integer|integer[] dims of x
---@return Tensor
function Ops.permute(x, ...) end

--- Two dims exchanged.
---@param x Tensor
---@param a integer
---@param b integer
---@return Tensor
function Ops.transpose(x, a, b) end

--- A matrix, transposed.
---@param x Tensor
---@return Tensor
function Ops.t(x) end

--- One position of a dim, which goes: x[i] for any dim.
---@param x Tensor
---@param dim integer
---@param position integer
---@return Tensor
function Ops.select(x, dim, position) end

--- `length` positions of a dim.
---@param x Tensor
---@param dim integer
---@param start integer the first of them
---@param length integer
---@return Tensor
function Ops.narrow(x, dim, start, length) end

--- A new dim of size 1.
---@param x Tensor
---@param dim integer where it will be
---@return Tensor
function Ops.unsqueeze(x, dim) end

--- Without a dim of size 1, or without all of them.
---@param x Tensor
---@param dim? integer
---@return Tensor
function Ops.squeeze(x, dim) end

--- Parts of one size (the last may be smaller), or of the sizes listed, as several results.
--- ```lua
--- local a, b = ul.arange(5):split(3)
--- b    --> [3, 4]
--- ```
---@param x Tensor
---@param size integer|integer[]
---@param dim? integer 1
---@return Tensor ...
function Ops.split(x, size, dim) end

--- At most n parts of equal size but for the last, as several results.
---@param x Tensor
---@param n integer
---@param dim? integer 1
---@return Tensor ...
function Ops.chunk(x, n, dim) end

--- A copy of its own.
---@param x Tensor
---@return Tensor
function Ops.clone(x) end

--- For each position of `index`, the element of x that it names along a dim.
---@param x Tensor
---@param dim integer
---@param index Tensor i64, 0-based, of x's shape but in dim
---@return Tensor y of index's shape
function Ops.gather(x, dim, index) end

--- The positions of a dim that `index` names.
--- ```lua
--- local index = ul.tensor({ 2, 0 }, { dtype = 'i64' })
--- ul.tensor({ 10, 20, 30 }):index_select(1, index)    --> [30, 10]
--- ```
---@param x Tensor
---@param dim integer
---@param index Tensor i64 [n], 0-based
---@return Tensor
function Ops.index_select(x, dim, index) end

--- Joined along a dim.
--- ```lua
--- ul.cat { ul.ones(2), ul.zeros(1) }    --> [1, 1, 0]
--- ```
---@param list Tensor[]
---@param dim? integer 1
---@return Tensor
function F.cat(list, dim) end

--- Joined along a new dim.
---@param list Tensor[]
---@param dim? integer 1
---@return Tensor
function F.stack(list, dim) end
