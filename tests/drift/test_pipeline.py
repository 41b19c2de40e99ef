"""The whole analysis: requests, cache, history and the command."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from doctor.cli.main import run
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.drift.download import fetch_release, layout_sources, parse_pin, unpack_wheel
from doctor.drift.findings import PairVerdict, Severity
from doctor.drift.history import ApiHistory
from doctor.drift.pipeline import DriftRequest, analyze
from doctor.drift.worker import analyze_here
from doctor.errors import DoctorError
from doctor.packages.archives import archive_address
from tests.helpers.rulebook import builtin_stack

BROKEN = "from flash_attn.interface import backward\ndef f(a):\n    backward(a, a, a, a)\n"


def test_pairs_carry_their_verdict_and_uses(pair):
    report = analyze(DriftRequest((pair(BROKEN).root,), builtin_stack()))
    (row,) = report.pairs
    assert (row.caller.name, row.callee.name, row.verdict) == ("peft", "flash-attn", PairVerdict.BROKEN)
    assert row.uses >= 2 and row.unknown_uses == 0
    assert [item.severity for item in report.errors] == [Severity.ERROR]


def test_the_cache_answers_while_nothing_changes(pair, tmp_path, monkeypatch):
    site = pair(BROKEN)
    request = DriftRequest((site.root,), builtin_stack(), cache=tmp_path / "cache")
    first = analyze(request)
    stored = list((tmp_path / "cache").glob("*.json"))
    results = [json.loads(path.read_text().split("\n")[1])["result"] for path in stored]
    assert len(results) == 2 and None not in results
    with monkeypatch.context() as patch:
        patch.setattr("doctor.drift.processes.analyze_in_processes", _never)
        assert analyze(request) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "peft" / "use.py").write_text("from flash_attn.interface import pair\n"),
        lambda root: (root / "flash_attn" / "interface.py").write_text("def backward(a, b, c, d): return a\n"),
        lambda root: (root / "flash_attn-2.6.3.dist-info").rename(root / "flash_attn-2.5.dist-info"),
    ],
    ids=["caller", "callee", "version"],
)
def test_the_cache_is_dropped_when_a_file_changes(pair, tmp_path, change):
    site = pair(BROKEN)
    request = DriftRequest((site.root,), builtin_stack(), cache=tmp_path / "cache")
    before = analyze(request)
    change(site.root)
    assert analyze(request) == analyze(DriftRequest((site.root,), builtin_stack())) != before


def test_a_damaged_cache_is_read_again(pair, tmp_path):
    request = DriftRequest((pair(BROKEN).root,), builtin_stack(), cache=tmp_path / "cache")
    first = analyze(request)
    for path in (tmp_path / "cache").glob("*.json"):
        path.write_text('{"stack": 1')
    assert analyze(request) == first
    for path in (tmp_path / "cache").glob("*.json"):  # another's claim, without the digest of its content
        path.write_text(path.read_text().replace('"findings": [', '"findings": [ '))
    assert analyze(request) == first


def test_several_processes_come_to_the_same_result(pair):
    root = pair(BROKEN).root
    assert analyze(DriftRequest((root,), builtin_stack(), jobs=2)) == analyze(DriftRequest((root,), builtin_stack()))


def test_a_release_in_front_replaces_the_installed_one(pair, tmp_path):
    site = pair(BROKEN)
    other = type(site)(tmp_path / "other")
    other.root.mkdir()
    other.install("flash-attn", "2.5.8", {
        "flash_attn/__init__.py": "", "flash_attn/interface.py": "def backward(a, b, c, d): return a\n",
    })  # fmt: skip
    report = analyze(DriftRequest((site.root,), builtin_stack(), overlay=(other.root,)))
    assert not report.findings and report.pairs[0].callee.version == "2.5.8"


@pytest.mark.parametrize("text", ["flash-attn", "flash-attn>=2", "flash-attn==2.*", "flash attn==", ""])
def test_a_pin_names_one_release(text):
    with pytest.raises(DoctorError):
        parse_pin(text)
    assert parse_pin("Flash_Attn==2.8.3") == ("flash-attn", "2.8.3")


def test_code_and_remote_code_are_callers(pair, tmp_path):
    site = pair("")
    project, model = tmp_path / "project", tmp_path / "model"
    project.mkdir()
    model.mkdir()
    (project / "train.py").write_text(BROKEN)
    (model / "config.json").write_text("{}")
    (model / "modeling_mine.py").write_text(BROKEN)
    report = analyze(DriftRequest((site.root,), builtin_stack(), code=(project,), models=(model / "config.json",)))
    assert sorted(Path(item.site.path).name for item in report.errors) == ["modeling_mine.py", "train.py"]


def test_a_missing_folder_is_one_clear_error(tmp_path):
    with pytest.raises(DoctorError, match="does not exist"):
        analyze(DriftRequest((tmp_path,), builtin_stack(), code=(tmp_path / "gone",)))


HISTORY = ApiHistory(
    {
        "flash-attn": {
            "releases": ["2.5.8", "2.6.0", "2.6.3", "2.8.0"],
            "symbols": {
                "flash_attn.interface.backward": [
                    ["2.5.8", [["a", "b", "c", "d"], ["a", "b", "c", "d"], 0, [3]]],
                    ["2.6.0", [["a", "b", "c", "d", "softcap"], ["a", "b", "c", "d", "softcap"], 0, [3]]],
                    ["2.8.0", [["a", "b", "c", "d"], ["a", "b", "c", "d", "softcap"], 0, [3]]],
                ]
            },
        }
    }
)


def test_the_history_names_the_releases_around_a_break(pair):
    (finding,) = pair(BROKEN).definite()
    history = HISTORY.explain(finding).history
    assert (history.broken_since, history.last_compatible, history.works_again_in) == ("2.6.0", "2.5.8", "2.8.0")


def test_the_history_is_silent_where_it_disagrees_or_does_not_know(pair):
    (finding,) = pair(BROKEN, version="2.8.0").definite()
    assert HISTORY.explain(finding).history.broken_since == ""
    assert ApiHistory({}).explain(finding) == finding


def test_the_history_that_ships_knows_incident_a(pair):
    data = ApiHistory.load().data
    timeline = data["flash-attn"]["symbols"]["flash_attn.flash_attn_interface._flash_attn_varlen_backward"]
    first = next(release for release, shape in timeline if "softcap" in shape[0])
    assert first.startswith("2.6.0")


def test_the_command_prints_the_finding_and_fails(pair, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = str(pair(BROKEN).root)
    assert run(["drift", "--site-packages", root]) == 1
    text = capsys.readouterr().out
    assert "error[API004] peft 0.1.0 -> flash-attn 2.6.3: `backward`: missing required argument `softcap`" in text
    assert "at peft/use.py:3 in `f`" in text and "defined at flash_attn/interface.py:4" in text
    assert run(["drift", "--site-packages", root, "--fail-on", "never", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["code"] == "API004" and document["pairs"][0]["verdict"] == "broken"


@pytest.mark.parametrize(
    "options", [["--against", "x"], ["--code", "/no/such/folder"], ["--jobs", "0"], ["--site-packages", "/no/such"]]
)
def test_bad_options_end_with_two(options, pair, capsys):
    root = ["--site-packages", str(pair(BROKEN).root)] if "--site-packages" not in options else []
    assert run(["drift", "--no-cache", *root, *options]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_sources_are_laid_out_like_site_packages(tmp_path):
    unpacked, made = tmp_path / "pkg-1.0", tmp_path / "site"
    made.mkdir()
    for name in ("pkg/__init__.py", "pkg/sub/a.py", "tests/test_x.py", "setup.py", "pkg/native.so"):
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_text("x = 1\n")
    layout_sources(unpacked, made, "pkg", "1.0")
    files = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    assert files == ["pkg-1.0.dist-info/METADATA", "pkg/__init__.py", "pkg/native.so", "pkg/sub/a.py"]
    assert (made / "pkg" / "native.so").read_bytes() == b""


def test_a_wheel_cannot_write_outside_its_folder(tmp_path):
    import zipfile

    archive = tmp_path / "x.whl"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("../escaped.py", "x = 1")
        opened.writestr("pkg/a.py", "x = 1")
        opened.writestr("pkg.data/purelib/pkg/b.py", "x = 1")
    unpack_wheel(archive, tmp_path / "site")
    assert not (tmp_path / "escaped.py").exists()
    assert sorted(path.name for path in (tmp_path / "site" / "pkg").iterdir()) == ["a.py", "b.py"]


def test_a_source_archive_is_fetched_without_running_its_build_backend(tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
        "own.py": f"open({str(ran)!r}, 'w')",
        "setup.py": f"open({str(ran)!r}, 'w')",
        "PKG-INFO": "Metadata-Version: 2.1\nName: sample-callee\nVersion: 1.2\n",
        "sample_callee/__init__.py": "def used(a): pass\n",
    }
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "sample_callee-1.2.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"sample_callee-1.2/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    place = fetch_release("sample-callee", "1.2", tmp_path / "sources")
    assert (place / "sample_callee" / "__init__.py").read_text() == files["sample_callee/__init__.py"]
    assert not ran.exists()
    with pytest.raises(DoctorError):
        fetch_release("sample-callee", "1.3", tmp_path / "sources")


def test_the_address_of_a_source_archive_is_the_one_of_the_release():
    line = "  Skipping link: No sources permitted for a-b: {} (from https://index.example/a-b/)"
    log = "\n".join(map(line.format, (
        "https://files.example/a_b-1.10.tar.gz", "https://files.example/a_b-1.1.tar.gz", "ftp://files.example/a_b-2.zip",
    )))  # fmt: skip
    assert archive_address(log, "a.b", "1.1") == "https://files.example/a_b-1.1.tar.gz"
    assert archive_address(log, "a.b", "2") == archive_address(log, "other", "1.1") == ""


def _never(*given):
    raise AssertionError("the cache should have answered")


def test_out_of_time_only_imports_are_checked_and_the_report_says_so(pair):
    text = """
        from flash_attn.interface import backward
        def f(a):
            from flash_attn.interface import gone
            backward(a)
    """
    report = analyze(DriftRequest((pair(text).root,), builtin_stack(), seconds=0.0), run=analyze_here)
    assert [item.name for item in report.findings] == ["gone"]
    assert [item.reason for item in report.notices] == ["out of time: in some functions only imports were checked"]


def test_a_worker_that_does_not_answer_costs_its_caller_only(pair, monkeypatch, tmp_path):
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr("doctor.drift.processes.own_command", lambda module: silent)
    monkeypatch.setattr("doctor.drift.processes.PATIENCE", 0.0)
    request = DriftRequest((pair(BROKEN).root,), builtin_stack(), cache=tmp_path / "cache")
    report = analyze(request)
    assert {item.reason for item in report.notices} == {"not analyzed: took longer than 0 s"}
    assert not list((tmp_path / "cache").glob("*.json"))


def test_check_says_which_packages_were_not_analyzed(pair, monkeypatch, tmp_path):
    """Also where no pair is left, as when the programs of the analyzer cannot start."""
    monkeypatch.setattr("doctor.drift.processes.own_command", lambda module: [sys.executable, "-c", "raise SystemExit"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report = diagnose(Request(site_packages=str(pair(BROKEN).root), run=False))
    assert [note for note in report.notes if note.startswith("API drift: not analyzed") and "peft" in note]


def test_a_worker_that_cannot_start_says_why(pair, monkeypatch, tmp_path):
    program = "raise ModuleNotFoundError('no module of that name')"
    monkeypatch.setattr("doctor.drift.processes.own_command", lambda module: [sys.executable, "-c", program])
    report = analyze(DriftRequest((pair(BROKEN).root,), builtin_stack(), cache=tmp_path / "cache"))
    why = "not analyzed: the analysis ended without a result: ModuleNotFoundError: no module of that name"
    assert {item.reason for item in report.notices} == {why}


def test_ranges_name_the_releases_next_to_the_break(pair):
    finding = HISTORY.explain(pair(BROKEN).definite()[0])
    ranges = HISTORY.ranges([finding])
    assert ranges.broken == (">=2.6.0,<2.8.0",) and ranges.working == (">=2.8.0", ">=2.5.8,<2.6.0")


def test_the_history_names_the_release_of_the_caller_that_fixes_a_use(pair):
    finding = pair(BROKEN).definite()[0]
    spans = {"API004 flash_attn.interface.backward softcap": [["0.0.9", "0.2.0"]]}
    history = ApiHistory({"callers": {"peft": {"flash-attn": spans}}})
    assert history.explain(finding).history.fixed_in == "0.2.0"
    assert history.ranges([finding]).fixed_in == "0.2.0"
    assert ApiHistory({"callers": {"peft": {"flash-attn": {}}}}).fixed_in(finding) == ""
