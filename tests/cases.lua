-- cases.lua - every op once or more, as calls: what the proofs of the ops (docs/ops.md) run over.
--
-- A case is { name, op, call = function(...), inputs, ... }:
--   inputs   specifications of the arguments of call; without them those of the case of this name
--            in tests/golden/ops.lua, with which the results are then compared
--   large    the same arguments in other shapes: odd, and enough for several threads
--   empty    the same with no elements
--   without  { proof = key of a note }: proofs that this case cannot give, and why
--   loose    how much wider than usual f32 and bf16 may miss
--   strided  false: call is not for views
-- A specification is { shape = {...}, k, scale, offset }, element i being
-- offset + scale sin(0.37 i + k), or { shape = {...}, ids = {...} }, or { shape, below = n } for
-- ids below n. In large and empty the shape is the list itself and other fields replace the case's.
local ul = require 'ulysses'
local golden = require 'tests.golden.ops'

local cases = { list = {}, golden = {} }
for _, values in ipairs(golden) do cases.golden[values.name] = values end

cases.notes = {
  integers = 'Results are integers or truths: they have no gradient, and are compared exactly.',
  in_place = 'Changes data outside of the tape; a tensor that requires grad is refused.',
  random = 'Draws numbers of our own generator (Philox), whose stream and moments '
    .. '`tests/unit/random_test.c` checks; other dtypes draw other bits.',
  constant = 'Does not depend on a float input that gradients could flow to.',
  table = 'Angles are f64 whatever the dtype of x, and no float goes in.',
  unset = 'Nothing is set that could be compared.',
  numbers = 'Returns a number, not a tensor.',
  detached = 'Cuts the history off; that no gradient passes is part of the check.',
  kink = 'Two equal numbers: there is no derivative.',
  rounded = 'Goes through f32, which finite differences of f64 see as steps; its gradient is '
    .. 'compared with that of PyTorch.',
  many = 'Too many elements for finite differences; smaller cases of the op have them.',
}

-- Ops without a line of their own in the benchmark: why, and which.
cases.unmeasured = {
  { 'Makes a view: no data moves.',
    'view permute transpose select index expand unsqueeze squeeze flatten t narrow split chunk '
      .. 'detach' },
  { 'Copies with the kernels of `contiguous` and `cat`.', 'copy_ reshape stack' },
  { 'Runs the loop of `add_` with another operation.', 'sub_ mul_ div_' },
  { 'Is `where` with a number.', 'masked_fill' },
  { 'Is `mul` with the same tensor twice.', 'square' },
  { 'Is made of `mean`, `sub`, `square` and `sum`.', 'var std' },
  { 'Allocates, and fills with the kernels of `fill_`, `uniform_` and `normal_`.',
    'zero_ zeros zeros_like ones ones_like full empty empty_like rand randn randint rand_like '
      .. 'randn_like' },
  { 'Made once, outside of loops.', 'arange tensor' },
}

-- What core offers that is not an op, and so stands in no case.
local not_ops = [[
  backward data device dim dtype free is_contiguous item keep numel requires_grad_ retain_grad size
  stride tolist is_tensor is_alive swap scope scope_begin scope_end scoped no_grad enable_grad
  is_grad_enabled fn manual_seed random_state set_random_state memory reset_peak_memory
  set_memory_limit trim_memory meta_counts meta_kernels reset_meta_counts threads isa
  debug_allocations
  debug_fail_allocation library json_decode json_quote file_write file_sum file_rename file_point
  path_exchange folder_make folder_sync folder_list path_remove disk_free hash debug_fail_write
  debug_writes safetensors_open safetensors_save tokenizer_load default_device set_default_device
  flops gpu peak_flops backward_passes group group_log attention_backend deterministic
  attention_report tokenizer_trainer tf32 planning launched_rank
]]
cases.not_ops = {}
for name in not_ops:gmatch '%S+' do cases.not_ops[name] = true end

-- ---- tensors of specifications ----

-- A specification in another shape, with other fields where `change` has some.
local function reshaped(spec, change)
  local new = { shape = {} }
  for key, value in pairs(spec) do
    if key ~= 'shape' and key ~= 'ids' then new[key] = value end
  end
  for key, value in pairs(change) do
    if type(key) == 'number' then new.shape[key] = value else new[key] = value end
  end
  if spec.ids and not new.below then new.ids = spec.ids end
  return new
end

local function resized(inputs, changes)
  local new = {}
  for i, change in ipairs(changes) do new[i] = reshaped(inputs[i] or {}, change) end
  return new
end

--- Whether gradients flow to an input.
function cases.is_float(spec) return not (spec.ids or spec.below) end

-- Notes of cases that have gradients, though finite differences cannot show them.
local not_shown = { kink = true, many = true, rounded = true }

--- Whether a case has gradients.
function cases.is_differentiable(case)
  local note = case.without.gradcheck
  return not note or not_shown[note] or false
end

--- The tensor of a specification: f64, or i64 for ids; contiguous, on the default device.
function cases.make(spec)
  local float = cases.is_float(spec)
  local t = ul.empty(spec.shape, { dtype = float and 'f64' or 'i64', device = 'cpu' })
  local data, k = t:data(), spec.k or 0
  local scale, offset = spec.scale or 1, spec.offset or 0
  for i = 0, t:numel() - 1 do
    if float then
      data[i] = offset + scale * math.sin(0.37 * i + k)
    else
      data[i] = spec.ids and spec.ids[i + 1] or (i * 7 + math.floor(i / 5)) % spec.below
    end
  end
  return t:to(ul.default_device())
end

--- The same values in storage that is not contiguous: the first and the last dim swapped, or every
--- second element.
function cases.strided(t)
  local n = t:dim()
  if n == 0 then return t end
  if n == 1 then return ul.stack({ t, t }, 2):select(2, 1) end
  return t:transpose(1, n):contiguous():transpose(1, n)
end

--- The seed of backward for an output: element i is offset + sin(0.91 i + 5).
function cases.seed(y, offset)
  local seed = ul.empty(y.shape, { dtype = 'f64', device = 'cpu' })
  local data = seed:data()
  for i = 0, seed:numel() - 1 do data[i] = (offset or 0) + math.sin(0.91 * i + 5) end
  return seed:to(y:device())
end

--- A list of what a call returns: tensors as they are, numbers as tensors of f64.
function cases.results(...)
  local list = {}
  for i = 1, select('#', ...) do
    local y = select(i, ...)
    if type(y) == 'number' then y = ul.tensor(y, { dtype = 'f64' }) end
    list[i] = y
  end
  return list
end

-- ---- the list ----

for _, part in ipairs { 'elementwise', 'reduce', 'views', 'layers', 'attention', 'create' } do
  for _, case in ipairs(require('tests.cases.' .. part)) do
    local values = cases.golden[case.name]
    case.golden = not case.inputs and values or nil
    case.op = case.op or case.name
    case.inputs = case.inputs or assert(values, case.name).inputs
    case.large = case.large and resized(case.inputs, case.large)
    case.empty = case.empty and resized(case.inputs, case.empty)
    case.without = case.without or {}
    for _, note in pairs(case.without) do assert(cases.notes[note], note) end
    cases.list[#cases.list + 1] = case
  end
end

return cases
