"""Errors of compiled code: the C++ frames after a message, and the record of what torch's native code checks."""

import json

import pytest

from doctor.diagnosis.logs import sites
from doctor.report.explanation import as_json

HEAD = "Traceback (most recent call last):\n"
SITE = "/opt/venv/lib/python3.12/site-packages"
CALL = "    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
JOB = f'{HEAD}  File "/srv/job/train.py", line 9, in attend\n{CALL}'
C10 = "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f3a in /opt/venv/torch/lib/libc10.so)\n"
TORCH = "frame #2: <unknown function> + 0x11 (0x7f3b in /opt/venv/torch/lib/libtorch_cpu.so)\n"
MASK = (
    "RuntimeError: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
    "c10::Half and  query.dtype: c10::BFloat16 instead.\n"
)


def first(explain, log):
    found = json.loads(as_json(explain(log, fixes=False)))["diagnosis"]
    return found[0] if found else None


def raised(function, file, *libraries):
    frames = "".join(
        f"frame #{number}: <unknown function> + 0x{number}f (0x7f3c in {library})\n"
        for number, library in enumerate(libraries, 1)
    )
    return f"Exception raised from {function} at {file}:77 (most recent call first):\n{C10}{frames}{TORCH}"


def test_the_record_places_a_check_of_torchs_native_code():
    found = sites.native_sites_of("torch", MASK)
    assert found and found[0].function == "validate_sdpa_input" and found[0].file.endswith("transformers/attention.cpp")
    assert found[0].runs[-1][1] == len(found[0].releases) - 1


def test_the_pieces_of_a_check_may_be_in_another_order():
    line = "All fused kernels requires query, key and value to be 4 dimensional, but got Query dim: 3, Key dim: 3, "
    found = sites.native_sites_of("torch", f"{line}Value dim: 3 instead.")
    assert {site.function for site in found} >= {"check_tensor_shapes"}


@pytest.mark.parametrize(
    ("message", "function"),
    [
        ("Expected (*seqstart_q).is_contiguous() to be true, but got false", "_efficient_attention_forward"),
        ("cu_seqlens_q must have shape (batch_size + 1)", "mha_varlen_"),
    ],
)
def test_a_check_that_no_rule_knows_names_its_function(explain, message, function):
    code = "    torch.ops.aten._attention_forward(q, k, v, cu, cu)\n"
    log = f'{HEAD}  File "/srv/job/train.py", line 9, in attend\n{code}RuntimeError: {message}\n'
    found = first(explain, log)
    assert found["packages"] == ["torch"] and function in found["message"] and "native/transformers" in found["why"]


def test_what_python_code_raises_is_no_check_of_compiled_code(explain):
    log = f'{HEAD}  File "/srv/job/train.py", line 9, in attend\n    raise RuntimeError(text)\n'
    assert first(explain, f"{log}RuntimeError: cu_seqlens_q must have shape (batch_size + 1)\n") is None


def test_the_place_of_the_cpp_trace_is_exact(explain):
    file = "/pytorch/aten/src/ATen/native/transformers/attention.cpp"
    found = first(explain, f"{JOB}RuntimeError: the attention is not amused\n{raised('validate_mood', file)}")
    assert found["packages"] == ["torch"] and "validate_mood" in found["message"]
    assert "transformers/attention.cpp" in found["why"] and "vague" not in found["doubts"]


def test_a_trace_names_the_extension_that_raised(explain):
    library = f"{SITE}/natten/libnatten.cpython-312-x86_64-linux-gnu.so"
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    trace = raised("c10_cuda_check_implementation", "/pytorch/c10/cuda/CUDAException.cpp", library)
    code = "    return run(q)\n"
    found = first(explain, f'{HEAD}  File "/srv/job/train.py", line 9, in attend\n{code}{error}{trace}')
    assert found["packages"][0] == "natten"


def test_a_trace_through_torch_alone_does_not_blame_torch(explain):
    error = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    trace = raised("c10_cuda_check_implementation", "/pytorch/c10/cuda/CUDAException.cpp")
    frames = f'{HEAD}  File "{SITE}/natten/ops.py", line 9, in na2d\n    return natten_cuda.forward(q)\n'
    found = first(explain, f"{frames}{error}{trace}")
    assert found is None or "natten" in found["packages"] + [found["message"].split(":")[0]]


def test_the_source_file_of_a_trace_names_the_package(explain):
    file = "/tmp/pip-install-x/flash-attn_8c421b/csrc/flash_attn/flash_api.cpp"
    found = first(explain, f"RuntimeError: the dropout of this call is odd\n{raised('mha_fwd', file)}")
    assert found["packages"] == ["flash-attn"] and "mha_fwd" in found["message"]


def test_a_trace_of_a_later_error_is_not_of_this_one(explain):
    file = "/tmp/pip-install-x/flash-attn_8c421b/csrc/flash_attn/flash_api.cpp"
    later = f"RuntimeError: the dropout of this call is odd\n{raised('mha_fwd', file)}"
    log = f"{JOB}{MASK}{HEAD}{later}"
    report = json.loads(as_json(explain(log, fixes=False)))
    assert report["diagnosis"][0]["packages"][0] == "torch"


def test_a_check_in_torchs_copy_of_flash_attention_is_of_torch(explain):
    code = "    output, lse, *rest = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu)\n"
    frames = f'{HEAD}  File "{SITE}/torch/nn/attention/varlen.py", line 93, in _varlen_attn\n{code}'
    found = first(explain, f"{frames}RuntimeError: FlashAttention only support fp16 and bf16 data type\n")
    assert found["packages"][0] == "torch" and "copy of torch" in found["message"]
