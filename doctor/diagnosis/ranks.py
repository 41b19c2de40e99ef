"""The ranks of one job compared: what should be the same everywhere and is not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doctor.errors import DoctorError
from doctor.model import ABSENT, Fact, Facts
from doctor.sources.snapshot import document, parse_facts

#: Gather one object of each rank, in their order, on every rank.
Gather = Callable[[Any], Sequence[Any]]

#: What a launcher sets for each rank on purpose.
_OWN = ("env.CUDA_VISIBLE_DEVICES", "env.LOCAL_RANK", "env.RANK")
_SHOWN = 6  # differences listed by name; the rest is counted
_OF_THE_GPU = ("gpu.name", "gpu.sm")
_OF_NCCL = ("nvidia-nccl-cu11.version", "nvidia-nccl-cu12.version", "nvidia-nccl-cu13.version")
_OF_LIBRARIES = ("torch.cuda", "torch.cxx11_abi")


@dataclass(frozen=True)
class Disagreement:
    """One fact that is not the same on all ranks: each value with the ranks that have it."""

    key: str
    values: tuple[tuple[Any, tuple[int, ...]], ...]

    def sentence(self) -> str:
        """`torch 2.6.0 on ranks 0-7, 2.7.0 on ranks 8-15`."""
        name = self.key.removesuffix(".version").removeprefix("env.")
        return f"{name} " + ", ".join(f"{_said(value)} on {_ranks(ranks)}" for value, ranks in self.values)


def disagreements(all_facts: Sequence[Facts]) -> tuple[Disagreement, ...]:
    """The versions, variables and GPUs that differ between ranks.

    What a rank could not read differs from nothing, and a rank without any facts takes no part.
    """
    keys = dict.fromkeys(key for facts in all_facts for key in facts if _compared(key))
    found = []
    for key in sorted(keys):
        values: dict[Any, list[int]] = {}
        for rank, facts in enumerate(all_facts):
            if not facts or (key in facts and facts[key].value is None):
                continue  # unknown is not another value
            values.setdefault(facts.value(key) if key in facts else ABSENT, []).append(rank)
        if len(values) > 1:
            found.append(Disagreement(key, tuple((value, tuple(ranks)) for value, ranks in values.items())))
    return tuple(found)


def ranks_facts(all_facts: Sequence[Facts]) -> Facts:
    """The facts about the ranks: `ranks.*`, each a sentence or absent."""
    found = disagreements(all_facts)
    kinds: Mapping[str, list[Disagreement]] = {
        "ranks.nccl_differs": [], "ranks.packages_differ": [], "ranks.environment_differs": [], "ranks.gpus_differ": [],
    }  # fmt: skip
    for item in found:
        kinds[_kind(item.key)].append(item)
    source = f"the facts of {len(all_facts)} ranks compared"
    return Facts(Fact(key, _told(items), source) for key, items in kinds.items())


def exchange(mine: Facts | DoctorError, gather: Gather) -> tuple[tuple[Facts, ...], tuple[str, ...]]:
    """The facts of all ranks in their order, and a note for each that has none; every rank must call this."""
    say = {"problem": mine.message} if isinstance(mine, DoctorError) else document(mine)
    everyone, notes = [], []
    for rank, text in enumerate(gather(json.dumps(say))):
        content = json.loads(text)
        problem = content.get("problem")
        everyone.append(Facts() if problem else parse_facts(text, f"rank {rank}"))
        if problem:
            notes.append(f"rank {rank} could not be compared: {problem}")
    return tuple(everyone), tuple(notes)


def process_group() -> tuple[int, Gather] | None:
    """This process's rank and the gather of the process group that the training script has set up, if it has.

    torch is looked up among the modules that are loaded already and never imported from here.
    DoctorError where a launcher started several ranks and they cannot communicate yet.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()

        def gather(item: Any) -> Sequence[Any]:
            gathered: list[Any] = [None] * size
            distributed.all_gather_object(gathered, item)
            return gathered

        return (distributed.get_rank(), gather) if size > 1 else None
    started = os.environ.get("WORLD_SIZE", "1")
    if started.isdigit() and int(started) > 1:
        raise DoctorError(
            f"{started} ranks were started, and they cannot communicate: torch.distributed is not initialized",
            "call it after `init_process_group`, or pass `gather` and `rank`",
        )
    return None


def _compared(key: str) -> bool:
    if key in _OWN or key.startswith(("workload.", "ranks.")):
        return False
    return key.endswith(".version") or key.startswith("env.") or key in (*_OF_THE_GPU, *_OF_LIBRARIES)


def _kind(key: str) -> str:
    if key in _OF_NCCL:
        return "ranks.nccl_differs"
    if key in _OF_THE_GPU:
        return "ranks.gpus_differ"
    return "ranks.environment_differs" if key.startswith("env.") else "ranks.packages_differ"


def _told(items: Sequence[Disagreement]) -> str:
    if not items:
        return ABSENT
    more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(item.sentence() for item in items[:_SHOWN]) + more


def _said(value: Any) -> str:
    return "absent" if value == ABSENT else str(value)


def _ranks(ranks: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0-7, 9`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"
