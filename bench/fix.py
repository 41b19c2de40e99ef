"""Seconds to a fix or to the reason for none, how many broken environments get one, and whether a smaller one exists.

    python bench/fix.py [--environments N] [--seed N] [--brute N] [--hopeless N] [--uv PATH] [--accepted N]

Made-up environments (tests/helpers/made_up.py) are drawn until N of them have an error. Each is solved. For `--brute`
of them that have a fix, brute force (tests/helpers/brute_force.py) tries every smaller set of packages; for
`--hopeless` of those without one, every choice of releases and settings that the remaining error can depend on. With
uv, `uv pip compile` resolves the pins of a few; both are timed on the same environments.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _harness import arguments, import_ours, print_result, write_json

import_ours("tests/helpers")


from doctor.model import Facts, Fix, Infeasible, Report  # noqa: E402
from doctor.report.requirements import render_pins  # noqa: E402
from doctor.rulebook.evaluate import Assessment, evaluate  # noqa: E402
from doctor.rulebook.rulebook import Rulebook, load_rulebook  # noqa: E402
from doctor.solver.solve import no_fix, solve  # noqa: E402
from tests.helpers.brute_force import World  # noqa: E402
from tests.helpers.made_up import environment  # noqa: E402

MEDIAN, WORST = 0.5, 3.0  # seconds


def main() -> int:
    """Print the table; 1 if a goal is missed."""
    options = _options()
    rulebook = load_rulebook()
    times: list[float] = []
    kinds: Counter[str] = Counter()
    smaller: Counter[str] = Counter()
    hopeless: Counter[str] = Counter()
    solved_too: list[float] = []
    accepted: Counter[str] = Counter()
    compiled: list[float] = []
    seed = options.seed
    while len(times) < options.environments:
        facts = environment(seed)
        seed += 1
        before = evaluate(rulebook, facts)
        if not before.errors:
            continue
        began = time.process_time()
        fixes = solve(rulebook, facts, before)
        reasons = no_fix(rulebook, facts, before, fixes)
        times.append(time.process_time() - began)
        clear = [fix for fix in fixes if not fix.leaves]
        kinds[_kind(before, fixes, clear, reasons)] += 1
        size = min((len(_packages(fix)) for fix in clear), default=0)
        if size and sum(smaller.values()) < options.brute:
            smaller[f"{size} packages: {_smaller(rulebook, facts, before, size)}"] += 1
        if not clear and sum(hopeless.values()) < options.hopeless:
            hopeless[_hopeless(rulebook, facts, before, fixes, reasons)] += 1
            sys.stderr.write(f"without a fix: seed {seed - 1}\n")
        if options.uv and any(map(_packages, clear)) and sum(accepted.values()) < options.accepted:
            verdict, seconds = _compile(options.uv, facts, before, fixes)
            accepted[verdict] += 1
            if seconds:
                compiled.append(seconds)
                solved_too.append(times[-1])
    result: dict[str, Any] = {
        "environments": len(times), "drawn": seed - options.seed, "median_s": round(statistics.median(times), 4),
        "worst_s": round(max(times), 3), "outcome": dict(kinds), "smaller_set": dict(sorted(smaller.items())),
        "without_a_fix": dict(hopeless),
        "uv_pip_compile": dict(accepted),
        "uv_median_s": round(statistics.median(compiled), 3) if compiled else None,
        "solved_to_uv": round(statistics.median(solved_too) / statistics.median(compiled), 4) if compiled else None,
    }  # fmt: skip
    print_result(result)
    write_json(options.json, result)
    return int(result["median_s"] > MEDIAN or result["worst_s"] > WORST or "refused" in accepted)


def _options() -> argparse.Namespace:
    made = arguments(__doc__, environments=300, seed=1000)
    made.add_argument("--brute", type=int, default=0, help="fixes for which every smaller set is tried")
    made.add_argument("--hopeless", type=int, default=0, help="environments without a fix that are tried in full")
    made.add_argument("--uv", help="uv's program; without it no pins are resolved")
    made.add_argument("--accepted", type=int, default=20, help="pins that uv resolves")
    return made.parse_args()


def _packages(fix: Fix) -> list[str]:
    return [change.name for change in fix.changes if change.kind == "package"]


def _kind(before: Assessment, fixes: tuple[Fix, ...], clear: list[Fix], reasons: tuple[Infeasible, ...]) -> str:
    """Cleared; else what became of the errors, and whether the rest is known to have no fix."""
    if clear:
        return "cleared"
    part = "in part" if fixes else "nothing"
    by_author = {finding.rule for finding in before.findings if finding.no_pin}
    if all(item.proved or item.rule in by_author for item in reasons) and reasons:
        return f"{part}, and no release cures the rest" + (", says the rule" if by_author else ", proved")
    return f"{part}, and could not tell of the rest"


def _smaller(rulebook: Rulebook, facts: Facts, before: Assessment, size: int) -> str:
    """Whether fewer packages would do, whatever rules recommend."""
    found = World(rulebook, facts, before).solved(size - 1)
    if found is not None:
        sys.stderr.write(f"smaller: {facts.value('torch.version')} {sorted(before.errors)} {found[0]} {found[1].env}\n")
    return "no smaller set" if found is None else f"{len(found[0])} would do"


def _hopeless(
    rulebook: Rulebook, facts: Facts, before: Assessment, fixes: tuple[Fix, ...], reasons: tuple[Infeasible, ...]
) -> str:
    """Whether brute force agrees that the errors no fix clears cannot be cleared."""
    cleared = {rule for fix in fixes for rule in fix.resolves}
    world = World(rulebook, facts, before)
    proved = all(item.proved for item in reasons)
    told = "proved in sentences" if proved else "not proved in sentences"
    left = sorted(before.errors - cleared) or sorted({rule for fix in fixes for rule in fix.leaves})
    for rule in left:
        if next(world.curable(rule), None) is None:
            return f"{rule} has no cure, {told}"
    chosen = world.completes(left)
    if chosen is not None:
        sys.stderr.write(f"missed: {facts.value('torch.version')} {sorted(before.errors)} {chosen}\n")
    return f"no set clears {', '.join(left)} and all else, {told}" if chosen is None else "a cure was missed"


def _compile(uv: str, facts: Facts, before: Assessment, fixes: tuple[Fix, ...]) -> tuple[str, float]:
    """Whether uv resolves the first step of the pins, and the seconds it takes."""
    report = Report("bench", {}, facts, before.findings, before.predictions, fixes, before.undetermined, {})
    pins = render_pins(report)
    if "--extra-index-url" in pins:
        return "needs another index", 0.0
    verdict, seconds, said = _resolves(uv, pins, facts)
    if verdict != "refused":
        return verdict, seconds
    changed = {change.name for fix in fixes for change in fix.changes}
    for line in pins.splitlines():  # a release that no installer can have any more, with or without the fix
        name = line.partition("=")[0]
        if line and not line.startswith("#") and name not in changed and _resolves(uv, line, facts)[0] == "refused":
            return "an installed release is not resolvable by itself", seconds
    sys.stderr.write(said[-1500:] + "\n")
    return "refused", seconds


def _resolves(uv: str, pins: str, facts: Facts) -> tuple[str, float, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pins.txt"
        path.write_text(pins)
        python = ".".join(str(facts.value("python.version")).split(".")[:2])
        command = [uv, "pip", "compile", str(path), "--python-version", python, "--python-platform", "linux", "-q",
                   "--no-build", "-o", str(Path(folder) / "out.txt")]  # fmt: skip
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
    if done.returncode == 0:
        return "accepted", seconds, ""
    if "no-build" in done.stderr.lower() or "building source distributions is disabled" in done.stderr.lower():
        return "needs a build to know", seconds, done.stderr
    return "refused", seconds, done.stderr


if __name__ == "__main__":
    sys.exit(main())
