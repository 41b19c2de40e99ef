"""The format of rule and library files: each fault has its line and, where there is one, the nearest key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from doctor.errors import DoctorError
from doctor.facts.derived.registry import TEMPLATES
from doctor.rulebook.schema import read_source, read_sources

RULE = """\
id: T001
name: flaw
severity: error
summary: Something breaks
references: [a/b@v1]
when:
  torch.version: "<2.6"
  any:
    - gpu.sm: "9.0"
    - not: {workload.mask: causal}
fix:
  - require: {torch: ">=2.6"}
    config: {workload.mask: causal}
tests:
  fires: {given: {torch.version: 2.5.0, gpu.sm: sm90}, expect: fires}
  unknown:
    given: {torch.version: null}
    expect: undetermined
    missing: [torch.version]
"""
LIBRARY = """\
name: lib
distributions: [lib]
stages: [layout, mask]
backends:
  - {id: l.one, title: One}
  - {id: l.two, title: Two}
  - {id: l.part, title: Part, part_of: l.two}
preference:
  - {when: {gpu.sm: ">=9.0"}, order: [l.two, l.one]}
  - order: [l.one]
releases:
  2.6.0: {local: cu124, torch.cuda: "12.4"}
  2.5.0: {torch.cuda: null}
implies:
  - {when: {torch.version: "<2"}, facts: {torch.cxx11_abi: false}}
gpus:
  A100: {sm: "8.0", cuda: "11.0", memory_gib: 40, aliases: [A100-SXM4]}
cuda_drivers:
  "12.4": {driver: 550.54.14, oldest: 525.60.13}
"""


def told(tmp_path, text, name="T001.yaml"):
    path = tmp_path / name
    path.write_text(text)
    try:
        read_source(path)
    except DoctorError as problem:
        place, line, message = re.fullmatch(r"(.*?):(\d+): (.*)", problem.message).groups()
        assert place == str(path)
        return int(line), message, problem.hint
    return None


def test_what_is_sound_is_read_as_text(tmp_path):
    (tmp_path / "T001.yaml").write_text(RULE)
    found = read_source(tmp_path / "T001.yaml")
    assert (found.kind, found.library, found.content["when"]["torch.version"]) == ("rule", tmp_path.name, "<2.6")
    assert told(tmp_path, LIBRARY, "library.yaml") is None
    assert read_source(tmp_path / "library.yaml").library == "lib"


@pytest.mark.parametrize(
    ("old", "new", "line", "words", "hint"),
    [
        ("severity: error", "severtiy: error", 3, "unknown key `severtiy`", "did you mean `severity`?"),
        ("severity: error", "severity: eror", 3, "needs one of error, warning, note", "did you mean `error`?"),
        ("severity: error\n", "", 1, "`severity` is missing", None),
        ("summary: Something breaks\n", "", 1, "`summary` is missing", None),
        ("Something breaks", "", 4, "`summary` is empty", None),
        ("Something breaks", "[a, b]", 4, "`summary` needs a text", None),
        ("[a/b@v1]", "{a: b}", 5, "`references` needs a text", None),
        ("[a/b@v1]", "[]", 5, "`references` needs a text", None),
        ("[a/b@v1]", "[[a]]", 5, "an entry of `references` needs a text", None),
        ("  torch.version", "  torhc.cuda", 7, "unknown fact key `torhc.cuda`", "did you mean `torch.cuda`?"),
        ('"<2.6"', '"<two"', 7, "needs a version", None),
        ('"<2.6"', "", 7, "needs a value", None),
        ('gpu.sm: "9.0"', "gpu.smm: '9.0'", 9, "unknown fact key `gpu.smm`", "did you mean `gpu.sm`?"),
        ("causal}\nfix", "casual}\nfix", 10, "found `casual`", "did you mean `causal`?"),
        ("not: {workload.mask: causal}", "not: [a]", 10, "a condition needs a mapping", None),
        (
            '- require: {torch: ">=2.6"}',
            "- requires: {torch: '2'}",
            12,
            "unknown key `requires`",
            "did you mean `require`?",
        ),
        ('">=2.6"', '">=2.6.*"', 12, "`torch` needs a version range", None),
        ("{torch:", "{Flash_Attn:", 12, "no normalized distribution name", "did you mean `flash-attn`?"),
        ('require: {torch: ">=2.6"}', "safety: maybe", 12, "needs one of safe, changes numbers, risky", None),
        ('require: {torch: ">=2.6"}', "index_url: pytorch", 12, "needs a URL", None),
        ("config: {workload.mask: causal}", "config: {gpu.sm: '9.0'}", 13, "sets `workload.…` keys", None),
        ("config: {workload.mask: causal}", "config: {workload.mask: no}", 13, "needs one of", None),
        ("gpu.sm: sm90", "gpu.sm: hopper", 15, "compute capability", None),
        ("expect: fires", "expect: fire", 15, "needs one of fires", "did you mean `fires`?"),
        (", expect: fires", "", 15, "`expect` is missing", None),
        ("missing: [torch.version]", "missing: [zzz]", 19, "unknown fact key", None),
        ("missing: [torch.version]", "mising: [torch.version]", 19, "unknown key `mising`", "did you mean `missing`?"),
        ("name: flaw", "name: flaw\nconfirm: {kernel: x, bad_if_any: {a: b}}", 3, "needs a list", None),
        ("name: flaw", "name: flaw\nconfirm: {request: {a: b}}", 3, "`kernel` is missing", None),
        ("name: flaw", "name: flaw\nneeds: {gpu.smm: x}", 3, "unknown fact key", "did you mean `gpu.sm`?"),
        ("name: flaw", "name: flaw\nweight: heavy", 3, "needs an integer", None),
        ("name: flaw", "name: flaw\nname: flaw", 3, "given twice", None),
    ],
)
def test_a_fault_in_a_rule(tmp_path, old, new, line, words, hint):
    assert old in RULE
    at, message, nearest = told(tmp_path, RULE.replace(old, new, 1))
    assert (at, nearest) == (line, hint) and words in message, message


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("name: lib\n", "", 1, "`name` is missing"),
        ("distributions: [lib]", "distributions: [Lib_x]", 2, "no normalized distribution name"),
        ("stages: [layout, mask]", "stages: [[a]]", 3, "needs a mapping"),
        ("{id: l.two", "{id: m.two", 6, "need the same first part"),
        ("{id: l.two", "{id: l.one", 6, "given twice"),
        ("{id: l.two", "{id: two", 6, "reads library.backend"),
        ("part_of: l.two", "part_of: l.tow", 7, "no backend `l.tow`"),
        ("order: [l.two", "order: [l.tow", 9, "no backend `l.tow`"),
        ('gpu.sm: ">=9.0"', "gpu.sm: x", 9, "compute capability"),
        ("- order: [l.one]", "- when: {gpu.sm: '9.0'}", 10, "`order` is missing"),
        ("2.6.0:", "two:", 12, "`two` is no version"),
        ('torch.cuda: "12.4"', "torch.cuda: twelve", 12, "needs a version"),
        ('torch.cuda: "12.4"', "torch.kuda: '12.4'", 12, "unknown fact key"),
        ("facts: {torch.cxx11_abi: false}", "facts: {torch.cxx11_abi: maybe}", 15, "true or false"),
        ('sm: "8.0"', "sm: ampere", 17, "compute capability"),
        ("driver: 550.54.14", "driver: new", 19, "is no version"),
        ("gpus:", "gpu:", 16, "unknown key `gpu`"),
    ],
)
def test_a_fault_in_a_library(tmp_path, old, new, line, words):
    assert old in LIBRARY
    at, message, _ = told(tmp_path, LIBRARY.replace(old, new, 1), "library.yaml")
    assert at == line and words in message, (at, message)


@pytest.mark.parametrize("text", ["", "null", "just text", "- a\n- b\n", "3"])
def test_a_file_that_holds_something_else(tmp_path, text):
    for name in ("T001.yaml", "library.yaml"):
        assert "needs a mapping" in told(tmp_path, text, name)[1]


scalars = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([">=1", "absent", "te.fused"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["given", "expect", "torch.version", "any", "not", "id", "when", "order", "x"]),
                      inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.sampled_from([(RULE, "T001.yaml"), (LIBRARY, "library.yaml")]), st.data())
def test_any_value_under_any_key_is_read_or_reported(tmp_path_factory, file, data):
    text, name = file
    content = yaml.safe_load(text)
    keys = [*content, "confirm", "needs", "weight", "signatures", "disables", "variants", "applies", "zzz"]
    content[data.draw(st.sampled_from(keys))] = data.draw(anything)
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(yaml.safe_dump(content))
    try:
        read_source(path)
    except DoctorError as problem:
        assert problem.message.startswith(f"{path}:")


def test_the_example_of_the_documentation_is_a_sound_rule(tmp_path):
    from doctor.rulebook.authoring.lint import lint_source
    from doctor.rulebook.authoring.tests import in_file_tests, load_libraries, run_test

    document = Path(__file__).parents[2] / "docs" / "rule-format.md"
    path = tmp_path / "transformer_engine" / "TE103.yaml"
    path.parent.mkdir()
    path.write_text(re.search(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)[1])
    source, libraries = read_source(path), load_libraries()
    assert all(run_test(test, libraries).passed for test in in_file_tests(source))
    assert {fault.message.split("`")[0] for fault in lint_source(source, libraries)} <= {
        "no test is silent because of "
    }


def test_every_family_of_facts_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "rule-format.md").read_text()
    assert len(TEMPLATES) > 5
    assert not {name for name in TEMPLATES if f"`{name}`" not in page}


def test_an_unknown_family_of_facts_is_refused_at_its_line(tmp_path):
    path = tmp_path / "library.yaml"
    path.write_text("name: acme\ndistributions: [acme]\npackages:\n  acme:\n    facts: [compiled_file]\n")
    with pytest.raises(DoctorError, match=r"library.yaml:5: an entry of `facts` needs one of") as problem:
        read_sources(path)
    assert "compiled_files" in str(problem.value.hint)
