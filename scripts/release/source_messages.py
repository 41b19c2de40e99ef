"""The messages that C++ and CUDA sources raise: text, function and the condition of each check.

Libraries check with macros of their own, all of two forms: `CHECK(condition, text, value, ...)` and
`CHECK(condition) << text << value`; what only throws has its condition in the `if` before it. The sources are read as
text: no compiler, no preprocessor.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from doctor.util.raise_sites import HOLE, LONGEST, LONGEST_GUARD, Site

#: Macros that raise where their first argument does not hold.
_CHECKS = (
    r"(?:STD_)?TORCH_CHECK(?:_\w+)?|TORCH_INTERNAL_ASSERT|AT_ASSERTM|NVTE_CHECK|FLASHINFER_CHECK|XFORMERS_CHECK"
    r"|NATTEN_CHECK|TVM_FFI_I?CHECK(?:_\w+)?|HOST_ASSERT|DG_HOST_ASSERT|EP_HOST_ASSERT"
)
#: Macros that raise where their first argument holds; the second is a code.
_REFUSALS = r"RETURN_CUDNN_FRONTEND_ERROR_IF"
#: What raises without a condition.
_THROWS = (
    r"NVTE_ERROR|AT_ERROR|FLASHINFER_ERROR|TVM_FFI_THROW|TVM_FFI_LOG_AND_THROW"
    r"|runtime_error|invalid_argument|logic_error"
)
_CALL = re.compile(rf"\b(?:(?P<check>{_CHECKS})|(?P<refusal>{_REFUSALS})|(?P<throw>{_THROWS}))\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LITERAL = re.compile(r'(?:\bu8)?"((?:[^"\\\n]|\\.)*)"')
_LITERALS = re.compile(r'(?:(?:\bu8)?"(?:[^"\\\n]|\\.)*"\s*)+')
_STREAMED = re.compile(r"\s*<<")
_IF = re.compile(r"if\s*(?:constexpr\s*)?(\([^;{}]{1,300}\))\s*\{?\s*(?:throw\s+)?(?:std::)?$")
_FUNCTION = re.compile(
    r"^(?:template[^\n]*\n)?[ \t]{0,4}(?:[A-Za-z_][\w:<>,&*\[\] \t]*[\s*&])?(?P<name>[A-Za-z_]\w*)\s*"
    r"\((?:[^;{}()]|\([^;{}()]*\))*\)\s*(?:const\s*|noexcept\s*|->[^;{}\n]*)*\{",
    re.MULTILINE,
)
_NO_FUNCTION = frozenset(["if", "for", "while", "switch", "catch", "else", "return", "defined"])
_COMPARED = re.compile(r"\s(==|!=|<=|>=|<|>)\s")
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_CODE = re.compile(r"[\w:]*(?:error|cudnn|status)\w*(?:::\w+)*", re.IGNORECASE)
_LONGEST_CALL = 3_000  # characters


def source_messages(content: bytes) -> Iterator[Site]:
    """Yield what a source file raises, in its order."""
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), content.decode("utf-8", "replace"))
    starts, names = [], []
    for found in _FUNCTION.finditer(text):
        if found["name"] not in _NO_FUNCTION:
            starts.append(found.start("name"))
            names.append(found["name"])
    for call in _CALL.finditer(text):
        end = _closing(text, call.end())
        if end is None or _is_defined(text, call.start()):
            continue
        arguments = _split(text[call.end() : end], ",")
        streamed = _streamed(text, end + 1)
        guard, parts = _read(call, text, arguments, streamed)
        template = "".join(_template(part) for part in parts)
        if not _LITERAL.search(" ".join(parts)):
            continue
        at = bisect_right(starts, call.start()) - 1
        line = text.count("\n", 0, call.start()) + 1
        kept = template[:LONGEST]
        kept = kept[: kept.rfind(HOLE)] if kept.count(HOLE) % 2 else kept
        yield Site(kept, names[at] if at >= 0 else "", guard[:LONGEST_GUARD], line, line)


def _read(call: re.Match[str], text: str, arguments: list[str], streamed: list[str]) -> tuple[str, list[str]]:
    """Return the condition on which a call raises, and the parts of its message."""
    if call["check"]:
        compared = re.search(r"CHECK_(EQ|NE|LT|LE|GT|GE)$", call["check"])
        if compared is not None and len(arguments) > 1:
            opposite = {"EQ": "!=", "NE": "==", "LT": ">=", "LE": ">", "GT": "<=", "GE": "<"}[compared[1]]
            return f"{_plain(arguments[0])} {opposite} {_plain(arguments[1])}", [*arguments[2:], *streamed]
        condition = _plain(arguments[0])
        return "" if condition in ("false", "0") else negated(condition), [*_messages(arguments[1:]), *streamed]
    if call["refusal"]:
        return _plain(arguments[0]), arguments[2:]
    condition = _IF.search(text[max(call.start() - 400, 0) : call.start()])
    return _plain(condition[1][1:-1]) if condition else "", [*_messages(arguments), *streamed]


def _messages(arguments: list[str]) -> list[str]:
    """Return the arguments without a code before the text."""
    return [part for at, part in enumerate(arguments) if at or not _CODE.fullmatch(part.strip())]


def negated(condition: str) -> str:
    """Return the opposite of a condition in C++, as source."""
    if "&&" not in condition and "||" not in condition:
        compared = _COMPARED.findall(condition)
        if len(compared) == 1:
            return _COMPARED.sub(f" {_OPPOSITE[compared[0]]} ", condition)
        if condition.startswith("!"):
            return condition[1:].strip("() ") if condition.count("(") < 2 else condition[1:]
    return f"not ({condition})"


def _template(part: str) -> str:
    """Return the text of one argument, with the code of values between marks."""
    joined = part.strip()
    if _LITERALS.fullmatch(joined):
        return _unescaped("".join(_LITERAL.findall(joined)))
    if "+" in joined and _LITERAL.search(joined):
        return "".join(_template(piece) for piece in _split(joined, "+"))
    if joined.startswith("#"):  # the name of a macro's argument, in quotes
        name, rest = re.match(r"#\s*(\w*)\s*(.*)", joined, re.DOTALL).groups()  # type: ignore[union-attr]
        return f"{HOLE}{name}{HOLE}{_template(rest) if rest else ''}"
    return f"{HOLE}{_plain(joined)[:60]}{HOLE}"


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t").replace("\\\\", "\\")


def _plain(code: str) -> str:
    return re.sub(r"\s+", " ", code).strip()


def _closing(text: str, at: int) -> int | None:
    """Return where the parenthesis closes that is open before a place; None where it is far."""
    depth, end = 1, min(len(text), at + _LONGEST_CALL)
    while at < end:
        literal = _LITERAL.match(text, at)
        if literal is not None:
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
        at += 1
    return None


def _split(code: str, separator: str) -> list[str]:
    """Return the parts between separators outside of any bracket and literal; `<` opens none."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(code):
        literal = _LITERAL.match(code, at)
        if literal is not None:
            at = literal.end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(code[at], 0)
        if not depth and code.startswith(separator, at):
            parts.append(code[start:at])
            at = start = at + len(separator)
            continue
        at += 1
    return [*parts, code[start:]]


def _streamed(text: str, at: int) -> list[str]:
    """Return what is streamed into a call that ends before a place."""
    if _STREAMED.match(text, at) is None:
        return []
    end = text.find(";", at, at + _LONGEST_CALL)
    return _split(text[at : max(end, at)], "<<")[1:]


def _is_defined(text: str, at: int) -> bool:
    """Return whether a macro is defined there, not called."""
    return re.search(r"#\s*(?:define|ifdef|ifndef|undef)\s+$", text[max(at - 20, 0) : at]) is not None
