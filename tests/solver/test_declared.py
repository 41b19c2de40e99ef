"""Ranges of the project's own files: a fix stays within them where it can, and names the line where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.diagnosis.watch import watch_of
from doctor.facts.vocabulary import fact
from doctor.model import Facts, Fix
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.limits import Limits
from doctor.solver.solve import solve
from doctor.sources.manifests.read import read_manifests
from tests.helpers.rulebook import builtin_rulebook
from tests.solver.test_order import CUDA12, book, index

WORLD = index(
    torch={v: {"rd": [CUDA12]} for v in ("2.4.0", "2.5.0", "2.5.1", "2.6.0", "2.7.0", "2.8.0")},
    torchvision={"0.21.0": {"rd": ["torch==2.6.0"]}, "0.22.0": {"rd": ["torch==2.7.0"]},
                 "0.23.0": {"rd": ["torch==2.8.0"]}},
    transformers={v: {} for v in ("4.40.0", "4.41.2", "4.42.4", "4.43.0", "5.0.0")},
)  # fmt: skip
SAID = Facts([fact("python.version", "3.11.7", "test")])


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def fixes(rules: Rulebook, folder: Path, *names: str) -> tuple[Fix, ...]:
    """Of what the files declare, with the installed versions given by hand where files leave them open."""
    declaration = read_manifests([str(folder / name) for name in names], SAID, watch_of(builtin_rulebook()))
    present = {"torch": "2.6.0", "torchvision": "0.21.0", "transformers": "4.42.4"}
    open_ = [fact(f"{name}.version", version, "test") for name, version in present.items()
             if name in declaration.requested and declaration.facts.value(f"{name}.version") is None]  # fmt: skip
    facts = declaration.facts.with_(*SAID.values(), *open_)
    return solve(rules, facts, evaluate(rules, facts), limits=Limits(declared=declaration.requested), index=WORLD)


def moved(fix: Fix) -> dict[str, str | None]:
    return {change.name: change.after for change in fix.changes}


TORCH = book(OWN001={"when": {"torch.version": "2.6.0"}, "fix": [{"require": {"torch": ">2.6"}}]})
OTHER = book(OWN001={"when": {"transformers.version": "4.42.4"}, "fix": [{"require": {"transformers": "!=4.42.4"}}]})


def test_the_pin_that_has_to_move_is_named_with_its_line(tmp_path: Path):
    project(tmp_path, requirements_txt="numpy\ntorch==2.6.0  # as ever\n")
    (fix,) = fixes(TORCH, tmp_path, "requirements.txt")
    place = f"{tmp_path / 'requirements.txt'}:2"
    assert f"{place} pins `torch==2.6.0`: change it to `torch==2.7.0`" in fix.changes[0].why


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("torchvision==0.21.0", {"torch": "2.7.0", "torchvision": "0.22.0"}),
        ("torchvision!=0.22.0", {"torch": "2.8.0", "torchvision": "0.23.0"}),
        ("torchvision<0.22", {"torch": "2.7.0", "torchvision": "0.22.0"}),  # in the way
    ],
)
def test_a_declared_range_that_is_not_part_of_the_trouble_is_kept(tmp_path: Path, lines, wanted):
    project(tmp_path, requirements_txt=f"torch==2.6.0\n{lines}\n")
    fix = fixes(TORCH, tmp_path, "requirements.txt")[0]
    assert moved(fix) == wanted
    told = next(change.why for change in fix.changes if change.name == "torchvision")
    assert ("change it to" in told) is (wanted["torchvision"] == "0.22.0")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("~4.42", "4.43.0"),  # nothing else there: outside
        ("^4.40", "4.43.0"),
        ("4.4*", None),
        ("4.41.*", "4.41.2"),
        ("~4.41.0 || 5.0.0", "5.0.0"),  # no 4.43.0 between them
        ("4.40.0 || >=4.42,<4.43", "4.40.0"),
        (">=4.40,<4.43", "4.41.2"),
        ("<4.41 || 4.41.2", "4.41.2"),
        ("*", "4.43.0"),
        ("* || 4.40.0", "4.43.0"),
    ],
)
@pytest.mark.parametrize("file", ["pyproject.toml", "Pipfile"])
def test_every_way_to_write_a_range_binds(tmp_path: Path, spec, wanted, file):
    """Left to itself the search takes the nearest line, the newest of it, an upgrade rather than a downgrade."""
    table = "tool.poetry.dependencies" if file == "pyproject.toml" else "packages"
    (tmp_path / file).write_text(f'[{table}]\ntorch = "2.6.0"\ntransformers = "{spec}"\n')
    if wanted is None:
        with pytest.raises(Exception, match="is not a version range"):
            fixes(OTHER, tmp_path, file)
        return
    fix = fixes(OTHER, tmp_path, file)[0]
    assert moved(fix) == {"transformers": wanted}
    outside = f'transformers = "{spec}"`: change it to allow {wanted}'
    assert (outside in fix.changes[0].why) is (spec == "~4.42"), fix.changes[0].why


@pytest.mark.parametrize(("spec", "wanted"), [("~=4.41.0", "4.41.2"), ("==4.41.*", "4.41.2"), ("~=4.42.0", "4.43.0")])
def test_the_same_in_the_words_of_pep_440(tmp_path: Path, spec, wanted):
    project(tmp_path, pyproject_toml=f'[project]\nname = "x"\nversion = "1"\n'
            f'dependencies = ["torch==2.6.0", "Transformers[torch]{spec}"]\n')  # fmt: skip
    fix = fixes(OTHER, tmp_path, "pyproject.toml")[0]
    assert moved(fix) == {"transformers": wanted}
    new = f"pyproject.toml:4 has `Transformers[torch]{spec}`: change it to `Transformers[torch]==4.43.0`"
    assert (new in fix.changes[0].why) is (wanted == "4.43.0")


def test_a_lock_moves_within_what_the_project_requests(tmp_path: Path):
    """The lock's pin is no one's wish."""
    project(tmp_path, pyproject_toml='[tool.poetry.dependencies]\ntorch = "2.6.0"\ntransformers = "<4.43"\n',
            poetry_lock='[[package]]\nname = "transformers"\nversion = "4.42.4"\n')  # fmt: skip
    fix = fixes(OTHER, tmp_path, "pyproject.toml", "poetry.lock")[0]
    assert moved(fix) == {"transformers": "4.41.2"} and "poetry.lock" not in fix.changes[0].why


def test_a_setting_does_not_hide_the_release_that_is_in_the_range(tmp_path: Path):
    rules = book(OWN001={"when": {"transformers.version": "4.42.4", "workload.cp_comm_type": "a2a"}, "fix": [
        {"config": {"cp_comm_type": "p2p"}}, {"require": {"transformers": "!=4.42.4"}}]})  # fmt: skip
    project(tmp_path, requirements_txt="torch==2.6.0\ntransformers>=4.40,<4.43\n")
    declaration = read_manifests([str(tmp_path / "requirements.txt")], SAID, watch_of(builtin_rulebook()))
    facts = declaration.facts.with_(
        *SAID.values(), fact("transformers.version", "4.42.4", "test"), fact("workload.cp_comm_type", "a2a", "test")
    )
    limits = Limits(declared=declaration.requested)
    found = [moved(fix) for fix in solve(rules, facts, evaluate(rules, facts), limits=limits, index=WORLD)]
    assert found[:2] == [{"cp_comm_type": "p2p"}, {"transformers": "4.41.2"}]


def test_a_whole_session_keeps_to_what_poetry_says(tmp_path: Path):
    """The rule's first way is torch 2.7.1."""
    project(tmp_path, pyproject_toml='[tool.poetry.dependencies]\npython = "^3.11"\ntorch = "~2.6.0"\n'
            'transformer-engine = "2.3.0"\nflash-attn = "2.7.4.post1"\n')  # fmt: skip
    job = Path(__file__).parents[2] / "examples" / "incidents" / "b" / "workload.yaml"
    report = diagnose(
        Request(declared=(str(tmp_path / "pyproject.toml"),), workload=str(job), gpu="h100", run=False, fixes=True)
    )
    assert {"torch": "2.6.0+cu126"} in [moved(fix) for fix in report.fixes]
    assert not any(str(moved(fix).get("torch", "2.6")) > "2.6.1" for fix in report.fixes)
    place = f"{tmp_path / 'pyproject.toml'}:3"
    assert f"`torch==2.7.1` conflicts with `torch>=2.6.0,<2.7` ({place})" in (report.fixes[0].note or "")
