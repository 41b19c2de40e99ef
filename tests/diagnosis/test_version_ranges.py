"""Ranges: a rule that fires for every admitted release stays, one for some is a warning with the narrowing."""

from itertools import product
from pathlib import Path

import pytest

from doctor.diagnosis import pipeline as session
from doctor.diagnosis.request import Request
from doctor.model import Fact
from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits
from doctor.sources.manifests import version_ranges as compatible
from doctor.sources.manifests.version_ranges import OpenRange, TooMany, combinations, fits, narrowed

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA = EXAMPLES / "models" / "llama-3-8b.json"
B = EXAMPLES / "incidents" / "b" / "workload.yaml"  # all-gather context parallelism, which needs cuDNN 9.3
REST = "transformer-engine[pytorch]==2.3.0\nflash-attn==2.7.4.post1\n"


@pytest.fixture
def diagnose(write):
    def diagnose(text, *settings, model=None, gpu="h100"):
        path = write("requirements.txt", text)
        job = {"model": str(model)} if model else {"workload": str(B)}
        return session.diagnose(Request(declared=(str(path),), gpu=gpu, settings=settings, run=False, **job))

    return diagnose


def by_rule(report):
    return {finding.rule: finding for finding in report.findings}


def test_for_every_release_is_an_error(diagnose):
    found = by_rule(diagnose(f"torch>=2.4,<2.7\n{REST}"))["TE103"]
    assert found.severity == "error"
    assert found.message.startswith("every release that `torch")


def test_for_some_releases_is_a_warning_that_names_them_and_narrows(diagnose):
    found = by_rule(diagnose(f"torch>=2.4,<2.9\n{REST}"))["TE103"]
    assert found.severity == "warning"
    assert "requirements.txt:1) allows" in found.message and "2.6.0" in found.message
    (name, wanted), *_ = found.alternatives[0].require.items()
    assert name == "torch"
    assert admits(wanted, "2.8.0") and not admits(wanted, "2.6.0") and not admits(wanted, "2.9.0")


def test_the_narrowing_fixes(diagnose):
    found = by_rule(diagnose(f"torch>=2.4,<2.9\n{REST}"))["TE103"]
    wanted = found.alternatives[0].require["torch"]
    again = diagnose(f"torch{wanted}\n{REST}")
    assert "TE103" not in by_rule(again)
    assert not any("TE103" in group.rules for group in again.undetermined)


def test_one_narrowing_fixes_all_that_is_found_of_a_range(diagnose):
    """A bare torch admits releases without code for the GPU, and one that prefers cuDNN: one line is to be edited."""
    report = diagnose("torch\ntransformers==4.51.3\n", model=LLAMA)
    mine = {rule: item for rule, item in by_rule(report).items() if " allows " in item.message}
    assert {"TORCH005", "TORCH012"} <= set(mine)
    (wanted,) = {item.alternatives[0].require["torch"] for item in mine.values()}
    assert all(other in mine["TORCH005"].alternatives[0].note for other in mine if other != "TORCH005")
    again = diagnose(f"torch{wanted}\ntransformers==4.51.3\n", model=LLAMA)
    assert not set(mine) & set(by_rule(again))


def test_an_extra_of_an_open_range_brings_what_it_pins(diagnose):
    """The torch part of TransformerEngine is compiled in isolation; an old release without it is no remedy."""
    found = by_rule(diagnose("torch==2.8.0\ntransformer_engine[pytorch]\n"))["TE854"]
    assert "transformer-engine-torch" in found.message
    assert not any(way.require for way in found.alternatives)


def test_it_is_said_where_today_s_release_is_spared(diagnose):
    """Then no rule's own pin is offered next to the narrowing: the range is to lose its bad part, not the rest."""
    spared = by_rule(diagnose(f"torch>=2.4,<2.9\n{REST}"))["TE103"]
    assert "(pip would pick 2.8.0 today)" in spared.message
    assert all("torch" not in way.require for way in spared.alternatives[1:])
    hit = by_rule(diagnose("torch==2.6.0\ntransformer-engine[pytorch]>=1.9,<2.4\nflash-attn==2.7.4.post1\n"))["TE103"]
    assert "would pick" not in hit.message


def test_for_no_release_is_silence_and_no_doubt(diagnose):
    report = diagnose(f"torch>=2.7,<2.9\n{REST}")
    assert "TE103" not in by_rule(report)
    assert not any("TE103" in group.rules for group in report.undetermined)


def test_two_ranges_are_judged_together(diagnose):
    report = diagnose("torch>=2.5,<2.7\ntransformer-engine[pytorch]>=2.1,<2.4\nflash-attn==2.7.4.post1\n")
    assert by_rule(report)["TE103"].severity == "error"


def test_too_many_combinations_are_judged_apart_and_it_is_said(diagnose):
    report = diagnose("torch>=2.0\ntransformer-engine[pytorch]>=1.9\nflash-attn>=2\n")
    assert any("checked individually" in note for note in report.notes)
    assert all(finding.severity != "error" for finding in report.findings)


def test_combinations_that_cannot_be_installed_do_not_count(diagnose):
    """Two packages of twenty releases each, of which nearly every one requires just one of the other."""
    report = diagnose("torch>=2.2\ntorchvision>=0.17\ndeepspeed==0.9.5\n")
    assert not any("checked individually" in note for note in report.notes)
    found = by_rule(report)["DS001"]
    assert found.severity == "warning" and found.alternatives[0].require.keys() == {"torch"}


def test_what_no_range_names_stays_open(diagnose):
    report = diagnose("torch==2.6.0\nflash-attn==2.7.4.post1\n")
    assert report.facts.get("transformer-engine.version") is None


def test_a_release_that_does_not_go_with_the_pins_is_not_judged(diagnose, read):
    """Of xformers >= 0.0.28 only what was built for torch 2.6.0 can be installed next to it."""
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
    assert facts["torch.version"].source.endswith("r.txt:1") and facts["torch.version"].via == "xformers 0.0.29.post3"


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
        ("", ["2", "3"], ">=2,<4"),
    ],
)
def test_narrowed(given, clean, wanted):
    versions = ("1", "2", "3", "4")
    found = narrowed(OpenRange("x", given, "r.txt:1", versions), clean)
    assert found == wanted
    assert [version for version in versions if not found or admits(found, version)] == clean


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ({"3", "4"}, ">=5"),  # a whole stretch: what is before it is given up
        ({"3", "5", "7"}, "!=3,!=5,!=7"),
        ({"1", "2", "5"}, ">=3,!=5"),
        ({"3", "4", "6", "9"}, ">=5,<9,!=6"),
        ({"2", "8", "9"}, "<8,!=2"),
    ],
)
def test_narrowed_keeps_the_newest_and_lists_few_exceptions(bad, wanted):
    versions = tuple("123456789")
    found = narrowed(OpenRange("x", "", "r.txt:1", versions), [version for version in versions if version not in bad])
    assert found == wanted
    left = {version for version in versions if admits(found, version)}
    assert left and not left & bad


def test_combinations_are_those_of_which_each_release_admits_the_others():
    """Checked the plain way: every combination there is."""
    index, platform = load_index(), Platform("3.11.4")
    names = ("torch", "xformers", "torchvision")
    packages = [
        OpenRange(
            name, "", "r.txt:1", tuple(version for version in index.releases(name) if not version.count("dev"))[-12:]
        )
        for name in names
    ]
    plain = []
    for versions in product(*(item.versions for item in packages)):
        chosen = {name: Fact(f"{name}.version", version, "x") for name, version in zip(names, versions, strict=True)}
        if all(fits(name, index.release(name, str(fact.value)), chosen, platform) for name, fact in chosen.items()):
            plain.append(versions)
    assert 0 < len(plain) < 12**3
    assert list(combinations(packages, platform, False)) == plain
    newest = next(combinations(packages, platform, False, newest_first=True))
    assert newest == max(plain, key=lambda versions: [packages[n].versions.index(v) for n, v in enumerate(versions)])


def test_a_search_that_gets_long_is_given_up(monkeypatch):
    monkeypatch.setattr(compatible, "MOST_TRIED", 5)
    packages = [OpenRange(name, "", "r.txt:1", tuple("123")) for name in ("a", "b")]
    with pytest.raises(TooMany):
        list(combinations(packages, Platform(), False))


def test_a_warning_about_releases_that_pip_would_not_pick_is_a_note(diagnose):
    found = by_rule(diagnose("vllm==0.25.0\ntransformers>=5.12,<5.15\n"))["TF386"]
    assert found.severity == "note"
    assert "allows 5.13.0 (pip would pick" in found.message
    assert by_rule(diagnose("vllm==0.25.0\ntransformers==5.13.0\n"))["TF386"].severity == "warning"


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("torchvision", "note"),
        ("torchvision>=0.15", "note"),
        ("torchvision<0.20", "note"),
        ("torchvision<0.20,!=0.18.0", "note"),
        ("torchvision>=0.15,<0.20", "warning"),
    ],
)
def test_a_range_with_one_bound_warns_of_no_release_that_pip_would_not_pick(diagnose, line, severity):
    assert by_rule(diagnose(f"{line}\n"))["TORCH005"].severity == severity


def test_a_declared_range_that_a_lock_leaves_unmet_is_a_note(write):
    packages = {"torch": "2.11.0", "vllm": "0.25.0", "transformers": "5.4.0"}
    lock = "".join(f'[[package]]\nname = "{name}"\nversion = "{pin}"\n' for name, pin in packages.items())
    pins = "".join(f"{name}=={pin}\n" for name, pin in packages.items())
    for file, text, severity in (("pdm.lock", lock, "note"), ("requirements.txt", pins, "error")):
        found = by_rule(session.diagnose(Request(declared=(str(write(file, text)),), run=False)))
        assert found["DCL048"].severity == severity


def test_a_newer_dependent_is_picked_before_what_it_requires():
    """As pip does: the newest vllm with the torch that it pins, not the newest torch with an ancient vllm."""
    index = load_index()
    packages = []
    for name in ("torch", "vllm"):
        versions = tuple(version for version, item in index.releases(name).items() if not item.is_prerelease)
        packages.append(OpenRange(name, "", "r.txt:1", versions[-12:] if name == "torch" else versions))
    platform = Platform("3.12", "Linux", "x86_64")
    torch, vllm = next(combinations(packages, platform, False, newest_first=True))
    assert vllm == packages[1].versions[-1]
    assert f"torch=={torch}" in " ".join(index.release("vllm", vllm).requires).replace(" ", "")


def _overriding(table):
    return (
        '[project]\nname = "job"\ndependencies = ["vllm==0.8.5", "torch==2.6.0", "transformers"]\n'
        f'[tool.uv]\n{table}-dependencies = ["transformers==4.49.0"]\n'
    )


@pytest.mark.parametrize("gpus", [("h100",), ("h100", "a100")])
def test_what_a_project_overrides_is_a_note_without_a_fix(write, gpus):
    gpu = {"gpu": gpus[0]} if len(gpus) == 1 else {"gpus": gpus}
    path = str(write("pyproject.toml", _overriding("constraint")))
    report = session.diagnose(Request(declared=(path,), run=False, **gpu))
    assert by_rule(report)["DCL048"].severity == "warning" and report.fixes
    assert any("without an override" in note for note in report.notes)
    write("pyproject.toml", _overriding("override"))
    report = session.diagnose(Request(declared=(path,), run=False, **gpu))
    assert by_rule(report)["DCL048"].severity == "note" and not report.fixes
    assert not any("without an override" in note for note in report.notes)
