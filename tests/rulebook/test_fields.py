"""One definition of the format: reader, JSON Schema and docs/rule-format.md say the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from doctor.diagnosis.schemas import schema_of
from doctor.errors import DoctorError
from doctor.rulebook import job_fields, library_fields, rule_fields
from doctor.rulebook.fields import Field
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.shape import Shape
from doctor.util.yaml_text import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
jsonschema = pytest.importorskip("jsonschema", reason="check-jsonschema is in the extra `dev`")
#: Values that are wrong for most keys.
ODD = (
    "text",
    "7",
    "true",
    "absent",
    [],
    {},
    [[]],
    [{}],
    {"a": "b"},
    {"a": {}},
    ["a", "a"],
    [{"id": "a.b", "title": "c"}],
)


def page_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("format_page", ROOT / "scripts" / "release" / "format_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = page_script()
FIELDS = [
    pytest.param(key, field, id=f"{name}-{key}")
    for name, fields in PAGE.TABLES.items()
    for key, field in fields.items()
]
PROOFS = [
    pytest.param(key, field, id=f"{kind}-{key}")
    for kind, (_, fields) in rule_fields.PROOFS.items()
    for key, field in fields.items()
]


@pytest.fixture(scope="module", autouse=True)
def _words() -> None:
    load_rulebook()  # its libraries add words of the vocabulary


def refused(field: Field, value: Any, at: tuple[str, ...]) -> bool:
    try:
        field.kind.check(Shape("rule.yaml", {}), value, at)
    except DoctorError:
        return True
    return False


def fits(field: Field, value: Any) -> bool:
    schema = {"allOf": [field.kind.schema()], "$defs": {"condition": rule_fields.condition_schema()}}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_the_page_is_made_from_the_definition():
    text = (ROOT / "docs" / "rule-format.md").read_text()
    assert PAGE.filled(text) == text, "run `python scripts/release/format_page.py`"
    changed = text.replace("the flaw in kebab-case", "the flaw")
    assert PAGE.filled(changed) == text != changed
    for name in (*PAGE.TABLES, "proof", "categories", "kinds of readings"):
        assert text.count(f"<!-- keys: {name} -->") == 1, name


def test_every_table_of_keys_is_on_the_page():
    shown = list(map(id, PAGE.TABLES.values()))
    modules = (rule_fields, job_fields, library_fields)
    own = {
        name: value for module in modules for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, dict) and value
        and all(isinstance(item, Field) for item in value.values())
    }  # fmt: skip
    assert {"RULE", "LIBRARY", "TRAINER", "OPENS"} <= own.keys()
    assert [name for name, value in own.items() if id(value) not in shown] == []


def test_the_words_of_choices_are_those_of_the_readers():
    assert set(job_fields.READINGS) == set(job_fields.READING_KINDS)


@pytest.mark.parametrize(("key", "field"), [*FIELDS, *PROOFS])
def test_the_example_of_a_key_is_right(key, field):
    value = parse_yaml(f"a: {field.example}\n", "example")[0]["a"]
    field.kind.check(Shape("rule.yaml", {}), value, ("decisions", "sglang.base", "0", key))
    assert fits(field, value) and fits(field, yaml.safe_load(field.example)), field.example
    assert field.meaning and not field.meaning.endswith(".")


@pytest.mark.parametrize(("key", "field"), [*FIELDS, *PROOFS])
def test_the_schema_refuses_nothing_that_the_reader_takes(key, field):
    at = ("decisions", "sglang.base", "0", key)
    assert [value for value in ODD if not refused(field, value, at) and not fits(field, value)] == []


@pytest.mark.parametrize("key", ["id", "summary", "references", "when", "fix", "tests", "disables", "confirm", "proof"])
def test_what_has_the_wrong_form_is_refused_by_both(key):
    field = rule_fields.RULE[key]
    for value in ([[]], {}, {"a": {"b": []}}):
        assert refused(field, value, (key,))
    assert not fits(field, {}) and not fits(field, [[]])


@pytest.mark.parametrize(("name", "fields"), [("rule", rule_fields.RULE), ("library", library_fields.LIBRARY)])
def test_the_schema_has_the_keys_and_meanings_of_the_definition(name, fields):
    schema = schema_of(name)
    assert {key: part["description"] for key, part in schema["properties"].items()} == {
        key: field.meaning for key, field in fields.items()
    }
    assert set(schema["required"]) == {key for key, field in fields.items() if field.needed}


def test_every_library_fits_its_schema():
    validator = jsonschema.Draft202012Validator(schema_of("library"))
    files = sorted((ROOT / "rules").glob("*/library.yaml"))
    found = ((path, next(validator.iter_errors(yaml.safe_load(path.read_text())), None)) for path in files)
    wrong = [f"{path.parent.name}: {error.message[:200]}" for path, error in found if error is not None]
    assert len(files) > 60 and not wrong, "\n".join(wrong)
    assert not validator.is_valid({"name": "own", "distributions": "own"})
    assert not validator.is_valid({"title": "Own"})
