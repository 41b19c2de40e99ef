"""Facts that a log states: versions in messages, paths and listings, GPU names, drivers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact, Facts
from doctor.packages.gpus import gpu_facts
from doctor.rulebook.anchors import anchors_of

from . import nvte
from .pattern import Pattern
from .scan import Match

_VERSION = r"\d{1,4}\.\d{1,4}[0-9A-Za-z.+!]{0,40}"
_LISTING = r"Successfully installed "
#: Patterns that state one fact each: the group is the value.
_STATED = (
    ("torch.version", rf"PyTorch version: (?P<v>{_VERSION})"),
    ("torch.version", rf"PyTorch \S{{1,30}} with CUDA \w{{1,6}} \(you have (?P<v>{_VERSION})\)"),  # xformers' warning
    ("torch.version", rf"torch\.__version__\s?[=:]{{1,2}} ?'?(?P<v>{_VERSION})"),
    ("transformers.version", rf"(?:[Tt]ransformers version|\"transformers_version\"): \"?(?P<v>{_VERSION})"),
    ("torch.cuda", r"CUDA used to build PyTorch: (?P<v>\d{1,2}\.\d{1,2})"),
    (
        "torch.cuda",
        r"version (?:that was used to compile|torch was compiled with)(?: PyTorch \()? ?(?P<v>\d{1,2}\.\d{1,2})",
    ),
    ("driver.version", r"(?:Driver Version|Nvidia driver version): (?P<v>\d{3}\.\d{2,3}(?:\.\d{2})?)"),
    ("toolkit.nvcc", r"(?:detected CUDA version \(|Installed CUDA version )(?P<v>\d{1,2}\.\d{1,2})"),
    ("gpu.name", r"GPU 0: (?P<v>(?:NVIDIA |Tesla )[\w -]{2,40})"),
    ("gpu.name", r"Your (?P<v>(?:NVIDIA |Tesla |Quadro )[\w -]{2,40}) GPU has compute capability"),
    ("gpu.name", r"(?P<v>NVIDIA [\w -]{2,40}) with CUDA capability sm_\d{2,3} is not compatible"),
    ("gpu.sm", r"'compute_capability': 'sm(?P<v>\d{2,3})'"),
)
_KEEP = 64
#: Before a version that something requires, which need not be the installed one.
_WANTED = re.compile(r"(?i)\b(?:requires?|needs?|expects?|install|collecting|downgrade|upgrade)\b[^,;]{0,40}$")


def patterns(distributions: Iterable[str]) -> tuple[Pattern, ...]:
    """Return what to look for in a log: statements of facts, versions of these distributions, NVTE_DEBUG output."""
    fixed = (*(pattern for _, pattern in _STATED), _LISTING, nvte.CONFIG, nvte.DISABLING)
    found = [Pattern(pattern, anchors_of(pattern), _KEEP) for pattern in fixed]
    return (*found, *(_of_version(name) for name in distributions))


def _of_version(name: str) -> Pattern:
    """Return the forms of a distribution's version: `torch==2.6.0`, `torch-2.6.0.dist-info`, `torch 2.6.0`."""
    spelled = sorted({name, name.replace("-", "_")})
    anchors = [f"{form}==" for form in spelled]
    anchors += [f"{form}{joint}{digit}" for form in spelled for joint in "- " for digit in "0123456789"]
    return Pattern(rf"\b(?:{'|'.join(spelled)})(?:==|-| )v?(?P<v>{_VERSION})", tuple(anchors), _KEEP)


def facts_of(
    matches: Mapping[str, list[Match]], distributions: Iterable[str], gpus: Mapping[str, Mapping[str, Any]]
) -> Facts:
    """Return the facts that a log states; a key with two different values is left out, as unknown."""
    stated: dict[str, list[Fact]] = {}
    keys = [*_STATED, *((f"{name}.version", _of_version(name).match) for name in distributions)]
    for key, pattern in keys:
        for match in matches.get(pattern, ()):
            if _is_wanted(pattern, match):
                continue
            stated.setdefault(key, []).append(_fact(key, dict(match.groups).get("v", ""), match))
    found = [known for facts in stated.values() if (known := _agreed(facts)) is not None]
    installed = [item for match in matches.get(_LISTING, ()) for item in _listing(match)]
    configured = [item for match in matches.get(nvte.CONFIG, ())[-1:] for item in nvte.config_facts(match).values()]
    return _with_capability(Facts([*found, *installed, *configured]), gpus)


def _is_wanted(pattern: str, match: Match) -> bool:
    """Whether the line requires the version: `vllm 0.8.5 requires torch==2.6.0`."""
    found = re.search(pattern, match.text)
    return found is not None and _WANTED.search(match.text[: found.start()]) is not None


def _fact(key: str, text: str, match: Match) -> Fact:
    text = text.rstrip(".").strip()
    if key == "gpu.sm":
        text = f"{text[:-1]}.{text[-1]}"
    return fact(key, _plain_version(text) if key.endswith("version") else text, f"line {match.line} of the log")


def _plain_version(text: str) -> str:
    """Return the version at the start of a text: the name of a wheel or an egg goes on with other words."""
    found = re.match(r"\d+(?:\.\d+)*(?:\.?(?:post|dev|rc|a|b)\d+)*(?:\+[0-9a-zA-Z.]+)?", text)
    return re.sub(r"\.(?:dist|egg|tar|zip|whl).*$", "", found[0] if found else text)


def _agreed(facts: list[Fact]) -> Fact | None:
    """Return the fact that all of these state; None where they differ or none could be read."""
    known = [item for item in facts if item.known]
    return known[0] if len({str(item.value) for item in known}) == 1 else None


def _listing(match: Match) -> Iterator[Fact]:
    """Yield what pip's last line of an installation says."""
    for word in match.text.partition(_LISTING)[2].split():
        name, _, version = word.rpartition("-")
        if name and version[:1].isdigit():
            key = f"{re.sub(r'[-_.]+', '-', name).lower()}.version"
            found = fact(key, version, f"line {match.line} of the log")
            if found.known:
                yield found


def _with_capability(facts: Facts, gpus: Mapping[str, Mapping[str, Any]]) -> Facts:
    """Return the facts with the compute capability of the GPU that they name."""
    name = facts.get("gpu.name")
    if name is None or "gpu.sm" in facts or name.value in (None, ABSENT):
        return facts
    try:
        more = gpu_facts(str(name.value), gpus)
    except DoctorError:
        return facts
    return facts.with_(*(item for item in more if item.key == "gpu.sm" and item.known))
