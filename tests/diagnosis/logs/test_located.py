"""Errors that no rule knows: what the code that raises them states, and logs without an error line."""

import io
import json

import pytest

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.logs import sites
from doctor.diagnosis.logs.explain import LogExplainer
from doctor.diagnosis.logs.located import in_words
from doctor.diagnosis.logs.source import LogSource
from doctor.model import Facts
from doctor.report.explanation import as_json, as_text
from doctor.report.style import Style

HEAD = "Traceback (most recent call last):\n"
SITE = "/opt/venv/lib/python3.12/site-packages"


def answer(explain, log):
    return json.loads(as_json(explain(log, fixes=False)))


def raised(file, function, error, line=7):
    return f'{HEAD}  File "{SITE}/{file}", line {line}, in {function}\n    raise ValueError(\n{error}\n'


HEADS = (
    "ValueError: Expect query and key/value to have the same number of heads but got Hq=8 and Hkv=2. "
    "Try setting enable_gqa=True for GQA."
)


def test_the_condition_of_a_message_that_no_rule_knows(explain):
    log = raised("torch/nn/attention/flex_attention.py", "flex_attention", HEADS)
    (first,) = answer(explain, log)["diagnosis"]
    assert (first["rule"], first["packages"], first["confidence"]) == (None, ["torch"], "high")
    assert "flex_attention" in first["message"] and "differs from" in first["why"]
    assert "enable_gqa=True" in first["fixes"][0]["note"]
    assert "read from the code" in as_text(explain(log, fixes=False), Style())


def test_without_a_frame_a_message_of_the_record_is_less_sure(explain):
    (first,) = answer(explain, HEADS + "\n")["diagnosis"]
    assert first["packages"] == ["torch"] and first["confidence"] == "medium"


def test_a_message_of_the_record_that_is_not_of_attention_is_no_diagnosis(explain):
    error = "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
    report = answer(explain, raised("torch/distributed/distributed_c10d.py", "_get_default_group", error))
    assert report["diagnosis"] == [] and "torch" in " ".join(report["shown"])


def test_code_of_the_job_is_not_looked_up(explain):
    log = f'{HEAD}  File "/srv/train.py", line 7, in f\n    check(q)\n{HEADS}\n'
    assert [item["rule"] for item in answer(explain, log)["diagnosis"]] in ([], ["LOGPY079"])


def test_an_unknown_failure_shows_package_and_frame(explain):
    report = answer(explain, raised("natten/context.py", "run", "FooError: the flux is empty"))
    assert report["diagnosis"] == [] and "natten" in report["shown"][0] and "context.py:7" in report["shown"][0]


def test_the_installed_source_is_read_at_the_line_of_the_frame(explainer, tmp_path):
    package = tmp_path / "natten"
    package.mkdir()
    (package / "context.py").write_text(
        "def run(window, length):\n    if window > length:\n"
        "        raise ValueError(f'window of {window} is too large')\n"
    )
    target = DiagnosisInput(Facts(), site_dirs=(tmp_path,))
    own = LogExplainer(explainer.rulebook, explainer.rules, target)
    log = raised("natten/context.py", "run", "ValueError: window of 9 is too large", line=3)
    found = own.explain(LogSource("log", io.BytesIO(log.encode())), fixes=False)
    text = json.dumps([[item.message, item.why] for item in found.diagnosis] or found.shown)
    assert "window > length" in text and "`window` is 9" in text


def test_a_path_of_a_log_leaves_no_folder_of_packages(explainer, tmp_path):
    (tmp_path / "secret.py").write_text("raise ValueError('window of attention is secret')\n")
    site = tmp_path / "site"
    site.mkdir()
    own = LogExplainer(explainer.rulebook, explainer.rules, DiagnosisInput(Facts(), site_dirs=(site,)))
    log = raised("natten/../../secret.py", "run", "ValueError: window of attention is secret", line=1)
    found = own.explain(LogSource("log", io.BytesIO(log.encode())), fixes=False)
    assert all(item.rule is not None for item in found.diagnosis)


def called(file, function, code, error):
    return f'{HEAD}  File "{SITE}/{file}", line 7, in {function}\n    {code}\n{error}\n'


NATTEN = "RuntimeError: Hopper FMHA backward: cumulative_seqlen_Q is expected to be a 1-D tensor."


def test_a_check_in_the_sources_of_an_extension_is_stated_with_its_condition(explain):
    found = sites.source_sites_of("RuntimeError: This flash attention build does not support local attention.")
    assert {site.package for site in found} == {"flash-attn", "flash-attn-3"} and found[0].native
    log = called("natten/backends/fna.py", "forward", "libnatten.na1d_forward(", NATTEN)
    (first,) = answer(explain, log)["diagnosis"]
    assert first["packages"] == ["natten"] and "cumulative_seqlen_Q.dim()" in first["why"].replace("_tensor", "")


def test_a_statement_that_a_frame_shows_is_one_of_its_package(explain):
    error = "AssertionError: use set_seq_parallel_pg() first. Now ulysses pg None and ring pg None"
    (first,) = answer(explain, called("yunchang/hybrid/attn_layer.py", "__init__", "self.pg is not None", error))[
        "diagnosis"
    ]
    assert first["packages"] == ["yunchang"] and "set_seq_parallel_pg" in json.dumps(first["fixes"])


@pytest.mark.parametrize("name", ["optimizer", "transformer_config"])
def test_a_statement_of_a_package_for_other_things_is_no_diagnosis(explain, name):
    log = raised(f"accelerate/{name}.py", "run", "ValueError: the flux of the tree is not a number, got 64")
    assert answer(explain, log)["diagnosis"] == []


def test_arguments_by_position_that_a_function_does_not_take_are_to_be_named(explain):
    call = "out = F.scaled_dot_product_attention(q, q, q, None, 0.0, True, 0.125)"
    error = "TypeError: scaled_dot_product_attention() takes from 3 to 6 positional arguments but 7 were given"
    log = f'{HEAD}  File "/srv/train.py", line 7, in f\n    {call}\n{error}\n'
    (first,) = answer(explain, log)["diagnosis"]
    assert first["rule"] is None and "takes 6 positional" in first["message"] and "by name" in first["fixes"][0]["note"]


def test_an_operator_without_a_kernel_for_the_device_is_named_with_the_devices_that_have_one(explain):
    error = (
        "NotImplementedError: Could not run 'window_attention::fwd' with arguments from the 'CPU' backend. This could "
        "be because the operator doesn't exist for this backend. 'window_attention::fwd' is only available for these "
        "backends: [CUDA, Meta, AutogradCPU]."
    )
    log = f'{HEAD}  File "/srv/train.py", line 7, in f\n    torch.ops.window_attention.fwd(q, q, q)\n{error}\n'
    (first,) = answer(explain, log)["diagnosis"]
    assert first["packages"] == ["window-attention"]
    assert "no kernel for the CPU backend; it has one for CUDA" in first["message"]


def test_the_report_of_a_launcher_hides_no_statement_of_the_code(explain):
    error = "RuntimeError: Mesh should not be bigger than default world size 2, but found 4 ranks!"
    log = raised("torch/distributed/device_mesh.py", "_setup_world_group_and_device", error)
    end = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    for text in (log, log + end):
        (first,) = answer(explain, text)["diagnosis"]
        assert "Mesh should not be bigger" in first["message"]


def test_memory_that_a_call_of_sdpa_needs_is_that_of_the_scores(explain):
    error = (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 34359738368 bytes. Error code 12 (Cannot allocate memory)"
    )
    call = "out = F.scaled_dot_product_attention(q, k, v, mask)"
    log = f'{HEAD}  File "/srv/train.py", line 7, in f\n    {call}\n{error}\n'
    (first,) = answer(explain, log)["diagnosis"]
    assert first["category"] == "OOM-by-math-fallback" and "34359738368" in first["message"]
    assert first["confidence"] == "medium"
    assert answer(explain, log.replace("34359738368", "343597"))["diagnosis"] == []


def test_an_operator_without_a_fake_implementation_gets_one(explain):
    log = (
        "torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call\n"
        "  Explanation: Dynamo failed to run FX node with fake tensors: call_function own.attention.default: got "
        "RuntimeError('There was no fake impl registered for <CustomOpDef(own::attention)>.')\n"
    )
    (first,) = answer(explain, log)["diagnosis"]
    assert "register_fake" in json.dumps(first["fixes"])


def test_values_that_a_message_lists_are_its_fix(explain):
    error = "RuntimeError: Unrecognized mode=max-autotuned, should be one of: default, reduce-overhead, max-autotune"
    (first,) = answer(explain, raised("torch/_inductor/__init__.py", "list_mode_options", error))["diagnosis"]
    assert "max-autotune" in first["fixes"][0]["note"] and first["confidence"] == "high"


def test_a_refusal_without_its_printed_reasons_is_less_sure(explain):
    (first,) = answer(explain, "RuntimeError: No available kernel. Aborting execution.\n")["diagnosis"]
    assert first["confidence"] == "medium"


TIMEOUT = (
    "[rank{rank}]:[E1125 10:00:0{rank}.1 ProcessGroupNCCL.cpp:688] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=118, OpType={call}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out.\n"
)


def test_ranks_in_different_collective_calls_are_the_cause_of_a_timeout(explain):
    log = TIMEOUT.format(rank=0, call="ALLREDUCE", size=4096) + TIMEOUT.format(rank=1, call="_ALLGATHER_BASE", size=64)
    (first,) = answer(explain, log)["diagnosis"]
    assert "rank 0 waits in ALLREDUCE of 4,096" in first["message"] and "rank 1 waits in _ALLGATHER" in first["message"]
    assert first["confidence"] == "medium"


def test_a_timeout_of_one_call_shows_the_call_and_is_no_cause(explain):
    log = "".join(TIMEOUT.format(rank=rank, call="ALLREDUCE", size=4096) for rank in (0, 1))
    report = answer(explain, log)
    assert report["diagnosis"] == [] and "rank 0, 1 waits in ALLREDUCE" in report["shown"][0]


def test_every_operator_that_xformers_lists_is_among_the_reasons(explain):
    log = (
        "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n"
        "     query       : shape=(1, 61, 8, 256) (torch.float32)\n"
        "`fa3F@0.0.0` is not supported because:\n"
        "    requires device with capability <= (9, 0) but your GPU has capability (12, 0) (too new)\n"
        "    dtype=torch.float32 (supported: {torch.bfloat16, torch.float16})\n"
        "`cutlassF-pt` is not supported because:\n"
        "    requires device with capability <= (9, 0) but your GPU has capability (12, 0) (too new)\n"
    )
    (first,) = answer(explain, log)["diagnosis"]
    assert [reason.partition(":")[0] for reason in first["reasons"]] == ["fa3F@0.0.0", "cutlassF-pt"]
    assert "float32" in first["reasons"][0]


def test_what_a_compiler_wrote_below_the_error_is_a_reason(explain):
    log = (
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
        "`ptxas` stderr:\nptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'\n"
    )
    (first,) = answer(explain, log)["diagnosis"]
    assert "sm_121a" in " ".join([first["text"], *first["reasons"]])


BREAK = """\
{head}  File "{site}/torch/_dynamo/eval_frame.py", line 1177, in compile_wrapper
    raise e.with_traceback(
torch._dynamo.exc.Unsupported: Data-dependent branching
  Explanation: Detected data-dependent branching. Dynamo does not support tracing dynamic control flow.
  Hint: Use `torch.cond` to express dynamic control flow.

  Developer debug context: attempted to jump with TensorVariable()

from user code:
   File "/srv/train.py", line 4, in f
    if x.sum() > 0:
"""


def test_what_torch_states_of_a_graph_break(explain):
    (first,) = answer(explain, BREAK.format(head=HEAD, site=SITE))["diagnosis"]
    assert "Data-dependent branching" in first["message"] and "/srv/train.py:4" in first["why"]
    assert "torch.cond" in first["fixes"][0]["note"]


WARNED = "/srv/train.py:6: UserWarning: {} (Triggered internally at ../aten/src/ATen/native/cuda/sdp_utils.cpp:99.)\n"


def test_the_reasons_that_torch_prints_are_part_of_the_cause(explain):
    lines = [
        "Memory efficient kernel not used because:",
        "Expected query to have a head dim divisible by 8.",
        "CuDNN attention has been runtime disabled.",
    ]
    log = "".join(map(WARNED.format, lines)) + "RuntimeError: No available kernel. Aborting execution.\n"
    first = answer(explain, log)["diagnosis"][0]
    assert "divisible by 8" in " ".join([first["message"], *first["reasons"]])


REFUSED = """\
NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:
     query       : shape=(1, 61, 8, 256) (torch.float32)
`fa2F@2.8.3` is not supported because:
    dtype=torch.float32 (supported: {torch.bfloat16, torch.float16})
    attn_bias type is <class 'torch.Tensor'>
`cutlassF-pt` is not supported because:
    requires device with capability <= (9, 0) but your GPU has capability (12, 0) (too new)
"""


def test_the_reasons_that_xformers_lists_are_part_of_the_cause(explain):
    reasons = answer(explain, REFUSED)["diagnosis"][0]["reasons"]
    assert len(reasons) == 2 and reasons[0].startswith("fa2F@2.8.3: dtype") and "capability" in reasons[1]


def test_a_value_that_is_looked_up_is_no_attribute_of_another_release(explain):
    log = (
        f'{HEAD}  File "{SITE}/flashinfer/utils.py", line 254, in canonicalize_torch_dtype\n'
        "    return getattr(torch, dtype)\nAttributeError: module 'torch' has no attribute 'nvfp4'\n"
    )
    (first,) = answer(explain, log)["diagnosis"]
    assert first["packages"] == ["flashinfer-python"] and "canonicalize_torch_dtype" in first["message"]


DUMP = """\
Timeout (0:00:08)!
Thread 0x00007fd0869bbb80 (most recent call first):
  File "{site}/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{site}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/srv/job/train.py", line 8 in step
Timeout (0:00:08)!
Thread 0x00007f3da8aaab80 (most recent call first):
  File "/srv/job/train.py", line 6 in evaluate
"""
PY_SPY = """\
Thread 1201 (idle): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:2806)
    save (/srv/job/train.py:41)
"""


def test_dumps_of_ranks_that_wait_name_the_call(explain):
    (first,) = answer(explain, DUMP.format(site=SITE))["diagnosis"]
    assert "`all_reduce` (train.py:8)" in first["message"] and "`evaluate` (train.py:6)" in first["message"]
    assert "`all_gather` (train.py:41)" in answer(explain, PY_SPY)["diagnosis"][0]["message"]


def test_a_dump_of_a_rank_that_works_is_no_hang(explain):
    log = 'Timeout (0:00:08)!\nThread 0x00007f3d (most recent call first):\n  File "/srv/train.py", line 6 in step\n'
    assert answer(explain, log)["diagnosis"] == []


def test_the_first_loss_that_is_nan_is_shown(explain):
    report = answer(explain, "step 1 | loss 2.3\nstep 2 | loss nan\nstep 3 | loss nan\n")
    assert report["diagnosis"] == [] and "line 2" in report["shown"][0]


NOTICE = "Warning: flash-attn is not installed. Will only run the manual PyTorch version.\n"


def test_a_warning_that_names_what_runs_instead_is_no_failure(explain):
    report = answer(explain, f"{NOTICE}step 1 | loss 2.3\n")
    assert report["diagnosis"] == []
    failed = answer(explain, f"{NOTICE}{BREAK.format(head=HEAD, site=SITE)}")
    assert "Data-dependent" in failed["diagnosis"][0]["message"]


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        ("attn_mask is not None", "`attn_mask` is given"),
        ("query.size(-3) != key.size(-3)", "`query.size(-3)` differs from `key.size(-3)`"),
        ("not isinstance(x, Tensor)", "`x` is no `Tensor`"),
        ("window > length", "`window > length`"),
    ],
)
def test_a_condition_in_words(guard, words):
    assert in_words(guard) == words


def test_a_table_without_an_entry_is_named(explain):
    log = (
        f'{HEAD}  File "{SITE}/transformers/models/llama/modeling_llama.py", line 83, in __init__\n'
        "    rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]\nKeyError: 'longrope2'\n"
    )
    (first,) = answer(explain, log)["diagnosis"]
    assert "`ROPE_INIT_FUNCTIONS` of transformers has no entry 'longrope2'" in first["message"]


def test_a_message_that_another_condition_guards_in_newer_releases_has_not_gone(monkeypatch):
    known = {
        "releases": ["1.0", "2.0", "3.0"],
        "files": ["a.py"],
        "sites": [
            ["attention takes no mask here", 0, "f", "mask is not None", "0-0"],
            ["attention takes no mask here", 0, "f", "has_mask", "1-1"],
        ],
    }
    monkeypatch.setattr(sites, "_record", lambda package: known)
    monkeypatch.setattr(sites, "_records", lambda: ("some-package",))
    sites._longest.cache_clear()
    found = sites.sites_of("ValueError: attention takes no mask here", ("some-package",))
    sites._longest.cache_clear()
    assert {site.without for site in found} == {"from 3.0 on"}


def test_the_record_holds_the_libraries_of_training_and_serving():
    names = "torch transformers vllm sglang trl peft accelerate diffusers xformers flash-attn transformer-engine"
    assert [name for name in names.split() if not sites.has(name)] == []
