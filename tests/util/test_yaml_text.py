"""YAML as text: nothing converted, lines kept, and one clear error for whatever a file may hold."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from doctor.errors import DoctorError
from doctor.util.reading import MAX_BYTES, read_text
from doctor.util.yaml_text import MAX_DEPTH, parse_yaml


def parse(text):
    return parse_yaml(text, "x.yaml")[0]


def test_scalars_stay_text():
    assert parse("{a: 2.10, b: yes, c: 1_000, d: 0x10, e: 2026-01-01, f: null, g: ~, h: '', i: 1e3, j: =}") == {
        "a": "2.10", "b": "yes", "c": "1_000", "d": "0x10", "e": "2026-01-01", "f": None, "g": None, "h": "",
        "i": "1e3", "j": "=",
    }  # fmt: skip
    assert parse("") is None and parse("# nothing\n") is None


def test_every_part_has_its_line():
    _, lines = parse_yaml("a: 1\nb:\n  c:\n    - d\n    - e: f\n", "x.yaml")
    assert lines["a",] == 1 and lines["b", "c"] == 3 and lines["b", "c", "0"] == 4 and lines["b", "c", "1", "e"] == 5


def test_anchors_and_merges():
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nboth: {<<: [*base, {c: 4}], a: 9}\n"
    assert parse(text)["other"] == {"a": "1", "b": "3"}
    assert parse(text)["both"] == {"a": "9", "b": "2", "c": "4"}


def test_the_first_of_several_merged_mappings_wins():
    assert parse("x: {<<: [{a: 1}, {a: 2}]}")["x"] == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "x.yaml:2: `a` is given twice"),
        ("a: [1\nb: 2\n", "x.yaml:2"),
        ("a: !!python/object/apply:os.system ['true']\n", "x.yaml:1: the tag"),
        ("a: !!binary aGk=\n", "x.yaml:1: the tag"),
        ("a: !!set {b, c}\n", "x.yaml:1: the tag"),
        ("a: !mine 1\n", "x.yaml:1: the tag"),
        ("? [a, b]\n: 1\n", "x.yaml:1: a key needs to be plain text"),
        ("? &k a\n: 1\n*k : 2\n", "`a` is given twice"),
        ("a: {<<: 1}\n", "`<<` needs a mapping"),
        ("a: *nobody\n", "x.yaml:1: found undefined alias"),
        ("a: &a [*a]\n", "x.yaml"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: but found another document"),
        ("a: '\x07'\n", "x.yaml"),
        ("\t\ta: 1\n", "x.yaml:1"),
        ("[" * 100_000, "x.yaml"),
        ("{a: " * 100_000, "x.yaml"),
        ("- " * 100_000, "x.yaml"),
        ("a: &a [x,x,x,x,x,x,x,x,x,x]\n"
         + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)),
         "the document is too large"),
    ],
)  # fmt: skip
def test_what_is_refused_is_reported_with_its_line(text, words):
    start = time.perf_counter()
    with pytest.raises(DoctorError) as caught:
        parse(text)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert time.perf_counter() - start < 5


def test_the_limit_of_depth_is_exact():
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(DoctorError, match="nested deeper"):
        parse("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))


@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="ab:-?[]{}&*!|>'\"%@`#,<\n \t~0\\x", max_size=40),
        st.text(alphabet='\\xuUN"{}0123456789abcdefD \n', max_size=20).map(lambda text: f'"{text}"'),
    )
)
@example('"\\ud800"')
@example('"\\UFFFFFFFF"')
@example("\ud800")
@example("!<%ff> a")
@example("%YAML 9.9\n--- a")
@example("&a {? *a : b}")
@example("- &a\n  - *a")
def test_any_text_is_parsed_or_reported(text):
    try:
        content = parse(text)
    except DoctorError as problem:
        assert problem.message.startswith("x.yaml")
        return
    json.dumps(content)  # plain text, lists and mappings, and no cycle


plain = st.recursive(
    st.none() | st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("C",)), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet="abc.-_", min_size=1, max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain)
def test_json_is_read_as_it_is(content):
    assert parse(json.dumps(content, ensure_ascii=False)) == content


@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbfa: 1")
@example(b"a\x00b")
@example(b"\xff\xfe")
def test_any_bytes_are_read_or_reported(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    try:
        text = read_text(path, "rule file")
    except DoctorError as problem:
        assert "bytes.yaml" in problem.message
        return
    assert text.encode() == data.removeprefix(b"\xef\xbb\xbf")


def test_what_cannot_be_read(tmp_path):
    for path, words in [
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / ("x" * 300), "too long"),
        (tmp_path / "a\0b", "is not a file name"),
    ]:
        with pytest.raises(DoctorError, match=words):
            read_text(path, "facts")


def test_a_huge_file_is_refused_without_reading_it_all(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(50 * MAX_BYTES)
    with pytest.raises(DoctorError, match="larger than 8 MiB"):
        read_text(path, "facts")
