"""The user's files: a backup first, the old or the new one whatever happens, a diff that applies."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.apply.edit.edits import edits_of
from doctor.apply.edit.files import Edited, SourceFile
from doctor.errors import DoctorError
from tests.helpers.onefix import TORCH, edited, report

ROOT = Path(__file__).resolve().parents[3]
OLD, NEW = "torch==2.6.0\n" + "# a line\n" * 20_000, "torch==2.7.1\n" + "# a line\n" * 20_000
CALLS = ("open", "write", "fsync", "fchmod", "fchown", "replace", "rename", "link", "unlink", "close")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state_is_sound(path: Path) -> bool:
    """The file is the old or the new one; where it is the new one, the old one is next to it. True if it is new."""
    text, backup = path.read_text(), path.with_name(f"{path.name}.bak")
    assert text in (OLD, NEW)
    assert not backup.exists() or backup.read_text() == OLD
    if text == NEW:
        assert backup.read_text() == OLD
    return text == NEW


def test_the_old_file_is_kept_and_no_backup_ever_lost(tmp_path: Path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.6.0\n")
    path.chmod(0o600)
    (tmp_path / "requirements.txt.bak").write_text("precious")
    ((written, backup),) = edited(path).write()
    assert (written, backup.name) == (path, "requirements.txt.bak.1")
    assert backup.read_text() == "torch==2.6.0\n" and (tmp_path / "requirements.txt.bak").read_text() == "precious"
    assert {stat.S_IMODE(item.stat().st_mode) for item in (path, backup)} == {0o600}
    path.write_text("torch==2.6.0\n")
    assert edited(path).write() == [(path, backup)]  # the same content is not kept twice
    path.write_text("torch==2.5.0\n")
    assert edited(path).write()[0][1].name == "requirements.txt.bak.2"
    assert backup.read_text() == "torch==2.6.0\n"


def test_a_link_stays_one(tmp_path: Path):
    real = tmp_path / "real.txt"
    real.write_text("torch==2.6.0\n")
    link = tmp_path / "requirements.txt"
    link.symlink_to(real)
    edited(link).write()
    assert link.is_symlink() and real.read_text() == "torch==2.7.1\n"
    assert (tmp_path / "requirements.txt.bak").read_text() == "torch==2.6.0\n"


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.6.0\n")
    edits = edited(path)
    path.write_text("torch==2.6.0\nnumpy\n")
    with pytest.raises(DoctorError, match="changed by someone else"):
        edits.write()
    assert path.read_text() == "torch==2.6.0\nnumpy\n" and names(tmp_path) == ["requirements.txt"]


def test_one_file_that_cannot_be_edited_keeps_all_from_being_written(tmp_path: Path):
    (tmp_path / "a.txt").write_text("torch==2.6.0\n")
    (tmp_path / "b.txt").write_text("torch==2.6.0 --hash=sha256:ab\n")
    with pytest.raises(DoctorError, match="hashes"):
        edits_of(report(TORCH), [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    assert names(tmp_path) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("name", ["/dev/null", "missing.txt", "no/folder.txt"])
def test_only_what_is_a_file_is_edited(tmp_path: Path, name: str):
    with pytest.raises(DoctorError, match="cannot edit") as caught:
        edited(tmp_path / name)
    assert "--pin FILE" in (caught.value.hint or "") and names(tmp_path) == []
    assert not Path("/dev/null.bak").exists()


@pytest.mark.parametrize("tool", ["patch", "git"])
@pytest.mark.parametrize("text", ["torch==2.6.0\nnumpy\n", "numpy\ntorch==2.6.0", "numpy\r\ntorch==2.6.0\r\n"])
def test_the_diff_applies(tmp_path: Path, monkeypatch, tool: str, text: str):
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    monkeypatch.chdir(tmp_path)
    path = Path("requirements.txt")
    path.write_bytes(text.encode())
    diff = "# a word in front\n" + edited(path).diff
    command = ["patch", "-p0", "--binary"] if tool == "patch" else ["git", "apply", "-p0"]
    done = subprocess.run(command, input=diff.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == text.replace("2.6.0", "2.7.1").encode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_system_call_loses_nothing(tmp_path: Path, when: str):
    """SIGKILL around the first, second, third … call that touches a file, until one run gets through."""
    new = 0
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "requirements.txt"
        path.write_text(OLD)
        edits = Edited(SourceFile.read(path), NEW)
        child = os.fork()
        if child == 0:
            _kill_at(number, when)
            edits.write()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        new += state_is_sound(path)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert number > 8 and new >= 1
    assert names(folder) == ["requirements.txt", "requirements.txt.bak"]


def _kill_at(number: int, when: str) -> None:
    left = [number]

    def wrapped(call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **more: object) -> object:
            left[0] -= 1
            if left[0] == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **more)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


def test_a_kill_at_a_random_moment_loses_nothing(tmp_path: Path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom doctor.apply.edit.files import Edited, SourceFile\n"
        "path = Path(sys.argv[1])\nedits = Edited(SourceFile.read(path), path.read_text().replace('2.6.0', '2.7.1'))\n"
        "print('ready', flush=True)\nedits.write()\n"
    )
    chance = random.Random(7)
    for number in range(12):
        path = tmp_path / str(number) / "requirements.txt"
        path.parent.mkdir()
        path.write_text(OLD)
        with subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.006))
            process.kill()
        state_is_sound(path)
