"""Times training steps of Llama 3.2 1B's shape on one row of 32K tokens with PyTorch and
transformers: bf16, fused AdamW, flash attention (torch's own kernel where flash_attn is missing),
nothing recomputed. step.lua times ours.
"""
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
try:
    import flash_attn  # noqa: F401

    attention = "flash_attention_2"
except ImportError:
    attention = "sdpa"
config = LlamaConfig(
    vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=8, head_dim=64, rope_theta=500000.0,
    rms_norm_eps=1e-5, max_position_embeddings=131072, tie_word_embeddings=True,
    attn_implementation=attention, use_cache=False)
torch.manual_seed(1)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    ids = torch.randint(0, 128256, (1, tokens))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step():
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


times = []
for i in range(7):
    start = time.perf_counter()
    step()
    if i >= 2:
        times.append(time.perf_counter() - start)
times.sort()
print(f"PyTorch {torch.__version__}, {attention}: {times[2]:.3f} s a step of {tokens} tokens, "
      f"{tokens / times[2]:.0f} tokens/s, peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
