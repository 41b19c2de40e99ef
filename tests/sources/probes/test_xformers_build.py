"""What the note of xFormers' build says, whatever is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.model import ABSENT, Facts
from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target
from doctor.sources.watch import Watch
from tests.helpers.fake_trees import install

BUILT = '{"version": {"cuda": %s, "hip": null, "torch": "2.10.0+cu128", "python": "3.10.19"}, "env": {}}'


def read(target: Target) -> Facts:
    return collect(target, Watch(), ("distributions", "xformers_build"))


def note(site: Path, text: str) -> None:
    install(site, "xformers", "0.0.35")
    (site / "xformers").mkdir()
    (site / "xformers/cpp_lib.json").write_text(text)


@pytest.mark.parametrize(("number", "cuda"), [("1208", "12.8"), ("1300", "13.0"), ("null", ABSENT)])
def test_the_cuda_of_the_build(site: Path, target: Target, number: str, cuda: str) -> None:
    note(site, BUILT % number)
    fact = read(target)["xformers.cuda"]
    assert fact.value == cuda
    assert fact.source.endswith("xformers/cpp_lib.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 3}', BUILT % '"12.8"', "\udcff"])
def test_a_note_that_says_nothing_leaves_it_unknown(site: Path, target: Target, text: str) -> None:
    note(site, "")
    (site / "xformers/cpp_lib.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    fact = read(target)["xformers.cuda"]
    assert fact.value is None and "does not give it" in (fact.problem or "")


def test_a_build_without_the_note(site: Path, target: Target) -> None:
    install(site, "xformers", "0.0.35")
    fact = read(target)["xformers.cuda"]
    assert fact.value is None and "cpp_lib.json" in (fact.problem or "")


def test_nothing_is_said_without_xformers(site: Path, target: Target) -> None:
    assert "xformers.cuda" not in read(target)
