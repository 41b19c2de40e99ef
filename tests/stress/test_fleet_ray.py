"""The Ray engine on a real cluster of two nodes on this machine: outliers, lost workers and nodes, time-out, resume.

Needs the extra `ray`, and `ATTN_DOCTOR_TORCH_PYTHON` for what runs kernels.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is in the extra `ray`")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from doctor.report.fleet_model import NodeState  # noqa: E402 - after the check for Ray
from doctor.stress.fleet import ray_engine  # noqa: E402
from doctor.stress.fleet.probe import ProbeTask  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster():
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
    second = made.add_node(num_cpus=2, num_gpus=1)
    made.wait_for_nodes()
    yield made, second
    ray.shutdown()
    made.shutdown()


def probe_all(connected, task: ProbeTask, timeout: float = 120.0):
    missing: dict[str, tuple[NodeState, str]] = {}

    def miss(name, state, problem):
        missing[name] = (state, problem)

    answers = list(ray_engine.probe_nodes(connected, task, timeout, miss, lambda done, total: None))
    return answers, missing


def test_two_nodes_answer_and_a_dead_one_is_reported(cluster):
    made, second = cluster
    connected = ray_engine.connect(made.address)
    answers, missing = probe_all(connected, ProbeTask())
    assert len(answers) == 2 and not missing and len({answer.node for answer in answers}) == 2
    assert all(json.loads(answer.snapshot or "")["facts"] for answer in answers)
    made.remove_node(second, allow_graceful=False)
    deadline = time.monotonic() + 60
    while all(node[2] for node in ray_engine.nodes_of(connected)) and time.monotonic() < deadline:
        time.sleep(1)
    answers, missing = probe_all(connected, ProbeTask())
    assert len(answers) == 1
    assert [state for state, _ in missing.values()] == [NodeState.LOST]


def test_a_node_beyond_the_time_limit_is_slow_and_not_dropped(cluster, tmp_path):
    made, _ = cluster
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nsleep 600\n")
    hanging.chmod(0o755)
    connected = ray_engine.connect(made.address)
    answers, missing = probe_all(connected, ProbeTask(python=str(hanging)), timeout=8.0)
    slow = [name for name, (state, _) in missing.items() if state == NodeState.SLOW]
    failed = [answer for answer in answers if answer.snapshot is None]
    assert len(slow) + len(failed) == 2, (answers, missing)


def test_a_killed_worker_loses_no_case_and_a_stopped_sweep_resumes(cluster, tmp_path, torch_python):
    made, _ = cluster
    journal = tmp_path / "fleet.jsonl"
    command = [
        sys.executable, "-m", "doctor", "fleet", "stress", "--ray", made.address, "--python", torch_python, "--device",
        "cpu", "--backend", "sdpa.math", "--cases", "60", "--share", "5", "--journal", str(journal), "--format", "json",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    killed = threading.Event()

    def kill_one_worker() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed.is_set():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if entry.read_bytes().startswith(b"ray::cases_text"):
                        os.kill(int(entry.parent.name), signal.SIGKILL)
                        killed.set()
                        break
                except (OSError, ValueError):
                    continue
            time.sleep(0.2)

    thread = threading.Thread(target=kill_one_worker)
    thread.start()
    thread.join()
    assert killed.is_set(), "no worker was there to kill"
    deadline = time.monotonic() + 240
    while first.poll() is None and time.monotonic() < deadline:
        if journal.is_file() and journal.read_text().count('"answer"') >= 15:
            first.send_signal(signal.SIGINT)  # stop in the middle
            break
        time.sleep(0.2)
    first.communicate(timeout=60)
    kept = journal.read_text().count('"answer"')
    second = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, check=False)
    report = json.loads(second.stdout)
    assert sum(report["counts"].values()) == report["planned"] and "not reached" not in report["counts"]
    assert report["resumed"] >= min(kept, 15), second.stderr
    assert not report["bad_cases"], report["bad_cases"]
