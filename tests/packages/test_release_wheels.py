"""Wheels on release pages: the right one, the nearest one, or an honest way to build it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from doctor.cli.main import run as command_line
from doctor.errors import DoctorError
from doctor.packages.flash_attn_build import CORE_HOURS, JOB_MEMORY, build
from doctor.packages.release_wheels import WheelTarget, find, on_release_pages, table
from doctor.util.machine import Machine, this_machine

FACTS = Path(__file__).parents[2] / "examples" / "incidents" / "b" / "facts.yaml"
TORCH28 = WheelTarget("2.8.0", "12.8", True, "3.12.3", glibc="2.35")


def names(wheels) -> list[str]:
    return [wheel.name for wheel in wheels]


# --- the table ----------------------------------------------------------------------------------------------------


def test_the_table_holds_what_the_workflows_build():
    other_abi = 8 * 5  # named cxx11abiFALSE for torch 2.6, and compiled for the new ABI
    assert sum(not wheel.seen for wheel in table()) == 5760 - other_abi


def test_no_wheel_is_offered_that_its_torch_cannot_import():
    place = WheelTarget("2.6.0+cu124", "12.4", False, "3.11.7")
    assert {wheel.version for wheel in find(place).fitting} and not any(
        wheel.version.startswith("2.8") for wheel in find(place).fitting
    )
    assert len({wheel.url for wheel in table()}) == len(table())  # none is named twice
    for wheel in table():
        name, version, _, tags = parse_wheel_filename(wheel.name)
        assert (name, version.public) == ("flash-attn", wheel.version)
        assert tags == {Tag(wheel.python, wheel.python, f"linux_{wheel.machine}")}
        assert wheel.url.split("/")[-2] == f"v{wheel.version}"


def test_a_broken_table_is_reported(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DoctorError, match=r"`t\.json` cannot be read"):
        table(path=tmp_path / "t.json")


WORKFLOW = """
jobs:
  build_wheels:
    strategy:
      matrix:
        os: [ubuntu-22.04, ubuntu-22.04-arm]
        python-version: ["3.9", "3.10", "3.13"]
        torch-version: ["2.4.0", "2.7.1", "2.9.1"]
        cuda-version: ["12.9.1", "13.0.1"]
        cxx11_abi: ["FALSE", "TRUE"]
        exclude:
          - {torch-version: "2.4.0", python-version: "3.13"}
          - {torch-version: "2.4.0", cuda-version: "13.0.1"}
          - {torch-version: "2.7.1", cuda-version: "13.0.1"}
          - {torch-version: "2.4.0", os: ubuntu-22.04-arm}
          - {torch-version: "2.9.1", cxx11_abi: "FALSE"}
    steps:
      - run: |
          echo "MATRIX_CUDA_VERSION=$(echo ${{ matrix.cuda-version }} | awk -F \\. {'print $1 $2'})" >> $GITHUB_ENV
"""
MAJOR = r"""          echo "WHEEL_CUDA_VERSION=$(echo ${{ matrix.cuda-version }} | awk -F \. {'print $1'})" >> $GITHUB_ENV
"""  # noqa: E501 (as the workflow writes it)


def refresh_wheels():
    """The script, as a module."""
    path = Path(__file__).parents[2] / "scripts" / "release" / "refresh_wheels.py"
    spec = importlib.util.spec_from_file_location("refresh_wheels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_workflow_s_matrix_becomes_rows_of_the_table():
    """One row per CUDA and torch; a build without one of the ABIs says so."""
    matrix = refresh_wheels().matrix
    runner, builds = matrix(WORKFLOW + MAJOR)
    assert runner == "ubuntu-22.04"
    assert builds == [
        ["cu12", "12.9.1", "2.4", "2.4.0", "cp39 cp310"],
        ["cu12", "12.9.1", "2.7", "2.7.1", "cp39 cp310 cp313"],
        ["cu12", "12.9.1", "2.9", "2.9.1", "cp39 cp310 cp313", "TRUE"],
        ["cu13", "13.0.1", "2.9", "2.9.1", "cp39 cp310 cp313", "TRUE"],
    ]
    assert [row[0] for row in matrix(WORKFLOW)[1]] == ["cu129", "cu129", "cu129", "cu130"]  # older tags name the minor
    assert matrix("jobs: {build: {}}") is None


def test_releases_are_built_as_their_tag_says(tmp_path):
    """Alike ones are together; one without a tag is taken for its predecessor's."""
    releases = refresh_wheels().releases

    def git(*arguments: str) -> None:
        alone = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *alone, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    file = tmp_path / ".github" / "workflows" / "publish.yml"
    file.parent.mkdir(parents=True)
    for tag, text in (("v1.0.0", "jobs: {}"), ("v2.0.0", WORKFLOW), ("v2.0.1", WORKFLOW), ("v2.1.0", WORKFLOW + MAJOR)):
        file.write_text(text)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", tag)
        git("tag", tag)
    found = releases(tmp_path, ["2.1.0.post1", "1.0.0", "2.0.0"])
    for machine in (None, "aarch64"):
        own = [group["versions"] for group in found if group.get("machine") == machine]
        assert own == [["2.0.0", "2.0.1"], ["2.1.0", "2.1.0.post1"]]


# --- what fits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "version", "name"),
    [
        (TORCH28, "2.8.3", "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"),
        (WheelTarget("2.6.0", "12.4", False, "3.11.7"), "2.7.4.post1",
         "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
        (WheelTarget("2.6.0+cu126", "12.6", True, "3.11.7"), "2.7.4.post1",
         "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"),
        (WheelTarget("2.3.1", "12.1", False, "3.10.2"), "2.6.3",
         "flash_attn-2.6.3+cu123torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"),
        (WheelTarget("2.3.1", "11.8", False, "3.10.2"), "2.6.3",
         "flash_attn-2.6.3+cu118torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"),
        (WheelTarget("2.0.1", "11.7", False, "3.10.2"), "2.0.8",  # of four compilers the nearest
         "flash_attn-2.0.8+cu117torch2.0cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"),
    ],
)  # fmt: skip
def test_the_wheel_of_a_release_for_a_place(place: WheelTarget, version: str, name: str):
    assert names(find(place, version).fitting) == [name]


def test_without_a_release_the_newest_that_is_sure_comes_first():
    found = [wheel.version for wheel in find(TORCH28).fitting]
    assert found == ["2.8.3.post1", "2.8.3", "2.8.1", "2.8.3.post2"]
    assert any("not read" in text for text in find(TORCH28).fitting[-1].warnings)


def test_every_wheel_fits_its_own_place_and_no_other():
    for wheel in [item for item in table() if not item.seen][::37]:
        major = {"cu11": "11.8", "cu12": "12.4"}.get(wheel.cuda[:4])
        own = WheelTarget(wheel.built_with, major, wheel.abi, f"3.{wheel.python[3:]}.1", glibc=wheel.glibc)
        found = find(own, wheel.version).fitting
        assert len(found) == 1 and (found[0].torch, found[0].abi, found[0].python) == (
            wheel.torch, wheel.abi, wheel.python
        )  # fmt: skip
        for other in (
            WheelTarget(own.torch, "14.0", own.abi, own.python),
            WheelTarget(own.torch, own.cuda, own.abi, "3.15.0"),
            WheelTarget("2.99.0", own.cuda, own.abi, own.python),
            WheelTarget(own.torch, own.cuda, own.abi, own.python, glibc="2.17"),
            WheelTarget(own.torch, own.cuda, own.abi, own.python, machine="aarch64"),
            WheelTarget(own.torch, own.cuda, own.abi, own.python, system="Windows"),
        ):
            answer = find(other, wheel.version)
            assert not answer.fitting and answer.why_not


@pytest.mark.parametrize(
    ("place", "names_of"),
    [
        (WheelTarget("2.9.1", "12.8", True, "3.12.3"),
         ["flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
          "flash_attn-2.8.1+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"]),
        (WheelTarget("2.10.0", "13.0", True, "3.12.3"),
         ["flash_attn-2.8.3+cu13torch2.10cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
          "flash_attn-2.8.1+cu13torch2.10cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"]),
        (WheelTarget("2.10.0", "13.0", True, "3.13.1", machine="aarch64"),
         ["flash_attn-2.8.1+cu13torch2.10cxx11abiTRUE-cp313-cp313-linux_aarch64.whl"]),
        (WheelTarget("2.10.0", "12.8", False, "3.12.3"), []),
        (WheelTarget("2.6.0", "12.4", True, "3.12.3", machine="aarch64"), []),
    ],
)  # fmt: skip
def test_wheels_that_came_after_the_release(place: WheelTarget, names_of: list[str]):
    answer = find(place)
    assert names(answer.fitting) == names_of and all(wheel.certainty == "published" for wheel in answer.fitting)
    assert (answer.why_not is None) == bool(names_of)


def test_a_pre_release_of_torch_is_reported():
    (wheel,) = find(WheelTarget("2.6.0", "12.4", False, "3.11.1"), "2.7.3").fitting
    assert list(wheel.warnings) == ["built with torch 2.6.0.dev20241001, a pre-release of 2.6: it may not load"]


# --- what does not ------------------------------------------------------------------------------------------------


def test_what_is_not_known_is_no_refusal():
    answer = find(WheelTarget("2.8.0", None, None, "3.12.3"))
    assert answer.missing == ("CUDA", "C++11 ABI") and not answer.fitting and answer.why_not is None
    sure = find(WheelTarget("2.11.0", None, None, None))  # whatever the rest is
    assert sure.why_not is not None and sure.why_not.startswith("No flash-attn release has an official wheel for torch")


def test_the_nearest_torch_and_the_nearest_release():
    answer = find(WheelTarget("2.9.1", "12.8", True, "3.11.3"))
    assert [(wheel.version, wheel.torch, wheel.abi) for wheel in answer.nearest] == [("2.8.3.post1", "2.8", True)]
    answer = find(WheelTarget("2.4.1", "12.1", False, "3.11.3"), "2.5.6")
    assert [(wheel.version, wheel.torch, wheel.abi) for wheel in answer.nearest] == [
        ("2.5.9", "2.4", False), ("2.5.6", "2.3", False),
    ]  # fmt: skip


def test_an_old_c_library_is_led_to_an_older_torch_whose_wheel_it_loads():
    answer = find(WheelTarget("2.8.0", "12.8", True, "3.12.3", glibc="2.31"))
    assert answer.why_not is not None and "glibc 2.31: built are glibc 2.32 or newer" in answer.why_not
    (wheel,) = answer.nearest
    assert (wheel.version, wheel.torch) == ("2.7.4.post1", "2.6") and wheel.glibc == "2.31" and not wheel.doubt


def test_nothing_is_near_where_no_wheel_has_that_python():
    assert find(WheelTarget("2.9.1", "12.8", True, "3.15.1")).nearest == ()


# --- building -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "gigabytes", "jobs"), [(64, 512, 32), (64, 64, 7), (2, 512, 1), (1, 4, 1), (16, 100, 8)]
)
def test_jobs_are_what_cores_and_memory_bear(cores: int, gigabytes: int, jobs: int):
    way = build("2.8.3", "9.0", "12.8", Machine(cores, gigabytes * 2**30))
    assert way.jobs == jobs and way.command.startswith(f"MAX_JOBS={jobs} ")
    assert way.hours == (CORE_HOURS[0] / jobs, CORE_HOURS[1] / jobs)
    assert any("may be killed" in note for note in way.notes) == (gigabytes * 2**30 < JOB_MEMORY)


@pytest.mark.parametrize(
    ("version", "sm", "arch"),
    [("2.8.3", "8.9", "80"), ("2.8.3", "10.3", "100"), ("2.8.3", "12.1", "120"), ("2.7.2", "9.0", None)],
)
def test_the_architecture_is_the_gpu_s_where_the_release_lets_one_choose(version: str, sm: str, arch: str | None):
    command = build(version, sm, "12.8", Machine(8, 64 * 2**30)).command
    assert (f'FLASH_ATTN_CUDA_ARCHS="{arch}" ' in command) if arch else ("ARCHS" not in command)


def test_a_gpu_without_kernels_and_a_machine_unknown_are_reported():
    assert any("no kernels for sm75" in note for note in build("2.8.3", "7.5", "12.8", Machine(8, 2**36)).notes)
    assert any("a guess" in note for note in build("2.8.3", "9.0", None, Machine()).notes)
    assert build("2.8.3", None, None, Machine(8, 2**36)).hours > build("2.8.3", "9.0", None, Machine(8, 2**36)).hours


def test_durations_are_spoken_to_one_figure():
    assert build("2.8.3", "9.0", None, Machine(128, 2**40)).duration == "5 minutes to 10 minutes"
    assert build("2.8.3", "9.0", None, Machine(8, 2**36)).duration == "1 hour to 3 hours"


def test_this_machine_has_cores_and_memory():
    here = this_machine()
    assert here.cores is not None and here.cores >= 1
    assert here.memory is None or here.memory > 0


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_shows_the_address(capsys):
    assert command_line(["wheels", "flash-attn==2.7.4.post1", "--facts", str(FACTS)]) == 0
    out = capsys.readouterr().out
    assert "expected" in out
    assert (
        'pip install "flash-attn @ https://github.com/Dao-AILab/flash-attention/releases/download/v2.7.4.post1/' in out
    )


def test_the_command_without_a_wheel(capsys):
    arguments = ["wheels", "flash-attn", "--facts", str(FACTS), "--set", "torch.version=2.11.0", "--format", "json"]
    arguments += ["--set", "torch.cuda=13.0", "--set", "torch.cxx11_abi=true"]
    assert command_line(arguments) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["wheels"] == [] and "torch 2.11" in told["why_not"]
    assert (told["nearest"][0]["torch"], told["nearest"][0]["certainty"]) == ("2.8", "expected")
    assert told["build"]["command"].endswith("flash-attn==2.8.3.post2")


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("nosuch-kernels", "not on record"),
        ("xformers==0.0.1", "is not on record"),
        ("flash-attn==99", "has no release 99"),
        ("flash-attn==x", "not a version"),
    ],
)
def test_what_the_command_does_not_know(capsys, package: str, message: str):
    assert command_line(["wheels", package]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) <= 2


def test_other_packages_are_judged_by_their_records(capsys):
    facts = ["--facts", str(FACTS), "--set", "torch.version=2.9.1", "--set", "torch.cuda=12.8", "--gpu", "b200"]
    assert command_line(["wheels", "xformers", *facts]) == 0
    assert "xformers 0.0.33.post2: fits" in capsys.readouterr().out
    assert command_line(["wheels", "fa3-fwd==0.0.3", *facts, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["releases"][0]["reasons"][0].startswith("GPU: no (8.0, 9.0a")
    assert command_line(["wheels", "mamba-ssm", *facts]) == 1
    assert "mamba-ssm==2.3.2" not in capsys.readouterr().out  # wrong on Blackwell, by MAMBA983


# --- other packages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", sorted(on_release_pages()))
def test_every_table_names_wheels_of_its_package(package):
    """The file name and the machines are those of the package's own workflow."""
    wheels = table(package=package)
    assert wheels and {wheel.package for wheel in wheels} == {package}
    assert all(wheel.name.startswith(f"{package.replace('-', '_')}-{wheel.version}+cu") for wheel in wheels)


def test_the_wheels_of_another_package_are_found_for_both_machines():
    """mamba-ssm 2.3.1 is built for torch 2.10 on aarch64 as well, and not for 2.13."""
    place = WheelTarget("2.10.0", "13.0", True, "3.12.3", machine="aarch64")
    best = find(place, "2.3.1", "mamba-ssm").fitting[0]
    assert best.name == "mamba_ssm-2.3.1+cu13torch2.10cxx11abiTRUE-cp312-cp312-linux_aarch64.whl"
    later = find(place._replace(torch="2.13.0"), "2.3.1", "mamba-ssm")
    assert later.why_not.startswith("mamba-ssm 2.3.1 has no official wheel for torch 2.13")
    assert later.nearest[0].torch == "2.10"


def test_a_reusable_workflow_names_the_cuda_of_the_wheel():
    """Newer projects write the file name in the workflow that theirs calls."""
    matrix = refresh_wheels().matrix
    assert matrix(WORKFLOW, MAJOR.replace("matrix.", "inputs."))[1][0][0] == "cu12"
