"""List signatures that match messages of other packages than their rule names, whatever the lines around them are.

    python scripts/oracles/wide_signatures.py [--most N]

The messages are those of the record (`rules/index/messages`), `64` in place of each value. A signature with a condition
on the lines around it, or of a rule that takes the package from the log, is left out: there the log decides. What is
listed is no fault as such: a package may have a copy of the code of another one.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from doctor.diagnosis.logs.attribution import plain
from doctor.diagnosis.logs.choose import owned_by_line, packages_of
from doctor.rulebook.signatures import NONE, LogRule, load_log_rules
from doctor.util.linear_regex import compiled

MESSAGES = Path(__file__).resolve().parents[2] / "rules/index/messages"
_HOLE = re.compile("\0[^\0]*\0")


def recorded() -> tuple[bytes, list[int], list[str]]:
    """Return all messages, one a line, with the offset at which those of each package begin."""
    text, starts, names = "", [], []
    for path in sorted(MESSAGES.glob("*.json.xz")):
        starts.append(len(text))
        names.append(path.name.split(".")[0])
        sites = json.loads(lzma.decompress(path.read_bytes()))["sites"]
        texts = (_HOLE.sub("64", template).partition("\n")[0] for template, *_ in sites)
        text += "".join(f"Error: {line.encode('ascii', 'replace').decode()}\n" for line in texts)
    return text.encode(), starts, names


def wide(rules: Sequence[LogRule]) -> Iterator[tuple[str, str, Counter[str]]]:
    """Yield rule, expression, and how many messages of each other package it matches."""
    text, starts, names = recorded()
    for rule in rules:
        if owned_by_line(rule) is not None or rule.category == NONE or rule.benign:
            continue
        own = {plain(name) for name in (*rule.packages, *packages_of(rule), rule.rule.library)}
        for signature in rule.signatures:
            if signature.conditions:
                continue
            places = (found.start() for found in compiled(signature.match).finditer(text))
            owners = Counter(names[bisect_right(starts, place) - 1] for place in places)
            others = Counter({name: count for name, count in owners.items() if plain(name) not in own})
            if others and len(owners) > 1:
                yield rule.rule.id, signature.match, others


def main() -> int:
    """Print the signatures, those of most messages first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=100)
    options = parser.parse_args()
    found = sorted(wide(load_log_rules()), key=lambda item: -sum(item[2].values()))
    for rule, expression, others in found[: options.most]:
        print(f"{rule} {expression[:100]!r}: {', '.join(f'{name} {count}' for name, count in others.most_common(5))}")
    print(f"{len(found)} signatures", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
