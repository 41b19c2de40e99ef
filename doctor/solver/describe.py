"""Describe outcomes as `Fix` and `Change`: titles, reasons, and what the user has to know about each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from doctor.facts.settings import attention_call
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH, Change, ChangeKind, Fix, FixSafety, InstallPlan, PinnedRequirement, Severity
from doctor.packages.flash_attn_build import build
from doctor.packages.index import load_index
from doctor.packages.relations import BUILT_AGAINST_TORCH, install_order, orphans, owner_of
from doctor.packages.release_wheels import PACKAGE, Wheel, find
from doctor.packages.specifiers import admits, normalized
from doctor.rulebook.evaluate import Assessment
from doctor.rulebook.messages import missing_keys
from doctor.util.call_text import describe_call
from doctor.util.machine import Machine

from .cost import in_words
from .effects import brings
from .effort import kind_of, time_of
from .install_plan import install_plan, wheel_target_of
from .limits import requirement_in
from .repair import CandidateFix, FixSearch, is_change

if TYPE_CHECKING:
    from doctor.sources.manifests.base import DeclaredRequirement

    from .regressions import FeatureRegressions

_MOST = 4  # missing keys named


def as_fix(
    repair: FixSearch,
    outcome: CandidateFix,
    *,
    first: bool = True,
    minimal: bool = True,
    regressions: FeatureRegressions | None = None,
) -> Fix:
    """Return the outcome as a fix with title, reasons and notes.

    The note of the first also names rejected remedies and, where it is not `minimal`, that a smaller fix may exist.
    """
    after = repair.assessment_after(outcome)
    verdicts = {finding.rule for finding in after.findings}
    unclear = {rule for group in after.undetermined for rule in group.rules}
    resolves = tuple(
        dict.fromkeys(
            finding.rule
            for finding in repair.base.findings
            if finding.severity in (Severity.ERROR, Severity.WARNING)
            and (finding.rule in outcome.plan.trusted or finding.rule not in verdicts | unclear)
        )
    )
    changes = _changes(repair, outcome, resolves)
    plan = install_plan(repair.stack, repair.base.known, changes, outcome.plan.index_url, repair.rulebook.packages)
    kind = kind_of(repair.stack, repair.base.known, outcome.plan, outcome.chosen)
    errors = {finding.rule for finding in repair.base.findings if finding.severity == Severity.ERROR}
    return Fix(
        title=_title(changes),
        changes=changes,
        resolves=resolves,
        leaves=tuple(sorted(rule for rule in outcome.firing if rule in errors)),
        safety=FixSafety.RISKY if plan.overridden else outcome.safety,
        note=" ".join(filter(None, (_note(repair, outcome, after, first, minimal), _wheel_note(repair, outcome, plan))))
        or None,
        plan=plan,
        kind=kind,
        time=time_of(repair.stack, repair.base.known, kind, outcome.chosen, plan.cuda),
        risk=_risk(repair, outcome, plan),
        costs=(*in_words(repair.stack, outcome.chosen), *_source_builds(repair, outcome, plan)),
        regressions=regressions.of(outcome) if regressions is not None else None,
    )


def _risk(repair: FixSearch, outcome: CandidateFix, plan: InstallPlan) -> str | None:
    """Return what is not safe about it: as its rules say, and that a pin is overridden."""
    said = [pick.alternative.risk for pick in outcome.plan.picks if pick.alternative.risk and not plan.overridden]
    for line in plan.overridden:
        owner = owner_of(line.package) or ""
        version, pin = repair.stack.installed.get(owner, ""), repair.stack.pinned_by_owner(line.package)
        wanted = f"{owner} {version} requires {line.package}=={pin}" if pin else f"{owner} pins {line.package}"
        said.append(f"`pip check` then reports that {wanted}, and the next installation of {owner} puts it back")
    return "; ".join(dict.fromkeys(said)) or None


def _source_builds(repair: FixSearch, outcome: CandidateFix, plan: InstallPlan) -> Iterator[str]:
    """Yield the cost of compiling flash-attn where no wheel of its release fits, with the release that has one."""
    line = _compiled(plan)
    if line is None:
        return
    way = build(line.version, repair.base.known.value("gpu.sm"), plan.cuda, Machine())
    other = _other_wheel(repair, outcome, plan)
    instead = f" ({other.version} has a wheel)" if other is not None else ""
    yield f"source build of `{PACKAGE}` {line.version}: {way.cost}{instead}"


def _compiled(plan: InstallPlan) -> PinnedRequirement | None:
    """Return the line of flash-attn where the plan compiles it."""
    line = next((line for line in plan.to_rebuild if line.package == PACKAGE), None)
    return line if plan.wheel_url is None else None


def _other_wheel(repair: FixSearch, outcome: CandidateFix, plan: InstallPlan) -> Wheel | None:
    """Return the newest official flash-attn wheel that fits the torch of the plan and that no rule forbids."""
    target = wheel_target_of(repair.base.known, plan.torch, repair.stack)
    for wheel in (wheel for wheel in find(target, near=False).fitting if not wheel.doubt):
        after = repair.evaluate(outcome.plan, {**outcome.chosen, PACKAGE: wheel.version})
        if after is not None and after.firing <= outcome.firing:
            return wheel
    return None


def _wheel_note(repair: FixSearch, outcome: CandidateFix, plan: InstallPlan) -> str | None:
    """Return how to avoid compiling flash-attn, in a sentence."""
    other = _other_wheel(repair, outcome, plan) if _compiled(plan) is not None else None
    return f"To avoid the source build, install {other.version}: `pip install {other.url}`." if other else None


def _changes(repair: FixSearch, outcome: CandidateFix, resolves: tuple[str, ...]) -> tuple[Change, ...]:
    changes: list[Change] = []
    stack, plan = repair.stack, outcome.plan
    for name, version in sorted(outcome.chosen.items(), key=lambda item: install_order(item[0])):
        before = stack.installed.get(name)
        wanted = [p.rule for p in plan.picks if name in {normalized(key) for key in p.alternative.require}]
        why = _why_package(repair, outcome, name, version, wanted, resolves)
        cleared = tuple(rule for rule in wanted if rule in resolves) or resolves
        after = None if version == ABSENT else version
        changes.append(
            Change(ChangeKind.PACKAGE, name, before, after, why, cleared, edit=_edit_of(repair, name, version))
        )
    for name, value in plan.env.items():
        present = repair.base.known.value(f"env.{name}")
        if is_change(present, value):
            rules = _rules_where(plan, lambda p, name=name: name in p.set_env or name in p.unset_env)
            after = None if value == ABSENT else value
            foreign = any(pick.alternative.foreign for pick in plan.picks if pick.rule in rules)
            changes.append(
                Change(ChangeKind.ENV, name, _shown(present), after, _summary(repair, rules), rules, foreign)
            )
    by_code = {key for pick in plan.picks if pick.alternative.call for key in pick.alternative.config}
    for key, value in plan.config.items():
        if key in by_code or key.removeprefix("workload.") in by_code:
            continue  # the effect of the change of code, which its line shows
        present = repair.base.known.value(key)
        if is_change(present, value):
            name = key.removeprefix("workload.")
            rules = _rules_where(plan, lambda p, key=key, name=name: key in p.config or name in p.config)
            reasons = (_summary(repair, rules), _where_stated(repair, key))
            why = "; ".join(filter(None, reasons))
            changes.append(Change(ChangeKind.CONFIG, name, _shown(present), _shown(value), why, rules))
    for pick in plan.picks:
        if pick.alternative.call:
            text, foreign = pick.alternative.call, pick.alternative.foreign
            why = _summary(repair, (pick.rule,))
            changes.append(Change(ChangeKind.CALL, text, None, text, why, (pick.rule,), foreign))
    return tuple(changes)


def _where_stated(repair: FixSearch, key: str) -> str | None:
    """Return which file or option states a setting, as a reason's last part; None for one that nothing states."""
    fact = repair.facts.get(key)
    if fact is None or not fact.known or fact.assumed:
        return None
    return f"{fact.source} states {_shown(fact.value)}: change it there"


def _rules_where(plan: Any, wanted_by: Any) -> tuple[str, ...]:
    return tuple(pick.rule for pick in plan.picks if wanted_by(pick.alternative))


def _summary(repair: FixSearch, rules: tuple[str, ...]) -> str:
    return "; ".join(repair.rulebook.rules[rule].summary for rule in rules)


def _shown(value: Any) -> str | None:
    if value is None or value == ABSENT:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _why_package(
    repair: FixSearch, outcome: CandidateFix, name: str, version: str, wanted: list[str], resolves: tuple[str, ...]
) -> str:
    stack = repair.stack
    reasons = [_summary(repair, tuple(wanted))] if wanted else []
    if not wanted:
        others = {key: value for key, value in outcome.chosen.items() if key != name}
        clash = next(
            (c for c in stack.clashes(others) if name in (c.package, c.needs, owner_of(c.needs), owner_of(c.package))),
            None,
        )
        cleared_by = () if outcome.plan.picks else resolves
        moved = _summary(repair, cleared_by) if cleared_by else "updated to stay compatible with the others"
        reasons.append(f"Because {clash.sentence}" if clash else moved)
    if name == TORCH and version != ABSENT:
        brought = brings(stack, version).get("cudnn.version") or outcome.known.value("cudnn.version")
        if brought and brought != ABSENT:
            reasons.append(f"this build brings cuDNN {brought}")
    edit = _edit_of(repair, name, version)
    return "; ".join([*reasons, *([edit] if edit else [])])


def _edit_of(repair: FixSearch, name: str, version: str) -> str | None:
    """Return which line of the project's files has to change, and to what; None where none excludes the release."""
    line = repair.stack.limits.declared.get(name)
    if line is None or version == ABSENT or (line.version is None and admits(line.range, version)):
        return None
    return _to_edit(line, version)


def _to_edit(line: DeclaredRequirement, version: str) -> str:
    """Return which line of the project's files excludes the new release, and what to write instead."""
    said = requirement_in(line)
    if said is None:
        return f"{line.place} has `{' '.join((line.raw or line.range).split())}`: change it to allow {version}"
    named = re.match(r"[^\[=<>!~;\s]+(\[[^\]]*\])?", said)
    new = f"{named[0] if named else line.name}=={version}"
    return f"{line.place} {'pins' if line.version else 'has'} `{said}`: change it to `{new}`"


def _note(repair: FixSearch, outcome: CandidateFix, after: Assessment, first: bool, minimal: bool) -> str:
    """Return what the fix brings and what is not verified, in sentences."""
    notes = [pick.alternative.note for pick in outcome.plan.picks if pick.alternative.note]
    sentences = [_sentence(text) for text in dict.fromkeys(notes)]
    sentences += [f"Applies only where {condition} (unknown here)." for condition in outcome.conditions]
    if not outcome.plan.picks:
        sentences.append("Found by search over all releases; no rule reports a problem with it.")
    sentences += [
        _sentence(text)
        for text in (*_pythons(repair, outcome), _rebuild(repair, outcome), _orphans(repair, outcome))
        if text
    ]
    before = {p.library: p.selected for p in repair.base.predictions}
    for prediction in after.predictions:
        old = before.get(prediction.library)
        if old and prediction.selected and old != prediction.selected:
            sentences.append(f"Attention then uses `{prediction.selected}` instead of `{old}`.")
    warned = {f.rule for f in repair.base.findings}
    for finding in after.findings:
        if finding.severity == Severity.WARNING and finding.rule not in warned:
            sentences.append(f"It brings the warning {finding.rule}: {finding.summary}.")
    # A rule about a package that is not named anywhere is unknown before and after.
    unclear = {rule for group in after.undetermined for rule in group.rules} & (outcome.unclear - repair.unclear)
    lacking = {
        name: [key for key in missing_keys(repair.rulebook.rules[name], after.known) if not _unnamed(repair, key)]
        for name in sorted(unclear)
    }
    newly = [name for name, keys in lacking.items() if keys]
    if newly:
        missing = sorted({key for keys in lacking.values() for key in keys})
        more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
        sentences.append(
            f"Not checked on the changed environment: {', '.join(newly)}"
            + (f" (missing: {', '.join(f'`{key}`' for key in missing[:_MOST])}{more})." if missing else ".")
        )
    overridden = repair.stack.overridden(outcome.chosen)
    if overridden:
        pins = ", ".join(f'"{name}=={outcome.chosen[name]}"' for name in sorted(overridden))
        sentences.append(f"With uv: `override-dependencies = [{pins}]` in `[tool.uv]`.")
    if any(pick.trusted and not pick.alternative.call for pick in outcome.plan.picks):
        sentences.append("Cannot be verified in advance: re-run `attn-doctor check` on the machine afterwards.")
    elif outcome.plan.trusted:
        sentences.append("Cannot be verified in advance: re-run `attn-doctor check` afterwards.")
    if first and not minimal:
        sentences.append("The search limit was reached; a smaller change may exist.")
    sentences += [f"Rejected: {_sentence(reason)}" for reason in dict.fromkeys(repair.rejected if first else ())]
    return " ".join(sentences)


def _unnamed(repair: FixSearch, key: str) -> bool:
    return key.endswith(".version") and key not in repair.facts and repair.base.known.value(key) is None


def _sentence(text: str) -> str:
    text = text.strip()
    if text.split(" ", 1)[0] not in load_index().packages:  # a package keeps its name
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def _pythons(repair: FixSearch, outcome: CandidateFix) -> Iterator[str]:
    """Yield, where the target's Python is unknown, the releases that do not install on every Python in use."""
    if repair.stack.platform.python is not None:
        return
    for name, version in outcome.chosen.items():
        release = repair.stack.index.release(name, version)
        if release is not None and not all(admits(release.requires_python, usual) for usual in ("3.10.0", "3.12.0")):
            yield f"`{name}` {version} needs Python {release.requires_python}"


def _rebuild(repair: FixSearch, outcome: CandidateFix) -> str | None:
    if outcome.chosen.get(TORCH, ABSENT) == ABSENT:
        return None
    built = [
        name
        for name in sorted(BUILT_AGAINST_TORCH, key=lambda one: (not BUILT_AGAINST_TORCH[one], one))
        if repair.stack.installed.get(name, ABSENT) != ABSENT and not {name, owner_of(name)} & set(outcome.chosen)
    ]
    if not built:
        return None
    names = ", ".join(f"`{name}`" for name in built)
    return f"{names} {'were' if len(built) > 1 else 'was'} built against the old torch and must be rebuilt"


def _orphans(repair: FixSearch, outcome: CandidateFix) -> str | None:
    """Return a sentence about wheels that are no longer needed: no installer removes them, and files may overlap."""
    gone = orphans(repair.stack.installed, repair.stack.completed(outcome.chosen), outcome.chosen)
    if not gone:
        return None
    names = ", ".join(f"`{name}`" for name in gone)
    what, them = ("belong", "them") if len(gone) > 1 else ("belongs", "it")
    return f"{names} {what} to the old release; no installer removes {them}, so uninstall {them} first"


def _title(changes: tuple[Change, ...]) -> str:
    """`Upgrade torch to 2.7.1 and unset NVTE_UNFUSED_ATTN`."""
    parts = [_action(change) for change in changes]
    if not parts:
        return ""  # an outcome without changes is no fix, and is left out later
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return text[:1].upper() + text[1:]


def _action(change: Change) -> str:
    if change.kind == ChangeKind.CALL:
        return describe_call(change.name)
    if change.kind == ChangeKind.PACKAGE:
        if change.after is None:
            return f"remove `{change.name}`"
        if change.before in (None, ABSENT):
            return f"install `{change.name}` {change.after}"
        if change.after.partition("+")[0] == str(change.before).partition("+")[0]:
            return f"replace `{change.name}` {change.before} by the build {change.after}"
        down = parse_version(change.after) < parse_version(str(change.before))
        return f"{'downgrade' if down else 'upgrade'} `{change.name}` to {change.after}"
    call = attention_call(change.name, change.after) if change.kind == ChangeKind.CONFIG else None
    if call is not None:
        return f"call `{call}`"
    if change.after is None:
        return f"unset `{change.name}`"
    if "$" in change.after:
        return f"set `{change.name}`"  # computed: its command shows how
    return f"set `{change.name}` to `{change.after}`"
