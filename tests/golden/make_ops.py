"""make_ops.py - what PyTorch computes for each op, in f64: values and gradients, written to ops.lua.

Inputs are formulas, so that no data need be kept: element i of an input is
offset + scale * sin(0.37 * i + k), the seed of backward sin(0.91 * i + 5). The file names the inputs of each
case; tests/spec/golden_spec.lua makes them, calls our op and compares.

    python3 -m venv venv && venv/bin/pip install -r tests/golden/requirements.txt
    venv/bin/python tests/golden/make_ops.py > tests/golden/ops.lua
"""

import math

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
cases = []


def x(*shape, k=0.0, scale=1.0, offset=0.0, grad=True):
    return {"shape": list(shape), "k": k, "scale": scale, "offset": offset, "grad": grad}


def ids(values, *shape):
    return {"shape": list(shape), "ids": values}


def make(spec):
    if "ids" in spec:
        return torch.tensor(spec["ids"], dtype=torch.int64).reshape(spec["shape"])
    n = math.prod(spec["shape"])
    i = torch.arange(n, dtype=torch.float64)
    t = (spec["offset"] + spec["scale"] * torch.sin(0.37 * i + spec["k"])).reshape(spec["shape"])
    return t.requires_grad_(spec["grad"])


def case(name, inputs, f):
    """f gets the inputs as tensors and returns one tensor or a tuple; gradients flow from float results."""
    tensors = [make(s) for s in inputs]
    out = f(*tensors)
    out = out if isinstance(out, tuple) else (out,)
    loss = sum(
        (o * torch.sin(0.91 * torch.arange(o.numel()) + 5).reshape(o.shape)).sum() for o in out if o.requires_grad
    )
    if isinstance(loss, torch.Tensor):
        loss.backward()
    cases.append((name, inputs, [o.detach() for o in out], [t.grad for t in tensors]))


def elementwise():
    a, b, row, positive = x(3, 5), x(3, 5, k=2), x(5, k=4), x(3, 5, offset=2)
    case("add", [a, row], torch.add)
    case("sub", [x(3, 1, k=1), row], torch.sub)
    case("mul", [a, row], torch.mul)
    case("div", [a, x(5, k=4, offset=2)], torch.div)
    case("pow", [positive, row], torch.pow)
    case("maximum", [a, b], torch.maximum)
    case("minimum", [a, row], torch.minimum)
    case("swiglu", [a, b], lambda g, u: F.silu(g) * u)
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        case(name, [x(3, 5, grad=False), x(3, 5, k=0.1, grad=False)], getattr(torch, name))
    case("where", [ids([1, 0, 1, 1, 0], 5), a, row], lambda c, p, q: torch.where(c.bool(), p, q))
    for name in ["neg", "abs", "exp", "sin", "cos", "tanh", "sigmoid", "relu"]:
        case(name, [x(3, 5, k=0.2, scale=3)], getattr(torch, name))
    for name in ["log", "sqrt", "rsqrt"]:
        case(name, [positive], getattr(torch, name))
    case("silu", [x(3, 5, scale=4)], F.silu)
    case("gelu", [x(3, 5, scale=4)], F.gelu)
    case("gelu_tanh", [x(3, 5, scale=4)], lambda t: F.gelu(t, approximate="tanh"))
    case("clamp", [x(3, 5, k=0.2)], lambda t: t.clamp(-0.5, 0.25))
    case("square", [a], torch.square)
    case("masked_fill", [a, ids([1, 0, 1, 1, 0], 5)], lambda t, m: t.masked_fill(m.bool(), -2))
    case("scalars", [positive], lambda t: 3 - 2 * t / 4 + 1 / t + t**2 + 0.5**t)


def in_place():
    a, row = x(3, 5, grad=False), x(5, k=4, offset=2, grad=False)
    for name in ["add_", "sub_", "mul_", "div_", "copy_"]:
        case(name, [a, row], lambda t, r: getattr(t.clone(), name)(r))
    case("fill_", [a], lambda t: t.clone().fill_(1.5))
    case("zero_", [a], lambda t: t.clone().zero_())


def reductions():
    a = x(3, 4, 5, k=0.3)
    case("sum", [a], lambda t: t.sum())
    case("sum_dims", [a], lambda t: t.sum((0, 2)))
    case("mean", [a], lambda t: t.mean(1))
    case("var", [a], lambda t: t.var(1))
    case("var_biased", [a], lambda t: t.var((0, 2), unbiased=False))
    case("std", [a], lambda t: t.std())
    case("std_dims", [a], lambda t: t.std((0, 2), keepdim=True))
    case("max", [a], lambda t: t.max(1).values)
    case("min", [a], lambda t: t.min())
    case("argmax", [x(3, 4, 5, k=0.3, grad=False)], lambda t: t.argmax(2))
    case("argmin", [x(3, 4, 5, k=0.3, grad=False)], lambda t: t.argmin(1))
    case("min_dim", [a], lambda t: tuple(t.min(2)))
    case("norm", [a], lambda t: t.norm())
    case("logsumexp_dims", [a], lambda t: t.logsumexp((0, 2)))
    case("logsumexp", [x(3, 4, 5, scale=20)], lambda t: t.logsumexp(2))
    case("softmax", [x(3, 4, 5, scale=5)], lambda t: t.softmax(1))
    case("log_softmax", [x(3, 4, 5, scale=5)], lambda t: t.log_softmax(2))
    case("cumsum", [a], lambda t: t.cumsum(1))
    case("sort", [a], lambda t: tuple(t.sort(dim=2, descending=True, stable=True)))
    case("topk", [a], lambda t: tuple(t.topk(3, 2)))


def shapes():
    a = x(3, 4, 5)
    case("reshape", [a], lambda t: t.permute(2, 0, 1).reshape(5, 12))
    case("view", [a], lambda t: t.view(12, 5) * t.view(12, 5))
    case("permute", [a], lambda t: t.permute(2, 0, 1) * 2)
    case("transpose", [a], lambda t: t.transpose(0, 2) * 2)
    case("select", [a], lambda t: t.select(1, 2) * 3)
    case("slice", [a], lambda t: t[:, 1:4:2, 2:] * 3)
    case("expand", [x(3, 1, 5)], lambda t: t.expand(2, 3, 4, 5) * 1.5)
    case("unsqueeze", [a], lambda t: t.unsqueeze(1) * 2)
    case("squeeze", [x(3, 1, 5)], lambda t: t.squeeze(1) * 2)
    case("cat", [x(2, 3), x(2, 1, k=1), x(2, 4, k=2)], lambda *t: torch.cat(t, 1))
    case("gather", [a, ids([0, 3, 1, 1, 2, 0] * 5, 3, 2, 5)], lambda t, i: t.gather(1, i))
    case("index_select", [a, ids([2, 0, 0, 1], 4)], lambda t, i: t.index_select(0, i))
    case("clone", [a], lambda t: t.clone() * 2)
    case("contiguous", [a], lambda t: t.transpose(0, 1).contiguous() * 2)
    case("cast", [a], lambda t: t.to(torch.float32).to(torch.float64))
    ints = [torch.int32, torch.int64]
    case("to_integers", [x(3, 5, scale=3, grad=False)], lambda t: tuple(t.to(dtype) for dtype in ints))
    case("flatten", [a], lambda t: t.flatten() * 2)
    case("t", [x(3, 5)], lambda t: t.t() * 2)
    case("narrow", [a], lambda t: t.narrow(2, 1, 3) * 2)
    case("split", [a], lambda t: tuple(s * 2 for s in t.split([3, 2], 2)))
    case("chunk", [a], lambda t: tuple(s * 2 for s in t.chunk(2, 2)))
    case("stack", [x(2, 3), x(2, 3, k=1)], lambda *t: torch.stack(t, 1))
    case("detach", [x(3, 5, grad=False)], lambda t: t.detach())
    case("dropout_off", [x(3, 5)], lambda t: F.dropout(t, 0.5, training=False) * 2)
    like = [x(2, 3, grad=False)]
    for name in ["zeros", "ones"]:
        case(name, like, getattr(torch, name + "_like"))
        case(name + "_like", like, getattr(torch, name + "_like"))
    case("full", like, lambda t: torch.full_like(t, 2.5))
    case("arange", like, lambda t: (torch.arange(1, 2, 0.3), torch.arange(5)))
    case("tensor", like, lambda t: torch.tensor([[1, 2.5], [-3, 0]]))


def layers():
    case("matmul", [x(3, 4), x(4, 5, k=1)], torch.matmul)
    case("matmul_batch", [x(2, 1, 3, 4), x(3, 4, 5, k=1)], torch.matmul)
    case("matmul_transposed", [x(2, 4, 3), x(2, 5, 4, k=1)], lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2))
    case("matmul_vector", [x(2, 3, 4), x(4, k=1)], torch.matmul)
    case("linear", [x(2, 3, 4), x(5, 4, k=1), x(5, k=2)], F.linear)
    case("rms_norm", [x(2, 3, 8), x(8, k=1, offset=1)], lambda t, w: F.rms_norm(t, (8,), w, 1e-5))

    def add_rms_norm(t, residual, w):
        h = t + residual
        return F.rms_norm(h, (8,), w, 1e-5), h

    case("add_rms_norm", [x(2, 3, 8), x(2, 3, 8, k=3), x(8, k=1, offset=1)], add_rms_norm)
    case("layer_norm", [x(2, 3, 8), x(8, k=1, offset=1), x(8, k=2)], lambda t, w, b: F.layer_norm(t, (8,), w, b, 1e-5))

    def rope(t, positions):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        inv = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        angle = torch.cat([positions[..., None] * inv] * 2, -1)[None]
        return apply_rotary_pos_emb(t, t, angle.cos(), angle.sin(), unsqueeze_dim=2)[0]

    case("rope", [x(2, 3, 2, 8), ids([0, 7, 131071], 3)], rope)
    rows = [x(2, 3, 2, 8), ids([0, 1, 2, 5, 6, 131071], 2, 3)]
    case("rope_rows", rows, lambda t, p: torch.cat([rope(t[i : i + 1], p[i]) for i in range(2)]))

    def rope_table(positions):
        angle = positions[:, None] * 500000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        return angle.cos() * 0.5, angle.sin() * 0.5

    case("rope_table", [ids([0, 7, 131071], 3)], rope_table)
    case("embedding", [ids([2, 0, 2, 5, 1, 1], 2, 3), x(6, 4)], F.embedding)


def visible(tq, tk, causal=False, window=0, docs=None):
    """[Tq, Tk] of one row: who sees whom."""
    i = torch.arange(tq)[:, None] + (tk - tq)
    j = torch.arange(tk)[None, :]
    mask = torch.ones(tq, tk, dtype=torch.bool)
    if causal:
        mask &= j <= i
    if window:
        mask &= j > i - window
    if docs:
        doc = torch.zeros(tk, dtype=torch.int64)
        for start in docs[1:-1]:
            doc[start:] += 1
        mask &= doc[i] == doc[j]
    return mask


def attention(name, tq, tk, heads, kv_heads, dim, batch=1, scale=None, **masks):
    def f(q, k, v):
        group = heads // kv_heads
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        mask = visible(tq, tk, **masks)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)

    inputs = [
        x(batch, tq, heads, dim, scale=2),
        x(batch, tk, kv_heads, dim, k=1, scale=2),
        x(batch, tk, kv_heads, dim, k=2),
    ]
    case(name, inputs, f)


def attention_lse():
    def f(q, k):
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 2
        return scores.masked_fill(~visible(5, 5, causal=True), -math.inf).logsumexp(-1)

    case("attention_lse", [x(2, 5, 2, 4, grad=False), x(2, 5, 2, 4, k=1, grad=False)], f)


def attention_map():
    def f(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t[:, [1, 0, 1]] for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    case("attention_map", [x(1, 4, 3, 4, scale=2), x(1, 4, 2, 4, k=1, scale=2), x(1, 4, 2, 4, k=2)], f)


def losses():
    logits, targets = x(2, 3, 7, scale=3), ids([1, 6, -100, 0, 3, 2], 2, 3)

    def cross_entropy(reduction):
        return lambda t, y: F.cross_entropy(t.reshape(-1, 7), y.reshape(-1), reduction=reduction)

    case("cross_entropy", [logits, targets], cross_entropy("mean"))
    case("cross_entropy_sum", [logits, targets], cross_entropy("sum"))
    case(
        "linear_cross_entropy",
        [x(2, 3, 4), x(7, 4, k=1, scale=2), targets],
        lambda t, w, y: F.cross_entropy((t @ w.T).reshape(-1, 7), y.reshape(-1), reduction="sum"),
    )
    case(
        "linear_cross_entropy_mean",
        [x(2, 3, 4), x(7, 4, k=1, scale=2), ids([1, 6, 3, 0, 3, 2], 2, 3)],
        lambda t, w, y: F.cross_entropy((t @ w.T).reshape(-1, 7), y.reshape(-1), ignore_index=3),
    )


def optimizers():
    def run(make_optimizer):
        def f(p, g):
            p = p.detach().clone().requires_grad_()
            optimizer = make_optimizer([p])
            for step in range(5):
                p.grad = g.detach() * (step + 1)
                optimizer.step()
            return p.detach()

        return f

    inputs = [x(3, 5, grad=False), x(3, 5, k=1, grad=False)]
    case("adamw", inputs, run(lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.95), 1e-8, 0.1)))
    case("sgd", inputs, run(lambda p: torch.optim.SGD(p, 0.01)))
    case("sgd_momentum", inputs, run(lambda p: torch.optim.SGD(p, 0.01, 0.9, weight_decay=0.1, nesterov=True)))

    def clip(a, b):
        a, b = a.detach().clone(), b.detach().clone()
        p, q = torch.zeros_like(a, requires_grad=True), torch.zeros_like(b, requires_grad=True)
        p.grad, q.grad = a, b
        norm = torch.nn.utils.clip_grad_norm_([p, q], 0.5)
        return norm.reshape(()), p.grad, q.grad

    case("clip_grad_norm", inputs, clip)
    case("global_norm", inputs, lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]).norm())


def lua(value):
    if isinstance(value, torch.Tensor):
        values = value.to(torch.float64).reshape(-1).tolist()
        return "{ shape = %s, %s}" % (lua(list(value.shape)), "".join("%.13g, " % v for v in values))
    if isinstance(value, dict):
        return "{ " + ", ".join("%s = %s" % (key, lua(v)) for key, v in value.items()) + " }"
    if isinstance(value, list):
        return "{ " + ", ".join(lua(v) for v in value) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "false" if value is None else "%.13g" % value


def main():
    elementwise()
    in_place()
    reductions()
    shapes()
    layers()
    attention("attention", 5, 5, 4, 2, 8, batch=2)
    attention("attention_causal", 6, 6, 4, 1, 8, causal=True)
    attention("attention_window", 7, 7, 2, 2, 4, causal=True, window=3)
    attention("attention_docs", 7, 7, 4, 2, 4, causal=True, docs=[0, 2, 5, 7])
    attention("attention_cache", 2, 6, 2, 1, 4, causal=True, scale=0.3)
    attention_lse()
    attention_map()
    losses()
    optimizers()
    print("-- ops.lua - made by make_ops.py with PyTorch %s: do not edit" % torch.__version__.split("+")[0])
    print("return {")
    for name, inputs, outputs, grads in cases:
        print("  { name = '%s'," % name)
        print("    inputs = %s," % lua(inputs))
        print("    outputs = %s," % lua(outputs))
        print("    grads = %s }," % lua(grads))
    print("}")


main()
