"""The embedded index: complete enough, quick to load, and refreshed from what a package index really says."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits, normalized
from doctor.util.resources import rules_dir

FILE = rules_dir() / "index" / "releases.json.gz"
LINUX = Platform("3.11.7")


@pytest.fixture(scope="module")
def refresh():
    path = Path(__file__).parents[2] / "scripts" / "release" / "refresh_index.py"
    spec = importlib.util.spec_from_file_location("refresh_index", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stack_is_on_record():
    index = load_index()
    stack = "torch torchvision torchaudio flash-attn transformer-engine transformers vllm xformers xtuner megatron-core"
    for package in (*stack.split(), "deepspeed", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"):
        assert len(index.releases(package)) > 5, package
    assert index.refreshed >= "2026-11"


def test_it_stays_small_and_loads_within_thirty_milliseconds():
    assert FILE.stat().st_size <= 150_000
    best = min(_seconds_to_load() for _ in range(5))
    assert best < 0.03


def _seconds_to_load() -> float:
    load_index.cache_clear()
    began = time.perf_counter()
    load_index().releases("torch")
    return time.perf_counter() - began


def test_torch_names_its_cudnn_for_the_platform():
    release = load_index().release("torch", "2.6.0+cu124")
    assert release is not None
    pins = {need.package: need.pin for need in needs_of(release.requires, LINUX)}
    assert pins["nvidia-cudnn-cu12"] == "9.1.0.70"
    arm = {need.package for need in needs_of(release.requires, Platform("3.11.7", "Linux", "aarch64"))}
    assert "nvidia-cudnn-cu12" not in arm and "filelock" in arm


def test_extras_bring_the_core_only_when_requested():
    release = load_index().release("transformer-engine", "2.13.0")
    assert release is not None
    assert needs_of(release.requires, LINUX) == ()
    with_core = {need.package: need.pin for need in needs_of(release.requires, LINUX, frozenset({"core-cu12"}))}
    assert with_core == {"transformer-engine-cu12": "2.13.0"}


@pytest.mark.parametrize(
    ("package", "version", "platform", "installs"),
    [
        ("torch", "2.4.0", Platform("3.12.1"), True),
        ("torch", "2.4.0", Platform("3.13.1"), False),  # no wheel, no source
        ("megatron-core", "0.18.0", Platform("3.11.7"), False),  # Requires-Python
        ("megatron-core", "0.18.0", Platform("3.12.3"), True),
        ("flash-attn", "2.8.3", Platform("3.12.3"), True),  # from source
        ("vllm", "0.10.2", Platform("3.12.3"), True),  # abi3 wheel of 3.8
        ("torch", "2.6.0", Platform(None), True),  # an unknown Python excludes nothing
        ("nvidia-cudnn-cu12", "9.1.0.70", Platform("3.11.7", "Linux", "riscv64"), False),
    ],
)
def test_what_installs_where(package: str, version: str, platform: Platform, installs: bool):
    release = load_index().release(package, version)
    assert release is not None
    assert release.installs_on(platform) is installs


def test_flash_attn_is_a_build_everywhere():
    release = load_index().release("flash-attn", "2.8.3")
    assert release is not None and not release.has_wheel(LINUX)


def test_yanked_releases_are_marked():
    release = load_index().release("nvidia-cudnn-cu12", "9.25.0.15")
    assert release is not None and release.yanked


def test_an_unknown_package_has_no_releases():
    assert load_index().releases("no-such-thing") == {}
    assert load_index().release("no-such-thing", "1.0") is None
    assert "no-such-thing" not in load_index()


def test_a_line_that_no_installer_reads_binds_no_one():
    assert [need.package for need in needs_of(("fine>=1", "!!broken"), LINUX)] == ["fine"]


def test_names_and_ranges():
    assert normalized("Transformer_Engine.Torch") == "transformer-engine-torch"
    assert admits(">=2.7,<2.8", "2.7.1") and not admits("==2.6.0", "2.7.1")
    assert admits("==2.6.0", "2.6.0+cu124") and admits("", "1.0")


def test_a_damaged_index_is_one_clear_sentence(tmp_path: Path):
    damaged = tmp_path / "releases.json.gz"
    damaged.write_bytes(FILE.read_bytes()[:200])
    with pytest.raises(DoctorError, match="release index"):
        load_index(damaged)


# --- the refresh script, on a package index made here -------------------------------------------------------------


def _wheel(requires: list[str]) -> bytes:
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 9.0\n" + "".join(f"Requires-Dist: {r}\n" for r in requires)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("torch-9.0.dist-info/METADATA", metadata)
    return stream.getvalue()


def _sdist(metadata: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("thing-1.0/PKG-INFO")
        member.size = len(metadata.encode())
        archive.addfile(member, io.BytesIO(metadata.encode()))
    return stream.getvalue()


@pytest.fixture
def served(tmp_path: Path):
    """A simple index in a folder; returns (folder, address)."""

    def serve(package: str, links: list[tuple[str, bytes, str]], as_json: bool = False) -> str:
        folder = tmp_path / "simple" / package
        folder.mkdir(parents=True)
        for name, content, _ in links:
            (folder / name).write_bytes(content)
        if as_json:
            files = [{"filename": name, "url": f"{folder.as_uri()}/{name}", "requires-python": ">=3.9",
                      "upload-time": "2030-01-02T03:04:05Z"} for name, _, _ in links]  # fmt: skip
            page = json.dumps({"files": files})
        else:
            page = "".join(f'<a href="{folder.as_uri()}/{name}" {more}>{name}</a>\n' for name, _, more in links)
        (folder / "index.html").write_text(page)
        return tmp_path.as_uri() + "/simple"

    return serve


@pytest.mark.parametrize("as_json", [False, True])
def test_refresh_reads_new_releases(refresh, served, monkeypatch, as_json: bool):
    name = "torch-9.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    more = 'data-requires-python="&gt;=3.9" data-upload-time="2030-01-02T03:04:05Z"'
    address = served("torch", [(name, _wheel(["nvidia-cudnn-cu12==9.99.0.1", 'x; extra == "opt"']), more)], as_json)
    _read_pages_as_files(refresh, monkeypatch)
    line = refresh.refreshed("torch", {}, address)
    assert line["releases"]["9.0"] == {
        "d": "2030-01-02", "rp": ">=3.9", "rd": ["nvidia-cudnn-cu12==9.99.0.1"], "t": ["cp311"], "m": ["x86_64"],
    }  # fmt: skip


def test_refresh_keeps_what_is_on_record_and_reads_yanks_again(refresh, served, monkeypatch):
    name = "torch-9.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    address = served("torch", [(name, _wheel(["other"]), 'data-yanked="bad"')])
    _read_pages_as_files(refresh, monkeypatch)
    line = refresh.refreshed("torch", {"releases": {"9.0": {"rd": ["kept"]}}, "builds": {"a": 1}}, address)
    assert line["releases"]["9.0"]["rd"] == ["kept"] and line["releases"]["9.0"]["y"] == 1
    assert line["builds"] == {"a": 1}


def test_refresh_leaves_out_what_only_a_build_could_show(refresh, served, monkeypatch, capsys):
    dynamic = "Metadata-Version: 2.2\nName: thing\nVersion: 1.0\nDynamic: Requires-Dist\n"
    static = "Metadata-Version: 2.2\nName: thing\nVersion: 1.1\nRequires-Dist: torch\n"
    links = [("thing-1.0.tar.gz", _sdist(dynamic), ""), ("thing-1.1.tar.gz", _sdist(static), "")]
    address = served("thing", links)
    _read_pages_as_files(refresh, monkeypatch)
    line = refresh.refreshed("thing", {}, address)
    assert list(line["releases"]) == ["1.1"] and line["releases"]["1.1"] == {"rd": ["torch"], "s": 1}
    assert "thing 1.0" in capsys.readouterr().err


def test_free_threaded_and_foreign_wheels_do_not_count(refresh):
    tags = refresh.file_tags
    assert tags("torch-2.9.0-cp313-cp313t-manylinux_2_28_x86_64.whl")[1] == set()
    assert tags("torch-2.9.0-cp313-cp313-win_amd64.whl")[1] == set()
    assert tags("vllm-0.10.2-cp38-abi3-manylinux1_x86_64.whl")[1] == {"cp38+"}
    assert tags("xtuner-0.1.23-py3-none-any.whl")[1:3] == ({"py3"}, {"any"})
    assert tags("not a file") is None


def test_the_written_index_reads_back_the_same(refresh, tmp_path: Path):
    path = tmp_path / "releases.json.gz"
    packages = refresh.read_index(FILE)
    size = refresh.write_index(path, packages)
    assert path.stat().st_size == size
    text = gzip.decompress(path.read_bytes())  # not the packed bytes: Pythons write different gzip headers
    assert text == gzip.decompress(FILE.read_bytes())
    assert ReleaseIndex.from_text(text.decode()).packages


def _read_pages_as_files(refresh, monkeypatch) -> None:
    """A folder has no server that picks index.html; all else stays the script's own."""
    real = refresh.fetch
    monkeypatch.setattr(refresh, "fetch", lambda url, accept="": real(url + "index.html" if url.endswith("/") else url))
    monkeypatch.setattr(refresh, "beside", lambda url: None)
