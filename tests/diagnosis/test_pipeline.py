"""The whole pipeline on facts files, real environments and real kernels."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.examine import examine
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import Fact, Facts
from doctor.report.formats import renderer
from doctor.report.locations import place_of
from doctor.report.style import Style
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.project.config import read_defaults
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples" / "incidents"


@pytest.fixture
def rules(tmp_path):
    """A folder with one rule per kind of ending, on distributions no other rule speaks of."""
    folder = tmp_path / "team" / "acme"
    folder.mkdir(parents=True)
    (folder / "ACME001.yaml").write_text(
        """\
id: ACME001
name: acme-too-old
severity: error
summary: acme before 2 loses gradients
references: [https://example.org/acme/1]
when: {acme.version: "<2"}
message: acme {acme.version} loses gradients, needs >=2
confirm: {kernel: sdpa, request: {backend: math, device: cpu}, bad_if_any: [{wrong: true}]}
tests:
  fires: {given: {acme.version: "1.0"}, expect: fires}
"""
    )
    (folder / "ACME002.yaml").write_text(
        """\
id: ACME002
name: acme-slow
severity: warning
summary: acme is slow in float32
references: [https://example.org/acme/2]
when: {acme.version: present, workload.dtype: float32}
tests:
  fires: {given: {acme.version: "1.0", workload.dtype: float32}, expect: fires}
"""
    )
    return str(folder.parent)


def facts_file(tmp_path, text="facts: {acme.version: '1.5', gpu.sm: '9.0'}"):
    path = tmp_path / "facts.yaml"
    path.write_text(text)
    return str(path)


def test_later_words_win_over_earlier_ones(tmp_path):
    facts = facts_file(tmp_path, "{facts: {gpu.sm: '8.0', torch.version: '2.5.0'}, workload: {head_dim_qk: 64}}")
    workload = tmp_path / "job.yaml"
    workload.write_text("{head_dim_qk: 128, mask: causal, framework: torch_sdpa}")
    request = Request(
        facts=(facts,), workload=str(workload), gpu="h100", settings=("torch.version=2.6.0", "gpu.name=mine")
    )
    found = examine(request, empty_rulebook()).facts
    values = {key: found.value(key) for key in ("gpu.sm", "gpu.name", "torch.version", "workload.head_dim_qk")}
    assert values == {
        "gpu.sm": "9.0",
        "gpu.name": "mine",
        "torch.version": "2.6.0",
        "workload.head_dim_qk": 128,
    }
    assert found["torch.version"].source == "--set torch.version"


def empty_rulebook():
    """A rulebook without rules; the GPU table comes with the library `nvidia`."""
    return Rulebook({}, {"nvidia": builtin_rulebook().libraries["nvidia"]})


def test_findings_are_reported_worst_first_with_their_facts(tmp_path, rules):
    report = diagnose(Request(facts=(facts_file(tmp_path),), rules=(rules,), settings=("workload.dtype=float32",)))
    ours = [finding for finding in report.findings if finding.rule.startswith("ACME")]
    assert [(finding.rule, finding.severity) for finding in ours] == [("ACME001", "error"), ("ACME002", "warning")]
    assert ours[0].message == "acme 1.5 loses gradients, needs >=2"
    assert ours[0].evidence[0].fact.source.startswith("facts file")
    assert set(report.timing) >= {"rules", "facts", "evaluate", "total"}


def test_kernels_do_not_run_on_facts_from_a_file_and_the_report_says_so(tmp_path, rules):
    report = diagnose(Request(facts=(facts_file(tmp_path),), rules=(rules,)))
    assert not report.kernels_run
    assert "no kernel was run: the facts come from a file" in report.notes
    silent = diagnose(Request(facts=(facts_file(tmp_path),), rules=(rules,), run=False))
    assert not [note for note in silent.notes if "kernel" in note]


def test_a_machine_described_by_hand_is_not_checked(tmp_path):
    request = Request(python=sys.executable, settings=("torch.version=2.6.0",))
    examined = examine(request, empty_rulebook())
    assert examined.python is None
    assert examined.why_not == "--set torch.version describes another machine than this one"
    job_only = examine(Request(python=sys.executable, settings=("workload.dtype=float16",)), empty_rulebook())
    assert job_only.python is not None


def test_findings_of_a_live_target_are_confirmed_in_its_interpreter(tmp_path, rules, monkeypatch):
    """The interpreter is real; that there is a GPU and an old acme is what we pretend."""
    from doctor.diagnosis import single as session

    facts = Facts([Fact("acme.version", "1.0", "dist-info"), Fact("gpu.sm", "9.0", "NVML")])
    monkeypatch.setattr(session, "examine", lambda *_: DiagnosisInput(facts, sys.executable))
    report = diagnose(Request(rules=(rules,)))
    (finding,) = [finding for finding in report.findings if finding.rule == "ACME001"]
    assert finding.confirmation.kernel == "sdpa"
    assert report.kernels_run
    # torch may or may not be in the interpreter that runs the tests; both are answers.
    assert (finding.confirmation.outcome, finding.confirmation.verdict) in {
        ("unavailable", "inconclusive"),
        ("ran", "refuted"),
    }
    assert diagnose(Request(rules=(rules,), run=False)).kernels_run is False


JOB = ("workload.head_dim_qk=64",)


@pytest.mark.parametrize(
    ("changed", "begun"),
    [
        ({}, True),
        ({"run": False}, False),
        ({"settings": ()}, False),  # no job: no kernel is likely to run
        ({"settings": (*JOB, "torch.version=2.6.0")}, False),  # another machine
        ({"gpu": "h100"}, False),
    ],
)
def test_torch_is_imported_while_the_facts_are_read(rules, monkeypatch, changed, begun):
    """Where kernels will most likely run, their process is begun at once; where it was not needed, it is ended."""
    from doctor.diagnosis import prewarm
    from doctor.diagnosis import single as session

    made = []
    monkeypatch.setattr(
        prewarm, "prewarm", lambda python, start=prewarm.prewarm: made.append(start(python)) or made[-1]
    )
    facts = Facts([Fact("acme.version", "1.0", "dist-info"), Fact("gpu.sm", "absent", "NVML")])
    monkeypatch.setattr(session, "examine", lambda *_: DiagnosisInput(facts, sys.executable))
    asked = {"rules": (rules,), "settings": JOB, **changed}
    monkeypatch.setattr(prewarm, "_DRIVER", ("/no/driver",))
    diagnose(Request(**asked))
    assert not made
    monkeypatch.setattr(prewarm, "_DRIVER", ("/no/driver", "/dev/null"))
    diagnose(Request(**asked))
    assert [ahead.python for ahead in made] == ([sys.executable] if begun else [])
    assert not any(ahead.directory.exists() for ahead in made)


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ({"gpu.sm": None, "gpu.count": 2}, True),  # of several kinds, or the driver does not say
        ({"gpu.sm": None, "gpu.count": None, "driver.version": "580.1"}, True),  # no permission for NVML, say
        ({"gpu.sm": None, "gpu.count": 0, "driver.version": "580.1"}, False),  # CUDA_VISIBLE_DEVICES hides them
        ({"gpu.sm": None, "gpu.count": None, "driver.version": None}, False),
        ({"gpu.sm": "absent"}, False),
    ],
)
def test_kernels_are_checked_wherever_there_may_be_a_gpu(rules, monkeypatch, told, asked):
    from doctor.diagnosis import single as session

    made = [Fact(key, value, "NVML", problem=None if value is not None else "the driver does not tell")
            for key, value in told.items()]  # fmt: skip
    facts = Facts([Fact("acme.version", "1.0", "dist-info"), *made])
    monkeypatch.setattr(session, "examine", lambda *_: DiagnosisInput(facts, sys.executable))
    report = diagnose(Request(rules=(rules,)))
    assert report.kernels_run is asked
    assert ("kernels.case" in report.timing) is asked
    said = [note for note in report.notes if note.startswith("no kernel was run: no GPU was found")]
    assert len(said) == (0 if asked else 1)
    assert asked or told["gpu.sm"] == "absent" or said[0].endswith(": the driver does not tell")


def test_ignored_rules_leave_a_note_and_come_back_when_their_time_is_up(tmp_path, rules):
    path = tmp_path / "pyproject.toml"
    table = '[[tool.attn-doctor.ignore]]\nrule = "{}"\nreason = "known, see ticket 7"\nuntil = "{}"\n'
    defaults = read_defaults(path, table.format("ACME001", "2999-01-01") + table.format("ACME002", "2001-01-01"))
    request = Request(facts=(facts_file(tmp_path),), rules=(rules,), settings=("workload.dtype=float32",))
    report = diagnose(request._replace(defaults=defaults))
    assert [finding.rule for finding in report.findings if finding.rule.startswith("ACME")] == ["ACME002"]
    assert "ACME001 is ignored by this project: known, see ticket 7 (until 2999-01-01)" in report.notes
    (expired,) = [finding for finding in report.findings if finding.rule == "IGNORE_EXPIRED"]
    assert expired.message == (
        "ACME002 was ignored until 2001-01-01 (known, see ticket 7); it triggers and counts again"
    )
    assert place_of(report, expired).line == 5


def test_project_defaults_yield_to_the_command_line(tmp_path):
    text = "[tool.attn-doctor]\ngpu = 'a100'\nworkload = {head_dim_qk = 64, dtype = 'float16'}\n"
    defaults = read_defaults(tmp_path / "pyproject.toml", text)
    none = examine(
        Request(facts=(facts_file(tmp_path, "torch.version: '2.6.0'"),), defaults=defaults), empty_rulebook()
    )
    assert none.facts.value("gpu.sm") == "8.0"
    assert none.facts.value("workload.head_dim_qk") == 64
    own_gpu = facts_file(tmp_path, "gpu.sm: '9.0'")
    assert examine(Request(facts=(own_gpu,), defaults=defaults), empty_rulebook()).facts.value("gpu.sm") == "9.0"
    job = tmp_path / "job.yaml"
    job.write_text("head_dim_qk: 128")
    given = examine(Request(facts=(own_gpu,), workload=str(job), defaults=defaults), empty_rulebook()).facts
    assert given.value("workload.head_dim_qk") == 128
    assert "workload.dtype" not in given


class TestReplay:
    def test_a_snapshot_replays_to_the_same_findings(self, tmp_path):
        """facts → file → facts: the same diagnosis, whatever was in it."""
        from doctor.sources.snapshot import document, parse_facts

        for incident in sorted(EXAMPLES.iterdir()):
            request = Request(
                facts=(str(incident / "facts.yaml"),), workload=str(incident / "workload.yaml"), run=False
            )
            first = diagnose(request)
            captured = tmp_path / f"{incident.name}.json"
            captured.write_text(json.dumps(document(first.facts)))
            assert parse_facts(captured.read_text(), "x").keys() == first.facts.keys()
            again = diagnose(Request(facts=(str(captured),), run=False))
            assert parts(again) == parts(first), incident.name

    def test_a_json_report_replays_as_well(self, tmp_path):
        incident = EXAMPLES / "b"
        first = diagnose(
            Request(facts=(str(incident / "facts.yaml"),), workload=str(incident / "workload.yaml"), run=False)
        )
        path = tmp_path / "report.json"
        path.write_text(renderer("json")(first, Style()))
        assert parts(diagnose(Request(facts=(str(path),), run=False))) == parts(first)


def parts(report):
    """A report without clocks and file names."""
    content = json.loads(renderer("json")(report, Style()))
    for key in ("timing", "facts", "workload", "inputs"):
        del content[key]
    for finding in content["findings"]:
        for evidence in finding["evidence"]:
            del evidence["source"]
    return content


def test_a_bare_tree_is_examined_without_an_interpreter(tmp_path, rules):
    """A real wheel, unpacked as `pip install --target` leaves it."""
    wheel = tmp_path / "acme-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("acme/__init__.py", "")
        archive.writestr("acme-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1.5\n")
        archive.writestr("acme-1.5.dist-info/RECORD", "")
    tree = tmp_path / "tree"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    report = diagnose(Request(site_packages=str(tree), rules=(rules,)))
    (finding,) = [finding for finding in report.findings if finding.rule == "ACME001"]
    assert finding.message == "acme 1.5 loses gradients, needs >=2"
    assert "no kernel was run: a bare tree has no interpreter to run in" in report.notes


@pytest.mark.parametrize("fault", [None, "no such folder of rules"])
def test_an_interpreter_is_checked_while_the_rules_are_read(rules, monkeypatch, fault):
    """It has been started when the rules are read, and is gone afterwards, whatever they hold."""
    from doctor.diagnosis import single as session
    from doctor.sources.probes import interpreter as interrogate

    asked, read = [], []
    started = interrogate.InterpreterQuery.__init__
    monkeypatch.setattr(
        interrogate.InterpreterQuery, "__init__", lambda self, python: (asked.append(self), started(self, python))[1]
    )
    load = session.rulebook_of
    monkeypatch.setattr(session, "rulebook_of", lambda given: (read.append(len(asked)), load(given))[1])
    request = Request(python=sys.executable, rules=(fault or rules,), settings=("acme.version=1.0",), run=False)
    if fault is None:
        assert diagnose(request).facts.value("target.path") == sys.executable
    else:
        with pytest.raises(DoctorError, match=fault):
            diagnose(request)
    (question,) = asked
    assert read == [1]
    assert question._process.returncode is not None and question._process.stdout.closed


def test_no_one_is_checked_where_nothing_runs(tmp_path, monkeypatch):
    from doctor.sources.probes import interpreter as interrogate

    monkeypatch.setattr(interrogate, "InterpreterQuery", None)
    assert diagnose(Request(facts=(facts_file(tmp_path, "torch.version: '2.6.0'"),), run=False)).facts
