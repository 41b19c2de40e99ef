"""What the user keeps: holds, allowed packages and ranges of their own files bind every fix."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from doctor.cli.main import run as command_line
from doctor.diagnosis.examine import examine
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.packages.platform import Platform
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.constraints import limits_of
from doctor.solver.limits import Limits
from doctor.solver.solve import solve
from tests.helpers.rulebook import builtin_rulebook

OLD_CUDNN = {
    "python.version": "3.11.7", "torch.version": "2.7.1", "gpu.sm": "10.0", "gpu.name": "B200",
    "torchvision.version": "0.22.1",
}  # fmt: skip
B = Path(__file__).parents[2] / "examples" / "incidents" / "b"


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


def packages(limits: Limits, **more: str) -> list[dict[str, str | None]]:
    """What each fix changes for a Blackwell GPU that this torch has no code for."""
    facts = Facts(fact(key, value, "test") for key, value in {**OLD_CUDNN, **more}.items())
    fixes = solve(rulebook(), facts, evaluate(rulebook(), facts), limits=limits)
    return [{c.name: c.after for c in fix.changes if c.kind == "package"} for fix in fixes]


def test_without_limits_torch_and_its_companion_move():
    assert {"torch": "2.8.0", "torchvision": "0.23.0"} in packages(Limits())


def test_a_package_that_depends_on_a_held_one_cannot_leave_it_behind():
    other_build = [{"torch": "2.7.1+cu128"}]  # the same release for that GPU; torchvision requires torch==2.7.1
    assert packages(Limits(hold=frozenset({"torchvision"}))) == other_build
    assert packages(Limits(hold=frozenset({"torchvision", "torch"}))) == []


def test_only_allowed_packages_move_and_parts_follow_their_leader():
    assert packages(Limits(allow=frozenset({"torch"}))) == [{"torch": "2.7.1+cu128"}]
    assert packages(Limits(allow=frozenset({"torchvision"}))) == []
    assert {"torch": "2.8.0", "torchvision": "0.23.0"} in packages(Limits(allow=frozenset({"torch", "torchvision"})))


def test_a_held_part_holds_its_leader():
    pinned = {"nvidia-cudnn-cu12.version": "9.5.1.17"}
    assert {"torch": "2.8.0", "torchvision": "0.23.0"} in packages(Limits(), **pinned)
    assert packages(Limits(hold=frozenset({"nvidia-cudnn-cu12"})), **pinned) == []


def test_a_range_moves_the_choice_and_binds_parts_too():
    assert packages(Limits(ranges={"torch": "<2.8"})) == [{"torch": "2.7.1+cu128"}]
    assert packages(Limits(ranges={"nvidia-cudnn-cu12": "<9.10"})) == [  # a torch that brings no such cuDNN at all
        {"torch": "2.11.0", "torchvision": "0.26.0"}
    ]
    assert packages(Limits(ranges={"torchvision": "<0.23"})) == [{"torch": "2.7.1+cu128"}]


def test_what_is_installed_besides_binds_and_is_read_only_when_something_is_to_fix():
    asked = []

    def installed():
        asked.append(True)
        return {"acme": ["torch<2.8"]}

    def fixes(gpu):
        facts = Facts(fact(k, v, "t") for k, v in {**OLD_CUDNN, "gpu.sm": gpu, "acme.version": "1.0"}.items())
        return solve(rulebook(), facts, evaluate(rulebook(), facts), installed=installed)

    assert fixes("9.0") == () and not asked
    assert not any(c.after == "2.8.0" for fix in fixes("10.0") for c in fix.changes)
    assert asked


# --- files --------------------------------------------------------------------------------------------------------


def test_a_constraints_file_is_read_as_pip_reads_it(tmp_path: Path):
    (tmp_path / "more.txt").write_text("transformers[torch] >= 4.40, != 4.44.0 # why\n-c main.txt\n")
    (tmp_path / "main.txt").write_bytes(
        b"\xef\xbb\xbf--index-url https://example.org\r\n\r\n# torch==1.0\r\n"
        b"Torch_Vision (<0.23)\r\n-r more.txt\r\n"
        b"torch==2.6.0 \\\r\n    --hash=sha256:00\r\n"
        b"acme @ https://example.org/acme.whl\r\n-e ./local\r\n"
        b'old>=1; python_version < "3.9"\r\nodd>=1; (python_version > "3.9" and sys_platform == "linux")\r\nfree'
    )
    limits = limits_of(constraints=[str(tmp_path / "main.txt")], platform=Platform("3.11.7"))
    assert limits.ranges == {
        "torch-vision": "<0.23", "transformers": "!=4.44.0,>=4.40", "torch": "==2.6.0", "odd": ">=1",
    }  # fmt: skip
    assert limits.hold == {"acme"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("torch>==2", "is not a requirement"), ("two words", "is not a requirement"), ("-r gone.txt", "cannot read")],
)
def test_what_cannot_be_read_is_reported_with_its_place(tmp_path: Path, text: str, message: str):
    path = tmp_path / "c.txt"
    path.write_text(f"numpy\n{text}\n")
    with pytest.raises(DoctorError, match=message):
        limits_of(constraints=[str(path)])


def test_held_and_allowed_at_once_is_an_error():
    with pytest.raises(DoctorError, match="both held and allowed"):
        limits_of(hold=["Torch"], allow=["torch"])


# --- through the command line -------------------------------------------------------------------------------------


def request(**more) -> Request:
    return Request(facts=(str(B / "facts.yaml"),), workload=str(B / "workload.yaml"), run=False, **more)


def test_the_session_passes_the_limits_on(tmp_path: Path):
    (tmp_path / "c.txt").write_text("torch>=2.8,<2.9\n")
    moved = [c.after for fix in diagnose(request(constraints=(str(tmp_path / "c.txt"),))).fixes for c in fix.changes]
    assert "2.8.0" in moved and "2.7.1" not in moved
    held = diagnose(request(hold=("torch",))).fixes
    assert held and not any(c.name == "torch" for fix in held for c in fix.changes)
    only = diagnose(request(allow=("transformers",))).fixes
    assert not any(c.kind == "package" for fix in only for c in fix.changes)


def test_a_misspelt_package_is_reported(capsys):
    code = command_line(["fix", "--facts", str(B / "facts.yaml"), "--hold", "trch"])
    assert code == 2 and "neither installed there nor on record\nhint: did you mean `torch`?" in capsys.readouterr().err


def test_requirements_of_a_real_target_are_read_but_not_those_of_versions_said_outright():
    whole = examine(Request(python=sys.executable), Rulebook({}, {})).requirements()
    assert any(line.startswith("pluggy") for line in whole["pytest"])
    without = examine(Request(python=sys.executable, settings=("pytest.version=1.0",)), Rulebook({}, {}))
    assert without.requirements() == {name: lines for name, lines in whole.items() if name != "pytest"}
    assert examine(request(), Rulebook({}, {})).requirements is None
