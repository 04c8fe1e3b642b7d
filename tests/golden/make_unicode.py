"""make_unicode.py - the classes of characters that pre-tokenizers ask for, as runs, written to unicode_runs.h.

Facts of the Unicode Character Database 16.0 (UnicodeData.txt, field General_Category; PropList.txt, White_Space),
read through the package unicodedata2, whose version is that of the database.

    python3 -m venv venv && venv/bin/pip install unicodedata2==16.0.0
    venv/bin/python tests/golden/make_unicode.py > engine/io/tokenizer/unicode_runs.h
    clang-format -i engine/io/tokenizer/unicode_runs.h
"""

import unicodedata2

assert unicodedata2.unidata_version == "16.0.0"

# The order of the classes in unicode.c.
OTHER, NUMBER, SPACE, UPPER, LOWER, LETTER, MARK = range(7)
CLASS = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER,
         "Mn": MARK, "Mc": MARK, "Me": MARK, "Nd": NUMBER, "Nl": NUMBER, "No": NUMBER}
WHITE_SPACE = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x20, *range(9, 14), *range(0x2000, 0x200B)}


def class_of(code):
    if code in WHITE_SPACE:
        return SPACE
    return CLASS.get(unicodedata2.category(chr(code)), OTHER)


runs = []
for code in range(0x110000):
    kind = class_of(code)
    if runs and runs[-1][1] == kind:
        runs[-1][0] += 1
    else:
        runs.append([1, kind])

print("/* unicode_runs.h - made by tests/golden/make_unicode.py: the class of each code point, as runs")
print(" * (length << 3 | class) from U+0000 on.")
print(" */")
print("static const uint32_t runs[] = {" + ", ".join(str(n << 3 | kind) for n, kind in runs) + "};")
