"""Every package and release that an install command names exists in the registry, by a recorded list."""

from __future__ import annotations

import functools
import re

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from doctor.packages.index import load_index
from doctor.packages.relations import BUILT_AGAINST_TORCH
from doctor.rulebook.rulebook import load_rulebook
from scripts.release import refresh_names
from scripts.release.refresh_names import Unreadable, Wanted, has_release, releases_of, wanted_of

RECORD = refresh_names.read_record()
WANTED = tuple(refresh_names.all_wanted())
#: Wanted in a condition of an interpreter, and this project itself, which has no release yet.
NO_PACKAGES = {"python", "attn-doctor"}


@functools.cache
def unregistered() -> set[str]:
    """What the registry does not have, or has from another project."""
    stated = {name for library in load_rulebook().libraries.values() for name in library.unregistered}
    return stated | {*RECORD["unregistered"]} - NO_PACKAGES


def problem_of(item: Wanted) -> str | None:
    """Why pip would not install what the text names; None if it would, or what the name comes from is stated."""
    if item.range == "absent" or item.name in NO_PACKAGES:
        return None
    if item.elsewhere and item.line:
        return None  # `--index-url` replaces the registry
    if item.name in unregistered():
        return "is not in the registry, or is another project there"
    if item.name not in load_index() and item.name not in RECORD["releases"]:
        return "has no record: run scripts/release/refresh_names.py"
    if not item.range or "{" in item.range or item.range in RECORD["unchecked"].get(item.name, ()):
        return None
    return None if has_release(item.name, item.range) else f"has no release {item.range} on record"


def test_the_registry_has_every_package_and_range_that_a_fix_names():
    assert len(WANTED) > 5000, "the rules were not read"
    found = {f"{item.where}: {item.name} {problem}" for item in WANTED
             if isinstance(item, Wanted) and (problem := problem_of(item))}  # fmt: skip
    assert not found, "\n".join(sorted(found))


def test_what_follows_pip_install_is_a_command_and_no_sentence():
    found = {f"{item.where}: `{item.word}` in `{item.line}`" for item in WANTED if isinstance(item, Unreadable)}
    assert sorted(found) == []


@pytest.mark.parametrize(
    "line",
    [
        "flashinfer",
        "-U flash-attn-3 --no-build-isolation",
        "'block-sparse-attn>=0.0.2'",
        "text-generation-server==2.0.3",
        "apex",
        "'transformer-engine>=1.8,<1.9'",
        "flashinfer-jit-cache --extra-index-url https://flashinfer.ai/whl/cu130",
        "torch==2.99.0",
        "torch flash-attention-nobody-registered",
    ],
)
def test_a_name_or_range_that_the_registry_lacks_is_found(line):
    items = [item for item in wanted_of(line, "here") if isinstance(item, Wanted)]
    assert any(map(problem_of, items)), items


@pytest.mark.parametrize("line", ["the newest wheel of the project", "-U the trainer", "a checkout of that release"])
def test_a_sentence_after_pip_install_is_found(line):
    assert any(isinstance(item, Unreadable) for item in wanted_of(line, "here"))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("-U vllm --torch-backend=cu128", ["vllm"]),
        ("flashinfer==0.1.6 -i https://flashinfer.ai/whl/cu121/torch2.4", ["flashinfer"]),
        ("'flash-attn>=2.8.0' torch, then", ["flash-attn", "torch"]),
        ("git+https://github.com/NVIDIA/apex", []),
        ("-r requirements.txt -e . packaging", ["packaging"]),
        ('"flash-attn @ https://example.org/x.whl"', []),
        ("torch==VERSION", ["torch"]),
        ("{log.package} torch", ["torch"]),
        ("ninja (or a compiler)", ["ninja"]),
    ],
)
def test_install_lines_are_read_as_pip_reads_them(line, names):
    assert [item.name for item in wanted_of(line, "here") if isinstance(item, Wanted)] == names


def test_each_command_of_a_line_is_read():
    assert list(refresh_names.install_lines("pip install a && pip install b")) == ["a", "b"]


def test_no_range_is_taken_on_trust_that_a_record_decides_or_no_text_names():
    used = {(item.name, item.range) for item in WANTED if isinstance(item, Wanted)}
    for name, ranges in RECORD["unchecked"].items():
        assert name not in load_index(), f"{name}: the release index is complete"
        for text in ranges:
            assert (name, text) in used, f"{name}{text} is named nowhere"
            assert not any(SpecifierSet(text).contains(one, prereleases=True) for one in releases_of(name)), name + text


def test_the_record_names_no_package_twice_and_its_releases_are_versions():
    assert not set(RECORD["unregistered"]) & set(RECORD["releases"])
    assert all(Version(text) for row in RECORD["releases"].values() for text in row.split())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", RECORD["date"])


def test_what_is_compiled_from_the_registry_is_registered():
    load_rulebook()
    from_source = {name for name, is_registered in BUILT_AGAINST_TORCH.items() if not is_registered}
    assert from_source == BUILT_AGAINST_TORCH.keys() & unregistered() and "flash-attn" not in from_source
