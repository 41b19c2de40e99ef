"""Made-up environments: real releases in random company, on some GPU, with some job. The same seed, the same one."""

from __future__ import annotations

import random

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform
from doctor.sources.workload.defaults import complete_workload


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


def _recent(chance: random.Random, index: ReleaseIndex, package: str, python: str) -> str:
    fitting = [version for version, item in index.releases(package).items()
               if item.date >= "2024-06" and not item.is_prerelease and item.installs_on(Platform(python))]  # fmt: skip
    return chance.choice(fitting)


def _pinned(index: ReleaseIndex, torch: str, python: str) -> dict[str, str]:
    release = index.release("torch", torch)
    assert release is not None
    needs = needs_of(release.requires, Platform(python))
    return {need.package: need.pin for need in needs if need.pin and need.package.startswith(("nvidia-", "triton"))}
