"""The command line as a user meets it: options, streams, exit codes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doctor import __version__
from doctor.cli import main as cli

ROOT = Path(__file__).parents[2]
INCIDENT_B = ROOT / "examples" / "incidents" / "b"
B = ["--facts", str(INCIDENT_B / "facts.yaml"), "--workload", str(INCIDENT_B / "workload.yaml"), "--no-run"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Away from this checkout, whose pyproject.toml might set defaults."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def program(*arguments, **options):
    """The real program in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "doctor", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, env=environment, **options,
    )  # fmt: skip


class TestExitCodes:
    def test_findings_are_1_and_fail_on_moves_the_line(self, run, tmp_path):
        assert run("check", *B)[0] == 1
        assert run("check", *B, "--fail-on", "never")[0] == 0
        rule = tmp_path / "team" / "acme" / "ACME002.yaml"
        rule.parent.mkdir(parents=True)
        rule.write_text(
            "{id: ACME002, name: n, severity: warning, summary: s, references: [x], when: {acme.version: present}}"
        )
        warn = ["check", "--no-run", "--rules", rule.parent.parent, "--facts", "/dev/stdin"]
        facts = tmp_path / "facts.yaml"
        facts.write_text("acme.version: '1.0'")
        warn[-1] = facts
        assert run(*warn)[0] == 0
        assert run(*warn, "--fail-on", "warning")[0] == 1
        assert run(*warn, "--fail-on", "note")[0] == 1

    def test_nothing_found_is_0(self, run, tmp_path):
        facts = tmp_path / "facts.yaml"
        facts.write_text("torch.version: '2.8.0'")
        code, out, _ = run("check", "--no-run", "--facts", facts)
        assert code == 0
        assert out.startswith("INCOMPLETE: no known problems in this environment; no workload was given")

    def test_project_default_of_fail_on(self, run, tmp_path):
        (tmp_path / "pyproject.toml").write_text("[tool.attn-doctor]\nfail-on = 'never'\n")
        assert run("check", *B)[0] == 0
        assert run("check", *B, "--fail-on", "error")[0] == 1

    @pytest.mark.parametrize(
        ("arguments", "message", "hint"),
        [
            (["chekc"], "there is no command `chekc`", "did you mean `check`?"),
            (["--facts", "x"], "there is no command `--facts`", "the command comes first"),
            (["check", "--fcats", "x"], "`attn-doctor check` has no option `--fcats`", "did you mean `--facts`?"),
            (["check", "--format", "yaml"], "unknown format `yaml`", "formats are text, json"),
            (["check", "--set", "torch.version"], "`--set torch.version` needs KEY=VALUE", "for example"),
            (["check", "--set", "gpu.smm=9.0"], "unknown fact key `gpu.smm`", "did you mean `gpu.sm`?"),
            (["check", "--timeout", "soon"], "needs a positive number of seconds, found `soon`", "--help"),
            (["check", "--timeout", "-1"], "needs a positive number of seconds, found `-1`", "--help"),
            (["check", "--fail-on", "fatal"], "'fatal' is not one of", "--help"),
            (["check", "--site-packages", "a", "--python", "b"], "exclude each other", "name one environment"),
            (["check", "--facts"], "requires an argument", "--help"),
            (["check", "stray"], "there is no file `stray`", ""),
            (["snapshot", "stray"], "does not know what to do with `stray`", "--help"),
            (["matrix", "."], "does not know what to do with `.`", "`attn-doctor matrix --requirements .` reads it"),
            (["check", "--fact", "x"], "has no option `--fact`", "did you mean `--facts`?"),
            (["check", "--gpu", "h1000"], "h1000", ""),
            (["backends", "--batch", "-", "--gpu", "h100"], "`--gpu` does not go with `--batch`", "every line"),
            (["rules", "lst"], "has no action `lst`", "did you mean `list`?"),
            (["rules", "show", "TE999x"], "there is no rule `TE999x`", ""),
            (["rules", "show"], "needs ID", "--help"),
            (["rules", "list", "--format", "sarif"], "format `sarif` cannot show rules", "text, json"),
        ],
    )
    def test_usage_errors_are_2_with_one_line_and_a_hint(self, run, arguments, message, hint):
        code, out, err = run(*arguments)
        lines = err.splitlines()
        assert (code, out) == (2, "")
        assert lines[0].startswith("error: ") and message in lines[0]
        assert len(lines) <= 2 and all(line.startswith("hint: ") for line in lines[1:])
        assert hint in err

    def test_a_fault_of_ours_is_3_and_shows_how_to_report_it(self, run, monkeypatch):
        from doctor.diagnosis import judge as session

        def broken(*arguments):
            raise ZeroDivisionError("division by zero\nsecond line")

        monkeypatch.setattr(session, "evaluate", broken)
        code, out, err = run("check", *B)
        assert (code, out) == (3, "")
        assert err.splitlines() == [
            "fatal: ZeroDivisionError: division by zero second line; no diagnosis was made",
            "hint: this is a fault of attn-doctor: run it again with `ATTN_DOCTOR_DEBUG=1` and report the traceback",
        ]
        monkeypatch.setenv("ATTN_DOCTOR_DEBUG", "1")
        with pytest.raises(ZeroDivisionError):
            cli.run(["check", *B])


class TestHelp:
    def test_without_a_command_it_says_what_there_is(self, run):
        code, out, _ = run()
        assert code == 2
        assert all(f" {name} " in out for name in cli.COMMANDS)
        assert run("--help")[0] == 0 and run("--help")[1].strip() == out.strip()

    @pytest.mark.parametrize("name", cli.COMMANDS)
    def test_every_command_explains_itself(self, run, name):
        code, out, err = run(name, "--help")
        assert (code, err) == (0, "")
        assert f"Usage: attn-doctor {name}" in out

    def test_version(self, run):
        assert run("--version") == (0, f"attn-doctor {__version__}\n", "")


class TestCheck:
    def test_text_leads_with_the_verdict(self, run):
        _, out, err = run("check", *B)
        assert out.splitlines()[0].startswith("FAIL TE103: ")
        assert "9.1.0" in out and "9.3" in out
        assert err == ""

    def test_json_is_one_object_of_schema_1(self, run):
        code, out, err = run("check", *B, "--format", "json")
        assert (code, err) == (1, "")
        found = json.loads(out)
        assert found["schema"] == 1
        assert found["findings"][0]["severity"] == "error"
        assert found["workload"]["cp_comm_type"]["value"] == "all_gather"

    def test_settings_override_the_file(self, run):
        code, out, _ = run("check", *B, "--set", "workload.cp_comm_type=p2p")
        assert code == 0, out

    def test_output_goes_to_the_file_alone(self, run, tmp_path):
        code, out, _ = run("check", *B, "--format", "json", "--output", tmp_path / "report.json")
        assert (code, out) == (1, "")
        assert json.loads((tmp_path / "report.json").read_text())["schema"] == 1

    def test_a_pipe_gets_no_colour_and_a_terminal_does(self):
        plain = program("check", *B)
        assert "\x1b[" not in plain.stdout
        assert "\x1b[" in on_a_terminal("check", *B)
        assert "\x1b[" not in on_a_terminal("check", *B, env={"NO_COLOR": "1"})

    def test_a_terminal_that_only_knows_ascii_gets_every_word(self):
        done = program("check", *B, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
        assert done.returncode == 1
        assert done.stderr == ""
        assert done.stdout.startswith("FAIL TE103: ")


def on_a_terminal(*arguments, env=None):
    """What the program writes when its stdout is a terminal."""
    master, slave = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", **(env or {})}
    process = subprocess.Popen([sys.executable, "-m", "doctor", *arguments], stdout=slave, env=environment)
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(timeout=60)
    os.close(master)
    return b"".join(chunks).decode()


class TestOtherCommands:
    def test_backends_names_the_selected_one_and_the_reasons(self, run):
        code, out, _ = run("backends", *B[:-1])
        assert code == 1  # selected, and dies in a step
        assert "te.fused" in out and "fails" in out
        code, out, _ = run("backends", *B[:-1], "--format", "json")
        (te,) = [item for item in json.loads(out)["backends"] if item["library"] == "transformer_engine"]
        assert te["selected"] == "te.fused"
        assert te["fails_at_run"]["rule"].startswith("TE")

    def test_fix_offers_what_clears_the_finding(self, run):
        code, out, _ = run("fix", *B[:-1])
        assert code == 1
        assert "Fix (pick one)" in out and "export NVTE_FUSED_ATTN=0" in out and "pip install --no-deps nvidia" in out
        code, out, _ = run("fix", *B[:-1], "--format", "json")
        fixes = json.loads(out)["fixes"]
        assert [fix["kind"] for fix in fixes] == ["setting", "override of a pin", "source build"]
        assert all(fix["time"] and fix["safety"] in ("safe", "risky") for fix in fixes)

    def test_pins_are_a_file_that_is_not_overwritten_unasked(self, run, tmp_path):
        pins = tmp_path / "pins.txt"
        assert run("fix", *B[:-1], "--pin", pins)[:2] == (1, "")
        text = pins.read_text()
        assert any(line.startswith("torch==") for line in text.splitlines())
        pins.write_text("mine")
        code, _, err = run("fix", *B[:-1], "--pin", pins)
        assert code == 2 and "exists already" in err and "--force" in err
        assert pins.read_text() == "mine"
        assert run("fix", *B[:-1], "--pin", pins, "--force")[0] == 1
        assert pins.read_text() == text
        assert run("fix", *B[:-1], "--pin")[1] == text
        told = run("fix", *B[:-1], "--pin", pins, "--force", "--format", "json")[1]
        assert [change["package"] for change in json.loads(told)["fixes"][-1]["changes"]] == ["torch"]

    def test_snapshot_and_back(self, run, tmp_path):
        path = tmp_path / "snap.json"
        assert run("snapshot", *B[:-1], "-o", path)[:2] == (0, "")
        before = json.loads(run("check", *B, "--format", "json")[1])
        after = json.loads(run("check", "--facts", path, "--no-run", "--format", "json")[1])
        assert [item["message"] for item in after["findings"]] == [item["message"] for item in before["findings"]]
        assert after["backends"] == before["backends"]

    def test_snapshot_of_this_interpreter_names_its_python(self, run):
        code, out, _ = run("snapshot", "--python", sys.executable)
        assert code == 0
        version = ".".join(map(str, sys.version_info[:3]))
        assert json.loads(out)["facts"]["python.version"]["value"] == version

    def test_rules_can_be_listed_and_shown(self, run):
        code, out, _ = run("rules", "list")
        assert code == 0
        listed = [line.split()[0] for line in out.splitlines()[:-1]]
        assert out.splitlines()[-1] == f"{len(listed)} rules"
        assert listed == sorted(set(listed), key=listed.index)
        bodies = json.loads(run("rules", "list", "--format", "json")[1])
        assert [body["id"] for body in bodies] == listed
        for body in bodies[:: max(1, len(bodies) // 12)]:
            code, text, _ = run("rules", "show", body["id"])
            assert code == 0
            assert body["id"] in text and body["references"][0] in text

    def test_rules_test_reports_a_broken_rule_with_its_place(self, run, tmp_path):
        rule = tmp_path / "acme" / "ACME001.yaml"
        rule.parent.mkdir()
        rule.write_text(
            "id: ACME001\nname: acme-too-old\nseverity: error\nsummary: acme before 2 loses gradients\n"
            "why: They were forgotten.\nreferences: [https://example.org/acme/1]\nmessage: acme {acme.version} is old\n"
            "fix: [{require: {acme: '>=2'}}]\n"
            "when: {acme.version: '<2'}\n"
            "tests:\n  fires with 1: {given: {acme.version: '1.0'}, expect: fires}\n"
            "  silent with 2: {given: {acme.version: '1.9'}, expect: silent}\n"
        )
        code, out, _ = run("rules", "test", rule)
        assert code == 1
        assert "ACME001::silent with 2" in out
        assert "2 tests, 1 failed" in out
        rule.write_text(rule.read_text().replace("'1.9'", "'2.0'"))
        code, out, _ = run("rules", "test", rule)
        assert (code, out.splitlines()[-1]) == (0, "2 tests, 0 failed; 0 complaints of the lint"), out


class TestEnd:
    def test_a_program_that_calls_it_goes_on(self):
        with pytest.raises(SystemExit) as ended:
            cli.main(["--version"])
        assert ended.value.code == 0


class TestStreams:
    def test_a_reader_who_leaves_early_sees_no_traceback(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = f"{sys.executable} -m doctor rules list --format json | head -c 10"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment)
        assert done.stderr == ""
        assert len(done.stdout) == 10

    def test_a_full_disk_behind_stdout_is_an_error(self):
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "doctor", "check", *B], stdout=full, stderr=subprocess.PIPE, text=True,
                timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        assert done.returncode == 3
        assert done.stderr == "fatal: cannot write the answer: no space left on device; no diagnosis was made\n"

    def test_interrupting_ends_quietly(self, tmp_path):
        fifo = tmp_path / "facts.yaml"
        os.mkfifo(fifo)
        process = subprocess.Popen(
            [sys.executable, "-m", "doctor", "check", "--no-run", "--facts", str(fifo)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        with fifo.open("w"):  # returns once the program has opened the other end: it is past its imports
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
        assert err == "error: interrupted\n"


def test_the_documentation_names_every_option_and_no_other(run):
    """Every `--option` of docs/cli.md is in the help of some command, and every command is in the document."""
    import re

    text = (ROOT / "docs" / "cli.md").read_text()
    actions = [("rules", action) for action in ("list", "show", "test", "format", "new")]
    actions += [("fleet", action) for action in ("probe", "manifest", "prolog", "stress")]
    helps = "".join(run(*command, "--help")[1] for command in [(), *((name,) for name in cli.COMMANDS), *actions])
    foreign = {"--target", "--no-deps", "--nproc-per-node", "--no-python"}  # of pip and torchrun
    named = set(re.findall(r"--[a-z][a-z-]+", text)) - foreign
    assert sorted(option for option in named if option not in helps) == []
    existing = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", helps)) - {"--help"}
    assert sorted(option for option in existing if option not in text) == []
    assert [name for name in cli.COMMANDS if f"attn-doctor {name}" not in text] == []


def test_every_severity_is_a_value_of_fail_on():
    from doctor.cli.options import FAIL_ON
    from doctor.model import SEVERITIES

    assert (*map(str, SEVERITIES), "never") == FAIL_ON
