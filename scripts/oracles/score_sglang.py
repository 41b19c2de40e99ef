"""Compare predictions for SGLang with its own answers: `score_sglang.py ANSWERS.jsonl ...`.

Each line is as `scripts/oracles/ask_sglang.py` writes it. Prints what disagrees and the agreement:
prefill backend, and whether a creator refuses. Exit code 1 if the decode or prefill backend agrees in less than 99 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from doctor.diagnosis.batch import answer
from doctor.rulebook.rulebook import load_rulebook

GOAL = 0.99


def main() -> int:
    """Score the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("answers", type=Path, nargs="+")
    options = parser.parse_args()
    rulebook = load_rulebook()
    score: Counter[str] = Counter()
    for path in options.answers:
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            predicted, good = answer(rulebook, line)
            faults = compare(case["expected"], predicted, score) if good else [str(predicted)]
            if faults:
                print(case["id"], case["facts"], case["workload"].get("model"), *case["options"])
                for fault in faults:
                    print(f"    {fault}")
    cases = max(score["cases"], 1)
    for name in ("decode", "prefill", "refused"):
        print(f"{name}: {score[name]} of {score['cases']} ({score[name] / cases:.1%})")
    return int(min(score["decode"], score["prefill"]) / cases < GOAL)


def compare(expected: dict[str, Any], predicted: dict[str, Any], score: Counter[str]) -> list[str]:
    """What disagrees in one case, counted in `score`."""
    refusal = predicted["import_error"]
    starts = (refusal is None) == (expected["error"] is None) and predicted["could_tell"]
    faults = []
    score["cases"] += 1
    for phase, found in (("decode", predicted["selected"]), ("prefill", predicted.get("prefill"))):
        wanted = expected[phase] and f"sglang.{expected[phase]}"
        agrees = starts and found == wanted
        score[phase] += agrees
        if not agrees:
            faults.append(f"{phase}: {wanted} ({expected['error']}), predicted {found} ({refusal})")
    failing = predicted["fails_at_run"]
    agrees = bool(failing) == bool(expected["creator_refuses"])
    score["refused"] += agrees
    if not agrees:
        faults.append(f"refused: {expected['creator_refuses']}, predicted {failing}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
