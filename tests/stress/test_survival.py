"""What hosts and libraries do to a sweep before its first case: each is said, none ends it. No torch, no GPU needed."""

from __future__ import annotations

import sys
import types

import pytest
from fake_torch import HOSTILE, install

from doctor.assets import kernels_dir
from doctor.errors import NoDiagnosis
from doctor.stress.gpus import lanes
from doctor.stress.here import Options, chosen, look


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The look at a host whose torch, and whose hostile libraries, are fakes: (what was found, problems)."""

    def call(*hostile, fake="", **env):
        monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "fake", *hostile)))
        monkeypatch.setenv("FAKE", fake)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return look(Options(sys.executable, timeout=20.0), lambda text: None)

    return call


def test_two_gpus_each_with_a_lane(here):
    found, problems = here()
    made, trouble = lanes(found, None)
    assert [lane.env["CUDA_VISIBLE_DEVICES"] for lane in made] == ["0", "1"]
    assert [lane.name for lane in made] == ["uuid-0", "uuid-1"] and not problems and not trouble


def test_a_gpu_that_is_lost_is_left_out_and_said(here):
    found, _ = here(fake="gone")
    made, trouble = lanes(found, None)
    assert len(made) == 1 and "GPU 1" in trouble[0] and "GPU is lost" in trouble[0]


def test_a_busy_gpu_is_said(here):
    found, _ = here(fake="busy")
    notes = [note for lane in lanes(found, None)[0] for note in lane.notes]
    assert any("120.0 of 128.0 GiB are in use" in note for note in notes) and any("97 %" in note for note in notes)


def test_no_permission_is_no_silent_sweep_of_the_cpu(here):
    found, problems = here(fake="no permission")
    assert found["device"] == "cpu" and "Error 999" in problems[0]


@pytest.mark.parametrize("listed", ["", "-1", "7", "nonsense"])
def test_a_list_of_devices_that_names_none(here, listed):
    found, problems = here(CUDA_VISIBLE_DEVICES=listed)
    assert found["device"] == "cpu" and problems[0].startswith("no GPU")


@pytest.mark.parametrize(
    "listed, tokens",
    [
        ("1,0", ["1", "0"]),
        (" 1 ", ["1"]),
        ("GPU-bb", ["GPU-bb"]),
        ("MIG-cc", ["MIG-cc"]),
        ("0,-1,1", ["0"]),
    ],
)
def test_a_list_of_devices_is_never_widened(here, listed, tokens):
    found, _ = here(CUDA_VISIBLE_DEVICES=listed)
    assert [lane.env["CUDA_VISIBLE_DEVICES"] for lane in lanes(found, None)[0]] == tokens


def test_a_mig_slice_is_a_gpu_of_its_own_kind(here):
    found, _ = here(CUDA_VISIBLE_DEVICES="MIG-cc")
    (lane,) = lanes(found, None)[0]
    assert "MIG 1g.18gb" in lane.label and lane.name == "uuid-MIG-cc"


def test_libraries_that_end_the_process_when_imported(here):
    """`os._exit`, a segfault, noise and a fork, warnings without end, SystemExit, a module that lacks its function."""
    found, problems = here(*HOSTILE)
    states = found["backends"]
    assert "looking at the libraries" in problems[0]
    assert states["sdpa.default"] is None and states["fa3_fwd"] is None and states["sage"] is None
    for name in ("flash2", "xformers"):
        assert "ended the process" in states[name], states[name]
    assert "not on this machine" in states["te.fused"] and "ImportError" in states["flash3"]
    options = Options(sys.executable)
    assert "sdpa.default" in chosen(options, found, "cuda") and "xformers" not in chosen(options, found, "cuda")
    with pytest.raises(NoDiagnosis, match="ended the process"):
        chosen(Options(sys.executable, backends=("xformers",)), found, "cuda")


def test_torch_itself_ends_the_process(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NoDiagnosis, match="cannot be used"):
        look(Options(sys.executable, timeout=20.0), lambda text: None)


def test_memory_is_held_to_what_was_given(monkeypatch):
    monkeypatch.syspath_prepend(str(kernels_dir()))
    import sweep

    asked = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        get_device_properties=lambda index: types.SimpleNamespace(total_memory=100),
        set_per_process_memory_fraction=asked.append,
    )
    monkeypatch.setattr(sweep._attention, "import_torch", lambda: types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(sweep, "_capped", False)
    sweep._cap({"memory_bytes": 25})
    sweep._cap({"memory_bytes": 25})
    assert asked == [0.25], "once for the process"
    monkeypatch.setattr(sweep, "_capped", False)
    sweep._cap({"memory_bytes": 1000})
    assert asked[-1] == 1.0
