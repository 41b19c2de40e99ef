"""Changes of variables that make files load: each that is proposed was tried on the model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from doctor.model import Facts
from doctor.sources.binaries.files import Disk
from doctor.sources.binaries.loader import Failure, FailureKind
from doctor.sources.binaries.repair import Places, find_change, in_words
from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target, TargetKind
from tests.helpers.fake_trees import elf
from tests.helpers.watches import built_in_watch
from tests.sources.binaries.test_survey import extension, torch_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loader of Linux")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "env/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    return folder


def facts_of(site: Path, **environ: str) -> Facts:
    prefix = site.parents[2]
    target = Target(
        os.path.realpath(sys.executable), prefix, (site,), TargetKind.INTERPRETER, "3.11.7", "cpython", "Linux",
        os.uname().machine, "2.35", environ,
    )  # fmt: skip
    return collect(target, built_in_watch(), ("compiled",))


def test_a_library_that_only_a_wheel_has(site: Path) -> None:
    torch_tree(site)
    extension(site, "natten", "natten/_C.so", needed=("libc10.so", "libnvthing.so.3"))
    library = elf(site / "nvidia/thing/lib/libnvthing.so.3")
    (problem,) = facts_of(site).value("binaries.unloadable") or ("",)
    assert facts_of(site).value("natten.load_problem").endswith(f"it loads with `LD_LIBRARY_PATH={library.parent}`")
    assert problem == "" or str(library.parent) in problem
    kept = facts_of(site, LD_LIBRARY_PATH="/opt/x").value("natten.load_problem")
    assert kept.endswith(f"it loads with `LD_LIBRARY_PATH={library.parent}:/opt/x`")
    elf(library, undefined=("not_there_at_all",))
    assert "it loads with" not in facts_of(site).value("natten.load_problem")


def test_a_runtime_of_another_cuda_is_not_proposed(site: Path) -> None:
    torch_tree(site)  # for CUDA 12.8
    extension(site, "xformers", "xformers/_C.so", needed=("libc10.so", "libcudart.so.99"))
    elf(site / "nvidia/cu99/lib/libcudart.so.99")
    assert "it loads with" not in facts_of(site).value("xformers.load_problem")


def test_a_variable_that_leads_to_a_wrong_copy(site: Path, tmp_path: Path) -> None:
    torch_tree(site, "_ZN3c104cuda9SetDeviceEab")
    extension(site, "xformers", "xformers/_C.so", "wanted", needed=("libc10.so", "libhelp.so"))
    elf(site / "torch/lib/libhelp.so", defined=("wanted",))
    elf(site / "torch/lib/libc10.so", ("libhelp.so",), rpath="$ORIGIN", defined=("_ZN3c104cuda9SetDeviceEab",))
    assert facts_of(site).value("xformers.loads") is True
    wrong = elf(tmp_path / "wrong/libhelp.so")
    problem = facts_of(site, LD_PRELOAD=str(wrong)).value("xformers.load_problem")
    assert "`wanted`" in problem and problem.endswith("it loads with `unset LD_PRELOAD`")


def test_only_a_change_under_which_it_loads_is_returned(tmp_path: Path) -> None:
    places = Places(Disk(), (), None, "12.8", ())
    failure = Failure(FailureKind.UNDEFINED_SYMBOL, "x.so", ("a",))
    environ = {"LD_PRELOAD": "/a.so", "LD_LIBRARY_PATH": "/b"}
    assert find_change(failure, environ, places, lambda _: False) is None
    assert find_change(failure, environ, places, lambda tried: "LD_PRELOAD" in tried) == {"LD_LIBRARY_PATH": None}
    assert find_change(failure, {}, places, lambda _: True) is None
    versioned = Failure(FailureKind.SYMBOL_VERSION, "x.so", ("V2",), provider="/b/liby.so")
    assert find_change(versioned, {"LD_LIBRARY_PATH": "/a:/b:/c"}, places, lambda _: True) == {
        "LD_LIBRARY_PATH": "/a:/c"
    }
    assert in_words({"LD_LIBRARY_PATH": "/a", "LD_PRELOAD": None}) == "LD_LIBRARY_PATH=/a unset LD_PRELOAD"
