"""Facts files: written by `snapshot`, by hand, or printed by other programs; read by `--facts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doctor._version import __version__
from doctor.errors import DoctorError
from doctor.facts.long_form import read_fact
from doctor.facts.vocabulary import nearest, term
from doctor.facts.workload import workload_facts
from doctor.model import Fact, Facts
from doctor.util.credentials import without_credentials
from doctor.util.reading import read_text
from doctor.util.redact import NOT_READ, is_secret, shortened, tilde
from doctor.util.yaml_text import parse_yaml

from .printed_form import is_printed

SCHEMA = 1  # of the file

_TOP = ("schema", "tool", "facts", "workload")
_PREFIX = "workload."


def read_facts(path: Path) -> Facts:
    """Return the facts of a file: a snapshot, a hand-written one, or a report of `check --format json`."""
    return parse_facts(read_text(path, "facts file", named=True), str(path))


def parse_facts(text: str, origin: str) -> Facts:
    """Return the facts in a text; DoctorError names `origin` and the error."""
    if is_printed(text):
        from .printed import printed_facts  # door: manifest reader

        return printed_facts(text, origin)
    content = _load(text, origin)
    if content is None or content == "":
        raise DoctorError(f"facts file `{origin}` is empty")
    if not isinstance(content, dict):
        raise DoctorError(f"facts file `{origin}` needs a mapping, found {_kind(content)}")
    _check_schema(content.get("schema"), origin)
    pairs = _pairs(content, origin)
    words = {key: pairs.pop(key) for key in list(pairs) if key.startswith(_PREFIX)}
    facts = Facts(_fact(key, value, origin) for key, value in pairs.items())
    source = f"facts file {tilde(origin)}"
    workload = workload_facts(words, lambda key: source, lambda key: f"facts file `{origin}`: ", recorded=True)
    return facts.with_(*workload.values())


def _pairs(content: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return fact key -> content; the file is flat or has a `facts:` section, with or without `workload:`."""
    wrapped = content.get("facts")
    if "facts" in content and not isinstance(wrapped, dict):
        raise DoctorError(f"facts file `{origin}`: `facts` needs a mapping, found {_kind(wrapped)}")
    outside = {key: value for key, value in content.items() if key not in _TOP}
    if wrapped is not None:
        if "findings" in content:  # a report: its other sections are results
            outside = {}
        for key in outside:
            if not _is_fact_key(key):
                raise DoctorError(f"facts file `{origin}`: unknown key `{key}`", nearest(key, _TOP))
    inside = dict(wrapped or {})
    workload = {**_workload(inside.pop("workload", None), origin), **_workload(content.get("workload"), origin)}
    return {**outside, **inside, **workload}


def _is_fact_key(key: str) -> bool:
    try:
        term(key)
    except DoctorError:
        return False
    return True


def _workload(section: Any, origin: str) -> dict[str, Any]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise DoctorError(f"facts file `{origin}`: `workload` needs a mapping, found {_kind(section)}")
    return {key if key.startswith(_PREFIX) else _PREFIX + key: value for key, value in section.items()}


def _fact(key: str, given: Any, origin: str) -> Fact:
    value = given.get("value") if isinstance(given, dict) else given
    try:
        found = read_fact(key, given, f"facts file {tilde(origin)}")
    except DoctorError as error:
        raise DoctorError(f"facts file `{origin}`: {error.message}", error.hint) from None
    if key.startswith("env.") and isinstance(value, str) and is_secret(key[4:], value):
        return Fact(key, None, found.source, problem=NOT_READ)
    return found


def _check_schema(given: Any, origin: str) -> None:
    if given is None:
        return
    try:
        schema = int(str(given))
    except ValueError:
        raise DoctorError(
            f"facts file `{origin}`: `schema` needs a number, found `{shortened(str(given), 40)}`"
        ) from None
    if schema > SCHEMA:
        raise DoctorError(
            f"facts file `{origin}` has schema {schema}, and this attn-doctor ({__version__}) reads up to {SCHEMA}",
            "upgrade attn-doctor",
        )


def _load(text: str, origin: str) -> Any:
    """Parse JSON or YAML, by the content; scalars stay text in both, as 2.10 is not 2.1."""
    start = text.lstrip()[:1]
    if origin.endswith(".json") or start in ("{", "["):
        if not start:
            return None
        try:
            return _load_json(text, origin)
        except ValueError as problem:
            if origin.endswith(".json"):
                where = f":{problem.lineno}" if hasattr(problem, "lineno") else ""
                raise DoctorError(f"{origin}{where}: not JSON: {getattr(problem, 'msg', problem)}") from None
            # A YAML flow mapping begins with the same character.
    return parse_yaml(text, origin)[0]


def _load_json(text: str, origin: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DoctorError(f"facts file `{origin}`: `{twice}` is given twice")
        return built

    try:
        return json.loads(text, object_pairs_hook=once, parse_float=str, parse_int=str, parse_constant=str)
    except RecursionError:
        raise DoctorError(f"facts file `{origin}` is nested too deeply") from None


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else "a plain text"


def document(facts: Facts) -> dict[str, Any]:
    """Return the long form of the facts, ready for JSON, with home folders as `~`."""
    shown: dict[str, Any] = {"schema": SCHEMA, "tool": f"attn-doctor {__version__}", "facts": {}}
    workload: dict[str, Any] = {}
    for key in sorted(facts):
        fact = facts[key]
        entry: dict[str, Any] = {"value": _redacted(fact.value), "source": _redacted(fact.source)}
        if fact.raw is not None:
            entry["raw"] = _redacted(fact.raw)
        if fact.problem is not None:
            entry["problem"] = _redacted(fact.problem)
        if fact.assumed:
            entry["assumed"] = True
        if fact.via is not None:
            entry["via"] = fact.via
        if key.startswith(_PREFIX):
            workload[key.removeprefix(_PREFIX)] = entry
        else:
            shown["facts"][key] = entry
    if workload:
        shown["workload"] = workload
    return shown


def _redacted(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_redacted(item) for item in value]
    return without_credentials(tilde(value)) if isinstance(value, str) else value
