"""What a request for an attention implementation turns into, against the answers of real releases of transformers.

`captures/transformers-attn.jsonl` was written by `scripts/oracles/ask_transformers.py`: one line per release and
pretended machine, model type → request → what the config of the built model said, or `! ` and the error.
"""

import json
import re
from pathlib import Path

import pytest

from doctor.diagnosis import batch
from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts
from doctor.rulebook.backends import order_that_counts
from doctor.rulebook.evaluate import evaluate, know, with_backend_findings
from doctor.util.units import human_bytes
from tests.helpers.rulebook import builtin_rulebook

CAPTURED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "captures" / "transformers-attn.jsonl").read_text().splitlines()
]
HOPPER = {
    "transformers.version": "4.57.6", "torch.version": "2.8.0", "torch.cuda": "12.8", "gpu.sm": "9.0",
    "flash-attn.version": "2.8.3", "flash-attn-3.version": ABSENT, "flash-attn-4.version": ABSENT,
    "kernels.version": ABSENT, "workload.framework": "transformers", "workload.dtype": "bfloat16",
    "workload.head_dim_qk": 128, "workload.head_dim_v": 128, "workload.num_heads": 32, "workload.num_kv_heads": 8,
    "workload.batch_size": 1, "workload.seq_len_q": 4096, "workload.seq_len_kv": 4096, "workload.mask": "causal",
}  # fmt: skip


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def facts_of(values):
    return Facts(fact(key, value, "the test") for key, value in values.items())


def hopper(**changes):
    named = {key.replace("__", ".").replace("_version", ".version"): value for key, value in changes.items()}
    return facts_of({**HOPPER, **named})


def predict(rulebook, facts):
    known, predictions = know(rulebook, facts)
    known.look_up("hf.selected")
    return predictions["hf"]


def captured_facts(line, model_type, request):
    return facts_of({
        **line["facts"], "workload.framework": "transformers", "workload.model_type": model_type,
        "workload.dtype": line["dtype"], "workload.dropout": line["dropout"],
        "workload.attn_implementation": ABSENT if request == "none" else request,
    })  # fmt: skip


def label(line):
    installed = [f"{key.removesuffix('.version')}={value}" for key, value in line["facts"].items() if value != ABSENT]
    return " ".join(item for item in installed if not item.startswith("torch"))


def half(first):
    """Every second captured line, the others for `make test-all`: one test takes the even ones, the other the odd."""
    return [
        line if number % 2 == first else pytest.param(line, marks=pytest.mark.slow)
        for number, line in enumerate(CAPTURED)
    ]


@pytest.mark.parametrize("line", half(0), ids=label)
def test_a_real_release_says_the_same(rulebook, line):
    wrong = []
    for model_type, answers in line["answers"].items():
        for request, answer in answers.items():
            prediction = predict(rulebook, captured_facts(line, model_type, request))
            wanted = None if answer.startswith("!") else answer
            if not prediction.could_tell or prediction.selected != wanted:
                wrong.append(f"{model_type}, {request}: {answer}, predicted {prediction.selected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", half(1), ids=label)
def test_a_refusal_is_reported_by_a_rule_that_knows_its_words(rulebook, line):
    wrong, seen = [], set()
    for model_type, answers in line["answers"].items():
        for request, answer in answers.items():
            told_alike = (request, re.sub(r"\w+(ForCausalLM|LMHeadModel)", "", answer))
            if answer.startswith("!") and told_alike not in seen:
                seen.add(told_alike)
                told = evaluate(rulebook, captured_facts(line, model_type, request))
                rules = {
                    finding.rule for finding in with_backend_findings(rulebook, told) if finding.severity == "error"
                }
                (prediction,) = (item for item in told.predictions if item.library == "transformers")
                asked = order_that_counts(rulebook.libraries["transformers"].preferences, told.known)
                rules |= {
                    reason.rule
                    for candidate in prediction.candidates
                    if candidate.backend in asked
                    for reason in candidate.reasons
                }
                patterns = [text for rule in rules & set(rulebook.rules) for text in signatures(rulebook, rule)]
                if not any(re.search(pattern, answer) for pattern in patterns):
                    wrong.append(f"{model_type}, {request}: {answer}; {sorted(rules)}")
    assert not wrong, "\n".join(wrong)


def signatures(rulebook, rule):
    return rulebook.rules[rule].stated.get("signatures") or ()


def test_enough_was_checked():
    assert len({line["facts"]["transformers.version"] for line in CAPTURED}) >= 10
    assert sum(len(answers) for line in CAPTURED for answers in line["answers"].values()) >= 5000


def selected(rulebook, **changes):
    prediction = predict(rulebook, hopper(**changes))
    return prediction.selected if prediction.could_tell else "could not tell"


@pytest.mark.parametrize(
    ("release", "chosen"),
    [
        ("4.35.2", "hf.eager"),  # no choice yet
        ("4.44.2", "hf.sdpa"),
        ("4.45.2", "hf.eager"),  # Gemma2PreTrainedModel._check_and_enable_sdpa
        ("4.47.1", "hf.eager"),
        ("4.48.0", "hf.sdpa"),  # ALL_ATTENTION_FUNCTIONS
        ("5.20.0", "hf.sdpa"),
        ("5.21.0", "hf.eager"),  # _supports_sdpa = False
    ],
)
def test_what_gemma_2_gets_unasked(rulebook, release, chosen):
    assert selected(rulebook, transformers_version=release, workload__model_type="gemma2") == chosen


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"transformers_version": "4.46.3", "torch_version": "2.1.0"}, "hf.eager"),
        ({"transformers_version": "4.46.3", "torch_version": "2.1.1"}, "hf.sdpa"),
        ({"transformers_version": "4.56.0", "torch_version": "2.1.0"}, "hf.sdpa"),
        ({"transformers_version": "4.37.2", "workload__model_type": "phi"}, "hf.eager"),
        ({"workload__model_type": "a_model_of_the_hub"}, "hf.sdpa"),
    ],
)
def test_nothing_is_requested(rulebook, changes, chosen):
    assert selected(rulebook, **changes) == chosen


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, None),
        ({"kernels_version": "0.9.0"}, "hf.hub_kernel"),
        ({"kernels_version": "0.9.0", "env__HF_HUB_OFFLINE": "1"}, "could not tell"),
        ({"kernels_version": "0.9.0", "flash-attn-3_version": "3.0.0b1"}, None),  # 4.57: neither may be there
        ({"transformers_version": "4.55.4", "kernels_version": "0.9.0"}, None),
        ({"transformers_version": "4.56.2", "kernels_version": "0.9.0"}, "hf.hub_kernel"),
        ({"transformers_version": "4.56.2", "kernels_version": "0.9.0", "gpu_sm": ABSENT}, None),
        ({"transformers_version": "5.0.0", "kernels_version": "0.8.1"}, None),
        ({"transformers_version": "5.4.0", "kernels_version": "0.12.0", "flash-attn-3_version": "3.0.0b1"},
         "hf.hub_kernel"),
        ({"transformers_version": "5.23.0", "kernels_version": "0.17.2"}, None),
        ({"transformers_version": "5.23.0", "kernels_version": "0.18.2"}, "hf.hub_kernel"),
    ],
)  # fmt: skip
def test_flash_attention_2_without_flash_attn(rulebook, changes, chosen):
    changes = {key.replace("gpu_sm", "gpu__sm"): value for key, value in changes.items()}
    wanted = {"workload__attn_implementation": "flash_attention_2", "flash-attn_version": ABSENT, **changes}
    assert selected(rulebook, **wanted) == chosen


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ("paged|sdpa", "hf.sdpa"),
        ("kernels-community/flash-attn2@v1:flash_attn_func", "hf.hub_kernel"),
        ("flash_attention", None),
        ("a/b/c", None),
    ],
)
def test_how_a_request_is_written(rulebook, written, chosen):
    assert selected(rulebook, workload__attn_implementation=written, kernels_version="0.9.0") == chosen


def test_no_word_of_a_gpu_is_no_verdict_on_flash_attention(rulebook):
    facts = hopper(workload__attn_implementation="flash_attention_2").without("gpu.sm")
    prediction = predict(rulebook, facts)
    assert (prediction.selected, prediction.could_tell) == (None, False)
    found = next(item for item in prediction.candidates if item.backend == "hf.flash_attention_2")
    assert found.available is None
    assert "gpu.sm" in found.reasons[0].missing


@pytest.mark.parametrize(("installed", "chosen"), [("2.8.3", "hf.flash_attention_2"), (ABSENT, "hf.sdpa")])
def test_xtuner_fills_in_flash_attention(rulebook, installed, chosen):
    changes = {"workload__framework": "xtuner", "flash-attn_version": installed, "transformers_version": "4.46.3"}
    assert selected(rulebook, **changes) == chosen


def libraries(rulebook, **changes):
    told = evaluate(rulebook, hopper(**changes))
    return {item.library: item.selected for item in told.predictions}


def test_the_prediction_goes_on_where_the_attention_goes(rulebook):
    assert set(libraries(rulebook)) == {"transformers", "torch"}
    asked = libraries(rulebook, workload__attn_implementation="flash_attention_2")
    assert asked == {"transformers": "hf.flash_attention_2", "flash_attn": "fa.flash2"}
    hub = {"workload__attn_implementation": "flash_attention_2", "flash-attn_version": ABSENT}
    predicted = libraries(rulebook, **hub, kernels_version="0.9.0")
    assert predicted == {"transformers": "hf.hub_kernel", "hub_kernels": "hub.flash_attn"}
    assert set(libraries(rulebook, workload__attn_implementation="eager")) == {"transformers"}


def known_of(rulebook, **changes):
    return know(rulebook, hopper(**changes))[0]


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({"transformers_version": "4.53.3"}, False),  # repeat_kv
        ({}, True),  # use_gqa_in_sdpa
        ({"torch_version": "2.4.1"}, False),
        ({"workload__mask": "padding_causal"}, False),
        ({"workload__head_dim_qk": 192}, True),
        ({"transformers_version": "5.13.0", "workload__head_dim_qk": 192}, False),
        ({"transformers_version": "5.13.0"}, True),
        ({"transformers_version": "5.13.0", "workload__head_dim_qk": 288, "workload__head_dim_v": 288}, False),
        ({"workload__framework": "torch_sdpa"}, None),
    ],
)
def test_when_sdpa_is_reported_of_grouped_heads(rulebook, changes, passed):
    assert known_of(rulebook, **changes).value("workload.enable_gqa") is passed


@pytest.mark.parametrize(
    ("changes", "tensor", "causal"),
    [
        ({}, False, True),
        ({"workload__mask": "padding_causal"}, True, False),
        ({"workload__seq_len_q": 1}, False, False),
        ({"workload__mask": "causal_bottom_right", "workload__seq_len_q": 1024}, True, False),
        ({"workload__seq_len_q": 1024}, True, False),  # a chunk behind a KV cache
        ({"workload__seq_len_q": 1024, "workload__framework": "torch_sdpa"}, False, True),
        ({"workload__mask": "causal_bottom_right"}, False, True),
        ({"workload__mask": "causal_bottom_right", "workload__seq_len_q": 1}, False, False),
        ({"transformers_version": "4.38.2", "workload__model_type": "llama"}, True, False),
        ({"transformers_version": "4.38.2", "workload__model_type": "mistral"}, False, True),
        ({"transformers_version": "4.40.2", "workload__model_type": "llama"}, False, True),
    ],
)
def test_mask_or_is_causal(rulebook, changes, tensor, causal):
    known = known_of(rulebook, **changes)
    assert known.value("workload.sdpa_mask_tensor") is tensor
    assert known.value("workload.sdpa_is_causal") is causal


def findings(rulebook, **changes):
    told = evaluate(rulebook, hopper(**changes))
    return {finding.rule: finding for finding in with_backend_findings(rulebook, told)}


def test_the_one_refusal_that_was_requested_is_the_finding(rulebook):
    found = findings(rulebook, workload__attn_implementation="sdpa", workload__model_type="bloom")
    assert found["TF104"].severity == "error"
    assert "bloom" in found["TF104"].message
    assert found["TF104"].references


def test_an_unasked_fall_to_eager_is_a_warning_with_its_memory(rulebook):
    found = findings(rulebook, workload__model_type="bloom")
    assert found["TF202"].severity == "warning"
    assert human_bytes(16 * 32 * 4096 * 4096) in found["TF202"].message


def test_a_replaced_request_is_a_warning(rulebook):
    found = findings(
        rulebook, transformers_version="5.4.0", kernels_version="0.12.0", workload__model_type="gpt_oss",
        workload__attn_implementation="flash_attention_2",
    )  # fmt: skip
    assert "kernels-community/vllm-flash-attn3" in found["TF201"].message


def test_a_kernel_of_the_hub_is_a_warning_only_where_one_will_come(rulebook):
    hub = {"workload__attn_implementation": "flash_attention_2", "flash-attn_version": ABSENT}
    assert findings(rulebook, **hub, kernels_version="0.9.0")["TF003"].severity == "warning"
    unfit = findings(rulebook, **hub, transformers_version="5.23.0", kernels_version="0.9.0")
    assert "TF003" not in unfit
    assert any(finding.severity == "error" for finding in unfit.values())


def test_the_batch_takes_a_null_request_for_none(rulebook):
    line = {
        "facts": {key: value for key, value in HOPPER.items() if not key.startswith("workload.")},
        "workload": {"framework": "xtuner", "attn_implementation": None},
    }
    told, good = batch.answer(rulebook, json.dumps(line))
    assert good
    assert told["selected"] == "hf.flash_attention_2"


def test_what_stops_in_the_first_step(rulebook):
    flex = predict(rulebook, hopper(workload__attn_implementation="flex_attention", workload__dropout=0.1))
    assert (flex.selected, flex.fails_at_run.rule) == ("hf.flex_attention", "TF143")
    capped = predict(rulebook, hopper(transformers_version="5.21.0", workload__softcap=50.0))
    assert (capped.selected, capped.fails_at_run.rule) == ("hf.sdpa", "TF144")


def test_other_frameworks_are_checked_nothing_of_transformers(rulebook):
    assert "transformers" not in libraries(rulebook, workload__framework="torch_sdpa")
    assert known_of(rulebook, workload__framework="torch_sdpa").value("hf.request") == ABSENT
