"""Tests of `proof`: what a rule offers as evidence, how it is checked, and the record that comes with the rules."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.cli import verify as command
from doctor.errors import DoctorError
from doctor.report.rule_page import as_markdown, page_of
from doctor.rulebook.authoring import release_files
from doctor.rulebook.authoring.coverage import proven_bounds
from doctor.rulebook.authoring.lint import lint
from doctor.rulebook.authoring.release_files import Releases, matches, members
from doctor.rulebook.authoring.tests import rulebook_paths
from doctor.rulebook.authoring.verify import planned, verify
from doctor.rulebook.proofs import (
    PROVEN,
    REFUTED,
    UNPROVEN,
    Proof,
    Record,
    proofs_of,
    read_records,
    record_of,
    shipped_records,
)
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.schema import read_source, read_sources
from doctor.rulebook.tables import TABLES

FAULT = b"def attend(mask):\n    mask = mask.float()\n"
FIXED = b"def attend(mask):\n    mask = mask.float()\n    mask = mask.to(dtype)\n"
OLD = b"def attend(mask):\n    return mask\n"
RELEASES = {"1.0": OLD, "1.1": FAULT, "1.2": FAULT, "1.3": FAULT, "1.4": FIXED, "1.5rc1": FAULT}
SOURCE = {"package": "thing", "file": "thing/*.py", "shows": r"mask\.float\(\)", "hides": r"\.to\(dtype\)"}
RULE = """\
id: TE999
name: thing-fails
severity: error
summary: A thing fails
why: It fails.
references: [https://example.com/source]
proof:
  - source: {package: thing, file: thing/*.py, shows: 'mask\\.float\\(\\)', hides: '\\.to\\(dtype\\)', in: ">=1.1,<1.4"}
when: {transformer-engine.version: ">=2.0,<2.1", transformers.version: ">=4"}
no_pin: Nothing fixes it.
tests:
  fires: {given: {transformer-engine.version: 2.0.0, transformers.version: 4.0}, expect: fires}
  silent: {given: {transformer-engine.version: 1.9.0, transformers.version: 4.0}, expect: silent}
  silent before: {given: {transformer-engine.version: 2.0.0, transformers.version: 3.0}, expect: silent}
"""


class Published(Releases):
    """Releases with one file each; one of them cannot be read."""

    def __init__(self, files: Mapping[str, bytes], unreadable: str = "") -> None:
        super().__init__()
        self.contents, self.unreadable = files, unreadable

    def known(self, package: str) -> tuple[str, ...]:
        return tuple(self.contents)

    def files(self, package, version, patterns):
        if version == self.unreadable:
            raise DoctorError(f"pip found no sources of `{package}=={version}`")
        return {"thing/a.py": self.contents[version]}

    def requirements(self, package, version, *, extras=False):
        return (f"torch>={version}", 'torch<9; extra == "x"')


def record(releases: Mapping[str, bytes] = RELEASES, unreadable: str = "", kind: str = "source", **body: str) -> Record:
    proof = Proof(kind, {**SOURCE, "in": ">=1.1,<1.4", **body} if kind == "source" else body)
    return verify(proof, Published(releases, unreadable), Path("captures"), "2026-01-02")


def test_both_sides_of_every_bound_and_one_inside_are_read() -> None:
    proof = Proof("source", {**SOURCE, "in": ">=1.1,<1.4"})
    checks = planned(proof, tuple(RELEASES))
    assert [(check.version, check.expected) for check in checks] == [
        ("1.0", False), ("1.1", True), ("1.2", True), ("1.3", True), ("1.4", False),
    ]  # fmt: skip
    assert [check.version for check in planned(Proof("source", {**SOURCE, "in": "==1.5rc1"}), tuple(RELEASES))] == [
        "1.4", "1.5rc1",
    ]  # fmt: skip


def test_a_right_range_is_proven() -> None:
    found = record()
    assert (found.outcome, found.date, found.shown_in) == (PROVEN, "2026-01-02", ("1.1", "1.2", "1.3"))
    assert found.checked["1.0"] == found.checked["1.4"] == "no"


@pytest.mark.parametrize(
    ("text", "contradicts"),
    [(">=1.2,<1.4", "1.1 is outside"), (">=1.1,<1.3", "1.3 is outside"), (">=1.0,<1.4", "1.0 is in the range"),
     (">=1.1,<1.5", "1.4 is in the range, and `thing/a.py` has what hides it: `mask = mask.to(dtype)`")],
)  # fmt: skip
def test_a_wrong_bound_is_refuted_by_the_release_that_contradicts(text: str, contradicts: str) -> None:
    found = record(**{"in": text})
    assert found.outcome == REFUTED
    assert contradicts in found.reason


def test_a_release_that_cannot_be_read_leaves_the_claim_unproven() -> None:
    found = record(unreadable="1.4")
    assert found.outcome == UNPROVEN
    assert found.reason == "thing 1.4: pip found no sources of `thing==1.4`"
    assert record(**{"in": ">=7"}).outcome == UNPROVEN


def test_metadata_are_compared_with_the_stated_range() -> None:
    body = {"package": "thing", "requires": "torch", "in": "==1.2"}
    assert record(kind="metadata", **body, range=">=1.2").outcome == PROVEN
    found = record(kind="metadata", **body, range=">=1.3")
    assert (found.outcome, found.reason) == (REFUTED, "thing 1.2 is in the range, and requires `torch>=1.2`")
    assert record(kind="metadata", **body, range="absent").outcome == REFUTED


def test_the_bounds_of_an_extra_count_as_the_lowest_release() -> None:
    class Extras(Published):
        def requirements(self, package, version, *, extras=False):
            return (f'vllm==0.{version}; extra == "vllm"',)

    body = {"package": "thing", "requires": "vllm", "in": "==1.2"}
    for extras, stated, outcome in (
        (["vllm"], ">=0.1.2", PROVEN),
        (["vllm"], "==0.1.2", REFUTED),
        ([], ">=0.1.2", REFUTED),
    ):
        proof = Proof("metadata", {**body, "range": stated, "extras": extras})
        assert verify(proof, Extras(RELEASES), Path("captures"), "2026-01-02").outcome == outcome


def test_a_constant_is_compared_with_the_stated_range() -> None:
    files = {"1.0": b"", "1.1": b'MINIMUM = "2.1"\n', "1.2": b'MINIMUM = "2.1"\n', "1.3": b'MINIMUM = ">=2.1,<=2.4"\n'}
    body = {"package": "thing", "file": "**/a.py", "find": r'^MINIMUM = "([<>=,\d.]+)"'}

    def found(stated: str, text: str) -> Record:
        return verify(
            Proof("constant", {**body, "range": stated, "in": text}), Published(files), Path("c"), "2026-01-02"
        )

    assert found(">=2.1", ">=1.1,<1.3").outcome == found(">=2.1,<2.4.1", ">=1.3").outcome == PROVEN
    assert found(">=2.2", ">=1.1,<1.3").reason == "thing 1.1 is in the range, and `thing/a.py` accepts `>=2.1`"
    assert found(">=2.1", ">=1.2,<1.3").reason == "thing 1.1 is outside the range, and `thing/a.py` accepts `>=2.1`"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"from torch.nn import Gone\n", True), (b"from torch.nn import (\n    Kept,\n    Gone as G,\n)\n", True),
        (b"if is_torch_available():\n    from torch.nn import Gone\n", True),
        (b"if is_vllm_available():\n    from torch.nn import Gone\n", False),
        (b"try:\n    from torch.nn import Gone\nexcept ImportError:\n    Gone = None\n", False),
        (b"def f():\n    from torch.nn import Gone\n", False), (b"from other.nn import Gone\n", False),
        (b"def (", False),
        (b"if TYPE_CHECKING:\n    from torch.nn import Gone\n", False),
    ],
)  # fmt: skip
def test_only_an_import_that_always_runs_shows_the_claim(text: bytes, found: bool) -> None:
    body = {"package": "thing", "file": "thing/a.py", "name": "torch.nn.Gone", "from": "torch", "in": ">=1.1,<1.4"}
    files = {"1.0": b"", "1.1": text, "1.2": text, "1.3": text, "1.4": text}
    outcome = verify(Proof("import", body), Published(files), Path("captures"), "2026-01-02").outcome
    assert outcome == (PROVEN if found else REFUTED)


def test_the_bound_of_an_import_is_proven_where_the_next_release_has_none() -> None:
    proof = Proof("import", {"package": "thing", "in": ">=1.1,<1.4"})
    found = Record("", PROVEN, "", {"1.0": "no", "1.1": "a", "1.3": "a", "1.4": "a"})
    assert {str(bound) for bound in proven_bounds(proof, found)} == {"1.1"}


@pytest.mark.parametrize(
    ("shows", "span", "outcome"),
    [
        ("^wheel for cp313$", ">=2.5", PROVEN),
        ("^wheel for cp313$", ">=2.4", REFUTED),
        ("^cu1[0-9]+ code for 10\\.0$", ">=2.7", PROVEN),
        ("^cu126 code for 10\\.0$", ">=2.7", REFUTED),
    ],
)
def test_what_wheels_hold_is_read_from_the_release_index(shows: str, span: str, outcome: str) -> None:
    proof = Proof("wheel", {"package": "torch", "shows": shows, "in": span})
    assert verify(proof, Releases(offline=True), Path(), "2026-01-01").outcome == outcome


def test_a_package_without_a_record_of_wheels_is_unproven() -> None:
    proof = Proof("wheel", {"package": "no-such-package", "shows": "withdrawn", "in": ">=1"})
    found = verify(proof, Releases(offline=True), Path(), "2026-01-01")
    assert (found.outcome, found.reason) == (UNPROVEN, "the release index does not have `no-such-package`")


def test_a_name_that_a_package_lacks_is_read_from_its_record() -> None:
    body = {"package": "transformers", "name": "transformers.generation.GreedySearchDecoderOnlyOutput"}
    for text, outcome in ((">=5.0", PROVEN), (">=4.57", REFUTED), (">=5.1", REFUTED)):
        proof = Proof("lacks", {**body, "in": text})
        assert verify(proof, Published({}), Path("captures"), "2026-01-02").outcome == outcome
    unknown = Proof("lacks", {"package": "no-record", "name": "a.b", "in": ">=1"})
    assert verify(unknown, Published({}), Path("captures"), "2026-01-02").outcome == UNPROVEN


def test_a_measurement_is_a_line_of_a_capture(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"case": 1, "nan": true}\n')
    releases = Published(RELEASES)
    for shows, outcome in (('"nan": true', PROVEN), ('"nan": false', REFUTED)):
        proof = Proof("measured", {"capture": "a.jsonl", "shows": shows})
        assert verify(proof, releases, tmp_path, "2026-01-02").outcome == outcome
    assert verify(proof, releases, tmp_path / "elsewhere", "2026-01-02").outcome == UNPROVEN


def test_files_of_wheels_and_source_archives_have_the_paths_of_an_installation(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing/a.py", OLD)
        wheel.writestr("thing-1.0.data/purelib/thing/b.py", OLD)
        wheel.writestr("thing/c.so", b"\x7fELF")
    with tarfile.open(tmp_path / "thing-1.0.tar.gz", "w:gz") as made:
        for path in ("thing-1.0/thing/a.py", "thing-1.0/setup.py"):
            entry = tarfile.TarInfo(path)
            entry.size = len(OLD)
            made.addfile(entry, io.BytesIO(OLD))
    wheel_files = dict(members(tmp_path / "thing-1.0-py3-none-any.whl", ("**/*.py",)))
    assert wheel_files == {"thing/a.py": OLD, "thing/b.py": OLD}
    assert dict(members(tmp_path / "thing-1.0.tar.gz", ("thing/*.py",))) == {"thing/a.py": OLD}
    assert matches("a/b/c.py", "**/c.py")
    assert not matches("a/b/c.py", "*/c.py")


def test_files_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as wheel:
        for number in range(20):
            wheel.writestr(f"thing/m{number}.py", "#" * 10_000)
    monkeypatch.setattr(release_files, "TOTAL_LIMIT", 100_000)
    with pytest.raises(ValueError, match="have more than"):
        dict(members(tmp_path / "thing-1.0-py3-none-any.whl", ("**/*.py",)))


def published_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Put wheels in the place of the registry; return the releases that were fetched, as they are fetched."""
    fetched: list[str] = []

    def archive(name: str, version: str, into: Path) -> Path:
        fetched.append(version)
        path = into / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}/a.py", RELEASES[version])
        return path

    monkeypatch.setattr(release_files, "fetch_archive", archive)
    monkeypatch.setattr(release_files, "published_releases", lambda name: tuple(RELEASES))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fetched


@pytest.fixture
def verified(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return the exit code and the output of `attn-doctor rules verify`."""

    def run(*arguments: object) -> tuple[int, str]:
        code = cli.run(["rules", "verify", *map(str, arguments)])
        return code, capsys.readouterr().out

    return run


def own_rule(tmp_path: Path, text: str = RULE) -> Path:
    path = tmp_path / "transformer_engine" / "TE999.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_verify_fetches_each_release_once_and_fails_for_a_refuted_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Callable[..., tuple[int, str]]
) -> None:
    fetched = published_wheels(monkeypatch, tmp_path)
    path = own_rule(tmp_path)
    code, out = verified(path)
    assert code == 0
    assert "TE999: proven by source of thing" in out
    assert verified(path)[0] == 0
    assert fetched == ["1.0", "1.1", "1.2", "1.3", "1.4"]
    own_rule(tmp_path, RULE.replace("<1.4", "<1.3"))
    code, out = verified(path)
    assert code == 1
    assert "refuted by source of thing: thing 1.3 is outside the range" in out


def test_offline_reads_only_what_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Callable[..., tuple[int, str]]
) -> None:
    fetched = published_wheels(monkeypatch, tmp_path)
    code, out = verified("--offline", own_rule(tmp_path))
    assert (code, fetched) == (0, [])
    assert "TE999: unproven" in out


def test_built_in_rules_are_recorded_and_changed_ones_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Callable[..., tuple[int, str]]
) -> None:
    published_wheels(monkeypatch, tmp_path)
    rules = tmp_path / "rules"
    (rules / "index").mkdir(parents=True)
    path = own_rule(rules)
    monkeypatch.setattr(command, "rules_dir", lambda: rules)
    monkeypatch.setattr(command, "records_path", lambda: rules / "index" / "proofs.json")
    monkeypatch.setattr(command, "is_built_in", lambda path: True)
    assert "1 proofs: 1 proven" in verified(path)[1]
    kept = read_records(rules / "index" / "proofs.json")["TE999"]
    assert [item.outcome for item in kept] == [PROVEN]
    assert "0 proofs" in verified("--changed", path)[1]
    own_rule(rules, RULE.replace(">=1.1", ">=1.0"))
    assert "1 proofs: 0 proven, 1 refuted" in verified("--changed", path)[1]


def test_an_end_without_a_later_release_is_no_proven_bound(
    tmp_path: Path, verified: Callable[..., tuple[int, str]]
) -> None:
    for text, ends in ((">=1.1,<1.4", {"1.1", "1.4"}), (">=1.1,<1.9", {"1.1"}), (">=1.0,<1.4", {"1.4"})):
        proof = Proof("source", {**SOURCE, "in": text})
        found = verify(proof, Published({version: FAULT for version in RELEASES}), tmp_path, "2026-01-02")
        checked = {check.version: "" for check in planned(proof, tuple(RELEASES))}
        assert {str(bound) for bound in proven_bounds(proof, found._replace(checked=checked))} == ends
    code, out = verified("--coverage", own_rule(tmp_path))
    assert code == 0
    assert "1 rules, 1 with a bound on a release" in out
    assert "0 of 3 bounds of rules by hand are proven" in out


def faults_of(tmp_path: Path, text: str) -> list[str]:
    return [fault.message for fault in lint([own_rule(tmp_path, text)])]


def test_what_only_somebody_states_is_no_error(tmp_path: Path) -> None:
    start, end = RULE.index("  - source"), RULE.index("when:")
    stated = RULE[:start] + "  - stated: {url: https://example.com/thread}\n" + RULE[end:]
    assert any("what is only reported is a warning at most" in fault for fault in faults_of(tmp_path, stated))
    assert not faults_of(tmp_path, stated.replace("severity: error", "severity: warning"))


def test_an_error_of_some_releases_refers_to_code_or_a_measurement(tmp_path: Path) -> None:
    start, end = RULE.index("references"), RULE.index("when:")
    for reference, reported in (
        ("https://github.com/owner/thing/issues/1", True),
        ("https://github.com/owner/thing/pull/2", True),
        ("https://github.com/owner/thing/blob/v1.4/thing/a.py", False),
        ("thing/a.py@v1.4", False),
        ("docs/stress.md (fault 3)", False),
    ):
        rule = f"{RULE[:start]}references: ['{reference}']\n{RULE[end:]}"
        found = any("what is only reported is a warning at most" in fault for fault in faults_of(tmp_path, rule))
        assert found is reported, reference


def test_an_expression_that_re2_does_not_take_is_a_fault_of_the_lint(tmp_path: Path) -> None:
    wrong = re.sub(r"shows: '[^']*'", "shows: '('", RULE)
    assert wrong != RULE
    assert any("`(` is no regular expression" in fault for fault in faults_of(tmp_path, wrong))


def test_a_proof_is_about_a_bound_of_the_rule(tmp_path: Path) -> None:
    assert not faults_of(tmp_path, RULE)
    other = RULE.replace("package: thing,", "package: thing, of: transformer-engine,")
    assert "no condition of this rule on `transformer-engine` begins or ends at 1.1 or 1.4" in faults_of(
        tmp_path, other
    )
    assert not faults_of(tmp_path, other.replace('">=1.1,<1.4"', '">=1.1,<2.0"'))


def tagged(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Make a repository with one tag for each release, and one that is no release."""

    def git(*arguments: str) -> None:
        settings = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True)

    (folder / "thing").mkdir(parents=True)
    git("init", "-q")
    for version, content in contents.items():
        (folder / "thing" / "a.py").write_bytes(content)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", version)
        git("tag", f"v{version}")
    git("tag", "nightly")


def test_tags_of_a_repository_are_read_from_a_clone_of_the_user(tmp_path: Path) -> None:
    tagged(tmp_path / "clones" / "owner" / "thing", {name: RELEASES[name] for name in RELEASES if "rc" not in name})
    body = {"repository": "owner/thing", "file": "thing/*.py", "shows": r"mask\.float\(\)", "of": "thing",
            "hides": r"\.to\(dtype\)"}  # fmt: skip
    right, wrong = (Proof("source", {**body, "in": text}) for text in (">=1.1,<1.4", ">=1.1,<1.3"))
    releases = Releases(clones=tmp_path / "clones")
    assert releases.known("owner/thing") == ("1.0", "1.1", "1.2", "1.3", "1.4")
    assert verify(right, releases, tmp_path, "2026-01-02").outcome == PROVEN
    found = verify(wrong, releases, tmp_path, "2026-01-02")
    assert (found.outcome, found.reason[:33]) == (REFUTED, "owner/thing 1.3 is outside the ra")
    without = verify(right, Releases(), tmp_path, "2026-01-02")
    assert (without.outcome, without.reason[:38]) == (UNPROVEN, "there is no clone of `owner/thing` (cl")


@pytest.mark.parametrize("other", ["", "package: thing, repository: owner/thing, "])
def test_sources_are_those_of_a_package_or_of_a_repository(tmp_path: Path, other: str) -> None:
    with pytest.raises(DoctorError, match="a `package` or of a `repository`"):
        read_source(own_rule(tmp_path, RULE.replace("package: thing, ", other)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("in: new", "is no range"),
        ("file: ''", "needs a text"),
        ("guess: {}", "unknown key"),
    ],
)
def test_a_proof_that_cannot_be_read_is_named(tmp_path: Path, wrong: str, message: str) -> None:
    key = wrong.split(":")[0]
    start, end = RULE.index("  - source"), RULE.index("when:")
    body = {"package": "thing", "file": "a.py", "shows": "a", "in": '">=1"'}
    if key in body:
        body[key] = wrong.partition(": ")[2]
        line = "  - source: {" + ", ".join(f"{name}: {value}" for name, value in body.items()) + "}\n"
    else:
        line = f"  - {wrong}\n"
    with pytest.raises(DoctorError, match=message):
        read_source(own_rule(tmp_path, RULE[:start] + line + RULE[end:]))


def test_the_page_of_a_rule_shows_its_evidence(tmp_path: Path) -> None:
    text = RULE.replace("when:", "  - stated: {url: https://example.com/thread}\nwhen:", 1)
    rule = load_rulebook([str(own_rule(tmp_path, text).parent)]).rules["TE999"]
    page = as_markdown(page_of(rule))
    assert "the sources of thing >=1.1,<1.4: not verified yet" in page.replace("\\", "")
    assert "reported by users: https://example.com/thread" in page
    for found in load_rulebook().rules.values():
        if records := shipped_records().get(found.id):
            assert f"on {records[0].date}" in as_markdown(page_of(found))
            return
    pytest.fail("no rule has a record")


def test_a_process_that_verifies_knows_the_words_of_all_libraries() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "doctor", "rules", "verify", "--coverage"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "rules with a bound are proven" in ended.stdout


def test_every_proof_has_a_current_record_and_none_is_refuted() -> None:
    ids = set()
    for path in rulebook_paths():
        if path.name == "library.yaml" or (path.parent.name != TABLES and b"\nproof:" not in path.read_bytes()):
            continue
        for content in (source.content for source in read_sources(path) if "proof" in source.content):
            rule = content["id"]
            ids.add(rule)
            for proof in proofs_of(content):
                found = record_of(rule, proof, shipped_records())
                assert found is not None, f"a proof of {rule} changed: `attn-doctor rules verify {rule}`"
                assert found.outcome != REFUTED, f"{rule}: {found.reason}"
    assert set(shipped_records()) == ids, "records of rules without a proof: `attn-doctor rules verify --changed`"
