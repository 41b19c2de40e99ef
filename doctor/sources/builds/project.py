"""What the build of a project folder or source archive needs: `pyproject.toml`, `setup.py` and what they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from packaging.requirements import InvalidRequirement

from doctor.errors import DoctorError
from doctor.model import TORCH
from doctor.packages.requirements import parse_requirement
from doctor.packages.source_build import SourceBuild
from doctor.packages.specifiers import normalized
from doctor.util.toml_text import parse_toml

from .machine import STANDARD
from .scenario import Failed, Read, Scenario
from .script import Script, TooLong
from .values import Function

LEGACY = "setuptools.build_meta:__legacy__"
#: Import names of build requirements, where they differ from the names of the distributions.
_IMPORTED_AS = {"scikit-build": "skbuild", "scikit-build-core": "scikit_build_core", "setuptools-scm": "setuptools_scm",
                "pytorch-triton": "triton", "nvidia-cuda-nvcc-cu12": "nvidia", "pyyaml": "yaml"}  # fmt: skip
#: What comes along with a build requirement.
_BRINGS = {TORCH: ("numpy", "sympy", "networkx", "jinja2", "typing_extensions", "filelock", "fsspec"),
           "wheel": ("packaging",), "setuptools_scm": ("packaging",), "scikit_build_core": ("packaging", "pathspec"),
           "skbuild": ("packaging", "wheel", "distro"), "cmake": (), "setuptools": ()}  # fmt: skip
_NVCC = ("11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0", "13.2")
_TORCH_OF_CUDA = {"11.8": "2.6.0", "12.8": "2.8.0", "13.0": "2.10.0"}
_ARCH = re.compile(r"(?:code=\[?(?:(?:compute_\d+[af]?),?)?(?P<sass>sm_\d+[af]?)?(?P<ptx>compute_\d+[af]?)?)")
_STANDARD = re.compile(r"std[=:]c\+\+(\d\d)")
_FILE_NAME = re.compile(r"\+(?:cu)?(?P<cuda>1[0-9])\d?\.?(?:torch|pt|cxx)|\+(?:torch|pt)[\d.]*\.?cu(?P<last>1[0-9])")
_FORCE = re.compile(r"\w*FORCE_BUILD$")
_SKIP = re.compile(r"\w*(?:SKIP|NO|DISABLE)_CUDA\w*")
_NEEDS_TORCH = re.compile(r"find_package\(\s*Torch\b", re.IGNORECASE)


def read_build(read: Read) -> SourceBuild | None:
    """Return what a project's build needs; None where it has neither a `[build-system]` nor a set-up script."""
    system = build_system(read)
    text = read("setup.py")
    if system is None and text is None:
        return None
    requires, backend, paths = system or (None, "", ())
    whole = Scenario(
        torch="2.10.0", torch_cuda="13.0", nvcc="13.0", gpu="9.0", all_modules=True,
        top_on_path=backend in ("", LEGACY) or bool(paths),
    )  # fmt: skip
    found = SourceBuild(requires, backend)
    script = _followed(text, whole, read) if text is not None and _runs_setup(backend) else None
    if script is None:
        return _of_other_backend(found, read)
    torch = script.imports.get(TORCH, False)
    imports = tuple(sorted(name for name, always in script.imports.items() if always and not _is_standard(name)))
    isolated = replace(whole, all_modules=False, modules=isolated_modules(requires), torch=None)
    if found.declares_torch:
        isolated = replace(isolated, torch=whole.torch)
    return found._replace(
        imports=imports,
        isolated=_stop(text or "", isolated, read),
        without_nvcc=_stop(text or "", replace(whole, nvcc=None), read),
        without_gpu=_stop(text or "", replace(whole, gpu=None), read),
        compiles_cuda="CUDAExtension" in script.extensions or (torch and bool(_archs(script.seen))),
        archs=_archs_by_compiler(text or "", whole, read),
        standard=_standard(script.seen),
        wheels=_wheels(text or "", whole, read),
        force_build=_variable(text or "", _FORCE),
        skip_cuda=_variable(text or "", _SKIP),
    )


def stop_of(read: Read, scenario: Scenario) -> Failed | None:
    """Return why the set-up of a project stops in a scenario; None where it does not, or that is not known."""
    text = read("setup.py")
    system = build_system(read)
    backend, paths = (system[1], system[2]) if system else ("", ())
    if text is None or not _runs_setup(backend):
        return None
    scenario = replace(scenario, top_on_path=backend in ("", LEGACY) or bool(paths))
    try:
        return Script(text, scenario, read).run()
    except (SyntaxError, ValueError):
        return None


def build_system(read: Read) -> tuple[tuple[str, ...] | None, str, tuple[str, ...]] | None:
    """Return names of `build-system.requires`, backend and its paths; None without that table."""
    text = read("pyproject.toml")
    table: Any = None
    if text is not None:
        try:
            table = parse_toml(text, "pyproject.toml").get("build-system")
        except DoctorError:
            return None
    if not isinstance(table, dict):
        return None
    listed, paths = table.get("requires"), table.get("backend-path")
    names = tuple(_names(listed if isinstance(listed, list) else ()))
    return names, str(table.get("build-backend") or LEGACY), tuple(map(str, paths if isinstance(paths, list) else ()))


def isolated_modules(requires: Iterable[str] | None) -> frozenset[str]:
    """Return what an isolated build can import besides the standard library and setuptools."""
    tops = [_IMPORTED_AS.get(name, name.replace("-", "_")) for name in requires or ()]
    return frozenset((*tops, *(more for top in tops for more in _BRINGS.get(top, ()))))


def _names(listed: Iterable[object]) -> Iterator[str]:
    for text in listed:
        try:
            yield normalized(parse_requirement(str(text)).name)
        except InvalidRequirement:
            continue


def _runs_setup(backend: str) -> bool:
    return (
        backend == "" or backend.startswith("setuptools") or backend in ("backend", "build_backend", "_build_backend")
    )


def _of_other_backend(found: SourceBuild, read: Read) -> SourceBuild:
    """Return what a build without set-up script needs: CMake looks for torch."""
    cmake = read("CMakeLists.txt") or ""
    if _NEEDS_TORCH.search(cmake) is None or found.declares_torch:
        return found
    return found._replace(imports=(TORCH,), isolated="CMake finds no package Torch")


def _followed(text: str, scenario: Scenario, read: Read) -> Script | None:
    try:
        script = Script(text, scenario, read)
    except (SyntaxError, ValueError, RecursionError):
        return None
    script.run()
    return script


def _stop(text: str, scenario: Scenario, read: Read) -> str:
    problem = Script(text, scenario, read).run()
    return "" if problem is None else f"{problem.kind}: {problem.message}".rstrip(": ")


def _archs(seen: Mapping[str, bool]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text, certain in seen.items():
        for match in _ARCH.finditer(text) if certain else ():
            for name, more in ((match["sass"], ""), (match["ptx"], "+PTX")):
                if name:
                    digits = name.partition("_")[2]
                    number = digits.rstrip("af")
                    found[f"{number[:-1]}.{number[-1]}{digits[len(number) :]}{more}"] = None
    return tuple(sorted(found, key=lambda arch: (float(re.sub(r"[af+PTX]+$", "", arch)), arch)))


def _archs_by_compiler(text: str, whole: Scenario, read: Read) -> dict[str, tuple[str, ...]]:
    """Return for each compiler release, from which on it differs, the architectures that the script names."""
    found: dict[str, tuple[str, ...]] = {}
    for nvcc in _NVCC:
        cuda = "11.8" if nvcc < "12" else "12.8" if nvcc < "13" else "13.0"
        script = _followed(text, replace(whole, nvcc=nvcc, torch_cuda=cuda, torch=_TORCH_OF_CUDA[cuda], gpu=None), read)
        archs = _archs(script.seen) if script is not None else ()
        if archs and archs != next(reversed(found.values()), None):
            found[nvcc] = archs
    return found


def _standard(seen: Mapping[str, bool]) -> str:
    found = {match[1] for text, certain in seen.items() if certain for match in _STANDARD.finditer(text)}
    return max(found, default="")


def _wheels(text: str, whole: Scenario, read: Read) -> dict[str, str]:
    """Return for each CUDA of torch the CUDA of the wheel that the build downloads instead of compiling."""
    if ".whl" not in text or "url" not in text:
        return {}
    found = {}
    for cuda, torch in _TORCH_OF_CUDA.items():
        script = _followed(text, replace(whole, torch_cuda=cuda, torch=torch), read)
        name = None if script is None else wheel_name(script)
        match = None if name is None else _FILE_NAME.search(name)
        if match is not None:
            found[cuda.partition(".")[0]] = match["cuda"] or match["last"]
    return found


def wheel_name(script: Script) -> str | None:
    """Return the file name of the wheel that a build would download, with the unknown parts left out."""
    for function in [value for value in script.scope.names.values() if isinstance(value, Function)]:
        if not isinstance(function.node, ast.FunctionDef) or not _names_wheel(function.node):
            continue
        before = set(script.seen)
        try:
            script.call(function, (), {})
        except (Failed, TooLong):
            return None
        named = [text for text in script.seen if text not in before and re.search(r"-.*\.whl$", text)]
        if named:
            return max(named, key=len).replace("\0", "")
    return None


def _names_wheel(node: ast.FunctionDef) -> bool:
    return any(isinstance(part, ast.Constant) and str(part.value).endswith(".whl") for part in ast.walk(node))


def _variable(text: str, wanted: re.Pattern[str]) -> str:
    """Return the variable of a kind that a script reads from the environment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.args[0].value
            function = ast.unparse(node.func)
            if isinstance(name, str) and function.endswith(("getenv", "environ.get")) and wanted.fullmatch(name):
                return name
    return ""


def _is_standard(name: str) -> bool:
    return name in STANDARD
