"""Logs in the manner of public threads whose cause is known, and logs that show no incompatibility.

`data/logs/threads*.jsonl`: one thread on each line, with the categories that fit, and expressions that the answer
(`says`) and its fixes or packages (`fix`) match. The logs are made up; the error lines have the form of the thread's.
"""

import json
import re

import pytest

from doctor.report.explanation import as_json, as_text
from doctor.report.style import Style
from tests.helpers.paths import DATA


def lines(kind):
    files = sorted((DATA / "logs").glob(f"{kind}*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def answer(explain, log):
    return json.loads(as_json(explain(log + "\n", fixes=False)))["diagnosis"]


def faults(case, found):
    """Yield what is wrong with an answer."""
    if not found:
        yield "no diagnosis"
        return
    first = found[0]
    if first["category"] not in case["categories"]:
        yield f"{first['rule']}: category {first['category']}"
    if not re.search(case["says"], " ".join((first["cause"], first["message"], first["why"]))):
        yield f"{first['rule']}: {first['message']}"
    if not re.search(case["fix"], json.dumps([first["fixes"], first["packages"], first["no_pin"]])):
        yield f"{first['rule']}: no fix names {case['fix']}"


KNOWN_GAPS = {"scGPT#4", "LMCache#412"}  # the rule names another package of the pair


#: A third of the logs in each run of the suite, all of them in `make test-all`.
PARTS = [pytest.param(3, id="a third"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", PARTS)
def test_the_cause_of_public_threads_is_named(explain, step):
    cases = lines("threads")[::step]
    wrong = {case["thread"]: list(faults(case, answer(explain, case["log"]))) for case in cases}
    assert {thread: found for thread, found in wrong.items() if found and thread not in KNOWN_GAPS} == {}
    assert len(cases) > 250


def test_what_is_no_incompatibility_gets_no_diagnosis(explain):
    cases = lines("unrelated")
    assert {case["name"]: found for case in cases if (found := answer(explain, case["log"]))} == {}
    assert len(cases) >= 150


NOTICES = """config: attn_implementation=flash_attention_2 dtype=bfloat16
UserWarning: 1Torch was not compiled with flash attention. (Triggered internally at ../sdp_utils.cpp:455.)
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated."""


@pytest.mark.parametrize("step", PARTS)
def test_notices_around_an_unrelated_failure_name_no_cause(explain, step):
    cases = [case for case in lines("unrelated") if len(case["log"]) < 600][::step]
    found = {case["name"]: answer(explain, f"{NOTICES}\n{case['log']}\n{NOTICES}") for case in cases}
    assert {name: answers for name, answers in found.items() if answers} == {}
    assert len(cases) > 100


def test_notices_before_the_error_do_not_hide_it(explain):
    notices = "\n".join(case["log"] for case in lines("unrelated") if case["name"].startswith("notices"))
    error = "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'"
    found = answer(explain, f"{notices}\n{error}")
    assert found[0]["cause"] == "sig-tf448-llama-flash-class-removed" and found[0]["text"] == error


FRAME = '  File "{file}", line 7, in call\n    return inner(x)\n'
USER = FRAME.format(file="/srv/train.py")
MODULE = FRAME.format(file="/x/site-packages/torch/nn/modules/module.py")


@pytest.mark.parametrize(
    ("frames", "packages"),
    [
        (FRAME.format(file="/x/site-packages/trl/trainer/a.py"), ["trl"]),
        (FRAME.format(file="/x/site-packages/flash_attn/a.py") + MODULE, ["flash-attn"]),
        (FRAME.format(file="/srv/Megatron-LM/megatron/core/a.py"), ["megatron-core"]),
        (FRAME.format(file="C:\\venv\\Lib\\site-packages\\peft\\a.py"), ["peft"]),
        (FRAME.format(file="/x/site-packages/trl/trainer/a.py") + USER, None),
        (FRAME.format(file="/x/site-packages/someones_package/a.py"), None),
        ("", None),
    ],
)
def test_the_last_frame_says_whose_call_fails(explain, frames, packages):
    found = explain(
        f"Traceback (most recent call last):\n{frames}TypeError: f() got an unexpected keyword argument 'x'\n"
    )
    assert [list(item.packages) for item in found.diagnosis] == ([packages] if packages else [])


VLLM = "(EngineCore_DP0 pid=7) ERROR 12-03 06:17:14 [core.py:708] "


@pytest.mark.parametrize(
    ("line", "package"),
    [
        (
            "[TM][ERROR] CUDA runtime error: invalid device function /lmdeploy/src/turbomind/kernels/a.cu:1077",
            "lmdeploy",
        ),
        (f"{VLLM}RuntimeError: MLA of torch.uint8 is not supported.", "vllm"),
        ("[2026-09-22 17:29:40 TP1] ValueError: attention with this mask is not supported", "sglang"),
        ("ring_flash_attn: wrong results with two ranks", "ring-flash-attn"),
        ("Sage Attention gives incorrect results with torch 2.4", "sageattention"),
        ("RuntimeError: CUDA error: invalid device function", "torch"),
    ],
)
def test_a_message_without_traceback_says_whose_code_failed(explain, line, package):
    assert package in explain(f"{line}\n").diagnosis[0].packages


def test_a_long_function_that_is_undefined_is_of_transformers(explain):
    frame = '  File "/x/transformers_modules/modeling_llama2.py", line 7, in forward\n'
    name = "_prepare_4d_causal_attention_mask_for_sdpa"
    found = explain(f"{frame}NameError: name '{name}' is not defined\n").diagnosis[0]
    assert found.packages == ("transformers",) and name in found.message


REPORT = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:{second}
  host      : node-{rank}
  rank      : {rank} (local_rank: {rank})
  exitcode  : 1 (pid: 15)
"""
RANKS = """\
[rank2]: ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'
[rank5]: RuntimeError: FlashAttention only supports Ampere GPUs or newer.
"""


@pytest.mark.parametrize(
    ("reports", "rank"),
    [
        ("", "2"),
        (REPORT.format(rank=5, second="00"), "5"),
        (REPORT.format(rank=2, second="04") + REPORT.format(rank=5, second="01"), "5"),
        (REPORT.format(rank=7, second="00"), "2"),
    ],
)
def test_the_rank_that_torchrun_reports_as_first_is_the_root(explain, reports, rank):
    found = explain(RANKS + reports).diagnosis
    assert found[0].line.rank == rank and {item.line.rank for item in found} == {"2", "5"}


SHARED = (
    "ImportError: cannot import name '_flash_supports_window_size' from 'transformers.modeling_flash_attention_utils'\n"
)


def test_causes_that_share_a_message_are_shown_with_the_command_that_decides(explain):
    report = explain(SHARED)
    assert [item.rule for item in report.diagnosis] == ["LOGTF007"]
    assert any("LOGTF009" in reason for reason in report.diagnosis[0].reasons)
    assert report.diagnosis[0].confidence == "medium"
    text = as_text(report, Style())
    assert "attn-doctor explain LOG --set transformers.version=VALUE" in " ".join(text.split())
    assert "LOGTF009" in text


WRAPPED = """\
{left}RuntimeError: Failed to import transformers.models.llama.modeling_llama because{right}
{left}of the following error (look up to see its traceback):{right}
{left}/opt/conda/envs/long-name-of-an-environment/lib/python3.10/site-packages/flash_at{right}
{left}tn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol:{right}
{left}_ZN3c104cuda9SetDeviceEi{right}
"""


@pytest.mark.parametrize(("left", "right"), [("", ""), ("│ ", "   │"), ("[rank3]: ", "")])
def test_a_message_that_a_terminal_broke_into_lines_is_read_as_one(explain, left, right):
    found = answer(explain, WRAPPED.format(left=left, right=right))
    assert found[0]["cause"] == "abi-fa-torch-minor" and found[0]["line"] == 1


@pytest.mark.parametrize(
    "after",
    [
        "Traceback (most recent call last):",
        "INFO: argument 'softcap' of the configuration is unused",
        "ValueError: 3 of them",
        "\n",
    ],
)
def test_what_follows_a_message_is_no_part_of_it(explain, after):
    start = "TypeError: {} got an unexpected keyword".format("f" * 60)
    assert answer(explain, f"{start}\n{after} argument 'softcap'") == []


def test_a_word_that_had_fitted_belongs_to_another_message(explain):
    assert answer(explain, "TypeError: flash_attn_func() got an unexpected keyword\nargument 'softcap'\n") == []


RICH = """\
│ /opt/venv/lib/python3.10/site-packages/diffusers/models/attention_processor.py:   │
│ 420 in forward                                                                    │
TypeError: g() got an unexpected keyword argument 'scale_of_something'
"""


def test_frames_of_rich_say_whose_call_fails(explain):
    assert list(explain(RICH).diagnosis[0].packages) == ["diffusers"]


def test_frames_of_windows_and_of_escaped_logs_say_whose_call_fails(explain):
    for frame in (r'File "C:\venv\Lib\site-packages\trl\a.py", line 3', r"File \"/x/site-packages/trl/a.py\", line 3"):
        log = (
            f"  {frame}, in f\n" + MODULE.replace("/", "\\") + "TypeError: f() got an unexpected keyword argument 'x'\n"
        )
        assert list(explain(log).diagnosis[0].packages) == ["trl"]


def test_a_traceback_on_one_line_says_whose_call_fails(explain):
    lines = [FRAME.format(file="/srv/train.py"), FRAME.format(file="/x/site-packages/peft/a.py"), MODULE]
    log = repr([*lines, "TypeError: f() got an unexpected keyword argument 'x'\n"])
    assert list(explain(log).diagnosis[0].packages) == ["peft"]


def test_a_notice_after_a_long_message_is_no_part_of_it(explain):
    message = (
        "ValueError: The cache structure has changed since version v4.36. If you are using it, give the layer index"
    )
    notice = "You are attempting to use Flash Attention 2.0 with a model not initialized on GPU. Make sure to move it"
    assert [item["line"] for item in answer(explain, f"{message}\n{notice}")] == [1]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ModuleNotFoundError: No module named 'transformer_engine'", "pkg-te-not-installed"),
        ("KeyError: 'flash_attn'", "sig-tf-package-map-flash-attn"),
        ("ImportError: cannot import name 'log'", "ds-torch24-elastic-log"),
    ],
)
def test_lines_after_a_message_do_not_hide_it(explain, error, cause):
    frame = FRAME.format(file="/x/site-packages/transformers/utils/import_utils.py")
    assert answer(explain, f"{frame}{error}\nwandb: run offline\nstep 3\n")[0]["cause"] == cause
