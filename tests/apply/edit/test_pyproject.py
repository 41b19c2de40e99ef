"""pyproject.toml in place: lists, groups, indexes; nothing but the intended strings changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

from doctor.apply.edit.edits import edits_of
from doctor.errors import DoctorError
from tests.helpers.onefix import change, edited, report

tomllib = pytest.importorskip("tomllib")
pytest.importorskip("tomlkit")
Rewrite = Callable[..., str]
HEAD = '[project]\nname = "job"\nversion = "1"\n'


@pytest.fixture
def toml(rewrite: Rewrite) -> Rewrite:
    def run(text: str, *changes, **more) -> str:
        after = rewrite(text, *changes, name="pyproject.toml", **more)
        tomllib.loads(after)
        return after

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('["torch==2.6.0"]', '["torch==2.7.1"]'),
        ("['torch == 2.6.0', 'numpy']", "['torch == 2.7.1', 'numpy']"),
        ('["torch"]', '["torch==2.7.1"]'),
        ('["torch[x]>=2,<2.7; python_version<\\"3.13\\""]', '["torch[x]==2.7.1; python_version<\\"3.13\\""]'),
        ('[\n  # the core\n  "torch==2.6.0", # why\n  "numpy",\n]',
         '[\n  # the core\n  "torch==2.7.1", # why\n  "numpy",\n]'),
        ('["torch==2.2.2; sys_platform==\'darwin\'", "torch==2.6.0; sys_platform!=\'darwin\'"]',
         '["torch==2.2.2; sys_platform==\'darwin\'", "torch==2.7.1; sys_platform!=\'darwin\'"]'),
        ('["torch @ https://example.org/torch-2.6.0-cp311-cp311-linux_x86_64.whl"]', '["torch==2.7.1"]'),
        ('["""torch==2.6.0"""]', '["""torch==2.7.1"""]'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "place",
    ["[project]\nname = 'job'\ndependencies = {}\n",
     "[project]\nname='j'\n[project.optional-dependencies]\ngpu = {}  # c\n",
     "[dependency-groups]\ntrain = {}", "project.name = 'j'\nproject.dependencies = {}\n",
     "[tool.uv]\ndev-dependencies = {}\n\n[tool.other]\nx = 1\n"],
)  # fmt: skip
def test_a_requirement_says_the_new_version(toml: Rewrite, before: str, after: str, newline: str, place: str):
    old, new = (place.replace("{}", text).replace("\n", newline) for text in (before, after))
    assert toml(old) == new


def test_includes_of_groups_and_other_lists_stay(toml: Rewrite):
    text = (
        '[build-system]\nrequires = ["setuptools", "torch==2.6.0"]\n'
        '[dependency-groups]\na = ["torch==2.6.0", {include-group = "b"}]\nb = ["numpy"]\n'
        '[tool.x]\ndependencies = ["torch==2.6.0"]\n'
    )
    assert toml(text) == text.replace('a = ["torch==2.6.0"', 'a = ["torch==2.7.1"')


def test_overrides_and_constraints_of_uv_follow(toml: Rewrite):
    text = HEAD + 'dependencies = ["torch==2.6.0"]\n[tool.uv]\noverride-dependencies = ["torch==2.6.0"]\n'
    text += 'constraint-dependencies = ["triton==3.2.0", "nvidia-cudnn-cu12==9.1.0.70"]\n'
    assert toml(text) == (
        text.replace("2.6.0", "2.7.1").replace("triton==3.2.0", "triton==3.3.1").replace("9.1.0.70", "9.5.1.17")
    )


def test_a_removed_package_takes_its_line_or_its_comma(toml: Rewrite):
    gone = change("flash-attn", None, "2.5.6")
    for before, after in (
        ('["a", "flash-attn==2.5.6", "b"]', '["a", "b"]'),
        ('["flash-attn==2.5.6", "b"]', '["b"]'),
        ('["a", "flash-attn"]', '["a"]'),
        ('["flash-attn"]', "[]"),
        ('[\n  "a",\n  "flash-attn",  # fast\n  "b"\n]', '[\n  "a",\n  "b"\n]'),
        ('[\n  "a",\n  "flash-attn"\n]', '[\n  "a",\n]'),
    ):
        text = HEAD + f"dependencies = {before}\n"
        assert toml(text, gone, flash_attn="2.5.6") == HEAD + f"dependencies = {after}\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('["numpy", "transformers==4.44.0", "x"]', '["numpy", "transformers==4.44.0", "torch==2.7.1", "x"]'),
        ('[\n    "transformers==4.44.0",  # hf\n    "x",\n]',
         '[\n    "transformers==4.44.0",  # hf\n    # attn-doctor: clears X001\n    "torch==2.7.1",\n    "x",\n]'),
        ('[\n\t"x",\n\t"transformers==4.44.0" # hf, and more\n]',
         '[\n\t"x",\n\t"transformers==4.44.0", # hf, and more\n\t# attn-doctor: clears X001\n\t"torch==2.7.1"\n]'),
        ('[\n  "transformers==4.44.0"\n  , "x"\n]', '[\n  "transformers==4.44.0", "torch==2.7.1"\n  , "x"\n]'),
        ('["numpy"]', '["numpy", "torch==2.7.1"]'),
        ("[]", '["torch==2.7.1"]'),
        ("[\n]", '["torch==2.7.1"\n]'),
        ("[ # none yet\n]", '["torch==2.7.1",  # none yet\n]'),
    ],
)  # fmt: skip
def test_a_package_that_is_not_named_is_added(toml: Rewrite, before: str, after: str, newline: str):
    text = (HEAD + f"dependencies = {before}\n").replace("\n", newline)
    assert toml(text) == (HEAD + f"dependencies = {after}\n").replace("\n", newline)


def test_dependencies_are_begun_where_there_are_none(toml: Rewrite):
    assert toml(HEAD + "\n[tool.x]\n") == HEAD + 'dependencies = ["torch==2.7.1"]\n\n[tool.x]\n'
    with pytest.raises(DoctorError, match="names no dependencies"):
        toml(HEAD + 'dynamic = ["dependencies"]\n')
    with pytest.raises(DoctorError, match="names no dependencies"):
        toml("[tool.x]\ny = 1\n")


UV = (
    HEAD
    + """dependencies = ["torch==2.6.0", "torchvision==0.21.0"]

[tool.uv.sources]
torch = [{ index = "pytorch-cu124", marker = "sys_platform == 'linux'" }]
torchvision = { index = "pytorch-cu124" }  # same

[[tool.uv.index]]
name = "pytorch-cu124"
url = "https://download.pytorch.org/whl/cu124"
explicit = true

[[tool.uv.index]]
name = "mine"
url = "https://example.org/cu124"
"""
)


def test_an_index_of_uv_moves_with_every_name_of_it(toml: Rewrite):
    after = toml(UV)
    wanted = UV.replace("pytorch-cu124", "pytorch-cu126").replace("whl/cu124", "whl/cu126")
    assert after == wanted.replace("2.6.0", "2.7.1").replace("0.21.0", "0.22.1")


def test_only_the_index_that_serves_torch_moves_and_of_several_none(tmp_path: Path):
    other = UV.replace('name = "mine"\nurl = "https://example.org/cu124"',
                       'name = "flash-cu124"\nurl = "https://download.pytorch.org/whl/test/cu124"')  # fmt: skip
    path = tmp_path / "pyproject.toml"
    path.write_text(other)
    (file,) = edited(path).files
    assert "pytorch-cu126" in file.text and "whl/test/cu124" in file.text and "flash-cu124" in file.text
    several = (
        UV.replace('torchvision = { index = "pytorch-cu124" }', "torch-x = 1")
        .replace("torch = [", 'torch = [{ index = "mine", extra = "old" }, ')
        .replace("example.org/cu124", "download.pytorch.org/whl/cu118")
    )
    path.write_text(several)
    edits = edited(path)
    assert "pytorch-cu124" in edits.files[0].text and "whl/cu118" in edits.files[0].text
    wanted = "has several PyTorch indexes (cu118, cu124): change the right one to cu126 by hand"
    assert any(wanted in note for note in edits.notes)


def test_a_dependency_of_the_project_is_the_neighbour_of_choice(toml: Rewrite):
    text = '[dependency-groups]\nbuild = ["transformers"]\n' + HEAD + 'dependencies = ["transformers==4.44.0"]\n'
    assert toml(text) == text.replace('4.44.0"', '4.44.0", "torch==2.7.1"')


def test_another_build_gets_an_explicit_index_for_what_comes_from_it(toml: Rewrite):
    url = "https://download.pytorch.org/whl/cu126"
    moved = (change("torch", "2.6.0+cu126", "2.6.0"),)
    after = toml(HEAD + 'dependencies = ["torch==2.6.0"]\n', *moved, index_url=url)
    content = tomllib.loads(after)
    assert content["project"]["dependencies"] == ["torch==2.6.0+cu126"]
    assert content["tool"]["uv"] == {
        "index": [{"name": "pytorch-cu126", "url": url, "explicit": True}],
        "sources": {"torch": {"index": "pytorch-cu126"}},
    }  # fmt: skip
    after = toml(HEAD + 'dependencies = ["torch==2.6.0"]\n[tool.uv.sources]\nx = {git = "y"}\n', *moved, index_url=url)
    assert tomllib.loads(after)["tool"]["uv"]["sources"] == {"torch": {"index": "pytorch-cu126"}, "x": {"git": "y"}}


def test_poetry_where_it_is_plain(toml: Rewrite):
    text = (
        '[tool.poetry.dependencies]\npython = "^3.10"\ntorch = "^2.4"  # core\ntriton = "3.2.0"\n'
        'transformers = { version = "==4.44.0", extras = ["torch"] }\n[tool.poetry.group.gpu.dependencies]\n'
        'Torch = [{version = "2.2.2", platform = "darwin"}, {version = "2.6.0", platform = "linux"}]\n'
    )
    after = toml(text, change("torch", "2.7.1", "2.6.0"), change("transformers", "4.45.2", "4.44.0"))
    assert after == (
        text.replace("^2.4", "2.7.1")
        .replace('"2.6.0"', '"2.7.1"')
        .replace("3.2.0", "3.3.1")
        .replace("4.44.0", "4.45.2")
    )
    added = '[tool.poetry.dependencies]\npython = "^3.10"\n# attn-doctor: clears X001\ntorch = "2.7.1"\n'
    assert toml('[tool.poetry.dependencies]\npython = "^3.10"\n') == added
    with pytest.raises(DoctorError, match="cannot be edited here"):
        toml('[tool.poetry.dependencies]\ntorch = {path = "../torch"}\n')


def test_a_python_that_the_release_does_not_run_on_is_reported(tmp_path: Path):
    path = tmp_path / "pyproject.toml"
    path.write_text(HEAD + 'requires-python = ">=3.9"\ndependencies = ["torch==2.6.0"]\n')
    notes = edited(path, change("torch", "2.9.0", "2.6.0")).notes
    assert any("admits Python 3.9, and `torch` 2.9.0 wants >=3.10" in note for note in notes)


def test_lock_files_are_left_to_their_tools(tmp_path: Path):
    project, lock = tmp_path / "pyproject.toml", tmp_path / "uv.lock"
    project.write_text(HEAD + 'dependencies = ["torch==2.6.0"]\n')
    lock.write_text("version = 1\n")
    assert any("run `uv lock`" in note for note in edited(project).notes)
    others = {
        "uv.lock": ("version = 1\n", "uv lock"), "poetry.lock": ("", "poetry lock"), "pylock.toml": ("", "uv export"),
        "environment.yml": ("dependencies:\n- pytorch\n", "--format conda"), "Pipfile.lock": ("{}", "pipenv lock"),
        "Dockerfile": ("FROM x\nRUN pip install torch\n", "--format docker"), "setup.py": ("", "--pin"),
        "job.sh": ("pip install torch==2.6.0\n", "--format shell"), "pixi.lock": ("version: 6\n", "pixi lock"),
        "ci.yml": ("jobs:\n  a: {}\n", "--format shell"), "pixi.toml": ("[project]\n", "pixi lock"),
    }  # fmt: skip
    for name, (text, command) in others.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(DoctorError, match="is not edited") as caught:
            edits_of(report(change("torch", "2.7.1", "2.6.0")), [str(tmp_path / name)])
        assert command in (caught.value.hint or "")
        assert (tmp_path / name).read_text() == text
    both = edits_of(report(change("torch", "2.7.1", "2.6.0")), [str(lock), str(project)])
    assert [file.source.path for file in both.files] == [project] and any("uv.lock" in note for note in both.notes)


def test_of_a_folder_what_declares_its_environment_is_edited(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(HEAD + 'dependencies = ["torch==2.6.0"]\n')
    (tmp_path / "uv.lock").write_text('version = 1\n[[package]]\nname = "torch"\nversion = "2.6.0"\n')
    edits = edits_of(report(change("torch", "2.7.1", "2.6.0")), [str(tmp_path)])
    assert [file.source.path.name for file in edits.files] == ["pyproject.toml"]
    assert any("run `uv lock`" in note for note in edits.notes)
    extra = edits_of(report(change("torch", "2.7.1", "2.6.0")), [f"{tmp_path}/pyproject.toml[gpu]"])
    assert [file.source.path.name for file in extra.files] == ["pyproject.toml"]


def test_without_tomlkit_one_line_says_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    path = tmp_path / "pyproject.toml"
    path.write_text(HEAD + 'dependencies = ["torch==2.6.0"]\n')
    with pytest.raises(DoctorError, match="needs `tomlkit`") as caught:
        edited(path)
    assert "pip install tomlkit" in (caught.value.hint or "")


# --- any project --------------------------------------------------------------------------------------------------

OTHER = st.sampled_from(
    ["numpy", "pandas[parquet]>=2 ; python_version < '4'", "my-torch==2.6.0", "x @ https://example.org/x-1.0.tar.gz",
     "torch==2.2.2; sys_platform == 'darwin'", "a # b"]
)  # fmt: skip
SPEC = st.sampled_from([("==2.6.0", "==2.7.1"), (" == 2.4.1", " == 2.7.1"), (">=2,<2.7", "==2.7.1"), ("", "==2.7.1")])
MARKER = st.sampled_from(["", "; python_version >= '3.9'", " ; os_name == 'posix'"])


@st.composite
def array(draw) -> tuple[str, str, str, bool]:
    """An array of strings as people lay them out: before, after, after where another says it, no marker."""
    items = []
    for _ in range(draw(st.integers(0, 4))):
        other = draw(OTHER)
        items.append((other, other, other))
    spec, extras, marker = draw(SPEC), draw(st.sampled_from(["", "[opt-einsum]"])), draw(MARKER)
    items.insert(
        draw(st.integers(0, len(items))),
        tuple(f"torch{extras}{text}{marker}" for text in (*spec, spec[1] if spec[0] else "")),
    )
    wide, trailing, comment = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    quote = draw(st.sampled_from(['"', '"""']))
    texts = []
    for index in (0, 1, 2):
        rows = [f"{quote}{item[index]}{quote}" for item in items]
        if wide:
            note = '  # "torch==2.6.0", no item' if comment else ""
            rows = [f"    {row}{',' if trailing or row is not rows[-1] else ''}{note}" for row in rows]
            texts.append("[\n" + "\n".join(rows) + "\n]")
        else:
            texts.append("[" + ", ".join(rows) + ("," if trailing else "") + "]")
    return texts[0], texts[1], texts[2], not marker


@settings(deadline=None)
@given(
    first=array(), extra=array(), group=array(), newline=st.sampled_from(["\n", "\r\n"]), end=st.booleans(),
    bom=st.booleans(), order=st.permutations(range(5)),
)  # fmt: skip
def test_nothing_but_the_intended_strings_changes(tmp_path_factory, first, extra, group, newline, end, bom, order):
    texts = []
    for index in (0, 1):
        other = index + (index and first[3])  # what the project's dependencies say need not be said by an extra
        tables = [
            f'[project] # p\nname = "job"\nclassifiers = ["torch==2.6.0"]\ndependencies = {first[index]}  # "torch"\n',
            f"[project.optional-dependencies]\ngpu={extra[other]}\n'all' = [\"numpy\"]\n",
            f'[dependency-groups]\ndev = [{{include-group = "t"}}]\nt   =   {group[other]}\n',
            "[tool.black]\nline-length = 100\n# torch==2.6.0\ntext = '''\ndependencies = [\"torch==2.6.0\"]\n'''\n",
            '[[tool.mypy.overrides]]\nmodule = "torch.*"\n',
        ]
        text = "\n".join(tables[number] for number in order)
        texts.append((text if end else text.rstrip("\n")).replace("\n", newline))
    mark = b"\xef\xbb\xbf" if bom else b""
    path = tmp_path_factory.mktemp("edit") / "pyproject.toml"
    path.write_bytes(mark + texts[0].encode())
    for file in edited(path).files:
        file.write()
    assert path.read_bytes() == mark + texts[1].encode()
    content = tomllib.loads(texts[1])
    for item in content["project"]["dependencies"]:
        if item.startswith("torch") and "darwin" not in item:
            assert str(Requirement(item).specifier) == "==2.7.1"
    assert edited(path).diff == ""
