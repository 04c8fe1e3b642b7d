-- gpus.lua - what is published of GPUs: memory, rates, links.
local gpus = {}

-- NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM and DGX/HGX B200; flops are dense,
-- NVLink's one way, half of what is printed. network: of one GPU, by the adapters of DGX A100
-- (8 x 200 Gb/s), DGX H100, H200 and B200 (8 x 400 Gb/s). f32 is without tensor cores. driver: how
-- the driver names those that have these FLOPs; cards with PCIe have fewer, but for the A100.
gpus.published = {
  a100 = { name = 'A100 SXM', memory = 80e9, bandwidth = 2.039e12, link = 300e9, network = 25e9,
           bf16 = 312e12, f32 = 19.5e12, f64 = 19.5e12, driver = '%f[%w]A100%f[%W]' },
  h100 = { name = 'H100 SXM', memory = 80e9, bandwidth = 3.35e12, link = 450e9, network = 50e9,
           bf16 = 989e12, f32 = 67e12, f64 = 67e12, driver = '%f[%w]H100 80GB HBM3$' },
  h200 = { name = 'H200 SXM', memory = 141e9, bandwidth = 4.8e12, link = 450e9, network = 50e9,
           bf16 = 989e12, f32 = 67e12, f64 = 67e12, driver = '%f[%w]H200$' },
  b200 = { name = 'B200', memory = 180e9, bandwidth = 8e12, link = 900e9, network = 50e9,
           bf16 = 2250e12, f32 = 75e12, f64 = 37e12, driver = '%f[%w]B200$' },
}

--- FLOP/s that are published of a GPU; nil where it is none of these.
---@param name string as its driver gives it: 'NVIDIA H200'
---@param dtype string
---@param tf32 boolean whether products of f32 may use it: half the rate of bf16 on all of these
---@return number?
function gpus.peak(name, dtype, tf32)
  for _, it in pairs(gpus.published) do
    if name:find(it.driver) then
      return tf32 and dtype == 'f32' and it.bf16 / 2 or it[dtype] or it.f32
    end
  end
end

return gpus
