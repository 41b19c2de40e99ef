"""The commands that read files run without the modules and functions that only POSIX systems have, as on Windows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCIDENT = ROOT / "examples" / "incidents" / "b"
TARGET = ("--facts", str(INCIDENT / "facts.yaml"), "--workload", str(INCIDENT / "workload.yaml"))

#: Takes away what Windows lacks, after the standard library has taken what it needs of it, and starts the program.
PROGRAM = """
import os, signal, sys
import asyncio, concurrent.futures, importlib.metadata, logging, platform, random, shutil, socket, subprocess, tempfile
import rich.console, typer, uuid
sys.dont_write_bytecode = True
MODULES = "fcntl resource termios pwd grp tty pty syslog readline".split()
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for module, names in (
    (os, '''geteuid getuid getegid getgid fchown chown fchmod killpg fork forkpty pidfd_open uname sched_getaffinity
        setsid getpgid O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_NONBLOCK statvfs mkfifo getloadavg getpriority setpriority
        WNOHANG wait4 sysconf register_at_fork pread pwrite openpty ctermid lchown sync'''),
    (signal, '''SIGKILL SIGHUP SIGQUIT SIGCHLD SIGPIPE SIGALRM SIGTSTP SIGUSR1 SIGUSR2 SIGCONT SIGSTOP SIGWINCH alarm
        setitimer pthread_sigmask sigwait sigwaitinfo sigtimedwait'''),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
from doctor.cli.entry import main
sys.exit(main())
"""


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_bytes(
        b"Traceback (most recent call last):\r\n"
        b'  File "C:\\ComfyUI\\Lib\\site-packages\\bitsandbytes\\triton\\int8_matmul.py", line 6, in <module>\r\n'
        b"    from triton.ops.matmul_perf_model import early_config_prune\r\n"
        b"ModuleNotFoundError: No module named 'triton.ops'\r\n"
    )
    return path


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """An installed tree as Windows has it, with its line ends."""
    folder = tmp_path / "Lib" / "site-packages"
    for name, version in (("bitsandbytes", "0.45.0"), ("triton_windows", "3.2.0.post11")):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\r\nName: {name.replace('_', '-')}\r\nVersion: {version}\r\n"
        (info / "METADATA").write_bytes(text.encode())
        (info / "RECORD").write_bytes(f"..\\..\\Scripts\\{name}.exe,,\r\n{info.name}/METADATA,,\r\n".encode())
        (info / "WHEEL").write_bytes(b"Wheel-Version: 1.0\r\nTag: cp311-cp311-win_amd64\r\n")
    return folder


def test_check_finds_an_incident_in_files() -> None:
    ran = call("check", "--format", "json", *TARGET)
    assert ran.returncode == 1, ran.stderr
    assert "TE103" in {finding["id"] for finding in json.loads(ran.stdout)["findings"]}


def test_check_reads_an_installed_tree_of_windows(packages: Path) -> None:
    ran = call("check", "--site-packages", str(packages), "--format", "json")
    assert ran.returncode == 1, ran.stderr
    assert "BNB004" in {finding["id"] for finding in json.loads(ran.stdout)["findings"]}


def test_check_and_fix_read_declared_files(tmp_path: Path) -> None:
    declared = tmp_path / "requirements.txt"
    declared.write_bytes(b"bitsandbytes==0.45.0\r\ntriton==3.2.0\r\n")
    assert "BNB004" in call("check", "--requirements", str(declared), "--set", "platform.system=Linux").stdout
    pins = call(
        "fix", "--requirements", str(declared), "--set", "platform.system=Linux", "--pin", str(tmp_path / "pins.txt")
    )
    assert pins.returncode in (0, 1), pins.stderr
    assert "bitsandbytes" in (tmp_path / "pins.txt").read_text("utf-8")


def test_explain_reads_a_log_of_windows(log: Path) -> None:
    ran = call("explain", str(log))
    assert "triton.ops, which triton 3.2 removed" in ran.stdout and "bitsandbytes>=0.45" in ran.stdout, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [("rules", "show", "TE103"), ("rules", "list", "bitsandbytes"), ("backends", *TARGET), ("matrix", *TARGET[:2]),
     ("diff", TARGET[1], TARGET[1]), ("schema", "facts"), ("keys",), ("--version",)],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
def test_a_command_that_reads_files_answers(arguments: tuple[str, ...]) -> None:
    ran = call(*arguments)
    assert ran.returncode in (0, 1) and ran.stdout and "fatal" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("arguments", [("run", "--", "true"), ("check", "--python", sys.executable), ("stress",)])
def test_what_starts_processes_says_what_it_needs(arguments: tuple[str, ...]) -> None:
    ran = call(*arguments)
    assert ran.returncode == 2
    assert "needs Linux or macOS: this system has no process groups" in ran.stderr.splitlines()[0]
