"""What a program states of its job, read from its syntax tree: values, options, environment variables."""

from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.sources.programs.read import Program, read_program
from tests.helpers.watches import built_in_watch

LOAD = "from transformers import AutoModelForCausalLM\n"


def program(text: str, name: str = "train.py", **given: object) -> Program:
    return read_program(Path(name), text, built_in_watch(), given)


def stated(text: str, **given: object) -> dict[str, object]:
    return {fact.key.removeprefix("workload."): fact.value for fact in program(text, **given).facts}


def loaded(arguments: str, before: str = "") -> str:
    return f"{LOAD}import torch\n{before}\nmodel = AutoModelForCausalLM.from_pretrained('m', {arguments})\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (loaded("attn_implementation='sdpa'"), "sdpa"),
        (loaded("use_flash_attention_2=True"), "flash_attention_2"),
        (loaded("attn_implementation=NAME", "NAME = 'eager'"), "eager"),
        (loaded("**options", "options = dict(attn_implementation='sdpa')"), "sdpa"),
        (loaded("**options", "options = {}\noptions['attn_implementation'] = 'sdpa'"), "sdpa"),
        (loaded("**{**BASE}", "BASE = {'attn_implementation': 'eager'}"), "eager"),
        (loaded("attn_implementation=names['fast']", "names = {'fast': 'sdpa'}"), "sdpa"),
        (loaded("attn_implementation='sdpa' if 1 else 'eager'"), "sdpa"),
        (loaded("attn_implementation=pick()"), None),
        (loaded("attn_implementation='sdpa' if flash() else 'eager'"), None),
        (loaded("attn_implementation='sdpa'") + loaded("attn_implementation='eager'"), None),
        (loaded("attn_implementation=NAME", "NAME = 'eager'\nif x:\n    NAME = 'sdpa'"), None),
    ],
)
def test_an_argument_is_a_constant_or_unknown(text: str, expected: object) -> None:
    assert stated(text)["attn_implementation"] == expected


OPTIONS = {
    "argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--attn-name', default='sdpa')\n"
    "args = p.parse_args()",
    "dataclass": "from dataclasses import dataclass, field\n@dataclass\nclass Arguments:\n"
    "    attn_name: str = field(default='sdpa')\nargs = parse(Arguments)",
    "click": "import click\n@click.option('--attn-name', default='sdpa')\ndef main(**args): ...",
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_an_option_is_assumed_until_the_command_gives_it(options: str) -> None:
    text = loaded("attn_implementation=args.attn_name", options)
    default = next(fact for fact in program(text).facts if fact.key == "workload.attn_implementation")
    assert (default.value, default.assumed) == ("sdpa", True)
    given = next(fact for fact in program(text, attn_name="eager").facts if fact.key == default.key)
    assert (given.value, given.assumed) == ("eager", False)


def test_a_parameter_of_a_function_is_assumed() -> None:
    text = (
        f"{LOAD}def main(attn='sdpa'):\n    return AutoModelForCausalLM.from_pretrained('m', attn_implementation=attn)"
    )
    fact = next(fact for fact in program(text).facts if fact.key == "workload.attn_implementation")
    assert (fact.value, fact.assumed, fact.source) == (
        "sdpa", True, "assumed: train.py:3: transformers.AutoModelForCausalLM.from_pretrained(attn_implementation)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from torch.nn.attention import sdpa_kernel, SDPBackend as B\nwith sdpa_kernel([B.MATH]): pass",
         {"sdpa_backend": "math"}),
        ("import torch\n@torch.compile\ndef step(): ...", {"torch_compile": True}),
        ("import torch\nm = torch.compile(m, mode='max-autotune')",
         {"torch_compile": True, "torch_compile_mode": "max-autotune"}),
        ("import torch\nwith torch.autocast('cuda', torch.float16):\n    loss.backward()",
         {"dtype": "float16", "training": True}),
        ("import torch.nn.functional as F\ny = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
         {"framework": "torch_sdpa", "mask": "causal"}),
        ("from flash_attn import flash_attn_func as f\nf(q, k, v, causal=True, window_size=(127, 0))",
         {"framework": "flash_attn", "mask": "causal", "window": (127, 0)}),
        ("import transformer_engine.pytorch as te\nte.DotProductAttention(16, (192, 128), qkv_format='thd')",
         {"framework": "transformer_engine", "num_heads": 16, "head_dim_qk": 192, "head_dim_v": 128,
          "qkv_layout": "thd_thd_thd"}),
        ("from trl import SFTConfig\nSFTConfig(packing=True, max_length=2048, attn_implementation='sdpa')",
         {"packing": True, "seq_len_q": 2048, "trainer": "trl.scripts", "framework": "transformers"}),
        ("from vllm import LLM\nLLM('m', kv_cache_dtype='fp8', tensor_parallel_size=2)",
         {"framework": "vllm", "kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "training": False}),
        ("from diffusers import FluxPipeline\np = FluxPipeline.from_pretrained('m')\n"
         "p.transformer.set_attention_backend('flash')", {"framework": "diffusers", "diffusers_backend": "flash"}),
        ("pipe.enable_xformers_memory_efficient_attention()", {"framework": "xformers"}),
        ("import os\nos.environ['NVTE_FLASH_ATTN'] = '0'", {"env.NVTE_FLASH_ATTN": "0"}),
    ],
)  # fmt: skip
def test_calls_state_the_job(text: str, expected: dict[str, object]) -> None:
    found = stated(text)
    assert {key: found.get(key) for key in expected} == expected


BRANCH = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--xformers", action="store_true")
p.add_argument("--mode", default="plain")
p.add_argument("where")
args = p.parse_args()
if {test}:
    unet.enable_xformers_memory_efficient_attention()
"""


@pytest.mark.parametrize(
    ("test", "options", "called"),
    [
        ("args.xformers", {}, False),
        ("args.xformers", {"xformers": True}, True),
        ("args.xformers and is_available()", {}, False),
        ("not args.xformers", {}, True),
        ("args.mode == 'fast'", {}, False),
        ("args.mode == 'fast'", {"mode": "fast"}, True),
        ("is_available()", {}, True),
        ("args.where == 'x'", {}, True),
    ],
)
def test_a_call_in_a_branch_that_the_options_do_not_take_is_none(test: str, options: dict, called: bool) -> None:
    """A script offers kernels by options that are off: what it does not call is no error of the job."""
    assert (stated(BRANCH.format(test=test), **options).get("framework") == "xformers") is called


RECIPE = """from megatron.bridge.recipes.llama import llama_pretrain_config
cfg = llama_pretrain_config()
cfg.model.context_parallel_size = 2
cfg.model.seq_length = 4096 if fast() else 8192
cfg.dataset.seq_length = 1024
"""


def test_what_is_assigned_to_the_config_of_a_recipe_is_an_option() -> None:
    found = stated(RECIPE)
    assert (found["framework"], found["cp_size"], found["training"]) == ("megatron", 2, True)
    assert "seq_len_q" not in found


LAYER = """import transformer_engine as te
class Layer(te.pytorch.TransformerLayer):
    def __init__(self, config):
        super().__init__(config.hidden, config.inner, 16, attn_input_format="bshd", attention_dropout=0.0)
"""


def test_a_class_of_the_program_is_its_base_with_the_arguments_of_its_constructor() -> None:
    found = stated(LAYER)
    assert found["framework"] == "transformer_engine"
    assert (found["num_heads"], found["qkv_layout"], found["dropout"]) == (16, "bshd_bshd_bshd", 0.0)


def test_what_the_rules_are_not_about_is_said() -> None:
    text = "import transformer_engine.jax.flax as te\nlayer = te.TransformerLayer(hidden_size=64)\n"
    assert stated(text) == {"framework": "transformer_engine_jax"}
    assert stated("import jax\nstep = jax.jit(lambda x: x)\n") == {"framework": "jax"}


def test_own_modules_say_who_computes_attention_where_the_program_does_not(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(LAYER)
    (tmp_path / "unused.py").write_text(loaded("attn_implementation='sdpa'"))
    found = read_program(tmp_path / "train.py", "from layers import Layer\nmodel = Layer(c)\n", built_in_watch()).facts
    framework = next(fact for fact in found if fact.key == "workload.framework")
    assert (framework.value, framework.assumed) == ("transformer_engine", True)
    own = "from layers import Layer\n" + loaded("attn_implementation='eager'")
    found = read_program(tmp_path / "train.py", own, built_in_watch()).facts
    assert {fact.key: fact.value for fact in found}["workload.framework"] == "transformers"


def test_a_literal_in_the_script_counts_before_a_default() -> None:
    text = loaded("attn_implementation='sdpa'", OPTIONS["argparse"]) + loaded("attn_implementation=args.attn_name")
    assert stated(text.replace("'sdpa')", "'eager')", 1))["attn_implementation"] == "sdpa"


def test_nothing_of_a_program_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    assert program(f"open({str(mark)!r}, 'w')\nraise SystemExit(3)").facts == ()
    assert not mark.exists()


@pytest.mark.parametrize("text", ["def f(:", "x = " + "(" * 5000 + ")" * 5000, "x = " + "-" * 50_000 + "1", "a\0b"])
def test_what_is_no_python_is_one_error(text: str) -> None:
    with pytest.raises(DoctorError):
        program(text)


def test_long_chains_end() -> None:
    text = "".join(f"a{number} = a{number + 1}\n" for number in range(2000)) + loaded("attn_implementation=a0")
    assert stated(text)["attn_implementation"] is None
    circle = loaded("attn_implementation=a", "a = b\nb = a")
    assert stated(circle)["attn_implementation"] is None


def test_a_notebook_is_read_without_its_commands() -> None:
    cells = [
        '{"cell_type": "code", "source": ["!pip install trl\\n", "import trl\\n", "trl.SFTConfig(packing=True)"]}',
        '{"cell_type": "markdown", "source": ["not code ("]}',
    ]
    found = program('{"cells": [' + ", ".join(cells) + "]}", "train.ipynb").facts
    assert {fact.value for fact in found if fact.key == "workload.packing"} == {True}


def test_modules_that_a_program_imports() -> None:
    assert program("import torch.nn as nn\nfrom flash_attn import x\nfrom .own import y").imports == (
        "flash_attn",
        "torch",
    )


def test_a_class_that_is_named_says_who_computes_attention() -> None:
    text = "import transformer_engine.pytorch as te\nLAYERS = {'linear': te.Linear, 'layer': te.TransformerLayer}\n"
    assert stated(f"{text}LAYERS[name](64)\n")["framework"] == "transformer_engine"
    assert stated(f"{text}te.DotProductAttention(8, 64)\n")["framework"] == "transformer_engine"


def test_layers_without_attention_and_those_of_jax_are_not_the_attention_of_torch() -> None:
    torch, jax = "import transformer_engine.pytorch as te\n", "import transformer_engine.jax as te\n"
    assert stated(f"{torch}te.Linear(8, 8)\n")["framework"] == "transformer_engine_layers"
    assert stated(f"{torch}te.Linear(8, 8)\nte.DotProductAttention(8, 64)\n")["framework"] == "transformer_engine"
    found = stated(f"{jax}te.flax.DotProductAttention(head_dim=64, num_attention_heads=8, attn_mask_type='causal')\n")
    assert (found["framework"], found["head_dim_qk"], found["mask"]) == ("transformer_engine_jax", 64, "causal")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("model_registry('8B')", "flex_attention"), ("model_registry('8B', attn_backend='varlen')", "torch_sdpa")],
)
def test_an_argument_that_is_not_given_has_its_default(text: str, expected: str) -> None:
    assert stated(f"from torchtitan.models.llama3 import model_registry\n{text}\n")["framework"] == expected
