"""What C++ and CUDA sources raise: text, function and condition of each check, whichever macro the library has."""

import pytest

from scripts.release.source_messages import negated, source_messages

SOURCE = """
#define CHECK_DEVICE(x) TORCH_CHECK(x.is_cuda(), #x " must be on CUDA")
// TORCH_CHECK(old, "a comment raises nothing here");
std::vector<at::Tensor>
mha_fwd(at::Tensor &q,         // batch
        std::optional<at::Tensor> &out_) {
    %s
}
"""


def read(statement):
    found = list(source_messages((SOURCE % statement).encode()))
    assert found[0].template == "\0x\0 must be on CUDA"
    (made,) = found[1:]
    assert made.function == "mha_fwd"
    return made.template, made.guard


@pytest.mark.parametrize(
    ("statement", "template", "guard"),
    [
        ('TORCH_CHECK(d <= 256, "head dim at most " "256, got ", d);', "head dim at most 256, got \0d\0", "d > 256"),
        ('TORCH_CHECK_NOT_IMPLEMENTED(!causal, "no causal mask");', "no causal mask", "causal"),
        ('NVTE_CHECK(a == 1 && b, "both " + std::to_string(a));', "both \0std::to_string(a)\0", "not (a == 1 && b)"),
        (
            'TVM_FFI_ICHECK(status == cudaSuccess)\n  << "prefill failed with " << text(status);',
            "prefill failed with \0text(status)\0",
            "status != cudaSuccess",
        ),
        ('TVM_FFI_ICHECK_EQ(q.ndim(), 3) << "q must be 3D";', "q must be 3D", "q.ndim() != 3"),
        ('if (a % 2 != 0) { NVTE_ERROR("odd ", a, "!"); }', "odd \0a\0!", "a % 2 != 0"),
        ('if (!ok) throw std::runtime_error("no (kernel); \\"x\\"");', 'no (kernel); "x"', "!ok"),
        (
            'RETURN_CUDNN_FRONTEND_ERROR_IF(s % 64 != 0, error_code_t::NOT_SUPPORTED, "s is no multiple of 64");',
            "s is no multiple of 64",
            "s % 64 != 0",
        ),
    ],
)
def test_a_check_gives_its_text_and_the_condition_on_which_it_raises(statement, template, guard):
    assert read(statement) == (template, guard)


def test_a_check_that_never_closes_is_passed_over():
    assert list(source_messages(b'void f() { TORCH_CHECK(a, "text" ' + b"(" * 5000)) == []


def test_a_condition_of_several_parts_is_negated_as_a_whole():
    assert negated("a == b || c") == "not (a == b || c)"
