"""Facts files: every form is read, nothing is lost when written and read again, bad input is one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.errors import DoctorError
from doctor.facts.kinds import BOOLEAN, INTEGER, LIST, NUMBER, SM, VERSION, WINDOW
from doctor.facts.vocabulary import TERMS, fact
from doctor.model import ABSENT, Fact, Facts
from doctor.packages.gpus import with_capability
from doctor.sources.snapshot import document, parse_facts, read_facts
from tests.helpers.rulebook import builtin_rulebook


def read(tmp_path: Path, text: str, name: str = "facts.yaml") -> Facts:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return read_facts(path)


def test_the_short_form(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        """
facts:
  torch.version: 2.10
  torch.cxx11_abi: true
  gpu.sm: 9.0
  flash-attn.version: absent
  env.NVTE_FLASH_ATTN: 0
  driver.version: null
  gpu.count: 8
workload: {framework: transformer_engine, head_dim_qk: 192, window: [-1, 0]}
""",
    )
    assert facts.value("torch.version") == "2.10"  # not 2.1
    assert facts.value("torch.cxx11_abi") is True
    assert facts.value("gpu.sm") == "9.0"
    assert facts.value("flash-attn.version") == ABSENT
    assert facts.value("env.NVTE_FLASH_ATTN") == "0"
    assert facts.value("gpu.count") == 8
    assert facts["driver.version"].value is None and facts["driver.version"].problem
    assert facts.value("workload.head_dim_qk") == 192
    assert facts.value("workload.window") == (-1, 0)


@pytest.mark.parametrize("name", ["facts.json", "facts.yaml"])
def test_json_numbers_keep_their_zeros(tmp_path: Path, name: str) -> None:
    facts = read(tmp_path, '{"torch.version": 2.10, "gpu.sm": 9.0, "workload.dropout": 0.10, "gpu.count": 2}', name)
    assert facts.value("torch.version") == "2.10"
    assert facts.value("gpu.sm") == "9.0"
    assert facts.value("workload.dropout") == 0.1
    assert facts.value("gpu.count") == 2


def test_flat_and_wrapped_say_the_same(tmp_path: Path) -> None:
    flat = read(tmp_path, "torch.version: 2.6.0\nworkload.dtype: float16\n")
    wrapped = read(tmp_path, "facts: {torch.version: 2.6.0}\nworkload: {dtype: float16}\nschema: 1\n")
    assert dict(flat) == dict(wrapped)


@pytest.mark.parametrize(
    ("given", "sm"),
    [
        ({"gpu.name": "NVIDIA H100 80GB HBM3"}, "9.0"),
        ({"gpu.name": "NVIDIA A100-SXM4-40GB"}, "8.0"),
        ({"gpu.name": "b200"}, "10.0"),
        ({"gpu.name": "NVIDIA H100 80GB HBM3", "gpu.sm": "8.0"}, "8.0"),  # what is said outright wins
        ({"gpu.name": "NVIDIA H100 80GB HBM3", "gpu.sm": None}, None),
        ({"gpu.name": "Voodoo 2"}, None),
        ({"gpu.name": "absent"}, None),
        ({}, None),
    ],
)
def test_the_name_of_a_gpu_shows_its_capability(given: dict[str, Any], sm: str | None) -> None:
    facts = parse_facts(json.dumps({"facts": {"torch.version": "2.6.0", **given}}), "facts.json")
    assert with_capability(facts, builtin_rulebook().gpus).value("gpu.sm") == sm


def test_a_slip_in_version_is_recognised() -> None:
    with pytest.raises(DoctorError) as caught:
        parse_facts('{"torch.versoin": "2.6.0"}', "facts.json")
    assert caught.value.hint == "did you mean `torch.version`?"


def test_the_long_form_keeps_source_raw_and_problem(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        json.dumps(
            {
                "facts": {
                    "cudnn.version": {"value": "9.1.0", "source": "file name", "raw": "90100"},
                    "gpu.sm": {"value": None, "source": "NVML", "problem": "no NVIDIA driver"},
                }
            }
        ),
    )
    assert facts["cudnn.version"] == Fact("cudnn.version", "9.1.0", "file name", "90100")
    assert facts["gpu.sm"] == Fact("gpu.sm", None, "NVML", None, "no NVIDIA driver")


def test_a_report_is_taken_back(tmp_path: Path) -> None:
    report = {
        "schema": 1,
        "tool": "attn-doctor 0.1.0",
        "rulebook": {"version": "x"},
        "facts": {"torch.version": {"value": "2.6.0", "source": "dist-info", "raw": None, "problem": None}},
        "workload": {"dtype": {"value": "bfloat16", "source": "--set"}},
        "findings": [],
        "timing": {"facts": 0.1},
    }
    facts = read(tmp_path, json.dumps(report), "report.json")
    assert set(facts) == {"torch.version", "workload.dtype"}


def _values(kind: str) -> st.SearchStrategy[Any]:
    numbers = st.integers(0, 99)
    return {
        VERSION: st.tuples(numbers, numbers, numbers).map(lambda parts: ".".join(map(str, parts))),
        SM: st.tuples(st.integers(5, 12), st.integers(0, 9)).map(lambda parts: f"{parts[0]}.{parts[1]}"),
        INTEGER: st.integers(-(1 << 40), 1 << 40),
        NUMBER: st.floats(allow_nan=False, allow_infinity=False),
        BOOLEAN: st.booleans(),
        WINDOW: st.tuples(st.integers(-1, 9999), st.integers(-1, 9999)),
        LIST: st.lists(st.text(max_size=12), max_size=4),
    }.get(kind, st.text(max_size=20))


_NAMED = sorted(key for key, term in TERMS.items() if not term.values)
_TEXT = st.text(max_size=20)


@st.composite
def _facts(draw: st.DrawFn) -> Facts:
    facts = []
    for key in draw(st.lists(st.sampled_from([*_NAMED, "flash-attn.version", "env.NVTE_FUSED_ATTN"]), unique=True)):
        kind = TERMS[key].kind if key in TERMS else VERSION if key.endswith(".version") else "text"
        source = draw(st.text(min_size=1, max_size=20))
        raw = draw(st.none() | _TEXT)
        if draw(st.booleans()):
            facts.append(fact(key, draw(_values(kind)), source, raw=raw))
        else:
            facts.append(Fact(key, None, source, raw, draw(st.text(min_size=1, max_size=20))))
    return Facts(facts)


@settings(max_examples=150, deadline=None)
@given(_facts())
def test_out_and_back_nothing_is_lost(facts: Facts) -> None:
    written = json.dumps(document(facts), indent=2)
    assert dict(parse_facts(written, "snapshot.json")) == dict(facts)
    assert document(parse_facts(written, "snapshot.json")) == document(facts)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("utf-8", "replace")))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for origin in ("x.json", "x.yaml"):
        try:
            parse_facts(text, origin)
        except DoctorError as error:
            assert error.message and "\n" not in error.message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT | st.sampled_from(_NAMED), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["facts", "workload", "schema", "findings", *_NAMED]) | _TEXT, _JSON, max_size=4)
)
def test_any_shape_is_read_or_refused(content: dict[str, Any]) -> None:
    try:
        facts = parse_facts(json.dumps(content), "x.json")
    except DoctorError as error:
        assert error.exit_code == 2
    else:
        json.dumps(document(facts))


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "is empty", None),
        ("- a\n- b\n", "found a list", None),
        ("just words", "found a plain text", None),
        ("torch.verzion: 2.6.0", "unknown fact key `torch.verzion`", None),
        ("gpu.smm: 9.0", "unknown fact key `gpu.smm`", "did you mean `gpu.sm`?"),
        ("facts: {}\nworklaod: {}", "unknown key `worklaod`", "did you mean `workload`?"),
        ("facts: [1]", "`facts` needs a mapping", None),
        ("workload: {head_dmi: 3}", "unknown workload key `workload.head_dmi`", "did you mean `head_dim`?"),
        ("workload: 7", "`workload` needs a mapping", None),
        ("torch.version: {valeu: 2.6.0}", "unknown key `valeu`", "did you mean `value`?"),
        ("torch.version: two", "needs a version such as 2.6.0, found `two`", None),
        ("gpu.count: [1, 2]", "gpu.count", None),
        ("torch.version: {value: {a: 1}}", "needs a version", None),
        ("torch.version: 1\ntorch.version: 2", "given twice", None),
        ('{"torch.version": "1", "torch.version": "2"}', "given twice", None),
        ("schema: 99\nfacts: {}", "has schema 99", "upgrade attn-doctor"),
        ("schema: x", "`schema` needs a number", None),
        ("torch.version: !evil 2.6.0", "the tag `!evil` is not accepted", None),
        ("torch.version: !!python/object:os.system x", "", None),
        (
            "x0: &x0 [a, b]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 12)),
            "too large (aliases",
            None,
        ),
        ("{" * 5000, "", None),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, text: str, said: str, hint: str | None) -> None:
    with pytest.raises(DoctorError) as caught:
        read(tmp_path, text)
    assert said in caught.value.message
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    if hint:
        assert hint in (caught.value.hint or "")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    (tmp_path / "nul.yaml").write_bytes(b"a: \0")
    (tmp_path / "huge.yaml").write_bytes(b"# " + b"x" * (50 << 20))
    (tmp_path / "cut.json").write_text('{"facts": {"torch.version"')
    for name in ("binary.json", "nul.yaml", "huge.yaml", "cut.json", "missing.yaml", "."):
        with pytest.raises(DoctorError) as caught:
            read_facts(tmp_path / name)
        assert "\n" not in caught.value.message, name


def test_homes_do_not_leave_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/data/people/ada")
    shown = json.dumps(
        document(
            Facts(
                [
                    Fact(
                        "cudnn.path", "/data/people/ada/venv/lib/libcudnn.so.9", "found in /home/eve/x", "/Users/bob/y"
                    ),
                    Fact("cudnn.copies", ("9.1.0 /data/people/ada/a", "9.2.0 /usr/lib/b"), "s"),
                    Fact("gpu.sm", None, "s", None, "cannot read /home/eve/.cache"),
                ]
            )
        )
    )
    assert not any(name in shown for name in ("ada", "eve", "bob"))
    assert "~/venv/lib/libcudnn.so.9" in shown and "/usr/lib/b" in shown


def test_a_real_machine_is_replayed() -> None:
    """An H200 with torch's cuDNN wheel and an older cuDNN in the system's folders, as `snapshot` wrote it."""
    path = Path(__file__).parents[1] / "captures/h200-torch2.11.0-cu130-two-cudnns.json"
    facts = read_facts(path)
    assert len(facts) > 190
    assert facts.value("torch.version") == "2.11.0+cu130"
    assert facts.value("gpu.sm") == "9.0"
    assert facts.value("distributions.complete") is True
    assert [copy.split()[0] for copy in facts.value("cudnn.copies")] == ["9.19.0", "9.14.0"]
    written = document(facts)
    for name in ("facts", "schema"):
        assert written[name] == json.loads(path.read_text("utf-8"))[name]


def test_the_package_that_requires_another_survives_the_file() -> None:
    facts = Facts([Fact("torch.version", "2.6.0", "a.txt:1", via="torchvision 0.21.0")])
    again = parse_facts(json.dumps(document(facts)), "facts.json")
    assert again["torch.version"] == facts["torch.version"]
