"""Every command that examines an environment reads the project's section, and examines what `check` examines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli
from doctor.cli.main import COMMANDS, command_of
from doctor.diagnosis import cases, examine
from doctor.diagnosis.request import Request
from doctor.drift.findings import Certainty, DriftReport, Finding, Kind, Location, Reach, Release, Severity

#: Command that takes a TARGET -> its arguments, where it examines what `check` examines.
LIKE_CHECK = {
    "check": ("check", "--no-run"), "fix": ("fix",),
    "backends": ("backends",), "matrix": ("matrix",), "wheels": ("wheels", "flash-attn"),
}  # fmt: skip
#: Command that takes a TARGET -> why it examines something else.
OTHERS = {
    "drift": "reads installed sources: it refuses a project that is only declared",
    "stress": "runs kernels: it needs an interpreter",
    "snapshot": "saves the facts of this machine",
    "explain": "a log needs no environment",
    "fleet": "examines nodes",
    "fleet probe": "examines this node",
    "fleet manifest": "examines nodes",
    "fleet prolog": "examines this node",
    "fleet stress": "runs kernels on nodes",
}
PINS = "torch==2.6.0\ntransformer-engine==2.3.0\nflash-attn==2.7.4.post1\n"
JOB = '{framework = "transformer_engine", mask = "causal", head_dim_qk = 128, dtype = "bfloat16"}'


def with_target() -> Iterator[str]:
    for name in COMMANDS:
        command = command_of(name)
        group = getattr(command, "commands", {})
        for title, one in [(name, command), *((f"{name} {action}", group[action]) for action in group)]:
            if any({"--python", "--requirements"} & set(item.opts) for item in one.params):
                yield title


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A project as the current folder; the files of each environment that a command examines."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "serve.txt"):
        (tmp_path / name).write_text(PINS)
    found: list[tuple[str, ...]] = []
    real = examine.environment_of

    def recorded(request: Request, *rest: Any) -> Any:
        found.append(request.declared)
        return real(request, *rest)

    monkeypatch.setattr(examine, "environment_of", recorded)
    monkeypatch.setattr(cases, "environment_of", recorded)
    return found


def project(environment: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.attn-doctor]\ngpu = ['h100']\nworkload = {JOB}\n{environment}\n")


def test_every_command_with_a_target_is_examined_here() -> None:
    assert set(with_target()) == set(LIKE_CHECK) | set(OTHERS)


@pytest.mark.parametrize("name", LIKE_CHECK)
@pytest.mark.parametrize(
    ("section", "files"),
    [
        ("requirements = ['train.txt']", [("train.txt",)]),
        ("requirements = ['train.txt', 'serve.txt']", [("train.txt", "serve.txt")]),
        ("environments = {train = 'train.txt'}", [("train.txt",)]),
        ("environments = {train = 'train.txt', serve = 'serve.txt'}", [("train.txt",), ("serve.txt",)]),
    ],
)
def test_a_command_examines_what_check_examines(
    name: str, section: str, files: list[tuple[str, ...]], examined: list[tuple[str, ...]]
) -> None:
    project(section)
    assert cli.run(LIKE_CHECK[name]) in (0, 1)
    whole = name in ("check", "fix")  # they judge every environment, the others the first
    assert examined == (files if whole else files[:1])


@pytest.mark.parametrize("name", LIKE_CHECK)
def test_a_named_target_wins(name: str, examined: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    project("requirements = ['train.txt']")
    assert cli.run([*LIKE_CHECK[name], "--requirements", "serve.txt"]) in (0, 1)
    assert examined == [("serve.txt",)]


def test_fix_examines_what_check_examines_after_init(
    examined: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.txt").rename("requirements.txt")
    assert cli.run(["init"]) == 0
    found = {}
    for command in ("check", "fix"):
        examined.clear()
        cli.run([command, *(("--no-run",) if command == "check" else ())])
        found[command] = list(examined)
    assert found["fix"] == found["check"] != [()]


def test_every_gpu_and_job_of_the_project_is_judged_by_check_and_fix(
    examined: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    project("requirements = ['train.txt']")
    Path("pyproject.toml").write_text(Path("pyproject.toml").read_text().replace("['h100']", "['v100', 'h100']"))
    found = {}
    for words in (("check", "--no-run"), ("fix",)):
        capsys.readouterr()
        cli.run([*words, "--format", "json"])
        found[words[0]] = {item["id"] for item in json.loads(capsys.readouterr().out)["findings"]}
    assert found["fix"] == found["check"] != set()


@pytest.mark.parametrize("option", ["--apply", "--rollback"])
def test_what_installs_needs_an_interpreter(
    option: str, examined: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    project("requirements = ['train.txt']")
    assert cli.run(["fix", option]) == 2
    assert "`requirements` of the project's section" in (err := capsys.readouterr().err) and "--python PATH" in err


def test_drift_needs_installed_sources(examined: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    project("requirements = ['train.txt']")
    assert cli.run(["drift"]) == 3
    assert "declared in train.txt" in (err := capsys.readouterr().err) and "--python PATH" in err
    project("environments = {train = 'train.txt'}")
    assert cli.run(["drift"]) == 3


def test_drift_reads_severity_job_and_ignored_codes_of_the_project(
    examined: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use = Finding(
        kind=Kind.MISSING_NAME, severity=Severity.WARNING, certainty=next(iter(Certainty)), reach=Reach.IMPORT,
        caller=Release("a", "1"), callee=Release("b", "2"), symbol="b.c", name="c", message="b has no c",
        site=Location("a.py", 1), scope="f", definition=None, signature="",
    )  # fmt: skip
    requests = []

    def analyzed(request: Any, on_step: Any) -> DriftReport:
        requests.append(request)
        return DriftReport((), (use,))

    monkeypatch.setattr("doctor.cli.drift.analyze", analyzed)
    base = "[tool.attn-doctor]\nfail-on = 'warning'\nworkload = {cp_size = 2}\n"
    Path("pyproject.toml").write_text(base)
    assert cli.run(["drift"]) == 1
    assert requests[0].context_parallel is True
    Path("pyproject.toml").write_text(
        f"{base}[[tool.attn-doctor.ignore]]\nrule = '{use.code}'\nreason = 'is rewritten'\nuntil = 2999-01-01\n"
    )
    capsys.readouterr()
    assert cli.run(["drift"]) == 0
    out = capsys.readouterr().out
    assert "b has no c" not in out and f"{use.code}: is ignored by this project: is rewritten" in out


def test_rules_of_the_project_are_shown(examined: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("ours") / "acme"
    folder.mkdir(parents=True)
    (folder / "ACME001.yaml").write_text(
        "{id: ACME001, name: n, severity: warning, summary: too old, references: [x], when: {acme.version: present}}"
    )
    Path("pyproject.toml").write_text("[tool.attn-doctor]\nrules = ['ours']\n")
    assert cli.run(["rules", "show", "ACME001"]) == 0
    assert cli.run(["rules", "list", "ACME001"]) == 0
    assert "too old" in capsys.readouterr().out
