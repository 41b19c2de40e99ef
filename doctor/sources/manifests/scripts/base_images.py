"""What a base image holds: NVIDIA's from the table in the rulebook, others as far as their tags say it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from doctor.facts.vocabulary import fact as make_fact
from doctor.model import Fact
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.manifests.base import DeclaredRequirement

#: `nvcr.io/nvidia/pytorch:24.10-py3`, also as enroot writes it: `nvcr.io#nvidia/pytorch:24.10-py3`.
_REFERENCE = re.compile(
    r"(?:docker://)?(?P<name>(?:[\w.-]+(?::\d+)?[/#])?(?:[\w.-]+/)*[\w.-]+)(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]+)?"
)
#: `24.10-py3`, and `25.09.00` as NeMo's images are tagged.
_NGC = re.compile(r"(?P<release>\d\d\.\d\d)(?:\.0\d)?(?:-.*)?")
_TORCH = re.compile(r"(?P<version>\d+\.\d+\.\d+)-cuda(?P<cuda>\d+\.\d+)-cudnn(?P<cudnn>\d+)-(?:devel|runtime)")
#: pytorch/pytorch is made from wheels since this release, before that from conda's packages (pytorch/pytorch#134274).
_FIRST_OF_WHEELS = (2, 5)
_CUDA = re.compile(r"(?P<cuda>\d+\.\d+)(?:\.\d+)?(?P<cudnn>-cudnn\d*)?-")
_VLLM = re.compile(r"v(?P<version>\d+\.\d+\.\d+(?:\.post\d+)?)(?:-.*)?")
_PYTHON = re.compile(r"(?P<version>3\.\d+(?:\.\d+)?)(?:-.*)?")
#: What an image that brings torch may bring besides; on record or not, something of it is there.
_OF_NGC = ("torch.version", "transformer-engine.version", "flash-attn.version", "cudnn.version", "torch.cuda",
           "triton.version")  # fmt: skip
_ABOUT_ROW = ("source", "certainty", "reported")
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

    entries: tuple[DeclaredRequirement, ...] = ()
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
    if name in ("nvcr.io/nvidia/pytorch", "nvcr.io/nvidia/nemo"):
        return _ngc(name, tag, file, line, raw)
    if name == "pytorch/pytorch":
        return _pytorch(tag, file, line, raw)
    if name in ("nvidia/cuda", "nvcr.io/nvidia/cuda"):
        found = _CUDA.match(tag)
        told = f"CUDA {found['cuda']}" if found else "a CUDA of no known version"
        told += " and a cuDNN" if found and found["cudnn"] else ""
        return Image(notes=(f"{at}: the image brings {told} to build with; a torch from a wheel brings its own",))
    if name == "python":
        found = _PYTHON.fullmatch(tag)
        return Image(facts=(make_fact("python.version", found["version"], at),) if found else ())
    if name in _BARE:
        return Image()
    if name == "vllm/vllm-openai":
        return _vllm(tag, file, line, raw)
    if name.startswith("rocm/"):
        problem = f"the image `{reference[:60]}` is made for AMD's GPUs"
        return Image((DeclaredRequirement("torch", file, line, raw=raw, problem=problem),), notes=(f"{at}: {problem}",))
    return Image(notes=(f"{at}: what the image `{reference[:60]}` holds is not on record",))


def _pytorch(tag: str, file: str, line: int, raw: str) -> Image:
    """PyTorch's own: the tag says release and CUDA, and the build is that of the index of that CUDA."""
    found = _TORCH.fullmatch(tag)
    if found is None:
        problem = f"the tag `{tag or 'latest'}` of pytorch/pytorch fixes no release"
        return Image((DeclaredRequirement("torch", file, line, raw=raw, problem=problem),))
    conda = tuple(map(int, found["version"].split(".")[:2])) < _FIRST_OF_WHEELS
    version = found["version"] + ("" if conda else f"+cu{found['cuda'].replace('.', '')}")
    facts = [Fact("torch.cuda", found["cuda"], f"{file}:{line}")]
    build = "package of conda" if conda else "wheel"
    note = f"{file}:{line}: its torch is taken to be the {build} for CUDA {found['cuda']}, with the cuDNN of that build"
    return Image((DeclaredRequirement("torch", file, line, f"=={version}", version, raw=raw),), tuple(facts), (note,))


def _vllm(tag: str, file: str, line: int, raw: str) -> Image:
    """vLLM's own: the tag is its release, and the torch is the one which that release requires."""
    found = _VLLM.fullmatch(tag)
    if found is None:
        problem = f"the tag `{tag or 'latest'}` of vllm/vllm-openai fixes no release"
        return Image(
            tuple(DeclaredRequirement(name, file, line, raw=raw, problem=problem) for name in ("vllm", "torch"))
        )
    note = f"{file}:{line}: its torch is taken to be the one that vLLM {found['version']} requires"
    return Image(
        (DeclaredRequirement("vllm", file, line, f"=={found['version']}", found["version"], raw=raw),), (), (note,)
    )


def _ngc(name: str, tag: str, file: str, line: int, raw: str) -> Image:
    """NVIDIA's: the release is in the table, or what it holds cannot be told."""
    release = _NGC.fullmatch(tag)
    row = _table(name).get(release["release"]) if release else None
    at, shown = f"{file}:{line}", f"{name}:{tag or 'latest'}"
    if row is None:
        held, why = {}, f"what `{shown}` holds is not on record"
    else:
        held, why = {**row.get("reported", {}), **row}, f"which one {shown} holds is not on record"
    entries, facts = [], []
    for key in dict.fromkeys((*held, *_OF_NGC)):
        if key in _ABOUT_ROW:
            continue
        package = key.removesuffix(".version")
        if key.endswith(".version") and package not in ("cudnn", "python"):
            version = held.get(key)
            problem = None if version else why
            pin = f"=={version}" if version else ""
            entries.append(
                DeclaredRequirement(package, file, line, pin, version, raw=raw, problem=problem, source=True)
            )
        else:
            facts.append(make_fact(key, held.get(key), at, problem=None if key in held else why))
    return Image(tuple(entries), tuple(facts), tuple(_hearsay(row or {}, at)))


def _hearsay(row: Mapping[str, Any], at: str) -> Iterator[str]:
    """What of the row was said by others than the publisher of the image."""
    if row.get("certainty") == "reported":
        yield f"{at}: what this image holds was reported by others ({row['source']}), not by its publisher"
    elif row.get("reported"):
        named = ", ".join(key for key in row["reported"] if key not in _ABOUT_ROW)
        yield f"{at}: {named} of this image: reported by others ({row['reported']['source']}), not by its publisher"


def _table(name: str) -> Mapping[str, Mapping[str, Any]]:
    tables: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_rulebook().libraries["images"].body["images"]
    return tables.get(name, {})
