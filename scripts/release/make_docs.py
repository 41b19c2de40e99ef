"""Puts the documentation together: hand-written pages, one page per rule, all options and fact keys, then mkdocs.

python scripts/release/make_docs.py            # writes build/docs and builds build/site; a warning fails the build
python scripts/release/make_docs.py --pages    # only the pages
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

from doctor.cli import rules  # noqa: E402
from doctor.cli.main import COMMANDS, run  # noqa: E402
from doctor.facts.vocabulary import TERMS  # noqa: E402
from doctor.report.rule_page import as_markdown, escaped, kind_of, page_of  # noqa: E402
from doctor.rulebook.rulebook import Rulebook, load_rulebook  # noqa: E402

PAGES = ROOT / "build" / "docs"
#: File of the repository → page of the site.
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "guide-rules.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def main() -> int:
    """Write the pages and build the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    rulebook = load_rulebook()
    for name, text in pages(rulebook):
        path = PAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "assets", PAGES / "assets")
    print(
        f"{sum(1 for _ in PAGES.rglob('*.md'))} pages in {PAGES.relative_to(ROOT)}, {len(rulebook.rules)} of them rules"
    )
    if "--pages" in sys.argv[1:]:
        return 0
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    ).returncode


def pages(rulebook: Rulebook) -> Iterator[tuple[str, str]]:
    """Name and text of every page."""
    for path in [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in MOVED)]:
        name = path.relative_to(ROOT).as_posix()
        yield _page_name(name), _relinked(path.read_text("utf-8"), name)
    yield "options.md", _options()
    yield "facts.md", _facts()
    yield "rules/index.md", _rules(rulebook)
    for rule in rulebook.rules.values():
        yield f"rules/{rule.id}.md", as_markdown(page_of(rule))


def _page_name(name: str) -> str:
    return MOVED.get(name) or name.removeprefix("docs/")


def _relinked(text: str, name: str) -> str:
    """Links between files of the repository as links between pages; what is no page becomes plain words."""

    def link(match: re.Match[str]) -> str:
        words, to, part = match[1], match[2], match[3] or ""
        target = (ROOT / name).parent / to
        if not target.resolve().is_relative_to(ROOT) or not target.exists():
            raise SystemExit(f"{name}: `{to}` is not there")
        inside = target.resolve().relative_to(ROOT).as_posix()
        if re.fullmatch(r"rules/\w+/[A-Z]+\d+\.yaml", inside):
            return f"[{words}]({'../' * _page_name(name).count('/')}rules/{Path(inside).stem}.md)"
        if inside.startswith("docs/assets/"):
            return f"[{words}]({'../' * _page_name(name).count('/')}{inside.removeprefix('docs/')})"
        if inside not in MOVED and not (inside.startswith("docs/") and inside.endswith(".md")):
            return words if words.startswith("`") else f"{words} (`{inside}`)"
        depth = _page_name(name).count("/")
        return f"[{words}]({'../' * depth}{_page_name(inside)}{part})"

    return _LINK.sub(link, text)


def _options() -> str:
    parts = ["# All options", "", "As `attn-doctor COMMAND --help` prints them.", ""]
    actions = typer.main.get_command(rules.app).commands  # type: ignore[attr-defined]
    commands = [[name] for name in COMMANDS if name != "rules"] + [["rules", action] for action in actions]
    for command in commands:
        text = StringIO()
        with redirect_stdout(text):
            run([*command, "--help"])
        parts += [f"## attn-doctor {' '.join(command)}", "", "```text", text.getvalue().strip(), "```", ""]
    return "\n".join(parts)


def _facts() -> str:
    from doctor.facts.derived.registry import DERIVATIONS

    lines = [
        "# Fact keys", "",
        "Besides these: `<distribution>.version` of any distribution, `env.<NAME>` of any variable, and what is "
        "predicted, such as `te.selected`.", "",
        "| key | kind | meaning |", "|---|---|---|",
    ]  # fmt: skip
    for key in sorted(TERMS):
        term = TERMS[key]
        values = f" ({', '.join(term.values)})" if term.values else ""
        derived = " *derived*" if key in DERIVATIONS else ""
        lines.append(f"| `{key}` | {term.kind} | {escaped(term.meaning + values)}{derived} |")
    return "\n".join(lines) + "\n"


def _rules(rulebook: Rulebook) -> str:
    lines = ["# Rules", "", f"{len(rulebook.rules)} rules, each with its sources and its tests.", ""]
    for library in sorted({rule.library for rule in rulebook.rules.values()}):
        title = rulebook.libraries[library].title if library in rulebook.libraries else library
        lines += [f"## {title}", "", "| rule | | |", "|---|---|---|"]
        own = sorted((rule for rule in rulebook.rules.values() if rule.library == library), key=lambda rule: rule.id)
        lines += [f"| [{r.id}]({r.id}.md) | {kind_of(r)} | {escaped(r.summary)} |" for r in own]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
