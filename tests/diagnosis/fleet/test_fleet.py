"""Many nodes: equal ones are grouped and checked once, outliers named, nothing dropped, hostile answers contained."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from doctor.cli import main as cli
from doctor.diagnosis.fleet.groups import Collection, collect, report_of
from doctor.diagnosis.fleet.records import Decoder, NodeAnswer, answer_of, encode, node_name, read_answers
from doctor.diagnosis.request import Request
from doctor.model import Fact, Facts
from doctor.report.fleet import folded, names
from doctor.report.fleet_model import NodeState
from doctor.report.formats import renderer
from doctor.report.style import Style
from doctor.stress.fleet import ranks
from doctor.stress.fleet.prolog import expected_gpus, missing_gpus

ROOT = Path(__file__).resolve().parents[3]
GOOD = {
    "torch.version": "2.6.0",
    "cudnn.version": "9.19.0",
    "driver.version": "570.124.06",
    "gpu.name": "H100",
    "gpu.sm": "9.0",
}
REQUEST = Request(run=False)


def answer(name: str, facts: dict[str, Any] | None = None, results: tuple[dict[str, Any], ...] = ()) -> NodeAnswer:
    return NodeAnswer(name, json.dumps({"schema": 1, "facts": {**GOOD, **(facts or {})}}), results=results)


def fleet_of(*answers: NodeAnswer, expected: tuple[str, ...] = ()):
    return report_of(collect(answers), REQUEST, expected)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_three_of_512_nodes_are_named():
    odd = {17, 203, 391}
    nodes = [answer(f"gpu-{n}", {"cudnn.version": "9.14.0"} if n in odd else {}) for n in range(512)]
    fleet = fleet_of(*nodes)
    assert len(fleet.groups) == 2 and len(fleet.groups[0].nodes) == 509
    (outlier,) = [item for item in fleet.outliers if item.rare]
    assert (outlier.what, outlier.found, outlier.usual, outlier.of) == ("cuDNN", "9.14.0", "9.19.0", 512)
    assert outlier.nodes == ("gpu-17", "gpu-203", "gpu-391")
    text = renderer("text", "fleet")(fleet, Style())
    assert "3 of 512 nodes have cuDNN 9.14.0 instead of 9.19.0: gpu-17, gpu-203, gpu-391" in text


def test_what_a_launcher_sets_per_node_makes_no_group():
    fleet = fleet_of(*(answer(f"n{n}", {"env.CUDA_VISIBLE_DEVICES": str(n), "env.RANK": str(n)}) for n in range(8)))
    assert len(fleet.groups) == 1 and not fleet.outliers


def test_two_kinds_of_nodes_are_no_outliers():
    fleet = fleet_of(*(answer(f"n{n}", {"gpu.name": "A100", "gpu.sm": "8.0"} if n % 2 else {}) for n in range(20)))
    assert [item.rare for item in fleet.outliers] == [False]


def test_a_missing_package_is_an_outlier():
    with_flash = [answer(f"n{n}", {"flash-attn.version": "2.7.4.post1"}) for n in range(20)]
    fleet = fleet_of(*with_flash, answer("bare"))
    (outlier,) = fleet.outliers
    assert outlier.what == "flash-attn" and outlier.found == "not installed" and outlier.nodes == ("bare",)


def test_lost_and_unreadable_nodes_are_reported():
    broken = [
        NodeAnswer("no-json", "{"), NodeAnswer("bad-key", '{"facts": {"nonsense": 1}}'), NodeAnswer("empty", ""),
        NodeAnswer("list", "[1]"), NodeAnswer("problem", None, "no interpreter"),
    ]  # fmt: skip
    fleet = fleet_of(answer("a"), *broken, expected=("a", "gone-1", "gone-2"))
    assert {node.name for node in fleet.in_state(NodeState.LOST)} == {"gone-1", "gone-2"}
    assert {node.name for node in fleet.in_state(NodeState.FAILED)} == {item.node for item in broken}
    assert len(fleet.nodes) == 8 and all(node.problem for node in fleet.nodes if node.name != "a")
    for form in ("text", "json", "markdown", "html", "sarif", "junit", "github", "gitlab"):
        shown = renderer(form, "fleet")(fleet, Style())
        assert "gone-" in shown, form
        if form in ("json", "sarif", "gitlab"):
            json.loads(shown)


def test_a_finding_counts_its_nodes():
    bad = {"torch.version": "2.6.0+cpu", "torch.cuda": "absent"}
    fleet = fleet_of(answer("good"), answer("bad-1", bad), answer("bad-2", bad))
    shown = json.loads(renderer("json", "fleet")(fleet, Style()))
    group = next(item for item in shown["groups"] if "bad-1" in item["nodes"])
    assert group["verdict"] == "FAIL" and {item["id"] for item in group["findings"]} >= {"TORCH030"}
    assert shown["summary"].startswith("2 of 3 nodes")


def test_silent_corruption_shows_as_the_gpu_that_differs():
    def results(bits: str) -> tuple[dict[str, Any], ...]:
        return tuple(
            {"gpu": f"GPU {n}", "model": "H100", "case": "{}", "verdict": "right", "bits": bits if n == 3 else "aa"}
            for n in range(4)
        )

    fleet = fleet_of(answer("a", results=results("aa")), answer("b", results=results("ff")))
    (fault,) = fleet.faults
    assert fault.gpu == "b/GPU 3" and fault.certain and "7 peers" in fault.difference
    assert fleet.combined is not None and any(item.rule == "FLEET003" for item in fleet.combined.findings)
    one, two = ({"gpu": "0", "model": "H", "case": "c", "verdict": "right", "bits": bits} for bits in "12")
    alone = fleet_of(answer("a", results=(one,)), answer("b", results=(two,)))
    assert [fault.certain for fault in alone.faults] == [False, False], (
        "of two that differ, neither is known to be wrong"
    )
    other = fleet_of(answer("a", results=(one,)), answer("b", {"cudnn.version": "9.1.0"}, (two,)))
    assert not other.faults, "another cuDNN may round otherwise"


def test_records_survive_mixing_and_lose_nothing():
    rng = random.Random(3)
    sent = [
        {"node": f"n{n}", "snapshot": {"facts": {**GOOD, "env.LD_LIBRARY_PATH": "é" + rng.randbytes(40 * n).hex()}}}
        for n in range(40)
    ]
    lines = [line for item in sent for line in encode(item)]
    assert max(map(len, lines)) < 1024
    rng.shuffle(lines)
    decoder = Decoder()
    received = [found for line in ("0: " + line for line in lines) if (found := decoder.feed(line))]
    assert sorted(item.node for item in received) == sorted(item["node"] for item in sent)
    assert decoder.unfinished() == () and decoder.dropped == 0
    decoder = Decoder()
    assert [decoder.feed(line) for line in encode(sent[39])[:-1]][-1] is None
    assert decoder.unfinished() == ("n39",)


HOSTILE = (
    "", "{", "null", "[]", '{"node": 1}', '{"node": "x", "attn-doctor": "part"}',
    '{"node": "x", "attn-doctor": "part", "id": "1", "part": -1, "parts": 2, "text": ""}',
    '{"node": "x", "attn-doctor": "part", "id": "1", "part": true, "parts": 2, "text": ""}',
    '{"node": "x", "attn-doctor": "part", "id": "1", "part": 0, "parts": 99999999, "text": ""}',
    '{"node": "x", "attn-doctor": "part", "id": "1", "part": 0, "parts": 1, "text": "????"}',
    '{"node": "x", "snapshot": 5}', '{"node": ["x"], "results": {"a": 1}}', '{"node": "x", "snapshot": ' + "[" * 5000,
    '{"node": "x", "problem": "\\u001b[2J<script>"}',
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_lines_end_nothing(line):
    decoder = Decoder()
    found = decoder.feed(line)
    collection = Collection()
    if found is not None:
        collection.add(found)
    collection.add(answer("good"))
    fleet = report_of(collection, REQUEST)
    assert any(node.name == "good" and node.state == NodeState.CHECKED for node in fleet.nodes)
    for form in ("text", "markdown", "html"):
        shown = renderer(form, "fleet")(fleet, Style())
        assert "\x1b" not in shown
        assert form == "text" or "<script>" not in shown


def test_a_packed_bomb_and_a_huge_answer_are_refused():
    bomb = base64.b64encode(zlib.compress(b"{" + b" " * (64 << 20), 9)).decode()
    pieces = [bomb[start : start + 700] for start in range(0, len(bomb), 700)]
    decoder = Decoder()
    found = None
    for number, piece in enumerate(pieces):
        record = {"attn-doctor": "part", "node": "x", "id": "1", "part": number, "parts": len(pieces), "text": piece}
        found = decoder.feed(json.dumps(record)) or found
    assert found is not None and found.snapshot is None and "not readable" in found.problem


def test_names_cannot_steer_a_terminal_or_a_page():
    assert node_name("gpu-1\x1b[31m<b>`x`") == "gpu-1?[31m?b??x?"
    assert len(node_name("x" * 9999)) == 253 and node_name("") == "(no name)"
    found = answer_of({"node": "<img src=x>", "problem": "a\nb"})
    assert found is not None and found.node == "?img src?x?" and found.problem == "a b"


def test_files_are_read_in_every_form(tmp_path):
    folder = tmp_path / "snapshots"
    folder.mkdir()
    (folder / "gpu-1.json").write_text(json.dumps({"facts": GOOD}))
    (folder / "gpu-2.yaml").write_text(yaml.safe_dump({"facts": GOOD}))
    lines = tmp_path / "nodes.jsonl"
    lines.write_text(json.dumps({"node": "gpu-3", "snapshot": {"facts": GOOD}}) + "\nnoise\n")
    found = list(read_answers([str(folder), str(lines), "-"], encode({"node": "gpu-4", "snapshot": {"facts": GOOD}})))
    assert [item.node for item in found] == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    fleet = report_of(collect(found), REQUEST)
    assert len(fleet.groups) == 1, "the short form and the long form of the same facts are the same environment"


def test_folded_names():
    assert folded([f"gpu-{n}" for n in (1, 2, 3, 7)]) == ["gpu-[1-3,7]"]
    assert folded(["gpu-01", "gpu-02", "login"]) == ["gpu-[01-02]", "login"]
    assert names(["a", "b"]) == "a, b"


def test_the_command_says_what_is_wrong(capsys, tmp_path):
    assert cli.run(["fleet"]) == 2
    assert cli.run(["fleet", "--slurm", "--ray", "local"]) == 2
    assert cli.run(["fleet", "--snapshots", str(tmp_path / "nowhere")]) == 2
    assert cli.run(["fleet", "stress"]) == 2
    assert cli.run(["fleet", "manifest", "--image", "a b; rm"]) == 2
    errors = capsys.readouterr().err
    assert "exclude each other" in errors and "Traceback" not in errors


def test_a_manifest_is_valid_yaml(capsys):
    assert (
        cli.run(["fleet", "manifest", "--image", "registry.example/train:1", "--nodes", "4", "--gpus", "8", "--run"])
        == 0
    )
    job = yaml.safe_load(capsys.readouterr().out)
    assert job["kind"] == "Job" and job["spec"]["completions"] == 4
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][:3] == ["attn-doctor", "fleet", "probe"] and "--run" in container["command"]
    assert cli.run(["fleet", "manifest", "--image", "train"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["kind"] == "DaemonSet"


def test_a_prolog_drains_for_a_finding_or_a_difference_only(capsys, tmp_path):
    like = tmp_path / "good.json"
    like.write_text(json.dumps({"facts": {"torch.version": "2.6.0", "driver.version": "570.124.06"}}))
    good = ["--set", "torch.version=2.6.0", "--set", "driver.version=570.124.06"]
    assert cli.run(["fleet", "prolog", "--like", str(like), *good]) == 0
    assert cli.run(["fleet", "prolog", "--like", str(like), *good[:2], "--set", "driver.version=535.54.03"]) == 1
    assert "driver 570.124.06 in A, 535.54.03 in B" in capsys.readouterr().out
    assert cli.run(["fleet", "prolog", *good, "--set", "torch.cuda=absent", "--gpu", "h100"]) == 1
    assert cli.run(["fleet", "prolog", "--python", "/nowhere"]) == 0
    assert cli.run(["fleet", "prolog", "--python", "/nowhere", "--strict"]) == 1


NO_DRIVER = Facts([Fact(key, None, "NVML", problem="no NVIDIA driver") for key in ("gpu.all", "gpu.count")])


@pytest.mark.parametrize(
    ("given", "good", "environ", "count", "source"),
    [
        ({}, None, {}, 1, "default"),
        ({"gpu": "h100"}, None, {}, 1, "--gpu"),
        ({}, None, {"SLURM_JOB_GPUS": "0"}, 1, "SLURM_JOB_GPUS"),
        ({}, None, {"SLURM_JOB_GPUS": "0,2,4-7"}, 6, "SLURM_JOB_GPUS"),
        ({}, None, {"SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_GPUS": "0,1"}, 8, "SLURM_GPUS_ON_NODE"),
        ({"gpu": "h100"}, Facts([Fact("gpu.count", 8, "a file")]), {"SLURM_GPUS_ON_NODE": "4"}, 8, "--like"),
        ({"settings": ("gpu.count=0",)}, None, {"SLURM_GPUS_ON_NODE": "4"}, 0, "--set"),
    ],
)
def test_the_gpus_that_a_node_must_have(given, good, environ, count, source):
    expected = expected_gpus(Request(**given), good, environ)
    assert expected.number == count and source in expected.source
    assert (missing_gpus(NO_DRIVER, expected) is None) is (count == 0)
    devices = tuple(f"{index} NVIDIA_H100 9.0 85899345920" for index in range(count))
    assert missing_gpus(Facts([Fact("gpu.all", devices, "NVML")]), expected) is None
    if count > 1:
        fewer = missing_gpus(Facts([Fact("gpu.all", devices[1:], "NVML")]), expected)
        assert fewer is not None and f"{count - 1} found" in fewer


def test_a_node_that_lost_its_driver_is_drained_with_strict_and_named_without(capsys, monkeypatch):
    """The machine of the tests has no driver, or is given none."""
    monkeypatch.setattr("doctor.sources.probes.gpu.collect", lambda *given: iter(NO_DRIVER.values()))
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    good = ["--set", "torch.version=2.6.0", "--set", "torch.cuda=absent"]
    assert cli.run(["fleet", "prolog", *good]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "attn-doctor: warning: 8 GPUs expected (SLURM_GPUS_ON_NODE), none found: no NVIDIA driver"
    )
    assert lines[1] == "attn-doctor: no finding"
    assert cli.run(["fleet", "prolog", "--strict", *good]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("attn-doctor: error: 8 GPUs expected")
    assert cli.run(["fleet", "prolog", "--strict", *good, "--set", "gpu.count=0"]) == 0


def test_ranks_of_launchers():
    assert ranks.place({"RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "29500"}).rank == 3
    assert ranks.place({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}).world == 2
    with pytest.raises(Exception, match="launcher"):
        ranks.place({})


def _start(rank: int, world: int, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "PYTHONPATH": str(ROOT),
                   "MASTER_PORT": "29741"}  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "doctor",
        "fleet",
        "--ranks",
        "--format",
        "json",
        "--set",
        "torch.version=2.6.0",
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_ranks_exchange_through_a_folder_and_a_lost_one_is_named(tmp_path):
    started = [_start(rank, 3, "--folder", str(tmp_path / "exchange"), "--timeout", "6") for rank in (0, 1)]
    outputs = [process.communicate(timeout=60) for process in started]
    report = json.loads(outputs[0][0])
    assert report["counts"]["checked"] == 2 and report["counts"]["lost"] == 1
    assert outputs[1][0] == "" and started[1].returncode == 0, outputs[1]


@pytest.mark.slow
def test_ranks_exchange_through_the_store_of_torch(tmp_path, torch_python):
    started = [_start(rank, 3, "--python", torch_python, "--timeout", "25") for rank in (0, 1)]
    outputs = [process.communicate(timeout=120) for process in started]
    report = json.loads(outputs[0][0])
    assert report["counts"]["checked"] == 2 and report["counts"]["lost"] == 1, outputs
