"""Compare backend predictions with a library's own answers: `score_backends.py CASES.jsonl [--third N] [--list]`.

Each line holds id, group, facts, workload and `expect` (selected, available, log, fails_at_run, error). Prints the
agreement by group and lists what disagrees. `--third 0..2` scores only one third of the cases, chosen by id, so that
rules can be written against the others.
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

from doctor.diagnosis.batch import answer
from doctor.rulebook.rulebook import load_rulebook


def main() -> int:
    """Score the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--third", type=int, choices=(0, 1, 2), help="only this third, by id")
    parser.add_argument("--not-third", type=int, choices=(0, 1, 2), help="all but this third")
    parser.add_argument("--quiet", action="store_true", help="totals only")
    parser.add_argument("--reasons", action="store_true", help="print first log line beside first reason")
    options = parser.parse_args()
    rulebook = load_rulebook()
    scores: dict[str, Counter[str]] = defaultdict(Counter)
    seconds = 0.0
    for line in options.cases.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        third = zlib.crc32(case["id"].encode()) % 3
        if options.third not in (None, third) or options.not_third == third:
            continue
        started = time.process_time()
        said, good = answer(rulebook, line)
        seconds += time.process_time() - started
        faults = compare(case["expect"], said, scores[case["group"]]) if good else [f"error: {said['error']}"]
        if faults and not options.quiet:
            facts, workload = case["facts"], case["workload"]
            print(f"{case['id']} {case['group']} {_brief(facts)} {_brief(workload)}")
            for fault in faults:
                print(f"    {fault}")
        if options.reasons and good:
            _show_reasons(case, said)
    total: Counter[str] = Counter()
    for group, score in sorted(scores.items()):
        total.update(score)
        _show(group, score)
    _show("all", total)
    print(f"{total['cases']} cases in {seconds:.2f} s: {total['cases'] / max(seconds, 1e-9):.0f} per second")
    return 0


def compare(expect: dict[str, Any], said: dict[str, Any], score: Counter[str]) -> list[str]:
    """What disagrees in one case, counted in `score`."""
    faults = []
    score["cases"] += 1
    if expect["selected"] == "error":
        right = said["selected"] is None and (said["import_error"] is not None)
    else:
        right = said["selected"] == expect["selected"] and said["could_tell"] and said["import_error"] is None
    score["selected"] += right
    score["untold"] += not said["could_tell"]
    if not right:
        faults.append(f"selected: wants {expect['selected']} {expect.get('error', '')}, said {said['selected']} "
                      f"{said['import_error'] or ''}")  # fmt: skip
    available = {item["backend"]: item for item in said["candidates"]}
    for backend, wanted in expect["available"].items():
        score["available of"] += 1
        found = available[backend]["available"]
        score["available"] += found == wanted
        if found != wanted:
            reasons = "; ".join(f"{item['rule']} {item['message']}" for item in available[backend]["reasons"][:3])
            faults.append(f"{backend}: wants {wanted} ({expect['log'].get(backend)}), said {found} ({reasons})")
    if expect["selected"] != "error":
        wanted_fail, said_fail = expect.get("fails_at_run"), said["fails_at_run"]
        score["fails of"] += 1
        score["fails"] += bool(wanted_fail) == bool(said_fail)
        if bool(wanted_fail) != bool(said_fail):
            faults.append(f"fails_at_run: wants {wanted_fail}, said {said_fail}")
    return faults


def _show_reasons(case: dict[str, Any], said: dict[str, Any]) -> None:
    for candidate in said["candidates"]:
        line = case["expect"]["log"].get(candidate["backend"])
        if line and candidate["reasons"]:
            version = case["facts"].get("transformer-engine.version")
            print(f"REASON {version} {candidate['backend']}\n   log  {line[:150]}\n   said "
                  f"{candidate['reasons'][0]['rule']} {candidate['reasons'][0]['message'][:150]}")  # fmt: skip


def _show(name: str, score: Counter[str]) -> None:
    def share(part: str, whole: str) -> str:
        return f"{score[part]}/{score[whole]} ({100 * score[part] / max(score[whole], 1):.1f} %)"

    print(
        f"{name:10s} selected {share('selected', 'cases')}, available {share('available', 'available of')}, "
        f"fails_at_run {share('fails', 'fails of')}, could not tell {score['untold']}"
    )


def _brief(section: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in section.items() if value != "absent")


if __name__ == "__main__":
    raise SystemExit(main())
