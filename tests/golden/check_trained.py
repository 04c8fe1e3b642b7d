"""check_trained.py - by hand: whether a tokenizer that ul.tokenizer.train made is what the Rust implementation makes.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.22.2 transformers==4.57.1
    ulysses-lua -e "ul.tokenizer.train('text.txt', { vocab = 8000, out = 'made' })"
    venv/bin/python tests/golden/check_trained.py made text.txt

Transformers loads the folder; then the Rust trainer makes a vocabulary of the same text and size, and its merges must be
the same, in the same order.
"""

import gzip
import json
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

folder, path = sys.argv[1:]
text = (gzip.open if path.endswith(".gz") else open)(path, "rb").read().decode("utf-8", "replace")

loaded = AutoTokenizer.from_pretrained(folder)
ids = loaded(text)["input_ids"]
assert ids[0] == loaded.bos_token_id and loaded.decode(ids[1:]) == text
print(f"Transformers: {len(loaded)} tokens, {len(ids)} of the text, bos {loaded.bos_token!r}, eos {loaded.eos_token!r}")

made = json.load(open(folder + "/tokenizer.json"))
other = Tokenizer(models.BPE())
other.pre_tokenizer = Tokenizer.from_file(folder + "/tokenizer.json").pre_tokenizer
other.train_from_iterator(
    [text],
    trainers.BpeTrainer(
        vocab_size=len(made["model"]["vocab"]),
        min_frequency=2,
        special_tokens=[t["content"] for t in made["added_tokens"]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
theirs = json.loads(other.to_str())["model"]
assert theirs["vocab"] == made["model"]["vocab"], "another vocabulary"
assert [list(m) for m in theirs["merges"]] == made["model"]["merges"], "other merges"
print(f"the same {len(theirs['merges'])} merges as those of the Rust trainer")
