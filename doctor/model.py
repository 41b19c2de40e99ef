"""The nouns of a diagnosis, all frozen: facts go in, a report comes out; none reads a file or knows a rule."""

# No postponed annotations: a named tuple would compile each of them again, at every start.

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

#: Value of a key that is known not to be there: a package that is not installed, a variable that is not set.
ABSENT = "absent"

#: The package whose builds the mechanism itself is about. A release has one build for each CUDA, in an index of
#: its own; it brings CUDA's libraries at pinned versions, and compiled code fits one of its builds. What else is known
#: of it, as of every other library, is in `rules/<library>/`: no second package may be named here.
TORCH = "torch"


class TextEnum(str, Enum):
    """Base of enums whose members are their text: in JSON, in messages, and compared with what a file says."""

    def __str__(self) -> str:
        return str(self.value)


class Severity(TextEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"  # the job will fail or compute wrong numbers
    WARNING = "warning"  # it will run slowly, or breaks easily
    NOTE = "note"

    @property
    def rank(self) -> int:
        """Return 0 for the worst severity, and more for milder ones."""
        return SEVERITIES.index(self)


SEVERITIES = tuple(Severity)


class Verdict(TextEnum):
    """Where a finding comes from."""

    FIRES = "fires"  # a rule, whose conditions all hold
    UNPREDICTED = "unpredicted"  # a kernel, without any rule


class RunVerdict(TextEnum):
    """What a kernel run says: of a finding the first four, of the job itself the last three."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNPREDICTED = "unpredicted"
    INCONCLUSIVE = "inconclusive"
    HEALTHY = "healthy"
    FAILED = "failed"


class ChangeKind(TextEnum):
    """What a change of a fix changes."""

    PACKAGE = "package"
    ENV = "env"
    CONFIG = "config"
    CALL = "call"


class VerificationKind(TextEnum):
    """How far a fix was verified or carried out."""

    DRY_RUN = "dry-run"
    VERIFY = "verify"
    APPLY = "apply"
    ROLLBACK = "rollback"


class Fact(NamedTuple):
    """One reading: what was found and where. `value is None` means unknown, and `problem` says why."""

    key: str
    value: Any
    source: str
    raw: str | None = None
    problem: str | None = None
    assumed: bool = False  # not stated by anything: what is usually meant, and `source` says why
    via: str | None = None  # the package of that source which requires this one: "vllm 0.6.3"
    lacks: tuple[str, ...] = ()  # of an unknown prediction: the keys of the facts that it needs

    @property
    def origin(self) -> str:
        """Return the source in words, with the package that requires this one."""
        return self.source if self.via is None else f"{self.source}, required by {self.via}"

    @property
    def known(self) -> bool:
        """Whether the reading succeeded; `absent` counts as known."""
        return self.value is not None


class Facts(Mapping[str, Fact]):
    """What is known of one environment and workload: an immutable mapping from key to `Fact`."""

    __slots__ = ("_facts",)

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._facts: dict[str, Fact] = {fact.key: fact for fact in facts}

    def __getitem__(self, key: str) -> Fact:
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def items(self) -> ItemsView[str, Fact]:
        """Key and fact of every fact; faster than what Mapping makes of `__getitem__`."""
        return self._facts.items()

    def with_(self, *facts: Fact) -> "Facts":
        """The same facts with these added or replaced."""
        merged = Facts()
        merged._facts = {**self._facts, **{fact.key: fact for fact in facts}}
        return merged

    def without(self, *keys: str) -> "Facts":
        """The same facts, without these keys (so that they are unknown, or derived again)."""
        return Facts(fact for key, fact in self._facts.items() if key not in keys)

    @property
    def has_workload(self) -> bool:
        """Whether anything is said of a job."""
        return any(key.startswith("workload.") for key in self._facts)

    def value(self, key: str) -> Any:
        """The value of `key`, or None when it is unknown."""
        fact = self._facts.get(key)
        return None if fact is None else fact.value


class Evidence(NamedTuple):
    """One condition of a rule, judged: the fact that was found and what would have been needed instead."""

    key: str
    condition: str  # as the rule says it: "<9.3"
    needs: str  # what would clear it: ">=9.3"
    fact: Fact
    holds: bool | None


class Confirmation(NamedTuple):
    """What a kernel on the GPU said about a finding."""

    verdict: RunVerdict
    kernel: str
    request: Mapping[str, Any]
    outcome: str  # ran | refused | unavailable | failed | crashed | timeout
    observed: Mapping[str, Any]
    reason: str
    seconds: float
    contradicts: bool = False  # the library chose another backend than predicted


class RemedyKind(TextEnum):
    """Where a remedy of a finding comes from."""

    FROM_RULE = "from_rule"
    NARROWS_RANGE = "narrows_range"  # leaves affected releases out of a declared version range


class FixSafety(TextEnum):
    """Whether a remedy or a fix can be applied without a second look."""

    SAFE = "safe"
    CONDITIONAL = "conditional"  # has a condition that the facts leave unknown
    CHANGES_NUMBERS = "changes numbers"  # other results, or another job: dtype, mask, window, batches
    RISKY = "risky"  # works around what a package checks or pins

    @property
    def rank(self) -> int:
        """Return 0 for safe, and more for what needs more care."""
        return tuple(FixSafety).index(self)


class FixKind(TextEnum):
    """What a fix changes, in the order of what that costs people."""

    SETTING = "setting"  # a variable or an option
    CODE = "code line"
    WHEEL = "wheel"  # one package
    COMPANIONS = "companion wheels"
    OVERRIDE = "override of a pin"
    RELEASE_LINE = "release line"  # another line of torch, or another major release
    BUILD = "source build"

    @property
    def rank(self) -> int:
        """Return 0 for the cheapest."""
        return tuple(FixKind).index(self)


class Remedy(NamedTuple):
    """One way to fix a finding; all its parts are done together."""

    require: Mapping[str, str] = MappingProxyType({})  # distribution -> specifier
    set_env: Mapping[str, str] = MappingProxyType({})
    unset_env: tuple[str, ...] = ()
    config: Mapping[str, Any] = MappingProxyType({})  # workload key -> value
    call: str | None = None  # a line of code
    note: str | None = None  # what it brings or costs
    safety: FixSafety = FixSafety.SAFE
    risk: str | None = None  # what is not safe about it, in a sentence
    index_url: str | None = None
    then: Mapping[str, Any] = MappingProxyType({})  # facts that hold afterwards without being set by hand
    kind: RemedyKind = RemedyKind.FROM_RULE
    when: Mapping[str, Any] = MappingProxyType({})  # conditions in the form of a rule's `when`
    build: str | None = None  # distribution to install at its release in a build of another package index
    foreign: bool = False  # of a rule that is not built in: scripts show its commands and variables as comments
    partial: str | None = None  # why the rule may still fire after it

    @property
    def safe(self) -> bool:
        """Whether it neither changes results nor leaves the environment inconsistent."""
        return self.safety in (FixSafety.SAFE, FixSafety.CONDITIONAL)


class Change(NamedTuple):
    """One package, variable or setting that a fix changes."""

    kind: ChangeKind
    name: str
    before: str | None
    after: str | None
    why: str
    resolves: tuple[str, ...] = ()
    foreign: bool = False  # from a rule that is not built in
    edit: str | None = None  # the line of the project's own file that has to change, and what to write instead


class PinnedRequirement(NamedTuple):
    """One distribution at one version, and why it is in the plan."""

    package: str
    version: str
    why: str
    held: bool = False  # installed at this version already, and stays
    extra: str = ""  # such as `[core-cu12]`
    stands_for: str | None = None  # installed version that no registry has, such as 2.6.0+cu126 for 2.6.0

    @property
    def requirement(self) -> str:
        """Return the requirement as pip and uv read it."""
        return f"{self.package}{self.extra}=={self.version}"


class InstallPlan(NamedTuple):
    """What a fix does with packages, grouped by how an installer has to treat them."""

    changed: tuple[PinnedRequirement, ...] = ()  # installed from an index
    held: tuple[PinnedRequirement, ...] = ()  # companions that stay
    built: tuple[PinnedRequirement, ...] = ()  # compiled against the installed torch, in a second step
    removed: tuple[str, ...] = ()  # uninstalled first
    overridden: tuple[PinnedRequirement, ...] = ()  # instead of a pin of their owner, without its consent
    reinstall: tuple[str, ...] = ()  # requirements whose files an uninstalled package takes along
    along: tuple[tuple[str, str | None], ...] = ()  # (part, new version) that follows its owner; None: removed
    notes: tuple[str, ...] = ()  # about companions that cannot be held
    moves_torch: bool = False
    torch: str | None = None  # the new one
    index_url: str | None = None
    wheel_url: str | None = None  # for flash-attn, where its release has a wheel for this torch
    cuda: str | None = None  # of the new torch
    cudnn: str | None = None  # that the new torch brings

    @property
    def to_rebuild(self) -> tuple[PinnedRequirement, ...]:
        """Return what has to be compiled: what is new, and what was compiled against the old torch."""
        return tuple(line for line in self.built if not line.held or self.moves_torch)


class Fix(NamedTuple):
    """A set of changes, verified by evaluating the rulebook again on the changed facts."""

    title: str
    changes: tuple[Change, ...]
    resolves: tuple[str, ...]  # rule ids it clears
    leaves: tuple[str, ...] = ()  # error rule ids that still fire
    safety: FixSafety = FixSafety.SAFE
    note: str | None = None
    plan: InstallPlan = InstallPlan()
    costs: tuple[str, ...] = ()  # another torch, a downgrade, a build
    regressions: tuple[str, ...] | None = None  # features that some backend served before; None: not computed
    kind: FixKind = FixKind.SETTING
    time: str = ""  # what it takes, from one source (`solver/effort.py`)
    risk: str | None = None  # what is not safe about it, in a sentence
    cases: tuple[int, ...] = ()  # of a matrix, those that it is for; empty: all

    @property
    def safe(self) -> bool:
        """Whether it can be applied without a second look."""
        return self.safety == FixSafety.SAFE

    @property
    def changes_packages(self) -> bool:
        """Whether any distribution is installed, replaced or removed."""
        return any(change.kind == ChangeKind.PACKAGE for change in self.changes)


class Infeasible(NamedTuple):
    """Why nothing clears an error: which rule excludes which releases, and what would help instead."""

    rule: str
    because: tuple[str, ...]
    instead: str | None = None  # another GPU or another setting of the job
    proved: bool = False  # every case was judged; else the sentences say what is known


class ApiUse(NamedTuple):
    """One use of another package that its installed release does not answer, as the sources of both show."""

    file: str  # of the caller, relative to site-packages; a file of the user's own code as named
    line: int
    scope: str  # the function around it
    message: str
    severity: str
    reach: str  # import, construction, common, on_demand, context_parallel
    own_code: bool  # the caller is the user's own code
    symbol: str
    definition: str | None  # file:line of the callee
    signature: str | None
    conditions: tuple[str, ...] = ()  # on the path, as the caller writes them
    broken_since: str | None = None  # releases of the callee, as far as the API history has them
    last_compatible: str | None = None
    works_again_in: str | None = None
    fixed_in: str | None = None  # release of the caller


class NotAnalyzed(NamedTuple):
    """An installed package whose calls of others were not analyzed."""

    package: str  # with its version
    reason: str


class DriftCoverage(NamedTuple):
    """What the analysis of API drift read, and what not."""

    analyzed: tuple[str, ...]  # packages with their versions, or folders of the user's own code
    not_analyzed: tuple[NotAnalyzed, ...]
    limit: float  # seconds; 0: none
    command: str | None = None  # analyzes what was not
    note: str = ""  # what a limit or a failure left out, with the command; one of the report's notes


class Finding(NamedTuple):
    """One rule that fires, with the evidence for it."""

    rule: str
    name: str
    severity: Severity
    verdict: Verdict
    summary: str
    message: str
    why: str
    evidence: tuple[Evidence, ...]
    references: tuple[str, ...]
    alternatives: tuple[Remedy, ...] = ()
    no_pin: str | None = None  # why no package version fixes it, where that is so
    myth: str | None = None  # the popular fix that does not work, and why
    confirm: Mapping[str, Any] | None = None
    confirmation: Confirmation | None = None
    reproduction: str | None = None  # a script that shows it, of torch and the library alone
    backends: tuple[str, ...] = ()
    assumption: str = ""  # what it rests on beyond the facts: an assumed value, or every usual one
    cases: tuple[int, ...] = ()  # where several were judged: numbers of those it is found in, the evidence the first's
    uses: tuple[ApiUse, ...] = ()  # of API drift: every place that breaks
    way: tuple[str, ...] = ()  # the calls by which the job reaches the flaw: its trainer first

    @property
    def refuted(self) -> bool:
        """Whether a kernel ran and was right here, so that there is nothing to fix."""
        return self.confirmation is not None and self.confirmation.verdict == RunVerdict.REFUTED


class Reason(NamedTuple):
    """Why a backend is out (`holds` True) or may be out (None)."""

    rule: str
    message: str
    holds: bool | None
    source: str = ""
    missing: tuple[str, ...] = ()


class Candidate(NamedTuple):
    """One attention backend judged for one workload; `available is None` means unknown."""

    backend: str
    title: str
    available: bool | None
    reasons: tuple[Reason, ...]


class Prediction(NamedTuple):
    """Which backend of one library will run."""

    library: str
    selected: str | None
    could_tell: bool
    candidates: tuple[Candidate, ...]
    fails_at_run: Reason | None = None
    import_error: Reason | None = None
    prefill: str | None = None  # of the prompt, where the library chooses it apart; `selected` then decodes


class BackendCost(NamedTuple):
    """What one backend takes for the job's attention, one layer: predicted, never measured here."""

    backend: str
    selected: bool
    select: str  # what the user writes to select it; empty for the selected one
    milliseconds: float | None  # None: unknown
    memory: Mapping[str, int]  # bytes by part; empty: unknown
    peak: int | None  # the most that it holds besides inputs and mask


class AttentionCost(NamedTuple):
    """What the backends that serve one kind of layer take, the fastest first, and where the figures come from."""

    layer: str  # empty: the only kind of layer, or the main one
    shape: str
    basis: str
    backends: tuple[BackendCost, ...]


class MatrixRow(NamedTuple):
    """One feature, as changes to the workload, and what becomes of every backend."""

    group: str
    feature: str
    changes: Mapping[str, Any]
    cells: tuple[Candidate, ...]
    selected: str | None
    could_tell: bool
    fails_at_run: Reason | None = None
    import_error: Reason | None = None  # the library refuses before it comes to a choice


class Matrix(NamedTuple):
    """Backends × features of one library in one environment."""

    library: str
    title: str
    backends: tuple[tuple[str, str], ...]  # id, title
    workload: Mapping[str, Any]  # what every row starts from
    rows: tuple[MatrixRow, ...]


class Undetermined(NamedTuple):
    """Rules that could not be judged because the same facts are missing."""

    missing: tuple[str, ...]
    rules: tuple[str, ...]
    problem: str


class Case(NamedTuple):
    """One environment × GPU × workload of a gate, judged: all that a check of it alone says, but fixes."""

    environment: str  # as the user named it: a file, a folder, an interpreter
    gpu: str | None  # as the user named it; None: the one that is there
    workload: str | None
    facts: Facts
    findings: tuple[Finding, ...]
    predictions: tuple[Prediction, ...]
    undetermined: tuple[Undetermined, ...]


class VerificationStep(NamedTuple):
    """One step of a proof: whether it held, why not or what was seen, and the command that was run."""

    name: str
    outcome: bool | None  # None = unknown, and `reason` says why
    reason: str = ""
    command: str | None = None
    seconds: float = 0.0


class Verification(NamedTuple):
    """How far a fix was proven, or carried out."""

    kind: VerificationKind
    fix: str | None  # its title
    steps: tuple[VerificationStep, ...]
    freeze: str | None = None  # the file that remembers what was there
    undo: str | None = None  # the command that restores it


class InputFile(NamedTuple):
    """A file that the user named, or the project's own."""

    kind: str  # declared | model | workload | project | facts | rules (a folder)
    path: str  # as named


class ReadInput(NamedTuple):
    """One input of a diagnosis and what it gave."""

    path: str  # as named
    kind: str  # what it is: interpreter, packages, facts, declared, launch, model, workload, script
    gave: tuple[str, ...] = ()  # keys of the facts that count


class NewRelease(NamedTuple):
    """An installed release that came after the records."""

    package: str
    version: str
    newest: str  # on record


class Report(NamedTuple):
    """All that a renderer ever sees; `records` and `unrecorded` say up to where releases are known."""

    tool: str
    rulebook: Mapping[str, Any]
    facts: Facts
    findings: tuple[Finding, ...]
    predictions: tuple[Prediction, ...]
    fixes: tuple[Fix, ...]
    undetermined: tuple[Undetermined, ...]
    timing: Mapping[str, float]
    target: str = ""  # what was examined: an interpreter, files
    kernels_run: bool = False
    expected: tuple[str, ...] = ()  # notes that follow from what was examined: one screen leaves them out
    runs: tuple[Confirmation, ...] = ()  # the job's own attention, run on this machine
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # declared files that could not be read, each with line and reason
    no_fix: tuple[Infeasible, ...] = ()  # for every error that no fix clears, where fixes were requested
    cases: tuple[Case, ...] = ()  # where several were judged at once; the other fields then say what they share
    known: tuple[Finding, ...] = ()  # findings that the baseline has already, and that are not among `findings`
    ignored: tuple[Finding, ...] = ()  # those that the project ignores, not among them either
    unconcerned: tuple[Finding, ...] = ()  # of rules about what the job does not reach
    records: str = ""  # date of the newest release on record
    unrecorded: tuple[NewRelease, ...] = ()  # installed releases that are newer than the records
    unexamined: tuple[str, ...] = ()  # what no rule was applied to, a part of a sentence each
    proof: Verification | None = None
    inputs: tuple[InputFile, ...] = ()  # what was read, as named
    read: tuple[ReadInput, ...] = ()  # the inputs of the diagnosis, and what each of them gave
    today: tuple[str, ...] = ()  # releases that an installer takes today, judged where no release was stated
    options: str = ""  # that name the same target and job again
    drift: DriftCoverage | None = None  # of the installed sources; None where they were not to be analyzed
    costs: tuple[AttentionCost, ...] = ()  # of each kind of layer, where its shape is known
    matrices: tuple[Matrix, ...] = ()  # backends × features, where a format shows them
    schema: int = 1

    @property
    def package_fix(self) -> Fix | None:
        """The first fix that a file of requirements can state, an override last; else the recommended."""
        changing = [fix for fix in self.fixes if fix.changes_packages]
        changing.sort(key=lambda fix: bool(fix.plan.overridden))
        return next(iter((*changing, *self.fixes)), None)
