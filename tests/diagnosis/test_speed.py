"""`backends --run`: which calls are measured, what a death becomes, and the whole on a CPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli
from doctor.diagnosis import speed
from doctor.diagnosis.speed import (
    BUDGET,
    SpeedPlan,
    calls_of,
    is_compiled,
    measurement_of,
    requests_of,
    run_plans,
    run_requests,
    selected_call,
    with_length,
)
from doctor.model import Fact, Facts
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import load_rulebook
from doctor.runner.result import KernelOutcome, KernelResult

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {
    "framework": "torch_sdpa", "dtype": "bfloat16", "head_dim_qk": 128, "num_heads": 32, "num_kv_heads": 8,
    "batch_size": 1, "seq_len_q": 4096, "mask": "causal", "training": True,
}  # fmt: skip
MACHINE = {"torch.version": "2.11.0", "gpu.sm": "9.0", "gpu.name": "NVIDIA H100 80GB HBM3", "cudnn.version": "9.19.0",
           "python.version": "3.12.3"}  # fmt: skip


def known(packages: dict[str, Any], **job: Any) -> FactResolver:
    words = {f"workload.{word}": value for word, value in {**LLAMA, **job}.items()}
    facts = Facts(Fact(key, value, "test") for key, value in {**MACHINE, **packages, **words}.items())
    return evaluate(load_rulebook(()), facts).known


def names(*given: Any, **job: Any) -> list[str]:
    return [call.id for call in calls_of(load_rulebook(()), known(*given, **job))[0]]


def test_torch_alone() -> None:
    found, missing = calls_of(load_rulebook(()), known({"flash-attn.version": "absent"}))
    assert [call.id for call in found] == [
        "sdpa.flash", "sdpa.efficient", "sdpa.cudnn", "sdpa.math", "hf.eager", "flex.triton", "flex.eager",
    ]  # fmt: skip
    assert {"flash-attn", "xformers", "transformer-engine"} <= set(missing)


def test_installed_libraries_are_measured() -> None:
    found = names({"fa3-fwd.version": "0.0.3", "xformers.version": "0.0.35", "transformer-engine.version": "2.14.0"})
    assert {"fa.flash3", "xformers", "te.flash", "te.fused", "te.unfused"} <= set(found)
    assert "fa.flash2" not in found


def test_calls_of_some_jobs_only() -> None:
    assert "torch.varlen" not in names({})
    assert "torch.varlen" in names({}, packing=True)
    assert "torch.varlen" in names({}, mask="padding_causal")


def test_every_call_of_the_rulebook_has_a_program() -> None:
    """A call in a library file that the program does not know would fail on the GPU only."""
    source = (ROOT / "kernels" / "programs" / "measure.py").read_text()
    for library in load_rulebook(()).libraries.values():
        for item in library.attention_calls:
            kind, _, part = item.id.partition(".")
            listed = f'"{item.id}"' in source or (part and re.search(rf'library == "{kind}"', source))
            assert listed, item.id
            assert "*" in item.select, item.id


def test_words_that_select_follow_the_framework() -> None:
    calls, _ = calls_of(load_rulebook(()), known({"transformers.version": "5.0.0"}, framework="transformers"))
    (flash,) = [call for call in calls if call.id == "sdpa.flash"]
    assert flash.select.startswith('attn_implementation="sdpa"')
    calls, _ = calls_of(load_rulebook(()), known({}))
    assert calls[0].select == "`with sdpa_kernel(SDPBackend.FLASH_ATTENTION):` around the step"


def chosen(*given: Any, **job: Any) -> str | None:
    return selected_call(load_rulebook(()), known(*given, **job))


def test_the_selected_call_is_that_of_the_framework() -> None:
    assert chosen({}) in ("sdpa.flash", "sdpa.cudnn")
    assert chosen({}, sdpa_backend="math") == "sdpa.math"
    hf = {"transformers.version": "5.0.0"}
    assert chosen(hf, framework="transformers", attn_implementation="eager") == "hf.eager"
    assert chosen(hf, framework="transformers", attn_implementation="sdpa", sdpa_backend="math") == "sdpa.math"
    assert chosen({"gpu.sm": None}, framework="vllm") is None


@pytest.mark.parametrize(
    ("packages", "job", "expected"),
    [
        ({"flash-attn.version": "2.8.3"}, {"framework": "flash_attn"}, "fa.flash2"),
        ({"xformers.version": "0.0.34", "torch.version": "2.10.0"}, {"framework": "xformers"}, "xformers"),
        ({"sageattention.version": "2.2.0"}, {"framework": "sageattention", "training": False}, "sageattention"),
        ({"transformers.version": "5.0.0"}, {"framework": "xtuner", "attn_implementation": "eager"}, "hf.eager"),
        ({"transformers.version": "5.0.0"}, {"framework": "transformers", "attn_implementation": "flex_attention"},
         "flex.triton"),
    ],
)  # fmt: skip
def test_library_files_say_which_call_a_backend_makes(
    packages: dict[str, Any], job: dict[str, Any], expected: str
) -> None:
    assert chosen(packages, **job) == expected


def test_every_stated_backend_of_a_call_exists() -> None:
    libraries = load_rulebook(()).libraries.values()
    backends = {backend.id for library in libraries for backend in library.backends}
    calls = [call for library in libraries for call in library.attention_calls]
    stated = [name for call in calls for name in call.backends if call.backends != (call.id,)]
    assert len(stated) > 10 and set(stated) <= backends
    assert len(stated) == len(set(stated)), "a backend makes one call"


def test_lengths_keep_the_queries_of_a_decoding_job() -> None:
    assert with_length({"seq_len_q": 1, "seq_len_kv": 4096}, 8192) == {"seq_len_q": 1, "seq_len_kv": 8192}
    assert with_length({"seq_len_q": 4096}, 512) == {"seq_len_q": 512, "seq_len_kv": 512}


def test_compiled_calls_go_last_and_the_budget_grows_with_the_lengths() -> None:
    facts = known({})
    calls, missing = calls_of(load_rulebook(()), facts)
    shapes = ({"seq_len_q": 1}, {"seq_len_q": 2})
    plan = SpeedPlan(facts, LLAMA, shapes, tuple(calls), missing, "cuda", True, "python", 1.0, {}, "", ())
    assert plan.budget == 2 * BUDGET
    made = list(requests_of(plan, plan.budget))
    order = [request["compiled"] for request in made if request["measured"] != "flex.eager"]
    assert order == sorted(order) and any(order)
    assert [request["measured"] for request in made[-2:]] == ["flex.eager"] * 2, "nobody selects it for its speed"
    assert not any(request["compiled"] for request in requests_of(replace(plan, compiled=False), 1.0))


def test_compiled_calls_run_in_a_process_that_loads_the_compiler_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers keep the order of the requests, and the process starts before the plain calls are measured."""
    events: list[str] = []

    class Ahead:
        def __init__(self, python: str, program: str) -> None:
            events.append(f"start {program}")

        def close(self) -> None:
            events.append("close")

    def plain(self: Any, cases: Any) -> dict[str, list[KernelResult]]:
        events.append("plain")
        return {name: [result(case) for case in several] for name, several in cases.items()}

    def compiled(python: str, program: str, cases: Any, **more: Any) -> list[KernelResult]:
        events.append("compiled")
        assert isinstance(more["prewarmed"], Ahead)
        return [result(case) for case in cases]

    def result(case: Any) -> KernelResult:
        return KernelResult(KernelOutcome.RAN, reason=f"{case['measured']} {case['compiled']}")

    monkeypatch.setattr(speed, "PrewarmedProcess", Ahead)
    monkeypatch.setattr(speed.KernelRunner, "run", plain)
    monkeypatch.setattr(speed, "run_program", compiled)
    facts = known({})
    calls, missing = calls_of(load_rulebook(()), facts)
    plan = SpeedPlan(facts, LLAMA, ({},), tuple(calls), missing, "cuda", True, "python", 1.0, {}, "", ())
    made = list(requests_of(plan, 1.0))
    answers = run_requests(plan, made, None)
    assert [answer.reason for answer in answers] == [f"{case['measured']} {case['compiled']}" for case in made]
    assert events == ["start measure", "plain", "compiled", "close"]


def test_the_load_of_the_own_first_process_is_no_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Any, busy: bool) -> KernelResult:
        return KernelResult(KernelOutcome.RAN, observed={"gpu_state": {"busy": "H100 is busy"} if busy else {}})

    def notes(busy: Callable[[Any], bool]) -> tuple[str, ...]:
        monkeypatch.setattr(
            speed, "run_requests", lambda plan, requests, ahead: [answer(one, busy(one)) for one in requests]
        )
        return run_plans([plan])[0].notes

    facts = known({})
    calls, missing = calls_of(load_rulebook(()), facts)
    plan = SpeedPlan(facts, LLAMA, (LLAMA,), tuple(calls), missing, "cuda", True, "python", 1.0, {}, "", ())
    assert not any("busy" in note for note in notes(lambda request: is_compiled(request, calls)))
    assert any("busy" in note for note in notes(lambda request: not is_compiled(request, calls)))


@pytest.mark.parametrize("outcome", ["crashed", "timeout", "unavailable", "failed"])
def test_a_death_is_a_record(outcome: str) -> None:
    request = {**LLAMA, "measured": "sdpa.cudnn", "compiled": False}
    made = measurement_of(request, KernelResult(KernelOutcome(outcome), reason="killed by SIGSEGV"))
    assert (made.outcome, made.reason, made.backend) == (outcome, "killed by SIGSEGV", "sdpa.cudnn")
    assert (made.seq_len_kv, made.head_dim_v, made.ran) == (4096, 128, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "1k"), "goes with `--run`"),
        (("--run", "--lengths", "1k,x"), "found `x`"),
        (("--run", "--lengths", ""), "found ``"),
        (("--run", "--lengths", "0"), "found `0`"),
        (("--run", "--lengths", ",".join(map(str, range(1, 20)))), "12 lengths at most"),
        (("--run", "--gpu", "h100"), "does not go with `--run`"),
        (("--run", "--batch", "-"), "does not go with `--run`"),
        (("--run", "--format", "sarif"), "cannot show speed"),
    ],
)
def test_bad_options_are_one_line(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["backends", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_files_alone_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    facts = ROOT / "examples" / "incidents" / "b" / "facts.yaml"
    assert cli.run(["backends", "--run", "--facts", str(facts)]) == 3
    assert "nothing can be measured" in capsys.readouterr().err


def test_the_whole_on_a_cpu(torch_python: str, tmp_path: Path) -> None:
    job, out = tmp_path / "job.json", tmp_path / "speed.json"
    job.write_text(json.dumps({**LLAMA, "dtype": "float32", "num_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32}))
    run = ["backends", "--run", "--device", "cpu", "--python", torch_python, "--workload", str(job)]
    assert cli.run([*run, "--lengths", "64,128", "--format", f"json={out}"]) == 0
    content = json.loads(out.read_text())
    ran = {(item["backend"], item["seq_len_kv"]) for item in content["measurements"] if item["outcome"] == "ran"}
    assert {(name, length) for name in ("sdpa.flash", "sdpa.math", "hf.eager") for length in (64, 128)} <= ran
    assert all(item["right"] for item in content["measurements"] if item["outcome"] == "ran")
    assert content["measurements"][0]["clock"] == "host" and content["timing"]["measure"] > 0


def test_what_cannot_be_measured_names_what_helps(torch_python: str, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["backends", "--run", "--python", torch_python, "--set", "workload.framework=torch_sdpa"]
    assert cli.run(here) == 3 and "`--device cpu` measures on the CPU" in capsys.readouterr().err
    assert cli.run([*here, "--device", "cpu"]) == 2
    assert "name it with `--model` or `--workload`" in capsys.readouterr().err
