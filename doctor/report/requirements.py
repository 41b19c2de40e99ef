"""A fix as a requirements file that pip and uv read: exact pins, each with the finding it clears."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.model import ABSENT, ChangeKind, Fix, Report, Severity
from doctor.solver.describe import deed
from doctor.solver.install_plan import InstallPlan, compiling, install_plan, pinnable, stale

__all__ = ["pinnable", "render_pins", "settings_of"]


def render_pins(report: Report) -> str:
    """The recommended fix as the text of a requirements file; comments only where no package has to change."""
    out = [f"# {report.tool}: {_head(report)}", f"# made for {_target(report)}"]
    if not report.fixes:
        out += ["#", *_nothing_to_pin(report)]
        return "\n".join(out) + "\n"
    fix = pinnable(report)
    if fix is not report.fixes[0]:
        out.append(f"# Without any package: {_flat(report.fixes[0].title)}. With packages:")
    out += [f"# {_flat(fix.title)}" + (f" (leaves {', '.join(fix.leaves)})" if fix.leaves else "")]
    if fix.note:
        out.append(f"# {_flat(fix.note)}")
    out += [f"# {text}" for text in settings_of(fix)]
    out += _pinned(report, fix)
    out += _what_else(report, fix)
    return "\n".join(out) + "\n"


def _head(report: Report) -> str:
    errors = [finding.rule for finding in report.findings if finding.severity == Severity.ERROR]
    if report.fixes:
        return f"pins that clear {', '.join(pinnable(report).resolves) or 'the findings'}"
    return f"no pins; {', '.join(errors)} stand" if errors else "nothing to fix"


def _target(report: Report) -> str:
    facts = report.facts
    known = [
        f"{word} {facts.value(key)}"
        for word, key in (
            ("Python", "python.version"), ("torch", "torch.version"), ("CUDA", "torch.cuda"), ("on", "gpu.name"),
        )
        if facts.value(key) not in (None, ABSENT)
    ]  # fmt: skip
    return ", ".join(_flat(text) for text in known) or "an environment of which little is known"


def _flat(text: str) -> str:
    """One line, whatever a rule or a fact put into it."""
    return " ".join(str(text).split())


def settings_of(fix: Fix) -> Iterator[str]:
    """What is to be done besides packages."""
    for change in fix.changes:
        if change.kind == ChangeKind.ENV:
            yield f"export {change.name}={_flat(change.after)}" if change.after is not None else f"unset {change.name}"
        elif change.kind == ChangeKind.CONFIG:
            was = f" (was {_flat(change.before)})" if change.before is not None else ""
            yield f"in the job's configuration: {change.name} = {_flat(change.after or 'unset')}{was}"
        elif change.kind == ChangeKind.CALL:
            yield _flat(deed(change.after or change.name))


def _pinned(report: Report, fix: Fix) -> list[str]:
    if not any(change.kind == ChangeKind.PACKAGE for change in fix.changes):
        return ["#", "# No package changes; install nothing from this file."]
    pins = install_plan(report, fix)
    out = [f"# first: pip uninstall -y {' '.join(pins.removed)}"] if pins.removed else []
    out += [f"# then:  pip install --force-reinstall --no-deps {text}" for text in pins.again]
    if pins.index_url:
        out.append(
            "# with uv add `--index-strategy unsafe-best-match`: this index has old releases of some other packages too"
        )
        out.append(f"--extra-index-url {_flat(pins.index_url)}")
    out += ["", *(f"{line.requirement}  # {_flat(line.why)}" for line in pins.changed)]
    if pins.held:
        out += ["", "# Held as installed, so that no resolver moves them:"]
        out += [f"{line.requirement}  # {_flat(line.why)}" for line in pins.held]
    out += [f"# {text}" for text in pins.told]
    return out + _second_step(pins)


def _second_step(pins: InstallPlan) -> list[str]:
    if not pins.built:
        return []
    when = "once the lines above are installed" if stale(pins) else "in a new environment only"
    out = ["", f"# Second step, {when}: compiled against that torch, which has to be there."]
    for line in pins.built:
        again = "; built again, as torch changes" if line.held and pins.moves_torch else ""
        out.append(f"# {line.requirement}  # {_flat(line.why)}{again}")
    out += [f"#   {command}" for command in compiling(pins, pins.built)]
    if pins.wheel is not None:
        out.append("#   (the address is expected from the workflow that builds the wheel; else it is built)")
    return out


def _nothing_to_pin(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding.severity == Severity.ERROR:
            reason = finding.no_pin or "no release on record clears it without breaking something else"
            yield f"# {finding.rule}: {_flat(reason)}"
            for item in finding.alternatives:
                if item.note or item.call:
                    yield f"#   instead: {_flat(item.call or item.note or '')}"


def _what_else(report: Report, fix: Fix) -> list[str]:
    out = []
    others = [other for other in report.fixes if other is not fix]
    if others:
        out += ["", "# Other ways:"]
        out += [f"# - {_flat(other.title)}" + (f": {_flat(other.note)}" if other.note else "") for other in others]
    told = [f for f in report.findings if f.severity == Severity.ERROR and (f.myth or f.no_pin)]
    if told:
        out.append("")
    for finding in told:
        out += [f"# {finding.rule}: {_flat(text)}" for text in (finding.no_pin, finding.myth) if text]
    return out
