#!/usr/bin/env python3
"""Make the table of flash-attn's wheels from the release workflow at each tag of a local clone.

    git clone --bare <flash-attention> fa.git
    python scripts/release/refresh_wheels.py fa.git [--check]

`rules/index/flash_attn_wheels.json` says which wheels are *expected*: the matrix of `.github/workflows/publish.yml`
(Python × torch × CUDA × C++ ABI, less what it excludes), one per tag. No workflow shows whether a job failed. A release
that is on record in the release index and has no tag in the clone is taken for its predecessor's, and marked as
doubtful. Kept as they are are the C libraries of the runners, the doubts, and `added`: wheels that no tag's workflow
builds, which public lock files name at their official address, with a hash. `--check` writes nothing; 1 if the table
differs from what the clone says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.packages.index import load_index  # noqa: E402 (the script runs from anywhere)

TABLE = ROOT / "rules" / "index" / "flash_attn_wheels.json"
WORKFLOW = ".github/workflows/publish.yml"
AXES = ("cuda-version", "torch-version", "python-version", "cxx11_abi")
_TAG = re.compile(r"v(\d+\.\d+\.\d+(?:\.post\d+)?)")


def main() -> int:
    """Read every tag, write the table or compare it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("clone", type=Path, help="a clone of flash-attention with its tags, bare or not")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the table is not what the clone says")
    options = parser.parse_args()
    before = json.loads(TABLE.read_text(encoding="utf-8"))
    text = as_text({**before, "releases": releases(options.clone, list(load_index().releases("flash-attn")))})
    if text == TABLE.read_text(encoding="utf-8"):
        print(f"{TABLE.name}: as the clone says")
        return 0
    if options.check:
        print(f"{TABLE.name}: differs from what the clone says")
        return 1
    TABLE.write_text(text, encoding="utf-8")
    print(f"{TABLE.name}: written")
    return 0


def releases(clone: Path, known: list[str]) -> list[dict[str, Any]]:
    """The groups of releases that are built alike, oldest first."""
    tags = {match[1] for line in git(clone, "tag").splitlines() if (match := _TAG.fullmatch(line))}
    made: list[dict[str, Any]] = []
    last: tuple[str, list[list[str]]] | None = None
    for version in sorted(tags | set(known), key=Version):
        if version in tags:
            workflow = git(clone, "show", f"v{version}:{WORKFLOW}", missing="")
            last = matrix(workflow) if workflow else None
        if last is None or not last[1] or Version(version).is_prerelease:
            continue  # before there were wheels
        runner, builds = last
        if made and (made[-1]["runner"], made[-1]["builds"]) == (runner, builds):
            made[-1]["versions"].append(version)
        else:
            made.append({"versions": [version], "runner": runner, "builds": builds})
    return made


def matrix(workflow: str) -> tuple[str, list[list[str]]] | None:
    """(the runner, what is built on it for x86_64); None for a workflow that builds no wheels."""
    job = (yaml.safe_load(workflow).get("jobs") or {}).get("build_wheels") or {}
    axes = (job.get("strategy") or {}).get("matrix")
    if not axes or "cxx11_abi" not in axes:
        return None
    if axes.get("include"):
        sys.exit("the matrix has an `include:`, which this script does not read")
    runner = next(name for name in axes["os"] if not name.endswith("-arm"))
    excluded = axes.get("exclude") or []
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for values in itertools.product(*(axes[name] for name in AXES)):
        cell = {**dict(zip(AXES, map(str, values), strict=True)), "os": runner}
        if any(all(cell[key] == str(value) for key, value in rule.items()) for rule in excluded):
            continue
        pythons = cells.setdefault((cell["cuda-version"], cell["torch-version"]), {})
        pythons.setdefault("cp" + cell["python-version"].replace(".", ""), []).append(cell["cxx11_abi"])
    short = bool(re.search(r"WHEEL_CUDA_VERSION=\S*\$\(echo [^|]*\| awk -F \\\. \{'print \$1'\}", workflow))
    builds = []
    for (cuda, torch), pythons in cells.items():
        tag = "cu" + "".join(cuda.split(".")[: 1 if short else 2])
        for abis, group in itertools.groupby(pythons, key=lambda name: sorted(pythons[name])):
            row = [tag, cuda, ".".join(torch.split(".")[:2]), torch, " ".join(group)]
            builds.append(row if abis == ["FALSE", "TRUE"] else [*row, " ".join(abis)])
    return runner, builds


def git(clone: Path, *arguments: str, missing: str | None = None) -> str:
    """What git says; `missing` where there is no such object."""
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, text=True, check=False)
    if done.returncode and missing is None:
        sys.exit(done.stderr.strip())
    return done.stdout if not done.returncode else str(missing)


def as_text(table: dict[str, Any]) -> str:
    """The table, one build per line."""
    head = [
        f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items() if key not in ("added", "releases")
    ]
    added = ",\n".join(f"  {json.dumps(item)}" for item in table.get("added", ()))
    groups = []
    for group in table["releases"]:
        builds = ",\n".join(f"  {json.dumps(row)}" for row in group["builds"])
        named = f'"versions": {json.dumps(group["versions"])}, "runner": {json.dumps(group["runner"])}'
        groups.append(f'{{{named}, "builds": [\n{builds}]}}')
    parts = [*head, f'"added": [\n{added}]', '"releases": [\n' + ",\n".join(groups) + "\n]"]
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    sys.exit(main())
