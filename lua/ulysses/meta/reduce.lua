-- reduce.lua - sums, extremes, and what else runs along dims.
---@meta ulysses

---@class Ops
local Ops = {}

---@class KeepOptions
---@field keepdim? boolean leave the reduced dims, with size 1

--- The sum over dims. Integers sum to i64.
--- ```lua
--- ul.ones(2, 3):sum(2)    --> [3, 3]
--- ```
---@param x Tensor
---@param dims? Dims a dim or a list of them; all where it is left out
---@param options? KeepOptions
---@return Tensor
function Ops.sum(x, dims, options) end

--- The mean over dims.
---@param x Tensor
---@param dims? Dims a dim or a list of them; all where it is left out
---@param options? KeepOptions
---@return Tensor
function Ops.mean(x, dims, options) end

---@class MomentOptions
---@field unbiased? boolean divide by one less than there are elements, true
---@field keepdim? boolean leave the reduced dims, with size 1

--- The variance over dims: the sum of squared differences from the mean, divided by one less than
--- there are elements, or by their number where unbiased = false. NaN where that is 0.
--- ```lua
--- ul.tensor({ 1, 2, 3, 4, 5 }):var()                           --> 2.5000
--- ul.tensor({ 1, 2, 3, 4, 5 }):var(nil, { unbiased = false })  --> 2
--- ```
---@param x Tensor
---@param dims? Dims a dim or a list of them; all where it is left out
---@param options? MomentOptions
---@return Tensor
function Ops.var(x, dims, options) end

--- The standard deviation over dims, the root of var(). Its gradient is 0 where all are equal.
---@param x Tensor
---@param dims? Dims a dim or a list of them; all where it is left out
---@param options? MomentOptions
---@return Tensor
function Ops.std(x, dims, options) end

--- log(sum(exp(x))) over dims, without overflow.
---@param x Tensor
---@param dims? Dims a dim or a list of them; all where it is left out
---@param options? KeepOptions
---@return Tensor
function Ops.logsumexp(x, dims, options) end

--- The largest element, or along a dim the largest ones and where they are (the first of equals).
--- NaN wins.
--- ```lua
--- local values, index = ul.tensor({ { 1, 3 }, { 5, 2 } }):max(2)
--- index    --> [1, 0]
--- ```
---@param x Tensor
---@param dim? integer all where it is left out
---@param options? KeepOptions
---@return Tensor values
---@return Tensor? index i64, 0-based
function Ops.max(x, dim, options) end

--- The smallest element, or along a dim the smallest ones and where they are.
---@param x Tensor
---@param dim? integer all where it is left out
---@param options? KeepOptions
---@return Tensor values
---@return Tensor? index i64, 0-based
function Ops.min(x, dim, options) end

--- Where the largest element is.
---@param x Tensor
---@param dim? integer in x:flatten() where it is left out
---@param options? KeepOptions
---@return Tensor index i64, 0-based
function Ops.argmax(x, dim, options) end

--- Where the smallest element is.
---@param x Tensor
---@param dim? integer in x:flatten() where it is left out
---@param options? KeepOptions
---@return Tensor index i64, 0-based
function Ops.argmin(x, dim, options) end

--- exp(x) / sum(exp(x)) along a dim.
---@param x Tensor
---@param dim? integer the last where it is left out
---@return Tensor
function Ops.softmax(x, dim) end

--- log(softmax(x)) along a dim, without overflow.
---@param x Tensor
---@param dim? integer the last where it is left out
---@return Tensor
function Ops.log_softmax(x, dim) end

--- Sums of all elements up to each, along a dim.
--- ```lua
--- ul.tensor({ 1, 2, 3 }):cumsum()    --> [1, 3, 6]
--- ```
---@param x Tensor
---@param dim? integer the last where it is left out
---@return Tensor
function Ops.cumsum(x, dim) end

--- The elements along a dim in rising order, and where they were. Equal ones stay in order.
---@param x Tensor
---@param dim? integer the last where it is left out
---@param options? { descending: boolean? }
---@return Tensor values
---@return Tensor index i64, 0-based
function Ops.sort(x, dim, options) end

--- The k largest elements along a dim, and where they are.
--- ```lua
--- ul.tensor({ 4, 9, 7 }):topk(2)    --> [9, 7]
--- ```
---@param x Tensor
---@param k integer
---@param dim? integer the last where it is left out
---@param options? { largest: boolean? } false: the smallest
---@return Tensor values
---@return Tensor index i64, 0-based
function Ops.topk(x, k, dim, options) end

--- The square root of the sum of squares of all elements.
---@param x Tensor
---@return Tensor
function Ops.norm(x) end
