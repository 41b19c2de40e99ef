"""What a sliding window cuts off, and whether a length is assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Fact, Facts
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.resolver import FactResolver
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.huggingface import read_model_config
from tests.helpers.rulebook import builtin_rulebook


def known(**workload: object) -> FactResolver:
    return FactResolver(Facts(fact(f"workload.{key}", value, "test") for key, value in workload.items()))


@pytest.mark.parametrize(
    ("window", "length", "cut"),
    [([4095, 0], 8192, True), ([4095, 0], 4096, False), ([4095, 0], 4097, True), ([-1, 0], 8192, False)],
)
def test_a_window_cuts_what_is_longer_than_it(window: list[int], length: int, cut: bool) -> None:
    assert known(window=window, seq_len_q=length).value("workload.window_cuts_sequence") is cut


def test_without_a_window_nothing_is_cut_and_without_a_length_it_is_unknown() -> None:
    assert known(window="absent", seq_len_q=8192).value("workload.window_cuts_sequence") is False
    assert known(window=[4095, 0]).value("workload.window_cuts_sequence") is None


MISTRAL = {
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "sliding_window": 4096,
}  # fmt: skip
ENVIRONMENT = {"transformers.version": "4.53.2", "workload.attn_implementation": "flash_attention_2"}


def rules_of(tmp_path: Path, **more: object) -> dict[str, str]:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MISTRAL))
    given = [fact(key, value, "test") for key, value in {**ENVIRONMENT, **more}.items()]
    facts = complete_workload(read_model_config(config).with_(*given))
    return {item.rule: item.severity for item in evaluate(builtin_rulebook(), facts).findings}


def test_an_assumed_length_gives_a_warning_and_a_given_one_an_error(tmp_path: Path) -> None:
    assumed = rules_of(tmp_path)
    assert assumed.get("TF308") == "warning" and "TF307" not in assumed
    given = rules_of(tmp_path, **{"workload.seq_len_q": 8192})
    assert given.get("TF307") == "error" and "TF308" not in given
    assert not {"TF307", "TF308"} & set(rules_of(tmp_path, **{"workload.seq_len_q": 4096}))


def test_a_config_says_whether_its_repository_brings_code(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MISTRAL))
    assert read_model_config(config).value("workload.remote_code") is False
    config.write_text(json.dumps({**MISTRAL, "auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}))
    facts = read_model_config(config)
    assert "workload.remote_code" not in facts
    assert facts["hf.ships_code"] == Fact("hf.ships_code", True, "config.json: auto_map")
