"""Answers "what is the value of this key?" from given facts, derivations, release data and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from doctor.facts.derived.registry import DERIVATIONS, Derivation
from doctor.facts.versions import cuda_of_label
from doctor.facts.vocabulary import TERMS, term
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import ABSENT, Fact, Facts

from .effects import Implications


def unknown(key: str, source: str, lacks: Iterable[str]) -> Fact:
    """Return the fact of a prediction that cannot be made while facts are missing."""
    keys = tuple(sorted(set(lacks)))
    return Fact(key, None, source, None, f"needs {', '.join(keys)}" if keys else "unknown", lacks=keys)


class Way(NamedTuple):
    """How the value of one key is found; the same for all facts."""

    derivation: Derivation | None
    inputs: tuple[str, ...]  # what a derived fact needs and uses
    source: str  # of a derived fact
    undetermined: str  # the problem of a derived fact whose needs are known
    asks_given: bool
    of_workload: bool
    of_package: bool  # a version that is absent where every distribution was read
    default: Fact | None  # of a job
    otherwise: Fact | None  # where nothing else says it


@cache
def way_of(key: str) -> Way:
    """Return how the value of a key of the vocabulary is found."""
    derivation = DERIVATIONS.get(key)
    sources: tuple[str, ...] = () if derivation is None else derivation.needs + derivation.uses
    of_workload, otherwise = key.startswith("workload."), None
    if key.startswith("env."):
        otherwise = Fact(key, ABSENT, "not set")
    elif key.startswith("ranks."):
        otherwise = Fact(key, ABSENT, "no other rank was compared")
    elif key.startswith("speed."):
        otherwise = Fact(key, ABSENT, "no other backend is much faster or leaner")
    default = term(key).default if of_workload and not key.endswith(".given") else None
    return Way(
        derivation,
        sources,
        "" if derivation is None else "derived from " + ", ".join(derivation.needs or derivation.uses),
        f"not determined by {', '.join(sources[:_MOST_NAMED])}{' …' if len(sources) > _MOST_NAMED else ''}",
        key.endswith(".given"),
        of_workload,
        key.endswith(".version") and key not in ("python.version", "cudnn.version", "driver.version"),
        None if default is None else Fact(key, default, "default"),
        otherwise,
    )


_MOST_NAMED = 3  # sources of a derived fact that a problem names


class FactResolver:
    """Facts plus all that follows from them; every look-up is answered once and remembered."""

    __slots__ = ("_cache", "_given", "_implications", "_missing", "_predict", "has_workload", "memo")

    def __init__(
        self,
        facts: Facts,
        implications: Implications | None = None,
        predict: Callable[[FactResolver, str], Fact | None] | None = None,
        implied: Mapping[str, Fact] | None = None,
    ) -> None:
        self._given = facts
        self._cache: dict[str, Fact] = {**implied, **dict(facts.items())} if implied else dict(facts.items())
        self.memo: dict[str, Any] = {}  # what a prediction worked out on the way, so that it is done once
        self._missing: dict[str, tuple[str, ...]] = {}
        self._implications: Implications = implications or {}
        self._predict = predict
        self.has_workload = facts.has_workload

    def look_up(self, key: str) -> Fact:
        """The fact of `key`; an unknown one carries the problem. Given facts win, an explicit null stays unknown."""
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._follow(key)
        return found

    def with_(self, facts: Facts, predict: Callable[[FactResolver, str], Fact | None] | None) -> FactResolver:
        """The same knowledge with some facts replaced; everything that follows is derived again."""
        return FactResolver(self._given.with_(*facts.values()), self._implications, predict)

    def settle(self, fact: Fact) -> None:
        """Remember the answer to `fact.key` that a caller has worked out."""
        self._cache[fact.key] = fact
        self._missing.clear()

    @property
    def given(self) -> Facts:
        """The facts everything else is worked out from."""
        return self._given

    def value(self, key: str) -> Any:
        """The value of `key`, None when unknown."""
        return self.look_up(key).value

    def missing(self, key: str) -> tuple[str, ...]:
        """The given-able keys whose absence makes `key` unknown."""
        found = self._missing.get(key)
        if found is None:
            found = self._missing[key] = self._work_out_missing(key)
        return found

    def _work_out_missing(self, key: str) -> tuple[str, ...]:
        if self.look_up(key).known:
            return ()
        derivation = DERIVATIONS.get(key)
        if derivation is None or key in self._given:
            return self.look_up(key).lacks or (key,)
        needed = tuple(base for need in derivation.needs for base in self.missing(need))
        if not needed:  # what it needs is there, or it answers from any of several facts: the first would do
            needed = next((self.missing(use) for use in derivation.uses if not self.look_up(use).known), ())
        return tuple(dict.fromkeys(needed)) or (key,)

    def _follow(self, key: str) -> Fact:
        if key == "workload.given":
            return Fact(key, self.has_workload, "the command line")
        way = way_of(key)
        if way.asks_given:
            return Fact(key, self._is_given(key.removesuffix(".given")), "the facts themselves")
        derivation = way.derivation
        by_model = derivation is not None and way.of_workload
        if by_model and (implied := self._implied(key)) is not None:
            return implied  # what is known of a type of model is better than a usual shape
        problem = None
        if derivation is None:
            if self._predict is not None and (predicted := self._predict(self, key)) is not None:
                return predicted
        else:
            known = self._cache.get
            values: list[Any] = []
            for need in way.inputs:
                value = (known(need) or self.look_up(need)).value
                if value is None and len(values) < len(derivation.needs):
                    problem = f"`{need}` is not known"
                    break
                values.append(value)
            else:
                value = derivation.compute(*values)
                if value is not None:
                    return Fact(key, value, way.source)
                problem = way.undetermined
        if way.of_package and self._given.value("distributions.complete") is True:
            # Every distribution was read and this one was not among them: what a release would bring is not there.
            return Fact(key, ABSENT, "installed distributions")
        if not by_model and (implied := self._implied(key)) is not None:
            return implied
        if key == "torch.cuda" and (cuda := self._cuda_of_build()) is not None:
            return cuda
        if way.otherwise is not None:
            return way.otherwise
        if way.of_workload:
            if self.has_workload and way.default is not None:
                return way.default
            problem = problem or ("not part of the workload" if self.has_workload else "no workload was given")
        term(key)  # DoctorError for a key that is not of the vocabulary
        return Fact(key, None, "nowhere", None, problem or "not given")

    def _is_given(self, name: str) -> bool:
        """Whether a fact, or the version of a distribution, was read: neither derived from another one nor assumed."""
        key = name if name in TERMS else f"{name}.version"
        self.look_up(key)  # where it is held back, so is this
        fact = self._given.get(key)
        return fact is not None and fact.value not in (None, ABSENT) and not fact.assumed

    def _implied(self, key: str) -> Fact | None:
        """What a known release of some library brings along: torch 2.6.0 → cudnn.version 9.1.0."""
        for version_key, releases in self._implications.get(key, ()):
            if not isinstance(version_key, str):
                if version_key.holds(self):
                    return make_fact(key, releases[key], "how that release behaves")
                continue
            version = self.value(version_key)
            if version in (None, ABSENT):
                continue
            public, _, label = str(version).partition("+")
            release = releases.get(str(version) if label else self._same_build(releases, public)) or releases.get(
                public
            )
            if release is None or key not in release:
                continue
            if (
                label
                and str(version) not in releases
                and label != release.get("local")
                and ("local" in release or not cuda_of_label(label) or key.endswith(".fitting_torch"))
            ):
                continue  # another build: what it brings is not on record, unless the row holds for every CUDA
            if key != "torch.cuda" and "torch.cuda" in release:
                built_for = self._given.value("torch.cuda")
                if built_for is not None and built_for != release["torch.cuda"]:
                    continue
            return make_fact(key, release[key], f"what {version_key.removesuffix('.version')} {version} brings")
        return None

    def _cuda_of_build(self) -> Fact | None:
        """The CUDA that the label of a torch build names, whether or not that build is on record."""
        version = str(self.value("torch.version"))
        label = version.partition("+")[2]
        cuda = ABSENT if label == "cpu" else cuda_of_label(label)
        return None if cuda is None else make_fact("torch.cuda", cuda, f"the label of torch {version}")

    def _same_build(self, releases: Mapping[str, Mapping[str, Any]], public: str) -> str:
        """A release without label, or its build for another CUDA where the facts name that CUDA."""
        built_for = self._given.value("torch.cuda")
        other = f"{public}+cu{str(built_for).replace('.', '')}"
        return other if other in releases else public
