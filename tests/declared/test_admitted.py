"""Ranges: a rule that fires for every admitted release stands, one for some is a warning with the narrowing."""

from pathlib import Path

import pytest

from doctor import session
from doctor.declared.admitted import narrowed
from doctor.declared.compatible import Open
from doctor.patient import Request
from doctor.release_index import admits

WORKLOADS = Path(__file__).parents[2] / "examples" / "incidents"
B = WORKLOADS / "b" / "workload.yaml"  # all-gather context parallelism, which needs cuDNN 9.3
REST = "transformer-engine[pytorch]==2.3.0\nflash-attn==2.7.4.post1\n"


@pytest.fixture
def diagnose(write):
    def diagnose(text, *settings, workload=B, gpu="h100"):
        path = write("requirements.txt", text)
        return session.diagnose(
            Request(declared=(str(path),), gpu=gpu, workload=str(workload), settings=settings, run=False)
        )

    return diagnose


def by_rule(report):
    return {finding.rule: finding for finding in report.findings}


def test_for_every_release_is_an_error(diagnose):
    found = by_rule(diagnose(f"torch>=2.4,<2.7\n{REST}"))["TE103"]
    assert found.severity == "error"
    assert found.message.startswith("whatever release `torch")


def test_for_some_releases_is_a_warning_that_names_them_and_narrows(diagnose):
    found = by_rule(diagnose(f"torch>=2.4,<2.9\n{REST}"))["TE103"]
    assert found.severity == "warning"
    assert "requirements.txt:1) admits" in found.message and "2.6.0" in found.message
    (name, wanted), *_ = found.alternatives[0].require.items()
    assert name == "torch"
    assert admits(wanted, "2.8.0") and not admits(wanted, "2.6.0") and not admits(wanted, "2.9.0")


def test_the_narrowing_cures(diagnose):
    found = by_rule(diagnose(f"torch>=2.4,<2.9\n{REST}"))["TE103"]
    wanted = found.alternatives[0].require["torch"]
    again = diagnose(f"torch{wanted}\n{REST}")
    assert "TE103" not in by_rule(again)
    assert not any("TE103" in group.rules for group in again.undetermined)


def test_for_no_release_is_silence_and_no_doubt(diagnose):
    report = diagnose(f"torch>=2.7,<2.9\n{REST}")
    assert "TE103" not in by_rule(report)
    assert not any("TE103" in group.rules for group in report.undetermined)


def test_two_ranges_are_judged_together(diagnose):
    report = diagnose("torch>=2.5,<2.7\ntransformer-engine[pytorch]>=2.1,<2.4\nflash-attn==2.7.4.post1\n")
    assert by_rule(report)["TE103"].severity == "error"


def test_too_many_combinations_are_judged_apart_and_it_is_said(diagnose):
    report = diagnose("torch>=2.0\ntransformer-engine[pytorch]>=1.9\nflash-attn>=2\n")
    assert any("judged by itself" in note for note in report.notes)
    assert all(finding.severity != "error" for finding in report.findings)


def test_combinations_that_cannot_be_installed_do_not_count(diagnose):
    """Two packages of twenty releases each, of which nearly every one asks for just one of the other."""
    report = diagnose("torch>=2.2\ntorchvision>=0.17\ndeepspeed==0.9.5\n")
    assert not any("judged by itself" in note for note in report.notes)
    found = by_rule(report)["DS001"]
    assert found.severity == "warning" and found.alternatives[0].require.keys() == {"torch"}


def test_what_no_range_names_stays_open(diagnose):
    report = diagnose("torch==2.6.0\nflash-attn==2.7.4.post1\n")
    assert report.facts.get("transformer-engine.version") is None


def test_a_release_that_does_not_go_with_the_pins_is_not_judged(diagnose, read):
    """Of xformers >= 0.0.28 only what was built for torch 2.6.0 can be installed beside it."""
    (item,) = read({"r.txt": "torch==2.6.0\nxformers>=0.0.28\n"}).open
    assert set(item.versions) == {"0.0.29.post2", "0.0.29.post3"}


def test_releases_that_no_possible_python_installs_do_not_count(read):
    """torch 2.0 has wheels up to Python 3.11, torch 2.2 the first for 3.12."""
    everything = read({"r.txt": "torch>=2.0,<2.4\n"}).open[0].versions
    newer = read({"r.txt": "torch>=2.0,<2.4\n"}, python_version="3.12.4").open[0].versions
    assert everything[0] == "2.0.0" and newer[0] == "2.2.0"
    assert set(newer) < set(everything)


def test_a_pin_settles_what_it_requires(read):
    facts = read({"r.txt": "xformers==0.0.29.post3\n"}).facts
    assert facts.value("torch.version") == "2.6.0"
    assert facts["torch.version"].source.endswith("r.txt:1, through xformers 0.0.29.post3")


def test_a_range_with_one_release_is_a_pin(read):
    declaration = read({"r.txt": "transformer-engine>=2.3,<2.4\n"})
    assert declaration.facts.value("transformer-engine.version") == "2.3.0"
    assert declaration.open == ()


@pytest.mark.parametrize(
    ("given", "clean", "wanted"),
    [
        (">=2", ["3", "4"], ">=3"),
        (">=2,<5", ["3", "4"], "<5,>=3"),
        ("", ["1", "2"], "<3"),
        ("<5", ["2", "3"], ">=2,<4"),
        (">=1", ["1", "2", "4"], ">=1,!=3"),
        ("", ["1", "2", "3", "4"], ""),
        ("!=9", ["4"], "!=9,>=4"),
    ],
)
def test_narrowed(given, clean, wanted):
    versions = ("1", "2", "3", "4")
    found = narrowed(Open("x", given, "r.txt:1", versions), clean)
    assert found == wanted
    assert [version for version in versions if not found or admits(found, version)] == clean
