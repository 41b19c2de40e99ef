"""Whether packages load, on real stdlib modules and on made trees of torch and extensions."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from doctor.facts.derived.compiled import runs_on
from doctor.model import Facts
from doctor.packages.torch_symbols import TorchBuild, load_torch_symbols, packed
from doctor.sources.binaries.files import Disk
from doctor.sources.binaries.fit import SymbolBinder, demangled, of_torch, range_of
from doctor.sources.binaries.loader import Failure, FailureKind, Process
from doctor.sources.binaries.packages import archs_for_pick, opening_of
from doctor.sources.binaries.survey import Installed, Place, Survey, builds_for, fitting_builds, labelled
from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target, TargetKind
from tests.helpers.fake_trees import elf, install
from tests.helpers.watches import built_in_watch

CAPTURES = Path(__file__).parents[2] / "captures"
RULES = Path(__file__).parents[3] / "rules"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the loader of Linux")
SET_DEVICE = "_ZN3c104cuda9SetDeviceEab"  # c10::cuda::SetDevice(signed char, bool), from torch 2.8 on


@pytest.fixture
def process() -> Process:
    """This interpreter, before it loads anything else."""
    found = Process(Disk(), {}, os.uname().machine)
    found.start(os.path.realpath(sys.executable))
    return found


@LINUX
def test_modules_of_the_standard_library_load_as_predicted(process: Process) -> None:
    folder = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    binder = SymbolBinder()
    modules = sorted(folder.glob("*.so"))[:25]
    assert modules or not folder.is_dir()
    for module in modules:
        try:
            ctypes.CDLL(str(module))
            real = True
        except OSError:
            real = False
        found = process.dlopen(str(module), binder=binder)
        assert isinstance(found, Failure) is not real, (module, found)
    binder.close()


@LINUX
def test_each_kind_of_failure(process: Process, tmp_path: Path) -> None:
    binder = SymbolBinder()

    def failure(path: Path) -> Failure:
        found = process.dlopen(str(path), binder=binder)
        assert isinstance(found, Failure)
        return found

    missing = failure(elf(tmp_path / "a.so", ("libnot-there.so.7",)))
    assert (missing.kind, missing.missing) == (FailureKind.MISSING_LIBRARY, ("libnot-there.so.7",))
    unbound = failure(elf(tmp_path / "b.so", ("libc.so.6",), undefined=("malloc", "not_there_at_all")))
    assert (unbound.kind, unbound.missing, unbound.count) == (FailureKind.UNDEFINED_SYMBOL, ("not_there_at_all",), 2)
    assert failure(elf(tmp_path / "c.so", machine=40)).kind == FailureKind.OTHER_MACHINE
    (tmp_path / "d.so").write_bytes(b"\x7fELF" + bytes(90))
    assert failure(tmp_path / "d.so").kind == FailureKind.DAMAGED
    assert failure(tmp_path / "none.so").kind == FailureKind.MISSING_LIBRARY
    assert not [one for one in process.loaded if str(tmp_path) in one.path], "a failed call leaves nothing behind"


@LINUX
def test_a_symbol_that_no_relocation_uses_is_not_looked_up(process: Process, tmp_path: Path) -> None:
    """Linkers leave names in the table that nothing calls: the loader passes over them (`ios_base_library_init`)."""
    binder = SymbolBinder()
    names = ("malloc", "not_there_at_all")
    library = elf(tmp_path / "a.so", ("libc.so.6",), undefined=names, relocated=("malloc",))
    assert not isinstance(process.dlopen(str(library), binder=binder), Failure)
    library = elf(tmp_path / "b.so", ("libc.so.6",), undefined=names, relocated=names)
    assert isinstance(process.dlopen(str(library), binder=binder), Failure)
    binder.close()


@LINUX
def test_a_library_of_another_machine_is_passed_over_in_a_search(process: Process, tmp_path: Path) -> None:
    elf(tmp_path / "one/libx.so", machine=183)
    elf(tmp_path / "two/libx.so")
    user = elf(tmp_path / "a.so", ("libx.so",), runpath=f"{tmp_path}/one:{tmp_path}/two")
    process.dlopen(str(user))
    assert [one.path for one in process.find_loaded("libx.so")] == [f"{tmp_path}/two/libx.so"]


@LINUX
def test_a_loaded_name_is_not_searched_again(process: Process, tmp_path: Path) -> None:
    first, second = elf(tmp_path / "one/libx.so"), elf(tmp_path / "two/libx.so")
    process.dlopen(str(first))
    process.dlopen(str(elf(tmp_path / "a.so", ("libx.so",), runpath=str(second.parent))))
    assert [one.path for one in process.find_loaded("libx.so")] == [str(first)]
    process.dlopen(str(second))  # by its path it is another file
    assert len(process.find_loaded("libx.so")) == 2


def torch_tree(site: Path, *exports: str, cuda: str | None = "12.8") -> Path:
    """A torch whose libc10.so exports these symbols."""
    install(site, "torch", "2.8.0")
    folder = site / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "version.py").write_text(f"__version__ = '2.8.0+cu128'\ncuda = {cuda!r}\n")
    elf(folder / "lib/libtorch_global_deps.so")
    elf(folder / "lib/libc10.so", defined=exports)
    elf(folder / "_C.cpython-311-x86_64-linux-gnu.so", ("libc10.so",), runpath="$ORIGIN/lib")
    return folder


def extension(site: Path, name: str, file: str, *undefined: str, needed: tuple[str, ...] = ("libc10.so",)) -> None:
    """A distribution with one compiled file."""
    folder = install(site, name, "1.0")
    elf(site / file, needed, undefined=undefined)
    (folder / "RECORD").write_text(f"{file},sha256=x,1\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    return folder


def facts_of(site: Path, **environ: str) -> Facts:
    target = Target(
        os.path.realpath(sys.executable), site.parents[2], (site,), TargetKind.INTERPRETER, "3.11.7", "cpython",
        "Linux", os.uname().machine, "2.35", environ,
    )  # fmt: skip
    return collect(target, built_in_watch(), ("compiled",))


def test_a_module_that_fits(site: Path) -> None:
    torch_tree(site, SET_DEVICE)
    extension(site, "flash-attn", "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so", SET_DEVICE)
    facts = facts_of(site)
    assert facts.value("flash-attn.loads") is True and "flash-attn.load_problem" not in facts
    assert "2.8.0+cu128" in facts.value("flash-attn.fitting_torch")
    assert "2.6.0+cu124" not in facts.value("flash-attn.fitting_torch")


def test_a_module_for_another_torch_and_what_is_remembered_of_it(site: Path) -> None:
    torch_tree(site, "_ZN3c104cuda9SetDeviceEa")
    extension(site, "flash-attn", "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so", SET_DEVICE)
    for _ in range(2):
        problem = str(facts_of(site).value("flash-attn.load_problem"))
        assert "1 of its 1 undefined symbols is missing" in problem and "fits torch 2.8.0" in problem
        assert demangled(SET_DEVICE) in problem
    extension_file = site / "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so"
    elf(extension_file, ("libc10.so",), undefined=("_ZN3c104cuda9SetDeviceEa",))
    assert facts_of(site).value("flash-attn.loads") is True


def test_a_missing_library_and_one_of_the_driver(site: Path) -> None:
    torch_tree(site)
    extension(site, "xformers", "xformers/_C.so", needed=("libc10.so", "libcudart.so.99"))
    extension(site, "torchao", "torchao/_C.abi3.so", needed=("libc10.so", "libcuda.so.1"))
    facts = facts_of(site)
    assert "needs `libcudart.so.99`" in facts.value("xformers.load_problem")
    assert "built for CUDA 12.8" in facts.value("xformers.load_problem")
    assert facts.value("torchao.loads") is True  # a machine without a GPU says nothing about it


def test_a_module_for_another_python(site: Path) -> None:
    torch_tree(site)
    extension(site, "flash-attn", "flash_attn_2_cuda.cpython-39-x86_64-linux-gnu.so")
    facts = facts_of(site)
    assert facts.value("flash-attn.loads") is False
    assert "is for Python 3.9, and this is Python 3.11.7" in facts.value("flash-attn.load_problem")


def test_a_package_without_a_rule_is_listed(site: Path) -> None:
    torch_tree(site)
    extension(site, "natten", "natten/libnatten.so", SET_DEVICE)
    assert facts_of(site).value("binaries.unloadable")[0].startswith("natten: `natten/libnatten.so` does not fit")


def test_packages_without_torch_or_cuda_are_left_alone(site: Path) -> None:
    torch_tree(site, cuda=None)
    extension(site, "markupsafe", "markupsafe/_speedups.so", needed=("libc.so.6",))
    assert not facts_of(site)


def test_bitsandbytes_is_judged_by_the_library_of_this_cuda(site: Path) -> None:
    torch_tree(site)
    extension(site, "bitsandbytes", "bitsandbytes/libbitsandbytes_cuda128.so")
    elf(site / "bitsandbytes/libbitsandbytes_cuda99.so", ("libcudart.so.99",))
    record = site / "bitsandbytes-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "bitsandbytes/libbitsandbytes_cuda99.so,sha256=x,1\n")
    assert facts_of(site).value("bitsandbytes.loads") is True
    assert facts_of(site, BNB_CUDA_VERSION="99").value("bitsandbytes.loads") is False


def test_what_a_package_opens() -> None:
    packages = built_in_watch().packages
    opens = packages["bitsandbytes"].opens
    one, other = opening_of(opens, "12.8", {}), opening_of(opens, "12.8", {"BNB_CUDA_VERSION": "99"})
    cpu, unknown = opening_of(opens, "", {"BNB_CUDA_VERSION": "99"}), opening_of(opens, None, {})
    assert one is not None and "cuda128" in one.files and cpu is not None and "cpu" in cpu.files
    assert other is not None and "cuda99" in other.files and unknown is not None and unknown.files == "-"
    assert opening_of(packages["natten"].opens, "12.8", {}) is None
    kernels = packages["sgl-kernel"].opens
    assert archs_for_pick(kernels, "sgl_kernel/sm90/common_ops.so", ("8.0", "9.0a")) == ("9.0a",)
    assert archs_for_pick(kernels, "sgl_kernel/sm100/common_ops.so", ("8.0", "9.0", "10.0a")) == ("8.0", "10.0a")


def test_a_tree_without_torch_is_judged_by_the_symbols_on_record(site: Path) -> None:
    path = elf(site / "x/_C.so", ("libc10.so",), undefined=(SET_DEVICE,))
    package = Installed("xformers", "1", str(site), ("x/_C.so",))
    for version, cuda, wanted in (("2.6.0", "12.4", False), ("2.8.0", "12.8", None), ("2.6.0+rocm", "6", None)):
        place = Place((str(site),), "x86_64", {}, torch_version=version, torch_cuda=cuda)
        verdict = Survey(place).verdict(package, "x/_C.so")
        assert verdict.loads is wanted, (path, verdict)


def test_symbols_of_torch() -> None:
    assert of_torch(SET_DEVICE) and of_torch("THPVariableClass") and of_torch("_ZTIN3c105ErrorE")
    assert not of_torch("cudaMalloc") and not of_torch("_ZNSt6vectorIiE") and not of_torch("PyInit__C")


def test_the_index_on_record_knows_when_symbols_came_and_went() -> None:
    index = load_torch_symbols()
    assert len(index.builds) >= 28
    exporters = [build.version for build in index.exporters([SET_DEVICE])]
    assert exporters[0] == "2.8.0" and "2.7.1" not in exporters
    old, new = index.build("2.6.0", "12.4"), index.build("2.8.0", None)
    assert old is not None and new is not None and (old.cxx11_abi, new.cxx11_abi) == (False, True)
    assert index.missing([SET_DEVICE], old) == (SET_DEVICE,) and index.missing([SET_DEVICE], new) == ()
    assert index.build("2.6.0", "12.6") is None and index.build("2.6.0+cu126", "12.6") is None


def test_an_index_is_packed_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "index.gz"
    builds = TorchBuild("2.0", "11.7", False), TorchBuild("2.10.0", "12.8", True)
    path.write_bytes(packed({builds[1]: ["a", "b"], builds[0]: ["b"]}))
    index = load_torch_symbols(path)
    assert index.builds == builds
    assert index.exporters(["b"]) == builds and index.exporters(["a"]) == builds[1:] and index.exporters(["c"]) == ()


def test_releases_in_words() -> None:
    every = ["2.5.0+cu124", "2.6.0+cu124", "2.7.0+cu126", "2.8.0+cu128", "2.13.0+cpu", "2.14.0+cu130"]
    assert range_of(every[:3] + every[5:], every) == "2.5.0 to 2.7.0, 2.14.0"
    assert range_of(["2.8.0+cu128"], every) == "2.8.0"


@pytest.mark.parametrize(
    ("archs", "sm", "how"),
    [
        (("8.0",), "8.9", "machine code"),
        (("8.9",), "8.0", None),
        (("8.0",), "9.0", None),
        (("9.0a",), "9.0", "machine code"),
        (("10.0a",), "10.3", None),
        (("10.0f",), "10.3", "machine code"),
        (("8.0", "9.0+PTX"), "12.0", "PTX"),
        (("9.0a+PTX",), "10.0", None),
        (("12.0+PTX",), "9.0", None),
        (("8.0", "8.6"), "8.7", None),
        (("8.7",), "8.7", "machine code"),
    ],
)
def test_what_runs_on_a_gpu(archs: tuple[str, ...], sm: str, how: str | None) -> None:
    assert runs_on(archs, sm) == how


def test_a_library_of_the_same_package_is_loaded_first(site: Path) -> None:
    torch_tree(site)
    extension(site, "torchaudio", "torchaudio/lib/_torchaudio.so", needed=("libc10.so", "libtorchaudio.so"))
    elf(site / "torchaudio/lib/libtorchaudio.so", ("libc10.so",), undefined=())
    record = site / "torchaudio-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "torchaudio/lib/libtorchaudio.so,sha256=x,1\n")
    assert facts_of(site).value("torchaudio.loads") is True
    elf(site / "torchaudio/lib/libtorchaudio.so", ("libc10.so",), undefined=(SET_DEVICE,))
    assert "`libtorchaudio.so` does not fit" in facts_of(site).value("torchaudio.load_problem")


def test_packages_with_a_rule_are_not_listed_again() -> None:
    rules = "".join(path.read_text() for path in RULES.glob("*/*.yaml"))
    assert set(re.findall(r"^  ([a-z0-9-]+)\.known_unloadable: true$", rules, re.MULTILINE)) - {"binaries"} == {
        name for name, record in built_in_watch().packages.items() if record.has_load_rule
    }


def test_te_that_binds_lazily_is_not_refused_for_a_function(site: Path) -> None:
    torch_tree(site)
    core = "transformer_engine/wheel_lib/libtransformer_engine.so"
    for name in ("cudnn", "nvrtc", "curand", "cublas", "cudart"):
        elf(site / f"nvidia/{name}/lib/lib{name}.so.12")
    extension(site, "transformer-engine-cu12", core, "cublas_of_tomorrow")
    assert facts_of(site).value("transformer-engine-cu12.loads") is False
    common = site / "transformer_engine/common/__init__.py"
    common.parent.mkdir()
    common.write_text("ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | os.RTLD_LAZY)\n")
    assert facts_of(site).value("transformer-engine-cu12.loads") is True


def test_the_extension_of_te_uses_symbols_of_its_core(site: Path) -> None:
    torch_tree(site)
    for name in ("cudnn", "nvrtc", "curand", "cublas", "cudart"):
        elf(site / f"nvidia/{name}/lib/lib{name}.so.12")
    elf(site / "transformer_engine/libtransformer_engine.so", defined=("nvte_gelu",))
    module = "transformer_engine_torch.cpython-311-x86_64-linux-gnu.so"
    extension(site, "transformer-engine-torch", module, "nvte_gelu")
    assert facts_of(site).value("transformer-engine-torch.loads") is True
    elf(site / "transformer_engine/libtransformer_engine.so", defined=("nvte_relu",))
    assert "nvte_gelu" in facts_of(site).value("transformer-engine-torch.load_problem")


def test_a_library_that_another_package_may_load_first_is_no_finding(site: Path) -> None:
    torch_tree(site)
    extension(site, "torch-tensorrt", "torch_tensorrt/lib/libt.so", needed=("libc10.so", "libnvinfer.so.99"))
    facts = facts_of(site)
    assert facts.value("torch-tensorrt.loads") is False and facts.value("binaries.unloadable") == ()


def test_a_torch_of_another_layout_is_not_refused(site: Path) -> None:
    folder = torch_tree(site)
    (folder / "lib/libtorch_global_deps.so").unlink()
    assert "binaries.torch_problem" not in facts_of(site)
    (folder / "_C.cpython-311-x86_64-linux-gnu.so").unlink()
    assert "binaries.torch_problem" not in facts_of(site)
    elf(folder / "lib/libtorch_global_deps.so", ("libcudart.so.99",))
    assert "needs `libcudart.so.99`" in facts_of(site).value("binaries.torch_problem")


def test_two_packages_with_the_same_files(site: Path) -> None:
    torch_tree(site)
    for name, size in (("nvidia-cudnn-cu12", 3), ("nvidia-cudnn-cu13", 4)):
        (install(site, name, "9.1") / "RECORD").write_text(f"nvidia/cudnn/lib/libcudnn.so.9,sha256=a{size},{size}\n")
    library = site / "nvidia/cudnn/lib/libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"1234")
    (found,) = facts_of(site).value("files.owned_twice")
    assert "nvidia-cudnn-cu12 9.1 and nvidia-cudnn-cu13 9.1 both own" in found
    assert found.endswith("on disk are those of nvidia-cudnn-cu13 9.1")
    assert facts_of(site).value("files.changed") == ()


def test_a_half_overwritten_installation(site: Path) -> None:
    torch_tree(site)
    digest = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"  # of nothing
    record = install(site, "flash-attn", "2.8.3") / "RECORD"
    record.write_text(
        f"flash_attn/a.py,sha256={digest},0\nflash_attn/b.py,sha256={digest},1\nflash_attn/c.py,sha256={digest},0\n"
        "flash_attn/gone.so,sha256=x,9\nflash_attn/__pycache__/a.pyc,,\n"
    )
    (site / "flash_attn").mkdir()
    for name, text in (("a", ""), ("b", "x"), ("c", "")):
        (site / f"flash_attn/{name}.py").write_text(text)
    assert facts_of(site).value("files.changed") == (
        "flash-attn 2.8.3: `flash_attn/b.py` not as in its RECORD",
        "flash-attn 2.8.3: `flash_attn/gone.so` missing",
    )


REGISTERS = "_ZN5torch7Library5_implEPKcONS_11CppFunctionENS_22_RegisterOrVerifyE"
DESTRUCTOR, MEMBER = "_ZN3c1014KernelFunctionD1Ev", "_ZN3c1011BoxedKernelD1Ev"


@pytest.mark.parametrize(
    ("own", "torch", "loads"),
    [
        ((), (), True),
        ((DESTRUCTOR,), (DESTRUCTOR,), True),
        ((DESTRUCTOR,), (), False),
        ((), (DESTRUCTOR,), False),
        ((DESTRUCTOR, MEMBER), (), True),  # a compiler that emits every inline function
        ((DESTRUCTOR, MEMBER, "_ZN3c1011KernelToken10invalidateEv"), (), False),
    ],
)
def test_files_whose_operators_have_another_layout(
    site: Path, own: tuple[str, ...], torch: tuple[str, ...], loads: bool
) -> None:
    folder = torch_tree(site)
    elf(folder / "lib/libc10.so", ("libtorch_cpu.so",), runpath="$ORIGIN")
    elf(folder / "lib/libtorch_cpu.so", defined=(REGISTERS, *torch))
    extension(site, "natten", "natten/_C.so")
    elf(site / "natten/_C.so", ("libtorch_cpu.so",), undefined=(REGISTERS,), defined=own)
    facts = facts_of(site)
    assert facts.value("natten.loads") is loads
    if not loads:
        assert "`c10::KernelFunction` has another layout" in facts.value("natten.load_problem")


def test_the_layout_decides_between_releases_on_record(tmp_path: Path) -> None:
    set_device = (SET_DEVICE, "_ZN5torch11CppFunctionD1Ev")
    for own, first, last in (((), "2.8.0+cu128", "2.8.0+cu128"), ((DESTRUCTOR,), "2.9.0+cu128", "2.15.0+cu132")):
        path = elf(tmp_path / "x.so", ("libc10.so",), undefined=set_device, defined=own)
        fits = fitting_builds(str(path))
        assert fits is not None and (fits[0], fits[-1]) == (first, last)


def test_the_stable_interface_of_torch_comes_with_releases(tmp_path: Path) -> None:
    assert of_torch("torch_call_dispatcher") and of_torch("torch_list_push_back") and not of_torch("torch_my_helper")
    path = elf(tmp_path / "x.abi3.so", ("libtorch.so",), undefined=("aoti_torch_zero_", "torch_call_dispatcher"))
    fits = fitting_builds(str(path))
    assert fits and "2.10.0+cu128" in fits and "2.9.1+cu128" not in fits


def test_real_loads_agree_with_the_exports_on_record() -> None:
    """Files of wheels that were really opened next to a torch (`scripts/oracles/load_binaries.py --record`)."""
    table = json.loads(gzip.decompress((CAPTURES / "real-loads.json.gz").read_bytes()))
    known = {labelled(build) for build in load_torch_symbols().builds}
    judged, wrong, pairs = 0, [], set()
    for file, outcomes in table["loads"].items():
        body = table["files"][file]
        fits = builds_for(body["symbols"], body["needed"], body["new_layout"])
        for torch, outcome in outcomes.items():
            pairs.add((file.partition("/")[0], torch))
            of_torch = outcome in ("loads", "torch_symbol", "class_layout")
            if fits is None or torch not in known or not of_torch:
                continue
            judged += 1
            if (torch in fits) is not (outcome == "loads"):
                wrong.append((file, torch, outcome))
    names = {package.rpartition("-")[0] for package, _ in pairs}
    assert len(pairs) >= 150 and len(names) >= 25 and judged >= 300
    assert len(wrong) <= judged * 0.02, wrong
