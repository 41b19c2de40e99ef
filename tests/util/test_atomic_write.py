"""Files written whole or not at all, whatever happens meanwhile and whatever is in their place."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.util.atomic_write import write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_existing_file_is_never_touched_without_force(tmp_path: Path):
    path = tmp_path / "pins.txt"
    write_atomically(path, "mine", force=False)
    with pytest.raises(DoctorError, match="exists already") as caught:
        write_atomically(path, "other", force=False)
    assert "--force" in (caught.value.hint or "")
    assert path.read_text() == "mine" and names(tmp_path) == ["pins.txt"]
    path.chmod(0o640)
    write_atomically(path, "other", force=True)
    assert path.read_text() == "other"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and names(tmp_path) == ["pins.txt"]


def test_bytes_are_written_as_they_are(tmp_path: Path):
    path = tmp_path / "pins.txt"
    write_atomically(path, b"\xef\xbb\xbfa\r\nb")
    assert path.read_bytes() == b"\xef\xbb\xbfa\r\nb"


def test_force_writes_through_a_link_and_nothing_follows_a_dangling_one(tmp_path: Path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new", force=True)
    assert link.is_symlink() and real.read_text() == "new"
    real.unlink()
    with pytest.raises(DoctorError, match="exists already"):
        write_atomically(link, "new", force=False)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give a file away")
def test_the_owner_stays(tmp_path: Path):
    path = tmp_path / "pins.txt"
    path.write_text("old")
    os.chown(path, 12345, 12346)
    path.chmod(0o664)
    write_atomically(path, "new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 12346, 0o664)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch, call: str, force: bool):
    path = tmp_path / "pins.txt"
    if force:
        path.write_text("mine")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DoctorError, match=r"cannot write .*: no space left on device"):
        write_atomically(path, "text", force=force)
    assert names(tmp_path) == (["pins.txt"] if force else [])
    assert not force or path.read_text() == "mine"


def test_a_limit_met_half_way_leaves_the_old_file(tmp_path: Path):
    """The limit on file size makes the system itself refuse the write half-way, as a full disk does."""
    path = tmp_path / "pins.txt"
    path.write_text("old")
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from doctor.errors import DoctorError\n"
        "from doctor.util.atomic_write import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        "try:\n"
        "    write_atomically(Path(sys.argv[1]), 'x' * 100_000)\n"
        "except DoctorError as error:\n"
        "    print(error.message)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    ).stdout  # fmt: skip
    assert said.startswith("cannot write") and "file too large" in said
    assert path.read_text() == "old" and names(tmp_path) == ["pins.txt"]


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path: Path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, bytes(content)[:7]))
    write_atomically(tmp_path / "pins.txt", "ä" * 100)
    assert (tmp_path / "pins.txt").read_text(encoding="utf-8") == "ä" * 100


def test_an_interruption_leaves_nothing_behind(tmp_path: Path, monkeypatch):
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "pins.txt", "text")
    assert names(tmp_path) == []


def test_a_file_that_appears_meanwhile_wins(tmp_path: Path, monkeypatch):
    path = tmp_path / "pins.txt"
    real = os.fsync

    def late(descriptor: int) -> None:
        real(descriptor)
        path.write_text("theirs")

    monkeypatch.setattr(os, "fsync", late)
    with pytest.raises(DoctorError, match="exists already"):
        write_atomically(path, "ours", force=False)
    assert path.read_text() == "theirs" and names(tmp_path) == ["pins.txt"]


@pytest.mark.parametrize(
    "case", ["missing folder", "folder", "file as folder", "no name", "loop", "long", "nothing", "of nothing"]
)
def test_impossible_places_are_one_sentence(tmp_path: Path, case: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    place = {"missing folder": tmp_path / "no" / "pins.txt", "folder": tmp_path, "no name": Path("a\0b"),
             "file as folder": tmp_path / "file" / "pins.txt", "loop": tmp_path / "loop",
             "long": tmp_path / ("x" * 300), "nothing": Path(), "of nothing": Path("/")}[case]  # fmt: skip
    before = names(tmp_path)
    with pytest.raises(DoctorError) as caught:
        write_atomically(place, "text")
    assert caught.value.message.startswith("cannot write `") and "\n" not in caught.value.message
    assert names(tmp_path) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_device():
    with pytest.raises(DoctorError, match="no space left"):
        write_atomically(Path("/dev/full"), "text" * 10_000)


def test_a_device_is_written_to_and_not_replaced():
    write_atomically(Path(os.devnull), "text", force=False)
    assert not Path(os.devnull).is_file()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write_atomically(pipe, "text")
        assert reader.communicate(timeout=20)[0] == "text"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
