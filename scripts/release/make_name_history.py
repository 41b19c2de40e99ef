"""Write rules/index/name_history.json.gz: in which releases of transformers a name of its modules exists.

    python scripts/release/make_name_history.py FOLDER_OF_WHEELS

The wheels are read as archives; nothing of them is installed or run. Names that all of the releases have are left out.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

OUT = Path(__file__).resolve().parents[2] / "rules" / "index" / "name_history.json.gz"
PACKAGE = "transformers"
#: Models whose names other packages import or patch; those of the others are seldom imported.
MODELS = (
    "auto", "bert", "bloom", "clip", "falcon", "gemma", "gemma2", "gpt2", "gpt_neox", "gptj", "llama", "mistral",
    "mixtral", "opt", "phi", "phi3", "qwen2", "qwen2_vl", "t5", "whisper",
)  # fmt: skip
SHORTEST = 4  # characters of a name


def names_of(wheel: Path) -> set[str]:
    """Return the names that the modules of a wheel define at their top."""
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            model = re.match(rf"{PACKAGE}/models/(\w+)/", member)
            skipped = "/deprecated/" in member or "/dummy_" in member or (model and model[1] not in MODELS)
            if member.startswith(f"{PACKAGE}/") and member.endswith(".py") and not skipped:
                found.update(defined(ast.parse(archive.read(member)).body))
    return {name for name in found if len(name) >= SHORTEST and not name.startswith("__")}


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define, also below `if` and `try`."""
    for item in body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield item.name
        elif isinstance(item, ast.Assign):
            yield from (target.id for target in item.targets if isinstance(target, ast.Name))
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.If):
            yield from defined([*item.body, *item.orelse])
        elif isinstance(item, ast.Try):
            yield from defined(item.body)


def main() -> None:
    """Read all wheels of a folder and write the history."""
    wheels = {Version(path.name.split("-")[1]): path for path in Path(sys.argv[1]).glob(f"{PACKAGE}-*.whl")}
    releases = sorted(wheels)
    having: dict[str, list[int]] = {}
    for number, release in enumerate(releases):
        for name in names_of(wheels[release]):
            having.setdefault(name, []).append(number)
    newest = len(releases) - 1
    names = {
        name: [numbers[0], numbers[-1]]
        for name, numbers in sorted(having.items())
        if (numbers[0], numbers[-1]) != (0, newest) and len(numbers) == numbers[-1] - numbers[0] + 1
    }
    content = {PACKAGE: {"releases": [str(release) for release in releases], "names": names}}
    OUT.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    print(f"{len(names)} names of {len(releases)} releases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
