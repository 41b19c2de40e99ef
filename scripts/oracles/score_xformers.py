"""Compare predictions for xFormers with its own answers: `score_xformers.py ANSWERS.jsonl ... [--quiet]`.

Each line is as `scripts/oracles/ask_xformers.py` writes it. Prints what disagrees and the agreement by release: the
operator of the forward pass, and whether the backward pass has one. Exit code 1 below 99 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from doctor.diagnosis.batch import answer
from doctor.rulebook.rulebook import load_rulebook

GOAL = 0.99
#: backend of a module of `xformers/ops/fmha`
BACKENDS = {"flash": "xf.flash2", "flash3": "xf.flash3"}


def main() -> int:
    """Score the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--quiet", action="store_true", help="totals only")
    options = parser.parse_args()
    rulebook = load_rulebook()
    scores: dict[str, Counter[str]] = defaultdict(Counter)
    for line in (line for path in options.answers for line in path.read_text(encoding="utf-8").splitlines()):
        case = json.loads(line)
        if "error" in case["expected"]:
            continue  # the release does not take these arguments at all
        predicted, good = answer(rulebook, line)
        score = scores[case["facts"]["xformers.version"]]
        faults = compare(case, predicted, score) if good else [str(predicted)]
        if faults and not options.quiet:
            words = {key: value for key, value in case["workload"].items() if value not in (None, False, 0.0)}
            print(case["id"], case["facts"]["gpu.sm"], words)
            print(*(f"    {fault}" for fault in faults), sep="\n")
    total: Counter[str] = Counter()
    for release, score in (*scores.items(), ("all", total)):
        total.update(score)
        parts = (f"{name} {score[name]}/{score['cases']}" for name in ("forward", "backward"))
        print(f"{release:12s}", ", ".join(parts))
    return int(min(total["forward"], total["backward"]) < GOAL * total["cases"])


def compare(case: dict[str, Any], predicted: dict[str, Any], score: Counter[str]) -> list[str]:
    """What disagrees in one case, counted in `score`."""
    expected = case["expected"]
    score["cases"] += 1
    name = expected["forward"]
    wanted = name and BACKENDS.get(name, f"xf.{name}")
    agrees = predicted["selected"] == wanted and predicted["could_tell"]
    score["forward"] += agrees
    faults = []
    if not agrees:
        against = {BACKENDS.get(name, f"xf.{name}"): reasons for name, reasons in expected["reasons"].items()}
        said = {item["backend"]: [reason["rule"] for reason in item["reasons"]] for item in predicted["candidates"]}
        faults.append(f"forward: {wanted} {against}; predicted {predicted['selected']} {said}")
    fails = bool(name and case["workload"]["training"] and expected["backward"] is None)
    agrees = fails == (predicted["fails_at_run"] is not None)
    score["backward"] += agrees
    if not agrees:
        faults.append(f"backward: {expected['backward']}, predicted {predicted['fails_at_run']}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
