"""A message that any compiled code prints is blamed on the package of its frames, never on torch by default."""

import io
import json

import pytest

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.logs.explain import LogExplainer
from doctor.diagnosis.logs.source import LogSource
from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.report.explanation import as_json

NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
BAD_ACCESS = "RuntimeError: CUDA error: an illegal memory access was encountered"
NO_CUDART = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
HEAD = "Traceback (most recent call last):\n"
SITE = "/opt/venv/lib/python3.12/site-packages"


def frame(file, code, function="forward"):
    return f'  File "{file}", line 7, in {function}\n    {code}\n'


def answer(explain, log):
    return json.loads(as_json(explain(log + "\n", fixes=False)))


@pytest.mark.parametrize("error", [NO_KERNEL, BAD_ACCESS])
@pytest.mark.parametrize(
    ("frames", "package"),
    [
        (frame(f"{SITE}/natten/functional.py", "libnatten.na2d_forward(out, q)"), "natten"),
        (frame(f"{SITE}/some_window_attn/ops.py", "self.kernel(q)"), "some-window-attn"),
        (frame("/srv/train.py", "out = window_attn_cuda.forward(q, k)"), "window-attn-cuda"),
        (frame("/srv/train.py", "out = torch.ops.ring_ops.forward(q)"), "ring-ops"),
    ],
)
def test_compiled_code_that_fails_is_named(explain, error, frames, package):
    found = answer(explain, HEAD + frame("/srv/train.py", "model(x)", "<module>") + frames + error)["diagnosis"]
    assert [item["packages"][0] for item in found] == [package]


@pytest.mark.parametrize(
    ("frames", "package"),
    [
        (frame("/srv/train.py", "import window_attn_ops", "<module>"), "window-attn-ops"),
        (frame("/srv/my_pkg/__init__.py", "from . import _tree_attn_cuda", "<module>"), "tree-attn-cuda"),
        (frame(f"{SITE}/spconv/core.py", "from spconv import core_cc", "<module>"), "spconv"),
    ],
)
def test_an_extension_that_lacks_a_cuda_library_is_named(explain, frames, package):
    found = answer(explain, HEAD + frames + NO_CUDART)["diagnosis"]
    assert [item["packages"] for item in found] == [[package]] and "libcudart.so.12" in found[0]["message"]


@pytest.mark.parametrize("error", [NO_KERNEL, NO_CUDART])
def test_without_a_frame_the_confidence_is_not_high(explain, error):
    found = answer(explain, f"step 3\n{error}")["diagnosis"]
    assert found and found[0]["confidence"] != "high" and "unattributed" in found[0]["doubts"]


def test_a_call_of_torch_itself_is_torch(explain):
    frames = frame("/srv/train.py", "x = torch.zeros(8, device='cuda')", "<module>")
    found = answer(explain, HEAD + frames + NO_KERNEL)["diagnosis"]
    assert found[0]["packages"] == ["torch"] and found[0]["confidence"] == "high"


@pytest.mark.parametrize(("held", "blamed"), [("8.0 9.0 12.0", False), ("8.0 9.0", True)])
def test_what_the_compiled_files_hold_decides(explainer, held, blamed):
    facts = Facts(
        [fact("torch.version", "2.9.0", "x"), fact("torch.arch_list", held, "x"), fact("gpu.sm", "12.0", "x")]
    )
    own = LogExplainer(explainer.rulebook, explainer.rules, DiagnosisInput(facts))
    found = own.explain(LogSource("log", io.BytesIO(f"step 3\n{NO_KERNEL}\n".encode())), fixes=False).diagnosis
    assert any("torch" in item.packages for item in found) == blamed


def test_a_vendored_source_file_names_its_project(explain):
    line = "CUDA error (/home/u/serve/third_party/TreeAttn/csrc/fwd.cu:76): no kernel image is available for execution"
    assert answer(explain, line)["diagnosis"][0]["packages"] == ["TreeAttn"]


def test_a_rule_of_another_package_gives_way_to_the_one_of_the_frames(explain):
    frames = frame(f"{SITE}/torch/nn/attention/flex_attention.py", "raise NotImplementedError(", "_validate_device")
    error = (
        "NotImplementedError: FlexAttention does not support backward on CPU. "
        "Please set the input requires_grad to False or use another device."
    )
    assert "vllm" not in answer(explain, HEAD + frames + error)["diagnosis"][0]["packages"]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("RuntimeError: No CUDA GPUs are available", "LOGPT007"),
        ("RuntimeError: CUDA error: operation not supported on global/shared address space", "LOGPT614"),
        (
            "FATAL: kernel `fmha_cutlassF_f32_aligned_32x128_gmem_sm80` is for sm80-sm100, but was built for sm121",
            "LOGXF005",
        ),
        ("TypeError: fmax() takes 2 positional arguments but 3 positional arguments were given", "FA051"),
    ],
)
def test_messages_that_rules_of_other_failures_took(explain, line, rule):
    assert rule not in [item["rule"] for item in answer(explain, line)["diagnosis"]]


RESOURCES = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131074, Limit: 101376."


def test_code_of_the_job_may_speak_of_a_package(explain):
    error = "AssertionError: Flash Attention is not available, but is needed for dense attention"
    frames = frame("/root/modules/transformers_modules/m/modeling_m.py", "assert is_flash_attention_available")
    assert answer(explain, HEAD + frames + error)["diagnosis"][0]["packages"] == ["flash-attn"]


def test_a_kernel_that_triton_launches_is_of_the_package_that_wrote_it(explain):
    launch = frame(f"{SITE}/triton/compiler/compiler.py", "raise OutOfResources(", "_init_handles")
    frames = frame(f"{SITE}/fla/ops/gla/chunk.py", "chunk_gla_fwd[grid](q)") + launch
    first = answer(explain, HEAD + frames + RESOURCES)["diagnosis"][0]
    assert first["packages"][0] == "flash-linear-attention" and "triton" in first["packages"]
    own = frame("/srv/kernels/window.py", "_fwd[grid](q, k, v)") + launch
    assert answer(explain, HEAD + own + RESOURCES)["diagnosis"][0]["packages"][0] == "triton"


def test_a_call_that_waits_for_kernels_is_not_the_one_that_failed(explain):
    frames = frame("/srv/train.py", "torch.cuda.synchronize()", "<module>")
    frames += frame(f"{SITE}/torch/cuda/__init__.py", "return torch._C._cuda_synchronize()", "synchronize")
    assert answer(explain, HEAD + frames + BAD_ACCESS)["diagnosis"] == []


TWO = """\
{head}{first}ImportError: /x/site-packages/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi
{steps}{head}{second}AttributeError: 'DynamicCache' object has no attribute 'get_usable_length'
"""


def test_findings_of_one_line_are_one_cause(explain):
    line = "RuntimeError: FlashAttention only supports Ampere GPUs or newer."
    assert len(answer(explain, line)["diagnosis"]) == 1


def test_one_further_failure_is_named(explain):
    import_frame = frame(f"{SITE}/flash_attn/flash_attn_interface.py", "import flash_attn_2_cuda", "<module>")
    model = frame("/root/.cache/huggingface/modules/transformers_modules/m/modeling_m.py", "past.get_usable_length(1)")
    log = TWO.format(head=HEAD, first=import_frame, second=model, steps="step 1\n" * 30)
    found = answer(explain, log)["diagnosis"]
    assert len(found) == 2 and found[0]["packages"] != found[1]["packages"]
