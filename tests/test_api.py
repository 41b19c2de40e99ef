"""`from doctor import diagnose`: what a training script gets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import doctor
from doctor import DoctorError, diagnose, diagnose_ranks, render
from doctor.diagnosis.ranks import disagreements
from doctor.model import ABSENT, Fact, Facts

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LLAMA = EXAMPLES / "models" / "llama-3-8b.json"
B = EXAMPLES / "incidents" / "b"


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(doctor, name) is not None for name in doctor.__all__)
    with pytest.raises(AttributeError, match="no attribute `cure`"):
        _ = doctor.cure


def test_importing_the_package_loads_nothing_of_it():
    code = "import sys, doctor; print(sorted(name for name in sys.modules if name.startswith('doctor.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['doctor._version']"


def test_incident_b_as_a_program_checks():
    report = diagnose(facts=B / "facts.yaml", workload=B / "workload.yaml")
    assert report.findings[0].severity == "error"
    assert "cuDNN >= 9.3 (found cuDNN 9.1.0)" in report.findings[0].message
    assert "9.3" in render(report)
    assert json.loads(render(report, "json"))["findings"][0]["id"] == report.findings[0].rule


def test_model_and_workload_may_be_files_or_what_they_hold():
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return dict(json.loads(LLAMA.read_text()))

    def shape(model: Any) -> dict[str, Any]:
        facts = diagnose(model, facts=B / "facts.yaml", workload={"seq_len_q": 512, "dtype": "float16"}).facts
        return {key: fact.value for key, fact in facts.items() if key.startswith("workload.")}

    from_file = shape(LLAMA)
    assert shape(str(LLAMA)) == shape(Config().to_dict()) == shape(Config()) == from_file
    assert from_file["workload.seq_len_q"] == 512
    assert from_file["workload.dtype"] == "float16"


def test_the_other_layers_of_a_model_are_judged(tmp_path: Path):
    """A file and its content are judged as `check` judges them: here only the global layers have wide heads."""
    config = {"model_type": "gemma4_text", "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 2560,
              "head_dim": 256, "global_head_dim": 512, "sliding_window": 512, "dtype": "bfloat16",
              "architectures": ["Gemma4ForCausalLM"]}  # fmt: skip
    facts = {"torch.version": "2.9.0", "transformers.version": "5.13.0", "flash-attn.version": "2.8.3", "gpu.sm": "9.0"}
    job = {"framework": "transformers", "attn_implementation": "flash_attention_2", "training": True}
    (tmp_path / "facts.json").write_text(json.dumps({"facts": facts, "workload": job}))
    (tmp_path / "config.json").write_text(json.dumps(config))
    for model in (config, tmp_path / "config.json"):
        found = diagnose(model, facts=tmp_path / "facts.json", fixes=False).findings
        assert any(item.message.startswith("in the full_attention layers: ") for item in found)


def test_settings_win():
    report = diagnose(LLAMA, facts=B / "facts.yaml", settings={"torch.version": "2.1.0", "workload.dtype": "float16"})
    assert report.facts.value("torch.version") == "2.1.0"
    assert report.facts.value("workload.dtype") == "float16"


def test_the_interpreter_that_runs_is_examined_unless_another_is_named():
    report = diagnose(settings={"torch.version": "2.6.0"}, gpu="h100")
    assert report.facts.value("python.version") == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"model": 3}, "needs a file, a mapping or an object"),
        ({"workload": {"head_dmi": 128}}, "head_dmi"),
        ({"settings": {"torch.vresion": "2.6"}}, "unknown fact key"),
        ({"python": "python3", "facts": "f.yaml"}, "exclude each other"),
        ({"model": "no/such/config.json"}, "config.json"),
        ({"gpu": " , "}, "names no GPU"),
        ({"timeout": 0}, "positive number of seconds, found `0`"),
    ],
)
def test_bad_input_is_one_sentence(options: dict[str, Any], why: str):
    with pytest.raises(DoctorError, match=why) as caught:
        diagnose(**options)
    assert "\n" not in caught.value.message


class Ranks:
    """Threads as ranks, with a gather that waits for all of them."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.said: list[Any] = [None] * size

    def run(self, ask: Any) -> list[Any]:
        answers: list[Any] = [None] * self.size

        def work(rank: int) -> None:
            def gather(item: Any) -> list[Any]:
                self.said[rank] = item
                self.barrier.wait(20)
                return list(self.said)

            try:
                answers[rank] = ask(rank, gather)
            except DoctorError as problem:
                answers[rank] = problem

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return answers


def test_ranks_that_differ_are_a_finding_of_rank_0():
    settings = [
        {"torch.version": "2.6.0", "nvidia-nccl-cu12.version": "2.21.5", "env.NVTE_FLASH_ATTN": "0"},
        {"torch.version": "2.6.0", "nvidia-nccl-cu12.version": "2.21.5"},
        {"torch.version": "2.7.0", "nvidia-nccl-cu12.version": "2.26.2"},
    ]

    def ask(rank: int, gather: Any) -> Any:
        return diagnose_ranks(LLAMA, rank=rank, gather=gather, settings=settings[rank], gpu="h100", fixes=False)

    first, *others = Ranks(3).run(ask)
    found = {finding.rule: finding for finding in first.findings if finding.rule.startswith("RANK")}
    assert set(found) == {"RANK001", "RANK002", "RANK003"}
    assert found["RANK001"].severity == "error"
    assert "nvidia-nccl-cu12 2.21.5 on ranks 0-1, 2.26.2 on rank 2" in found["RANK001"].message
    assert "NVTE_FLASH_ATTN 0 on rank 0, absent on ranks 1-2" in found["RANK003"].message
    assert not [finding for report in others for finding in report.findings if finding.rule.startswith("RANK")]


def test_ranks_that_agree_are_no_finding():
    def ask(rank: int, gather: Any) -> Any:
        own = {"torch.version": "2.6.0", "env.CUDA_VISIBLE_DEVICES": str(rank), "workload.seq_len_q": 128 + rank}
        return diagnose_ranks(LLAMA, rank=rank, gather=gather, settings=own, gpu="a100", fixes=False)

    for report in Ranks(2).run(ask):
        assert not [finding for finding in report.findings if finding.rule.startswith("RANK")]


def test_a_rank_that_cannot_be_examined_holds_up_no_other():
    def ask(rank: int, gather: Any) -> Any:
        facts = B / ("facts.yaml" if rank != 1 else "no_such.yaml")
        return diagnose_ranks(LLAMA, rank=rank, gather=gather, facts=facts, fixes=False)

    first, broken, third = Ranks(3).run(ask)
    assert isinstance(broken, DoctorError)
    assert any(note.startswith("rank 1 could not be compared") for note in first.notes)
    assert not any("rank 1" in note for note in third.notes)


def test_without_a_group_a_single_rank_is_diagnosed_and_several_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert diagnose_ranks(LLAMA, facts=B / "facts.yaml", fixes=False).findings is not None
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(DoctorError, match="8 ranks were started"):
        diagnose_ranks(LLAMA, facts=B / "facts.yaml")


def test_the_process_group_of_the_script_is_used(monkeypatch: pytest.MonkeyPatch):
    group = ModuleType("torch.distributed")
    group.is_available = group.is_initialized = lambda: True  # type: ignore[attr-defined]
    group.get_world_size, group.get_rank = lambda: 2, lambda: 0  # type: ignore[attr-defined]

    def all_gather_object(out: list[Any], item: Any) -> None:
        out[:] = [item, item.replace("9.1.0", "9.3.0")]

    group.all_gather_object = all_gather_object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    report = diagnose_ranks(LLAMA, facts=B / "facts.yaml", fixes=False)
    assert "RANK002" in {finding.rule for finding in report.findings}


def test_unknown_is_no_disagreement_and_absent_is():
    def facts(**values: Any) -> Facts:
        return Facts(Fact(key.replace("__", "."), value, "here") for key, value in values.items())

    here, there = facts(torch__version="2.6.0", driver__version=None), facts(driver__version="550.1")
    found = {item.key: item.values for item in disagreements([here, there])}
    assert found == {"torch.version": (("2.6.0", (0,)), (ABSENT, (1,)))}
    assert disagreements([here, Facts()]) == ()


def test_several_gpus_models_and_workloads_are_judged_in_every_combination():
    small = {"dtype": "bfloat16", "framework": "torch_sdpa"}
    report = diagnose(
        [LLAMA, {**json.loads(LLAMA.read_text()), "_name_or_path": "ours/tiny"}],
        workload=[small, {**small, "dtype": "float16"}],
        gpu=["a100", "h100"],
        facts=B / "facts.yaml",
        fixes=False,
    )
    assert [case.gpu for case in report.cases] == ["a100"] * 4 + ["h100"] * 4
    assert [case.workload for case in report.cases[:4]] == [
        f"{model} + workload {number}" for model in ("llama-3-8b", "tiny") for number in (1, 2)
    ]
    assert [case.facts.value("workload.dtype") for case in report.cases[:2]] == ["bfloat16", "float16"]
    assert report.cases[2].facts.value("workload.head_dim_qk") == 128
    assert len(json.loads(render(report, "json"))["cases"]) == 8


def test_each_case_is_reported_what_a_diagnosis_of_it_alone_shows():
    jobs = [{**json.loads(LLAMA.read_text()), "torch_dtype": dtype} for dtype in ("bfloat16", "float32")]
    options: dict[str, Any] = {"facts": B / "facts.yaml", "workload": B / "workload.yaml", "fixes": False}
    cases = iter(diagnose(jobs, gpu="v100,h100", **options).cases)
    for gpu in ("v100", "h100"):
        for job in jobs:
            alone, case = diagnose(job, gpu=gpu, **options), next(cases)
            assert {item.rule for item in case.findings} == {item.rule for item in alone.findings}
            assert case.facts.value("workload.dtype") == alone.facts.value("workload.dtype")


def test_a_list_of_one_is_one():
    options: dict[str, Any] = {"facts": B / "facts.yaml", "fixes": False}
    assert diagnose([LLAMA], gpu=["h100"], **options).findings == diagnose(LLAMA, gpu="h100", **options).findings
    assert diagnose([LLAMA], gpu=["h100"], **options).cases == ()


def test_settings_win_in_every_case():
    report = diagnose(
        LLAMA, gpu=["a100", "h100"], facts=B / "facts.yaml", settings={"workload.cp_size": 4}, fixes=False
    )
    assert [case.facts.value("workload.cp_size") for case in report.cases] == [4, 4]


def test_a_folder_and_an_extra_are_declared_environments(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        "[project]\ndependencies = ['torch==2.6.0']\noptional-dependencies.train = ['flash-attn==2.7.4.post1']\n"
    )
    options: dict[str, Any] = {"gpu": ["a100", "h100"], "fixes": False}
    folder = diagnose(LLAMA, requirements=tmp_path, **options)
    assert folder.facts.value("torch.version") == "2.6.0" and "flash-attn.version" not in folder.facts
    chosen = diagnose(LLAMA, requirements=[f"{tmp_path}/pyproject.toml[train]"], **options)
    assert chosen.facts.value("flash-attn.version") == "2.7.4.post1" and len(chosen.cases) == 2


def test_the_ranks_of_a_job_share_one_gpu():
    with pytest.raises(DoctorError, match="share one GPU"):
        diagnose_ranks(LLAMA, gpu=["a100", "h100"], facts=B / "facts.yaml", rank=0, gather=lambda text: [text])
