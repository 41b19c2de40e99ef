"""Which rules speak, and when a general one keeps silent."""

import json
from pathlib import Path

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.evaluate import evaluate, with_backend_findings
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.snapshot import parse_facts, read_facts
from tests.helpers.rulebook import builtin_rulebook

RULE = """\
id: {id}
name: {name}
severity: error
summary: A made-up flaw of acme
references: [https://example.org/acme]
when: {{acme.version: "{range}"}}
{extra}
tests:
  fires: {{given: {{acme.version: "1.0"}}, expect: fires}}
"""


@pytest.fixture
def team(tmp_path: Path) -> str:
    folder = tmp_path / "rules" / "acme"
    folder.mkdir(parents=True)
    general = RULE.format(id="ACME001", name="acme-general", range="<3", extra="yields_to: [ACME002]")
    (folder / "ACME001.yaml").write_text(general)
    (folder / "ACME002.yaml").write_text(RULE.format(id="ACME002", name="acme-special", range="<2", extra=""))
    return str(folder.parent)


@pytest.mark.parametrize(("version", "spoken"), [("1.0", ["ACME002"]), ("2.5", ["ACME001"]), ("3.0", [])])
def test_a_general_rule_yields_to_a_specific_one_only_where_that_fires(team, version, spoken):
    facts = Facts([fact("acme.version", version, "test")])
    found = [finding.rule for finding in evaluate(load_rulebook([team]), facts).findings]
    assert found == spoken


@pytest.mark.parametrize(("severity", "spoken"), [("error", {"ACME002"}), ("warning", {"ACME001", "ACME002"})])
def test_an_error_yields_only_to_an_error(team, severity, spoken):
    specific = Path(team) / "acme" / "ACME002.yaml"
    specific.write_text(specific.read_text().replace("severity: error", f"severity: {severity}"))
    found = evaluate(load_rulebook([team]), Facts([fact("acme.version", "1.0", "test")])).findings
    assert {finding.rule for finding in found} == spoken


def test_a_library_the_job_does_not_call_is_not_predicted_and_its_rules_are_silent():
    given = {"transformer-engine.version": "2.3.0", "workload.framework": "torch_sdpa", "workload.head_dim_qk": "192"}
    assessment = evaluate(builtin_rulebook(), Facts(fact(key, value, "test") for key, value in given.items()))
    assert "transformer_engine" not in {prediction.library for prediction in assessment.predictions}
    assert assessment.known.value("te.selected") == "inapplicable"
    assert not [finding for finding in assessment.findings if finding.rule.startswith("TE11")]


CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.mark.parametrize(
    ("capture", "errors"),
    [("h200-te2.20.2-two-cudnns.json", {"TE130"}), ("h200-te2.20.2-one-cudnn.json", set())],
)
def test_a_captured_machine_replays_its_verdict(capture, errors):
    """Snapshots of one H200 with TransformerEngine 2.20.2, before and after its two cuDNNs were brought together."""
    assert evaluate(builtin_rulebook(), read_facts(CAPTURES / capture)).errors == errors


def test_what_is_needed_names_the_value():
    given = {"sglang.version": "0.5.9", "flashinfer-python.version": "0.5.3"}
    facts = Facts(fact(key, value, "test") for key, value in given.items())
    findings = {finding.rule: finding for finding in evaluate(builtin_rulebook(), facts).findings}
    assert "flashinfer-python 0.6.3" in {item.needs for item in findings["SGLK003"].evidence}


class TestTheLibraryThatTheJobCalls:
    """A job that calls a library which is not installed is no job without problems."""

    def findings(self, framework, **facts):
        content = {"facts": {"torch.version": "2.8.0", "gpu.sm": "9.0", **facts},
                   "workload": {"framework": framework, "head_dim_qk": 128, "dtype": "bfloat16"}}  # fmt: skip
        rulebook = builtin_rulebook()
        found = with_backend_findings(rulebook, evaluate(rulebook, parse_facts(json.dumps(content), "x")))
        return {item.rule: item for item in found}

    def test_is_an_error_where_it_is_known_to_be_absent(self):
        found = self.findings("transformer_engine", **{"distributions.complete": True})["NOT_INSTALLED"]
        assert found.severity == "error"
        assert [(item.key, item.fact.value) for item in found.evidence][1] == ("transformer-engine.version", "absent")

    def test_is_no_error_where_it_may_be_there(self):
        assert "NOT_INSTALLED" not in self.findings("transformer_engine")
        installed = {"distributions.complete": True, "transformer-engine.version": "2.8.0"}
        assert "NOT_INSTALLED" not in self.findings("transformer_engine", **installed)

    def test_is_no_error_for_a_framework_that_a_checkout_provides(self):
        assert "NOT_INSTALLED" not in self.findings("megatron", **{"distributions.complete": True})
