"""Score the API drift analyzer against pairs of real releases whose truth was found by execution.

    python scripts/oracles/score_drift.py CASES.jsonl [--cache /tmp/drift/src] [--part develop|held-out|all] [--show]

Nothing is installed or built. A release that no registry has must be in the cache already, as `NAME-VERSION/` laid out
like site-packages.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from doctor.drift.analysis import analyze_caller
from doctor.drift.collector import breaks
from doctor.drift.download import fetch_release
from doctor.drift.findings import Finding, PairVerdict
from doctor.drift.sources import Environment, is_readable, normalized
from doctor.errors import DoctorError
from doctor.rulebook.rulebook import load_rulebook

KINDS = {
    "unexpected_keyword": "UNEXPECTED_KEYWORD", "missing_name": "MISSING_NAME", "missing_required": "MISSING_ARGUMENT",
    "unpack_arity": "UNPACK_LENGTH", "missing_attr": "MISSING_ATTRIBUTE", "version_refused": "VERSION_REFUSED",
    "missing_module": "MISSING_MODULE",
}  # fmt: skip


def held_out(row: dict[str, object]) -> bool:
    """Return whether a pair belongs to the third that development does not look at: by caller and release."""
    digest = hashlib.sha256(f"{row['caller']} {row['caller_version']}".encode()).hexdigest()
    return int(digest, 16) % 3 == 0


def run(job: tuple[dict[str, object], str]) -> tuple[dict[str, object], str, list[Finding], float]:
    """Analyze one pair."""
    gc.disable()  # as the workers of the command do; the process ends after a few pairs
    row, cache = job
    started = time.perf_counter()
    try:
        caller = fetch_release(str(row["caller"]), str(row["caller_version"]), Path(cache))
        callee = fetch_release(str(row["callee"]), str(row["callee_version"]), Path(cache))
    except DoctorError as error:
        return row, f"no sources: {error}", [], 0.0
    environment = Environment([caller, callee], load_rulebook().stack)
    name = normalized(str(row["caller"]))
    target = normalized(str(row["callee"]))
    callers = [item for item in environment.packages.values() if item.location == caller and is_readable(item)]
    callees = [item for item in environment.packages.values() if item.release.name == target]
    findings: list[Finding] = []
    verdicts = set()
    for package in callers:
        if package.release.name != name and package.release.name == target:
            continue
        result = analyze_caller(environment, package, callees)
        findings += result.findings
        verdicts |= {pair.verdict for pair in result.pairs}
    verdict = next((item for item in (PairVerdict.BROKEN, PairVerdict.UNKNOWN) if item in verdicts), PairVerdict.OK)
    return row, verdict.value, findings, time.perf_counter() - started


def names_of(row: dict[str, object]) -> set[str]:
    """Return the names that may count as the right symbol: the last parts of the symbol and of its siblings."""
    also = row["also"]
    assert isinstance(also, list)
    texts = [str(row["symbol"]), *map(str, also), str(row["evidence"])]
    found = set()
    for text in texts:
        for word in text.replace("(", " ").replace("'", " ").split():
            last = word.strip(".:,)").rpartition(".")
            found.add(last[2])
            if last[2] in ("__init__", "forward"):
                found.add(last[0].rpartition(".")[2])
    return found


def right_symbol(row: dict[str, object], findings: list[Finding]) -> bool:
    """Return whether some definite finding names what the truth names."""
    names = names_of(row)
    for item in findings:
        if not breaks(item):
            continue
        if row["kind"] == "version_refused":
            if item.kind.name == "VERSION_REFUSED":
                return True
            continue
        if item.kind.name == "MISSING_MODULE" and str(row["symbol"]).startswith(f"{item.symbol}."):
            return True
        parts = item.symbol.split(".")
        if parts[-1] in names or (len(parts) > 1 and parts[-1] in ("__init__", "forward") and parts[-2] in names):
            return True
    return False


def right_site(row: dict[str, object], findings: list[Finding]) -> bool:
    """Return whether some definite finding is at the line of the truth, or a line that it lists as well."""
    lines = " ".join([str(row["site"]), *map(str, row["also"])])  # type: ignore[call-overload]
    return any(breaks(item) and str(item.site) in lines for item in findings)


def main() -> int:
    """Print the score; 1 where recall or precision misses 95 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/drift/src"))
    parser.add_argument("--part", choices=("develop", "held-out", "all"), default="all")
    parser.add_argument("--only", default="", help="pairs whose caller and callee contain this text")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.cases.read_text().splitlines() if line.strip()]
    if options.part != "all":
        rows = [row for row in rows if held_out(row) is (options.part == "held-out")]
    rows = [
        row for row in rows
        if options.only in f"{row['caller']} {row['caller_version']} x {row['callee']} {row['callee_version']}"
    ]  # fmt: skip
    counts: Counter[str] = Counter()
    seconds = []
    with get_context("fork").Pool(options.jobs, maxtasksperchild=8) as pool:
        for row, verdict, findings, took in pool.imap(run, [(row, str(options.cache)) for row in rows]):
            seconds.append(took)
            truth = row["verdict"]
            pair = f"{row['caller']} {row['caller_version']} x {row['callee']} {row['callee_version']}"
            if verdict.startswith("no sources"):
                counts["no sources"] += 1
                print(f"SKIPPED {pair}: {verdict}")
                continue
            if truth == "broken" and not row["static_detectable"]:
                counts["not detectable, " + verdict] += 1
                continue
            counts[f"{truth}, reported {verdict}"] += 1
            wrong = (truth == "broken") != (verdict == "broken")
            if truth == "broken" and verdict == "broken":
                symbol, site = right_symbol(row, findings), right_site(row, findings)
                counts["hit with the right symbol"] += symbol
                counts["hit at the right line"] += site
                if not symbol:
                    print(f"SYMBOL  {pair}: wanted {row['kind']} {row['symbol']} at {row['site']}")
            if wrong:
                print(
                    f"{'MISSED' if truth == 'broken' else 'FALSE'}  {pair}: {row['kind']} {row['symbol']} {row['site']}"
                )
            if options.show or (wrong and truth == "ok"):
                for item in findings[:60]:
                    print(
                        f"    {item.severity.value} {item.certainty.value} {item.reach.value} {item.code} {item.site} "
                        f"[{item.scope}] {item.message} ({'; '.join(item.conditions)}) {item.unknown}"
                    )
    hits, missed = counts["broken, reported broken"], counts["broken, reported ok"] + counts["broken, reported unknown"]
    false = counts["ok, reported broken"]
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    recall = hits / max(1, hits + missed)
    precision = hits / max(1, hits + false)
    print(f"recall {recall:.1%}, precision {precision:.1%}, slowest pair {max(seconds, default=0):.1f} s")
    return 0 if recall >= 0.95 and precision >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
