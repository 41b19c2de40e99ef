"""A plan: the joined requirements of some remedies of some rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier

from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse
from doctor.model import ABSENT, Remedy
from doctor.packages.specifiers import normalized, specifier
from doctor.util.patterns import pattern

#: They decide which library files are found; the outcome is known only on the machine.
LOADER_VARIABLES = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH"})
_NAME = pattern(r"[a-z0-9]+(-[a-z0-9]+)*")


class Pick(NamedTuple):
    """One remedy of one rule, chosen."""

    rule: str
    order: int  # place in the rule's own list, best first
    alternative: Remedy

    @property
    def trusted(self) -> bool:
        """Whether facts cannot show its effect: a change of code, or of where the loader looks."""
        way = self.alternative
        if way.require or way.config or way.then:
            return False
        return way.call is not None or bool({*way.set_env, *way.unset_env} & LOADER_VARIABLES)


class FixPlan(NamedTuple):
    """The requirements of all picks, joined; packages still as ranges."""

    picks: tuple[Pick, ...] = ()
    require: Mapping[str, str] = MappingProxyType({})  # package -> range, or ABSENT
    env: Mapping[str, str] = MappingProxyType({})  # name -> value, or ABSENT for unset
    config: Mapping[str, Any] = MappingProxyType({})  # workload.* key -> value
    then: Mapping[str, Any] = MappingProxyType({})  # facts that hold as a consequence; "{key}" = as that fact
    index_url: str | None = None

    def joined(self, pick: Pick) -> FixPlan | None:
        """Return the plan with one more remedy; None where the two contradict each other or it changes nothing."""
        alternative = pick.alternative
        require, env, config = dict(self.require), dict(self.env), dict(self.config)
        for raw, text in alternative.require.items():
            name, wanted = normalized(raw), str(text).strip()
            if not _NAME.fullmatch(name):
                return None
            before = require.get(name)
            if before is not None and ABSENT in (before, wanted) and before != wanted:
                return None
            if before not in (None, wanted) and wanted != ABSENT:
                wanted = f"{before},{wanted}"
            if wanted != ABSENT and not _readable(wanted):
                return None
            require[name] = wanted
        for name, value in (*alternative.set_env.items(), *((name, ABSENT) for name in alternative.unset_env)):
            if env.get(name, str(value)) != str(value):
                return None
            env[name] = str(value)
        for raw, value in alternative.config.items():
            key = raw if raw.startswith("workload.") else f"workload.{raw}"
            try:
                parsed = parse(key, value)
            except DoctorError:
                return None
            if config.get(key, parsed) != parsed:
                return None
            config[key] = parsed
        if alternative.index_url and self.index_url not in (None, alternative.index_url):
            return None
        if not (alternative.require or alternative.set_env or alternative.unset_env or config or alternative.call):
            return None  # advice in words only: nothing to do or check
        index_url = alternative.index_url or self.index_url
        return FixPlan((*self.picks, pick), require, env, config, {**self.then, **alternative.then}, index_url)

    @property
    def order(self) -> tuple[int, ...]:
        """Places of the picks in their rules' own lists."""
        return tuple(pick.order for pick in self.picks)

    @property
    def trusted(self) -> frozenset[str]:
        """Rules whose fix facts cannot show, so that the rule's author is trusted: code, and what a loader finds."""
        return frozenset(pick.rule for pick in self.picks if pick.trusted)


def _readable(wanted: str) -> bool:
    """Whether it is a version range at all."""
    try:
        return bool(len(specifier(wanted)))
    except InvalidSpecifier:
        return False
