#!/usr/bin/env python3
"""Writes tests/fixtures/nfc.txt: texts and what the normalizer NFC of Hugging Face tokenizers makes of them, as "code points;code points" in hex.

    pip install tokenizers==0.23.3 unicodedata2==16.0.0 && python3 tools/make_nfc_fixture.py
"""
import random
import unicodedata2 as ucd
from tokenizers import normalizers

r = random.Random(16)
codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
decomposed = [c for c in codes if ucd.decomposition(chr(c))[:1] not in ("", "<")]
marks = [c for c in codes if ucd.combining(chr(c))]
parts = [int(x, 16) for c in decomposed for x in ucd.decomposition(chr(c)).split()]
hangul = [*range(0x1100, 0x1114), *range(0x1160, 0x1177), *range(0x11A6, 0x11C4), 0xAC00, 0xAC1C, 0xD788]
texts = [chr(c) for c in r.sample(decomposed, 300)]
texts += [ucd.normalize("NFD", chr(c)) + chr(r.choice(marks)) for c in r.sample(decomposed, 300)]
texts += ["".join(chr(r.choice(r.choice([parts, marks, hangul, decomposed, [0x61]]))) for _ in range(r.randint(2, 8))) for _ in range(600)]
form = normalizers.NFC()
with open("tests/fixtures/nfc.txt", "w") as f:
    for text in texts:
        f.write(";".join(" ".join(f"{ord(c):X}" for c in t) for t in (text, form.normalize_str(text))) + "\n")
