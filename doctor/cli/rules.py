"""`attn-doctor rules`: list, show, test and start rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doctor.errors import DoctorError
from doctor.report.rule_page import kind_of
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook, load_rulebook

from .options import add_output, add_rules, parser

if TYPE_CHECKING:
    from .commands import Streams

ACTIONS = {
    "list": "every rule with its severity and headline",
    "show": "one rule in full: what it looks at, why, what helps, where it comes from",
    "test": "run the tests inside rule files, and the lint",
    "new": "start a rule file",
}


def run(arguments: Sequence[str], streams: Streams) -> int:
    """Carry out `rules ACTION …`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, ACTIONS)) + 2
        lines = ["usage: attn-doctor rules ACTION [options]", ""]
        lines += [f"  {name:<{width}}{purpose}" for name, purpose in ACTIONS.items()]
        streams.stdout.write("\n".join(lines) + "\n")
        return 0 if arguments else 2
    action, *rest = arguments
    if action not in ACTIONS:
        from doctor.facts.vocabulary import nearest

        raise DoctorError(
            f"`attn-doctor rules` has no action `{action}`",
            nearest(action, ACTIONS) or f"actions are {', '.join(ACTIONS)}",
        )
    code: int = {"list": _list, "show": _show, "test": _test, "new": _new}[action](rest, streams)
    return code


def _list(arguments: Sequence[str], streams: Streams) -> int:
    made = parser("rules list", f"List {ACTIONS['list']}.")
    add_rules(made)
    add_output(made)
    options = made.read(arguments)
    rulebook = load_rulebook(options.rules)
    if _format(options.format) == "json":
        _write([_body(rule) for rule in rulebook.rules.values()], options, streams)
        return 0
    width = max((len(rule.id) for rule in rulebook.rules.values()), default=0)
    lines = [f"{rule.id:<{width}}  {kind_of(rule):<8} {rule.body['summary']}" for rule in rulebook.rules.values()]
    lines.append(f"{len(lines)} rules")
    _write_text("\n".join(lines) + "\n", options, streams)
    return 0


def _show(arguments: Sequence[str], streams: Streams) -> int:
    made = parser("rules show", f"Show {ACTIONS['show']}.")
    made.add_argument("rule", metavar="ID", help="such as TE103")
    add_rules(made)
    add_output(made)
    options = made.read(arguments)
    if options.format not in ("text", "json", "markdown"):
        raise DoctorError(f"format `{options.format}` cannot show a rule", "formats for it are text, json, markdown")
    rule = _find(load_rulebook(options.rules), options.rule)
    if options.format == "json":
        _write(_body(rule), options, streams)
        return 0
    from doctor.report.rule_page import as_markdown, as_text, page_of

    from .commands import deliver

    deliver(
        as_text if options.format == "text" else lambda page, style: as_markdown(page), page_of(rule), options, streams
    )
    return 0


def _test(arguments: Sequence[str], streams: Streams) -> int:
    made = parser("rules test", f"{ACTIONS['test'].capitalize()}.")
    made.add_argument("paths", nargs="*", metavar="PATH", help="rule files or folders (default: the built-in rulebook)")
    options = made.read(arguments)
    from doctor.rulebook.authoring.tests import failure_text, run_rule_tests

    paths = [Path(path) for path in options.paths] or None
    outcomes = run_rule_tests(paths)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    lines = [failure_text(outcome) for outcome in failed]
    lint = _lint(paths)
    lines += lint
    lines.append(
        f"{len(outcomes)} tests, {len(failed)} failed; {len(lint)} complaint{'' if len(lint) == 1 else 's'} of the lint"
    )
    streams.stdout.write("\n".join(lines) + "\n")
    return 1 if failed or lint else 0


def _lint(paths: list[Path] | None) -> list[str]:
    from doctor.rulebook.authoring import lint as rulelint

    return [str(complaint) for complaint in rulelint.lint(paths)]


def _new(arguments: Sequence[str], streams: Streams) -> int:
    from doctor.rulebook.authoring import scaffold as rulenew

    made = parser("rules new", f"{ACTIONS['new'].capitalize()}.")
    rulenew.add_options(made)
    path = rulenew.create(made.read(arguments))
    streams.stdout.write(f"{path}\n")
    return 0


def _find(rulebook: Rulebook, wanted: str) -> Rule:
    rule = rulebook.rules.get(wanted) or rulebook.rules.get(wanted.upper())
    rule = rule or next((item for item in rulebook.rules.values() if item.body["name"] == wanted), None)
    if rule is None:
        from doctor.facts.vocabulary import nearest

        near = nearest(wanted.upper(), rulebook.rules) or "`attn-doctor rules list` names them all"
        raise DoctorError(f"there is no rule `{wanted}`", near)
    return rule


def _body(rule: Rule) -> dict[str, Any]:
    body = {key: value for key, value in rule.body.items() if key != "tests" and not key.startswith("x-")}
    return {**body, "library": rule.library, "kind": kind_of(rule)}


def _format(name: str) -> str:
    if name not in ("text", "json"):
        raise DoctorError(f"format `{name}` cannot show rules", "formats for it are text, json")
    return name


def _write(content: Any, options: Any, streams: Streams) -> None:
    _write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", options, streams)


def _write_text(text: str, options: Any, streams: Streams) -> None:
    from .commands import write

    write(text, options.output, streams)
