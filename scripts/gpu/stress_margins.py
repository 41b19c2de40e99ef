#!/usr/bin/env python3
"""How near healthy kernels come to the sweep's bounds, and whether three times their error is caught.

    python scripts/gpu/stress_margins.py sweep1.jsonl sweep2.jsonl ...     journals that `attn-doctor stress` wrote

For each dtype and tensor: cases, the median, the 99th percentile and the largest of error over bound among right
answers; then the share of cases that fail once that tensor's error is three times what it was, and once it is three
times the median of its kind. Journals hold every answer, so bounds can be judged again without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = "dtype      tensor   cases  median    99 %  largest   3x own  3x median"
LOOSE = ("sage", "transformers.eager", "te.unfused")  # with bounds of their own


def answers(paths: list[Path]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(case, answer) of each line, whatever sweep it is of."""
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if "key" in record:
                yield json.loads(record["key"]), record["answer"]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--backend", action="append", default=[], help="only these")
    asked = parser.parse_args()
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for case, answer in answers(asked.journals):
        if asked.backend and case["backend"] not in asked.backend:
            continue
        seen = answer.get("observed") or {}
        outcome = answer["outcome"] if answer["outcome"] != "ran" else "wrong" if seen.get("faults") else "right"
        counts[outcome] += 1
        if outcome != "right" or case["backend"] in LOOSE:
            continue
        for name, error in (seen.get("errors") or {}).items():
            ratios[case["dtype"], name].append(float(error["rel"]) / float(seen["bound"][name]))
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    print(HEAD)
    for (dtype, name), found in sorted(ratios.items()):
        found.sort()
        middle = statistics.median(found)
        own = sum(3 * ratio > 1 for ratio in found) / len(found)
        print(
            f"{dtype:<10} {name:<7} {len(found):>6} {middle:>7.3f} {found[int(0.99 * (len(found) - 1))]:>7.3f}"
            f" {found[-1]:>8.3f} {own:>8.1%} {3 * middle:>10.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
