"""From a log to the cause: own minimal logs, one for each way in which causes are distinguished."""

import re
from dataclasses import replace

import pytest

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.logs.source import LogSource
from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.report.log_model import Confidence, Doubt

NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


def first(report):
    return report.diagnosis[0]


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("my_model/train.py", "arch-torch-no-sm120"),
        ("site-packages/flash_attn/flash_attn_interface.py", "arch-flash-attn-no-kernel"),
        ("site-packages/vllm/v1/worker/gpu_worker.py", "arch-vllm-no-kernel"),
        ("site-packages/xformers/ops/fmha/flash.py", "arch-xformers-no-kernel"),
        ("site-packages/sgl_kernel/elementwise.py", "arch-sglkernel-no-kernel"),
        ("huggingface/hub/models--kernels-community--x/build/x.py", "arch-hub-kernel-no-image"),
    ],
)
def test_the_path_decides_whose_kernel_is_missing(explain, path, cause):
    log = f'Traceback (most recent call last):\n  File "/x/{path}", line 3, in f\n    g()\n{NO_KERNEL}'
    assert first(explain(log)).cause == cause


@pytest.mark.parametrize(
    ("library", "cause"),
    [
        ("flash_attn_2_cuda.cpython-311-x86_64-linux-gnu", "abi-fa-torch-minor"),
        ("transformer_engine/transformer_engine_torch.cpython-311-x86_64-linux-gnu", "abi-te-torch"),
        ("vllm/_C.abi3", "abi-vllm-torch"),
        ("sgl_kernel/common_ops.abi3", "abi-sglkernel-torch"),
        ("torchaudio/lib/libtorchaudio", "abi-torchaudio-mismatch"),
        ("my_own_extension", "abi-torch-extension-generic"),
    ],
)
def test_an_undefined_symbol_names_the_extension_that_fails(explain, library, cause):
    log = f"ImportError: /x/{library}.so: undefined symbol: _ZN3c104cuda20CUDACachingAllocator9allocatorE\n"
    assert first(explain(log)).cause == cause


def test_the_root_cause_comes_before_what_follows_from_it(explain):
    log = (
        "ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /x/cpu_adam.so)\n"
        "During handling of the above exception, another exception occurred:\n"
        "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    report = explain(log)
    assert first(report).cause == "glibcxx-missing" and first(report).line.number == 1


def test_a_rule_for_any_package_does_not_repeat_the_line_of_the_cause(explain):
    log = (
        'Traceback (most recent call last):\n  File "/x/transformers_modules/m/modeling_m.py", line 9, in forward\n'
        "AttributeError: 'DynamicCache' object has no attribute 'get_usable_length'\n"
    )
    assert [item.cause for item in explain(log).diagnosis] == ["attr-dynamiccache-removed"]


def test_the_wrapper_of_transformers_is_not_the_cause(explain):
    log = (
        "RuntimeError: Failed to import transformers.models.bloom.modeling_bloom because of the following error:\n"
        "/x/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationE\n"
    )
    report = explain(log)
    assert first(report).cause == "abi-fa-cxx11" and "flash-attn" in first(report).packages


def test_interleaved_ranks_and_colors(explain):
    log = (
        "[rank1]: step 3\n[rank0]: \x1b[31mTraceback\x1b[0m\n[rank1]: step 4\n"
        "[rank0]: \x1b[1;35mAttributeError\x1b[0m: 'LlamaFlashAttention2' object has no attribute"
        " '_flash_attention_forward'\n[rank1]: step 5\n"
    )
    found = first(explain(log))
    assert (found.cause, found.line.rank) == ("attr-tf443-flash-attention-forward", "0")


@pytest.mark.parametrize(
    "log",
    [
        "loss 2.3\nloss 2.2\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has\n",
        "[rank2]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\n",
        "config: attn_implementation=flash_attention_2\npyarrow.lib.ArrowInvalid: JSON parse error\n",
        "ValueError: too many values to unpack (expected 4)\n",
        "UserWarning: 1Torch was not compiled with flash attention. (Triggered internally at x/cuda/sdp_utils.cpp:1)\n",
    ],
)
def test_no_incompatibility_is_no_diagnosis(explain, log):
    assert explain(log).diagnosis == ()


def test_benign_lines_and_unrelated_failures_are_named(explain):
    report = explain(
        "1Torch was not compiled with flash attention.\nRuntimeError: CUDA error: uncorrectable ECC error\n"
    )
    assert [item.line.number for item in report.benign] == [1]
    assert [item.cause for item in report.unrelated] == ["none-hardware-ecc"]


def test_an_unknown_error_shows_the_lines_that_were_looked_at(explain):
    report = explain("step 1\nFooError: the flux capacitor is empty\n")
    assert report.diagnosis == () and [line.text for line in report.errors] == ["FooError: the flux capacitor is empty"]


def test_a_version_in_the_log_decides_between_causes_with_one_message(explain):
    line = "cannot import name '_flash_supports_window_size' from 'transformers.modeling_flash_attention_utils'"
    older, newer, unknown = (
        explain(f"{head}{line}\n") for head in ("transformers==4.50.0\n", "transformers==4.56.0\n", "")
    )
    assert first(older).cause == "sig-tf-flash-supports-window-size-noflash"
    assert first(newer).cause == "sig-tf-flash-supports-window-size" and first(newer).holds
    assert "transformers.version" in first(unknown).missing or first(unknown).confidence != Confidence.LOW


def test_facts_of_the_target_decide_as_well(explainer):
    import io

    line = "cannot import name '_flash_supports_window_size' from 'transformers.modeling_flash_attention_utils'\n"
    target = DiagnosisInput(Facts([fact("transformers.version", "4.50.0", "test")]))
    report = replace(explainer, target=target).explain(LogSource("x", io.BytesIO(line.encode())))
    assert first(report).cause == "sig-tf-flash-supports-window-size-noflash"


def test_known_facts_give_fixes_of_the_solver(explain):
    log = (
        "Successfully installed deepspeed-0.14.0 torch-2.4.0\n"
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'\n"
    )
    report = explain(log)
    assert first(report).cause == "ds-torch24-elastic-log" and first(report).fixes[0].changes


def test_debug_output_of_transformer_engine_becomes_facts_and_reasons(explain):
    log = (
        "[DEBUG    | DotProductAttention]: Running with config={'transformer_engine_version': '2.3.0', "
        "'compute_capability': 'sm80', 'flash_attn_version': '2.7.4.post1', 'cudnn_version': '9.3.0', "
        "'qkv_dtype': torch.bfloat16, 'qkv_layout': 'thd_thd_thd', 'batch_size': 2, 'num_heads': 16, "
        "'num_gqa_groups': 16, 'max_seqlen_q': 2048, 'max_seqlen_kv': 2048, 'head_dim_qk': 192, 'head_dim_v': 128, "
        "'attn_mask_type': 'padding_causal', 'window_size': (-1, 0), 'attention_dropout': 0.0, 'is_training': True}\n"
        "[DEBUG    | DotProductAttention]: Disabling FlashAttention 2 due to unsupported head_dim_qk and head_dim_v.\n"
        "ValueError: No dot product attention backend is available for the provided inputs. Please run\n"
    )
    report = explain(log)
    assert first(report).cause == "te-nobackend-mla-ampere"
    assert report.facts.value("gpu.sm") is not None and report.facts.value("workload.head_dim_qk") == 192
    assert str(report.facts.value("transformer-engine.version")) == "2.3.0"
    assert any("head_dim_qk" in reason for reason in first(report).reasons)
    assert len(first(report).reasons) > 1  # those of the rulebook too


def test_hostile_lines_take_linear_time(explain):
    import time

    start = time.perf_counter()
    explain("cannot import name '" * 50_000 + "\n" + "undefined symbol: _ZN" * 50_000 + "\n")
    assert time.perf_counter() - start < 20


WINDOW = "cannot import name '_flash_supports_window_size' from 'transformers.modeling_flash_attention_utils'\n"
REMOVED = "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'\n"
FRAME_OF_NANOTRON = '  File "/x/site-packages/nanotron/a.py", line 1, in f\n'
ELASTIC = "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'\n"


@pytest.mark.parametrize(
    ("log", "confidence", "doubts"),
    [
        (REMOVED, Confidence.HIGH, ()),
        (f"transformers==4.56.0\n{WINDOW}", Confidence.HIGH, ()),
        (WINDOW, Confidence.MEDIUM, (Doubt.SHARED, Doubt.UNDECIDED)),
        ("ERROR: Failed building wheel for transformer-engine-torch\n", Confidence.MEDIUM, (Doubt.VAGUE,)),
        (
            FRAME_OF_NANOTRON + "NotImplementedError: this head_dim is not supported\n",
            Confidence.LOW,
            (Doubt.GENERAL,),
        ),
    ],
)
def test_confidence_follows_from_what_is_open(explain, log, confidence, doubts):
    found = first(explain(log))
    assert (found.confidence, found.doubts) == (confidence, doubts)


def test_a_cause_on_a_later_line_is_less_sure(explain):
    found = {item.cause: item for item in explain(REMOVED + "step\n" * 80 + ELASTIC).diagnosis}
    assert found["sig-tf448-llama-flash-class-removed"].confidence == Confidence.HIGH
    later = found["ds-torch24-elastic-log"]
    assert (later.doubts, later.confidence) == ((Doubt.LATER,), Confidence.MEDIUM)


def test_a_cause_of_another_rank_than_the_first_to_fail_is_less_sure(explain):
    log = (
        f"[rank1]: {REMOVED}Root Cause (first observed failure):\n[0]:\n  time      : 2025-01-01_10:00:00\n"
        "  host      : node1\n  rank      : 0 (local_rank: 0)\n"
    )
    assert first(explain(log)).doubts == (Doubt.OTHER_RANK,)


def test_missing_facts_are_named_for_an_undecided_cause(explain):
    assert "transformers.version" in first(explain(WINDOW)).missing


def test_a_harmless_line_hides_no_cause_of_the_same_message_elsewhere(explain):
    notice = "flash_attn is not installed. Using PyTorch native attention implementation.\n"
    error = "ImportError: FlashAttention2 has been toggled on, but it cannot be used: flash_attn is not installed\n"
    assert explain(notice * 30).diagnosis == ()
    assert first(explain(notice * 10 + error)).line.number == 11


def test_a_harmless_line_after_an_error_does_not_make_the_error_harmless(explain):
    notice = "You are attempting to use Flash Attention 2.0 with a model not initialized on GPU. Move it.\n"
    error = "12:13:14,567 - ERROR - RuntimeError: FlashAttention only supports Ampere GPUs or newer, says the worker.\n"
    report = explain(error + notice)
    assert first(report).cause == "arch-fa-pre-ampere"
    assert [item.line.number for item in report.benign] == [2]


def test_the_end_of_a_line_is_no_end_of_the_log(explain):
    assert first(explain("KeyError: 'flash_attn'\nwandb: offline\nwandb: synced\n")).rule == "LOGTF010"


def test_braces_of_a_line_name_no_fact(explain):
    line = "OSError: site-packages/deepspeed/x.py: DeepSpeedEngine.__init__() got an unexpected keyword argument '{x}'"
    assert "'{x}'" in first(explain(line + "\n")).message


def test_a_reason_that_all_backends_of_vllm_share_is_the_cause(explain):
    log = "ValueError: No valid attention backend found for cuda with X(). Reasons: {A: [%s], B: [%s, %s]}.\n"
    head, kind, block = "head_size not supported", "dtype not supported", "block_size not supported"
    assert first(explain(log % (head, block, head))).category == "head-dim-limit"
    assert first(explain(log % (kind, block, kind))).category == "dtype-limit"
    assert first(explain(log % (head, block, kind))).category == "backend-unavailable"


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("/x/site-packages/grouped_gemm_backend.cpython-312.so: undefined symbol: _ZN3c106detail4foo", "grouped-gemm"),
        ("/x/site-packages/natten/libnatten.so: undefined symbol: _PyThreadState_Foo", "natten"),
        ("DLL load failed while importing _turbomind: 找不到指定的模块。", "lmdeploy"),
    ],
)
def test_the_owner_of_a_compiled_part_is_named(explain, line, package):
    assert first(explain(f"ImportError: {line}\n")).packages[0] == package


PAIR = "[pip3] xformers==0.0.32.post1\n[pip3] torch=={}\nValueError: something of my own\n"


def test_versions_that_do_not_fit_are_named_where_no_line_speaks_of_them(explain):
    report = explain(PAIR.format("2.6.0"))
    assert not report.diagnosis
    assert [finding.rule for finding in report.versions] == ["XF001"]
    assert not explain(PAIR.format("2.8.0")).versions


def test_a_version_that_a_line_requires_is_not_the_installed_one(explain):
    report = explain("vllm 0.8.5 requires torch==2.6.0, which is not installed\n")
    assert "torch.version" not in report.facts
    assert report.facts.value("vllm.version") == "0.8.5"


def test_a_report_of_the_environment_in_a_log_gives_facts(explain):
    report = explain(
        "Package            Version\n------------------ -----------\nflash-attn         2.7.4.post1\n"
        "torch              2.6.0\n\nGPU 0: Tesla T4\n"
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n"
    )
    assert report.facts.value("flash-attn.version") == "2.7.4.post1"
    assert (report.facts.value("torch.version"), report.facts.value("gpu.sm")) == ("2.6.0", "7.5")
    assert report.facts["torch.version"].source == "the log:4"
    assert first(report).confidence == Confidence.HIGH


def test_a_call_that_does_not_fit_is_no_missing_attribute(explain):
    """The rule is of names that releases lack; where one of its messages is of a call, the call decides."""
    removed = "AttributeError: 'DynamicCache' object has no attribute 'from_legacy_cache'\n"
    call = (
        "TypeError: _extract_past_from_model_output() got an unexpected keyword argument 'standardize_cache_format'\n"
    )
    assert first(explain(removed)).category == "missing-attribute"
    assert first(explain(call)).category == "api-signature-drift"


def test_a_finding_that_spells_out_more_of_a_line_comes_before_a_vague_rule(explain):
    line = "ImportError: cannot import name 'ALL_LAYERNORM_LAYERS' from 'transformers.trainer'"
    assert explain(line).diagnosis[0].rule == "TF444"


def test_a_reason_against_a_backend_does_not_pass_a_rule_for_logs(explain):
    line = "ImportError: Flash Attention 2 is not available. Please refer to the documentation to install it."
    assert explain(line).diagnosis[0].rule == "LOGFA028"


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("  File \"/x/train.py\", line 3, in <module>\nModuleNotFoundError: No module named 'apex'", "apex"),
        ("ModuleNotFoundError: No module named 'flash_attn_3'", "flash-attn-3"),
        ("Exception: flashinfer is installed with version 0.0.8, which is less than the minimum required version 0.1.1",
         "flashinfer"),
        ('  File "/x/site-packages/deepspeed/ops/builder.py", line 18, in <module>\n    import hjsonx\n'
         "ModuleNotFoundError: No module named 'hjsonx'", "hjsonx"),
        ("ImportError: /x/site-packages/evil_name/_C.so: undefined symbol: _ZN3c105ErrorC2E", "evil-name"),
        ("  × No solution found when resolving dependencies:\n  ╰─▶ Because xformers==0.0.29 depends on evil-name>=2",
         "evil-name"),
    ],
)  # fmt: skip
def test_no_command_installs_a_package_that_only_the_log_names(explain, log, name):
    found = explain(log + "\n").diagnosis
    assert found
    commands = [remedy.call or "" for item in found for remedy in item.remedies if "install" in (remedy.call or "")]
    spelled = re.compile(rf"(?<![\w/-]){re.sub('[-_]', '[-_]', name)}(?![\w-])")
    assert [text for text in commands if spelled.search(text) and "uninstall" not in text] == []
    assert not any(
        spelled.fullmatch(package) for item in found for remedy in item.remedies for package in remedy.require
    )


def test_a_command_installs_a_package_of_the_stack_that_the_log_names(explain):
    found = explain("ModuleNotFoundError: No module named 'bitsandbytes'\n").diagnosis
    assert "pip install bitsandbytes" in [remedy.call for item in found for remedy in item.remedies]
