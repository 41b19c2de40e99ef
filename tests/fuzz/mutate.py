"""Mutate input files: bytes, lines, numbers and structure, with texts that break readers and outputs."""

from __future__ import annotations

import random
import re

#: Texts that a reader, a terminal, a CI log, a page or a shell could take for something else.
TOKENS = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        "\x1b[31mX", "\x1b]0;title\x07", "\x9b2J", "\x00", "\r", "\r\n", "\u2028", "\u202eabc", "\ufeff", "\ud800", "\x7f",
        "\n::error file=a::x", "\n  ::set-output name=a::b", "##[error]x", "%0A::error::x",
        "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "]]>", "<!--", "&lt;", "&#0;", "{{7*7}}", "{% raw %}",
        "`id`", "$(touch PWNED)", "; touch PWNED", "' || touch PWNED #", "| sh", "[a](javascript:alert(1))", "@team",
        "../../../etc/passwd", "/etc/passwd", "/dev/zero", "~/.netrc", "file:///etc/passwd", "https://bob:hunter2SECRET@h.example/x",
        "https://hunter2SECRETtoken@h.example/x.whl", "hf_hunter2SECREThunter2", "9" * 5000, "-1", "0", "1e999", "NaN", "-0.0",
        "18446744073709551616", "0x7f", "1_0", "\u0661\u0662", "2.6.0.dev0+git", "2!1.0", "==", "===x", "~=1", ">=", "<", "!=1.*", "*",
        ".0", "1..2", "1.0.", "v1", "cu999", "sm_90", "compute_90", "8.6-real", "9.0a+PTX", "all", "Hopper", "absent", "null",
        "true", "~", "[", "]", "{", "}", "(" * 200, ")" * 200, "[" * 3000, "{" * 300, "'" , '"', '"""', "'''", "\\", "\\\n", "#", "---\n", "...\n",
        "&a [*a, *a]", "*a", "<<: *a", "!!python/object/apply:os.system ['touch PWNED']", "? ", "- ", ": ", "|", ">", "%YAML 9.9",
        "a." * 70 + "a", "[[a]]", "[a.b]", "=", ",", ";", "\t", " " * 500, "a" * 5000, "; python_version < '../x'",
        "; extra == 'x'", "python_version in '3'", "-r x.txt", "-c x.txt", "--hash=sha256:zz", "${X}", "${A:-${A}}", "$A$A", "<<EOF\n",
        "FROM scratch", "RUN ", "ENV A=B", "if true; then", "fi", "\u00e9", "\U0001f600",
    )
)  # fmt: skip
_NUMBER = re.compile(rb"\d+")
_WORD = re.compile(rb"[A-Za-z_][\w-]*")


def mutated(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return a copy with a few changes; parts of other files of the corpus may be spliced in."""
    for _ in range(random_.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        data = random_.choice(_MUTATIONS)(random_, data, others)
    return data[: 1 << 20]


def _place(random_: random.Random, data: bytes) -> int:
    return random_.randrange(len(data) + 1)


def _flip(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    if not data:
        return data
    at = random_.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random_.randrange(8)]) + data[at + 1 :]


def _insert(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = _place(random_, data)
    return data[:at] + random_.choice(TOKENS) + data[at:]


def _replace_word(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    words = list(_WORD.finditer(data)) or None
    if words is None:
        return data
    word = random_.choice(words)
    new = random_.choice(TOKENS) if random_.random() < 0.6 else random_.choice(words)[0]
    return data[: word.start()] + new + data[word.end() :]


def _replace_number(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = random_.choice(numbers)
    new = random_.choice((b"0", b"-1", b"9" * 30, b"9" * 5000, b"1.5", b"", b"x", b"65536", b"1e9", b"00", b"\xd9\xa1"))
    return data[: number.start()] + new + data[number.end() :]


def _cut(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    one, two = sorted((_place(random_, data), _place(random_, data)))
    return data[:one] if random_.random() < 0.3 else data[:one] + data[min(two, one + random_.randrange(1, 80)) :]


def _repeat(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = _place(random_, data)
    part = data[at : at + random_.choice((1, 5, 20, 100, 1000))]
    return data[:at] + part * min(random_.choice((2, 3, 50, 1000)), 200_000 // (len(part) + 1)) + data[at:]


def _lines(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    lines = data.split(b"\n")
    one, two = random_.randrange(len(lines)), random_.randrange(len(lines))
    kind = random_.randrange(4)
    if kind == 0:
        lines[one], lines[two] = lines[two], lines[one]
    elif kind == 1:
        lines.insert(one, lines[two])
    elif kind == 2:
        del lines[one]
    else:
        lines[one] = b" " * random_.randrange(9) + lines[one].strip()
    return b"\n".join(lines)


def _splice(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
    other = random_.choice(others)
    at, begin = _place(random_, data), _place(random_, other)
    return data[:at] + other[begin : begin + random_.choice((10, 100, 1000))] + data[at:]


_MUTATIONS = (
    _flip,
    _insert,
    _insert,
    _insert,
    _replace_word,
    _replace_word,
    _replace_number,
    _cut,
    _repeat,
    _lines,
    _splice,
)
