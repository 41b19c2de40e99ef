"""`attn-doctor explain` on the command line."""

import gzip
import json

import pytest

from doctor.cli.main import run as run_program

LINE = "ImportError: cannot import name 'MistralFlashAttention2' from 'transformers.models.mistral.modeling_mistral'\n"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = run_program(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_json_has_one_line_for_each_log(run, tmp_path):
    (tmp_path / "a.log").write_text(LINE)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"all is well\n"))
    code, out, err = run("explain", "a.log", "b.log.gz", "--format", "json")
    first, second = map(json.loads, out.splitlines())
    assert (code, err) == (1, "")
    assert first["input"] == "a.log" and second == {**second, "input": "b.log.gz", "diagnosis": []}
    (found, *_) = first["diagnosis"]
    assert found["category"] == "api-signature-drift" and found["line"] == 1 and "transformers" in found["packages"]
    assert found["confidence"] == "high" and found["rule"].startswith("LOGTF") and found["fixes"][0]["commands"]


def test_text_names_cause_line_fix_and_confirmation(run, tmp_path):
    (tmp_path / "a.log").write_text(LINE)
    code, out, _ = run("explain", "a.log")
    assert code == 1
    assert "cause: transformers 4.48 removed" in out and "line 1: ImportError" in out
    assert "pip install 'transformers>=4.43,<4.48'" in out and "check --run" in out


def test_nothing_known_is_exit_code_0(run, tmp_path):
    (tmp_path / "a.log").write_text("FooError: nothing known\n")
    code, out, _ = run("explain", "a.log")
    assert code == 0 and "no known incompatibility" in out and "line 1: FooError: nothing known" in out


def test_facts_of_the_command_line_are_used(run, tmp_path):
    (tmp_path / "a.log").write_text("RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n")
    code, out, _ = run("explain", "a.log", "--gpu", "t4", "--format", "json")
    assert code == 1 and json.loads(out)["facts"]["gpu.sm"]["value"] == "7.5"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.log",), "cannot read log `missing.log`"),
        ((".",), "is a folder"),
        (("binary",), "is a binary file"),
        (("broken.gz",), "cannot read `broken.gz`"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, tmp_path, arguments, words):
    (tmp_path / "binary").write_bytes(bytes(range(32)) * 100)
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x08\x00garbage")
    code, out, err = run("explain", *arguments)
    assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_a_bad_log_does_not_hide_the_others(run, tmp_path):
    (tmp_path / "a.log").write_text(LINE)
    code, out, err = run("explain", "missing.log", "a.log")
    assert code == 2 and "transformers 4.48 removed" in out and "missing.log" in err
