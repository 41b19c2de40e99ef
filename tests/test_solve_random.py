"""Fixes of made-up environments: real releases in random company, judged as a user would judge the result."""

from __future__ import annotations

import random
import time
from functools import cache

import pytest

from doctor.evaluate import Assessment, evaluate
from doctor.model import ABSENT, Facts, Fix, Report
from doctor.pins import render_pins
from doctor.release_index import Platform, ReleaseIndex, load_index, needs_of
from doctor.rulebook import Rulebook, load_rulebook
from doctor.solve import solve, stack_of
from doctor.vocabulary import fact
from doctor.workload import complete_workload

SEEDS = range(60)


@cache
def rulebook() -> Rulebook:
    return load_rulebook()


def environment(seed: int) -> Facts:
    """A stack whose companions name its torch, on some GPU, with some job."""
    chance, index = random.Random(seed), load_index()
    python = chance.choice(["3.10.12", "3.11.7", "3.12.3"])
    torch = _recent(chance, index, "torch", python)
    versions = {"torch": torch, **_pinned(index, torch, python)}
    for package in ("torchvision", "torchaudio", "xformers", "vllm"):
        fitting = [
            v
            for v, item in index.releases(package).items()
            if any(n.package == "torch" and n.pin == torch for n in needs_of(item.requires, Platform(python)))
        ]
        if fitting and chance.random() < 0.4:
            versions[package] = chance.choice(fitting)
    if chance.random() < 0.7:
        versions["flash-attn"] = _recent(chance, index, "flash-attn", python)
    if chance.random() < 0.6:
        release = _recent(chance, index, "transformer-engine", python)
        versions |= dict.fromkeys(
            ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12"), release
        )
    if chance.random() < 0.6:
        versions["transformers"] = _recent(chance, index, "transformers", python)
    if chance.random() < 0.15:
        versions |= {"nvidia-cudnn-cu12": "9.10.2.21", "nvidia-cudnn-cu13": "9.19.0.56"}
    width, heads = chance.choice([64, 128, 192, 256]), chance.choice([16, 32, 128])
    values = {
        "python.version": python, "platform.system": "Linux", "platform.machine": "x86_64",
        "distributions.complete": True, "gpu.sm": chance.choice(["7.0", "8.0", "8.9", "9.0", "10.0", "12.0"]),
        "driver.version": chance.choice(["535.183.01", "580.65.06"]),
        **{f"{name}.version": version for name, version in versions.items()},
        **{f"env.NVTE_{name}_ATTN": "0" for name in ("FLASH", "FUSED", "UNFUSED") if chance.random() < 0.2},
        "workload.framework": chance.choice(["transformer_engine", "megatron", "torch_sdpa", "flash_attn"]),
        "workload.dtype": chance.choice(["bfloat16", "float16"]), "workload.head_dim_qk": width,
        "workload.head_dim_v": chance.choice([width, 128]), "workload.num_heads": heads,
        "workload.num_kv_heads": chance.choice([heads, 4, 1]), "workload.batch_size": chance.choice([1, 4]),
        "workload.seq_len_q": chance.choice([1000, 4096, 131072]),
        "workload.mask": chance.choice(["causal", "padding_causal", "no_mask"]),
        "workload.qkv_layout": chance.choice(["sbhd_sbhd_sbhd", "bshd_bshd_bshd", "thd_thd_thd"]),
        "workload.cp_size": chance.choice([1, 1, 2]), "workload.cp_comm_type": chance.choice(["p2p", "all_gather"]),
        "workload.qkv_interleaved": chance.choice([False, True]), "workload.training": True,
    }  # fmt: skip
    return complete_workload(Facts(fact(key, value, "made up") for key, value in values.items()))


@cache
def solved(seed: int) -> tuple[Facts, Assessment, tuple[Fix, ...], float]:
    """(facts, what was found, the fixes, seconds they took)."""
    facts = environment(seed)
    before = evaluate(rulebook(), facts)
    began = time.process_time()
    fixes = solve(rulebook(), facts, before)
    return facts, before, fixes, time.process_time() - began


def _recent(chance: random.Random, index: ReleaseIndex, package: str, python: str) -> str:
    fitting = [version for version, item in index.releases(package).items()
               if item.date >= "2024-06" and not item.is_prerelease and item.installs_on(Platform(python))]  # fmt: skip
    return chance.choice(fitting)


def _pinned(index: ReleaseIndex, torch: str, python: str) -> dict[str, str]:
    release = index.release("torch", torch)
    assert release is not None
    needs = needs_of(release.requires, Platform(python))
    return {need.package: need.pin for need in needs if need.pin and need.package.startswith(("nvidia-", "triton"))}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fix_breaks_nothing_and_is_quick(seed: int):
    facts, before, fixes, seconds = solved(seed)
    assert seconds < 3
    stack = stack_of(facts, before.known, load_index())
    told = render_pins(Report("t", {}, facts, before.findings, before.predictions, fixes, before.undetermined, {}))
    assert all(line.startswith(("#", "--")) or not line or "==" in line for line in told.splitlines())
    for fix in fixes:
        assert fix.resolves and fix.changes
        assert set(fix.leaves) <= before.errors
        assert not set(fix.leaves) & set(fix.resolves)
        chosen = {change.name: change.after or ABSENT for change in fix.changes if change.kind == "package"}
        assert not any(name.startswith("nvidia-") for name, version in chosen.items() if version != ABSENT)
        assert not [clash.sentence for clash in stack.clashes(chosen) if clash.needs in stack.index]
        for name, version in chosen.items():
            release = None if "+" in version or version == ABSENT else load_index().release(name, version)
            assert release is None or (release.installs_on(stack.platform) and not release.yanked)


def test_the_environments_are_worth_the_trouble():
    """Enough of them are broken, and most of the broken ones can be cured."""
    broken = [solved(seed) for seed in SEEDS if solved(seed)[1].errors]
    cured = [item for item in broken if any(not fix.leaves for fix in item[2])]
    assert len(broken) >= 25
    assert len(cured) >= len(broken) * 0.6
