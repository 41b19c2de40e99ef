"""Which compiled modules of vLLM and sgl-kernel are not there, by RECORD and by the files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target, TargetKind
from tests.helpers.fake_trees import elf, install
from tests.helpers.watches import built_in_watch

KEY = "machine.compiled_modules_missing"
COMPLETE = ("_C", "_flashmla_C", "vllm_flash_attn/_vllm_fa2_C", "vllm_flash_attn/_vllm_fa3_C")


def server(site: Path, name: str, folder: str, listed: Iterable[str], there: Iterable[str]) -> Target:
    metadata = install(site, name, "0.19.1")
    paths = [f"{folder}/{module}.abi3.so" for module in listed]
    (metadata / "RECORD").write_text("".join(f"{path},sha256=x,1\n" for path in paths))
    for module in there:
        elf(site / folder / f"{module}.abi3.so", ("libtorch.so", "libc10.so"))
    return Target(
        None, site.parents[2], (site,), TargetKind.SITE_PACKAGES, "3.11.7", "cpython", "Linux", "x86_64", "2.35"
    )


def missing(target: Target) -> object:
    facts = collect(target, built_in_watch(), ("distributions", "compiled"))
    return facts.value(KEY) if KEY in facts else "not said"


def test_a_complete_wheel_lacks_nothing(site: Path) -> None:
    assert missing(server(site, "vllm", "vllm", COMPLETE, COMPLETE)) == ()


def test_a_file_that_is_listed_and_not_there(site: Path) -> None:
    assert missing(server(site, "vllm", "vllm", COMPLETE, COMPLETE[:1] + COMPLETE[2:])) == ("vllm._flashmla_C",)


def test_a_build_without_flash_attention_3(site: Path) -> None:
    assert missing(server(site, "vllm", "vllm", COMPLETE[:3], COMPLETE[:3])) == ("vllm.vllm_flash_attn._vllm_fa3_C",)


def test_the_older_name_of_flash_attention_2(site: Path) -> None:
    older = ("_C", "vllm_flash_attn/vllm_flash_attn_c", "vllm_flash_attn/_vllm_fa3_C")
    assert missing(server(site, "vllm", "vllm", older, older)) == ()


def test_sgl_kernel(site: Path) -> None:
    listed = ("common_ops", "flash_ops")
    assert missing(server(site, "sgl-kernel", "sgl_kernel", listed, listed[:1])) == ("sgl_kernel.flash_ops",)


def test_nothing_is_said_of_other_packages(site: Path) -> None:
    assert missing(server(site, "flash-attn", "flash_attn", ("a",), ("a",))) == "not said"
