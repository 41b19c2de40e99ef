"""The ranks of a job started by torchrun, mpirun or srun: each runs the probe, and rank 0 gets all answers.

The answers go through the key-value store of torch.distributed (`kernels/programs/rendezvous.py`, in the target
interpreter), or through a folder that all ranks see. No process group is created and no GPU is used.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from doctor.diagnosis.fleet.records import MAX_ANSWER, NodeAnswer, answer_of, node_name
from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.runner.result import KernelOutcome
from doctor.runner.run import run_one
from doctor.util.atomic_write import write_atomically

STALE = 120.0  # seconds: ranks start at different times, and clocks differ
PORT = 29517  # where a launcher names none
#: (rank, number of ranks) as launchers set them.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """This rank among all, and where rank 0 listens."""

    rank: int
    world: int
    address: str
    port: int
    agent: bool  # the launcher runs the store already


def place(environment: Mapping[str, str] | None = None) -> Place:
    """Return the rank of this process; DoctorError where no launcher set one."""
    own = os.environ if environment is None else environment
    for rank, world in LAUNCHERS:
        if own.get(rank, "").isdigit() and own.get(world, "").isdigit() and int(own[world]) > 0:
            port = own.get("MASTER_PORT", "")
            return Place(
                int(own[rank]), int(own[world]), own.get("MASTER_ADDR") or "127.0.0.1",
                int(port) if port.isdigit() else PORT, own.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
            )  # fmt: skip
    raise DoctorError(
        "`--ranks` needs a launcher", "`torchrun --nproc-per-node 8 -m -- doctor fleet --ranks`, mpirun or srun"
    )


def name_of(rank: int, host: str) -> str:
    """Return what one rank is called in the report."""
    return f"{host}/rank-{rank}"


def exchange_by_store(
    python: str, where: Place, answer: Mapping[str, object], timeout: float, missing: Callable[[int, str], None]
) -> Iterator[NodeAnswer]:
    """Send this rank's answer; on rank 0 yield those of all ranks, and report the ranks that sent none."""
    request = {
        "rank": where.rank, "world": where.world, "address": where.address, "port": where.port, "agent": where.agent,
        "text": json.dumps(answer), "timeout": timeout, "most": MAX_ANSWER,
    }  # fmt: skip
    result = run_one(python, "rendezvous", request, timeout=timeout + 60)
    if result.outcome != KernelOutcome.RAN:
        raise NoDiagnosis(
            f"rank {where.rank} cannot reach the others: {result.reason}", "`--folder DIR` needs no torch"
        )
    if where.rank:
        return
    texts = result.observed.get("texts")
    for rank in range(where.world):
        text = texts.get(str(rank)) if isinstance(texts, dict) else None
        yield from _answer(rank, text, f"no answer within {timeout:g} s", missing)


def exchange_by_folder(
    folder: Path, where: Place, answer: Mapping[str, object], timeout: float, missing: Callable[[int, str], None]
) -> Iterator[NodeAnswer]:
    """The same through a folder that all ranks see; a file that an earlier run left there does not count."""
    began = time.time() - STALE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"rank-{where.rank}.json", json.dumps(answer), force=True)
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot write into `{folder}`: {reason_of(problem)}") from None
    if where.rank:
        return
    deadline = time.monotonic() + timeout
    left = list(range(where.world))
    while left and time.monotonic() < deadline:
        for rank in list(left):
            path = folder / f"rank-{rank}.json"
            if path.is_file() and path.stat().st_mtime > began:
                left.remove(rank)
                with path.open(encoding="utf-8", errors="replace") as file:
                    yield from _answer(rank, file.read(MAX_ANSWER + 1), "", missing)
        if left:
            time.sleep(0.2)
    for rank in left:
        missing(rank, f"no answer within {timeout:g} s")


def _answer(rank: int, text: object, why: str, missing: Callable[[int, str], None]) -> Iterator[NodeAnswer]:
    if not isinstance(text, str) or len(text) > MAX_ANSWER:
        missing(rank, why or "its answer is not usable")
        return
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        missing(rank, "its answer is not readable")
        return
    found = answer_of(content) if isinstance(content, dict) else None
    if found is None:
        missing(rank, "its answer is not usable")
    else:
        yield found


def missing_rank(rank: int) -> str:
    """Return the name of a rank whose host is unknown."""
    return node_name(f"rank-{rank}")
