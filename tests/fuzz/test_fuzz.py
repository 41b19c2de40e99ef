"""Mutated inputs of every kind, for seconds; `make fuzz` runs the same for an hour."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from . import harness
from .harness import Case, Outcome, cases, corpus, execute_all, faults_of, kinds
from .mutate import mutated

COUNT = 60


def test_mutated_inputs_keep_the_promises() -> None:
    chosen = list(itertools.islice((case for case in cases(20260) if case.kind not in ("rule", "library")), COUNT))
    bad = [
        f"{case.kind}: {fault} ({' '.join(case.arguments)[:200]})"
        for case, outcome in zip(chosen, execute_all(chosen), strict=True)
        for fault in outcome.faults
    ]
    assert not bad


#: Long enough that a message cuts it before the `@`, by which it is recognized.
_LONG = b"https://bob:hunter2SECRET" + b"x" * 300 + b"@h.example/x"


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*corpus(), "metadata"} - {"library", "model", "rule"}))
def test_a_long_credential_leaves_in_no_output(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_credential(random_: random.Random, data: bytes, others: list[bytes]) -> bytes:
        words = list(re.finditer(rb"[A-Za-z_][\w-]*", data))
        word = random_.choice(words)
        return data[: word.start()] + _LONG + data[word.end() if random_.random() < 0.5 else word.start() :]

    monkeypatch.setattr(harness, "mutated", with_credential)
    chosen = list(itertools.islice(cases(5, [kind]), 40))
    bad = {fault: case for case, outcome in zip(chosen, execute_all(chosen), strict=True) for fault in outcome.faults}
    assert not bad


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
def test_more_mutated_inputs_of_each_kind(kind: str) -> None:
    chosen = list(itertools.islice(cases(random.randrange(1 << 30), [kind]), 100))
    bad = {fault: case for case, outcome in zip(chosen, execute_all(chosen), strict=True) for fault in outcome.faults}
    assert not bad


def test_every_kind_of_input_has_seeds_and_is_mutated() -> None:
    assert len(kinds()) >= 28
    everything = [data for files in corpus().values() for _, data in files]
    for files in corpus().values():
        for _, data in files:
            assert any(mutated(random.Random(seed), data, everything) != data for seed in range(5))


@pytest.mark.parametrize(
    ("format_", "code", "out", "err"),
    [
        ("text", 1, "a\x1b[31mb", ""), ("text", 3, "", "fatal: X; no\nhint: this is a fault of attn-doctor: run"),
        ("text", 1, "", "Traceback (most recent call last):"), ("json", 0, "{", ""), ("sarif", 0, "nope", ""),
        ("junit", 0, "<a>", ""), ("html", 0, "<script>a</script><script>b</script>", ""), ("markdown", 0, "<script>", ""),
        ("text", 0, "x https://u:hunter2SECRET@h", ""), ("text", 0, "a\n ::error file=x::y\n", ""), ("text", 7, "", ""),
        ("github", 0, "::set-output name=x::y\n", ""), ("text", 2, "", ""), ("shell", 0, "touch $(touch PWNED)\n", ""),
    ],
)  # fmt: skip
def test_the_harness_sees_each_broken_invariant(format_: str, code: int, out: str, err: str) -> None:
    case = Case("facts_yaml", "facts.yaml", b"", ("check",), format_)
    assert list(faults_of(case, Outcome(code, out, err, 0.1, 1 << 20)))


@pytest.mark.parametrize(
    "broken", [{"seconds": 9.0}, {"memory": 1 << 30}, {"written": ("project/PWNED",)}, {"hung": True}]
)
def test_the_harness_sees_excess(broken: dict[str, object]) -> None:
    case = Case("facts_yaml", "facts.yaml", b"", ("check",))
    fine = Outcome(0, "OK\n", "", 0.1, 1 << 20)
    assert not list(faults_of(case, fine))
    assert list(faults_of(case, Outcome(**{**vars(fine), **broken})))  # type: ignore[arg-type]


def test_every_target_takes_its_seeds() -> None:
    from .targets import TARGETS, run

    seeds = {"facts": "facts_yaml", "output": "requirements"}
    for kind in TARGETS:
        for _, data in corpus()[seeds.get(kind, kind)]:
            run(kind, data)
            run(kind, data[: len(data) // 2])
