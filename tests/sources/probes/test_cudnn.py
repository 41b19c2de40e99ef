"""Which cuDNN torch loads and which TransformerEngine loads: the loader's rules and TE's own, on real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.model import ABSENT, Facts
from doctor.sources.probes.collect import collect
from doctor.sources.probes.cudnn import version_of
from doctor.sources.probes.elf import read_dynamic
from doctor.sources.probes.target import Target, TargetKind
from doctor.sources.watch import Watch
from doctor.util import deep_search
from tests.helpers.fake_trees import cudnn_at, cudnn_wheel, elf, install, torch

Cache = Callable[[dict[str, str]], None]


def read(target: Target) -> Facts:
    return collect(target, Watch(), ("cudnn", "te_cudnn"))


@pytest.fixture(autouse=True)
def _no_system(no_system_libraries: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from doctor.sources.probes import cudnn, te_cudnn
    from doctor.sources.probes import library_search as loader

    monkeypatch.setattr(loader, "DEFAULT_DIRS", ())
    monkeypatch.setattr(cudnn, "SYSTEM_DIRS", ())
    monkeypatch.setattr(te_cudnn, "DEFAULT_CUDA", "/nowhere")


def test_the_wheel_through_the_rpath(site: Path, target: Target) -> None:
    torch(site)
    library = cudnn_wheel(site, "9.1.0")
    facts = read(target)
    assert facts.value("cudnn.version") == "9.1.0"
    assert facts.value("cudnn.path") == str(library)
    assert facts.value("cudnn.copies") == (f"9.1.0 {library}",)
    assert not [key for key in facts if key.startswith("cudnn.te")]  # no TransformerEngine


def test_an_rpath_beats_the_library_path(
    site: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(site)
    cudnn_wheel(site, "9.1.0")
    other = cudnn_at(tmp_path / "elsewhere", "9.14.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other.parent))
    facts = read(target)
    assert facts.value("cudnn.version") == "9.1.0"
    assert [copy.split()[0] for copy in facts.value("cudnn.copies")] == ["9.1.0", "9.14.0"]


def test_a_runpath_loses_to_the_library_path(
    site: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(site, rpath=None, runpath="$ORIGIN/../../nvidia/cudnn/lib")
    cudnn_wheel(site, "9.1.0")
    assert read(target).value("cudnn.version") == "9.1.0"
    other = cudnn_at(tmp_path / "elsewhere", "9.14.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{other.parent}")
    facts = read(target)
    assert facts.value("cudnn.version") == "9.14.0"
    assert facts.value("cudnn.path") == str(other)


def test_a_runpath_switches_the_rpath_off(site: Path, target: Target, tmp_path: Path) -> None:
    torch(site, rpath=str(tmp_path / "old"), runpath="${ORIGIN}/../../nvidia/cudnn/lib")
    cudnn_at(tmp_path / "old", "8.9.7")
    cudnn_at(tmp_path / "old", "9.9.0")
    cudnn_wheel(site, "9.1.0")
    assert read(target).value("cudnn.version") == "9.1.0"


def test_condas_interpreter_lends_its_rpath(site: Path, tmp_path: Path) -> None:
    torch(site, rpath=None)
    prefix = site.parents[2]
    python = elf(prefix / "bin/python3.11", rpath="$ORIGIN/../lib")
    library = cudnn_at(prefix / "lib", "9.3.0")
    (prefix / "conda-meta").mkdir()
    facts = read(Target(str(python), prefix, (site,), TargetKind.INTERPRETER, "3.11.7"))
    assert facts.value("cudnn.path") == str(library)
    assert facts.value("cudnn.version") == "9.3.0"


def test_condas_torch_keeps_its_libraries_in_the_environment(site: Path, tmp_path: Path) -> None:
    folder = torch(site, rpath=None)
    for library in (folder / "lib").iterdir():
        library.unlink()
    prefix = site.parents[2]
    elf(prefix / "lib/libtorch_cuda.so", ("libcudnn.so.9",), rpath="$ORIGIN")
    cudnn_at(prefix / "lib", "9.3.0")
    facts = read(Target(None, prefix, (site,), TargetKind.INTERPRETER))
    assert facts.value("cudnn.version") == "9.3.0"


def test_a_store_of_links(site: Path, target: Target, tmp_path: Path) -> None:
    """uv can link files into its cache one by one: `$ORIGIN` is where the link is, not the file."""
    folder = torch(site)
    library = cudnn_wheel(site, "9.1.0")
    for number, path in enumerate([*(folder / "lib").iterdir(), *library.parent.iterdir()]):
        stored = tmp_path / f"store/{number}" / path.name
        stored.parent.mkdir(parents=True)
        path.rename(stored)
        path.symlink_to(stored)
    facts = read(target)
    assert facts.value("cudnn.version") == "9.1.0"
    assert facts.value("cudnn.path") == str(library)


def test_ldconfigs_cache_comes_last(site: Path, target: Target, tmp_path: Path, no_system_libraries: Cache) -> None:
    torch(site)
    library = cudnn_at(tmp_path / "usr", "9.14.0")
    no_system_libraries({"libcudnn.so.9": str(library)})
    assert read(target).value("cudnn.version") == "9.14.0"
    cudnn_wheel(site, "9.1.0")
    assert read(target).value("cudnn.version") == "9.1.0"


def test_none_to_be_found_is_unknown_with_the_reason(site: Path, target: Target) -> None:
    torch(site)
    fact = read(target)["cudnn.version"]
    assert fact.value is None and "the loader finds no `libcudnn.so.9`" in (fact.problem or "")


def test_a_cpu_torch_loads_none(site: Path, target: Target) -> None:
    torch(site, label="cpu", cuda=None)
    assert read(target).value("cudnn.version") == ABSENT


def test_no_torch_says_nothing_of_what_is_loaded(site: Path, target: Target) -> None:
    facts = read(target)
    assert "cudnn.version" not in facts
    assert facts.value("cudnn.copies") == ()


def test_torch_without_its_libraries_leaves_it_to_the_release(site: Path, target: Target) -> None:
    install(site, "torch", "2.6.0")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("")
    assert "cudnn.version" not in read(target)


def test_a_torch_library_that_cannot_be_read(site: Path, target: Target) -> None:
    folder = torch(site)
    for library in (folder / "lib").iterdir():
        library.write_bytes(b"\x7fELF cut off")
    fact = read(target)["cudnn.version"]
    assert fact.value is None and "cannot read torch's" in (fact.problem or "")


def test_a_tree_shows_only_what_travels_with_it(
    site: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Target(None, target.prefix, (site,), TargetKind.SITE_PACKAGES)
    torch(site)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cudnn_at(tmp_path / "host", "9.14.0").parent))
    facts = read(tree)
    assert "cudnn.version" not in facts and facts.value("cudnn.copies") == ()
    cudnn_wheel(site, "9.1.0")
    assert read(tree).value("cudnn.version") == "9.1.0"


def test_version_by_file_name(tmp_path: Path) -> None:
    real = elf(tmp_path / "libcudnn.so.9.14.0")
    (tmp_path / "libcudnn.so.9").symlink_to(real.name)
    assert version_of(str(tmp_path / "libcudnn.so.9"))[0] == "9.14.0"


def test_version_by_header(tmp_path: Path) -> None:
    library = elf(tmp_path / "lib/libcudnn.so.8")
    assert version_of(str(library))[0] is None
    header = tmp_path / "include/cudnn_version.h"
    header.parent.mkdir()
    header.write_text(
        "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 9\n#define CUDNN_PATCHLEVEL 7\n#define CUDNN_VERSION 0"
    )
    assert version_of(str(library)) == ("8.9.7", str(header))


def test_two_wheels_over_one_another_the_library_shows(site: Path, target: Target) -> None:
    """cu12 and cu13 own the same files: the metadata of both stays, the files are those of the last one."""
    torch(site)
    cudnn_wheel(site, "9.1.0", 12)
    cudnn_wheel(site, "9.19.0", 13)
    assert read(target).value("cudnn.version") == "9.19.0"


def test_links_to_one_file_are_one_copy(
    site: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = elf(tmp_path / "cuda/lib64/libcudnn.so.9.14.0")
    for name in ("libcudnn.so.9", "libcudnn.so"):
        (real.parent / name).symlink_to(real.name)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(real.parent))
    (copy,) = read(target).value("cudnn.copies")
    assert copy.startswith("9.14.0 ")


class TestTransformerEngine:
    """Incident F: torch is content with the wheel while TransformerEngine takes another."""

    @pytest.fixture
    def homes(self, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        torch(site)
        cudnn_wheel(site, "9.19.0")
        homes = {}
        for variable, version in (("CUDNN_HOME", "9.2.0"), ("CUDNN_PATH", "9.3.0"), ("CUDA_HOME", "9.4.0")):
            home = tmp_path / variable
            homes[variable] = str(home)
            cudnn_at(home / "targets/x86_64-linux/lib", version)
        monkeypatch.setenv("CUDA_PATH", str(tmp_path / "nothing-there"))
        return homes

    @pytest.mark.parametrize(
        ("release", "variables", "loads"),
        [
            ("2.20.2", ["CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME"], "9.2.0"),
            ("2.20.2", ["CUDNN_PATH", "CUDA_HOME"], "9.3.0"),
            ("2.11.0", ["CUDA_HOME"], "9.4.0"),
            ("2.11.0", [], "9.19.0"),
            ("2.10.0", ["CUDNN_PATH"], "9.3.0"),
            ("2.4.0", ["CUDA_HOME"], "9.4.0"),
            ("2.4.0", [], "9.19.0"),
            ("2.3.0", ["CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME"], "9.19.0"),
        ],
    )
    def test_order_by_release(
        self,
        site: Path,
        target: Target,
        homes: dict[str, str],
        monkeypatch: pytest.MonkeyPatch,
        release: str,
        variables: list[str],
        loads: str,
    ) -> None:
        install(site, "transformer_engine", release)
        for name in variables:
            monkeypatch.setenv(name, homes[name])
        facts = read(target)
        assert facts.value("cudnn.te_version") == loads
        assert facts.value("cudnn.version") == "9.19.0"  # torch does not look there

    @pytest.mark.parametrize(("release", "loads"), [("2.20.2", "9.14.0"), ("2.10.0", "9.19.0"), ("2.3.0", "9.19.0")])
    def test_the_system_library_before_the_wheel(
        self,
        site: Path,
        target: Target,
        homes: dict[str, str],
        tmp_path: Path,
        no_system_libraries: Cache,
        release: str,
        loads: str,
    ) -> None:
        install(site, "transformer_engine", release)
        library = cudnn_at(tmp_path / "usr", "9.14.0")
        no_system_libraries({"libcudnn.so": str(library), "libcudnn.so.9": str(library)})
        facts = read(target)
        assert facts.value("cudnn.te_version") == loads
        assert facts.value("cudnn.version") == "9.19.0"

    def test_the_greatest_name_of_a_home_counts(
        self, site: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(site, "transformer_engine", "2.20.2")
        for number in ("9.9.0", "9.14.0"):
            elf(tmp_path / f"home/lib/libcudnn.so.{number}")
        elf(tmp_path / "home/lib/stubs/libcudnn.so.9.99.0")
        monkeypatch.setenv("CUDNN_HOME", str(tmp_path / "home"))
        assert read(target).value("cudnn.te_version") == "9.9.0"  # by name, not by number: TE's own order

    def test_what_is_searched_in_depth(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from doctor.sources.probes import te_cudnn

        home, other = tmp_path / "home", tmp_path / "other"
        for name in ("lib/a/libcudnn.so.9", "lib/libcudnn.so", "lib/.kept/libcudnn.so", "lib/stubs/libcudnn.so",
                     "lib/libcudnn_ops.so", "lib/libcudnn.so.d/libcudnn.so.8"):  # fmt: skip
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).touch()
        (other / "deep").mkdir(parents=True)
        (other / "libcudnn.so.7").touch()
        (other / "deep" / "libcudnn.so.6").touch()
        (home / "linked").symlink_to(other)
        (home / "up").symlink_to(home)
        (home / "libcudnn.so.5").symlink_to("nowhere")
        wanted = ["lib/a/libcudnn.so.9", "lib/libcudnn.so", "lib/libcudnn.so.d/libcudnn.so.8", "libcudnn.so.5",
                  "linked/libcudnn.so.7", "up/libcudnn.so.5"]  # fmt: skip
        assert sorted(te_cudnn._deep(str(home))) == [str(home / name) for name in wanted]
        assert te_cudnn._deep(str(tmp_path / "none")) == []
        monkeypatch.setattr(deep_search, "MAX_FOLDERS", 2)
        with pytest.raises(te_cudnn._Unknown, match="more than 2 folders"):
            te_cudnn._deep(str(home))

    def test_unknown_with_the_reason(self, site: Path, target: Target) -> None:
        install(site, "transformer_engine", "1.7.0")
        fact = read(target)["cudnn.te_version"]
        assert fact.value is None and "before 1.9" in (fact.problem or "")

    def test_a_tree_does_not_show_what_the_machine_holds(self, site: Path, target: Target) -> None:
        install(site, "transformer_engine", "2.20.2")
        cudnn_wheel(site, "9.19.0")
        fact = read(Target(None, target.prefix, (site,), TargetKind.SITE_PACKAGES))["cudnn.te_version"]
        assert fact.value is None and "unknown here" in (fact.problem or "")


def test_a_library_that_the_system_linked() -> None:
    """Not of our own making: what this interpreter needs includes the C library."""
    import sys

    assert any(
        name.startswith(("libc.", "libpython")) for name in read_dynamic(str(Path(sys.executable).resolve())).needed
    )
