"""The examples for training frameworks, on substitutes for those frameworks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import doctor
from doctor import api

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DIES = EXAMPLES / "incidents" / "b"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "callbacks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The facts that the callback sent; the answer is that of incident B, judged for real."""
    calls: list[dict[str, Any]] = []

    def diagnose_ranks(model: Any = None, **options: Any) -> Any:
        calls.append({"model": model, **options})
        return api.diagnose(facts=DIES / "facts.yaml", workload=DIES / "workload.yaml", fixes=False)

    monkeypatch.setattr(doctor, "diagnose_ranks", diagnose_ranks, raising=False)
    for name, base in (("transformers", "TrainerCallback"), ("lightning.pytorch", "Callback")):
        module = ModuleType(name)
        setattr(module, base, type(base, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    return calls


class Config:
    _attn_implementation = "sdpa"

    def to_dict(self) -> dict[str, Any]:
        return {"num_attention_heads": 8}


@pytest.mark.parametrize("stop", [True, False])
def test_transformers_stops_before_the_first_step(
    asked: list[dict[str, Any]], stop: bool, capsys: pytest.CaptureFixture[str]
):
    callback = load("transformers_callback").AttentionCheck(stop=stop)
    arguments = SimpleNamespace(bf16=True, fp16=False, per_device_train_batch_size=4)
    state, model = SimpleNamespace(is_world_process_zero=True), SimpleNamespace(config=Config())
    if stop:
        with pytest.raises(RuntimeError, match=r"cuDNN >= 9\.3"):
            callback.on_train_begin(arguments, state, None, model=model)
    else:
        callback.on_train_begin(arguments, state, None, model=model)
    assert "TE103" in capsys.readouterr().err
    assert asked[0]["model"] is model.config
    assert asked[0]["workload"] == {
        "framework": "transformers", "dtype": "bfloat16", "batch_size": 4, "attn_implementation": "sdpa",
    }  # fmt: skip


def test_other_ranks_print_nothing_and_stop_too(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]):
    callback = load("transformers_callback").AttentionCheck()
    arguments = SimpleNamespace(bf16=False, fp16=True, per_device_train_batch_size=1)
    with pytest.raises(RuntimeError):
        callback.on_train_begin(
            arguments, SimpleNamespace(is_world_process_zero=False), None, SimpleNamespace(config=Config())
        )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", "bfloat16"), ("16-true", "float16"), (32, "float32")])
def test_lightning_stops_before_the_first_step(asked: list[dict[str, Any]], precision: Any, dtype: str):
    callback = load("lightning_callback").AttentionCheck({"head_dim_qk": 128})
    module = SimpleNamespace(model=SimpleNamespace(config=Config()))
    with pytest.raises(RuntimeError, match=r"cuDNN >= 9\.3"):
        callback.on_fit_start(SimpleNamespace(precision=precision, is_global_zero=False), module)
    assert asked[0]["model"] is module.model.config
    assert asked[0]["workload"] == {"dtype": dtype, "head_dim_qk": 128}
