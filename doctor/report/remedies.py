"""What to type: the lines that carry out an alternative or a fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model import ABSENT, Alternative, Fix

_OPERATORS = "<>=!~@"
_GONE = (None, "", ABSENT)


def alternative_lines(item: Alternative) -> list[str]:
    """Lines to paste for one way out of a rule; what is no command is a comment."""
    lines = []
    removed = [name for name, wanted in item.require.items() if wanted in _GONE]
    if removed:
        lines.append(f"pip uninstall --yes {' '.join(removed)}")
    kept = {name: wanted for name, wanted in item.require.items() if wanted not in _GONE}
    if kept:
        lines.append(_install(kept, item.index_url))
    lines += [f"export {name}={_quoted(str(value))}" for name, value in item.set_env.items()]
    if item.unset_env:
        lines.append("unset " + " ".join(item.unset_env))
    lines += [_setting(name, value) for name, value in item.config.items()]
    if item.call:
        lines += item.call.strip().splitlines()
    return lines


def fix_lines(item: Fix) -> list[str]:
    """Lines to paste for a fix, packages first."""
    packages = {change.name: change.after for change in item.changes if change.kind == "package"}
    removed = [name for name, after in packages.items() if after in _GONE]
    lines = [f"pip uninstall --yes {' '.join(removed)}"] if removed else []
    kept = {name: str(after) for name, after in packages.items() if after not in _GONE}
    if kept:
        lines.append(_install(kept, item.index_url))
    unset = [change.name for change in item.changes if change.kind == "env" and change.after in _GONE]
    if unset:
        lines.append("unset " + " ".join(_bare(name, "env.") for name in unset))
    for change in item.changes:
        if change.kind == "env" and change.after not in _GONE:
            lines.append(f"export {_bare(change.name, 'env.')}={_quoted(str(change.after))}")
        elif change.kind == "config":
            lines.append(_setting(change.name, change.after))
        elif change.kind == "call":
            lines += (change.after or change.name).strip().splitlines()
    return lines


def _install(packages: Mapping[str, str], index_url: str | None) -> str:
    index = f" --index-url {_quoted(index_url)}" if index_url else ""
    return f"pip install{index} " + " ".join(_quoted(_requirement(*item)) for item in packages.items())


def _requirement(name: str, wanted: str) -> str:
    wanted = str(wanted).strip()
    return name + (wanted if wanted[:1] in _OPERATORS else f"=={wanted}") if wanted else name


def _setting(name: str, value: Any) -> str:
    return f"# in the job's configuration: {_bare(name, 'workload.')} = {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bare(name: str, prefix: str) -> str:
    return name.removeprefix(prefix)


def _quoted(text: str) -> str:
    from shlex import quote

    return quote(text)
