"""Compare predictions with vLLM's own answers: `score_vllm.py CASES.jsonl [--third N | --not-third N] [--quiet]`.

Each line holds id, facts, machine, workload and `expected`, as `ask_vllm.py` writes them. Prints the agreement by
release: selected backend, refusal at start (`import_error`), refusal by the layer (`fails_at_run`), and of candidates
where the release lists the valid ones. `--third 0..2` scores one third of the cases, chosen by id.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from packaging.version import Version

from doctor.diagnosis.batch import answer
from doctor.rulebook.rulebook import load_rulebook


def main() -> int:
    """Score the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", type=Path, nargs="+")
    parser.add_argument("--third", type=int, choices=(0, 1, 2), help="only this third, by id")
    parser.add_argument("--not-third", type=int, choices=(0, 1, 2), help="all but this third")
    parser.add_argument("--release", help="only this release")
    parser.add_argument("--quiet", action="store_true", help="totals only")
    parser.add_argument("--candidates", action="store_true", help="list candidates that disagree too")
    options = parser.parse_args()
    rulebook = load_rulebook()
    scores: dict[str, Counter[str]] = defaultdict(Counter)
    seconds = 0.0
    for line in (line for path in options.cases for line in path.read_text(encoding="utf-8").splitlines()):
        case = json.loads(line)
        release = case["facts"]["vllm.version"]
        third = zlib.crc32(case["id"].encode()) % 3
        if options.third not in (None, third) or options.not_third == third or options.release not in (None, release):
            continue
        started = time.process_time()
        said, good = answer(rulebook, line)
        seconds += time.process_time() - started
        score = scores[release]
        faults = compare(case["expected"], said, score, options.candidates) if good else [f"error: {said['error']}"]
        score["cases"] += not good
        if faults and not options.quiet:
            print(f"{case['id']} {_brief(case['facts'])} {_brief(case['workload'])}")
            print(*(f"    {fault}" for fault in faults), sep="\n")
    total: Counter[str] = Counter()
    for release in sorted(scores, key=Version):
        total.update(scores[release])
        _show(release, scores[release])
    _show("all", total)
    print(f"{total['cases']} cases in {seconds:.2f} s: {total['cases'] / max(seconds, 1e-9):.0f} per second")
    return 0


def backend_id(name: str) -> str:
    """Our id of the backend that vLLM calls `name`."""
    return "vllm." + name.lower().replace("-", "_").removesuffix("_vllm_v1")


def compare(expected: dict[str, Any], said: dict[str, Any], score: Counter[str], candidates: bool) -> list[str]:
    """What disagrees in one case, counted in `score`."""
    faults = []
    score["cases"] += 1
    wanted = backend_id(expected["selected"]) if expected["selected"] else None
    refused = said["import_error"] is not None
    right = said["selected"] == wanted and said["could_tell"] and refused == (expected["error"] is not None)
    score["selected"] += right
    score["refusals of"] += expected["error"] is not None
    score["refusals"] += expected["error"] is not None and refused
    score["undetermined"] += not said["could_tell"]
    if not right:
        faults.append(f"selected: expected {wanted} {expected['error'] or ''}; predicted {said['selected']} "
                      f"{said['import_error'] or ''}")  # fmt: skip
    fails = expected["layer_accepts"] is False
    score["layer"] += fails == (said["fails_at_run"] is not None)
    score["layer refusals of"] += fails
    score["layer refusals"] += fails and said["fails_at_run"] is not None
    if fails != (said["fails_at_run"] is not None):
        faults.append(f"layer: expected {expected['layer_error']}; predicted {said['fails_at_run']}")
    if expected.get("valid_in_order") is not None:
        valid = {backend_id(name) for name in expected["valid_in_order"]}
        judged = valid | {backend_id(name) for name in expected["invalid_reasons"]}
        for item in said["candidates"]:
            if item["backend"] not in judged:
                continue
            agrees = item["available"] is (item["backend"] in valid)
            score["candidates"] += agrees
            score["candidates of"] += 1
            if candidates and not agrees:
                name = item["backend"].removeprefix("vllm.").upper()
                faults.append(f"{item['backend']}: expected {item['backend'] in valid} "
                              f"{expected['invalid_reasons'].get(name)}; predicted {item['reasons']}")  # fmt: skip
    return faults


def _show(name: str, score: Counter[str]) -> None:
    def share(part: str, whole: str) -> str:
        return f"{score[part]}/{score[whole]} ({100 * score[part] / max(score[whole], 1):.1f} %)"

    print(
        f"{name:12s} selected {share('selected', 'cases')}, import_error {share('refusals', 'refusals of')}, "
        f"fails_at_run {share('layer', 'cases')}, of these fail {share('layer refusals', 'layer refusals of')}, "
        f"candidates {share('candidates', 'candidates of')}, undetermined {score['undetermined']}"
    )


def _brief(section: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in section.items() if value not in ("absent", None, False, []))


if __name__ == "__main__":
    raise SystemExit(main())
