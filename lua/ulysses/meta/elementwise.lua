-- elementwise.lua - ops on each element for itself.
---@meta ulysses

---@class Ops
local Ops = {}
---@class F
local F = {}

--- a + b. The two are broadcast as in NumPy and have equal dtypes; one may be a number. So for the
--- other ops of two operands.
--- ```lua
--- (ul.zeros(3, 2) + ul.tensor { 10, 20 })[1]    --> [10, 20]
--- ```
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.add(a, b) end

--- a - b
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.sub(a, b) end

--- a b, elementwise: a * b. The product of matrices is matmul().
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.mul(a, b) end

--- a / b
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.div(a, b) end

--- a to the power of b: a ^ b
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.pow(a, b) end

--- The larger of two elements.
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.maximum(a, b) end

--- The smaller of two elements.
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.minimum(a, b) end

--- 1 where a equals b, else 0 (u8).
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.eq(a, b) end

--- 1 where a differs from b, else 0 (u8).
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.ne(a, b) end

--- 1 where a < b, else 0 (u8).
--- ```lua
--- ul.tensor({ 1, 5 }):lt(3)    --> [1, 0]
--- ```
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.lt(a, b) end

--- 1 where a <= b, else 0 (u8).
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.le(a, b) end

--- 1 where a > b, else 0 (u8).
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.gt(a, b) end

--- 1 where a >= b, else 0 (u8).
---@param a Operand
---@param b Operand
---@return Tensor
function Ops.ge(a, b) end

--- `value` where the mask is not 0, else x.
--- ```lua
--- local x = ul.tensor { 1, -2 }
--- x:masked_fill(x:lt(0), 0)    --> [1, 0]
--- ```
---@param x Tensor
---@param mask Tensor u8
---@param value number
---@return Tensor
function Ops.masked_fill(x, mask, value) end

--- -x
---@param x Tensor
---@return Tensor
function Ops.neg(x) end

--- |x|
---@param x Tensor
---@return Tensor
function Ops.abs(x) end

--- e to the power of x
---@param x Tensor
---@return Tensor
function Ops.exp(x) end

--- The natural logarithm.
---@param x Tensor
---@return Tensor
function Ops.log(x) end

--- The square root.
---@param x Tensor
---@return Tensor
function Ops.sqrt(x) end

--- 1 / sqrt(x)
---@param x Tensor
---@return Tensor
function Ops.rsqrt(x) end

--- The sine; x in radians.
---@param x Tensor
---@return Tensor
function Ops.sin(x) end

--- The cosine; x in radians.
---@param x Tensor
---@return Tensor
function Ops.cos(x) end

--- The hyperbolic tangent.
---@param x Tensor
---@return Tensor
function Ops.tanh(x) end

--- 1 / (1 + exp(-x))
---@param x Tensor
---@return Tensor
function Ops.sigmoid(x) end

--- x sigmoid(x)
---@param x Tensor
---@return Tensor
function Ops.silu(x) end

--- max(x, 0)
---@param x Tensor
---@return Tensor
function Ops.relu(x) end

--- x x
---@param x Tensor
---@return Tensor
function Ops.square(x) end

--- x Phi(x), where Phi is the distribution function of the normal distribution, or its tanh
--- approximation.
---@param x Tensor
---@param options? { approximate: 'none'|'tanh' }
---@return Tensor
function Ops.gelu(x, options) end

--- x, but not below min and not above max. Either may be left out or named: x:clamp { max = 1 }.
--- ```lua
--- ul.tensor({ -3, 0, 3 }):clamp(-1, 1)    --> [-1,  0,  1]
--- ```
---@param x Tensor
---@param min? number|{ min: number?, max: number? }
---@param max? number
---@return Tensor
function Ops.clamp(x, min, max) end

--- a where the condition is not 0, else b.
--- ```lua
--- ul.where(ul.tensor { true, false }, ul.tensor { 1, 2 }, 0)    --> [1, 0]
--- ```
---@param cond Tensor u8
---@param a Operand
---@param b Operand
---@return Tensor
function F.where(cond, a, b) end

--- silu(gate) up, in one pass.
---@param gate Tensor
---@param up Tensor
---@return Tensor
function F.swiglu(gate, up) end
