#!/usr/bin/env python3
"""Make the table of the wheels on a project's release pages from the workflow at each tag of a local clone.

    git clone --bare <flash-attention> fa.git
    python scripts/release/refresh_wheels.py fa.git [--package flash-attn] [--check]

`rules/index/release_wheels/PACKAGE.json` says which wheels are *expected*: the matrix of the workflow `publish.yml` or
`.yaml` (Python × torch × CUDA × C++ ABI, less what it excludes), one per tag. No workflow shows whether a job failed. A
release that is on record in the release index and has no tag in the clone is taken for its predecessor's, and marked as
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

TABLES = ROOT / "rules" / "index" / "release_wheels"
WORKFLOWS = (".github/workflows/publish.yml", ".github/workflows/publish.yaml")
CALLED = ".github/workflows/_build.yml"  # in which newer ones name the wheel
AXES = ("cuda-version", "torch-version", "python-version", "cxx11_abi")
_TAG = re.compile(r"v(\d+\.\d+\.\d+(?:\.post\d+)?)")


def main() -> int:
    """Read every tag, write the table or compare it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("clone", type=Path, help="a clone of the project with its tags, bare or not")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the table is not what the clone says")
    parser.add_argument("--package", default="flash-attn", help="the package whose wheels the workflow builds")
    options = parser.parse_args()
    table = TABLES / f"{options.package}.json"
    before = json.loads(table.read_text(encoding="utf-8"))
    text = as_text({**before, "releases": releases(options.clone, list(load_index().releases(options.package)))})
    if text == table.read_text(encoding="utf-8"):
        print(f"{table.name}: as the clone says")
        return 0
    if options.check:
        print(f"{table.name}: differs from what the clone says")
        return 1
    table.write_text(text, encoding="utf-8")
    print(f"{table.name}: written")
    return 0


def releases(clone: Path, known: list[str]) -> list[dict[str, Any]]:
    """The groups of releases that are built alike, oldest first."""
    tags = {match[1] for line in git(clone, "tag").splitlines() if (match := _TAG.fullmatch(line))}
    return [
        group
        for arm in (False, True)
        for group in _of_machine(clone, tags, sorted(tags | set(known), key=Version), arm)
    ]


def _of_machine(clone: Path, tags: set[str], versions: list[str], arm: bool) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    last: tuple[str, list[list[str]]] | None = None
    machine = {"machine": "aarch64"} if arm else {}
    for version in versions:
        if version in tags:
            texts = (git(clone, "show", f"v{version}:{path}", missing="") for path in WORKFLOWS)
            workflow = next(filter(None, texts), "")
            called = git(clone, "show", f"v{version}:{CALLED}", missing="")
            last = matrix(workflow, called, arm=arm) if workflow else None
        if last is None or not last[1] or Version(version).is_prerelease:
            continue  # before there were wheels
        runner, builds = last
        if made and (made[-1]["runner"], made[-1]["builds"]) == (runner, builds):
            made[-1]["versions"].append(version)
        else:
            made.append({"versions": [version], "runner": runner, "builds": builds, **machine})
    return made


def matrix(workflow: str, called: str = "", *, arm: bool = False) -> tuple[str, list[list[str]]] | None:
    """(the runner, what is built on it for x86_64, or for aarch64); None for a workflow that builds none for it."""
    job = (yaml.safe_load(workflow).get("jobs") or {}).get("build_wheels") or {}
    axes = (job.get("strategy") or {}).get("matrix")
    if not axes or "cxx11_abi" not in axes:
        return None
    if axes.get("include"):
        sys.exit("the matrix has an `include:`, which this script does not read")
    runner = next((name for name in axes["os"] if name.endswith("-arm") is arm), None)
    if runner is None:
        return None
    excluded = axes.get("exclude") or []
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for values in itertools.product(*(axes[name] for name in AXES)):
        cell = {**dict(zip(AXES, map(str, values), strict=True)), "os": runner}
        if any(all(cell[key] == str(value) for key, value in rule.items()) for rule in excluded):
            continue
        pythons = cells.setdefault((cell["cuda-version"], cell["torch-version"]), {})
        pythons.setdefault("cp" + cell["python-version"].replace(".", ""), []).append(cell["cxx11_abi"])
    short = bool(re.search(r"WHEEL_CUDA_VERSION=\S*\$\(echo [^|]*\| awk -F \\\. \{'print \$1'\}", workflow + called))
    builds = []
    for (cuda, torch), pythons in cells.items():
        tag = "cu" + "".join(cuda.split(".")[: 1 if short else 2])
        for abis, group in itertools.groupby(pythons, key=lambda name: sorted(pythons[name])):
            row = [tag, cuda, ".".join(torch.split(".")[:2]), torch, " ".join(group)]
            builds.append(row if abis == ["FALSE", "TRUE"] else [*row, " ".join(abis)])
    return runner.removesuffix("-arm"), builds


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
        named += f', "machine": {json.dumps(group["machine"])}' if "machine" in group else ""
        groups.append(f'{{{named}, "builds": [\n{builds}]}}')
    parts = [*head, f'"added": [\n{added}]', '"releases": [\n' + ",\n".join(groups) + "\n]"]
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    sys.exit(main())
