"""Results of the same kernels on many GPUs: a GPU that differs from its peers is named.

Peers are GPUs of one model in one environment: another cuDNN may round otherwise, the same must not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor.report.fleet_model import GpuFault
from doctor.util.redact import shortened

from .records import node_name

MOST_DIFFERENCES = 500
#: What a result of one case on one GPU is called in an answer of a node.
FIELDS = ("gpu", "model", "case", "verdict", "bits", "reason")


@dataclass
class GpuResults:
    """Votes by (environment, model, case); which GPU gave which result."""

    _votes: dict[tuple[str, str, str], dict[str, list[str]]] = field(default_factory=lambda: defaultdict(dict))
    _verdicts: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    _totals: Counter[str] = field(default_factory=Counter)
    _worst: tuple[str, ...] = ("crashed", "timeout", "wrong", "failed", "no memory", "unavailable", "refused", "right")

    def add(self, node: str, environment: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Take over the results of one node; what has another form is left out."""
        for item in results:
            gpu, model, case, verdict = (shortened(str(item.get(name) or ""), 200, "") for name in FIELDS[:4])
            if not case or verdict not in self._worst:
                continue
            name = f"{node}/{node_name(gpu)}"
            bits = item.get("bits")
            seen = f"{verdict}" + (f" {str(bits)[:80]}" if bits is not None and verdict == "right" else "")
            self._votes[environment, node_name(model), case].setdefault(seen, []).append(name)
            self._totals[verdict] += 1
            before = self._verdicts[node].get(node_name(gpu), "right")
            self._verdicts[node][node_name(gpu)] = min(before, verdict, key=self._worst.index)

    def verdicts(self) -> Mapping[str, Mapping[str, str]]:
        """Return the worst verdict of every GPU by node."""
        return self._verdicts

    def totals(self) -> Mapping[str, int]:
        """Return the number of cases by verdict."""
        return dict(self._totals)

    def faults(self) -> Iterator[GpuFault]:
        """Yield every GPU that differs from its peers, those that most differ from first."""
        counts: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], tuple[str, bool]] = {}
        for (_, model, case), results in self._votes.items():
            if len(results) < 2:
                continue
            ranked = sorted(results.items(), key=lambda pair: -len(pair[1]))
            usual, peers = ranked[0]
            certain = len(peers) > len(ranked[1][1])
            for seen, gpus in ranked[1:] if certain else ranked:
                for gpu in gpus:
                    counts[gpu, model] += 1
                    text = f"{_words(seen)}, its {len(peers)} peers {_words(usual)}" if certain else "its peer differs"
                    first.setdefault((gpu, model), (f"{shortened(case, 160)}: {text}", certain))
        for (gpu, model), count in counts.most_common(MOST_DIFFERENCES):
            difference, certain = first[gpu, model]
            yield GpuFault(gpu, model, count, difference, certain)


def _words(seen: str) -> str:
    verdict, _, bits = seen.partition(" ")
    return f"{verdict} with bits {bits[:16]}" if bits else verdict
