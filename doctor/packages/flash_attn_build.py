"""How flash-attn is built where no wheel fits: for which GPUs, with how many jobs, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from doctor.facts.vocabulary import parse_version
from doctor.util.machine import Machine

#: flash-attn's own setup.py reckons with this much memory for one job.
JOB_MEMORY = 9 * 2**30
#: Core-hours to compile for one architecture: 64 cores took 8 minutes and 36 threads 45 minutes for two of them
#: (Dao-AILab/flash-attention issue 968); a single job is at it for 4 to 13 hours.
CORE_HOURS = (4.0, 13.0)
#: Architectures a release can be built for, by the GPU: sm86 and sm89 run sm80's code, sm103 sm100's, sm121 sm120's.
ARCHITECTURES = {"8": "80", "9": "90", "10": "100", "11": "110", "12": "120"}
#: What `--no-build-isolation` takes from the environment itself.
TOOLS = ("ninja", "packaging", "psutil", "setuptools", "wheel")
CHOOSES = parse_version("2.7.3")  # the first release whose setup.py reads FLASH_ATTN_CUDA_ARCHS


class Build(NamedTuple):
    """A command, and what to expect of it."""

    command: str  # with its settings in front, as typed in a shell
    settings: Mapping[str, str]  # environment variables
    jobs: int
    hours: tuple[float, float]
    notes: tuple[str, ...]
    architectures: int = 1

    @property
    def cost(self) -> str:
        """`16 to 52 core-hours for 4 architectures`: what it takes on any machine."""
        low, high = (hours * self.architectures for hours in CORE_HOURS)
        number = f" for {self.architectures} architectures" if self.architectures > 1 else ""
        return f"{low:g} to {high:g} core-hours{number}"

    @property
    def duration(self) -> str:
        """`20 minutes to 1 hour`, to one figure."""
        low, high = (_spoken(hours) for hours in self.hours)
        return low if low == high else f"{low} to {high}"


def build(version: str, sm: str | None, cuda: str | None, machine: Machine) -> Build:
    """The command that builds a release for one GPU on this machine."""
    notes = []
    settings: dict[str, str] = {}
    chooses = parse_version(version) >= CHOOSES
    archs = 2  # sm80 and sm90, which older releases always build
    if chooses and sm is not None:
        own = ARCHITECTURES.get(sm.split(".")[0])
        if own is None:
            notes.append(f"flash-attn 2 has no kernels for sm{sm.replace('.', '')}")
        else:
            settings["FLASH_ATTN_CUDA_ARCHS"] = own
            archs = 1
    elif chooses:
        notes.append('`FLASH_ATTN_CUDA_ARCHS="90"` builds for one GPU only and takes a fraction of the time')
        archs = 4
    jobs = _jobs(machine)
    if machine.cores is None or machine.memory is None:
        notes.append("`MAX_JOBS` is a guess: one job takes up to 9 GB of memory and one core")
    elif machine.memory < JOB_MEMORY:
        notes.append(
            f"{machine.memory / 2**30:.0f} GB of memory are free, and one job takes up to 9 GB: it may be killed"
        )
    if cuda is not None:
        notes.append(
            f"needs `nvcc` of CUDA {cuda.split('.')[0]}, best {cuda}, and `ninja`, `packaging`, `psutil`, `wheel`"
        )
    else:
        notes.append("needs `nvcc` of the CUDA that torch was built for, and `ninja`, `packaging`, `psutil`, `wheel`")
    low, high = (hours * archs / jobs for hours in CORE_HOURS)
    command = f"pip install --no-build-isolation --no-cache-dir flash-attn=={version}"
    settings = {"MAX_JOBS": str(jobs), **settings}
    words = (f'{name}="{value}"' if name != "MAX_JOBS" else f"{name}={value}" for name, value in settings.items())
    return Build(" ".join([*words, command]), settings, jobs, (low, high), tuple(notes), archs)


def _jobs(machine: Machine) -> int:
    """As many as cores and memory bear; flash-attn's own setup.py reckons the same."""
    if machine.cores is None or machine.memory is None:
        return 4
    return max(1, min(machine.cores // 2, machine.memory // JOB_MEMORY))


def _spoken(hours: float) -> str:
    if hours < 0.9:
        return f"{max(5, round(hours * 12) * 5)} minutes"
    return "1 hour" if round(hours) == 1 else f"{round(hours)} hours"
