"""make_chatml.py - what Transformers makes of conversations by the chat templates of ChatML and Qwen.

    python3 -m venv venv && venv/bin/pip install transformers==4.57.1 jinja2
    venv/bin/python tests/golden/make_chatml.py templates.json > tests/golden/chatml.jsonl

templates.json has the templates of published models by the name of the format: 'chatml', 'qwen2' (Qwen2-Instruct),
'qwen2.5' (Qwen2.5-Instruct), 'qwen3' (Qwen3). The tokenizer is the small one of tokenizer.jsonl that cuts words as
Qwen's, with its special tokens; each line has the messages, and their ids.
"""

import json
import sys

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_response>", "</tool_response>", "<think>", "</think>", "\n\n"]  # the last over a header's end


def small():
    lines = [json.loads(line) for line in open("tests/golden/tokenizer.jsonl")]
    variant = next(line for line in lines[1:] if line["name"] == "qwen2")
    whole = dict(lines[0][variant["of"]], **variant["settings"])
    whole["model"] = dict(whole["model"], **variant["model"])
    added, last = list(whole["added_tokens"]), max(whole["model"]["vocab"].values())
    for i, name in enumerate(SPECIALS + PLAIN):
        added.append({"id": last + i + 1, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": name in SPECIALS})
    whole["added_tokens"] = added
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(whole)))


def message(role, content, **more):
    return dict({"role": role, "content": content}, **more)


system, user, answer = (lambda text, role=role: message(role, text) for role in ("system", "user", "assistant"))
tool = lambda text: message("tool", text)
TALKS = [
    [user("the quick"), answer("brown fox")],
    [system("Be brief."), user("the quick"), answer("brown"), user(" fox\n"), answer("\njumps"), user("over")],
    [user("\n\n the"), answer("  \n lazy")],
    [user("a"), answer("")],
    [user("a"), user("b"), system("late"), answer("c"), answer("d")],
    [answer("first"), user("then")],
]
TOOLS = [
    [user("a"), answer("calls"), tool("12"), tool("13"), answer("25")],
    [system("S"), user("a"), answer("calls"), tool("\nx"), user("b"), answer("c")],
]
THINKS = [
    [user("a"), answer("<think>\nwhy\n\n</think>\n\nso")],
    [user("a"), answer("<think>old</think>b"), user("c"), answer("\n<think>\n\nnew\n</think>\nd")],
    [user("a"), message("assistant", "\nb", reasoning_content="\nthat is\n"), tool("1"), answer("c")],
    [user("a"), answer("x</think>y</think>z"), tool("1"), user("<tool_response>t</tool_response>"), answer("c")],
    [system("S"), answer("no user")],
]

templates = json.load(open(sys.argv[1]))
tok = small()
for family, template in templates.items():
    talks = TALKS + (TOOLS if family in ("qwen2.5", "qwen3") else []) + (THINKS if family == "qwen3" else [])
    for reply in (False, True):
        for thinking in (None, False) if family == "qwen3" and reply else (None,):
            for talk in talks:
                more = {} if thinking is None else {"enable_thinking": thinking}
                ids = tok.apply_chat_template(talk, chat_template=template, add_generation_prompt=reply, **more)
                row = {"family": family, "messages": talk, "reply": reply, "ids": ids}
                if thinking is not None:
                    row["thinking"] = thinking
                print(json.dumps(row, ensure_ascii=True))
