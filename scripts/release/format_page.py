"""Write the tables of docs/rule-format.md from the definition of the format.

    python scripts/release/format_page.py            # writes the page
    python scripts/release/format_page.py --check    # exits with 1 where the page differs

A table is between `<!-- keys: NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.rulebook import job_fields, library_fields, rule_fields  # noqa: E402
from doctor.rulebook.categories import OF_FINDINGS, OF_LOGS  # noqa: E402
from doctor.rulebook.fields import Field, Fields  # noqa: E402

PAGE = ROOT / "docs" / "rule-format.md"
#: Name of a table → the keys in it.
TABLES: Mapping[str, Fields] = {
    "rule": rule_fields.RULE,
    "signature": rule_fields.SIGNATURE,
    "confirmation": rule_fields.CONFIRM,
    "fix": rule_fields.FIX,
    "test": rule_fields.TEST,
    "log test": rule_fields.LOG_TEST,
    "library": library_fields.LIBRARY,
    "backend": library_fields.BACKEND,
    "package": library_fields.PACKAGE,
    "opens": library_fields.OPENS,
    "compiles_at_run": library_fields.AT_RUN,
    "override": library_fields.OVERRIDE,
    "decision": library_fields.DECISION,
    "gpu": library_fields.GPU,
    "driver": library_fields.DRIVER,
    "image": library_fields.IMAGE,
    "script call": job_fields.SCRIPT_CALL,
    "attention call": job_fields.ATTENTION_CALL,
    "trainer": job_fields.TRAINER,
    "reading": job_fields.READING,
    "framework": job_fields.FRAMEWORK,
    "server": job_fields.SERVER,
}
_BLOCK = re.compile(r"<!-- keys: ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)


def main() -> int:
    """Write the page, or compare it."""
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text)
    if "--check" in sys.argv[1:]:
        return int(text != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


def filled(text: str) -> str:
    """Return the page with its tables written again."""
    return _BLOCK.sub(lambda found: f"<!-- keys: {found[1]} -->\n{table(found[1])}<!-- end -->", text)


def table(name: str) -> str:
    """Return one table."""
    if name == "proof":
        rows = [(f"`{kind}`", _keys(fields), claim) for kind, (claim, fields) in rule_fields.PROOFS.items()]
        return _lines(("kind", "keys", "claim"), rows)
    if name == "categories":
        ours = (("logs", OF_LOGS), ("findings", OF_FINDINGS))
        rows = [(f"`{word}`", meaning, of) for of, words in ours for word, meaning in words.items()]
        return _lines(("category", "meaning", "of"), rows)
    if name == "kinds of readings":
        return _lines(("`kind`", "states"), [(f"`{kind}`", states) for kind, states in job_fields.READINGS.items()])
    rows = [(_name(key, field), field.kind.words, field.meaning, _code(field.example)) for key, field in
            TABLES[name].items()]  # fmt: skip
    return _lines(("key", "value", "meaning", "example"), rows)


def _name(key: str, field: Field) -> str:
    return f"**`{key}`**" if field.needed else f"`{key}`"


def _keys(fields: Fields) -> str:
    return ", ".join(_name(key, field) for key, field in fields.items())


def _code(text: str) -> str:
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", "\\|") if text else ""


def _lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    sys.exit(main())
