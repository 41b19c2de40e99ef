"""In which releases of a package a module, name, member or argument exists, from data that ships with the doctor."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from doctor.util.resources import rules_dir

_IMPORT = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")
_MODULE = re.compile(r"No module named '?(?P<module>\w+(?:\.\w+)+)")
_MODULE_NAME = re.compile(r"module '?(?P<module>[\w.]+)'? has no attribute '?(?P<name>\w+)'?")
_MODEL = re.compile(r"(?:model type `|KeyError: ')(?P<model>[a-z][\w-]+)['`]")
_MEMBER = re.compile(r"(?:type object )?'(?P<label>\w+)' (?:object )?has no attribute '(?P<name>\w+)'")
_ARGUMENT = re.compile(r"(?P<label>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_REQUIRED = re.compile(
    r"(?P<label>[\w.]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: '(?P<name>\w+)'"
)
_CALLED = re.compile(r"TypeError: (?P<label>[\w.]+)\(\) ")
_IN_FUNCTION = re.compile(r'^\s*File "[^"\n]+", line \d+, in (\w+)', re.MULTILINE)
_BARE = re.compile(r"TypeError: __init__\(\) got an unexpected keyword argument")
_UNDEFINED = re.compile(r"NameError: name '(?P<name>\w+)' is not defined")
#: Names that are hardly those of a script: constants, and classes of several words.
_OF_LIBRARY = re.compile(r"_?[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+|_?(?:[A-Z]+[a-z0-9]+){2,}[A-Z]*")
#: Functions of four words and more.
_LONG_FUNCTION = re.compile(r"(?=.{20})_?[a-z0-9]+(?:_[a-z0-9]+){3,}")
#: What the class of a model is called, also one that no package on record has.
_MODEL_CLASS = re.compile(r"(?:Model|LM|Decoder|Encoder|For[A-Z]\w{2,30})$")
#: Classes of trl, of projects and of scripts whose base is a class of transformers.
_TRAINER_CLASS = re.compile(r"Trainer$")
_TRAINER_OPTIONS = re.compile(r"(?:^|[a-z])(?:TrainingArguments|(?:[A-Z]{3,5}|Reward|Online)Config)$")
#: Classes that the code of a model brings itself; servers have copies of them.
_OF_MODEL_CODE = re.compile(r"(?:Tokenizer|TokenizerFast|Processor|Config)$")
_CLASS = re.compile(r"'(?P<a>[A-Z]\w+)' object has no attribute|type object '(?P<b>\w+)'|\b(?P<c>[A-Z]\w+)\.\w+\(\) ")
#: Words that name a part of many classes: they say something of one class only.
#: The package whose messages about its models and trainers have shapes of their own, below.
_OF_MODELS = "transformers"
_PLAIN = re.compile(r"[a-z]+")
_LAST_WORD = re.compile(r"[A-Z][a-z]+$")
#: Classes that projects patch: what is missing there may be the patch, which did not fit the release.
_PATCHED = re.compile(r"Attention|Attn|DecoderLayer")
_LONG = 12  # characters that a name of one library only has more of
_FEW = 40  # releases on record that say nothing of which are old
_Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class NameHistory:
    """The releases that have what a message misses, of those that were read: one of each minor version."""

    package: str
    what: str  # `X` of `package.module`
    releases: tuple[str, ...]  # in order
    runs: _Runs  # first and last release of each span in which it is as the caller expects
    home: str | None = None  # the module that has the name in the newest release
    spelled: str | None = None  # the name, where the message has it in another spelling

    @property
    def specifier(self) -> str:
        """Return the longest range of releases that fit, of equal ones the newest: callers are written for that."""
        first, last = max(self.runs, key=lambda run: (run[1] - run[0], run))
        low = f">={self.releases[first]}" if first else ""
        high = f"<{self._bound(last)}" if last + 1 < len(self.releases) else ""
        return ",".join(bound for bound in (low, high) if bound)

    @property
    def explains(self) -> bool:
        """Whether releases that may be installed lack it: not if all but the oldest on record have it."""
        first, last = self.runs[-1]
        return first * 6 >= len(self.releases) or last + 1 < len(self.releases) or len(self.releases) < _FEW

    @property
    def sentence(self) -> str:
        """Return the ranges in words."""
        return f"{self.package} has {self.what} {' and '.join(self._spans())}"

    def _spans(self) -> Iterator[str]:
        for first, last in self.runs:
            begin = "" if first == 0 else f"from {self.releases[first]} "
            if last + 1 == len(self.releases):
                yield f"{begin}on"
            else:
                yield f"{begin}up to {self.releases[last]}, and no longer in {self._bound(last)}"

    def _bound(self, last: int) -> str:
        """Return the minor version after a release; the next release where both are of one minor version."""
        after = self.releases[last + 1]
        return after if _minor(after) == _minor(self.releases[last]) else _minor(after)


def _minor(release: str) -> str:
    return ".".join(map(str, Version(release).release[:2]))


def history_of(line: str, owner: Callable[[str], str | None], expected: Sequence[str] = ()) -> NameHistory | None:
    """Return the releases that have what the message of a line misses; None where that is unknown or does not differ.

    `owner`: the distribution of an imported module. `expected`: the packages of which one has to be meant; without
    them, a class or function that several packages have says nothing.
    """
    for found in _attempts(line, owner):
        known = [made for made in found if made is not None and made.explains]
        fitting = [made for made in known if made.package in expected] if expected else known
        if len(fitting) == 1 or (fitting and expected):
            return fitting[0]
    return None


def is_unheard_of(line: str, owner: Callable[[str], str | None], *, called_from: str) -> bool:
    """Return whether no release on record ever had what a line misses: a slip of the caller, not another release.

    `called_from`: the file that misses it; without it, only an import counts. Packages with compiled modules, and those
    of which only some names are on record, say nothing.
    """
    if found := _IMPORT.search(line) or (_MODULE_NAME.search(line) if called_from else None):
        package = owner(found["module"].partition(".")[0])
        return package is not None and package in _complete() and found["name"] not in _ever(package)
    member, argument = _MEMBER.search(line), _ARGUMENT.search(line)
    found = member or argument
    if found is None or not called_from or _PATCHED.search(found["label"]):
        return False
    label = found["label"].partition(".")[0]
    known = any(label in _ever(name) for name in _complete())
    if not known and (argument or any(label in _ever(name) for name in _packages())):
        return False
    if member and _PLAIN.fullmatch(found["name"]) and any(label in _classes(name) for name in _complete()):
        return not any(_has_member(name, label, found["name"]) for name in _complete())
    if member and not known:
        return not any(_has_like(name, label, found["name"]) for name in _complete())
    return not any(found["name"] in _ever(name) for name in _packages())


def _has_like(package: str, label: str, name: str) -> bool:
    """Return whether several classes whose name ends with the same word gained or lost a member: one may be a base."""
    word = _LAST_WORD.search(label)
    ending = f"{word[0] if word else label} {name}"
    return len([key for key in _known(package)["c"] if key.endswith(ending)]) > 1


def _has_member(package: str, label: str, name: str, depth: int = 3) -> bool:
    """Return whether a member of a class, or of its bases, is in the history: it came or went with a release."""
    known = _known(package)
    bases = known["bases"].get(label, ()) if depth else ()
    return f"{label} {name}" in known["c"] or any(_has_member(package, base, name, depth - 1) for base in bases)


def with_class(line: str, around: str) -> str:
    """Return a line of Python before 3.10, which says `__init__()` only, with the class that the call names."""
    found = _BARE.search(line)
    if found is None:
        return line
    call = re.search(rf"\b([A-Z]\w+)\([^\n]{{0,200}}\n(?:[ ~^]*\n)?[^\n]{{0,40}}{re.escape(found[0])}", around)
    return line.replace("__init__()", f"{call[1]}.__init__()", 1) if call else line


def is_wrapped(line: str, around: str) -> bool:
    """Return whether a function of the same name makes the call that fails, as in a package that wraps it."""
    found = _CALLED.search(line)
    frames = _IN_FUNCTION.findall(around.partition(line)[0]) if found else []
    return bool(found and frames and frames[-1] == found["label"].rpartition(".")[2])


def class_owner(line: str) -> str | None:
    """Return the package that has the class of a message; None where none has, or several."""
    found = _CLASS.search(line)
    label = next(name for name in found.groups() if name) if found else ""
    if not _OF_LIBRARY.fullmatch(label) or _OF_MODEL_CODE.search(label):
        return None
    having = [name for name in _packages() if label in _known(name)["g"] or label in _known(name)["bases"]]
    return having[0] if len(having) == 1 else None


def _attempts(line: str, owner: Callable[[str], str | None]) -> Iterator[list[NameHistory | None]]:
    """Yield for each form of a message what each package says of it."""
    for pattern in (_IMPORT, _MODULE_NAME):
        if found := pattern.search(line):
            yield [_of_name(owner(found["module"].partition(".")[0]), found["module"], found["name"])]
    if (found := _MODULE.search(line)) and (package := owner(found["module"].partition(".")[0])):
        yield [_made(package, "m", found["module"], f"module `{found['module']}`")]
    if found := _MODEL.search(line):
        model = found["model"].replace("-", "_")
        yield [_made(_OF_MODELS, "m", f"transformers.models.{model}", f"the model type `{found['model']}`")]
    if found := _MEMBER.search(line):
        yield [_of_member(package, found["label"], found["name"]) for package in _packages()]
        yield [_of_model(found["label"], found["name"]), _of_trainer(found["label"], found["name"])]
    if found := _ARGUMENT.search(line):
        key, what = f"{_called(found['label'])} {found['name']}", f"argument `{found['name']}` of `{found['label']}`"
        yield [_made(package, "a", key, what) for package in _packages()]
        label, _, function = found["label"].rpartition(".")
        if function == "__init__" and _TRAINER_OPTIONS.search(label):
            key, what = (
                f"TrainingArguments.__init__ {found['name']}",
                f"argument `{found['name']}` of `TrainingArguments`",
            )
            yield [_made(_OF_MODELS, "a", key, what)]
    if found := _REQUIRED.search(line):
        yield [_of_required(package, _called(found["label"]), found["name"]) for package in _packages()]
    if found := _UNDEFINED.search(line):
        if _LONG_FUNCTION.fullmatch(found["name"]):  # others copy functions of transformers
            yield [_made(_OF_MODELS, "g", found["name"], f"`{found['name']}`")]
        elif _OF_LIBRARY.fullmatch(found["name"]):
            yield [_made(package, "g", found["name"], f"`{found['name']}`") for package in _packages()]


def _called(label: str) -> str:
    """Return class and function of a qualified name."""
    return ".".join(label.replace(".<locals>", "").split(".")[-2:])


def _of_name(package: str | None, module: str, name: str) -> NameHistory | None:
    if package is None:
        return None
    home = _known(package).get("homes", {}).get(name)
    what = f"`{name}` in `{module}`"
    home = home if home != module else None
    inside = _exported(package, module, name) if "." in module else ()
    return (
        _made(package, "n", f"{module} {name}", what, home)
        or _spanning(package, inside, what, home)
        or _made(package, "g", name, f"`{name}`", home)
        or _misspelled(package, name)
    )


def _misspelled(package: str, name: str) -> NameHistory | None:
    """Return the history of the one name that differs from a long one in underscores and case only."""
    known = _known(package)
    right = _plain_names(package).get(_plain(name), ()) if len(name) > _LONG else ()
    if len(right) != 1 or name in known.get("g", ()):
        return None
    runs = _spans(known["g"][right[0]])
    return NameHistory(package, f"`{right[0]}` (not `{name}`)", tuple(known["releases"]), runs, spelled=right[0])


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _plain_names(package: str) -> dict[str, tuple[str, ...]]:
    """Return the names of a package by their form without underscores and case."""
    found: dict[str, tuple[str, ...]] = {}
    for name in _known(package).get("g", ()):
        found[_plain(name)] = (*found.get(_plain(name), ()), name)
    return found


def _exported(package: str, module: str, name: str) -> _Runs:
    """Return the spans of a name in the modules of a folder, whose `__init__` passes names on."""
    keys = (key for key in _known(package).get("n", ()) if key.startswith(f"{module}.") and key.endswith(f" {name}"))
    held = {at for key in keys for first, last in _spans(_known(package)["n"][key]) for at in range(first, last + 1)}
    firsts = sorted(at for at in held if at - 1 not in held)
    return tuple(zip(firsts, sorted(at for at in held if at + 1 not in held), strict=True))


def _of_member(package: str, label: str, name: str, depth: int = 3) -> NameHistory | None:
    known = _known(package)
    if f"{label} {name}" in known["c"]:
        return _made(package, "c", f"{label} {name}", f"`{name}` in class `{label}`")
    bases = known["bases"].get(label, ()) if depth else ()
    return next((made for base in bases if (made := _of_member(package, base, name, depth - 1))), None)


def _of_model(label: str, name: str) -> NameHistory | None:
    """Return the history of what the base classes of models had and lost; a name that is too plain says nothing."""
    if not _MODEL_CLASS.search(label) or len(name) < 10 or "_" not in name:
        return None
    bases = (_of_member(_OF_MODELS, base, name) for base in ("PreTrainedModel", "ModuleUtilsMixin"))
    made = next((found for found in bases if found is not None), None)
    return made if made is not None and made.runs[-1][1] + 1 < len(made.releases) else None


def _of_trainer(label: str, name: str) -> NameHistory | None:
    """Return the history of what the base class of trainers, or of their options, had."""
    if _TRAINER_CLASS.search(label):
        return _of_member(_OF_MODELS, "Trainer", name)
    return _of_member(_OF_MODELS, "TrainingArguments", name) if _TRAINER_OPTIONS.search(label) else None


def _of_required(package: str, label: str, name: str) -> NameHistory | None:
    """Return the releases that do not require an argument."""
    requiring = _made(package, "r", f"{label} {name}", "")
    if requiring is None:
        return None
    edges = [0, *(edge for first, last in requiring.runs for edge in (first, last + 1)), len(requiring.releases)]
    free = tuple((a, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
    return NameHistory(package, f"`{label}` without a required `{name}`", requiring.releases, free) if free else None


def _made(package: str, kind: str, key: str, what: str, home: str | None = None) -> NameHistory | None:
    known = _known(package)
    return _spanning(package, _spans(known[kind][key]), what, home) if known and key in known[kind] else None


def _spans(text: str) -> _Runs:
    pairs = (span.split("-") for span in text.split(","))
    return tuple((int(first), int(last)) for first, last in pairs)


def _spanning(package: str, runs: _Runs, what: str, home: str | None) -> NameHistory | None:
    """Return the history of these spans; None where there is none, or where all releases have it."""
    releases = tuple(_known(package).get("releases", ()))
    return None if runs in ((), ((0, len(releases) - 1),)) else NameHistory(package, what, releases, runs, home)


@cache
def _complete() -> dict[str, list[str]]:
    """Return the packages of which every name is known, with the names that their history leaves out."""
    file = rules_dir() / "index" / "known_names.json.xz"
    return dict(json.loads(lzma.decompress(file.read_bytes())))


@cache
def _classes(package: str) -> frozenset[str]:
    """Return the classes whose members are on record."""
    return frozenset((*_known(package)["bases"], *(key.partition(" ")[0] for key in _known(package)["c"])))


@cache
def _ever(package: str) -> frozenset[str]:
    """Return every name on record that some release of a package had."""
    return recorded(package).union(_complete().get(package, ()))


def recorded(package: str) -> frozenset[str]:
    """Return every name in the history of a package: what came or went, and the classes it belongs to."""
    known = _known(package)
    keys = (key for kind in ("n", "g", "c", "a", "r") for key in known[kind])
    return frozenset((*known["bases"], *(word for key in keys for word in key.split(" "))))


def _folder() -> Path:
    return rules_dir() / "index" / "names"


@cache
def _packages() -> tuple[str, ...]:
    """Return the packages on record."""
    return tuple(sorted(path.name.removesuffix(".json.gz") for path in _folder().glob("*.json.gz")))


@cache
def _known(package: str) -> dict[str, Any]:
    """Return the record of a package; empty where there is none."""
    if package not in _packages():
        return {}
    with gzip.open(_folder() / f"{package}.json.gz", "rt", encoding="utf-8") as stream:
        return dict(json.load(stream))
