"""A fix as a requirements file that pip and uv read: exact pins, each with the finding it clears."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .model import ABSENT, Change, Fix, Report
from .records import dataclass
from .release_index import admits, load_index
from .solve.parts import leader_of
from .solve.stack import Stack
from .solve.wording import BUILT_AGAINST_TORCH, deed, orphans
from .wholefile import write_whole

if TYPE_CHECKING:
    from .wheels import Wheel

#: Companions outside the index whose newer releases ask for a newer torch: left open, a resolver moves it.
_NEED_TORCH = (
    "accelerate", "bitsandbytes", "lightning", "liger-kernel", "peft", "pytorch-lightning", "sentence-transformers",
    "timm", "torchao", "torchdata", "torchmetrics", "torchtext", "trl",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One requirement and why it is there."""

    package: str
    version: str
    why: str
    held: bool = False
    extra: str = ""

    @property
    def requirement(self) -> str:
        """As pip and uv read it."""
        return f"{self.package}{self.extra}=={self.version}"


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
    out += [f"# {text}" for text in _settings(fix)]
    out += _pinned(report, fix)
    out += _what_else(report, fix)
    return "\n".join(out) + "\n"


def pinnable(report: Report) -> Fix:
    """The fix that the pins write out: the first that changes packages and leaves as little as the recommended one."""
    best = report.fixes[0]
    with_packages = [fix for fix in report.fixes if any(change.kind == "package" for change in fix.changes)]
    return next((fix for fix in with_packages if len(fix.leaves) <= len(best.leaves)), best)


def write_pins(report: Report, path: Path, *, force: bool = False) -> None:
    """Write the requirements file, whole or not at all; an existing file only with `force`."""
    write_whole(path, render_pins(report), force=force)


def _head(report: Report) -> str:
    errors = [finding.rule for finding in report.findings if finding.severity == "error"]
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


def _settings(fix: Fix) -> Iterator[str]:
    """What is to be done besides packages."""
    for change in fix.changes:
        if change.kind == "env":
            yield f"export {change.name}={_flat(change.after)}" if change.after is not None else f"unset {change.name}"
        elif change.kind == "config":
            was = f" (was {_flat(change.before)})" if change.before is not None else ""
            yield f"in the job's configuration: {change.name} = {_flat(change.after or 'unset')}{was}"
        elif change.kind == "call":
            yield _flat(deed(change.after or change.name))


def _pinned(report: Report, fix: Fix) -> list[str]:
    packages = [change for change in fix.changes if change.kind == "package"]
    if not packages:
        return ["#", "# No package changes; install nothing from this file."]
    stack = _stack(report)
    chosen = {change.name: change.after or ABSENT for change in packages}
    changed = [_line(stack, chosen, change) for change in packages if change.after is not None]
    held, told = _held(stack, chosen)
    out = [f"# {text}" for text in _removals(stack, chosen)]
    if fix.index_url:
        out.append(f"--extra-index-url {_flat(fix.index_url)}")
    first = [line for line in changed if line.package not in BUILT_AGAINST_TORCH]
    out += ["", *(f"{line.requirement}  # {_flat(line.why)}" for line in first)]
    keep = [line for line in held if line.package not in BUILT_AGAINST_TORCH]
    if keep:
        out += ["", "# Held as installed, so that no resolver moves them:"]
        out += [f"{line.requirement}  # {_flat(line.why)}" for line in keep]
    out += [f"# {text}" for text in told]
    built = [line for line in changed + held if line.package in BUILT_AGAINST_TORCH]
    built += _torch_part(stack, chosen, built)
    return out + _second_step(built, "torch" in chosen, _wheel(report, chosen, built))


def _stack(report: Report) -> Stack:
    from .known import Known
    from .solve import stack_of

    return stack_of(report.facts, Known(report.facts), load_index())


def _line(stack: Stack, chosen: dict[str, str], change: Change) -> Line:
    was = f"was {change.before}; " if change.before else ""
    why = f"{was}clears {', '.join(change.resolves)}: {change.why}" if change.resolves else f"{was}{change.why}"
    version = str(change.after)
    return Line(change.name, version, why, extra=_extra(stack, chosen, change.name, version))


def _extra(stack: Stack, chosen: dict[str, str], package: str, version: str) -> str:
    """`[core-cu12]` where the package alone no longer brings its binary part."""
    release = stack.index.release(package, version)
    torch = chosen.get("torch") or stack.installed.get("torch")
    core = f"core-cu{stack.cuda_major(torch) or '12'}"
    offered = release is not None and any(
        re.search(rf"extra\s*==\s*['\"]{core}['\"]", text) for text in release.requires
    )
    return f"[{core}]" if offered else ""


def _held(stack: Stack, chosen: dict[str, str]) -> tuple[list[Line], list[str]]:
    """(installed companions that stay, sentences about those that cannot be held)."""
    lines, told = [], []
    versions = {**stack.completed(chosen)}
    torch = versions.get("torch")
    for package, version in sorted(stack.installed.items(), key=lambda item: (item[0] != "torch", item[0])):
        if package in chosen or leader_of(package) or version == ABSENT:
            continue
        if package not in stack.index and package not in _NEED_TORCH:
            continue
        public = version.partition("+")[0]
        if package in stack.index and stack.index.release(package, public) is None:
            told.append(f"{package} {version} is not in the registry: install without replacing it (`--no-deps`).")
            continue
        release = stack.index.release(package, public)
        if release is not None and not release.installs_on(stack.platform):
            told.append(f"{package} {version} is not held: no installer takes it on Python {stack.platform.python}.")
            continue
        against = _against(stack, package, public, versions, torch)
        if against:
            told.append(f"{package} {version} is not held: {against}.")
            continue
        extra = _extra(stack, chosen, package, public)
        lines.append(Line(package, public, f"installed: {version}" if public != version else "installed", True, extra))
    return lines, told


def _against(stack: Stack, package: str, version: str, versions: dict[str, str], torch: str | None) -> str | None:
    """The requirement that forbids to hold a package at its version, in a sentence."""
    for need in stack.needs(package, version, torch):
        found = versions.get(need.package)
        if found is not None and (found == ABSENT or not admits(need.range, found)):
            return f"it needs {need.package}{need.range}, which is {found}"
    for other, other_version in versions.items():
        if other == package or other_version == ABSENT or other in BUILT_AGAINST_TORCH:
            continue
        for need in stack.needs(other, other_version, torch):
            if need.package == package and not admits(need.range, version):
                return f"{other} {other_version} needs {package}{need.range}"
    return None


def _removals(stack: Stack, chosen: dict[str, str]) -> Iterator[str]:
    """Uninstalling is no requirement: as commands, to be run before the rest."""
    versions = stack.completed(chosen)
    gone = [name for name, version in chosen.items() if version == ABSENT]
    gone += orphans(stack.installed, versions, chosen)
    if not gone:
        return
    yield f"first: pip uninstall -y {' '.join(gone)}"
    for name in gone:
        stem = re.sub(r"-cu\d\d$", "", name)
        twins = (other for other in versions if re.fullmatch(rf"{re.escape(stem)}-cu\d\d", other))
        twin = next((other for other in twins if other != name and versions[other] != ABSENT), None)
        if twin and stem != name:  # both wheels own the same files: one takes the other's along
            yield f"then:  pip install --force-reinstall --no-deps {twin}=={versions[twin]}"


def _torch_part(stack: Stack, chosen: dict[str, str], built: list[Line]) -> list[Line]:
    """TransformerEngine's torch part, which is compiled on the spot, at its leader's version."""
    name = "transformer-engine-torch"
    version = stack.completed(chosen).get(name)
    if version in (None, ABSENT) or any(line.package == name for line in built):
        return []
    moved = version != stack.installed.get(name)
    return [Line(name, str(version), "follows transformer-engine" if moved else "installed", not moved)]


def _wheel(report: Report, chosen: dict[str, str], built: list[Line]) -> Wheel | None:
    """The official flash-attn wheel for the torch of the fix, where its release has one."""
    line = next((line for line in built if line.package == "flash-attn"), None)
    if line is None:
        return None
    from .known import Known
    from .wheels import find, place_of

    fitting = find(place_of(Known(report.facts), chosen.get("torch")), line.version).fitting
    return fitting[0] if fitting else None


def _second_step(built: list[Line], torch_changes: bool, wheel: Wheel | None) -> list[str]:
    if not built:
        return []
    when = (
        "once the lines above are installed"
        if torch_changes or not all(line.held for line in built)
        else ("in a new environment only")
    )
    out = ["", f"# Second step, {when}: compiled against that torch, which has to be there."]
    for line in built:
        again = "; built again, as torch changes" if line.held and torch_changes else ""
        out.append(f"# {line.requirement}  # {_flat(line.why)}{again}")
    force = " --force-reinstall --no-deps --no-cache-dir" if torch_changes and any(line.held for line in built) else ""
    names = [line.requirement for line in built if wheel is None or line.package != "flash-attn"]
    if wheel is not None:
        out.append(f'#   pip install{force} "flash-attn @ {wheel.url}"')
        out.append("#   (expected from the workflow that builds it; if the address does not answer, build it as below)")
        out.append(f"#   pip install --no-build-isolation{force} flash-attn=={wheel.version}")
    return [*out, f"#   pip install --no-build-isolation{force} {' '.join(names)}"] if names else out


def _nothing_to_pin(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding.severity == "error":
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
    told = [f for f in report.findings if f.severity == "error" and (f.myth or f.no_pin)]
    if told:
        out.append("")
    for finding in told:
        out += [f"# {finding.rule}: {_flat(text)}" for text in (finding.no_pin, finding.myth) if text]
    return out
