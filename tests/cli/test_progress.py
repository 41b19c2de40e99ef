"""Progress on stderr: one live line on a terminal once it takes long, counts elsewhere, nothing in the way."""

import io
import time

import pytest

from doctor.cli import progress as module
from doctor.cli.fix_install import _confirmed
from doctor.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Return how a test makes stderr a terminal; pytest sets its own stream after fixtures ran."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def use():
        stream = Terminal()
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return use


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_quick_command_shows_nothing(open_terminal):
    terminal = open_terminal()
    progress = Progress(delay=60)
    progress.step("checking")
    progress.close()
    assert terminal.getvalue() == ""


def test_a_slow_step_is_named_with_its_time(open_terminal):
    terminal = open_terminal()
    progress = Progress(delay=0)
    progress.step("searching for a fix")
    wait_for(lambda: "searching for a fix" in terminal.getvalue() and "0:00:0" in terminal.getvalue())
    progress.close()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_a_count_becomes_a_bar(open_terminal):
    terminal = open_terminal()
    progress = Progress(delay=0)
    progress.count("cases, 1 bad", 3, 12)
    wait_for(lambda: "3/12" in terminal.getvalue() and "cases, 1 bad" in terminal.getvalue())
    progress.close()
    assert "━" in terminal.getvalue()


@pytest.mark.parametrize("quiet", [True, False])
def test_a_pipe_gets_counts_and_no_steps(monkeypatch, quiet):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    progress = Progress(quiet=quiet, delay=0)
    progress.step("searching")
    for done in range(6):
        progress.count("cases, 1 bad", done, 5)
    progress.close()
    assert stream.getvalue() == ("" if quiet else "5/5 cases, 1 bad, 0 s\n")


def test_long_counts_on_a_pipe_appear_now_and_then(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(module, "_EVERY", 0.0)
    progress = Progress()
    for done in range(3):
        progress.count("failing cases minimized", done, 9)
    assert stream.getvalue().splitlines()[-1].startswith("2/9 failing cases minimized")


def test_a_dumb_terminal_gets_lines(open_terminal, monkeypatch):
    terminal = open_terminal()
    monkeypatch.setenv("TERM", "dumb")
    progress = Progress(delay=0)
    progress.count("cases, 0 bad", 5, 5)
    progress.close()
    assert terminal.getvalue() == "5/5 cases, 0 bad, 0 s\n"


def test_a_full_disk_does_not_end_the_command(monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stderr", Full())
    progress = Progress()
    progress.count("cases, 0 bad", 5, 5)
    progress.close()


def test_the_line_makes_room_for_a_question(open_terminal, monkeypatch):
    terminal = open_terminal()
    from doctor.apply.install.options import InstallOptions

    answer = Terminal("y\n")
    monkeypatch.setattr("sys.stdin", answer)
    progress = Progress(delay=0)
    progress.step("planning")
    wait_for(lambda: "planning" in terminal.getvalue())
    terminal.truncate(0)
    terminal.seek(0)
    options = InstallOptions(False, False, True, False, False, None, 60.0, False)
    assert _confirmed("pip install torch\n", options, progress)
    shown = terminal.getvalue()
    assert "planning" not in shown[shown.index("pip install torch") : shown.index("[y/N]")]
    progress.close()
