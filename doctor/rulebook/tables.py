"""Generated knowledge as rows: each row of a table becomes a rule, or entries of a library, when rules are compiled.

A file with `table:` holds the templates of its kind, written by hand, and the rows, written by a script from released
packages. A row says which releases of a package were read and what they say; conditions, fixes and tests follow.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier
from packaging.version import InvalidVersion, Version

from doctor.model import ABSENT

from .table_ranges import Span, capped, outside, sample, within, without_previews

Body = dict[str, Any]
At = tuple[str, ...]
_KEY = re.compile(r"([A-Z]+\d{3}) ([a-z0-9-]+) ([a-z]+) ([a-z0-9-]+)")
_WORD = re.compile(r"<(\w+)>")
ROWS = "rows"
TABLES = "tables"  # the folder of the tables
_IDS = re.compile(r"^  ([A-Z]+\d{3}) [^:]+:", re.MULTILINE)


class Made(NamedTuple):
    """One rule or library of a table, and the place of its row."""

    kind: str  # rule | library
    library: str
    body: Body
    at: At


class TableFault(Exception):
    """A part of a table that cannot be read."""

    def __init__(self, at: At, message: str) -> None:
        super().__init__(message)
        self.at, self.message = at, message


class RowKey(NamedTuple):
    """The key of a row: `IMP063 mamba-ssm imports transformers`."""

    id: str
    caller: str
    verb: str
    callee: str

    @classmethod
    def of(cls, text: str) -> RowKey:
        """Read a key; TableFault for anything else."""
        found = _KEY.fullmatch(text)
        if found is None:
            raise TableFault((ROWS, text), f"`{text}` needs the form `ID caller verb callee`")
        return cls(*found.groups())


def is_table(content: Any) -> bool:
    """Whether the content of a file is a table."""
    return isinstance(content, Mapping) and "table" in content


def expanded(content: Mapping[str, Any]) -> Iterator[Made]:
    """Yield the rules and libraries that a table holds; TableFault names the place of what cannot be read."""
    kind = content["table"]
    if kind not in KINDS:
        raise TableFault(("table",), f"`table` needs one of {', '.join(KINDS)}, found `{kind}`")
    for needed in ("library", ROWS):
        if needed not in content:
            raise TableFault((), f"`{needed}` is missing")
    yield from KINDS[kind](content)


def libraries_in(content: Mapping[str, Any]) -> Iterator[Body]:
    """Yield the libraries that a table holds; TableFault as `expanded`."""
    if content["table"] == "models":
        yield from (made.body for made in expanded(content))


@functools.cache
def table_ids(folder: Path) -> frozenset[str]:
    """Return the ids of all rows in the tables of a folder of rules."""
    return frozenset(found for path in (folder / TABLES).glob("*.yaml") for found in row_ids(path))


def row_ids(path: Path) -> list[str]:
    """Return the ids of the rows in one table."""
    return _IDS.findall(path.read_text(encoding="utf-8"))


def _rules(of_row: Callable[[RowKey, Mapping[str, Any]], Body]) -> Callable[[Mapping[str, Any]], Iterator[Made]]:
    """Return the expansion of a table whose rows are rules: what `of_row` makes, in the words of a template."""

    def expand(content: Mapping[str, Any]) -> Iterator[Made]:
        templates = content.get("templates") or {}
        for text, row in content[ROWS].items():
            key = RowKey.of(text)
            at = (ROWS, text)
            if key.verb not in templates:
                raise TableFault(at, f"there is no template `{key.verb}`")
            try:
                body = of_row(key, row)
            except (KeyError, ValueError, TypeError, InvalidSpecifier, InvalidVersion) as problem:
                raise TableFault(at, f"the row cannot be read: {problem}") from None
            yield Made("rule", content["library"], filled(templates[key.verb], key, row) | body, at)

    return expand


def filled(template: Mapping[str, Any], key: RowKey, row: Mapping[str, Any]) -> Body:
    """Return what a template says of a row; the row's own text wins."""
    where = f" (for {_listed(row['for'])})" if "for" in row else ""
    words = {"caller": key.caller, "callee": key.callee, "where": where}

    texts = {name: _WORD.sub(lambda found: words[found[1]], text) for name, text in template.items()}
    own = {name: row[name] for name in _OWN if name in row}
    return {"id": key.id, "name": f"{key.caller}-{key.verb}-{key.callee}", **texts, **own}


#: Parts of a rule that a row may state by itself.
_OWN = ("name", "severity", "reach", "yields_to", "replaces", "summary", "why", "references", "no_pin")


def _listed(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _imports(key: RowKey, row: Mapping[str, Any]) -> Body:
    """Return conditions and fixes of releases that import names which other releases lack."""
    caller, callee = f"{key.caller}.version", f"{key.callee}.version"
    cases: list[Body] = []
    fixes: dict[tuple[str, str], list[Body]] = {}
    tests = _Tests(caller, callee)
    for text, item in _of_releases(row):
        callers, lacking = map(Span.of, text.split(" with ", 1))
        cases.append({caller: callers.range, callee: lacking.range})
        if "use" in item:
            fixes.setdefault((key.callee, item["use"]), []).append({caller: callers.range})
        if "or" in item:
            fixes.setdefault((key.caller, item["or"]), []).append({callee: lacking.range})
        tests.add(callers.last, lacking.example, lacking.adjacent)
    newest = {key.caller: callers.last, key.callee: lacking.example}
    proofs = _import_proofs(key, row)
    body: Body = {
        **({"proof": proofs} if proofs else {}),
        "references": [f"https://pypi.org/project/{name}/{version}/#files" for name, version in newest.items()],
        "when": {"any": cases},
    }
    shown = row.get("shown") or _names(key, row)
    body["why"] = f"It imports these names at the top of a module, without a check: {shown}."
    if fixes:
        body["fix"] = [{"require": {package: span}, "when": _any_of(found)} for (package, span), found in fixes.items()]
    return body | {"tests": tests.found}


def _shown_names(row: Mapping[str, Any]) -> Iterator[tuple[str, Span, list[Span], list[str]]]:
    """Yield each name of a row: the releases that import it, those that lack it, and the files that import it."""
    for name, item in row.items():
        if isinstance(item, Mapping) and "missing" in item:
            missing = [Span.of(text) for text in as_list(item["missing"])]
            yield name, Span.of(item["in"]), missing, as_list(item.get("file", []))


def as_list(value: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [value] if isinstance(value, str) else value


def _import_proofs(key: RowKey, row: Mapping[str, Any]) -> list[Body]:
    """Return what shows each failure of a row: a name that is imported, and missing; nothing where one is not shown."""
    names = [shown for shown in _shown_names(row) if shown[3]]
    for text, _ in _of_releases(row):
        callers, lacking = map(Span.of, text.split(" with ", 1))
        if not any(lacks == lacking.range and within(callers, span) for _, span, missing, _ in names
                   for lacks in (one.range for one in missing)):  # fmt: skip
            return []
    found: list[Body] = []
    for name, span, missing, files in names:
        found.append(
            {"import": {"package": key.caller, "file": files, "name": name, "from": key.callee, "in": span.range}}
        )
        found += [{"lacks": {"package": key.callee, "name": name, "in": one.range}} for one in missing]
    return found


def _names(key: RowKey, row: Mapping[str, Any]) -> str:
    """Return which names are imported and missing."""
    parts = [
        f"`{name}` ({key.caller} {span.words}; not in {key.callee} {' or '.join(one.lacking for one in missing)})"
        for name, span, missing, _ in _shown_names(row)
    ]
    more = f"; and {row['more']} more" if "more" in row else ""
    return f"{'; '.join(parts)}{more}"


def _any_of(cases: Iterable[Body]) -> Body:
    """Return the condition that one of these holds."""
    unique: list[Body] = []
    for case in cases:
        if case not in unique:
            unique.append(case)
    return unique[0] if len(unique) == 1 else {"any": unique}


def _declared(key: RowKey, row: Mapping[str, Any]) -> Body:
    """Return conditions and fixes of releases whose metadata admits some releases of another package only."""
    caller, callee = f"{key.caller}.version", f"{key.callee}.version"
    cases: list[Body] = []
    fixes: list[Body] = []
    tests = _Tests(caller, callee)
    spans = _spans(row)
    extras = {"extras": row["extras"]} if "extras" in row else {}
    stated = {"package": key.caller, "requires": key.callee, **extras}
    proofs = [{"metadata": {**stated, "range": span, "in": ranges}} for span, ranges in _by_statement(spans)]
    for span, admitted in spans:
        cases.append({caller: span.range, "not": {callee: without_previews(admitted)}})
        if admitted not in row.get("unreleased", ()):
            fixes.append({"require": {key.callee: admitted}, "when": {caller: span.range}})
        tests.add(span.last, *sample(admitted))
    if len(spans) > 1 and capped(spans[-1][1]):
        fixes.append({"require": {key.caller: f">={spans[-1][0].first}"}, "when": {callee: spans[-1][1]}})
    when: Body = {callee: ">=0", "any": cases}
    if "shipped" in row:
        when["not"] = row["shipped"]
        tests.add_silent("for a pair that projects ship", _inside(row["shipped"]))
    newest = f"https://pypi.org/project/{key.caller}/{spans[-1][0].last}/"
    return {"references": [newest], "proof": proofs, "when": when, "fix": fixes, "tests": tests.found}


def _spans(row: Mapping[str, Any]) -> list[tuple[Span, str]]:
    """Return the releases that a row names, each with the range that they admit."""
    return [(Span.of(text), str(admitted)) for text, admitted in _of_releases(row)]


def _by_statement(spans: list[tuple[Span, str]]) -> Iterator[tuple[str, str | list[str]]]:
    """Yield each range that is stated, with the releases that state it."""
    found: dict[str, list[str]] = {}
    for span, stated in spans:
        found.setdefault(stated, []).append(span.range)
    for stated, ranges in found.items():
        yield stated, ranges[0] if len(ranges) == 1 else ranges


def _of_releases(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what a row says of releases: those keys begin with one."""
    return [(text, value) for text, value in row.items() if text[:1].isdigit()]


def _inside(ranges: Mapping[str, str]) -> Body:
    """Return a release within each range: the one after its lower bound."""
    return {key: re.split("[>=<,]+", text)[1] + ".1" for key, text in ranges.items()}


def _checked(key: RowKey, row: Mapping[str, Any]) -> Body:
    """Return conditions and fixes of releases that refuse some releases of another package when they run."""
    caller, callee = f"{key.caller}.version", f"{key.callee}.version"
    given: Mapping[str, list[str]] = row.get("given") or {}
    tests = _Tests(caller, callee, {fact: fits for fact, (fits, _) in given.items()})
    cases: list[Body] = []
    fixes: list[Body] = []
    spans = _spans(row)
    stated = {"package": key.caller, "file": [f"**/{file}" for file in row["files"]], "find": row["find"]}
    proofs = [{"constant": {**stated, "range": span, "in": ranges}} for span, ranges in _by_statement(spans)]
    for span, accepted in spans:
        cases.append({caller: span.range, **outside(callee, accepted)})
        fixes.append({"require": {key.callee: accepted}, "when": {caller: span.range}})
        tests.add(span.last, *sample(accepted))
    for fact, (_, misfit) in given.items():
        tests.add_silent(f"with {fact} {misfit}", {**tests.firing, fact: misfit})
    when: Body = {fact: "present" if fact.endswith(".version") else fits for fact, (fits, _) in given.items()}
    source = str(row["source"]).replace("<version>", Version(spans[-1][0].last).base_version)
    return {
        "references": [source],
        **({} if "between" in row else {"proof": proofs}),  # no release is a development version
        "when": when | {"any": cases},
        "fix": [*fixes, *(row.get("also") or ())],
        "tests": tests.found,
    }


class _Tests:
    """The tests of a rule about two packages: what fires, and what is silent on the other side of each bound."""

    def __init__(self, caller: str, callee: str, given: Mapping[str, str] | None = None) -> None:
        self._caller, self._callee, self._given = caller, callee, dict(given or {})
        self.found: Body = {}
        self.firing: Body = {}

    def add(self, caller: str, bad: str, good: str | None) -> None:
        """Add the two sides of one bound, and both packages alone."""
        self.firing = {self._caller: caller, self._callee: bad, **self._given}
        self.found[f"fires {caller} with {bad}"] = {"given": self.firing, "expect": "fires"}
        if good is not None:
            self.add_silent(f"{caller} with {good}", {**self.firing, self._callee: good})
        self.add_silent(f"{caller} alone", {**self.firing, self._callee: ABSENT})
        self.add_silent(f"without the other with {caller} and {bad}", {**self.firing, self._caller: ABSENT})

    def add_silent(self, name: str, given: Body) -> None:
        """Add facts on which the rule is silent."""
        self.found[f"silent {name}"] = {"given": given, "expect": "silent"}


def _models(content: Mapping[str, Any]) -> Iterator[Made]:
    """Yield the library that says which releases of a package know a model, by its names."""
    package, prefix = content["package"], content["prefix"]
    implies: list[Body] = []
    for key, found in content[ROWS].items():
        if key == "newest":
            continue
        try:
            implies += _known_models(f"{package}.version", prefix, key, found)
        except (KeyError, ValueError, TypeError) as problem:
            raise TableFault((ROWS, key), f"the rows cannot be read: {problem}") from None
    references = [text.replace("<newest>", content[ROWS]["newest"]) for text in content["references"]]
    body: Body = {"title": content["title"], "references": references}
    library = content["library"]
    yield Made("library", library, {"name": library, "distributions": [], **body, "implies": implies}, (ROWS,))


def _known_models(version: str, prefix: str, key: str, found: Mapping[str, Any]) -> Iterator[Body]:
    """Yield what follows of the releases that brought a name and those that dropped it: `until before next`."""
    known, since, until = (f"{prefix}.{word}" for word in ("knows_model", "model_since", "model_until"))
    for text, names in (found.get("dropped") or {}).items():
        span = Span.of(f"0 to {text}")
        facts = {known: "false", until: span.last, since: ABSENT}
        yield {"when": {version: f">={span.next}", key: names}, "facts": facts}
    oldest, *_ = found["brought"]
    for text, names in found["brought"].items():
        release, _, below = text.partition(" below ")
        if release != oldest:
            facts = {known: "false", since: release, until: ABSENT}
            yield {"when": {version: f"<{below or release}", key: names}, "facts": facts}
    every = sorted(name for names in found["brought"].values() for name in names)
    yield {"when": {version: f">={oldest}", key: every}, "facts": {known: "true"}}


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Made]]] = {
    "imports": _rules(_imports), "declared": _rules(_declared), "checked": _rules(_checked), "models": _models,
}  # fmt: skip
