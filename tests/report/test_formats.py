"""Every format shows every part of the shared sample report."""

import json
import re

import pytest

from doctor.errors import DoctorError
from doctor.model import Candidate, Fact, Facts, Prediction, Reason, Remedy
from doctor.report.fix_text import alternative_lines
from doctor.report.formats import FORMATS, renderer
from doctor.report.style import Style

ANSI = re.compile(r"\x1b\[[0-9;]*m")

#: What a reader must be able to find in a diagnosis, whatever the format.
ESSENTIAL = (
    "TE900", "FusedAttention needs cuDNN >= 9.3 for this mask (found 9.1.0)", "cudnn.version", "9.1.0", ">=9.3",
    "what torch 2.6.0 brings", "All-gather turns the mask.", "https://example.org/pull/1", "fused_attn.cpp@v2.3",
    "cudnn_sdpa", "refused", "No execution plans support the graph", "brings cuDNN 9.5.1", "torch pins another",
    "https://example.org/whl", "NVTE_FUSED_ATTN", "cp_comm_type", "p2p", "q = q.contiguous()",
    "The limit is in the GPU.", "`nvidia-cudnn-cu12==9.3.0.75` does not resolve beside torch 2.6.",
    "FA900", "Two wheels share a folder", "te.flash2", "switched off by NVTE_FLASH_ATTN=0", "te.flash3", "gpu.sm",
    "Upgrade `torch` to 2.7.1", "2.7.1", "rebuild what was compiled against torch 2.6", "shares the folder",
    "CUDA900", "no driver", "one sequence in a batch", "CUDA901 is ignored by this project: known",
    "te_attention", "killed by SIGSEGV at step `run`", "NVIDIA H100",
)  # fmt: skip


def squeezed(text):
    return " ".join(text.split())


#: The others carry findings to machines that show nothing else (test_gate_formats.py).
WHOLE = ("text", "json", "markdown")


@pytest.mark.parametrize("name", WHOLE)
def test_every_format_shows_every_part(name, report):
    text = squeezed(renderer(name)(report, Style(verbose=True)))
    missing = [
        part for part in ESSENTIAL if part not in text and json.dumps(part, ensure_ascii=False)[1:-1] not in text
    ]
    assert not missing


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("view", ["backends", "fixes"])
def test_every_format_shows_the_other_views(name, view, report):
    text = squeezed(renderer(name, view)(report, Style()))
    wanted = {
        "backends": ("te.fused", "te.flash2", "switched off by NVTE_FLASH_ATTN=0", "attention.py@v2.3", "TE900"),
        "fixes": ("Upgrade `torch` to 2.7.1", "brings cuDNN 9.5.1", "The limit is in the GPU.", "TE900"),
    }[view]
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize("view", ["diagnosis", "backends", "fixes"])
@pytest.mark.parametrize("width", [40, 72, 100])
def test_colour_changes_no_word(view, width, report):
    render = renderer("text", view)
    painted = render(report, Style(color=True, width=width))
    assert ANSI.search(painted)
    assert ANSI.sub("", painted) == render(report, Style(width=width))


def test_only_lines_to_paste_and_sources_are_wider_than_the_page(report):
    wide = [line for line in renderer("text")(report, Style(width=72)).splitlines() if len(line) > 72]
    assert all(line.lstrip().startswith(("pip ", "export ", "#", "or:", "sources:")) for line in wide), wide


def test_verdict_comes_first_and_errors_before_warnings(report):
    lines = renderer("text")(report, Style()).splitlines()
    assert lines[0] == "FAIL TE900: FusedAttention lacks a mask"
    assert lines[1] == "Machine   NVIDIA H100 (sm 9.0)"
    assert lines[2] == "Packages  torch 2.6.0"
    order = [line for line in lines if line.startswith(("error ", "warning "))]
    assert order == ["warning FA900: Two wheels share a folder"]
    whole = renderer("text")(report, Style(verbose=True)).splitlines()
    order = [line for line in whole if line.startswith(("error ", "warning "))]
    assert order == ["error TE900: FusedAttention lacks a mask", "warning FA900: Two wheels share a folder"]


def test_evidence_names_found_needed_and_source(report):
    text = renderer("text")(report, Style(verbose=True))
    assert "cudnn.version: found 9.1.0, needs >=9.3, from what torch 2.6.0 brings" in text
    assert "workload.mask: found causal, needs another value, from job.yaml: mask" in text
    meaning = "q, k, v are views of one fused projection"
    fact = f"workload.qkv_interleaved: found yes ({meaning}), from job.yaml: qkv_interleaved"
    assert fact in " ".join(text.split())


def test_lines_to_paste_are_whole_shell_commands(report):
    lines = [line.strip() for line in renderer("text")(report, Style(width=40, verbose=True)).splitlines()]
    assert "pip install 'torch>=2.7.1,<2.9'" in lines
    assert "pip install --extra-index-url https://example.org/whl nvidia-cudnn-cu12==9.3.0.75" in lines
    assert "export NVTE_FUSED_ATTN=0" in lines
    assert "unset NVTE_FLASH_ATTN" in lines
    assert "pip uninstall --yes flash-attn-4" in lines
    assert "pip install torch==2.7.1" in lines


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (Remedy(require={"flash-attn": "==2.5.6"}), ["pip install --no-build-isolation flash-attn==2.5.6"]),
        (  # the frame alone would leave the parts of the old release behind
            Remedy(require={"transformer-engine": "==2.1.0"}),
            ["pip install --no-build-isolation 'transformer-engine[pytorch]==2.1.0'"],
        ),
        (
            Remedy(require={"transformer-engine": "==2.1.0", "transformer-engine-torch": "==2.1.0"}),
            ["pip install --no-build-isolation transformer-engine==2.1.0 transformer-engine-torch==2.1.0"],
        ),
        (  # compiled against the new torch, which has to be there first
            Remedy(require={"flash-attn": "==2.8.3", "torch": "==2.8.0"}),
            ["pip install torch==2.8.0", "pip install --no-build-isolation flash-attn==2.8.3"],
        ),
        (Remedy(set_env={"A": "/x:$A"}), ['export A="/x:$A"']),
        (Remedy(set_env={"A": "$(id) 'x'"}), ["export A='$(id) '\"'\"'x'\"'\"''"]),
        (Remedy(set_env={"A": "`id`$B"}), ["export A='`id`$B'"]),
        (Remedy(call="put back the cuDNN that torch requires"), ["# put back the cuDNN that torch requires"]),
        (Remedy(call="q = q.contiguous()"), ["q = q.contiguous()"]),
        (Remedy(call="pip uninstall --yes a && pip install b"), ["pip uninstall --yes a && pip install b"]),
    ],
)
def test_what_is_typed_does_what_is_meant(wanted, lines):
    assert alternative_lines(wanted) == lines


def test_a_hostile_fact_cannot_steer_the_terminal(make_report):
    evil = Fact("gpu.name", "\x1b[2J\x1b]0;owned\x07 \u202egpj.exe", "NVML")
    text = renderer("text")(make_report(facts=Facts([evil])), Style())
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "\\x1b[2J" in text


SELECTS = Prediction("transformer_engine", "te.fused", True, (Candidate("te.fused", "FusedAttention", True, ()),))


@pytest.mark.parametrize(
    ("changes", "word", "sentence"),
    [
        ({"findings": (), "predictions": (SELECTS,), "undetermined": ()}, "OK", "no known problems"),
        ({"findings": (), "predictions": (SELECTS,)}, "OK", "attention uses FusedAttention (3 checks skipped)"),
        ({"findings": ()}, "FAIL", "the all-gather step dies"),
        ({"findings": (), "predictions": (), "facts": Facts()}, "INCOMPLETE", "no workload was given"),
    ],
)
def test_verdict_says_what_is_known_and_no_more(changes, word, sentence, make_report):
    first = renderer("text")(make_report(**changes), Style()).splitlines()[0]
    assert first.startswith(f"{word}: ") and sentence in first


def test_a_warning_is_no_failure(make_report):
    report = make_report()
    first = renderer("text")(make_report(findings=report.findings[1:], predictions=()), Style()).splitlines()[0]
    assert first == "WARN FA900: Two wheels share a folder"


def test_what_needs_a_workload_is_said_once(report):
    text = squeezed(renderer("text")(report, Style(verbose=True)))
    assert "Skipped: 3 checks (missing information) 2 need a workload, and none was given" in text
    assert "SDPA900" not in text
    assert "CUDA900: `driver.version`: no driver" in text


def test_unknown_format_lists_what_there_is():
    with pytest.raises(DoctorError) as caught:
        renderer("yaml")
    assert caught.value.message == "unknown format `yaml`"
    assert caught.value.hint == "formats are " + ", ".join(FORMATS)
    with pytest.raises(DoctorError, match="cannot show nonsense"):
        renderer("json", "nonsense")


class TestJson:
    def test_shape_is_the_one_others_rely_on(self, report):
        found = json.loads(renderer("json")(report, Style()))
        assert found["schema"] == 1
        assert found["tool"] == {"name": "attn-doctor", "version": "9.9"}
        assert {"rulebook", "facts", "workload", "findings", "backends", "fixes", "undetermined", "timing"} <= set(
            found
        )
        finding = found["findings"][0]
        assert {
            "id",
            "name",
            "severity",
            "verdict",
            "message",
            "evidence",
            "confirmation",
            "fixes",
            "references",
        } <= set(finding)
        assert finding["evidence"][0] == {
            "fact": "cudnn.version",
            "found": "9.1.0",
            "wanted": ">=9.3",
            "source": "what torch 2.6.0 brings",
            "condition": "<9.3",
        }
        assert finding["confirmation"]["verdict"] == "confirmed"
        assert found["facts"]["driver.version"] == {"value": None, "source": "NVML", "problem": "no driver"}
        assert found["workload"]["window"]["value"] == [128, 0]
        change = found["fixes"][0]["changes"][0]
        assert (change["package"], change["from"], change["to"], change["resolves"]) == (
            "torch",
            "2.6.0",
            "2.7.1",
            ["TE900"],
        )

    def test_numbers_that_json_lacks_are_texts(self, report):
        def refuse(constant):
            raise AssertionError(constant)

        found = json.loads(renderer("json")(report, Style()), parse_constant=refuse)
        assert found["findings"][0]["confirmation"]["observed"]["rel"] == "nan"

    def test_a_report_is_a_facts_file(self, report, tmp_path):
        from doctor.sources.snapshot import read_facts

        path = tmp_path / "report.json"
        path.write_text(renderer("json")(report, Style()))
        again = read_facts(path)
        assert {key: fact.value for key, fact in again.items()} == {key: f.value for key, f in report.facts.items()}
        assert again["driver.version"].problem == "no driver"


def test_an_import_error_that_could_not_be_reported_is_no_verdict(make_report):
    unclear = Reason("TE903", "the window may contradict the mask", None, "utils.py@v2.3", ("workload.mask",))
    waiting = Prediction("transformer_engine", None, False, (), None, unclear)
    report = make_report(findings=(), predictions=(waiting,), fixes=(), runs=())
    text = squeezed(renderer("text")(report, Style()))
    assert text.startswith("INCOMPLETE: cannot predict the attention backend of TransformerEngine")
    whole = squeezed(renderer("text")(report, Style(verbose=True)))
    assert "backend unknown, and it may not start at all: the window may contradict" in whole
    certain = Reason("TE903", "the window contradicts the mask", True, "utils.py@v2.3")
    report = make_report(findings=(), predictions=(Prediction("transformer_engine", None, True, (), None, certain),))
    assert squeezed(renderer("text")(report, Style())).startswith("FAIL: the window contradicts the mask")
