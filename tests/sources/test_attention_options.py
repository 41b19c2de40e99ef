"""An option that bears on attention is understood, without effect, or named: it is never dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.model import Fact
from doctor.sources.attention_options import ATTENTION, KEY, joined, not_understood
from doctor.sources.manifests.scripts.jobs import job_facts
from doctor.sources.programs.read import read_program
from doctor.sources.workload.recipes import read_job
from doctor.util.resources import rules_dir
from tests.helpers.watches import built_in_watch

TABLE = rules_dir() / "index" / "attention_options.json"
NEW = "made_up_attn_kernel"  # an option of tomorrow


def read(path):
    return read_job(path, built_in_watch())


def named(facts: Any) -> list[str]:
    return [name for fact in facts if fact.key == KEY for name in fact.value]


def words(command: str) -> list[tuple[int, str]]:
    return [(1, word) for word in command.split()]


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve m --{NEW.replace('_', '-')} fast",
        f"python -m sglang.launch_server --{NEW.replace('_', '-')} fast",
        f"swift sft --model m --attn_impl sdpa --{NEW} fast",
        f"axolotl train a.yaml --{NEW}=fast",
        f"llamafactory-cli train {NEW}=fast model_name_or_path=m",
        f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.{NEW}=fast",
        f"torchrun pretrain_gpt.py --num-attention-heads 8 --hidden-size 64 --num-layers 2 --{NEW} fast",
        f"python sft.py --model_name_or_path m --output_dir o --{NEW} fast",
    ],
)
def test_an_option_of_tomorrow_on_a_command_is_named(command: str) -> None:
    found = named(job_facts(words(command), Path("run.sh"), lambda name: None, built_in_watch()))
    assert [name.rpartition(".")[2] for name in found] == [f"{NEW}=fast"]


@pytest.mark.parametrize(
    "text",
    [
        f"base_model: m\ndatasets: []\nattn_implementation: sdpa\n{NEW}: fast\n",
        f"model_name_or_path: m\ncutoff_len: 8\nflash_attn: fa2\n{NEW}: fast\n",
        f"model: m\nkernel_config: {{name: auto, {NEW}: fast}}\n",
        f"model_name_or_path: m\nbf16: true\n{NEW}: fast\n",
    ],
)
def test_an_option_of_tomorrow_in_a_config_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert [name.rpartition(".")[2] for name in named(read(path).values())] == [f"{NEW}=fast"]


def test_a_value_that_a_reader_does_not_know_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model_name_or_path: m\ncutoff_len: 8\nflash_attn: fa9\n")
    assert named(read(path).values()) == ["flash_attn=fa9"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (f"trl.SFTConfig({NEW}='fast')", [f"{NEW}=fast"]),
        (f"transformers.AutoModel.from_pretrained('m', {NEW}='fast', attn_implementation='sdpa')", [f"{NEW}=fast"]),
        (f"own({NEW}='fast')", []),
    ],
)
def test_an_argument_of_tomorrow_in_a_program_is_named(call: str, expected: list[str]) -> None:
    text = f"import transformers, trl\n{call}\n"
    assert named(read_program(Path("train.py"), text, built_in_watch()).facts) == expected


@pytest.mark.parametrize("value", [False, "false", "none", "auto", ""])
def test_an_option_that_is_off_changes_nothing(value: object) -> None:
    assert not not_understood({NEW: value}, (), "run.sh")


def test_an_option_at_its_default_or_without_effect_changes_nothing() -> None:
    table = json.loads(TABLE.read_text())
    usual = [(name, row["default"]) for rows in table.values() for name, row in rows.items() if row.get("default")]
    idle = [name for rows in table.values() for name, row in rows.items() if row.get("without_effect")]
    assert usual and idle
    assert not any(not_understood({name: default}, (), "x") for name, default in usual)
    assert not any(not_understood({name: "changed"}, (), "x") for name in idle)


def test_the_table_has_attention_options_of_many_libraries_with_their_releases() -> None:
    table = json.loads(TABLE.read_text())
    assert len(table) >= 8
    for library, rows in table.items():
        for name, row in rows.items():
            assert ATTENTION.search(name), (library, name)
            assert row["first"] and row["last"]


def test_what_several_inputs_leave_is_joined() -> None:
    one, two = Fact(KEY, ("a=1",), "a.yaml"), Fact(KEY, ("b=2",), "b.sh:1")
    assert joined([one, two]) == [Fact(KEY, ("a=1", "b=2"), "a.yaml, b.sh:1")]
