"""Releases that are judged together are those of which the whole rulebook says the same: compared one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from doctor.diagnosis import version_ranges as admitted
from doctor.diagnosis.equivalence import Alike
from doctor.diagnosis.examine import InputCache, environment_of, with_job
from doctor.diagnosis.request import Request
from doctor.diagnosis.version_ranges import Case, judge_ranges, ranges_of, whole
from doctor.model import Fact, Facts
from doctor.packages.index import load_index
from doctor.rulebook.evaluate import evaluate, with_backend_findings
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = (
    "torch", "transformers", "flash-attn", "transformer-engine", "xformers", "triton", "deepspeed", "megatron-core",
    "nvidia-cudnn-cu12", "torchvision", "vllm",
)  # fmt: skip
GPUS = ("a100", "h100", "b200", "rtx5090", "v100", "t4", None)
SETTINGS = (
    "env.NVTE_FLASH_ATTN=0", "env.NVTE_FUSED_ATTN=0", "env.NVTE_UNFUSED_ATTN=0", "workload.deterministic=true",
    "workload.dropout=0.1", "workload.mask=padding_causal", "workload.fp8=true", "env.TORCH_CUDNN_SDPA_PREFERRED=0",
    "workload.head_dim_qk=256", "workload.training=false", "cudnn.version=9.1.0", "python.version=3.11.4",
)  # fmt: skip
FRAMEWORKS = ("transformers", "transformer_engine", "torch_sdpa", "flash_attn", "megatron", "xformers", "vllm")
JOB = (
    "workload.dtype=bfloat16", "workload.head_dim_qk=128", "workload.num_heads=32", "workload.num_kv_heads=8",
    "workload.seq_len_q=4096", "workload.seq_len_kv=4096", "workload.mask=causal", "workload.training=true",
)  # fmt: skip


def a_case(seed: int, path: Path):
    """(rulebook, facts, declaration) of a project that leaves some packages open, for some GPU and some job."""
    rng = random.Random(seed)
    lines = []
    for name in rng.sample(PACKAGES, rng.choice((1, 1, 2, 3))):
        releases = [version for version, item in load_index().releases(name).items() if not item.is_prerelease]
        low, high = sorted((rng.choice(releases), rng.choice(releases)), key=releases.index)
        lines.append(name + rng.choice(("", f">={low}", f"<={high}", f">={low},<={high}")))
    pinned = [name for name in rng.sample(PACKAGES, 2) if not any(line.startswith(name) for line in lines)]
    lines += [f"{name}=={rng.choice(list(load_index().releases(name)))}" for name in pinned if rng.random() < 0.5]
    path.write_text("\n".join(lines))
    settings = [f"workload.framework={rng.choice(FRAMEWORKS)}", *JOB, *rng.sample(SETTINGS, rng.randrange(4))]
    if rng.random() < 0.3:
        settings += ["workload.cp_size=2", f"workload.cp_comm_type={rng.choice(('p2p', 'all_gather', 'a2a'))}"]
    if rng.random() < 0.1:
        settings = [text for text in settings if not text.startswith("workload.")]
    gpu = rng.choice(GPUS)
    rulebook = builtin_rulebook()
    request = Request(declared=(str(path),), gpu=gpu, settings=tuple(settings), run=False)
    examined = with_job(environment_of(request, rulebook), request, InputCache(rulebook, request))
    assert examined.declaration is not None
    return rulebook, examined.facts, examined.declaration


#: Jobs that TransformerEngine cuts into steps, whose backends are predicted step by step.
STEPPED = tuple(
    (lines, (f"workload.cp_comm_type={way}", f"workload.mask={mask}", *more))
    for lines in (
        "transformer-engine\nflash-attn>=2.6",
        "torch>=2.2\ntransformer-engine==2.3.0\nflash-attn==2.7.4.post1",
    )
    for way, mask, more in (
        ("all_gather", "causal", ()),
        ("all_gather", "causal", ("workload.window=[512,0]", "env.NVTE_FLASH_ATTN=0")),
        ("p2p", "padding_causal", ("workload.qkv_layout=thd_thd_thd", "env.NVTE_FUSED_ATTN=1")),
        ("a2a", "causal", ("workload.window=[512,0]",)),
        ("p2p", "causal", ("env.NVTE_FLASH_ATTN=0", "workload.head_dim_qk=192", "workload.head_dim_v=128")),
    )
)


def a_stepped_case(number: int, path: Path):
    """The same of a job under context parallelism."""
    lines, settings = STEPPED[number]
    path.write_text(lines)
    rulebook = builtin_rulebook()
    asked = ("workload.framework=transformer_engine", *JOB, "workload.cp_size=2", *settings)
    request = Request(declared=(str(path),), gpu="h100", settings=asked, run=False)
    examined = with_job(environment_of(request, rulebook), request, InputCache(rulebook, request))
    return rulebook, examined.facts, examined.declaration


def said(rulebook, assessment):
    """All that is made of the judgement of a release that is not shown itself."""
    return (
        [(finding.rule, finding.severity) for finding in with_backend_findings(rulebook, assessment)],
        {rule for group in assessment.undetermined for rule in group.rules},
        [
            (item.library, item.selected, item.could_tell, item.import_error and item.import_error.rule,
             item.fails_at_run and item.fails_at_run.rule, [(one.backend, one.available) for one in item.candidates])
            for item in assessment.predictions
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    "number", [*(pytest.param(number, marks=pytest.mark.slow) for number in range(5)), *range(5, len(STEPPED))]
)
def test_steps_are_distinguished(number, tmp_path):
    assert_alike(*a_stepped_case(number, tmp_path / "requirements.txt"))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_what_is_judged_together_is_alike(seed, tmp_path):
    assert_alike(*a_case(seed, tmp_path / "requirements.txt"))


def assert_alike(rulebook, facts, declaration):
    """Every release, judged alone, gets the verdict of its group."""
    for packages, choices in ranges_of(rulebook, declaration).rounds:
        wholes = [whole(facts, choice, packages, declaration) for choice in choices]
        if not wholes:
            continue
        alike = Alike(rulebook, wholes)
        groups = alike.groups()
        assert sorted(number for group in groups for number in group) == list(range(len(wholes)))
        for group in groups:
            mine = said(rulebook, alike.evaluate(group[-1]))
            for number in group:
                assert said(rulebook, evaluate(rulebook, wholes[number])) == mine, choices[number]


@pytest.mark.parametrize("seed", [6, 8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 9, 10, 11))])
def test_the_answer_is_that_of_checking_every_release(seed, tmp_path, monkeypatch):
    rulebook, facts, declaration = a_case(seed, tmp_path / "requirements.txt")
    base = evaluate(rulebook, facts)
    found = judge_ranges(rulebook, facts, declaration, base)

    def plainly(rulebook, wholes, memory=None):
        cases = []
        for choice, facts in wholes:
            assessment = evaluate(rulebook, facts)
            cases.append(Case((choice,), assessment, with_backend_findings(rulebook, assessment)))
        return cases

    monkeypatch.setattr(admitted, "judged_alike", plainly)
    plain = judge_ranges(rulebook, facts, declaration, base)
    assert found[1] == plain[1] and found[3] == plain[3]
    for mine, other in ((found[0], plain[0]), (found[2], plain[2])):
        assert (mine.findings, mine.undetermined, mine.predictions) == (
            other.findings, other.undetermined, other.predictions
        )  # fmt: skip


def test_releases_between_which_a_decision_list_changes_are_apart():
    facts = {
        "gpu.sm": "9.0", "torch.cuda": "12.6", "flashinfer-python.version": "0.2.5", "workload.framework": "sglang",
        "workload.architecture": "MistralForCausalLM", "workload.mla": False, "workload.dtype": "bfloat16",
        "workload.head_dim_qk": 128, "workload.head_dim_v": 128, "workload.kv_cache_dtype": "auto",
    }  # fmt: skip
    cases = [
        Facts(Fact(key, value, "given") for key, value in {**facts, "sglang.version": release}.items())
        for release in ("0.4.6.post4", "0.4.6.post5")
    ]
    assert Alike(builtin_rulebook(), cases).groups() == [(0,), (1,)]
