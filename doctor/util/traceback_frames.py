"""The frames of a traceback in a log: which file the code that failed is in."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A frame of a traceback, as Python, IPython and Rich print it; Rich may break the line before its number. IPython
#: before 8 prints no number, and Colab a link.
_FRAME = re.compile(
    r"(?:File |^(?:│ )?)(?:\\?\")?((?:[A-Z]:)?[^\"\s:][^\"\n:]{0,400}\.pyx?)(?:\\?\")?"
    r"(?:(?:, line |:(?:\s*│\s*│\s*)?)(?P<number>\d+)|(?:\]\([^)\n]{0,300}\))?"
    r" in (?=[\w<>]+(?:\(|$)|<cell))",
    re.MULTILINE,
)
#: A cell of a notebook, which is no file.
_CELL = re.compile(
    r"<ipython-input-[\w-]+>(?= in |\]\()|^Cell In ?\[\d+\], line \d+|^│ in <cell line: \d+>", re.MULTILINE
)
CELL = "<cell>"
#: Frames that only pass a call on: the frame before them is the one that says whose code failed.
_PASSING = re.compile(
    r"torch/(?:nn/modules/module|nn/parallel/\w+|utils/_contextlib|utils/_python_dispatch|autograd/function|_ops"
    r"|_dynamo/eval_frame|_dynamo/external_utils|_compile|utils/checkpoint)\.py$"
    r"|/(?:contextlib|functools|runpy|threading|importlib/\w+|concurrent/futures/\w+|multiprocessing/\w+)\.py$"
)

#: Functions that look a member up for the frame before them.
_LOOKUP = re.compile(r"(?:, | )?(?:in )?(?:\w+\.)?__getattr(?:ibute)?__\b")
_FUNCTION = re.compile(r",? ?(?:in )?(?P<function>[\w<>.]+)[^\n]{0,200}(?:\n(?P<code>[^\n]{0,400}))?")


@dataclass(frozen=True)
class Frame:
    """One frame: the file, with `/` in paths of Windows too, the line, the function and the source text, if shown."""

    file: str
    line: int
    function: str = ""
    code: str = ""

    @property
    def passes_on(self) -> bool:
        """Whether it only passes a call on."""
        return _PASSING.search(self.file) is not None


def last_frame(before: str) -> str:
    """Return the file of the last frame of a traceback that does not only pass a call on, or CELL; empty if none."""
    frames = [found for found in _FRAME.finditer(before) if not _LOOKUP.match(before, found.end())]
    files = [(found.start(), found[1].replace("\\", "/")) for found in frames]
    files += [(found.start(), CELL) for found in _CELL.finditer(before)]
    return next((file for _, file in sorted(files, reverse=True) if not _PASSING.search(file)), "")


def frames_of(before: str) -> tuple[Frame, ...]:
    """Return the frames of the tracebacks in a text, in order; a function that looks a member up is left out."""
    found = []
    for frame in _FRAME.finditer(before):
        if _LOOKUP.match(before, frame.end()):
            continue
        rest = _FUNCTION.match(before, frame.end())
        function = rest["function"] if rest else ""
        code = (rest["code"] or "").strip() if rest else ""
        code = "" if code.startswith("File ") else code
        found.append(Frame(frame[1].replace("\\", "/"), int(frame["number"] or 0), function, code))
    return tuple(found)
