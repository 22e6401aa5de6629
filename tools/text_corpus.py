#!/usr/bin/env python3
"""Gathers text for the tokenizer's measurements from Debian packages: text that does not repeat itself more than language does.

    python3 tools/text_corpus.py OUT [--megabytes 48]        (Debian 12 with apt-get, dpkg-deb, xz; about 250 MB of packages are fetched)

OUT/english.txt  GNU Collaborative International Dictionary, the kernel's documentation, Python's documentation
OUT/code.txt     C sources of the kernel
OUT/cjk.txt      Chinese, Japanese and Korean manual pages, help and handbooks; every line once, lines without such characters left out
OUT/unicode.txt  random characters: single code points of all planes, runs from one script, white space of all kinds, digits, punctuation
OUT/mixed.txt    the four in turn, in pieces of about 64 kB

The texts keep the licences of their packages (GPL-2+, GFDL, PSF, MPL-2.0, CC-BY-SA): they are for measuring here, not for passing on.
"""
import argparse
import gzip
import html
import lzma
import pathlib
import random
import re
import subprocess
import tarfile

ENGLISH = ["dict-gcide", "linux-doc-6.1", "python3.11-doc"]
CJK = [
    "manpages-zh", "manpages-ja", "manpages-ja-dev", "libreoffice-help-ja", "libreoffice-help-zh-cn", "libreoffice-help-zh-tw", "libreoffice-help-ko",
    "debian-handbook", "gnome-user-docs", "developers-reference-ja", "debian-reference-ja", "debian-reference-zh-cn", "aptitude-doc-ja", "edict",
]
CJK_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
TAG = re.compile(r"<(script|style).*?</\1>|<[^>]*>", re.DOTALL)


def unpack(work, package):
    folder = work / package
    if not folder.exists():
        subprocess.run(["apt-get", "download", "-q", package], cwd=work, check=True)
        deb = next(work.glob(package + "_*.deb"))
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        deb.unlink()
    return folder


def read(path):
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    return data


def as_text(path):
    """Valid UTF-8 or nothing; mark-up is left out."""
    try:
        text = read(path).decode("utf-8")
    except (UnicodeDecodeError, OSError, EOFError):
        return ""
    if path.name.endswith((".html", ".xhtml", ".page", ".html.gz")):
        text = html.unescape(TAG.sub("", text))
        text = re.sub(r"\n\s*\n+", "\n\n", text)
    return text


def english(work, limit):
    gcide, kernel, python = (unpack(work, p) for p in ENGLISH)
    parts = [read(next(gcide.rglob("gcide.dict.dz"))).decode("utf-8", errors="ignore")]
    parts += [as_text(p) for p in sorted(kernel.rglob("*.rst.gz"))]
    parts += [as_text(p) for p in sorted(python.rglob("*.html"))]
    random.Random(1).shuffle(parts)
    return cut(parts, limit)


def cut(parts, limit):
    out, size = [], 0
    for part in parts:
        size += len(part.encode())
        if size > limit:
            return "".join(out) + part[: max(0, limit - size)]
        out.append(part)
    return "".join(out)


def code(work, limit):
    folder, parts = unpack(work, "linux-source-6.1"), []
    with lzma.open(next(folder.rglob("linux-source-6.1.tar.xz"))) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        for member in tar:
            # Every eighth source, from all parts of the tree.
            if member.name.endswith(".c") and sum(member.name.encode()) % 8 == 0:
                parts.append(tar.extractfile(member).read().decode("utf-8", errors="ignore"))
    random.Random(2).shuffle(parts)
    return cut(parts, limit)


def cjk(work, limit):
    lines, seen = [], set()
    for package in CJK:
        try:
            folder = unpack(work, package)
        except subprocess.CalledProcessError:
            print(f"{package}: not found, left out")
            continue
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
            text = as_text(path) if path.suffix in (".gz", ".html", ".xhtml", ".page", ".txt") else ""
            if package == "edict" and path.name.startswith(("edict", "enamdict")) and not text:
                text = read(path).decode("euc_jp", errors="ignore") if "share/edict" in str(path) else ""
            for line in text.splitlines(keepends=True):
                if CJK_CHARACTER.search(line) and line.strip() not in seen:
                    seen.add(line.strip())
                    lines.append(line)
    blocks = ["".join(lines[i : i + 100]) for i in range(0, len(lines), 100)]
    random.Random(3).shuffle(blocks)
    return cut(blocks, limit)


def random_unicode(limit):
    rng = random.Random(4)
    scripts = [(0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x5D0, 0x5EB), (0x620, 0x650), (0x900, 0x980),
               (0xE00, 0xE7F), (0x1100, 0x1200), (0x3040, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0x1F300, 0x1F700), (0x20000, 0x20400),
               (0x300, 0x370), (0x660, 0x66A), (0x30, 0x3A), (0x2000, 0x2070), (0x21, 0x30)]
    spaces = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u180e", "   ", "\n  "]
    out, size = [], 0
    while size < limit:
        kind = rng.randrange(8)
        if kind < 4:
            low, high = rng.choice(scripts)
            piece = "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 12)))
        elif kind == 4:
            piece = chr(rng.choice([rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x110000), rng.randrange(0x20, 0x3000)]))
        elif kind == 5:
            piece = rng.choice(["'s", "'LL", "'\u017f", "n't", "'ve", "'", "...", "!!\n", "0x1f", "3.14", "12345678", "<|endoftext|>"])
        else:
            piece = rng.choice(spaces)
        out.append(piece)
        size += len(piece.encode())
    return "".join(out)


def pieces(text, size=65536):
    return [text[i : i + size] for i in range(0, len(text), size)]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--megabytes", type=int, default=48)
    args = args.parse_args()
    work = args.out / "packages"
    work.mkdir(parents=True, exist_ok=True)
    limit = args.megabytes * 1_000_000
    texts = {"english": english(work, limit), "code": code(work, limit), "cjk": cjk(work, limit), "unicode": random_unicode(limit // 4)}
    queues = [pieces(t) for t in texts.values()]
    texts["mixed"] = "".join("".join(q[i] for q in queues if i < len(q)) for i in range(max(map(len, queues))))
    for name, text in texts.items():
        data = text.encode("utf-8", errors="ignore")
        (args.out / f"{name}.txt").write_bytes(data)
        print(f"{args.out / name}.txt: {len(data) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
