"""Records behave as the frozen dataclasses they replace."""

import copy
import dataclasses
import inspect
import pickle
from functools import cached_property
from typing import Any

import pytest

from doctor import records


def make(decorator, field):
    @decorator(frozen=True)
    class Base:
        """What both have."""

        name: str
        count: int = 3

    @decorator(frozen=True)
    class Derived(Base):
        """More of it."""

        extra: Any = field(default_factory=dict)
        memo: Any = field(default_factory=list, compare=False, repr=False)

        @cached_property
        def doubled(self):
            """Twice the count."""
            return 2 * self.count

    return Base, Derived


PAIRS = (make(dataclasses.dataclass, dataclasses.field), make(records.dataclass, records.field))


@records.dataclass(frozen=True)
class Pickled:
    """At module level, where pickle finds it."""

    value: int


@pytest.mark.parametrize(("base", "derived"), PAIRS, ids=["standard", "ours"])
class TestSameAsStandard:
    def test_values_and_defaults(self, base, derived):
        record = derived("a", extra={"x": 1})
        assert (record.name, record.count, record.extra, record.memo) == ("a", 3, {"x": 1}, [])
        assert derived("a").extra is not derived("a").extra

    def test_wrong_arguments_are_type_errors(self, base, derived):
        for arguments in ((), ("a", 1, {}, [], 5)):
            with pytest.raises(TypeError):
                derived(*arguments)
        with pytest.raises(TypeError):
            base("a", size=3)

    def test_equality_hash_and_repr(self, base, derived):
        assert base("a", 1) == base("a", 1) != base("a", 2)
        assert base("a") != derived("a")
        assert base("a") != "a"
        assert hash(base("a")) == hash(base("a"))
        assert len({base("a"), base("a"), base("b")}) == 2
        assert repr(base("a", 1)).endswith("Base(name='a', count=1)")
        assert derived("a", memo=[1]) == derived("a", memo=[2])
        assert "memo" not in repr(derived("a"))

    def test_nothing_can_be_changed(self, base, derived):
        record = derived("a")
        for attempt in (lambda: setattr(record, "name", "b"), lambda: delattr(record, "name")):
            with pytest.raises(dataclasses.FrozenInstanceError):
                attempt()
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.new = 1

    def test_cached_properties_work(self, base, derived):
        assert derived("a", 4).doubled == 8

    def test_the_standard_helpers_know_them(self, base, derived):
        record = derived("a", 1, {"x": 1})
        assert dataclasses.is_dataclass(record)
        assert [found.name for found in dataclasses.fields(derived)] == ["name", "count", "extra", "memo"]
        assert dataclasses.asdict(record) == {"name": "a", "count": 1, "extra": {"x": 1}, "memo": []}
        assert dataclasses.replace(record, name="b") == derived("b", 1, {"x": 1})
        assert derived.__match_args__ == ("name", "count", "extra", "memo")

    def test_copies_are_equal(self, base, derived):
        record = derived("a", 1, {"x": 1})
        assert copy.copy(record) == copy.deepcopy(record) == record


def test_replace_keeps_what_is_not_named():
    _, derived = PAIRS[1]
    assert records.replace(derived("a", 1, {"x": 2}), count=7) == derived("a", 7, {"x": 2})


def test_records_can_be_pickled():
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)


def test_records_are_mutable_nowhere():
    with pytest.raises(AssertionError):
        records.dataclass(frozen=False)


def test_a_constructor_is_compiled_when_it_is_first_asked_for():
    _, derived = make(records.dataclass, records.field)
    assert not callable(vars(derived)["__init__"])
    assert str(inspect.signature(derived)).startswith("(name, count=3, extra=")
    assert vars(derived)["__init__"] is derived.__init__
    assert derived("a") == derived("a", 3)
