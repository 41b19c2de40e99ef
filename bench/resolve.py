"""Does uv accept every fix? The pins of all solvable broken environments, resolved with what stays.

    python bench/resolve.py [--environments N] [--seed N] [--installer uv|pip] [--json FILE] [--show]

The environments of bench/fix.py (tests/helpers/made_up.py, same seeds). For each that has a fix without leftovers
which changes packages, the resolver checks the changed, the held and the compiled packages at once; what
old sources need comes from the embedded release index. Prints the rate, and
every refusal with the resolver's reason.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from typing import Any

from _harness import arguments, import_ours, print_result, write_json

import_ours("tests/helpers")


from doctor.apply.install.dry_run import resolve  # noqa: E402
from doctor.apply.install.installers import find_installer  # noqa: E402
from doctor.apply.install.surroundings import question_of  # noqa: E402
from doctor.model import Report  # noqa: E402
from doctor.packages.index import load_index  # noqa: E402
from doctor.rulebook.evaluate import evaluate  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402
from doctor.solver.solve import solve  # noqa: E402
from tests.helpers.made_up import environment  # noqa: E402


def main() -> int:
    """Print the table; 1 if a fix is refused."""
    options = _options()
    installer, why = find_installer(None, options.installer)
    if installer is None:
        sys.exit(why)
    rulebook, index = load_rulebook(), load_index()
    outcomes: Counter[str] = Counter()
    withdrawn: Counter[str] = Counter()  # installed, and not to be had any more with the fix or without
    seconds: list[float] = []
    refusals: list[dict[str, Any]] = []
    broken, seed = 0, options.seed
    while broken < options.environments:
        facts = environment(seed)
        seed += 1
        before = evaluate(rulebook, facts)
        if not before.errors:
            continue
        broken += 1
        fixes = solve(rulebook, facts, before)
        report = Report("bench", {}, facts, before.findings, before.predictions, fixes, before.undetermined, {})
        if not fixes or fixes[0].leaves:
            outcomes["no complete fix"] += 1
            continue
        fix = report.package_fix
        if fix is None or not fix.changes_packages:
            outcomes["no package changes"] += 1
            continue
        pins = fix.plan
        answer = resolve(question_of(report, pins), installer, index, timeout=options.timeout)
        word = {True: "accepted", False: "refused", None: "could not tell"}[answer.outcome]
        outcomes[word] += 1
        for line in answer.left_out if answer.outcome else ():
            withdrawn[line] += 1
        seconds.append(answer.seconds)
        if answer.outcome is not True:
            lines = [line.requirement for line in (*pins.changed, *pins.held, *pins.built)]
            refusals.append({"seed": seed - 1, "fix": fix.title, "reason": answer.reason, "pins": lines})
            print(f"seed {seed - 1}: {word}: {fix.title}\n    {answer.reason}\n    {' '.join(lines)}", flush=True)
    asked = sum(outcomes[word] for word in ("accepted", "refused", "could not tell"))
    result = {
        "environments": broken, "outcome": dict(outcomes), "asked": asked,
        "accepted_share": round(outcomes["accepted"] / asked, 4) if asked else None,
        "withdrawn": dict(withdrawn), "resolver": installer.title,
        "median_s": round(statistics.median(seconds), 2) if seconds else None,
    }  # fmt: skip
    print_result(result)
    write_json(options.json, {**result, "refusals": refusals})
    return int(outcomes["refused"] > 0)


def _options() -> argparse.Namespace:
    made = arguments(__doc__, environments=300, seed=1000)
    made.add_argument("--installer", choices=("uv", "pip"), default="uv")
    made.add_argument("--timeout", type=float, default=300)
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
