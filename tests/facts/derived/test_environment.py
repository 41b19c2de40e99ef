"""What two or more installed things say together."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts
from doctor.rulebook.evaluate import know
from doctor.rulebook.rulebook import Rulebook
from tests.helpers.rulebook import builtin_rulebook


@pytest.fixture(scope="module")
def rulebook() -> Rulebook:
    return builtin_rulebook()


def value(rulebook: Rulebook, key: str, **given: Any) -> Any:
    facts = Facts(fact(name, found, "the test") for name, found in given.items())
    return know(rulebook, facts)[0].value(key)


@pytest.mark.parametrize(
    ("given", "cudnn"),
    [
        ({"torch.version": "2.6.0"}, "9.1.0"),  # the release brings it
        ({"torch.version": "2.6.0+cu126"}, "9.5.1"),  # another build of the same release
        ({"torch.version": "2.6.0", "torch.cuda": "12.6"}, "9.5.1"),  # the same, said by its CUDA
        ({"torch.version": "2.6.0", "nvidia-cudnn-cu12.version": "9.3.0.75"}, "9.3.0"),  # overridden
        ({"torch.version": "2.6.0", "cudnn.version": "9.2.1"}, "9.2.1"),  # what was seen wins
        ({"torch.version": "2.99.0"}, None),
        ({"torch.version": "2.6.0a0+git", "torch.cuda": "12.6"}, None),  # a container's build is not on record
    ],
)
def test_the_cudnn_that_torch_loads(rulebook: Rulebook, given: dict[str, str], cudnn: str | None) -> None:
    assert value(rulebook, "cudnn.version", **given) == cudnn


def test_a_distribution_that_is_not_installed_is_absent_whatever_the_release_brings(rulebook: Rulebook) -> None:
    given = {"torch.version": "2.6.0", "distributions.complete": True}
    assert value(rulebook, "nvidia-cudnn-cu12.version", **given) == ABSENT
    assert value(rulebook, "nvidia-cudnn-cu12.version", **{"torch.version": "2.6.0"}) == "9.1.0.70"


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("torch.cudnn_pin_held", {"nvidia-cudnn-cu12.version": "9.1.0.70"}, True),
        ("torch.cudnn_pin_held", {"nvidia-cudnn-cu12.version": "9.3.0.75"}, False),
        ("torch.cudnn_pin_held", {"nvidia-cudnn-cu12.version": ABSENT}, True),  # nothing installed breaks no pin
        ("torch.triton_pin_held", {"triton.version": "3.2.0"}, True),
        ("torch.triton_pin_held", {"triton.version": "3.3.1"}, False),
        ("xformers.torch_pin_held", {"xformers.version": "0.0.29.post3"}, True),
        ("xformers.torch_pin_held", {"xformers.version": "0.0.30"}, False),
        ("xformers.torch_pin_held", {"xformers.version": ABSENT}, True),
        ("xformers.torch_pin_held", {"xformers.version": "9.9"}, None),  # a release not on record
        ("torchvision.torch_pin_held", {"torchvision.version": "0.21.0"}, True),
        ("torchvision.torch_pin_held", {"torchvision.version": "0.20.1"}, False),
        ("vllm.torch_pin_held", {"vllm.version": "0.8.5"}, True),
        ("vllm.torch_pin_held", {"vllm.version": "0.7.3"}, False),
    ],
)
def test_pins(rulebook: Rulebook, key: str, given: dict[str, str], held: bool | None) -> None:
    assert value(rulebook, key, **{"torch.version": "2.6.0"}, **given) is held


@pytest.mark.parametrize(
    ("archs", "sm", "served"),
    [
        ("8.0 9.0", "8.9", True),  # a later minor of the same major
        ("8.6 9.0", "8.0", False),
        ("8.0 9.0", "10.0", False),
        ("9.0+PTX", "10.0", True),  # the driver compiles it
        ("9.0a", "9.0", True),
        ("8.0 8.6", "8.7", False),  # Orin runs no code of other GPUs
        ("8.7", "8.9", False),
        ("8.0+PTX", "8.7", True),
    ],
)
def test_code_for_the_gpu(rulebook: Rulebook, archs: str, sm: str, served: bool) -> None:
    assert value(rulebook, "torch.serves_gpu", **{"torch.arch_list": archs, "gpu.sm": sm}) is served


def test_flash_attn_is_known_absent_only_when_someone_looked(rulebook: Rulebook) -> None:
    assert value(rulebook, "flash-attn.known_absent", **{"flash-attn.version": ABSENT}) is True
    assert value(rulebook, "flash-attn.known_absent", **{"torch.version": "2.6.0"}) is False
