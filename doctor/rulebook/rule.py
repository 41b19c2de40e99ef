"""One rule and one library, as their files state them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from doctor.facts.derived.registry import follows_from_job
from doctor.facts.libraries.record import flag
from doctor.model import ABSENT, Remedy, Severity
from doctor.util.resources import rules_dir

from .categories import FORMER
from .conditions import Condition, Deferred, parse_conditions
from .decisions import DecisionList
from .effects import Effects, effects_of
from .safety import stated_safety

EFFECTS = ("severity", "disables", "fails_at_run", "import_error")  # one at least, else a rule only explains logs


class Overridable(NamedTuple):
    """A part that works at other releases than its owner pins."""

    package: str
    owner: str
    range: str  # the releases that work, where they are newer than the pin
    when: Condition
    facts: tuple[str, ...]  # that follow from its release
    source: str


@dataclass(frozen=True)
class Rule:
    """One flaw or one support limit: typed fields over what its file states, which is parsed at their first use."""

    id: str
    library: str
    stated: Mapping[str, Any]  # the whole file, for what writes it out again: the fields are its one reader
    path: str

    @property
    def name(self) -> str:
        """The flaw, in words with hyphens."""
        return str(self.stated["name"])

    @property
    def summary(self) -> str:
        """The headline."""
        return str(self.stated["summary"])

    @property
    def why(self) -> str:
        """The reason, for a reader; empty for none."""
        return str(self.stated.get("why") or "").strip()

    @property
    def condition(self) -> Mapping[str, Any]:
        """The condition as it is written; empty for a rule that explains logs wherever they are shown."""
        return self.stated.get("when") or {}

    @property
    def is_checked(self) -> bool:
        """Whether `check` needs the rule; the others explain logs alone."""
        return is_checked(self.stated)

    @property
    def category(self) -> str | None:
        """The kind of flaw, one of `categories.CATEGORIES` in the rules that ship."""
        stated = self.stated.get("category")
        return FORMER.get(stated, stated) if stated else None

    @property
    def yields_to(self) -> tuple[str, ...]:
        """Ids of more specific rules."""
        return as_tuple(self.stated.get("yields_to"))

    @property
    def needs(self) -> Mapping[str, Any]:
        """Fact key → what the job needs there, in words."""
        return self.stated.get("needs") or {}

    @property
    def no_pin(self) -> str | None:
        """Why no release fixes it; None where one may."""
        return self.stated.get("no_pin")

    @property
    def myth(self) -> str | None:
        """The fix that is often tried and does not help."""
        return self.stated.get("myth")

    @property
    def confirm(self) -> Mapping[str, Any] | None:
        """The kernel that shows the flaw on a GPU, and what it answers then."""
        return self.stated.get("confirm")

    @property
    def fix_reasons(self) -> str | None:
        """The library whose rules against backends bring the fixes."""
        return self.stated.get("fix_reasons")

    @property
    def releases_unknown(self) -> bool:
        """Whether the releases that the rule speaks of are not on record."""
        return bool(self.stated.get("releases_unknown"))

    @property
    def stated_message(self) -> str | None:
        """The sentence for the user, where the rule has one in addition to its headline."""
        return self.stated.get("message")

    @property
    def stated_weight(self) -> int | None:
        """How much more specific than its equals, where the rule says so."""
        found = self.stated.get("weight")
        return None if found is None else int(found)

    @property
    def cause(self) -> str:
        """The name of the cause in a log; several rules may share one."""
        return str(self.stated.get("cause") or self.name)

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions that are involved, for a log."""
        return as_tuple(self.stated.get("packages"))

    @property
    def signatures(self) -> Any:
        """What shows it in a log, as written: a regular expression, a mapping with one, or a list of these."""
        return self.stated.get("signatures")

    @property
    def is_benign(self) -> bool:
        """Whether what its signatures show looks bad and is not."""
        return str(self.stated.get("benign", "")).lower() == "true"

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that it says to a user, fixes included."""
        return tuple(str(self.stated.get(key)) for key in ("summary", "message", "needs", "fix"))

    @cached_property
    def when(self) -> Condition:
        """The condition tree."""
        return parse_conditions(self.condition)

    @cached_property
    def gate(self) -> Deferred:
        """The same condition, parsed only as far as it takes to say that the rule is silent."""
        return Deferred(self.condition)

    @cached_property
    def job_prefixes(self) -> frozenset[str]:
        """`te` and other beginnings of the facts that it reads and that follow from the job."""
        return frozenset(leaf.key.partition(".")[0] for leaf in self.gate.leaves() if follows_from_job(leaf.key))

    @cached_property
    def severity(self) -> Severity | None:
        """error, warning, note; None for a pure support rule, which is a reason and no finding."""
        stated = self.stated.get("severity")
        return None if stated is None else Severity(stated)

    @cached_property
    def disables(self) -> tuple[str, ...]:
        """The backends this rule takes out."""
        return as_tuple(self.stated.get("disables"))

    @cached_property
    def stage(self) -> str:
        """The step of the library's own filters in which it applies; empty for none."""
        return str(self.stated.get("stage", ""))

    @cached_property
    def fails_at_run(self) -> tuple[str, ...]:
        """The backends that are selected and then fail in a step."""
        return as_tuple(self.stated.get("fails_at_run"))

    @cached_property
    def follows_selection(self) -> bool:
        """Whether this is a refusal that is only known once no backend was left (`vllm.selected: absent`)."""
        return self.import_error is not None and any(
            key.endswith(".selected") and wanted == ABSENT for key, wanted in self.condition.items()
        )

    @cached_property
    def examined_to(self) -> Mapping[str, str]:
        """The newest examined release of each distribution that the rule's claim is about."""
        return self.stated.get("examined_to") or {}

    @cached_property
    def import_error(self) -> str | None:
        """The library that refuses to import or construct with these versions."""
        return self.stated.get("import_error")

    @property
    def reach(self) -> tuple[str, ...]:
        """The distributions or parts of them that a job must call to meet the flaw; empty: those of the library."""
        return as_tuple(self.stated.get("reach"))

    @property
    def weight(self) -> int:
        """How much more specific than its equals: the higher is reported first."""
        return self.stated_weight or 0

    @cached_property
    def message(self) -> str:
        """The sentence for the user, `{fact.key}` not yet interpolated."""
        return str(self.stated_message or self.summary)

    @cached_property
    def references(self) -> tuple[str, ...]:
        """Sources a reader can open."""
        return as_tuple(self.stated.get("references"))

    @property
    def replaces(self) -> tuple[str, ...]:
        """Ids of former rules that this one says all of."""
        return as_tuple(self.stated.get("replaces"))

    @cached_property
    def alternatives(self) -> tuple[Remedy, ...]:
        """The fixes, best first."""
        foreign = not is_built_in(self.path)
        return tuple(_alternative(item, foreign) for item in self.stated.get("fix") or ())


#: (condition or None, backends best first): the first entry whose condition holds counts
Orders = tuple[tuple[Condition | None, tuple[str, ...]], ...]


class Backend(NamedTuple):
    """One attention backend a library can choose; a part is one of several ways another backend works inside."""

    id: str
    title: str
    part_of: str | None = None
    unfused: bool = False  # materializes the scores: slow, and serves nearly everything


class AttentionCall(NamedTuple):
    """One way to call the attention of a library, as a run on a GPU can measure it."""

    id: str
    title: str
    select: Mapping[str, str]  # framework -> what makes a job take it; `*`: any other framework
    packages: tuple[str, ...]  # measured where one of them is installed
    backends: tuple[str, ...]  # the backends that compute by it, of whichever library
    when: Condition | None = None  # only for such jobs
    env: Mapping[str, str] = {}  # variables of the process that measures it
    compiled: bool = False  # torch.compile may change its speed
    only_compiled: bool = False  # it exists in compiled form only
    for_errors: bool = False  # it serves to find errors, not to train: measured when everything else was
    rank: int = 100  # the order in which calls are measured, as time is limited


@dataclass(frozen=True)
class Library:
    """One `library.yaml`: names, environment variables, releases with what each brings, backends."""

    name: str
    stated: Mapping[str, Any]  # the whole file
    compiled_effects: Effects | None = field(default=None, compare=False, repr=False)  # where the file was compiled

    @property
    def effects(self) -> Effects:
        """The keys of the facts that follow from the file."""
        return effects_of(self.stated) if self.compiled_effects is None else self.compiled_effects

    @property
    def title(self) -> str:
        """What people call it."""
        return str(self.stated.get("title") or self.name)

    @property
    def import_name(self) -> str:
        """The module by which Python imports it."""
        return str(self.stated.get("import_name") or self.name)

    @property
    def seldom(self) -> tuple[str, ...]:
        """Distributions that few environments have."""
        return as_tuple(self.stated.get("seldom"))

    def table(self, key: str) -> Mapping[str, Any]:
        """One of its tables by name, as `gpus`, `images` and `packages`; empty where it has none."""
        return self.stated.get(key) or {}

    @property
    def distributions(self) -> tuple[str, ...]:
        """PEP 503 names of what pip installs for it."""
        return as_tuple(self.stated.get("distributions"))

    @property
    def unregistered(self) -> tuple[str, ...]:
        """Those of them that the package registry does not have, or has from another project."""
        return as_tuple(self.stated.get("unregistered"))

    @property
    def spoken(self) -> Mapping[str, str]:
        """Its module, or its distribution -> a pattern of how people write it."""
        return self.stated.get("spoken") or {}

    @property
    def spoken_inside_others(self) -> bool:
        """Whether other packages have its name in theirs, so that it counts where no other is spoken of."""
        return flag(self.stated, "spoken_inside_others")

    @property
    def plain_words(self) -> tuple[str, ...]:
        """Names of its packages that are words of the language, too."""
        return as_tuple(self.stated.get("plain_words"))

    @property
    def modules(self) -> Mapping[str, str]:
        """The modules that Python imports of it, each with its distribution."""
        named = self.stated.get("import_name", "")
        own = {named: self.distributions[0]} if named and "." not in named and self.distributions else {}
        return {**own, **(self.stated.get("modules") or {})}

    @cached_property
    def calls(self) -> Mapping[str, Mapping[str, Condition | str]]:
        """The library, or a part of it -> what that calls -> `always`, `maybe`, or the condition of the job."""
        return {
            caller: {name: when if isinstance(when, str) else Deferred(when) for name, when in callees.items()}
            for caller, callees in (self.stated.get("calls") or {}).items()
        }

    @cached_property
    def needed(self) -> Condition | None:
        """The condition on a job that imports the library without an alternative; None where none is known."""
        when = self.stated.get("needed")
        return None if when is None else Deferred(when)

    @cached_property
    def requested(self) -> Mapping[str, Condition]:
        """Distribution -> the condition on a job that calls it by name, whichever release is installed."""
        return {name: Deferred(when) for name, when in (self.stated.get("requested") or {}).items()}

    @property
    def script_calls(self) -> tuple[Mapping[str, Any], ...]:
        """What calls of it in a program state of the job."""
        return tuple(self.stated.get("script_calls") or ())

    @property
    def trainers(self) -> tuple[Mapping[str, Any], ...]:
        """Its programs that train, not yet made into records."""
        return tuple(self.stated.get("trainers") or ())

    @cached_property
    def attention_calls(self) -> tuple[AttentionCall, ...]:
        """Its attention as a run on a GPU can measure it, and what selects it in each framework."""
        return tuple(_attention_call(item, self.distributions[:1]) for item in self.stated.get("attention_calls") or ())

    @property
    def reach(self) -> tuple[str, ...]:
        """The part that a job must call to meet the flaws of its rules; empty: any of its distributions."""
        return as_tuple(self.stated.get("reach"))

    @property
    def environment(self) -> tuple[str, ...]:
        """Variables worth reading; a trailing `*` is a prefix."""
        return as_tuple(self.stated.get("environment"))

    @property
    def releases(self) -> Mapping[str, Mapping[str, Any]]:
        """Release → facts it implies."""
        return self.stated.get("releases") or {}

    @cached_property
    def backends(self) -> tuple[Backend, ...]:
        """The candidates, in no particular order."""
        return tuple(_backend(item) for item in self.stated.get("backends") or ())

    @cached_property
    def prefix(self) -> str | None:
        """`te` for te.fused, te.flash2 …"""
        return self.backends[0].id.split(".")[0] if self.backends else None

    @cached_property
    def preferences(self) -> Orders:
        """(when, order of preference); the first whose condition holds counts."""
        return _orders(self.stated.get("preference"))

    @cached_property
    def variants(self) -> Mapping[str, Orders]:
        """Backend → orders of preference among its parts."""
        return {backend: _orders(items) for backend, items in (self.stated.get("variants") or {}).items()}

    @cached_property
    def applies(self) -> Condition | None:
        """When a prediction for this library makes sense at all."""
        return parse_conditions(self.stated["applies"]) if self.stated.get("applies") else None

    @cached_property
    def stage_orders(self) -> tuple[tuple[Condition | None, Mapping[str, int]], ...]:
        """Orders in which releases filter: (when, stage name → rank). Reasons are listed in the first that holds."""
        stages = self.stated.get("stages") or ()
        if stages and isinstance(stages[0], str):
            stages = [{"order": stages}]
        return tuple(
            (condition, {name: rank for rank, name in enumerate(order)}) for condition, order in _orders(stages)
        )

    @property
    def stages(self) -> Mapping[str, int]:
        """Every stage any release has, with a rank."""
        return {name: rank for _, order in self.stage_orders for name, rank in order.items()}

    @property
    def choice(self) -> Mapping[str, str]:
        """Phase → the fact that says which backend serves it, where decision lists choose: decode, prefill."""
        return self.stated.get("choice") or {}

    @cached_property
    def decisions(self) -> Mapping[str, DecisionList]:
        """Fact key → the ordered cases that decide it."""
        version_key = f"{self.distributions[0]}.version" if self.distributions else ""
        lists = self.stated.get("decisions") or {}
        return {key: DecisionList(key, version_key, cases) for key, cases in lists.items()}

    @cached_property
    def companions(self) -> tuple[tuple[Condition, Mapping[str, tuple[Any, ...]]], ...]:
        """(when, fact key → values): what is usual with a range of releases; the first that holds counts."""
        return tuple(
            (Deferred(item["when"]), {key: as_tuple(values) for key, values in item["usual"].items()})
            for item in self.stated.get("companions") or ()
        )

    @cached_property
    def overrides(self) -> tuple[Overridable, ...]:
        """Return the parts of other packages that may be replaced although these pin them."""
        return tuple(
            Overridable(
                item["package"], item["owner"], item["range"], Deferred(item["when"]), as_tuple(item["facts"]),
                str(item["source"]),
            )
            for item in self.stated.get("overrides") or ()
        )  # fmt: skip

    @property
    def stated_implications(self) -> tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]:
        """(condition as written, facts): what a range of releases does alike."""
        return tuple((item["when"], item["facts"]) for item in self.stated.get("implies") or ())

    @cached_property
    def implies(self) -> tuple[tuple[Condition, Mapping[str, Any]], ...]:
        """(when, facts): what a range of releases does alike."""
        return tuple((Deferred(when), facts) for when, facts in self.stated_implications)


def is_checked(stated: Mapping[str, Any]) -> bool:
    """Return whether `check` needs a rule; the others explain logs alone, and may have no condition."""
    return any(key in stated for key in EFFECTS)


def as_tuple(value: Any) -> tuple[str, ...]:
    """One text or a list of texts, as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _orders(items: Any) -> Orders:
    return tuple(
        (parse_conditions(item["when"]) if item.get("when") else None, tuple(item["order"])) for item in items or ()
    )


def _backend(item: Mapping[str, Any]) -> Backend:
    return Backend(item["id"], item["title"], item.get("part_of"), str(item.get("unfused")).lower() == "true")


def _attention_call(item: Mapping[str, Any], packages: tuple[str, ...]) -> AttentionCall:
    flags = {key: flag(item, key) for key in ("compiled", "only_compiled", "for_errors")}
    return AttentionCall(
        item["id"], item["title"], item["select"], as_tuple(item.get("package")) or packages,
        as_tuple(item.get("backends")) or (item["id"],),
        when=Deferred(item["when"]) if "when" in item else None,
        env={name: str(value) for name, value in (item.get("env") or {}).items()},
        rank=int(item.get("rank", AttentionCall._field_defaults["rank"])), **flags,
    )  # fmt: skip


def is_built_in(path: str) -> bool:
    """Return whether a rule file belongs to the rulebook that ships with attn-doctor."""
    return os.path.abspath(path).startswith(f"{rules_dir()}{os.sep}")  # noqa: PTH100 - for every rule: no Path


def _alternative(item: Mapping[str, Any], foreign: bool) -> Remedy:
    safety, risk = stated_safety(item)
    return Remedy(
        require=item.get("require") or {},
        set_env=item.get("set_env") or {},
        unset_env=as_tuple(item.get("unset_env")),
        config=item.get("config") or {},
        call=item.get("call"),
        note=item.get("note"),
        safety=safety,
        risk=risk,
        index_url=item.get("index_url"),
        then=item.get("then") or {},
        when=item.get("when") or {},
        build=item.get("build"),
        foreign=foreign,
        partial=item.get("partial"),
    )
