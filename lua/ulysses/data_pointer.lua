-- data_pointer.lua - t:data(): a typed pointer to a tensor's elements, for FFI loops and C kernels.
local ffi = require 'ffi'
local core = require 'ulysses.core'

local pointers = {
  f32 = ffi.typeof 'float *', bf16 = ffi.typeof 'uint16_t *', f64 = ffi.typeof 'double *',
  i32 = ffi.typeof 'int32_t *', i64 = ffi.typeof 'int64_t *', u8 = ffi.typeof 'uint8_t *',
}
local address = core.methods.data

--- The first element of a contiguous cpu tensor (0-based, bf16 as its bits). It is valid as long as
--- the tensor is.
---@return ffi.cdata*
function core.methods:data(...)
  local pointer, dtype = address(self, ...)
  return ffi.cast(pointers[dtype], pointer)
end
