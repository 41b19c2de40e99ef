"""What attention takes with each backend, as a table: time against the slowest, memory by part, and the whole model."""

from __future__ import annotations

from typing import Any

from doctor.model import AttentionCost, BackendCost, Report
from doctor.util.units import human_bytes

from .page import Page

#: Part of the memory -> its name in the table.
_PARTS = {
    "inputs": "q, k, v", "mask": "mask", "output": "output", "saved": "saved for backward",
    "forward_workspace": "workspace of forward", "gradients": "gradients",
    "backward_workspace": "workspace of backward",
}  # fmt: skip


def cost_tables(page: Page, report: Report) -> None:
    """Write the costs of each kind of layer, and what holds most where there are several."""
    for cost in report.costs:
        page.gap()
        _table(page, cost, report.facts.value("gpu.memory_bytes"))
    if len(report.costs) > 1:
        _largest(page, report)


def of_kind(cost: AttentionCost) -> str:
    """Return ` (full_attention)` where a model has several kinds of layers."""
    return f" ({cost.layer.removesuffix(' layers')})" if cost.layer else ""


def _table(page: Page, cost: AttentionCost, room: Any) -> None:
    page.say(f"{cost.shape} ({cost.basis})", lead=f"Cost of one layer{of_kind(cost)}:", look="label", hang=4)
    slowest = max((item.milliseconds or 0.0 for item in cost.backends), default=0.0)
    width = max(len(item.backend) for item in cost.backends)
    for item in cost.backends:
        full = isinstance(room, int) and item.peak is not None and item.peak + item.memory["inputs"] > room
        marks = ("selected" if item.selected else "", "does not fit into the GPU" if full else "")
        time = "time unknown" if item.milliseconds is None else f"{item.milliseconds:.3g} ms"
        times = f"{slowest / item.milliseconds:.1f}x" if item.milliseconds and slowest else ""
        memory = "memory unknown" if item.peak is None else human_bytes(item.peak)
        line = f"  {item.backend:<{width}}  {time:>12}  {times:>6}  {memory:>14}  {', '.join(filter(None, marks))}"
        page.line(line.rstrip(), "ok" if item.selected else None)
        if item.select:
            page.say(item.select, lead="select with", look="dim", indent=6, hang=8)
    chosen = next((item for item in cost.backends if item.selected and item.memory), None)
    if chosen is not None:
        page.say(_by_part(chosen), lead=f"{chosen.backend} holds:", look="dim", indent=2, hang=4)


def _by_part(item: BackendCost) -> str:
    return ", ".join(f"{_PARTS[part]} {human_bytes(size)}" for part, size in item.memory.items() if size)


def _largest(page: Page, report: Report) -> None:
    """Write which kind of layer takes most memory, of those whose selected backend is known."""
    found = []
    for cost in report.costs:
        chosen = next((item for item in cost.backends if item.selected and item.peak is not None), None)
        if chosen is not None:
            found.append((chosen.peak or 0, cost, chosen))
    if len(found) < 2:
        return
    size, cost, chosen = max(found, key=lambda entry: entry[0])
    alike = min(found, key=lambda entry: entry[0])[0] > 0.9 * size
    page.say(
        f"one layer{' of every kind' if alike else of_kind(cost)} holds {human_bytes(size)} at its peak with "
        f"{chosen.backend}",
        lead="Most memory:", look="label", hang=4,
    )  # fmt: skip
