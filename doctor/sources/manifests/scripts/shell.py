"""Split shell text into commands and words with their lines, as far as installs and variables need it.

Nothing is run. Commands in a branch are marked as uncertain; values that only a running shell knows are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from doctor.sources.variables import UNKNOWN

Part = tuple[str, str]  # (literal | quoted | plain, text)
LONGEST_VALUE = 1 << 16  # characters: a variable that doubles in each line counts as unknown

_TOKEN = re.compile(
    r"""(?P<joined>\\\r?\n)
    | (?P<escaped>\\.)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.|\\\n)*)"
    | (?P<run>\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`)
    | (?P<braced>\$\{[^{}]*\}|\$\{[^{}]*\{[^{}]*\}[^{}]*\})
    | (?P<variable>\$(?:[A-Za-z_]\w*|[0-9@*\#?!$-]))
    | (?P<heredoc><<-?\s*(?P<q>['"\\]?)(?P<tag>\w+)(?P=q)?)
    | (?P<redirect>[0-9]*(?:&>>?|>>|>\||<<<|[<>])(?:&[0-9-])?)
    | (?P<operator>&&|\|\||;;|[;|&()])
    | (?P<newline>\r?\n)
    | (?P<space>[ \t\f\v\r]+)
    | (?P<plain>[^\s\\'"$`<>|&;()]+|.)""",
    re.VERBOSE,
)
_SIMPLE = re.compile(r"([^\\'\"$`<>|&;()#\n]*)\n")  # a line of plain words
_NAME = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*|[0-9])|\{(?P<name>[A-Za-z_]\w*|[0-9]+)(?P<how>:?[-+=?])?(?P<other>.*?)\}|[@*#?$!-])"
)
_ARRAY = re.compile(r"([A-Za-z_]\w*)\+?=")
_ITEMS = re.compile(r"\$\{[A-Za-z_]\w*\[[@*]\]\}")  # in quotes too, one word for each item
_QUOTED = re.compile(r"([\"'])(.*)\1", re.DOTALL)  # of `${NAME:-"a default"}`
_RUN = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")
_OPENS = {"if": True, "case": True, "while": True, "until": True, "select": True, "for": False}  # whether it branches
_CLOSES = ("fi", "esac", "done")
_LEAD = ("then", "else", "elif", "do", "{", "!", "time", "if", "while", "until")
_TESTS = ("[", "[[", "test", "command", "which", "grep", "type", "true", "false")


class Word(NamedTuple):
    """One word as written, in the line where it begins."""

    line: int
    parts: tuple[Part, ...]

    @property
    def assigns(self) -> bool:
        """Return whether it begins as `NAME=`."""
        return self.parts[0][0] == "plain" and _ARRAY.match(self.parts[0][1]) is not None

    def expanded(self, variables: Mapping[str, str | None], *, leads: bool = False) -> list[str]:
        """Return what the shell expands it to: several words, or none, where an unquoted variable holds blanks.

        leads: only assignments come before it; the value of one stays whole.
        """
        assigns = leads and self.assigns
        if len(self.parts) == 1 and self.parts[0][0] == "plain" and not re.search(r"[$`]", self.parts[0][1]):
            return [self.parts[0][1]]
        words, fresh, length = [""], True, 0
        for kind, text in self.parts:
            value = text if kind == "literal" else substituted(text, variables)
            length += len(value) if value is not text else 0
            if length > LONGEST_VALUE:
                return [UNKNOWN]
            whole = assigns or (kind == "quoted" and not _ITEMS.fullmatch(text))
            if whole or kind == "literal" or "$" not in text:
                words[-1] += value
                fresh = fresh and kind == "plain" and not value
                continue
            pieces = re.split(r"\s+", value)
            words[-1] += pieces[0]
            words += pieces[1:]
        return [word for word in words if word or not fresh]


class Command(NamedTuple):
    """One simple command."""

    line: int
    words: tuple[Word, ...]
    certain: bool  # it runs on every machine
    after: str = ""  # the operator before it
    heredoc: str | None = None  # its input from the following lines
    heredoc_line: int = 0
    to_file: str | None = None  # the file its output goes to
    array: str | None = None  # `NAME=` or `NAME+=` where the words are the items of an array


def substituted(text: str, variables: Mapping[str, str | None]) -> str:
    """Return the text with `$NAME` and `${NAME:-default}` replaced; UNKNOWN for what only a running shell knows."""

    length = len(text)

    def value(match: re.Match[str]) -> str:
        nonlocal length
        found = looked_up(match) if length <= LONGEST_VALUE else ""
        length += len(found)
        return found

    def looked_up(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"]
        if name is None or (name.isdigit() and name not in variables and not match["how"]):
            return UNKNOWN  # $@, or a parameter that only the call knows
        found = variables.get(name, None if match["how"] is None else "")
        given = name in variables
        how, other = match["how"] or "", _QUOTED.sub(r"\2", match["other"] or "")
        if other in ("[@]", "[*]"):
            items = variables.get(f"{name}[@]")
            return UNKNOWN if items is None else items
        if not how and other:
            return UNKNOWN  # ${NAME%.*} and similar
        if how in (":-", "-", ":=", "="):
            if given and found is None:
                return UNKNOWN
            return found if given and (found or ":" not in how) else substituted(other, variables)  # type: ignore[return-value]
        if how in (":+", "+"):
            return substituted(other, variables) if given and (found or ":" not in how) else ""
        return UNKNOWN if found is None else found

    if "$" not in text and "`" not in text:
        return text
    replaced = _NAME.sub(value, _RUN.sub(UNKNOWN, text))
    return replaced if length <= LONGEST_VALUE else UNKNOWN


def commands(text: str, first_line: int = 1) -> Iterator[Command]:
    """Yield every simple command of a script, in order."""
    yield from _Reader(text, first_line).commands()


class _Reader:
    """One pass over the tokens of a script."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text, self.line = text, first_line
        self.open: list[bool] = []  # constructs not closed yet: whether each is a branch
        self.tested = False  # an earlier command of this chain only tests
        self.after = ""

    def commands(self) -> Iterator[Command]:
        words: list[Word] = []
        parts: list[Part] = []
        begun = self.line
        below: tuple[str, int] | None = None  # text of a heredoc, and the position behind it
        target: list[str] | None = None  # a redirection whose file comes next
        to_file: str | None = None
        array: str | None = None  # open: `NAME=` before the parenthesis
        position, end = 0, len(self.text)
        while position <= end:
            fresh = not parts and not words and below is None and array is None
            if fresh and (simple := _SIMPLE.match(self.text, position)):
                words = [Word(self.line, (("plain", word),)) for word in simple[1].split()]
                position = simple.end()
                if words:
                    yield from self._command(words, None, None, 0)
                    self._between("")
                self.line += 1
                words, to_file, target = [], None, None
                continue
            match = _TOKEN.match(self.text, position) if position < end else None
            kind = match.lastgroup if match else "newline"
            kind = "heredoc" if kind in ("q", "tag") else kind
            whole = match[0] if match else ""
            position = match.end() if match else end + 1
            if kind == "plain" and whole[0] == "#" and not parts:
                skipped = self.text.find("\n", position)
                position = end if skipped < 0 else skipped
                continue
            part = _part(kind, match)
            if part is not None:
                if not parts:
                    begun = self.line
                parts.append(part)
                self.line += whole.count("\n")
                continue
            opens = whole == "(" and len(parts) == 1 and _ARRAY.fullmatch(parts[0][1])
            if opens and all(word.parts[0][1] in _LEAD for word in words):
                array, parts, words = parts[0][1], [], []
                continue
            if parts:
                word = Word(begun, tuple(parts))
                if target is None:
                    words.append(word)
                else:
                    to_file = "".join(text for _, text in parts)
                    target = None
                parts = []
            if array is not None and match is not None:
                if whole == ")":
                    yield Command(self.line, tuple(words), self._certain(), array=array)
                    words, array = [], None
                self.line += kind in ("newline", "joined")
                continue
            if kind == "redirect":
                target = None if re.search(r"&[0-9-]$", whole) else []
            elif kind == "heredoc" and match is not None:
                line_end = self.text.find("\n", position)
                below = self._below(match["tag"], below[1] if below else end if line_end < 0 else line_end + 1)
            elif kind in ("newline", "operator"):
                complete = bool(words)  # a line may end in `&&`
                if complete:
                    body = below[0] if below else None
                    yield from self._command(words, to_file, body, self.line + 1)
                if kind == "newline":
                    self.line += 1 if whole else 0
                    if below is not None:
                        self.line += self.text.count("\n", position, below[1])
                        position, below = below[1], None
                words, to_file, target = [], None, None
                if kind == "operator" or complete or self.after not in ("&&", "||", "|"):
                    self._between(whole if kind == "operator" else "")
            elif kind == "joined":
                self.line += 1

    def _below(self, tag: str, position: int) -> tuple[str, int]:
        """Return the text up to the line of the tag, and the position behind it."""
        found = re.compile(rf"^[\t ]*{re.escape(tag)}[ \t\r]*$", re.MULTILINE).search(self.text, position)
        if found is None:
            return self.text[position:], len(self.text)
        return self.text[position : found.start()], min(found.end() + 1, len(self.text))

    def _between(self, operator: str) -> None:
        self.after = operator
        if operator not in ("&&", "||"):
            self.tested = False

    def _certain(self) -> bool:
        return True not in self.open and not self.tested

    def _command(
        self, words: Sequence[Word], to_file: str | None, heredoc: str | None, heredoc_line: int
    ) -> Iterator[Command]:
        words = list(words)
        while words and len(words[0].parts) == 1 and words[0].parts[0][0] == "plain":
            first = words[0].parts[0][1]
            if first in _OPENS:
                self.open.append(_OPENS[first])
            elif first in _CLOSES and self.open:
                self.open.pop()
            if first not in _LEAD and first not in _CLOSES:
                break
            words = words[1:]
        if not words:
            return
        fallback = self.after == "||" and not self.tested
        yield Command(
            words[0].line, tuple(words), self._certain() and not fallback,
            "||" if fallback else self.after, heredoc, heredoc_line, to_file,
        )  # fmt: skip
        first = words[0].parts[0][1]
        self.tested = self.tested or first in _TESTS


def _part(kind: str | None, match: re.Match[str] | None) -> Part | None:
    if match is None:
        return None
    if kind == "single":
        return "literal", match["single"]
    if kind == "double":
        return "quoted", re.sub(r"\\([\"\\`\n])", lambda found: found[1].strip("\n"), match["double"])
    if kind == "escaped":
        return "literal", match[0][1]
    return ("plain", match[0]) if kind in ("plain", "variable", "run", "braced") else None
