"""The libraries of torch and TransformerEngine on an H200: the predicted files are those that it loaded."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doctor.sources.binaries.families import FAMILIES, Job, one_cudnn, predict, shell_commands
from doctor.sources.binaries.files import Captured
from doctor.sources.binaries.torch_import import TorchFiles

CAPTURE = Path(__file__).parents[2] / "captures/h200-te2.20.2-loads.json.gz"
BODY: dict[str, Any] = json.loads(gzip.decompress(CAPTURE.read_bytes()))
FILES = Captured(BODY["files"])
_TORCH = BODY["job"]["torch"]
JOB = Job(**{**BODY["job"], "torch": TorchFiles(**{**_TORCH, "site_dirs": tuple(_TORCH["site_dirs"])})})


def named(row: dict[str, Any]) -> str:
    values = {name: "wheel" if "nvidia" in value else "system" for name, value in row["environ"].items()}
    return " ".join(f"{name}={value}" for name, value in values.items()) + (" then TE" if row["te"] else " torch")


@pytest.mark.parametrize("row", BODY["rows"], ids=named)
def test_every_library_comes_from_the_predicted_file(row: dict[str, Any]) -> None:
    outcome = predict(FILES, {**row["environ"], **BODY["rest"]}, JOB, te=row["te"])
    assert outcome.failure is None
    real: dict[str, set[str]] = {}
    for path in row["maps"]:
        name = Path(path).name.partition(".so")[0] + ".so"
        if name.startswith(tuple(FAMILIES.values())):
            real.setdefault(name, set()).add(path)
    predicted = {name: set(paths) for names in outcome.families.values() for name, paths in names.items()}
    assert {"libcudnn.so", "libcudnn_graph.so", "libcublas.so", "libcudart.so", "libnccl.so"} <= real.keys()
    assert {name: predicted.get(name) for name in real} == real


def test_torch_reports_an_incompatible_cudnn_only_where_a_mixture_is_predicted() -> None:
    refused = {named(row) for row in BODY["rows"] if "incompatibility" in dict(row["steps"])["cudnn"]}
    mixed = {
        named(row)
        for row in BODY["rows"]
        if predict(FILES, {**row["environ"], **BODY["rest"]}, JOB, te=row["te"]).mixed("cudnn")
    }
    assert len(refused) == 24 and len(mixed) == 28
    assert refused < mixed  # the others are refused by FusedAttention


@pytest.mark.parametrize("row", [row for row in BODY["rows"] if row["te"]], ids=named)
def test_the_proposed_variables_lead_both_to_one_cudnn(row: dict[str, Any]) -> None:
    environ = {**row["environ"], **BODY["rest"]}
    change = one_cudnn(FILES, environ, JOB)
    if not row["mixed"]:
        assert change is None
        return
    assert change is not None
    changed = {name: value for name, value in {**environ, **change}.items() if value is not None}
    for te in (False, True):
        outcome = predict(FILES, changed, JOB, te=te)
        assert outcome.folders("cudnn") == ("/opt/env/lib/python3.12/site-packages/nvidia/cudnn/lib",)


def test_a_shell_takes_the_commands_that_change_variables() -> None:
    change = {"CUDNN_HOME": "/with space/cudnn", "LD_LIBRARY_PATH": "/a:/b", "LD_PRELOAD": None, "CUDNN_PATH": None}
    before = {"PATH": os.environ["PATH"], "LD_PRELOAD": "", "CUDNN_PATH": "/usr"}
    done = subprocess.run(["sh", "-c", f"{shell_commands(change)}; env"], env=before, capture_output=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    assert {name: seen.get(name) for name in change} == change


def test_the_home_variable_alone_does_not_help() -> None:
    wheel = "/opt/env/lib/python3.12/site-packages/nvidia/cudnn"
    assert predict(FILES, {**BODY["rest"], "CUDNN_HOME": wheel}, JOB, te=True).mixed("cudnn")
    assert predict(FILES, {**BODY["rest"], "LD_LIBRARY_PATH": f"{wheel}/lib"}, JOB, te=True).mixed("cudnn")
