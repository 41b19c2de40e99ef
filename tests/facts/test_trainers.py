"""The trainers of `library.yaml`: every kind has a reader, and the tables say what is on record."""

import json
from pathlib import Path

import pytest

from doctor.facts.libraries.record import READING_KINDS
from doctor.facts.training.readings import READERS
from doctor.facts.training.recipes import recipe_statements, trainer_of
from tests.helpers.rulebook import builtin_rulebook

#: Random options of each trainer, with what the tables say of them.
RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "trainer_statements.jsonl").read_text("utf-8").splitlines()
]
CONFIGS = {"ds.json": {"zero_optimization": {"stage": 3}}, "ds0.json": {}}


def test_every_kind_of_reading_has_a_reader():
    assert set(READERS) == set(READING_KINDS)
    used = {reading.kind for trainer in builtin_rulebook().trainers.values() for reading in trainer.readings}
    assert used == set(READING_KINDS)


@pytest.mark.parametrize("trainer", sorted({case["trainer"] for case in RECORDED}))
def test_the_tables_say_what_is_on_record(trainer):
    for case in (case for case in RECORDED if case["trainer"] == trainer):
        kind = builtin_rulebook().trainers[trainer]
        found = recipe_statements(kind, case["options"], CONFIGS.get, case["script"])
        said = sorted([item.word, str(item.value), item.option, item.assumed] for item in found)
        assert said == sorted(case["statements"]), case["options"]
        config_of = trainer_of(case["options"], builtin_rulebook().trainers)
        assert (config_of and config_of.id) == case["config_of"]
