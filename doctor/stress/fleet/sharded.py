"""A sweep divided among the GPUs of many nodes, with one journal that survives lost nodes.

A case that has no result, because its node was lost or the time was up, is run by the same command again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doctor._version import __version__
from doctor.diagnosis.fleet.records import encode, read_answers
from doctor.errors import NoDiagnosis
from doctor.report.sharded_model import BadCase, ShardedReport
from doctor.runner.result import KernelResult
from doctor.sources.probes.locate import find_target
from doctor.stress.devices import on_gpu
from doctor.stress.discovery import SweepOptions, discover, own_functions, selected_backends
from doctor.stress.journal import Journal, result_of
from doctor.stress.plan import key, plan
from doctor.stress.verdict import BAD, CaseVerdict, verdict

from . import ray_engine, slurm_engine
from .probe import host_name, run_cases

ROUNDS = 3  # of srun: cases of a lost node run on the others
FLEET = "fleet"  # instead of a GPU in the journal: any GPU may run any case


@dataclass(frozen=True)
class ShardedOptions:
    """What the sweep covers and how it reaches the nodes."""

    python: str | None
    cases: int
    seed: int
    backends: tuple[str, ...]
    device: str | None
    share: int
    case_timeout: float
    timeout: float
    journal: Path | None
    restart: bool
    ray: str | None  # None: Slurm


@dataclass
class _Run:
    """A sweep while it runs."""

    cases: Sequence[dict[str, Any]]
    journal: Journal
    progress: Callable[[int, int, int], None]
    notes: list[str] = field(default_factory=list)
    done: dict[str, KernelResult] = field(default_factory=dict)
    nodes: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = wanted = {key(case) for case in self.cases}
        self.bad = 0
        self.done = {
            case: result for (gpu, case), result in self.journal.results.items() if gpu == FLEET and case in wanted
        }

    @property
    def left(self) -> list[dict[str, Any]]:
        """Return the cases without a result."""
        return [case for case in self.cases if key(case) not in self.done]

    def take(self, item: Mapping[str, Any], node: str = "") -> None:
        """Take over one result that a node sent, if it is one."""
        case, result = item.get("case"), result_of(item.get("answer"))
        if not isinstance(case, dict) or result is None:
            return
        name = key(case)
        if name in self.done or name not in self.names:
            return
        self.done[name] = result
        self.where[name] = node
        self.nodes[node] += 1
        self.journal.add(FLEET, case, result)
        self.bad += verdict(result) in BAD
        self.progress(len(self.done), len(self.cases), self.bad)


def run_sharded(options: ShardedOptions, progress: Callable[[int, int, int], None]) -> ShardedReport:
    """Run the cases that the journal does not have, on all GPUs; NoDiagnosis where no case could be planned."""
    began = time.monotonic()
    python = find_target(options.python, None).python or sys.executable
    sweep = SweepOptions(python, seed=options.seed, backends=options.backends, device=options.device)
    ray = ray_engine.connect(options.ray) if options.ray is not None else None
    try:
        hello, problems = discover(sweep, lambda text: None)
        device = str(hello["device"])
        backends = selected_backends(sweep, hello, device)
        cases = plan(backends, device, options.cases, options.seed, compiled=0).cases
        stack = {
            "fleet": True, "torch": hello.get("torch"), "device": device, "seed": options.seed, "cases": len(cases),
            "backends": sorted(backends), "own": own_functions(backends), "attn-doctor": __version__,
        }  # fmt: skip
        journal = Journal(options.journal, stack, restart=options.restart)
        run = _Run(cases, journal, progress, notes=list(problems))
        resumed = len(run.done)
        try:
            if ray is not None:
                _with_ray(ray, run, options, python, device)
            else:
                _with_slurm(run, options, python, device)
            if not run.left:
                journal.finish()
        finally:
            journal.close()
    finally:
        if ray is not None:
            ray.shutdown()
    return _report(run, resumed, time.monotonic() - began, options)


def _with_ray(ray: Any, run: _Run, options: ShardedOptions, python: str, device: str) -> None:
    left = run.left
    shares = [left[start : start + options.share] for start in range(0, len(left), options.share)]
    pool = ray_engine.run_pool(
        ray, python, shares, options.case_timeout, on_gpu(device), options.timeout, run.notes.append
    )
    for results in pool:
        for item in results if isinstance(results, list) else ():
            if isinstance(item, dict):
                run.take(item, str(item.get("node") or ""))


def _with_slurm(run: _Run, options: ShardedOptions, python: str, device: str) -> None:
    nodes = list(slurm_engine.allocation().nodes)
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or 0) if on_gpu(device) else 0
    deadline = time.monotonic() + options.timeout
    for number in range(ROUNDS):
        left = run.left
        if not left or not nodes:
            break
        order = json.dumps({"python": python, "cases": left, "timeout": options.case_timeout})
        per_node = max(1, gpus)
        command = slurm_engine.probe_command(nodes, ["work"], per_node, gpus=gpus > 0)
        stream = slurm_engine.Stream(command, max(1.0, deadline - time.monotonic()), order)
        heard: set[str] = set()
        for answer in read_answers(["-"], stream.lines()):
            heard.add(answer.node)
            for item in answer.results:
                run.take(item, answer.node)
        if run.left:
            silent = [node for node in nodes if node not in heard]
            why = "the time was up" if stream.timed_out else stream.error_of(silent[0] if silent else "")
            run.notes.append(f"round {number + 1}: {len(run.left)} cases have no result: {why}")
            nodes = [node for node in nodes if node in heard] or nodes
        if stream.timed_out or time.monotonic() > deadline:
            break


def work(order: Mapping[str, Any], on_line: Callable[[str], None]) -> None:
    """Run this task's share of the cases in an order; one line after each case."""
    number, count = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    node = os.environ.get("SLURMD_NODENAME") or host_name()

    def send(results: list[dict[str, Any]]) -> None:
        for line in encode({"node": node, "results": results}):
            on_line(line)

    def keep(item: dict[str, Any]) -> None:
        send([item])

    send([])  # this node is there

    run_cases(str(order["python"]), list(order["cases"])[number::count], float(order["timeout"]), keep)


def _report(run: _Run, resumed: int, wall: float, options: ShardedOptions) -> ShardedReport:
    counts: Counter[str] = Counter(str(verdict(result)) for result in run.done.values())
    left = len(run.left)
    if left:
        counts[str(CaseVerdict.NOT_REACHED)] = left
        if options.journal is not None:
            run.notes.append(f"the same command continues from `{options.journal}`")
    if not run.done:
        raise NoDiagnosis("no case was run", "; ".join(run.notes)[:300] or None)
    by_backend: dict[str, Counter[str]] = {}
    bad = []
    for case in run.cases:
        result = run.done.get(key(case))
        word = str(verdict(result)) if result is not None else str(CaseVerdict.NOT_REACHED)
        by_backend.setdefault(str(case["backend"]), Counter())[word] += 1
        if result is not None and verdict(result) in BAD:
            faults = ", ".join(map(str, result.observed.get("faults") or ()))
            bad.append(
                BadCase(key(case), str(case["backend"]), word, result.reason or faults, run.where.get(key(case), ""))
            )
    backends = {name: dict(item) for name, item in by_backend.items()}
    notes = tuple(dict.fromkeys(run.notes))
    return ShardedReport(
        f"attn-doctor {__version__}", len(run.cases), dict(counts), backends, tuple(bad), dict(run.nodes), resumed,
        round(wall, 1), notes,
    )  # fmt: skip
