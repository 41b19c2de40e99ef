"""Explain for each error that no fix clears which rule excludes which releases.

`infeasibility` finds the cases; here they become one sentence for each backend, and other GPUs and jobs are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from doctor.facts.vocabulary import fact, parse_version
from doctor.model import ABSENT, Facts, Finding, Infeasible, Severity
from doctor.packages.gpus import gpu_facts
from doctor.rulebook.evaluate import know, rule_holds
from doctor.rulebook.rule import Library, Rule

from .infeasibility import Case, Cases
from .repair import FixSearch

_GPUS = ("a100", "h100", "b200", "rtx5090")
#: Changes of the job that cost something: no fix, but worth knowing where nothing else helps.
_JOBS: tuple[tuple[str, Any, str], ...] = (
    ("workload.cp_size", 1, "without context parallelism"),
    ("workload.cp_comm_type", "p2p", "with `cp_comm_type` p2p"),
    ("workload.cp_comm_type", "a2a", "with `cp_comm_type` a2a"),
    ("workload.qkv_layout", "bshd_bshd_bshd", "in the bshd layout"),
    ("workload.mask", "padding_causal", "with mask padding_causal"),
    ("workload.deterministic", False, "without determinism"),
    ("workload.dropout", 0.0, "without dropout"),
    ("workload.framework", "torch_sdpa", "through torch's own attention"),
)


class InfeasibilityExplainer:
    """Explain for one environment and workload why no change of releases clears an error."""

    def __init__(self, repair: FixSearch) -> None:
        self.repair, self.rulebook = repair, repair.rulebook
        self.cases = Cases(repair)

    def of(self, finding: Finding) -> Infeasible:
        """Return the sentences for one error; not `proved` where cases remain open."""
        rule = self.rulebook.rules[finding.rule]
        library = self.cases.causes({}).selection(rule)
        sentences, proved = self._of_backends(rule, library) if library else self._of_rule(rule)
        proved = proved and bool(sentences or finding.no_pin) and not rule.releases_unknown
        if finding.no_pin:
            sentences.insert(0, _sentence(finding.no_pin))
        if proved:
            sentences[-1] = f"{sentences[-1][:-1]}: no change of releases or variables helps."
        else:
            sentences.append(
                f"No fix found ({self.cases.judged} combinations of releases and variables tried); one may exist."
            )
        return Infeasible(rule.id, tuple(sentences), self._instead(rule, library), proved)

    def _of_backends(self, rule: Rule, library: Library) -> tuple[list[str], bool]:
        present = self.cases.causes({}).blocked(library)
        whole: dict[str, list[Case]] = {}
        proved = True
        titles = {backend.id: backend.title for backend in library.backends}
        for blocked in present:
            cases = self.cases.of(rule, library, blocked.backend)
            proved = proved and None not in cases
            parent = next((b.part_of for b in library.backends if b.id == blocked.backend), None) or blocked.backend
            if any(limit.rule is None for limit in blocked.limits) and parent != blocked.backend:
                continue  # a part that is not made for such a job is no news
            whole.setdefault(parent, []).extend(case for case in cases if case is not None)
        by_text: dict[str, list[str]] = {}
        for backend, known in whole.items():
            by_text.setdefault(self._because(known), []).append(titles[backend])
        sentences = [f"{' and '.join(names)} cannot serve it: {text}." for text, names in by_text.items() if text]
        most = self.repair.budget.sentences
        return sentences[:most], proved and len(sentences) <= most

    def _of_rule(self, rule: Rule) -> tuple[list[str], bool]:
        cases = self.cases.of(rule)
        text = self._because([case for case in cases if case is not None])
        return ([_sentence(text)] if text else []), None not in cases

    # --- in words -----------------------------------------------------------------------------------------------

    def _because(self, cases: Sequence[Case]) -> str:
        """`… (TE281, with transformer-engine 1.10 to 2.16), and … (TE160, …)`, the rule with most cases first."""
        by_rule: dict[str, list[Case]] = {}
        for case in cases:
            if case.rule:
                by_rule.setdefault(case.rule, []).append(case)
        parts = []
        for name, some in sorted(by_rule.items(), key=lambda item: -len(item[1]))[:3]:
            where = self._where(some) if len(by_rule) > 1 else ""
            parts.append(f"{some[0].message.rstrip('.')} ({name}{', ' + where if where else ''})")
        return "; and ".join(parts)

    def _where(self, cases: Sequence[Case]) -> str:
        """The releases of the first package that differ between the cases, as a range."""
        package = next((name for case in cases for name in case.fixed), None)
        if package is None:
            return ""
        found = {case.fixed[package] for case in cases if package in case.fixed}
        all_of = {v for rep in found if rep != ABSENT for v in self.cases.kinds.alike(package, rep)}
        versions = sorted(all_of, key=parse_version)
        if not versions:
            return f"without `{package}`"
        span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        return f"`{package}` {span}"

    # --- what would help ----------------------------------------------------------------------------------------

    def _instead(self, rule: Rule, library: Library | None) -> str | None:
        """Return another GPU or setting of the job with which the rule does not fire, where one is found."""

        facts = self.cases.causes({}).facts
        machines = []
        for name in _GPUS if self.rulebook.gpus else ():
            found = {item.key: item for item in gpu_facts(name, self.rulebook.gpus)}
            if found["gpu.sm"].value != facts.value("gpu.sm") and self._serves(
                rule, library, facts.with_(*found.values())
            ):
                machines.append(f"{found['gpu.name'].value} (sm {found['gpu.sm'].value})")
        jobs = [
            words for key, value, words in _JOBS
            if facts.value(key) not in (None, value)
            and self._serves(rule, library, facts.with_(fact(key, value, "another job")))
        ]  # fmt: skip
        ways = ([f"on {_or(machines)}"] if machines else []) + jobs[:3]
        return f"It works with these releases {_or(ways)}." if ways else None

    def _serves(self, rule: Rule, library: Library | None, facts: Facts) -> bool:
        known, _ = know(self.rulebook, facts)
        if rule_holds(self.rulebook, rule, known) is not False:
            return False
        return library is None or known.value(f"{library.prefix}.selected") not in (None, ABSENT)


def proofs(repair: FixSearch, cleared: set[str]) -> tuple[Infeasible, ...]:
    """Return an explanation for every error that no fix clears."""
    proof = InfeasibilityExplainer(repair)
    open_ = [f for f in repair.base.findings if f.severity == Severity.ERROR and f.rule not in cleared]
    return tuple(proof.of(finding) for finding in open_)


def _or(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
