"""Plan the cases of a sweep and their order: the backends in turn, each from its own covering array."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

from .axes import RESTING, consistent, domain
from .covering_array import CoveringArray

#: The paths that jobs take by default come first.
FIRST = ("sdpa.default", "transformers.sdpa", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "flash2", "te.fused")
PROFILED = 8  # every so many cases of a backend a profile shows which kernel ran
#: Cases that may end the process come last, and are few: each costs a start.
RISKY = {"layout": "offset1"}  # the tensor begins at an odd element, as after slicing a flat buffer
PLAINLY = {"mask": "no_mask", "bias_shape": "b1ss", "bias_grad": False, "grad": "dense", "profile": False}
PRIMED = {**PLAINLY, "before": "other_grad"}
#: A dimension of one has an arbitrary stride, and code that uses it fails.
SINGLE = tuple({**PLAINLY, "layout": "single", **one}
               for one in ({"batch_size": 1}, {"num_heads": 1, "num_kv_heads": 1}, {"seq_len_q": 1}))  # fmt: skip
#: A bias that is trained, and one that is trained alone.
LEARNED = {**PLAINLY, "mask": "additive", "bias_shape": "bhss", "bias_grad": True, "deterministic": False,
           "layout": "bhsd"}  # fmt: skip
ALONE = {**LEARNED, "alone": True}
#: More sequences than a grid of blocks has in its second and third dimension: 65535.
LARGE = {**PLAINLY, "batch_size": 65_537, "num_heads": 1, "num_kv_heads": 1, "seq_len_q": 8, "seq_len_kv": 8,
         "head_dim_qk": 16, "head_dim_v": 16, "layout": "bhsd", "deterministic": False,
         "dtype": "bfloat16"}  # fmt: skip
COMPILED = 3  # cases per backend that also go through torch.compile, which costs seconds each


@dataclass(frozen=True)
class SweepPlan:
    """Cases in order, and for each backend (pairs covered, feasible pairs)."""

    cases: tuple[dict[str, Any], ...]
    pairs: dict[str, tuple[int, int]]


def plan(backends: Sequence[str], device: str, count: int, seed: int = 0, compiled: int = COMPILED) -> SweepPlan:
    """Return `count` cases over the backends in proportion to their shares; deterministic."""
    order = sorted(backends, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    shares = {name: domain(name).share for name in order}
    total = sum(shares.values()) or 1.0
    queues: dict[str, list[dict[str, Any]]] = {}
    pairs = {}
    for name in order:
        wanted = max(4, round(count * shares[name] / total))
        queues[name], pairs[name] = _cases(name, device, wanted, seed)
    slow = {name: queues.pop(name) for name in order if domain(name).slow}
    slow = {
        name: [*queue, *_special(name, queue, [LEARNED])] for name, queue in slow.items()
    }  # few of them would have a bias otherwise
    late = [case for name in queues if domain(name).compiles
            for case in _compiled(queues[name], device, compiled)]  # fmt: skip
    risky = {name: _risky(name, queue, device) for name, queue in queues.items()}
    primed = {name: _primed(queue) for name, queue in queues.items()}
    single = {name: _special(name, queue, SINGLE) for name, queue in queues.items()}
    return SweepPlan(
        (*_in_turn(queues), *_in_turn(primed), *_in_turn(single), *_in_turn(slow), *late, *_in_turn(risky)), pairs
    )


def _cases(name: str, device: str, count: int, seed: int) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    mine = domain(name)

    def fits(case: dict[str, Any]) -> bool:
        return consistent(case) and mine.fits(case)

    # Another array for each backend: together they cover more than one array for all.
    cover = CoveringArray(mine.axes(device), fits, crc32(f"{seed} {name.rpartition('/')[2]}".encode()), RESTING)
    made = []
    for number, case in enumerate(islice(cover, count)):
        case = {"backend": name, **case, "seed": seed * 100_003 + number, "device": device}
        if number % PROFILED == 0:
            case["profile"] = True
        made.append(case)
    return made, cover.pairs


def _compiled(made: list[dict[str, Any]], device: str, count: int) -> list[dict[str, Any]]:
    """Return some of the cases once more through torch.compile; none on a CPU, where that needs a C++ compiler."""
    eager = [case for case in made if not case.get("dropout")]
    if device.startswith("cpu") or not eager or not count:
        return []
    step = max(1, len(eager) // count)
    return [{**case, "how": "compile", "profile": False} for case in eager[::step][:count]]


def _primed(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return some cases after a backward of the same shapes with another gradient layout: a wrong cache key shows."""
    several = [
        case
        for case in made
        if case["how"] == "eager" and not case.get("dropout") and min(case["num_heads"], case["seq_len_q"]) > 1
    ]
    return [{**case, **PRIMED} for case in several[:8]]


def _special(name: str, made: list[dict[str, Any]], sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each of `sets` the next case that can take it; none for a backend of packed tensors only."""
    mine, chosen = domain(name), []
    loose = [{**case, "how": "eager"} for case in made if case["layout"] != "thd" and not _odd(case)]
    for number, special in enumerate(sets):
        found = ({**case, **special} for case in loose[number:])
        chosen += [case for case in found if consistent(case) and mine.fits(case)][:1]
    return chosen


def _odd(case: Mapping[str, Any]) -> bool:
    return bool(case["how"] == "compile" or case.get("dropout") or case.get("softcap") or case.get("alibi"))


def _dense(case: Mapping[str, Any]) -> bool:
    return case["layout"] in ("bhsd", "bshd", "sbhd") and case["how"] != "compile" and not case.get("dropout")


def _risky(name: str, made: list[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    own = not name.startswith("transformers.")  # those call backends that have cases of their own
    learns = any(value["bias_grad"] for value in domain(name).axes(device)["bias"])
    sets: list[Mapping[str, Any]] = [ALONE] if own and learns else []
    if own and not device.startswith("cpu"):
        sets.append(LARGE)
    loose = [{**case, **RISKY, "how": "eager", "profile": True} for case in made if _dense(case)]
    return _special(name, made, sets) + loose[: 2 if name == "sdpa.default" else 1]


def _in_turn(queues: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield one of each in turn, so that a short budget covers all backends; longer queues are spread evenly."""
    longest = max((len(queue) for queue in queues.values()), default=0)
    for number in range(longest):
        for queue in queues.values():
            at, last = number * len(queue) // longest, (number - 1) * len(queue) // longest
            if queue and (number == 0 or at != last):
                yield queue[at]


def key(case: dict[str, Any]) -> str:
    """Return the case as text, independent of the order of its keys."""
    return json.dumps({k: v for k, v in case.items() if k not in ("profile", "memory_bytes")}, sort_keys=True)
