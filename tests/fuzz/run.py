"""Fuzz for a time or a number of executions: `python -m tests.fuzz.run --seconds 3600 --jobs 2`.

Each fault is kept once per kind of fault, as a file that `--again FILE` runs again.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import os
import pickle
import random
import re
import resource
import sys
import time
from pathlib import Path

from .harness import MOST_MEMORY, MOST_SECONDS, Case, cases, corpus, execute, execute_all, prepared, resident
from .mutate import mutated


def main() -> int:
    """Run, print a table per kind of input, and return 1 where an invariant did not hold."""
    options = _options()
    if options.again:
        case = pickle.loads(Path(options.again).read_bytes())  # our own file
        if case.arguments == ("--readers",):
            from .targets import run

            run(case.kind, case.data)
            return 0
        outcome = execute(case, debug=options.debug)
        print(" ".join(case.arguments), outcome.code, f"{outcome.seconds:.2f} s", f"{outcome.memory >> 20} MiB")
        print(outcome.err[-6000:], outcome.out[:2000], *outcome.faults, sep="\n")
        return int(bool(outcome.faults))
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        parts = pool.starmap(_part, [(options, options.seed * 1000 + number) for number in range(options.jobs)])
    return _report(parts, Path(options.keep))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--count", type=int, default=0, help="executions per job (default: until the time is up)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", action="append", default=[], help="only this kind of input; repeatable")
    parser.add_argument("--keep", default="build/fuzz", help="folder for inputs that break an invariant")
    parser.add_argument("--readers", action="store_true", help="only the readers of files, many times faster")
    parser.add_argument("--again", help="run one kept input again")
    parser.add_argument("--debug", action="store_true", help="with --again: show the traceback")
    return parser.parse_args()


_BATCH = 25  # cases in one child
Part = tuple[collections.Counter[str], dict[str, tuple[int, Case]], float, int]


def _readers(options: argparse.Namespace, seed: int) -> Part:
    """Mutate what the targets of `targets.py` read, in forked children of many executions each."""
    from .targets import TARGETS

    random_ = random.Random(seed)
    seeds = corpus()
    everything = [data for files in seeds.values() for _, data in files]
    sources = {"facts": "facts_yaml", "output": "dockerfile"}
    tried: collections.Counter[str] = collections.Counter()
    bad: dict[str, tuple[int, Case]] = {}
    deadline = time.monotonic() + options.seconds
    slowest, largest = 0.0, 0
    names = options.kind or [name for name in TARGETS]
    while time.monotonic() < deadline and not (options.count and sum(tried.values()) >= options.count):
        kind = random_.choice(names)
        inputs = [
            mutated(random_, random_.choice(seeds[sources.get(kind, kind)])[1], everything)
            for _ in range(_READER_BATCH)
        ]
        done, faults, seconds, memory = _in_child(kind, inputs)
        tried[kind] += done
        slowest, largest = max(slowest, seconds), max(largest, memory)
        for number, fault in faults:
            case = Case(kind, kind, inputs[number], ("--readers",))
            count, smallest = bad.get(f"{kind}: {fault}", (0, case))
            bad[f"{kind}: {fault}"] = (count + 1, min(smallest, case, key=lambda one: len(one.data)))
    return tried, bad, slowest, largest


_READER_BATCH = 250


def _in_child(kind: str, inputs: list[bytes]) -> tuple[int, list[tuple[int, str]], float, int]:
    """Run a target on inputs in a fork; return how many it took, the faults, the slowest one and the largest memory."""
    from .targets import run

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 61))
        faults, slowest, held = [], 0.0, resident()
        for number, data in enumerate(inputs):
            began = time.process_time()
            try:
                run(kind, data)
            except BaseException as problem:
                faults.append((number, f"{type(problem).__name__}: {problem}"[:90]))
            seconds = time.process_time() - began
            slowest = max(slowest, seconds)
            if seconds > MOST_SECONDS:
                faults.append((number, "more than 5 s"))
        memory = max(0, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - held)
        os.write(writer, pickle.dumps((len(inputs), faults[:20], slowest, memory)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(pid, 0)
    if not said:
        return len(inputs), [(0, f"the child ended with {os.waitstatus_to_exitcode(status)}")], 0.0, 0
    done, faults, slowest, memory = pickle.loads(said)  # from our own child
    faults += [(0, f"{memory >> 20} MiB")] if memory > MOST_MEMORY else []
    return done, faults, slowest, memory


def _part(options: argparse.Namespace, seed: int) -> Part:
    if options.readers:
        return _readers(options, seed)
    prepared()
    tried: collections.Counter[str] = collections.Counter()
    bad: dict[str, tuple[int, Case]] = {}
    slowest, largest = 0.0, 0
    deadline = time.monotonic() + options.seconds
    endless = cases(seed, options.kind)
    while time.monotonic() < deadline and not (options.count and sum(tried.values()) >= options.count):
        several = list(itertools.islice(endless, _BATCH))
        for case, outcome in zip(several, execute_all(several), strict=True):
            tried[case.kind] += 1
            slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.memory)
            for fault in outcome.faults:
                key = f"{case.kind}: {re.sub(r'[0-9]+', '0', fault)[:90]}"
                count, smallest = bad.get(key, (0, case))
                bad[key] = (count + 1, min(smallest, case, key=lambda one: len(one.data)))
    return tried, bad, slowest, largest


def _report(parts: list[Part], keep: Path) -> int:
    tried: collections.Counter[str] = collections.Counter()
    bad: dict[str, tuple[int, Case]] = {}
    for counts, faults, _, _ in parts:
        tried += counts
        for key, (count, case) in faults.items():
            bad[key] = (bad.get(key, (0, case))[0] + count, case)
    for kind, count in sorted(tried.items()):
        print(
            f"{kind:<16} {count:>7} {sum(number for key, (number, _) in bad.items() if key.startswith(f'{kind}:')):>5} bad"
        )
    slowest, largest = max(part[2] for part in parts), max(part[3] for part in parts)
    print(f"{'all':<16} {sum(tried.values()):>7} {sum(number for number, _ in bad.values()):>5} bad")
    print(f"slowest {slowest:.1f} s of processor time, largest {largest >> 20} MiB")
    for number, (key, (count, case)) in enumerate(sorted(bad.items())):
        keep.mkdir(parents=True, exist_ok=True)
        path = keep / f"{case.kind}-{number}.case"
        path.write_bytes(pickle.dumps(case))
        print(f"{count:>5} x {key}\n        again: python -m tests.fuzz.run --debug --again {path}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
