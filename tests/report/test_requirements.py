"""Pins: a file that pip and uv read, that holds what must stay, and that is written whole or not at all."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from doctor.facts.vocabulary import fact
from doctor.model import Change, Facts, Finding, Fix, Report, Severity, Verdict
from doctor.packages.index import load_index
from doctor.report.requirements import render_pins
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.budget import SearchBudget
from doctor.solver.solve import solve
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.recipes import read_job
from tests.helpers.onefix import planned
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples" / "incidents"


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


def report_of(facts: Facts) -> Report:
    found = evaluate(rulebook(), facts)
    fixes = solve(rulebook(), facts, found)
    return Report("attn-doctor", {}, facts, found.findings, found.predictions, fixes, found.undetermined, {})


@cache
def incident(name: str) -> Report:
    place = EXAMPLES / name
    facts = read_facts(place / "facts.yaml").with_(*read_job(place / "workload.yaml").values())
    return report_of(complete_workload(facts))


def facts_of(**values: str) -> Facts:
    base = {"python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64"}
    given = {key.replace("__", "-").replace("_version", ".version"): value for key, value in values.items()}
    return Facts(fact(key, value, "test") for key, value in {**base, **given}.items())


def required(text: str) -> dict[str, str]:
    """Package → exact version of every line that is no comment and no option."""
    found = {}
    for line in text.splitlines():
        line = re.split(r"(?:^|\s)#", line)[0].strip()
        if line and not line.startswith("-"):
            parsed = Requirement(line)
            (clause,) = parsed.specifier
            assert clause.operator == "=="
            found[parsed.name] = clause.version
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def second_step(text: str) -> str:
    return text.partition("# Second step")[2]


# --- what the file says -------------------------------------------------------------------------------------------


def test_a_pins_the_new_transformer_engine_and_holds_torch():
    text = render_pins(incident("a"))
    assert required(text) == {"transformer-engine": "2.1.0", "torch": "2.4.1", "megatron-core": "0.9.0"}
    assert "transformer-engine-torch==2.1.0" in second_step(text) and "--no-build-isolation" in second_step(text)
    assert "flash-attn==2.6.3" in second_step(text)


def test_b_pins_torch_alone_and_never_its_libraries():
    text = render_pins(incident("b"))
    assert required(text)["torch"] == "2.6.0+cu126" and required(text)["transformer-engine"] == "2.3.0"
    assert not any(name.startswith(("nvidia-", "triton")) for name in required(text))
    assert "rebuilt because torch changes" in second_step(text)
    assert "9.3.0.75" in text  # the popular fix, and why it is none


def test_c_holds_the_installed_torch():
    text = render_pins(incident("c"))
    held = {"torch": "2.4.0", "torchvision": "0.19.0", "deepspeed": "0.14.4", "xtuner": "0.1.23"}
    assert required(text)["transformers"] == "4.42.4"
    assert held.items() <= required(text).items()


def test_e_does_not_check_the_registry_for_a_container_build():
    report = incident("e")
    found = evaluate(rulebook(), report.facts)
    more = solve(rulebook(), report.facts, found, budget=SearchBudget(fixes=4))  # the last one compiles
    text = render_pins(report._replace(fixes=more))
    assert "torch" not in required(text) and "transformer-engine" in required(text)
    assert "torch 2.4.0a0+3bcc3cddb5.nv24.07 is not in the records of 2" in text


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f"])
def test_every_line_pins_exactly_and_says_why(name: str):
    text = render_pins(incident(name))
    required(text)
    for line in text.splitlines():
        if line and not line.startswith(("#", "-")):
            assert re.search(r"  # .*(clears [A-Z]+\d+|installed)", line), line


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e"])
def test_the_pinned_releases_agree_with_one_another(name: str):
    """As the index shows it: no line's requirement forbids another line."""
    pinned = required(render_pins(incident(name)))
    index = load_index()
    for package, version in pinned.items():
        release = index.release(package, version)
        for line in () if release is None else release.requires:
            wanted = Requirement(line)
            if wanted.name in pinned and wanted.marker is None:
                assert wanted.specifier.contains(pinned[wanted.name]), f"{package} {version}: {line}"


def test_pins_are_taken_from_the_first_way_that_has_any():
    changes = (Change("config", "cp_comm_type", "all_gather", "p2p", "why", ("X001",)),)
    torch = (Change("package", "torch", "2.6.0", "2.7.1", "why", ("X001",)),)
    given = facts_of(torch_version="2.6.0")
    fixes = (Fix("Set it", changes, ("X001",)), planned(Fix("Upgrade `torch` to 2.7.1", torch, ("X001",)), given))
    report = Report("t", {}, given, (), (), fixes, (), {})
    assert report.package_fix is fixes[1]
    text = render_pins(report)
    assert "Without package changes: Set it" in text and required(text) == {"torch": "2.7.1"}


def test_settings_are_comments_to_paste():
    changes = (
        Change("env", "NVTE_FUSED_ATTN", None, "0", "why", ("X001",)),
        Change("env", "NVTE_UNFUSED_ATTN", "0", None, "why", ("X001",)),
        Change("config", "cp_comm_type", "all_gather", "p2p", "why", ("X001",)),
        Change("call", "q = q.contiguous()", None, "q = q.contiguous()", "why", ("X001",)),
    )
    text = render_pins(Report("t", {}, facts_of(), (), (), (Fix("Do", changes, ("X001",)),), (), {}))
    assert required(text) == {}
    for line in ("# export NVTE_FUSED_ATTN=0", "# unset NVTE_UNFUSED_ATTN", "cp_comm_type = p2p (was all_gather)",
                 "q = q.contiguous()"):  # fmt: skip
        assert line in text


def test_another_build_needs_its_index():
    change = Change("package", "torch", "2.6.0", "2.6.0+cu126", "why", ("X001",))
    given = facts_of(torch_version="2.6.0")
    fix = planned(Fix("Do", (change,), ("X001",)), given, "https://example.org/whl/cu126")
    text = render_pins(Report("t", {}, given, (), (), (fix,), (), {}))
    assert "--extra-index-url https://example.org/whl/cu126\n" in text
    assert required(text) == {"torch": "2.6.0+cu126"}


def test_a_removed_twin_has_its_other_half_installed_again():
    versions = {"nvidia-cudnn-cu12.version": "9.3.0.75", "nvidia-cudnn-cu13.version": "9.19.0.56"}
    given = facts_of(torch_version="2.11.0").with_(*(fact(key, value, "test") for key, value in versions.items()))
    text = render_pins(report_of(given))
    assert "pip uninstall -y nvidia-cudnn-cu12" in text
    assert "pip install --force-reinstall --no-deps nvidia-cudnn-cu13==9.19.0.56" in text
    assert required(text) == {"torch": "2.11.0"}


def test_a_core_that_is_an_extra_is_requested():
    change = Change("package", "transformer-engine", "2.3.0", "2.13.0", "why", ("X001",))
    given = facts_of(torch_version="2.8.0", transformer__engine_version="2.3.0")
    text = render_pins(Report("t", {}, given, (), (), (planned(Fix("Do", (change,), ("X001",)), given),), (), {}))
    assert "transformer-engine[core-cu12]==2.13.0  #" in text
    assert "transformer-engine-torch==2.13.0" in second_step(text)


def test_a_companion_that_cannot_stay_is_not_held():
    change = Change("package", "torch", "2.6.0", "2.7.1", "why", ("X001",))
    given = facts_of(torch_version="2.6.0", xformers_version="0.0.29.post3")
    text = render_pins(Report("t", {}, given, (), (), (planned(Fix("Do", (change,), ("X001",)), given),), (), {}))
    assert required(text) == {"torch": "2.7.1"}
    assert "xformers 0.0.29.post3 is not held: it needs torch==2.6.0, which is 2.7.1" in text


def test_a_companion_that_no_installer_would_take_here_is_not_held():
    change = Change("package", "torch", "2.6.0", "2.7.1", "why", ("X001",))
    given = facts_of(torch_version="2.6.0", transformers_version="5.22.2").with_(fact("python.version", "3.10.1", "t"))
    text = render_pins(Report("t", {}, given, (), (), (planned(Fix("Do", (change,), ("X001",)), given),), (), {}))
    assert required(text) == {"torch": "2.7.1"} and "transformers 5.22.2 is not held" in text


def test_where_no_pin_helps_the_file_says_so():
    finding = Finding(
        "X001", "n", Severity.ERROR, Verdict.FIRES, "Summary", "Message", "", (), (), no_pin="No release has it."
    )
    text = render_pins(Report("t", {}, facts_of(), (finding,), (), (), (), {}))
    assert "X001: No release has it." in text and required(text) == {}


def test_no_text_of_a_rule_breaks_out_of_its_comment():
    evil = "first\nevil-package==1.0\n--index-url https://example.org"
    change = Change("package", "torch", "2.6.0", "2.7.1", evil, ("X001",))
    setting = Change("env", "A", None, evil, evil, ("X001",))
    given = facts_of(torch_version="2.6.0")
    fix = planned(Fix(evil, (change, setting), ("X001",), note=evil), given)
    finding = Finding("X001", "n", Severity.ERROR, Verdict.FIRES, "S", "M", "", (), (), no_pin=evil, myth=evil)
    text = render_pins(Report("t", {}, given, (finding,), (), (fix, fix), (), {}))
    assert required(text) == {"torch": "2.7.1"}
    assert not any(line.startswith("--") for line in text.splitlines())


# --- what real tools make of it -----------------------------------------------------------------------------------


def _uv() -> str:
    found = shutil.which("uv")
    if found is None:
        pytest.skip("uv is not on the path")
    return found


@pytest.mark.network
@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e"])
def test_uv_resolves_the_pins(tmp_path: Path, name: str):
    report = incident(name)
    if not any(change.kind == "package" for fix in report.fixes for change in fix.changes):
        pytest.skip("no package changes")
    path = tmp_path / "pins.txt"
    path.write_text(render_pins(report))
    python = str(report.facts.value("python.version")).rpartition(".")[0]
    done = subprocess.run(
        [_uv(), "pip", "compile", "--no-header", "--no-annotate", "--python-version", python,
         "--python-platform", "x86_64-manylinux_2_28", str(path)],
        capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    resolved = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    pinned = required(path.read_text())
    assert {name: resolved[name] for name in pinned} == pinned
    assert not {"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"} <= set(resolved)  # no stray twin


def _pip(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=cwd)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_pip_reads_every_line(tmp_path: Path, name: str):
    """Without a registry pip gets as far as looking for the first package: the file itself is understood."""
    path = tmp_path / "pins.txt"
    path.write_text(render_pins(incident(name)))
    done = _pip("--isolated", "--no-index", "--no-deps", "-r", str(path), cwd=tmp_path)
    if "No module named pip" in done.stderr:
        pytest.skip("this Python has no pip")
    first = next(iter(required(path.read_text()).items()))
    assert f"No matching distribution found for {first[0]}=={first[1]}" in done.stderr
    assert "Invalid requirement" not in done.stderr


@pytest.mark.network
def test_pip_accepts_pins_for_real(tmp_path: Path):
    change = Change("package", "transformers", "4.44.2", "4.42.4", "why", ("X001",))
    given = facts_of(transformers_version="4.44.2")
    path = tmp_path / "pins.txt"
    path.write_text(
        render_pins(Report("t", {}, given, (), (), (planned(Fix("Do", (change,), ("X001",)), given),), (), {}))
    )
    done = _pip("-r", str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "transformers-4.42.4" in done.stdout


def test_flash_attn_comes_from_its_wheel_where_the_new_torch_has_one():
    change = Change("package", "torch", "2.6.0", "2.8.0", "why", ("X001",))
    given = facts_of(torch_version="2.6.0", flash__attn_version="2.8.3")
    text = render_pins(Report("t", {}, given, (), (), (planned(Fix("Do", (change,), ("X001",)), given),), (), {}))
    assert "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl" in second_step(text)
    older = facts_of(torch_version="2.6.0", flash__attn_version="2.5.6")
    text = render_pins(Report("t", {}, older, (), (), (planned(Fix("Do", (change,), ("X001",)), older),), (), {}))
    assert "https://" not in second_step(text) and "--no-build-isolation" in second_step(text)
