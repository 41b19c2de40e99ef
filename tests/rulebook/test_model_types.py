"""The table of model types: which release brought or dropped one, and the fix that names that release."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Finding
from doctor.rulebook.evaluate import evaluate
from tests.helpers.rulebook import builtin_rulebook

SCRIPT = Path(__file__).parents[2] / "scripts" / "release" / "refresh_models.py"


def found(model_type: str, release: str, **more: object) -> dict[str, Finding]:
    given = {"workload.framework": "transformers", "workload.model_type": model_type, "transformers.version": release}
    facts = Facts(fact(key, value, "test") for key, value in {**given, **more}.items())
    return {item.rule: item for item in evaluate(builtin_rulebook(), facts).findings}


@pytest.mark.parametrize(
    ("model_type", "before", "since"),
    [
        ("qwen3", "4.40.0", "4.51.0"), ("gemma3", "4.40.0", "4.50.0"), ("gpt_oss", "4.51.3", "4.55.0"),
        ("mistral", "4.33.3", "4.34.0"), ("qwen2_5_vl", "4.48.3", "4.49.0"), ("llama4", "4.50.3", "4.51.0"),
        ("qwen3_next", "4.56.2", "4.57.1"), ("gemma2", "4.41.2", "4.42.0"),
    ],
)  # fmt: skip
def test_a_model_type_that_came_later_is_an_error_whose_fix_names_the_release(
    model_type: str, before: str, since: str
) -> None:
    finding = found(model_type, before)["TF301"]
    assert since in finding.message
    assert finding.alternatives[0].require == {"transformers": f">={since}"}
    assert "TF301" not in found(model_type, since)


def test_code_of_the_repository_serves_an_unknown_model_type() -> None:
    assert "TF301" not in found("qwen3", "4.40.0", **{"workload.remote_code": True})
    assert "TF301" not in found("deepseek_v3", "4.44.2")  # its repositories bring code


def test_a_dropped_model_type_names_the_last_release() -> None:
    finding = found("jukebox", "5.1.0")["TF302"]
    assert finding.alternatives[0].require == {"transformers": "<=4.57.6"}
    assert "TF302" not in found("jukebox", "4.57.6")


def test_another_framework_does_not_check_transformers() -> None:
    given = {"workload.framework": "megatron", "workload.model_type": "qwen3", "transformers.version": "4.40.0"}
    facts = Facts(fact(key, value, "test") for key, value in given.items())
    assert "TF301" not in evaluate(builtin_rulebook(), facts).errors


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh_models", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_spans_show_new_dropped_and_renamed_types_apart() -> None:
    one, two, three = map(Version, ("1.0", "2.0", "3.0"))
    known = {
        one: {"old": "old", "stays": "stays", "Renamed": "renamed", "alias": ""},
        two: {"old": "old", "stays": "stays", "Renamed": "renamed", "new": "new", "alias": ""},
        three: {"stays": "stays", "renamed": "renamed", "new": "new"},
    }
    first, dropped = script().spans(known)
    assert dropped == {(two, three): ["old"]}
    assert first[two] == ["new"] and first[three] == ["renamed"]
    assert set(first[one]) == {"old", "stays"}
