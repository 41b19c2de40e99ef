"""Group nodes whose facts are the same, check each group once, and name what some nodes have otherwise than most.

The cost grows with the number of different environments. A snapshot is parsed only when its content is new.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from doctor.diagnosis.cases import common_facts, merge_findings
from doctor.diagnosis.comparison import differences_of
from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.examine import InputCache, with_job
from doctor.diagnosis.judge import TOOL, Clock
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import ABSENT, Case, Fact, Facts, Finding, Report, Severity, Verdict
from doctor.packages.gpus import with_capability
from doctor.report.comparison import row_value
from doctor.report.comparison_model import DiffArea, Difference
from doctor.report.fleet import names, outlier_line
from doctor.report.fleet_model import EnvironmentGroup, FleetReport, Node, NodeState, Outlier
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.snapshot import parse_facts
from doctor.util.redact import shortened

from ..watch import rulebook_of
from .gpus import GpuResults
from .records import NodeAnswer, node_name

MOST_NODES = 200_000
MOST_GROUPS = 1_000  # different environments that are checked
MOST_FACTS = 20_000  # of one snapshot
RARE_SHARE, RARE_NODES = 0.1, 3  # at most this share of the nodes, or so many, is an outlier and not a kind of node
#: What a launcher or the machine sets for each node on purpose.
OWN = (
    "env.CUDA_VISIBLE_DEVICES", "env.LOCAL_RANK", "env.RANK", "env.NVIDIA_VISIBLE_DEVICES", "env.SLURM_PROCID",
    "env.SLURM_LOCALID", "env.SLURM_NODEID", "env.MASTER_ADDR", "target.path",
)  # fmt: skip


@dataclass
class _Group:
    facts: Facts | None
    nodes: list[str] = field(default_factory=list)
    problem: str = ""


@dataclass
class Collection:
    """The answers of nodes as they come in; the same content is kept once."""

    groups: dict[str, _Group] = field(default_factory=dict)
    node_group: dict[str, str] = field(default_factory=dict)
    problems: dict[str, tuple[NodeState, str]] = field(default_factory=dict)
    results: GpuResults = field(default_factory=GpuResults)
    tools: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _texts: dict[bytes, str] = field(default_factory=dict)  # digest of a text -> digest of its facts

    def add(self, answer: NodeAnswer) -> None:
        """Take over one answer; the last one of a node counts."""
        if len(self.node_group) + len(self.problems) >= MOST_NODES:
            raise DoctorError(f"more than {MOST_NODES} nodes answered", "report on fewer at once")
        self._forget(answer.node)
        if answer.tool:
            self.tools[answer.tool] += 1
        if answer.snapshot is None:
            self.problems[answer.node] = (NodeState.FAILED, answer.problem)
            return
        try:
            digest = self._digest(answer)
        except DoctorError as problem:
            self.problems[answer.node] = (NodeState.FAILED, shortened(" ".join(problem.message.split()), 500))
            return
        self.groups[digest].nodes.append(answer.node)
        self.node_group[answer.node] = digest
        self.results.add(answer.node, digest, answer.results)

    def miss(self, node: str, state: NodeState, problem: str) -> None:
        """Record a node that gave no answer; an answer that came before stays."""
        if node not in self.node_group:
            self.problems.setdefault(node_name(node), (state, problem))

    @property
    def answered(self) -> set[str]:
        """Return the nodes that are accounted for."""
        return {*self.node_group, *self.problems}

    def _forget(self, node: str) -> None:
        self.problems.pop(node, None)
        digest = self.node_group.pop(node, None)
        if digest is not None:
            self.notes.append(f"{node} answered more than once: its last answer counts")
            self.groups[digest].nodes.remove(node)

    def _digest(self, answer: NodeAnswer) -> str:
        text = answer.snapshot or ""
        name = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        known = self._texts.get(name)
        if known is not None:
            return known
        values = _values(text)
        digest = None if values is None else _hash(values)
        if digest is None or digest not in self.groups:
            facts = parse_facts(text, f"snapshot of {answer.node}")
            if len(facts) > MOST_FACTS:
                raise DoctorError(f"a snapshot of {len(facts)} facts", f"at most {MOST_FACTS} are read")
            digest = digest or _hash({key: fact.value for key, fact in facts.items() if key not in OWN})
            self.groups.setdefault(digest, _Group(facts))
        self._texts[name] = digest
        return digest


def _values(text: str) -> Mapping[str, Any] | None:
    """Return key and value of a snapshot in its long form; None where the text is in another form."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    facts = content.get("facts") if isinstance(content, dict) else None
    if not isinstance(facts, dict) or "findings" in content:
        return None
    workload = content.get("workload")
    parts = (
        {**facts, **{f"workload.{key}": value for key, value in workload.items()}}
        if isinstance(workload, dict)
        else facts
    )
    return {
        key: entry.get("value") if isinstance(entry, dict) else entry for key, entry in parts.items() if key not in OWN
    }


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def report_of(
    collection: Collection,
    request: Request,
    expected: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    lost: str = "no answer came",
) -> FleetReport:
    """Check every group once and put the report together; `expected` nodes without an answer are lost."""
    clock = Clock()
    answered = collection.answered
    for name in expected:
        if node_name(name) not in answered:
            collection.miss(node_name(name), NodeState.LOST, lost)
    rulebook = rulebook_of(request)
    clock.lap("rules")
    ordered = sorted(collection.groups.items(), key=lambda item: -len(item[1].nodes))
    ordered = [(digest, group) for digest, group in ordered if group.nodes]
    groups = []
    for number, (digest, group) in enumerate(ordered):
        progress(number, len(ordered))
        groups.append(_checked(number, digest, group, request, rulebook))
    progress(len(ordered), len(ordered))
    clock.lap("check")
    outliers = tuple(_outliers(rulebook, [group for _, group in ordered]))
    clock.lap("outliers")
    numbers = {digest: number for number, (digest, _) in enumerate(ordered)}
    verdicts = collection.results.verdicts()
    nodes = [
        _node(name, groups[numbers[digest]], verdicts.get(name, {})) for name, digest in collection.node_group.items()
    ]
    nodes += [Node(name, state, None, problem) for name, (state, problem) in collection.problems.items()]
    notes = list(dict.fromkeys(collection.notes))
    if len(collection.tools) > 1:
        notes.append(f"nodes run different versions: {', '.join(sorted(map(node_name, collection.tools)))}")
    if len(ordered) > MOST_GROUPS:
        notes.append(f"{len(ordered)} different environments: the {MOST_GROUPS} most frequent were checked")
    fleet = FleetReport(
        TOOL, tuple(sorted(nodes, key=lambda node: _natural(node.name))), tuple(groups), outliers,
        tuple(collection.results.faults()), collection.results.totals(), tuple(notes[:50]),
    )  # fmt: skip
    clock.lap("report")
    return replace(fleet, combined=combined_report(fleet, rulebook), timing=clock.laps())


def _node(name: str, group: EnvironmentGroup, gpus: Mapping[str, str]) -> Node:
    state = NodeState.CHECKED if group.report is not None else NodeState.FAILED
    return Node(name, state, group.number, group.problem, gpus)


def combined_report(fleet: FleetReport, rulebook: Rulebook) -> Report:
    """Return the groups as cases of one report; nodes without an answer and outliers are findings too."""
    checked = [(group, group.report) for group in fleet.groups if group.report is not None]
    cases = tuple(
        Case(names(group.nodes), None, None, report.facts, report.findings, report.predictions, report.undetermined)
        for group, report in checked
    )
    own = [_missing(node) for node in fleet.nodes if node.state != NodeState.CHECKED]
    own += [_finding("FLEET002", Severity.WARNING, "a few nodes differ from the rest", outlier_line(item))
            for item in fleet.outliers if item.rare]  # fmt: skip
    own += [_finding("FLEET003", Severity.ERROR if item.certain else Severity.WARNING, "a GPU differs from its peers",
                     f"{item.gpu}: {item.difference}") for item in fleet.faults]  # fmt: skip
    findings = (*own, *merge_findings(cases)) if cases else tuple(own)
    return Report(
        TOOL, {"version": rulebook.version, "rules": len(rulebook.rules)}, common_facts(cases) if cases else Facts(),
        tuple(sorted(findings, key=lambda item: item.severity.rank)), (), (), (), dict(fleet.timing),
        target=f"{len(fleet.nodes)} nodes", notes=fleet.notes, cases=cases,
    )  # fmt: skip


def _missing(node: Node) -> Finding:
    return _finding("FLEET001", Severity.ERROR, "a node was not checked", f"{node.name} {node.state}: {node.problem}")


def _finding(rule: str, severity: Severity, summary: str, message: str) -> Finding:
    why = "Every node of a job must be able to run its attention, and in the same way."
    return Finding(rule, summary.replace(" ", "-"), severity, Verdict.FIRES, summary, message, why, (), ())


def _checked(number: int, digest: str, group: _Group, request: Request, rulebook: Rulebook) -> EnvironmentGroup:
    nodes = tuple(sorted(group.nodes, key=_natural))
    if number >= MOST_GROUPS:
        return EnvironmentGroup(number, digest, nodes, None, "not checked: too many different environments")
    facts = with_capability(group.facts or Facts(), rulebook.gpus)
    target = f"{nodes[0]}{f' and {len(nodes) - 1} more' if len(nodes) > 1 else ''}"
    try:
        given = DiagnosisInput(facts, None, "the facts come from another node", target=target)
        examined = with_job(given, request, InputCache(rulebook, request))
        report = diagnose(request._replace(run=False, fixes=False), examined=examined)
    except DoctorError as problem:
        return EnvironmentGroup(number, digest, nodes, None, problem.message)
    return EnvironmentGroup(number, digest, nodes, _light(report))


def _light(report: Report) -> Report:
    """Return the report without the facts of unrelated packages: a thousand groups fit into memory."""
    return report._replace(undetermined=report.undetermined[:50])


def _outliers(rulebook: Rulebook, groups: Sequence[_Group]) -> Iterator[Outlier]:
    """Yield what differs from the value that most nodes have, the rarest first."""
    if len(groups) < 2:
        return
    usual = _majority(groups)
    total = sum(len(group.nodes) for group in groups)
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    areas: dict[str, DiffArea] = {}
    for group in groups:
        facts = group.facts or Facts()
        own = facts.with_(*(Fact(key, ABSENT, "not there") for key in usual if key not in facts and _optional(key)))
        for item in differences_of(rulebook, usual, own):
            row = next((row for row in item.rows if row.known), None)
            if row is not None and row.key not in OWN and not row.key.startswith("workload."):
                areas[item.name] = item.area
                found[_said(item, row.key), row_value(row, row.b), row_value(row, row.a)] += group.nodes
    made = [
        Outlier(what, value, instead, tuple(sorted(nodes, key=_natural)), total,
                len(nodes) <= max(RARE_NODES, RARE_SHARE * total))
        for (what, value, instead), nodes in found.items()
    ]  # fmt: skip
    ranks = {name: area.rank for name, area in areas.items()}
    made.sort(key=lambda item: (not item.rare, ranks.get(item.what, len(tuple(DiffArea))), len(item.nodes), item.what))
    yield from made


def _said(item: Difference, key: str) -> str:
    natural = key.endswith("version") or key.startswith("env.") or key == "gpu.name"
    return item.name if natural else key


def _optional(key: str) -> bool:
    """Return whether a fact that a snapshot does not have is absent there: it lists all packages and set variables."""
    return key.startswith("env.") or key.endswith(".version")


def _majority(groups: Sequence[_Group]) -> Facts:
    """Return for every fact the value that most nodes have."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    facts: dict[tuple[str, str], Fact] = {}
    total = 0
    for group in groups:
        total += len(group.nodes)
        for key, fact in (group.facts or Facts()).items():
            if key not in OWN and fact.value is not None:
                text = repr(fact.value)
                votes[key][text] += len(group.nodes)
                facts.setdefault((key, text), fact)
    usual = []
    for key, counts in votes.items():
        text, count = counts.most_common(1)[0]
        if _optional(key) and total - sum(counts.values()) > count:
            usual.append(Fact(key, ABSENT, "most nodes"))
        else:
            usual.append(facts[key, text])
    return Facts(usual)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts gpu-9 before gpu-10."""
    parts: list[tuple[int, int, str]] = []
    digits = ""
    for char in f"{name}\0":
        if char.isdecimal():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits[:18]), ""))
            digits = ""
        parts.append((1, 0, char))
    return parts


def collect(answers: Iterable[NodeAnswer], progress: Callable[[int], None] = lambda count: None) -> Collection:
    """Return the answers of files, grouped."""
    collection = Collection()
    for count, answer in enumerate(answers, 1):
        collection.add(answer)
        progress(count)
    return collection
