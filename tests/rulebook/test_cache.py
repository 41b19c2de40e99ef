"""The compiled rulebook: fresh when a file changes, harmless when it is damaged, shared by several writers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from doctor.errors import DoctorError
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


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """A small rulebook of its own, with its cache next to it, written a while ago."""
    folder = tmp_path / "rules"
    monkeypatch.setattr(compiled, "rules_dir", lambda: folder)
    monkeypatch.setattr(compiled, "_RACY", -(10**18))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(folder / "torch" / "library.yaml", "name: torch\ndistributions: [torch]\n")
    write(folder / "torch" / "T001.yaml", RULE.format(id="T001", summary="first"))
    return folder


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def summaries(*extra):
    sections = compiled.load_compiled(compiled.rule_folders(map(str, extra))).sections
    return {body["id"]: body["summary"] for section in sections for _, body in section.rules}


def no_yaml(monkeypatch):
    def refuse(*_):
        raise AssertionError("parsed YAML although the cache is fresh")

    monkeypatch.setattr(schema, "parsed_file", refuse)


def cache_files(tmp_path):
    return list((tmp_path / "cache" / "attn-doctor").glob("*"))


def everything():
    """What is loaded, down to the last part of each rule."""
    found = compiled.load_compiled(compiled.rule_folders())
    return found, [(path, dict(body)) for section in found.sections for path, body in section.rules]


def test_the_second_load_parses_no_yaml_and_says_the_same(rules, monkeypatch):
    first = everything()
    assert first[1] == [
        (str(rules / "torch" / "T001.yaml"), {
            "id": "T001", "name": "flaw-T001", "severity": "note", "summary": "first", "references": ["a/b@v1"],
            "when": {"torch.version": "<2.6"},
        })
    ]  # fmt: skip
    no_yaml(monkeypatch)
    assert everything() == first


def test_a_section_is_read_when_one_of_its_rules_is_needed(rules, tmp_path, monkeypatch):
    write(rules / "vllm" / "library.yaml", "name: vllm\ndistributions: [vllm]\n")
    write(rules / "vllm" / "V001.yaml", RULE.format(id="V001", summary="vllm").replace("torch", "vllm"))
    summaries()
    (cache,) = cache_files(tmp_path)
    sections = compiled.load_compiled(compiled.rule_folders()).sections
    no_yaml(monkeypatch)
    whole = cache.read_bytes()
    cache.write_bytes(whole[:-1] + b"?")  # the section of vllm is the last
    assert [body["id"] for _, body in sections[0].rules] == ["T001"]
    with pytest.raises(AssertionError, match="parsed YAML"):  # damage is found where it is read, and repaired
        _ = sections[1].rules


def test_rules_that_were_loaded_outlive_their_cache(rules, tmp_path, monkeypatch):
    summaries()
    (section,) = compiled.load_compiled(compiled.rule_folders()).sections
    write(rules / "torch" / "T001.yaml", RULE.format(id="T001", summary="later"))
    assert summaries() == {"T001": "later"}  # replaces the cache
    no_yaml(monkeypatch)
    assert [body["summary"] for _, body in section.rules] == ["first"]


def test_a_section_holds_what_needs_a_version_of_its_library(rules):
    free = RULE.format(id="T002", summary="second").replace('torch.version: "<2.6"', "gpu.sm: '8.0'")
    write(rules / "torch" / "T002.yaml", free.replace("torch.version: 2.5.0", "gpu.sm: '8.0'"))
    sections = compiled.load_compiled(compiled.rule_folders()).sections
    assert {(item.library, item.version_key, item.ids) for item in sections} == {
        ("torch", "torch.version", ("T001",)), ("torch", None, ("T002",)),
    }  # fmt: skip


def test_a_section_is_of_the_version_that_the_fewest_rules_need(rules):
    pair = RULE.format(id="T003", summary="third").replace(
        'torch.version: "<2.6"',
        'torch.version: "<2.6", any: [{vllm.version: ">=0.9", gpu.sm: "8.0"}, {vllm.version: ">=0.10"}]',
    )
    write(rules / "torch" / "T003.yaml", pair)
    sections = compiled.load_compiled(compiled.rule_folders()).sections
    assert {(item.version_key, item.ids) for item in sections} == {
        ("torch.version", ("T001",)), ("vllm.version", ("T003",)),
    }  # fmt: skip


def test_a_changed_file_is_read_again_even_at_the_same_size(rules):
    assert summaries() == {"T001": "first"}
    write(rules / "torch" / "T001.yaml", RULE.format(id="T001", summary="other"))
    assert summaries() == {"T001": "other"}


def test_a_changed_file_is_read_again_even_if_its_time_is_put_back(rules):
    path = rules / "torch" / "T001.yaml"
    before = path.stat()
    assert summaries() == {"T001": "first"}
    time.sleep(0.02)  # beyond the tick of the file system's clock
    write(path, RULE.format(id="T001", summary="other"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert summaries() == {"T001": "other"}


def test_new_and_deleted_files_are_noticed(rules):
    assert summaries() == {"T001": "first"}
    write(rules / "torch" / "deep" / "T002.yaml", RULE.format(id="T002", summary="second"))
    assert summaries() == {"T001": "first", "T002": "second"}
    (rules / "torch" / "T001.yaml").unlink()
    assert summaries() == {"T002": "second"}


def test_another_release_of_the_doctor_compiles_again(rules, monkeypatch):
    summaries()
    monkeypatch.setattr(compiled, "__version__", "99.0")
    no_yaml(monkeypatch)
    with pytest.raises(AssertionError, match="parsed YAML"):
        summaries()


#: Compiles the rules without a cache, and prints the files of the modules of ours that this took.
COMPILE = """
import sys
from doctor.rulebook import cache, signatures
files = cache.rule_files((cache.rules_dir(),))
cache._compile([path for path in files if not path.name.startswith(cache.EXPLAINS_ONLY)])
signatures._compile(files)
print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "doctor"), sep="\\n")
"""


def test_the_key_covers_every_module_that_compiling_uses(tmp_path):
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=True)
    used = set(done.stdout.split())
    assert {"schema.py", "variables.py", "vocabulary.py", "yaml_text.py"} <= {Path(path).name for path in used}
    assert used <= {stamp[0] for stamp in compiled.code()}


@pytest.mark.parametrize("module", ["util/variables.py", "rulebook/shape.py", "facts/derived/masks.py", "errors.py"])
def test_changed_code_compiles_again(rules, tmp_path, monkeypatch, module):
    package = tmp_path / "doctor"
    shutil.copytree(compiled._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiled, "_PACKAGE", package)
    summaries()
    with (package / module).open("a") as stream:
        stream.write("# changed")
    no_yaml(monkeypatch)
    with pytest.raises(AssertionError, match="parsed YAML"):
        summaries()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:3],
        lambda data: bytes(4),  # the checksum of nothing
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"first", b"firsd"),
        lambda data: b"\x80\xff" + data,
        lambda data: data.splitlines()[0] + b"\n",
        lambda data: b"[]\n[]",
        lambda data: b"[" * 100_000,
        lambda data: b"null\nnull",
    ],
)
def test_a_damaged_cache_is_replaced(rules, tmp_path, monkeypatch, damage):
    summaries()
    (cache,) = cache_files(tmp_path)
    whole = cache.read_bytes()
    cache.write_bytes(damage(whole))
    assert summaries() == {"T001": "first"}
    assert cache.read_bytes() == whole


def test_folders_have_caches_of_their_own(rules, tmp_path, monkeypatch):
    for name in ("a", "b"):
        write(tmp_path / name / f"{name.upper()}1.yaml", RULE.format(id=f"TEAM00{name}", summary=name))
    for _ in range(2):
        assert summaries(tmp_path / "a") == {"T001": "first", "TEAM00a": "a"}
        assert summaries(tmp_path / "b") == {"T001": "first", "TEAM00b": "b"}
        assert summaries() == {"T001": "first"}
    assert len(cache_files(tmp_path)) == 3


def test_a_relative_folder_is_reported_by_where_it_is(rules, tmp_path, monkeypatch):
    for place in ("here", "there"):
        write(tmp_path / place / "team" / "X.yaml", RULE.format(id="TEAM001", summary=place))
    for place in ("here", "there"):
        monkeypatch.chdir(tmp_path / place)
        assert summaries("team")["TEAM001"] == place


def test_a_folder_given_twice_counts_once(rules, tmp_path):
    write(tmp_path / "team" / "X.yaml", RULE.format(id="TEAM001", summary="x"))
    assert summaries(tmp_path / "team", tmp_path / "team") == {"T001": "first", "TEAM001": "x"}


def test_a_file_written_this_instant_is_not_cached_yet(rules, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_RACY", 10**18)
    summaries()
    assert cache_files(tmp_path) == []


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(rules, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert summaries() == summaries() == {"T001": "first"}


def test_a_relative_cache_folder_is_not_used(rules, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert summaries() == {"T001": "first"}
    assert cache_files(tmp_path) == []


def test_several_writers_leave_one_whole_cache(rules, tmp_path, monkeypatch):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: summaries(), range(24)))
    assert all(result == {"T001": "first"} for result in results)
    (cache,) = cache_files(tmp_path)
    header, index, libraries, heads, details = map(json.loads, cache.read_bytes().splitlines())
    assert set(header) == {"key", "version", "digest", "size", "parts"}
    assert [entry[:3] for entry in index] == [["torch", "torch.version", ["T001"]]]
    assert len(libraries) == len(heads) == 1 and details["summary"] == "first"
    no_yaml(monkeypatch)
    assert summaries() == {"T001": "first"}


def test_a_team_cannot_take_an_id_by_accident(rules, tmp_path):
    write(tmp_path / "team" / "T001.yaml", RULE.format(id="T001", summary="theirs"))
    with pytest.raises(DoctorError, match="rule `T001` is taken by"):
        summaries(tmp_path / "team")


@pytest.mark.parametrize("make, words", [
    (lambda path: None, "does not exist"),
    (lambda path: path.write_text(""), "is no folder"),
    (lambda path: path.mkdir(), "holds no .yaml file"),
    (lambda path: (path.mkdir(), (path / "X.yaml").symlink_to("nowhere")), "cannot read rule file"),
    (lambda path: (path.mkdir(), os.mkfifo(path / "X.yaml")), "no regular file"),
    (lambda path: (path.mkdir(), (path / "X.yaml").mkdir()), "no regular file"),
    (lambda path: (path.mkdir(), (path / "X.yaml").write_bytes(b"\x00\x01")), "binary"),
    (lambda path: (path.mkdir(), (path / "X.yaml").write_bytes(b"\xff\xfe\xff")), "not UTF-8"),
    (lambda path: (path.mkdir(), (path / "X.yaml").write_text("a: " + "x" * 2_000_000)), "larger than 1 MiB"),
    (lambda path: (path.mkdir(), (path / "X.yaml").write_text("[" * 50_000)), "X.yaml"),
    (lambda path: (path.mkdir(), (path / "X.yaml").write_text("id: !!python/object:os.system {}")), "is not accepted"),
])  # fmt: skip
def test_a_bad_folder_is_one_clear_error(rules, tmp_path, make, words):
    make(tmp_path / "team")
    with pytest.raises(DoctorError) as caught:
        summaries(tmp_path / "team")
    assert words in caught.value.message


def test_loading_the_built_in_rulebook_from_its_cache_is_quick():
    compiled.load_compiled(compiled.rule_folders())
    times = []
    for _ in range(5):
        start = time.process_time()
        compiled.load_compiled(compiled.rule_folders())
        times.append(time.process_time() - start)
    assert min(times) < 0.1  # about 5 ms; a rulebook parsed from YAML takes half a second


def planted(cache, make):
    """Replace the cache by what `make` puts there; the content of the old one is passed to it."""
    whole = cache.read_bytes()
    cache.unlink()
    make(cache, whole.replace(b"first", b"other"))


@pytest.mark.parametrize("make", [
    lambda cache, forged: os.mkfifo(cache),
    lambda cache, forged: cache.symlink_to("/dev/zero"),
    lambda cache, forged: (cache.with_name("x").write_bytes(forged), cache.symlink_to("x")),
    lambda cache, forged: cache.mkdir(),
    lambda cache, forged: (cache.write_bytes(forged), cache.chmod(0o666)),
    lambda cache, forged: cache.write_bytes(forged),
], ids=["pipe", "link to a device", "link", "folder", "writable by others", "forged"])  # fmt: skip
def test_a_cache_that_is_not_ours_is_not_read(rules, tmp_path, make):
    summaries()
    (cache,) = cache_files(tmp_path)
    planted(cache, make)
    assert summaries() == {"T001": "first"}


def forged(whole, old, new):
    """Return a cache of one section with another text in it, and digests that fit."""
    head, index, libraries, section = whole.split(b"\n", 3)
    changed = section.replace(old, new)
    index = index.replace(hashlib.sha256(section).hexdigest().encode(), hashlib.sha256(changed).hexdigest().encode())
    content = b"\n".join((index, libraries, b""))
    header = {**json.loads(head), "digest": hashlib.sha256(content).hexdigest()}
    return json.dumps(header).encode() + b"\n" + content + changed


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_cache_of_another_user_is_not_read(rules, tmp_path):
    summaries()
    (cache,) = cache_files(tmp_path)
    cache.write_bytes(forged(cache.read_bytes(), b"first", b"other"))
    assert summaries() == {"T001": "other"}, "the forgery is good enough to be read if it is ours"
    os.chown(cache, 65534, 65534)
    assert summaries() == {"T001": "first"}
