"""Tests of `make refresh` and of the finder of proofs: what they read off the sources of releases."""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from doctor.rulebook.proofs import PROVEN, Proof
from doctor.rulebook.schema import read_source

ROOT = Path(__file__).resolve().parents[2]
OLD = "def attend(q, block_table):\n    return flash(q, block_table)\n"
NEW = (
    "def attend(q, block_table):\n    if q.shape[-1] > 256:\n        raise ValueError(\n"
    '            f"attend has no kernel for head_dim {q.shape[-1]}, "\n'
    '            "set block_table to None"\n        )\n'
    "    return flash(q)\n"
)
RELEASES = {"1.0": OLD, "1.1": OLD, "1.2": NEW, "1.3": NEW}
RULE = """\
id: TE999
name: attend-passes-block-table
severity: error
summary: attend passes a block_table
why: It calls flash with `block_table`.
references: [https://example.com/source]
when: {thing.version: "<1.2"}
examined_to: {thing: 1.1}
no_pin: Nothing fixes it.
tests:
  fires: {given: {thing.version: 1.0}, expect: fires}
"""


@pytest.fixture
def scripts() -> Iterator[Mapping[str, ModuleType]]:
    """Import the scripts as they are run: from their own folder."""
    folder = str(ROOT / "scripts" / "release")
    sys.path.insert(0, folder)
    try:
        yield {name: importlib.import_module(name) for name in (
            "refusals", "release_store", "find_proofs", "refresh", "refresh_tables", "refresh_messages", "surfaces",
            "refresh_imports")}  # fmt: skip
    finally:
        sys.path.remove(folder)


def stored(scripts: Mapping[str, ModuleType], folder: Path):
    store = scripts["release_store"].Store(folder, "thing")
    store.note(RELEASES)
    for version, content in RELEASES.items():
        store.add(version, [("thing/attention.py", content.encode())])
    return scripts["release_store"].StoredReleases(folder)


def rule_in(folder: Path):
    path = folder / "transformer_engine" / "TE999.yaml"
    path.parent.mkdir()
    path.write_text(RULE)
    return read_source(path)


def test_a_store_keeps_each_content_once(scripts: Mapping[str, ModuleType], tmp_path: Path) -> None:
    store = stored(scripts, tmp_path).store("thing")
    assert store.read() == list(RELEASES)
    assert len({*store.paths("1.0").values(), *store.paths("1.3").values()}) == 2
    assert store.content(store.paths("1.0")["thing/attention.py"]) == OLD.encode()


@pytest.mark.parametrize(("wheel", "kept"), [(True, {"thing/a.py"}), (False, {"thing/a.py", "setup.py", "csrc/a.cu"})])
def test_of_sources_next_to_wheels_only_modules_count(
    scripts: Mapping[str, ModuleType], monkeypatch: pytest.MonkeyPatch, wheel: bool, kept: set[str]
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for path in ("thing/a.py", "setup.py", "csrc/a.cu"):
            entry = tarfile.TarInfo(f"thing-1.0/{path}")
            entry.size = len(OLD)
            made.addfile(entry, io.BytesIO(OLD.encode()))
    store = scripts["release_store"]
    monkeypatch.setattr(store.refresh_index, "fetch", lambda url: packed.getvalue())
    files = [{"filename": "thing-1.0.tar.gz", "url": "thing"}]
    if wheel:
        files.append({"filename": "thing-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "url": "wheel"})
    assert {path for path, _ in store.texts_of(files)} == kept


def test_lines_that_vanish_at_the_bound_of_a_rule_are_proposed(
    scripts: Mapping[str, ModuleType], tmp_path: Path
) -> None:
    finder, releases, source = scripts["find_proofs"], stored(scripts, tmp_path / "s"), rule_in(tmp_path)
    subject = finder._subject(source, "thing")
    bounds = {bound for texts in subject.wanted for bound in finder.bounds_in(texts)}
    lines = finder.Lines(releases.store("thing"), subject.words, bounds)
    finder.LEAST, finder.COMMONEST = 0.0, -1.0  # a package of a few lines
    found = finder.proposals(subject, "thing", lines)
    row = {"package": "thing", "distribution": "thing", "text": found[0].text, "word": False,
           "in": finder.ranges_of(found[0], lines)}  # fmt: skip
    assert (row["text"], row["in"]) == ("return flash(q, block_table)", ["<1.2"])
    proof = finder.proof_of(row, source, releases)
    assert proof is not None
    assert proof.body["shows"] == r"return flash\(q, block_table\)"
    assert scripts["find_proofs"].verify(proof, releases, tmp_path, "2026-01-02").outcome == PROVEN
    assert finder.proof_of({**row, "text": "def attend(q, block_table):"}, source, releases) is None


def test_refusals_of_a_new_release_are_those_that_no_rule_knows(scripts: Mapping[str, ModuleType]) -> None:
    refusals = scripts["refusals"]
    found = refusals.added({"thing/attention.py": OLD}, {"thing/attention.py": NEW})
    assert [one.message for one in found] == ["attend has no kernel for head_dim …, set block_table to None"]
    assert refusals.unknown(found, [], []) == found
    assert not refusals.unknown(found, [re.compile(r"no kernel for head_dim \d+")], [])
    assert not refusals.unknown(found, [], ["message: it says ', set block_table to None' then"])
    assert not refusals.added({"other.py": NEW}, {"thing/attention.py": NEW}), "the message moved to another file"


def test_bisection_finds_the_release_that_dropped_the_code(scripts: Mapping[str, ModuleType]) -> None:
    read: list[str] = []

    def holds(version: str) -> bool:
        read.append(version)
        return int(version) < 11

    assert scripts["refresh"].bisected([str(number) for number in range(20)], holds) == "11"
    assert len(read) <= 5


def test_code_that_is_gone_is_reported_and_code_that_is_there_moves_the_examined_release(
    scripts: Mapping[str, ModuleType], tmp_path: Path
) -> None:
    refresh, releases = scripts["refresh"], stored(scripts, tmp_path / "s")
    source = rule_in(tmp_path)
    body = {"package": "thing", "file": "thing/*.py", "in": ">=1.0"}
    source.content["proof"] = [{"source": {**body, "shows": "flash.q, block_table"}},
                               {"source": {**body, "shows": "def attend"}}]  # fmt: skip
    summary = refresh.Summary("2026-01-01")
    refresh.check_open_proofs([source], {"thing": ["1.1", "1.2", "1.3"]}, releases, summary)
    assert summary.gone == [refresh.Gone("TE999", "thing", "1.2")]
    assert summary.open == {"thing": ["TE999"]}
    assert refresh.move_examined(source, "thing", "1.3")
    assert "examined_to: {thing: 1.3}" in Path(source.path).read_text()
    assert not refresh.move_examined(read_source(Path(source.path)), "thing", "1.2")
    assert "the code is not in thing 1.2 any more" in "\n".join(summary.lines())


def test_a_proof_with_an_end_is_not_checked_against_later_releases(scripts: Mapping[str, ModuleType]) -> None:
    ranges = {"<1.2": False, ">=1.0,<1.2": False, "==1.1": False, ">=1.0": True}
    for text, without_end in ranges.items():
        proof = Proof("source", {"package": "thing", "file": "a.py", "shows": "a", "in": text})
        assert (scripts["refresh"].endless(proof) is not None) is without_end


def test_an_unknown_name_of_only_is_an_error(
    scripts: Mapping[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        scripts["refresh"].main(["--cache", str(tmp_path), "--only", "no-such-package"])
    assert stopped.value.code == 2
    assert "not on record: no-such-package" in capsys.readouterr().err


def test_a_table_is_renewed_where_a_package_that_it_is_about_has_a_new_release(
    scripts: Mapping[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = scripts["refresh_tables"]
    monkeypatch.setattr(tables, "fetched", lambda name, version, folder: folder / f"{name}-{version}.whl")
    asked: list[list[str]] = []

    def run(command, **_):
        asked.append([Path(command[1]).name, *command[2:]])
        return subprocess.CompletedProcess(command, 1 if "bad.py" in command[1] else 0, "read\n3 rows\n", "it broke\n")

    monkeypatch.setattr(tables.subprocess, "run", run)
    listed = (
        tables.Table("one.py", lambda: {"thing", "other"}, ("--cache", "{cache}"), only=True),
        tables.Table("two.py", lambda: {"other"}),
        tables.Table("three.py", lambda: {"thing"}, ("--folder", "{archives}"), named=True),
        tables.Table("four.py", lambda: {"thing"}, ("{transformers}",)),
        tables.Table("bad.py", lambda: {"thing"}),
    )
    found = list(tables.renew(tmp_path, {"thing": ["1.2", "1.3"]}, lambda name: "5.0", listed))
    assert found == ["one.py: 3 rows", "two.py: nothing new", "three.py: 3 rows", "four.py: 3 rows",
                     "bad.py failed: it broke"]  # fmt: skip
    archives = str(tmp_path / "archives")
    assert asked[0] == ["one.py", "--cache", str(tmp_path / "one"), "--only", "thing"]
    assert asked[1] == ["three.py", "--folder", archives, "thing==1.2", "thing==1.3"]
    assert asked[2] == ["four.py", f"{archives}/transformers-5.0.whl"]


def test_every_script_of_a_table_takes_what_it_is_given(scripts: Mapping[str, ModuleType]) -> None:
    for table in scripts["refresh_tables"].TABLES:
        assert all(name == name.lower() for name in table.about()), table.script
        text = (ROOT / "scripts" / "release" / table.script).read_text()
        assert "--only" in text or not table.only
        assert all(word in text for word in table.arguments if word.startswith("--")), table.script


def test_a_new_release_joins_the_record_of_messages(scripts: Mapping[str, ModuleType], tmp_path: Path) -> None:
    messages = scripts["refresh_messages"]
    parts = {"1.0": "no kernel for head_dim 512", "1.1": "no kernel for head_dim 512", "1.2": "attention needs sm 9.0"}
    archives = {}
    for version, text in parts.items():
        path = tmp_path / f"thing-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("thing/attention.py", f'def attend(q):\n    if q:\n        raise ValueError("{text}")\n')
        archives[Version(version)] = path
    whole = messages.record_of(archives)
    earlier = messages.record_of({key: archives[key] for key in list(archives)[:2]})
    assert messages.record_of({Version("1.2"): archives[Version("1.2")]}, earlier=earlier) == whole
    assert [site[-1] for site in whole["sites"]] == ["2-2", "0-1"]


MODULES = {
    "thing/__init__.py": "from .models import Model\nfrom .lazy import *\n",
    "thing/models.py": "import torch\nfrom other.parts import Part\nclass Model: ...\n",
    "thing/lazy.py": "def __getattr__(name): ...\n",
    "thing/unused.py": "from other.parts import Rest\nclass Late: ...\n",
    "thing/broken.py": "def (\n",
}


def test_a_surface_parses_the_modules_that_imports_reach(
    scripts: Mapping[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surfaces = scripts["surfaces"]
    parsed = []
    monkeypatch.setattr(surfaces, "_parse", lambda text, parse=surfaces._parse: (parsed.append(text), parse(text))[1])
    store = scripts["release_store"].Store(tmp_path, "thing")
    for version in ("1.0", "1.1"):
        store.add(version, [(path, text.encode()) for path, text in MODULES.items()])
    for version in ("1.0", "1.1"):
        surface = surfaces.Surface(store, version, ("thing",))
        assert scripts["refresh_imports"].reached(surface, ("thing",)) == {"thing", "thing.models", "thing.lazy"}
        assert ["other.parts", "Part", ""] in surface.imports("thing.models")
    assert len(parsed) == 3, "each content once, of both releases, and none of the other modules"
    names = surfaces.Names(surface)
    wanted = [
        ("thing", "Model"),
        ("thing", "Late"),
        ("thing", "Nothing"),
        ("thing.broken", "Model"),
        ("thing.none", ""),
    ]
    assert [names.has(*one) for one in wanted] == [True, True, False, True, False]


def test_python_of_third_parties_is_stored_and_their_cpp_is_not(scripts: Mapping[str, ModuleType]) -> None:
    kept = scripts["release_store"]._kept
    assert kept("verl/third_party/sglang/parallel_state.py", 9)
    assert not kept("vllm/third_party/a.cu", 9)
    assert not kept("thing/tests/test_a.py", 9)


def test_a_run_that_was_ended_goes_on(scripts: Mapping[str, ModuleType], tmp_path: Path) -> None:
    refresh, path = scripts["refresh"], tmp_path / "pending.json"
    refresh.write_pending(path, {"thing": ["1.2"], "other": ["3.0"]}, done=())
    new = {"thing": ["1.10"]}
    refresh.take_pending(path, ["thing"], new)
    assert new == {"thing": ["1.2", "1.10"]}, "releases that the run before put on record are looked at"
    refresh.write_pending(path, {}, done=new)
    left: dict[str, list[str]] = {}
    refresh.take_pending(path, (), left)
    assert left == {"other": ["3.0"]}


GUARDED = """\
def choose(head_size, capability):
    if (
        head_size > 256
        and capability.major < 10
    ):
        logger.debug("x")
        raise ValueError(
            f"attention of head_size {head_size} needs compute capability 10.0"
        )
    if is_rocm():
        raise ValueError("head_size is not supported by attention of aiter")
    assert q.shape[-1] == head_size, "attention got a query of another head_size"
    raise NotImplementedError("attention is never reached from here at all")
"""


def test_refusals_that_a_report_could_decide_come_first(scripts: Mapping[str, ModuleType]) -> None:
    found = list(scripts["refusals"].refusals_in("thing/attention.py", GUARDED))
    assert [one.guard for one in found] == [
        "if ( head_size > 256 and capability.major < 10 ):", "if is_rocm():",
        'assert q.shape[-1] == head_size, "attention got a query of another head_size"', "",
    ]  # fmt: skip
    assert [one.decidable for one in found] == [True, False, False, False]
    lines = list(scripts["refresh"].refusal_lines("thing", found))
    assert lines[0].startswith("### thing: 4, of which 1 depend")
    assert lines[2].splitlines()[1].strip() == "`if ( head_size > 256 and capability.major < 10 ):`"
    assert lines[-1] == "- others: `thing/attention.py` 3"
