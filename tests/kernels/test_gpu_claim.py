"""A GPU that is busy, held, hidden, forbidden or a slice: said in a sentence, by a torch that plays each of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_snippet

PROGRAM = """
from ..attention import gpu

class Cuda:
    def __init__(self, play): self.play = play
    def is_available(self): return self.play.get("available", True)
    def synchronize(self, device=None): pass
    def init(self): raise RuntimeError(self.play.get("init", "No CUDA GPUs are available") + "\\nmore")
    def get_device_properties(self, device):
        name = self.play.get("name", "NVIDIA H200")
        return type("P", (), {"name": name, "total_memory": self.play.get("total", 140 << 30)})
    def mem_get_info(self, device):
        if "vanished" in self.play: raise RuntimeError("CUDA error: GPU is lost")
        return self.play.get("free", 139 << 30), self.play.get("total", 140 << 30)
    def utilization(self, device):
        if "utilization" not in self.play: raise ModuleNotFoundError("pynvml is not installed")
        return self.play["utilization"]

def run(play):
    class torch:
        __version__ = "2.11.0"
        version = type("V", (), {"cuda": play.get("cuda", "13.0")})
        cuda = Cuda(play)
        @staticmethod
        def zeros(size, device):
            play["made"] = play.get("made", 0) + 1
            if "context" in play: raise RuntimeError(play["context"])
    if "dev" in play:
        kept = gpu._no_permission
        gpu._no_permission = lambda: kept(play["dev"])
    for _ in range(2):
        device = gpu.pick_device(torch, play)
    return {"device": device, "state": gpu.state(device), "made": play.get("made", 0)}
"""


def claim(env: dict[str, str | None] | None = None, **play: Any) -> KernelResult:
    return run_snippet(sys.executable, PROGRAM, play, timeout=30, env={"CUDA_VISIBLE_DEVICES": None, **(env or {})})


def test_a_free_gpu_is_no_news_and_its_context_is_made_once() -> None:
    answer = claim(utilization=0)
    assert answer.observed["made"] == 1 and answer.observed["device"] == "cuda"
    assert answer.observed["state"] == {
        "name": "NVIDIA H200", "memory_bytes": 140 << 30, "free_bytes": 139 << 30, "utilization": 0,
    }  # fmt: skip
    assert set(answer.spent) >= {"context"}


@pytest.mark.parametrize(
    ("play", "busy"),
    [
        ({"free": 20 << 30}, "NVIDIA H200 is busy: 120.0 of 140.0 GiB are in use"),
        ({"utilization": 97}, "NVIDIA H200 is busy: 97 % utilization"),
        ({"free": 1 << 30, "total": 10 << 30, "name": "NVIDIA A100-SXM4-40GB MIG 1g.10gb", "utilization": 50},
         "NVIDIA A100-SXM4-40GB MIG 1g.10gb is busy: 9.0 of 10.0 GiB are in use, 50 % utilization"),
    ],
)  # fmt: skip
def test_a_busy_gpu_says_so(play: dict[str, Any], busy: str) -> None:
    assert claim(**play).observed["state"]["busy"] == busy


def test_what_cannot_be_read_stops_nothing() -> None:
    state = claim(vanished=True).observed["state"]
    assert (state["problem"], state["utilization"], "busy" in state) == ("CUDA error: GPU is lost", None, False)


@pytest.mark.parametrize("visible", ["0", "GPU-8932f937", "MIG-GPU-8932f937-d72c/1/0", "MIG-41b36fe2-1b2c-5b1c", "1,0"])
def test_what_was_made_visible_is_kept_and_reported(visible: str) -> None:
    assert claim({"CUDA_VISIBLE_DEVICES": visible}).observed["state"]["visible"] == visible


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: out of memory\nCompile with",
        "CUDA error: GPU is lost",
    ],
)
def test_a_gpu_that_others_hold_is_unavailable(said: str) -> None:
    answer = claim(context=said)
    assert (answer.outcome, answer.reason) == ("unavailable", "the GPU is held by others: " + said.split("\n")[0])


def test_a_context_that_breaks_is_a_failure() -> None:
    said = "CUDA error: no kernel image is available for execution on the device"
    answer = claim(context=said)
    assert (answer.outcome, answer.reason) == ("failed", f"RuntimeError: {said}")


@pytest.mark.parametrize(
    ("visible", "play", "reason"),
    [
        (None, {}, ": No CUDA GPUs are available"),
        ("", {}, " with CUDA_VISIBLE_DEVICES='': No CUDA GPUs are available"),
        ("7", {"init": "CUDA unknown error"}, " with CUDA_VISIBLE_DEVICES='7': CUDA unknown error"),
        ("x" * 999, {"cuda": None}, ": it is a build without CUDA"),
    ],
)
def test_no_device_says_why(visible: str | None, play: dict[str, Any], reason: str) -> None:
    answer = claim({"CUDA_VISIBLE_DEVICES": visible}, available=False, dev="/nonexistent", **play)
    assert (answer.outcome, answer.reason) == ("unavailable", "torch 2.11.0 sees no CUDA device" + reason)


def test_no_permission_names_the_device_file(tmp_path: Path) -> None:
    for name in ("nvidia-uvm", "nvidia0", "nvidiactl"):
        (tmp_path / name).write_text("")
    gone = tmp_path / "nvidia1"
    gone.symlink_to(tmp_path / "nowhere")  # root may open everything but what is not there
    answer = claim(available=False, dev=str(tmp_path))
    assert answer.reason == f"torch 2.11.0 sees no CUDA device: no permission on {gone}"
