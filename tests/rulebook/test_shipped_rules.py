"""The compiled rules that a wheel brings: used for exactly the rules and code they were made of, by their contents."""

from __future__ import annotations

import os
import shutil

import pytest

from doctor.rulebook import cache as compiled
from doctor.rulebook import schema

RULE = """\
id: {id}
name: flaw-{id}
severity: note
summary: {summary}
references: [a/b@v1]
when: {{torch.version: "<2.6"}}
tests:
  fires: {{given: {{torch.version: 2.5.0}}, expect: fires}}
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """An install of two rules and of the code that compiles them, with what they compile to; there is no cache."""
    rules, package = tmp_path / "doctor" / "_rules", tmp_path / "doctor"
    shutil.copytree(compiled._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "_rules"))
    write(rules / "torch" / "library.yaml", "name: torch\ndistributions: [torch]\n")
    write(rules / "torch" / "T001.yaml", RULE.format(id="T001", summary="first"))
    write(rules / "vllm" / "V001.yaml", RULE.format(id="V001", summary="vllm"))
    monkeypatch.setattr(compiled, "rules_dir", lambda: rules)
    monkeypatch.setattr(compiled, "_PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    compiled.write_shipped()
    return rules


def summaries():
    sections = compiled.load_compiled(compiled.rule_folders()).sections
    return {body["id"]: body["summary"] for section in sections for _, body in section.rules}


def parses_no_yaml(monkeypatch):
    def refuse(path):
        raise AssertionError(f"parsed {path}")

    monkeypatch.setattr(schema, "parsed_file", refuse)


def test_no_rule_file_is_parsed_after_an_install(install, monkeypatch):
    parses_no_yaml(monkeypatch)
    assert summaries() == {"T001": "first", "V001": "vllm"}


def test_times_do_not_count(install, monkeypatch):
    for path in install.rglob("*.yaml"):
        os.utime(path, (1, 1))
    parses_no_yaml(monkeypatch)
    assert summaries() == {"T001": "first", "V001": "vllm"}


def test_moved_rules_are_reported_by_where_they_are(install, tmp_path, monkeypatch):
    moved = tmp_path / "moved"
    install.rename(moved)
    monkeypatch.setattr(compiled, "rules_dir", lambda: moved)
    parses_no_yaml(monkeypatch)
    sections = compiled.load_compiled(compiled.rule_folders()).sections
    paths = {path for section in sections for path, _ in section.rules}
    assert paths == {str(moved / "torch" / "T001.yaml"), str(moved / "vllm" / "V001.yaml")}


def test_it_fills_the_cache(install, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "_RACY", -(10**18))
    first = summaries()
    monkeypatch.setattr(compiled, "_read_shipped", lambda folder: pytest.fail("not read from the cache"))
    assert summaries() == first


def edited_at_the_same_size_and_time(install):
    path = install / "torch" / "T001.yaml"
    before = path.stat()
    write(path, RULE.format(id="T001", summary="other"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(("change", "expected"), [
    (edited_at_the_same_size_and_time, {"T001": "other", "V001": "vllm"}),
    (lambda install: (install / "vllm" / "V001.yaml").unlink(), {"T001": "first"}),
    (lambda install: write(install / "torch" / "T002.yaml", RULE.format(id="T002", summary="new")),
     {"T001": "first", "T002": "new", "V001": "vllm"}),
    (lambda install: (install / "vllm").rename(install / "sglang"), {"T001": "first", "V001": "vllm"}),
], ids=["edited", "deleted", "added", "renamed"])  # fmt: skip
def test_other_rules_are_compiled_again(install, change, expected, monkeypatch):
    change(install)
    assert summaries() == expected
    parses_no_yaml(monkeypatch)
    with pytest.raises(AssertionError, match="parsed"):
        summaries()


@pytest.mark.parametrize("module", ["rulebook/schema.py", "facts/vocabulary.py", "errors.py"])
def test_other_code_compiles_again(install, tmp_path, monkeypatch, module):
    with (tmp_path / "doctor" / module).open("a") as stream:
        stream.write("# changed")
    parses_no_yaml(monkeypatch)
    with pytest.raises(AssertionError, match="parsed"):
        summaries()


def replaced_by_a_link(file):
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [
    lambda file: file.write_bytes(file.read_bytes().replace(b"first", b"other")),
    lambda file: file.write_bytes(file.read_bytes()[:-1]),
    lambda file: file.write_bytes(b"[]\n[]"),
    lambda file: file.chmod(0o666),
    replaced_by_a_link,
    pytest.param(
        lambda file: os.chown(file, 65534, 65534),
        marks=pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away"),
    ),
], ids=["forged", "cut", "foreign", "writable by others", "link", "of another user"])  # fmt: skip
def test_a_file_that_is_not_of_the_install_is_not_used(install, make, monkeypatch):
    make(install / compiled.SHIPPED)
    assert summaries() == {"T001": "first", "V001": "vllm"}
    parses_no_yaml(monkeypatch)
    with pytest.raises(AssertionError, match="parsed"):
        summaries()


def test_a_folder_of_a_team_brings_no_compiled_rules(install, tmp_path, monkeypatch):
    team = tmp_path / "team"
    write(team / "x" / "X001.yaml", RULE.format(id="X001", summary="team"))
    shutil.copyfile(install / compiled.SHIPPED, team / compiled.SHIPPED)
    folder = compiled.RuleFolder(team, tuple(compiled.stamps((team,))), "", False)
    assert compiled._read_shipped(folder) is None
