"""What is usual for missing facts, and facts completed with it: of the job, its GPU and its packages.

Three kinds of values complete the facts. A library's `companions` say what is usually installed with a range of its
releases, or which release it requires exactly. A torch that is built for CUDA runs on one of the usual GPUs. A job is
one of the usual jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from doctor.facts.vocabulary import fact as make_fact
from doctor.model import ABSENT, Facts, Finding, Severity

from .backends import not_called
from .evaluate import finding_of, know, rule_holds
from .messages import PLACEHOLDER, message_of
from .resolver import FactResolver
from .rule import Library, Rule
from .rulebook import Rulebook

#: What jobs have; a rule that answers alike for all of these is judged without the value. No GPU: there may be none.
USUAL: Mapping[str, tuple[Any, ...]] = {
    "workload.batch_size": (1, 2, 16, 64),
    "workload.dtype": ("bfloat16", "float16"),
    "workload.head_dim_qk": (32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256),
    "workload.mask": ("no_mask", "causal", "padding_causal", "arbitrary"),
    "workload.num_heads": (8, 12, 16, 32, 64),
    "workload.seq_len_q": (128, 512, 2048, 4096, 8192, 32768, 131072),
}
#: GPUs of jobs on a torch for CUDA: a rule that fires on all that it has code for is judged without the GPU.
GPUS = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
#: Jobs that differ in every value; a rule that fires for all of them is judged without these values.
_OF_JOB = ("batch_size", "dtype", "head_dim_qk", "mask", "num_heads", "num_kv_heads", "seq_len_q")
JOBS: tuple[Mapping[str, Any], ...] = tuple(
    dict(zip(_OF_JOB, job, strict=True))
    for job in (
        (1, "bfloat16", 128, "causal", 32, 8, 4096),
        (1, "float16", 128, "no_mask", 24, 24, 32768),
        (16, "float16", 64, "no_mask", 16, 16, 512),
        (2, "bfloat16", 64, "padding_causal", 12, 12, 2048),
        (1, "bfloat16", 256, "causal", 8, 4, 8192),
        (64, "float16", 80, "arbitrary", 32, 32, 128),
        (1, "float16", 40, "no_mask", 8, 8, 4096),
        (1, "bfloat16", 96, "causal", 64, 64, 131072),
    )
)
#: Values that few jobs have: a rule that fires for all others is a finding that names these.
RARE: Mapping[str, tuple[Any, ...]] = {"workload.mask": ("arbitrary",)}
#: Findings of these severities are reported where most usual jobs have them; a note needs all.
GRAVE = (Severity.ERROR, Severity.WARNING)
#: Ends of the keys of choices that a library makes: no user states them.
CHOICES = (".selected", ".selected_by_default", ".variant")
VERSION = ".version"
SOURCE = "a usual value"
_GPU = "gpu.sm"
_CUDNN = "cudnn.version"
_TORCH = "torch.version"  # missing where cuDNN is, which it would imply

#: Values by their keys, in one order.
Values = tuple[tuple[str, Any], ...]


def assuming(rule: Rule, known: FactResolver, said: str) -> Finding:
    """Return the finding of a rule that was judged with usual values, which its message names; no error."""
    severity = Severity.WARNING if rule.severity == Severity.ERROR else rule.severity or Severity.NOTE
    finding = finding_of(rule, known, severity, f"{message_of(rule, known)} ({said})")
    evidence = tuple(item for item in finding.evidence if item.fact.source != SOURCE)
    return finding._replace(evidence=evidence, assumption=said)


def short(key: str) -> str:
    """Return a key of the workload as users write it."""
    return key.removeprefix("workload.")


def package(key: str) -> str:
    """Return the package of a key such as `flash-attn.version`."""
    return key.removesuffix(VERSION)


class Completions:
    """The facts completed with every usual combination of packages and GPU, and with every usual job."""

    def __init__(self, rulebook: Rulebook, facts: Facts, known: FactResolver) -> None:
        self._rulebook, self._facts, self._first = rulebook, facts, known
        self._required: dict[str, tuple[Any, str]] = {}  # key → (release, what requires it)
        self._usual: dict[str, tuple[Any, ...]] = {}
        for library in _called(rulebook, known):
            self._add_companions(library)
        self._any_gpu = _GPU not in self._usual and known.value(_GPU) is None and _has_a_gpu(known)
        if self._any_gpu:
            self._usual[_GPU] = GPUS
        self._seldom = [f"{name}{VERSION}" for name in rulebook.seldom_packages] if self._companions() else []
        self._completed: dict[tuple[Values, int | None], FactResolver] = {}

    def _add_companions(self, library: Library) -> None:
        table = next((usual for when, usual in library.companions if when.holds(self._first) is True), {})
        for key, values in table.items():
            if self._first.value(key) is not None:
                continue
            if (required := PLACEHOLDER.fullmatch(str(values[0]))) is None:
                if self._first.has_workload:
                    self._usual[key] = values
            elif (release := self._first.value(required[1])) not in (None, ABSENT):
                self._required[key] = (release, library.name)

    def _companions(self) -> list[str]:
        """Return the keys of usual companions that are missing."""
        return [key for key in self._usual if key != _GPU or not self._any_gpu]

    def _concerns(self, missing: Sequence[str]) -> bool:
        """Whether usual values could decide what lacks these facts."""
        if any(key in self._required for key in missing):
            return True
        return self._first.has_workload and (
            any(_lacks(missing, key) for key in self._usual) or any(map(_of_job, missing))
        )

    def judge(self, rule: Rule, missing: Sequence[str]) -> Finding | None:
        """Return the finding of a rule that most usual jobs have in every environment, the first job in most of them.

        Of a note only what all of them have; of an error a warning. `missing`: the facts that the rule lacks.
        """
        if rule.severity is None or not self._concerns(missing):
            return None
        combinations = list(self._combinations(rule, missing))
        of_job = self._first.has_workload and any(map(_of_job, missing))
        if not (of_job and any(short(key) in JOBS[0] for key in missing)):  # the packages alone may decide a choice
            found = self._judge(rule, missing, combinations, (None,))
            if found is not None:
                return found
            if not of_job:
                if not self._still_open(rule, combinations):
                    return None
                missing = [*missing, *(key for key in _values_of(0) if self._first.value(key) is None)]
        return self._judge(rule, missing, combinations, range(len(JOBS)))

    def _judge(
        self, rule: Rule, missing: Sequence[str], combinations: Sequence[Values], jobs: Sequence[int | None]
    ) -> Finding | None:
        """Return the finding of a rule in these environments; the job None is the job as it is stated."""
        first = [self._fires(rule, values, jobs[0]) for values in combinations]
        if 2 * sum(first) <= len(first) or (rule.severity not in GRAVE and not all(first)):
            return None
        left_out: set[int | None] = set()
        for values, fires in zip(combinations, first, strict=True):
            without = [job for job in jobs[1:] if not self._fires(rule, values, job)] + ([] if fires else [jobs[0]])
            if 2 * len(without) > len(jobs):
                return None
            left_out.update(without)
        rare = [self._rare_values(job, missing) for job in left_out]
        if rule.severity not in GRAVE and not all(rare):
            return None
        known = self._known(combinations[first.index(True)], jobs[0])
        return assuming(rule, known, "; ".join(self._said(missing, jobs[0] is not None, rare)))

    def _combinations(self, rule: Rule, missing: Sequence[str]) -> Iterator[Values]:
        """Yield the usual combinations of what decides the rule; GPUs that torch has no code for are left out."""
        every = _hangs_on_a_choice(self._rulebook, rule)  # all may matter to what a library chooses
        keys = [key for key in self._usual if every or _lacks(missing, key)]
        for values in product(*(self._usual[key] for key in keys)):
            found = tuple(zip(keys, values, strict=True))
            on_a_gpu = self._any_gpu and _GPU in keys
            if not on_a_gpu or self._known(found, None).value("torch.serves_gpu") is not False:
                yield found

    def _still_open(self, rule: Rule, combinations: Sequence[Values]) -> bool:
        """Whether the packages leave a choice of this job open: it hangs on values of the job as well."""
        if not self._first.has_workload or not _hangs_on_a_choice(self._rulebook, rule):
            return False
        known = (self._known(values, None) for values in combinations)
        return any(rule_holds(self._rulebook, rule, item) is None for item in known)

    def _fires(self, rule: Rule, values: Values, job: int | None) -> bool:
        return rule_holds(self._rulebook, rule, self._known(values, job)) is True

    def _known(self, values: Values, job: int | None) -> FactResolver:
        """Return what is known with these values and this job for whatever is missing.

        Key/value heads belong to the job's own query heads: without them there are as many as query heads.
        """
        found = self._completed.get((values, job))
        if found is None:
            added = {**{key: release for key, (release, _) in self._required.items()}, **dict(values)}
            added |= {key: ABSENT for key in self._seldom if self._facts.value(key) is None}
            if job is not None:
                lacking = {key: value for key, value in _values_of(job).items() if self._facts.value(key) is None}
                if "workload.num_heads" not in lacking:
                    lacking.pop("workload.num_kv_heads", None)
                added |= lacking
            facts = self._facts.with_(*(make_fact(key, value, SOURCE) for key, value in added.items()))
            found = self._completed[values, job] = know(self._rulebook, facts)[0]
        return found

    def _rare_values(self, job: int | None, missing: Sequence[str]) -> list[str]:
        """Return what few jobs have of the values that this usual job has for what is missing."""
        if job is None:
            return []
        values = _values_of(job)
        return [f"{short(key)} {values[key]}" for key in missing if values.get(key) in RARE.get(key, ())]

    def _said(self, missing: Sequence[str], job_decides: bool, rare: Sequence[list[str]]) -> Iterator[str]:
        """Yield what was taken for what is missing."""
        required = [f"{package(key)} {self._required[key][0]}" for key in missing if key in self._required]
        if required:
            yield f"with {' and '.join(required)}, which {next(iter(self._required.values()))[1]} requires"
        companions = [key for key in self._companions() if _lacks(missing, key)]
        without = [package(key) for key in companions if self._usual[key] == (ABSENT,)]
        if without:
            yield f"if {' and '.join(without)} is not installed"
        names = [package(key) for key in companions if self._usual[key] != (ABSENT,)]
        job = [short(key) for key in missing if short(key) in JOBS[0]] if job_decides else []
        if names:
            yield f"with usual values of what is not given: {', '.join((*names, *job))}"
        elif job_decides and all(rare):
            but = f", except {', '.join(sorted({text for texts in rare for text in texts}))}" if rare else ""
            yield f"whatever is usual for {', '.join(job) or 'what is missing'}{but}"
        elif job_decides:
            yield f"in most usual jobs; {', '.join(job) or 'what decides it'} not given"
        if self._any_gpu and (_GPU in missing or not job_decides):
            yield "on every usual GPU; none is given"


def _lacks(missing: Sequence[str], key: str) -> bool:
    """Whether a usual value of `key` is among what is missing; torch would imply its cuDNN."""
    return key in missing or (key == _CUDNN and _TORCH in missing)


def _values_of(job: int) -> dict[str, Any]:
    """Return the values of a usual job by their fact keys."""
    return {f"workload.{name}": value for name, value in JOBS[job].items()}


def _of_job(key: str) -> bool:
    """Whether a usual job has a value for `key`; a choice that no fact is known to decide may hang on any of them."""
    return short(key) in JOBS[0] or key.endswith(CHOICES)


def _hangs_on_a_choice(rulebook: Rulebook, rule: Rule) -> bool:
    """Whether a rule is about the backend that a library chooses."""
    keys = {leaf.key for leaf in rule.when.leaves()}
    return bool(rule.fails_at_run) or any(key.endswith(CHOICES) or key in rulebook.decisions for key in keys)


def _called(rulebook: Rulebook, known: FactResolver) -> list[Library]:
    """Return the libraries with companions that the job calls; without a framework the only one that is installed."""
    found = [library for library in rulebook.libraries.values() if library.companions and _installed(library, known)]
    if known.value("workload.framework") is None:
        return found if len(found) == 1 else []
    return [library for library in found if not not_called(library, known)]


def _installed(library: Library, known: FactResolver) -> bool:
    return known.value(f"{library.distributions[0]}{VERSION}") not in (None, ABSENT)


def _has_a_gpu(known: FactResolver) -> bool:
    """Whether a job that names no GPU has one all the same: its torch is built for CUDA and no fact denies a GPU."""
    cuda = known.value("torch.cuda")
    return known.has_workload and cuda not in (None, ABSENT) and known.value("gpu.count") is None
