"""Score predicted loads of compiled files against recorded ones.

    python scripts/oracles/score_binaries.py CASES.jsonl --wheels DIR [--torch 2.8.0+cu128=SITE …] [--python PATH]

A case names a wheel, a file in it, a torch build, and whether the file loaded. The wheel comes from pip into DIR. Where
a folder with that torch is given, the loader's work is repeated on its files; else the exports on record decide.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "oracles")]

from load_binaries import place_of  # noqa: E402

from doctor.packages.torch_symbols import load_torch_symbols  # noqa: E402
from doctor.sources.binaries.packages import Opening  # noqa: E402
from doctor.sources.binaries.survey import Installed, Survey, fitting_builds, labelled  # noqa: E402


def unpacked(case: dict[str, Any], wheels: Path) -> Path:
    """Return the folder with the compiled files of a case's wheel."""
    folder = wheels / f"{case['dist']}-{case['version']}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(wheels)]
        subprocess.run([*command, f"{case['dist']}=={case['version']}"], check=True, timeout=1800)
        wheel = wheels / case["wheel"]
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name == case["so"] or "libtvm_ffi" in name]
            archive.extractall(folder, wanted)
        wheel.unlink()
    return folder


def predicted(case: dict[str, Any], folder: Path, torch: Path | None, python: str) -> tuple[bool | None, str, str]:
    """Return the predicted outcome, its reason, and what decided it."""
    if torch is None:
        found = fitting_builds(str(folder / case["so"]))
        if found is None:
            return None, "it needs nothing of torch, and no files of this torch are at hand", "nothing"
        known = {labelled(build) for build in load_torch_symbols().builds}
        if case["torch"] not in known:
            return None, "this torch is not on record", "nothing"
        return case["torch"] in found, f"fits {' '.join(found)}", "exports on record"
    work = Survey(place_of(torch, python, [folder]), load_siblings=False)
    package = Installed(case["dist"], case["version"], str(folder), (case["so"],))
    preloaded = case["id"].partition(":torch")[0].endswith("-preloaded")
    if not preloaded:  # the file alone, as the case opens it
        package = Installed("-", case["version"], str(folder), (case["so"],))
    verdict = work.verdict(package, case["so"], Opening("-"))
    work.close()
    return verdict.loads, verdict.problem, "files"


def main() -> int:
    """Print the score and every case that is not predicted alike."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--torch", nargs="*", default=[], metavar="BUILD=SITE")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    options.wheels.mkdir(parents=True, exist_ok=True)
    sites = dict(item.split("=", 1) for item in options.torch)
    score: Counter[str] = Counter()
    for case in map(json.loads, options.cases.read_text("utf-8").splitlines()):
        if case["so"] is None:
            score["no file in the case"] += 1
            continue
        site = sites.get(case["torch"])
        found, reason, by = predicted(
            case, unpacked(case, options.wheels), Path(site) if site else None, options.python
        )
        outcome = "unknown" if found is None else "right" if found == case["ok"] else "WRONG"
        score[f"{outcome} by {by}"] += 1
        if outcome != "right":
            print(f"{outcome}: {case['id']}: {case['error_kind']} {case['missing'] or ''}\n    {reason[:200]}")
    print(dict(score))
    return int(any(key.startswith("WRONG") for key in score))


if __name__ == "__main__":
    sys.exit(main())
