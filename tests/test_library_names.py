"""What one library is called and does is knowledge of `rules/`: the code names fewer libraries, never more."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "release"))

from library_names import library_names, names_by_file, texts  # noqa: E402 - a script, not a package

#: Names in all of `doctor/`. This number may only shrink: lower it with every table that moves to a `library.yaml`.
MOST_NAMES = 173


def test_the_code_names_no_more_libraries_than_before() -> None:
    found = names_by_file(ROOT)
    count = sum(map(len, found.values()))
    largest = sorted(found, key=lambda path: -len(found[path]))[:5]
    assert count <= MOST_NAMES, f"{count} names; describe the library in its library.yaml ({', '.join(largest)})"
    assert count > MOST_NAMES - 40, f"{count} names are left: lower MOST_NAMES to that"


def test_names_count_and_docstrings_do_not() -> None:
    names = library_names(ROOT)
    assert {"torch", "vllm", "flash-attn", "TransformerEngine"} <= names and "index" not in names
    source = '"""torch"""\ndef f():\n    """vllm"""\n    return ["torch", f"{x} vllm", "torch>=2"]\n'
    assert [text for _, text in texts(ast.parse(source)) if text in names] == ["torch"]
