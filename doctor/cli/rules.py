"""`attn-doctor rules`: list, show, test, verify, start and format rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from doctor.errors import DoctorError
from doctor.facts.vocabulary import nearest
from doctor.report.rule_page import as_markdown, as_text, kind_of, page_of
from doctor.rulebook.authoring import scaffold
from doctor.rulebook.authoring.format import format_file, rule_files
from doctor.rulebook.authoring.tests import failure_text, run_rule_tests
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.rulebook.signatures import load_log_rules
from doctor.sources.project.config import project_defaults

from .answer import Answer, reports
from .options import Rules, completed
from .output import write
from .streams import to_stdout


class _Actions(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names:
            raise DoctorError(
                f"`attn-doctor rules` has no action `{args[0]}`",
                nearest(args[0], names) or f"actions are {', '.join(names)}",
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Actions, rich_markup_mode="rich", invoke_without_command=True, add_completion=False)


@app.callback()
def _rules(ctx: typer.Context) -> None:
    """List, show, test and write rules."""
    if ctx.invoked_subcommand is None:
        to_stdout(ctx.get_help() + "\n", colored=True)
        raise typer.Exit(2)


@app.command("list")
@reports("rules", "text", "json")
def list_rules(
    answer: Answer,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Only rules with all of these words: a library, a symptom, a package."),
    ] = None,
    rules: Rules = None,
) -> int:
    """List the rules with severity and headline; with words also those that only explain logs."""
    rulebook = _rulebook(rules)
    known = [*rulebook.rules.values(), *(_explaining(rules) if words else ())]
    found = [rule for rule in known if all(_mentions(rulebook, rule, word) for word in words or ())]
    if not found:
        raise DoctorError(
            f"no rule contains `{'` and `'.join(words or ())}`", "`attn-doctor rules list` lists them all"
        )
    width = max(len(rule.id) for rule in found)
    lines = [f"{rule.id:<{width}}  {kind_of(rule):<8} {rule.summary}" for rule in found]
    answer.give(
        {
            "text": lambda style: "\n".join([*lines, f"{len(lines)} rules"]) + "\n",
            "json": lambda style: json.dumps([_body(rule) for rule in found], indent=2, ensure_ascii=False) + "\n",
        }
    )
    return 0


@app.command("show")
@reports("a rule", "text", "json", "markdown")
def show_rule(
    answer: Answer,
    rule: Annotated[str, typer.Argument(metavar="ID", help="Such as TE103.", autocompletion=completed("rules"))],
    rules: Rules = None,
) -> int:
    """Show one rule in full: conditions, cause, fixes, sources."""
    found = _find(_rulebook(rules), rule, rules)
    answer.give(
        {
            "text": lambda style: as_text(page_of(found), style),
            "json": lambda style: json.dumps(_body(found), indent=2, ensure_ascii=False) + "\n",
            "markdown": lambda style: as_markdown(page_of(found)),
        }
    )
    return 0


@app.command("test")
def test_rules(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Rule files or folders (default: the built-in rulebook)."),
    ] = None,
) -> int:
    """Run the tests inside rule files, and the lint."""
    from doctor.rulebook.authoring.lint import lint

    chosen = [Path(path) for path in paths or ()] or None
    outcomes = run_rule_tests(chosen)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    complaints = [str(complaint) for complaint in lint(chosen)]
    unreadable = {outcome for outcome in failed if outcome.id.endswith("::(file)")}  # the lint says why
    failed = [outcome for outcome in failed if outcome not in unreadable or not complaints]
    plural = "" if len(complaints) == 1 else "s"
    counts = f"{len(outcomes)} tests, {len(failed)} failed; {len(complaints)} complaint{plural} of the lint"
    write("\n".join([*map(failure_text, failed), *complaints, counts]) + "\n", None)
    return 1 if failed or complaints else 0


@app.command("verify")
def verify_rules(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID|LIBRARY|PATH", help="Which rules (default: the built-in rulebook)."),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only proofs that have no current record.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch nothing: only releases that were read.")] = False,
    coverage: Annotated[bool, typer.Option("--coverage", help="Check nothing; count what is proven.")] = False,
    clones: Annotated[
        Path | None, typer.Option("--clones", metavar="DIR", help="Where clones of the repositories are.")
    ] = None,
) -> int:
    """Check the proofs of rules against the releases on both sides of every bound."""
    from .verify import verify_rules

    return verify_rules(names or (), changed=changed, offline=offline, only_coverage=coverage, clones=clones)


@app.command("format")
def format_rules(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Rule files or folders (default: rules).")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 where a file differs.")] = False,
) -> int:
    """Write rule files in the one style; their content stays the same."""
    files = rule_files([Path(path) for path in paths or ("rules",)])
    changed = [path for path in files if format_file(path, write=not check)]
    verb = "would be formatted" if check else "formatted"
    lines = [f"{path}: {verb}" for path in changed]
    write("\n".join([*lines, f"{len(files)} rule files, {len(changed)} {verb}"]) + "\n", None)
    return 1 if check and changed else 0


@app.command("new")
def new_rule(
    library: Annotated[str, typer.Argument(metavar="LIBRARY", help="Whose rule it is: transformer_engine.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The flaw in kebab-case: bottom-right-needs-cudnn-9.3.")],
    rule_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Such as TE103 (default: the next free one).")
    ] = None,
    folder: Annotated[str, typer.Option(metavar="DIR", help="Where rules are kept.")] = "rules",
) -> int:
    """Start a rule file."""
    place = Path(folder)
    path = scaffold.new_rule(library, rule_id or scaffold.next_id(library, place), name, place)
    write(f"{path}\n", None)
    return 0


def _rulebook(rules: Sequence[str] | None) -> Rulebook:
    """Return the built-in rules with those of the project's section and of `--rules`."""
    return load_rulebook((*project_defaults().rules, *(rules or ())))


def _explaining(rules: Sequence[str] | None) -> list[Rule]:
    """Return the rules that only explain logs."""
    return [item.rule for item in load_log_rules((*project_defaults().rules, *(rules or ()))) if item.explains_only]


def _mentions(rulebook: Rulebook, rule: Rule, word: str) -> bool:
    """Whether a rule is about a word: in its texts, its kind of failure, its library or the packages of a log."""
    library = rulebook.libraries.get(rule.library)
    names = (library.title, *library.distributions[:1]) if library else ()
    texts = (rule.id, rule.library, rule.name, rule.summary, rule.stated_message, rule.category, *rule.packages, *names)
    return any(_folded(word) in _folded(text) for text in texts if text)


def _folded(text: str) -> str:
    return text.lower().replace("_", "-")


def _find(rulebook: Rulebook, wanted: str, rules: Sequence[str] | None) -> Rule:
    rule = rulebook.rules.get(wanted) or rulebook.rules.get(wanted.upper())
    rule = rule or rulebook.rules.get(rulebook.replaced.get(wanted.upper(), ""))
    rule = rule or next((item for item in rulebook.rules.values() if item.name == wanted), None)
    rule = rule or next((item for item in _explaining(rules) if item.id == wanted.upper()), None)
    if rule is None:
        near = nearest(wanted.upper(), rulebook.rules) or "`attn-doctor rules list` names them all"
        raise DoctorError(f"there is no rule `{wanted}`", near)
    return rule


def _body(rule: Rule) -> dict[str, Any]:
    body = {key: value for key, value in rule.stated.items() if key != "tests" and not key.startswith("x-")}
    return {**body, "library": rule.library, "kind": kind_of(rule)}
