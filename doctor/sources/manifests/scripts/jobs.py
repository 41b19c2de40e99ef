"""The job that a command states: of a server, of a trainer, and of the program that it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import Fact
from doctor.sources.programs.read import read_program
from doctor.sources.watch import Watch

from .serving import serving_facts
from .training import SCRIPT, Find, is_value, options_of, training_facts

#: Text of a shell command, as in `sh -c "…"`, that may start one.
STARTS_JOB = re.compile(r"\bserve\b|launch_server|api_server|train|\bsft\b|\bswift\b|\btrl\b|run_recipe")


def job_facts(words: Sequence[tuple[int, str]], file: Path, find: Find, watch: Watch) -> list[Fact]:
    """Return the workload that a command states; empty for a command that starts no job.

    What the program states itself counts before the options of the command, which are options of that program.
    """
    if served := serving_facts(words, file, find):
        return served
    facts = {fact.key: fact for fact in training_facts(words, file, find, watch.trainers)}
    for fact in _of_program(words, find, watch):
        if fact.key not in facts or not fact.assumed:
            facts[fact.key] = fact
    return list(facts.values())


def _of_program(words: Sequence[tuple[int, str]], find: Find, watch: Watch) -> tuple[Fact, ...]:
    """Return what the Python program of a command states, where the project has it."""
    for at, (_, text) in enumerate(words):
        if SCRIPT.fullmatch(text) is None or not at or is_value([word for _, word in words[: at + 1]], at):
            continue
        found = find(text)
        if found is None:
            return ()
        try:
            return read_program(*found, watch, options_of(words[at + 1 :], assigned=True)[0]).facts
        except DoctorError:
            return ()  # of another Python version: what the command states remains
    return ()
