"""make_tools.py - what Transformers makes of conversations with tools, by the templates of Llama 3.1, Mistral and Qwen.

    python3 -m venv venv && venv/bin/pip install transformers==4.57.1 jinja2
    venv/bin/python tests/golden/make_tools.py templates.json > tests/golden/tools.jsonl

templates.json has the whole templates of published models by the name of the format: 'qwen2.5' (Qwen2.5-Instruct),
'qwen3' (Qwen3), 'llama3' (Llama-3.1-Instruct), 'mistral_v3' (Mistral-v0.3), 'mistral_v3_tekken' (Mistral-Nemo). Each line has the messages, the tools, and the text.
"""

import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather in a \"city\",\n now: \u00e9\u6c34/\\ \u0001\u007f.", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "enum": ["Bonn", "K\u00f6ln"]},
            "scale": {"type": "number", "default": 1.0, "least": 1e-05, "most": 12.5, "far": 1e22, "near": -3},
            "any": {}, "none": [], "flag": True, "null": None},
        "required": ["city", "scale"]}}}
PLAIN = {"name": "now", "parameters": {}}


def call(name, arguments, **more):
    return dict(more, function={"name": name, "arguments": arguments})


user = {"role": "user", "content": " How is it in Bonn? "}
system = {"role": "system", "content": "Be brief."}
asks = {"role": "assistant", "content": "", "tool_calls": [
    call("weather", {"city": "Bonn", "scale": 0.5, "at": [1, 2, {"z": None, "a": False}]}, id="abcdefghi",
         type="function")]}
bare = {"role": "assistant", "content": "", "tool_calls": [{"name": "now", "arguments": {}}]}
twice = {"role": "assistant", "content": "I look.", "tool_calls": asks["tool_calls"] + bare["tool_calls"]}
rain = {"role": "tool", "content": "{\"rain\": \"ja \\u00fc\"}"}
sun = {"role": "tool", "content": " sun\n"}
says = {"role": "assistant", "content": "Rain."}
thinks = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nI ask.", "tool_calls": asks["tool_calls"]}
TALKS = [
    [user, asks, rain, says],
    [system, user, asks, sun, says, user, asks],
    [user, says],
]
QWEN = [[system, user, twice, rain, sun, says], [user, bare, sun], [user, twice, rain, says, user, twice, sun, says]]
THINKS = [[user, thinks, rain, says], [user, thinks, rain, thinks, sun, says, user, thinks]]

first = {"role": "assistant", "content": "", "tool_calls": [
    call("weather", {"city": "Bonn"}, id="abcdefghi"), call("now", {}, id="ABC456789")]}
gave = [{"role": "tool", "content": text, "tool_call_id": one["id"]}
        for text, one in zip(['{"rain": [1, "ja"]}', "12.5"], first["tool_calls"])]
mixed = {"type": "function", "function": {"name": "f", "description": "plain", "parameters": {"type": "object"}}}
MISTRAL = [[user, first, *gave, says], [dict(user, content="a"), says, user, first, *gave, first, *gave, says],
           [user, says], [user, first]]

templates = json.load(open(sys.argv[1]))
for family in ("qwen2.5", "qwen3", "llama3"):
    talks = TALKS + (QWEN if family != "llama3" else []) + (THINKS if family == "qwen3" else [])
    for talk in talks:
        for tools in (None, [WEATHER, PLAIN]):
            more = {"date_string": "26 Jul 2024", "bos_token": "<|begin_of_text|>"} if family == "llama3" else {}
            text = render_jinja_template([talk], tools=tools, chat_template=templates[family], **more)[0][0]
            print(json.dumps({"family": family, "messages": talk, "tools": tools, "text": text}, ensure_ascii=False))
for family in ("mistral_v3", "mistral_v3_tekken"):
    for talk in MISTRAL:
        for tools in (None, [mixed, mixed]):
            text = render_jinja_template([talk], tools=tools, chat_template=templates[family], bos_token="<s>",
                                         eos_token="</s>")[0][0]
            print(json.dumps({"family": family, "messages": talk, "tools": tools, "text": text}, ensure_ascii=False))
