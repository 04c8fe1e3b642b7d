-- engine.lua - scopes, gradients, random numbers, memory and the machine.
---@meta ulysses

---@class ulysses
---@field F F all ops as functions: F.matmul(a, b) is a:matmul(b)
local ul = {}

-- ---- scopes ----

--- Calls f(...). What is made meanwhile is freed at its end unless it is returned, saved for
--- backward or kept with x:keep().
--- ```lua
--- local total = ul.scope(function()
---   local x = ul.randn(100, 100)
---   return x:square():sum()
--- end)
--- total:dim()    --> 0
--- ```
---@generic T
---@param f fun(...: any): T
---@param ... any
---@return T ...
function ul.scope(f, ...) end

--- A scope that errors call by this name.
---@param name string
---@param f function
---@param ... any
---@return any ...
function ul.scoped(name, f, ...) end

--- Begins a scope that scope_end() ends, for iterators.
---@param name string
---@return userdata scope
function ul.scope_begin(name) end

--- Frees what was made since scope_begin(), but for the other arguments, which are returned.
---@param scope userdata
---@param ... any
---@return any ...
function ul.scope_end(scope, ...) end

-- ---- gradients ----

--- x:backward() from several results at once.
---@param results Tensor[]
---@param seeds (Tensor|false)[] false: no gradient from there
---@param options? RetainOptions
function ul.backward(results, seeds, options) end

--- f(...) without recording: no gradients, and nothing saved for them.
---@param f function
---@param ... any
---@return any ...
function ul.no_grad(f, ...) end

--- f(...) with recording, also inside of no_grad.
---@param f function
---@param ... any
---@return any ...
function ul.enable_grad(f, ...) end

--- Whether ops are recorded.
---@return boolean
function ul.is_grad_enabled() end

--- A function with a gradient of its own. `forward` runs without gradients, in a scope. Tensors
--- that it stores in the context are held until backward has passed. Neither function may yield.
--- ```lua
--- local double = ul.fn {
---   forward = function(_, x) return x * 2 end,
---   backward = function(_, dy) return dy * 2 end,
--- }
--- local x = ul.tensor({ 1, 2 }):requires_grad_()
--- double(x):sum():backward()
--- x.grad    --> [2, 2]
--- ```
---@param definition Function
---@return function
function ul.fn(definition) end

---@class Function
---@field forward fun(context: table, ...: any): any what it computes
---@field backward fun(context: table, ...: Tensor?): Tensor?... gets a gradient (or
---nil) for each tensor that forward returned; returns one (or nil) for each argument
---@field name? string for errors
---@field captures? boolean forward uses tensors that require grad without being given them

-- ---- random numbers ----

--- Sets the seed of all that is drawn from now on.
---@param seed integer
function ul.manual_seed(seed) end

--- Where the generator stands. Either is a string where it has no exact number.
---@return integer|string seed
---@return integer|string next
function ul.random_state() end

--- Puts the generator where random_state() said it was.
---@param seed integer|string
---@param next integer|string
function ul.set_random_state(seed, next) end

-- ---- the machine ----

--- Where tensors are made unless a call says otherwise: the cpu, or what UL_DEVICE or the program's
--- --device named.
---@return Device
function ul.default_device() end

--- Sets where tensors are made unless a call says otherwise.
---@param device Device
function ul.set_default_device(device) end

--- Whether products of f32 on cuda may round what they multiply to tf32, 10 bits after the point
--- instead of 23: tensor cores make them then, and sums stay f32. Sets that first, if a value is
--- given; it begins as false. bf16, f64 and the cpu know no such rounding.
---@param allowed? boolean
---@return boolean
function ul.tf32(allowed) end

--- What tensors use of a device's memory, or of each device's by name.
---@param device? Device
---@return Memory|table<Device, Memory>
function ul.memory(device) end

---@class Memory
---@field live integer bytes in use by tensors
---@field peak integer the most that live has been since reset_peak_memory()
---@field reserved integer bytes held from the system, or on cuda from the driver: used or not
---@field cached integer bytes held and not in use
---@field system_allocations integer how often the system was asked
---@field live_tensors integer how many there are
---@field scratch integer bytes that kernels keep beside tensors, at most
---@field off_device integer bytes kept off it: in pinned memory of the host, or the cpu's in a file
---@field off_device_peak integer the most of that since reset_peak_memory()
---@field off_device_reserved integer bytes of pinned memory, or of the file, used or not

--- Begins the count of `peak` anew.
function ul.reset_peak_memory() end

--- Lets tensors use at most so much memory.
---@param device Device
---@param bytes integer 0: as many as the machine has
function ul.set_memory_limit(device, bytes) end

--- Gives cached memory back to the system, by pages of 2 MiB, or on cuda by segments (at most 1 GiB
--- but for larger tensors), that no tensor lies on.
function ul.trim_memory() end

--- What the meta device has counted.
---@return number flops
---@return number bytes
function ul.meta_counts() end

--- What the meta device has counted of each kernel, in the order of kernels.def; those alone that
--- were called.
---@return { name: string, dtype: Dtype, calls: number, flops: number, bytes: number }[]
function ul.meta_kernels() end

--- Begins the counts of the meta device anew.
function ul.reset_meta_counts() end

--- How many threads kernels use. Sets that first, if a number is given.
---@param n? integer
---@return integer
function ul.threads(n) end

--- The instruction set level that kernels use. Sets it first, if one is given.
---@param name? 'base'|'avx2'|'avx512'|'avx512bf16'
---@return string
function ul.isa(name) end

--- Who computes attention of bf16 tensors on cuda. Sets that first, if a name is given. It begins
--- as 'auto': cuDNN where that is there, takes the shape, has rows of 1024 tokens or more, and
--- gives the same bits in each run; else our own kernels, and ul.attention_report() says why.
--- 'cudnn': an error where cuDNN does not take a shape. 'native': always our own kernels.
--- ```lua
--- ul.attention_backend 'cudnn'
--- ```
---@param name? 'auto'|'cudnn'|'native'
---@return string
function ul.attention_backend(name) end

--- Whether the same call gives the same bits in each run. Sets that first, if a value is given. It
--- begins as true; false lets sums come in any order where that is faster: the gradients of
--- attention on cuda, by cuDNN.
---@param yes? boolean
---@return boolean
function ul.deterministic(yes) end

--- Who has computed how many calls of attention of bf16 on cuda so far, and why cuDNN has not.
---@return string lines
function ul.attention_report() end

--- FLOPs of all products and attention so far; on meta those that would have run.
---@return number
function ul.flops() end

--- What its driver calls the GPU of this process; nil before anything has been made on cuda.
---@return string? name 'NVIDIA H200'
---@return string? uuid in hexadecimal
function ul.gpu() end

--- FLOPs per second that the CPU reaches at best, measured for some 10 ms.
---@param dtype? 'f32'|'bf16'|'f64'
---@return number
function ul.peak_flops(dtype) end

-- ---- steps of optimizers ----

--- One step of AdamW, in place and outside of the tape. ul.optim.adamw does this for a model.
---@param parameter Tensor
---@param grad Tensor
---@param m Tensor mean of gradients, zero at first
---@param v Tensor mean of their squares, zero at first
---@param options? AdamwOptions
function ul.adamw_(parameter, grad, m, v, options) end

---@class AdamwOptions
---@field lr? number 1e-3
---@field betas? number[] { 0.9, 0.999 }
---@field eps? number 1e-8
---@field weight_decay? number 0.01
---@field step? integer 1 for the first
---@field master? Tensor f32 copy of a bf16 parameter

--- One step of gradient descent, in place and outside of the tape.
---@param parameter Tensor
---@param grad Tensor
---@param options? SgdOptions
function ul.sgd_(parameter, grad, options) end

---@class SgdOptions
---@field lr? number 1e-2
---@field momentum? number 0
---@field weight_decay? number 0
---@field nesterov? boolean false
---@field velocity? Tensor needed with momentum
---@field master? Tensor f32 copy of a bf16 parameter

--- The norm of all tensors as one vector.
---@param list Tensor[]
---@return number
function ul.global_norm(list) end

--- Scales all tensors so that their norm as one vector is at most max_norm.
---@param list Tensor[]
---@param max_norm number
---@return number norm before that
function ul.clip_grad_norm_(list, max_norm) end
