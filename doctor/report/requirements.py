"""A fix as a requirements file that pip and uv read: exact pins, each with the finding it clears."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.facts.settings import setting_text
from doctor.model import ABSENT, ChangeKind, Fix, InstallPlan, Report, Severity
from doctor.util.call_text import describe_call

from .install_commands import build_commands, override_commands


def render_pins(report: Report) -> str:
    """Render the recommended fix as a requirements file; comments only where no package changes."""
    out = [f"# {report.tool}: {_head(report)}", f"# made for {_target(report)}"]
    fix = report.package_fix
    if fix is None:
        out += ["#", *_nothing_to_pin(report)]
        return "\n".join(out) + "\n"
    if fix is not report.fixes[0]:
        out.append(f"# Without package changes: {_flat(report.fixes[0].title)}. With package changes:")
    out += [f"# {_flat(fix.title)}" + (f" (leaves {', '.join(fix.leaves)})" if fix.leaves else "")]
    if fix.note:
        out.append(f"# {_flat(fix.note)}")
    out += [f"# {text}" for text in settings_of(fix)]
    out += _pinned(fix)
    out += _what_else(report, fix)
    return "\n".join(out) + "\n"


def _head(report: Report) -> str:
    errors = [finding.rule for finding in report.findings if finding.severity == Severity.ERROR]
    if report.package_fix is not None:
        return f"pins that clear {', '.join(report.package_fix.resolves) or 'the findings'}"
    return f"no pins; {', '.join(errors)} remain" if errors else "nothing to fix"


def _target(report: Report) -> str:
    facts = report.facts
    known = [
        f"{word} {facts.value(key)}"
        for word, key in (
            ("Python", "python.version"), ("torch", "torch.version"), ("CUDA", "torch.cuda"), ("on", "gpu.name"),
        )
        if facts.value(key) not in (None, ABSENT)
    ]  # fmt: skip
    return ", ".join(_flat(text) for text in known) or "an environment with few known facts"


def _flat(text: str) -> str:
    """Return the text as one line, for any text of a rule or a fact."""
    return " ".join(str(text).split())


def settings_of(fix: Fix) -> Iterator[str]:
    """Yield the changes that are not packages."""
    for change in fix.changes:
        if change.kind == ChangeKind.ENV:
            yield f"export {change.name}={_flat(change.after)}" if change.after is not None else f"unset {change.name}"
        elif change.kind == ChangeKind.CONFIG:
            was = f" (was {_flat(change.before)})" if change.before is not None else ""
            yield _flat(f"{setting_text(change.name, change.after or 'unset')}{was}")
        elif change.kind == ChangeKind.CALL:
            yield _flat(describe_call(change.after or change.name))


def _pinned(fix: Fix) -> list[str]:
    if not fix.changes_packages:
        return ["#", "# No package changes; install nothing from this file."]
    pins = fix.plan
    out = [f"# first: pip uninstall -y {' '.join(pins.removed)}"] if pins.removed else []
    out += [f"# last, as an override: {command.text}" for command in override_commands(pins)]
    out += [f"# then:  pip install --force-reinstall --no-deps {text}" for text in pins.reinstall]
    if pins.index_url:
        out.append(
            "# with uv add `--index-strategy unsafe-best-match`: this index also has old releases of other packages"
        )
        out.append(f"--extra-index-url {_flat(pins.index_url)}")
    out += ["", *(f"{line.requirement}  # {_flat(line.why)}" for line in pins.changed)]
    if pins.held:
        out += ["", "# Held as installed, so that no resolver changes them:"]
        out += [f"{line.requirement}  # {_flat(line.why)}" for line in pins.held]
    out += [f"# {text}" for text in pins.notes]
    return out + _second_step(pins)


def _second_step(pins: InstallPlan) -> list[str]:
    if not pins.built:
        return []
    when = "after the lines above are installed" if pins.to_rebuild else "in a new environment only"
    out = ["", f"# Second step, {when}: compiled against the installed torch."]
    for line in pins.built:
        rebuilt = "; rebuilt because torch changes" if line.held and pins.moves_torch else ""
        out.append(f"# {line.requirement}  # {_flat(line.why)}{rebuilt}")
    out += [f"#   {command}" for command in build_commands(pins, pins.built)]
    if pins.wheel_url is not None:
        out.append("#   (the URL is expected from the release workflow; if it does not exist, pip builds from source)")
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
        out += ["", "# Other fixes:"]
        out += [f"# - {_flat(other.title)}" + (f": {_flat(other.note)}" if other.note else "") for other in others]
    explained = [f for f in report.findings if f.severity == Severity.ERROR and (f.myth or f.no_pin)]
    if explained:
        out.append("")
    for finding in explained:
        no_pin = None if fix.changes_packages and finding.rule in fix.resolves else finding.no_pin
        out += [f"# {finding.rule}: {_flat(text)}" for text in (no_pin, finding.myth) if text]
    return out
