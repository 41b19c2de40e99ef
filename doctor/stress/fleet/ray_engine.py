"""Reach the nodes of a Ray cluster: one task per node, which is bound to that node, and a pool of tasks for a sweep.

A node-bound task (NodeAffinitySchedulingStrategy) names the node that does not answer; a placement group of spread
bundles would wait for all nodes together. Time limits, retries and lost workers are Ray's; what tasks return is text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from doctor.diagnosis.fleet.records import MAX_ANSWER, NodeAnswer, answer_of, node_name
from doctor.errors import DoctorError, NoDiagnosis
from doctor.report.fleet_model import NodeState

from .probe import ProbeTask, host_name, probe, run_cases

RETRIES = 2  # after a worker was lost
POLL = 0.5  # seconds
Missing = Callable[[str, NodeState, str], None]


def probe_text(task: str, node: str) -> str:
    """Examine this node; runs in a worker of Ray."""
    return json.dumps(probe(ProbeTask.from_json(task), node))


def cases_text(python: str, cases: str, timeout: float) -> str:
    """Run a share of a sweep; runs in a worker of Ray, which sees the GPU that Ray reserved."""
    results: list[dict[str, Any]] = []
    run_cases(python, json.loads(cases), timeout, results.append)
    return json.dumps([{**item, "node": host_name()} for item in results], default=repr)


def connect(address: str) -> Any:
    """Return the module `ray`, connected: to a cluster, or to one that is started on this machine (`local`)."""
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise DoctorError("`--ray` needs Ray", "pip install 'attn-doctor[ray]'") from None
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": True, "logging_level": "ERROR"}
    if address == "local":
        options["include_dashboard"] = False
    try:
        ray.init(address=address, **options)
    except Exception as problem:  # Ray raises ConnectionError, RuntimeError, ValueError …
        text = " ".join(str(problem).split())[:300]
        raise NoDiagnosis(f"cannot connect to Ray at `{address}`: {text}") from None
    return ray


def nodes_of(ray: Any) -> list[tuple[str, str, bool, int]]:
    """Return (name, id, alive, GPUs) of every node; a name that several nodes share is made unique by the id."""
    listed = ray.nodes()
    names = [node_name(node.get("NodeManagerHostname") or node.get("NodeName") or node["NodeID"]) for node in listed]
    found = []
    for node, name in zip(listed, names, strict=True):
        unique = name if names.count(name) == 1 else f"{name}:{node['NodeID'][:8]}"
        gpus = int((node.get("Resources") or {}).get("GPU", 0))
        found.append((unique, str(node["NodeID"]), bool(node.get("Alive")), gpus))
    return found


def probe_nodes(
    ray: Any, task: ProbeTask, timeout: float, missing: Missing, inform: Callable[[int, int], None]
) -> Iterator[NodeAnswer]:
    """Yield the answer of each node as it comes; `missing` is called for each node that gives none."""
    strategy = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote = ray.remote(probe_text)
    waiting: dict[Any, str] = {}
    nodes = nodes_of(ray)
    for name, identity, alive, gpus in nodes:
        if not alive:
            missing(name, NodeState.LOST, "Ray lists the node as dead")
            continue
        options = {
            "num_cpus": 0,
            "num_gpus": gpus if task.run else 0,
            "max_retries": RETRIES,
            "scheduling_strategy": strategy(identity, soft=False),
        }
        waiting[remote.options(**options).remote(task.to_json(), name)] = name
    total, deadline = len(waiting), time.monotonic() + timeout
    while waiting and time.monotonic() < deadline:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
        for reference in ready:
            name = waiting.pop(reference)
            answer = _answer(ray, reference, name, missing)
            if answer is not None:
                yield answer
        inform(total - len(waiting), total)
    for reference, name in waiting.items():
        ray.cancel(reference, force=True)
        missing(name, NodeState.SLOW, f"no answer within {timeout:g} s")


def _answer(ray: Any, reference: Any, name: str, missing: Missing) -> NodeAnswer | None:
    try:
        text = ray.get(reference)
    except ray.exceptions.RayTaskError as problem:
        missing(name, NodeState.FAILED, _last_line(problem))
        return None
    except ray.exceptions.RayError as problem:
        missing(name, NodeState.LOST, f"{type(problem).__name__}: {_first_line(problem)}")
        return None
    if not isinstance(text, str) or len(text) > MAX_ANSWER:
        missing(name, NodeState.FAILED, "its answer is not usable")
        return None
    answer = answer_of(json.loads(text))
    return answer or NodeAnswer(name, None, "its answer is not usable")


def run_pool(
    ray: Any,
    python: str,
    shares: Sequence[Sequence[Mapping[str, Any]]],
    timeout: float,
    gpus: bool,
    limit: float,
    note: Callable[[str], None],
) -> Iterator[Sequence[Any]]:
    """Yield the results of each share of a sweep; Ray places it on a free GPU, and elsewhere when that node is lost.

    `limit`: seconds for everything; shares that are not done then are cancelled, and `note` says so.
    """
    remote = ray.remote(cases_text).options(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=RETRIES)
    waiting = {remote.remote(python, json.dumps(list(share)), timeout): share for share in shares}
    deadline = time.monotonic() + limit
    while waiting and time.monotonic() < deadline:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
        for reference in ready:
            share = waiting.pop(reference)
            try:
                yield json.loads(ray.get(reference))
            except ray.exceptions.RayError as problem:
                note(
                    f"{len(share)} cases were lost with their worker: {type(problem).__name__}: {_first_line(problem)}"
                )
    for reference in waiting:
        ray.cancel(reference, force=True)
    if waiting:
        note(f"{sum(map(len, waiting.values()))} cases were not run within {limit:g} s")


def _first_line(problem: BaseException) -> str:
    return " ".join(str(problem).strip().split("\n")[0].split())[:300]


def _last_line(problem: BaseException) -> str:
    return " ".join(str(problem).strip().split("\n")[-1].split())[:300]
