-- tensor.lua - tensors: what they are, how long they live, their values and gradients.
---@meta ulysses
-- Dims, positions and ranges count from 1, or from -1 backwards, and include both ends. Values are
-- data: indices that are stored in tensors count from 0.

---@alias Dtype 'f32'|'bf16'|'f64'|'i32'|'i64'|'u8'
---@alias Device 'cpu'|'meta'|'cuda'|string 'cuda:1' is the second; a process works on one
---@alias Dims integer|integer[]|nil
---@alias Operand Tensor|number

--- An array of numbers of one dtype on one device. Tensors on `meta` have a shape and no values.
---
--- `x[3]` and `x[-1]` select along the first dim, `x[{ {2, 5}, {} }]` and `x['2:5, :']` cut ranges
--- (all are views), and assigning to them writes. `+ - * / ^` are elementwise, with broadcasting as
--- in NumPy, `#x` is the size of the first dim, and `==` asks whether two are the same object.
--- ```lua
--- local x = ul.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
--- x[2]             --> [4, 5, 6]
--- x['2, 2:3']      --> [5, 6]
--- x[1] * 2 + 1     --> [3, 5, 7]
--- ```
---@class Tensor: Ops
---@field shape integer[] the sizes of all dims, as a table
---@field grad Tensor? the gradient so far; may be set, or cleared with nil
---@field requires_grad boolean whether gradients flow to it; may be set on leaves
---@field is_leaf boolean whether it was made by no op that the tape knows
---@operator add(Operand): Tensor
---@operator sub(Operand): Tensor
---@operator mul(Operand): Tensor
---@operator div(Operand): Tensor
---@operator pow(Operand): Tensor
---@operator unm: Tensor
---@operator len: integer
local Tensor = {}

-- ---- what it is ----

--- The size of a dim, or without one those of all dims as several results.
--- ```lua
--- local B, T = ul.zeros(2, 3):size()
--- T                          --> 3
--- ul.zeros(2, 3):size(-1)    --> 3
--- ```
---@param dim? integer
---@return integer ...
function Tensor:size(dim) end

--- The distance in elements between neighbours along a dim, or along each.
---@param dim? integer
---@return integer ...
function Tensor:stride(dim) end

--- How many dims there are.
---@return integer
function Tensor:dim() end

--- How many elements there are.
---@return integer
function Tensor:numel() end

--- What its elements are: 'f32', 'bf16', 'f64', 'i32', 'i64' or 'u8'.
---@return Dtype
function Tensor:dtype() end

--- Where it lives: 'cpu', 'meta' or 'cuda:0'.
---@return Device
function Tensor:device() end

--- Whether its elements lie in memory in order, without gaps.
---@return boolean
function Tensor:is_contiguous() end

-- ---- values ----

--- The only element, as a number.
--- ```lua
--- ul.tensor({ 1, 2 }):sum():item()    --> 3
--- ```
---@return number
function Tensor:item() end

--- The elements in nested tables; a number where there are no dims.
---@return table|number
function Tensor:tolist() end

--- A typed pointer to the first element of a contiguous cpu tensor, for FFI loops and C kernels;
--- bf16 comes as its bits. It counts from 0 and is valid as long as the tensor is.
--- ```lua
--- local x = ul.zeros { 3, device = 'cpu' }
--- local p = x:data()
--- for i = 0, 2 do p[i] = i * i end
--- x    --> [0, 1, 4]
--- ```
---@return ffi.cdata*
function Tensor:data() end

--- The same elements in another dtype, on another device, or both. Itself where nothing changes.
--- Floats become integers towards zero.
--- ```lua
--- ul.tensor({ 1.5, -2.5 }):to 'i64'    --> [ 1, -2]
--- ```
---@param target Dtype|Device|Tensor|{ dtype: Dtype?, device: Device? } or a tensor to be like
---@param device? Device where `target` is a dtype
---@return Tensor
function Tensor:to(target, device) end

-- ---- how long it lives ----

--- Takes it out of its scope, at whose end it would be freed.
---@return Tensor x itself
function Tensor:keep() end

--- Gives its memory back now. Using it later is an error.
function Tensor:free() end

-- ---- gradients ----

--- Makes it a leaf: what is computed from it is recorded, and backward() adds to its `grad`.
---@param on? boolean true where it is left out
---@return Tensor x itself
function Tensor:requires_grad_(on) end

--- Keeps the gradient of an op's result after backward() too.
function Tensor:retain_grad() end

--- Adds the gradient of this, weighted by `seed`, to the `grad` of every leaf that it depends on.
--- ```lua
--- local w = ul.tensor({ 1, 2 }):requires_grad_()
--- w:square():sum():backward()
--- w.grad    --> [2, 4]
--- ```
---@param seed? Tensor of this shape; needed unless this has one element
---@param options? RetainOptions
function Tensor:backward(seed, options) end

---@class RetainOptions
---@field retain? boolean keep what the tape saved, so that backward may be called again

--- The same data without history: no gradient flows through it.
---@return Tensor
function Tensor:detach() end

-- ---- in place ----

--- x = x + y. In place ops return x, and are refused where the tape still needs what was there.
---@param y Operand broadcast to x
---@return Tensor x itself
function Tensor:add_(y) end

--- x = x - y, in place.
---@param y Operand broadcast to x
---@return Tensor x itself
function Tensor:sub_(y) end

--- x = x y, elementwise and in place.
---@param y Operand broadcast to x
---@return Tensor x itself
function Tensor:mul_(y) end

--- x = x / y, elementwise and in place.
---@param y Operand broadcast to x
---@return Tensor x itself
function Tensor:div_(y) end

--- Sets all elements to a number.
---@param value number
---@return Tensor x itself
function Tensor:fill_(value) end

--- Sets all elements to 0.
---@return Tensor x itself
function Tensor:zero_() end

--- Takes over the elements of another tensor, broadcast and cast to x.
---@param source Tensor
---@return Tensor x itself
function Tensor:copy_(source) end

--- Draws all elements uniformly from [low, high).
---@param low? number 0
---@param high? number 1
---@return Tensor x itself
function Tensor:uniform_(low, high) end

--- Draws all elements from a normal distribution.
---@param mean? number 0
---@param std? number 1
---@return Tensor x itself
function Tensor:normal_(mean, std) end
