"""A report about many nodes, in every format: what is wrong, on which nodes, and what became of every node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from doctor.model import SEVERITIES, Report

from . import github, gitlab, junit, sarif, sections
from .fleet_model import EnvironmentGroup, FleetReport, Node, NodeState, Outlier
from .sections import Answer, Cell, Row, Section, Table
from .style import Style
from .summary import conclusion

MOST_NAMES = 8  # nodes by name in one line of text
MOST_LINES = 25
MOST_GRID = 20_000  # rows of the grid
_BAD_GPU = ("crashed", "timeout", "wrong", "failed")


def as_text(fleet: FleetReport, style: Style) -> str:
    """Return the report as text."""
    return sections.text(answer_of(fleet, every=style.verbose), style)


def as_markdown(fleet: FleetReport, style: Style) -> str:
    """Return the report as Markdown."""
    return sections.markdown(answer_of(fleet, every=True), style)


def as_html(fleet: FleetReport, style: Style) -> str:
    """Return the report as one page, with a grid of nodes x checks."""
    return sections.html(answer_of(fleet, every=True), style)


def as_sarif(fleet: FleetReport, style: Style) -> str:
    """Return the findings of all groups as SARIF."""
    return sarif.diagnosis(_combined(fleet), style)


def as_junit(fleet: FleetReport, style: Style) -> str:
    """Return the findings of all groups as JUnit XML."""
    return junit.diagnosis(_combined(fleet), style)


def as_github(fleet: FleetReport, style: Style) -> str:
    """Return the findings of all groups as workflow commands."""
    return github.diagnosis(_combined(fleet), style)


def as_gitlab(fleet: FleetReport, style: Style) -> str:
    """Return the findings of all groups as a code-quality report."""
    return gitlab.diagnosis(_combined(fleet), style)


def as_json(fleet: FleetReport, style: Style) -> str:
    """Return the report as one JSON object."""
    _, word, sentence = verdict(fleet)
    content = {
        "schema": fleet.schema,
        "tool": fleet.tool,
        "verdict": word,
        "summary": sentence,
        "counts": {str(state): len(fleet.in_state(state)) for state in NodeState},
        "groups": [_group_json(group) for group in fleet.groups],
        "outliers": [
            {"what": item.what, "found": item.found, "usual": item.usual, "nodes": list(item.nodes), "of": item.of,
             "rare": item.rare}
            for item in fleet.outliers
        ],
        "gpu_faults": [
            {"gpu": item.gpu, "model": item.model, "cases": item.cases, "difference": item.difference,
             "certain": item.certain}
            for item in fleet.faults
        ],
        "kernels": dict(fleet.kernels),
        "nodes": [
            {"node": node.name, "state": str(node.state), "group": node.group,
             **({"problem": node.problem} if node.problem else {}), **({"gpus": dict(node.gpus)} if node.gpus else {})}
            for node in fleet.nodes
        ],
        "notes": list(fleet.notes),
        "timing": dict(fleet.timing),
    }  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _group_json(group: EnvironmentGroup) -> dict[str, Any]:
    report = group.report
    if report is None:
        return {"group": group.number, "digest": group.digest, "nodes": list(group.nodes), "problem": group.problem}
    _, word, sentence = conclusion(report)
    findings = [{"id": item.rule, "severity": str(item.severity), "message": item.message} for item in report.findings]
    backends = {item.library: item.selected for item in report.predictions}
    return {
        "group": group.number, "digest": group.digest, "nodes": list(group.nodes), "verdict": word,
        "summary": sentence, "findings": findings, "backends": backends,
    }  # fmt: skip


def _combined(fleet: FleetReport) -> Report:
    assert fleet.combined is not None  # made together with the report
    return fleet.combined


def verdict(fleet: FleetReport) -> tuple[str, str, str]:
    """Return look, word and sentence for the whole fleet: the worst of it."""
    total = len(fleet.nodes)
    missing = [node for node in fleet.nodes if node.state != NodeState.CHECKED]
    failing = [group for group in fleet.groups if group.report is not None and _look(group.report) == "error"]
    warned = [group for group in fleet.groups if group.report is not None and _look(group.report) == "warning"]
    wrong = [item for item in fleet.faults if item.certain]
    parts = []
    if failing:
        first = conclusion(failing[0].report)[2] if failing[0].report is not None else ""
        parts.append(f"{sum(len(group.nodes) for group in failing)} of {total} nodes: {first}")
    if wrong:
        parts.append(f"{len(wrong)} GPU{_s(wrong)} differ from their peers")
    bad = sum(fleet.kernels.get(name, 0) for name in _BAD_GPU)
    if bad:
        parts.append(f"{bad} bad kernel results")
    if missing:
        parts.append(f"{len(missing)} of {total} nodes were not checked")
    if parts:
        return "error", "FAIL", "; ".join(parts)
    rare = [item for item in fleet.outliers if item.rare]
    if rare or warned or fleet.faults:
        if rare:
            parts.append(f"{len({node for item in rare for node in item.nodes})} of {total} nodes differ from the rest")
        if fleet.faults:
            parts.append("GPUs disagree, and it is unknown which is right")
        if warned and warned[0].report is not None:
            count = sum(len(group.nodes) for group in warned)
            parts.append(f"{count} of {total} nodes: {conclusion(warned[0].report)[2]}")
        return "warning", "WARN", "; ".join(parts)
    groups = f"{len(fleet.groups)} environment{_s(fleet.groups)}"
    unclear = [group for group in fleet.groups if group.report is not None and _look(group.report) == "unclear"]
    if unclear and unclear[0].report is not None:
        count = sum(len(group.nodes) for group in unclear)
        return "unclear", "INCOMPLETE", f"{count} of {total} nodes: {conclusion(unclear[0].report)[2]}"
    return "ok", "OK", f"{total} node{_s(fleet.nodes)} in {groups}, no known problems"


def answer_of(fleet: FleetReport, *, every: bool) -> Answer:
    """Return the report in sections."""
    look, word, sentence = verdict(fleet)
    counts = ", ".join(f"{len(nodes)} {state}" for state in NodeState if (nodes := fleet.in_state(state)))
    groups = f"{counts or 'none'}; {len(fleet.groups)} different environment{_s(fleet.groups)}"
    lines = [("Nodes", groups)]
    if fleet.kernels:
        lines.append(("Kernels", ", ".join(f"{count} {name}" for name, count in sorted(fleet.kernels.items()))))
    return Answer(look, word, sentence, tuple(lines), tuple(_sections(fleet, every=every)), fleet.tool)


def _sections(fleet: FleetReport, *, every: bool) -> Iterator[Section]:
    limit = None if every else MOST_LINES
    for title, chosen in (
        ("Outliers", [item for item in fleet.outliers if item.rare]),
        ("Different kinds of nodes", [item for item in fleet.outliers if not item.rare]),
    ):
        if chosen:
            lines = [("warning" if item.rare else "", outlier_line(item, every=every)) for item in chosen]
            yield Section(title, _limited(lines, limit))
    if fleet.faults:
        lines = [
            (
                "error" if item.certain else "warning",
                f"{item.gpu} ({item.model}) differs in {item.cases} case{'s' if item.cases != 1 else ''}: "
                f"{item.difference}",
            )
            for item in fleet.faults
        ]
        yield Section("GPUs that differ from their peers", _limited(lines, limit))
    for state, title in (
        (NodeState.LOST, "Lost nodes"), (NodeState.SLOW, "Nodes beyond the time limit"),
        (NodeState.FAILED, "Nodes that could not be examined"),
    ):  # fmt: skip
        nodes = fleet.in_state(state)
        if nodes:
            by_problem: dict[str, list[str]] = {}
            for node in nodes:
                by_problem.setdefault(node.problem, []).append(node.name)
            lines = [("error", f"{names(own, every=every)}: {text}") for text, own in by_problem.items()]
            yield Section(f"{title} ({len(nodes)})", _limited(lines, limit))
    groups = fleet.groups[: None if every else 12]
    rows = tuple(_group_row(group, every=every) for group in groups)
    more = (
        [("", f"and {len(fleet.groups) - len(groups)} more (`-v` shows all)")]
        if len(groups) < len(fleet.groups)
        else []
    )
    if rows:
        heads = ("group", "nodes", "verdict", "findings", "which", "summary")
        yield Section(f"Environments ({len(fleet.groups)})", tuple(more), Table(heads, rows))
    if every:
        yield _grid(fleet)
    if fleet.notes:
        yield Section("Notes", tuple(("note", text) for text in fleet.notes))


def _limited(lines: Sequence[tuple[str, str]], limit: int | None) -> tuple[tuple[str, str], ...]:
    if limit is None or len(lines) <= limit:
        return tuple(lines)
    return (*lines[:limit], ("", f"and {len(lines) - limit} more (`-v` shows all)"))


def outlier_line(item: Outlier, *, every: bool = False) -> str:
    """Return `3 of 512 nodes have cuDNN 9.14.0 instead of 9.19.0: gpu-17, gpu-203, gpu-391`."""
    verb = "has" if len(item.nodes) == 1 else "have"
    count = f"{len(item.nodes)} of {item.of} nodes {verb}"
    return f"{count} {item.what} {item.found} instead of {item.usual}: {names(item.nodes, every=every)}"


def names(nodes: Sequence[str], *, every: bool = False) -> str:
    """Return the names of nodes, runs of numbers in brackets; in short the first ones and how many more."""
    if len(nodes) > 3:
        nodes = folded(nodes)
    if every or len(nodes) <= MOST_NAMES:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:MOST_NAMES])} and {len(nodes) - MOST_NAMES} more"


def folded(nodes: Sequence[str]) -> list[str]:
    """Return `gpu-[1-3,7]` for gpu-1, gpu-2, gpu-3, gpu-7, as Slurm writes it; other names stay."""
    runs: dict[tuple[str, str, int], list[int]] = {}
    for name in nodes:
        match = re.fullmatch(r"(.*?)(\d{1,9})(\D*)", name)
        head, digits, tail = match.groups() if match else (name, "", "")
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        runs.setdefault((head, tail, width if digits else -1), []).append(int(digits) if digits else 0)
    found = []
    for (head, tail, width), numbers in runs.items():
        if width < 0:
            found.append(head)
        elif len(numbers) == 1:
            found.append(f"{head}{numbers[0]:0{width}d}{tail}")
        else:
            found.append(f"{head}[{_ranges(sorted(numbers), width)}]{tail}")
    return found


def _ranges(numbers: Sequence[int], width: int) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = spans[:40]
    text = ",".join(f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in shown)
    return text + (",…" if len(spans) > len(shown) else "")


def _group_row(group: EnvironmentGroup, *, every: bool) -> Row:
    which = names(group.nodes, every=False)
    if group.report is None:
        return (str(group.number), str(len(group.nodes)), Cell("not checked", "unclear"), "", which, group.problem)
    look, word, sentence = conclusion(group.report)
    rules = ", ".join(dict.fromkeys(item.rule for item in group.report.findings)) or "none"
    return (str(group.number), str(len(group.nodes)), Cell(word, look), rules, which, sentence)


def _grid(fleet: FleetReport) -> Section:
    """Return the grid of nodes x checks: a column for every rule that fires anywhere, and for the kernels."""
    worst: dict[str, str] = {}
    for group in fleet.groups:
        for item in group.report.findings if group.report is not None else ():
            worst[item.rule] = str(item.severity)
    rules = sorted(worst, key=lambda rule: ([str(item) for item in SEVERITIES].index(worst[rule]), rule))
    with_kernels = any(node.gpus for node in fleet.nodes)
    head = ("node", "state", "environment", "verdict", *rules, *(["GPUs"] if with_kernels else []))
    cells: dict[int, tuple[Cell, ...]] = {}
    for group in fleet.groups:
        cells[group.number] = tuple(_checks(group, rules))
    rows: list[Row] = []
    for node in fleet.nodes[:MOST_GRID]:
        state = Cell(str(node.state), "ok" if node.state == NodeState.CHECKED else "error")
        own = (
            cells[node.group] if node.group is not None else tuple(Cell("?", "unclear") for _ in range(len(rules) + 1))
        )
        group_name = str(node.group) if node.group is not None else ""
        rows.append((node.name, state, group_name, *own, *([_gpu_cell(node)] if with_kernels else [])))
    return Section(f"Nodes x checks ({len(fleet.nodes)})", (), Table(head, tuple(rows), grid=True), only_html=True)


def _checks(group: EnvironmentGroup, rules: Sequence[str]) -> Iterator[Cell]:
    if group.report is None:
        yield from (Cell("?", "unclear") for _ in range(len(rules) + 1))
        return
    look, word, _ = conclusion(group.report)
    yield Cell(word, look)
    fired = {item.rule: str(item.severity) for item in group.report.findings}
    unclear = {rule for item in group.report.undetermined for rule in item.rules}
    for rule in rules:
        if rule in fired:
            yield Cell(fired[rule], fired[rule])
        else:
            yield Cell("unknown", "unclear") if rule in unclear else Cell("ok", "ok")


def _gpu_cell(node: Node) -> Cell:
    bad = [f"{gpu}: {word}" for gpu, word in node.gpus.items() if word in _BAD_GPU]
    if bad:
        return Cell(", ".join(bad), "error")
    return Cell(f"{len(node.gpus)} right", "ok") if node.gpus else Cell("not run", "unclear")


def _look(report: Report) -> str:
    return conclusion(report)[0]


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"
