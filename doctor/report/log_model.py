"""What a log shows: known causes with the lines that show them."""

from __future__ import annotations

from dataclasses import dataclass, field

from doctor.model import Facts, Finding, Fix, Remedy, TextEnum


class Confidence(TextEnum):
    """How sure the cause of a failure is, from the log and the facts at hand."""

    HIGH = "high"  # nothing speaks against it
    MEDIUM = "medium"  # something is left open
    LOW = "low"  # the kind of failure is known, the cause is not


class Doubt(TextEnum):
    """What leaves a cause open; the value ends the sentence "the cause is open, because …"."""

    GENERAL = "the message shows the kind of failure only"
    VAGUE = "several causes lead to a message like this"
    WIDE = "the rule covers many messages"
    SHARED = "other causes share the message"
    UNDECIDED = "facts that decide are not in the log"
    LATER = "an earlier line shows another cause"
    OTHER_RANK = "another rank failed first"
    NOTICE = "the line is a warning, and an error follows"
    UNATTRIBUTED = "no frame shows whose compiled code failed"
    NO_FIX = "the code states a condition, and no fix"


def confidence_of(doubts: tuple[Doubt, ...]) -> Confidence:
    """Return how sure a cause with these doubts is."""
    if Doubt.GENERAL in doubts or Doubt.NOTICE in doubts:
        return Confidence.LOW
    return Confidence.MEDIUM if doubts else Confidence.HIGH


@dataclass(frozen=True)
class LogLine:
    """One line of a log, without color and rank prefix; lines count from 1."""

    number: int
    text: str
    rank: str | None = None


@dataclass(frozen=True)
class Explanation:
    """One known cause that a log shows, with the line that shows it."""

    cause: str  # in kebab-case; several rules may speak of one cause
    rule: str | None  # None where the code itself states the cause
    category: str
    packages: tuple[str, ...]
    doubts: tuple[Doubt, ...]
    signature: str
    line: LogLine
    message: str
    why: str = ""
    remedies: tuple[Remedy, ...] = ()
    fixes: tuple[Fix, ...] = ()  # verified by the solver, where the facts are known
    no_pin: str | None = None
    references: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  # what the log or the rules say in detail, such as why each backend is unavailable
    missing: tuple[str, ...] = ()  # fact keys that decide between this cause and others with its message
    holds: bool | None = None  # whether the rule's conditions hold on the known facts

    @property
    def confidence(self) -> Confidence:
        """Return how sure the cause is."""
        return confidence_of(self.doubts)


@dataclass(frozen=True)
class LogReport:
    """All that is known of one log: `diagnosis` is best first, and empty if no known incompatibility shows."""

    input: str
    diagnosis: tuple[Explanation, ...] = ()
    benign: tuple[Explanation, ...] = ()  # lines that look bad and are not
    unrelated: tuple[Explanation, ...] = ()  # failures that have nothing to do with the attention stack
    facts: Facts = field(default_factory=Facts)  # read off the log, with those of the target
    versions: tuple[Finding, ...] = ()  # errors of the versions among these facts, of which no line of the log speaks
    errors: tuple[LogLine, ...] = ()  # the last error lines that were looked at
    shown: tuple[str, ...] = ()  # what the log shows of a failure whose cause is not known: package, frame, condition
    lines: int = 0
    notes: tuple[str, ...] = ()
