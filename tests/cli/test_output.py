"""Where answers go and in which colors; several facts files, `keys`, lazy commands and completion."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.cli import output
from doctor.facts.examples import EXAMPLES
from doctor.facts.vocabulary import TERMS

ROOT = Path(__file__).parents[2]
B = ROOT / "examples" / "incidents" / "b"
CHECK = ("check", "--no-run", "--facts", str(B / "facts.yaml"), "--workload", str(B / "workload.yaml"))
ESCAPE = "\x1b["


@pytest.fixture(autouse=True)
def plain(tmp_path, monkeypatch):
    """Away from this checkout, without what a shell may say about colors."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys):
    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


class TestAmount:
    def test_the_default_is_one_screen_of_the_width_of_the_page(self, run, monkeypatch):
        monkeypatch.setattr(output, "MAX_WIDTH", 80)
        code, out, err = run(*CHECK)
        assert (code, err) == (1, "")
        assert len(out.splitlines()) <= 24
        assert out.startswith("FAIL TE103: ") and "TE805" in out and "pip install " in out

    @pytest.mark.parametrize("option", ["-q", "--quiet"])
    def test_quiet_shows_verdict_and_errors_and_no_fix(self, run, option):
        code, out, err = run(*CHECK, option)
        assert (code, err) == (1, "")
        assert out.startswith("FAIL TE103: ") and "9.1.0" in out
        assert "TE805" not in out and "pip install" not in out and "skipped" not in out

    @pytest.mark.parametrize("option", ["-v", "--verbose"])
    def test_verbose_shows_sources_reasons_and_skipped_checks(self, run, option):
        short, whole = run(*CHECK)[1], run(*CHECK, option)[1]
        for part in ("sources: https://", "te.flash3: unavailable: ", "Skipped: ", "Common wrong fix: ", "why: "):
            assert part in whole and part not in short, part


class TestColor:
    @pytest.mark.parametrize(
        ("options", "environment", "colored"),
        [
            ((), {}, False),  # stdout is no terminal here
            (("--color", "always"), {}, True),
            (("--color", "always"), {"NO_COLOR": "1"}, True),  # who types it means it
            (("--color", "never"), {"FORCE_COLOR": "1"}, False),
            ((), {"FORCE_COLOR": "1"}, True),
            ((), {"CLICOLOR_FORCE": "1"}, True),
            ((), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
            (("--color", "auto"), {"FORCE_COLOR": "1"}, True),
        ],
    )
    def test_option_before_environment_before_terminal(self, run, monkeypatch, options, environment, colored):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        _, out, _ = run(*CHECK, *options)
        assert (ESCAPE in out) is colored

    def test_another_word_is_bad_input(self, run):
        code, out, err = run(*CHECK, "--color", "sometimes")
        assert (code, out) == (2, "") and "sometimes" in err


class TestFormats:
    def test_several_formats_go_to_their_files_and_one_to_stdout(self, run, tmp_path):
        files = {"json": "r.json", "sarif": "r.sarif", "markdown": "r.md", "html": "r.html"}
        options = [option for name, file in files.items() for option in ("--format", f"{name}={file}")]
        code, out, err = run(*CHECK, *options, "--format", "text")
        assert (code, err) == (1, "") and out.startswith("FAIL TE103: ")
        assert json.loads((tmp_path / "r.json").read_text())["findings"][0]["id"] == "TE103"
        assert json.loads((tmp_path / "r.sarif").read_text())["runs"][0]["results"]
        assert "TE103" in (tmp_path / "r.md").read_text() and "<!doctype html>" in (tmp_path / "r.html").read_text()

    def test_output_is_for_the_one_without_a_file(self, run, tmp_path):
        assert run(*CHECK, "--format", "json=r.json", "--format", "text", "-o", "r.txt")[:2] == (1, "")
        assert (tmp_path / "r.txt").read_text().startswith("FAIL TE103: ")
        assert json.loads((tmp_path / "r.json").read_text())["schema"] == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--format", "json", "--format", "text"), "both go to stdout"),
            (("--format", "json="), "names no file"),
            (("--format", "json=a", "-o", "b"), "`--output` has nothing to write"),
            (("--format", "yaml=a"), "unknown format `yaml`"),
        ],
    )
    def test_what_cannot_be_meant_is_bad_input(self, run, tmp_path, options, message):
        code, out, err = run(*CHECK, *options)
        assert (code, out) == (2, "") and message in err
        assert list(tmp_path.iterdir()) == []


class TestFactFiles:
    def test_two_files_are_merged(self, run, tmp_path):
        (tmp_path / "packages.yaml").write_text("{torch.version: '2.6.0', gpu.sm: '9.0'}")
        (tmp_path / "machine.yaml").write_text("{gpu.sm: '9.0', driver.version: '550.90.07'}")
        code, out, _ = run("check", "--facts", "packages.yaml", "--facts", "machine.yaml", "--format", "json")
        facts = json.loads(out)["facts"]
        assert code == 0
        assert (facts["torch.version"]["value"], facts["driver.version"]["value"]) == ("2.6.0", "550.90.07")

    def test_a_contradiction_makes_the_key_unknown_and_names_both_files_and_the_way_to_decide(self, run, tmp_path):
        for name, version in (("a", "2.6.0"), ("b", "2.7.1")):
            (tmp_path / f"{name}.yaml").write_text(f"{{torch.version: '{version}', transformers.version: '4.56.2'}}")
        code, out, _ = run("check", "--facts", "a.yaml", "--facts", "b.yaml", "--format", "json")
        report = json.loads(out)
        assert code == 0 and report["facts"]["torch.version"]["value"] is None
        assert "`a.yaml` states 2.6.0, `b.yaml` states 2.7.1; `--set torch.version=VALUE` decides" in report["notes"][0]


class TestKeys:
    def test_every_word_that_a_user_can_give_is_listed_with_meaning_and_example(self, run):
        code, out, err = run("keys")
        assert (code, err) == (0, "")
        given = [term for term in TERMS.values() if not term.derived]
        assert [term.key for term in given if f"{term.key}  ({term.kind})" not in out] == []
        assert out.count("    example: --set ") == len(given) + 2
        assert "<distribution>.version" in out and "env.<NAME>" in out

    def test_a_word_selects(self, run):
        code, out, _ = run("keys", "head-dim")
        keys = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
        assert code == 0 and {"workload.head_dim_qk", "workload.head_dim_v"} <= set(keys)
        assert "gpu.sm" not in keys
        rows = json.loads(run("keys", "head-dim", "--format", "json")[1])
        assert [row["key"] for row in rows] == keys

    def test_an_unknown_word_is_answered_with_the_nearest(self, run):
        code, out, err = run("keys", "maskk")
        assert (code, out) == (2, "")
        assert "no key contains `maskk`" in err and "did you mean `mask`?" in err

    def test_every_printed_example_is_accepted_by_option_facts_file_and_workload_file(self, run, tmp_path):
        rows = json.loads(run("keys", "--format", "json")[1])
        settings = [shlex.split(row["example"])[1] for row in rows]
        assert len(settings) > 150
        options = [option for setting in settings for option in ("--set", setting)]
        stated = snapshot(run, "--facts", B / "facts.yaml", *options)
        pairs = dict(setting.split("=", 1) for setting in settings)
        words = {key.removeprefix("workload."): text for key, text in pairs.items() if key.startswith("workload.")}
        facts = {key: text for key, text in pairs.items() if not key.startswith("workload.")}
        one, job = tmp_path / "facts.yaml", tmp_path / "job.yaml"
        one.write_text(json.dumps({"facts": facts, "workload": words}))
        job.write_text(json.dumps(words))
        (tmp_path / "machine.yaml").write_text(json.dumps({"facts": facts}))
        for form in (("--facts", one), ("--facts", tmp_path / "machine.yaml", "--workload", job)):
            found = snapshot(run, *form)
            assert {key: found.get(key) for key in pairs} == {key: stated[key] for key in pairs}

    def test_examples_fit_together_as_one_plausible_job(self):
        examples = {key: int(text) for key, text in EXAMPLES.items() if TERMS[key].kind == "integer"}
        sizes = {key: number for key, number in examples.items() if key.endswith("_size") or key.endswith("_ranks")}
        assert [key for key, number in sizes.items() if key != "workload.page_size" and number > 16] == []
        assert examples["workload.num_heads"] % examples["workload.num_kv_heads"] == 0

    def test_every_key_has_an_example_of_its_own(self):
        needed = {term.key for term in TERMS.values() if not (term.derived or term.values or term.kind == "boolean")}
        assert set(EXAMPLES) == needed


def snapshot(run, *options):
    """Return the values of the facts that options and files state."""
    code, out, err = run("snapshot", *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    words = {f"workload.{key}": fact for key, fact in found["workload"].items()}
    return {key: fact["value"] for key, fact in {**found["facts"], **words}.items()}


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (("--version",), set()),
        (("--help",), set()),
        (("keys", "mask"), {"keys"}),
        (("rules", "show", "TE103"), {"rules"}),
        (CHECK, {"check"}),
    ],
)
def test_only_the_command_that_is_called_is_imported(arguments, modules):
    code = (
        "import sys; from doctor.cli import main; main.run(sys.argv[1:]); "
        "sys.stderr.write('\\n' + ' '.join(sorted(n for n in main.COMMANDS if f'doctor.cli.{n}' in sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert set(done.stderr.splitlines()[-1].split()) == modules, done.stderr


@pytest.mark.parametrize(("shell", "mark"), [
    ("bash", "complete "), ("zsh", "#compdef attn-doctor"), ("fish", "complete --command attn-doctor"),
])  # fmt: skip
def test_the_completion_script_of_a_shell_is_printed(shell, mark):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    helped = subprocess.run(
        [sys.executable, "-m", "doctor", "--help"], capture_output=True, text=True, timeout=120,
        env=environment,
    )  # fmt: skip
    if "--show-completion" not in helped.stdout:
        pytest.skip("typer offers no `--show-completion` in this program")
    shown = subprocess.run(
        [sys.executable, "-m", "doctor", "--show-completion", shell], capture_output=True, text=True, timeout=120,
        env={**environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert mark in shown.stdout and "_ATTN_DOCTOR_COMPLETE" in shown.stdout


@pytest.mark.parametrize(("typed", "value"), [
    ("check --gpu h1", "h100"), ("check --gpu a100,h1", "a100,h100"), ("check --format sar", "sarif"),
    ("matrix --format js", "json"), ("rules show TE10", "TE103"),
])  # fmt: skip
def test_the_shell_completes_gpus_formats_and_rules(typed, value, capfd, monkeypatch):
    monkeypatch.setenv("_ATTN_DOCTOR_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"attn-doctor {typed}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        cli.main([])
    assert value in capfd.readouterr().out.split()
