"""The generator: every pair that can be, from a seed, and nothing that makes no sense."""

from __future__ import annotations

from itertools import combinations, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.stress.axes import AXES, DOMAINS, consistent, domain
from doctor.stress.covering_array import CoveringArray
from doctor.stress.plan import key, plan


def pairs_of(case, names):
    return {((a, case[a]), (b, case[b])) for a, b in combinations(names, 2)}


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=6), seed=st.integers(0, 10**6))
def test_every_pair_occurs_and_no_row_twice(sizes, seed):
    axes = {f"a{i}": [{f"a{i}": j} for j in range(size)] for i, size in enumerate(sizes)}
    cover = CoveringArray(axes, lambda case: True, seed)
    rows, seen = [], set()
    for case in islice(cover, 200):
        rows.append(tuple(case.values()))
        seen |= pairs_of(case, axes)
    total = sum(x * y for x, y in combinations(sizes, 2))
    assert len(seen) == total == cover.pairs[1] == cover.pairs[0]
    assert len(rows) == len(set(rows))


def test_far_fewer_rows_than_combinations():
    axes = {f"a{i}": [{f"a{i}": j} for j in range(4)] for i in range(8)}
    cover = CoveringArray(axes, lambda case: True, 1)
    for count, _ in enumerate(cover, 1):  # noqa: B007
        if not cover.missing:
            break
    assert count <= 45, "4**8 combinations; 16 rows are the least possible"


def test_infeasible_pairs_are_distinguished_from_missing_ones():
    axes = {"a": [{"a": 0}, {"a": 1}], "b": [{"b": 0}, {"b": 1}], "c": [{"c": 0}, {"c": 1}]}
    cover = CoveringArray(axes, lambda case: not (case["a"] and case["b"]), 0)
    cases = list(islice(cover, 50))
    assert cover.pairs == (11, 11)
    assert not any(case["a"] and case["b"] for case in cases) and len(cases) == 6


def test_a_value_that_few_go_with_leaves_the_others_their_share():
    sizes = {"mask": 10, "bias": 6, "length": 10, "dims": 10, "heads": 10}
    axes = {name: [{name: place} for place in range(size)] for name, size in sizes.items()}

    def fits(case):
        return case["bias"] == 0 or case["mask"] == 9

    covers = [CoveringArray(axes, fits, 1, resting) for resting in ((), ("bias",))]
    crowded, even = (sum(case["mask"] == 9 for case in islice(cover, 600)) for cover in covers)
    assert even < 0.75 * crowded and all(cover.pairs[0] == cover.pairs[1] for cover in covers)


@pytest.mark.parametrize("backend", ["sdpa.default", "flash2", "te.fused"])
def test_special_cases_run_once_or_twice(backend):
    cases = plan([backend], "cuda", 120, seed=2).cases
    single = [case for case in cases if case["layout"] == "single"]
    assert {min(case["batch_size"], case["num_heads"], case["seq_len_q"]) for case in single} == {1}
    assert 2 <= len(single) <= 3 and sum(case["batch_size"] > 65_535 for case in cases) == 1
    alone = [case for case in cases if case.get("alone")]
    assert len(alone) == (backend != "flash2") and all(case["bias_grad"] for case in alone)
    assert not any(case["batch_size"] > 65_535 for case in plan([backend], "cpu", 120, seed=2).cases)


@pytest.mark.parametrize("backend", sorted(DOMAINS))
def test_cases_of_a_backend_are_ones_it_can_say(backend):
    cases = plan([backend], "cuda", 60, seed=3).cases
    assert len(cases) >= 60
    axes = domain(backend).axes("cuda")
    for case in cases:
        assert domain(backend).fits(case) and consistent({"how": "eager", **case})
        if case["layout"] == "single" or case.get("alone") or case["batch_size"] > 4:
            continue  # few of each backend, which set what no axis does
        for name, values in axes.items():
            if name in ("how", "layout", "feature"):
                continue  # set again for compile and misaligned cases; a feature may be none
            assert any(all(case[k] == v for k, v in value.items()) for value in values), (name, case)


def test_the_same_seed_gives_the_same_plan_and_another_another():
    names = ["sdpa.default", "flash2", "varlen"]
    one, two, other = (plan(names, "cuda", 150, seed=seed).cases for seed in (7, 7, 8))
    assert one == two and {key(case) for case in one} != {key(case) for case in other}
    assert len({key(case) for case in one}) == len(one)


def test_pairs_of_the_default_path_are_covered_within_the_usual_count():
    covered, total = plan(["sdpa.default"], "cuda", 420).pairs["sdpa.default"]
    assert covered == total > 2000


def test_backends_take_turns():
    first = plan(["sdpa.default", "sdpa.math", "flash2"], "cuda", 90).cases[:12]
    assert {case["backend"] for case in first} == {"sdpa.default", "sdpa.math", "flash2"}


def test_what_may_end_the_process_comes_last():
    cases = plan(["sdpa.default", "sdpa.flash"], "cuda", 100).cases
    odd = [number for number, case in enumerate(cases) if case["layout"] == "offset1"]
    assert odd and min(odd) > len(cases) - 8


def test_the_issue_named_axes_are_there():
    lengths = {(v["seq_len_q"], v["seq_len_kv"]) for v in AXES["lengths"]}
    for size in (1, 63, 64, 65, 127, 128, 129, 192, 320, 1000):
        assert (size, size) in lengths
    assert any(q == 1 < kv for q, kv in lengths) and any(q > kv for q, kv in lengths)
    assert {"head_dim_qk": 192, "head_dim_v": 128} in AXES["dims"]
