"""What runs on one node: its snapshot, and on request the same small kernels on each of its GPUs. Never raises."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doctor.diagnosis.examine import examine
from doctor.diagnosis.judge import TOOL
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.probes.locate import find_target
from doctor.sources.snapshot import document
from doctor.stress.devices import devices_of, on_gpu
from doctor.stress.discovery import SweepOptions, discover, selected_backends
from doctor.stress.plan import key, plan
from doctor.stress.verdict import verdict
from doctor.stress.worker import Worker

CASES = 24  # of `--run`, on every GPU
MOST_REASON = 300  # characters


@dataclass(frozen=True)
class ProbeTask:
    """What every node does; all fields are plain, so that any engine can send it."""

    python: str | None = None
    rules: tuple[str, ...] = ()
    run: bool = False
    cases: int = CASES
    seed: int = 0
    device: str | None = None
    timeout: float = 60.0  # seconds for one case

    def to_json(self) -> str:
        """Return the task as text."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> ProbeTask:
        """Return the task in a text that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "rules": tuple(fields.get("rules", ()))})


def host_name() -> str:
    """Return the name of this node, without its domain."""
    return socket.gethostname().partition(".")[0] or "localhost"


def probe(task: ProbeTask, node: str | None = None) -> dict[str, Any]:
    """Return the answer of this node: a snapshot or the problem, and the results of kernels."""
    answer: dict[str, Any] = {"node": node or host_name(), "tool": TOOL}
    try:
        found = examine(Request(python=task.python, run=False), load_rulebook(task.rules))
        answer["snapshot"] = document(found.facts)
    except DoctorError as problem:
        answer["problem"] = problem.message
    except Exception as problem:  # whatever it is, the others must be reported
        answer["problem"] = f"{type(problem).__name__}: {problem}"
    if task.run:
        try:
            answer["results"] = gpu_results(task)
        except DoctorError as problem:
            answer["kernels"] = problem.message
            answer["results"] = [{"gpu": "all", "model": "", "case": "start", "verdict": "unavailable",
                                  "reason": problem.message[:MOST_REASON]}]  # fmt: skip
    return answer


def gpu_results(task: ProbeTask) -> list[dict[str, Any]]:
    """Run the same cases on every GPU of this node, one GPU after the other; return a result each."""
    python = find_target(task.python, None).python
    if python is None:
        raise DoctorError("there is no interpreter to run in", "name one with `--python PATH`")
    options = SweepOptions(python, cases=task.cases, seed=task.seed, device=task.device, timeout=task.timeout)
    hello, _ = discover(options, lambda text: None)
    device = str(hello["device"])
    devices, _ = devices_of(hello if on_gpu(device) else {}, None)
    cases = plan(selected_backends(options, hello, device), device, task.cases, task.seed, compiled=0).cases[
        : task.cases
    ]
    results: list[dict[str, Any]] = []
    for one in devices:
        worker = Worker(python, timeout=task.timeout, env=one.env)
        number, _, model = one.label.removesuffix(")").partition(" (")
        model = model or one.label

        def keep(request: Mapping[str, Any], result: Any, gpu: str = number, model: str = model) -> None:
            bits = result.observed.get("bits") if "not_repeatable" not in result.observed.get("faults", ()) else None
            results.append(
                {
                    "gpu": gpu, "model": model, "case": key(dict(request)), "verdict": str(verdict(result)),
                    "bits": bits, "reason": result.reason[:MOST_REASON],
                }
            )  # fmt: skip

        worker.run(cases, keep)
    return results


def run_cases(
    python: str,
    cases: Sequence[Mapping[str, Any]],
    timeout: float,
    on_result: Callable[[dict[str, Any]], None],
    env: Mapping[str, str | None] | None = None,
) -> None:
    """Run a share of a sweep; `on_result` is called with `{"case", "answer"}` after each case."""
    worker = Worker(python, timeout=timeout, env=env)

    def keep(request: Mapping[str, Any], result: Any) -> None:
        answer = {name: value for name, value in vars(result).items() if value}
        on_result({"case": dict(request), "answer": {**answer, "outcome": str(result.outcome)}})

    worker.run(list(cases), keep)
