"""How long a verdict takes, in bare Python starts: ours and the peers', in turns within one run.

    python bench/startup.py [--rounds N] [--wall] [--peers | --peer-python PATH] [--json FILE]

Every command runs once per round, in a random order, so that a slow minute of the machine affects all of them.
Processor time counts, because other work on the machine does not change it. `--wall` counts wall-clock time instead,
which shows what runs in parallel, such as the interpreter of `--python`.
`--peers` installs torch and env-doctor into a temporary environment (large downloads); `--peer-python` names an
interpreter that has them. Peers that are not there are left out and named.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from _harness import DOCTOR, ROOT, arguments, run, settings, write_json

INCIDENT = ROOT / "examples" / "incidents" / "b"
DISTRIBUTIONS = 200
GOAL = 23.0  # bare starts, for every command of ours


def main() -> int:
    """Measure, print a table, and return 1 if a command of ours misses the goal."""
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="attn-doctor-bench-") as folder:
        work = Path(folder)
        commands, absent = everything(work, options)
        for name, command in list(commands.items()):  # bytecode, caches, the page cache
            done, _ = run(command, work)
            last = (done.stderr.strip() or done.stdout.strip()).rsplit("\n", 1)[-1]
            if done.returncode not in (0, 1) or "No module named" in last:
                absent[name] = f"exit {done.returncode}: {last[:100]}"
                del commands[name]
        seconds = measure(commands, work, options.rounds, wall=options.wall)
    rows = table(seconds)
    for row in rows:
        print(f"{row['command']:<48} {row['median_ms']:>9.1f} ms {row['min_ms']:>9.1f} ms {row['ratio']:>8.1f} ×")
    for name, why in absent.items():
        print(f"{name:<48} not measured: {why}")
    clock = "wall" if options.wall else "processor"
    write_json(options.json, {"rounds": options.rounds, "clock": clock, "goal": GOAL, "rows": rows, "absent": absent})
    late = [row["command"] for row in rows if row["command"].startswith("attn-doctor") and row["ratio"] > GOAL]
    print(f"goal: at most {GOAL:g} × a bare start; " + (f"missed by {', '.join(late)}" if late else "held"))
    return 1 if late else 0


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--wall", action="store_true", help="count wall-clock time instead of processor time")
    parser.add_argument("--peers", action="store_true", help="install the peers into a temporary environment")
    parser.add_argument("--peer-python", metavar="PATH", help="an interpreter that has torch and env-doctor")
    return parser.parse_args()


def everything(work: Path, options: argparse.Namespace) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(what is measured, what is not and why)."""
    doctor = list(DOCTOR)
    snapshot, target = work / "snapshot.json", environment_of(work / "target", DISTRIBUTIONS)
    written = ["--facts", str(INCIDENT / "facts.yaml"), "--workload", str(INCIDENT / "workload.yaml")]
    subprocess.run(
        [*doctor, "snapshot", *written, "--output", str(snapshot)],
        check=True, capture_output=True, env=settings(work),
    )  # fmt: skip
    commands = {
        "python -c pass": [str(target), "-c", "pass"],  # without the import hooks of an editable install
        "attn-doctor --version": [*doctor, "--version"],
        "attn-doctor check --facts snapshot.json": [*doctor, "check", "--no-run", "--facts", str(snapshot)],
        "attn-doctor check --facts F.yaml --workload W.yaml": [*doctor, "check", "--no-run", *written],
        f"attn-doctor check --python ({DISTRIBUTIONS} packages)": [
            *doctor,
            "check",
            "--no-run",
            "--python",
            str(target),
        ],
        "pip check": [str(target), "-m", "pip", "check"],
    }
    absent: dict[str, str] = {}
    peer = options.peer_python or (str(peers(work / "peers")) if options.peers else sys.executable)
    commands["python -m torch.utils.collect_env"] = [peer, "-m", "torch.utils.collect_env"]
    script = shutil.which("env-doctor", path=f"{Path(peer).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if script:
        commands["env-doctor check"] = [script, "check"]
    else:
        absent["env-doctor check"] = "not installed next to the peers' interpreter, nor on the PATH"
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


def measure(commands: dict[str, list[str]], work: Path, rounds: int, *, wall: bool) -> dict[str, list[float]]:
    """Return the seconds of every run, by command."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    order = list(commands)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            _, took = run(commands[name], work)
            seconds[name].append(took.wall if wall else took.processor)
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
