"""What source code raises: messages as templates, with the conditions that lead there."""

import pytest

from doctor.util.raise_sites import HOLE, raised_in

CODE = """
class Layer:
    def forward(self, q, mask):
        if q.dim() != 4:
            raise ValueError(f"query has {q.dim()} dimensions, expected 4")
        elif mask is not None:
            raise NotImplementedError("a mask is %s here" % "unsupported")
        else:
            for part in q:
                with lock:
                    assert part.dtype == torch.float32, "state must be float32, got " + str(part.dtype)
        torch._check_with(TypeError, q.is_cuda, lambda: f"{q.device} is no GPU")
        try:
            load()
        except ImportError as problem:
            raise RuntimeError("{} is missing".format(name)) from problem
"""


@pytest.fixture
def found():
    return {site.first: site for site in raised_in(CODE.encode())}


def hole(text):
    return f"{HOLE}{text}{HOLE}"


@pytest.mark.parametrize(
    ("line", "template", "guard"),
    [
        (5, f"query has {hole('q.dim()')} dimensions, expected 4", "q.dim() != 4"),
        (7, f"a mask is {hole('')} here", "q.dim() == 4 and mask is not None"),
        (11, f"state must be float32, got {hole('str(part.dtype)')}", "mask is None and part.dtype != torch.float32"),
        (12, f"{hole('q.device')} is no GPU", "not q.is_cuda"),
        (16, f"{hole('')} is missing", "ImportError was raised"),
    ],
)
def test_message_and_condition(found, line, template, guard):
    assert (found[line].template, found[line].guard, found[line].function) == (template, guard, "Layer.forward")


def test_a_file_that_is_no_python_has_no_sites():
    assert list(raised_in(b"def f(:\n  \xff")) == []


def test_a_template_is_not_cut_within_a_formatted_part():
    code = f"def f():\n    raise ValueError(f'{'x' * 250}{{some_long_expression_of_the_code}} end')\n"
    assert all(site.template.count(HOLE) % 2 == 0 for site in raised_in(code.encode()))
