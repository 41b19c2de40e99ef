"""The bill of materials: every package with its purl, the same text for the same environment."""

from __future__ import annotations

import json
from pathlib import Path

from doctor.api import diagnose, render

CAPTURE = Path(__file__).resolve().parents[1] / "captures" / "h200-te2.20.2-one-cudnn.json"


def test_every_package_is_a_component():
    report = diagnose(facts=str(CAPTURE), fixes=False)
    text = render(report, "cyclonedx")
    content = json.loads(text)
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.6")
    named = {item["name"]: item for item in content["components"]}
    assert named["torch"]["purl"] == "pkg:pypi/torch@2.11.0%2Bcu130" and named["cuDNN"]["version"] == "9.19.0"
    assert named["NVIDIA driver"]["type"] == "device-driver" and named["NVIDIA H200"]["type"] == "device"
    references = [item["bom-ref"] for item in content["components"]]
    assert len(references) == len(set(references)) > 100
    assert render(diagnose(facts=str(CAPTURE), fixes=False), "cyclonedx") == text


def test_options_by_variables(capsys, monkeypatch):
    from doctor.cli import main as cli

    monkeypatch.setenv("ATTN_DOCTOR_FORMAT", "cyclonedx")
    monkeypatch.setenv("ATTN_DOCTOR_PYTHON", "/nowhere")
    monkeypatch.setenv("ATTN_DOCTOR_FAIL_ON", "never")
    assert cli.run(["check", "--no-run", "--facts", str(CAPTURE)]) == 0
    assert json.loads(capsys.readouterr().out)["bomFormat"] == "CycloneDX"
    monkeypatch.setenv("ATTN_DOCTOR_FAIL_ON", "warning")
    assert cli.run(["check", "--no-run", "--facts", str(CAPTURE), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == 1, "the command line wins"
    assert cli.run(["check", "--no-run"]) == 2 and "/nowhere" in capsys.readouterr().err
