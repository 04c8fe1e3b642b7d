-- create.lua - making tensors.
---@meta ulysses

---@class CreateOptions
---@field dtype? Dtype
---@field device? Device ul.default_device() where it is left out
---@field requires_grad? boolean

---@class ulysses
local ul = {}

--- A tensor of the numbers (f32) or booleans (u8) in nested tables.
--- ```lua
--- ul.tensor { { 1, 2 }, { 3, 4 } }
--- ul.tensor({ 0, 1 }, { dtype = 'i64' }):dtype()    --> i64
--- ```
---@param values number|boolean|table
---@param options? CreateOptions
---@return Tensor
function ul.tensor(values, options) end

--- A tensor that is not filled. The sizes come as (2, 3), as ({ 2, 3 }) or with options as
--- { 2, 3, dtype = 'f64' }; so for zeros, ones, rand and randn.
---@param ... integer|CreateOptions sizes, then options
---@return Tensor
function ul.empty(...) end

--- A tensor of zeros.
--- ```lua
--- ul.zeros(2, 3)
--- ul.zeros { 2, 3, dtype = 'bf16', requires_grad = true }
--- ```
---@param ... integer|CreateOptions sizes, then options
---@return Tensor
function ul.zeros(...) end

--- A tensor of ones.
---@param ... integer|CreateOptions sizes, then options
---@return Tensor
function ul.ones(...) end

--- Numbers drawn uniformly from [0, 1).
---@param ... integer|CreateOptions sizes, then options
---@return Tensor
function ul.rand(...) end

--- Numbers drawn from the normal distribution with mean 0 and standard deviation 1.
---@param ... integer|CreateOptions sizes, then options
---@return Tensor
function ul.randn(...) end

--- A tensor of one number.
---@param shape integer[]
---@param value number
---@param options? CreateOptions
---@return Tensor
function ul.full(shape, value, options) end

--- Integers drawn from [low, high), i64 unless the options say otherwise.
---@param low integer
---@param high integer not among them
---@param shape integer[]
---@param options? CreateOptions
---@return Tensor
function ul.randint(low, high, shape, options) end

--- start, start + step, ... below stop. It is called with (stop), (start, stop) or (start, stop,
--- step), then options. i64 where start and step are whole, else f32.
--- ```lua
--- ul.arange(4)          --> [0, 1, 2, 3]
--- ul.arange(1, 8, 3)    --> [1, 4, 7]
--- ```
---@param ... number|CreateOptions
---@return Tensor
function ul.arange(...) end

--- Not filled; of x's shape, and of its dtype and device unless the options say others.
---@param x Tensor
---@param options? CreateOptions
---@return Tensor
function ul.empty_like(x, options) end

--- Zeros of x's shape, dtype and device.
---@param x Tensor
---@param options? CreateOptions
---@return Tensor
function ul.zeros_like(x, options) end

--- Ones of x's shape, dtype and device.
---@param x Tensor
---@param options? CreateOptions
---@return Tensor
function ul.ones_like(x, options) end

--- Numbers drawn uniformly from [0, 1), of x's shape, dtype and device.
---@param x Tensor
---@param options? CreateOptions
---@return Tensor
function ul.rand_like(x, options) end

--- Numbers drawn from the normal distribution, of x's shape, dtype and device.
---@param x Tensor
---@param options? CreateOptions
---@return Tensor
function ul.randn_like(x, options) end

--- Whether a value is a tensor.
---@param value any
---@return boolean
function ul.is_tensor(value) end
