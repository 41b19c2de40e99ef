"""The rulebook: YAML files → frozen rules and libraries, checked, indexed and kept in a compiled form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from .conditions import Condition, Deferred, parse_conditions
from .known import Implications
from .model import ABSENT, Alternative
from .records import dataclass
from .ruleindex import RuleIndex


@dataclass(frozen=True)
class Rule:
    """One flaw or one support limit, as its file says it; `when` is parsed when first asked for."""

    id: str
    library: str
    body: Mapping[str, Any]
    path: str

    @cached_property
    def when(self) -> Condition:
        """The condition tree."""
        return parse_conditions(self.body["when"])

    @property
    def severity(self) -> str | None:
        """error, warning, note; None for a pure support rule, which is a reason and no finding."""
        return self.body.get("severity")

    @cached_property
    def disables(self) -> tuple[str, ...]:
        """The backends this rule takes out."""
        return as_tuple(self.body.get("disables"))

    @cached_property
    def fails_at_run(self) -> tuple[str, ...]:
        """The backends that are selected all the same and then die in a step."""
        return as_tuple(self.body.get("fails_at_run"))

    @cached_property
    def follows_selection(self) -> bool:
        """Whether this is a refusal that is only known once no backend was left (`vllm.selected: absent`)."""
        return self.import_error is not None and any(
            key.endswith(".selected") and wanted == ABSENT for key, wanted in self.body["when"].items()
        )

    @property
    def import_error(self) -> str | None:
        """The library that refuses to import or construct with these versions."""
        return self.body.get("import_error")

    @property
    def weight(self) -> int:
        """How much more specific than its equals: the higher is told first."""
        return int(self.body.get("weight", 0))

    @property
    def message(self) -> str:
        """The sentence for the user, `{fact.key}` not yet interpolated."""
        return str(self.body.get("message") or self.body["summary"])

    @property
    def references(self) -> tuple[str, ...]:
        """Sources a reader can open."""
        return as_tuple(self.body.get("references"))

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The ways out, best first."""
        return tuple(_alternative(item) for item in self.body.get("fix") or ())


#: (condition or None, backends best first): the first entry whose condition holds counts
Orders = tuple[tuple[Condition | None, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Backend:
    """One attention backend a library can choose; a part is one of several ways another backend works inside."""

    id: str
    title: str
    part_of: str | None = None


@dataclass(frozen=True)
class Library:
    """One `library.yaml`: names, environment variables, releases with what each brings, backends."""

    name: str
    body: Mapping[str, Any]

    @property
    def distributions(self) -> tuple[str, ...]:
        """PEP 503 names of what pip installs for it."""
        return as_tuple(self.body.get("distributions"))

    @property
    def environment(self) -> tuple[str, ...]:
        """Variables worth reading; a trailing `*` is a prefix."""
        return as_tuple(self.body.get("environment"))

    @property
    def releases(self) -> Mapping[str, Mapping[str, Any]]:
        """Release → facts it implies."""
        return self.body.get("releases") or {}

    @cached_property
    def backends(self) -> tuple[Backend, ...]:
        """The candidates, in no particular order."""
        return tuple(
            Backend(item["id"], item["title"], item.get("part_of")) for item in self.body.get("backends") or ()
        )

    @cached_property
    def prefix(self) -> str | None:
        """`te` for te.fused, te.flash2 …"""
        return self.backends[0].id.split(".")[0] if self.backends else None

    @cached_property
    def preferences(self) -> Orders:
        """(when, order of preference); the first whose condition holds counts."""
        return _orders(self.body.get("preference"))

    @cached_property
    def variants(self) -> Mapping[str, Orders]:
        """Backend → orders of preference among its parts."""
        return {backend: _orders(items) for backend, items in (self.body.get("variants") or {}).items()}

    @cached_property
    def applies(self) -> Condition | None:
        """When a prediction for this library makes sense at all."""
        return parse_conditions(self.body["applies"]) if self.body.get("applies") else None

    @cached_property
    def stage_orders(self) -> tuple[tuple[Condition | None, Mapping[str, int]], ...]:
        """Orders in which releases filter: (when, stage name → rank). Reasons are listed in the first that holds."""
        stages = self.body.get("stages") or ()
        if stages and isinstance(stages[0], str):
            stages = [{"order": stages}]
        return tuple(
            (condition, {name: rank for rank, name in enumerate(order)}) for condition, order in _orders(stages)
        )

    @property
    def stages(self) -> Mapping[str, int]:
        """Every stage any release has, with a rank."""
        return {name: rank for _, order in self.stage_orders for name, rank in order.items()}

    @cached_property
    def implies(self) -> tuple[tuple[Condition, Mapping[str, Any]], ...]:
        """(when, facts): what a range of releases does alike."""
        return tuple((Deferred(item["when"]), item["facts"]) for item in self.body.get("implies") or ())


@dataclass(frozen=True)
class Rulebook:
    """All rules and libraries of one or more folders."""

    rules: Mapping[str, Rule]
    libraries: Mapping[str, Library]
    version: str = ""

    @cached_property
    def implications(self) -> Implications:
        """Key → releases that imply it."""
        table: dict[str, list[tuple[str | Condition, Mapping[str, Any]]]] = {}
        for library in self.libraries.values():
            if not library.releases or not library.distributions:
                continue
            version_key = f"{library.distributions[0]}.version"
            for key in {key for implied in library.releases.values() for key in implied}:
                table.setdefault(key, []).append((version_key, library.releases))
        for library in self.libraries.values():
            for condition, implied in library.implies:
                for key in implied:
                    table.setdefault(key, []).append((condition, implied))
        return table

    def only(self, ids: Iterable[str]) -> Rulebook:
        """The same with these rules alone to be judged; what backends are predicted by stays, and is shared."""
        kept = set(ids)
        made = Rulebook({name: rule for name, rule in self.rules.items() if name in kept}, self.libraries, self.version)
        tables = ("implications", "support", "runtime", "refusals", "by_prefix")  # dear to make, and the same
        vars(made).update({name: getattr(self, name) for name in tables})
        return made

    @cached_property
    def support(self) -> Mapping[str, RuleIndex]:
        """Library → rules that disable one of its backends."""
        return self._group(lambda rule: bool(rule.body.get("disables")))

    @cached_property
    def runtime(self) -> Mapping[str, RuleIndex]:
        """Library → rules about what dies although it was selected, or at import; the most specific first."""
        return self._group(
            lambda rule: bool(rule.body.get("fails_at_run") or (rule.import_error and not rule.follows_selection))
        )

    @cached_property
    def refusals(self) -> Mapping[str, RuleIndex]:
        """Library → rules about what it does when no backend is left; the most specific first."""
        return self._group(lambda rule: rule.follows_selection)

    def _group(self, belongs: Callable[[Rule], bool]) -> Mapping[str, RuleIndex]:
        """Return the rules of each library that `belongs` picks, as an index."""
        grouped: dict[str, list[Rule]] = {}
        for rule in self.rules.values():
            if belongs(rule):
                grouped.setdefault(rule.library, []).append(rule)
        return {
            name: RuleIndex(tuple(sorted(rules, key=lambda rule: -rule.weight)), self.libraries.get(name))
            for name, rules in grouped.items()
        }

    @cached_property
    def by_prefix(self) -> Mapping[str, Library]:
        """`te` → its library, for those that have backends."""
        return {library.prefix: library for library in self.libraries.values() if library.prefix}

    @property
    def watched_distributions(self) -> tuple[str, ...]:
        """Every distribution some library.yaml names."""
        return tuple(dict.fromkeys(name for library in self.libraries.values() for name in library.distributions))

    @property
    def watched_environment(self) -> tuple[str, ...]:
        """Every variable some library.yaml names."""
        return tuple(dict.fromkeys(name for library in self.libraries.values() for name in library.environment))


def as_tuple(value: Any) -> tuple[str, ...]:
    """One text or a list of texts, as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _orders(items: Any) -> Orders:
    return tuple(
        (parse_conditions(item["when"]) if item.get("when") else None, tuple(item["order"])) for item in items or ()
    )


def _alternative(item: Mapping[str, Any]) -> Alternative:
    return Alternative(
        require=item.get("require") or {},
        set_env=item.get("set_env") or {},
        unset_env=as_tuple(item.get("unset_env")),
        config=item.get("config") or {},
        call=item.get("call"),
        note=item.get("note"),
        safe=str(item.get("safe", "true")).lower() == "true",
        index_url=item.get("index_url"),
        then=item.get("then") or {},
    )


def load_rulebook(extra: Iterable[str] = ()) -> Rulebook:
    """The built-in rulebook and any further folders; DoctorError names file and line of a faulty rule."""
    from .compiled import load_bodies

    rules: dict[str, Rule] = {}
    libraries: dict[str, Library] = {}
    version, bodies = load_bodies(tuple(extra))
    for kind, name, path, body in bodies:
        if kind == "library":
            libraries[name] = Library(name, body)
        else:
            rules[body["id"]] = Rule(body["id"], name, body, path)
    return Rulebook(rules, libraries, version)
