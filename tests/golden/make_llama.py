"""make_llama.py - losses of a tiny Llama trained by PyTorch, for tests/spec/llama_golden_spec.lua.

    python -m venv venv && venv/bin/pip install -r tests/golden/requirements.txt
    venv/bin/python tests/golden/make_llama.py        # writes tests/golden/llama_losses.lua

Weights and tokens are formulas, so that both sides compute them and no file is shared. The k-th
parameter (from 1, in the order of the recipe's model) has element i (from 0)
scale * sin(0.013 i^2 + 0.37 i + k), a norm's weight 1 more than that.
"""

import os

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, FFN = 260, 64, 2, 4, 2, 112
BATCH, LENGTH, STEPS = 3, 37, 10
LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
SCALE = 0.05


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


def build(tied):
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=FFN,
        rope_theta=500000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).float()
    parameters = dict(model.named_parameters())
    ordered = [parameters.pop(name) for name in names(tied)]
    assert not parameters, f"not set: {list(parameters)}"
    for k, parameter in enumerate(ordered, 1):
        i = np.arange(parameter.numel(), dtype=np.float64)
        value = SCALE * np.sin(0.013 * i * i + 0.37 * i + k)
        if parameter.dim() == 1:
            value += 1
        parameter.data.copy_(torch.from_numpy(value).reshape(parameter.shape))
    return model, ordered


def tokens(step):
    """Rows of LENGTH + 1 tokens, and labels of which every 11th does not count."""
    n = BATCH * (LENGTH + 1)
    i = np.arange(n, dtype=np.int64)
    rows = torch.from_numpy((i * i * 7 + i * 13 + step % 2 * 31) % 97).reshape(BATCH, LENGTH + 1)
    targets = rows[:, 1:].clone()
    targets.view(-1)[::11] = -100
    return rows[:, :-1], targets


def losses(tied):
    model, ordered = build(tied)
    plain = [p for p in ordered[1:] if p.dim() > 1]
    exempt = [p for p in ordered if p.dim() == 1] + ordered[:1]
    optimizer = torch.optim.AdamW(
        [{"params": plain, "weight_decay": DECAY}, {"params": exempt, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
    )
    result = []
    for step in range(STEPS):
        inputs, targets = tokens(step)
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ordered, CLIP)
        optimizer.step()
        result.append(loss.item())
    return result


def main():
    torch.set_num_threads(1)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_losses.lua")
    with open(path, "w") as file:
        file.write("-- llama_losses.lua - made by make_llama.py (")
        file.write(f"torch {torch.__version__.split('+')[0]}, transformers in requirements.txt).\n")
        file.write("return {\n")
        for name, tied in [("untied", False), ("tied", True)]:
            values = ",\n".join(f"    {loss:.7f}" for loss in losses(tied))
            file.write(f"  {name} = {{\n{values},\n  }},\n")
        file.write("}\n")


main()
