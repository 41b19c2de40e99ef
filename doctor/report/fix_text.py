"""What to type: the lines that carry out an alternative or a fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from doctor.model import ABSENT, ChangeKind, Fix, Remedy

_OPERATORS = "<>=!~@"
_GONE = (None, "", ABSENT)

#: Compiled on the spot against the torch that is there: pip may not hide it, and it has to be there first.
_COMPILED = frozenset(("flash-attn", "flash-attn-3", "transformer-engine", "transformer-engine-torch"))
#: The distribution of this name is only the frame; its extra brings the parts of the same release.
EXTRAS = {"transformer-engine": "[pytorch]"}


def alternative_lines(item: Remedy) -> list[str]:
    """Lines to paste for one way out of a rule; what is no command is a comment."""
    lines = []
    removed = [name for name, wanted in item.require.items() if wanted in _GONE]
    if removed:
        lines.append(f"pip uninstall --yes {' '.join(removed)}")
    kept = {name: wanted for name, wanted in item.require.items() if wanted not in _GONE}
    if kept:
        lines += _install(kept, item.index_url)
    lines += [f"export {name}={_setting_of_shell(str(value))}" for name, value in item.set_env.items()]
    if item.unset_env:
        lines.append("unset " + " ".join(item.unset_env))
    lines += [_setting(name, value) for name, value in item.config.items()]
    if item.call:
        lines += _typed(item.call)
    return lines


def fix_lines(item: Fix) -> list[str]:
    """Lines to paste for a fix, packages first."""
    return [*item.installs, *besides(item)]


def besides(item: Fix) -> list[str]:
    """The lines for what is to be done besides packages."""
    lines = []
    unset = [change.name for change in item.changes if change.kind == ChangeKind.ENV and change.after in _GONE]
    if unset:
        lines.append("unset " + " ".join(_bare(name, "env.") for name in unset))
    for change in item.changes:
        if change.kind == ChangeKind.ENV and change.after not in _GONE:
            lines.append(f"export {_bare(change.name, 'env.')}={_setting_of_shell(str(change.after))}")
        elif change.kind == ChangeKind.CONFIG:
            lines.append(_setting(change.name, change.after))
        elif change.kind == ChangeKind.CALL:
            lines += _typed(change.after or change.name)
    return lines


def _typed(call: str) -> list[str]:
    """The lines of a call; an advice in words becomes a comment, so that pasting it does nothing."""
    command = re.match(r"(pip|pip3|uv|python|ln|apt|apt-get|conda|export|unset)\s", call)
    in_words = not re.search(r"[=().]", call) or len(re.findall(r"(?<![\w.])[a-z]{2,}(?=\s)", call)) > 3
    mark = "# " if in_words and not command else ""
    return [f"{mark}{line}" for line in call.strip().splitlines()]


def _install(packages: Mapping[str, str], index_url: str | None) -> list[str]:
    """One line, or two where something has to be compiled against what the first one installs."""
    # Not --index-url: an index of torch builds lacks most other packages, and the next one would not be found.
    index = f" --extra-index-url {_quoted(index_url)}" if index_url else ""
    plain: list[str] = []
    compiled: list[str] = []
    for name, wanted in packages.items():
        (compiled if name in _COMPILED else plain).append(_quoted(_requirement(name, wanted, packages)))
    lines = [f"pip install{index} {' '.join(plain)}"] if plain else []
    if compiled:
        lines.append(f"pip install{'' if plain else index} --no-build-isolation {' '.join(compiled)}")
    return lines


def _requirement(name: str, wanted: str, beside: Mapping[str, str]) -> str:
    wanted = str(wanted).strip()
    extra = "" if "transformer-engine-torch" in beside else EXTRAS.get(name, "")
    return name + extra + (wanted if wanted[:1] in _OPERATORS else f"=={wanted}") if wanted else name


def _setting(name: str, value: Any) -> str:
    return f"# in the job's configuration: {_bare(name, 'workload.')} = {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bare(name: str, prefix: str) -> str:
    return name.removeprefix(prefix)


def _setting_of_shell(text: str) -> str:
    """Quoted, except that a variable such as `$LD_LIBRARY_PATH` in it is still filled in by the shell."""
    return f'"{text}"' if "$" in text and not set('"`\\\n').intersection(text) and "$(" not in text else _quoted(text)


def _quoted(text: str) -> str:
    return quote(text)
