"""What a rule file and a library file may say; a fault is reported with file, line and the nearest known key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from doctor.errors import DoctorError
from doctor.facts.libraries.frameworks import declare_frameworks
from doctor.facts.libraries.record import OPTION_KINDS, READING_KINDS
from doctor.facts.libraries.servers import SERVER_OPTION_KINDS
from doctor.facts.vocabulary import nearest, parse_version
from doctor.model import ABSENT, SEVERITIES
from doctor.util.reading import read_text
from doctor.util.variables import is_kernel_switch, is_variable_name
from doctor.util.yaml_text import Lines, parse_yaml

from .other_messages import other_messages
from .proofs import ANY_RANGE, NOT_REQUIRED
from .proofs import KEYS as PROOF_KEYS
from .rule import is_checked
from .shape import At, Check, Shape
from .tables import TableFault, expanded, is_table

LIBRARY = "library.yaml"  # the file that describes the library of a folder
MAX_BYTES = 1024 * 1024  # of one rule file
RULE_NEEDED = ("id", "name", "summary", "references")
EXPLANATION_NEEDED = ("category", "packages", "signatures", "tests")  # of a rule without any of those
REMEDIES = (
    "require",
    "build",
    "set_env",
    "unset_env",
    "config",
    "call",
    "note",
)  # one at least, else a fix does nothing
CALLED = ("always", "maybe")  # when a call is made, where no condition of the job decides it
SAFETIES = ("safe", "changes numbers", "risky")  # of a fix, as its rule states it
BUILDS = ("torch",)  # of which builds for several CUDA releases are on record
EXPECTATIONS = ("fires", "silent", "undetermined")
LOG_EXPECTATIONS = ("matches", "no match")
PHASES = ("decode", "prefill")  # each may have a backend of its own
PACKAGE_ROLES = ("attention", "trainer", "other")  # in what packages call of each other
AT_RUN_TOOLS = ("nvcc", "ninja", "c_compiler")  # what packages compile with while a job runs
CERTAINTIES = ("published", "seen", "reported")  # by the publisher, in a running container, by others
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
_DISTRIBUTION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Source(NamedTuple):
    """One rule or library as its author sees it: content, and the line of every part of it; of a row, its own."""

    kind: str  # library | rule
    library: str
    path: str
    content: dict[str, Any]
    lines: Lines
    in_table: bool = False

    def line(self, *at: str) -> int:
        """The line of a part, or of the nearest part around it."""
        return Shape(self.path, self.lines).line(at)


def read_sources(path: Path) -> list[Source]:
    """Return the rule or the library in a file, or all that a table holds; checked, with their lines."""
    return checked_sources(path, *parsed_file(path))


def parsed_file(path: Path) -> tuple[Shape, Any]:
    """Return the content of a rule file, and the lines of its parts."""
    content, lines = parse_yaml(read_text(path, "rule file", MAX_BYTES), str(path))
    return Shape(str(path), lines), content


def checked_sources(path: Path, shape: Shape, content: Any) -> list[Source]:
    """Return what a file states, as `read_sources`; its content is parsed already."""
    if is_table(content):
        return _rows(shape, content)
    if path.name == LIBRARY:
        declare_words(shape, content)
        check_library(shape, content)
        return [Source("library", content["name"], str(path), content, shape.lines)]
    check_rule(shape, content)
    return [Source("rule", path.parent.name, str(path), content, shape.lines)]


def _rows(shape: Shape, content: dict[str, Any]) -> list[Source]:
    """Return the rules and libraries of a table; a fault in one is reported at its row."""
    found = []
    try:
        for kind, library, body, at in expanded(content):
            row = Shape(shape.path, {(): shape.line(at)})
            (check_library if kind == "library" else check_rule)(row, body)
            found.append(Source(kind, library, shape.path, body, row.lines, in_table=True))
    except TableFault as fault:
        raise shape.fault(fault.at, fault.message) from None
    return found


def read_source(path: Path) -> Source:
    """Return the one rule or library in a file, with the lines of its parts."""
    first, *more = read_sources(path)
    if more:
        raise DoctorError(f"{path}:1: this is a table of {len(more) + 1} rules", "name one of them by its id")
    return first


def check_rule(shape: Shape, content: Any) -> None:
    """DoctorError for the first thing in a rule that does not fit the format."""
    text, texts, condition = shape.text, shape.texts, shape.condition

    def backends(value: Any, at: At) -> None:
        texts(value, at)
        for item in [value] if isinstance(value, str) else value:
            _backend_id(shape, item, at)

    shape.mapping(
        content,
        (),
        {
            "id": text, "name": text, "since": text, "summary": text, "why": text, "message": shape.sentence,
            "stage": text, "category": text, "no_pin": text, "myth": text, "import_error": text,
            "fix_reasons": text, "references": texts, "yields_to": texts, "replaces": texts, "reach": texts,
            "cause": text, "packages": texts, "benign": shape.boolean,
            "signatures": lambda value, at: _signatures(shape, value, at),
            "disables": backends, "fails_at_run": backends,
            "severity": shape.choice(SEVERITIES), "weight": shape.integer, "when": condition,
            "needs": shape.values(shape.fact_key, text),
            "examined_to": shape.values(
                lambda key, at: distribution(shape, key, at), lambda value, at: _version(shape, value, at)
            ),
            "proof": shape.items(lambda value, at: _proof(shape, value, at)),
            "confirm": lambda value, at: _confirm(shape, value, at),
            "fix": shape.items(lambda value, at: _fix(shape, value, at)),
            "tests": shape.values(text, lambda value, at: _test(shape, value, at)),
        },
        RULE_NEEDED,
    )  # fmt: skip
    if is_checked(content):
        if "when" not in content:
            raise shape.fault((), "`when` is missing")
        return
    if "signatures" not in content:
        raise shape.fault((), "`severity` is missing, and the rule neither disables a backend nor explains a log")
    for key in EXPLANATION_NEEDED:
        if key not in content:
            raise shape.fault((), f"`{key}` is missing: a rule without `severity` explains logs")


def _signatures(shape: Shape, value: Any, at: At) -> None:
    """Check signatures: each a regular expression, or one with further lines that it needs."""

    def groups(item: Any, here: At) -> None:
        shape.texts(item, here)
        for name in [item] if isinstance(item, str) else item:
            if name not in other_messages():
                known = ", ".join(f"`{one}`" for one in other_messages())
                raise shape.fault(here, f"`{name}` is no group of messages (known: {known})")

    keys: dict[str, Check] = {
        "match": shape.text, "near": shape.texts, "anywhere": shape.texts, "not_near": shape.texts,
        "frame": shape.text, "unless": groups,
    }  # fmt: skip

    def signature(item: Any, here: At) -> None:
        if isinstance(item, dict):
            shape.mapping(item, here, keys, ("match",))
        else:
            shape.text(item, here)

    if isinstance(value, list):
        shape.items(signature)(value, at)
    else:
        signature(value, at)


def _proof(shape: Shape, value: Any, at: At) -> None:
    """Check one piece of evidence: a mapping of its kind to what it states."""

    def ranges(value: Any, at: At) -> None:
        shape.texts(value, at)
        for text in [value] if isinstance(value, str) else value:
            try:
                SpecifierSet(text)
            except InvalidSpecifier:
                raise shape.fault(at, f"`{text}` is no range of releases") from None

    def required(value: Any, at: At) -> None:
        if value not in (NOT_REQUIRED, ANY_RANGE):
            ranges(value, at)

    def name(value: Any, at: At) -> None:
        distribution(shape, value, at)

    def repository(value: Any, at: At) -> None:
        if not isinstance(value, str) or not _REPOSITORY.fullmatch(value):
            raise shape.fault(at, f"`{value}` is no repository", "write `owner/name`")

    checks: dict[str, Check] = {
        "package": name, "repository": repository, "of": name, "requires": name, "file": shape.texts,
        "shows": shape.text, "hides": shape.text, "in": ranges, "range": required, "capture": shape.text,
        "url": shape.text, "find": shape.text, "extras": shape.texts, "name": shape.text, "from": name,
    }  # fmt: skip

    def content(kind: str) -> Check:
        needed, optional = PROOF_KEYS[kind]
        own = {key: checks[key] for key in (*needed, *optional)}
        return lambda value, at: shape.mapping(value, at, own, needed)

    shape.mapping(value, at, {kind: content(kind) for kind in PROOF_KEYS})
    if len(value) != 1:
        raise shape.fault(at, "an entry of `proof` has one kind", f"kinds are {', '.join(PROOF_KEYS)}")
    (kind, body) = next(iter(value.items()))
    if "repository" in PROOF_KEYS[kind][1] and len({"package", "repository"} & set(body)) != 1:
        raise shape.fault((*at, kind), "the sources are those of a `package` or of a `repository`", "name one of them")


def _confirm(shape: Shape, value: Any, at: At) -> None:
    checks: dict[str, Check] = {
        "kernel": shape.text,
        "request": lambda request, here: _request(shape, request, here),
        "regardless_of": shape.texts,
        "bad_if_any": shape.items(shape.values(shape.text, _anything)),  # on what the kernel saw, no facts
    }
    shape.mapping(value, at, checks, ("kernel",))


def _request(shape: Shape, value: Any, at: At) -> None:
    """Check a kernel's request; its `env` may hold switches only, since any other variable could make it run code."""
    shape.values(shape.text, _anything)(value, at)
    variables = value.get("env")
    if variables is None:
        return
    if not isinstance(variables, dict):
        raise shape.fault((*at, "env"), "`env` needs a mapping of variables")
    for name, text in variables.items():
        if not is_kernel_switch(name, text):
            hint = "only switches of attention libraries, such as NVTE_FLASH_ATTN, with plain values"
            raise shape.fault((*at, "env"), f"a kernel does not take the variable `{name}` with this value", hint)


def _fix(shape: Shape, value: Any, at: At) -> None:
    def variable(name: Any, here: At) -> None:
        if not is_variable_name(name):
            raise shape.fault(here, f"`{name}` is not the name of an environment variable")

    def unset(names: Any, here: At) -> None:
        shape.texts(names, here)
        for name in names if isinstance(names, list) else [names]:
            variable(name, here)

    def specifier(text: Any, here: At) -> None:
        if text == ABSENT:  # the distribution is to be uninstalled
            return
        shape.text(text, here)
        keys = _PLACEHOLDER.findall(text)
        for key in keys:
            shape.fact_key(key, here)
        if keys:
            # a bound, ">={hf.model_since}", or a whole range, "{hf.wants_tokenizers}", that follows from a fact
            text = "==0" if _PLACEHOLDER.fullmatch(text) else _PLACEHOLDER.sub("0", text)
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise shape.fault(
                here, f'`{here[-1]}` needs a version range, as ">=2.1,<2.9", or `absent`, found `{text}`'
            ) from None

    def setting(key: Any, here: At) -> None:
        shape.fact_key(key, here)
        if not key.startswith("workload."):
            raise shape.fault(here, f"`config` sets `workload.…` keys, not `{key}`")

    def url(text: Any, here: At) -> None:
        if not isinstance(text, str) or not re.match(r"https?://\S+$", text):
            raise shape.fault(here, f"`index_url` needs a URL, found `{text}`")

    def outcome(text: Any, here: At) -> None:
        _outcome(shape, text, here)

    checks: dict[str, Check] = {
        "require": shape.values(lambda key, here: distribution(shape, key, here), specifier),
        "set_env": shape.values(variable, shape.text), "unset_env": unset, "partial": shape.text,
        "config": shape.values(setting, shape.fact_value), "call": shape.sentence, "note": shape.text,
        "safety": shape.choice(SAFETIES), "risk": shape.text,
        "index_url": url, "when": shape.condition, "build": shape.choice(BUILDS),
        "then": shape.values(shape.fact_key, outcome),
    }  # fmt: skip
    shape.mapping(value, at, checks)
    if not any(key in value for key in REMEDIES):
        raise shape.fault(at, f"a fix needs one of {', '.join(REMEDIES)}")
    if value.get("safety", SAFETIES[0]) != SAFETIES[0] and "risk" not in value:
        raise shape.fault((*at, "safety"), f"`safety: {value['safety']}` needs a `risk`: one sentence that says why")


def _test(shape: Shape, value: Any, at: At) -> None:
    if isinstance(value, dict) and "log" in value:
        log: dict[str, Check] = {"log": shape.texts, "expect": shape.choice(LOG_EXPECTATIONS)}
        shape.mapping(value, at, log, ("log", "expect"))
        return
    given = shape.values(shape.fact_key, shape.fact_value)
    missing = shape.items(shape.fact_key)
    checks: dict[str, Check] = {
        "given": lambda facts, here: None if facts == {} else given(facts, here),
        "expect": shape.choice(EXPECTATIONS),
        "missing": lambda keys, here: None if keys == [] else missing(keys, here),
        "message": shape.text,
    }
    shape.mapping(value, at, checks, ("given", "expect"))


def check_library(shape: Shape, content: Any) -> None:
    """DoctorError for the first thing in a library file that does not fit the format."""
    text, texts = shape.text, shape.texts
    backends: list[str] = []

    def backend(value: Any, at: At) -> None:
        shape.mapping(
            value, at, {"id": text, "title": text, "part_of": text, "unfused": shape.boolean}, ("id", "title")
        )
        _backend_id(shape, value["id"], (*at, "id"))
        if backends and backends[0].split(".")[0] != value["id"].split(".")[0]:
            raise shape.fault((*at, "id"), f"`{value['id']}` and `{backends[0]}` need the same first part")
        if value["id"] in backends:
            raise shape.fault((*at, "id"), f"`{value['id']}` is given twice")
        backends.append(value["id"])

    def known_backend(value: Any, at: At) -> None:
        if value not in backends:
            raise shape.fault(at, f"there is no backend `{value}`", nearest(str(value), backends))

    def order(check: Check) -> Check:
        listed = shape.items(check)
        keys: dict[str, Check] = {
            "when": shape.condition,
            "order": lambda value, at: None if value == [] else listed(value, at),  # [] = none is chosen
        }
        return shape.items(lambda value, at: shape.mapping(value, at, keys, ("order",)))

    def stages(value: Any, at: At) -> None:
        plain = isinstance(value, list) and all(isinstance(item, str) for item in value)
        (shape.items(text) if plain else order(text))(value, at)

    def release(value: Any, at: At) -> None:
        _version(shape, at[-1], at)
        local = {key: item for key, item in value.items() if key != "local"} if isinstance(value, dict) else value
        if local != {}:
            shape.values(shape.fact_key, shape.fact_value)(local, at)

    def decision(value: Any, at: At) -> None:
        cases: dict[str, Check] = {
            "when": shape.condition,
            "value": lambda text, here: _outcome(shape, text, (*here, at[-2])),
        }
        shape.mapping(value, at, cases, ("value",))

    implied: dict[str, Check] = {"when": shape.condition, "facts": shape.values(shape.fact_key, shape.fact_value)}

    def each(value: Any, at: At) -> None:
        shape.items(lambda item, _: _outcome(shape, item, at))(value, at)

    usual = shape.values(shape.fact_key, each)
    companions: dict[str, Check] = {"when": shape.condition, "usual": usual}
    override: dict[str, Check] = {
        "package": lambda value, at: distribution(shape, value, at),
        "owner": lambda value, at: distribution(shape, value, at),
        "range": text, "when": shape.condition, "facts": shape.items(shape.fact_key), "source": text,
    }  # fmt: skip
    gpu: dict[str, Check] = {
        "sm": lambda value, at: shape.condition({"gpu.sm": value}, at),
        "cuda": lambda value, at: _version(shape, value, at), "memory_gib": text, "aliases": texts,
    }  # fmt: skip
    driver: dict[str, Check] = dict.fromkeys(("driver", "oldest"), lambda value, at: _version(shape, value, at))

    def held(value: Any, at: At, known: dict[str, Check]) -> None:
        keys = dict.fromkeys(value if isinstance(value, dict) else (), _anything)
        shape.mapping(value, at, {**keys, **known}, [key for key in known if key != "reported"])
        facts = {key: given for key, given in value.items() if key not in known}
        shape.values(shape.fact_key, shape.fact_value)(facts, at)

    def image(value: Any, at: At) -> None:
        known: dict[str, Check] = {
            "source": text, "certainty": shape.choice(CERTAINTIES),
            "reported": lambda value, at: held(value, at, {"source": text}),
        }  # fmt: skip
        held(value, at, known)

    names = shape.items(lambda value, at: distribution(shape, value, at))

    def pattern(value: Any, at: At) -> None:
        _pattern(shape, value, at)

    opens: dict[str, Check] = {
        "files": lambda value, at: pattern(str(value).replace("{cuda}", "128"), at), "without_cuda": pattern,
        "cuda_variable": text, "any_one": shape.boolean, "after": shape.items(pattern), "alternatives": text,
        "folders": shape.values(text, text),
    }  # fmt: skip
    at_run: dict[str, Check] = {
        "needs": shape.items(shape.choice(AT_RUN_TOOLS)), "called_by": shape.items(text), "unless": names,
    }  # fmt: skip
    package: dict[str, Check] = {
        "opens": lambda value, at: shape.mapping(value, at, opens, ("files",)),
        "modules": shape.items(text), "modules_also_in": names, "conda": shape.items(text),
        "has_load_rule": shape.boolean, "wheel_names_build": shape.boolean, "has_gpu_rule": shape.boolean,
        "has_label_rule": shape.boolean, "has_cuda_rule": shape.boolean, "has_build_rule": shape.boolean,
        "wrong_on": shape.values(text, texts),
        "held_with_torch": shape.boolean, "role": shape.choice(PACKAGE_ROLES),
        "compiles_at_run": lambda value, at: shape.mapping(value, at, at_run, ("needs", "called_by")),
    }  # fmt: skip

    def called(value: Any, at: At) -> None:
        if value not in CALLED:
            shape.condition(value, at)

    facts = shape.values(shape.fact_key, shape.fact_value)

    def some_facts(value: Any, at: At) -> None:
        if value != {}:
            facts(value, at)

    def fact_keys(value: Any, at: At) -> None:
        for key in value if isinstance(value, list) else [value]:
            shape.fact_key(key, at)

    script_call: dict[str, Check] = {
        "call": texts, "facts": facts, "arguments": shape.values(text, fact_keys), "positional": texts,
        "values": shape.values(text, shape.values(text, some_facts)), "rank": shape.integer, "options": text,
        "assigned": shape.boolean,
    }  # fmt: skip

    def patterns(value: Any, at: At) -> None:
        shape.items(pattern)(value, at)

    options = _options(shape, OPTION_KINDS)
    reading: dict[str, Check] = {
        "kind": shape.choice(READING_KINDS), "word": text, "options": texts, "value": _anything, "named": text,
        "given": texts, "without": texts, "four_bit": texts, "words": _anything, "pattern": pattern,
        "assumed": shape.boolean,
    }  # fmt: skip
    trainer: dict[str, Check] = {
        "id": text, "title": text, "framework": text, "trainer": text, "general": shape.boolean,
        "config": lambda value, at: shape.mapping(value, at, {"all": texts, "any": texts}, ("any",)),
        "config_option": text, "programs": shape.values(text, texts), "modules": patterns, "scripts": patterns,
        "launchers": texts, "launcher_option": text, "script": pattern, "script_options": shape.items(texts),
        "reads_config_of_scripts": shape.boolean, "takes_assignments": shape.boolean,
        "needs": shape.values(text, texts), "alone": options, "options": options,
        "readings": shape.items(lambda value, at: shape.mapping(value, at, reading, ("kind",))),
    }  # fmt: skip
    attention_call: dict[str, Check] = {
        "id": text, "title": text, "package": texts, "env": _anything,
        "compiled": shape.boolean, "when": shape.condition, "select": shape.values(text, text),
    }  # fmt: skip
    checks: dict[str, Check] = {
        "attention_calls": shape.items(
            lambda value, at: shape.mapping(value, at, attention_call, ("id", "title", "select"))
        ),
        "frameworks": _anything,  # `declare_words` has checked them
        "trainers": shape.items(lambda value, at: shape.mapping(value, at, trainer, ("id", "title"))),
        "backends": shape.items(backend),
        "name": text, "title": text, "import_name": text, "environment": texts, "references": texts,
        "distributions": lambda value, at: None if value == [] else names(value, at), "seldom": names,
        "unregistered": names,
        "packages": shape.values(
            lambda key, at: distribution(shape, key, at), lambda value, at: shape.mapping(value, at, package)
        ),
        "modules": shape.values(text, lambda value, at: distribution(shape, value, at)),
        "releases": shape.values(_anything, release), "applies": shape.condition, "stages": stages,
        "preference": order(known_backend), "variants": shape.values(known_backend, order(known_backend)),
        "choice": lambda value, at: shape.mapping(value, at, dict.fromkeys(PHASES, shape.fact_key), PHASES),
        "decisions": shape.values(shape.fact_key, shape.items(decision)),
        "implies": shape.items(lambda value, at: shape.mapping(value, at, implied, ("when", "facts"))),
        "companions": shape.items(lambda value, at: shape.mapping(value, at, companions, ("when", "usual"))),
        "calls": shape.values(text, shape.values(text, called)), "reach": texts, "needed": shape.condition,
        "script_calls": shape.items(lambda value, at: shape.mapping(value, at, script_call, ("call",))),
        "overrides": shape.items(lambda value, at: shape.mapping(value, at, override, override)),
        "gpus": shape.values(text, lambda value, at: shape.mapping(value, at, gpu, ("sm",))),
        "cuda_drivers": shape.values(_anything, lambda value, at: shape.mapping(value, at, driver)),
        "images": shape.values(text, shape.values(text, image)),
    }  # fmt: skip
    if isinstance(content, dict) and isinstance(content.get("backends"), list):  # first: others name them
        checks["backends"](content["backends"], ("backends",))
        checks["backends"] = _anything
    shape.mapping(content, (), checks, ("name", *(("distributions",) if "companions" in (content or ()) else ())))
    if content.get("companions") and not content["distributions"]:
        raise shape.fault(("companions",), "`companions` needs a distribution whose releases have them")
    for index, item in enumerate(content.get("backends") or ()):
        if "part_of" in item:
            known_backend(item["part_of"], ("backends", str(index), "part_of"))


def declare_words(shape: Shape, content: Any) -> None:
    """Add the words of a library to the vocabulary; DoctorError for a faulty one. Conditions may name them then."""
    rows = content.get("frameworks") if isinstance(content, dict) else None
    if rows is None:
        return
    text, texts = shape.text, shape.texts
    framework: dict[str, Check] = {
        "word": text, "spellings": texts, "backends_of": text, "call": text, "packages": texts,
        "predicted_with": lambda value, at: distribution(shape, value, at), "rank": shape.integer,
        "matrix": texts, "sequence_first": shape.boolean, "takes_attn_implementation": shape.boolean,
        "implementation": text,
        "calls": shape.values(text, text),
        "server": lambda value, at: shape.mapping(value, at, _server_checks(shape), ("title", "package")),
    }  # fmt: skip
    shape.items(lambda value, at: shape.mapping(value, at, framework, ("word",)))(rows, ("frameworks",))
    declare_frameworks(rows)


def _server_checks(shape: Shape) -> dict[str, Check]:
    options = _options(shape, SERVER_OPTION_KINDS)

    def command(value: Any, at: At) -> None:
        if value != []:
            shape.items(shape.text)(value, at)

    return {
        "title": shape.text, "package": lambda value, at: distribution(shape, value, at),
        "programs": shape.values(shape.text, shape.text),
        "modules": shape.items(lambda value, at: _pattern(shape, value, at)),
        "images": shape.values(shape.text, command), "options": options,
        "json_options": shape.values(shape.text, options),
    }  # fmt: skip


def _options(shape: Shape, kinds: Sequence[str]) -> Check:
    """Return the check of options: each with the word that it states, and its kind or the words for its values."""

    def kind(value: Any, at: At) -> None:
        if not isinstance(value, dict):
            shape.choice(kinds)(value, at)

    return shape.values(shape.text, shape.values(lambda word, at: shape.fact_key(f"workload.{word}", at), kind))


def _pattern(shape: Shape, value: Any, at: At) -> None:
    shape.text(value, at)
    try:
        with catch_warnings():
            simplefilter("ignore")  # of Python, on a pattern that it will read differently some day
            re.compile(value)
    except (re.error, RecursionError, OverflowError) as problem:
        raise shape.fault(at, f"`{value}` is no regular expression: {problem}") from None


def _backend_id(shape: Shape, value: str, at: At) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*\.[a-z][a-z0-9_]*", value):
        raise shape.fault(at, f"a backend id reads library.backend, found `{value}`")


def distribution(shape: Shape, value: Any, at: At) -> None:
    """A distribution's name in its normal form, as fact keys carry it."""
    if not isinstance(value, str) or not _DISTRIBUTION.fullmatch(value):
        normal = re.sub(r"[-_.]+", "-", str(value)).lower()
        raise shape.fault(at, f"`{value}` is no normalized distribution name", f"did you mean `{normal}`?")


def _version(shape: Shape, value: Any, at: At) -> None:
    try:
        parse_version(value)
    except (InvalidVersion, TypeError):
        raise shape.fault(at, f"`{value}` is no version") from None


def _outcome(shape: Shape, text: Any, here: At) -> None:
    """A value, or `{workload.head_dim_qk}`: what that fact is."""
    if not isinstance(text, str) or not re.fullmatch(r"\{[^{}]+\}", text):
        shape.fact_value(text, here)
    else:
        shape.fact_key(text[1:-1], here)


def _anything(value: Any, at: At) -> None:
    """No demand on a value that another program reads."""
