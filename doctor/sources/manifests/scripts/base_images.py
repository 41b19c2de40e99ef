"""What a base image holds: from the rulebook's table of images, else as far as its tag says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from doctor.facts.libraries.frameworks import servers
from doctor.facts.libraries.servers import Server
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import ABSENT, TORCH, Fact
from doctor.sources.manifests.base import DeclaredRequirement
from doctor.sources.watch import Images
from doctor.util.redact import shortened

from .compilers import of_image

#: `nvcr.io/nvidia/pytorch:24.10-py3`, also as enroot writes it: `nvcr.io#nvidia/pytorch:24.10-py3`.
_REFERENCE = re.compile(
    r"(?:docker://)?(?P<name>(?:[\w.-]+(?::[0-9]+)?[/#])?(?:[\w.-]+/)*[\w.-]+)(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]+)?"
)
#: `24.10-py3`, and `25.09.00` as NeMo's images are tagged.
_NGC = re.compile(r"(?P<release>[0-9][0-9]\.[0-9][0-9])(?:\.0[0-9])?(?:-.*)?")
_TORCH = re.compile(
    r"(?P<version>[0-9]+\.[0-9]+\.[0-9]+)-cuda(?P<cuda>[0-9]+\.[0-9]+)-cudnn(?P<cudnn>[0-9]+)-(?:devel|runtime)"
)
#: pytorch/pytorch is made from wheels since this release, before that from conda's packages (pytorch/pytorch#134274).
_FIRST_OF_WHEELS = (2, 5)
_CUDA = re.compile(r"(?P<cuda>[0-9]+\.[0-9]+)(?:\.[0-9]+)?(?P<cudnn>-cudnn[0-9]*)?-")
_RELEASE = re.compile(r"v(?P<version>[0-9]+\.[0-9]+\.[0-9]+(?:\.post[0-9]+)?)(?:-.*)?")
_PYTHON = re.compile(r"(?P<version>3\.[0-9]+(?:\.[0-9]+)?)(?:-.*)?")
#: What NVIDIA's images with torch may hold; where the table lacks a value, it is unknown and not absent.
_OF_NGC = ("torch.version", "transformer-engine.version", "flash-attn.version", "cudnn.version", "torch.cuda",
           "triton.version")  # fmt: skip
_ABOUT_ROW = ("source", "certainty", "reported")
_MIRRORS = re.compile(
    r"^(?:docker\.io/|index\.docker\.io/|registry-1\.docker\.io/|mirror\.gcr\.io/|public\.ecr\.aws/docker/)"
)
_WITHOUT_PACKAGES = (
    "ubuntu", "debian", "scratch", "alpine", "rockylinux", "almalinux", "centos", "fedora", "busybox", "amazonlinux",
)  # fmt: skip


@dataclass(frozen=True)
class Image:
    """What is known of the content of an image."""

    entries: tuple[DeclaredRequirement, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Line:
    """The line that names an image."""

    file: str
    number: int
    raw: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def entry(
        self, name: str, version: str | None = None, problem: str | None = None, *, source: bool = False
    ) -> DeclaredRequirement:
        """Return one package of the image."""
        pin = f"=={version}" if version else ""
        return DeclaredRequirement(
            name, self.file, self.number, pin, version, raw=self.raw, problem=problem, source=source
        )


def image(reference: str, images: Images, file: str, number: int, raw: str = "") -> Image:
    """Return the packages and facts of an image by its name and tag; `file`, `number` and `raw` are the line."""
    line = _Line(file, number, raw)
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return Image(notes=(f"{line.place}: unknown content of the image `{shortened(reference, 60)}`",))
    name = _MIRRORS.sub("", match["name"].replace("#", "/"))
    name, tag = re.sub(r"^library/", "", name), match["tag"] or ""
    held = _content(name, tag, reference, images, line)
    known = {fact.key for fact in held.facts}
    tools = tuple(fact for fact in of_image(name, tag, line.place) if fact.key not in known)
    return replace(held, facts=(*held.facts, *tools))


def _content(name: str, tag: str, reference: str, images: Images, line: _Line) -> Image:
    rows = images.get(name, {})
    release = _NGC.fullmatch(tag)
    row = rows.get(tag) or (rows.get(release["release"]) if release else None)
    if row is not None:
        return _from_table(f"{name}:{tag}", row, line)
    if name == "pytorch/pytorch":
        return _pytorch(tag, line)
    if name in ("nvidia/cuda", "nvcr.io/nvidia/cuda"):
        found = _CUDA.match(tag)
        parts = (f"CUDA {found['cuda']}" if found else "a CUDA of unknown version") + (
            " and a cuDNN" if found and found["cudnn"] else ""
        )
        return Image(notes=(f"{line.place}: the image brings {parts} to build with; a torch wheel brings its own",))
    if name == "python":
        found = _PYTHON.fullmatch(tag)
        return Image(facts=(make_fact("python.version", found["version"], line.place),) if found else ())
    if name in _WITHOUT_PACKAGES:
        return Image()
    if (server := next((item for item in servers().values() if name in item.images), None)) is not None:
        return _server(server, name, tag, line)
    if rows:
        return _from_table(f"{name}:{tag or 'latest'}", None, line)
    if name.startswith("rocm/"):
        problem = f"the image `{shortened(reference, 60)}` is for AMD GPUs"
        return Image((line.entry(TORCH, problem=problem),), notes=(f"{line.place}: {problem}",))
    return Image(notes=(f"{line.place}: unknown content of the image `{shortened(reference, 60)}`",))


def _pytorch(tag: str, line: _Line) -> Image:
    """Return PyTorch's own image: the tag names release and CUDA, the build is that of the index for that CUDA."""
    found = _TORCH.fullmatch(tag)
    if found is None:
        problem = f"the tag `{tag or 'latest'}` of pytorch/pytorch fixes no release"
        return Image((line.entry(TORCH, problem=problem),))
    conda = tuple(map(int, found["version"].split(".")[:2])) < _FIRST_OF_WHEELS
    cuda = found["cuda"]
    version = found["version"] + ("" if conda else f"+cu{cuda.replace('.', '')}")
    build = "package of conda" if conda else "wheel"
    note = f"{line.place}: its torch is assumed to be the {build} for CUDA {cuda}, with the cuDNN of that build"
    return Image((line.entry(TORCH, version),), (Fact("torch.cuda", cuda, line.place),), (note,))


def _server(server: Server, image: str, tag: str, line: _Line) -> Image:
    """Return a server's own image: the tag is its release, and torch is the one that this release requires."""
    found = _RELEASE.fullmatch(tag)
    if found is None:
        problem = f"the tag `{tag or 'latest'}` of {image} fixes no release"
        return Image(tuple(line.entry(name, problem=problem) for name in (server.package, TORCH)))
    note = f"{line.place}: its torch is assumed to be the one that {server.title} {found['version']} requires"
    return Image((line.entry(server.package, found["version"]),), (), (note,))


def _from_table(shown: str, row: Mapping[str, Any] | None, line: _Line) -> Image:
    """Return what the table says about an image; without a row for its tag, everything is unknown."""
    if row is None:
        held, why = {}, f"unknown content of the image `{shown}`"
    else:
        held, why = {**row.get("reported", {}), **row}, f"unknown release in the image `{shown}`"
    entries, facts = [], []
    for key in dict.fromkeys((*held, *_OF_NGC)):
        if key in _ABOUT_ROW:
            continue
        package = key.removesuffix(".version")
        if key.endswith(".version") and package not in ("cudnn", "python"):
            version = held.get(key)
            entries.append(line.entry(package, version, None if version else why, source=True))
        else:
            facts.append(make_fact(key, held.get(key), line.place, problem=None if key in held else why))
    if held.get("torch.cuda") not in (None, ABSENT) and "toolkit.nvcc" not in held:
        facts.append(make_fact("toolkit.nvcc", held["torch.cuda"], line.place))  # its torch was compiled there
    return Image(tuple(entries), tuple(facts), tuple(_reported(row or {}, line.place)))


def _reported(row: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield a note for what others than the publisher of the image say about it."""
    if row.get("certainty") == "reported":
        yield f"{place}: the content of this image was reported by others ({row['source']}), not by its publisher"
    elif row.get("reported"):
        named = ", ".join(key for key in row["reported"] if key not in _ABOUT_ROW)
        yield f"{place}: {named} of this image: reported by others ({row['reported']['source']}), not by its publisher"
