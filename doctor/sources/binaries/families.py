"""Which file of each library family a job loads: after torch alone, and after a framework that is imported next.

The simulated imports run on the files of this machine or on a description of another one (`files.Captured`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from doctor.model import TORCH

from .files import Files
from .loader import Failure, Process
from .packages import OF_DRIVER
from .te_import import CUDNN, MODULE, import_te_common
from .torch_import import TorchFiles, first_cudnn_call, import_torch

#: Family -> beginning of its file names.
FAMILIES = {
    CUDNN: "libcudnn", "cublas": "libcublas", "nccl": "libnccl", "nvrtc": "libnvrtc", "cudart": "libcudart",
    "libstdc++": "libstdc++",
}  # fmt: skip
_VERSION = re.compile(r"\.so(\.[\d.]+)?$")


@dataclass(frozen=True)
class Job:
    """What a job imports, and from where."""

    program: str  # the interpreter, without links
    torch: TorchFiles
    torch_text: str  # of torch/__init__.py
    machine: str = "x86_64"
    te_core: str | None = None  # the core library of TransformerEngine
    te_version: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The libraries of each family in the process: name of the file without version -> paths without links."""

    families: Mapping[str, Mapping[str, tuple[str, ...]]]
    failure: Failure | None = None
    failed: str = ""  # the import that fails

    def folders(self, family: str) -> tuple[str, ...]:
        """Return the folders from which the files of a family come."""
        paths = (path for paths in self.families.get(family, {}).values() for path in paths)
        return tuple(sorted({os.path.dirname(path) for path in paths}))  # noqa: PTH120

    def mixed(self, family: str) -> bool:
        """Return whether the files of a family come from more than one folder."""
        return len(self.folders(family)) > 1


def predict(files: Files, environ: Mapping[str, str], job: Job, *, te: bool) -> Outcome:
    """Return what is loaded after `import torch`, with `te` after TransformerEngine too, and a first call of cuDNN."""
    process = Process(files, environ, job.machine, may_exist=OF_DRIVER)
    process.start(job.program)
    failure, failed = import_torch(process, job.torch, job.torch_text), TORCH
    if failure is None and te and job.te_core is not None:
        failed = MODULE
        failure = import_te_common(process, job.torch.site_dirs, job.te_version, job.machine)
        if failure is None:
            found = process.dlopen(job.te_core, make_global=True)
            failure = found if isinstance(found, Failure) else None
    if failure is None:
        first_cudnn_call(process)
    return Outcome(_families(process), failure, failed if failure else "")


def _families(process: Process) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, list[str]]] = {family: {} for family in FAMILIES}
    for one in process.loaded:
        name = os.path.basename(one.identity)  # noqa: PTH119
        family = next((family for family, prefix in FAMILIES.items() if name.startswith(prefix)), None)
        if family is not None:
            paths = found[family].setdefault(_VERSION.sub(".so", name), [])
            if one.identity not in paths:
                paths.append(one.identity)
    return {family: {name: tuple(paths) for name, paths in names.items()} for family, names in found.items() if names}


def conda_copies(files: Files, outcome: Outcome, conda: str, site_dirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the libraries that come from a conda environment's own folder, though an NVIDIA wheel has them."""
    own = os.path.realpath(f"{conda}/lib")
    wheels = {
        name: f"{folder}/{name}"
        for base in site_dirs
        for package in files.listing(f"{base}/nvidia")
        for folder in (f"{base}/nvidia/{package}/lib",)
        for name in files.listing(folder)
    }
    found = []
    for family, names in outcome.families.items():
        for path in (path for paths in names.values() for path in paths):
            soname = getattr(files.summary(path), "soname", None) or ""
            if os.path.dirname(path) == own and soname in wheels:  # noqa: PTH120
                found.append(f"{family}: `{path}`, not `{wheels[soname]}`")
    return tuple(found)


def one_cudnn(files: Files, environ: Mapping[str, str], job: Job) -> dict[str, str | None] | None:
    """Return the smallest change of variables after which torch and TransformerEngine load one cuDNN.

    Each candidate is tried on the model. None where none helps, or none is needed. A value of None unsets a variable.
    """
    if not predict(files, environ, job, te=True).mixed(CUDNN):
        return None
    for change in _changes(files, environ, job):
        changed = {name: value for name, value in {**environ, **change}.items() if value is not None}
        both = predict(files, changed, job, te=True)
        alone = predict(files, changed, job, te=False)
        if both.failure or alone.failure or both.mixed(CUDNN) or alone.mixed(CUDNN):
            continue
        if both.families.get(CUDNN, {}).get("libcudnn.so") == alone.families.get(CUDNN, {}).get("libcudnn.so"):
            return change
    return None


def shell_commands(change: Mapping[str, str | None]) -> str:
    """Return the commands that change variables in a POSIX shell, on one line; None unsets a variable."""
    unset = [name for name, value in change.items() if value is None]
    given = [f"{name}={shlex.quote(value)}" for name, value in change.items() if value is not None]
    commands = [["unset", *unset]] * bool(unset) + [["export", *given]] * bool(given)
    return "; ".join(map(" ".join, commands))


def _changes(files: Files, environ: Mapping[str, str], job: Job) -> Iterator[dict[str, str | None]]:
    """Yield changes, the smallest first; those that lead to the wheel's cuDNN come first among equals."""
    folders = [f"{base}/nvidia/cudnn/lib" for base in job.torch.site_dirs]
    wheel = next((one for one in folders if any(name.startswith("libcudnn.so.") for name in files.listing(one))), None)
    path = environ.get("LD_LIBRARY_PATH", "")
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDNN_HOME", "CUDNN_PATH"):
        if environ.get(name):
            yield {name: None}
    if wheel is None:
        return
    home = os.path.dirname(wheel)  # noqa: PTH120
    first = f"{wheel}:{path}" if path else wheel
    yield {"CUDNN_HOME": home}
    yield {"LD_LIBRARY_PATH": first}
    yield {"CUDNN_HOME": home, "LD_LIBRARY_PATH": first}
    yield {"CUDNN_HOME": home, "LD_LIBRARY_PATH": first, "LD_PRELOAD": None}
