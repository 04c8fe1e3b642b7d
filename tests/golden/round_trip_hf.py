"""round_trip_hf.py - models that transformers saves are loaded by ul.hf and saved again, and transformers loads
those, without a warning: logits and losses on the way, and the weights, are compared. Run by hand, in the root:

    LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' LUA_CPATH='build/release/?.so;;' \\
        venv/bin/python tests/golden/round_trip_hf.py
"""

import io
import logging
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, "tests/golden")
import make_hf  # noqa: E402


def load(folder, heard):
    """The model, and all that is said meanwhile."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = transformers.utils.logging.get_logger("transformers")
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", attn_implementation="eager", output_loading_info=True)
    logger.removeHandler(handler)
    heard += [stream.getvalue()] if stream.getvalue() else []
    heard += [str(w.message) for w in caught] + [f"{k}: {v}" for k, v in info.items() if v]
    return model.eval()


def main():
    ids, worst = make_hf.tokens(), 0
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name, (kind, config) in make_hf.models.items():
            made[name] = make_hf.make(kind, config)[0]
            made[name].save_pretrained(f"{folder}/theirs/{name}")
        subprocess.run(["mkdir", f"{folder}/ours"], check=True)
        subprocess.run(["luajit", "tests/golden/round_trip_hf.lua", f"{folder}/theirs", f"{folder}/ours", *made],
                       check=True)
        for name, model in made.items():
            heard, ours = [], load_file(f"{folder}/ours/{name}.safetensors")
            again = load(f"{folder}/ours/{name}", heard)
            half = load(f"{folder}/ours/{name}-bf16", heard)
            with torch.no_grad():
                first = model(input_ids=ids, labels=ids)
                second = again(input_ids=ids, labels=ids)
            gaps = [(ours["logits"] - first.logits).abs().max().item(),
                    (ours["logits"] - second.logits).abs().max().item(),
                    (ours["loss"] - first.loss).abs().item()]
            same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
            dtype = next(half.parameters()).dtype
            worst = max(worst, *gaps)
            print(f"{name:14} logits there {gaps[0]:.2g}, back {gaps[1]:.2g}, loss {gaps[2]:.2g}; weights "
                  f"{'equal' if same else 'DIFFER'}; bf16 as {dtype}; {'; '.join(heard) or 'no warning'}")
    print(f"largest gap {worst:.2g}: {'fine' if worst <= 1e-5 else 'TOO LARGE'}")


if __name__ == "__main__":
    main()
