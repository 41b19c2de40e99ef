"""CONTRIBUTING answers "where does it go?": each answer, followed in a copy of the repository, gives a working feature.

An addition touches exactly the files that its section names. A section that names too few or too many files fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAME, COMMAND = "acme", "keys"
FACTS = "facts: {torch.version: '2.8.0', python.version: '3.11.7'}\n"


@dataclass(frozen=True)
class Edit:
    """A new file (no anchor), or text that is put in front of an anchor."""

    text: str
    anchor: str = ""
    more: Edit | None = None  # a second place in the same file


def rows(text: str, opening: str) -> Edit:
    """Text right behind the line that opens a table."""
    return Edit(opening + text, opening)


LOCK_FILE = {
    f"doctor/sources/manifests/formats/{NAME}.py": Edit('''\
"""acme.lock: one `package version` per line."""

from __future__ import annotations

from pathlib import Path

from doctor.sources.manifests.base import DeclaredRequirement, Manifest
from doctor.sources.watch import Watch


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the pin of each line."""
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return Manifest(tuple(
        DeclaredRequirement(name, str(path), number, f"=={version}", version) for number, (name, version) in lines
    ))
'''),
    "doctor/sources/manifests/base.py": rows(f'    {NAME.upper()} = "{NAME}"\n', '    CONDA = "conda"\n'),
    "doctor/sources/manifests/detect.py": rows(
        f'\n    (r"{NAME}\\.lock", ManifestKind.{NAME.upper()}),', "_FORMATS = ("
    ),
    "doctor/sources/manifests/readers.py": rows(
        f'\n    ManifestKind.{NAME.upper()}: ("formats.{NAME}", "read"),', "_READERS = {"
    ),
}  # fmt: skip
PROBE = {
    "doctor/facts/vocabulary.py": rows(
        f'\n    ("{NAME}.mode", TEXT, "the mode of Acme"),', "TERMS: dict[str, Term] = _terms("
    ),
    "doctor/facts/examples.py": rows(f'\n    "{NAME}.mode": "fast",', "EXAMPLES: Mapping[str, str] = {"),
    f"doctor/sources/probes/{NAME}.py": Edit('''\
"""The mode of Acme, from its file next to the installed packages."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.facts.vocabulary import fact
from doctor.model import Fact

from .target import Target, Watch

PROMISES = ("acme.mode",)


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Read acme.mode."""
    for folder in target.site_dirs:
        path = folder / "acme.mode"
        if path.is_file():
            yield fact("acme.mode", path.read_text("utf-8").strip(), str(path))
            return
    yield Fact("acme.mode", None, str(target.prefix), problem="no file `acme.mode`")
'''),
    "doctor/sources/probes/collect.py": Edit(
        f"from . import {NAME}\nfrom .target import Probe, Target\n", "from .target import Probe, Target\n",
        rows(f'\n    "{NAME}": {NAME},', "PROBES: Mapping[str, Probe] = {"),
    ),
}  # fmt: skip
OUTPUT = {
    f"doctor/report/{NAME}.py": Edit('''\
"""The number of findings."""

from __future__ import annotations

from doctor.model import Report
from doctor.report.style import Style


def diagnosis(report: Report, style: Style) -> str:
    """Return one line."""
    return f"acme: {len(report.findings)} findings\\n"
'''),
    "doctor/report/formats.py": rows(f'\n    "{NAME}": "{NAME}",', "FORMATS = {"),
}  # fmt: skip
DERIVED = {
    f"doctor/facts/derived/{NAME}.py": Edit('''\
"""Derived facts of Acme."""

from __future__ import annotations

from doctor.facts.vocabulary import BOOLEAN

from .registry import derived


@derived("workload.acme_heads", BOOLEAN, "an odd number of heads", needs=("workload.num_heads",))
def _acme_heads(heads: int) -> bool:
    return heads % 2 == 1
'''),
    "doctor/facts/derived/__init__.py": rows(f"\n    {NAME},", "from . import ("),
}  # fmt: skip
PROGRAM = {
    f"kernels/programs/{NAME}.py": Edit('''\
"""How many bytes does a double have?"""

from ..protocol import step


def run(request):
    """Return the size that `struct` reports."""
    step("import struct")
    import struct

    return {"bytes": struct.calcsize("d")}
'''),
}  # fmt: skip
OPTION = {
    f"doctor/cli/{COMMAND}.py": rows(
        '\n    acme: Annotated[bool, typer.Option("--acme", help="Only keys of Acme.")] = False,',
        "def keys(\n    answer: Answer,",
    ),
    "docs/cli.md": Edit("\n`keys --acme`: only keys of Acme.\n", ""),
}
LIBRARY = {
    f"rules/{NAME}/library.yaml": Edit("""\
name: acme
title: Acme attention
distributions: [acme-attn]
import_name: acme_attn
environment: [ACME_MODE]
references: [https://example.org/acme]
frameworks:
  - word: acme
    spellings: [acme-attention]
    server:
      title: Acme
      package: acme-attn
      programs: {acme: serve}
      options: {--acme-heads: {num_heads: integer}}
trainers:
  - id: acme
    title: Acme trainer
    framework: acme
    config: {any: [acme_steps]}
    programs: {acme: [train]}
    options: {acme_heads: {num_heads: integer}}
applies: {acme-attn.version: present}
backends:
  - {id: acme.fast, title: the fast kernel}
  - {id: acme.plain, title: plain math, unfused: true}
preference:
  - {when: {env.ACME_MODE: plain}, order: [acme.plain]}
  - {order: [acme.fast, acme.plain]}
packages:
  acme-attn:
    modules: [acme_attn]
    facts: [compiled_files]
    opens: {files: 'acme_attn/_C[.]so'}
    wheel_names_build: true
    role: attention
"""),
    f"rules/{NAME}/ACME001.yaml": Edit("""\
id: ACME001
name: acme-plain-is-slow
severity: warning
summary: ACME_MODE=plain turns the fast kernel off
why: The plain kernel writes all scores to memory.
references: [https://example.org/acme]
when: {acme-attn.version: present, env.ACME_MODE: plain}
message: ACME_MODE=plain turns the fast kernel off
fix: [{unset_env: ACME_MODE}]
tests:
  fires: {given: {acme-attn.version: "1.0", env.ACME_MODE: plain}, expect: fires}
  silent without it: {given: {acme-attn.version: absent, env.ACME_MODE: plain}, expect: silent}
  silent in another mode: {given: {acme-attn.version: "1.0", env.ACME_MODE: fast}, expect: silent}
"""),
}  # fmt: skip
BACKEND = {
    f"rules/{NAME}/library.yaml": Edit(
        "  - {id: acme.tiny, title: the kernel for few heads}\n  - {id: acme.plain", "  - {id: acme.plain",
        Edit("  - {order: [acme.tiny, acme.fast, acme.plain]}\n", "  - {order: [acme.fast, acme.plain]}\n"),
    ),
    f"rules/{NAME}/{NAME.upper()}001.yaml": Edit("""\
id: ACME001
name: acme-tiny-takes-eight-heads
summary: the kernel for few heads takes up to 8 of them
why: It keeps all heads in one block.
references: [https://example.org/acme]
when: {workload.num_heads: ">8"}
disables: acme.tiny
message: "it takes up to 8 heads, the job has {workload.num_heads}"
tests:
  fires: {given: {workload.num_heads: 9}, expect: fires}
  silent: {given: {workload.num_heads: 8}, expect: silent}
"""),
}  # fmt: skip
TRAINER = {
    f"rules/{NAME}/library.yaml": rows("""\
  - id: acme_tune
    title: Acme tuner
    framework: acme
    config: {all: [acme_tune], any: [acme_width]}
    options:
      acme_width: {head_dim_qk: integer}
      acme_kind: {attn_implementation: {fast: sdpa, slow: eager}}
    readings:
      - {kind: length, options: [acme_length]}
""", "trainers:\n"),
}  # fmt: skip
NEW_COMMAND = {
    f"doctor/cli/{NAME}.py": Edit('''\
"""`attn-doctor acme`: say how many libraries the rules describe."""

from __future__ import annotations

import typer

from doctor.rulebook.rulebook import load_rulebook

from .answer import Answer, reports

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("acme")
@reports("acme", "text")
def acme(answer: Answer) -> int:
    """Count the libraries."""
    count = len(load_rulebook().libraries)
    answer.give({"text": lambda style: f"{count} libraries\\n"})
    return 0
'''),
    "doctor/cli/main.py": rows(f'\n    "{NAME}": "Count the libraries.",', "COMMANDS = {"),
    "docs/cli.md": Edit("\n`acme` counts the libraries.\n", ""),
}  # fmt: skip
#: Files that a section names although not each addition changes them: shared options, tests, the folder itself.
OPTIONAL = {
    "doctor/cli/options.py", "doctor/cli/", "docs/cli.md", "tests/cli/test_main.py",
    f"tests/sources/manifests/test_{NAME}.py",
}  # fmt: skip
ADDITIONS: Mapping[str, Mapping[str, Edit]] = {
    "a": LOCK_FILE, "b": PROBE, "c": OUTPUT, "d": DERIVED, "e": PROGRAM, "f": OPTION, "g": LIBRARY,
    "h": BACKEND, "i": TRAINER, "j": NEW_COMMAND,
}  # fmt: skip


def section(letter: str) -> str:
    """The text of one answer in CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = re.search(rf"^### \({letter}\).*?(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING has no section ({letter})"
    return found[0]


def named_files(letter: str) -> set[str]:
    paths = re.findall(r"`((?:doctor|kernels|docs|rules|tests)/[\w./]+)`", section(letter))
    return {
        path.replace("NAME001", f"{NAME.upper()}001").replace("NAME", NAME).replace("COMMAND", COMMAND)
        for path in paths
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what runs."""
    copy = tmp_path_factory.mktemp("repository")
    for name in ("doctor", "rules", "kernels"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", copy / "pyproject.toml")  # marks a checkout
    (copy / "docs").mkdir()
    shutil.copyfile(ROOT / "docs" / "cli.md", copy / "docs" / "cli.md")
    return copy


def add(copy: Path, letter: str) -> Path:
    """Carry out one addition."""
    for name, edit in ADDITIONS[letter].items():
        path = copy / name
        if edit.anchor:
            before = path.read_text("utf-8")
            assert before.count(edit.anchor) == 1, f"{name} has no single `{edit.anchor}`"
            path.write_text(before.replace(edit.anchor, edit.text), "utf-8")
            if edit.more is not None:
                before = path.read_text("utf-8")
                assert before.count(edit.more.anchor) == 1, f"{name} has no single `{edit.more.anchor}`"
                path.write_text(before.replace(edit.more.anchor, edit.more.text), "utf-8")
        elif path.exists():
            path.write_text(path.read_text("utf-8") + edit.text, "utf-8")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(edit.text, "utf-8")
    return copy


def doctor(copy: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "XDG_CACHE_HOME": str(copy / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "doctor", *map(str, arguments)],
        cwd=copy, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("letter", ADDITIONS)
def test_a_section_has_three_steps_and_names_the_files(letter: str) -> None:
    assert re.findall(r"^(\d)\. ", section(letter), re.MULTILINE) == ["1", "2", "3"]
    changed = set(ADDITIONS[letter])
    assert changed <= named_files(letter)
    assert named_files(letter) - changed <= OPTIONAL


def test_a_lock_file_format(original: Path, tmp_path: Path) -> None:
    copy = add(original, "a")
    lock = tmp_path / "acme.lock"
    lock.write_text("transformers 4.52.4\n\ntorch 2.6.0\n")
    done = doctor(copy, "check", "--no-run", "--requirements", lock, "--gpu", "b200", "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert "TORCH005" in {finding["id"] for finding in report["findings"]}
    assert f"{lock}:3" in done.stdout


def test_a_probe(original: Path, tmp_path: Path) -> None:
    copy = add(original, "b")
    (tmp_path / "acme.mode").write_text("fast\n")
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    done = doctor(copy, "snapshot", "--site-packages", tmp_path, "--output", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["acme.mode"]["value"] == "fast"
    assert "the mode of Acme" in doctor(copy, "keys", "acme").stdout


def test_an_output_format(original: Path, tmp_path: Path) -> None:
    copy = add(original, "c")
    facts = tmp_path / "facts.yaml"
    facts.write_text(FACTS)
    done = doctor(copy, "check", "--no-run", "--facts", facts, "--format", "acme")
    assert (done.returncode, done.stdout) == (0, "acme: 0 findings\n"), done.stderr


def test_a_derived_fact(original: Path, tmp_path: Path) -> None:
    copy = add(original, "d")
    rule = tmp_path / "rules" / "acme" / "ACME001.yaml"
    rule.parent.mkdir(parents=True)
    rule.write_text(
        "{id: ACME001, name: odd-heads, severity: error, summary: Acme has no odd number of heads, why: w, "
        "references: [r], when: {workload.acme_heads: true}}"
    )
    for heads, code in ((3, 1), (4, 0)):
        facts = tmp_path / f"{heads}.yaml"
        facts.write_text(f"{FACTS}workload: {{num_heads: {heads}}}\n")
        done = doctor(copy, "check", "--no-run", "--facts", facts, "--rules", tmp_path / "rules", "--format", "json")
        assert done.returncode == code, done.stdout + done.stderr


def test_a_kernel_program(original: Path) -> None:
    if not (ROOT / "kernels" / "programs").is_dir():
        pytest.skip("kernels/ has no folder `programs` yet: the section describes the layout that is being merged")
    copy = add(original, "e")
    done = subprocess.run(
        [sys.executable, "kernels", NAME], cwd=copy, input="{}", capture_output=True, text=True, timeout=60, check=False
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["outcome"], answer["observed"]) == ("ran", {"bytes": 8}), done.stderr


def test_an_option(original: Path) -> None:
    copy = add(original, "f")
    assert "--acme" in doctor(copy, "keys", "--help").stdout
    assert doctor(copy, "keys", "--acme", "head_dim").returncode == 0
    assert "--acme" in (copy / "docs" / "cli.md").read_text("utf-8")


def test_a_library(original: Path, tmp_path: Path) -> None:
    copy = add(original, "g")
    site = tmp_path / "site-packages"
    for name, version, module, code in (
        ("transformers", "4.52.4", "transformers", "from acme_attn import attention, gone\n"),
        ("acme_attn", "1.0", "acme_attn", "def attention(q, k, v): ...\n"),
    ):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n")
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(code)
    (site / "acme_attn-1.0.dist-info" / "direct_url.json").write_text(
        '{"url": "https://x.org/acme_attn-1.0-cu128.whl"}'
    )
    facts = json.loads(doctor(copy, "snapshot", "--site-packages", site, "--output", "-").stdout)["facts"]
    assert facts["acme-attn.wheel"]["value"] == "acme_attn-1.0-cu128.whl"
    drift = doctor(copy, "drift", "--site-packages", site, "--no-cache").stdout
    assert "gone" in drift and "acme-attn" in drift
    (tmp_path / "facts.yaml").write_text(
        "facts: {acme-attn.version: '1.0', env.ACME_MODE: plain}\nworkload: {num_heads: 4}\n"
    )
    done = doctor(copy, "check", "--no-run", "--facts", tmp_path / "facts.yaml", "--format", "json")
    report = json.loads(done.stdout)
    assert [finding["id"] for finding in report["findings"]] == ["ACME001"]
    assert [(item["library"], item["selected"]) for item in report["backends"]] == [("acme", "acme.plain")]
    assert doctor(copy, "rules", "test", "rules/acme").returncode == 0


def test_a_library_says_which_facts_its_packages_have(with_library: Path, tmp_path: Path) -> None:
    (tmp_path / "rules" / "team").mkdir(parents=True)
    (tmp_path / "rules" / "team" / "TEAM001.yaml").write_text(
        "{id: TEAM001, name: acme-does-not-load, severity: error, summary: Acme does not load, why: w, "
        "references: [r], when: {acme-attn.known_unloadable: true}}"
    )
    for fitting, code in (("2.9.0", 1), ("2.8.0", 0)):
        (tmp_path / "facts.yaml").write_text(
            "facts: {acme-attn.version: '1.0', torch.version: '2.8.0+cu128', python.version: '3.11.7', "
            f"acme-attn.fitting_torch: ['{fitting}+cu128']}}\n"
        )
        done = doctor(with_library, "check", "--no-run", "--facts", tmp_path / "facts.yaml", "--rules",
                      tmp_path / "rules", "--format", "json")  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr


@pytest.fixture
def with_library(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second copy, in which Acme is described as (g) says."""
    copy = tmp_path_factory.mktemp("with-library") / "repository"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "rules" / NAME, ignore_errors=True)
    return add(copy, "g")


def checked(copy: Path, folder: Path, **files: str) -> dict[str, Any]:
    """Return the report on these files: option -> the text of its file."""
    arguments: list[object] = []
    for option, text in files.items():
        path = folder / (f"{option}.sh" if option == "requirements" else f"{option}.yaml")
        path.write_text(text)
        arguments += [f"--{option}", path]
    done = doctor(copy, "check", "--no-run", "--format", "json", *arguments)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def workload(report: Mapping[str, Any], word: str) -> Any:
    return report["workload"].get(word, {}).get("value")


def test_one_folder_adds_a_backend_a_trainer_and_a_server(with_library: Path, tmp_path: Path) -> None:
    """Its word is known in workloads, its trainer in configs and commands, its server in commands."""
    facts = "facts: {acme-attn.version: '1.0'}\n"
    for text in ("framework: acme-attention\nnum_heads: 4\n", "acme_steps: 9\nacme_heads: 4\n"):
        report = checked(with_library, tmp_path, facts=facts, workload=text)
        assert (workload(report, "framework"), workload(report, "num_heads")) == ("acme", 4)
        assert [(item["library"], item["selected"]) for item in report["backends"]] == [("acme", "acme.fast")]
    for command, trains in (("acme train --acme-heads 4", True), ("acme serve --acme-heads 4", False)):
        report = checked(with_library, tmp_path, requirements=f"pip install acme-attn==1.0\n{command}\n")
        words = [workload(report, word) for word in ("framework", "num_heads", "training")]
        assert words == ["acme", 4, trains], command


def test_a_backend(with_library: Path, tmp_path: Path) -> None:
    (with_library / "rules" / NAME / f"{NAME.upper()}001.yaml").unlink()  # (g) has a rule of this name
    copy = add(with_library, "h")
    facts = "facts: {acme-attn.version: '1.0'}\n"
    for heads, selected in ((8, "acme.tiny"), (9, "acme.fast")):
        report = checked(copy, tmp_path, facts=facts, workload=f"framework: acme\nnum_heads: {heads}\n")
        assert [item["selected"] for item in report["backends"]] == [selected]
    assert doctor(copy, "rules", "test", f"rules/{NAME}").returncode == 0


def test_a_config_of_a_trainer(with_library: Path, tmp_path: Path) -> None:
    copy = add(with_library, "i")
    config = "acme_tune: m\nacme_width: 64\nacme_kind: slow\nacme_length: 512\n"
    report = checked(copy, tmp_path, facts="facts: {acme-attn.version: '1.0'}\n", workload=config)
    words = [workload(report, word) for word in ("framework", "head_dim_qk", "attn_implementation", "seq_len_q")]
    assert words == ["acme", 64, "eager", 512]


def test_a_command(original: Path) -> None:
    copy = add(original, "j")
    done = doctor(copy, NAME)
    assert (done.returncode, done.stderr) == (0, "") and re.fullmatch(r"\d+ libraries\n", done.stdout)
    assert "Count the libraries." in doctor(copy, "--help").stdout
