"""make_hf.py - what transformers computes with tiny models of each kind that ul.hf loads, written to hf.lua.

Weights are formulas, so that no checkpoint need be kept: element i of the k-th tensor (by name, from 1) is what is
behind the point in 9999 sin(12.9898 i + 78.233 k), less 0.5, times 0.7; norms have a fifth of that, plus 1.
tests/spec/hf_spec.lua writes such folders, loads them and compares logits, loss, every gradient and greedy generations.
Kept are of the logits a sum for each token, with factors, and every 17th, of each gradient its sum, the same with
factors, its norm and 16 of its elements: the whole is ten times as long, and catches no more.

Why 0.7: at 1.0 logits are up to 6, where two computations in f32 differ by more than 1e-5 through rounding alone, as
exact_hf.py shows.

    python3 -m venv venv && venv/bin/pip install -r tests/golden/requirements.txt
    venv/bin/python tests/golden/make_hf.py > tests/golden/hf.lua
    venv/bin/python tests/golden/make_hf.py FOLDER       the same models as checkpoints, in FOLDER/NAME
"""

import json
import sys

import torch
import transformers as hf

VOCAB, B, T, NEW, EVERY, SAMPLES, SCALE = 61, 2, 24, 40, 17, 16, 0.7
base = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
            bos_token_id=1, eos_token_id=2, pad_token_id=None, attn_implementation="eager")
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def llama(**options):
    return hf.LlamaForCausalLM, hf.LlamaConfig(**{**base, **options})


models = {
    "llama3": llama(rope_theta=500000.0),
    "llama31": llama(rope_theta=500000.0, rope_scaling=llama3, eos_token_id=[2, 4, 5]),
    "llama32": llama(rope_theta=500000.0, rope_scaling={**llama3, "factor": 32.0}, tie_word_embeddings=True),
    "llama_biases": llama(attention_bias=True, mlp_bias=True, num_key_value_heads=4),
    "linear": llama(rope_scaling=dict(rope_type="linear", factor=4.0)),
    "dynamic": llama(rope_scaling=dict(rope_type="dynamic", factor=3.0), max_position_embeddings=16),
    "yarn": llama(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**base, sliding_window=5)),
    "nemo": (hf.MistralForCausalLM, hf.MistralConfig(**base, head_dim=12, sliding_window=None, rope_theta=1e6)),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**{**base, "tie_word_embeddings": True}, rope_theta=1e6,
                                                  use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**base, head_dim=12, rope_theta=1e6)),
}


def fill(model):
    state = model.state_dict()
    names = sorted(n for n in state if not (model.config.tie_word_embeddings and n == "lm_head.weight"))
    for k, name in enumerate(names, 1):
        n = torch.arange(state[name].numel(), dtype=torch.float64)
        value = (9999 * torch.sin(12.9898 * n + 78.233 * k)).frac()
        value = SCALE * (torch.where(value < 0, value + 1, value) - 0.5)
        value = 1 + value / 5 if "norm" in name else value
        state[name].copy_(value.reshape(state[name].shape))
    return names


def tokens():
    i = torch.arange(B * T)
    return ((i * i * 7 + i * 13) % VOCAB).reshape(B, T)


def numbers(t):
    return ", ".join(f"{v:.7g}" for v in t.reshape(-1).tolist())


def factors(n):
    return torch.sin(0.7 * torch.arange(n, dtype=torch.float64))


def make(kind, config):
    torch.manual_seed(0)
    model = kind(config).eval()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    with torch.no_grad():
        names = fill(model)
    return model, names


def entry(name, kind, config):
    model, names = make(kind, config)
    ids = tokens()
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    parameters, lines = dict(model.named_parameters()), []
    for p in names:
        g = parameters[p].grad.double().reshape(-1)
        sums = torch.stack([g.sum(), (g * factors(g.numel())).sum(), g.norm()])
        some = g[torch.arange(SAMPLES) * (g.numel() // SAMPLES + 1) % g.numel()]
        shape = ", ".join(str(n) for n in parameters[p].shape)
        lines.append(f'      {{ "{p}", {{ {shape} }}, {{ {numbers(sums)} }},\n        {{ {numbers(some)} }} }},')
    new = model.generate(ids, max_new_tokens=NEW, do_sample=False, use_cache=name != "dynamic")[:, T:]
    text = json.dumps({**json.loads(config.to_json_string()), "architectures": [kind.__name__]}, indent=2)
    rows = ", ".join("{ " + ", ".join(str(i) for i in row) + " }" for row in new.tolist())
    logits = out.logits.double()
    sums = (logits * factors(VOCAB)).sum(-1)
    print(f"  {name} = {{\n    config = [[{text}]],\n    logits = {{ {numbers(logits.reshape(-1)[::EVERY])} }},")
    print(f"    sums = {{ {numbers(sums)} }},\n    loss = {out.loss.item():.9g},\n    greedy = {{ {rows} }},\n    gradients = {{")
    print("\n".join(lines) + "\n    },\n  },")


def main():
    if len(sys.argv) > 1:
        for name, (kind, config) in models.items():
            make(kind, config)[0].save_pretrained(f"{sys.argv[1]}/{name}")
        return
    print(f"-- hf.lua - made by make_hf.py (torch {torch.__version__.split('+')[0]}, transformers {hf.__version__}).")
    print("return {")
    for name, (kind, config) in models.items():
        entry(name, kind, config)
    print("}")


if __name__ == "__main__":
    main()
