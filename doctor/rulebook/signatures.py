"""What a log shows of each rule: signatures, compiled into a file of their own that only `explain` reads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.util.cache_file import read_cache, write_cache
from doctor.util.linear_regex import compiled, found_in, groups_in
from doctor.util.traceback_frames import last_frame

from .anchors import anchors_of
from .cache import Body, cache_file, cache_key, form, may_store, rule_paths, stamp_of, stamps
from .categories import NONE, OF_LOGS
from .conditions import Condition
from .other_messages import other_messages, other_messages_file
from .rule import Rule, as_tuple


@dataclass(frozen=True)
class Signature:
    """What shows a cause: a line that matches, and further lines that must or must not be there."""

    match: str
    anchors: tuple[str, ...]
    near: tuple[str, ...] = ()  # each in the lines around it
    anywhere: tuple[str, ...] = ()  # each in some line of the log
    not_near: tuple[str, ...] = ()  # none in the lines around it
    frame: str = ""  # in the file of the last frame of the traceback before it

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return every regular expression of it."""
        return (self.match, *self.near, *self.anywhere, *self.not_near, *filter(None, (self.frame,)))

    def fits(self, around: str, frame: str) -> bool:
        """Return whether the lines around a match, and the file of the last frame, are as they have to be."""
        if self.frame and not found_in(self.frame, frame):
            return False
        near = all(found_in(pattern, around) for pattern in self.near)
        return near and not any(found_in(pattern, around) for pattern in self.not_near)

    def groups_near(self, around: str) -> dict[str, str]:
        """Return what the lines around a match name."""
        near = (groups_in(pattern, around) for pattern in self.near if "(?P<" in pattern)
        return {name: value for groups in near for name, value in groups.items()}

    def explains(self, log: str) -> bool:
        """Return whether a short log shows this signature."""
        line = found_in(self.match, log)
        return line and self.fits(log, last_frame(log)) and all(found_in(pattern, log) for pattern in self.anywhere)

    @property
    def conditions(self) -> int:
        """Return how many lines it needs further to its own."""
        return len(self.near) + len(self.anywhere) + bool(self.frame)


@dataclass(frozen=True)
class LogRule:
    """One rule with signatures, as far as `explain` needs it."""

    rule: Rule
    signatures: tuple[Signature, ...]

    @property
    def explains_only(self) -> bool:
        """Whether `check` has nothing to do with this rule."""
        return not self.rule.is_checked

    @property
    def cause(self) -> str:
        """Return the name of the cause; several rules may share one."""
        return self.rule.cause

    @property
    def category(self) -> str | None:
        """Return the kind of failure; None where the line of the log decides it."""
        stated = self.rule.category
        return stated if stated in OF_LOGS else None

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the distributions that are involved, as the rule states them."""
        return self.rule.packages

    @property
    def yields_to(self) -> tuple[str, ...]:
        """Return ids of more specific rules."""
        return self.rule.yields_to

    @property
    def benign(self) -> bool:
        """Whether the line looks bad and is not."""
        return self.category == NONE and self.rule.is_benign

    @cached_property
    def when(self) -> Condition | None:
        """Return the condition on facts; None where the log alone shows the cause."""
        return self.rule.when if self.rule.condition else None


def parse_signatures(value: Any) -> tuple[Signature, ...]:
    """Return the signatures of a rule's `signatures:`: texts, or mappings with `match` and further lines."""
    items = [value] if isinstance(value, (str, dict)) else value or ()
    return tuple(_signature({"match": item} if isinstance(item, str) else item) for item in items)


def _signature(item: Mapping[str, Any]) -> Signature:
    more = {key: as_tuple(item.get(key)) for key in ("near", "anywhere", "not_near")}
    more["not_near"] += tuple(text for name in as_tuple(item.get("unless")) for text in other_messages()[name])
    anchors = item.get("anchors")
    texts = anchors_of(item["match"]) if anchors is None else tuple(anchors)
    return Signature(item["match"], texts, **more, frame=item.get("frame", ""))


def load_log_rules(extra: Iterable[str] = ()) -> tuple[LogRule, ...]:
    """Return every rule with signatures, from a cache of their own; DoctorError names file and line of a faulty one."""
    folders = rule_paths(extra)
    started = time.time_ns()
    files = stamps(folders, explaining=True)
    key, cache = cache_key([*files, stamp_of(other_messages_file())]), cache_file(folders, "signatures")
    stored = read_cache(cache, key) if cache is not None else None
    if stored is None:
        bodies = _compile([Path(stamp[0]) for stamp in files])
        if cache is not None and may_store(files, started):
            write_cache(cache, key, json.dumps(bodies, separators=(",", ":")).encode("ascii"))
    else:
        bodies = json.loads(stored[1])
    return tuple(
        LogRule(Rule(body["id"], library, body, path), parse_signatures(body["signatures"]))
        for _, library, path, body in bodies
    )


def _compile(files: list[Path]) -> list[Body]:
    found: dict[str, Body] = {}
    schema = form()
    named = (file for file in files if file.name != schema.LIBRARY and b"signatures" in file.read_bytes())
    explaining = (source for file in named for source in schema.read_sources(file) if "signatures" in source.content)
    for kind, library, path, content, *_ in explaining:
        if content["id"] in found:
            raise DoctorError(f"{path}:1: rule `{content['id']}` is taken by `{found[content['id']][2]}`")
        for pattern in {text for item in parse_signatures(content["signatures"]) for text in item.patterns}:
            try:
                compiled(pattern)
            except ValueError as problem:
                raise DoctorError(f"{path}:1: signature `{pattern}` is no regular expression: {problem}") from None
        signatures = [
            {"match": item.match, "anchors": item.anchors, "near": item.near, "anywhere": item.anywhere,
             "not_near": item.not_near, "frame": item.frame}
            for item in parse_signatures(content["signatures"])
        ]  # fmt: skip
        found[content["id"]] = (
            kind,
            library,
            path,
            {**{key: part for key, part in content.items() if key != "tests"}, "signatures": signatures},
        )
    return list(found.values())
