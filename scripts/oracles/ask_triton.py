"""Compare the predicted tools of triton with those that its own functions choose.

    python scripts/oracles/ask_triton.py FOLDER …

Each FOLDER holds the Python files and tools of one release (`pip download --no-deps triton==X`, unpacked). The
functions `libcuda_dirs` and `get_ptxas` run as they are in that release, with folders and variables made up here, and
the real linker links against what they return.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.model import Fact, Facts  # noqa: E402
from doctor.rulebook.resolver import FactResolver  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402
from doctor.sources.probes.triton_tools import libcuda_problem, read_search, tool_release  # noqa: E402

CONTENTS = ((), ("libcuda.so.1",), ("libcuda.so", "libcuda.so.1"))
ARCHS = (80, 90, 100, 103, 120, 121)


def functions_of(path: Path, names: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """Return functions of a file, without their decorators, as they run with the given names."""
    tree = ast.parse(path.read_text("utf-8"))
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in wanted:
        node.decorator_list = []
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
    scope = {"os": os, "re": re, "functools": functools, "sysconfig": sysconfig, "subprocess": subprocess, **given}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), scope)
    return scope


def links(folders: list[str], by_name: bool, source: Path) -> bool:
    """Return whether the real linker finds the driver's library in these folders."""
    name = "-l:libcuda.so.1" if by_name else "-lcuda"
    command = ["gcc", str(source), "-shared", "-fPIC", "-o", f"{source}.out", *(f"-L{one}" for one in folders), name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compare_libcuda(release: Path, folder: Path) -> tuple[int, list[str]]:
    """Return the number of cases, and those that differ."""
    names = (release / "triton" / name for name in ("backends/nvidia/driver.py", "common/build.py", "compiler.py"))
    source = next(path for path in names if path.is_file())
    text = source.read_text("utf-8")
    search = read_search(text)
    if search is None:
        print(f"{release.name}: another search for libcuda, not predicted")
        return 0, []
    stub = folder / "stub.c"
    stub.write_text("int cuInit(int flags) { return flags; }\n")
    places = {}
    for key, content in itertools.product(("listed", "path", "variable"), CONTENTS):
        place = folder / f"{key}{len(content)}"
        place.mkdir(exist_ok=True)
        for name in content:
            subprocess.run(["gcc", "-shared", "-fPIC", str(stub), "-o", str(place / name)], check=True)
        places[key, content] = str(place)
    once = functools.cache(lambda folders, by_name: links(list(folders), by_name, stub))
    wrong, count = [], 0
    for listed, path, variable in itertools.product((None, *CONTENTS), repeat=3):
        environ = {}
        if path is not None:
            environ["LD_LIBRARY_PATH"] = f"/nowhere:{places['path', path]}"
        if variable is not None:
            environ["TRITON_LIBCUDA_PATH"] = places["variable", variable]
        cache = {name: f"{places['listed', listed]}/{name}" for name in (listed or ())}
        lines = "".join(f"\t{name} (libc6,x86-64) => {path}\n" for name, path in cache.items()).encode()
        fake = SimpleNamespace(check_output=lambda command, lines=lines: lines)
        knobs = SimpleNamespace(nvidia=SimpleNamespace(libcuda_path=environ.get("TRITON_LIBCUDA_PATH")))
        with mock.patch.dict(os.environ, environ, clear=False):
            try:
                scope = functions_of(source, ("libcuda_dirs",), knobs=knobs)
                scope["subprocess"] = fake
                real = once(tuple(scope["libcuda_dirs"]()), "libraries = ['libcuda.so.1']" in text)
            except AssertionError:
                real = False
        count += 1
        if (libcuda_problem(search, environ, cache, ()) is None) is not real:
            wrong.append(f"{release.name}: {environ} listed {listed}: real {real}")
    return count, wrong


def compare_ptxas(release: Path, rules: Any) -> tuple[int, list[str]]:
    """Return the number of GPUs, and those for which the tool or its CUDA release differs."""
    triton = release / "triton"
    source = next(path for path in (triton / "backends/nvidia/compiler.py", triton / "common/backend.py",
                                    triton / "compiler.py") if path.is_file())  # fmt: skip
    knobs = SimpleNamespace(nvidia=SimpleNamespace(ptxas="ptxas", ptxas_blackwell="ptxas-blackwell"))
    scope = functions_of(source, ("get_ptxas",), knobs=knobs, _path_to_binary=lambda name: name)
    wrong = []
    for arch in ARCHS:
        tool = "ptxas"
        if "get_ptxas" in scope:
            takes = scope["get_ptxas"].__code__.co_argcount
            tool = scope["get_ptxas"](*([arch] if takes else []))
        real = tool_release(str(next(triton.glob(f"**/bin/{tool}"))))
        facts = [Fact("triton.version", release.name, "-"), Fact("gpu.sm", f"{arch // 10}.{arch % 10}", "-")]
        known = FactResolver(Facts(facts), *rules)
        mine = known.value("triton.own_ptxas"), known.value("triton.ptxas_variable") == "TRITON_PTXAS_PATH"
        if mine != (real, tool == "ptxas"):
            wrong.append(f"{release.name} sm_{arch}: predicted {mine}, real {real} {tool}")
    return len(ARCHS), wrong


def main() -> int:
    """Print how many choices agree, and those that do not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    options = parser.parse_args()
    book = load_rulebook()
    total, wrong = 0, []
    for release in options.folders:
        with tempfile.TemporaryDirectory() as folder:
            for count, differs in (
                compare_libcuda(release, Path(folder)),
                compare_ptxas(release, (book.implications,)),
            ):
                total += count
                wrong += differs
    print(f"{total - len(wrong)} of {total} choices agree", *wrong, sep="\n  ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
