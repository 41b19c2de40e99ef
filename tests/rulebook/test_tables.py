"""Tables: each row is a rule or entries of a library, and names the releases that were read."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from doctor.errors import DoctorError
from doctor.rulebook.authoring.lint import lint
from doctor.rulebook.authoring.tests import run_rule_tests
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.schema import read_sources
from doctor.rulebook.table_ranges import Span, sample
from doctor.rulebook.tables import expanded
from doctor.util.resources import rules_dir
from doctor.util.yaml_text import parse_yaml

ROOT = Path(__file__).parents[2]
TABLES = sorted((rules_dir() / "tables").glob("*.yaml"))
HEAD = """\
table: declared
library: acme_rows
templates:
  requires:
    severity: warning
    category: version-window
    reach: <caller>
    summary: <callee> is outside the range that <caller> declares
    why: The metadata of <caller> excludes this release of <callee>.
    message: <caller> {<caller>.version} does not admit <callee> {<callee>.version}
rows:
"""
ROWS = """\
  ACME001 acme requires torch:
    1.0 to 1.2 before 1.2.post1: ">=2.1,<2.4.0"
    1.3: ">=2.2"
"""


def table(folder: Path, rows: str) -> Path:
    path = folder / "tables" / "acme_rows.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + rows, encoding="utf-8")
    return path


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "release" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2.1", ">=2.1,<2.1.1"), ("2.1 to 2.4.3", ">=2.1,<2.4.4"), ("2.1 to 2.4 before 2.4.post1", ">=2.1,<2.4.post1"),
        ("2.1 to 2.4 on", ">=2.1"), ("2.1 on after 2.0", ">=2.1"), ("up to 2.4 before 3.0", "<3.0"),
        ("3.1.dev0 alone", "==3.1.dev0"),
    ],
)  # fmt: skip
def test_the_releases_of_a_row_are_a_range(text, wanted):
    assert Span.of(text).range == wanted


@pytest.mark.parametrize("text", ["", "before 2.0", "two to three", "2.1 until 2.4"])
def test_other_words_are_no_releases(text):
    with pytest.raises(ValueError, match="needs the form"):
        Span.of(text)


@pytest.mark.parametrize("spec", [">=2.1,<2.4", "==2.4.0", "!=2.0.*,>=1.9", "<3", "~=2.1"])
def test_samples_are_on_both_sides_of_a_bound(spec):
    bad, good = sample(spec)
    assert bad not in SpecifierSet(spec) and good in SpecifierSet(spec)


def test_a_row_is_a_rule_with_tests_on_both_sides_of_each_bound(tmp_path):
    path = table(tmp_path, ROWS)
    (source,) = read_sources(path)
    assert (source.kind, source.library, source.content["id"]) == ("rule", "acme_rows", "ACME001")
    assert source.content["when"]["any"][0] == {
        "acme.version": ">=1.0,<1.2.post1", "not": {"torch.version": ">=2.1,<2.4.0.dev0"}
    }  # fmt: skip
    outcomes = run_rule_tests([path])
    assert len(outcomes) >= 8 and all(outcome.passed for outcome in outcomes)
    assert not lint([path])


def test_a_rulebook_takes_the_rules_of_a_table(tmp_path):
    table(tmp_path, ROWS)
    rule = load_rulebook([str(tmp_path)]).rules["ACME001"]
    assert rule.library == "acme_rows" and rule.stated["name"] == "acme-requires-torch"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("  ACME1 acme requires torch:\n    1.0: '>=2'\n", ":12: `ACME1 acme requires torch` needs the form"),
        ("  ACME001 acme refuses torch:\n    1.0: '>=2'\n", ":12: there is no template `refuses`"),
        (ROWS + "  ACME002 acme requires numpy:\n    1.0 until 2.0: '>=2'\n", ":15: the row cannot be read"),
        (ROWS + "  ACME002 acme requires numpy:\n    1.0: two\n", ":15: the row cannot be read"),
    ],
)
def test_a_fault_is_reported_at_its_row(tmp_path, rows, words):
    with pytest.raises(DoctorError) as fault:
        read_sources(table(tmp_path, rows))
    assert words in fault.value.message


def test_two_rows_with_one_id_are_refused(tmp_path):
    table(tmp_path, ROWS + "  ACME001 acme requires numpy:\n    1.0: '>=2'\n")
    with pytest.raises(DoctorError, match="`ACME001` is taken"):
        load_rulebook([str(tmp_path)])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_script_writes_the_rows_as_they_are(path, tmp_path, monkeypatch):
    """A regeneration then shows new releases only, and no other line."""
    writer = script("table_files")
    monkeypatch.setattr(writer, "TABLES", tmp_path)
    (tmp_path / path.name).write_bytes(path.read_bytes())
    writer.write_rows(path.stem, writer.read_table(path.stem)["rows"])
    assert (tmp_path / path.name).read_text() == path.read_text()


def test_what_releases_import_becomes_a_row_with_its_proofs():
    maker = script("imports_rules")
    found = [
        {"caller": "acme", "version": version, "entry": "", "callee": "torch", "module": "torch.nn", "name": "Gone",
         "missing": ["2.1", "2.2"], "files": ("acme/model.py",)}
        for version in ("1.1", "1.2")
    ]  # fmt: skip
    known = {
        "acme": list(map(Version, ("1.0", "1.1", "1.2", "1.3"))),
        "torch": list(map(Version, ("2.0", "2.1", "2.2"))),
    }
    (pair,) = maker.pairs_of(found)
    row = maker.row_of(pair, maker.windows_of(pair, known["acme"], known["torch"]), known)
    assert row == {
        "torch.nn.Gone": {"in": "1.1 to 1.2 before 1.3", "missing": "2.1 on after 2.0", "file": "**/acme/model.py"},
        "1.1 to 1.2 before 1.3 with 2.1 on after 2.0": {"use": "<2.1", "or": ">=1.3"},
    }
    content = {"table": "imports", "library": "imports", "templates": {"imports": {}}}
    (made,) = expanded(content | {"rows": {"IMP001 acme imports torch": row}})
    assert made.body["when"] == {"any": [{"acme.version": ">=1.1,<1.3", "torch.version": ">=2.1"}]}
    assert made.body["why"].endswith("`torch.nn.Gone` (acme 1.1 to 1.2; not in torch from 2.1 on).")
    assert made.body["proof"] == [
        {"import": {"package": "acme", "file": ["**/acme/model.py"], "name": "torch.nn.Gone", "from": "torch",
                    "in": ">=1.1,<1.3"}},
        {"lacks": {"package": "torch", "name": "torch.nn.Gone", "in": ">=2.1"}},
    ]  # fmt: skip


def test_a_failure_that_no_name_shows_is_no_proof():
    row = {
        "torch.nn.Gone": {"in": "1.1", "missing": "2.1 on after 2.0", "file": "**/acme/model.py"},
        "1.1 with 2.1 on after 2.0": {}, "1.0 with 2.2 on after 2.1": {},
    }  # fmt: skip
    content = {"table": "imports", "library": "imports", "templates": {"imports": {}}}
    (made,) = expanded(content | {"rows": {"IMP001 acme imports torch": row}})
    assert "proof" not in made.body


def test_rows_hold_facts_and_templates_the_words():
    """No test is stored, and no condition: both follow from the releases of a row."""
    for path in TABLES:
        content, _ = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        rows = [row for row in content["rows"].values() if isinstance(row, dict)]
        assert not {"tests", "when", "fix", "message"} & {key for row in rows for key in row}, path.name
