"""Plain YAML is read as the parser reads it, or left to the parser."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.plainyaml import MAX_DEPTH, MAX_LINE, MAX_TEXT, read_plain
from doctor.yamltext import parse_any_yaml, parse_yaml

ROOT = Path(__file__).resolve().parents[1]
HAND_WRITTEN = """\
# what the job runs in
facts:
  torch.version: "2.10"   # quoted, as it should be
  torch.cuda: 12.4
  cudnn.path: ~/venv/lib/libcudnn.so.9

  cudnn.copies:
    - 9.1.0 ~/venv/lib/libcudnn.so.9
    - 'a # b: c'
  driver.version: null
  gpu.name: NVIDIA H100 80GB HBM3
  env.NVTE_FLASH_ATTN:
workload:
  window: [-1, 0]
  layer_types: []
  cp_comm_type: a2a+p2p
"""

values = st.one_of(
    st.sampled_from(["", "~", "null", "NULL", "true", "2.10", '""', "''", '"a: # b"', "[1, -2]", "[]", "[ a , b]",
                     "[null, x]", "[1,,2]", "[a b]", "['a b', \"2\",'']",
                     "['a\"]", "['a'b]", "a:b", "a: b", "-", "- a", "- -1", "-1", "é", '"é"', "# c"]),
    st.text(alphabet="ab1.~/+=<>*()@,;!? -_#:'\"[]{}&|%`\\é0\t", max_size=6),
)  # fmt: skip
lines = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "", "  ", "  ", "    ", " "]),
    st.sampled_from(["a:", "b:", "c.d:", "null:", "-", "x1 :", "# ", ""]),
    st.sampled_from(["", " ", "  "]),
    st.builds("{}{}".format, values, st.sampled_from(["", "", " # c", "  #", "#c", " "])),
)


@given(st.lists(lines, min_size=1, max_size=6).map("\n".join))
def test_what_is_read_is_what_the_parser_reads(text):
    found = read_plain(text)
    if found is not None:
        content, places = parse_any_yaml(text, "x.yaml")
        assert found == (content, places)
        assert list(found[0]) == list(content)


def test_what_hands_write_is_read():
    found = read_plain(HAND_WRITTEN)
    assert found == parse_any_yaml(HAND_WRITTEN, "x.yaml")
    assert found is not None
    content, places = found
    assert content["facts"]["torch.version"] == "2.10" and content["facts"]["driver.version"] is None
    assert content["facts"]["cudnn.copies"] == ["9.1.0 ~/venv/lib/libcudnn.so.9", "a # b: c"]
    assert content["facts"]["env.NVTE_FLASH_ATTN"] is None
    assert content["workload"] == {"window": ["-1", "0"], "layer_types": [], "cp_comm_type": "a2a+p2p"}
    assert places["workload", "window"] == 14 and places["facts", "cudnn.copies", "1"] == 9


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "incidents").rglob("*.yaml")), ids=str)
def test_the_examples_need_no_parser(path, monkeypatch):
    text = path.read_text(encoding="utf-8")
    wanted = parse_any_yaml(text, str(path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "yaml"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)  # importing it fails
    assert parse_yaml(text, str(path)) == wanted


@pytest.mark.parametrize("path", sorted((ROOT / "rules").rglob("library.yaml")), ids=lambda path: path.parent.name)
def test_no_file_of_ours_is_read_otherwise(path):
    text = path.read_text(encoding="utf-8")
    assert read_plain(text) in (None, parse_any_yaml(text, str(path)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "- a\n",
        "a\n",
        "a: 1\na: 2\n",  # the parser tells it, with its line
        "a: 1\n  b: 2\n",
        "a: one\n  and more\n",
        "a:\n- b\n",
        "a:\n    b: 1\n  c: 2\n",
        "a:\n  - b\n  c: 1\n",
        "a: {b: 1}\n",
        "a: |\n  b\n",
        "a: &x 1\n",
        "a: *x\n",
        "a: !!int 1\n",
        "<<: a\n",
        "? a\n",
        "a: 'it''s'\n",
        'a: "\\n"\n',
        "a: b: c\n",
        "a: 1\r\n",
        "\ta: 1\n",
        "a: \u2028\n",
        "%YAML 1.1\n---\na: 1\n",
        "a: 1\n---\nb: 2\n",
        "a: 1\n...\n",
        "a: " + "x" * MAX_LINE,
        "a: 1\n" + "# so long\n" * (MAX_TEXT // 10),
        "".join(f"{'  ' * depth}a:\n" for depth in range(MAX_DEPTH + 2)) + "x: 1\n",
    ],
)
def test_what_is_in_doubt_is_left_to_the_parser(text):
    assert read_plain(text) is None
