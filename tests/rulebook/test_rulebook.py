"""The rulebook as the rest of the doctor sees it: whole, parsed on demand, extended by a team's folder."""

from __future__ import annotations

import pytest

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact, term
from doctor.model import SEVERITIES, Facts, FixSafety, Remedy
from doctor.rulebook.conditions import Condition
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.safety import stated_safety

TEAM = """\
id: TEAM001
name: our-cluster-lacks-nccl
severity: warning
summary: Our cluster needs NCCL 2.20
references: [wiki/nccl@main]
when: {nvidia-nccl-cu12.version: "<2.20"}
message: found {nvidia-nccl-cu12.version}
fix:
  - require: {nvidia-nccl-cu12: ">=2.20"}
    unset_env: NCCL_P2P_DISABLE
    safety: risky
    risk: pip reports a conflict
  - note: ask the cluster's keepers
"""


@pytest.fixture(scope="module")
def rulebook():
    return load_rulebook()


def test_every_rule_can_be_used(rulebook):
    assert len(rulebook.rules) >= 60
    for rule in rulebook.rules.values():
        assert isinstance(rule.when, Condition) and list(rule.when.leaves())
        assert rule.severity in (None, *SEVERITIES)
        assert rule.references and rule.message
        assert all(isinstance(way, Remedy) for way in rule.alternatives)


def test_every_library_can_be_used(rulebook):
    for library in rulebook.libraries.values():
        backends = {backend.id for backend in library.backends}
        for condition, order in library.preferences:
            assert condition is None or list(condition.leaves())
            assert set(order) <= backends
        assert bool(library.preferences or library.choice) == bool(backends)
        assert set(library.choice.values()) <= set(library.decisions)


def test_what_a_release_implies_speaks_of_known_facts(rulebook):
    assert rulebook.implications
    for key in rulebook.implications:
        assert key == "local" or term(key)


def test_a_known_release_brings_its_cudnn_and_a_given_value_wins(rulebook):
    def cudnn(**values):
        facts = Facts(fact(key.replace("_", "."), value, "test") for key, value in values.items())
        return FactResolver(facts, rulebook.implications).value("cudnn.version")

    assert cudnn(torch_version="2.6.0").startswith("9.1.0")
    assert cudnn(torch_version="2.6.0", cudnn_version="9.3.0") == "9.3.0"
    assert cudnn(torch_version="2.6.0", cudnn_version=None) is None
    assert cudnn(torch_version="0.0.1") is None


def test_a_team_adds_rules(tmp_path, rulebook):
    (tmp_path / "TEAM001.yaml").write_text(TEAM)
    both = load_rulebook([str(tmp_path)])
    assert set(both.rules) == {*rulebook.rules, "TEAM001"}
    assert both.version != rulebook.version
    rule = both.rules["TEAM001"]
    assert rule.library == tmp_path.name and not rule.disables
    assert rule.alternatives == (
        Remedy(
            require={"nvidia-nccl-cu12": ">=2.20"},
            unset_env=("NCCL_P2P_DISABLE",),
            safety=FixSafety.RISKY,
            risk="pip reports a conflict",
            foreign=True,
        ),
        Remedy(note="ask the cluster's keepers", foreign=True),
    )


def test_the_version_of_the_rulebook_shows_its_content(tmp_path):
    path = tmp_path / "TEAM001.yaml"
    path.write_text(TEAM)
    first = load_rulebook([str(tmp_path)]).version
    assert load_rulebook([str(tmp_path)]).version == first
    path.write_text(TEAM.replace("2.20", "2.21"))
    assert load_rulebook([str(tmp_path)]).version != first


def test_a_faulty_team_rule_is_reported_with_its_line(tmp_path):
    path = tmp_path / "TEAM001.yaml"
    path.write_text(TEAM.replace("when: {nvidia-nccl-cu12.version", "when: {nvidia_nccl.verison"))
    with pytest.raises(DoctorError, match=rf"{path}:6: unknown fact key"):
        load_rulebook([str(tmp_path)])


def test_a_built_in_id_cannot_be_taken(tmp_path, rulebook):
    taken = next(iter(rulebook.rules))
    (tmp_path / "X.yaml").write_text(TEAM.replace("TEAM001", taken))
    with pytest.raises(DoctorError, match=f"rule `{taken}` is taken by"):
        load_rulebook([str(tmp_path)])


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"workload.dtype": "float16"}, "changes numbers"),
        ({"workload.use_varlen_attn": "true"}, "changes numbers"),
        ({"workload.kv_cache_dtype": "fp8"}, "changes numbers"),
        ({"workload.kv_cache_dtype": "auto"}, "safe"),
        ({"workload.cp_comm_type": "p2p"}, "safe"),
    ],
)
def test_what_changes_numbers_is_known_by_what_a_remedy_sets(config, wanted):
    safety, risk = stated_safety({"config": config})
    assert str(safety) == wanted and bool(risk) is (wanted != "safe")
    assert stated_safety({"config": config, "safety": "risky", "risk": "so"}) == (FixSafety.RISKY, "so")


def test_every_remedy_that_is_not_safe_says_why(rulebook):
    unsafe = [remedy for rule in rulebook.rules.values() for remedy in rule.alternatives if not remedy.safe]
    assert len(unsafe) >= 40 and all(remedy.risk for remedy in unsafe)
