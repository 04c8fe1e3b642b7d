-- floors.lua - the floor of each kernel, FLOPs or bytes, and the share of it that is expected: the
-- table of docs/gpu.md, which is made from it, and what the planner reckons with. The formulas are
-- those of kernels.def, by which the meta device counts.

local floors = {}

-- kind: the planner's line; share: of the floor, as a number; kernels: names in kernels.def. What
-- is in no list is elementwise or a reduction, and counts as copies do.
floors.rows = {
  { 'product [m, k] [k, n]', '2 m n k', 'E (m k + k n + m n)', '90 %',
    kind = 'products', share = 0.9, kernels = { 'gemm' } },
  { 'attention, forward', '4 D P B Hq', '4 D B S (Hq + Hkv) + 4 B Hq S',
    'cuDNN 85 %, ours about 45 %',
    kind = 'attention, forward', share = 0.85, kernels = { 'attention' } },
  { 'attention, backward', '10 D P B Hq (ours computes 14, above D = 128 16)',
    '8 D B S (Hq + Hkv) + 4 B Hq S', 'cuDNN 70 %, ours about 35 %',
    kind = 'attention, backward', share = 0.7, kernels = { 'attention_backward' } },
  { 'copy, cast', '', '2 E N, (E + E\') N', '85 %', kind = 'copies, casts', share = 0.85 },
  { 'add of two', '', '3 E N', '85 %', kind = 'copies, casts', share = 0.85,
    kernels = { 'add', 'accumulate' } },
  { 'residual + RMSNorm', '', '4 E N, back 4 E N and a sum for each block', '85 %',
    kind = 'rows', share = 0.85,
    kernels = { 'rms_norm', 'rms_norm_backward', 'layer_norm', 'layer_norm_backward' } },
  { 'RoPE', '', '2 E N', '85 %', kind = 'rows', share = 0.85, kernels = { 'rope', 'rope_table' } },
  { 'SwiGLU', '', '3 E N, back 5 E N', '85 %', kind = 'rows', share = 0.85,
    kernels = { 'swiglu', 'swiglu_backward' } },
  { 'embedding', '', '2 E N, back (E + 4) N and a sort', '85 %', kind = 'rows', share = 0.85,
    kernels = { 'index_select', 'index_select_backward' } },
  { 'softmax', '', '2 E N, back 3 E N', '85 %', kind = 'rows', share = 0.85,
    kernels = { 'softmax', 'softmax_backward', 'log_softmax', 'log_softmax_backward' } },
  { 'cross-entropy', '', 'E N, back 2 E N; of a tile of the fused head (4 + E) N', '85 %',
    kind = 'cross-entropy', share = 0.85,
    kernels = { 'cross_entropy', 'cross_entropy_backward', 'cross_entropy_tile' } },
  { 'norm of gradients', '', '4 N', '85 %', kind = 'optimizer', share = 0.85,
    kernels = { 'sum_squares' } },
  { 'AdamW', '', '28 N in f32, 30 N in bf16 with f32 master', '85 %', kind = 'optimizer',
    share = 0.85, kernels = { 'adamw', 'sgd' } },
  { 'exchange', '', 'what a rank sends, at the rate of the link one way', '80 %',
    kind = 'exchange', share = 0.8, kernels = {} },
}

--- The planner's lines, in order.
floors.kinds = { 'products', 'attention, forward', 'attention, backward', 'rows', 'cross-entropy',
                 'copies, casts', 'optimizer', 'exchange' }

local by_kernel, others, exchange = {}, nil, nil
for _, row in ipairs(floors.rows) do
  for _, name in ipairs(row.kernels or {}) do by_kernel[name] = row end
  if not row.kernels then others = row end
  if row.kind == 'exchange' then exchange = row end
end

--- The row of a kernel of kernels.def.
---@param name string
---@return table
function floors.of(name) return by_kernel[name] or others end

--- The row of what goes over the wire.
---@return table
function floors.of_exchange() return exchange end

--- The table of docs/gpu.md.
---@return string
function floors.markdown()
  local lines = { '| kernel | FLOPs | bytes | expected share |', '|---|---|---|---|' }
  for _, row in ipairs(floors.rows) do
    local cells = '| ' .. table.concat(row, ' | ') .. ' |'
    lines[#lines + 1] = cells:gsub('|  |', '| |')
  end
  return table.concat(lines, '\n') .. '\n'
end

return floors
