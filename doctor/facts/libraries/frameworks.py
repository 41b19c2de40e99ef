"""Who calls attention in a job: the values of `workload.framework`, as the libraries of the rules in use describe them.

They are declared when rules are loaded, as derived facts are when their module is imported: the words of facts are the
same in all of a process. Until then a framework is any word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.vocabulary import SPELLINGS, allow

from .record import flag
from .servers import Server, server_of

KEY = "workload.framework"


class Framework(NamedTuple):
    """One value of `workload.framework`."""

    word: str
    spellings: tuple[str, ...] = ()  # what people write for it, in lower case
    backends_of: str = ""  # the library whose backends serve it, where that is another one
    call: str = ""  # how a job's own code calls it
    packages: tuple[str, ...] = ()  # distributions of an environment for it, where its own name is none
    predicted_with: str = ""  # the package with which it is predicted for an environment without a job
    rank: int = 0  # the order in which such frameworks are predicted
    assumed_with: str = ""  # the package with which a job that names no framework is taken for one of it
    assumed_rank: int = 0  # the order in which such packages are looked for: the most specific first
    matrix: tuple[str, ...] = ()  # rows of the feature matrix that mean something for its calls
    sequence_first: bool = False  # the usual layout of q, k and v: tokens before samples
    is_default: bool = False  # a job that names no framework calls it
    takes_attn_implementation: bool = False  # a job chooses its attention by that option
    implementation: str = ""  # the value of that option that calls this framework
    own_implementation: str = ""  # the value that it sets itself, where its jobs do not choose
    kernel: str = ""  # the kernel program that runs the attention of its jobs
    sweep: Mapping[str, tuple[str, ...]] = {}  # backend of the sweep -> what serves it in the rules' names
    server: Server | None = None  # how it is started, where it is a server
    without_attention: bool = False  # such a job computes no attention that it states
    calls: Mapping[str, str] = {}  # its option for backends -> the framework that computes attention then

    @property
    def library(self) -> str:
        """The library whose backends serve it."""
        return self.backends_of or self.word


#: The frameworks that are declared.
FRAMEWORKS: dict[str, Framework] = {}
#: The library that describes each: only it says more than spellings.
_OWNERS: dict[str, str] = {}
#: What registers facts that depend on them.
DEPENDENT: list[Callable[[], None]] = []


def declare_frameworks(library: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add what a library file says of frameworks to the vocabulary; two libraries may add spellings of one.

    DoctorError for a word or a spelling that another library has described: it would change the jobs of others.
    """
    for row in rows:
        made = _framework(row)
        known = FRAMEWORKS.get(made.word)
        _check_owners(library, made, is_described := not row.keys() <= _SPELLINGS_ALONE)
        if known is not None and not is_described:  # of a library whose jobs it runs
            made = known._replace(spellings=tuple(dict.fromkeys((*known.spellings, *made.spellings))))
        elif known is not None:
            made = made._replace(spellings=tuple(dict.fromkeys((*made.spellings, *known.spellings))))
        if is_described:
            _OWNERS[made.word] = library
        if made != known:
            FRAMEWORKS[made.word] = made
            allow(KEY, made.word, made.spellings)


def declare_dependent_facts() -> None:
    """Register the facts that depend on which frameworks are declared."""
    for register in DEPENDENT:
        register()


def assumed_frameworks() -> list[Framework]:
    """Return the frameworks for which a job is taken that names none, the most specific first."""
    return sorted((item for item in FRAMEWORKS.values() if item.assumed_with), key=lambda item: item.assumed_rank)


def _check_owners(library: str, made: Framework, is_described: bool) -> None:
    owner = _OWNERS.get(made.word, library)
    if is_described and owner != library:
        hint = f"`{library}` takes a word of its own, or adds `spellings` only"
        raise DoctorError(f"the framework `{made.word}` is described by the library `{owner}`", hint)
    spelled = SPELLINGS.get(KEY, {})
    for spelling in made.spellings:
        meant = spelling if spelling in FRAMEWORKS else spelled.get(spelling, made.word)
        if meant != made.word:
            hint = f"`{library}` cannot use it for `{made.word}`"
            raise DoctorError(f"the spelling `{spelling}` is the framework `{meant}`", hint)


def caller_with_option() -> Framework:
    """Return the framework of a job of which only the model or `attn_implementation` is known."""
    return next((item for item in reversed(assumed_frameworks()) if item.takes_attn_implementation), Framework(""))


def predicted_frameworks() -> list[Framework]:
    """Return the frameworks that are predicted for an environment without a job, where their packages are there."""
    return sorted((item for item in FRAMEWORKS.values() if item.predicted_with), key=lambda item: item.rank)


def servers() -> dict[str, Server]:
    """Return the servers by the word of their framework."""
    return {item.word: item.server for item in FRAMEWORKS.values() if item.server is not None}


def caller_named(word: object) -> Framework:
    """Return what is known of a framework; of one that nothing describes, its word."""
    return FRAMEWORKS.get(str(word)) or Framework(str(word))


def caller_or_default(word: object) -> Framework:
    """Return what is known of a framework; for None that of a job which names none."""
    default = (item for item in FRAMEWORKS.values() if item.is_default)
    return next(default, Framework("")) if word is None else caller_named(word)


def caller_by_implementation(value: str) -> Framework | None:
    """Return the framework that `attn_implementation` with this value calls."""
    return next((item for item in FRAMEWORKS.values() if item.implementation == value), None)


_FLAGS = ("sequence_first", "is_default", "takes_attn_implementation", "without_attention")
_TEXTS = ("word", "backends_of", "call", "predicted_with", "implementation", "kernel", "assumed_with",
          "own_implementation")  # fmt: skip
_SPELLINGS_ALONE = frozenset(("word", "spellings"))


def _framework(row: Mapping[str, Any]) -> Framework:
    own: dict[str, Any] = {key: row[key] for key in _TEXTS if key in row}
    own |= {key: flag(row, key) for key in _FLAGS}
    own |= {key: tuple(row.get(key, ())) for key in ("spellings", "packages", "matrix")}
    if "server" in row:
        own["server"] = server_of(row["server"])
    own |= {key: int(row.get(key, 0)) for key in ("rank", "assumed_rank")}
    own["sweep"] = {backend: tuple(names) for backend, names in row.get("sweep", {}).items()}
    return Framework(**own, calls=row.get("calls", {}))
