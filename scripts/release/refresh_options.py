"""Rebuild rules/index/attention_options.json: the options of trainers and servers that bear on attention.

    python scripts/release/refresh_options.py [--folder DIR] [NAME==VERSION ...]

Releases are downloaded without their dependencies, read as archives and never installed. Options come from the syntax
tree: fields of classes of arguments (dataclasses, pydantic) and `add_argument` of argparse. An option belongs to the
table where its name has a word of attention. `default`, `choices` and the releases that were read are kept; what is no
longer in a library stays with the last release that has it.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.version import Version  # noqa: E402

from doctor.errors import DoctorError  # noqa: E402
from doctor.packages.archives import fetch_archive, published_releases  # noqa: E402
from doctor.rulebook.authoring.release_files import members  # noqa: E402
from doctor.sources.attention_options import ATTENTION  # noqa: E402

TABLE = ROOT / "rules" / "index" / "attention_options.json"
#: Package -> parts of the paths of the files that define options.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "transformers": ("training_args", "generation/configuration_utils", "cli/"),
    "trl": ("_config.py", "scripts/", "trainer/"),
    "accelerate": ("commands/", "utils/dataclasses"),
    "llamafactory": ("hparams/", "v1/config/"),
    "axolotl": ("utils/schemas/", "integrations/"),
    "ms-swift": ("arguments/", "megatron/"),
    "openrlhf": ("cli/",),
    "verl": ("config", "workers/"),
    "sglang": ("server_args", "arg_groups/"),
    "vllm": ("engine/arg_utils", "config/"),
    "lmdeploy": ("cli/", "messages"),
    "megatron-core": ("arguments", "transformer_config", "training/config"),
    "xtuner": ("config", "v1/"),
    "deepspeed": ("runtime/config", "runtime/zero/config", "inference/config", "sequence"),
    "nemo-toolkit": ("nlp/models", "collections/llm", "lightning/"),
    "diffusers": ("models/attention_dispatch", "models/attention_processor", "quantizers/"),
    "torchtitan": ("config", "models/"),
    "megatron-bridge": ("training/config", "models/"),
}
_ENDS = ("Config", "Arguments", "Args", "Mixin", "Schema", "Options", "Params", "Config_")
_SWITCHES = {"store_true": False, "store_false": True}

Option = dict[str, Any]


def main() -> None:
    """Read the releases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/options"), help="where archives are kept")
    parser.add_argument("releases", nargs="*", help="instead of the newest release of every library")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for name in given.releases or LIBRARIES:
        try:
            library, version = _release(name)
            archive = _archive(library, version, given.folder)
        except DoctorError as problem:
            print(f"{name}: {problem.message}", file=sys.stderr)
            continue
        if library in LIBRARIES:
            found = dict(sorted(_options(archive, LIBRARIES[library]).items()))
            if found:
                _merge(table.setdefault(library, {}), version, found)
            print(f"{library} {version}: {len(found)} options", file=sys.stderr)
    lines = [f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table)]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _release(requirement: str) -> tuple[str, str]:
    """Return package and version of `NAME==VERSION`; of a name alone the newest release that is no candidate."""
    name, _, version = requirement.partition("==")
    if version:
        return name, version
    final = [release for release in published_releases(name) if not Version(release).is_prerelease]
    if not final:
        raise DoctorError(f"`{name}` has no release")
    return name, final[-1]


def _archive(name: str, version: str, folder: Path) -> Path:
    """Return the archive of a release, fetched where the folder has none; nothing of it runs."""
    file = name.replace("-", "_")
    found = sorted(folder.glob(f"**/{file}-{version}[-.]*"))
    return found[0] if found else fetch_archive(name, version, folder)


def _options(archive: Path, wanted: tuple[str, ...]) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for name, content in members(archive, ("**/*.py",)):
        if any(part in name for part in wanted):
            try:
                tree = ast.parse(content.decode("utf-8", "replace"))
            except (SyntaxError, ValueError):
                continue
            for option, about in _of_tree(tree):
                if ATTENTION.search(option):
                    found.setdefault(option, about)
    return found


def _of_tree(tree: ast.AST) -> Iterator[tuple[str, Option]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith(_ENDS):
            yield from _fields(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield from _argument(node)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Option]]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            about: Option = {}
            if (default := _default(item.value)) is not None:
                about["default"] = default
            if choices := _choices(item.annotation):
                about["choices"] = choices
            yield item.target.id, about


def _argument(node: ast.Call) -> Iterator[tuple[str, Option]]:
    words = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    keywords = {item.arg: item.value for item in node.keywords if item.arg}
    about: Option = {}
    action = keywords.get("action")
    switch = _SWITCHES.get(str(action.value)) if isinstance(action, ast.Constant) else None
    default = _default(keywords["default"]) if "default" in keywords else switch
    if default is not None:
        about["default"] = default
    if isinstance(keywords.get("choices"), (ast.List, ast.Tuple)):
        about["choices"] = _constants(keywords["choices"])
    for word in words:
        if word.startswith("--"):
            yield word.lstrip("-").replace("-", "_"), about


def _default(node: ast.expr | None) -> Any:
    """Return a constant default, also of `field(default=...)` and `Field(...)`; None where there is none."""
    if isinstance(node, ast.Call):
        named = next((item.value for item in node.keywords if item.arg == "default"), None)
        return _default(named if named is not None else node.args[0] if node.args else None)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool)) else None


def _choices(annotation: ast.expr) -> list[Any]:
    """Return the texts of the `Literal` of an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", getattr(node.value, "attr", "")) == "Literal":
            return _constants(node.slice)
    return []


def _constants(node: ast.AST) -> list[Any]:
    items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    return [item.value for item in items if isinstance(item, ast.Constant) and item.value is not None]


def _merge(table: dict[str, Option], version: str, found: dict[str, Option]) -> None:
    """Add a release: each option keeps the first and the last release read that has it."""
    for name, about in found.items():
        before = table.get(name, {"first": version, "last": version})
        first, last = (sorted((before[key], version), key=Version)[at] for key, at in (("first", 0), ("last", -1)))
        newest = about if last == version else {key: before[key] for key in ("default", "choices") if key in before}
        kept = {key: before[key] for key in ("without_effect",) if key in before}
        table[name] = {**newest, **kept, "first": first, "last": last}


if __name__ == "__main__":
    main()
