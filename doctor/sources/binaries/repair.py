"""Changes of environment variables after which a file loads: each is tried on the model before it is proposed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping

from .elf import Summary
from .files import Files
from .loader import Failure, FailureKind, library_path

Change = dict[str, str | None]  # a value of None unsets a variable
_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas(?:Lt)?|nvrtc|nvJitLink|cupti|cusparse)\.so\.(\d+)")
_MAX_TRIES = 8


def find_change(
    failure: Failure,
    environ: Mapping[str, str],
    places: Places,
    loads: Callable[[Mapping[str, str]], bool],
) -> Change | None:
    """Return the first change under which `loads` holds; None where none of the likely ones helps."""
    for tries, change in enumerate(_changes(failure, environ, places)):
        if tries == _MAX_TRIES:
            return None
        if loads({name: value for name, value in {**environ, **change}.items() if value is not None}):
            return change
    return None


class Places:
    """Where copies of libraries are that the loader does not search."""

    def __init__(
        self, files: Files, site_dirs: tuple[str, ...], prefix: str | None, cuda: str | None, system: tuple[str, ...]
    ) -> None:
        self.files = files
        self.cuda = cuda
        wheels = (
            f"{base}/nvidia/{name}/lib" for base in site_dirs for name in files.listing(f"{base}/nvidia")
        )  # fmt: skip
        conda = (f"{prefix}/lib",) if prefix else ()
        self.folders = (*wheels, *(f"{base}/torch/lib" for base in site_dirs), *conda, "/usr/local/cuda/lib64", *system)

    def having(self, name: str) -> Iterator[str]:
        """Yield the folders that have a library."""
        return (folder for folder in self.folders if isinstance(self.files.summary(f"{folder}/{name}"), Summary))


def _changes(failure: Failure, environ: Mapping[str, str], places: Places) -> Iterator[Change]:
    path = environ.get("LD_LIBRARY_PATH", "")
    folders = library_path(environ)
    if failure.provider and (inside := os.path.dirname(failure.provider)) in folders:  # noqa: PTH120
        kept = ":".join(folder for folder in folders if folder != inside)
        yield {"LD_LIBRARY_PATH": kept or None}
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        if environ.get(name):
            yield {name: None}
    if failure.kind == FailureKind.MISSING_LIBRARY:
        wanted = failure.missing[0]
        match = _CUDA_LIBRARY.match(wanted)
        if match and places.cuda and match[1] != places.cuda.partition(".")[0]:
            return  # it would load next to a torch of another CUDA, with two runtimes in one process
        for folder in places.having(wanted):
            yield {"LD_LIBRARY_PATH": f"{folder}:{path}" if path else folder}
    if failure.kind == FailureKind.SYMBOL_VERSION and failure.provider:
        name = os.path.basename(failure.provider)  # noqa: PTH119
        for folder in places.having(name):
            other = places.files.summary(f"{folder}/{name}")
            if isinstance(other, Summary) and failure.missing[0] in other.provides:
                yield {"LD_PRELOAD": f"{folder}/{name}"}


def in_words(change: Change) -> str:
    """Return a change as a shell would take it."""
    return " ".join(f"unset {name}" if value is None else f"{name}={value}" for name, value in change.items())
