#!/usr/bin/env python3
"""tests/fixtures/token_map.txt: texts, and the form under which they are one token for Engram's hashes.

A line is a text in hex, a blank, and the number of its class by first appearance: two texts have the same number when the normalizer of
Engram's published demo makes the same of them (Hugging Face tokenizers: NFKC, NFD, StripAccents, Lowercase, runs of blanks, Strip; what
becomes empty stands for itself). Usage: make_token_map_fixture.py FILE
"""
import sys

from tokenizers import Regex, normalizers

LONE = "\ue000"  # stands for a lone blank while the ends are stripped
normal = normalizers.Sequence([
    normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
    normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), LONE), normalizers.Strip(),
    normalizers.Replace(LONE, " ")])

texts = ["a", "A", " a", "a ", "\ta", "ä", "Ä", "a\u0308", "\u0308", "\u0301", " ", "  ", "\n", "\r\n\t", "\u00a0", "\u3000", "\x0b", "\x0c a",
         "ﬁ", "fi", "FI", "①", "1", "²", "2", "Å", "Å", "å", "한", "\u1112\u1161\u11ab", "가", "각", "\u1100\u1161", "ＡＢＣ", "abc", "İ", "i", "I", "ı",
         "ß", "ẞ", "ss", "Σ", "σ", "ς", "Ǆ", "dž", "dz", "ﷺ", "a  b", "a b", "a\n\tb", "A\u00a0B", "Привет", "привет", "й", "и", "½", "1⁄2", "<|e|>",
         "ℌ", "h", "ﾊﾞ", "ば", "バ", "は", "ハ", "\u0915\u093c", "\u0958", "e\u0301 ", "é", "\u200b", "\u2028", "\u2028x", "x", "𝐀", "\U0001f600"]
texts += [chr(c) for c in range(0x21, 0x250)] + [chr(c) for c in range(0x370, 0x530)] + [chr(c) for c in range(0x1E00, 0x1F00)]
texts += [chr(c) for c in range(0x2100, 0x2190)] + [chr(c) for c in range(0xFF01, 0xFFEF)] + [chr(c) for c in range(0xAC00, 0xD7A4, 997)]
texts = list(dict.fromkeys(texts))
classes = {}
with open(sys.argv[1], "w") as f:
    for text in texts:
        form = normal.normalize_str(text) or text
        f.write(f"{text.encode().hex()} {classes.setdefault(form, len(classes))}\n")
