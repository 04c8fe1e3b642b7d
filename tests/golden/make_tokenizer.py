"""make_tokenizer.py - what Hugging Face's tokenizers (the Rust implementation) make of strings, written as JSON lines.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.22.2
    venv/bin/python tests/golden/make_tokenizer.py > tests/golden/tokenizer.jsonl

The first line has two small vocabularies, trained on the words below; each line after it is a tokenizer made of one of
them, and what it makes of some strings: [text, ids without special tokens, ids with these, text of the latter].

    venv/bin/python tests/golden/make_tokenizer.py path/to/tokenizer.json 20000 > rows.jsonl
    luajit tests/golden/compare_tokenizer.lua path/to/folder rows.jsonl

does the same for a real tokenizer and random strings; its rows are not committed.
"""

import json
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIALS = ["<unk>", "<s>", "</s>", "<|eot|>", "<|eot_id|>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Orders of marks, Hangul, singletons, exclusions, marks that begin a text or follow an added token.
DECOMPOSED = [
    "Schro\u0308dinger gro\u0308\u00dfer cafe\u0301", "q\u0307\u0323 s\u0323\u0307 \u1e9b\u0323 d\u0323\u0307\u0301", "\u1112\u1161\u11ab\uad6d\u110b\u1165",
    "\uac00\u11a8\u11a8 \u1100\u1100\u1161 \uac01\u11a8", "\u212b \u2126 \u2000 \uf900 \U0002f800", "\u0958 \u0915\u093c \u2adc \u0344",
    "\u0301abc", "<s>\u0338 >\u0338 <s>a\u030a", "a\u0328\u0301\u0328\u0301 \u1100 \u1161 \u11a8", "e" + "\u0301\u0323" * 20,
    "\u0b47\u0b3e \u0b47\u0300\u0b3e \u1025\u102e \U000110a5\U000110ba", "\u3046\u3099 \u304b\u3099 \uff76\uff9e", "I\u0307 i\u0307\u0301",
]
WORDS = """the quick brown fox can't jump over 1234 lazy dogs, and they'll say: Hello WORLD! Don't she'd we've I'm you're
Schrödinger größer straße naïve café 你好世界 こんにちは привет мир مرحبا שלום नमस्ते ภาษาไทย 한국어 e\u0301a\u0308 😀😃 → ∞ ©
def f(x):\n\treturn x ** 2  # squared\r\n    if x == 10: print("a/b//c") HTTPServer XMLHttpRequest getURL iPhone""".split(" ")
PIECES = (
    WORDS
    + ["a", "A", "b", "ab", "aB", "1", "12", "٣", "½", "é", "e\u0301", "ǅ", "ʰ", "ª", "中", "\u0301", "\u3000", "\u00a0", "\u2003"]
    + ["'s", "'S", "'ſ", "'T", "'lL", "'", "''", "/", "//", "!", "?!", ".", "\n", "\r\n", "\n\n", "\t", " ", "  ", "     "]
    + ["\u200d", "\x00", "\x7f", "\ufffd", "\ufeff", "\U0001f468\u200d\U0001f469", "\U00010400", "\ue000", "▁", "▁▁", " ▁"]
)


def string(rng, specials):
    kind = rng.random()
    n = int(rng.expovariate(0.15)) + 1
    if kind < 0.6:
        parts = [rng.choice(PIECES + (specials if rng.random() < 0.3 else [])) for _ in range(n)]
        return ("" if rng.random() < 0.6 else " ").join(parts)
    if kind < 0.8:
        return "".join(rng.choice("ab AB\n'1/") for _ in range(2 * n))
    if kind < 0.9:
        return rng.choice(["a", "ab", " ", "▁", "\n ", "中", "é"]) * (3 * n)
    return "".join(chr(c) for c in (rng.randrange(0x20, 0x20000) for _ in range(n)) if not 0xD800 <= c < 0xE000)


def row(tokenizer, text):
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [text, plain, ids, tokenizer.decode(ids, skip_special_tokens=False)]


def train(pre_tokenizer, alphabet, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    extra = [f"<0x{i:02X}>" for i in range(256)] if options.get("byte_fallback") else []
    trainer = trainers.BpeTrainer(
        vocab_size=620, special_tokens=SPECIALS + extra, initial_alphabet=alphabet, show_progress=False
    )
    rng = random.Random(1)
    tokenizer.train_from_iterator([" ".join(rng.choice(WORDS) for _ in range(40)) for _ in range(200)], trainer)
    return json.loads(tokenizer.to_str())


def byte_level(use_regex, pattern=None):
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    if not pattern:
        return last
    first = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [first, last]}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


LEGACY = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
VARIANTS = [
    ("llama3", "bytes", {"pre_tokenizer": byte_level(False, LLAMA3)}, {"ignore_merges": True}),
    ("qwen2", "bytes", {"pre_tokenizer": byte_level(False, LLAMA3.replace("{1,3}", ""))}, {}),
    ("tekken", "bytes", {"pre_tokenizer": byte_level(False, TEKKEN)}, {}),
    ("gpt2", "bytes", {"pre_tokenizer": byte_level(True)}, {}),
    ("legacy", "characters", {"normalizer": LEGACY}, {}),
    ("first", "characters", {"pre_tokenizer": metaspace("first", False)}, {}),
    ("always", "characters", {"pre_tokenizer": metaspace("always", True)}, {}),
    ("never", "characters", {"pre_tokenizer": metaspace("never", False)}, {}),
    (
        "nfc",
        "bytes",
        {"normalizer": {"type": "NFC"}, "pre_tokenizer": byte_level(False, LLAMA3.replace("{1,3}", ""))},
        {},
    ),
]


def small():
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base = {
        "bytes": train(level, pre_tokenizers.ByteLevel.alphabet()),
        "characters": train(pre_tokenizers.Metaspace(), [], byte_fallback=True, unk_token="<unk>", fuse_unk=True),
    }
    byte_decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    fallback = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    base["bytes"]["decoder"], base["characters"]["decoder"] = byte_decoder, fallback
    for one in base.values():
        one["pre_tokenizer"] = None
        one["added_tokens"] = one["added_tokens"][: len(SPECIALS)]  # bytes are none, though the trainer adds them so
    print(json.dumps(base, ensure_ascii=False, separators=(",", ":")))
    for k, (name, of, settings, model) in enumerate(VARIANTS):
        whole = {**base[of], **settings, "model": {**base[of]["model"], **model}}
        tokenizer = Tokenizer.from_str(json.dumps(whole))
        rng = random.Random(k)
        texts = [string(rng, SPECIALS) for _ in range(32)] + (DECOMPOSED if name == "nfc" else [])
        rows = [row(tokenizer, text) for text in texts]
        line = {"name": name, "of": of, "settings": settings, "model": model, "rows": rows}
        print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def real(path, n):
    tokenizer = Tokenizer.from_file(path)
    rng = random.Random(7)
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()][:20]
    for _ in range(n):
        print(json.dumps(row(tokenizer, string(rng, specials))))


if len(sys.argv) > 1:
    real(sys.argv[1], int(sys.argv[2]))
else:
    small()
