"""What the analyzer returns: typed, immutable results that know no report format and no rule."""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """A contract that a use breaks; the value is its stable code."""

    MISSING_MODULE = "API001"
    MISSING_NAME = "API002"
    MISSING_ATTRIBUTE = "API003"
    MISSING_ARGUMENT = "API004"
    UNEXPECTED_KEYWORD = "API005"
    TOO_MANY_POSITIONALS = "API006"
    DUPLICATE_ARGUMENT = "API007"
    UNPACK_LENGTH = "API008"
    INDEX_RANGE = "API009"
    INCOMPATIBLE_OVERRIDE = "API010"
    VERSION_REFUSED = "API011"

    @property
    def label(self) -> str:
        """Return the kind in words, as the text format prints it."""
        return self.name.lower().replace("_", " ")


class Severity(Enum):
    """How much of the caller fails."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Reach(Enum):
    """When the broken use runs."""

    IMPORT = "import"
    CONSTRUCTION = "construction"
    COMMON = "common"
    ON_DEMAND = "on_demand"
    CONTEXT_PARALLEL = "context_parallel"
    FEATURE = "feature"


class Certainty(Enum):
    """How sure a finding is: on every path, on some paths only, or behind a guard that could not be evaluated."""

    DEFINITE = "definite"
    POSSIBLE = "possible"
    UNKNOWN = "unknown"


class PairVerdict(Enum):
    """The outcome for one caller and one callee."""

    BROKEN = "broken"
    OK = "ok"
    UNKNOWN = "unknown"


class Location(NamedTuple):
    """A line of a source file; `path` is relative to site-packages, or absolute for files of a project."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Release(NamedTuple):
    """An installed distribution; `version` is empty for a folder of the user's own code."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


class History(NamedTuple):
    """Releases that an embedded history names: of the callee, but `fixed_in` of the caller."""

    broken_since: str = ""
    last_compatible: str = ""
    works_again_in: str = ""
    fixed_in: str = ""


class Finding(NamedTuple):
    """One use that the installed callee does not answer."""

    kind: Kind
    severity: Severity
    certainty: Certainty
    reach: Reach
    caller: Release
    callee: Release
    symbol: str
    """Dotted name of the callee's module, function, class or attribute."""
    name: str
    """The parameter, keyword or name that is missing or not accepted; for lengths the number unpacked or the index."""
    site: Location
    scope: str
    """Qualified name of the function that contains the use; empty at module level."""
    definition: Location | None
    signature: str
    message: str
    conditions: tuple[str, ...] = ()
    """Conditions on the path that depend on the workload, as the caller writes them."""
    unknown: str = ""
    """Why the finding is not certain; empty when it is."""
    history: History = History()

    @property
    def code(self) -> str:
        """Return the stable code, such as `API004`."""
        return self.kind.value


class Notice(NamedTuple):
    """A file or package that was not read in full, and why."""

    subject: str
    reason: str


class Pair(NamedTuple):
    """What is known about one caller and one callee."""

    caller: Release
    callee: Release
    verdict: PairVerdict
    uses: int
    unknown_uses: int


class CallerResult(NamedTuple):
    """What the analysis of one caller found."""

    findings: tuple[Finding, ...]
    pairs: tuple[Pair, ...]
    notices: tuple[Notice, ...]
    files: tuple[str, ...]
    """Absolute paths of the sources that the result depends on."""
    failed: bool = False
    """The analysis ended without a result."""
    reaches: tuple[str, ...] = ()
    """Import names of the callees that some file of the caller imports or looks up by name."""


class Limits(NamedTuple):
    """How long an analysis may take, in seconds."""

    seconds: float
    """For one caller, after which only its imports are checked."""
    until: float = math.inf
    """Time of the monotonic clock at which the whole analysis ends; callers without a result are left out."""


class Coverage(NamedTuple):
    """Which callers an analysis read, and which not; all are installed, or the user's own code."""

    analyzed: tuple[Release, ...] = ()
    late: tuple[Release, ...] = ()
    """Not analyzed: the time was up, or an earlier analysis of as many seconds did not end."""
    unused: tuple[Release, ...] = ()
    """Not analyzed: the job does not reach them."""
    failed: tuple[Release, ...] = ()
    """Not analyzed: the analysis ended without a result; notices say why."""
    limit: float = 0.0
    """Seconds for the whole analysis; 0 for no limit."""


class DriftReport(NamedTuple):
    """The result of one analysis."""

    pairs: tuple[Pair, ...]
    findings: tuple[Finding, ...]
    notices: tuple[Notice, ...] = ()
    failed: tuple[Notice, ...] = ()
    """Callers that were not analyzed, and why; they are among the notices too."""
    coverage: Coverage = Coverage()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Return the findings that surely break a path of the caller."""
        return tuple(item for item in self.findings if item.severity is Severity.ERROR)
