"""make_dpo.py - TRL's DPO loss of a few pairs for two of the tiny models of make_hf.py, written to dpo.lua.

    python3 -m venv venv && venv/bin/pip install -r tests/golden/requirements.txt trl==1.16.0 datasets==4.3.0
    venv/bin/python tests/golden/make_dpo.py > tests/golden/dpo.lua

The loss is that of the trainer itself, given the log-probabilities that transformers' logits have.
"""

import types
from unittest.mock import MagicMock

import torch
from trl import DPOTrainer

import make_hf

BETA, LENGTH = 0.5, 16
PAIRS = [("ABC", "DEFG", "HI"), ("Q", "RSTUVWXYZ", "ZYXWVUT"), ("HELLO", "B", "WORLD"), ("AZ", "ZA", "ZAZAZAZA")]
END = 2


class LogProbabilities(torch.nn.Module):
    """A causal model that gives what TRL asks of a fused head."""

    def __init__(self, name):
        super().__init__()
        self.inner, _ = make_hf.make(*make_hf.models[name])

    def forward(self, input_ids, attention_mask, labels, **_):
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1].log_softmax(-1)
        labels = labels[:, 1:]
        picked = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        picked = picked * (labels != -100)
        return types.SimpleNamespace(log_probs=picked, entropy=picked, mean_logits=picked, is_top1=labels == 0)


def rows(which):
    ids, mask, attention = [], [], []
    for pair in PAIRS:
        prompt, answer = [[ord(c) - 64 for c in part] for part in (pair[0], pair[which])]
        row = prompt + answer + [END]
        pad = LENGTH - len(row)
        ids.append(row + [0] * pad)
        mask.append([0] * len(prompt) + [1] * (len(answer) + 1) + [0] * pad)
        attention.append([1] * len(row) + [0] * pad)
    return ids, mask, attention


both = [torch.tensor(a + b) for a, b in zip(rows(1), rows(2))]
policy, reference = LogProbabilities("llama3"), LogProbabilities("linear")
trainer = MagicMock()
trainer.accelerator.device = "cpu"
trainer.aux_loss_enabled = trainer.precompute_ref_logps = False
trainer.ld_alpha, trainer.f_divergence_type, trainer.beta = None, "reverse_kl", BETA
trainer.loss_types, trainer.loss_weights, trainer.use_weighting = ["sigmoid"], [1.0], False
trainer.ref_model = reference
trainer.args.gradient_checkpointing_kwargs = None
told = {}
trainer.accelerator.gather_for_metrics.side_effect = lambda x: x
trainer.accelerator.gather.side_effect = lambda x: x
trainer._metrics = {"train": MagicMock(), "eval": MagicMock()}
for metrics in trainer._metrics.values():
    metrics.__getitem__.side_effect = lambda name: told.setdefault(name, [])
inputs = {"input_ids": both[0], "completion_mask": both[1], "attention_mask": both[2]}
loss = DPOTrainer._compute_loss(trainer, policy, inputs, False)
loss.backward()
norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in policy.parameters()))

print("-- dpo.lua - made by make_dpo.py (trl 1.16.0, torch 2.8.0, transformers 4.57.1).")
print("return {\n  pairs = {")
for prompt, chosen, rejected in PAIRS:
    print(f"    {{ prompt = '{prompt}', chosen = '{chosen}', rejected = '{rejected}' }},")
print("  },")
print(f"  loss = {loss.item():.9g}, norm = {norm.item():.9g},")
print(f"  margin = {told['rewards/margins'][0]:.9g}, chosen = {told['rewards/chosen'][0]:.9g},")
print(f"  accuracy = {told['rewards/accuracies'][0]:.9g},\n}}")
