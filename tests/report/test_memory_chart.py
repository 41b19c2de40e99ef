"""The chart of attention's memory: sizes that the job and the documentation of the kernels determine."""

from __future__ import annotations

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.report.memory_chart import memory_chart

JOB = {
    "workload.dtype": "bfloat16", "workload.seq_len_q": 4096, "workload.num_heads": 32, "workload.num_kv_heads": 8,
    "workload.head_dim_qk": 128, "workload.head_dim_v": 128, "workload.batch_size": 2, "workload.training": False,
    "gpu.memory_bytes": 80 << 30,
}  # fmt: skip


def chart(**changes: object):
    values = {**JOB, **{key.replace("__", "."): value for key, value in changes.items()}}
    return memory_chart(Facts(fact(key, value, "test") for key, value in values.items() if value is not None))


def test_sizes_at_the_length_of_the_job():
    drawn = chart()
    plain, fused = drawn.curves
    # 2 x 4096 x (32 + 8) x 256 x 2 bytes, and 4 bytes for each of 2 x 32 x 4096 queries
    assert fused.at_job == "161 MiB"
    # 8 bytes for each of 2 x 32 x 4096 x 4096 scores on top
    assert plain.at_job == "8.2 GiB"
    assert drawn.gpu == "80 GiB" and "At 4096 tokens and a batch of 2" in drawn.summary


def test_training_doubles_and_one_head_group_counts_as_many_heads():
    fused = chart(workload__training=True, workload__num_kv_heads=None).curves[1]
    assert fused.at_job == "513 MiB"  # 2 x 2 x 4096 x 64 x 256 x 2 bytes, and the logsumexp


@pytest.mark.parametrize("key", ["workload.dtype", "workload.seq_len_q", "workload.num_heads", "workload.head_dim_qk"])
def test_without_a_size_there_is_no_chart(key: str):
    assert chart(**{key.replace(".", "__"): None}) is None


@pytest.mark.parametrize("tokens", [1, 1000, 1 << 40])
def test_every_point_is_inside_the_picture(tokens: int):
    drawn = chart(workload__seq_len_q=tokens)
    points = [tuple(map(float, point.split(","))) for curve in drawn.curves for point in curve.points.split()]
    assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in points)
    assert 0 <= drawn.gpu_y <= drawn.height and chart(gpu__memory_bytes=None).gpu_y is None
    heights = [[float(point.split(",")[1]) for point in curve.points.split()] for curve in drawn.curves]
    assert all(plain <= fused for plain, fused in zip(*heights, strict=True))  # plain math is above
