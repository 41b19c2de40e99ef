"""Count findings on the newest releases that declare each other: an error is a false alarm, or a defect of these.

    python scripts/oracles/false_alarms_drift.py [--cache DIR] [--output FILE.json] [--jobs N]

For each caller the newest release is taken, and of each callee the newest that the caller's own metadata admits.
Nothing is installed or built.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from functools import cache
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.requirements import InvalidRequirement, Requirement  # noqa: E402
from packaging.version import Version  # noqa: E402

from doctor.drift.analysis import analyze_caller  # noqa: E402
from doctor.drift.collector import breaks  # noqa: E402
from doctor.drift.download import fetch_release  # noqa: E402
from doctor.drift.findings import Finding  # noqa: E402
from doctor.drift.sources import Environment, is_readable, normalized  # noqa: E402
from doctor.errors import DoctorError  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402

#: Callers, each with the packages that it calls.
CALLERS = {
    "transformer-engine": "flash-attn", "transformers": "flash-attn accelerate peft deepspeed kernels",
    "megatron-core": "flash-attn transformers transformer-engine",
    "peft": "transformers accelerate transformer-engine",
    "trl": "transformers accelerate peft deepspeed liger-kernel",
    "accelerate": "deepspeed transformers transformer-engine",
    "deepspeed": "transformers flash-attn", "liger-kernel": "transformers",
    "sentence-transformers": "transformers peft",
    "llamafactory": "transformers trl peft accelerate",
    "ring-flash-attn": "flash-attn", "yunchang": "flash-attn",
    "xformers": "flash-attn", "axolotl": "transformers trl peft accelerate flash-attn liger-kernel",
    "ms-swift": "transformers trl peft accelerate", "lmdeploy": "transformers peft",
    "openrlhf": "transformers deepspeed",
    "verl": "transformers trl", "unsloth": "transformers trl peft", "vllm": "transformers",
    "diffusers": "transformers peft accelerate", "optimum": "transformers", "colossalai": "flash-attn",
}  # fmt: skip


@cache
def versions_of(name: str) -> tuple[str, ...]:
    """Return the final releases, newest first, from pip."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line = next(item for item in ended.stdout.splitlines() if item.startswith("Available versions:"))
    found = [Version(item.strip()) for item in line.partition(":")[2].split(",")]
    return tuple(str(item) for item in sorted(found, reverse=True) if not item.is_prerelease)


def admitted(place: Path, callee: str) -> str:
    """Return the newest release of a callee that the metadata of a caller admits."""
    specifiers = []
    for metadata in place.glob("*.dist-info/METADATA"):
        for line in metadata.read_text(errors="replace").splitlines():
            if not line.startswith("Requires-Dist:"):
                continue
            try:
                requirement = Requirement(line.partition(":")[2].strip())
            except InvalidRequirement:
                continue
            if normalized(requirement.name) == callee:
                specifiers.append(requirement.specifier)
    return next(item for item in versions_of(callee) if all(Version(item) in each for each in specifiers))


def run(job: tuple[str, str, str]) -> list[dict[str, object]]:
    """Analyze a caller in an environment with its callees; return a row for each of them."""
    gc.disable()
    name, callees, cache_folder = job
    place = Path(cache_folder)
    version = versions_of(name)[0]
    rows: list[dict[str, object]] = []
    try:
        caller = fetch_release(name, version, place)
    except DoctorError as error:
        return [{"caller": name, "callee": callees, "error": f"{error.message}: {error.hint}"}]
    paths = [caller]
    for callee in callees.split():
        try:
            release = admitted(caller, callee)
            paths.append(fetch_release(callee, release, place))
        except (DoctorError, StopIteration, subprocess.SubprocessError) as error:
            rows.append({"caller": name, "callee": callee, "error": str(error)})
            continue
        rows.append({"caller": name, "caller_version": version, "callee": callee, "callee_version": release})
    environment = Environment(paths, load_rulebook().stack)
    targets = [item for item in environment.packages.values() if item.release.name in callees.split()]
    found: list[Finding] = []
    for package in environment.packages.values():
        if package.location == caller and is_readable(package) and package.release.name == name:
            found += [item for item in analyze_caller(environment, package, targets).findings if breaks(item)]
    for row in rows:
        mine = (item for item in found if item.callee.name == row["callee"])
        row["findings"] = [f"{item.severity.value} {item.code} {item.site} {item.message}" for item in mine]
    return rows


def main() -> int:
    """Print and write the findings; 1 where there are any."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cache", type=Path, default=Path("/tmp/drift/src"))
    options.add_argument("--output", type=Path, help="also write the rows here, as JSON")
    options.add_argument("--jobs", type=int, default=2)
    chosen = options.parse_args()
    rows = []
    with get_context("fork").Pool(chosen.jobs, maxtasksperchild=1) as pool:
        for found in pool.imap(run, [(*item, str(chosen.cache)) for item in CALLERS.items()], chunksize=1):
            rows += found
            for row in found:
                print(json.dumps(row), flush=True)
    if chosen.output is not None:
        chosen.output.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    findings = [text for row in rows for text in row.get("findings", ())]  # type: ignore[attr-defined]
    errors = sum(text.startswith("error") for text in findings)
    print(f"{sum('findings' in row for row in rows)} pairs, {errors} errors, {len(findings) - errors} warnings")
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
