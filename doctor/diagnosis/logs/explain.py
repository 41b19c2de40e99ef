"""Explain a log: read it once, take facts from it, choose the root cause and find what fixes it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.errors import DoctorError
from doctor.model import Facts, Finding, Prediction, Severity
from doctor.packages.gpus import with_capability
from doctor.report.log_model import Confidence, Doubt, Explanation, LogLine, LogReport
from doctor.rulebook.anchors import anchors_of
from doctor.rulebook.categories import NONE, UNAVAILABLE
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.signatures import LogRule
from doctor.sources.printed import printed_facts
from doctor.sources.printed_form import is_printed
from doctor.sources.workload.defaults import complete_workload

from . import located, nvte, refusals, slower_path, symptoms
from .answer import explanation
from .choose import candidates, split
from .facts import facts_of, patterns
from .frames import Stack
from .graph_breaks import graph_break
from .notices import last_raised
from .pattern import MOST, Pattern
from .ranking import explanations
from .ranks import ROOT_CAUSE, root_rank
from .retyped import TYPED, with_retyped
from .scan import GIVEN_UP, LAST, Match, Scanner
from .source import LogSource
from .wrapped import with_rejoined

_ERROR = (
    r"(?:\w(?:Error|Exception|Failure)|symbolic_shapes\.\w{3,60}|\bexc\.Unsupported|_dynamo\.exc\.\w{3,60})"
    r":(?: |\W{0,120}$)"
    r"|Exception\b.{0,3}$"
    r"|^(?:FATAL|fatal|ERROR|error)\b|fatal error: | error: |^[\d:.,\[\]TZ -]{8,40} ERROR\b"
)
_ERRORS = Pattern(
    _ERROR,
    ("Error:", "Exception", "Failure:", "exc.", "symbolic_shapes.", "FATAL", "fatal", "ERROR", "error: ", "error:"),
    400,
)
_WARNED = Pattern(refusals.WARNED, ("sdp_utils",), 64)
_OTHERS = (
    Pattern(ROOT_CAUSE, anchors_of(ROOT_CAUSE)),
    _ERRORS,
    _WARNED,
    TYPED,
    symptoms.DUMP,
    symptoms.NOT_FINITE,
    symptoms.WATCHDOG,
)
_SLOW = (slower_path.STATED, slower_path.COMPLAINT)
_SHOWN_ERRORS = 5
_REPORT = 256 * 1024  # bytes at the start of a log in which a report of the environment is looked for
_HARMLESS = 4 * MOST  # matches that are kept of lines that show no cause: they come in great numbers


@dataclass(frozen=True)
class LogExplainer:
    """Rules and facts of the target, for any number of logs."""

    rulebook: Rulebook
    rules: Sequence[LogRule]
    target: DiagnosisInput | None = None  # what the user says of the machine

    @cached_property
    def _distributions(self) -> tuple[str, ...]:
        return self.rulebook.watched_distributions

    @cached_property
    def _stack(self) -> Stack:
        return Stack(self.rulebook.libraries)

    @property
    def _site_dirs(self) -> Sequence[Path]:
        return self.target.site_dirs if self.target is not None else ()

    @cached_property
    def _patterns(self) -> tuple[Pattern, ...]:
        """Every pattern, each once."""
        texts = [(item.match, item.anchors) for rule in self.rules for item in rule.signatures]
        texts += [(text, anchors_of(text)) for rule in self.rules for item in rule.signatures for text in item.anywhere]
        harmless = {item.match for rule in self.rules if rule.category == NONE for item in rule.signatures}
        kept = {text: _HARMLESS if text in harmless else MOST for text, _ in texts}
        own = [Pattern(text, anchors, kept[text]) for text, anchors in dict(texts).items() if anchors]
        return (*own, *patterns(self._distributions), *_OTHERS, *_SLOW)

    def explain(self, source: LogSource, *, fixes: bool = True) -> LogReport:
        """Return what is known of one log; DoctorError for one that cannot be read."""
        scanner, start = Scanner(self._patterns), b""
        for block in source.blocks():
            start += block[: max(_REPORT - len(start), 0)]
            scanner.feed(block)
        matches = _by_pattern(self._patterns, scanner.finish())
        matches = with_rejoined(self._patterns, matches, matches.get(_ERROR, ()))
        matches = with_retyped(self._patterns, matches, _lines(matches, TYPED.match, _ERROR))
        facts = self._facts(matches, start.decode("utf-8", "replace"))
        assessment = evaluate(self.rulebook, facts) if facts else _nothing_known(self.rulebook)
        known = assessment.known
        root = root_rank(matches.get(ROOT_CAUSE, ()))
        end = last_raised(matches.get(_ERROR, ()))
        causes, benign, unrelated = split(candidates(self.rules, matches, known, self._stack, root), end)
        diagnosis = explanations(causes, known, self._stack, end)
        shown: tuple[str, ...] = ()
        if not diagnosis or diagnosis[0].confidence == Confidence.LOW:
            named = any(not located.is_wrapper(item.match.text) for item in unrelated)
            diagnosis, shown = self._read_from_code(diagnosis, matches, root, named)
        elif diagnosis[0].rule is not None:
            errors = matches.get(_ERROR, ())
            broken = _stated_break(errors, diagnosis[0]) if Doubt.VAGUE in diagnosis[0].doubts else None
            placed = broken or located.with_place(diagnosis[0], errors, self._stack, self._site_dirs)
            diagnosis = (placed, *diagnosis[1:])
        diagnosis = diagnosis or symptoms.fallback_allocation(matches.get(_ERROR, ())) or symptoms.hang(matches)
        if not diagnosis:
            diagnosis, waiting = symptoms.watchdog(matches)
            shown = (*shown, *waiting, *symptoms.not_finite(matches))
        harmless = tuple(explanation(item, (), (), known, self._stack) for item in benign)
        if not (diagnosis or unrelated or end):
            diagnosis, stated = slower_path.slower_path(matches, harmless)
            shown = (*shown, *stated)
        detailed = tuple(_with_reasons(item, matches, assessment.predictions) for item in diagnosis)
        related = {item.rule.rule.id: item.match.line for item in causes}
        return LogReport(
            input=source.name,
            diagnosis=tuple(self._with_fixes(item, assessment, related) for item in detailed) if fixes else detailed,
            benign=tuple(item for item in harmless if item.line not in {first.line for first in diagnosis}),
            unrelated=tuple(explanation(item, (), (), known, self._stack) for item in unrelated),
            facts=facts,
            versions=tuple(_of_versions(assessment.findings, {item.rule or "" for item in diagnosis})),
            errors=_last_errors(matches.get(_ERROR, [])),
            shown=shown,
            lines=scanner.lines,
            notes=(*source.notes, *_not_examined(scanner.common)),
        )

    def _read_from_code(
        self, known: tuple[Explanation, ...], matches: Mapping[str, list[Match]], root: str | None, named: bool
    ) -> tuple[tuple[Explanation, ...], tuple[str, ...]]:
        """Return the cause that the code states in place of a vague one, and what the log shows without a cause.

        `named`: the failure is known as one that is not of the stack.
        """
        errors = matches.get(_ERROR, ())
        stated = _stated_break(errors, known[0] if known else None)
        if stated is not None:
            return (stated,), ()
        found = located.located(errors, self._stack, root, self._site_dirs)
        if found is None:
            return known, () if known or named else located.shown(errors, self._stack, root)
        made = located.explained(found)
        if not found.is_of_attention or named:
            return known, (f"{made.message}. {made.why}",) if not known else ()
        if known and (made.line.number < known[0].line.number or not found.exact):
            return known, ()
        if known and not found.says_more:
            return known, ()
        return (made, *known[1:]), ()

    def _facts(self, matches: Mapping[str, list[Match]], start: str) -> Facts:
        """Return the facts of the log, with what a report at its start and what is known of the target over them."""
        found = facts_of(matches, self._distributions, self.rulebook.gpus)
        if is_printed(start):
            with contextlib.suppress(DoctorError):  # a report without facts
                printed = printed_facts(start, "the log")
                found = found.with_(*(item for item in printed.values() if item.known or item.key not in found))
                found = with_capability(found, self.rulebook.gpus)
        stated = self.target.facts if self.target is not None else Facts()
        return complete_workload(found.with_(*(item for item in stated.values() if item.known)))

    def _with_fixes(self, item: Explanation, assessment: Assessment, lines: Mapping[str, int]) -> Explanation:
        """Return the explanation with fixes that the solver verified, where a rule of its line fires on the facts."""
        on_line = {item.rule, *(rule for rule, line in lines.items() if line == item.line.number)}
        finding = next((finding for finding in assessment.findings if finding.rule in on_line), None)
        if finding is None:
            return item
        from doctor.solver.solve import solve  # door: solver

        requirements = self.target.requirements if self.target is not None else None
        alone = assessment._replace(findings=(finding,))
        solved = solve(self.rulebook, assessment.known.given, alone, installed=requirements, thorough=False)
        return replace(item, fixes=tuple(fix for fix in solved if finding.rule in fix.resolves))


def _stated_break(errors: Sequence[Match], known: Explanation | None) -> Explanation | None:
    """Return what torch states of code that its compiler cannot trace, from the line of a vague cause on."""
    found = (made for match in reversed(errors) if (made := graph_break(match)) is not None)
    stated = next(found, None)
    return stated if stated is None or known is None or stated.line.number >= known.line.number else None


def _of_versions(findings: Sequence[Finding], explained: Collection[str]) -> Iterator[Finding]:
    """Yield the errors that rest on versions and machine alone; the job of a log is mostly assumed."""
    for item in findings:
        job = any(piece.key.startswith("workload.") for piece in item.evidence)
        if item.severity == Severity.ERROR and item.rule not in explained and not item.assumption and not job:
            yield item


def _nothing_known(rulebook: Rulebook) -> Assessment:
    """Return what the rules say without any fact: nothing."""
    return Assessment((), (), (), FactResolver(Facts(), rulebook.implications))


def _not_examined(texts: Sequence[str]) -> Iterator[str]:
    """Yield a note on texts that more lines had in vain than are examined."""
    if texts:
        shown = ", ".join(f"`{text.strip()}`" for text in texts[:3])
        yield (
            f"{GIVEN_UP:,} lines with {shown} have no known message; of further such lines, only those in the last "
            f"{LAST >> 10} KiB were examined"
        )


def _by_pattern(patterns: Sequence[Pattern], found: Mapping[int, list[Match]]) -> dict[str, list[Match]]:
    return {patterns[index].match: matches for index, matches in found.items()}


def _lines(matches: Mapping[str, Sequence[Match]], *patterns: str) -> list[Match]:
    """Return the lines that some of these patterns match, each once."""
    return list({match.line: match for pattern in patterns for match in matches.get(pattern, ())}.values())


def _last_errors(matches: Sequence[Match]) -> tuple[LogLine, ...]:
    """Return the last different error lines."""
    seen: dict[str, LogLine] = {}
    for match in matches:
        text = match.text.strip()
        seen.pop(text, None)
        seen[text] = LogLine(match.line, text, match.rank)
    return tuple(seen.values())[-_SHOWN_ERRORS:]


def _with_reasons(
    item: Explanation, matches: Mapping[str, list[Match]], predictions: Sequence[Prediction]
) -> Explanation:
    """Return the explanation of a refusal with the reasons of each backend, as printed or predicted."""
    if refusals.REFUSED.search(item.line.text):
        printed = refusals.reasons(matches.get(refusals.WARNED, ()), item.line)
        message = f"{item.message}; {printed[0]}" if printed else item.message
        open_doubts = () if printed or item.holds or item.doubts else (Doubt.VAGUE,)
        return replace(item, message=message, doubts=(*item.doubts, *open_doubts), reasons=(*printed, *item.reasons))
    if "transformer-engine" not in item.packages or item.category != UNAVAILABLE:
        return item
    printed = nvte.reasons(tuple(matches.get(nvte.DISABLING, ())))
    predicted = [
        f"{candidate.title}: {reason.message}"
        for prediction in predictions
        if prediction.library == "transformer_engine"
        for candidate in prediction.candidates
        if candidate.available is False
        for reason in candidate.reasons
        if reason.holds
    ]
    return replace(item, reasons=(*item.reasons, *printed, *dict.fromkeys(predicted)))
