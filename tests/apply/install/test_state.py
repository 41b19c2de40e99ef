"""What is remembered of an environment, and read back."""

from __future__ import annotations

import json
import os

import pytest

from doctor.apply.install import state as frozen
from doctor.apply.install.rollback import undoing_of
from doctor.apply.install.state import Freeze, Kept
from doctor.errors import DoctorError

ORIGINS = {
    "archive": ({"url": "https://x.invalid/a-1.0-py3-none-any.whl", "archive_info": {}},
                ["a @ https://x.invalid/a-1.0-py3-none-any.whl"]),
    "git": ({"url": "https://x.invalid/a.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "py"},
            ["a @ git+https://x.invalid/a.git@abc#subdirectory=py"]),
    "folder": ({"url": "file:///src/a", "dir_info": {}}, ["a @ file:///src/a"]),
    "editable": ({"url": "file:///src/a", "dir_info": {"editable": True}}, ["--editable", "/src/a"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ORIGINS)
def test_where_a_package_came_from_brings_it_back(old, kind):
    said, requirement = ORIGINS[kind]
    old.put("a", "1.0", direct_url__json=json.dumps(said), INSTALLER="pip\n")
    kept = frozen.packages_of([old.site])["a"]
    assert kept.requirement("a") == requirement and kept.version == "1.0" and kept.by == "pip"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"no": "url"}', '{"url": "x", "vcs_info": 3}'])
def test_a_spoilt_direct_url_is_no_crash(old, text):
    old.put("a", "1.0", direct_url__json=text)
    assert frozen.packages_of([old.site])["a"].requirement("a") == ["a==1.0"]


def test_it_is_read_as_it_was_written(tmp_path):
    packages = {"a": Kept("1.0", "file:///src/a", True, "pip"), "torch": Kept("2.6.0+cu126")}
    kept = frozen.save(Freeze("/env/bin/python", "2026-01-01T00:00:00", packages, fix="Do it"), tmp_path / "new")
    assert kept.path is not None and frozen.read(kept.path) == kept
    done = frozen.update(kept, state=frozen.DONE, changed=("a",), rebuilt=("flash-attn",))
    assert frozen.read(kept.path) == done and done.changed == ("a",)


def test_a_second_one_of_the_same_second_overwrites_nothing(tmp_path):
    one = frozen.save(Freeze("p", "2026-01-01T00:00:00", {}), tmp_path)
    other = frozen.save(Freeze("p", "2026-01-01T00:00:00", {}), tmp_path)
    assert one.path != other.path and one.path is not None and one.path.exists()


def test_the_last_one_that_was_not_taken_back_counts(tmp_path):
    first = frozen.save(Freeze("p", "2026-01-01T00:00:00", {"a": Kept("1")}), tmp_path)
    second = frozen.save(Freeze("p", "2026-01-01T00:00:01", {"a": Kept("2")}), tmp_path)
    assert first.path is not None and second.path is not None
    os.utime(first.path, (1, 1))
    os.utime(second.path, (2, 2))
    assert frozen.last([tmp_path, tmp_path / "none"]) == second
    frozen.update(second, state=frozen.TAKEN_BACK)
    assert frozen.last([tmp_path]) == first
    frozen.update(first, state=frozen.TAKEN_BACK)
    assert frozen.last([tmp_path]) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"packages": {"a": {}}}', '{"packages": 3}'])
def test_a_spoilt_freeze_is_reported(tmp_path, text):
    path = tmp_path / "freeze-1.json"
    path.write_text(text)
    with pytest.raises(DoctorError, match="cannot be read"):
        frozen.read(path)


def test_only_what_the_change_touched_goes_back():
    before = {"a": Kept("1"), "b": Kept("1"), "gone": Kept("1")}
    now = {"a": Kept("2"), "b": Kept("9"), "new": Kept("1")}
    done = Freeze("p", "w", before, frozen.DONE, ("a", "gone", "new"))
    undoing = undoing_of(done, now)
    assert undoing.added == ("new",) and set(undoing.old) == {"a", "gone"}  # b was moved by somebody else since
    broken_off = undoing_of(Freeze("p", "w", before, frozen.BEGUN, None), now)
    assert set(broken_off.old) == {"a", "b", "gone"} and broken_off.added == ("new",)


def test_what_was_built_again_is_built_again():
    before = {"torch": Kept("2.5.1"), "flash-attn": Kept("2.7.4.post1")}
    now = {"torch": Kept("2.6.0"), "flash-attn": Kept("2.7.4.post1")}
    undoing = undoing_of(Freeze("p", "w", before, frozen.DONE, ("torch",), ("flash-attn",)), now)
    assert set(undoing.old) == {"torch"} and [line.requirement for line in undoing.built] == ["flash-attn==2.7.4.post1"]
    wheel = {**before, "flash-attn": Kept("2.7.4.post1", "https://x.invalid/flash_attn.whl")}
    undoing = undoing_of(Freeze("p", "w", wheel, frozen.DONE, ("torch",), ("flash-attn",)), {**wheel, **now,
                         "flash-attn": wheel["flash-attn"]})  # fmt: skip
    assert set(undoing.old) == {"torch", "flash-attn"} and undoing.built == ()
