"""The libraries describe who calls attention: their records say what the tables in Python said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.facts.libraries.frameworks import FRAMEWORKS, caller_named, predicted_frameworks, servers
from doctor.facts.vocabulary import SPELLINGS, TERMS, parse
from doctor.rulebook.rulebook import load_rulebook

#: Spelling -> word, of the table that was in Python.
SPELLED = {
    "huggingface": "transformers", "hf": "transformers", "te": "transformer_engine",
    "transformer-engine": "transformer_engine", "transformerengine": "transformer_engine", "torch": "torch_sdpa",
    "pytorch": "torch_sdpa", "sdpa": "torch_sdpa", "flash-attn": "flash_attn", "flash-attention": "flash_attn",
    "flash_attention": "flash_attn", "megatron-core": "megatron", "megatron-lm": "megatron",
    "sage": "sageattention", "megatron-bridge": "megatron", "nemo": "megatron",
    "trl": "transformers", "peft": "transformers", "accelerate": "transformers", "axolotl": "transformers",
    "unsloth": "transformers", "llamafactory": "transformers", "llama-factory": "transformers",
}  # fmt: skip
WORDS = {*SPELLED.values(), "xformers", "xtuner", "vllm", "sglang", "flex_attention", "diffusers"}
DIFFUSERS = {
    "native": "torch_sdpa", "_native_cudnn": "torch_sdpa", "_native_efficient": "torch_sdpa",
    "_native_flash": "torch_sdpa", "_native_math": "torch_sdpa", "flash": "flash_attn", "flash_varlen": "flash_attn",
    "sage": "sageattention", "sage_varlen": "sageattention", "_sage_qk_int8_pv_fp8_cuda": "sageattention",
    "_sage_qk_int8_pv_fp8_cuda_sm90": "sageattention", "_sage_qk_int8_pv_fp16_cuda": "sageattention",
    "_sage_qk_int8_pv_fp16_triton": "sageattention", "xformers": "xformers", "flex": "flex_attention",
}  # fmt: skip


def test_the_words_and_spellings_are_those_of_the_table() -> None:
    """Tests may declare more libraries in this process: they add words and take none away."""
    assert set(TERMS["workload.framework"].values) >= WORDS
    assert SPELLED.items() <= SPELLINGS["workload.framework"].items()
    assert all(parse("workload.framework", spelling.upper()) == word for spelling, word in SPELLED.items())
    with pytest.raises(DoctorError, match="needs one of"):
        parse("workload.framework", "no_such_library")


def test_what_is_known_of_a_framework_is_what_the_tables_said() -> None:
    own = [FRAMEWORKS[word] for word in sorted(WORDS)]
    assert {item.word: item.library for item in own if item.library != item.word} == {
        "megatron": "transformer_engine", "torch_sdpa": "torch", "xtuner": "transformers",
    }  # fmt: skip
    assert [item.predicted_with for item in predicted_frameworks() if item.word in WORDS] == [
        "transformer-engine", "torch", "flash-attn", "vllm",
    ]  # fmt: skip
    assert {item.word for item in own if item.sequence_first} == {"transformer_engine", "megatron"}
    assert {item.word for item in own if item.takes_attn_implementation} == {"transformers", "xtuner"}
    assert {item.word: item.implementation for item in own if item.implementation} == {
        "torch_sdpa": "sdpa", "flash_attn": "flash_attention_2",
    }  # fmt: skip
    assert {item.word for item in own if item.call} == {
        "torch_sdpa", "flash_attn", "xformers", "flex_attention", "transformer_engine",
    }  # fmt: skip
    assert caller_named("diffusers").calls == DIFFUSERS


def test_the_options_of_servers_are_those_of_the_tables() -> None:
    old = json.loads((Path(__file__).parents[1] / "data" / "server_options.json").read_text("utf-8"))
    for word, table in old.items():
        options = {name: list(row) for name, row in servers()[word].options.items() if name != "--dtype"}
        assert options == table
    images = {image: (words, server.package) for server in servers().values() for image, words in server.images.items()}
    assert images == {"vllm/vllm-openai": (("vllm", "serve"), "vllm"), "lmsysorg/sglang": ((), "sglang")}


def test_a_word_of_a_team_works_in_rules_jobs_and_settings_of_a_fresh_process(tmp_path: Path) -> None:
    """Words are there when rules, files and the project's own job are read, with and without a cache."""
    folder = tmp_path / "rules" / "acme_attn"
    folder.mkdir(parents=True)
    (folder / "library.yaml").write_text(
        "name: acme_attn\ntitle: Acme\ndistributions: [acme-attn]\nframeworks: [{word: acme_attn, spellings: [acme]}]\n"
    )
    (folder / "ACME001.yaml").write_text(
        "id: ACME001\nname: acme-fails\nseverity: error\nsummary: Acme fails\nwhy: w\nreferences: [r]\n"
        "when: {workload.framework: acme_attn}\n"
        "tests:\n  fires: {given: {workload.framework: acme}, expect: fires}\n"
        "  silent: {given: {workload.framework: vllm}, expect: silent}\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.attn-doctor.workload]\nframework = 'acme'\nnum_heads = 8\n")
    (tmp_path / "facts.yaml").write_text("facts: {torch.version: '2.8.0'}\n")

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "doctor", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    for settings in ([], ["--set", "workload.framework=acme"], []):
        done = ran("check", "--facts", "facts.yaml", "--no-run", "--rules", "rules", "--format", "json", *settings)
        report = json.loads(done.stdout or "{}")
        assert [item["id"] for item in report.get("findings", ())] == ["ACME001"], done.stderr
        assert report["workload"]["framework"]["value"] == "acme_attn"
    assert "2 tests, 0 failed" in ran("rules", "test", "rules").stdout
    alone = ran("check", "--facts", "facts.yaml", "--no-run")
    assert alone.returncode == 2 and "`workload.framework`: needs one of" in alone.stderr


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{word: torch_sdpa, call: acme.attention}", "the framework `torch_sdpa` is described by the library `torch`"),
        ("{word: acme_attn, spellings: [te]}", "the spelling `te` is the framework `transformer_engine`"),
        ("{word: acme_attn, spellings: [vllm]}", "the spelling `vllm` is the framework `vllm`"),
    ],
)
def test_a_word_of_a_team_replaces_no_built_in_one(tmp_path: Path, row: str, message: str) -> None:
    load_rulebook()
    before = dict(FRAMEWORKS), dict(SPELLINGS["workload.framework"])
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "library.yaml").write_text(f"name: acme\nframeworks:\n  - {row}\n")
    with pytest.raises(DoctorError) as refused:
        load_rulebook([str(tmp_path)])
    assert refused.value.message == f"{tmp_path}/acme/library.yaml:2: {message}"
    assert (FRAMEWORKS, SPELLINGS["workload.framework"]) == before


def test_a_library_may_add_spellings_to_the_word_of_another(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "library.yaml").write_text("name: acme\nframeworks: [{word: vllm, spellings: [acme-vllm]}]\n")
    code = (
        "from doctor.rulebook.rulebook import load_rulebook; from doctor.facts.vocabulary import parse\n"
        f"load_rulebook([{str(tmp_path)!r}]); print(parse('workload.framework', 'acme-vllm'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "vllm\n", done.stderr
