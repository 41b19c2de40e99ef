"""Record what `check` answers for every case on record, and compare two such recordings.

    python scripts/release/record_answers.py record before.jsonl [--cases FILE ...] [--jobs 2]
    python scripts/release/record_answers.py compare before.jsonl after.jsonl

A change that only moves code leaves every answer as it was: record before it and after it. Each line of a recording
holds one case: the JSON report without `timing`, or the error. `compare` prints the cases that differ, and where, and
ends with exit code 1 if there are any. A case is a line of JSON with `facts` and `workload`: by default `tests/data`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

#: parts of a report that differ between two runs of the same program
VOLATILE = ("timing", "rulebook", "tool")
DATA = ROOT / "tests" / "data"


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("output", type=Path)
    record.add_argument("--cases", type=Path, nargs="*", default=sorted(DATA.glob("*.jsonl")))
    record.add_argument("--jobs", type=int, default=2)
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        return write(given.output, given.cases, given.jobs)
    return show_differences(read(given.before), read(given.after))


def write(output: Path, files: list[Path], jobs: int) -> int:
    """Write one line for each case of `files`, in their order."""
    cases = [case for path in files for case in cases_of(path)]
    with ProcessPoolExecutor(jobs) as pool, output.open("w", encoding="utf-8") as file:
        for answer in pool.map(answer_of, cases, chunksize=8):
            file.write(json.dumps(answer, sort_keys=True, ensure_ascii=False) + "\n")
    print(f"{len(cases)} cases in {output}", file=sys.stderr)
    return 0


def cases_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the cases of a file, each with a name of its own."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        case = json.loads(line)
        if isinstance(case.get("facts"), dict):
            yield {"name": f"{path.name}:{number}", "facts": case["facts"], "workload": case.get("workload") or {}}


def answer_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the report of one case as JSON data, or its error."""
    from doctor.api import diagnose, render
    from doctor.errors import DoctorError

    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({"facts": case["facts"], **({"workload": case["workload"]} if case["workload"] else {})}, file)
        file.flush()
        try:
            text = render(diagnose(facts=file.name), "json").replace(Path(file.name).name, "facts.json")
        except DoctorError as problem:
            return {"case": case["name"], "error": str(problem).replace(Path(file.name).name, "facts.json")}
    report = json.loads(text.replace(str(Path(file.name).parent) + "/", ""))
    return {"case": case["name"], "report": {key: value for key, value in report.items() if key not in VOLATILE}}


def read(path: Path) -> dict[str, Any]:
    """Return case → its answer."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {answer["case"]: answer for answer in map(json.loads, lines)}


def show_differences(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the cases whose answers differ, each with the places; return 1 if there are any."""
    changed = 0
    for case in sorted(before.keys() | after.keys()):
        places = list(differences(before.get(case), after.get(case)))
        changed += bool(places)
        for place, old, new in places[:6]:
            print(f"{case} {place}: {shortened(old)} -> {shortened(new)}")
        if len(places) > 6:
            print(f"{case}: {len(places) - 6} more places")
    print(f"{changed} of {len(before.keys() | after.keys())} cases differ")
    return 1 if changed else 0


def differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, old, new) for every leaf that differs; findings are compared by their rule."""
    if place.endswith("findings") and isinstance(old, list) and isinstance(new, list):
        old, new = ({item["id"]: item for item in items} for items in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif old != new:
        yield place, old, new


def shortened(value: Any) -> str:
    """Return a value as JSON text of at most 120 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."


if __name__ == "__main__":
    raise SystemExit(main())
