"""The order of the objective, one step at a time on small worlds; settings compete with releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Fix
from doctor.packages.index import ReleaseIndex
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.limits import Limits
from doctor.solver.solve import no_fix, solve
from tests.helpers.rulebook import builtin_rulebook

CUDA12, CUDA13 = "nvidia-cudnn-cu12==9.1.0.70", "nvidia-cudnn-cu13==9.19.0.56"


def index(**packages: dict[str, dict[str, Any]]) -> ReleaseIndex:
    """An index of these packages: version → what differs from a plain release with a wheel."""
    lines = [json.dumps({"refreshed": ""})]
    for name, releases in packages.items():
        whole = {v: {"rd": [], "t": ["py3"], "m": ["any"], "d": "2026-01-01", **body} for v, body in releases.items()}
        lines.append(json.dumps({"name": name.replace("_", "-"), "releases": whole}, separators=(",", ":")))
    return ReleaseIndex.from_text("\n".join(lines))


def book(**rules: dict[str, Any]) -> Rulebook:
    """A rulebook of error rules without libraries."""
    found = {}
    for name, body in rules.items():
        whole = {"id": name, "name": name.lower(), "severity": "error", "summary": f"{name} strikes",
                 "references": ["https://example.org"], "message": f"{name} strikes", **body}  # fmt: skip
        found[name] = Rule(name, "own", whole, "")
    return Rulebook(found, {})


def given(**values: str) -> Facts:
    plain = {"python.version": "3.11.7", "distributions.complete": True}
    return Facts(fact(key, value, "test") for key, value in {**plain, **_keys(values)}.items())


def _keys(values: dict[str, str]) -> dict[str, str]:
    return {key if "." in key else f"{key.replace('_', '-')}.version": value for key, value in values.items()}


def first(rules: Rulebook, facts: Facts, world: ReleaseIndex, **options: Any) -> dict[str, str | None]:
    fixes = solve(rules, facts, evaluate(rules, facts), index=world, **options)
    return {change.name: change.after for change in fixes[0].changes}


def test_fewest_packages_come_before_everything_else():
    """One downgrade rather than two upgrades."""
    rules = book(OWN001={"when": {"transformers.version": "4.40.0", "xtuner.version": "<1"}, "fix": [{"note": "look"}]})
    world = index(transformers={"4.39.0": {}, "4.40.0": {}}, xtuner={"0.1.0": {}, "1.0.0": {"rd": ["deepspeed>=2"]}},
                  deepspeed={"1.0.0": {}, "2.0.0": {}})  # fmt: skip
    assert first(rules, given(transformers="4.40.0", xtuner="0.1.0", deepspeed="1.0.0"), world) == {
        "transformers": "4.39.0"
    }


def test_torch_stays_in_its_line_where_it_can():
    rules = book(OWN001={"when": {"torch.version": "2.6.0"}, "fix": [{"note": "look"}]})
    world = index(torch={v: {"rd": [CUDA12]} for v in ("2.5.1", "2.6.0", "2.6.1", "2.7.0")})
    assert first(rules, given(torch="2.6.0"), world) == {"torch": "2.6.1"}


def test_another_package_moves_rather_than_torchs_line():
    rules = book(
        OWN001={"when": {"torch.version": "<2.7", "transformers.version": ">=4.40"}, "fix": [{"note": "look"}]}
    )
    world = index(torch={v: {"rd": [CUDA12]} for v in ("2.6.0", "2.7.0")}, transformers={"4.39.0": {}, "4.40.0": {}})
    assert first(rules, given(torch="2.6.0", transformers="4.40.0"), world) == {"transformers": "4.39.0"}


def test_cuda_stays_where_torch_has_to_move():
    """The nearer line is built for another CUDA."""
    rules = book(OWN001={"when": {"torch.version": "==2.10.0"}, "fix": [{"note": "look"}]})
    world = index(torch={"2.8.0": {"rd": [CUDA12]}, "2.10.0": {"rd": [CUDA12]}, "2.11.0": {"rd": [CUDA13]}})
    assert first(rules, given(torch="2.10.0"), world) == {"torch": "2.8.0"}


def test_an_upgrade_is_taken_rather_than_a_downgrade():
    """Even where the newer line is further away."""
    rules = book(OWN001={"when": {"transformers.version": ">=4.40,<4.43"}, "fix": [{"note": "look"}]})
    world = index(transformers={v: {} for v in ("4.39.0", "4.40.0", "4.41.0", "4.42.0", "4.43.0")})
    assert first(rules, given(transformers="4.40.0"), world) == {"transformers": "4.43.0"}


def test_a_wheel_is_taken_rather_than_a_build():
    rules = book(OWN001={"when": {"deepspeed.version": "0.1.0"}, "fix": [{"note": "look"}]})
    world = index(deepspeed={"0.1.0": {}, "0.2.0": {"t": [], "m": [], "s": 1}, "0.3.0": {}})
    assert first(rules, given(deepspeed="0.1.0"), world) == {"deepspeed": "0.3.0"}


def test_the_nearest_line_and_its_newest_patch():
    rules = book(OWN001={"when": {"transformers.version": "<4.41"}, "fix": [{"note": "look"}]})
    world = index(transformers={v: {} for v in ("4.40.0", "4.41.0", "4.41.2", "4.42.0", "4.42.9")})
    assert first(rules, given(transformers="4.40.0"), world) == {"transformers": "4.41.2"}


def test_the_same_order_holds_among_releases_that_a_rule_names():
    rules = book(
        OWN001={"when": {"transformers.version": "4.40.0"}, "fix": [{"require": {"transformers": "!=4.40.0"}}]}
    )
    world = index(transformers={v: {} for v in ("4.39.0", "4.40.0", "4.41.0", "4.41.2", "4.42.0")})
    assert first(rules, given(transformers="4.40.0"), world) == {"transformers": "4.41.2"}


# --- settings -----------------------------------------------------------------------------------------------------

SWITCHED = {"torch.version": "<2.7", "env.NVTE_FUSED_ATTN": "0"}


def test_a_variable_is_unset_before_any_release_moves():
    """No rule names it: the error reads a variable that is set."""
    rules = book(OWN001={"when": SWITCHED, "fix": [{"note": "look"}]})
    world = index(torch={v: {"rd": [CUDA12]} for v in ("2.6.0", "2.7.0")})
    facts = given(torch="2.6.0", **{"env.NVTE_FUSED_ATTN": "0"})
    assert first(rules, facts, world) == {"NVTE_FUSED_ATTN": None}


def test_a_set_variable_and_a_release_are_joined_where_either_alone_is_not_enough():
    rules = book(OWN001={"when": {"env.NVTE_FUSED_ATTN": "0"}, "fix": [{"note": "look"}]},
                 OWN002={"when": {"torch.version": "<2.7"}, "fix": [{"note": "look"}]})  # fmt: skip
    world = index(torch={v: {"rd": [CUDA12]} for v in ("2.6.0", "2.7.0")})
    facts = given(torch="2.6.0", **{"env.NVTE_FUSED_ATTN": "0"})
    assert first(rules, facts, world) == {"torch": "2.7.0", "NVTE_FUSED_ATTN": None}


def test_where_the_loader_looks_is_never_unset_on_a_guess():
    rules = book(OWN001={"when": {"env.LD_LIBRARY_PATH": "present"}, "fix": [{"note": "look"}]})
    facts = given(torch="2.6.0", **{"env.LD_LIBRARY_PATH": "/usr/lib"})
    world = index(torch={"2.6.0": {"rd": [CUDA12]}})
    assert solve(rules, facts, evaluate(rules, facts), index=world) == ()


def test_re_enabling_a_backend_is_offered_before_a_new_torch():
    """With the real rules: two variables are off, either would do, and no package moves."""
    rules = builtin_rulebook()
    values = {"torch": "2.8.0", "transformer-engine": "2.5.0", "transformer-engine-torch": "2.5.0",
              "transformer-engine-cu12": "2.5.0", "gpu.sm": "9.0", "env.NVTE_FUSED_ATTN": "0",
              "env.NVTE_UNFUSED_ATTN": "0"}  # fmt: skip
    job = {"framework": "transformer_engine", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128,
           "num_heads": 16, "num_kv_heads": 16, "batch_size": 2, "seq_len_q": 4096, "mask": "causal",
           "qkv_layout": "bshd_bshd_bshd", "training": True}  # fmt: skip
    facts = given(**values).with_(*(fact(f"workload.{key}", value, "test") for key, value in job.items()))
    fixes = solve(rules, facts, evaluate(rules, facts))
    assert [change.kind for change in fixes[0].changes] == ["env"] and not fixes[0].leaves


# --- nothing helps ------------------------------------------------------------------------------------------------


def hopeless(**job: Any) -> tuple[Rulebook, Facts]:
    rules = builtin_rulebook()
    values = {"torch": "2.8.0", "transformer-engine": "2.5.0", "transformer-engine-torch": "2.5.0",
              "transformer-engine-cu12": "2.5.0", "flash-attn": "2.7.4.post1", "gpu.sm": "7.0"}  # fmt: skip
    plain = {"framework": "transformer_engine", "dtype": "float16", "head_dim_qk": 128, "head_dim_v": 128,
             "num_heads": 16, "num_kv_heads": 16, "batch_size": 2, "seq_len_q": 4096, "mask": "causal",
             "qkv_layout": "bshd_bshd_bshd", "training": True, "cp_size": 2, "cp_comm_type": "p2p", **job}  # fmt: skip
    return rules, given(**values).with_(*(fact(f"workload.{key}", value, "test") for key, value in plain.items()))


def test_a_proof_names_a_rule_for_every_backend_and_what_would_help():
    rules, facts = hopeless()
    before = evaluate(rules, facts)
    assert solve(rules, facts, before) == ()
    (proof,) = no_fix(rules, facts, before, ())
    assert proof.rule == "TE119" and proof.proved and len(proof.because) <= 5
    told = " ".join(proof.because)
    for backend in ("FlashAttention 2", "FlashAttention 3", "FlashAttention 4", "FusedAttention", "UnfusedDot"):
        assert backend in told
    assert "sm 8.0 or newer (found sm 7.0)" in told and "TE330" in told and "no change of releases" in told
    assert "without context parallelism" in (proof.instead or "") and "A100" in (proof.instead or "")


def test_what_would_help_instead_really_does():
    rules, facts = hopeless(cp_size=1)
    assert not evaluate(rules, facts).errors


def test_nothing_is_proved_where_a_release_would_do():
    """The proof is not believed on its own: with torch free a release clears it, with torch held nothing does."""
    rules = book(OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"note": "look"}]})
    world = index(torch={v: {"rd": [CUDA12]} for v in ("2.6.0", "2.7.0")})
    facts = given(torch="2.6.0")
    before = evaluate(rules, facts)
    (free,) = no_fix(rules, facts, before, (), index=world)
    (held,) = no_fix(rules, facts, before, (), index=world, limits=Limits(hold=frozenset({"torch"})))
    assert not free.proved and held.proved


# --- what a way costs and loses -----------------------------------------------------------------------------------


def fixes_of(**values: str) -> tuple[Fix, ...]:
    rules, facts = builtin_rulebook(), given(**values, **{"gpu.sm": "8.0"})
    job = {"framework": "megatron", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 16,
           "num_kv_heads": 16, "batch_size": 2, "seq_len_q": 4096, "mask": "causal", "qkv_layout": "sbhd_sbhd_sbhd",
           "training": True, "cp_size": 2, "cp_comm_type": "p2p"}  # fmt: skip
    facts = facts.with_(*(fact(f"workload.{key}", value, "test") for key, value in job.items()))
    return solve(rules, facts, evaluate(rules, facts))


def test_a_way_that_loses_a_feature_says_so():
    te = {f"transformer-engine{part}": "1.13.0" for part in ("", "-torch", "-cu12")}
    fixes = fixes_of(**{"torch": "2.4.1", "flash-attn": "2.6.3", **te})
    back = next(fix for fix in fixes if {change.name for change in fix.changes} == {"flash-attn"})
    assert any("soft cap" in text and "2.6.0" in text for text in back.regressions)
    assert any("downgrade" in text for text in back.costs)
    assert back.plan.wheel_url or any("source build" in text for text in back.costs)
    assert not fixes[0].regressions and not any("downgrade" in text for text in fixes[0].costs)


@pytest.mark.parametrize(
    ("installed", "wanted"),
    [
        ({"torch": "2.6.0", "xformers": "0.0.30"}, {"xformers": "0.0.29.post3"}),
        ({"torch": "2.6.0", "vllm": "0.9.1"}, {"vllm": "0.8.5.post1"}),
        ({"torch": "2.6.0", "torchvision": "0.19.0"}, {"torchvision": "0.21.0"}),
        ({"torch": "2.8.0", "triton": "3.2.0"}, {"triton": "3.4.0"}),
    ],
)
def test_what_was_built_for_another_torch_gets_its_release(installed: dict[str, str], wanted: dict[str, str]):
    rules, facts = builtin_rulebook(), given(**installed)
    fix = solve(rules, facts, evaluate(rules, facts))[0]
    assert {change.name: change.after for change in fix.changes} == wanted and not fix.leaves


def test_a_pin_of_xformers_or_vllm_binds_an_upgrade_of_torch():
    rules, facts = builtin_rulebook(), given(torch="2.7.1", xformers="0.0.31", vllm="0.10.0", **{"gpu.sm": "10.0"})
    for fix in solve(rules, facts, evaluate(rules, facts)):
        moved = {change.name: change.after for change in fix.changes}
        if not str(moved.get("torch")).startswith("2.7.1"):
            assert {"torch", "xformers", "vllm"} <= set(moved)
    held = Limits(hold=frozenset({"vllm"}))
    for fix in solve(rules, facts, evaluate(rules, facts), limits=held):
        assert str({change.name: change.after for change in fix.changes}["torch"]).startswith("2.7.1+")
