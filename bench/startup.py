"""How long a verdict takes, in bare Python starts: ours and the peers', in turns within one run.

    python bench/startup.py [--rounds N] [--cpu] [--peers | --peer-python PATH] [--json FILE]

Every command is run once per round, in an order drawn anew, so that a slow minute of the machine falls on all of them.
On a machine that others use, `--cpu` counts processor time, which waits for nobody; it takes no account of what runs
side by side, as the interpreter of `--python` does.
`--peers` installs torch and env-doctor into a temporary environment (large downloads); `--peer-python` names an
interpreter that has them. Peers that are not there are left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCIDENT = ROOT / "examples" / "incidents" / "b"
DISTRIBUTIONS = 200
GOAL = 10.0


def main() -> int:
    """Measure, print a table, and return 1 if a command of ours misses the goal."""
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="attn-doctor-bench-") as folder:
        work = Path(folder)
        commands, absent = everything(work, options)
        environment = settings(work)
        for name, command in list(commands.items()):  # bytecode, caches, the page cache
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            last = (done.stderr.strip() or done.stdout.strip()).rsplit("\n", 1)[-1]
            if done.returncode not in (0, 1) or "No module named" in last:
                absent[name] = f"exit {done.returncode}: {last[:100]}"
                del commands[name]
        seconds = measure(commands, environment, options.rounds, processor_time if options.cpu else time.perf_counter)
    rows = table(seconds)
    for row in rows:
        print(f"{row['command']:<48} {row['median_ms']:>9.1f} ms {row['min_ms']:>9.1f} ms {row['ratio']:>8.1f} ×")
    for name, why in absent.items():
        print(f"{name:<48} not measured: {why}")
    if options.json:
        Path(options.json).write_text(json.dumps({"rounds": options.rounds, "rows": rows}, indent=2) + "\n")
    late = [row["command"] for row in rows if row["command"].startswith("attn-doctor") and row["ratio"] > GOAL]
    print(f"goal: at most {GOAL:g} × a bare start; " + (f"missed by {', '.join(late)}" if late else "held"))
    return 1 if late else 0


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu", action="store_true", help="count processor time instead of wall-clock time")
    parser.add_argument("--peers", action="store_true", help="install the peers into a temporary environment")
    parser.add_argument("--peer-python", metavar="PATH", help="an interpreter that has torch and env-doctor")
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")
    return parser.parse_args()


def settings(work: Path) -> dict[str, str]:
    """The environment of every run: bytecode may be written, as it is where packages are installed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {
        **environment,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "XDG_CACHE_HOME": str(work / "cache"),
        "NO_COLOR": "1",
    }


def everything(work: Path, options: argparse.Namespace) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(what is measured, what is not and why)."""
    doctor = [sys.executable, "-m", "doctor"]
    snapshot, patient = work / "snapshot.json", environment_of(work / "patient", DISTRIBUTIONS)
    written = ["--facts", str(INCIDENT / "facts.yaml"), "--workload", str(INCIDENT / "workload.yaml")]
    subprocess.run(
        [*doctor, "snapshot", *written, "--output", str(snapshot)],
        check=True, capture_output=True, env=settings(work),
    )  # fmt: skip
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "attn-doctor --version": [*doctor, "--version"],
        "attn-doctor check --facts snapshot.json": [*doctor, "check", "--no-run", "--facts", str(snapshot)],
        "attn-doctor check --facts F.yaml --workload W.yaml": [*doctor, "check", "--no-run", *written],
        f"attn-doctor check --python ({DISTRIBUTIONS} packages)": [
            *doctor,
            "check",
            "--no-run",
            "--python",
            str(patient),
        ],
        "pip check": [str(patient), "-m", "pip", "check"],
    }
    absent: dict[str, str] = {}
    peer = options.peer_python or (str(peers(work / "peers")) if options.peers else sys.executable)
    commands["python -m torch.utils.collect_env"] = [peer, "-m", "torch.utils.collect_env"]
    script = shutil.which("env-doctor", path=f"{Path(peer).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if script:
        commands["env-doctor check"] = [script, "check"]
    else:
        absent["env-doctor check"] = "not installed beside the peers' interpreter, nor on the PATH"
    return commands, absent


def environment_of(prefix: Path, count: int) -> Path:
    """The interpreter of a virtual environment with pip, a broken attention stack and other distributions."""
    venv.create(prefix, with_pip=True)
    python = prefix / "bin" / "python"
    site = next(prefix.glob("lib/python*/site-packages"))
    stack = {
        "torch": "2.6.0", "nvidia-cudnn-cu12": "9.1.0.70", "transformer_engine": "2.3.0", "flash_attn": "2.7.4.post1",
        "transformers": "4.52.4", "megatron_core": "0.12.0", "triton": "3.2.0", "torchvision": "0.21.0",
    }  # fmt: skip
    for number in range(count - len(stack) - 2):  # pip and setuptools are there already
        stack[f"package_{number}"] = f"1.{number}"
    for name, version in stack.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\nSummary: of the bench\n"
            "Requires-Python: >=3.8\n\n" + "A long description. " * 200 + "\n"
        )
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n")
        (info / "INSTALLER").write_text("pip\n")
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("")
    (site / "torch" / "version.py").write_text("__version__ = '2.6.0+cu124'\ncuda = '12.4'\ngit_version = '0'\n")
    return python


def peers(prefix: Path) -> Path:
    """The interpreter of a fresh environment with the peers in it."""
    venv.create(prefix, with_pip=True)
    python = prefix / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "env-doctor"], check=True)
    return python


def processor_time() -> float:
    """Seconds that all children so far, and theirs, have spent on a processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    commands: dict[str, list[str]], environment: dict[str, str], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of every run by that clock, by command."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    order = list(commands)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            began = clock()
            subprocess.run(
                commands[name], env=environment, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            seconds[name].append(clock() - began)
    return seconds


def table(seconds: dict[str, list[float]]) -> list[dict[str, object]]:
    """Medians, fastest runs, and medians in bare starts."""
    bare = statistics.median(seconds["python -c pass"])
    return [
        {
            "command": name,
            "median_ms": round(1000 * statistics.median(runs), 1),
            "min_ms": round(1000 * min(runs), 1),
            "ratio": round(statistics.median(runs) / bare, 1),
        }
        for name, runs in seconds.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
