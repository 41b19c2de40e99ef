"""Every `attn-doctor …` that the program prints, that a rule names or that the documents show is accepted as typed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from doctor.cli.main import _spelled, app, run
from doctor.errors import DoctorError
from tests.helpers.text_commands import GRAMMAR, ROOT, Command, in_documents, in_program, in_rules, words_of

COMMANDS = (*in_documents(), *in_program(), *in_rules())
#: The errors of click: of the package, or of typer's own copy since 0.26.
ERRORS: Any = sys.modules[typer.BadParameter.__module__]


def is_group(command: Any) -> bool:
    return hasattr(command, "resolve_command")


def refused(command: Command) -> str | None:
    """Why the program does not accept the words of a command; nothing is carried out."""
    words = _spelled(words_of(command.text.rstrip(".,:")))
    program = typer.main.get_command(app)
    try:
        context = program.make_context("attn-doctor", list(words))
        part: Any = program
        while is_group(part):
            first = "_protected_args" if hasattr(context, "_protected_args") else "protected_args"  # before click 8.2
            rest = [*getattr(context, first), *context.args]
            if not rest:
                return None
            name, found, rest = part.resolve_command(context, rest)
            assert found is not None
            part, context = found, found.make_context(name, rest, parent=context)
    except (ERRORS.MissingParameter, ERRORS.BadOptionUsage) as problem:
        unfinished = isinstance(problem, ERRORS.MissingParameter) or "requires an argument" in problem.message
        return None if unfinished and not command.typed else problem.format_message()
    except (typer.Exit, SystemExit):
        return None
    except (ERRORS.ClickException, DoctorError) as problem:
        return str(getattr(problem, "message", problem))
    return None


def test_the_texts_were_found():
    places = {command.where.partition("/")[0] for command in COMMANDS}
    assert {"README.md", "docs", "doctor", "rules"} <= places and len(COMMANDS) > 200


def test_every_command_in_a_text_is_accepted_as_typed():
    found = {
        f"{command.where}: `{command.text}`: {why}"
        for command in COMMANDS
        if not GRAMMAR.search(command.text) and (why := refused(command))
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize(
    "text",
    [
        "attn-doctor chekc",
        "attn-doctor check --facst x",
        "attn-doctor rules shwo TE103",
        "attn-doctor explain --gpu h100",
    ],
)
def test_a_command_that_fails_is_found(text):
    assert refused(Command("here", text, True)) is not None


def options_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if is_group(command):
        context = command.make_context(command.name, [], resilient_parsing=True)
        for name in command.list_commands(context):
            yield from options_of(command.get_command(context, name))


def test_every_option_that_a_hint_names_exists():
    known = {*options_of(typer.main.get_command(app)), "--help", "-h"}
    foreign = re.compile(r"pip|uv |conda|git|docker|torchrun|vllm|sglang|launch|srun|apt|nvcc|curl|--no-|http")
    wrong = set()
    for path in sorted((ROOT / "doctor" / "cli").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for span in re.findall(r"`(--[a-z][^`\n]*)`", text):
            option = re.match(r"--[a-z-]+", span)[0]
            if option not in known and not foreign.search(span):
                wrong.add(f"{path.name}: `{span}`")
    assert not wrong, sorted(wrong)


FACTS = """facts: {python.version: "3.11.7", torch.version: "2.6.0", torch.cuda: "12.4", torch.cxx11_abi: false,
  flash-attn.version: "2.7.4.post1", gpu.sm: "9.0", gpu.name: H100, driver.version: "570.86.10"}
workload: {framework: flash_attn, head_dim_qk: 128}
"""
RULE = """id: ACME001
name: forbid-this-release
severity: error
summary: our kernels fail with flash-attn 2.7.4.post1
why: They were compiled for another release.
references: [https://example.org/acme]
when: {flash-attn.version: "==2.7.4.post1"}
fix:
  - require: {flash-attn: "!=2.7.4.post1"}
tests:
  fires: {given: {flash-attn.version: 2.7.4.post1}, expect: fires}
  silent: {given: {flash-attn.version: 2.7.3}, expect: silent}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with facts, a team's rule and a Dockerfile without attention libraries."""
    (tmp_path / "our rules").mkdir()
    (tmp_path / "our rules" / "library.yaml").write_text(
        "name: acme\ntitle: Acme\nreferences: [https://example.org/acme]\n", encoding="utf-8"
    )
    (tmp_path / "our rules" / "ACME001.yaml").write_text(RULE, encoding="utf-8")
    (tmp_path / "facts.yaml").write_text(FACTS, encoding="utf-8")
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\nRUN echo built\n", encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_below_a_report_shows_the_rule_of_a_team(project, capsys):
    assert run(["check", "--facts", "facts.yaml", "--rules", "our rules"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    command = re.search(r"See `(attn-doctor rules show [^`]+)`", text)
    assert command is not None, text
    assert run(shlex.split(command[1])[1:]) == 0
    assert "ACME001" in capsys.readouterr().out


def test_no_command_is_offered_for_a_finding_without_a_rule_file(project, capsys):
    entry = "[[tool.attn-doctor.ignore]]\nrule = 'FAO10'\nreason = 'x'\nuntil = 2999-01-01\n"
    (project / "pyproject.toml").write_text(entry, encoding="utf-8")
    run(["check", "--requirements", "requirements.txt"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Ignored rule FAO10 does not exist: did you mean `FA010`?" in text and "rules show IGNORE_UNKNOWN" not in text
    )


def test_a_wheel_that_a_rule_forbids_is_not_named_as_the_way_out(project, capsys):
    run(["fix", "--facts", "facts.yaml", "--rules", "our rules"])
    text = " ".join(capsys.readouterr().out.split())
    assert "core-hours" in text and "2.7.4.post1 has a wheel" not in text and "install 2.7.4.post1" not in text


@pytest.mark.parametrize("other", ["Dockerfile", "requirements.txt"])
def test_a_missing_file_is_named_whatever_the_other_files_are(other, project, capsys):
    for files in (("nosuch.lock", other), (other, "nosuch.lock")):
        assert run(["check", *(word for file in files for word in ("--requirements", file))]) == 2
        said = capsys.readouterr()
        assert "nosuch.lock" in said.err and other not in said.err


def test_the_lint_says_each_fault_of_a_rule_file_once(project, capsys):
    path = project / "our rules" / "ACME001.yaml"
    path.write_text(RULE.replace("severity: error", "severity: bad"), encoding="utf-8")
    assert run(["rules", "test", "our rules"]) == 1
    assert capsys.readouterr().out.count("`severity` needs one of") == 1


def test_one_build_has_one_cost_in_every_command(project, capsys):
    (project / "old.yaml").write_text(FACTS.replace('"9.0"', '"12.0"').replace("2.6.0", "2.10.0"), encoding="utf-8")
    found = []
    for words in (["wheels", "flash-attn==2.7.4.post1"], ["fix", "--rules", "our rules"]):
        run([*words, "--facts", "old.yaml"])
        found += re.findall(
            r"[\d.]+ to [\d.]+ core-hours(?: for \d architectures)?", " ".join(capsys.readouterr().out.split())
        )
    assert len(found) >= 2 and len(set(found)) == 1, found
