"""Write rules/index/messages/PACKAGE.json.xz: what the code of each package raises, and under which condition.

    python scripts/release/refresh_messages.py --archives DIR [--only PACKAGE ...] [--native | --sources] [--out FOLDER]

DIR holds wheels and source archives, as `pip download --no-deps` leaves them; several releases of a package may be
there. They are read as they are: nothing is installed or run. Of each `raise` and `assert` with a message, the record
has the message as a template, the file, the function, the condition that leads there, and first and last release.
What the record has of other releases stays: an archive adds its release. Packages of which DIR holds no archive keep
their record.

`--native` reads the compiled libraries of wheels for x86-64 Linux instead, into PACKAGE.native.json.xz: the checks of
torch's C++ code, with file and function. A template is there in pieces, whose order the compiler may have changed.

`--sources` reads the C++ and CUDA sources of source archives, and of wheels that bring them, into PACKAGE.csrc.json.xz.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from doctor.rulebook.authoring.release_files import members
from doctor.util.raise_sites import raised_in
from scripts.release.native_messages import compiled_messages
from scripts.release.source_messages import source_messages

OUT = Path(__file__).resolve().parents[2] / "rules" / "index" / "messages"
SHORTEST = 12  # characters of a message that are fixed
SHORTEST_NATIVE = 20  # of a check of compiled code: many are of one word and a value
#: Compiled libraries that jobs of any kind load, and native files whose messages they do not print.
LIBRARIES = re.compile(r"(?:^|/)lib(?:torch_(?:cpu|cuda|python)|c10(?:_cuda)?)\.so$")
SKIPPED_NATIVE = re.compile(
    r"/(?:quantized|sparse|mps|vulkan|mkldnn|xnnpack|metal|mobile|jit|onnx|lazy|profiler|tensorexpr|ao_sparse|miopen|test)/"
    r"|^torch/csrc/(?:inductor|jit|onnx|lazy|profiler|export|stable|shim)|^caffe2/"
)
LARGEST_SOURCE = 2**20  # bytes: larger ones are generated kernels
SOURCES = ("**/*.cpp", "**/*.cc", "**/*.cu", "**/*.cuh", "**/*.h", "**/*.hpp", "**/*.inl")
#: Copies of other projects, and code for other hardware.
SKIPPED_SOURCES = re.compile(
    r"(?:^|/)(?:tests?|testing|benchmarks?|examples?|docs?|third_?party|3rdparty|cutlass|composable_kernel|ck|build"
    r"|submodules|hip|rocm|xpu|cpu|spdlog|json|tvm_binding|aio|libaio|npu|onebit|quantization|gguf)/",
    re.IGNORECASE,
)
#: Files whose messages no training or serving job prints.
SKIPPED = re.compile(
    r"(?:^|/)(?:tests?|testing|benchmarks?|examples|docs|tools|onnx|_vendor|sagemaker|export|exporters|caffe2|tensorboard"
    r"|mobile|jax|paddle|torchgen|quantization|ao|legacy|deprecated|commands|_numpy|_refs|multimodal_gen|entrypoints"
    r"|function_call|tool_parsers|reasoning|lang|cli|eval)/|(?:^|/)(?:modeling_(?:tf|flax)_|modular_|convert_|setup\.py|conftest)"
)
#: Words of which a message, its function or its file has one; the others have nothing to do with attention.
RELEVANT = re.compile(
    r"(?i)att(?:entio)?n|sdpa|scaled_dot|flash|mask|\brope\b|rotary|\bkv|cache|qkv|query|key_value|head|flex|nested|jagged"
    r"|kernel|triton|fmha|\bmla\b|window|softcap|sink|varlen|cu_?seqlens|seqlen|sequence.?length|context.?parallel|ring"
    r"|ulysses|dtype|fp8|bf16|fp16|bfloat16|float16|nvcc|cuda|capability|\bsm_?\d|gpu|compile|dynamo|inductor|vmap|fake"
    r"|contiguous|stride|layout|packing|padding|position|gqa|backend|quant|not installed|install|version|require"
    r"|checkpoint|recomput|embed_dim|dtensor|placement|shard"
)


@dataclass
class Record:
    """The first place of a message, and the releases that have it, by number."""

    file: str
    function: str
    releases: set[int] = field(default_factory=set)


def archives_in(folder: Path) -> dict[str, dict[Version, Path]]:
    """Return the archives of each package by release."""
    found: dict[str, dict[Version, Path]] = {}
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix == ".whl":
                name, version, *_ = parse_wheel_filename(path.name)
            elif path.name.endswith(".tar.gz"):
                name, version = parse_sdist_filename(path.name)
            else:
                continue
        except ValueError:
            continue
        found.setdefault(canonicalize_name(name), {})[Version(version.public)] = path
    return found


def files_in(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of an archive; the first folder of a source archive is left out."""
    files = members(archive, ("**/*.py",))
    is_wheel = archive.suffix == ".whl"
    for path, content in sorted(files) if is_wheel else files:
        name = path if is_wheel else path.removeprefix("src/").removeprefix("python/")
        if not SKIPPED.search(name):
            yield name, content


def python_sites(archive: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield template, condition, file and function of each message of the Python code of an archive."""
    for path, content in files_in(archive):
        for site in raised_in(content):
            if site.fixed >= SHORTEST:
                yield site.template, site.guard, path, site.function


def source_sites(archive: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield template, condition, file and function of each message of the C++ and CUDA sources of an archive."""
    for path, content in sorted(members(archive, SOURCES, SKIPPED_SOURCES, LARGEST_SOURCE)):
        for site in source_messages(content):
            if site.fixed >= SHORTEST:
                yield site.template, site.guard, path.removeprefix("src/"), site.function


def native_sites(archive: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield template, no condition, file and function of each check of the compiled libraries of a wheel."""
    with zipfile.ZipFile(archive) as wheel:
        for name in filter(LIBRARIES.search, wheel.namelist()):
            for site in dict.fromkeys(compiled_messages(wheel.read(name))):
                if site.fixed >= SHORTEST_NATIVE and not SKIPPED_NATIVE.search(site.file):
                    yield site.template, "", site.file, site.function


def record_of(
    archives: dict[Version, Path],
    sites_in: Callable[[Path], Iterator[tuple[str, str, str, str]]] = python_sites,
    earlier: dict | None = None,
) -> dict:
    """Return the record of one package: releases, files and sites with the runs of releases that have them.

    Releases of an earlier record without an archive keep what it says of them.
    """
    kept = [Version(text) for text in (earlier or {}).get("releases", ()) if Version(text) not in archives]
    releases = sorted({*archives, *kept})
    native = sites_in is native_sites
    having = _recorded(earlier, {one: releases.index(one) for one in kept}, native=native) if earlier else {}
    for number, release in enumerate(releases):
        for template, guard, path, function in sites_in(archives[release]) if release in archives else ():
            if not (RELEVANT.search(template) or RELEVANT.search(f"{path} {function}")):
                continue
            own = function if native else ""  # models in Python copy functions of each other
            known = having.setdefault((template, guard, own), Record(path, function))
            known.releases.add(number)
    files = sorted({item.file for item in having.values()})
    place = {file: number for number, file in enumerate(files)}
    sites = [
        [template, place[item.file], item.function, guard, runs_of(item.releases)]
        for (template, guard, _), item in sorted(having.items(), key=lambda pair: (place[pair[1].file], pair[0]))
    ]
    return {"releases": [str(release) for release in releases], "files": files, "sites": sites}


def _recorded(earlier: dict, numbers: dict[Version, int], *, native: bool) -> dict[tuple[str, str, str], Record]:
    """Return the sites of a record in the releases that stay, by their new numbers."""
    found: dict[tuple[str, str, str], Record] = {}
    order = [numbers.get(Version(text)) for text in earlier["releases"]]
    for template, file, function, guard, runs in earlier["sites"]:
        spans = [tuple(map(int, run.split("-"))) for run in runs.split(",")]
        having = {order[at] for first, last in spans for at in range(first, last + 1)} - {None}
        if having:
            key = template, guard, function if native else ""
            found[key] = Record(earlier["files"][file], function, having)
    return found


def runs_of(numbers: set[int]) -> str:
    """Return spans of numbers: `0-3,5-5`."""
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    return ",".join(f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))


def main() -> int:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--native", action="store_true", help="read compiled libraries")
    kind.add_argument("--sources", action="store_true", help="read C++ and CUDA sources")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    suffix, sites_in = "", python_sites
    if options.native:
        suffix, sites_in = ".native", native_sites
    elif options.sources:
        suffix, sites_in = ".csrc", source_sites
    for name, archives in archives_in(options.archives).items():
        if options.only and name not in options.only:
            continue
        path = options.out / f"{name}{suffix}.json.xz"
        earlier = json.loads(lzma.decompress(path.read_bytes())) if path.is_file() else None
        record = record_of(archives, sites_in, earlier)
        if not record["sites"]:
            continue
        text = json.dumps(record, separators=(",", ":"), sort_keys=True)
        packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
        path.write_bytes(packed)
        count = len(record["releases"])
        print(f"{name}: {len(record['sites'])} messages in {count} releases, {len(packed):,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
