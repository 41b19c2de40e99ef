"""A newcomer finds rules by library and by symptom, and those that an explanation names."""

from __future__ import annotations

import json

import pytest

from doctor.cli import main as cli


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    assert cli.run(["rules", "list", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} rules"
    return {line.split()[0]: line for line in lines[:-1]}


def test_rules_are_found_by_library_and_symptom(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, "flash-attn", "nan")
    assert {"FA004", "FA053", "FA078", "LOGFA047"} <= found.keys() and len(found) < 60
    assert found.keys() == listed(capsys, "NaN", "flash_attn").keys()
    assert found.keys() == listed(capsys, "flash-attn").keys() & listed(capsys, "nan").keys()
    assert not any(line.split()[0].startswith("CUDA") for line in found.values())


def test_without_words_only_rules_for_check_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(name.startswith("LOG") for name in listed(capsys))


def test_a_word_that_no_rule_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", "list", "flash-attn", "qqqqqq"]) == 2
    assert "no rule contains `flash-attn` and `qqqqqq`" in capsys.readouterr().err


def test_the_rule_of_an_explanation_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", "show", "LOGPT012"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("LOGPT012 (explain): ") and "symbol not found in flat namespace" in shown
    assert "{'match'" not in shown and "raised in" not in shown
    assert cli.run(["rules", "show", "logpt012", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["category"] == "abi-undefined-symbol"
