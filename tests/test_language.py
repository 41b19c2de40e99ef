"""Private words stay out of code, rules, documentation and test names: what is left may only get less.

The words are those that readers of earlier releases did not understand. `KEPT` has one budget per word.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "doctor",
    "rules",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "action.yml",
    "pyproject.toml",
)
#: Pages made of captured output or of other people's words, and code that reproduces faults.
NOT_READ = ("docs/stress", "docs/output.md", "docs/h200.md")
ENDINGS = ("py", "md", "j2", "yaml")
#: Word (a regular expression) -> what to write.
WORDS = {
    r"patients?": "target environment, interpreter",
    r"could not tell|could not be told": "unknown, skipped",
    r"for want of": "missing",
    r"foretold|foretell": "predicted",
    r"mend(s|ed|ing)?": "fixed (in), fixes",
    r"cure[sd]?": "fixes",
    r"ways? out": "fixes",
    r"strikes?": "triggers",
    r"anew": "again",
    r"nobody|whoever": "no one, a noun",
    r"settled": "suppressed, resolved",
    r"told again": "reported",
    r"without a word": "silently",
    r"alarms? of ours": "false positive",
    r"told|tells?(?!\(\))": "reported, prints, says",
    r"asks?|asked|asking": "checks, queries, runs, requests",
    r"beside": "next to, in addition to",
    r"stands?": "is",
    r"lies?|lying": "is",
    r"grades?": "severity",
    r"wards?": "environment, cases",
}
#: What is left: file names, make targets, and superseded decisions. Lower a
#: number when a word goes; never raise one. A word without a number is not allowed at all.
KEPT: dict[str, int] = {
    "patients?": 1,
    "told|tells?": 1,
    "asks?|asked|asking": 3,
    "beside": 1,
}
#: Words in the names of tests, which are read like sentences.
NAMED = re.compile(
    r"_(told|tells?|asks?|asked|asking|nobody|whoever|anew|cure[sd]?|strikes?|beside|settled|stands?|lies?|lying|"
    r"mend(?:s|ed)?|foretold|patients?|wards?)(?=_|\b)"
)


def files() -> list[Path]:
    found = []
    for name in FOLDERS:
        path = ROOT / name
        found += [path] if path.is_file() else [file for ending in ENDINGS for file in path.rglob(f"*.{ending}")]
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith(NOT_READ)]


@cache
def texts() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files()}


def occurrences(word: str, text: str) -> list[int]:
    """The numbers of the lines with a word, in any case."""
    pattern = re.compile(rf"\b(?:{word})\b", re.IGNORECASE)
    if pattern.search(text) is None:  # most texts: no need to look at each line
        return []
    return [number for number, line in enumerate(text.splitlines(), 1) for _ in pattern.finditer(line)]


@pytest.mark.parametrize("word", WORDS)
def test_private_words_get_fewer(word: str) -> None:
    by_file = Counter({name: len(occurrences(word, text)) for name, text in texts().items()})
    places = ", ".join(f"{name} ({count})" for name, count in by_file.most_common(8) if count)
    assert by_file.total() <= KEPT.get(word, 0), f"write `{WORDS[word]}` instead: {places}"


def comments_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each comment and docstring of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


def test_comments_of_tests_and_scripts_are_plain_english() -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for folder in ("tests", "scripts", "bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in comments_of(path.read_text("utf-8"))
        for match in pattern.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_the_search_finds_comments() -> None:
    source = '"""Asks."""\nx = "told"  # beside it\ndef f():\n    """Tells\n    more."""\n'
    assert sorted(comments_of(source)) == [(1, "Asks."), (2, "# beside it"), (4, "Tells\n    more.")]


def test_names_of_tests_are_plain_english() -> None:
    names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
        if NAMED.search(name)
    ]
    assert not names, "\n".join(names)


def test_the_search_finds_words() -> None:
    assert occurrences("mend(s|ed|ing)?", "Mended in 2.9.\nAn amended mend mends.") == [1, 2, 2]
    assert len(files()) > 200


#: Superseded decisions and the list of other projects' files name what is not here.
OTHER_FILES = ("0004-", "0005-", "0015-", "projects.md")
#: Files of a user or of another project that documents name.
FOREIGN = {"setup.py", "packaging.py", "_compat.py", "my_kernels.py", "job.py", "train.py", "conf.py"}
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]


def missing_files(text: str) -> list[str]:
    """Return what a document names as a file of this repository and is not one."""
    own = [path for path in (ROOT / "doctor").iterdir() if path.is_dir()]
    tops = {path.name for path in (*ROOT.iterdir(), *own) if path.is_dir()}
    names = {path.name for folder in ("doctor", "tests", "scripts", "bench", "kernels", "docs") for path in
             (ROOT / folder).rglob("*.py")}  # fmt: skip
    wrong = []
    for name in re.findall(r"(?<![\w/.:@-])((?:[\w.*-]+/)*[\w*-]+\.py|(?:doctor|tests|bench|rules)/[\w/.*-]+\w)", text):
        if re.search(r"NAME|COMMAND", name) or name in FOREIGN or name.startswith("*"):
            continue
        if "/" not in name:
            wrong += [] if name in names else [name]
        elif name.split("/")[0] in tops and not any(any(base.glob(name)) for base in (ROOT, ROOT / "doctor")):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_files_that_exist(path: Path) -> None:
    if not path.name.startswith(OTHER_FILES):
        assert not missing_files(path.read_text("utf-8"))


def test_an_old_path_is_found() -> None:
    text = "`doctor/solve/wording.py`, `solver/gone.py`, `stress_command.py`, `doctor/cli/main.py`, aten/x/MHA.cpp"
    assert missing_files(text) == ["doctor/solve/wording.py", "solver/gone.py", "stress_command.py"]
