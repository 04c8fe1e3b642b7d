"""make_chat.py - what mistral-common makes of conversations in its third format, whose text is SentencePiece's.

    python3 -m venv venv && venv/bin/pip install mistral-common==1.13.1 sentencepiece==0.2.3
    cp path/to/mistral_v03/tokenizer.model tokenizer.model.v3
    venv/bin/python tests/golden/make_chat.py tokenizer.model.v3 path/to/chat.jsonl > tests/golden/chat.jsonl

The conversations are those of a file with other formats; each line has the messages, ids, and which of these are an
assistant's.
"""

import json
import sys

from mistral_common.protocol.instruct.messages import AssistantMessage, UserMessage
from mistral_common.protocol.instruct.request import InstructRequest
from mistral_common.tokens.tokenizers.instruct import InstructTokenizerV3
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

MESSAGE = {"user": UserMessage, "assistant": AssistantMessage}
END, END_OF_USER = 2, 4
tokenizer = InstructTokenizerV3(SentencePieceTokenizer(sys.argv[1]))

for line in open(sys.argv[2]):
    row = json.loads(line)
    if row["family"] != "mistral_v1":
        continue
    messages = row["messages"]
    system = next((m["content"] for m in messages if m["role"] == "system"), None)
    turns = [MESSAGE[m["role"]](content=m["content"]) for m in messages if m["role"] != "system"]
    ids = tokenizer.encode_instruct(InstructRequest(messages=turns, system_prompt=system)).tokens
    mask, answers = [], False
    for token in ids:
        mask.append(int(answers))
        answers = token == END_OF_USER or (answers and token != END)
    print(json.dumps({"family": "mistral_v3", "messages": messages, "ids": ids, "loss_mask": mask}, ensure_ascii=False))
