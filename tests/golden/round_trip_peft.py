"""round_trip_peft.py - adapters that PEFT saves are loaded by ul.hf, and those of ul.lora by PEFT: logits, losses
and gradients of the adapters are compared. Run by hand, in the root:

    LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' LUA_CPATH='build/release/?.so;;' \\
        venv/bin/python tests/golden/round_trip_peft.py
"""

import os
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, "tests/golden")
import make_hf  # noqa: E402
from round_trip_hf import load  # noqa: E402

NAMES = ["llama31", "mistral", "nemo", "qwen2", "qwen3"]
TARGETS = ["q_proj", "v_proj", "o_proj", "down_proj"]


def compare(model, path):
    """The largest gaps of logits, loss and gradients to what a file has."""
    ours, ids = load_file(path), make_hf.tokens()
    out = model(input_ids=ids, labels=ids)
    gaps = [(ours["logits"] - out.logits).abs().max().item(), (ours["loss"] - out.loss).abs().item()]
    theirs = {"wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj", "gate": "gate_proj", "up": "up_proj",
              "down": "down_proj"}
    if any(p.requires_grad for p in model.parameters()):
        out.loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        for name, gradient in ours.items():
            if name.startswith("gradient."):
                _, _, layer, part, linear, which = name.split(".")
                key = (f"base_model.model.model.layers.{int(layer) - 1}."
                       f"{'self_attn' if part == 'attention' else 'mlp'}.{theirs[linear]}."
                       f"lora_{which[-1].upper()}.default.weight")
                gaps.append((gradient - gradients.pop(key)).abs().max().item())
        assert not gradients, gradients.keys()
    return gaps


def main():
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/ours")
        for name in NAMES:
            kind, config = make_hf.models[name]
            make_hf.make(kind, config)[0].save_pretrained(f"{folder}/base/{name}")
            base = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/base/{name}")
            torch.manual_seed(1)
            model = peft.get_peft_model(base, peft.LoraConfig(
                r=4, lora_alpha=6, target_modules=TARGETS, task_type="CAUSAL_LM", init_lora_weights=False,
                use_rslora=name == "nemo"))
            model.save_pretrained(f"{folder}/theirs/{name}")
        subprocess.run(["luajit", "tests/golden/round_trip_peft.lua", folder, *NAMES], check=True)
        for name in NAMES:
            heard = []
            for adapter, file in ((f"theirs/{name}", name), (f"ours/{name}", name), (f"ours/{name}-own", f"{name}-own")):
                base = load(f"{folder}/base/{name}", heard)
                model = peft.PeftModel.from_pretrained(base, f"{folder}/{adapter}", is_trainable=True)
                gaps = compare(model.eval(), f"{folder}/ours/{file}.safetensors")
                worst = max(worst, *gaps)
                print(f"{adapter:18} logits {gaps[0]:.2g}, loss {gaps[1]:.2g}, gradients {max(gaps[2:]):.2g}")
            gaps = compare(load(f"{folder}/ours/{name}-merged", heard).requires_grad_(False),
                           f"{folder}/ours/{name}.safetensors")
            worst = max(worst, *gaps)
            print(f"{'merged':18} logits {gaps[0]:.2g}, loss {gaps[1]:.2g}; {'; '.join(heard) or 'no warning'}")
    print(f"largest gap {worst:.2g}: {'fine' if worst <= 1e-5 else 'TOO LARGE'}")


main()
