"""What a base image holds: NGC's from the table in the rulebook, others as far as their tags say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..model import Fact
from ..records import dataclass
from ..vocabulary import fact as make_fact
from .interface import Entry

#: `nvcr.io/nvidia/pytorch:24.10-py3`, also as enroot writes it: `nvcr.io#nvidia/pytorch:24.10-py3`.
_REFERENCE = re.compile(
    r"(?:docker://)?(?P<name>(?:[\w.-]+(?::\d+)?[/#])?(?:[\w.-]+/)*[\w.-]+)(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]+)?"
)
_NGC = re.compile(r"(?P<release>\d\d\.\d\d)(?P<flavour>-.*)?")
_TORCH = re.compile(r"(?P<version>\d+\.\d+\.\d+)-cuda(?P<cuda>\d+\.\d+)-cudnn(?P<cudnn>\d+)-(?:devel|runtime)")
_CUDA = re.compile(r"(?P<cuda>\d+\.\d+)(?:\.\d+)?(?P<cudnn>-cudnn\d*)?-")
_PYTHON = re.compile(r"(?P<version>3\.\d+(?:\.\d+)?)(?:-.*)?")
#: What an image that brings torch may bring besides; on record or not, something of it is there.
_OF_NGC = ("torch.version", "transformer-engine.version", "flash-attn.version", "cudnn.version", "torch.cuda",
           "triton.version")  # fmt: skip
_MIRRORS = re.compile(
    r"^(?:docker\.io/|index\.docker\.io/|registry-1\.docker\.io/|mirror\.gcr\.io/|public\.ecr\.aws/docker/)"
)
_BARE = (
    "ubuntu",
    "debian",
    "scratch",
    "alpine",
    "rockylinux",
    "almalinux",
    "centos",
    "fedora",
    "busybox",
    "amazonlinux",
)


@dataclass(frozen=True)
class Image:
    """What is known of an image's content."""

    entries: tuple[Entry, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()


def image(reference: str, file: str, line: int, raw: str = "") -> Image:
    """The packages and facts of an image by its name and tag."""
    match = _REFERENCE.fullmatch(reference)
    at = f"{file}:{line}"
    if match is None:
        return Image(notes=(f"{at}: what the image `{reference[:60]}` holds could not be told",))
    name = _MIRRORS.sub("", match["name"].replace("#", "/"))
    name, tag = re.sub(r"^library/", "", name), match["tag"] or ""
    if name == "nvcr.io/nvidia/pytorch":
        return _ngc(name, tag, file, line, raw)
    if name == "pytorch/pytorch":
        return _pytorch(tag, file, line, raw)
    if name in ("nvidia/cuda", "nvcr.io/nvidia/cuda"):
        found = _CUDA.match(tag)
        told = f"CUDA {found['cuda']}" if found else "a CUDA of no known version"
        return Image(notes=(f"{at}: the image brings {told} to build with; a torch from a wheel brings its own",))
    if name == "python":
        found = _PYTHON.fullmatch(tag)
        return Image(facts=(make_fact("python.version", found["version"], at),) if found else ())
    if name in _BARE:
        return Image()
    return Image(notes=(f"{at}: what the image `{reference[:60]}` holds is not on record",))


def _pytorch(tag: str, file: str, line: int, raw: str) -> Image:
    """PyTorch's own: the tag says release and CUDA, and the build is that of the index of that CUDA."""
    found = _TORCH.fullmatch(tag)
    if found is None:
        problem = f"the tag `{tag or 'latest'}` of pytorch/pytorch fixes no release"
        return Image((Entry("torch", file, line, raw=raw, problem=problem),))
    version = f"{found['version']}+cu{found['cuda'].replace('.', '')}"
    facts = [Fact("torch.cuda", found["cuda"], f"{file}:{line}")]
    note = f"{file}:{line}: its torch is taken to be the wheel for CUDA {found['cuda']}, with the cuDNN of that wheel"
    return Image((Entry("torch", file, line, f"=={version}", version, raw=raw),), tuple(facts), (note,))


def _ngc(name: str, tag: str, file: str, line: int, raw: str) -> Image:
    """NVIDIA's: the release is in the table, or what it holds cannot be told."""
    release = _NGC.fullmatch(tag)
    held = _table(name).get(release["release"]) if release else None
    at = f"{file}:{line}"
    if held is None:
        shown = f"`{name}:{tag or 'latest'}`"
        held, why = {}, f"what {shown} holds is not on record"
    else:
        why = f"which one {name}:{tag} holds is not on record"
    entries, facts = [], []
    for key in dict.fromkeys((*held, *_OF_NGC)):
        if key in ("source", "certainty"):
            continue
        package = key.removesuffix(".version")
        if key.endswith(".version") and package not in ("cudnn", "python"):
            version = held.get(key)
            problem = None if version else why
            entries.append(
                Entry(package, file, line, f"=={version}" if version else "", version, raw=raw, problem=problem)
            )
        else:
            facts.append(make_fact(key, held.get(key), at, problem=None if key in held else why))
    note = () if held.get("certainty") != "reported" else (
        f"{at}: what this image holds was reported by others ({held['source']}), not by its publisher",
    )  # fmt: skip
    return Image(tuple(entries), tuple(facts), note)


def _table(name: str) -> Mapping[str, Mapping[str, Any]]:
    from ..rulebook import load_rulebook

    tables: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_rulebook().libraries["images"].body["images"]
    return tables.get(name, {})
