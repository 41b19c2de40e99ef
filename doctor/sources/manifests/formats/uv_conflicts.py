"""Extras and groups of a uv.lock that uv never installs together: one choice of them, in which no two conflict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: A project, and one of its extras or groups.
Member = tuple[str, str]
#: uv's own spelling of an extra or group in a marker: extra-7-nemo-rl-vllm.
_IN_MARKER = re.compile(r"extra\s*(==|!=)\s*['\"](?:extra|group)-(\d{1,3})-([^'\"]{1,200})['\"]")
_TRUE, _FALSE = "python_version >= '0'", "python_version < '0'"
#: Alternatives to a CUDA build: chosen only where nothing else is left.
_NOT_CUDA = re.compile(r"(?:cpu|rocm|xpu|hpu|npu|tpu|mps|mlx|amd|intel|ascend)")


@dataclass(frozen=True)
class ChosenExtras:
    """The extras and groups that count, of those that conflict."""

    taken: frozenset[Member] = frozenset()
    left_out: frozenset[Member] = frozenset()

    @property
    def note(self) -> str | None:
        """Return a sentence that names the choice, None where nothing conflicts."""
        if not self.left_out:
            return None
        taken = ", ".join(sorted(f"`{name}`" for _, name in self.taken))
        left_out = ", ".join(sorted(f"`{name}`" for _, name in self.left_out))
        return f"extras or groups that conflict: checked with {taken}; not checked: {left_out}"

    def marker(self, text: str) -> str | None:
        """Return a marker with each extra replaced by whether it counts; None where it names an unknown one."""
        if "extra" not in text:
            return text
        filled = _IN_MARKER.sub(self._verdict, text)
        return None if "extra" in filled else filled

    def never(self) -> str:
        """Return a marker that holds nowhere."""
        return _FALSE

    def _verdict(self, match: re.Match[str]) -> str:
        length = int(match[2])
        member = match[3][:length], match[3][length + 1 :]
        if member not in self.taken and member not in self.left_out:
            return match[0]
        return _TRUE if (member in self.taken) == (match[1] == "==") else _FALSE


def chosen_extras(content: Mapping[str, Any]) -> ChosenExtras:
    """Choose among the extras and groups that a lock declares as conflicting, in its own order.

    Those without CUDA come last. The result is one of the installations that uv can make.
    """
    sets = tuple(_sets(content))
    members = list(dict.fromkeys(member for group in sets for member in group))
    members.sort(key=lambda member: _NOT_CUDA.match(member[1]) is not None)
    taken: set[Member] = set()
    for member in members:
        if not any(member in group and taken.intersection(group) for group in sets):
            taken.add(member)
    return ChosenExtras(frozenset(taken), frozenset(members) - taken)


def _sets(content: Mapping[str, Any]) -> Iterator[tuple[Member, ...]]:
    listed = content.get("conflicts")
    for group in listed if isinstance(listed, list) else []:
        found: dict[Member, None] = {}  # in the order of the file
        for item in group if isinstance(group, list) else []:
            name = item.get("extra") or item.get("group") if isinstance(item, dict) else None
            if isinstance(name, str) and isinstance(item.get("package"), str):
                found[item["package"], name] = None
        yield tuple(found)
