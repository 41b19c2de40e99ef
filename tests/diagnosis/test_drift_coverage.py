"""`check` gives its verdict before it reads installed sources, and says what of them it did not read."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from doctor.cli.main import run
from doctor.diagnosis.api_coverage import packages_of_job
from doctor.drift.pipeline import Analysis
from doctor.packages.records import TRAINER, names_with
from doctor.sources.snapshot import parse_facts
from tests.diagnosis.test_api_drift import CALLEE, CALLER, install
from tests.helpers.rulebook import builtin_rulebook

FLASH = {"flash_attn/__init__.py": "", "flash_attn/flash_attn_interface.py": CALLEE}


@pytest.fixture
def broken(tmp_path, cache_of_its_own) -> Path:
    """A folder in which peft fails when it is imported; nanotron calls nothing that is missing."""
    root = tmp_path / "site-packages"
    install(root, "torch", "2.4.0", {})
    install(root, "flash-attn", "2.6.3", FLASH)
    install(root, "peft", "0.12.0", {"peft/__init__.py": "import flash_attn.gone\n", "peft/tuner.py": CALLER})
    install(root, "nanotron", "0.4", {"nanotron/__init__.py": "import transformers\n"})
    install(root, "transformers", "4.44.0", {"transformers/__init__.py": "def f():\n    import peft\n"})
    return root


@pytest.fixture
def answered(monkeypatch, capsys):
    """Collect what is on stdout each time an analysis begins."""
    seen: list[str] = []
    finish = Analysis.finish

    def watched(self, *given):
        seen.append(capsys.readouterr().out)
        return finish(self, *given)

    monkeypatch.setattr(Analysis, "finish", watched)
    return seen


def endless(monkeypatch) -> None:
    """Make every analysis take longer than a second."""
    program = "import time; time.sleep(60)"
    monkeypatch.setattr("doctor.drift.processes.own_command", lambda module: [sys.executable, "-c", program])


def test_text_prints_the_verdict_first_and_then_what_the_sources_add(broken, answered, capsys):
    options = ["check", "--no-run", "--site-packages", str(broken)]
    assert run(options) == 1, "a finding of the sources counts for the exit code"
    (first,) = answered
    rest = capsys.readouterr().out
    assert "Packages" in first and "No findings" in first and "API001" not in first
    assert "FAIL with API drift: peft 0.12.0 imports modules that are not in flash-attn 2.6.3" in rest
    assert "API001" in rest and "peft/__init__.py:1" in rest and "Target" not in rest
    answered.clear()
    assert run(options) == 1
    (first,) = answered
    assert first == "" and "API001" in capsys.readouterr().out, "what the cache knows is in the report itself"


def test_text_says_that_nothing_was_found(tmp_path, cache_of_its_own, capsys):
    root = tmp_path / "site-packages"
    install(root, "torch", "2.4.0", {})
    install(root, "flash-attn", "2.6.3", FLASH)
    install(root, "peft", "0.12.0", {"peft/__init__.py": "import flash_attn\n"})
    assert run(["check", "--no-run", "--site-packages", str(root)]) == 0
    assert capsys.readouterr().out.endswith("API drift: nothing found in 2 packages (flash-attn 2.6.3, peft 0.12.0)\n")


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "gitlab", "markdown", "html", "github"])
def test_other_formats_stay_one_document(broken, answered, capsys, form):
    assert run(["check", "--no-run", "--site-packages", str(broken), "--format", form]) == 1
    assert answered == [""], "nothing is written before the analysis ends"
    assert "API001" in capsys.readouterr().out


def test_what_was_not_analyzed_is_named_with_a_command_that_does_it(broken, capsys, monkeypatch):
    options = ["check", "--no-run", "--site-packages", str(broken), "--format", "json"]
    with monkeypatch.context() as patch:
        endless(patch)
        assert run([*options, "--drift-limit", "1"]) == 0
        report = json.loads(capsys.readouterr().out)
        drift = report["drift"]
        names = ["flash-attn 2.6.3", "nanotron 0.4", "peft 0.12.0", "transformers 4.44.0"]
        assert drift["analysed"] == [] and drift["limit"] == 1.0
        assert [item["package"] for item in drift["not_analysed"]] == names
        assert {item["reason"] for item in drift["not_analysed"]} == {"it takes longer than the limit of 1 s"}
        (note,) = [note for note in report["notes"] if "not analyzed" in note]
        assert f"`{drift['command']}`" in note and all(name in note for name in names)
        assert run(["check", "--no-run", "--site-packages", str(broken), "--drift-limit", "1"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "not analyzed within 1 s" in shown and drift["command"] in shown
    program, *arguments = shlex.split(drift["command"])
    assert program == "attn-doctor" and run(arguments) == 1
    capsys.readouterr()
    monkeypatch.setattr("doctor.drift.processes.analyze_in_processes", _never)
    assert run([*options, "--drift-limit", "1"]) == 1
    drift = json.loads(capsys.readouterr().out)["drift"]
    assert len(drift["analysed"]) == 4 and drift["not_analysed"] == [] and drift["command"] is None


def _never(*given):
    raise AssertionError("the cache should have answered")


def test_a_described_job_leaves_out_what_it_does_not_use(broken, capsys):
    options = ["check", "--no-run", "--site-packages", str(broken), "--format", "json"]
    run([*options, "--set", "workload.framework=transformers"])
    drift = json.loads(capsys.readouterr().out)["drift"]
    assert drift["analysed"] == ["transformers 4.44.0", "peft 0.12.0", "flash-attn 2.6.3"], "nearest first"
    assert drift["not_analysed"] == [{"package": "nanotron 0.4", "reason": "the described job does not use it"}]
    assert shlex.split(drift["command"])[-2:] == ["--caller", "nanotron"]
    install(broken, "trl", "0.9.6", {"trl/__init__.py": "import peft\n"})
    for training in (True, False):
        run(
            [
                *options,
                "--set",
                "workload.framework=transformers",
                "--set",
                f"workload.training={str(training).lower()}",
            ]
        )
        drift = json.loads(capsys.readouterr().out)["drift"]
        assert ("trl 0.9.6" in drift["analysed"]) is training, "a training job may be one of an installed trainer"
    for job in (["--set", "workload.framework=torch_sdpa"], []):  # code of the user's own may call anything
        run([*options, *job])
        assert len(json.loads(capsys.readouterr().out)["drift"]["analysed"]) == 5


def test_reports_of_facts_say_nothing_of_sources(tmp_path, capsys):
    facts = tmp_path / "facts.yaml"
    facts.write_text("facts: {torch.version: 2.4.0, peft.version: 0.12.0, flash-attn.version: 2.6.3}\n")
    run(["check", "--facts", str(facts), "--format", "json"])
    assert "drift" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("limit", ["-1", "x", "1e9"])
def test_a_bad_limit_is_one_line(limit, capsys):
    assert run(["check", "--drift-limit", limit]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_errors_that_no_change_clears_are_reported(tmp_path, capsys, cache_of_its_own):
    """The search for a fix may end with no change at all."""
    root = tmp_path / "site-packages"
    for name, version in (("torch", "2.4.0"), ("vllm", "0.6.0"), ("transformers", "4.44.0")):
        install(root, name, version, {f"{name}/__init__.py": ""})
    assert run(["check", "--no-run", "--no-drift", "--site-packages", str(root)]) == 1
    assert "vLLM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [("axolotl", {"axolotl"}), ("llamafactory.v1", {"llamafactory", "llmtuner"}), (None, None)],
)
def test_the_trainer_of_the_job_is_the_only_one_that_it_uses(trainer, expected):
    workload = {"framework": "transformers", "training": True, **({"trainer": trainer} if trainer else {})}
    facts = parse_facts(json.dumps({"facts": {"torch.version": "2.8.0"}, "workload": workload}), "x")
    rulebook = builtin_rulebook()
    every = names_with(rulebook.packages, TRAINER)
    assert len(every) > 6
    assert set(packages_of_job(rulebook, facts) or ()) == {"transformers", *(every if expected is None else expected)}
