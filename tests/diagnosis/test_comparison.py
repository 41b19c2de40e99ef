"""`diff`: what differs, what that changes, and its cause in the first three lines, on pairs of real environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from doctor.cli import main as cli
from doctor.diagnosis.comparison import compare_environments, differences_of, side_request
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import Fact, Facts
from doctor.report.comparison import answer_of
from doctor.report.comparison_model import DiffArea
from doctor.report.formats import renderer
from doctor.report.style import Style
from doctor.rulebook.rulebook import load_rulebook

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "captures"
ONE, TWO = CAPTURES / "h200-te2.20.2-one-cudnn.json", CAPTURES / "h200-te2.20.2-two-cudnns.json"

#: Near miss, incident, and the one setting or release in which they differ to decide it.
NEAR_MISSES = (
    ("a_without_context_parallelism", "a", "workload.cp_size 1 in A, 2 in B"),
    ("b_cudnn_9_3", "b", "cuDNN 9.3.0 in A, 9.1.0 in B"),
    ("b_p2p", "b", "workload.cp_comm_type p2p in A, all_gather in B"),
    ("c_packing", "c", "workload.use_varlen_attn yes in A, no in B"),
    ("d_h100_cudnn_9_10", "d", "GPU NVIDIA H100 80GB HBM3 in A, NVIDIA A100-SXM4-40GB in B"),
    ("e_contiguous", "e", "workload.qkv_interleaved no in A, yes in B"),
    ("e_te_1_12", "e", "TransformerEngine 1.12.0 in A, 1.11.0 in B"),
)
H100 = {"gpu.name": "NVIDIA H100 80GB HBM3", "gpu.sm": "9.0"}
T4 = {"gpu.name": "Tesla T4", "gpu.sm": "7.5"}
TE = {
    "framework": "transformer_engine", "dtype": "bfloat16", "head_dim_qk": 192, "head_dim_v": 128, "num_heads": 16,
    "num_kv_heads": 16, "batch_size": 2, "seq_len_q": 4096, "mask": "causal", "qkv_layout": "bshd_bshd_bshd",
    "training": True,
}  # fmt: skip
SDPA = {**TE, "framework": "torch_sdpa", "head_dim_qk": 256, "head_dim_v": 256}
#: Releases of NVIDIA's PyTorch containers, as its release notes list them.
NGC = {
    "24.07": {"torch.version": "2.4.0a0+3bcc3cddb5.nv24.07", "torch.cuda": "12.5", "cudnn.version": "9.2.1",
              "transformer-engine.version": "1.8.0", "driver.version": "555.42.06"},
    "24.10": {"torch.version": "2.5.0a0+e000cf0ad9.nv24.10", "torch.cuda": "12.6", "cudnn.version": "9.5.0",
              "transformer-engine.version": "1.11.0", "driver.version": "560.35.03"},
    "25.04": {"torch.version": "2.7.0a0+79aa17489c.nv25.04", "torch.cuda": "12.9", "cudnn.version": "9.9.0",
              "transformer-engine.version": "2.2.0", "driver.version": "575.51.03"},
    "25.06": {"torch.version": "2.8.0a0+5228986c39.nv25.06", "torch.cuda": "12.9", "cudnn.version": "9.10.2",
              "transformer-engine.version": "2.4.0", "driver.version": "575.57.08"},
    "25.12": {"torch.version": "2.10.0a0+b4e4ee81d3.nv25.12", "torch.cuda": "13.1", "cudnn.version": "9.17.0",
              "transformer-engine.version": "2.10.0", "driver.version": "590.44.01"},
}  # fmt: skip
RTX4090 = {"gpu.name": "NVIDIA GeForce RTX 4090", "gpu.sm": "8.9"}
B200 = {"gpu.name": "NVIDIA B200", "gpu.sm": "10.0"}
A10G = {"gpu.name": "NVIDIA A10G", "gpu.sm": "8.6"}
RTX5090 = {"gpu.name": "NVIDIA GeForce RTX 5090", "gpu.sm": "12.0"}
P100 = {"gpu.name": "Tesla P100-PCIE-16GB", "gpu.sm": "6.0"}
#: (A, B, workload, whether an outcome changes, what the first three lines name)
UPGRADES: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any], bool, str], ...] = (
    ({**NGC["24.07"], **H100}, {**NGC["24.10"], **H100}, TE, False, "TransformerEngine 1.8.0 in A, 1.11.0 in B"),
    ({**NGC["24.10"], **H100}, {**NGC["25.06"], **H100}, TE, True, "TransformerEngine 1.11.0 in A, 2.4.0 in B"),
    ({**NGC["25.06"], **H100}, {**NGC["25.12"], **H100}, TE, False, "cuDNN 9.10.2 in A, 9.17.0 in B"),
    ({**NGC["25.04"], **H100}, {**NGC["25.06"], **H100}, TE, False, "cuDNN 9.9.0 in A, 9.10.2 in B"),
    ({**NGC["25.12"], **H100}, {**NGC["25.12"], **H100, "env.NVTE_FUSED_ATTN": "0"}, TE, True,
     "NVTE_FUSED_ATTN not set in A, 0 in B"),
    ({"torch.version": "2.2.2+cu121", **RTX4090}, {"torch.version": "2.6.0+cu126", **H100}, SDPA, True,
     "torch 2.2.2+cu121 in A, 2.6.0+cu126 in B"),
    ({"torch.version": "2.12.0+cu130", **B200}, {"torch.version": "2.14.0+cu130", **B200}, SDPA, True,
     "torch 2.12.0+cu130 in A, 2.14.0+cu130 in B"),
    ({"torch.version": "2.9.1+cu128", **A10G}, {"torch.version": "2.11.0+cu128", **H100}, SDPA, True,
     "GPU NVIDIA A10G in A, NVIDIA H100 80GB HBM3 in B"),
    ({"torch.version": "2.6.0+cu126", **H100}, {"torch.version": "2.6.0+cu118", **P100}, SDPA, True,
     "GPU NVIDIA H100 80GB HBM3 in A, Tesla P100-PCIE-16GB in B"),
    ({"torch.version": "2.7.1+cu118", **T4}, {"torch.version": "2.7.1+cu128", **RTX5090}, SDPA, True,
     "GPU Tesla T4 in A, NVIDIA GeForce RTX 5090 in B"),
    ({"torch.version": "2.8.0+cu128", **H100}, {"torch.version": "2.8.0+cpu", **H100}, SDPA, True,
     "torch 2.8.0+cu128 in A, 2.8.0+cpu in B"),
)  # fmt: skip
#: Two lock files of one project: before and after an upgrade.
LOCKS = (
    ("torch==2.10.0\nflash-attn==2.8.3\n", "torch==2.11.0\nflash-attn==2.8.3\n", "torch 2.10.0 in A, 2.11.0 in B"),
    ("xformers==0.0.31\nflash-attn==2.8.2\ntorch==2.7.1\n", "xformers==0.0.29.post3\nflash-attn==2.8.2\ntorch==2.7.1\n",
     "xformers 0.0.31 in A, 0.0.29.post3 in B"),
    ("transformers==4.46.3\nflash-attn==2.7.0.post2\ntorch==2.5.1\n",
     "transformers==4.51.0\nflash-attn==2.7.0.post2\ntorch==2.5.1\n", "transformers 4.46.3 in A, 4.51.0 in B"),
    ("torch==2.6.0\ntransformer-engine==2.3.0\nnvidia-cudnn-cu12==9.1.0.70\n",
     "torch==2.6.0\ntransformer-engine==2.3.0\nnvidia-cudnn-cu12==9.10.1.4\n", "cuDNN 9.1.0.70 in A, 9.10.1.4 in B"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def first_lines(capsys, *arguments: object) -> tuple[int, str]:
    code = cli.run(["diff", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert not err, err
    return code, " ".join(" ".join(out.splitlines()[:3]).split())


def saved(path: Path, facts: dict[str, Any], workload: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"facts": facts, "workload": workload}))
    return path


def example(kind: str, name: str, path: Path) -> Path:
    folder = ROOT / "examples" / kind / name
    facts, workload = (
        yaml.load((folder / f"{part}.yaml").read_text(), yaml.BaseLoader) for part in ("facts", "workload")
    )
    return saved(path, facts.get("facts", facts), workload.get("workload", workload))


@pytest.mark.parametrize(("near", "incident", "cause"), NEAR_MISSES)
def test_incidents_next_to_their_near_misses(near, incident, cause, capsys, tmp_path):
    a = example("near_misses", near, tmp_path / "a.json")
    b = example("incidents", incident, tmp_path / "b.json")
    code, lines = first_lines(capsys, a, b)
    assert code == 1 and lines.startswith("WORSE: error") and cause in lines


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b", "workload", "changes", "cause"), UPGRADES)
def test_upgrades_of_real_images_and_wheels(a, b, workload, changes, cause, capsys, tmp_path):
    base = {"platform.system": "Linux", "platform.machine": "x86_64"}
    one = saved(tmp_path / "a.json", {**base, **a}, workload)
    two = saved(tmp_path / "b.json", {**base, **b}, workload)
    _, lines = first_lines(capsys, one, two)
    assert cause in lines and lines.startswith("SAME") != changes


@pytest.mark.parametrize(("a", "b", "cause"), LOCKS)
def test_two_lock_files(a, b, cause, capsys, tmp_path):
    for name, text in (("a.txt", a), ("b.txt", b)):
        (tmp_path / name).write_text(text)
    workload = ["--set", "workload.framework=transformers", "--set", "workload.attn_implementation=flash_attention_2"]
    _, lines = first_lines(capsys, "a.txt", "b.txt", "--gpu", "h100", *workload)
    assert cause in lines


def test_captures_of_one_machine(capsys):
    code, lines = first_lines(capsys, ONE, TWO)
    assert code == 1 and "TE130" in lines and "Cause: cuDNN 9.19.0 in A, 9.14.0 in B" in lines
    assert first_lines(capsys, TWO, ONE)[0] == 0
    assert first_lines(capsys, ONE, ONE) == (0, first_lines(capsys, ONE, ONE)[1])


def test_a_snapshot_and_a_lock_are_compared(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\n")
    comparison = compare_environments(Request(run=False), (str(ONE), "requirements.txt"))
    torch = next(item for item in comparison.differences if item.name == "torch")
    assert torch.rows[0].key == "torch.version" and torch.rows[0].b == "2.6.0"
    unknown = [item for item in comparison.differences if not item.known]
    assert any(item.name == "GPU" for item in unknown), "a lock says nothing of a GPU: unknown, not different"


def test_relevance_comes_before_the_alphabet():
    rulebook = load_rulebook()
    pairs = {
        "zzz.version": "1",
        "env.NVTE_FLASH_ATTN": "0",
        "gpu.sm": "9.0",
        "driver.version": "550.1",
        "torch.version": "2",
    }
    a = Facts(Fact(key, value, "test") for key, value in pairs.items())
    b = Facts(Fact(key, f"{value}0", "test") for key, value in pairs.items())
    order = [item.area for item in differences_of(rulebook, a, b)]
    assert order == [DiffArea.LIBRARY, DiffArea.DRIVER, DiffArea.GPU, DiffArea.VARIABLE, DiffArea.OTHER]


def test_what_a_side_is(tmp_path):
    tree, venv = tmp_path / "tree", tmp_path / "venv"
    (tree / "torch-2.6.0.dist-info").mkdir(parents=True)
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (tmp_path / "facts.yaml").write_text("torch.version: 2.6.0\n")
    (tmp_path / "environment.yml").write_text("dependencies:\n  - pytorch=2.6\n")
    (tmp_path / "list.txt").write_text("Package Version\n------- -------\ntorch   2.6.0\n")
    (tmp_path / "pins.txt").write_text("torch==2.6.0\n")
    request = Request()
    assert side_request(request, "list.txt").facts == ("list.txt",)
    assert side_request(request, "pins.txt").declared == ("pins.txt",)
    assert side_request(request, str(tree)).site_packages == str(tree)
    assert side_request(request, str(venv)).python == str(venv)
    assert side_request(request, "facts.yaml").facts == ("facts.yaml",)
    assert side_request(request, "environment.yml").declared == ("environment.yml",)
    assert side_request(request, "requirements:facts.yaml").declared == ("facts.yaml",)
    for bad in ("nowhere", "facts:", "\0"):
        with pytest.raises(DoctorError):
            side_request(request, bad)


def test_every_format_says_the_same():
    comparison = compare_environments(Request(run=False), (str(ONE), str(TWO)))
    for form in ("text", "markdown", "html", "json"):
        told = renderer(form, "comparison")(comparison, Style())
        assert "TE130" in told and "9.14.0" in told, form
    content = json.loads(renderer("json", "comparison")(comparison, Style()))
    assert content["findings"][0]["finding"]["id"] == "TE130" and content["findings"][0]["only_in"] == "B"
    assert content["pins"][0]["kind"] == "env" and content["schema"] == 1
    with pytest.raises(DoctorError, match="cannot show comparison"):
        renderer("sarif", "comparison")


def test_hostile_facts_stay_text(tmp_path):
    bad = "<script>alert(1)</script>\x1b[31m | `x` [a](https://x)"
    a = saved(tmp_path / "a.json", {"gpu.name": "H100", "gpu.sm": "9.0"}, {})
    b = saved(tmp_path / "b.json", {"gpu.name": bad, "gpu.sm": "8.0"}, {})
    comparison = compare_environments(Request(run=False, settings=("torch.version=2.6.0",)), (str(a), str(b)))
    page = renderer("html", "comparison")(comparison, Style())
    assert "<script>" not in page and "\x1b" not in page
    assert "\x1b" not in renderer("text", "comparison")(comparison, Style())
    assert "<script>" not in renderer("markdown", "comparison")(comparison, Style())
    assert answer_of(comparison, every=True).sections
