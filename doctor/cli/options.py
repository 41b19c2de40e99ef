"""Options that several commands share, with their conversions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand

#: What a kernel runs on, as torch names it.
Device = Literal["cuda", "cpu"]
FailOnWord = Literal["error", "warning", "note", "never"]  # the severities of `doctor.model`, and none
FAIL_ON: tuple[str, ...] = get_args(FailOnWord)
KERNEL_TIMEOUT = 120.0  # seconds

TARGET = "Target (default: the active virtual or conda environment, else the interpreter that runs this)"
WORKLOAD = "Workload"
OUTPUT = "Output"
KERNELS = "Kernels"


class Command(TyperCommand):
    """A command whose `optional_values` options take a value or none: `--pin`, `--pin FILE`, `--pin=FILE`."""

    optional_values: dict[str, str] = {}  # noqa: RUF012 - replaced by subclasses

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give each such option its default value where none follows."""
        spelled = []
        for position, word in enumerate(args):
            following = args[position + 1] if position + 1 < len(args) else None
            bare = word in self.optional_values and (following is None or re.match(r"-.", following))
            spelled.append(f"{word}={self.optional_values[word]}" if bare else word)
        return super().parse_args(ctx, spelled)


def path(text: str) -> str:
    """Return the name of a file or folder; an empty shell variable is none, and not the current folder."""
    if not text.strip():
        raise typer.BadParameter("names no file")
    return text


def seconds(text: str) -> float:
    """Return a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise typer.BadParameter(f"needs a positive number of seconds, found `{text}`")
    return value


def seconds_or_none(text: str) -> float:
    """Return a number of seconds; 0 where none is a choice."""
    return 0.0 if str(text).strip() in ("0", "0.0") else seconds(text)  # typer passes the default through here too


def _option(*names: str, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, show_default=False, **more)


def completed(kind: str) -> Callable[[str], list[str]]:
    """Return the function by which the shell completes values of a kind; it imports what knows them."""

    def complete(incomplete: str) -> list[str]:
        values: list[str] = import_module("doctor.cli.completion").values_of(kind, incomplete)
        return values

    return complete


Paths = Annotated[
    list[str] | None,
    typer.Argument(
        parser=path, metavar="[PATH]...", show_default=False,
        help="What you have, in any combination: environment, snapshot, requirements, lock, Dockerfile, model config, "
        "trainer config, training script, run script, manifest.",
    ),
]  # fmt: skip
Python = Annotated[
    str | None,
    _option("--python", panel=TARGET, parser=path, metavar="PATH", help="Interpreter of another environment."),
]
SitePackages = Annotated[
    str | None,
    _option(
        "--site-packages", panel=TARGET, parser=path, metavar="DIR",
        help="An unpacked tree: a Docker layer, a mounted image.",
    ),
]  # fmt: skip
FactFiles = Annotated[
    list[str] | None,
    _option(
        "--facts", panel=TARGET, parser=path, metavar="FILE",
        help="Facts from `snapshot`, written by hand, or what `pip list` and `collect_env` print. Several are merged.",
    ),
]  # fmt: skip
Requirements = Annotated[
    list[str] | None,
    _option(
        "--requirements", panel=TARGET, parser=path, metavar="FILE",
        help="A declared environment: requirements, lock or project file, environment.yml, Dockerfile, job script, "
        "or the project's folder. Repeatable.",
    ),
]  # fmt: skip
Gpu = Annotated[
    list[str] | None,
    _option(
        "--gpu", panel=TARGET, metavar="NAME", autocompletion=completed("gpus"),
        help="Diagnose for this GPU: a100, 8xh100, b200, rtx4090, sm90. `check` takes several: a100,h100.",
    ),
]  # fmt: skip
Settings = Annotated[
    list[str] | None,
    _option(
        "--set", panel=TARGET, metavar="KEY=VALUE",
        help="Add or override a fact: torch.version=2.6.0, workload.dtype=bf16. `attn-doctor keys` lists the words. "
        "Repeatable.",
    ),
]  # fmt: skip
Rules = Annotated[
    list[str] | None,
    _option("--rules", panel=TARGET, metavar="DIR", help="A folder with more rules. Repeatable."),
]
Model = Annotated[
    list[str] | None,
    _option(
        "--model", panel=WORKLOAD, parser=path, metavar="CONFIG",
        help="A Hugging Face config.json, or a part: `config.json\\[vision_config]`. `check` takes several.",
    ),
]  # fmt: skip
Code = Annotated[
    list[str] | None,
    _option(
        "--code", panel=TARGET, metavar="DIR",
        help="A folder of your own code, checked against the installed packages. Repeatable.",
    ),
]  # fmt: skip
Drift = Annotated[
    bool,
    typer.Option(
        "--drift/--no-drift", rich_help_panel=TARGET, show_default=False,
        help="Read the installed sources for uses that the installed releases do not answer (default).",
    ),
]  # fmt: skip
DriftLimit = Annotated[
    float,
    typer.Option(
        "--drift-limit", rich_help_panel=TARGET, parser=seconds_or_none, metavar="SECONDS", show_default="10",
        help="Time limit for reading installed sources that no earlier run has read; 0 for none.",
    ),
]  # fmt: skip
WorkloadFile = Annotated[
    list[str] | None,
    _option(
        "--workload", panel=WORKLOAD, parser=path, metavar="FILE",
        help="A workload in YAML or JSON, or the config of a trainer. `check` takes several.",
    ),
]  # fmt: skip
RunKernels = Annotated[
    bool,
    typer.Option(
        "--run/--no-run", rich_help_panel=KERNELS, show_default=False,
        help="Confirm findings with real kernels (default where there is a GPU).",
    ),
]  # fmt: skip
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", rich_help_panel=KERNELS, parser=seconds, metavar="SECONDS", show_default="120",
        help="Time limit of one kernel.",
    ),
]  # fmt: skip
Formats = Annotated[
    list[str] | None,
    _option(
        "--format", panel=OUTPUT, metavar="FORMAT[=FILE]", autocompletion=completed("formats"),
        help="text (default), json, sarif, junit, github, gitlab, markdown, html. Repeatable with files: "
        "--format sarif=out.sarif --format text.",
    ),
]  # fmt: skip


def formats_of(names: Sequence[str]) -> Any:
    """Return `--format` of a command that writes these formats."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    text = f"{names[0]} (default), {', '.join(names[1:])}. Repeatable with files: --format {names[-1]}=FILE."
    option = _option("--format", panel=OUTPUT, metavar="FORMAT[=FILE]", help=text, autocompletion=complete)
    return Annotated[list[str] | None, option]


Output = Annotated[
    str | None, _option("--output", "-o", panel=OUTPUT, metavar="FILE", help="Write to FILE (atomically).")
]
FailOn = Annotated[
    FailOnWord | None,
    _option(
        "--fail-on", panel=OUTPUT, metavar="SEVERITY",
        help=f"Exit with 1 at this severity or worse: {', '.join(FAIL_ON)} (default: error).",
    ),
]  # fmt: skip
Baseline = Annotated[
    str | None,
    _option(
        "--baseline", panel=OUTPUT, parser=path, metavar="REPORT",
        help="Report only findings that are not in this JSON report.",
    ),
]  # fmt: skip
Verbose = Annotated[
    bool, _option("--verbose", "-v", panel=OUTPUT, help="Show all evidence, sources and skipped checks.")
]
Quiet = Annotated[bool, _option("--quiet", "-q", panel=OUTPUT, help="Show errors only, and no progress.")]
Color = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--color", rich_help_panel=OUTPUT, metavar="WHEN",
        show_default="auto", help="Color: auto, always, never.",
    ),
]  # fmt: skip
