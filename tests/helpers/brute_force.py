"""Brute force over releases and settings: whether fewer packages would do, and whether nothing does.

The judges are the product's (what the facts would be, the rulebook, broken requirements); what is tried is not: no
tracing, no order of rules, no cost. Releases count as one only where every condition of every rule, every release
table and every requirement of and on the package answers alike for both; then no judge can distinguish them.
A package that stays and breaks with a chosen release ends that branch, because nothing chosen later fixes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from doctor.model import ABSENT, Facts, Remedy
from doctor.packages.index import load_index
from doctor.packages.relations import owner_of
from doctor.packages.specifiers import admits
from doctor.rulebook.conditions import Leaf
from doctor.rulebook.evaluate import Assessment, know
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.candidates import releases_of
from doctor.solver.environment import stack_of
from doctor.solver.plan import LOADER_VARIABLES, FixPlan, Pick
from doctor.solver.remedies import builds_of
from doctor.solver.repair import FixSearch
from doctor.solver.resolve import choices, unresolved_clashes

#: What may be installed where it is missing: the product adds nothing else.
ADDED = ("flash-attn",)


class World:
    """One broken environment and everything that could be tried on it."""

    def __init__(self, rulebook: Rulebook, facts: Facts, before: Assessment) -> None:
        self.rulebook, self.facts = rulebook, facts
        self.stack = stack_of(facts, before.known, load_index())
        self.repair = FixSearch(rulebook, facts, before, self.stack, ("error",))
        self.judged = 0
        self._verdicts: dict[Any, bool] = {}
        self._leaves: dict[str, list[Leaf]] = {}
        for leaf in _leaves(rulebook):
            self._leaves.setdefault(leaf.key, []).append(leaf)
        here = [name for name, version in self.stack.installed.items() if version != ABSENT]
        self.packages = [name for name in sorted({*here, *ADDED}) if self.stack.movable(name)]
        strays = {name for rule in before.errors for way in rulebook.rules[rule].alternatives
                  for name, spec in way.require.items() if spec == ABSENT and name in here}  # fmt: skip
        self.classes = {name: self._classes(name) for name in self.packages}
        self.classes |= {name: [ABSENT] for name in strays}
        builds = {spec.removeprefix("==") for rule in rulebook.rules.values() if rule.severity == "error"
                  for way in rule.alternatives for name, spec in way.require.items()
                  if name == "torch" and "+" in spec}  # fmt: skip
        builds |= {remedy.require["torch"].removeprefix("==") for rule in rulebook.rules.values()
                   if rule.severity == "error" for way in rule.alternatives if way.build
                   for remedy in builds_of(self.stack, way)}  # fmt: skip
        if "torch" in self.classes:  # builds of another index: those that some rule names
            self.classes["torch"] += [
                build for build in sorted(builds) if releases_of(self.stack, "torch", f"=={build}")
            ]
        self.settings = list(self._settings(before))

    def _settings(self, before: Assessment) -> Iterator[FixPlan]:
        """Every joint choice of variables unset and of settings that a rule which fires puts before any release."""
        ways: list[Remedy] = []
        for rule in sorted(before.errors):
            for way in rulebook_ways(self.rulebook, rule):
                ways.append(way)
        for name in sorted(key.removeprefix("env.") for key in self.facts if key.startswith("env.")):
            if name not in LOADER_VARIABLES and self.facts.value(f"env.{name}") not in (None, ABSENT):
                ways.append(Remedy(unset_env=(name,)))
        seen = set()
        for size in range(min(len(ways), 3) + 1):
            for some in itertools.combinations(ways, size):
                plan: FixPlan | None = FixPlan()
                for way in some:
                    plan = plan.joined(Pick(sorted(before.errors)[0], 0, way)) if plan is not None else None
                if plan is not None:
                    key = (tuple(sorted(plan.env.items())), tuple(sorted((k, str(v)) for k, v in plan.config.items())))
                    if key not in seen:
                        seen.add(key)
                        yield plan

    def _classes(self, package: str) -> list[str]:
        """One release of each class; of torch every release."""
        kinds: dict[Any, str] = {}
        for version in releases_of(self.stack, package, ""):
            kinds.setdefault(version if package == "torch" else self._class(package, version), version)
        return list(kinds.values())

    def _class(self, package: str, version: str) -> Any:
        stack, torch = self.stack, self.stack.installed.get("torch")
        keys = [
            f"{name}.version" for name in (package, *stack.installed) if name == package or owner_of(name) == package
        ]
        tables = [table for sources in self.rulebook.implications.values() for source, table in sources
                  if source == f"{package}.version"]  # fmt: skip
        return (
            tuple(leaf.test(version) for key in keys for leaf in self._leaves.get(key, ())),
            tuple(repr(table.get(version)) for table in tables),
            frozenset(
                (n.package, n.range) for n in stack.needs(package, version, torch) if n.package in stack.installed
            ),
            tuple(sorted(stack.bundled_packages(package, version, torch).items()))
            if package == "transformer-engine"
            else (),
            tuple(admits(text, version) for text in self._ranges(package)),
            release_date_matters(stack, package, version),
        )

    def _ranges(self, package: str) -> list[str]:
        key = ("brute", package)
        if key not in self.stack.memo:
            found = set()
            for other in self.stack.installed:
                if other != package and self.stack.index.mentions(other, package):
                    for release in self.stack.index.releases(other):
                        found |= {n.range for n in self.stack.needs(other, release, None) if n.package == package}
            self.stack.memo[key] = sorted(found - {""})
        found_ranges: list[str] = self.stack.memo[key]
        return found_ranges

    def solved(self, most: int, least: int = 0) -> tuple[dict[str, str], FixPlan] | None:
        """Some set of so many packages, with settings, after which no error is left; None where there is none."""
        for size in range(least, most + 1):
            for names in itertools.combinations(sorted(self.classes), size):
                for chosen in self._assigned({}, names):
                    for plan in self.settings:
                        if (chosen or plan.picks) and self.clear(chosen, plan):
                            return chosen, plan
        return None

    def _assigned(self, chosen: dict[str, str], names: tuple[str, ...]) -> Iterator[dict[str, str]]:
        left = names[len(chosen) :]
        for clash in unresolved_clashes(self.stack, chosen):
            ends = {clash.package, owner_of(clash.package), clash.needs, owner_of(clash.needs)}
            if not ends & set(left):
                return  # nothing chosen later fixes it
        if not left:
            if self.stack.keeps(self.stack.completed(chosen)):
                yield chosen
            return
        for version in self.classes[left[0]]:
            if version == ABSENT or not self.stack.outdated(left[0], version, chosen):
                yield from self._assigned({**chosen, left[0]: version}, names)

    def clear(self, chosen: Mapping[str, str], plan: FixPlan) -> bool:
        """Whether no error fires any more, and every library that had a backend has one."""
        key = (tuple(sorted(chosen.items())), tuple(sorted(plan.env.items())), str(plan.config))
        if key not in self._verdicts:
            self.judged += 1
            outcome = self.repair.evaluate(plan, chosen)
            self._verdicts[key] = outcome is not None and not outcome.firing
        return self._verdicts[key]

    def curable(self, rule: str) -> Iterator[tuple[dict[str, str], FixPlan]]:
        """Every choice of releases of what the rule can depend on, requirements apart, after which it is silent.

        None proves that nothing fixes it: a set that requirements admit is one of those tried, seen through the rule.
        """
        names = sorted(self._feeding(rule))
        torches = self._torch_classes() if "torch" in names else []
        pools = [[None, *(torches if name == "torch" else self.classes[name])] for name in names]
        for versions in itertools.product(*pools):
            chosen = {n: v for n, v in zip(names, versions, strict=True) if v is not None}
            for plan in self.settings:
                facts = self.repair.facts_after(plan, chosen)
                if self._silent(rule, facts):
                    yield chosen, plan

    def completes(self, rules: list[str]) -> tuple[dict[str, str], FixPlan] | None:
        """Some fix of the first of these errors that requirements and all other rules admit once it is completed."""
        for chosen, plan in self.curable(rules[0]):
            wanted = {name: f"=={version}" for name, version in chosen.items() if version != ABSENT}
            for whole in itertools.islice(choices(self.stack, wanted), 8):
                if self.clear({**whole, **{n: v for n, v in chosen.items() if v == ABSENT}}, plan):
                    return whole, plan
        return None

    def _silent(self, rule: str, facts: Facts) -> bool:
        self.judged += 1
        known, _ = know(self.rulebook, facts)
        prefix = self._selects(rule)
        if prefix is not None:  # another rule says the same where this one yields: a backend has to be there
            return known.value(f"{prefix}.selected") != ABSENT
        return self.rulebook.rules[rule].when.holds(known) is False

    def _selects(self, rule: str) -> str | None:
        for leaf in self.rulebook.rules[rule].when.leaves():
            if leaf.key.endswith(".selected") and leaf.text == ABSENT:
                return leaf.key.split(".")[0]
        return None

    def _feeding(self, rule: str) -> set[str]:
        """The packages that any condition on the way to the rule speaks of."""
        rules = [self.rulebook.rules[rule]]
        prefix = self._selects(rule)
        if prefix is not None:
            library = self.rulebook.by_prefix[prefix].name
            rules += [item for item in self.rulebook.rules.values() if item.library == library]
        keys = {leaf.key for item in rules for leaf in item.when.leaves()}
        names = {owner_of(key.removesuffix(".version")) or key.removesuffix(".version") for key in keys}
        if prefix is not None or any(key.startswith(("torch.", "cudnn.")) for key in keys):
            names |= {"torch", *ADDED}
        return {name for name in names if name in self.classes}

    def _torch_classes(self) -> list[str]:
        """One torch of each class that any condition on what a torch brings distinguishes."""
        wanted = [leaf for key, leaves in self._leaves.items() for leaf in leaves
                  if key.startswith(("torch.", "cudnn.", "nvidia-"))]  # fmt: skip
        kinds: dict[Any, str] = {}
        for version in self.classes["torch"]:
            known, _ = know(self.rulebook, self.repair.facts_after(FixPlan(), {"torch": version}))
            values = [known.value(leaf.key) for leaf in wanted]
            key = tuple(None if v is None else leaf.test(v) for v, leaf in zip(values, wanted, strict=True))
            kinds.setdefault((key, known.value("torch.cuda"), str(known.value("torch.arch_list"))), version)
        return list(kinds.values())


def release_date_matters(stack: Any, package: str, version: str) -> Any:
    """Whether compiled code names no torch: then its date decides what it may meet."""
    release = stack.index.release(package, version)
    pins = [need.pin for need in stack.needs(package, version, None) if need.package == "torch"]
    return release.date if pins and pins[0] is None and set(release.machines) - {"any"} else None


def rulebook_ways(rulebook: Rulebook, rule: str) -> Iterator[Remedy]:
    """The settings that a rule puts before any release."""
    for way in rulebook.rules[rule].alternatives:
        if any(spec != ABSENT for spec in way.require.values()):
            return
        variables = {*way.set_env, *way.unset_env}
        if (way.config or variables) and not way.call and way.safe and not variables & LOADER_VARIABLES:
            yield way


def _leaves(rulebook: Rulebook) -> Iterator[Leaf]:
    for rule in rulebook.rules.values():
        yield from rule.when.leaves()
    for library in rulebook.libraries.values():
        for when, _ in (*library.preferences, *(order for orders in library.variants.values() for order in orders)):
            if when is not None:
                yield from when.leaves()
        if library.applies is not None:
            yield from library.applies.leaves()
    for sources in rulebook.implications.values():
        for source, _ in sources:
            if not isinstance(source, str):
                yield from source.leaves()
