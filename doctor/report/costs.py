"""What attention takes with each backend, as a table: time against the slowest, memory by part, and the whole model."""

from __future__ import annotations

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
        _table(page, cost)
    if len(report.costs) > 1:
        _largest(page, report)


def _table(page: Page, cost: AttentionCost) -> None:
    layers = f"{cost.layers} {cost.layer or 'layers'}" if cost.layers else cost.layer or "one layer"
    page.say(f"{cost.shape} ({cost.basis})", lead=f"Cost of {layers}:", look="label", hang=4)
    slowest = max((item.milliseconds or 0.0 for item in cost.backends), default=0.0)
    width = max(len(item.backend) for item in cost.backends)
    for item in cost.backends:
        mark = "selected" if item.selected else ""
        time = "time unknown" if item.milliseconds is None else f"{item.milliseconds:.3g} ms"
        times = f"{slowest / item.milliseconds:.1f}x" if item.milliseconds and slowest else ""
        memory = "memory unknown" if item.peak is None else human_bytes(item.peak)
        line = f"  {item.backend:<{width}}  {time:>12}  {times:>6}  {memory:>14}  {mark}"
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
    name = cost.layer or "the other layers"
    page.say(
        f"{name}: {human_bytes(size)} at the peak of one with {chosen.backend}",
        lead="Most memory:",
        look="label",
        hang=4,
    )
