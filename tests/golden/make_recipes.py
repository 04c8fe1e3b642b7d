"""make_recipes.py - what transformers computes for tiny models of the recipes: logits, gradients, training.

    python -m venv venv && venv/bin/pip install -r tests/golden/requirements.txt
    venv/bin/python tests/golden/make_recipes.py      # writes tests/golden/recipes.lua

Weights and tokens are formulas, so that both sides compute them and no file is shared. The k-th
parameter (from 1, in the order of the recipe's model) has element i (from 0)
0.15 sin(0.013 i^2 + 0.37 i + k), a norm's weight 1 more than that.

All is computed in f64, angles, norms and softmax too, so that one truth serves f32, bf16 and f64. As it is
used, in f32, transformers must agree with that; so must its own mask of the window with an explicit one. Of
a tensor the file keeps sums over all elements with 12 sets of weights, which no error slips through, and
some elements as they are.
"""

import os

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralRMSNorm, MistralRotaryEmbedding

VOCAB, LAYERS, FFN = 67, 2, 96
BATCH, LENGTH, WINDOW, STEPS = 3, 41, 7, 20
LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
SUMS = 12
LLAMA = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "rope_theta": 500000.0}
MISTRAL = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 12}
MISTRAL.update({"rope_theta": 10000.0, "sliding_window": WINDOW})
DOCUMENTS = [9, 30, 1, 17, 44, 5, 11, 3, 20]

exact = True


def replace_forward(module_class, forward):
    """transformers computes angles and norms in f32 whatever the dtype; where `exact`, this is done instead."""
    original = module_class.forward
    module_class.forward = lambda self, *given: (forward if exact else original)(self, *given)


def rotary(self, x, positions):
    head_dim = 2 * len(self.inv_freq)
    inv_freq = self.config.rope_theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.cat([positions[..., None] * inv_freq] * 2, -1)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def rms_norm(self, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon) * self.weight


def names(tied):
    """The model's parameters in the recipe's order."""
    result = ["model.embed_tokens.weight"]
    for layer in range(LAYERS):
        for part in [
            "input_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "post_attention_layernorm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        ]:
            result.append(f"model.layers.{layer}.{part}.weight")
    result.append("model.norm.weight")
    return result if tied else result + ["lm_head.weight"]


def build(family, tied, dtype):
    config_class, model_class, sizes = {
        "llama3": (LlamaConfig, LlamaForCausalLM, LLAMA),
        "mistral": (MistralConfig, MistralForCausalLM, MISTRAL),
    }[family]
    config = config_class(
        vocab_size=VOCAB,
        num_hidden_layers=LAYERS,
        intermediate_size=FFN,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        attn_implementation="sdpa" if exact else "eager",
        **sizes,
    )
    model = model_class(config).to(dtype)
    parameters = dict(model.named_parameters())
    ordered = [parameters.pop(name) for name in names(tied)]
    assert not parameters, f"not set: {list(parameters)}"
    for k, parameter in enumerate(ordered, 1):
        i = np.arange(parameter.numel(), dtype=np.float64)
        value = 0.15 * np.sin(0.013 * i * i + 0.37 * i + k)
        if parameter.dim() == 1:
            value += 1
        parameter.data.copy_(torch.from_numpy(value).reshape(parameter.shape))
    return model, ordered


def plain_batch(step):
    """Rows of LENGTH + 1 tokens, and labels of which every 11th does not count."""
    n = BATCH * (LENGTH + 1)
    i = np.arange(n, dtype=np.int64)
    rows = torch.from_numpy((i * i * 7 + i * 13 + step % 2 * 31) % VOCAB).reshape(BATCH, LENGTH + 1)
    targets = rows[:, 1:].clone()
    targets.view(-1)[::11] = -100
    return rows[:, :-1], targets, None


def packed_batch(step):
    """DOCUMENTS one after the other, each ended by VOCAB - 1, cut into rows; a row is a document's end too."""
    tokens, owner = [], []
    for d, length in enumerate(DOCUMENTS):
        tokens += [(i * i * 7 + i * 13 + d * 5 + step % 2 * 31) % (VOCAB - 2) for i in range(length)] + [VOCAB - 1]
        owner += [d] * (length + 1)
    tokens, owner = torch.tensor(tokens), torch.tensor(owner)
    n = BATCH * LENGTH
    inputs, targets = tokens[:n].clone(), tokens[1 : n + 1].clone()
    targets[owner[1 : n + 1] != owner[:n]] = -100
    return inputs.reshape(BATCH, LENGTH), targets.reshape(BATCH, LENGTH), owner[:n].reshape(BATCH, LENGTH)


def explicit_mask(family, owner, dtype):
    """[B, 1, T, T]: 0 where the query i sees the key j, else the least number; and positions in documents."""
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
    mask = (j <= i)[None].expand(BATCH, -1, -1)
    if family == "mistral":
        mask = mask & (j > i - WINDOW)
    positions = torch.arange(LENGTH).expand(BATCH, -1)
    if owner is not None:
        mask = mask & (owner[:, :, None] == owner[:, None, :])
        positions = (owner[:, :, None] == owner[:, None, :]).logical_and(j < i).sum(-1)
    zeros = torch.zeros(mask.shape, dtype=dtype)
    return zeros.masked_fill(~mask, torch.finfo(dtype).min)[:, None], positions


def logits_of(family, model, inputs, owner, explicit=False):
    given = {}
    if owner is not None or explicit:
        dtype = next(model.parameters()).dtype
        given["attention_mask"], given["position_ids"] = explicit_mask(family, owner, dtype)
    return model(input_ids=inputs, use_cache=False, **given).logits


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=-100)


def run(family, tied, packed, dtype=torch.float64):
    """Logits and gradients of the first batch, and the losses of STEPS steps."""
    model, ordered = build(family, tied, dtype)
    plain = [p for p in ordered[1:] if p.dim() > 1]
    exempt = [p for p in ordered if p.dim() == 1] + ordered[:1]
    optimizer = torch.optim.AdamW(
        [{"params": plain, "weight_decay": DECAY}, {"params": exempt, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
    )
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / (2 * STEPS))
        inputs, targets, owner = (packed_batch if packed else plain_batch)(step)
        logits = logits_of(family, model, inputs, owner)
        loss = loss_of(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first = logits.detach(), [p.grad.clone() for p in ordered]
            assert torch.allclose(logits, logits_of(family, model, inputs, owner, explicit=True), rtol=0, atol=1e-6)
        norms.append(torch.nn.utils.clip_grad_norm_(ordered, CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    assert max(norms) > CLIP, norms
    return first[0], first[1], losses


def describe(t, samples):
    """What the file keeps of a tensor."""
    t = t.double().reshape(-1)
    n = t.numel()
    i = torch.arange(n, dtype=torch.float64)
    sums = [(t * torch.sin(0.017 * i * i + (0.71 + 0.13 * j) * i + j)).sum() for j in range(SUMS)]
    chosen = torch.arange(samples) * 7919 % n if samples < n else torch.arange(n)
    texts = ["%.12g" % value for value in [t.norm(), t.abs().max(), *sums, *t[chosen]]]
    return "{ %s }" % ", ".join(texts)


def check_f32(family, tied, packed, truth):
    global exact
    exact = False
    logits, grads, losses = run(family, tied, packed, torch.float32)
    exact = True
    gap = [
        ((logits.double() - truth[0]).abs().max() / truth[0].abs().max()).item(),
        max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(grads, truth[1])),
        max(abs(a - b) for a, b in zip(losses, truth[2])),
    ]
    print(f"{family} tied={tied} packed={packed}: f32 apart by {gap}, losses {truth[2][0]:.4f} to {truth[2][-1]:.4f}")
    assert gap[0] < 1e-5 and gap[1] < 1e-4 and gap[2] < 1e-4


def main():
    torch.set_num_threads(1)
    for rotary_class, norm_class in [(LlamaRotaryEmbedding, LlamaRMSNorm), (MistralRotaryEmbedding, MistralRMSNorm)]:
        replace_forward(rotary_class, rotary)
        replace_forward(norm_class, rms_norm)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recipes.lua")
    with open(path, "w") as file:
        file.write("-- recipes.lua - made by make_recipes.py (")
        file.write(f"torch {torch.__version__.split('+')[0]}, transformers in requirements.txt).\n")
        file.write("return {\n")
        for family in ["llama3", "mistral"]:
            for tied, packed in [(False, False), (True, False), (False, True)]:
                logits, grads, losses = truth = run(family, tied, packed)
                check_f32(family, tied, packed, truth)
                file.write(f"  {{ recipe = '{family}', tied = {str(tied).lower()}, packed = {str(packed).lower()},\n")
                file.write(f"    logits = {describe(logits, 100)},\n    grads = {{\n")
                for grad in grads:
                    file.write(f"      {describe(grad, 16)},\n")
                file.write("    },\n    losses = { %s } },\n" % ", ".join("%.12g" % loss for loss in losses))
        file.write("}\n")


main()
