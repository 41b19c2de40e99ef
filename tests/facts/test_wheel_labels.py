"""Labels of wheels in the grammars that are in use: torch, CUDA and ABI."""

from __future__ import annotations

import pytest

from doctor.facts.wheel_labels import abi_fits, cuda_fits, parse_label, torch_fits

GRAMMARS = {  # label -> torch releases, CUDA major, ABI
    "cu12torch2.8cxx11abiTRUE": ({(2, 8)}, 12, True),
    "cu128torch2.9.0andhigher.post4": ({(2, 9)}, 12, None),
    "cu128.torch27": ({(2, 7)}, 12, None),
    "cu130.torch210": ({(2, 10)}, 13, None),
    "cu121.torch210": ({(2, 1)}, 12, None),
    "cu121.torch2.5.0": ({(2, 5)}, 12, None),
    "torch2.8.0.cu128": ({(2, 8)}, 12, None),
    "torch2.7": ({(2, 7)}, None, None),
    "torch250cu124": ({(2, 5)}, 12, None),
    "torch2100cu128": ({(2, 10)}, 12, None),
    "pt24cu121": ({(2, 4)}, 12, None),
    "pt2.5.1cu124": ({(2, 5)}, 12, None),
    "pt210cu130": ({(2, 10)}, 13, None),
    "cu12torch2.8.0.cu128cxx11abitrue": ({(2, 8)}, 12, True),
    "cu12torch210": ({(2, 1), (2, 10)}, 12, None),
    "cu118": (set(), 11, None),
    "g1a2b3c4": (set(), None, None),
    "rocm6.2": (set(), None, None),
}


@pytest.mark.parametrize("label", GRAMMARS)
def test_every_grammar_is_read(label: str) -> None:
    found = parse_label(f"1.0+{label}")
    assert (set(found.torch), found.cuda_major, found.cxx11_abi) == GRAMMARS[label]


def test_a_container_fits_its_own_torch_alone() -> None:
    label = parse_label("2.8.3+cu12torch25.08cxx11abiTRUE")
    assert label.container == "25.08"
    assert torch_fits(label, "2.8.0a0+34c6371d24.nv25.08") is True
    assert torch_fits(label, "2.8.0+cu128") is False


def test_what_a_label_leaves_open_is_unknown() -> None:
    assert torch_fits(parse_label("1.0+cu128"), "2.8.0") is None
    assert cuda_fits(parse_label("1.0+torch2.8"), "12.8") is None
    assert cuda_fits(parse_label("1.0+cu128"), None) is None
    assert abi_fits(parse_label("1.0+cu128"), True) is None
    assert torch_fits(parse_label("1.0"), "2.8.0") is None


def test_later_releases_fit_where_the_label_says_so() -> None:
    label = parse_label("2.2.0+cu128torch2.9.0andhigher.post4")
    assert [torch_fits(label, torch) for torch in ("2.8.0", "2.9.0", "2.13.0")] == [False, True, True]
