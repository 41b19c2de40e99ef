"""Count findings on the newest releases that declare each other: the false alarms of `attn-doctor drift`.

    python scripts/oracles/false_alarms_drift.py [--cache DIR] [--output tests/drift/newest.json]

For each caller the newest release is taken, and of each callee the newest that the caller's own metadata admits.
Sources come from pip (`pip download --no-deps`, never installed or built).
"""

from __future__ import annotations

import argparse
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
from doctor.drift.sources import Environment, is_readable, normalized  # noqa: E402
from doctor.errors import DoctorError  # noqa: E402

PAIRS = [
    ("transformer-engine", "flash-attn"), ("transformers", "flash-attn"), ("megatron-core", "flash-attn"),
    ("peft", "transformers"), ("peft", "accelerate"), ("trl", "transformers"), ("trl", "accelerate"), ("trl", "peft"),
    ("trl", "deepspeed"), ("accelerate", "deepspeed"), ("accelerate", "transformers"), ("transformers", "accelerate"),
    ("transformers", "peft"), ("transformers", "deepspeed"), ("megatron-core", "transformers"),
    ("megatron-core", "transformer-engine"), ("deepspeed", "transformers"), ("deepspeed", "flash-attn"),
    ("accelerate", "transformer-engine"), ("liger-kernel", "transformers"), ("sentence-transformers", "transformers"),
    ("trl", "liger-kernel"), ("peft", "transformer-engine"), ("llamafactory", "transformers"), ("llamafactory", "trl"),
    ("llamafactory", "peft"), ("ring-flash-attn", "flash-attn"), ("yunchang", "flash-attn"),
]  # fmt: skip


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


def run(job: tuple[str, str, str]) -> dict[str, object]:
    """Analyze one pair."""
    name, callee, cache_folder = job
    place = Path(cache_folder)
    try:
        version = versions_of(name)[0]
        caller = fetch_release(name, version, place)
        release = admitted(caller, callee)
        other = fetch_release(callee, release, place)
    except (DoctorError, StopIteration, subprocess.SubprocessError) as error:
        return {"caller": name, "callee": callee, "error": str(error)}
    environment = Environment([caller, other])
    callees = [item for item in environment.packages.values() if item.release.name == callee]
    found, unknown = [], 0
    for package in environment.packages.values():
        if package.location == caller and is_readable(package) and package.release.name == name:
            result = analyze_caller(environment, package, callees)
            unknown += sum(pair.unknown_uses for pair in result.pairs)
            found += [f"{item.code} {item.site} {item.message}" for item in result.findings if breaks(item)]
    return {
        "caller": name, "caller_version": version, "callee": callee, "callee_version": release,
        "findings": found, "unknown_uses": unknown,
    }  # fmt: skip


def main() -> int:
    """Print and write the findings; 1 where there are any."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cache", type=Path, default=Path("/tmp/drift/src"))
    options.add_argument("--output", type=Path, default=ROOT / "tests" / "drift" / "newest.json")
    options.add_argument("--jobs", type=int, default=2)
    chosen = options.parse_args()
    rows = []
    with get_context("fork").Pool(chosen.jobs) as pool:
        for row in pool.imap(run, [(*pair, str(chosen.cache)) for pair in PAIRS], chunksize=1):
            rows.append(row)
            print(json.dumps(row), flush=True)
    chosen.output.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    alarms = sum(len(row.get("findings", ())) for row in rows)  # type: ignore[arg-type]
    print(f"{sum('findings' in row for row in rows)} pairs, {alarms} findings")
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
