-- meta.lua - what the C functions take and return, for editors and the reference; nothing loads it.
---@meta ulysses
-- Dims, positions and ranges count from 1, or from -1 backwards, and include both ends. Values are
-- data: indices that are stored in tensors count from 0.
---@alias Dtype 'f32'|'bf16'|'f64'|'i32'|'i64'|'u8'
---@alias Device 'cpu'|'meta'
---@alias Dims integer|integer[]|nil nil: all
---@alias Operand Tensor|number

---@class CreateOptions
---@field dtype? Dtype
---@field device? Device ul.default_device() where it is left out
---@field requires_grad? boolean
---@class KeepOptions
---@field keepdim? boolean leave reduced dims, of size 1
---@class RetainOptions
---@field retain? boolean backward may be called again

---@class Tensor: Ops
---@field shape integer[]
---@field grad Tensor? the gradient so far; may be set, or cleared with nil
---@field requires_grad boolean
---@field is_leaf boolean
---@field size fun(x: Tensor, dim?: integer): integer... the size of a dim, or of all
---@field stride fun(x: Tensor, dim?: integer): integer... in elements
---@field dim fun(x: Tensor): integer how many dims there are
---@field numel fun(x: Tensor): integer how many elements
---@field dtype fun(x: Tensor): Dtype
---@field device fun(x: Tensor): Device
---@field is_contiguous fun(x: Tensor): boolean
---@field item fun(x: Tensor): number the only element
---@field tolist fun(x: Tensor): table|number nested tables of the elements
---@field data fun(x: Tensor): ffi.cdata* typed pointer to the first element; bf16 as its bits
---@operator add(Operand): Tensor
---@operator sub(Operand): Tensor
---@operator mul(Operand): Tensor
---@operator div(Operand): Tensor
---@operator pow(Operand): Tensor
---@operator unm: Tensor
---@operator len: integer
local Tensor = {}

-- ---- making tensors ----
--- All of these take (2, 3, options), ({ 2, 3 }, options) or { 2, 3, dtype = 'f64' }.
---@class ulysses
---@field empty fun(...): Tensor not filled
---@field zeros fun(...): Tensor
---@field ones fun(...): Tensor
---@field rand fun(...): Tensor uniform in [0, 1)
---@field randn fun(...): Tensor normal with mean 0 and standard deviation 1
--- Of x's shape, and its dtype and device unless the options say others.
---@field empty_like fun(x: Tensor, options?: CreateOptions): Tensor
---@field zeros_like fun(x: Tensor, options?: CreateOptions): Tensor
---@field ones_like fun(x: Tensor, options?: CreateOptions): Tensor
---@field rand_like fun(x: Tensor, options?: CreateOptions): Tensor
---@field randn_like fun(x: Tensor, options?: CreateOptions): Tensor
---@field default_device fun(): Device
---@field set_default_device fun(device: Device) where tensors are made unless a call says otherwise
local ul = {}

--- A tensor of the numbers (f32) or booleans (u8) in nested tables.
---@param values number|boolean|table
---@param options? CreateOptions
---@return Tensor
function ul.tensor(values, options) end

---@param shape integer[]
---@param value number
---@param options? CreateOptions
---@return Tensor
function ul.full(shape, value, options) end

--- Integers in [low, high), i64.
---@param low integer
---@param high integer
---@param shape integer[]
---@param options? CreateOptions
---@return Tensor
function ul.randint(low, high, shape, options) end

--- start, start + step, ... below stop: (stop), (start, stop) or (start, stop, step), then options.
--- i64 where start and step are whole, else f32.
---@return Tensor
function ul.arange(...) end

---@param value any
---@return boolean
function ul.is_tensor(value) end

-- ---- how long it lives ----
--- Takes it out of its scope; returns it.
---@return Tensor
function Tensor:keep() end
--- Gives its memory back now.
function Tensor:free() end

--- f(...), and what is made meanwhile is freed unless it is returned, saved for backward or kept.
---@generic T
---@param f fun(...: any): T
---@return T
function ul.scope(f, ...) end
--- A scope that errors call by this name.
---@param name string
---@param f function
---@return any ...
function ul.scoped(name, f, ...) end
--- Begins a scope that scope_end() ends, for iterators.
---@param name string
---@return userdata
function ul.scope_begin(name) end
--- Frees what was made since, but for the other arguments, which are returned.
---@param scope userdata
---@return any ...
function ul.scope_end(scope, ...) end

-- ---- gradients ----
--- Makes a leaf whose gradient is kept; returns it.
---@param on? boolean
---@return Tensor
function Tensor:requires_grad_(on) end
--- An op's result keeps its gradient after backward too.
function Tensor:retain_grad() end
--- Adds the gradient of this, weighted by seed, to .grad of every leaf it depends on.
---@param seed? Tensor of this shape; needed unless this has one element
---@param options? RetainOptions
function Tensor:backward(seed, options) end
--- Shares the data and has no history.
---@return Tensor
function Tensor:detach() end

--- The same from several results at once; false among the seeds: no gradient from there.
---@param results Tensor[]
---@param seeds (Tensor|false)[]
---@param options? RetainOptions
function ul.backward(results, seeds, options) end
--- f(...) without recording.
---@param f function
---@return any ...
function ul.no_grad(f, ...) end
--- f(...) with recording, also inside of no_grad.
---@param f function
---@return any ...
function ul.enable_grad(f, ...) end
---@return boolean
function ul.is_grad_enabled() end

---@class Function
---@field forward fun(context: table, ...: any): any runs without gradients, in a scope
---@field backward fun(context: table, ...: Tensor?): Tensor?... gets a gradient (or nil) for each
---tensor that forward returned; returns one (or nil) for each argument
---@field name? string for errors
---@field captures? boolean forward uses tensors that require grad without being given them

--- A function with a gradient of its own. Tensors stored in the context are held until backward has
--- passed. Neither function may yield.
---@param definition Function
---@return function
function ul.fn(definition) end

-- ---- random numbers ----
---@param seed integer
function ul.manual_seed(seed) end
--- Seed and position of the generator; either is a string where it has no exact number.
---@return integer|string seed
---@return integer|string next
function ul.random_state() end
---@param seed integer|string
---@param next integer|string
function ul.set_random_state(seed, next) end

-- ---- the engine ----
---@class Memory
---@field live integer bytes in use by tensors
---@field peak integer the most that live has been since reset_peak_memory()
---@field cached integer bytes held from the system and not in use
---@field system_allocations integer how often the system was asked
---@field live_tensors integer
---@field scratch integer bytes that kernels keep beside tensors, at most: it depends on the threads

--- Of one device, or of all by name.
---@param device? Device
---@return Memory|table<Device, Memory>
function ul.memory(device) end
function ul.reset_peak_memory() end
---@param device Device
---@param bytes integer 0: as many as the machine has
function ul.set_memory_limit(device, bytes) end
--- Gives cached memory back to the system, by pages of 2 MiB that no tensor lies on.
function ul.trim_memory() end
--- What the meta device has counted.
---@return number flops
---@return number bytes
function ul.meta_counts() end
function ul.reset_meta_counts() end
--- Sets how many threads kernels use, if given; returns how many there are.
---@param n? integer
---@return integer
function ul.threads(n) end
--- Sets the instruction set level, if given; returns the one in force.
---@param name? 'base'|'avx2'|'avx512'|'avx512bf16'
---@return string
function ul.isa(name) end
---@return number flops of all products and attention so far; on meta those that would have run
function ul.flops() end
---@param dtype? 'f32'|'bf16'|'f64'
---@return number flops per second that the CPU reaches at best, measured for some 10 ms
function ul.peak_flops(dtype) end

-- ---- optimizers: in place, outside of the tape ----
---@class AdamwOptions
---@field lr? number 1e-3
---@field betas? number[] { 0.9, 0.999 }
---@field eps? number 1e-8
---@field weight_decay? number 0.01
---@field step? integer 1 for the first
---@field master? Tensor f32 copy of a bf16 parameter

---@param parameter Tensor
---@param grad Tensor
---@param m Tensor
---@param v Tensor
---@param options? AdamwOptions
function ul.adamw_(parameter, grad, m, v, options) end

---@class SgdOptions
---@field lr? number 1e-2
---@field momentum? number 0
---@field weight_decay? number 0
---@field nesterov? boolean false
---@field velocity? Tensor needed with momentum
---@field master? Tensor f32 copy of a bf16 parameter

---@param parameter Tensor
---@param grad Tensor
---@param options? SgdOptions
function ul.sgd_(parameter, grad, options) end
--- The norm of all tensors as one vector.
---@param list Tensor[]
---@return number
function ul.global_norm(list) end
--- Scales all so that their norm is at most max_norm; returns the norm before.
---@param list Tensor[]
---@param max_norm number
---@return number
function ul.clip_grad_norm_(list, max_norm) end

-- ---- ops: x:name(...) and F.name(x, ...) alike ----

---@class Ops
--- A view where that is possible, else a copy. One size may be -1.
---@field reshape fun(x: Tensor, ...: integer|integer[]): Tensor
--- All elements in one dim.
---@field flatten fun(x: Tensor): Tensor
--- The dims in another order.
---@field permute fun(x: Tensor, ...: integer|integer[]): Tensor
--- Two dims exchanged.
---@field transpose fun(x: Tensor, a: integer, b: integer): Tensor
--- A matrix, transposed.
---@field t fun(x: Tensor): Tensor
--- One position of a dim, which goes.
---@field select fun(x: Tensor, dim: integer, position: integer): Tensor
--- `length` positions of a dim.
---@field narrow fun(x: Tensor, dim: integer, start: integer, length: integer): Tensor
--- A new dim of size 1.
---@field unsqueeze fun(x: Tensor, dim: integer): Tensor
--- Without a dim of size 1, or without all of them.
---@field squeeze fun(x: Tensor, dim?: integer): Tensor
--- Parts of this size, or of these sizes, as several results (dim 1).
---@field split fun(x: Tensor, size: integer|integer[], dim?: integer): Tensor...
--- At most n parts of equal size but the last (dim 1).
---@field chunk fun(x: Tensor, n: integer, dim?: integer): Tensor...
---@field clone fun(x: Tensor): Tensor
--- index (i64, 0-based) has x's shape but in dim; so has the result.
---@field gather fun(x: Tensor, dim: integer, index: Tensor): Tensor
--- The positions of a dim that index [n] (i64, 0-based) names.
---@field index_select fun(x: Tensor, dim: integer, index: Tensor): Tensor
--- Two operands are broadcast as in NumPy and have equal dtypes; one may be a number.
---@field add fun(a: Operand, b: Operand): Tensor
---@field sub fun(a: Operand, b: Operand): Tensor
--- Elementwise.
---@field mul fun(a: Operand, b: Operand): Tensor
---@field div fun(a: Operand, b: Operand): Tensor
---@field pow fun(a: Operand, b: Operand): Tensor
---@field maximum fun(a: Operand, b: Operand): Tensor
---@field minimum fun(a: Operand, b: Operand): Tensor
--- Comparisons give 0 or 1 (u8).
---@field eq fun(a: Operand, b: Operand): Tensor
---@field ne fun(a: Operand, b: Operand): Tensor
---@field lt fun(a: Operand, b: Operand): Tensor
---@field le fun(a: Operand, b: Operand): Tensor
---@field gt fun(a: Operand, b: Operand): Tensor
---@field ge fun(a: Operand, b: Operand): Tensor
--- The value where the mask (u8) is not 0, else x.
---@field masked_fill fun(x: Tensor, mask: Tensor, value: number): Tensor
---@field neg fun(x: Tensor): Tensor
---@field abs fun(x: Tensor): Tensor
---@field exp fun(x: Tensor): Tensor
---@field log fun(x: Tensor): Tensor
---@field sqrt fun(x: Tensor): Tensor
--- 1 / sqrt(x)
---@field rsqrt fun(x: Tensor): Tensor
---@field sin fun(x: Tensor): Tensor
---@field cos fun(x: Tensor): Tensor
---@field tanh fun(x: Tensor): Tensor
---@field sigmoid fun(x: Tensor): Tensor
--- x sigmoid(x)
---@field silu fun(x: Tensor): Tensor
--- max(x, 0)
---@field relu fun(x: Tensor): Tensor
--- x x
---@field square fun(x: Tensor): Tensor
--- x Phi(x), or its tanh approximation.
---@field gelu fun(x: Tensor, options?: { approximate: 'none'|'tanh' }): Tensor
---@field clamp fun(x: Tensor, min?: number|{ min: number?, max: number? }, max?: number): Tensor
--- Integers: i64.
---@field sum fun(x: Tensor, dims?: Dims, options?: KeepOptions): Tensor
---@field mean fun(x: Tensor, dims?: Dims, options?: KeepOptions): Tensor
---@field logsumexp fun(x: Tensor, dims?: Dims, options?: KeepOptions): Tensor
--- With a dim also where they are: i64, 0-based, the first of equals.
---@field max fun(x: Tensor, dim?: integer, options?: KeepOptions): Tensor, Tensor?
---@field min fun(x: Tensor, dim?: integer, options?: KeepOptions): Tensor, Tensor?
--- 0-based; in x:flatten() where no dim is given.
---@field argmax fun(x: Tensor, dim?: integer, options?: KeepOptions): Tensor
---@field argmin fun(x: Tensor, dim?: integer, options?: KeepOptions): Tensor
--- Along the last dim, or the one given.
---@field softmax fun(x: Tensor, dim?: integer): Tensor
---@field log_softmax fun(x: Tensor, dim?: integer): Tensor
---@field cumsum fun(x: Tensor, dim?: integer): Tensor
--- Values and indices; stable.
---@field sort fun(x: Tensor, dim?: integer, options?: { descending: boolean? }): Tensor, Tensor
---@field topk fun(x: Tensor, k: integer, dim?: integer, o?: { largest: boolean? }): Tensor, Tensor
--- sqrt of the sum of squares.
---@field norm fun(x: Tensor): Tensor
--- [.., m, k] x [.., k, n]; batch dims broadcast.
---@field matmul fun(a: Tensor, b: Tensor): Tensor
--- x w^T + b; w [outputs, inputs].
---@field linear fun(x: Tensor, w: Tensor, b?: Tensor): Tensor
--- x w / sqrt(mean(x^2) + eps) over the last dim (eps 1e-5).
---@field rms_norm fun(x: Tensor, w?: Tensor, eps?: number): Tensor
--- (x - mean) / sqrt(var + eps) w + b over the last dim (eps 1e-5).
---@field layer_norm fun(x: Tensor, w?: Tensor, b?: Tensor, eps?: number): Tensor
--- q [B, Tq, H, D], k, v [B, Tk, Hkv, D]; o and, if asked for, lse [B, H, Tq].
---@field attention fun(q: Tensor, k: Tensor, v: Tensor, o?: AttentionOptions): Tensor, Tensor?
--- x / (1 - p), or 0 with probability p (0.5).
---@field dropout fun(x: Tensor, p?: number, options?: { training: boolean? }): Tensor

---@class AttentionOptions
---@field causal? boolean
---@field window? integer keys a query sees, itself among them; needs causal
---@field docs? Tensor|integer[] offsets over the flattened B T, from 0 to B T, row edges included
---@field scale? number 1 / sqrt(D)
---@field kv_head? Tensor|integer[] which kv head (0-based) each query head reads
---@field lse? boolean return the log of the sum of exponentials too

-- ---- methods only ----

--- Shares memory; one size may be -1. Refuses what strides cannot express.
---@param ... integer|integer[]
---@return Tensor
function Tensor:view(...) end
--- Repeats dims of size 1 without copying; -1 keeps a size.
---@param ... integer|integer[]
---@return Tensor
function Tensor:expand(...) end
--- Itself where its elements lie in order.
---@return Tensor
function Tensor:contiguous() end
--- Another dtype or device, or those of a tensor. To integers: towards zero.
---@param target Dtype|Device|Tensor|{ dtype: Dtype?, device: Device? }
---@param device? Device
---@return Tensor
function Tensor:to(target, device) end

-- In place: all return x, and are refused where the tape needs to know.

---@param y Operand
---@return Tensor
function Tensor:add_(y) end
---@param y Operand
---@return Tensor
function Tensor:sub_(y) end
---@param y Operand
---@return Tensor
function Tensor:mul_(y) end
---@param y Operand
---@return Tensor
function Tensor:div_(y) end
---@param value number
---@return Tensor
function Tensor:fill_(value) end
---@return Tensor
function Tensor:zero_() end
--- Broadcast and cast to x.
---@param source Tensor
---@return Tensor
function Tensor:copy_(source) end
--- Uniform in [low, high), [0, 1).
---@param low? number
---@param high? number
---@return Tensor
function Tensor:uniform_(low, high) end
--- Normal, of mean 0 and standard deviation 1.
---@param mean? number
---@param std? number
---@return Tensor
function Tensor:normal_(mean, std) end

-- ---- functions only ----

---@class F: Ops
local F = {}

--- Joined along a dim (1). Also ul.cat.
---@param list Tensor[]
---@param dim? integer
---@return Tensor
function F.cat(list, dim) end

--- Joined along a new dim (1). Also ul.stack.
---@param list Tensor[]
---@param dim? integer
---@return Tensor
function F.stack(list, dim) end

--- a where cond (u8) is not 0, else b. Also ul.where.
---@param cond Tensor
---@param a Operand
---@param b Operand
---@return Tensor
function F.where(cond, a, b) end

--- h = x + residual and y = rms_norm(h, w, eps).
---@param x Tensor
---@param residual Tensor
---@param w Tensor?
---@param eps? number
---@return Tensor y
---@return Tensor h
function F.add_rms_norm(x, residual, w, eps) end

--- silu(gate) up
---@param gate Tensor
---@param up Tensor
---@return Tensor
function F.swiglu(gate, up) end

--- Rows of w [V, C] by ids (i64, 0-based).
---@param ids Tensor
---@param w Tensor
---@return Tensor
function F.embedding(ids, w) end

---@class RopeTable
---@field cos Tensor
---@field sin Tensor

---@class RopeOptions
---@field theta? number 10000
---@field inv_freq? Tensor f64 [head_dim / 2], instead of theta
---@field scale? number of the table, 1
---@field dtype? Dtype of what it will turn (f32); bf16 is turned by an f32 table

--- For positions (i64, 0-based) [T] or [B, T].
---@param positions Tensor
---@param head_dim integer
---@param options? RopeOptions
---@return RopeTable
function F.rope_table(positions, head_dim, options) end

--- Half-split rotation of x [B, T, H, D].
---@param x Tensor
---@param table RopeTable
---@return Tensor
function F.rope(x, table) end

---@class LossOptions
---@field reduction? 'sum'|'mean'
---@field ignore_index? integer targets that do not count, -100
---@field tile? integer rows at once (linear_cross_entropy)

--- -log softmax(logits)[target], targets i64 and 0-based; reduction: mean.
---@param logits Tensor
---@param targets Tensor
---@param options? LossOptions
---@return Tensor
function F.cross_entropy(logits, targets, options) end

--- The same for logits = x w^T, which never exist as a whole; reduction: sum. Returns the number of
--- targets that count, too.
---@param x Tensor
---@param w Tensor
---@param targets Tensor
---@param options? LossOptions
---@return Tensor loss
---@return integer count
function F.linear_cross_entropy(x, w, targets, options) end

ul.F = F

return ul
