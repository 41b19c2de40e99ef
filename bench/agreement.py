"""Do the pins that attn-doctor derives from declared files equal what `uv pip compile` picks?

    python bench/agreement.py [--uv PATH] [--list FILE] [--generated N] [--seed N] [--json FILE]

Both read requirements files made up from the release index (pins, ranges, extras, markers, includes, constraints) and
those of a list of local checkouts (see scripts/oracles/ask_projects.py). What no index serves (repositories,
addresses, folders, `+cu` builds) is left out of both sides, and so are index options. uv reaches PyPI; what old sources
need comes from the index, where they cannot be built.

Compared are the packages of the stack: an exact pin or what a pinned release brings has to be uv's choice; a range has
to admit it. Prints the rate, every disagreement, and what uv itself could not resolve. 1 below 100 %.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _harness

_harness.import_ours("scripts/oracles")

from ask_projects import read_list  # noqa: E402 (the script runs from anywhere)

from doctor.diagnosis.watch import watch_of  # noqa: E402
from doctor.errors import DoctorError  # noqa: E402
from doctor.facts.vocabulary import parse_version  # noqa: E402
from doctor.model import ABSENT, Fact, Facts  # noqa: E402
from doctor.packages.index import load_index  # noqa: E402
from doctor.packages.platform import Platform  # noqa: E402
from doctor.packages.specifiers import normalized  # noqa: E402
from doctor.rulebook.evaluate import know  # noqa: E402
from doctor.rulebook.rulebook import Rulebook, load_rulebook  # noqa: E402
from doctor.sources.manifests.read import read_manifests  # noqa: E402
from doctor.sources.manifests.resolve import Declaration  # noqa: E402

PYTHONS = ("3.11", "3.10", "3.12")  # the first for which uv finds a solution counts
RETRIES = 12  # of one file, each with one more source described to uv
PLATFORM = "x86_64-unknown-linux-gnu"
#: What no index serves, and options that change where packages come from.
_ELSEWHERE = re.compile(
    r"^\s*(-e|--editable|-i|-f|--index-url|--extra-index-url|--find-links|--no-index|--trusted-host|--pre\b)"
    r"|^[^#]*(@\s*(git\+|https?:|file:)|^\s*(git\+|https?:|\.{0,2}/)|^\s*\.{1,2}(\[|\s|$))"
    r"|^\s*[\w.-]+(\[[^\]]*\])?\s*===?\s*[\w.]+\+\w|^\s*[\w-]+/[\w/-]+\s*$"
)
_CHOICE = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_UNBUILT = re.compile(
    r"(?:Failed to build|Failed to download and build|[Bb]uild backend|Could not) `?([\w.-]+)==([\w.+!-]+)`?"
)


class Verdict(NamedTuple):
    """One package of one file."""

    package: str
    kind: str  # pin | brought | range | cuda
    ours: str
    uvs: str
    agrees: bool


def main() -> int:
    """Resolve all files, print the rate; 1 if anything disagrees."""
    options = read_options()
    rulebook = load_rulebook()
    verdicts: list[tuple[str, Verdict]] = []
    asked, refused, refusals = 0, [], []
    with tempfile.TemporaryDirectory(prefix="attn-doctor-agreement-") as place:
        for name, path in [*real(options.list, Path(place)), *generated(options, Path(place))]:
            picked, python, why = compiled(path, options.uv)
            if picked is None:
                refused.append((name, why))
                continue
            try:
                declaration = read_manifests(
                    [str(path)], Facts([Fact("python.version", f"{python}.9", "--set")]), watch_of(rulebook)
                )
            except DoctorError as problem:
                refusals.append((name, problem.message))
                continue
            asked += 1
            refusals += [(name, fault.message) for fault in declaration.faults]
            verdicts += [(name, verdict) for verdict in compared(declaration, picked, rulebook)]
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    wrong = [(name, item) for name, item in verdicts if not item.agrees]
    for kind, number in sorted(Counter(item.kind for _, item in verdicts).items()):
        bad = sum(item.kind == kind for _, item in wrong)
        print(f"{kind:<8} {number - bad:>5} of {number} agree")
    for name, item in wrong:
        print(f"  {name}: {item.package} ({item.kind}): attn-doctor says {item.ours}, uv picks {item.uvs}")
    for name, why in refusals:
        print(f"  {name}: attn-doctor refuses what uv takes: {why}")
    for name, why in refused:
        print(f"  not asked: {name}: {why}")
    share = 1 - len(wrong) / len(verdicts) if verdicts else 0.0
    print(
        f"{asked} files, {len(verdicts)} packages compared, {100 * share:.2f} % agree; {len(refused)} uv cannot resolve"
    )
    rows = [{"file": name, **item._asdict()} for name, item in verdicts]
    report = {"rate": share, "files": asked, "verdicts": rows, "unresolved": refused, "refused": refusals}
    _harness.write_json(options.json, report)
    return int(bool(wrong or refusals or not verdicts))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = _harness.arguments(__doc__, generated=40, seed=1)
    parser.add_argument("--uv", default="uv", help="the program")
    parser.add_argument(
        "--list", type=Path, help="environments of local checkouts, as scripts/oracles/ask_projects.py reads them"
    )
    return parser.parse_args()


def real(listed: Path | None, place: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of the requirements files and projects in the checkouts, without what no index serves."""
    for number, asked in enumerate(read_list(listed) if listed else []):
        for path in asked.paths:
            if path.suffix not in (".txt", ".in") and path.name != "pyproject.toml":
                continue  # locks and images say what they hold by themselves
            folder = place / f"real-{number}"
            for source in {path, *asked.folder.rglob("*.txt")}:
                copy = folder / source.relative_to(asked.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                text = source.read_text("utf-8-sig", errors="replace")
                copy.write_text(without_elsewhere(text) if source.name != "pyproject.toml" else project(text), "utf-8")
            (folder / ".git").mkdir(exist_ok=True)  # the top, which includes do not leave
            name = f"{asked.folder.name.replace('+', '/', 1)}/{path.relative_to(asked.folder)}"
            yield name, folder / path.relative_to(asked.folder)


def without_elsewhere(text: str) -> str:
    """A requirements file without the lines that no index serves; the others keep their numbers."""
    return "\n".join("" if _ELSEWHERE.search(line) else line for line in text.split("\n"))


def project(text: str) -> str:
    """The `[project]` of a pyproject.toml with what an index serves."""
    import tomllib

    found = tomllib.loads(text).get("project", {})
    lines = [line for line in found.get("dependencies", []) if not _ELSEWHERE.search(line)]
    python = found.get("requires-python", ">=3.9")
    return f'[project]\nname = "asked"\nversion = "0"\nrequires-python = {json.dumps(python)}\n' + (
        "dependencies = [\n" + "".join(f"  {json.dumps(line)},\n" for line in lines) + "]\n"
    )


def generated(options: argparse.Namespace, place: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of made-up requirements: each one shape around a release of the stack."""
    draw = random.Random(options.seed)
    shapes = (exact, ranged, with_extras, with_markers, constrained, included, chained, frozen)
    for number in range(options.generated):
        shape = shapes[number % len(shapes)]
        folder = place / f"made-{number}"
        (folder / ".git").mkdir(parents=True)
        for file, text in shape(draw).items():
            (folder / file).write_text(text, "utf-8")
        yield f"made-up {number} ({shape.__name__})", folder / "requirements.txt"


def releases(package: str, least: str = "0") -> list[str]:
    """The releases of a package that Python 3.11 on Linux installs, from a wheel or from a source described to uv."""
    here = Platform("3.11.9")
    return [
        version
        for version, release in load_index().releases(package).items()
        if not release.yanked and not release.is_prerelease and release.installs_on(here)
        and parse_version(version) >= parse_version(least)
        and (release.has_wheel(here) or release.requires)
    ]  # fmt: skip


def exact(draw: random.Random) -> dict[str, str]:
    """A pinned torch, and its companions left open."""
    torch = draw.choice(releases("torch", "2.0"))
    others = draw.sample(["triton", "transformers", "torchvision", "flash-attn", "deepspeed"], 2)
    return {"requirements.txt": f"torch=={torch}\n" + "".join(f"{name}\n" for name in others)}


def ranged(draw: random.Random) -> dict[str, str]:
    """Ranges of every kind."""
    torch = releases("torch", "2.1")
    first = draw.randrange(len(torch) - 3)
    clause = draw.choice([
        f">={torch[first]},<{torch[first + 3]}", f"~={torch[first]}", f"=={'.'.join(torch[first].split('.')[:2])}.*",
        f">={torch[first]},!={torch[-1]}", f"<={torch[first]}",
    ])  # fmt: skip
    return {"requirements.txt": f"torch{clause}\ntransformers>=4.45,<4.50\ntriton\n"}


def with_extras(draw: random.Random) -> dict[str, str]:
    """Extras that bring more of the stack."""
    te = draw.choice(releases("transformer-engine", "1.11"))
    line = draw.choice([
        f"transformers[torch]=={draw.choice(releases('transformers', '4.40'))}\n",
        f"transformer_engine[pytorch]=={te}\n",
        f"accelerate\nvllm[tensorizer]=={draw.choice(releases('vllm', '0.6'))}\n",
    ])  # fmt: skip
    return {"requirements.txt": line}


def with_markers(draw: random.Random) -> dict[str, str]:
    """One pin per Python, and lines for other machines."""
    old, new = sorted(draw.sample(releases("torch", "2.1"), 2), key=parse_version)
    return {
        "requirements.txt": f"torch=={old} ; python_version < '3.10'\ntorch=={new} ; python_version >= '3.10'\n"
        "tensorrt-cu12 ; sys_platform == 'win32'\n"
        "triton ; platform_system == 'Linux' and (platform_machine == 'x86_64' or python_version < '3')\n"
    }


def constrained(draw: random.Random) -> dict[str, str]:
    """Constraints pin what is requested, and what comes along."""
    torch = draw.choice(releases("torch", "2.2"))
    return {
        "requirements.txt": "-c constraints.txt\ntorch\ntorchvision\ntransformers\n",
        "constraints.txt": f"torch=={torch}\ntransformers<4.50\nxformers==0.0.20\n",
    }


def included(draw: random.Random) -> dict[str, str]:
    """Includes, one of them twice."""
    return {
        "requirements.txt": "-r base.txt\n-r more.txt\ntransformers\n",
        "base.txt": f"torch>=2.2\nxformers=={draw.choice(releases('xformers', '0.0.24'))}\n",
        "more.txt": "-r base.txt\ntransformers>=4.44\n",
    }


def chained(draw: random.Random) -> dict[str, str]:
    """A pinned package that pins torch, which pins its own."""
    name, least = draw.choice([("vllm", "0.5"), ("xformers", "0.0.23"), ("torchvision", "0.16"), ("torchaudio", "2.1")])
    return {"requirements.txt": f"{name}=={draw.choice(releases(name, least))}\n"}


def frozen(draw: random.Random) -> dict[str, str]:
    """Everything pinned, as `pip freeze` writes it, in another spelling."""
    torch = load_index().release("torch", draw.choice(releases("torch", "2.2")))
    assert torch is not None
    lines = [f"Torch=={torch.version}  # frozen"]
    for line in torch.requires:
        match = re.match(r"(triton|nvidia-(?:cudnn|nccl)-cu\d+) ?\(?==([\d.]+)", line)
        if match:
            lines.append(f"{match[1].replace('-', '_')} == {match[2]}")
    return {"requirements.txt": "\r\n".join(lines) + "\r\n"}


def compiled(path: Path, uv: str) -> tuple[dict[str, str] | None, str, str]:
    """(package → version that uv picks, for which Python, else why not)."""
    reason = first = ""
    for python in PYTHONS:
        described: dict[str, str | None] = {}
        for _ in range(RETRIES):
            said = run_uv(path, uv, python, described)
            if said.returncode == 0:
                return {normalized(name): text for name, text in _CHOICE.findall(said.stdout)}, python, ""
            reason = " ".join(said.stderr.split())
            unbuilt = _UNBUILT.search(reason)
            if unbuilt is None or normalized(unbuilt[1]) + unbuilt[2] in described:
                break
            described[normalized(unbuilt[1]) + unbuilt[2]] = f"{unbuilt[1]}=={unbuilt[2]}"
        first = first or reason
    return None, "", first[:300]


def run_uv(path: Path, uv: str, python: str, described: dict[str, str | None]) -> subprocess.CompletedProcess[str]:
    """Query uv once; what sources need is described to it."""
    settings = path.parent / "uv-asked.toml"
    settings.write_text("\n".join([*stack_sources(), *(source(line) for line in described.values() if line)]), "utf-8")
    command = [
        uv, "pip", "compile", path.name, "--python-version", python, "--python-platform", PLATFORM, "--no-header",
        "--no-annotate", "--color", "never", "--no-sources", "--config-file", settings.name,
    ]  # fmt: skip
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False, timeout=900)


def stack_sources() -> Iterator[str]:
    """What each source-only release of the stack requires, as its metadata on record says."""
    index = load_index()
    for package in index.packages:
        for version, release in index.releases(package).items():
            if release.sdist and not release.machines and release.requires:
                yield entry(package, version, list(release.requires))


def source(line: str) -> str:
    """A source outside the stack that cannot be built here, as one that needs nothing."""
    name, _, version = line.partition("==")
    return entry(name, version, [])


def entry(name: str, version: str, requires: list[str]) -> str:
    """A table of uv's settings that spares it a build."""
    return (
        f"[[dependency-metadata]]\nname = {json.dumps(name)}\nversion = {json.dumps(version)}\n"
        f"requires-dist = {json.dumps(requires)}\n"
    )


def compared(declaration: Declaration, picked: dict[str, str], rulebook: Rulebook) -> Iterator[Verdict]:
    """Every package of the stack that the file determines, or leaves open within a range."""
    known, _ = know(rulebook, declaration.facts)
    opened = {item.name: item for item in declaration.open}
    torch = known.value("torch.version") not in (None, ABSENT)
    for package in load_index().packages:
        key, uvs = f"{package}.version", picked.get(package)
        told = declaration.facts.get(key)
        if package in opened:
            if uvs is not None:
                yield Verdict(package, "range", _span(opened[package].versions), uvs, uvs in opened[package].versions)
        elif told is not None and told.value not in (None, ABSENT):
            yield Verdict(package, "pin", str(told.value), uvs or "nothing", same(str(told.value), uvs))
        elif uvs is not None and re.fullmatch(r"triton|nvidia-(cudnn|nccl)-cu\d+", package):
            ours = known.value(key)
            if torch and (ours is not None or _required(package, str(known.value("torch.version")))):
                yield Verdict(package, "brought", str(ours), uvs, same(str(ours), uvs))
    cuda = _cuda(picked)
    if torch and cuda:
        yield Verdict("torch", "cuda", str(known.value("torch.cuda")), cuda, str(known.value("torch.cuda")) == cuda)


def same(ours: str, uvs: str | None) -> bool:
    """One version in two spellings."""
    if uvs is None or ours in ("None", ABSENT):
        return False
    return parse_version(ours) == parse_version(uvs)


def _required(package: str, torch: str) -> bool:
    """Whether this torch requires the package itself, so that a pin of torch determines it."""
    release = load_index().release("torch", torch)
    return release is not None and any(re.match(rf"{package}(?![\w-])", line) for line in release.requires)


def _span(versions: tuple[str, ...]) -> str:
    return f"{versions[0]} to {versions[-1]} ({len(versions)})" if versions else "any"


def _cuda(picked: dict[str, str]) -> str | None:
    """The CUDA of the build that uv picks, by the runtime that it brings."""
    names = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
    found = next((picked[name] for name in names if name in picked), None)
    return ".".join(found.split(".")[:2]) if found else None


if __name__ == "__main__":
    sys.exit(main())
