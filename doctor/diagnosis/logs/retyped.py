"""Messages that a person typed, a page set or a system translated: each is looked at once more as Python words it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from doctor.util.linear_regex import compiled

from .pattern import Pattern
from .scan import Match
from .wrapped import with_texts

_LONGEST = 1_500  # characters of a message
#: Typographic quotes and the wide punctuation of Chinese and Japanese.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4\u201c\u201d\u201e\u2033\uff02\uff07", "'"),
        **{"\uff1a": ": ", "\uff0c": ", ", "\uff08": "(", "\uff09": ")", "\uff3f": "_", "\uff0e": ".", "\u00a0": " "},
    }
)
#: What the loader of glibc says in other languages.
_NOT_OPENED = (
    "无法打开共享(?:对象|目标)文件",
    "無法開啟(?:共用|共享)(?:目的檔|物件檔)",
    "共有オブジェクトファイルを開けません",
    "공유 (?:오브젝트|목적) 파일을 열 수 없",
    "(?i:kann die shared-object-datei nicht öffnen)",
    "(?i:impossible d'ouvrir|ne peut ouvrir) le fichier d'objet partagé",
    r"no se puede abrir el (?:archivo|fichero) (?:del? )?objetos? compartid\w{1,2}",
    "não (?:foi|é) possível abrir (?:o )?arquivo (?:de objetos? )?compartilhados?",
    "impossibile aprire (?:il )?file oggetto condiviso",
    "(?:невозможно |не удаётся |не удалось )?открыть общий объектный файл",
)
_NAME = r"[A-Za-z_][\w.-]{0,120}"


def _name(typed: str) -> str:
    """Return a name without the period of a sentence."""
    return typed.rstrip(".")


def _module(typed: str) -> str:
    """Return a module where somebody wrote the package that has it."""
    return _name(typed).replace("-", "_")


_QUOTE = r"[\"'`]?\s?"
#: A name in quotes that Python does not use.
_QUOTED = r"[\"`]([\w.\[\]+-]{1,120})[\"`]"
#: Messages of Python with other quotes or none, and what it says.
_WORDINGS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    (_QUOTED, lambda found: f"'{found[1]}'"),
    ("|".join(_NOT_OPENED), lambda _: "cannot open shared object file"),
    ("未定义(?:的)?符号|未定義(?:的)?符號", lambda _: "undefined symbol"),
    (
        rf"(\bmodule |\btype object )?[\"'`]?\b({_NAME}){_QUOTE}(?:\bobject )?\s*{_QUOTE}"
        rf"\bhas no att(?:ribute|irbute|ribut)\s*{_QUOTE}({_NAME})\s?[\"'`]?",
        lambda found: (
            f"{found[1] or ''}'{found[2]}'{'' if found[1] else ' object'} has no attribute '{_name(found[3])}'"
        ),
    ),
    (rf"(?i:no module named)\s*{_QUOTE}({_NAME})[\"'`]?", lambda found: f"No module named '{_module(found[1])}'"),
    (
        rf"(?i:can(?:no|')t import name)\s*{_QUOTE}({_NAME})[\"'`]?(?: from {_QUOTE}({_NAME})[\"'`]?)?",
        lambda found: f"cannot import name '{_name(found[1])}'" + (f" from '{_module(found[2])}'" if found[2] else ""),
    ),
    (
        rf"(?i:unexpected keyword arg(?:ument)?)\s*:?\s*{_QUOTE}({_NAME})[\"'`]?",
        lambda found: f"unexpected keyword argument '{found[1]}'",
    ),
    (rf"\bname\s*[\"`]({_NAME})[\"`] is not defined", lambda found: f"name '{found[1]}' is not defined"),
)
_TYPED = (
    "no attribute|no attirbute|[Nn]o module named|NO MODULE NAMED|annot import name|unexpected keyword arg"
    "|is not defined|Error\uff1a|\u672a\u5b9a[\u4e49\u7fa9]|undefined symbol\uff1a|"
) + "|".join(_NOT_OPENED)
#: Lines that may hold a message in other words than those of Python.
TYPED = Pattern(
    _TYPED,
    (
        *("no attri", "no attir", "o module named", "NO MODULE NAMED", "annot import name", "unexpected keyword arg"),
        *("is not defined", "\uff1a", "\u672a\u5b9a", "\u5171", "\uacf5\uc720"),
        *("shared-object", "SHARED-OBJECT", "Shared-Object", "objet partag", "compart", "condiviso", "общий"),
    ),
    400,
)


def with_retyped(
    patterns: Sequence[Pattern], matches: Mapping[str, list[Match]], lines: Sequence[Match]
) -> dict[str, list[Match]]:
    """Return the matches of each pattern, with those that only show in the words of Python."""
    texts = [(line, [line.text], retyped(line.text)) for line in lines]
    return with_texts(patterns, matches, [item for item in texts if item[0].text[:_LONGEST] != item[2]])


def retyped(line: str) -> str:
    """Return a line with the quotes and words that Python and glibc use."""
    text = line[:_LONGEST].translate(_PLAIN).replace(":  ", ": ")
    for pattern, worded in _WORDINGS:
        text = compiled(pattern).sub(worded, text)
    return text
