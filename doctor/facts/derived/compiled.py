"""Derived facts of compiled files: whether a package loads next to another torch, and whether a GPU has code in it."""

from __future__ import annotations

import re
from collections.abc import Callable

from doctor.facts.kinds import BOOLEAN, LIST, TEXT
from doctor.facts.vocabulary import Term, declare, parse_version
from doctor.model import ABSENT

from .registry import derived, of_packages

Builds = tuple[str, ...]


TEGRA = ((5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0))  # GPUs of Jetson and Drive


def same_machine_code(own: tuple[int, ...], gpu: tuple[int, int]) -> bool:
    """Return whether a GPU runs machine code for the architecture `own`, both as (major, minor).

    Of a major release, later minors do. Jetson and Drive neither run code of other GPUs nor share theirs.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    if own == gpu or own in TEGRA or gpu in TEGRA:
        return own == gpu
    return own[0] == gpu[0] and own[1] <= gpu[1]


def runs_on(archs: tuple[str, ...], sm: str) -> str | None:
    """Return how a GPU runs code for these architectures: `machine code`, `PTX`, or None where it cannot.

    Machine code runs on its own major release from its minor on, as `same_machine_code` says; with an `a` on exactly
    its own GPU, with an `f` on its family. PTX with a letter is bound in the same way; without one, any later GPU
    compiles it.
    """
    major, minor = (int(part) for part in sm.split("."))
    by_ptx = False
    for arch in archs:
        plain = arch.removesuffix("+PTX")
        own = tuple(int(part) for part in plain.rstrip("af").split("."))
        if plain.endswith("a"):
            fits = own == (major, minor)
        elif arch.endswith("+PTX") and not plain.endswith("f"):
            fits = own <= (major, minor)
        else:
            fits = same_machine_code(own, (major, minor))
        if fits and not arch.endswith("+PTX"):
            return "machine code"
        by_ptx |= fits
    return "PTX" if by_ptx else None


def _loads(version: str, fitting: Builds | str, cuda: str | None, on_record: str | None) -> bool | None:
    """Return whether a file fits a torch release, by the builds on record that export its symbols."""
    if not isinstance(fitting, tuple) or version == ABSENT:
        return None
    public, _, label = version.partition("+")
    if not label and cuda is not None:
        label = "cpu" if cuda == ABSENT else "cu" + cuda.replace(".", "")
    build = f"{public}+{label}" if label else on_record
    if build in fitting:
        return True
    if on_record is None:  # a release before those on record, or a later one
        releases = [parse_version(one.partition("+")[0]).release[:2] for one in fitting if one != "none"]
        return False if releases and parse_version(public).release[:2] < min(releases) else None
    return False if build is not None and build == on_record else None


def _problem(loads: bool, version: str, fitting: Builds | str | None, cuda: str | None) -> str:
    return ABSENT if loads else misfit(version, cuda, fitting if isinstance(fitting, tuple) else ())


def misfit(version: str, cuda: str | None, fitting: Builds) -> str:
    """Return why files that fit these torch builds do not load next to another, in a sentence."""
    known = ", ".join(fitting) or "none of those on record"
    needed = {label.partition("+cu")[2][:2] for label in fitting}
    own = str(cuda or ABSENT).partition(".")[0]
    if own != ABSENT and len(needed) == 1 and needed.isdisjoint({"", own}):
        return f"its files need CUDA {needed.pop()}, torch {version} is for CUDA {cuda}; builds on record: {known}"
    return (
        f"torch {version} lacks libraries or symbols that its compiled files need; torch builds that have them: {known}"
    )


def _how_it_runs(archs: Builds | str | None, sm: str | None) -> str | None:
    """Return how a GPU runs the code: `machine code`, `PTX`, `not at all`; None where that is not known."""
    if archs is None or isinstance(archs, str) or sm in (None, ABSENT):
        return None
    return runs_on(archs, str(sm)) or "not at all"


def _without_code(archs: Builds | None, sm: str | None) -> bool:
    return _how_it_runs(archs, sm) == "not at all"


@of_packages("compiled_files")
def _compiled_files(package: str) -> None:
    fitting = f"{package}.fitting_torch"

    def register(name: str, meaning: str, compute: Callable[..., bool | None], *uses: str) -> None:
        derived(f"{package}.{name}", BOOLEAN, meaning, uses=uses)(compute)

    derived(
        f"{package}.loads", BOOLEAN, f"the compiled files of {package} load next to torch",
        needs=("torch.version", fitting), uses=("torch.cuda", "torch.exports_on_record"),
    )(_loads)  # fmt: skip
    derived(
        f"{package}.load_problem", TEXT, f"why the compiled files of {package} do not load",
        needs=(f"{package}.loads", "torch.version"), uses=(fitting, "torch.cuda"),
    )(_problem)  # fmt: skip
    loads, archs = f"{package}.loads", f"{package}.gpu_code"
    register(
        "known_unloadable", f"{package} does not load, by its files; false where that is not known",
        lambda value: value is False, loads,
    )  # fmt: skip
    register(
        "binary_judged",
        f"the installed files of {package} were read, and show whether it loads",
        bool,
        f"{loads}.given",
    )
    register(
        "known_without_gpu_code", f"{package} has no code for this GPU; false where that is not known",
        _without_code, archs, "gpu.sm",
    )  # fmt: skip


@derived(
    "binaries.known_unloadable", BOOLEAN, "compiled files of other packages do not load; false where not known",
    uses=("binaries.unloadable",),
)  # fmt: skip
def _others(unloadable: Builds | str | None) -> bool:
    return isinstance(unloadable, tuple) and bool(unloadable)


@derived(
    "binaries.torch_known_unloadable", BOOLEAN, "torch's own libraries do not load; false where not known",
    uses=("binaries.torch_problem",),
)  # fmt: skip
def _torch_itself(problem: str | None) -> bool:
    return problem not in (None, ABSENT)


@derived(
    "loader.libstdcxx_too_old", BOOLEAN, "a compiled file needs a newer C++ library; false where not known",
    uses=("loader.old_libstdcxx",),
)  # fmt: skip
def _too_old(found: str | None) -> bool:
    return found not in (None, ABSENT)


@derived(
    "loader.torch_mixes_cudnn", BOOLEAN, "torch loads cuDNN's libraries from several folders; false where not known",
    uses=("loader.torch_cudnn_folders",),
)  # fmt: skip
def _torch_mixes(folders: Builds | str | None) -> bool:
    return isinstance(folders, tuple) and len(folders) > 1


@derived(
    "loader.te_mixes_cudnn", BOOLEAN,
    "TransformerEngine brings cuDNN libraries of another folder than torch; false where not known",
    uses=("loader.te_cudnn_folders", "loader.torch_cudnn_folders"),
)  # fmt: skip
def _te_mixes(folders: Builds | str | None, before: Builds | str | None) -> bool:
    return isinstance(folders, tuple) and len(folders) > 1 and folders != before


@derived(
    "loader.one_cudnn_folder", BOOLEAN,
    "torch, and TransformerEngine if it is installed, load cuDNN from one and the same folder; false where not known",
    uses=("loader.torch_cudnn_folders", "loader.te_cudnn_folders", "transformer-engine.version"),
)  # fmt: skip
def _one_folder(torch: Builds | str | None, both: Builds | str | None, te: str | None) -> bool:
    if te not in (None, ABSENT) and both != torch:
        return False
    return isinstance(torch, tuple) and len(torch) == 1


@derived(
    "loader.one_cudnn_known", BOOLEAN, "a change of variables gives torch and TransformerEngine one cuDNN",
    uses=("loader.one_cudnn",),
)  # fmt: skip
def _change_known(change: str | None) -> bool:
    return change not in (None, ABSENT)


#: List of findings -> the flag that there is one, and what it means; false where that is not known.
_FLAGS = {
    "files.owned_twice": ("files.some_owned_twice", "two distributions overwrite each other's files"),
    "files.changed": ("files.some_changed", "installed files are not what was installed"),
    "files.conda_and_pip": ("files.some_conda_and_pip", "packages of conda were installed over"),
    "loader.conda_copies": ("loader.some_conda_copies", "torch's process takes libraries from conda that a wheel has"),
    "modules.stray": ("modules.some_stray", "a module is imported from a copy that no distribution owns"),
    "modules.split": ("modules.some_split", "the parts of a package are imported from two folders"),
    "modules.hidden": ("modules.some_hidden", "another copy of a module exists that is not imported"),
}


def _some(found: Builds | str | None) -> bool:
    return isinstance(found, tuple) and bool(found)


for _listed, (_flag, _means) in _FLAGS.items():
    derived(_flag, BOOLEAN, f"{_means}; false where not known", uses=(_listed,))(_some)


@derived(
    "torch.code_for_gpu", TEXT, "the architecture of torch's own code that this GPU runs, as 12.0; absent: none",
    needs=("torch.arch_list", "gpu.sm"),
)  # fmt: skip
def _torch_code(archs: Builds | str, sm: str) -> str | None:
    """Return what the driver chooses: code for this very GPU, else the newest of its major release, else PTX."""
    if not isinstance(archs, tuple) or sm == ABSENT:
        return None
    fitting = [arch for arch in archs if arch[:1].isdigit() and runs_on((arch,), sm) is not None]
    native = [arch for arch in fitting if not arch.endswith("+PTX")]
    best = max(native or fitting, key=lambda arch: [int(part) for part in re.findall(r"\d+", arch)], default=ABSENT)
    return best.removesuffix("+PTX").rstrip("af")


#: Facts of all packages together; `doctor.rulebook.compiled_facts` works them out from versions, labels and records.
_OF_ALL = (
    ("binaries.without_gpu_code", LIST, "packages whose files have no code for this GPU"),
    ("binaries.only_ptx", LIST, "packages whose files have only PTX for this GPU, which the driver compiles"),
    ("binaries.gpu_code_unclear", LIST, "packages that have code for this GPU only if a newer nvcc made them"),
    ("binaries.other_cuda", LIST, "compiled packages that link another major release of CUDA than torch's"),
    ("labels.other_torch", LIST, "compiled packages that were made for another torch than the installed one"),
    ("binaries.other_abi", LIST, "compiled packages that were made for the other C++ ABI than torch's"),
    ("binaries.gpu_remedy", TEXT, "what to install or build instead of the first package without code for this GPU"),
    ("binaries.build_remedy", TEXT, "what to install instead of the first package of another CUDA, torch or ABI"),
    ("builds.isolated", LIST, "packages whose set-up stops in the isolated build that the installer makes"),
    ("builds.stops", LIST, "packages whose build lacks torch, a CUDA compiler that fits or a GPU, and stops"),
    (
        "builds.no_wheel",
        LIST,
        "packages that are compiled, because no official wheel of their release serves this torch",
    ),
    ("builds.no_wheel_remedy", TEXT, "the nearest releases that have a wheel, and the command that compiles the first"),
    ("builds.at_run", LIST, "packages that compile while this job runs, where the compiler or ninja is missing"),
    ("builds.at_run_remedy", TEXT, "what to install where the job runs, so that these packages can compile"),
    ("builds.stops_remedy", TEXT, "what lets the first of these builds go through"),
    ("binaries.unclear_remedy", TEXT, "how to build the first package whose code for this GPU is not on record"),
)
for _key, _kind, _meaning in _OF_ALL:
    declare(Term(_key, _kind, _meaning, derived=True))
