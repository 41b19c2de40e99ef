"""Distributions: every form that installers leave, and every way it can be broken."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from doctor.model import ABSENT, Facts
from doctor.sources.probes.collect import collect
from doctor.sources.probes.distributions import installed_requirements, installed_version
from doctor.sources.probes.locate import find_target
from doctor.sources.probes.target import Target, TargetKind
from doctor.sources.watch import Watch
from tests.helpers.fake_trees import install

ONLY = ("distributions",)


def read(target: Target, *watched: str) -> Facts:
    return collect(target, Watch(distributions=watched), ONLY)


def test_names_are_normalized_and_versions_kept_as_text(site: Path, target: Target) -> None:
    install(site, "flash_attn", "2.7.4.post1")
    install(site, "Jinja2", "3.10")
    install(site, "ruamel.yaml", "0.18.6")
    install(site, "transformer-engine", "2.3.0+5de3e14")
    install(site, "torch", "2.6.0")
    facts = read(target)
    assert facts.value("flash-attn.version") == "2.7.4.post1"
    assert facts.value("jinja2.version") == "3.10"
    assert facts.value("ruamel-yaml.version") == "0.18.6"
    assert facts.value("transformer-engine.version") == "2.3.0+5de3e14"
    assert facts.value("distributions.complete") is True
    assert facts.value("distributions.broken") == ()
    assert str(site) in facts["flash-attn.version"].source


def test_a_tree_without_torch_is_only_a_part_so_what_is_not_named_is_unknown(site: Path, target: Target) -> None:
    install(site, "xtuner", "0.1.23")
    complete = read(target)["distributions.complete"]
    assert complete.value is None
    assert "it has no torch" in (complete.problem or "")


def test_old_forms(site: Path, target: Target) -> None:
    egg = site / "xformers-0.0.20-py3.11.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: xformers\nVersion: 0.0.20\n")
    (site / "wheel-0.38.4.egg-info").write_text("Metadata-Version: 1.0\nName: wheel\nVersion: 0.38.4\n")
    develop = site.parent / "src"
    (develop / "megatron_core.egg-info").mkdir(parents=True)
    (develop / "megatron_core.egg-info/PKG-INFO").write_text("Name: megatron-core\nVersion: 0.12.0\n")
    zipped = site / "deepspeed-0.14.0-py3.11.egg"
    (zipped / "EGG-INFO").mkdir(parents=True)
    (zipped / "EGG-INFO/PKG-INFO").write_text("Name: deepspeed\nVersion: 0.14.0\n")
    wide = Target(None, target.prefix, (site, develop, zipped), TargetKind.INTERPRETER)
    facts = read(wide)
    assert facts.value("xformers.version") == "0.0.20"
    assert facts.value("wheel.version") == "0.38.4"
    assert facts.value("megatron-core.version") == "0.12.0"
    assert facts.value("deepspeed.version") == "0.14.0"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ("", "METADATA is empty"),
        ("nonsense\n\nName: later\n", "names no package"),
        ("Name: torch\n", "gives no version"),
        ("Name: torch\nVersion: two point six\n", "is not a version"),
    ],
)
def test_a_broken_dist_info_is_unknown_and_never_a_crash(
    site: Path, target: Target, metadata: str, reason: str
) -> None:
    install(site, "torch", "2.6.0", metadata=metadata)
    install(site, "numpy", "1.26.4")
    facts = read(target, "torch")
    assert facts["torch.version"].value is None
    assert reason in (facts["torch.version"].problem or "")
    assert [entry for entry in facts.value("distributions.broken") if reason in entry]
    assert facts.value("numpy.version") == "1.26.4"


def test_metadata_that_is_gone_binary_or_a_folder(site: Path, target: Target) -> None:
    (install(site, "gone", "1.0") / "METADATA").unlink()
    (install(site, "binary", "1.0") / "METADATA").write_bytes(b"\xff\xfe\x00" * 50)
    folder = install(site, "folder", "1.0")
    (folder / "METADATA").unlink()
    (folder / "METADATA").mkdir()
    facts = read(target, "gone", "binary", "folder")
    for name, reason in (("gone", "missing"), ("binary", "not text"), ("folder", "is a directory")):
        assert facts[f"{name}.version"].value is None
        assert reason in (facts[f"{name}.version"].problem or ""), name
    assert len(facts.value("distributions.broken")) == 3


def test_the_file_outvotes_the_folder_name_where_it_matters(site: Path, target: Target) -> None:
    install(site, "torch", "2.6.0", metadata="Name: torch\nVersion: 2.7.1\n\n")
    assert read(target).value("torch.version") == "2.6.0"
    assert read(target, "torch").value("torch.version") == "2.7.1"


def test_odd_folder_names_are_looked_up_in_the_file(site: Path, target: Target) -> None:
    folder = site / "flash-attn-2.6.3.dist-info"  # an unescaped name
    folder.mkdir()
    (folder / "METADATA").write_text("Name: flash-attn\nVersion: 2.6.3\n")
    assert read(target).value("flash-attn.version") == "2.6.3"


def test_first_on_path_wins_and_is_reported(site: Path, target: Target, tmp_path: Path) -> None:
    other = tmp_path / "override"
    install(other, "transformers", "4.44.2")
    install(site, "transformers", "4.42.4")
    facts = read(Target(None, target.prefix, (other, site), TargetKind.INTERPRETER))
    assert facts.value("transformers.version") == "4.44.2"
    (told,) = facts.value("distributions.duplicates")
    assert told.startswith("transformers: 4.44.2") and "4.42.4" in told


def test_two_versions_in_one_folder_cannot_be_distinguished(site: Path, target: Target) -> None:
    install(site, "transformers", "4.42.4")
    install(site, "transformers", "4.44.2")
    fact = read(target)["transformers.version"]
    assert fact.value is None
    assert "4.42.4 and 4.44.2" in (fact.problem or "")


def test_what_an_interrupted_pip_leaves(site: Path, target: Target) -> None:
    (site / "~orch-2.6.0.dist-info").mkdir()
    install(site, "torch", "2.7.1")
    facts = read(target)
    assert facts.value("torch.version") == "2.7.1"
    assert "interrupted" in facts.value("distributions.broken")[0]


def test_a_folder_that_cannot_be_read_leaves_the_list_open(
    site: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.listdir

    def refuse(path: str) -> list[str]:
        if str(path) == str(site):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)  # the tests may run as root, who is never refused
    fact = read(target)["distributions.complete"]
    assert fact.value is None
    assert "permission denied" in (fact.problem or "")


def test_requirements_of_what_is_installed(site: Path, target: Target) -> None:
    install(site, "torch", "2.6.0", ("filelock", "nvidia-cudnn-cu12==9.1.0.70; platform_system == 'Linux'"))
    egg = site / "old-1.0.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: old\nVersion: 1.0\n")
    (egg / "requires.txt").write_text("six>=1.0\nnumpy\n\n[extra]\ntorch\n")
    assert installed_requirements(target) == {
        "torch": ["filelock", "nvidia-cudnn-cu12==9.1.0.70; platform_system == 'Linux'"],
        "old": ["six>=1.0", "numpy"],
    }


def test_one_version(site: Path, target: Target) -> None:
    install(site, "transformer_engine", "2.4.0")
    assert installed_version(target, "transformer-engine") == "2.4.0"
    assert installed_version(target, "torch") is None


def test_one_version_where_the_name_of_the_folder_does_not_show(site: Path, target: Target) -> None:
    """A folder that is plainly another's is not looked into; one that looks odd is, and says whose it is."""
    install(site, "torch", "2.6.0")
    (site / "torch-2.6.0.dist-info" / "METADATA").write_text("Name: transformer-engine\nVersion: 9.9\n")
    odd = site / "te-2.4.0_local.dist-info"
    odd.mkdir()
    (odd / "METADATA").write_text("Name: transformer_engine\nVersion: 2.4.0+local\n")
    assert installed_version(target, "transformer-engine") == "2.4.0+local"


def test_absent_is_not_said_here(site: Path, target: Target) -> None:
    """That a package is absent follows from the completeness of the list; the probe names only what it saw."""
    assert ABSENT not in [fact.value for fact in read(target).values()]


def test_two_hundred_are_read_at_once(site: Path, target: Target) -> None:
    for number in range(200):
        install(site, f"package-{number}", f"{number}.1.2")
    read(target)  # files warm, code compiled
    best = min(_seconds(target) for _ in range(5))
    assert best < 0.05  # 4 to 7 ms where nothing else runs


def _seconds(target: Target) -> float:
    began = time.perf_counter()
    assert len(read(target)) == 203
    return time.perf_counter() - began


def test_python_itself_says_the_same_of_our_own_environment() -> None:
    facts = collect(find_target(sys.executable), Watch(), ONLY)
    found = {key.removesuffix(".version"): fact.value for key, fact in facts.items() if key.endswith(".version")}
    true: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        true.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution.version)
    assert {name: true.get(name) for name in found} == found
    assert set(true) - set(found) <= {"attn-doctor"}  # seen from the checkout, when pytest runs in it


@pytest.mark.network
def test_real_wheels_unpacked(tmp_path: Path) -> None:
    wanted = ["transformers==4.44.2", "xtuner==0.1.23"]
    # xtuner 0.1.23 is not for this interpreter: a tree need not be.
    how = ["--no-deps", "--ignore-requires-python", f"--target={tmp_path / 'tree'}"]
    command = [sys.executable, "-m", "pip", "install", "-q", *how, *wanted]
    subprocess.run(command, check=True)
    target = find_target(site_packages=str(tmp_path / "tree"))
    facts = collect(target, Watch(), ONLY)
    assert facts.value("transformers.version") == "4.44.2"
    assert facts.value("xtuner.version") == "0.1.23"
    assert "tokenizers <0.20,>=0.19" in installed_requirements(target)["transformers"]
