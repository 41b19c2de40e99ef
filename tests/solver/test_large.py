"""Locks of hundreds of packages, and requirements that were broken before anything was changed."""

from __future__ import annotations

import json
import random
import time

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts
from doctor.packages.index import ReleaseIndex, load_index
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.environment import stack_of
from doctor.solver.solve import no_fix, solve
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

STACK = {
    "torch": "2.11.0", "torchvision": "0.26.0", "flash-attn": "2.8.3", "flash-attn-4": "4.0.0b4",
    "ring-flash-attn": "0.1.8", "transformers": "5.3.0", "vllm": "0.26.0", "nvidia-cudnn-cu13": "9.22.0.52",
    "triton": "3.6.0",
}  # fmt: skip
JOB = {
    "framework": "flash_attn", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 16,
    "num_kv_heads": 4, "batch_size": 1, "seq_len_q": 4096, "mask": "causal", "training": True,
}  # fmt: skip


def lock(count: int, **more: str) -> tuple[Facts, dict[str, list[str]]]:
    """A stack in trouble among so many other packages, each of which requires some of the rest."""
    chance = random.Random(0)
    others = {f"package-{number}": f"1.{number}" for number in range(count)}
    requires = {}
    for name in others:
        some = chance.sample(sorted(others), 4)
        requires[name] = [*(f"{other}>=1" for other in some), *chance.sample(["torch>=2", "numpy", "transformers"], 1)]
    versions = {**STACK, **others, **more}
    values = {"python.version": "3.12.3", "platform.system": "Linux", "platform.machine": "x86_64",
              "distributions.complete": True, **{f"{name}.version": text for name, text in versions.items()},
              **{f"workload.{name}": value for name, value in JOB.items()}}  # fmt: skip
    return complete_workload(Facts(fact(key, value, "uv.lock") for key, value in values.items())), requires


@pytest.mark.parametrize(
    ("more", "is_error"), [({"triton": "3.5.1"}, False), ({"nvidia-cudnn-cu12": "9.22.0.52"}, True)],
    ids=["warnings", "an error"],
)  # fmt: skip
def test_a_lock_of_hundreds_of_packages_costs_seconds_at_most(more: dict[str, str], is_error: bool):
    rules = builtin_rulebook()
    facts, requires = lock(450, **more)
    facts = facts.with_(fact("gpu.sm", "10.0", "test"))
    before = evaluate(rules, facts)
    assert bool(before.errors) == is_error and before.findings
    began = time.process_time()
    fixes = solve(rules, facts, before, installed=lambda: requires)
    no_fix(rules, facts, before, fixes, installed=lambda: requires)
    assert time.process_time() - began < 3
    assert fixes


def test_what_moves_breaks_only_what_it_meant_something_to():
    facts, requires = lock(450)
    stack = stack_of(facts, evaluate(Rulebook({}, {}), facts).known, load_index(), installed=requires)
    broken = {(clash.package, clash.needs) for clash in stack.clashes({"torch": ABSENT})}
    wanting = {(name, "torch") for name, lines in requires.items() if "torch>=2" in lines}
    assert wanting <= broken and not any(needs.startswith("package-") for _, needs in broken)


# --- what was broken before ---------------------------------------------------------------------------------------


def asking(severity: str = "error", **installed: str) -> tuple[Rulebook, Facts, ReleaseIndex]:
    """A rule that requires transformers 2.0, which needs an old torch."""
    rule = Rule("OWN001", "own", {
        "id": "OWN001", "name": "own", "severity": severity, "summary": "strikes", "message": "strikes",
        "when": {"transformers.version": "<2"}, "fix": [{"require": {"transformers": ">=2"}}],
        "references": ["https://example.org"],
    }, "")  # fmt: skip
    plain = {"t": ["py3"], "m": ["any"], "d": "2026-01-01"}
    packages = {"transformers": {"1.0": [], "1.1": [], "2.0": ["torch<2.6"]}, "torch": {"2.5.0": [], "2.6.0": []}}
    lines = ['{"refreshed":""}'] + [
        json.dumps(
            {"name": name, "releases": {v: {"rd": rd, **plain} for v, rd in releases.items()}}, separators=(",", ":")
        )
        for name, releases in packages.items()
    ]
    values = {"python.version": "3.11.7", "distributions.complete": True,
              **{f"{name}.version": version for name, version in installed.items()}}  # fmt: skip
    facts = Facts(fact(key, value, "test") for key, value in values.items())
    return Rulebook({"OWN001": rule}, {}), facts, ReleaseIndex.from_text("\n".join(lines))


def test_a_requirement_that_was_broken_before_hinders_no_fix():
    rules, facts, index = asking(transformers="1.1", attrs="25.1")
    (fix,) = solve(rules, facts, evaluate(rules, facts), index=index, installed=lambda: {"attrs": ["transformers<0.5"]})
    assert {change.name: change.after for change in fix.changes} == {"transformers": "2.0"}


def test_a_requirement_that_would_break_hinders_it():
    rules, facts, index = asking(transformers="1.1", attrs="25.1")
    found = solve(rules, facts, evaluate(rules, facts), index=index, installed=lambda: {"attrs": ["transformers<1.5"]})
    assert found == ()


# --- what a warning is worth --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("severity", "moved"), [("error", {"transformers": "2.0", "torch": "2.5.0"}), ("warning", None)]
)
def test_no_warning_takes_torch_back_to_an_older_release_line(severity: str, moved: dict[str, str] | None):
    rules, facts, index = asking(severity, transformers="1.1", torch="2.6.0")
    fixes = solve(rules, facts, evaluate(rules, facts), index=index)
    assert [{change.name: change.after for change in fix.changes} for fix in fixes] == ([moved] if moved else [])
