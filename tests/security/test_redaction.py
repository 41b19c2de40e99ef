"""No shape of a secret leaves through any output of any command, and ordinary text passes unchanged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.util.credentials import without_credentials
from doctor.util.outgoing import outgoing
from doctor.util.redact import is_secret
from tests.helpers.secrets import FIXED, ORDINARY, SHAPES, canary

from .conftest import ROOT, Doctor, rule
from .test_rule_files import small_rulebook  # noqa: F401 - a fixture

TEXTS = [shape.format(canary(number)) for number, shape in enumerate(SHAPES.values())]
SECRETS = [canary(number) for number in range(len(TEXTS))]


def leaks(text: str) -> list[str]:
    """Return the name of each shape whose secret, or a half of it, is in a text."""
    return [name for name, secret in zip(SHAPES, SECRETS, strict=True) if secret[:17] in text or secret[6:] in text]


@pytest.mark.parametrize("text", [*TEXTS, *FIXED], ids=[*SHAPES, *FIXED])
def test_each_shape_is_hidden(text: str) -> None:
    for written in (text, json.dumps({"a": text}), text.replace('"', "&quot;").replace("'", "&#39;"), f"x {text}\nb"):
        shown = without_credentials(written)
        assert not leaks(shown) and shown != written
        assert without_credentials(shown) == shown
    assert is_secret("NVTE_X", text)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert without_credentials(text) == text
    assert without_credentials(json.dumps({"key": text})) == json.dumps({"key": text})


def test_the_rules_and_real_logs_are_not_changed() -> None:
    changed = []
    for path in [
        *(ROOT / "rules").rglob("*.yaml"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests/data/logs").iterdir(),
    ]:
        for line in path.read_text("utf-8").splitlines():
            if (shown := without_credentials(line)) != line:
                changed.append((path.name, shown[:200]))
    assert not changed


def test_redaction_is_linear() -> None:
    for unit in ("token", "password: '", "eyJ-", "sk-", "://a/", "ab:/x", "&auth=", "auth ", "https://h/t/", "login -a ", "-u a:",
                 "--token ", "\\\"token\\\": \\\"", "https://hooks.", "AKIA", "-----BEGIN PRIVATE KEY-----", "bearer x", "/token/"):  # fmt: skip
        times = []
        for size in (20_000, 80_000):
            text = unit * (size // len(unit))
            began = time.process_time()
            without_credentials(text)
            times.append(time.process_time() - began)
        assert times[1] < 3 and times[1] < 10 * times[0] + 0.2, (unit, times)


@pytest.mark.parametrize("unit", ["x", '\\"', "\\\\", "\\\n", '" ', '"a": "b", '])
def test_json_that_breaks_off_inside_of_a_string_is_read_in_linear_time(unit: str) -> None:
    code = "import sys; from doctor.util.outgoing import outgoing; outgoing(sys.stdin.read())"
    for end in ("", "\\", '"'):
        text = '{"a": "' + unit * (100_000 // len(unit)) + end
        subprocess.run([sys.executable, "-c", code], input=text, text=True, timeout=30, check=True, cwd=ROOT)


def test_a_secret_in_json_that_breaks_off_is_hidden() -> None:
    secret = canary(1)
    for text in (f'{{"a": 1, "password": "{secret}', f'[x] password="{secret}', f'{{"a": "--token {secret}'):
        assert secret not in outgoing(text)


@pytest.fixture
def full_of_secrets(project: Path, small_rulebook: Path) -> Path:  # noqa: F811
    """A project whose rules, facts, requirements and logs hold every shape."""
    for number, text in enumerate(TEXTS):
        identity = f"X{number:03d}"
        path = project / "r" / "madeup" / f"{identity}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            rule(
                identity, name=f"made-up-{number}", message=f"message {text}", why=f"why {text}", summary=f"summary {text}",
                references=[f"https://example.org/ {text}"], signatures=[f"shown by line {number} of"],
                fix=[{"note": f"note {text}"}, {"call": text}, {"set_env": {"NVTE_X": text}}], no_pin=f"no pin {text}",
            )
        )  # fmt: skip
    facts = {
        f"package-{number}.version": {"value": "1.0", "source": text, "raw": text, "problem": None}
        for number, text in enumerate(TEXTS)
    }
    unknown = {f"other-{number}.version": {"value": None, "problem": text} for number, text in enumerate(TEXTS)}
    known = {"torch.version": "2.6.0", "gpu.sm": "9.0", "gpu.name": " ".join(TEXTS[:4])}
    (project / "facts.json").write_text(json.dumps({"facts": {**known, **facts, **unknown}}))
    (project / "other.json").write_text(
        json.dumps({"facts": {"torch.version": "2.5.0", "gpu.name": " ".join(TEXTS[4:9])}})
    )
    lines = [
        f"package-{number} @ {text}"
        for number, text in enumerate(TEXTS)
        if text.startswith(("https://", "git+https://"))
    ]
    comments = [f"other-{number}==1.0  # {text}" for number, text in enumerate(TEXTS)]
    (project / "requirements.txt").write_text("\n".join(["torch==2.6.0", *lines, *comments]) + "\n")
    return project


FORMATS = ("text", "json", "sarif", "junit", "github", "gitlab", "markdown", "html", "cyclonedx")
COMMANDS = [
    *(("check", "--no-run", "--facts", "facts.json", "--rules", "r", "--format", form) for form in FORMATS),
    ("check", "--no-run", "--verbose", "--facts", "facts.json", "--rules", "r"),
    *(("fix", "--facts", "facts.json", "--rules", "r", "--format", form) for form in ("text", "json", "shell", "docker")),
    ("fix", "--facts", "facts.json", "--rules", "r", "--pin"), ("snapshot", "--facts", "facts.json", "--output", "-"),
    ("check", "--requirements", "requirements.txt", "--gpu", "sm90"),
    ("check", "--requirements", "requirements.txt", "--gpu", "sm90", "--format", "json"),
    ("fix", "--requirements", "requirements.txt", "--gpu", "sm90", "--diff"),
    ("snapshot", "--requirements", "requirements.txt", "--output", "-"),
    *(("diff", "facts.json", "other.json", "--rules", "r", "--format", form) for form in ("text", "json")),
    ("backends", "--facts", "facts.json", "--rules", "r", "--set", "workload.framework=torch_sdpa"),
    ("rules", "list", "--rules", "r"), ("rules", "list", "--rules", "r", "--format", "json"), ("rules", "test", "r"),
    *(("rules", "show", "X007", "--rules", "r", "--format", form) for form in ("text", "json", "markdown")),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_secret_leaves_in_any_output(full_of_secrets: Path, doctor: Doctor, command: tuple[str, ...]) -> None:
    ran = doctor(*command)
    assert ran.out or ran.err
    assert not leaks(ran.out + ran.err)
    if "--format" in command and command[-1] == "json" and ran.out:
        json.loads(ran.out)
    if (
        "--output" not in command
        and command[0] in ("check", "fix", "diff")
        and "--diff" not in command
        and "--pin" not in command
    ):
        doctor(*command, "--output", "answer")
        if Path("answer").exists():
            assert not leaks(Path("answer").read_text())


@pytest.mark.parametrize("form", ["text", "json"])
def test_explain_quotes_no_secret(full_of_secrets: Path, doctor: Doctor, form: str) -> None:
    quoted = 0
    for number, text in enumerate(TEXTS):
        log = full_of_secrets / "job.log"
        log.write_text(
            f"RuntimeError: {text}\nshown by line {number} of {text}\n{'x' * 150} {text}\nRuntimeError: {text}\n"
        )
        for more in ((), ("--rules", "r")):
            ran = doctor("explain", "job.log", "--format", form, *more)
            quoted += "RuntimeError" in ran.out
            assert not leaks(ran.out + ran.err), text
    assert quoted


@pytest.mark.parametrize("number", range(len(TEXTS)), ids=list(SHAPES))
def test_errors_quote_no_secret(full_of_secrets: Path, doctor: Doctor, number: int) -> None:
    text = TEXTS[number]
    (full_of_secrets / "r.txt").write_text(f"{text}\n-r {text}\n")
    (full_of_secrets / "w.yaml").write_text(json.dumps({"dtype": text, "head_dim": text}))
    commands: list[tuple[str, ...]] = [
        ("check", "--facts", "facts.json", "--set", f"torch.version={text}"), ("check", "--set", text), ("keys", text),
        ("check", "--facts", text), ("check", "--requirements", text), ("check", "--requirements", "r.txt"),
        ("check", "--facts", "facts.json", "--workload", "w.yaml"), ("explain", text), ("rules", "show", text),
        ("check", "--facts", "facts.json", "--gpu", text), (text,), ("check", f"--{text}"), ("check", "--python", text),
    ]  # fmt: skip
    for command in commands:
        ran = doctor(*command)
        assert (ran.out or ran.err) and not leaks(ran.out + ran.err), command


def test_variables_that_hold_a_secret_are_not_read(
    project: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"NVTE_X{number}" for number in range(len(TEXTS))] + ["NVTE_BEARER", "VLLM_SIGNKEY", "NVTE_Y", "NVTE_Z"]
    values = [*TEXTS, SECRETS[0], SECRETS[1], f"Basic {SECRETS[2]}", json.dumps({"token": SECRETS[3]})]
    for name, value in zip(names, values, strict=True):
        monkeypatch.setenv(name, value)
    for output in (("--output", "-"), ("--output", "s.json")):
        ran = doctor("snapshot", *output)
        text = ran.out or (project / "s.json").read_text()
        assert "NVTE_X0" in text and not leaks(text + ran.err)


def test_one_module_writes_to_the_terminal() -> None:
    """Whatever writes elsewhere would go past the redaction."""
    writes = re.compile(
        r"sys\.(?:__)?std(?:out|err)(?:__)?\.(?:buffer\.)?write|(?<!\.)\bprint\(|(?<!\.)\becho\(|os\.write\([12],"
    )
    found = {
        path.relative_to(ROOT / "doctor").as_posix()
        for path in (ROOT / "doctor").rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if writes.search(line)
    }
    in_a_target = {"sources/probes/interpreter.py", "apply/install/location.py"}  # programs that another Python runs
    assert found - in_a_target == {"cli/streams.py"}
