"""The Slurm engine in a real allocation: a controller and four `slurmd -N` on this machine.

Needs root, munge and Slurm (`apt-get install slurmctld slurmd slurm-client munge`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "srun", "salloc", "scontrol", "munged", "munge")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)) or os.getuid() != 0, reason="needs root and a Slurm that is installed"
    ),
]
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/ctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/ctld.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=0
SlurmdTimeout=10
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
Prolog={root}/prolog.sh
PrologFlags=Alloc
NodeName=gpu-[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that are free."""
    for first in range(28_100, 60_000, 16):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    root = tmp_path_factory.mktemp("slurm")
    first = free_ports(6)
    host = socket.gethostname()
    (root / "state").mkdir()
    (root / "prolog.sh").write_text("#!/bin/sh\nexit 0\n")
    (root / "prolog.sh").chmod(0o755)
    config = root / "slurm.conf"
    config.write_text(CONFIG.format(host=host, port=first, first=first + 1, last=first + 4, root=root))
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        pytest.skip("munged is not running")
    os.environ["SLURM_CONF"] = str(config)
    pids = []
    subprocess.run(["slurmctld"], check=True)
    time.sleep(2)
    for number in range(1, 5):
        subprocess.run(["slurmd", "-N", f"gpu-{number}"], check=True)
    deadline = time.monotonic() + 30
    while "idle" not in states(4) and time.monotonic() < deadline:
        time.sleep(0.5)
    yield root
    for name in ("ctld.pid", *(f"slurmd-gpu-{number}.pid" for number in range(1, 5))):
        if (root / name).is_file():
            pids.append(int((root / name).read_text()))
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    del os.environ["SLURM_CONF"]


def states(nodes: int) -> str:
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], capture_output=True, text=True, check=False)
    return "idle" if done.stdout.count("idle") == nodes else done.stdout


def fleet(*arguments: str, nodes: int = 4, timeout: int = 300) -> tuple[int, dict[str, object]]:
    command = ["salloc", "-Q", f"-N{nodes}", sys.executable, "-m", "doctor", "fleet", *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_every_node_answers(slurm):
    code, report = fleet("--slurm", "--set", "torch.version=2.6.0", "--gpu", "h100")
    assert report["counts"] == {"checked": 4, "lost": 0, "slow": 0, "failed": 0}, report
    assert [group["nodes"] for group in report["groups"]] == [["gpu-1", "gpu-2", "gpu-3", "gpu-4"]]
    assert code == 0


def test_a_node_beyond_the_limit_is_reported(slurm):
    slow = slurm / "python"
    slow.write_text(f'#!/bin/bash\n[ "$SLURMD_NODENAME" = gpu-2 ] && sleep 300\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    code, report = fleet("--slurm", "--python", str(slow), "--timeout", "12", "--set", "torch.version=2.6.0")
    assert report["counts"]["slow"] == 1 and report["counts"]["checked"] == 3 and code == 1
    assert next(node for node in report["nodes"] if node["node"] == "gpu-2")["state"] == "slow"


def test_a_lost_node_is_reported_and_its_cases_run_elsewhere(slurm, torch_python, tmp_path):
    journal = tmp_path / "fleet.jsonl"
    arguments = [
        "stress", "--slurm", "--python", torch_python, "--device", "cpu", "--backend", "sdpa.math", "--cases", "40",
        "--journal", str(journal), "--format", "json",
    ]  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = "1"
    running = subprocess.Popen(
        ["salloc", "-Q", "-N4", sys.executable, "-m", "doctor", "fleet", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    victim = None
    deadline = time.monotonic() + 120
    while victim is None and time.monotonic() < deadline and running.poll() is None:
        done = journal.is_file() and journal.read_text().count('"answer"') >= 4
        victim = next(iter(tasks_on("gpu-3")), None) if done else None
        time.sleep(0.1)
    assert victim is not None, "no task of gpu-3 was seen"
    os.kill(victim, signal.SIGKILL)
    out, err = running.communicate(timeout=400)
    report = json.loads(out)
    assert "not reached" not in report["counts"] and sum(report["counts"].values()) == report["planned"], err
    assert any("have no result" in note for note in report["notes"]), "the loss is reported"
    again = subprocess.run(
        ["salloc", "-Q", "-N2", sys.executable, "-m", "doctor", "fleet", *arguments],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr


def tasks_on(node: str) -> list[int]:
    """Return the processes of our task on one node."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"fleet\0work" in command and b"srun" not in command and f"SLURMD_NODENAME={node}\0".encode() in environment:
            found.append(int(entry.name))
    return found


def test_a_prolog_drains_a_bad_node(slurm):
    like = slurm / "good.json"
    like.write_text(json.dumps({"facts": {"torch.version": "2.6.0", "driver.version": "550.90.07"}}))
    facts = "--set torch.version=2.6.0 --set driver.version=$DRIVER"
    (slurm / "prolog.sh").write_text(
        "#!/bin/bash\nDRIVER=550.90.07\n"
        '[ "$SLURMD_NODENAME" = gpu-4 ] && DRIVER=535.54.03\n'
        f"exec {sys.executable} -m doctor fleet prolog --like {like} {facts} >> {slurm}/prolog-$SLURMD_NODENAME.log\n"
    )
    subprocess.run(["srun", "-N4", "--time=1", "true"], capture_output=True, timeout=120, check=False)
    deadline = time.monotonic() + 60
    listed = ""
    while "drain" not in listed and time.monotonic() < deadline:
        listed = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N %T"], capture_output=True, text=True, check=False
        ).stdout
        time.sleep(0.5)
    drained = [line.split()[0] for line in listed.splitlines() if "drain" in line]
    assert drained == ["gpu-4"], listed
    assert "driver 550.90.07 in A, 535.54.03 in B" in (slurm / "prolog-gpu-4.log").read_text()
