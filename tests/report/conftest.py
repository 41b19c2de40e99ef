"""One report with every field filled, for all formats."""

import pytest

from doctor.model import (
    Candidate,
    Change,
    Confirmation,
    Evidence,
    Fact,
    Facts,
    Finding,
    Fix,
    FixSafety,
    InstallPlan,
    PinnedRequirement,
    Prediction,
    Reason,
    Remedy,
    Report,
    RunVerdict,
    Severity,
    Undetermined,
    Verdict,
)


def build_report(**changes):
    cudnn = Fact("cudnn.version", "9.1.0", "what torch 2.6.0 brings")
    mask = Fact("workload.mask", "causal", "job.yaml: mask")
    interleaved = Fact("workload.qkv_interleaved", True, "job.yaml: qkv_interleaved")
    finding = Finding(
        rule="TE900",
        name="sample-flaw",
        severity=Severity.ERROR,
        verdict=Verdict.FIRES,
        summary="FusedAttention lacks a mask",
        message="FusedAttention needs cuDNN >= 9.3 for this mask (found 9.1.0)",
        why="All-gather turns the mask.",
        evidence=(
            Evidence("cudnn.version", "<9.3", ">=9.3", cudnn, True),
            Evidence("workload.mask", "causal", "not causal", mask, True),
            Evidence("workload.qkv_interleaved", "true", "not true", interleaved, True),
        ),
        references=("https://example.org/pull/1", "fused_attn.cpp@v2.3"),
        alternatives=(
            Remedy(require={"torch": ">=2.7.1,<2.9"}, note="brings cuDNN 9.5.1"),
            Remedy(
                require={"nvidia-cudnn-cu12": "9.3.0.75"},
                index_url="https://example.org/whl",
                safety=FixSafety.RISKY,
                note="torch pins another",
            ),
            Remedy(set_env={"NVTE_FUSED_ATTN": "0"}, unset_env=("NVTE_FLASH_ATTN",)),
            Remedy(config={"cp_comm_type": "p2p"}, call="q = q.contiguous()"),
        ),
        no_pin="The limit is in the GPU.",
        myth="`nvidia-cudnn-cu12==9.3.0.75` does not resolve beside torch 2.6.",
        confirm={"kernel": "cudnn_sdpa"},
        confirmation=Confirmation(
            "confirmed",
            "cudnn_sdpa",
            {"mask": "causal_bottom_right"},
            "refused",
            {"wrong": False, "rel": float("nan"), "shape": (1, 2)},
            "No execution plans support the graph",
            1.25,
        ),
        backends=("te.fused",),
    )
    warning = Finding(
        "FA900", "w", "warning", "fires", "Two wheels share a folder", "Two wheels share a folder", "", (), ()
    )
    reason = Reason("TE901", "switched off by NVTE_FLASH_ATTN=0", True, "attention.py@v2.3")
    unclear = Reason("TE902", "needs sm90", None, "utils.py@v2.3", ("gpu.sm",))
    prediction = Prediction(
        "transformer_engine",
        "te.fused",
        True,
        (
            Candidate("te.flash2", "FlashAttention 2", False, (reason,)),
            Candidate("te.flash3", "FlashAttention 3", None, (unclear,)),
            Candidate("te.fused", "FusedAttention (cuDNN)", True, ()),
        ),
        Reason("TE900", "the all-gather step dies", True, "x"),
    )
    fix = Fix(
        "Upgrade `torch` to 2.7.1",
        (
            Change("package", "torch", "2.6.0", "2.7.1", "brings cuDNN 9.5.1", ("TE900",)),
            Change("env", "env.NVTE_DEBUG", None, "1", "", ("TE900",)),
            Change("env", "env.NVTE_FLASH_ATTN", "0", None, "", ("TE900",)),
            Change("config", "workload.cp_comm_type", "all_gather", "p2p", "", ("TE900",)),
            Change("package", "flash-attn-4", "4.0", None, "shares the folder", ("FA900",)),
        ),
        ("TE900",),
        ("FA900",),
        note="rebuild what was compiled against torch 2.6",
        plan=InstallPlan((PinnedRequirement("torch", "2.7.1", "brings cuDNN 9.5.1"),), removed=("flash-attn-4",)),
    )
    content = {
        "tool": "attn-doctor 9.9",
        "rulebook": {"version": "abc", "rules": 2},
        "facts": Facts(
            [
                Fact("torch.version", "2.6.0", "torch-2.6.0.dist-info"),
                Fact("gpu.name", "NVIDIA H100", "NVML", raw="NVIDIA H100\n"),
                Fact("gpu.sm", "9.0", "NVML"),
                Fact("driver.version", None, "NVML", problem="no driver"),
                mask,
                Fact("workload.window", (128, 0), "job.yaml: window"),
                Fact("workload.batch_size", 1, "assumed: one sequence in a batch", assumed=True),
            ]
        ),
        "findings": (finding, warning),
        "predictions": (prediction,),
        "fixes": (fix,),
        "undetermined": (
            Undetermined(("driver.version",), ("CUDA900",), "`driver.version`: no driver"),
            Undetermined(("workload.dtype",), ("SDPA900", "SDPA901"), "`workload.dtype`: no workload was given"),
        ),
        "timing": {"rules": 0.01, "kernels": 1.5, "total": 1.75},
        "kernels_run": True,
        "runs": (
            Confirmation(RunVerdict.FAILED, "te_attention", {}, "crashed", {}, "killed by SIGSEGV at step `run`", 2.0),
        ),
        "notes": ("CUDA901 is ignored by this project: known",),
    }
    return Report(**{**content, **changes})


@pytest.fixture
def report():
    return build_report()


@pytest.fixture
def make_report():
    return build_report
