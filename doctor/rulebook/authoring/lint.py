"""What a good rule file has beyond a valid one: sources, tests that pin down every condition, sound words.

The schema says what the program can read; the lint says what readers and future editors need. Every fault names
file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from doctor.errors import DoctorError
from doctor.facts.kinds import VERSION
from doctor.facts.versions import split_clauses
from doctor.facts.vocabulary import TERMS, nearest, parse_version, term
from doctor.rulebook.authoring.scaffold import ID, KEBAB
from doctor.rulebook.categories import CATEGORIES, FORMER, OF_LOGS
from doctor.rulebook.conditions import PRESENT, All, AnyOf, Condition, Leaf, Not
from doctor.rulebook.messages import PLACEHOLDER
from doctor.rulebook.proofs import BINARY, MEASURED, METADATA, SOURCE, STATED, bounds_in, proofs_of
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library, Rule, as_tuple, is_checked
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.schema import Source, read_sources
from doctor.rulebook.signatures import parse_signatures
from doctor.rulebook.tables import table_ids
from doctor.util.resources import programs_dir

from .regex_safety import regex_fault
from .scaffold import TODO
from .tests import in_file_tests, known_of, load_libraries, rulebook_paths, unshown_signatures

MAX_SUMMARY = 100
_OPENABLE = re.compile(r"https?://\S|\S@\S|#\d|\bPR \d")
#: A reference to what somebody reports: an issue, a pull request, a thread of a forum.
_REPORT = re.compile(
    r"/(?:issues|pulls?|discussions|merge_requests)/\d|#\d|\bPR \d|//(?:discuss|forums?)\.|/questions/\d"
)
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Fault:
    """One thing to fix in a rule file."""

    path: str
    line: int
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" + (f" ({self.hint})" if self.hint else "")


def lint(paths: Sequence[Path] | None = None, libraries: Rulebook | None = None) -> list[Fault]:
    """Every fault of the rule files below `paths` (None: the built-in rulebook), each file and all together."""
    libraries = load_libraries(paths or ()) if libraries is None else libraries
    faults: list[Fault] = []
    sources: list[Source] = []
    for path in rulebook_paths(paths):
        try:
            found = read_sources(path)
        except DoctorError as error:
            faults.append(_from_error(path, error))
            continue
        for source in found:
            if source.kind == "rule":
                sources.append(source)
                faults.extend(lint_source(source, libraries))
    faults.extend(lint_unique(sources))
    return faults


def lint_unique(sources: Sequence[Source]) -> Iterator[Fault]:
    """Ids and names that two files claim."""
    for key in ("id", "name"):
        first: dict[str, str] = {}
        for source in sources:
            value = source.content[key]
            if value in first:
                yield Fault(source.path, source.line(key), f"`{key}: {value}` is taken by `{first[value]}`")
            first.setdefault(value, source.path)
    ids = {source.content["id"]: source.path for source in sources}
    for source in sources:
        for former in as_tuple(source.content.get("replaces")):
            if former in ids:
                yield Fault(source.path, source.line("replaces"), f"`replaces: {former}` is a rule in `{ids[former]}`")


def lint_source(source: Source, libraries: Rulebook) -> list[Fault]:
    """Every fault of one rule file by itself."""
    checks = (
        _head, _words, _sources_and_ways_out, _places, _category, _patterns, _traps, _placeholders, _circles, _examined,
        _proofs, _tests,
    )  # fmt: skip
    return [fault for check in checks for fault in check(source, libraries)]


def _from_error(path: Path, error: DoctorError) -> Fault:
    located = re.match(r"(.*):(\d+): (.*)", error.message, re.DOTALL)
    if located:
        return Fault(located[1], int(located[2]), located[3], error.hint)
    return Fault(str(path), 1, error.message, error.hint)


def _texts(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text of a file with its place, down to the last fix and test."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*at, str(index)))
    elif value is not None:
        yield at, value


def _head(source: Source, _: Rulebook) -> Iterator[Fault]:
    content = source.content
    if Path(source.path).stem != content["id"] and not source.in_table:
        yield Fault(source.path, source.line("id"), f"`id: {content['id']}` needs the file name {content['id']}.yaml")
    if not ID.fullmatch(content["id"]):
        yield Fault(source.path, source.line("id"), "`id` needs a library's letters and three digits, as TE103")
    if not KEBAB.fullmatch(content["name"]):
        yield Fault(source.path, source.line("name"), "`name` needs lower-case words joined by hyphens")


def _words(source: Source, _: Rulebook) -> Iterator[Fault]:
    content = source.content
    blanks = {source.line(*at): at[0] for at, text in _texts(content, ()) if any(TODO in word for word in (text, *at))}
    for line, key in blanks.items():
        yield Fault(source.path, line, f"`{key}` is still to be filled in")
    summary, why = content["summary"], content.get("why")
    at = source.line("summary")
    if summary.strip().endswith((".", "!", "?")):
        yield Fault(source.path, at, "`summary` is a headline: no period at its end")
    if len(summary) > MAX_SUMMARY:
        yield Fault(source.path, at, f"`summary` has {len(summary)} characters, at most {MAX_SUMMARY} fit a line")
    if "\n" in summary.strip():
        yield Fault(source.path, at, "`summary` needs to be one line")
    if why is None:
        if content.get("severity"):
            yield Fault(source.path, 1, "`why` is missing: one or two sentences a user understands")
    elif not why.strip().endswith((".", "!", "?")):
        yield Fault(source.path, source.line("why"), "`why` needs whole sentences, with a period at the end")


def _sources_and_ways_out(source: Source, _: Rulebook) -> Iterator[Fault]:
    content = source.content
    if not any(_OPENABLE.search(reference) for reference in as_tuple(content["references"])):
        yield Fault(
            source.path, source.line("references"), "`references` needs a source a reader can open",
            "a URL, path@tag, or owner/repository#number",
        )  # fmt: skip
    remedies = any(content.get(key) for key in ("fix", "fix_reasons", "no_pin"))
    if content.get("severity") in ("error", "warning") and not remedies:
        yield Fault(
            source.path, source.line("severity"), f"severity {content['severity']} needs a `fix` or `no_pin`",
            "no_pin says in a sentence why no package version fixes it",
        )  # fmt: skip


def _places(source: Source, libraries: Rulebook) -> Iterator[Fault]:
    content = source.content
    library: Library | None = libraries.libraries.get(source.library)
    named = [(key, backend) for key in ("disables", "fails_at_run") for backend in as_tuple(content.get(key))]
    if library is None and (named or content.get("import_error") or content.get("stage")):
        yield Fault(source.path, 1, f"there is no library.yaml for `{source.library}`, the folder of this rule")
        return
    backends = [backend.id for backend in library.backends] if library else []
    for key, backend in named:
        if backend not in backends:
            hint = nearest(backend, backends)
            yield Fault(source.path, source.line(key), f"`{source.library}` has no backend `{backend}`", hint)
    stage = content.get("stage")
    if library and stage is not None and stage not in library.stages:
        hint = nearest(stage, library.stages)
        yield Fault(source.path, source.line("stage"), f"`{source.library}` has no stage `{stage}`", hint)
    refuses = content.get("import_error")
    if refuses is not None and refuses != source.library:
        yield Fault(source.path, source.line("import_error"), f"`import_error` needs `{source.library}`, the folder")
    kernel = (content.get("confirm") or {}).get("kernel")
    if kernel is not None:
        kernels = sorted(path.stem for path in programs_dir().glob("*.py"))
        if kernel not in kernels:
            at = source.line("confirm", "kernel")
            yield Fault(source.path, at, f"there is no kernel `{kernel}`", nearest(kernel, kernels))
    for word in as_tuple((content.get("confirm") or {}).get("regardless_of")):
        if f"workload.{word}" not in TERMS:
            at = source.line("confirm", "regardless_of")
            words = [key.removeprefix("workload.") for key in TERMS if key.startswith("workload.")]
            yield Fault(source.path, at, f"`{word}` is no word of a workload", nearest(word, words))
    for other in as_tuple(source.content.get("yields_to")):
        folder = Path(source.path).parent.parent  # a library's rule may yield to another's
        if not any(folder.glob(f"*/{other}.yaml")) and other not in table_ids(folder):
            yield Fault(
                source.path, source.line("yields_to"), f"`yields_to`: there is no `{other}.yaml` among these rules"
            )


def _category(source: Source, _: Rulebook) -> Iterator[Fault]:
    """One of the words, so that rules of a kind are found together; of a rule that explains, one that answers name."""
    category = source.content.get("category")
    known = CATEGORIES if is_checked(source.content) else OF_LOGS
    if category is None or category in known:
        return
    now = FORMER.get(category)
    hint = f"write `{now}`" if now else nearest(category, known) or f"categories are {', '.join(known)}"
    yield Fault(source.path, source.line("category"), f"there is no category `{category}`", hint)


def _patterns(source: Source, _: Rulebook) -> Iterator[Fault]:
    sound = True
    for index, signature in enumerate(parse_signatures(source.content.get("signatures"))):
        for pattern in signature.patterns:
            scanned = pattern == signature.match or pattern in signature.anywhere
            if (problem := regex_fault(pattern, scanned=scanned)) is not None:
                sound = False
                yield Fault(source.path, source.line("signatures", str(index)), f"signature `{pattern}` {problem}")
    for index in unshown_signatures(source) if sound else ():
        why = "no log in `tests` shows this signature"
        yield Fault(source.path, source.line("signatures", str(index)), why, "add a line of a log that it matches")


def _traps(source: Source, _: Rulebook) -> Iterator[Fault]:
    for at, key, wanted in raw_leaves(source.content.get("when") or {}, ("when",)):
        if term(key).kind == VERSION:
            for text in wanted if isinstance(wanted, list) else [wanted]:
                yield from _version_traps(source, at, key, str(text))
    for index, way in enumerate(source.content.get("fix") or ()):
        for name, text in (way.get("require") or {}).items():
            yield from _version_traps(source, ("fix", str(index), "require", name), f"{name}.version", text)


def _version_traps(source: Source, at: tuple[str, ...], key: str, text: str) -> Iterator[Fault]:
    for operator, bound in split_clauses(text) or [("==", text)]:
        if not bound[:1].isdigit() or "*" in bound:
            continue
        version = parse_version(bound)
        exact = version.is_postrelease or version.is_prerelease or len(version.release) > 3
        following = ".".join(map(str, (*version.release[:-1], version.release[-1] + 1)))
        if operator == "<=" and not exact:
            why = f"`<={bound}` rejects {bound}.post1 and a wheel's {bound}.0.70"
            yield Fault(source.path, source.line(*at), f"`{key}`: {why}", f"write `<{following}`")
        elif operator == ">" and not exact:
            four = key.startswith(("nvidia-", "cudnn."))
            why = f"`>{bound}` " + (f"takes in {bound}.70, the same release" if four else f"leaves out {bound}.post1")
            hint = f"write `>={following}`" if four else f"write `>={bound}.post1` or `>={following}`"
            yield Fault(source.path, source.line(*at), f"`{key}`: {why}", hint)
        elif operator in ("==", "!=") and len(version.release) < 4 and key.startswith("nvidia-cudnn"):
            why = f"`{operator}{bound}` does not cover the wheel's four-part {bound}.…"
            yield Fault(source.path, source.line(*at), f"`{key}`: {why}", f"write `{operator}{bound}.*`")


def _placeholders(source: Source, _: Rulebook) -> Iterator[Fault]:
    for key in ("message", "summary"):
        for text in _BRACES.findall(source.content.get(key) or ""):
            if key == "message" and text.startswith("log."):
                continue
            if not PLACEHOLDER.fullmatch("{" + text + "}"):
                yield Fault(source.path, source.line(key), f"`{{{text}}}` in `{key}` is no fact key")
                continue
            try:
                term(text)
            except DoctorError as error:
                yield Fault(source.path, source.line(key), f"`{key}`: {error.message}", error.hint)
    keys = {key for _, key, _ in raw_leaves(source.content.get("when") or {}, ())}
    for key in source.content.get("needs") or {}:
        if key not in keys:
            line = source.line("needs", key)
            yield Fault(source.path, line, f"`needs`: `{key}` is no condition of this rule", nearest(key, keys))


def _has_no_end(wanted: str) -> bool:
    """Whether a condition on a version holds for every later release."""
    operators = {operator for operator, _ in split_clauses(wanted)}
    return wanted == PRESENT or (bool(operators) and not operators & {"<", "<=", "==", "~="})


def _examined(source: Source, _: Rulebook) -> Iterator[Fault]:
    """`examined_to` says something about a range without an end only."""
    leaves = raw_leaves(source.content.get("when") or {}, ())
    endless = {key for _, key, wanted in leaves if isinstance(wanted, str) and _has_no_end(wanted)}
    for name in source.content.get("examined_to") or {}:
        if f"{name}.version" not in endless:
            yield Fault(
                source.path, source.line("examined_to", name), f"no condition on `{name}.version` is without an end",
                "a range that ends says by itself which releases it is about",
            )  # fmt: skip


def _proofs(source: Source, _: Rulebook) -> Iterator[Fault]:
    """What only somebody states is no error, and a proof is about the releases that the rule is about."""
    proofs = proofs_of(source.content)
    ranges = bounds_by_distribution(source.content.get("when") or {})
    if source.content.get("severity") == "error" and _only_reported(source, bounded=bool(ranges)):
        why = "an error needs a proof or a reference to released code: what is only reported is a warning at most"
        yield Fault(source.path, source.line("severity"), why, f"`{SOURCE}`, `{METADATA}`, `{BINARY}` or `{MEASURED}`")
    for index, proof in enumerate(proofs):
        for key in ("shows", "hides", "find"):
            if key in proof.body and (problem := regex_fault(str(proof.body[key]), scanned=False)) is not None:
                at = source.line("proof", str(index), proof.kind, key)
                yield Fault(source.path, at, f"`{proof.body[key]}` {problem}")
        known = ranges.get(proof.distribution)
        if known is not None and not proof.bounds & known:
            at = source.line("proof", str(index), proof.kind, "in")
            bounds = " or ".join(map(str, sorted(proof.bounds)))
            why = f"no condition of this rule on `{proof.distribution}` begins or ends at {bounds}"
            yield Fault(source.path, at, why, "a proof is about a bound of the rule")


def _only_reported(source: Source, *, bounded: bool) -> bool:
    """Whether nothing but reports supports a rule; a script read the releases for a row of a table."""
    proofs = proofs_of(source.content)
    if any(proof.kind != STATED for proof in proofs) or source.in_table:
        return False
    references = [str(item) for item in as_tuple(source.content.get("references"))]
    return bool(proofs) or (bounded and all(map(_REPORT.search, references)))


def bounds_by_distribution(when: Mapping[str, Any]) -> dict[str, set[Version]]:
    """Return the releases at which the conditions of a rule begin or end, by the distribution."""
    found: dict[str, set[Version]] = {}
    for _, key, wanted in raw_leaves(when, ()):
        if key.endswith(".version"):
            texts = [str(text) for text in (wanted if isinstance(wanted, list) else [wanted])]
            bounds = bounds_in(texts)
            if bounds:
                found.setdefault(key.removesuffix(".version"), set()).update(bounds)
    return found


def _circles(source: Source, _: Rulebook) -> Iterator[Fault]:
    """A rule that a prediction is made of cannot use that prediction."""
    excluded = {
        name.split(".")[0] for key in ("disables", "fails_at_run") for name in as_tuple(source.content.get(key))
    }
    own_keys = {f"{prefix}.{question}" for prefix in excluded for question in ("selected", "selected_by_default")}
    at = [(place, key) for place, key, _ in raw_leaves(source.content.get("when") or {}, ("when",))]
    at += [(("message",), key) for key in _BRACES.findall(source.content.get("message") or "")]
    for place, key in at:
        if key in own_keys:
            why = f"`{key}` follows from this very rule, and cannot be used in it"
            yield Fault(source.path, source.line(*place), why)


def _tests(source: Source, libraries: Rulebook) -> Iterator[Fault]:
    if "when" not in source.content:
        return
    tests = list(in_file_tests(source))
    if not any(test.expect == "fires" for test in tests):
        yield Fault(source.path, source.line("tests"), "`tests` needs at least one that expects `fires`")
    rule = Rule(source.content["id"], source.library, source.content, source.path)
    silent = [known_of(test, libraries) for test in tests if test.expect == "silent"]
    places = [at for at, _, _ in raw_leaves(source.content["when"], ("when",))]
    for leaf, at in zip(rule.when.leaves(), places, strict=True):
        if not any(sole_reason(rule.when, leaf, known) for known in silent):
            yield Fault(
                source.path, source.line(*at), f"no test is silent because of `{leaf.key}: {leaf.text}` alone",
                "add a `silent` test in which every other condition is as in the one that fires",
            )  # fmt: skip


def sole_reason(when: Condition, leaf: Leaf, known: FactResolver) -> bool:
    """Whether the condition fails on these facts, and would hold if this one leaf were judged the other way."""
    return when.holds(known) is False and _with_flipped(when, leaf, known) is True


def _with_flipped(node: Condition, leaf: Leaf, known: FactResolver) -> bool | None:
    if node is leaf:
        holds = node.holds(known)
        return None if holds is None else not holds
    if isinstance(node, Not):
        inner = _with_flipped(node.part, leaf, known)
        return None if inner is None else not inner
    if isinstance(node, (All, AnyOf)):
        verdicts = [_with_flipped(part, leaf, known) for part in node.parts]
        deciding = isinstance(node, AnyOf)
        return deciding if deciding in verdicts else None if None in verdicts else not deciding
    return node.holds(known)


def raw_leaves(when: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """(path in the file, key, wanted) of every leaf, in the order of `Condition.leaves`."""
    for key, wanted in when.items():
        if key in ("all", "any"):
            for index, item in enumerate(wanted):
                yield from raw_leaves(item, (*at, key, str(index)))
        elif key == "not":
            yield from raw_leaves(wanted, (*at, key))
        else:
            yield (*at, key), key, wanted
