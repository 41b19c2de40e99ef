"""The JSON Schemas: examples and real output fit, what the readers refuse does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from doctor.api import diagnose
from doctor.cli import main as cli
from doctor.diagnosis.schemas import schema_names, schema_of
from doctor.errors import DoctorError
from doctor.rulebook.schema import read_sources
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.files import workload_facts

ROOT = Path(__file__).resolve().parents[2]
jsonschema = pytest.importorskip("jsonschema", reason="check-jsonschema is in the extra `dev`")
EXAMPLES = {
    "facts": [
        *sorted((ROOT / "examples").glob("*/*/facts.yaml")),
        *sorted((ROOT / "tests/captures").glob("*cudnn*.json")),
    ],
    "workload": [
        *sorted((ROOT / "examples").glob("*/*/workload.yaml")),
        *sorted((ROOT / "examples/output").glob("*.yaml")),
    ],
    "rule": sorted((ROOT / "rules").glob("*/[A-Z]*.yaml")),
}
BAD_FACTS = (
    {}, [], "text", {"facts": []}, {"torch.version": "abc"}, {"torch.version": {"valu": "2.6.0"}}, {"torch": "2.6.0"},
    {"gpu.sm": "ninety"}, {"gpu.count": "many"}, {"gpu.count": 1.5}, {"torch.cxx11_abi": "maybe"}, {"schema": 2},
    {"facts": {"workload.dtype": "bf"}}, {"workload": {"no_such_key": 128}}, {"workload": []},
    {"torch.version": ["2.6.0"]},
)  # fmt: skip
BAD_WORKLOADS = (
    {}, {"no_such_key": 128}, {"dtype": "double"}, {"mask": "triangle"}, {"head_dim_qk": "wide"}, {"window": [1]},
    {"training": "perhaps"}, {"workload": {"nope": 1}}, {"workload": {}, "stray": 1}, {"dropout": "high"},
)  # fmt: skip


def fits(name: str, content: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema_of(name)).is_valid(content))


def load(path: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return json.loads(path.read_text()) if path.suffix == ".json" else yaml.load(path.read_text(), loader)


@pytest.mark.parametrize("name", schema_names())
def test_schemas_are_valid_schemas(name):
    jsonschema.Draft202012Validator.check_schema(schema_of(name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_fit(name):
    assert len(EXAMPLES[name]) >= 10
    validator = jsonschema.Draft202012Validator(schema_of(name))
    errors = ((path, next(validator.iter_errors(load(path)), None)) for path in EXAMPLES[name])
    wrong = [f"{path.name}: {error.message[:200]}" for path, error in errors if error is not None]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("path", sorted((ROOT / "rules" / "tables").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_rules_of_a_table_fit(path):
    validator = jsonschema.Draft202012Validator(schema_of("rule"))
    rules = [source.content for source in read_sources(path) if source.kind == "rule"]
    wrong = [f"{rule['id']}: {error.message[:200]}" for rule in rules for error in validator.iter_errors(rule)]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("content", BAD_FACTS, ids=repr)
def test_bad_facts_do_not_fit_and_are_refused(content):
    assert not fits("facts", content)
    with pytest.raises(DoctorError):
        assert not parse_facts(json.dumps(content), "facts.json")
        raise DoctorError("no facts in it")


@pytest.mark.parametrize("content", BAD_WORKLOADS, ids=repr)
def test_bad_workloads_do_not_fit(content):
    assert not fits("workload", content)
    if content and "workload" not in content:
        with pytest.raises(DoctorError):
            workload_facts(content)


def test_bad_rules_do_not_fit():
    good = load(ROOT / "rules" / "torch" / "TORCH030.yaml")
    assert fits("rule", good)
    for change in (
        {"severity": "bad"},
        {"unknown": 1},
        {"when": {}},
        {"references": []},
        {"fix": [{"note": []}]},
        {"fix": [{"safety": "risky"}]},
    ):
        assert not fits("rule", {**good, **change}), change
    assert not fits("rule", {key: value for key, value in good.items() if key != "when"})


def test_the_project_section():
    assert fits("project", {"fail-on": "warning", "gpu": ["a100", "h100"], "workload": {"dtype": "bfloat16"}})
    assert fits("project", {"ignore": [{"rule": "TE103", "reason": "known", "until": "2027-01-31"}]})
    for bad in ({"fail-on": "bad"}, {"fail_on": "error"}, {"ignore": [{"rule": "TE103"}]}, {"rules": "folder"}):
        assert not fits("project", bad), bad


def test_a_real_report_fits(capsys):
    facts, workload = (str(ROOT / "examples/incidents/b" / f"{name}.yaml") for name in ("facts", "workload"))
    cli.run(["check", "--no-run", "--format", "json", "--facts", facts, "--workload", workload])
    validator = jsonschema.Draft202012Validator(schema_of("report"))
    assert [error.message for error in validator.iter_errors(json.loads(capsys.readouterr().out))] == []


@pytest.mark.slow
def test_check_jsonschema_accepts_the_output_of_the_command(tmp_path, capsys):
    program = Path(sys.executable).with_name("check-jsonschema")
    if not program.is_file():
        pytest.skip("check-jsonschema is in the extra `dev`")
    assert cli.run(["schema", "facts", "--output", str(tmp_path / "facts.json")]) == 0
    files = list(map(str, EXAMPLES["facts"]))
    command = [str(program), "--schemafile", str(tmp_path / "facts.json"), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert cli.run(["schema"]) == 0 and "project" in capsys.readouterr().out
    assert cli.run(["schema", "fact"]) == 2


def test_a_notebook_shows_the_page_in_a_frame():
    report = diagnose(facts=str(ROOT / "examples/incidents/b/facts.yaml"))
    page = report._repr_html_()
    assert page.startswith("<iframe sandbox srcdoc=") and "<script" not in page and "&lt;html" in page
