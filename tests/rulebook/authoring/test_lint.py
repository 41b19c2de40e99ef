"""The lint: a sound rule passes, and each thing that can be wrong with one is reported at its line."""

from __future__ import annotations

import time

import pytest

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.authoring.lint import lint, lint_source, lint_unique, sole_reason
from doctor.rulebook.authoring.regex_safety import regex_fault
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.schema import read_source
from doctor.util.linear_regex import found_in

SOUND = """\
id: TE103
name: bottom-right-needs-cudnn-9.3
severity: error
summary: FusedAttention has no bottom-right causal mask before cuDNN 9.3
why: All-gather context parallelism needs it.
references: ["https://example.org/blob/v2.3/fused_attn.cpp"]
when:
  cudnn.version: "<9.3"
  any:
    - workload.mask: causal_bottom_right
    - {workload.cp_comm_type: all_gather, workload.mask: causal}
  not: {gpu.sm: "10.0"}
disables: te.fused
stage: mask
message: needs cuDNN 9.3 (found {cudnn.version})
needs: {cudnn.version: ">=9.3"}
signatures: ['Invalid combination of .{0,80} for fused attention']
confirm: {kernel: cudnn_sdpa}
fix:
  - require: {torch: ">=2.7.1,<2.9"}
tests:
  fires: {given: &base {cudnn.version: 9.1.0, workload.mask: causal, workload.cp_comm_type: all_gather, gpu.sm: "9.0"},
    expect: fires}
  silent, newer: {given: {<<: *base, cudnn.version: 9.3.0}, expect: silent}
  silent, p2p: {given: {<<: *base, workload.cp_comm_type: p2p}, expect: silent}
  silent, no mask: {given: {<<: *base, workload.mask: no_mask}, expect: silent}
  silent, neither: {given: {<<: *base, workload.mask: no_mask, workload.cp_comm_type: p2p}, expect: silent}
  silent, Blackwell: {given: {<<: *base, gpu.sm: "10.0"}, expect: silent}
  matches: {log: "ValueError: Invalid combination of dtype and mask for fused attention", expect: matches}
"""
LIBRARIES = Rulebook({}, {"transformer_engine": Library("transformer_engine", {
    "name": "transformer_engine", "distributions": ["transformer-engine"], "stages": ["layout", "mask"],
    "backends": [{"id": "te.fused", "title": "Fused"}, {"id": "te.flash2", "title": "Flash"}],
})})  # fmt: skip


def faults(tmp_path, text, name="TE103.yaml"):
    path = tmp_path / "transformer_engine" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return [(fault.line, fault.message, fault.hint) for fault in lint_source(read_source(path), LIBRARIES)]


def test_a_sound_rule_has_no_fault(tmp_path):
    assert faults(tmp_path, SOUND) == []


def change(old, new):
    assert old in SOUND
    return SOUND.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("id: TE103", "id: TE104", 1, "needs the file name TE104.yaml"),
        ("bottom-right-needs", "Bottom_right needs", 2, "joined by hyphens"),
        ("before cuDNN 9.3", "before cuDNN 9.3.", 4, "no period"),
        ("before cuDNN 9.3", "before cuDNN " + "9" * 99, 4, "at most 100"),
        ("needs it.", "needs it", 5, "period at the end"),
        ("why: All-gather context parallelism needs it.\n", "", 1, "`why` is missing"),
        ('["https://example.org/blob/v2.3/fused_attn.cpp"]', "[somewhere]", 6, "a reader can open"),
        ('"<9.3"', '"<=9.2"', 8, "`<=9.2` rejects"),
        ('"<9.3"', '">8.9.7"', 8, "takes in 8.9.7.70"),
        ('cudnn.version: "<9.3"\n', 'nvidia-cudnn-cu12.version: "==9.1"\n', 8, "four-part"),
        ("disables: te.fused", "disables: te.fuse", 13, "no backend `te.fuse`"),
        ("stage: mask", "stage: masks", 14, "no stage `masks`"),
        ("{cudnn.version})", "{the cuDNN})", 15, "no fact key"),
        ("{cudnn.version})", "{te.selected})", 15, "follows from this very rule"),
        ('cudnn.version: "<9.3"\n', "te.selected: te.fused\n", 8, "follows from this very rule"),
        ('{cudnn.version: ">=9.3"}', '{torch.version: ">=2.7"}', 16, "no condition of this rule"),
        ("Invalid combination", "(Invalid", 17, "is no regular expression"),
        ("cudnn_sdpa", "cudnn_spda", 18, "no kernel `cudnn_spda`"),
        ('fix:\n  - require: {torch: ">=2.7.1,<2.9"}\n', "", 3, "needs a `fix` or `no_pin`"),
        (">=2.7.1,<2.9", "<=2.8", 20, "`<=2.8` rejects"),
        ("expect: fires}", "expect: silent}", 21, "at least one that expects `fires`"),
        ("why: All", "why: FILL IN All", 5, "still to be filled in"),
        ("silent, p2p", "silent, FILL IN", 25, "still to be filled in"),
    ],
)
def test_a_fault_is_reported_at_its_line(tmp_path, old, new, line, words):
    found = faults(tmp_path, change(old, new))
    assert any(at == line and words in message for at, message, _ in found), found


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("silent, newer", "cudnn.version: <9.3"),
        ("silent, p2p", "workload.cp_comm_type: all_gather"),
        ("silent, neither", None),
        ("silent, Blackwell", "gpu.sm: 10.0"),
    ],
)
def test_every_condition_needs_a_test_that_it_alone_keeps_silent(tmp_path, name, key):
    text = "".join(line for line in SOUND.splitlines(keepends=True) if not line.strip().startswith(name))
    messages = [message for _, message, _ in faults(tmp_path, text)]
    assert messages == ([f"no test is silent because of `{key}` alone"] if key else [])


def test_an_unknown_key_of_a_message_is_refused_when_the_file_is_read(tmp_path):
    with pytest.raises(DoctorError, match=r"TE103\.yaml:15: unknown fact key `cudnn\.versoin`"):
        faults(tmp_path, change("{cudnn.version})", "{cudnn.versoin})"))


def test_a_hint_says_how_to_write_a_bound(tmp_path):
    assert faults(tmp_path, change('"<9.3"', '"<=9.2"'))[0][2] == "write `<9.3`"
    assert faults(tmp_path, change('"<9.3"', '">9.2"'))[0][2] == "write `>=9.3`"
    flash = faults(tmp_path, change('cudnn.version: "<9.3"\n', 'flash-attn.version: ">2.8.3"\n'))
    assert flash[0][2] == "write `>=2.8.3.post1` or `>=2.8.4`"
    for fine in ('"<9.3,>=9"', '"<=9.1.0.70"', '">2.8.3.post1"', '"==9.1.*"'):
        assert not [fault for fault in faults(tmp_path, change('"<9.3"', fine)) if "`cudnn.version`:" in fault[1]]


def test_sole_reason_flips_one_leaf_and_no_other():
    when = parse_conditions({"torch.version": "<2.6", "not": {"any": [{"gpu.sm": "9.0"}, {"gpu.sm": "10.0"}]}})
    torch, hopper, blackwell = when.leaves()

    def reasons(**values):
        known = FactResolver(Facts(fact(key.replace("_", "."), value, "t") for key, value in values.items()))
        return [leaf for leaf in (torch, hopper, blackwell) if sole_reason(when, leaf, known)]

    assert reasons(torch_version="2.7", gpu_sm="8.0") == [torch]
    assert reasons(torch_version="2.5", gpu_sm="9.0") == [hopper]
    assert reasons(torch_version="2.7", gpu_sm="9.0") == []  # two reasons
    assert reasons(torch_version="2.5", gpu_sm="8.0") == []  # it fires
    assert reasons(torch_version=None, gpu_sm="9.0") == []  # flipped, it would still not be known


def test_ids_and_names_are_unique(tmp_path):
    for name in ("TE103", "TE104"):
        faults(tmp_path, SOUND, f"{name}.yaml")
    sources = [read_source(path) for path in sorted((tmp_path / "transformer_engine").iterdir())]
    assert [fault.message.split("`")[1] for fault in lint_unique(sources)] == [
        "id: TE103", "name: bottom-right-needs-cudnn-9.3",
    ]  # fmt: skip


def test_a_file_that_is_no_rule_is_a_fault_with_its_line(tmp_path):
    path = tmp_path / "team" / "X001.yaml"
    path.parent.mkdir()
    path.write_text("id: X001\nnaem: x\n")
    (fault,) = lint([path])
    assert (fault.line, fault.message, fault.hint) == (2, "unknown key `naem`", "did you mean `name`?")
    assert str(fault) == f"{path}:2: unknown key `naem` (did you mean `name`?)"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a*)*", "matches the empty text"),
        (r"(abc)\1", "is no regular expression that RE2 takes"),
        (r"abc(?=d)", "is no regular expression that RE2 takes"),
        (r"\w+: \d+", "has no fixed text"),
        (r"(?:abc|\d)x", "has no fixed text"),
        (r"(?i)out of memory", "ignores case as a whole"),
        (r"(", "is no regular expression"),
        (r"a|", "matches the empty text"),
        (r"[[a]b", "is no regular expression"),
    ],
)
def test_unsafe_signatures(pattern, words):
    assert words in (regex_fault(pattern) or "")


@pytest.mark.parametrize(
    "pattern",
    [
        r"TypeError: _flash_attn_varlen_backward\(\) missing \d+ required",
        r"No dot product attention backend is available",
        r"'\w+FlashAttention2' object has no attribute '_flash_attention_forward'",
        r"undefined symbol: _ZN\S+cxx11\S*",
        r"(?:cuDNN|cudnn) version (?:in)?compatib.{0,60}found",
        r"expected .* but got [0-9.]+",
    ],
)
def test_sound_signatures_stay_quick_on_hostile_lines(pattern):
    assert regex_fault(pattern) is None
    start = time.perf_counter()
    for line in ("a" * 5000, "expected " * 500, "cuDNN version " * 400, "'" * 5000, "undefined symbol: _ZN" * 200):
        found_in(pattern, line)
    assert time.perf_counter() - start < 2
