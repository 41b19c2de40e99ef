"""How start-up and evaluation grow with the rulebook: 500, 1,000 and 2,000 rules, by libraries that are not installed.

    python bench/rules.py [--rounds N] [--json FILE]

Each size is a copy of this checkout. 500 keeps the rules of the libraries that the incident uses and some of the
others; 1,000 and 2,000 add libraries of copied rules that nothing has installed. Processor time counts, in turns within
one run. The goal: the largest rulebook costs at most a fifth more than the smallest.
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

SIZES = (500, 1000, 2000)
INCIDENT = ROOT / "examples" / "incidents" / "b"
#: What the incident's rules belong to, and what every library needs.
KEPT = ("transformer_engine", "torch", "cuda", "cudnn", "nvidia", "flash_attn", "images", "index", "ranks", "triton")
GROWTH = 1.2
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
        print(
            f"{item['rules']:>6} rules {item['check_ms']:>8.1f} ms a check {item['evaluate_ms']:>8.2f} ms an evaluation"
        )
    write_json(options.json, {"rounds": options.rounds, "growth": GROWTH, "rows": rows})
    grown = rows[-1]["check_ms"] / rows[0]["check_ms"]
    print(f"goal: {SIZES[-1]} rules cost at most {GROWTH:g} × the time of {SIZES[0]}; found {grown:.2f} ×")
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
    return {"rules": int(rules), "check_ms": statistics.median(seconds) * 1000, "evaluate_ms": float(evaluation)}


def copy_of_checkout(root: Path, size: int) -> Path:
    """Copy the program and a rulebook of so many rules."""
    for name in ("doctor", "kernels", "rules"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    rules = sorted((path for path in root.glob("rules/*/*.yaml") if path.name != "library.yaml"), key=_less_needed)
    for path in rules[size:]:
        path.unlink()
    add_libraries(root / "rules", rules[:size], size - len(rules))
    return root


def _less_needed(path: Path) -> tuple[bool, str]:
    return path.parent.name not in KEPT, str(path)


def add_libraries(folder: Path, rules: list[Path], missing: int) -> None:
    """Add copied rules of invented libraries, 50 each, whose distributions are not installed."""
    sources = [path for path in rules if path.parent.name == "transformer_engine" and not path.stem.startswith("LOG")]
    for number in range(max(missing, 0)):
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
