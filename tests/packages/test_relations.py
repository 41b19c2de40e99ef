"""Which packages hang on another is said by library files, a team's own included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.packages.relations import (
    BUILT_AGAINST_TORCH,
    BUILT_PER_INDEX,
    EXTRAS,
    PARTS,
    PINNED_BY,
    declare_relations,
    extra_of,
    owner_of,
)
from doctor.rulebook.rulebook import load_rulebook

LIBRARY = """\
name: acme_relations
distributions: [acme-frame]
unregistered: [acme-kernels]
packages:
  acme-frame:
    parts: acme-frame-.+
    pins: [acme-tokens]
    torch_extras: [torch, "cu{cuda_major}"]
  acme-kernels: {built_against_torch: true, built_per_index: true}
"""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The declarations of a process are those of the rulebook again after each test."""
    load_rulebook()
    tables: tuple[Any, ...] = (BUILT_AGAINST_TORCH, BUILT_PER_INDEX, EXTRAS, PARTS, PINNED_BY)
    before = [table.copy() for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    owner_of.cache_clear()


def test_a_library_of_a_team_says_how_its_packages_hang_together(tmp_path: Path) -> None:
    assert owner_of("acme-frame-cu12") is None
    (tmp_path / "library.yaml").write_text(LIBRARY)
    load_rulebook([str(tmp_path)])
    assert owner_of("acme-frame-cu12") == "acme-frame" and owner_of("acme-frame") is None
    assert BUILT_AGAINST_TORCH["acme-kernels"] is False and "acme-kernels" in BUILT_PER_INDEX
    assert PINNED_BY["acme-frame"] == ("acme-tokens",)
    assert EXTRAS["acme-frame"] == ("torch", "cu{cuda_major}") and extra_of("acme-frame") == "[torch]"


def test_the_relations_of_the_rulebook() -> None:
    load_rulebook()
    parts = ("triton", "pytorch-triton", "nvidia-cudnn-cu12", "nvidia-cublas", "cuda-toolkit")
    assert {owner_of(name) for name in parts} == {"torch"}
    assert owner_of("transformer-engine-cu12") == "transformer-engine"
    assert not any(map(owner_of, ("torch", "nvidia-ml-py", "nvidia-cudnn-frontend", "transformer-engine")))
    assert BUILT_AGAINST_TORCH["flash-attn"] and not BUILT_AGAINST_TORCH["flash-attn-3"]
    assert {"torchvision", "torchaudio", "torchcodec", "xformers"} <= BUILT_PER_INDEX
    assert "sgl-kernel" in PINNED_BY["sglang"] and extra_of("transformer-engine") == "[pytorch]"


def test_another_pattern_for_parts_counts_at_once() -> None:
    declare_relations({"acme-moves": {"parts": "acme-old"}}, ())
    assert (owner_of("acme-old"), owner_of("acme-new")) == ("acme-moves", None)
    declare_relations({"acme-moves": {"parts": "acme-new"}}, ())
    assert (owner_of("acme-old"), owner_of("acme-new")) == (None, "acme-moves")
