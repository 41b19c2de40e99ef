"""One test per promise of SECURITY.md, named after it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.apply.install.installers import find_installer
from doctor.cli import mcp
from doctor.errors import DoctorError
from doctor.rulebook import cache
from doctor.rulebook.schema import read_source
from doctor.runner.batch import environment_of
from doctor.runner.command import run_child
from doctor.stress.fleet import slurm_engine
from doctor.util.reading import WRITER_WAIT

from .conftest import FACTS, ROOT, SECRET, Doctor, rule, rules_folder

PROMISES = sorted(set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text())))


@pytest.mark.parametrize("name", PROMISES)
def test_every_promise_has_its_test(name: str) -> None:
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if f"def {name}(" in path.read_text()]
    assert found


def test_code_of_the_project_is_never_run(project: Path, doctor: Doctor) -> None:
    marker = project / "RAN"
    code = f"open({str(marker)!r}, 'w').write('x')\n"
    for name in ("setup.py", "conftest.py", "sitecustomize.py", "usercustomize.py", "yaml.py", "json.py", "torch.py"):
        (project / name).write_text(code)
    (project / "doctor").mkdir()
    (project / "doctor" / "__init__.py").write_text(code)
    (project / "requirements.txt").write_text("torch==2.6.0\nflash-attn==2.7.4.post1 $(touch RAN)\n-e .\n")
    (project / "job.sh").write_text("#!/bin/sh\ntouch RAN\npip install torch==2.6.0 `touch RAN`\n")
    (project / "Dockerfile").write_text("FROM python:3.11\nRUN touch RAN && pip install torch==2.6.0\n")
    for target in (".", "requirements.txt", "job.sh", "Dockerfile"):
        doctor("check", "--requirements", target, "--gpu", "h100")
    doctor("init", "--dry-run")
    assert not marker.exists()


@pytest.fixture
def project_of_traps(project: Path) -> Path:
    """A checkout whose modules hide those of Python, pip and this program, and leave a file when they run."""
    for name in ("json", "pip", "venv", "runpy", "subprocess", "typer", "yaml"):
        (project / f"{name}.py").write_text(f"open({str(project / 'RAN')!r}, 'w').write({name!r})\n")
    (project / "doctor").mkdir()
    (project / "doctor" / "__init__.py").write_text(f"open({str(project / 'RAN')!r}, 'w')\n")
    return project


def test_no_process_of_ours_imports_from_the_project(project_of_traps: Path) -> None:
    site = project_of_traps / "site"
    for name, version, code in (("peft", "0.1", "from flash_attn.x import gone\n"), ("flash_attn", "2.7.4", "")):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(code)
        (site / f"{name}-{version}.dist-info").mkdir()
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n\n")
    (site / "flash_attn" / "x.py").write_text("def f(): pass\n")
    for command in (["drift", "--no-cache"], ["check", "--no-run"]):  # both start processes that read sources
        code = f"import sys; sys.path[0] = {str(ROOT)!r}; from doctor.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "--site-packages", site], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and "gone" in done.stdout, done.stderr
    assert not (project_of_traps / "RAN").exists()


def test_the_module_as_a_program_imports_nothing_from_the_project(project_of_traps: Path) -> None:
    (project_of_traps / "runpy.py").unlink()  # `-m` itself takes these two from the current folder
    (project_of_traps / "doctor" / "__init__.py").unlink()
    (project_of_traps / "doctor").rmdir()
    done = subprocess.run(
        [sys.executable, "-m", "doctor", "keys", "dtype"], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "workload.dtype" in done.stdout, done.stderr
    assert not (project_of_traps / "RAN").exists()


def test_an_installer_imports_nothing_from_the_project(project_of_traps: Path) -> None:
    installer, why = find_installer(sys.executable, "pip")
    assert installer is not None, why
    assert run_child([sys.executable, "-m", "venv", "--help"], timeout=60).good
    assert not (project_of_traps / "RAN").exists()


def test_a_tool_for_agents_imports_nothing_from_the_project(project_of_traps: Path) -> None:
    assert json.loads(mcp.run_doctor(["keys", "--format=json", "dtype"]))
    command = slurm_engine.probe_command(["node1"], ["probe", "--help"])
    own = command[command.index(sys.executable) :]
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "probe" in done.stdout, done.stderr
    assert not (project_of_traps / "RAN").exists()


def test_installed_packages_are_not_imported(project: Path, doctor: Doctor) -> None:
    site = project / "site"
    (site / "torch-2.6.0.dist-info").mkdir(parents=True)
    (site / "torch-2.6.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.6.0\n\n")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("open('RAN', 'w')")
    (site / "evil.pth").write_text("import os; open('RAN', 'w')\n")
    assert doctor("check", "--no-run", "--site-packages", site).code == 0
    assert not (project / "RAN").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONPATH": "evil"}, {"LD_PRELOAD": "./evil.so"}, {"NVTE_CUDA_INCLUDE_PATH": "evil"}, {"NVTE_X": "/tmp/evil"},
        {"TORCH_EXTENSIONS_DIR": "x"}, {"BASH_ENV": "x"}, {"PATH": "."}, {"TRITON_CACHE_DIR": "x"}, {"A=B": "1"},
    ],
)  # fmt: skip
def test_a_rule_sets_no_variable_that_runs_code(project: Path, variables: dict[str, str]) -> None:
    folder = rules_folder(project, rule(confirm={"kernel": "sdpa", "request": {"env": variables}}))
    with pytest.raises(DoctorError, match="a kernel does not take the variable") as refused:
        read_source(folder / "madeup" / "X001.yaml")
    assert next(iter(variables)) in refused.value.message
    assert environment_of({"env": variables}) == ()  # also of a request that came another way
    assert environment_of({"env": {"NVTE_FLASH_ATTN": "0"}}) == (("NVTE_FLASH_ATTN", "0"),)


def test_a_script_runs_no_text_of_a_foreign_rule(project: Path, doctor: Doctor) -> None:
    call = "pip install $(touch PWNED) ; touch PWNED\npython x.py\ntouch PWNED"
    folder = rules_folder(project, rule(fix=[{"call": call, "set_env": {"NVTE_X": "1"}, "unset_env": ["NVTE_Y"]}]))
    for form in ("shell", "docker"):
        ran = doctor("fix", "--facts", FACTS, "--rules", folder, "--format", form)
        lines = [line for line in ran.out.splitlines() if re.search("PWNED|NVTE_[XY]", line)]
        assert lines and all(line.startswith("#") for line in lines), ran.out


def test_names_of_variables_are_validated(project: Path) -> None:
    for fix in ({"set_env": {"FOO; touch PWNED; X": "1"}}, {"unset_env": ["A$(id)"]}, {"set_env": {"1A": "x"}}):
        folder = rules_folder(project, rule(fix=[fix]))
        with pytest.raises(DoctorError, match="is not the name of an environment variable"):
            read_source(folder / "madeup" / "X001.yaml")


@pytest.mark.parametrize("key", ["requirements", "model", "workload", "rules"])
@pytest.mark.parametrize("way", ["path", "link"])
def test_paths_of_the_project_stay_inside_it(project: Path, doctor: Doctor, key: str, way: str) -> None:
    name = "../home/.netrc" if key != "rules" else "../home"
    if way == "link":
        (project / "inside.txt").symlink_to(project / name)
        name = "inside.txt"
    (project / "pyproject.toml").write_text(f'[tool.attn-doctor]\ngpu = "h100"\n{key} = ["{name}"]\n')
    for more in ((), ("--format", "github"), ("--requirements", ".")):
        ran = doctor("check", "--no-run", *more)
        assert ran.code == 2 and "outside the project" in ran.err and "pyproject.toml:3" in ran.err
        assert SECRET not in ran.out + ran.err
    assert "outside the project" not in doctor("check", "--no-run", "--trust-project").err


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--requirements", "link.txt"), ("fix", "--requirements", "link.txt", "--write"),
        ("check", "--facts", "link.txt"), ("check", "--facts", str(FACTS), "--model", "link.txt"),
        ("check", "--facts", str(FACTS), "--workload", "link.txt"), ("check", "--facts", str(FACTS), "--baseline", "link.txt"),
        ("fix", "--facts", str(FACTS), "--constraint", "link.txt", "--pin"),
    ],
)  # fmt: skip
def test_links_of_the_project_stay_inside_it(project: Path, doctor: Doctor, arguments: tuple[str, ...]) -> None:
    (project / "link.txt").symlink_to(project / "../home/.netrc")
    ran = doctor(*arguments)
    assert ran.code == 2 and "leads out of the project" in ran.err and "--trust-project" in ran.err
    assert SECRET not in ran.out + ran.err


@pytest.mark.parametrize(
    "arguments", [("check",), ("check", "--requirements", "other/requirements.txt"), ("fix",), ("snapshot", "-o", "-")]
)
@pytest.mark.parametrize("name", ["other", "requirements"])
def test_a_linked_folder_is_no_project_of_its_own(
    project: Path, doctor: Doctor, arguments: tuple[str, ...], name: str
) -> None:
    (project / "../home/.git").mkdir()
    (project / "../home/requirements.txt").write_text(f"torch==2.6.0\n{SECRET}==1.0\n{SECRET} is no requirement\n")
    (project / name).symlink_to(project / "../home", target_is_directory=True)
    (project / "requirements.txt").write_text("torch==2.6.0\n")
    ran = doctor(*(word.replace("other", name) for word in arguments))
    assert SECRET not in ran.out + ran.err
    assert ("leads out of the project" in ran.err) is ("--requirements" in arguments) or name == "requirements"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check",), ("check", "--requirements", "."), ("check", "--requirements", "requirements.txt"), ("fix",),
        ("check", "--facts", "requirements.txt"), ("snapshot", "--requirements", "requirements.txt", "-o", "-"),
    ],
)  # fmt: skip
def test_links_of_a_tree_without_a_project_stay_inside_it(
    project: Path, doctor: Doctor, arguments: tuple[str, ...]
) -> None:
    (project / ".git").rmdir()
    (project / "requirements.txt").symlink_to(project / "../home/.netrc")
    ran = doctor(*arguments)
    assert ran.code in (2, 3) and SECRET not in ran.out + ran.err and "machine github.com" not in ran.out + ran.err


def test_links_in_a_cache_of_models_are_followed(project: Path, doctor: Doctor) -> None:
    (project / ".git").rmdir()
    model = project / "models--a--b"
    (model / "blobs").mkdir(parents=True)
    (model / "snapshots/1").mkdir(parents=True)
    (model / "blobs/0").write_text('{"model_type": "llama"}')
    (model / "snapshots/1/config.json").symlink_to("../../blobs/0")
    ran = doctor("check", "--no-run", "--facts", FACTS, "--model", model / "snapshots/1/config.json")
    assert "leads out" not in ran.err and ran.code in (0, 1)


def test_included_files_stay_inside_the_project(project: Path, doctor: Doctor) -> None:
    (project / "constraints.txt").write_text("-c ../home/.netrc\n")
    ran = doctor("fix", "--facts", FACTS, "--constraint", "constraints.txt", "--pin")
    assert ran.code == 2 and "outside the project" in ran.err and SECRET not in ran.out + ran.err
    (project / "requirements.txt").write_text("torch==2.6.0\n-r ../home/.netrc\n")
    ran = doctor("check", "--requirements", "requirements.txt", "--gpu", "h100")
    assert "outside the project" in ran.err and SECRET not in ran.out + ran.err


CREDENTIALS = (
    f"flash-attn @ https://bob:{SECRET}@example.org/flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl",
    f"xformers @ git+https://{SECRET}@github.com/x/y@v0.0.29", f"--extra-index-url https://u:{SECRET}@h.example/simple",
    "vllm @ https://h.example/vllm-0.8.0-cp311-cp311-linux_x86_64.whl?X-Amz-Signature=" + SECRET,
    f"apex @ git+https://ghp_{SECRET}0123456789abcdef@github.com/x/apex",
)  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        "text",
        "json",
        "html",
        "snapshot",
        *(pytest.param(form, marks=pytest.mark.slow) for form in ("sarif", "junit", "github", "gitlab", "markdown")),
    ],
)
def test_credentials_leave_in_no_output(project: Path, doctor: Doctor, form: str) -> None:
    (project / "requirements.txt").write_text("torch==2.6.0\n" + "\n".join(CREDENTIALS) + "\n")
    command = (
        ("snapshot", "--output", "-") if form == "snapshot" else ("check", "--no-run", "--verbose", "--format", form)
    )
    ran = doctor(*command, "--requirements", "requirements.txt")
    assert ran.out and SECRET not in ran.out + ran.err
    ran = doctor("fix", "--requirements", "requirements.txt", "--gpu", "h100", "--diff")
    assert SECRET not in ran.out + ran.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVTE_DB_PASS", SECRET), ("NVTE_PASSPHRASE", SECRET), ("NVTE_URL", f"https://{SECRET}@h"), ("NVTE_KEY", SECRET),
        ("VLLM_HOST", f"user:{SECRET}@h"), ("VLLM_CACHE", f"s3://b?token={SECRET}"), ("NVTE_X", f"ghp_{SECRET}123456789"),
    ],
)  # fmt: skip
def test_secret_variables_are_not_read(
    project: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    ran = doctor("snapshot", "--output", "-")
    assert ran.json["facts"][f"env.{name}"]["value"] is None and SECRET not in ran.out
    (project / "facts.json").write_text(json.dumps({"torch.version": "2.6.0", f"env.{name}": value}))
    (project / "job.sh").write_text(f"#!/bin/sh\nexport {name}='{value}'\npip install torch==2.6.0\n")
    (project / "Dockerfile").write_text(
        f"FROM python:3.11\nENV {name}={value}\nRUN {name}={value} pip install torch==2.6.0\n"
    )
    for more in (("--facts", "facts.json"), ("--requirements", "job.sh"), ("--requirements", "Dockerfile")):
        assert SECRET not in doctor("snapshot", "--output", "-", *more).out


def _everything() -> list[tuple[str, dict[str, object]]]:
    found = cache.load_compiled(cache.rule_folders())
    return [(path, dict(body)) for section in found.sections for path, body in section.rules]


def test_the_cache_is_data_and_ours(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "rules_dir", lambda: ROOT / "rules" / "triton")
    truth = _everything()
    (file,) = (tmp_path / "cache" / "attn-doctor").glob("rules-*")
    good = file.read_bytes()
    head, _, body = good.partition(b"\n")
    emptied = json.dumps({**json.loads(head), "digest": hashlib.sha256(b"[]\n[]").hexdigest()}).encode() + b"\n[]\n[]"
    nested = (
        json.dumps({**json.loads(head), "digest": hashlib.sha256(b"[" * 100_000).hexdigest()}).encode()
        + b"\n"
        + b"[" * 100_000
    )
    for poison in (
        b"",
        b"\0" * 100,
        good[:-7],
        head + b"\n[]",
        body,
        b"[" * 100_000,
        good.replace(b"TRITON", b"TRITOM"),
        nested,
    ):
        file.write_bytes(poison)
        assert _everything() == truth
    file.write_bytes(emptied)
    file.chmod(0o666)  # others may have written it
    assert _everything() == truth
    makers: tuple[Callable[[Path], object], ...] = (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir)
    for special in makers:
        file.unlink()
        special(file)
        assert _everything() == truth
        if file.is_dir():
            file.rmdir()
            file.touch()


ESCAPE = "\x1b[31m\x9b2J\u202eX"


def _is_clean(text: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)


def test_control_characters_are_spelled_out(project: Path, doctor: Doctor) -> None:
    evil = rule(
        summary=f"Made up {ESCAPE}", message=f"{ESCAPE} message {{gpu.name}}", why=f"why {ESCAPE}",
        references=[f"https://example.org/{ESCAPE}\"><script>alert(1)</script>"], fix=[{"call": f"x = '{ESCAPE}'"}],
        tests={f"name {ESCAPE}": {"given": {"torch.version": "0.1"}, "expect": "fires"}},
    )  # fmt: skip
    folder = rules_folder(project, evil)
    facts = {"facts": {"torch.version": "2.6.0", "gpu.name": f"A100 {ESCAPE}", "gpu.sm": "8.0"}}
    (project / "facts.json").write_text(json.dumps(facts))
    commands = [
        ("rules", "list", "--rules", folder),
        *(("rules", "show", "X001", "--format", form, "--rules", folder) for form in ("markdown", "json")),
        ("rules", "test", folder), ("fix", "--facts", "facts.json", "--rules", folder, "--pin"),
        *(("fix", "--facts", "facts.json", "--rules", folder, "--format", form) for form in ("text", "shell")),
        *(("check", "--facts", "facts.json", "--rules", folder, "--format", form)
          for form in ("text", "github", "markdown")),
        ("snapshot", "--facts", "facts.json", "--output", "-"),
    ]  # fmt: skip
    for command in commands:
        ran = doctor(*command)
        assert ran.out and _is_clean(ran.out + ran.err), command
        if "json" in command or "snapshot" in command:
            json.loads(ran.out)
        if "markdown" in command:
            assert not re.search(r"(?<!\\)<script", ran.out)


def test_no_workflow_command_of_the_project_reaches_the_log(
    project: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    folder = project / "e\x1b[31m\n::error::q"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch==2.6.0", "xformers==0.0.35"]\n'
        'description = """\n::error::context\n##[error]x\n"""\n'
    )
    for way in ("--diff", "--write"):
        ran = doctor("fix", "--requirements", folder / "pyproject.toml", "--gpu", "h100", way)
        assert "context" in ran.out and "+++" in ran.out, ran.out + ran.err
        assert _is_clean(ran.out + ran.err) and not re.search(r"(?m)^\s*::|##\[", ran.out + ran.err)


@pytest.mark.parametrize(
    "kind", ["pipe", "device", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("loop", "folder", "socket"))]
)
@pytest.mark.parametrize(
    "option",
    ["--facts", "--requirements", "--model", "--workload", "--baseline", "--constraint", "--batch", "explain", "diff",
     "fleet", "--expect"],
)  # fmt: skip
def test_only_regular_files_are_read(project: Path, doctor: Doctor, kind: str, option: str) -> None:
    path = project / "input.txt"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    commands = {
        "--constraint": ("fix", "--facts", FACTS, option, path), "--batch": ("backends", option, path),
        "explain": ("explain", path), "diff": ("diff", FACTS, path), "fleet": ("fleet", "--snapshots", path),
        "--expect": ("fleet", "--snapshots", FACTS, option, path),
    }  # fmt: skip
    more = ("--facts", FACTS) if option in ("--model", "--workload", "--baseline") else ()
    if (option, kind) in (("--expect", "folder"), ("--expect", "loop"), ("fleet", "folder")):
        return  # the name of a node, and a folder of snapshots
    ran = doctor(*commands.get(option, ("check", "--no-run", *more, option, path)))
    if kind == "device" and option == "explain":
        assert ran.code == 2, ran.err
        return
    assert ran.code == 2 and ("input.txt" in ran.err or "/dev/zero" in ran.err or "batch" in ran.err), ran.err


def test_a_pipe_that_the_command_line_names_is_read(project: Path, doctor: Doctor) -> None:
    (project / "facts.yaml").write_text("torch.version: 2.6.0\n")
    with os.fdopen(os.popen("sleep 0.3; cat facts.yaml").fileno(), closefd=False) as pipe:
        assert doctor("check", "--no-run", "--facts", f"/dev/fd/{pipe.fileno()}").code == 0
    assert WRITER_WAIT <= 5


@pytest.mark.parametrize(
    "name", ["inc.txt", "site/torch/version.py", "pyproject.toml", "site/torch-2.6.0.dist-info/METADATA"]
)
def test_pipes_inside_the_project_are_not_read(project: Path, doctor: Doctor, name: str) -> None:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    (project / "requirements.txt").write_text("torch==2.6.0\n-r inc.txt\n")
    (project / "site" / "torch-2.6.0.dist-info").mkdir(parents=True, exist_ok=True)
    target = ("--site-packages", "site") if name.startswith("site") else ("--requirements", "requirements.txt")
    assert doctor("check", "--no-run", *target).code in (0, 2)


@pytest.mark.parametrize(
    "command",
    [
        "--help", f"fix --facts {FACTS} --pin",
        *(pytest.param(command, marks=pytest.mark.slow) for command in (
            "--version", "rules", "keys", "rules list", f"rules test {ROOT / 'rules' / 'triton'}", f"backends --facts {FACTS}",
            "fix --requirements requirements.txt --gpu h100 --write", f"check --no-run --facts {FACTS}",
        )),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_written_is_one_line(project: Path, command: str) -> None:
    (project / "requirements.txt").write_text("torch==2.6.0\nflash-attn==2.7.4.post1\nxformers==0.0.35\n")
    script = "import sys; from doctor.cli.main import main; main(sys.argv[1:])"
    code = os.system(f"{sys.executable} -c '{script}' {command} > /dev/full 2> err.txt")
    err = Path("err.txt").read_text()
    assert os.waitstatus_to_exitcode(code) == 3, err
    assert "cannot write the answer: no space left on device" in err and "fault of" not in err, err
