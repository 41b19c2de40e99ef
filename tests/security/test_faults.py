"""Killed runs, failing disks, many runs at once: every file is whole, old or new."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.cli.main import run
from doctor.diagnosis import single
from doctor.errors import NoDiagnosis

from .conftest import FACTS, ROOT, WORKLOAD, Doctor
from .inject import COMMANDS, PROJECT, REQUIREMENTS, _files, _template

HERE = Path(__file__).parent
DOCTOR = [sys.executable, "-m", "doctor"]


@pytest.mark.slow
def test_a_failing_disk_leaves_whole_files(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the shim that makes calls fail")
    shim = tmp_path / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, HERE / "faults.c", "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)}
    place = tmp_path / "runs"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, HERE / "inject.py", place], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    print("fault injections:", result["tried"])
    assert result["wrong"] == [] and result["tried"] > 1000


@pytest.mark.slow
def test_a_killed_run_leaves_whole_files(tmp_path: Path) -> None:
    template = tmp_path / "template"
    _template(template)
    random_ = random.Random(7)
    killed = 0
    after: dict[str, dict[str, bytes]] = {}
    names = [name for name in COMMANDS if name not in ("cold cache", "json")]
    for number in range(int(os.environ.get("ATTN_DOCTOR_KILLS", "60"))):
        name = names[number % len(names)]
        folder = tmp_path / f"run{number}"
        shutil.copytree(template, folder, symlinks=True)
        cold = random_.random() < 0.3
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / (f"cold{number}" if cold else "warm"))}
        if name not in after:
            subprocess.run(
                [*DOCTOR, *COMMANDS[name].split()], cwd=folder, env=environment, capture_output=True, check=False
            )
            after[name] = _files(folder)
            continue
        child = subprocess.Popen(
            [*DOCTOR, *COMMANDS[name].split()], cwd=folder, env=environment, stdout=subprocess.DEVNULL
        )
        time.sleep(random_.uniform(0.02, 1.2))
        child.kill()
        killed += child.wait() == -signal.SIGKILL
        before = _files(template)
        for file, content in _files(folder).items():
            left_over = Path(file).name.startswith(".") and file.endswith(".tmp")
            assert left_over or content in (before.get(file), after[name].get(file)), (name, file)
        assert all((folder / file).exists() for file in before)
        code = subprocess.run(
            [*DOCTOR, "check", "--no-run", "--facts", FACTS],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
        )
        assert code.returncode in (0, 1), code.stderr
        shutil.rmtree(folder)
    assert killed > 5


@pytest.mark.slow
def test_cold_starts_at_once_agree(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [*DOCTOR, "check", "--no-run", "--facts", FACTS, "--workload", WORKLOAD]
    children = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(20)
    ]
    answers = [child.communicate(timeout=900) for child in children]
    assert len(set(answers)) == 1 and {child.returncode for child in children} == {1}
    files = [path.name for path in (tmp_path / "cache" / "attn-doctor").iterdir()]
    assert len(files) == 1, files


def _home(name: str, folder: Path) -> dict[str, str]:
    folder.mkdir()
    homes: dict[str, Callable[[], Path]] = {
        "missing": lambda: folder / "missing", "read-only": lambda: _with_mode(folder / "ro", 0o555),
        "a file": lambda: _file(folder / "file"), "device": lambda: Path("/dev/null"), "odd": lambda: folder / "a\nb \x1b é",
        "foreign": lambda: _with_mode(folder / "foreign", 0o777), "root": lambda: Path("/proc"),
    }  # fmt: skip
    place = homes[name]()
    return {"HOME": str(place), "XDG_CACHE_HOME": str(place / ".cache")}


def _with_mode(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    if mode == 0o777 and os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    return path


def _file(path: Path) -> Path:
    path.write_text("")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["missing", "read-only", "a file", "device", "odd", "foreign", "root"])
def test_any_home_will_do(tmp_path: Path, name: str) -> None:
    environment = {**os.environ, **_home(name, tmp_path / "homes"), "PYTHONPATH": str(ROOT)}
    command = [*DOCTOR, "check", "--no-run", "--facts", FACTS, "--workload", WORKLOAD]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "TE103" in done.stdout and not done.stderr


def _processes(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def _state(pid: int) -> str:
    """Return the state of a process: R while it runs, S while it waits."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGQUIT, signal.SIGTERM])
def test_an_interpreter_dies_with_the_doctor(tmp_path: Path, how: signal.Signals) -> None:
    marker = f"marker-{os.getpid()}-{how.value}"
    slow = tmp_path / "python"
    slow.write_text(
        f"#!/bin/sh\ntrap '' TERM INT HUP QUIT\n(exec -a {marker} sleep 60) &\ntouch {tmp_path}/begun\nexec sleep 60 # {marker}\n"
    )
    slow.write_text(slow.read_text().replace("#!/bin/sh", f"#!{shutil.which('bash') or '/bin/sh'}"))
    slow.chmod(0o755)
    child = subprocess.Popen(
        [*DOCTOR, "check", "--no-run", "--python", slow], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    while _state(child.pid) == "R" and time.monotonic() < deadline:  # nothing can hold SIGKILL until the child is bound
        time.sleep(0.02)
    child.send_signal(how)
    child.wait(30)
    while _processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes(marker)
    assert not list(tmp_path.glob("attn-doctor-*"))


def _interpreter_with_torch(folder: Path) -> Path:
    """Write an interpreter whose environment has the metadata of torch."""
    (folder / "site" / "torch-2.6.0.dist-info").mkdir(parents=True)
    (folder / "site" / "torch-2.6.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.6.0\n\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_folder_for_kernels_that_cannot_be_made_hides_no_finding(
    project: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoDiagnosis("cannot write temporary files: read-only file system")

    monkeypatch.setattr("doctor.runner.batch.run_program", refuse)
    monkeypatch.setattr("doctor.runner.run.make_run_folder", refuse)
    monkeypatch.setattr(single, "_may_have_gpu", lambda known: True)
    monkeypatch.setattr("doctor.diagnosis.prewarm._DRIVER", ("/dev/null",))
    python = _interpreter_with_torch(project)
    job = [
        word
        for key in ("framework=torch_sdpa", "dtype=bfloat16", "head_dim_qk=128")
        for word in ("--set", f"workload.{key}")
    ]
    assert run(["check", "--run", "--python", str(python), *job]) in (0, 1)


def test_a_read_only_file_system_is_enough(tmp_path: Path) -> None:
    script = (
        "mount --make-rprivate / && for m in $(awk '{print $2}' /proc/mounts | sort -r | grep -vE '^/(proc|sys)(/|$)') /tmp /dev/shm; do"
        " mount --bind $m $m && mount -o remount,ro,bind $m; done 2>/dev/null; "
        f"touch {tmp_path}/x 2>/dev/null && exit 77; "
        f"exec {sys.executable} -m doctor check --no-run --python {_interpreter_with_torch(tmp_path)}"
    )
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no `unshare` to make a file system read-only")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [unshare, *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c", script], cwd="/", env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this machine does not let us make a file system read-only")
    assert done.returncode in (0, 1) and "Python" in done.stdout, done.stderr


@pytest.mark.parametrize(("name", "text"), [("requirements.txt", REQUIREMENTS), ("pyproject.toml", PROJECT)])
def test_a_full_stdout_after_an_edit_says_that_the_file_was_edited(
    project: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    from doctor.cli import fix_edit

    calls = []

    def write(text: str, file: None) -> None:
        calls.append(text)
        if len(calls) > 1:
            raise NoDiagnosis("cannot write the answer: no space left on device")

    (project / name).write_text(text)
    monkeypatch.setattr(fix_edit, "write", write)
    ran = doctor("fix", "--requirements", name, "--gpu", "h100", "--write")
    assert ran.code == 2 and re.search(rf"`{name}` was edited", ran.err) and (project / name).read_text() != text
