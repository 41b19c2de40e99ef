"""requirements.txt in place: nothing but the intended lines changes, in files as people write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.apply.edit.edits import edits_of
from doctor.apply.edit.lines import read_lines
from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.sources.manifests.read import read_manifests
from tests.helpers.onefix import TORCH, change, edited, report
from tests.helpers.rulebook import builtin_rulebook

Rewrite = Callable[..., str]
WHEEL = (
    "https://github.com/Dao-AILab/flash-attention/releases/download/v{0}/"
    "flash_attn-{0}+cu12torch{1}cxx11abi{2}-cp311-cp311-linux_x86_64.whl"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch==2.6.0", "torch==2.7.1"),
        ("torch == 2.6.0", "torch == 2.7.1"),
        ("torch===2.6.0", "torch===2.7.1"),
        ("Torch==2.6.0", "Torch==2.7.1"),
        ("torch", "torch==2.7.1"),
        ("torch  # any", "torch==2.7.1  # any"),
        ("torch>=2.4,<2.7", "torch==2.7.1"),
        ("torch >=2.4, <2.7 ; python_version<'3.12'", "torch ==2.7.1 ; python_version<'3.12'"),
        ("torch==2.6.*", "torch==2.7.1"),
        ("torch~=2.6.0", "torch==2.7.1"),
        ("torch (>=2.4)", "torch (==2.7.1)"),
        ("torch[opt-einsum]==2.6.0", "torch[opt-einsum]==2.7.1"),
        ("torch [opt-einsum] >=2", "torch [opt-einsum] ==2.7.1"),
        ("torch==2.6.0+cu124", "torch==2.7.1"),
        ("torch==2.6.0 --no-deps", "torch==2.7.1 --no-deps"),
        ("\ttorch==2.6.0\t# c", "\ttorch==2.7.1\t# c"),
        ("torch==2.6.0;sys_platform=='linux'#no comment", None),
        ("torch>=2.4,\\\n    <2.7\nnumpy", "torch==2.7.1\nnumpy"),
        ("torch \\\n  ==2.6.0 # c", "torch \\\n  ==2.7.1 # c"),
        ("torch @ https://example.org/torch-2.6.0%2Bcu124-cp311-cp311-linux_x86_64.whl", "torch==2.7.1"),
        ("torch @ https://example.org/torch-2.6.0-cp311-cp311-linux_x86_64.whl ; os_name=='posix'",
         "torch==2.7.1 ; os_name=='posix'"),
        ("https://example.org/torch-2.6.0-cp311-cp311-linux_x86_64.whl#sha256=ab", "torch==2.7.1"),
        ("torch==2.6.0; sys_platform == 'darwin'\ntorch==2.6.0; sys_platform == 'linux'",
         "torch==2.6.0; sys_platform == 'darwin'\ntorch==2.7.1; sys_platform == 'linux'"),
        ("torch==2.5.0; python_version < '3.10'\ntorch==2.6.0; python_version >= '3.10'",
         "torch==2.5.0; python_version < '3.10'\ntorch==2.7.1; python_version >= '3.10'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", [True, False])
def test_a_line_says_the_new_version_and_keeps_the_rest(rewrite, before: str, after: str | None, newline: str, end):
    if after is None:
        with pytest.raises(DoctorError, match="is not a marker"):
            rewrite(before)
        return
    last = newline if end else ""
    assert rewrite(before.replace("\n", newline) + last) == after.replace("\n", newline) + last


def test_what_says_it_already_stays(rewrite: Rewrite):
    for text in (
        "torch==2.7.1",
        "torch==2.7.1.0",
        "torch==2.7.1+cu126",
        "torch @ file:///w/torch-2.7.1-py3-none-any.whl",
    ):
        assert rewrite(text) == text
    assert rewrite("torch==2.7.1+cu118") == "torch==2.7.1"  # not the build that was judged


def test_parts_follow_their_leader(rewrite: Rewrite):
    text = "torch==2.6.0\nnvidia-cudnn-cu12==9.1.0.70\ntriton==3.2.0\nnvidia-nccl-cu12>=2\nnvidia-ml-py==12.0\n"
    wanted = "torch==2.7.1\nnvidia-cudnn-cu12==9.5.1.17\ntriton==3.3.1\nnvidia-nccl-cu12>=2\nnvidia-ml-py==12.0\n"
    assert rewrite(text) == wanted


def test_orphans_and_removed_packages_lose_their_line(rewrite: Rewrite):
    moved = change("torch", "2.11.0", "2.10.0")
    text = "# a\ntorch==2.10.0\nnvidia-cudnn-cu12==9.10.2.21 \\\n  # with its continuation\nnumpy"
    after = rewrite(text, moved, torch="2.10.0", nvidia_cudnn_cu12="9.10.2.21")
    assert after == "# a\ntorch==2.11.0\nnumpy"
    assert rewrite("a\nflash-attn==2.5.6", change("flash-attn", None, "2.5.6"), flash_attn="2.5.6") == "a\n"


def test_a_companion_only_the_file_knows_moves_along(rewrite: Rewrite):
    assert rewrite("torch==2.6.0\ntorchvision==0.21.0\n") == "torch==2.7.1\ntorchvision==0.22.1\n"
    assert rewrite("torch==2.6.0\ntorchvision>=0.15\n") == "torch==2.7.1\ntorchvision>=0.15\n"


def test_no_release_from_before_the_torch_it_would_meet_is_put_in(rewrite: Rewrite):
    """vllm 0.2.5 names no upper bound; that is no reason to go back to it."""
    text = "torch==2.6.0\nvllm>=0.26.0\n"
    assert "\nvllm>=0.26.0\n" in rewrite(text, TORCH, change("transformers", "4.51.3", "4.44.0"))


def test_an_index_for_another_cuda_becomes_that_of_the_build_judged(rewrite: Rewrite):
    text = "--index-url https://download.pytorch.org/whl/cu124\n--extra-index-url=https://${USER}@example.org/cu124\ntorch==2.6.0+cu124"
    assert rewrite(text) == text.replace("whl/cu124", "whl/cu126").replace("2.6.0+cu124", "2.7.1")
    text = "-i https://download.pytorch.org/whl/cu118\ntransformers==4.44.0"
    assert rewrite(text, change("transformers", "4.45.0", "4.44.0")) == text.replace("4.44", "4.45")


def test_another_build_brings_its_index_once(tmp_path: Path):
    url = "https://download.pytorch.org/whl/cu126"
    path = tmp_path / "requirements.txt"
    path.write_text("# head\n\n--no-binary flash-attn\ntorch==2.6.0\n")
    wanted = report(change("torch", "2.6.0+cu126", "2.6.0"), index_url=url)
    for file in edits_of(wanted, [str(path)]).files:
        file.write()
    assert path.read_text() == (
        f"# head\n\n--no-binary flash-attn\n# attn-doctor: clears X001\n--extra-index-url {url}\ntorch==2.6.0+cu126\n"
    )
    assert edits_of(wanted, [str(path)]).diff == ""


def test_a_wheel_for_the_old_torch_becomes_the_one_for_the_new(rewrite: Rewrite):
    moved = change("torch", "2.8.0", "2.6.0")
    before, after = WHEEL.format("2.8.3", "2.6", "FALSE"), WHEEL.format("2.8.3", "2.8", "TRUE")
    assert rewrite(f"torch==2.6.0\nflash-attn @ {before}\n", moved, flash_attn="2.8.3") == (
        f"torch==2.8.0\nflash-attn @ {after}\n"
    )
    assert rewrite(f"{before}\ntorch==2.6.0", moved, flash_attn="2.8.3") == f"{after}\ntorch==2.8.0"
    marked = '{}; platform_system == "Linux" and python_version == "3.11"\ntorch==2.6.0'
    there = "https://example.org/x-1.0+torch2.6.0-cp311-cp311-win_amd64.whl; platform_system == 'Windows'\n"
    assert rewrite(there + marked.format(before), moved, flash_attn="2.8.3") == (
        there + marked.format(after).replace("2.6.0", "2.8.0")
    )
    older = WHEEL.format("2.5.6", "2.1", "FALSE")
    assert rewrite(f"flash-attn @ {older}\ntorch", moved, flash_attn="2.5.6") == "flash-attn==2.5.6\ntorch==2.8.0"
    other = (
        "causal-conv1d @ https://example.org/causal_conv1d-1.5.0+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    )
    assert rewrite(f"torch==2.6.0\n{other}", moved) == "torch==2.8.0\ncausal-conv1d==1.5.0"
    assert rewrite(before, change("flash-attn", "2.7.4", "2.8.3"), flash_attn="2.8.3") in (
        WHEEL.format("2.7.4", "2.6", "FALSE"), "flash-attn==2.7.4",
    )  # fmt: skip


def test_the_extra_that_brings_the_core_is_requested(rewrite: Rewrite):
    moved = change("transformer-engine", "2.13.0", "2.3.0")
    known = {"torch": "2.8.0", "transformer_engine": "2.3.0"}
    assert (
        rewrite("transformer-engine[pytorch]==2.3.0", moved, **known) == "transformer-engine[pytorch,core-cu12]==2.13.0"
    )
    assert rewrite("transformer_engine==2.3.0", moved, **known) == "transformer_engine[core-cu12]==2.13.0"
    text = "transformer-engine[core_cu12,pytorch]==2.3.0"
    assert rewrite(text, moved, **known) == text.replace("2.3.0", "2.13.0")


def test_what_one_line_says_another_need_not_repeat(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("-c limits.txt\ntorch>=2\ntorch==2.6.0\ntorch<2.7\n")
    (tmp_path / "limits.txt").write_text("torch<3\ntorch!=2.7.1\n")
    texts = {file.source.path.name: file.text for file in edited(tmp_path / "requirements.txt").files}
    assert texts == {
        "requirements.txt": "-c limits.txt\ntorch>=2\ntorch==2.7.1\ntorch==2.7.1\n",
        "limits.txt": "torch<3\ntorch==2.7.1\n",
    }


# --- what the file does not name ----------------------------------------------------------------------------------


def test_a_package_that_is_not_named_comes_behind_a_related_one(rewrite: Rewrite):
    text = "# data\npandas\n\n# models\ntransformers==4.44.0  # hf\nnumpy"
    added = "# attn-doctor: clears X001\ntorch==2.7.1\n"
    assert rewrite(text) == text.replace("# hf\n", f"# hf\n{added}")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_it_comes_last_where_nothing_is_related_and_the_end_stays_as_it_was(rewrite: Rewrite, newline: str):
    rows = f"# attn-doctor: clears X001{newline}torch==2.7.1"
    assert rewrite(f"pandas{newline}") == f"pandas{newline}{rows}{newline}"
    assert rewrite(f"a{newline}pandas") == f"a{newline}pandas{newline}{rows}"


def test_a_line_for_another_system_is_joined_by_one_for_this(rewrite: Rewrite):
    text = "torch==2.2.2; sys_platform == 'darwin'\n"
    assert rewrite(text) == text + '# attn-doctor: clears X001\ntorch==2.7.1; sys_platform == "linux"\n'


def test_includes_are_edited_where_the_line_lives(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    for name, text in {"requirements.txt": "-r sub/base.txt\n-c limits.txt\nnumpy\n", "sub/base.txt": "torch==2.6.0\n",
                       "limits.txt": "torch<2.7\r\ntriton==3.2.0"}.items():  # fmt: skip
        (tmp_path / name).write_bytes(text.encode())
    edits = edited(tmp_path / "requirements.txt")
    assert {file.source.path.relative_to(tmp_path).as_posix(): file.text for file in edits.files} == {
        "sub/base.txt": "torch==2.7.1\n", "limits.txt": "torch==2.7.1\r\ntriton==3.3.1",
    }  # fmt: skip
    edits.write()
    assert edited(tmp_path / "requirements.txt").diff == ""


def test_files_that_include_one_another_end(tmp_path: Path):
    (tmp_path / "a.txt").write_text("-r b.txt\ntorch==2.6.0\n")
    (tmp_path / "b.txt").write_text("-ra.txt\n")
    assert [file.source.path.name for file in edited(tmp_path / "a.txt").files] == ["a.txt"]


def test_nothing_outside_the_project_is_touched(tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "shared.txt").write_text("torch==2.6.0\n")
    path = tmp_path / "project" / "requirements.txt"
    path.write_text("-r ../shared.txt\n")
    assert [file.source.path.name for file in edited(path).files] == ["requirements.txt"]


# --- what is not edited -------------------------------------------------------------------------------------------


def test_hashes_of_another_release_are_not_invented(rewrite: Rewrite):
    text = "numpy==1.26.4 --hash=sha256:aa\ntorch==2.6.0 \\\n    --hash=sha256:ab \\\n    --hash=sha256:cd\n"
    with pytest.raises(DoctorError, match=r"requirements\.txt:2: `torch` is pinned with hashes") as caught:
        rewrite(text)
    assert "uv pip compile --generate-hashes" in (caught.value.hint or "") and "torch==2.7.1" in (
        caught.value.hint or ""
    )
    with pytest.raises(DoctorError, match="pinned with hashes"):
        rewrite("numpy==1.26.4 --hash=sha256:aa\n")  # a line without one would make pip refuse the file
    same = "torch==2.7.1 --hash=sha256:ab\n"
    assert rewrite(same) == same


@pytest.mark.parametrize(
    ("header", "command"),
    [
        ("# This file was autogenerated by uv via the following command:\n"
         "#    uv pip compile requirements.in -o requirements.txt\n",
         "uv pip compile requirements.in -o requirements.txt"),
        ("#\n# This file is autogenerated by pip-compile with Python 3.11\n# by the following command:\n#\n"
         "#    pip-compile requirements.in\n#\n", "pip-compile requirements.in"),
    ],
)  # fmt: skip
def test_a_compiled_file_is_made_again_from_its_source(rewrite: Rewrite, header: str, command: str):
    with pytest.raises(DoctorError, match="is made by") as caught:
        rewrite(header + "torch==2.6.0\n    # via -r requirements.in\n")
    assert command in caught.value.message and "--write" in (caught.value.hint or "")
    assert rewrite(header + "torch==2.7.1\n") == header + "torch==2.7.1\n"


def test_a_version_out_of_a_variable_is_reported(rewrite: Rewrite):
    with pytest.raises(DoctorError, match=r"requirements\.txt:2: `torch==\$\{TORCH\}` cannot be edited") as caught:
        rewrite("a\ntorch==${TORCH}\n")
    assert "torch==2.7.1" in (caught.value.hint or "")
    assert rewrite("numpy==${NUMPY}\ntorch\n") == "numpy==${NUMPY}\ntorch==2.7.1\n"


def test_a_checkout_is_left_to_its_owner(rewrite: Rewrite):
    moved = change("flash-attn", "2.8.3", "2.7.4")
    with pytest.raises(DoctorError, match="from a checkout"):
        rewrite(
            "-e git+https://github.com/Dao-AILab/flash-attention@v2.7.4#egg=flash-attn\n", moved, flash_attn="2.7.4"
        )


# --- any file -----------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A logical line as written, and as it has to be afterwards."""

    before: str
    after: str
    form: str = ""
    always: bool = False  # a version, or none, for every machine


SPACE = st.sampled_from(["", " ", "  ", "\t"])
COMMENT = st.sampled_from(["", "  # pinned, see #12", " # torch==2.6.0", "\t#", "  # ünïcode ✓"])
MARKERS = st.sampled_from(
    ["", '; python_version >= "3.9"', " ; sys_platform == 'linux' and python_version<'3.13'", ";os_name=='posix'"]
)
EXTRAS = st.sampled_from(["", "[opt-einsum]", "[a, b]", " [x]"])
NEUTRAL = st.sampled_from(
    [
        "", "   ", "# torch==2.6.0", "#", "## --- ##", "numpy<3", "pandas[parquet] >=2 ; python_version<'4'",
        "--find-links https://download.pytorch.org/whl/torch_stable.html", "--no-binary :all:", "--pre",
        "--extra-index-url https://${USER}:${TOKEN}@example.org/simple", "datasets==${DATASETS}", "./local/package",
        "-e .", "torch-geometric==2.5", "torchmetrics>=1 # torch", "pytorch-lightning==2.4.0",
        "my-torch @ https://example.org/torch-2.6.0.tar.gz", "git+https://github.com/org/torchtools@v2.6.0#egg=torchtools",
        "einops \\\n  >=0.7 \\\n  ,<1", "scipy==1.13.0 \\\n    --hash=sha256:0123 \\\n    --hash=sha256:4567",
        "torch==2.2.2; sys_platform == 'darwin'", "torch>=2; platform_machine == 'aarch64'  # \\", "ruff\t\t",
    ]
)  # fmt: skip


@st.composite
def torch_line(draw) -> Piece:
    name, extras, gap = draw(st.sampled_from(["torch", "Torch", "TORCH"])), draw(EXTRAS), draw(SPACE)
    lead, tail, marker, comment = draw(SPACE), draw(SPACE), draw(MARKERS), draw(COMMENT)
    inner = draw(SPACE)
    form = draw(st.sampled_from(["exact", "range", "none", "continued", "address"]))
    if form == "exact":
        old = draw(st.sampled_from(["2.6.0", "2.6.0+cu124", "2.4.1", "2.6.0.post1"]))
        before, after = f"{gap}=={inner}{old}", f"{gap}=={inner}2.7.1"
    elif form == "range":
        before, after = f"{gap}>=2.4,{inner}<2.7", f"{gap}==2.7.1"
    elif form == "continued":
        before, after = f"{gap} \\\n {inner}~=2.6.0", f"{gap} \\\n {inner}==2.7.1"
    elif form == "address":
        marker = f" {marker}" if marker else ""
        before, after = " @ https://example.org/torch-2.6.0%2Bcu124-cp311-cp311-linux_x86_64.whl", "==2.7.1"
    else:
        gap = ""
        before, after = "", "==2.7.1"
    rest = f"{tail}{marker}{comment}"
    always = form != "address" and not marker
    return Piece(f"{lead}{name}{extras}{before}{rest}", f"{lead}{name}{extras}{after}{rest}", form, always)


def anchored(pieces: list[Piece]) -> list[Piece]:
    """A line without a version stays as it is where another one, which always counts, says the version."""
    always = [number for number, piece in enumerate(pieces) if piece.always]
    anchor = next((number for number in always if pieces[number].form == "exact"), always[0] if always else None)
    return [
        Piece(piece.before, piece.before) if piece.form == "none" and anchor not in (None, number) else piece
        for number, piece in enumerate(pieces)
    ]


@settings(deadline=None)
@given(
    pieces=st.lists(st.one_of(torch_line(), NEUTRAL.map(lambda text: Piece(text, text))), max_size=12),
    target=torch_line(), at=st.integers(0, 12), newline=st.sampled_from(["\n", "\r\n"]), end=st.booleans(),
    bom=st.booleans(),
)  # fmt: skip
def test_nothing_but_the_intended_lines_changes(tmp_path_factory, pieces, target, at, newline, end, bom):
    pieces.insert(min(at, len(pieces)), target)
    pieces = anchored(pieces)
    if pieces[-1].before.endswith("\\"):
        end = True
    before, after = (
        ("\n".join(texts) + ("\n" if end else "")).replace("\n", newline)
        for texts in ([piece.before for piece in pieces], [piece.after for piece in pieces])
    )
    mark = b"\xef\xbb\xbf" if bom else b""
    path = tmp_path_factory.mktemp("edit") / "requirements.txt"
    path.write_bytes(mark + before.encode())
    for file in edited(path).files:
        file.write()
    assert path.read_bytes() == mark + after.encode()
    assert path.with_name("requirements.txt.bak").read_bytes() == mark + before.encode()
    assert edited(path).diff == ""


@settings(deadline=None)
@given(pieces=st.lists(torch_line(), min_size=1, max_size=4), newline=st.sampled_from(["\n", "\r\n"]))
def test_the_result_declares_what_was_wanted(tmp_path_factory, pieces, newline):
    path = tmp_path_factory.mktemp("edit") / "requirements.txt"
    path.write_bytes(newline.join(piece.before.replace("\n", newline) for piece in pieces).encode())
    for file in edited(path).files:
        file.write()
    said = Facts([fact("python.version", "3.11.7", "test")])
    assert read_manifests([str(path)], said, watch_of(builtin_rulebook())).facts.value("torch.version") == "2.7.1"


@settings(deadline=None)
@given(st.text(alphabet="ab=2.\\#-\r\n \t;@['\"]~<>,:/é\u2028\x0c", max_size=60))
def test_the_lines_are_the_whole_text(text: str):
    lines = read_lines(text)
    assert "".join(text[line.start : line.end] for line in lines) == text
    assert [line.start for line in lines[1:]] == [line.end for line in lines[:-1]]


def test_the_fix_has_to_change_a_package(tmp_path: Path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.6.0\n")
    setting = type(TORCH)("env", "NVTE_FLASH_ATTN", None, "0", "why", ("X001",))
    assert edits_of(report(setting), [str(path)]).files == ()
