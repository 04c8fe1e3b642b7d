"""make_unicode.py - what tokenizers ask of characters: classes, as runs (unicode_runs.h), how they are decomposed
and composed (nfc_decompositions.h), and in which order marks stand (nfc_marks.h).

Facts of the Unicode Character Database 16.0 (UnicodeData.txt, fields General_Category, Canonical_Combining_Class and
Decomposition_Mapping; PropList.txt, White_Space; CompositionExclusions.txt), read through the package unicodedata2,
whose version is that of the database.

    python3 -m venv venv && venv/bin/pip install unicodedata2==16.0.0 tokenizers==0.22.2
    venv/bin/python tests/golden/make_unicode.py engine/io/tokenizer
    clang-format -i engine/io/tokenizer/unicode_runs.h engine/io/tokenizer/nfc_*.h
"""

import sys

import unicodedata2
from tokenizers import normalizers

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


def write_runs(file):
    runs = []
    for code in range(0x110000):
        kind = class_of(code)
        if runs and runs[-1][1] == kind:
            runs[-1][0] += 1
        else:
            runs.append([1, kind])
    print("/* unicode_runs.h - made by tests/golden/make_unicode.py: the class of each code point, as runs", file=file)
    print(" * (length << 3 | class) from U+0000 on.\n */", file=file)
    print("static const uint32_t runs[] = {" + ", ".join(str(n << 3 | kind) for n, kind in runs) + "};", file=file)


def normalized():
    """The code points that tokenizers' NFC knows: its tables are those of Unicode 9, to which later versions add."""
    nfc = normalizers.NFC().normalize_str
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        here = chr(code)
        texts = (here, unicodedata2.normalize("NFD", here), "\u0301" + here + "\u0323", "\u0323" + here + "\u0301" + here)
        if all(nfc(text) == unicodedata2.normalize("NFC", text) for text in texts):
            yield code


def decompositions():
    """(code, parts) of all that have a canonical one."""
    for code in normalized():
        mapping = unicodedata2.decomposition(chr(code))
        if mapping and not mapping.startswith("<"):
            yield code, [int(part, 16) for part in mapping.split()]


def composes(code, parts):
    return unicodedata2.normalize("NFC", "".join(map(chr, parts))) == chr(code)


def write_decompositions(file):
    pairs, singles = [], []
    for code, parts in decompositions():
        if len(parts) == 2:
            pairs.append("{0x%x, 0x%x, 0x%x, %d}" % (code, *parts, composes(code, parts)))
        elif singles and singles[-1][0] + len(singles[-1]) - 1 == code:
            singles[-1].append(parts[0])
        else:
            singles.append([code, parts[0]])
    print("/* nfc_decompositions.h - made by tests/golden/make_unicode.py: canonical decompositions of two characters", file=file)
    print(" * {code, first, second, whether these compose to it again}; and of one, as runs: the first code, how many,", file=file)
    print(" * and what each becomes.\n */", file=file)
    print("static const struct pair pairs[] = {" + ", ".join(pairs) + "};", file=file)
    runs = [", ".join("0x%x" % n for n in (run[0], len(run) - 1, *run[1:])) for run in singles]
    print("static const uint32_t singles[] = {" + ", ".join(runs) + "};", file=file)


def write_marks(file):
    marks = []
    for code in normalized():
        order = unicodedata2.combining(chr(code))
        if order and marks and marks[-1][1:] == [code - 1, order]:
            marks[-1][1] = code
        elif order:
            marks.append([code, code, order])
    print("/* nfc_marks.h - made by tests/golden/make_unicode.py: combining classes {first code, last code, class}. */", file=file)
    rows = ", ".join("{0x%x, 0x%x, %d}" % tuple(row) for row in marks)
    print("static const struct marks marks[] = {" + rows + "};", file=file)


NAMES = {"unicode_runs": write_runs, "nfc_decompositions": write_decompositions, "nfc_marks": write_marks}
for name, write in NAMES.items():
    with open(f"{sys.argv[1]}/{name}.h", "w") as file:
        write(file)
