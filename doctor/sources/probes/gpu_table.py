"""GPUs by name, for a machine that is not at hand: `--gpu h100` instead of a probe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact, nearest
from doctor.model import ABSENT, Fact, Facts
from doctor.rulebook.rulebook import load_rulebook

#: What describes one kind of GPU; how many there are is another matter.
GPU_KEYS = ("gpu.sm", "gpu.name", "gpu.memory_bytes", "gpu.all", "gpu.mig")

Table = Mapping[str, Mapping[str, Any]]

_SM = r"(?i)(?:sm|compute)?[_ ]?(\d{1,2})\.?(\d)[af]?"
_NOISE = r"nvidia|geforce|tesla|quadro|graphics|generation|[^a-z0-9]"


def gpu_facts(name: str, table: Table | None = None) -> tuple[Fact, ...]:
    """The facts of a GPU by name (h100, rtx4090, "NVIDIA A100-SXM4-80GB") or capability (sm90, 9.0).

    Every key of `GPU_KEYS` is among them, so that nothing read off another GPU is left when these are laid over it.
    """
    source = f"--gpu {name.strip()}"
    known = _gpus() if table is None else table
    found: dict[str, Any] = {}
    match = re.fullmatch(_SM, name.strip())
    if match:
        sm = f"{int(match[1])}.{match[2]}"
        sms = {str(entry["sm"]) for entry in known.values()}
        if sm not in sms:
            raise DoctorError(f"no GPU has the compute capability {sm}", "known: " + ", ".join(sorted(sms, key=_rank)))
        found["gpu.sm"] = sm
    else:
        official, entry = _find(name, known)
        found["gpu.sm"], found["gpu.name"] = entry["sm"], official
        if "memory_gib" in entry:  # without: sold with different memories
            found["gpu.memory_bytes"] = round(float(entry["memory_gib"]) * (1 << 30))
    problem = f"`{source}` does not tell"
    return tuple(fact(key, found.get(key), source, problem=None if key in found else problem) for key in GPU_KEYS)


def with_capability(facts: Facts) -> Facts:
    """The facts with `gpu.sm` where they name a known GPU and do not speak of its capability."""
    name = facts.value("gpu.name")
    if "gpu.sm" in facts or not isinstance(name, str) or name == ABSENT:
        return facts
    try:
        entry = _find(name, _gpus())[1]
    except DoctorError:
        return facts  # a GPU that no table knows: its capability stays unknown
    return facts.with_(fact("gpu.sm", entry["sm"], "derived from gpu.name"))


def _find(name: str, known: Table) -> tuple[str, Mapping[str, Any]]:
    spelled = {
        _plain(spelling): official for official, entry in known.items() for spelling in (official, *_aliases(entry))
    }
    wanted = _plain(name)
    if wanted in spelled and wanted:
        return spelled[wanted], known[spelled[wanted]]

    shown = name if len(name) <= 60 else name[:57] + "..."
    hint = nearest(wanted, spelled) or "a capability such as `sm90` serves too"
    raise DoctorError(f"unknown GPU `{shown}`", hint)


def _aliases(entry: Mapping[str, Any]) -> tuple[str, ...]:
    names = entry.get("aliases") or ()
    return (names,) if isinstance(names, str) else tuple(str(name) for name in names)


def _plain(name: str) -> str:
    """Spelling aside: `NVIDIA GeForce RTX 4090`, `rtx-4090` and `RTX4090` are one."""
    return re.sub(_NOISE, "", name.lower())


def _rank(sm: str) -> tuple[int, ...]:
    return tuple(int(part) for part in sm.split("."))


def _gpus() -> Table:
    table: Table = load_rulebook().libraries["nvidia"].body["gpus"]
    return table


def newest_cuda(driver: str) -> str | None:
    """The newest CUDA that came with this driver or an older one; None for a driver older than the table."""

    table: Table = load_rulebook().libraries["nvidia"].body["cuda_drivers"]
    served = [cuda for cuda, entry in table.items() if Version(str(entry["driver"])) <= Version(driver)]
    return max(served, key=_rank, default=None)
