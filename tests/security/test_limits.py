"""Ordinary words and hostile files end in one line that names what is wrong, within bounded time and memory."""

from __future__ import annotations

import io
import json
import lzma
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.fleet.records import MAX_LINE
from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse
from doctor.rulebook.schema import read_source
from doctor.util import reading
from doctor.util.reading import bounded_lines

from .conftest import FACTS, Doctor, rule, rules_folder


def every_third(values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of which make test runs every third, and make test-all all."""
    return [
        value if number % 3 == 0 else pytest.param(value, marks=pytest.mark.slow) for number, value in enumerate(values)
    ]


ARCHITECTURES = {
    "sm90": "9.0", "sm_90": "9.0", "compute_90": "9.0+PTX", "90": "9.0", "90a": "9.0a", "8.6-real": "8.6",
    "9.0a+PTX": "9.0a+PTX", "8.0;9.0": "8.0", "sm_100a": "10.0a", "8.6-virtual": "8.6+PTX",
}  # fmt: skip


@pytest.mark.parametrize(("given", "first"), ARCHITECTURES.items())
def test_architectures_as_tools_write_them(given: str, first: str) -> None:
    assert parse("torch.arch_list", given)[0] == first


@pytest.mark.parametrize("given", ["sm_90", "compute_90", "9.0a+PTX"])
def test_architectures_are_judged(project: Path, doctor: Doctor, given: str) -> None:
    assert doctor("check", "--facts", FACTS, "--set", f"torch.arch_list={given}").code in (0, 1)


@pytest.mark.parametrize(
    "setting",
    every_third([
        *(f"torch.arch_list={text}" for text in ("sm_x", "Hopper", "all", "5.0,6.x", "9.0.1", "1e9", "9" * 5000)),
        *(f"python.version={text}" for text in ("3", "0", "99999999999", "3.99999999999", "٣.١١", "9" * 5000)),
        "torch.version=" + "9" * 5000, "torch.version=١.٢", "gpu.sm=" + "9" * 5000, "workload.seq_len_q=" + "9" * 5000,
        "workload.window=[1," + "9" * 5000 + "]", "x" * 1_000_000 + "=1",
    ]),
)  # fmt: skip
def test_bad_values_are_named(project: Path, doctor: Doctor, setting: str) -> None:
    ran = doctor("check", "--facts", FACTS, "--set", setting)
    key = setting.partition("=")[0]
    assert ran.code == 2 and (key in ran.err or key[:20] in ran.err)


@pytest.mark.parametrize("version", ["0", "2", "2.6.0.1.1", "1!0"])
def test_odd_releases_of_torch_have_no_wheel(project: Path, doctor: Doctor, version: str) -> None:
    assert doctor("wheels", "flash-attn", "--facts", FACTS, "--set", f"torch.version={version}").code in (0, 1, 2)


LONG = "9" * 4400
#: (file name, content) that ended in a fault or in too much time or memory.
FILES = [
    *(("requirements.txt", f"{name}{operator}{LONG}\n") for name in ("torch", "requests") for operator in ("==", ">=", "===")),
    ("requirements.txt", "torch==2.5.0; python_version < '../x'\ntorch>=2.4\n"),
    ("requirements.txt", "torch; " + "(" * 1000 + "\n"),
    ("requirements.txt", "torch; " + "(" * 40 + "python_version > '3'" + ")" * 40 + "\n"),
    ("requirements.txt", "torch==2.6.0 ; " + " or ".join(["python_version > '3'"] * 5000) + "\n"),
    ("Dockerfile", f"FROM python:3.11\nRUN pip install torch=={LONG}\n"),
    ("Dockerfile", "FROM python:3.11\n" + "".join(f"ENV A{n + 1}=$A{n}$A{n}$A{n}\n" for n in range(60))),
    ("Dockerfile", "FROM python:3.11\nENV A=x\n" + "ENV A=$A$A\n" * 60 + "RUN pip install torch==$A\n"),
    ("job.sh", "#!/bin/sh\nA=xxxxxxxx\n" + "A=$A$A\n" * 60 + "pip install torch==$A\n"),
    ("job.sh", "#!/bin/sh\npip install torch==2.6.0\n" + "${A:-" * 2000 + "\n"),
    ("job.sh", "#!/bin/sh\n" + "$(" * 50_000), ("job.sh", "#!/bin/sh\n" + "<<EOF\n" * 20_000),
    ("job.sh", 'a: "' + "9" * 4_000_000 + '"\n'),
    ("Pipfile", f'[packages]\ntorch = "=={LONG}"\n'), ("Pipfile", "[packages]\n" + "a." * 40_000 + "a=1\n"),
    ("pixi.toml", "[workspace]\nchannels=[]\nplatforms=[]\n[dependencies]\npython = '١٢'\npytorch = '2.6.0'\n"),
    ("pixi.toml", "[workspace]\nchannels=[]\nplatforms=[]\n[dependencies]\npython = '0'\npytorch = '2.6.0'\nflash-attn='2.7'\n"),
    ("environment.yml", "dependencies:\n- python=99999999999\n- pytorch=2.6.0\n- pip: [flash-attn==2.7.4.post1]\n"),
    ("pyproject.toml", '[tool.attn-doctor]\ngpu="h100"\n' + ".".join("a" * 40_000) + "=1\n"),
    ("uv.lock", "version = 1\n" + "a.tar.gz" * 50_000), ("uv.lock", "[" * 100_000), ("poetry.lock", "a = " + "[" * 100_000),
    ("pixi.lock", "version: 6\n" + "- " * 100_000), ("Pipfile.lock", '{"default": ' + "[" * 100_000),
    ("environment.yml", "dependencies: " + "[" * 50_000),
    ("setup.py", "setup(install_requires=" + "[" * 50_000), ("setup.py", "setup(install_requires=" + "[]+" * 3_000 + "[])"),
    ("setup.py", "a = ['torch']\n" + "a = a + a\n" * 60 + "setup(install_requires=a)\n"),
    ("setup.py", "x = open('x.txt')\nsetup(install_requires=x" + ".read()" * 3_000 + ")\n"), ("setup.cfg", "[options\n" * 9),
]  # fmt: skip


@pytest.mark.parametrize("number", every_third(range(len(FILES))), ids=lambda number: f"{FILES[number][0]}-{number}")
def test_files_that_ended_in_a_fault(project: Path, doctor: Doctor, number: int) -> None:
    name, text = FILES[number]
    (project / name).write_text(text)
    began = time.process_time()
    ran = doctor("check", "--no-run", "--requirements", name, "--gpu", "h100")
    assert ran.code in (0, 1, 2) or (ran.code == 3 and "declared" in ran.err)
    assert ran.code != 2 or name in ran.err
    assert time.process_time() - began < 5


def test_a_constraint_with_an_odd_version(project: Path, doctor: Doctor) -> None:
    for text in ("torch==.0\n", f"torch=={LONG}\n", "torch; " + "(" * 500 + "\n"):
        (project / "c.txt").write_text(text)
        ran = doctor("fix", "--facts", FACTS, "--constraint", "c.txt", "--pin")
        assert ran.code == 2 and "c.txt:1" in ran.err


def test_constraints_that_include_each_other_twice_over(project: Path, doctor: Doctor) -> None:
    for number in range(40):
        (project / f"c{number}.txt").write_text(f"-c c{number + 1}.txt\n-c c{number + 1}.txt\n")
    (project / "c40.txt").write_text("torch<3\n")
    began = time.process_time()
    assert doctor("fix", "--facts", FACTS, "--constraint", "c0.txt", "--pin").code in (0, 1)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["x" * 5000, pytest.param("a/" * 3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "command", every_third([("check", "--requirements"), ("rules", "test"), ("init",), ("check", "--facts"), ("check", "--rules"),
                ("check", "--site-packages"), ("check", "--python"), ("backends", "--batch")]),
)  # fmt: skip
def test_names_that_no_file_has(project: Path, doctor: Doctor, command: tuple[str, ...], name: str) -> None:
    ran = doctor(*command, name)
    assert ran.code in (1, 2) and ("x" * 20 in ran.err + ran.out or "a/a" in ran.err + ran.out)


@pytest.mark.parametrize("version", ["3.11.7\\033[31mX", "9.x.y", "", "3", "٣.١١", "9" * 5000])
def test_an_interpreter_that_makes_up_its_version(project: Path, doctor: Doctor, version: str) -> None:
    fake = project / "python"
    fields = "\\0".join([version, "cpython", "/x", "Linux", "x86_64", "2.35", "/x/lib", "/x/site"])
    fake.write_text(f"#!/bin/sh\nprintf '\\n<attn-doctor\\0{fields}\\0attn-doctor>\\n'\n")
    fake.chmod(0o755)
    ran = doctor("check", "--no-run", "--python", fake)
    assert ran.code in (2, 3) and str(fake) in ran.err and "\x1b" not in ran.err


@pytest.mark.parametrize("key", ["model", "workload", "requirements", "rules"])
def test_a_missing_file_of_the_section_is_named_with_its_line(project: Path, doctor: Doctor, key: str) -> None:
    (project / "pyproject.toml").write_text(f'[tool.attn-doctor]\ngpu = "h100"\n{key} = ["cp311"]\n')
    ran = doctor("check", "--no-run", *(() if key == "requirements" else ("--set", "torch.version=2.6.0")))
    assert ran.code == 2 and "pyproject.toml:3" in ran.err and "cp311" in ran.err


def test_the_project_file_is_a_link_to_a_device(project: Path, doctor: Doctor) -> None:
    for target in ("/dev/zero", "/dev/stdin", "pyproject.toml"):
        (project / "pyproject.toml").unlink(missing_ok=True)
        (project / "pyproject.toml").symlink_to(target)
        assert doctor("check", "--no-run", "--facts", FACTS).code in (0, 1, 2)
        assert doctor("init", "--dry-run").code in (0, 2)


def test_long_lines_of_a_batch(project: Path, doctor: Doctor) -> None:
    good = json.dumps({"id": 7, "facts": {}, "workload": {"framework": "torch_sdpa"}})
    (project / "b.jsonl").write_text("x" * 3_000_000 + f"\n{good}\n")
    ran = doctor("backends", "--batch", "b.jsonl")
    first, second = map(json.loads, ran.out.splitlines())
    assert ran.code == 2 and "longer than 1 MiB" in first["error"] and second["id"] == 7


def test_long_lines_of_nodes(project: Path, doctor: Doctor) -> None:
    good = json.dumps({"node": "n1", "snapshot": {"torch.version": "2.6.0"}})
    with (project / "nodes.jsonl").open("w") as stream:
        stream.writelines(["x" * (MAX_LINE + 5), "\n", good, "\n"])
    ran = doctor("fleet", "--snapshots", "nodes.jsonl", "--format", "json")
    assert ran.code == 0 and len(ran.json["nodes"]) == 1, ran.err


def test_an_archive_that_wants_much_memory(project: Path, doctor: Doctor) -> None:
    packed = lzma.compress(b"RuntimeError: x\n")
    end = 12 + 4 * (packed[12] + 1) - 4  # of the block's header, without its checksum
    header = bytearray(packed[12:end])
    header[header.index(b"\x21\x01") + 2] = 38  # a window of 2 GiB
    checksum = zlib.crc32(header).to_bytes(4, "little")
    (project / "job.log.xz").write_bytes(packed[:12] + header + checksum + packed[end + 4 :])
    ran = doctor("explain", "job.log.xz")
    assert ran.code == 2 and "cannot read `job.log.xz`" in ran.err


def test_a_line_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_SKIPPED", 1000)
    assert list(bounded_lines(io.StringIO("a\n" + "x" * 900 + "\nb\n"), 10)) == ["a\n", None, "b\n"]
    with pytest.raises(OSError, match="a line is longer than"):
        list(bounded_lines(io.StringIO("x" * 5000), 10))


def _run(arguments: list[str], folder: Path, memory: int) -> tuple[int, str]:
    """Run the program with a limit of memory and return its exit code and messages."""
    done = subprocess.run(
        [sys.executable, "-m", "doctor", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.slow
def test_files_without_end_are_read_in_bounded_memory(project: Path) -> None:
    for option in (
        ["backends", "--batch"],
        ["fix", "--facts", str(FACTS), "--pin", "--constraint"],
        ["check", "--facts"],
    ):
        code, err = _run([*option, "/dev/zero"], project, 1 << 30)
        assert code == 2 and "it is a device" in err and "fault of" not in err, err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["requirements.txt", "uv.lock", "poetry.lock", "environment.yml", "pixi.lock", "Pipfile.lock",
                                  "conda-lock.yml", "job.sh", "Dockerfile", "pyproject.toml"])  # fmt: skip
def test_the_largest_file_of_a_kind(project: Path, name: str) -> None:
    lines = {
        "requirements.txt": ("", "package-{n}==1.{n}\n"), "job.sh": ("#!/bin/sh\n", "export A{n}=1; pip install p{n}==1.0\n"),
        "uv.lock": ("version = 1\n", '[[package]]\nname = "p{n}"\nversion = "1.0"\n'),
        "poetry.lock": ("", '[[package]]\nname = "p{n}"\nversion = "1.0"\noptional = false\n'),
        "environment.yml": ("dependencies:\n", "- p{n}=1.0\n"), "Dockerfile": ("FROM python:3.11\n", "ENV A{n}=1\n"),
        "pixi.lock": ("version: 6\npackages:\n", "- pypi: https://h/p{n}-1.0-py3-none-any.whl\n  name: p{n}\n  version: '1.0'\n"),
        "Pipfile.lock": ('{"default": {', '"p{n}": {{"version": "==1.0"}}, '),
        "conda-lock.yml": ("package:\n", "- {{name: p{n}, version: '1.0', manager: conda, platform: linux-64}}\n"),
        "pyproject.toml": ("[project]\nname = 'x'\nversion = '1'\ndependencies = [\n", "'p{n}==1.0',\n"),
    }  # fmt: skip
    head, line = lines[name]
    tail = {"Pipfile.lock": '"q": {"version": "==1.0"}}}', "pyproject.toml": "]\n"}.get(name, "")
    for size in (33 << 20, 8 << 20, 1 << 20):
        count = size // len(line)
        (project / name).write_text(head + "".join(line.format(n=n) for n in range(count)) + tail)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code, err = _run(["check", "--no-run", "--requirements", name, "--gpu", "h100"], project, 4 << 30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert code in (0, 1, 2) or (code == 3 and "declared" in err), err
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10, (name, size)
        assert os.path.getsize(project / name) > size // 2
        assert after.ru_maxrss << 10 < 700 << 20, (name, size, after.ru_maxrss)


def test_rules_are_checked_before_they_are_used(project: Path) -> None:
    for text in ("[" * 50_000, "a: &a [*a]", "!!python/object/apply:os.system ['x']", "id: X001\n" * 2, rule()[:-40]):
        path = rules_folder(project, text) / "madeup" / "X001.yaml"
        with pytest.raises(DoctorError, match=r"X001\.yaml"):
            read_source(path)


def test_a_large_lock_is_read_in_linear_time(project: Path, doctor: Doctor) -> None:
    def seconds(count: int) -> float:
        wheel = '    { url = "https://h.example/p.whl", hash = "sha256:' + "0" * 64 + '", size = 1 },\n'
        (project / "uv.lock").write_text(
            "version = 1\n" + "".join(
                f'[[package]]\nname = "p{n}"\nversion = "1.{n}"\nwheels = [\n{wheel * 20}]\n' for n in range(count)
            ) + '[[package]]\nname = "torch"\nversion = "2.6.0"\n'
        )  # fmt: skip
        start = time.process_time()
        ran = doctor("snapshot", "--requirements", "uv.lock", "-o", "-")
        assert ran.code == 0 and "2.6.0" in ran.out, ran.err
        return time.process_time() - start

    seconds(10)
    small, large = seconds(1_000), seconds(5_000)
    assert (project / "uv.lock").stat().st_size > 8 << 20 and large < 10 * max(small, 0.3)
