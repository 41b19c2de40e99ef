"""What `backends --run` measured on an H100, against a benchmark of the same shapes without our code."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from doctor.facts.measurement import MEMORY_PARTS, Measurement, from_record

SPEED = Path(__file__).resolve().parents[1] / "captures" / "speed"
LIBRARIES = SPEED / "h100-torch2.11-libraries.jsonl.gz"
OURS, PLAIN = SPEED / "h100-torch2.11-backends-run.jsonl.gz", SPEED / "h100-torch2.11.jsonl.gz"
#: Backends that quantize, so that rounding does not explain their error.
QUANTIZED = ("sageattention",)


def read(file: Path) -> list[tuple[str, Measurement]]:
    with gzip.open(file, "rt") as lines:
        records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [(record.get("job", ""), from_record(record)) for record in records]


def shape(one: Measurement) -> tuple[Any, ...]:
    left = one.window[0] if one.window else None
    sizes = (
        one.batch_size,
        one.num_heads,
        one.num_kv_heads,
        one.head_dim_qk,
        one.head_dim_v,
        one.seq_len_q,
        one.seq_len_kv,
    )
    return (*sizes, one.dtype, one.mask, left, one.bias, one.softcap, one.packed, one.training)


def times(records: list[tuple[str, Measurement]]) -> dict[tuple[Any, ...], dict[str, Measurement]]:
    found: dict[tuple[Any, ...], dict[str, Measurement]] = defaultdict(dict)
    for _, one in records:
        if one.ran and one.ms is not None:
            found[shape(one)][one.backend] = one
    return found


def agreement(one: dict[str, Measurement], other: dict[str, Measurement]) -> float | None:
    """Kendall's tau of two orders of the same backends, of pairs that tie in neither; None without such a pair."""
    signs = []
    for a, b in combinations(sorted(one.keys() & other.keys()), 2):
        if not one[a].ties(one[b]) and not other[a].ties(other[b]):
            ours = milliseconds(one[a]) < milliseconds(one[b])
            signs.append(ours == (milliseconds(other[a]) < milliseconds(other[b])))
    return sum(1 if sign else -1 for sign in signs) / len(signs) if signs else None


def milliseconds(one: Measurement) -> float:
    assert one.ms is not None
    return one.ms


@pytest.fixture(scope="module")
def ours() -> list[tuple[str, Measurement]]:
    return read(OURS)


def test_the_order_is_that_of_a_plain_benchmark(ours: list[tuple[str, Measurement]]) -> None:
    plain = times(read(PLAIN))
    found = [agreement(measured, plain[key]) for key, measured in times(ours).items() if key in plain]
    taus = [tau for tau in found if tau is not None]
    assert len(taus) >= 12
    assert min(taus) >= 0.9


def test_the_fastest_is_that_of_a_plain_benchmark(ours: list[tuple[str, Measurement]]) -> None:
    plain = times(read(PLAIN))
    for key, measured in times(ours).items():
        shared = measured.keys() & plain.get(key, {}).keys()
        if len(shared) > 1:
            theirs = min(shared, key=lambda name: milliseconds(plain[key][name]))
            best = min(shared, key=lambda name: milliseconds(measured[name]))
            assert best == theirs or measured[best].ties(measured[theirs]), key


def test_every_job_of_the_list_was_measured(ours: list[tuple[str, Measurement]]) -> None:
    ran = {job for job, one in ours if one.ran}
    assert len(ran) == 15
    kinds = {
        (one.mask, bool(one.window), one.packed, one.bias, bool(one.softcap), one.dtype) for _, one in ours if one.ran
    }
    assert len(kinds) >= 8


@pytest.mark.parametrize("file", [OURS, LIBRARIES], ids=lambda file: file.name)
def test_what_ran_is_right_and_weighed(file: Path) -> None:
    for job, one in read(file):
        if not one.ran:
            assert one.reason, (job, one.backend)
            continue
        assert one.right is (one.backend not in QUANTIZED), (job, one.backend, one.max_error)
        assert set(one.memory) <= set(MEMORY_PARTS) and one.memory["inputs"] > 0
        assert one.bytes_peak is not None and one.bytes_peak >= one.memory["output"]
        assert one.ms_forward is not None and one.ms is not None and one.ms_forward <= one.ms
        assert one.peak_share is not None and 0 < one.peak_share < 1


def test_parts_of_memory_explain_the_peak(ours: list[tuple[str, Measurement]]) -> None:
    """The peak is that of forward or of backward, and nothing of it is without a name."""
    for job, one in ours:
        if one.ran and one.bytes_peak is not None:
            part = one.memory
            held = part["output"] + part["saved"]
            backward = held + part.get("gradients", 0) + part.get("backward_workspace", 0)
            assert one.bytes_peak <= max(held + part["forward_workspace"], backward) + 1024, (job, one.backend)


def test_real_libraries_were_measured_or_refused_the_job() -> None:
    """Each library ran some job, and what it did not run has its reason in words."""
    ran: dict[str, str | None] = {}
    for job, one in read(LIBRARIES):
        assert one.outcome in ("ran", "refused", "unavailable"), (job, one.backend, one.reason)
        assert one.ran or one.reason, (job, one.backend)
        if one.ms_forward is not None:
            ran[one.backend] = one.library
    assert ran == {
        "sdpa.flash": None,
        "fa.flash3": "fa3-fwd 0.0.3",
        "fla.parallel_attn": "flash-linear-attention 0.6.0",
        "sageattention": "sageattention 1.0.6",
        "te.fused": "transformer-engine 2.20.2",
        "te.unfused": "transformer-engine 2.20.2",
    }
