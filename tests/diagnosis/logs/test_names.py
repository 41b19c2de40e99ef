"""In which releases a name exists: what a message misses, in the record that ships with the doctor."""

import gzip
import json

import pytest

from doctor.diagnosis.logs import names

OWNERS = {name: name for name in ("transformers", "trl", "diffusers", "xformers", "sglang")}


def history(line, expected=()):
    return names.history_of(line, OWNERS.get, expected)


@pytest.mark.parametrize(
    ("line", "package", "wanted"),
    [
        ("cannot import name 'hf_bucket_url' from 'transformers.file_utils'", "transformers", ">=2.2.2,<4.22"),
        ("module 'transformers' has no attribute 'WarmupLinearSchedule'", "transformers", "<2.2"),
        ("No module named 'diffusers.models.attention_processor'", "diffusers", ">=0.15.1"),
        ("KeyError: 'qwen3_moe'", "transformers", ">=4.51.3"),
        ("AttributeError: 'LlamaConfig' object has no attribute 'attention_dropout'", "transformers", ">=4.36.2"),
        ("module transformers has no attribute WarmupLinearSchedule", "transformers", "<2.2"),
        ("No module named 'transformers.models.mllama'", "transformers", ">=4.45.2"),
        ("cannot import name 'is_flash_attn_available' from 'transformers.utils'", "transformers", ">=4.34.1,<4.39"),
        ("'SomeonesModel' object has no attribute 'get_head_mask'", "transformers", "<5.0"),
        ("SFTTrainer.__init__() got an unexpected keyword argument 'max_seq_length'", "trl", ">=0.4.7,<0.13"),
        ("'OwnTrainer' object has no attribute 'current_gradient_accumulation_steps'", "transformers", ">=4.55.4"),
        ("'OwnTrainingArguments' object has no attribute 'eval_strategy'", "transformers", ">=4.41.2"),
        ("SFTConfig.__init__() got an unexpected keyword argument 'eval_strategy'", "transformers", ">=4.41.2"),
        ("'Block' object has no attribute 'drop_path1'", "timm", ">=0.6.13"),
    ],
)
def test_the_releases_that_have_what_a_message_misses(line, package, wanted):
    found = history(line)
    assert found is not None and found.package == package
    low = wanted.partition(",")[0]
    assert low in found.specifier or found.specifier in wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("No module named 'xformers.components.attention'", "<0.0.34"),
        ("No module named 'sglang.srt.hf_transformers_utils'", "<0.5.3.post3"),
    ],
)
def test_releases_that_differ_in_the_third_number_bound_a_range(line, wanted):
    assert history(line).specifier == wanted
    assert wanted.removeprefix("<") in history(line).sentence


def test_the_releases_that_do_not_require_an_argument_fit_a_caller_that_leaves_it_out():
    found = history("LlamaAttention.forward() missing 1 required positional argument: 'position_embeddings'")
    assert found is not None and "up to 4.47.1, and no longer in 4.48" in found.sentence


@pytest.mark.parametrize(
    "line",
    [
        "cannot import name 'build_model' from 'my_project.models'",
        "No module named 'transformers.models.someones_own'",
        "cannot import name 'AutoConfig' from 'transformers'",
        "'Net' object has no attribute 'fc2'",
        "'SomeonesModel' object has no attribute 'device'",
        "'SomeonesModel' object has no attribute '_auto_class_of_mine'",
        "'SomeonesModel' object has no attribute 'gradient_checkpointing_enable'",
        "'SomeonesLoader' object has no attribute 'get_head_mask'",
        "Net.__init__() got an unexpected keyword argument 'width'",
        "KeyError: 'labels'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ],
)
def test_what_no_release_changed_has_no_history(line):
    assert history(line) is None


def test_a_class_of_several_packages_says_nothing_unless_one_is_expected(tmp_path, monkeypatch):
    record = {"releases": ["1.0", "2.0"], "m": {}, "n": {}, "g": {}, "a": {}, "r": {}, "homes": {}, "bases": {}}
    for package, span in (("one", "0-0"), ("two", "1-1")):
        content = {**record, "c": {"Attention scale": span}}
        (tmp_path / f"{package}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    monkeypatch.setattr(names, "_folder", lambda: tmp_path)
    names._packages.cache_clear()
    names._known.cache_clear()
    try:
        line = "'Attention' object has no attribute 'scale'"
        assert history(line) is None
        assert history(line, ("two",)).specifier == ">=2.0"
        assert (
            history(line, ("one",)).sentence == "one has `scale` in class `Attention` up to 1.0, and no longer in 2.0"
        )
        assert history(line, ("three",)) is None
    finally:
        names._packages.cache_clear()
        names._known.cache_clear()


def test_the_history_decides_about_a_line_of_code_outside_the_stack(explain):
    log = "  File \"/srv/model.py\", line 3, in f\nAttributeError: 'LlamaConfig' object has no attribute 'rope_theta'\n"
    first = explain(log).diagnosis[0]
    assert first.packages == ("transformers",) and "4.33" in first.message
    assert first.category == "missing-attribute"


def test_a_fix_names_the_module_that_a_name_moved_to(explain):
    log = "ImportError: cannot import name 'bytes_to_unicode' from 'transformers.models.gpt2.tokenization_gpt2'\n"
    calls = [remedy.call for remedy in explain(log).diagnosis[0].remedies]
    assert "from transformers.convert_slow_tokenizer import bytes_to_unicode" in calls


def test_a_line_of_old_python_gets_the_class_of_the_call():
    line = "TypeError: __init__() got an unexpected keyword argument 'dispatch_batches'"
    around = f"    self.accelerator = Accelerator(\n{line}\n"
    assert names.with_class(line, around) == line.replace("__init__", "Accelerator.__init__")
    assert names.with_class(line, f"    f(x)\n{line}\n") == line


def test_a_name_in_another_spelling_leads_to_the_one_of_the_package():
    found = history("cannot import name 'Qwen2_5VLForConditionalGeneration' from 'transformers'")
    assert found is not None and found.spelled == "Qwen2_5_VLForConditionalGeneration"
    assert "not `Qwen2_5VLForConditionalGeneration`" in found.sentence and found.specifier == ">=4.49.0"


def test_a_name_that_resembles_none_has_no_history():
    assert history("cannot import name 'Qwen2_5VLForEverythingElse' from 'transformers'") is None


def test_a_wrapper_of_the_same_name_is_not_the_called_function(explain):
    error = "TypeError: get_cpu_offload_context() got an unexpected keyword argument 'retain_pinned_cpu_buffers'\n"
    frame = '  File "/src/megatron/core/extensions/transformer_engine.py", line 2898, in {name}\n'
    wrapper, other = (frame.format(name=name) + error for name in ("get_cpu_offload_context", "__init__"))
    assert names.is_wrapped(error, wrapper) and not names.is_wrapped(error, other)
    found = [item.message for item in explain(wrapper).diagnosis if item.rule == "LOGMC001"]
    assert found and found[0].startswith("transformer-engine has argument")


def unheard_of(line, called_from="/srv/train.py"):
    return names.is_unheard_of(line, OWNERS.get, called_from=called_from)


@pytest.mark.parametrize(
    "line",
    [
        "cannot import name 'LlamaForCausalGeneration' from 'transformers'",
        "'BertModel' object has no attribute 'my_pooling_head'",
        "'BertConfig' object has no attribute 'num_fancy_heads'",
        "'BertForSequenceClassification' object has no attribute 'layers'",
        "'OwnArguments' object has no attribute 'use_my_option'",
        "LlamaForCausalLM.from_pretrained() got an unexpected keyword argument 'my_own_option'",
    ],
)
def test_what_no_release_ever_had_is_a_slip_of_the_caller(line):
    assert unheard_of(line)


@pytest.mark.parametrize(
    "line",
    [
        "cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'",
        "cannot import name 'AutoModelForCausalLM' from 'transformers'",
        "cannot import name 'whatever_it_is' from 'vllm'",
        "'BertModel' object has no attribute 'get_head_mask'",
        "'OPTConfig' object has no attribute 'word_embed_proj_dim'",
        "'OPTAttention' object has no attribute 'my_query'",
        "LlamaSdpaAttention.forward() got an unexpected keyword argument 'lookahead'",
        "run_kernel() got an unexpected keyword argument 'tile_tokens_dim'",
    ],
)
def test_what_some_release_had_or_a_patch_brings_is_none(line):
    assert not unheard_of(line)


def test_a_slip_needs_to_be_in_a_file_that_is_known():
    line = "'BertModel' object has no attribute 'my_pooling_head'"
    assert unheard_of(line) and not unheard_of(line, called_from="")


def test_a_slip_of_a_script_gets_no_diagnosis_and_one_of_a_package_does(explain):
    frame = '  File "{file}", line 3, in f\n'
    error = "AttributeError: 'BertConfig' object has no attribute 'num_fancy_heads'\n"
    assert explain(frame.format(file="/srv/train.py") + error).diagnosis == ()
    assert explain(frame.format(file="/x/site-packages/vllm/config.py") + error).diagnosis


def test_a_narrow_rule_takes_no_slip_of_a_script_either(explain):
    frame = '  File "/srv/train.py", line 3, in main\n'
    error = "TypeError: TrainingArguments.__init__() got an unexpected keyword argument '{}'\n"
    assert explain(frame + error.format("learning_ratee")).diagnosis == ()
    assert explain(frame + error.format("evaluation_strategy")).diagnosis
