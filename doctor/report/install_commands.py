"""Render an install plan as pip commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import NamedTuple

from doctor.model import InstallPlan, PinnedRequirement
from doctor.packages.flash_attn_build import TOOLS
from doctor.packages.release_wheels import PACKAGE


class InstallCommand(NamedTuple):
    """One pip command; `compiles` where it needs the newly installed torch."""

    text: str
    compiles: bool = False


def install_commands(plan: InstallPlan, *, held: bool = False) -> Iterator[InstallCommand]:
    """Yield the commands that carry out the plan, in order.

    With `held` the companions that stay are named too, so that a resolver does not move them.
    """
    if plan.removed:
        yield InstallCommand(f"pip uninstall --yes {' '.join(plan.removed)}")
    if plan.changed:
        # Not --index-url: an index of torch builds lacks most other packages.
        index = f" --extra-index-url {quote(plan.index_url)}" if plan.index_url else ""
        lines = (*plan.changed, *plan.held) if held else plan.changed
        yield InstallCommand(f"pip install{index} {' '.join(quote(line.requirement) for line in lines)}")
    yield from override_commands(plan)
    if plan.reinstall:
        yield InstallCommand(f"pip install --force-reinstall --no-deps {' '.join(plan.reinstall)}")
    yield from (InstallCommand(text, True) for text in build_commands(plan, plan.to_rebuild))


def override_commands(plan: InstallPlan) -> Iterator[InstallCommand]:
    """Yield the command that installs what a pin of its owner excludes."""
    if plan.overridden:
        yield InstallCommand(f"pip install --no-deps {' '.join(quote(line.requirement) for line in plan.overridden)}")


def build_commands(plan: InstallPlan, lines: Sequence[PinnedRequirement]) -> Iterator[str]:
    """Yield the commands that compile these packages against the installed torch, from a wheel where one may fit.

    `--no-cache-dir` where torch changes: a cached build was compiled against another torch.
    """
    if not lines:
        return
    yield f"pip install {' '.join(TOOLS)}"
    no_cache = " --no-cache-dir" if plan.moves_torch else ""
    reinstall = f" --force-reinstall --no-deps{no_cache}" if plan.moves_torch else ""
    for options, group in (
        (no_cache, [line for line in lines if not line.held]),
        (reinstall, [line for line in lines if line.held]),
    ):
        names = []
        for line in group:
            if plan.wheel_url is not None and line.package == PACKAGE:
                build = f"pip install --no-build-isolation{options} {line.requirement}"
                yield f'pip install{options} "{PACKAGE} @ {plan.wheel_url}" || {build}'
            else:
                names.append(line.requirement)
        if names:
            yield f"pip install --no-build-isolation{options} {' '.join(names)}"
