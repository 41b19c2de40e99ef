"""The fix as a fragment of pyproject.toml for uv: overrides, constraints, the index of another torch build."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from doctor.model import ChangeKind, Fix, InstallPlan, PinnedRequirement, Report
from doctor.packages.index import load_index
from doctor.packages.relations import extra_of

from .shell import flat, fragment
from .style import Style


def fixes(report: Report, style: Style) -> str:
    """Render `[tool.uv]` tables for pyproject.toml; comments only where no package changes."""
    return fragment(report, _tables)


def _tables(report: Report, fix: Fix, pins: InstallPlan) -> Iterator[str]:
    new = [
        change.name
        for change in fix.changes
        if change.kind == ChangeKind.PACKAGE and not change.before and change.after
    ]
    if new:
        yield f"# an override adds no package; add what is missing with `uv add {' '.join(new)}`"
    if pins.removed:
        yield f"# if the project names them: `uv remove {' '.join(pins.removed)}`"
    yield from (f"# {flat(text)}" for text in pins.notes)
    yield "# merge into pyproject.toml, then run `uv lock`"
    yield "[tool.uv]"
    changed = [*pins.changed, *pins.overridden, *(line for line in pins.built if not line.held)]
    held = [*pins.held, *(line for line in pins.built if line.held)]
    yield "# these replace what the project and its packages require:"
    yield from _array("override-dependencies", ((_whole(line), line.why) for line in changed))
    if held:
        yield "# held, so that the resolver does not change them:"
        yield from _array("constraint-dependencies", ((f"{line.package}=={line.version}", line.why) for line in held))
    if pins.built:
        rebuild = "; rebuild each with `uv sync --reinstall-package NAME`" if pins.moves_torch else ""
        yield f"# compiled against the installed torch{rebuild}:"
        yield f"no-build-isolation-package = [{', '.join(_quoted(line.package) for line in pins.built)}]"
    yield from _sources(pins, changed)
    yield from _metadata(pins)


def _whole(line: PinnedRequirement) -> str:
    """Return the whole requirement with its extras, which an override replaces too."""
    texts = (extra_of(line.package), line.extra)
    wanted = [item for text in texts for item in text.strip("[]").split(",") if item]
    return f"{line.package}{'[' + ','.join(wanted) + ']' if wanted else ''}=={line.version}"


def _array(name: str, items: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"{name} = ["
    for requirement, why in items:
        yield f"    {_quoted(requirement)},  # {flat(why)}"
    yield "]"


def _sources(pins: InstallPlan, changed: Iterable[PinnedRequirement]) -> Iterator[str]:
    """Yield the index of another torch build, for these packages only."""
    url, wheel_url = pins.index_url, pins.wheel_url
    labelled = [line.package for line in changed if "+" in line.version]
    sourced = bool(url and labelled)
    if url and labelled:
        found = re.search(r"cu\d+", url)
        name = f"pytorch-{found[0] if found else 'build'}"
        yield from ("", "[[tool.uv.index]]", f"name = {_quoted(name)}", f"url = {_quoted(url)}", "explicit = true")
        yield from ("", "[tool.uv.sources]", *(f"{package} = {{ index = {_quoted(name)} }}" for package in labelled))
    if wheel_url is not None:
        yield from () if sourced else ("",)
        yield "# instead of a source build, if the URL exists (expected from the release workflow):"
        yield from () if sourced else ("# [tool.uv.sources]",)
        yield f"# flash-attn = {{ url = {_quoted(wheel_url)} }}"


def _metadata(pins: InstallPlan) -> Iterator[str]:
    """Yield the requirements of packages that uv would have to build to learn them."""
    for line in pins.built:
        release = load_index().release(line.package, line.version)
        if release is not None and release.requires:
            yield from (
                "", "# so that uv can lock it without a build", "[[tool.uv.dependency-metadata]]",
                f"name = {_quoted(line.package)}", f"version = {_quoted(line.version)}",
                f"requires-dist = [{', '.join(_quoted(text) for text in release.requires)}]",
            )  # fmt: skip


def _quoted(text: str) -> str:
    return json.dumps(flat(text), ensure_ascii=False)
