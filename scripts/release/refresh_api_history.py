"""Rebuild rules/index/api_history.json.gz: interfaces of callees over their releases, and which callers break.

    python scripts/release/refresh_api_history.py [--cache DIR] [--only NAME | --callers]

No release is installed or built. Releases that are in the cache are not fetched again. Only what changes is written: a
symbol has one entry for each release that changes it.

`--callers` analyzes the releases of some callers, those of the registry and those in the cache, against some releases
of their callee. For each broken use it writes the caller's release that fixes it.
"""

from __future__ import annotations

import argparse
import ast
import gc
import gzip
import json
import re
import subprocess
import sys
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.version import Version  # noqa: E402

from doctor.drift.analysis import analyze_caller  # noqa: E402
from doctor.drift.classes import return_lengths  # noqa: E402
from doctor.drift.collector import breaks  # noqa: E402
from doctor.drift.download import fetch_release  # noqa: E402
from doctor.drift.history import use_key  # noqa: E402
from doctor.drift.signatures import signature_of  # noqa: E402
from doctor.drift.sources import Environment  # noqa: E402
from doctor.drift.values import Function  # noqa: E402
from doctor.errors import DoctorError  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402

#: Callee, its first release of interest, and the files whose names are kept.
CALLEES: dict[str, tuple[str, tuple[str, ...]]] = {
    "flash-attn": ("2.0.0", (
        "flash_attn/__init__.py", "flash_attn/flash_attn_interface.py", "flash_attn/bert_padding.py",
        "flash_attn/flash_attn_triton.py", "flash_attn/layers/rotary.py", "flash_attn/losses/cross_entropy.py",
        "flash_attn/ops/rms_norm.py", "flash_attn/ops/layer_norm.py", "flash_attn/ops/fused_dense.py",
        "flash_attn/ops/triton/rotary.py", "flash_attn/ops/triton/cross_entropy.py",
        "flash_attn/ops/triton/layer_norm.py",
    )),
    "transformers": ("4.36.0", (
        "transformers/modeling_flash_attention_utils.py", "transformers/modeling_attn_mask_utils.py",
        "transformers/modeling_rope_utils.py", "transformers/masking_utils.py", "transformers/cache_utils.py",
        "transformers/integrations/flash_attention.py", "transformers/integrations/sdpa_attention.py",
        "transformers/integrations/flex_attention.py", "transformers/integrations/hub_kernels.py",
        "transformers/deepspeed.py", "transformers/integrations/deepspeed.py",
        *(f"transformers/models/{name}/modeling_{name}.py" for name in (
            "llama", "mistral", "qwen2", "qwen2_moe", "phi3", "cohere")),
    )),
}  # fmt: skip
#: Of these only the first and the last release of each minor version are read.
BY_MINOR = {"transformers", "transformer-engine", "deepspeed"}
#: Caller, its first release of interest, callee, and releases of the callee between which its interface changes.
CALLERS = (
    ("transformer-engine", "1.0", "flash-attn", ("2.5.8", "2.6.1", "2.6.3", "2.7.4.post1")),
    ("ring-flash-attn", "0.1.0", "flash-attn", ("2.5.8", "2.6.3", "2.7.4.post1")),
    ("deepspeed", "0.16.0", "flash-attn", ("2.7.4.post1",)),
)


def releases_of(name: str, first: str) -> list[str]:
    """Return the final releases of a distribution, oldest first, from pip."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line = next(item for item in ended.stdout.splitlines() if item.startswith("Available versions:"))
    found = [Version(item.strip()) for item in line.partition(":")[2].split(",")]
    kept = [item for item in sorted(found) if item >= Version(first) and not item.is_prerelease]
    if name in BY_MINOR:
        minors = [list(group) for _, group in groupby(kept, key=lambda item: item.release[:2])]
        kept = [item for group in minors for item in dict.fromkeys((group[0], group[-1]))]
    return [str(item) for item in kept]


def breaks_of(job: tuple[str, str, str, str, str]) -> tuple[str, set[str]]:
    """Return the release of a caller and the keys of its uses that one release of the callee breaks."""
    gc.disable()
    caller, version, callee, release, cache = job
    places = [fetch_release(caller, version, Path(cache)), fetch_release(callee, release, Path(cache))]
    environment = Environment(places, load_rulebook().stack)
    callees = [item for item in environment.packages.values() if item.release.name == callee]
    mine = [item for item in environment.packages.values() if item.release.name == caller]
    found = (item for package in mine for item in analyze_caller(environment, package, callees).findings)
    return version, {use_key(item) for item in found if breaks(item)}


def caller_releases(caller: str, first: str, cache: Path) -> list[str]:
    """Return the releases of a caller that can be read, oldest first: of the registry, and in the cache."""
    folders = (item.name.removeprefix(f"{caller}-") for item in cache.glob(f"{caller}-*"))
    known = {Version(item): item for item in folders if re.fullmatch(r"\d[\w.]*", item)}
    for release in releases_of(caller, first):
        if Version(release) not in known:
            try:
                fetch_release(caller, release, cache)
                known[Version(release)] = release
            except DoctorError as error:
                print(f"{caller} {release}: {error.message}: {error.hint}", file=sys.stderr)
    return [known[item] for item in sorted(known) if item >= Version(first)]


def spans_of(
    caller: str, first: str, callee: str, against: tuple[str, ...], cache: Path
) -> dict[str, list[list[str | None]]]:
    """Return for each use the caller's releases that break, as (first broken, release that fixes it)."""
    releases = caller_releases(caller, first, cache)
    broken: dict[str, set[str]] = {}
    with get_context("fork").Pool(1, maxtasksperchild=20) as pool:
        jobs = [(caller, version, callee, release, str(cache)) for version in releases for release in against]
        for version, keys in pool.imap(breaks_of, jobs):
            for key in keys:
                broken.setdefault(key, set()).add(version)
    spans: dict[str, list[list[str | None]]] = {}
    for key, versions in sorted(broken.items()):
        for index, version in enumerate(releases):
            following = releases[index + 1] if index + 1 < len(releases) else None
            if version in versions and (index == 0 or releases[index - 1] not in versions):
                spans.setdefault(key, []).append([version, None])
            if version in versions and following not in versions:
                spans[key][-1][1] = following
    return {key: found for key, found in spans.items() if any(fixed for _, fixed in found)}


#: The shape of a module, class or variable.
NAME: list[Any] = [None, None, 1, []]


def symbols_of(place: Path, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return the shape of every function, method and name of the wanted modules."""
    environment = Environment([place], load_rulebook().stack)
    found: dict[str, Any] = {}
    for path in (place / name for name in wanted):
        if not path.is_file():
            continue
        package = environment.packages[path.relative_to(place).parts[0]]
        module = environment.module_name(package, path)
        parsed = environment.parse(path, module)
        found[module] = NAME
        for node in parsed.tree.body if parsed is not None else ():
            _add(found, module, node, None)
    return found


def _add(found: dict[str, Any], prefix: str, node: ast.stmt, owner: str | None) -> None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        signature = signature_of(node)
        decorators = {ast.unparse(item).rpartition(".")[2] for item in node.decorator_list}
        if owner is not None and "staticmethod" not in decorators:
            signature = signature.without_first()
        required = sorted(item.name for item in signature.parameters if item.required)
        accepted = sorted(item.name for item in signature.parameters if not item.positional_only)
        lengths = sorted(return_lengths(Function(prefix, node.name, node.lineno, node)))
        found[f"{prefix}.{node.name}"] = [required, accepted, int(signature.var_keyword), lengths]
    elif isinstance(node, ast.ClassDef):
        found[f"{prefix}.{node.name}"] = NAME
        for inner in node.body:
            _add(found, f"{prefix}.{node.name}", inner, node.name)
    elif isinstance(node, (ast.If, ast.Try)):
        for inner in [*node.body, *node.orelse, *(item for h in getattr(node, "handlers", []) for item in h.body)]:
            _add(found, prefix, inner, owner)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found.setdefault(f"{prefix}.{target.id}", NAME)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            found.setdefault(f"{prefix}.{alias.asname or alias.name}", NAME)


def timelines(history: list[tuple[str, dict[str, Any]]]) -> dict[str, list[list[Any]]]:
    """Return for each symbol the releases that change it; names that never change are left out."""
    names = sorted({name for _, symbols in history for name in symbols})
    result: dict[str, list[list[Any]]] = {}
    for name in names:
        changes: list[list[Any]] = []
        for release, symbols in history:
            shape = symbols.get(name)
            if not changes or changes[-1][1] != shape:
                changes.append([release, shape])
        if len(changes) > 1 or (changes[0][1] is not None and changes[0][1][0] is not None):
            result[name] = changes
    return result


def write(data: dict[str, Any], output: Path) -> None:
    """Write the history; equal data give equal bytes."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True).encode()
    output.write_bytes(gzip.compress(text, 9, mtime=0))


def main() -> int:
    """Write the history; 1 where a release could not be read."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cache", type=Path, default=Path("/tmp/drift/src"))
    options.add_argument("--only", choices=sorted(CALLEES))
    options.add_argument("--callers", action="store_true", help="only which releases of callers break")
    options.add_argument("--output", type=Path, default=ROOT / "rules" / "index" / "api_history.json.gz")
    chosen = options.parse_args()
    data: dict[str, Any] = {}
    if chosen.output.is_file():
        with gzip.open(chosen.output, "rt", encoding="utf-8") as stream:
            data = json.load(stream)
    failed = 0
    if chosen.callers:
        for caller, first, callee, against in CALLERS:
            spans = spans_of(caller, first, callee, against, chosen.cache)
            data.setdefault("callers", {}).setdefault(caller, {})[callee] = spans
            print(f"{caller} with {callee}: {len(spans)} uses are fixed by a later release", flush=True)
            write(data, chosen.output)  # the next caller takes minutes
    for name, (first, wanted) in CALLEES.items():
        if chosen.callers or chosen.only not in (None, name):
            continue
        history: list[tuple[str, dict[str, Any]]] = []
        for release in releases_of(name, first):
            try:
                history.append((release, symbols_of(fetch_release(name, release, chosen.cache), wanted)))
            except DoctorError as error:
                failed += 1
                print(f"{name} {release}: {error.message}: {error.hint}", file=sys.stderr)
        data[name] = {"releases": [release for release, _ in history], "symbols": timelines(history)}
        print(f"{name}: {len(history)} releases, {len(data[name]['symbols'])} symbols")
    write(data, chosen.output)
    print(f"{chosen.output}: {chosen.output.stat().st_size} bytes")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
