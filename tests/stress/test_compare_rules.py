"""A sweep next to the rulebook: predicted, unpredicted, refuted; each case in the words of the rules."""

from __future__ import annotations

from ast import literal_eval

import pytest

from doctor.facts.vocabulary import fact, term
from doctor.model import Facts
from doctor.rulebook.rulebook import load_rulebook
from doctor.runner.result import KernelResult
from doctor.stress.axes import DOMAINS
from doctor.stress.case_facts import FORWARD_ONLY, case_facts, covered
from doctor.stress.compare_rules import CasePredictor, compare, rules_of
from doctor.stress.devices import Device
from doctor.stress.failures import Failure
from doctor.stress.plan import SweepPlan, plan
from doctor.stress.report import as_json, as_text
from doctor.stress.sweep import SweepResult
from doctor.util.resources import kernels_dir
from tests.helpers.rulebook import builtin_rulebook

H200 = {
    "torch.version": "2.11.0+cu130", "torch.cuda": "13.0", "triton.version": "3.6.0", "cudnn.version": "9.19.0",
    "cudnn.te_version": "9.19.0", "xformers.loads": True,
    "gpu.sm": "9.0", "python.version": "3.12.3", "flash-attn.version": "2.8.3.post2", "xformers.version": "0.0.35",
    "transformer-engine.version": "2.20.2", "distributions.complete": True, "workload.framework": "megatron",
    "sageattention.version": "1.0.6", "transformers.version": "5.17.0", "fa3-fwd.version": "0.0.3",
}  # fmt: skip
CASE = {
    "backend": "sdpa.flash", "dtype": "bfloat16", "batch_size": 2, "num_heads": 4, "num_kv_heads": 4, "head_dim_qk": 64,
    "head_dim_v": 64, "seq_len_q": 300, "seq_len_kv": 100, "mask": "no_mask", "layout": "bshd", "grad": "dense",
    "how": "eager", "deterministic": False, "seed": 4,
}  # fmt: skip
RIGHT, WRONG = KernelResult("ran", {"verdict": "ok"}), KernelResult("ran", {"verdict": "wrong", "faults": ["out"]})
REFUSED = KernelResult("refused", reason="RuntimeError: No available kernel")


@pytest.fixture(scope="module")
def reader():
    return CasePredictor(builtin_rulebook(), Facts(fact(key, value, "test") for key, value in H200.items()))


def beside(reader, case, answer):
    return compare([("gpu0", {**CASE, **case}, answer)], reader)


def test_a_refusal_that_a_rule_names_is_predicted(reader):
    found = beside(reader, {"mask": "boolean"}, REFUSED)  # torch's flash kernel takes no mask tensor
    assert [key[1] for key in found.predicted] == ["refused"] and not found.unpredicted and found.covered == 1


def test_a_refusal_in_a_step_is_predicted_by_the_rule_of_that_step(reader):
    found = beside(reader, {"backend": "sdpa.efficient", "mask": "additive_float32"}, REFUSED)
    assert ("SDPA406", "refused") in found.predicted and not found.unpredicted


@pytest.mark.parametrize(
    "layout, heads, queries, expected",
    [
        ("bhsd", 4, 300, ("TE650",)),
        ("bhsd", 1, 300, ()),
        ("bhsd", 4, 1, ("TE650",)),
        ("bshd", 4, 300, ()),
        ("sbhd", 4, 300, ()),
        ("rowpad", 1, 300, ("TE650",)),
    ],
)
def test_tensors_in_another_layout_than_transformer_engine_assumes(reader, layout, heads, queries, expected):
    case = {"backend": "te.fused", "layout": layout, "num_heads": heads, "num_kv_heads": heads, "seq_len_q": queries}
    assert rules_of({**CASE, **case}, reader) == expected


@pytest.mark.parametrize(
    "case, expected",
    [
        ({"layout": "offset8", "num_kv_heads": 1}, ("TE652",)),
        ({"layout": "offset8", "seq_len_kv": 1}, ("TE652",)),
        ({"layout": "offset8"}, ()),  # not contiguous as (batch, seq, heads, dim), so they are copied
        ({"layout": "sbhd", "num_kv_heads": 1}, ()),
    ],
)
@pytest.mark.parametrize("backend", ["te.fused", "te.unfused", "te.flash2"])
def test_slices_of_a_buffer_that_transformer_engine_refuses(reader, backend, case, expected):
    assert rules_of({**CASE, "backend": backend, **case}, reader) == expected


@pytest.mark.parametrize(
    "case, expected",
    [
        ({"mask": "blind"}, ("SDPA402",)),
        ({"mask": "boolean"}, ()),
        ({"mask": "window"}, ("SDPA402",)),  # 300 queries, 100 keys
        ({"mask": "window_both"}, ("SDPA402",)),
        ({"mask": "window_both", "window_size": 200}, ()),
        ({"mask": "window_both", "seq_len_kv": 1000}, ()),
        ({"mask": "additive_inf"}, ()),
        ({"layout": "offset1"}, ("SDPA408",)),
    ],
)
def test_rows_without_keys_and_unaligned_tensors_on_cudnn(reader, case, expected):
    assert rules_of({**CASE, "backend": "sdpa.cudnn", **case}, reader) == expected


@pytest.mark.parametrize("backend, dtype, mask", [
    ("sdpa.flash", "bfloat16", "no_mask"), ("sdpa.efficient", "bfloat16", "padding"),
    ("sdpa.efficient", "float32", "padding"), ("sdpa.default", "float32", "padding"),
])  # fmt: skip
def test_unaligned_tensors_end_the_process_of_other_kernels(reader, backend, dtype, mask):
    case = {**CASE, "backend": backend, "dtype": dtype, "mask": mask}
    assert rules_of({**case, "layout": "offset1"}, reader) == ("SDPA407",) and rules_of(case, reader) == ()


def test_an_empty_sequence_among_single_queries_with_grouped_heads(reader):
    case = {**CASE, "backend": "flash2", "layout": "thd", "seq_len_q": 1, "num_kv_heads": 2}
    assert rules_of(case, reader) == ("FA032",)
    for other in ({"sequences": "none_empty"}, {"batch_size": 1}, {"num_kv_heads": 4}, {"layout": "bshd"},
                  {"dropout": 0.1}, {"alibi": True}, {"mask": "window"}):  # fmt: skip
        assert rules_of({**case, **other}, reader) == (), other
    assert rules_of({**CASE, "backend": "flash2", "layout": "offset1"}, reader) == ("FA033",)


NESTED = {**CASE, "backend": "nested", "layout": "thd", "sequences": "none_empty", "batch_size": 3}


@pytest.mark.parametrize(
    "case, expected",
    [
        ({}, ()),
        ({"mask": "causal"}, ("SDPA411",)),  # 300 queries, 100 keys
        ({"mask": "causal", "dtype": "float32"}, ()),
        ({"mask": "causal", "dtype": "float32", "dropout": 0.1}, ("SDPA410",)),
        ({"dropout": 0.1}, ()),
        ({"dropout": 0.1, "head_dim_v": 128}, ("SDPA410",)),
        ({"dropout": 0.1, "dtype": "float32", "batch_size": 1, "num_heads": 1, "num_kv_heads": 1}, ()),
        ({"mask": "causal", "sequences": "some_empty"}, ("SDPA412",)),
        ({"mask": "causal", "sequences": "some_empty", "batch_size": 1}, ("SDPA411",)),  # one full sequence
        ({"sequences": "some_empty"}, ()),  # plain math
        ({"sequences": "narrowed"}, ("SDPA413",)),
        ({"sequences": "narrowed", "batch_size": 2}, ()),  # the last one may be shorter
        ({"sequences": "narrowed", "seq_len_q": 1, "seq_len_kv": 1}, ()),
        ({"mask": "causal", "head_dim_qk": 36, "head_dim_v": 36}, ("SDPA414", "SDPA412")),
        ({"head_dim_qk": 36, "head_dim_v": 36}, ()),  # plain math
    ],
)
def test_nested_tensors(reader, case, expected):
    assert set(rules_of({**NESTED, **case}, reader)) == set(expected)


@pytest.mark.parametrize("case", [{"dtype": "float32"}, {"deterministic": True}])
def test_nested_tensors_with_an_empty_sequence_that_nothing_takes(reader, case):
    empty = {**NESTED, "mask": "causal", "sequences": "some_empty", **case}
    assert ("SDPA110", "refused") in beside(reader, empty, REFUSED).predicted


@pytest.mark.parametrize("backend, case, expected", [
    ("sdpa.flash", {"batch_size": 65_537}, ("SDPA415", "SDPA429")),
    ("sdpa.cudnn", {"batch_size": 65_537}, ("SDPA415",)),
    ("sdpa.default", {"batch_size": 65_537}, ("SDPA415",)), ("sdpa.efficient", {"batch_size": 65_537}, ()),
    ("sdpa.efficient", {"batch_size": 65_537, "dropout": 0.1}, ("SDPA416",)),
    ("sdpa.efficient", {"layout": "single"}, ()),
    ("sdpa.efficient", {"layout": "single", "seq_len_q": 1}, ("SDPA417",)),
    ("sdpa.efficient", {"layout": "single", "num_kv_heads": 1}, ()),  # they are repeated
    ("sdpa.default", {"layout": "single", "num_heads": 1, "num_kv_heads": 1, "dtype": "float32"}, ("SDPA417",)),
    ("sdpa.flash", {"layout": "single", "seq_len_q": 1}, ()),
    ("sdpa.efficient", {"mask": "additive", "bias_grad": True}, ()),
    ("sdpa.efficient", {"mask": "additive", "bias_grad": True, "alone": True}, ("SDPA418",)),
    ("sdpa.math", {"mask": "additive", "bias_grad": True, "alone": True}, ()),
])  # fmt: skip
def test_grids_strides_and_masks_that_alone_are_trained(reader, backend, case, expected):
    assert rules_of({**CASE, "backend": backend, **case}, reader) == expected


def test_alibi_with_a_window_to_both_sides(reader):
    case = {**CASE, "backend": "te.fused", "seq_len_kv": 300, "layout": "sbhd", "alibi": True}
    assert reader.predict({**case, "mask": "window_both"}).refused_by == ("TE713",)
    assert reader.predict({**case, "mask": "no_mask"}).serves
    assert reader.predict({**case, "mask": "window_both", "alibi": False}).serves


def test_sage_has_no_backends_and_rules_all_the_same(reader):
    sage = {"backend": "sage", "seq_len_q": 128, "seq_len_kv": 128}
    assert ("SAGE005", "refused") in beside(reader, {**sage, "head_dim_qk": 80, "head_dim_v": 80}, REFUSED).predicted
    assert rules_of({**CASE, **sage}, reader) == ("SAGE001",)  # and not SAGE004: no gradient is computed
    assert set(rules_of({**CASE, **sage, "seq_len_kv": 129}, reader)) == {"SAGE001", "SAGE002"}
    assert set(rules_of({**CASE, **sage, "head_dim_v": 128}, reader)) == {"SAGE001", "SAGE003"}
    assert not beside(reader, sage, REFUSED).unpredicted  # one rule at least says that it goes wrong


def test_a_library_that_loads_nothing_here_is_predicted_to_refuse_all(reader):
    case = {"backend": "xformers", "seq_len_kv": 300}
    assert not reader.predict({**CASE, **case}).refused_by
    other_cuda = {"xformers.loads": None, "xformers.cuda": "12.8", "torch.cuda": "13.0"}
    broken = CasePredictor(
        reader.rulebook, reader.environment.with_(*(fact(k, v, "test") for k, v in other_cuda.items()))
    )
    assert ("XF007", "refused") in beside(broken, case, REFUSED).predicted
    assert ("XF007", "xformers") in beside(broken, case, RIGHT).refuted
    assert broken.predict({**CASE, "backend": "flash2"}).serves  # another library


def test_flash_attention_through_transformers_has_the_faults_of_both(reader):
    flash = {**CASE, "backend": "transformers.flash2", "seq_len_kv": 300}
    assert rules_of(flash, reader) == () and reader.predict(flash).serves
    assert rules_of({**flash, "head_dim_v": 128}, reader) == ("TF020",)
    assert rules_of({**flash, "head_dim_qk": 192, "head_dim_v": 128}, reader) == ()  # narrower ones are padded
    assert rules_of({**flash, "layout": "offset1"}, reader) == ("FA033",)
    assert "FA105" in reader.predict({**flash, "head_dim_qk": 320, "head_dim_v": 320}).refused_by


def test_the_forward_only_build_of_flash_attention_3(reader):
    build = {**CASE, "backend": "fa3_fwd"}
    assert rules_of(build, reader) == () and reader.predict(build).serves
    assert reader.predict({**build, "dtype": "float16"}).refused_by == ("FA209",)
    assert reader.predict({**build, "mask": "window"}).refused_by == ("FA209",)
    assert reader.predict({**build, "head_dim_qk": 36, "head_dim_v": 36}).refused_by == ("FA210",)
    assert rules_of({**build, "layout": "offset1"}, reader) == ("FA211",)


def test_what_computes_no_gradient_is_reported_so():
    program = (kernels_dir() / "sweep" / "calls.py").read_text().splitlines()
    line = next(line for line in program if line.startswith("FORWARD_ONLY = "))
    assert literal_eval(line.partition(" = ")[2]) == FORWARD_ONLY
    assert case_facts({**CASE, "backend": "sage"}).value("workload.training") is False
    assert case_facts({**CASE, "backend": "flash2"}).value("workload.training") is True


def test_flash_attention_4_on_hopper(reader):
    case = {"backend": "flash4", "seq_len_q": 300, "seq_len_kv": 300}
    known = CasePredictor(reader.rulebook, reader.environment.with_(fact("flash-attn-4.version", "4.0.0b36", "test")))
    assert rules_of({**CASE, **case, "head_dim_qk": 72, "head_dim_v": 72}, known) == ("FA029",)
    assert rules_of({**CASE, **case, "head_dim_qk": 96, "head_dim_v": 96}, known) == ()
    short = {**CASE, **case, "head_dim_qk": 72, "head_dim_v": 72, "seq_len_q": 64}
    assert rules_of(short, known) == () and rules_of({**short, "num_kv_heads": 2}, known) == ("FA029",)


def test_a_refusal_that_no_rule_names_is_listed_with_its_reason(reader):
    found = beside(reader, {}, REFUSED)
    assert not found.predicted and found.unpredicted["sdpa.flash"].reason == REFUSED.reason


def test_what_a_rule_rules_out_and_runs_right_refutes_the_rule(reader):
    found = beside(reader, {"mask": "boolean"}, RIGHT)
    ((rule, backend),) = found.refuted
    assert backend == "sdpa.flash" and rule.startswith("SDPA") and not found.predicted


def test_wrong_numbers_that_a_rule_names_are_predicted_and_others_are_not(reader):
    known = {"backend": "sdpa.efficient", "mask": "causal_bottom_right"}
    assert ("SDPA401", "wrong") in beside(reader, known, WRONG).predicted
    assert ("SDPA401", "sdpa.efficient") in beside(reader, known, RIGHT).refuted
    assert rules_of({**CASE, **known}, reader) == ("SDPA401",)
    assert rules_of({**CASE, "backend": "sdpa.efficient"}, reader) == ()


def test_a_warning_may_explain_a_fault_and_is_not_refuted_by_a_case_without(reader):
    known = {"backend": "sdpa.cudnn", "mask": "additive_float32", "seq_len_q": 128, "seq_len_kv": 128}
    assert ("SDPA404", "wrong") in beside(reader, known, WRONG).predicted
    assert not beside(reader, known, RIGHT).refuted
    own = {**known, "mask": "additive"}  # in the type of the queries
    assert rules_of({**CASE, **own}, reader) == ()


def test_a_note_explains_only_what_another_call_left_behind(reader):
    plain = {"backend": "sdpa.cudnn", "seq_len_q": 128, "seq_len_kv": 128}
    assert rules_of({**CASE, **plain}, reader) == ()
    assert rules_of({**CASE, **plain, "before": "other_grad"}, reader) == ("SDPA405",)


def test_backends_without_rules_are_left_alone(reader):
    assert beside(reader, {"backend": "varlen"}, REFUSED).covered == 0
    assert beside(reader, {"backend": "file:x.py:f"}, WRONG).covered == 0
    assert beside(reader, {}, KernelResult("unavailable")).covered == 0


load_rulebook()  # its libraries say which backends of the sweep they cover


@pytest.mark.parametrize("backend", sorted(set(covered()) & set(DOMAINS)))
def test_every_case_can_be_said_in_the_words_of_the_rules(reader, backend):
    for case in plan([backend], "cuda", 80, seed=5).cases:
        facts = case_facts(case)
        for key, told in facts.items():
            allowed = term(key).values
            assert not allowed or told.value in (*allowed, "absent"), (key, told.value)
        assert reader.predict(case) is not None


def test_every_backend_of_rules_is_one_of_the_sweep():
    assert len(covered()) > 15 and set(covered()) <= set(DOMAINS)


def test_the_report_says_it_in_both_forms(reader):
    case = {**CASE, "backend": "sdpa.efficient", "mask": "causal_bottom_right"}
    other = {**CASE, "backend": "sdpa.efficient"}
    hello = {"torch": "2.11", "backends": {}, "device": "cuda"}
    records = [("gpu0", case, WRONG), ("gpu0", other, WRONG), ("gpu0", {**CASE, "mask": "boolean"}, RIGHT),
               ("gpu0", CASE, REFUSED)]  # fmt: skip
    outcome = SweepResult(hello, SweepPlan((), {}), [Device("gpu0", "GPU 0")], records)
    outcome.failures = [Failure("sdpa.efficient", ("out",), each, "", WRONG) for each in (case, other)]
    for item in outcome.failures:
        item.rules = rules_of(item.case, reader)
    found = compare(records, reader)
    text, told = as_text(outcome, found), as_json(outcome, found)
    assert "predicted by SDPA401" in text and "; unpredicted" in text and "refuted: 1 cases ran right" in text
    assert "no rule predicted 1 refusals of `sdpa.flash`" in text
    assert [item["prediction"] for item in told["failures"]] == ["predicted", "unpredicted"]
    assert told["rulebook"]["predicted"][0]["rule"] == "SDPA401" and told["rulebook"]["refuted"][0]["cases"] == 1
    assert as_json(outcome)["rulebook"] is None and "rulebook" not in as_text(outcome)
