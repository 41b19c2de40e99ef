"""How start-up and evaluation grow with the rulebook: as it is, and doubled by libraries that are not installed.

    python bench/rules.py [--rounds N] [--json FILE]

Each is a copy of this checkout. The doubled one has a copied rule for each rule file, those for `explain` included, in
libraries that nothing has installed; so `check` reads more than twice as many rules. Both counts are printed. Processor
time counts, in turns within one run. The goal: the doubled rulebook costs at most a tenth more.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from _harness import ROOT, arguments, run, settings, write_json

SIZES = (1, 2)  # times the rulebook
INCIDENT = ROOT / "examples" / "incidents" / "b"
GROWTH = 1.1
_EVALUATE = """
import sys, time
from pathlib import Path
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.recipes import read_job
rules = load_rulebook()
facts = complete_workload(read_facts(Path(sys.argv[1])).with_(*read_job(Path(sys.argv[2])).values()))
for _ in range(5):
    evaluate(rules, facts)
began = time.process_time()
for _ in range(40):
    evaluate(rules, facts)
print((time.process_time() - began) / 40 * 1000, len(rules.rules))
"""


def main() -> int:
    """Measure every size, print a table, and return 1 if the largest costs too much more than the smallest."""
    options = arguments(__doc__, rounds=7).parse_args()
    with tempfile.TemporaryDirectory(prefix="attn-doctor-bench-") as folder:
        roots = {size: copy_of_checkout(Path(folder) / str(size), size) for size in SIZES}
        facts = INCIDENT / "facts.yaml"  # every distribution was read: what is not named is not installed
        starts: dict[int, list[float]] = {size: [] for size in SIZES}
        for number in range(options.rounds + 1):
            for size in random.sample(SIZES, len(SIZES)):
                done, took = run(check(facts), roots[size], cwd=roots[size], env=environment(roots[size]))
                if done.returncode not in (0, 1):
                    raise SystemExit(done.stderr or done.stdout)
                if number:  # the first fills bytecode and the rule cache
                    starts[size].append(took.processor)
        rows = [row(size, roots[size], facts, starts[size]) for size in SIZES]
    for item in rows:
        counted = f"{item['files']:>6} rules, {item['rules']} of them for check"
        print(f"{counted} {item['check_ms']:>8.1f} ms a check {item['evaluate_ms']:>8.2f} ms an evaluation")
    write_json(options.json, {"rounds": options.rounds, "growth": GROWTH, "rows": rows})
    grown = rows[-1]["check_ms"] / rows[0]["check_ms"]
    print(f"goal: the doubled rulebook costs at most {GROWTH:g} × the time; found {grown:.2f} ×")
    return 0 if grown <= GROWTH else 1


def check(facts: Path) -> list[str]:
    """Return the command of a full check."""
    job = ["--facts", str(facts), "--workload", str(INCIDENT / "workload.yaml")]
    return [sys.executable, "-m", "doctor", "check", "--no-run", *job]


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a run in a copy of the checkout."""
    return {**settings(root), "PYTHONPATH": str(root)}


def row(size: int, root: Path, facts: Path, seconds: list[float]) -> dict[str, Any]:
    """Return what one size costs."""
    command = [sys.executable, "-c", _EVALUATE, str(facts), str(INCIDENT / "workload.yaml")]
    done = subprocess.run(command, cwd=root, env=environment(root), capture_output=True, text=True, check=True)
    evaluation, rules = done.stdout.split()
    files = sum(path.name != "library.yaml" for path in root.glob("rules/*/*.yaml"))
    return {
        "files": files,
        "rules": int(rules),
        "check_ms": statistics.median(seconds) * 1000,
        "evaluate_ms": float(evaluation),
    }


def copy_of_checkout(root: Path, size: int) -> Path:
    """Copy the program and its rulebook, with further rules to so many times its size."""
    for name in ("doctor", "kernels", "rules"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    rules = sorted(path for path in root.glob("rules/*/*.yaml") if path.name != "library.yaml")
    add_libraries(root / "rules", rules, len(rules) * (size - 1))
    return root


def add_libraries(folder: Path, rules: list[Path], missing: int) -> None:
    """Add copied rules of invented libraries, 50 each, whose distributions are not installed."""
    sources = [path for path in rules if path.parent.name == "transformer_engine" and not path.stem.startswith("LOG")]
    for number in range(missing):
        library = f"bench{number // 50}"
        place = folder / library
        if not place.is_dir():
            place.mkdir()
            described = {"name": library, "distributions": [library], "references": ["bench/rules.py"]}
            (place / "library.yaml").write_text(json.dumps(described))
        body = yaml.load(sources[number % len(sources)].read_text(), Loader=yaml.BaseLoader)
        for key in ("disables", "fails_at_run", "import_error", "stage", "yields_to", "fix_reasons", "x-base", "tests"):
            body.pop(key, None)
        when = {f"{library}.version": ">=1.0", **body["when"]}
        body.update(id=f"BENCH{number:04}", severity="warning", when=when)
        (place / f"{body['id']}.yaml").write_text(json.dumps(body))


if __name__ == "__main__":
    raise SystemExit(main())
