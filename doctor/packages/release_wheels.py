"""Official wheels outside the registry: which one fits a torch, its CUDA and C++ ABI, a Python and a C library.

flash-attn, causal-conv1d and mamba-ssm publish theirs on release pages. A table in `rules/index/release_wheels` says
what each release's workflow builds, so a wheel is *expected*: the release page was not read. A few wheels that came
later are *published*: public lock files name them with their hashes.
"""

# No postponed annotations: a named tuple would compile each of them again, at every start.

import functools
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse_version
from doctor.util.resources import rules_dir

PACKAGE = "flash-attn"
MACHINES = ("x86_64", "aarch64")


class WheelTarget(NamedTuple):
    """Where a wheel shall run; None means unknown."""

    torch: str | None = None
    cuda: str | None = None  # of the torch build
    abi: bool | None = None  # the C++11 ABI of the torch build
    python: str | None = None
    system: str = "Linux"
    machine: str = "x86_64"
    glibc: str | None = None


class Wheel(NamedTuple):
    """One wheel that the release workflow builds."""

    version: str
    cuda: str  # tag: cu12, cu122
    nvcc: str
    torch: str  # 2.8
    built_with: str  # 2.8.0
    python: str  # cp312
    abi: bool
    glibc: str
    url: str
    doubt: str | None = None  # why it may never have been built
    machine: str = "x86_64"
    seen: bool = False  # public lock files name it with its hash
    package: str = PACKAGE

    @property
    def certainty(self) -> str:
        """How sure it is that there is this file."""
        return "published" if self.seen else "expected"

    @property
    def name(self) -> str:
        """The file."""
        return self.url.rpartition("/")[2]

    @property
    def warnings(self) -> Iterator[str]:
        """What to know before trusting it."""
        if self.doubt:
            yield f"may not exist: {self.doubt}"
        if ".dev" in self.built_with:
            yield f"built with torch {self.built_with}, a pre-release of {self.torch}: it may not load"


class WheelMatch(NamedTuple):
    """What fits, newest first; else why nothing does, and the nearest that would."""

    place: WheelTarget
    fitting: tuple[Wheel, ...] = ()
    missing: tuple[str, ...] = ()  # what would have to be known
    why_not: str | None = None
    nearest: tuple[Wheel, ...] = ()


def find(place: WheelTarget, version: str | None = None, package: str = PACKAGE, *, near: bool = True) -> WheelMatch:
    """Return the wheels for this target, of one release or of all; three outcomes: fits, does not fit, unknown.

    Not `near`: without what would be nearest, for which the whole table has to be read.
    """
    if place.torch is not None:
        found = _match(place, version, table(version, minor(place.torch), package), package, near=False)
        if found.why_not is None:
            return found
    return _match(
        place, version, table(version, package=package), package, near=near
    )  # why nothing fits takes the whole table


def _match(place: WheelTarget, version: str | None, wheels: Sequence[Wheel], package: str, *, near: bool) -> WheelMatch:
    """Filter the wheels of a table by what is known of the target."""
    missing = tuple(
        name
        for name, value in (("torch", place.torch), ("CUDA", place.cuda), ("C++11 ABI", place.abi),
                            ("Python", place.python))
        if value is None
    )  # fmt: skip
    if place.system != "Linux" or place.machine not in MACHINES:
        what = place.system if place.system != "Linux" else place.machine
        return WheelMatch(
            place, why_not=f"official wheels are for Linux on {' and '.join(MACHINES)}, and this is {what}"
        )
    if not wheels:
        return WheelMatch(place, why_not=f"{package} {version} is not in the table of releases with wheels")
    torch, python = minor(place.torch), tag(place.python)
    steps = (
        (f"machine {place.machine}", lambda wheel: wheel.machine == place.machine),
        (f"torch {torch}", lambda wheel: place.torch is None or wheel.torch == torch),
        (f"CUDA {str(place.cuda).split('.')[0]}", lambda wheel: place.cuda is None or _serves(wheel, place.cuda)),
        (f"Python {python}", lambda wheel: place.python is None or wheel.python == python),
        (f"C++11 ABI {place.abi}", lambda wheel: place.abi is None or wheel.abi == place.abi),
        (f"glibc {place.glibc}", lambda wheel: place.glibc is None or not _newer(wheel.glibc, place.glibc)),
    )
    left: Sequence[Wheel] = wheels
    for what, holds in steps:
        before, left = left, [wheel for wheel in left if holds(wheel)]
        if not left:
            why = _why(before, what, f"{package} {version}" if version else f"No {package} release", bool(version))
            return WheelMatch(place, (), missing, why, nearest(place, version, package) if near else ())
    chosen = left if not missing else []
    best: dict[str, Wheel] = {}
    for wheel in sorted(chosen, key=lambda item: _cuda_distance(item, place)):
        best.setdefault(wheel.version, wheel)
    newest = sorted(best.values(), key=lambda wheel: parse_version(wheel.version), reverse=True)
    return WheelMatch(place, tuple(sorted(newest, key=lambda wheel: bool(wheel.doubt))), missing)


def nearest(place: WheelTarget, version: str | None, package: str = PACKAGE) -> tuple[Wheel, ...]:
    """Up to two wheels near the place: another release for this torch, and this release for another torch."""
    every = table(package=package)
    here = [wheel for wheel in every if not _unfit(wheel, place, but_torch=False)]
    there = [wheel for wheel in every if not _unfit(wheel, place, but_torch=True)]
    found: list[Wheel] = []
    if here and version is not None:
        other = version
        found.append(
            min(here, key=lambda wheel: (bool(wheel.doubt), _lines(wheel, other), _cuda_distance(wheel, place)))
        )
    same_release = [wheel for wheel in there if version is None or same(wheel.version, version)] or (
        [] if here else there
    )
    if same_release and place.torch is not None:
        goal = (*parse_version(minor(place.torch)).release, 0)  # torch 2 counts as 2.0

        def away(wheel: Wheel) -> tuple[Any, ...]:
            found = parse_version(wheel.torch).release
            steps = abs(found[0] - goal[0]) * 100 + abs(found[1] - goal[1])
            return bool(wheel.doubt), steps, [-part for part in _key(wheel.version)], _cuda_distance(wheel, place)

        found.append(min(same_release, key=away))
    return tuple(dict.fromkeys(found))


def _unfit(wheel: Wheel, place: WheelTarget, *, but_torch: bool) -> bool:
    """Whether any known fact of the target excludes it; another torch may come with another ABI and CUDA."""
    return (
        wheel.machine != place.machine
        or (place.python is not None and wheel.python != tag(place.python))
        or (place.glibc is not None and _newer(wheel.glibc, place.glibc))
        or (but_torch and wheel.abi != usual_abi(wheel.torch))
        or (place.cuda is not None and not _serves(wheel, place.cuda) and not but_torch)
        or (not but_torch and place.torch is not None and wheel.torch != minor(place.torch))
        or (not but_torch and place.abi is not None and wheel.abi != place.abi)
    )


def usual_abi(torch: str) -> bool:
    """The C++11 ABI of torch's builds in the registry: the new one since 2.7."""
    return parse_version(torch).release[:2] >= (2, 7)


def minor(version: str | None) -> str:
    """2.8.0+cu128 → 2.8"""
    return ".".join(str(version).partition("+")[0].split(".")[:2])


def tag(python: str | None) -> str:
    """3.12.3 → cp312"""
    return "cp" + "".join(str(python).split(".")[:2])


def same(one: str, other: str) -> bool:
    """Whether two spellings mean one version, local labels aside."""
    return parse_version(one.partition("+")[0]) == parse_version(other.partition("+")[0])


def _why(before: Sequence[Wheel], what: str, release: str, one: bool) -> str:
    """The sentence for the first thing that nothing was built for."""
    release = f"{release} has {'no' if one else 'an'} official wheel"
    kind = what.split()[0]
    there = {
        "torch": sorted({wheel.torch for wheel in before}, key=parse_version),
        "machine": sorted({wheel.machine for wheel in before}),
        "CUDA": sorted({wheel.cuda for wheel in before}),
        "Python": sorted({wheel.python for wheel in before}, key=lambda text: int(text[3:])),
        "C++11": [],
        "glibc": sorted({f"glibc {wheel.glibc} or newer" for wheel in before}),
    }[kind]
    built = f": built are {', '.join(there)}" if there else ""
    return f"{release} for {what}{built}"


def _serves(wheel: Wheel, cuda: str) -> bool:
    """Minor versions of CUDA are compatible; majors are not."""
    return wheel.cuda[2:4] == cuda.split(".")[0]


def _cuda_distance(wheel: Wheel, place: WheelTarget) -> tuple[int, ...]:
    """The compiler nearest to the CUDA of torch first."""
    if place.cuda is None:
        return (0,)
    here, there = (parse_version(text).release[:2] for text in (place.cuda, wheel.nvcc))
    return abs(here[0] - there[0]), abs(here[1] - there[1])


def _newer(one: str, other: str) -> bool:
    return parse_version(one) > parse_version(other)


def _key(version: str) -> tuple[int, ...]:
    parsed = parse_version(version)
    return (*(*parsed.release, 0, 0)[:3], parsed.post or 0)


def _lines(wheel: Wheel, version: str) -> tuple[int, ...]:
    """How far another release is away: its numbers' differences, most important first."""
    return tuple(abs(one - other) for one, other in zip(_key(wheel.version), _key(version), strict=True))


@functools.cache
def on_release_pages() -> frozenset[str]:
    """Return the packages of which such a table exists."""
    return frozenset(path.stem for path in _tables().glob("*.json"))


def _tables() -> Path:
    return rules_dir() / "index" / "release_wheels"


@functools.cache
def table(
    version: str | None = None, torch: str | None = None, package: str = PACKAGE, path: Path | None = None
) -> tuple[Wheel, ...]:
    """Return every wheel the workflows build, or those of one release or for one torch (`2.8`), oldest first."""
    if path is None:
        path = _tables() / f"{package}.json"
    try:
        return tuple(_wheels(package, _read(path), version, torch))
    except (OSError, ValueError, KeyError) as problem:
        raise DoctorError(
            f"the table of wheels `{path.name}` cannot be read: {problem}", "reinstall attn-doctor"
        ) from None


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def _wheels(package: str, body: dict[str, Any], only: str | None, for_torch: str | None) -> Iterator[Wheel]:
    for group in body["releases"]:
        machine = group.get("machine", "x86_64")
        glibc = body["glibc"][group["runner"]]
        for version in group["versions"]:
            if only is not None and not same(version, only):
                continue
            doubt = body["doubtful"].get(version)
            for cuda, nvcc, torch, built_with, pythons, *abis in group["builds"]:
                if for_torch not in (None, torch):
                    continue
                for python, abi in product(pythons.split(), "".join(abis or ["FALSE TRUE"]).split()):
                    if abi == "FALSE" and body.get("other_abi", {}).get(version) == torch:
                        continue  # it has the new ABI in spite of its name: no torch can import it
                    url = body["url"].format(
                        version=version, cuda=cuda, torch=torch, abi=abi, python=python, machine=machine
                    )
                    yield Wheel(
                        version, cuda, nvcc, torch, built_with, python, abi == "TRUE", glibc, url, doubt, machine,
                        package=package,
                    )  # fmt: skip
    for item in body.get("added", ()):
        version, cuda, torch, python = item["version"], item["cuda"], item["torch"], item["python"]
        if for_torch not in (None, torch) or (only is not None and not same(version, only)):
            continue
        for machine, abi in product(item["machines"].split(), item["abis"].split()):
            url = body["url"].format(version=version, cuda=cuda, torch=torch, abi=abi, python=python, machine=machine)
            yield Wheel(
                version, cuda, item["nvcc"], torch, torch, python, abi == "TRUE", body["glibc"][item["runner"]], url,
                machine=machine, seen=True, package=package,
            )  # fmt: skip
