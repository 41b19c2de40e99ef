"""`check` on a real GPU: its verdicts, its time beyond the import of torch, and scripts that show a fault alone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from doctor.runner.run import run_one
from tests.diagnosis.test_reproduce import PLANT

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
LLAMA = ("--model", "examples/models/llama-3-8b.json")
SMALL = (*LLAMA, "--set", "workload.seq_len_q=512")
SECONDS = 3.0  # beyond importing torch and making the CUDA context, as the project promises

#: A team's rules: one that is true of torch's flash backend, and one that is not true of its plain arithmetic.
RULE = """\
id: {name}
name: team-rule-{lower}
severity: error
summary: a claim that a kernel can settle
references: [https://example.org/{name}]
when: {{torch.version: present}}
message: torch {{torch.version}} cannot do this
confirm: {{kernel: sdpa, request: {request}, bad_if_any: [{bad}]}}
tests:
  fires: {{given: {{torch.version: 2.6.0}}, expect: fires}}
"""
CLAIMS = {
    "TEAM001": ("{backend: flash, dtype: float32, repeat: 1}", "{outcome: refused}"),
    "TEAM002": ("{backend: math, repeat: 1}", "{wrong: true}"),
}
FAULT = "return plain(q * 1.02, k, v, **options)"


def check(*options: str, **variables: str) -> dict[str, Any]:
    """The report of one `check` of this interpreter, and `wall`, the seconds it took."""
    environment = dict(os.environ)
    for name, value in variables.items():
        environment[name] = os.pathsep.join(filter(None, [value, os.environ.get(name)]))
    command = [
        sys.executable,
        "-m",
        "doctor",
        "check",
        "--run",
        "--python",
        sys.executable,
        "--format",
        "json",
        *options,
    ]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=240, check=False)
    wall = time.monotonic() - began
    assert done.returncode in (0, 1), done.stderr.decode()
    return {**json.loads(done.stdout), "wall": wall}


Reports = Callable[[str], Mapping[str, Any]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """The checks that are about verdicts and not about time, all at once: they wait for imports, not for the GPU."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "team").mkdir()
    for name, (request, bad) in CLAIMS.items():
        text = RULE.format(name=name, lower=name.lower(), request=request, bad=bad)
        (folder / "team" / f"{name}.yaml").write_text(text)
    (folder / "sitecustomize.py").write_text(PLANT.replace("FAULT", FAULT))
    bottom_right = ("workload.mask=causal_bottom_right", "workload.seq_len_q=300", "workload.seq_len_kv=100")
    float32 = ("workload.dtype=float32", "workload.framework=torch_sdpa", "workload.num_kv_heads=32")
    asked: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "claims": ((*SMALL, "--rules", str(folder)), {}),
        "planted": (SMALL, {"PYTHONPATH": str(folder)}),
        "bottom right": ((*LLAMA, *(word for one in (*bottom_right, *float32) for word in ("--set", one))), {}),
        "interleaved": ((*SMALL, "--set", "workload.qkv_interleaved=true"), {}),
        "pinned": ((*SMALL, "--set", "workload.framework=torch_sdpa", "--set", "workload.sdpa_backend=math"), {}),
        "compiled": ((*SMALL, "--set", "workload.torch_compile=true"), {}),
    }
    if importlib.util.find_spec("transformer_engine") is not None:
        asked["te"] = ((*SMALL, "--set", "workload.framework=transformer_engine"), {})
    with ThreadPoolExecutor(len(asked)) as pool:
        under_way = {name: pool.submit(check, *options, **more) for name, (options, more) in asked.items()}
        made = {name: future.result() for name, future in under_way.items()}
    return lambda name: made[name]


def by_id(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {finding["id"]: finding for finding in report["findings"]}


def test_a_claim_that_the_gpu_bears_out_is_confirmed_and_another_refuted(reports: Reports) -> None:
    found = by_id(reports("claims"))
    true, false = found["TEAM001"], found["TEAM002"]
    assert (true["confirmation"]["verdict"], true["severity"]) == ("confirmed", "error"), true
    assert (false["confirmation"]["verdict"], false["severity"]) == ("refuted", "note"), false


def test_a_healthy_job_is_called_so_with_what_ran_and_what_it_cost(reports: Reports) -> None:
    (run,) = [run for run in reports("interleaved")["runs"] if run["kernel"] == "sdpa"]
    observed = run["observed"]
    assert run["verdict"] == "healthy", run
    assert len(observed["ran"]) == 1 and observed["seconds"] > 0 and observed["peak_bytes"] > 0
    assert "UNPREDICTED" not in by_id(reports("interleaved")), "the backend that ran is the one that was predicted"
    views = next(run for run in reports("interleaved")["runs"] if run["kernel"] == "strided_qkv")
    assert views["verdict"] == "healthy" and "transformer_engine" not in views["observed"]["backends"], views


def test_a_pinned_backend_is_the_one_that_runs(reports: Reports) -> None:
    (run,) = reports("pinned")["runs"]
    assert (run["verdict"], run["observed"]["ran"]) == ("healthy", ["math"]), run


def test_a_run_that_lacks_a_word_is_inconclusive_and_names_it(reports: Reports) -> None:
    run = next(run for run in reports("compiled")["runs"] if run["kernel"] == "sdpa")
    assert run["verdict"] == "inconclusive" and set(run["observed"]["not_carried"]) == {"torch_compile"}, run


def test_a_known_silent_fault_of_torch_is_confirmed(reports: Reports) -> None:
    """SDPA401: the efficient backend is wrong for a bottom-right mask with more queries than keys."""
    report = reports("bottom right")
    if not str(report["facts"]["torch.version"]["value"]).startswith("2.11."):
        pytest.skip("the fault is of torch 2.11")
    finding = by_id(report)["SDPA401"]
    assert finding["confirmation"]["verdict"] == "confirmed" and finding["confirmation"]["observed"]["wrong"], finding


def test_a_planted_fault_is_unpredicted_and_its_script_shows_it_alone(reports: Reports, tmp_path: Path) -> None:
    finding = by_id(reports("planted"))["UNPREDICTED"]
    assert (finding["verdict"], finding["severity"]) == ("unpredicted", "error")
    assert finding["message"].startswith("the result is wrong: ")
    script = finding["reproduction"]
    assert "it showed the same" in script and "doctor" not in script.replace("# attn-doctor", ""), script
    (tmp_path / "alone.py").write_text(script)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(PLANT.replace("FAULT", FAULT))

    def code(path: Path | None) -> int:
        environment = {**os.environ, "PYTHONPATH": str(path)} if path else os.environ
        command = [sys.executable, str(tmp_path / "alone.py")]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=120).returncode

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(code, (tmp_path / "planted", None))) == [1, 0]


def test_one_workload_takes_three_seconds_beyond_torch() -> None:
    """The second run counts: the first reads files that no one may have read since the machine started."""
    check(*LLAMA)
    report = check(*LLAMA)
    timing = report["timing"]
    beyond = report["wall"] - timing["kernels.import"] - timing["kernels.context"]
    assert [run["verdict"] for run in report["runs"]] == ["healthy"]
    assert beyond <= SECONDS, (report["wall"], timing)


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_operators_show_the_same_backend_as_the_kernels_on_the_gpu(backend: str) -> None:
    """Each in a process of its own: a profiler that began without the GPU may stay without it."""
    asked = [{"backend": backend, "seq_len_q": 256, "repeat": 1, "profile": how} for how in (True, "kernels")]
    with ThreadPoolExecutor(2) as pool:
        quick, proof = pool.map(lambda request: run_one(sys.executable, "sdpa", request, timeout=240), asked)
    if proof.outcome == "refused" or proof.observed.get("profiler"):
        pytest.skip(proof.reason or str(proof.observed["profiler"]))
    assert quick.observed["ran"] == proof.observed["ran"] == [backend]
    assert all(name.startswith("aten::") or "Backward0" in name for name in quick.observed["kernels"])
    on_gpu = [name for name in proof.observed["kernels"] if not name.startswith("aten::")]
    assert on_gpu, "the profiler of kernels saw none"


def test_the_cudnn_that_is_loaded_is_the_one_that_was_predicted(reports: Reports) -> None:
    report = reports("claims")
    facts = {key: fact["value"] for key, fact in report["facts"].items()}
    loaded = run_one(sys.executable, "facts", {}, timeout=240).observed
    number = int(loaded["cudnn.version"])
    major, rest = (number // 10000, number % 10000) if number >= 90000 else (number // 1000, number % 1000)
    assert facts["cudnn.version"] == f"{major}.{rest // 100}.{rest % 100}"
    folders = {str(Path(path).parent) for path in loaded["cudnn.files"]}
    home = re.sub(r"^~", str(Path.home()), str(facts["cudnn.path"]))
    assert str(Path(home).parent) in folders
    releases = {str(copy).split()[0] for copy in facts["cudnn.copies"]}
    one_folder = len({str(Path(path).parent) for path in loaded["cudnn.files"]}) == 1
    assert ("CUDNN005" in by_id(report)) == (len(releases) > 1 and not one_folder)


def test_transformer_engine_runs_or_fails_as_predicted(reports: Reports) -> None:
    """With another cuDNN in its way than torch's it fails, as TE130 says; otherwise it runs on what was predicted."""
    if importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("TransformerEngine is not installed")
    report = reports("te")
    (run,) = [run for run in report["runs"] if run["kernel"] == "te_attention"]
    found = by_id(report)
    if "TE130" in found:
        assert (found["TE130"]["confirmation"]["verdict"], run["verdict"]) == ("confirmed", "failed"), run
        assert "version incompatibility" in run["reason"]
        return
    assert run["verdict"] == "healthy" and "UNPREDICTED" not in found, run
    assert run["observed"]["selected"] in ("te.unfused", "te.fused", "te.flash2", "te.flash3", "te.flash4")
    assert run["observed"]["selected"] == "te.unfused" or len(run["observed"]["ran"]) == 1
