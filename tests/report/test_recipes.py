"""A fix as a shell script, Dockerfile lines, uv's tables, conda's lines: what is to be done, else a comment."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact
from doctor.model import Change, Facts, Finding, Fix, Remedy, Report, Severity, Verdict
from doctor.report.fix_text import alternative_lines, fix_lines
from doctor.report.formats import renderer
from doctor.report.requirements import render_pins
from doctor.report.style import Style
from doctor.rulebook.evaluate import evaluate
from doctor.solver.limits import Limits
from doctor.solver.solve import solve
from doctor.sources.manifests.read import read_manifests
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.recipes import read_job
from tests.helpers.onefix import planned
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples" / "incidents"
RECIPES = ["shell", "docker", "uv", "conda"]
CU126 = "https://download.pytorch.org/whl/cu126"

CHANGES = (
    Change("package", "torch", "2.6.0", "2.7.1", "why", ("X001",)),
    Change("package", "nvidia-cudnn-cu13", "9.19.0.56", None, "why", ("X001",)),
    Change("env", "NVTE_FUSED_ATTN", None, "0 1", "why", ("X001",)),
    Change("env", "NVTE_UNFUSED_ATTN", "0", None, "why", ("X001",)),
    Change("config", "cp_comm_type", "all_gather", "p2p", "why", ("X001",)),
    Change("call", "q = q.contiguous()", None, "q = q.contiguous()", "why", ("X001",)),
)


def show(name: str, *changes: Change, note: str | None = None) -> str:
    fixes = (planned(Fix("Do it", changes, ("X001",), ("Y001",), note=note), Facts()),) if changes else ()
    finding = Finding("X001", "n", Severity.ERROR, Verdict.FIRES, "S", "M", "", (), ())
    return renderer(name, "fixes")(Report("t", {}, Facts(), (finding,), (), fixes, (), {}), Style())


def test_a_script_does_what_the_fix_says():
    lines = show("shell", *CHANGES).splitlines()
    assert lines[0] == "#!/bin/sh" and "# Do it" in lines and "# leaves Y001" in lines
    assert [line for line in lines if not line.startswith("#")] == [
        "pip uninstall --yes nvidia-cudnn-cu13",
        "pip install torch==2.7.1",
        "pip install --force-reinstall --no-deps nvidia-cudnn-cu12==9.5.1.17",  # its files went with the other's
        "unset NVTE_UNFUSED_ATTN",
        "export NVTE_FUSED_ATTN='0 1'",
    ]
    assert "# q = q.contiguous()" in lines


def test_a_shell_reads_it_and_has_the_variables():
    script = show("shell", *CHANGES[2:]) + 'printf "%s|%s" "$NVTE_FUSED_ATTN" "$NVTE_UNFUSED_ATTN"\n'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={"NVTE_UNFUSED_ATTN": "0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1|", "")


def test_a_dockerfile_has_only_instructions_and_comments():
    lines = show("docker", *CHANGES).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "RUN pip uninstall --yes nvidia-cudnn-cu13",
        "RUN pip install torch==2.7.1",
        "RUN pip install --force-reinstall --no-deps nvidia-cudnn-cu12==9.5.1.17",
        "ENV NVTE_FUSED_ATTN='0 1'",
    ]
    assert "# remove the ENV lines of NVTE_UNFUSED_ATTN" in lines


@pytest.mark.parametrize(("name", "lead"), [("shell", ""), ("docker", "RUN ")])
def test_what_is_compiled_is_compiled_again_where_torch_moves_and_what_stays_is_held(name: str, lead: str):
    """`pip install torch==2.8.0` alone leaves extensions that met another torch."""
    lines = [line for line in fragment(name, upgrade("b")).splitlines() if not line.startswith("#")]
    anew = "--no-build-isolation --force-reinstall --no-deps --no-cache-dir"
    assert lines == [
        f"{lead}pip install torch==2.8.0 megatron-core==0.11.0 transformer-engine==2.3.0",
        f"{lead}pip install ninja packaging psutil setuptools wheel",
        f"{lead}pip install {anew} flash-attn==2.7.4.post1 transformer-engine-torch==2.3.0",
    ]
    lines = [line for line in fragment(name, upgrade("a")).splitlines() if not line.startswith("#")]
    assert lines[0] == f"{lead}pip install transformer-engine==2.1.0 torch==2.4.1 megatron-core==0.9.0"
    assert lines[-1] == f"{lead}pip install --no-build-isolation transformer-engine-torch==2.1.0"
    report = incident("d")
    compiled = next(fix for fix in report.fixes if fix.changes_packages)
    lines = fragment(name, report._replace(fixes=(compiled,))).splitlines()
    wheel = next(line for line in lines if "cu12torch2.8cxx11abiTRUE-cp312" in line)
    assert wheel.endswith(" || pip install --no-build-isolation --no-cache-dir flash-attn==2.8.3")


ANEW = "pip install --no-build-isolation --force-reinstall --no-deps --no-cache-dir"


@pytest.mark.parametrize("command", ["fixes", "diagnosis"])
@pytest.mark.parametrize("name", ["text", "markdown", "json", "html"])
def test_every_report_shows_what_is_built_again_after_what_comes(name: str, command: str):
    """The same lines as the script's, but for what is held; each of several ways its own."""
    if name == "html" and command == "fixes":
        pytest.skip("a page shows the whole report")
    wanted = [
        "pip install torch==2.8.0",
        f"{ANEW} flash-attn==2.7.4.post1 transformer-engine-torch==2.3.0",
        "pip install --extra-index-url https://download.pytorch.org/whl/cu126 torch==2.6.0+cu126",
        f"{ANEW} transformer-engine-torch==2.3.0",
    ]
    text = renderer(name, command)(upgrade("b"), Style())
    if name == "json":
        text = "\n".join(line for fix in json.loads(text)["fixes"] for line in fix["commands"])
    if (name, command) == ("text", "diagnosis"):
        wanted = wanted[:2]  # the report shows the commands of the first fix; `fix` shows all
    place = 0
    for line in wanted:
        place = text.find(line, place) + 1
        assert place, line


def test_what_no_registry_has_is_reported_and_not_installed():
    """apex in the registry is another package; mamba-ssm's source is there, and none of ours says what it needs."""
    found = upgrade("b", ("apex.version", "0.1"), ("mamba-ssm.version", "2.2.4+cu122torch2.3"))
    script = renderer("shell", "fixes")(found, Style())
    assert f"{ANEW} flash-attn==2.7.4.post1 mamba-ssm==2.2.4 transformer-engine-torch==2.3.0" in script
    assert "# apex 0.1 was built against the old torch: rebuild it from its source." in script
    assert not any("apex" in line for line in (*script.splitlines(), *fix_lines(found.fixes[0])) if line[0] != "#")
    assert "`apex` were built against the old torch" in (found.fixes[0].note or "")


def test_an_empty_variable_ends_the_script_before_it_does_harm(tmp_path: Path):
    """An empty one would make links in the system's own folder."""
    script = fragment("shell", incident("f"))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 1\n")  # the wheel is not installed
    python.chmod(0o755)
    given = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script + "echo on"], capture_output=True, text=True, env=given, cwd=tmp_path)
    assert done.returncode != 0 and "CUDNN_WHEEL" in done.stderr and "on" not in done.stdout
    (tmp_path / "lib").mkdir()
    python.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    done = subprocess.run(["sh", "-c", script + 'echo "$CUDNN_HOME"'], capture_output=True, text=True, env=given)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n")
    assert (tmp_path / "lib" / "libcudnn.so").is_symlink()
    lines = fragment("docker", incident("f")).splitlines()
    first = lines.index("ARG CUDNN_WHEEL")
    assert lines[first + 1] == 'RUN test -n "$CUDNN_WHEEL"' and first < lines.index('ENV CUDNN_HOME="$CUDNN_WHEEL"')


@pytest.mark.parametrize("name", RECIPES)
def test_no_text_breaks_out_of_its_line(name: str):
    evil = "first\nrm -rf /\n\x1b[31mpip install evil"
    call = Change("call", evil, None, evil, evil, ("X001",))
    for line in show(name, call, note=evil).splitlines():
        assert line.startswith("#"), line


@pytest.mark.parametrize("name", RECIPES)
def test_where_there_is_no_fix_it_says_so_and_does_nothing(name: str):
    assert all(line.startswith("#") for line in show(name).splitlines()) and "no fix for X001" in show(name)


@pytest.mark.parametrize("name", RECIPES)
def test_they_show_fixes_and_nothing_else(name: str):
    with pytest.raises(DoctorError, match="cannot show diagnosis"):
        renderer(name)


# --- another build of torch ---------------------------------------------------------------------------------------


def test_the_index_of_another_build_is_an_extra_one_everywhere():
    """As the only index it would hide every package that PyTorch does not mirror."""
    change = Change("package", "torch", "2.6.0", "2.6.0+cu126", "why", ("X001",))
    given = facts_of(torch="2.6.0")
    fix = planned(Fix("Do it", (change,), ("X001",)), given, CU126)
    report = Report("t", {}, given, (), (), (fix,), (), {})
    shown = [renderer(name, "fixes")(report, Style()) for name in ("text", "markdown", "shell", "docker")]
    shown += [render_pins(report), "\n".join(fix_lines(fix))]
    shown += ["\n".join(alternative_lines(Remedy({"torch": "==2.6.0+cu126"}, index_url=CU126)))]
    for text in shown:
        assert f"--extra-index-url {CU126}" in text and not re.search(r"(?<!extra)-index-url|\s-i\s", text), text


# --- uv -----------------------------------------------------------------------------------------------------------


def facts_of(**installed: str) -> Facts:
    known = {"python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64"}
    known |= {f"{name.replace('_', '-')}.version": version for name, version in installed.items()}
    return Facts(fact(key, value, "test") for key, value in known.items())


@cache
def incident(name: str, *said: tuple[str, str]) -> Report:
    place = EXAMPLES / name
    facts = complete_workload(read_facts(place / "facts.yaml").with_(*read_job(place / "workload.yaml").values()))
    facts = facts.with_(*(fact(key, value, "said") for key, value in said))
    found = evaluate(builtin_rulebook(), facts)
    fixes = solve(builtin_rulebook(), facts, found)
    return Report("attn-doctor", {}, facts, found.findings, found.predictions, fixes, found.undetermined, {})


@cache
def upgrade(name: str, *said: tuple[str, str]) -> Report:
    """The incident with the fixes that change packages, a newer torch first."""
    report = incident(name, *said)
    found = evaluate(builtin_rulebook(), report.facts)
    newer = solve(builtin_rulebook(), report.facts, found, limits=Limits(ranges={"torch": ">=2.7"}))
    fixes = [fix for fix in (*newer, *report.fixes) if fix.changes_packages and not fix.plan.overridden]
    return report._replace(fixes=tuple(fixes))


def tables_of(text: str) -> dict[str, Any]:
    return pytest.importorskip("tomllib").loads(text).get("tool", {}).get("uv", {})


def fragment(name: str, report: Report) -> str:
    return renderer(name, "fixes")(report, Style())


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f"])
def test_every_requirement_of_uv_is_exact_and_says_what_it_clears(name: str):
    text = fragment("uv", incident(name))
    tables = tables_of(text)
    for key in ("override-dependencies", "constraint-dependencies"):
        for item in tables.get(key, ()):
            assert str(Requirement(item).specifier).startswith("==")
    for line in text.splitlines():
        if line.startswith("    "):
            assert re.search(r"  # .*(clears [A-Z]+\d+|installed|follows)", line), line


def test_uv_overrides_what_changes_holds_what_stays_and_builds_what_is_built():
    tables = tables_of(fragment("uv", upgrade("b")))
    assert tables["override-dependencies"] == ["torch==2.8.0"]
    assert "transformer-engine==2.3.0" in tables["constraint-dependencies"]
    assert tables["no-build-isolation-package"] == ["flash-attn", "transformer-engine-torch"]
    assert {"name": "flash-attn", "version": "2.7.4.post1", "requires-dist": ["torch", "einops"]} in tables[
        "dependency-metadata"
    ]
    moved = tables_of(fragment("uv", incident("a")))["override-dependencies"]
    assert moved == ["transformer-engine[pytorch]==2.1.0", "transformer-engine-torch==2.1.0"]  # it replaces extras too


def cu126_fix(**installed: str) -> Report:
    changes = (Change("package", "torch", "2.6.0", "2.6.0+cu126", "why", ("X001",)),)
    given = facts_of(torch="2.6.0", **installed)
    fix = planned(Fix("Do it", changes, ("X001",)), given, CU126)
    return Report("t", {}, given, (), (), (fix,), (), {})


def test_another_build_comes_from_an_index_that_serves_nothing_else():
    tables = tables_of(fragment("uv", cu126_fix(transformers="4.44.0")))
    assert tables["index"] == [{"name": "pytorch-cu126", "url": CU126, "explicit": True}]
    assert tables["sources"] == {"torch": {"index": "pytorch-cu126"}}
    assert tables["override-dependencies"] == ["torch==2.6.0+cu126"]


def test_what_an_override_cannot_do_is_a_command_in_a_comment():
    changes = (
        Change("package", "flash-attn", None, "2.8.3", "why", ("X001",)),
        Change("package", "nvidia-cudnn-cu13", "9.19.0.56", None, "why", ("X001",)),
    )
    given = facts_of(torch="2.8.0", nvidia_cudnn_cu13="9.19.0.56")
    fix = planned(Fix("Do it", changes, ("X001",)), given)
    text = fragment("uv", Report("t", {}, given, (), (), (fix,), (), {}))
    assert "`uv add flash-attn`" in text and "`uv remove nvidia-cudnn-cu13`" in text
    assert "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl" in text


@pytest.mark.parametrize("name", ["a", "c", "d"])
def test_the_wheel_in_a_comment_may_be_uncommented_where_it_is(name: str):
    text = fragment("uv", incident(name))
    assert "flash-attn" not in tables_of(text).get("sources", {})
    bare = re.sub(r"^# (\[tool\.uv\.sources\]|flash-attn = .*)$", r"\1", text, flags=re.MULTILINE)
    assert tables_of(bare)["sources"]["flash-attn"]["url"].endswith(".whl")


def uv(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("uv is not on the path")
    command = [found, "lock", "--no-progress", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def project(folder: Path, text: str, python: str, names: list[str]) -> None:
    head = f'[project]\nname = "job"\nversion = "1"\nrequires-python = "=={python}.*"\ndependencies = {names!r}\n'
    (folder / "pyproject.toml").write_text(head + text)


def locked(folder: Path) -> dict[str, Any]:
    content = pytest.importorskip("tomllib").loads((folder / "uv.lock").read_text())
    return {package["name"]: package for package in content["package"]}


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two package indexes on this machine: one with torch 2.6.0 and another package, one with torch 2.6.0+cu126."""
    root = tmp_path / "indexes"
    files = (("all", "torch", "2.6.0"), ("all", "other", "1.0"), ("whl/cu126", "torch", "2.6.0+cu126"),
             ("whl/cu126", "other", "0.1"))  # fmt: skip
    for place, name, version in files:
        folder = root / place / name
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        link = wheel.name.replace("+", "%2B")
        (folder / "index.html").write_text(f'<!DOCTYPE html><html><a href="{link}">{wheel.name}</a></html>')
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        yield f"{base}/all", f"{base}/whl/cu126"
        server.shutdown()


def test_uv_takes_the_other_build_from_its_index_and_the_rest_from_the_usual_one(tmp_path: Path, indexes):
    usual, pytorch = indexes
    text = fragment("uv", cu126_fix()).replace(CU126, pytorch)
    project(tmp_path, text, "3.11", ["torch==2.6.0", "other"])
    done = uv(tmp_path, "--default-index", usual, "--cache-dir", str(tmp_path / "cache"))
    if "No interpreter found" in done.stderr:
        pytest.skip("no Python 3.11 for uv")
    assert done.returncode == 0, done.stderr
    found = locked(tmp_path)
    assert (found["torch"]["version"], found["torch"]["source"]["registry"]) == ("2.6.0+cu126", pytorch)
    assert (found["other"]["version"], found["other"]["source"]["registry"]) == ("1.0", usual)


@pytest.mark.network
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_uv_locks_a_project_with_the_fragment(tmp_path: Path, name: str):
    text = fragment("uv", incident(name))
    tables = tables_of(text)
    wanted = {
        parsed.name: str(parsed.specifier).removeprefix("==")
        for key in ("override-dependencies", "constraint-dependencies")
        for parsed in map(Requirement, tables.get(key, ()))
    }
    project(tmp_path, text, "3.11", [*wanted])
    done = uv(tmp_path)
    if "No interpreter found" in done.stderr:
        pytest.skip("no Python 3.11 for uv")
    assert done.returncode == 0, done.stderr
    found = locked(tmp_path)
    assert {package: found[package]["version"] for package in wanted} == wanted
    assert not {"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"} <= set(found)


# --- conda --------------------------------------------------------------------------------------------------------


def test_conda_gets_its_own_names_and_pip_the_rest():
    text = fragment("conda", upgrade("b"))
    listed = yaml.safe_load(text)
    assert listed["channels"] == ["conda-forge"]
    *conda, pip = listed["dependencies"]
    assert conda[:3] == ["python =3.11", "pytorch ==2.8.0 cuda*", "transformer-engine-torch ==2.3.0"]
    assert "cuda-version =12.8" in conda and "cudnn >=9.10.2,<10" in conda and conda[-1] == "pip"
    assert pip == {"pip": ["megatron-core==0.11.0"]}
    assert "not checked with conda's solver" in text and "clears TE103" in text


@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_conda_lines_declare_what_the_fix_wants(tmp_path: Path, name: str):
    path = tmp_path / "environment.yml"
    path.write_text(fragment("conda", incident(name)))
    if "dependencies" not in (yaml.safe_load(path.read_text()) or {}):
        pytest.skip("no package changes")
    facts = read_manifests([str(path)], Facts(), watch_of(builtin_rulebook())).facts
    fix = incident(name).package_fix
    assert fix is not None
    for change in fix.changes:
        if change.kind == "package" and change.name in ("torch", "transformers", "megatron-core"):
            assert facts.value(f"{change.name}.version") == str(change.after).partition("+")[0]
    assert facts.value("torch.version") is not None


def test_a_label_is_no_version_of_conda():
    assert "pytorch ==2.6.0 cuda*" in fragment("conda", cu126_fix())
    assert "cuda-version =12.6" in fragment("conda", cu126_fix())
