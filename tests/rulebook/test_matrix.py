"""Backends × features: what is predicted, from which workload, and that each cell is the prediction's own answer."""

import json

import pytest

from doctor.cli import main as cli
from doctor.diagnosis.batch import predict_case
from doctor.errors import NoDiagnosis
from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.matrix import BASE, features, matrices
from tests.helpers.rulebook import builtin_rulebook

A100 = {
    "torch.version": "2.6.0", "torch.cuda": "12.4", "transformer-engine.version": "2.3.0",
    "flash-attn.version": "2.7.4.post1", "gpu.sm": "8.0", "distributions.complete": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def given(**changes):
    values = {**A100, **{key.replace("__", "."): value for key, value in changes.items()}}
    return Facts(fact(key, value, "the test") for key, value in values.items())


def row(matrix, feature):
    return next(item for item in matrix.rows if item.feature == feature)


def verdicts(matrix, feature):
    return {cell.backend: cell.available for cell in row(matrix, feature).cells}


def test_without_a_framework_each_installed_one_is_checked(rulebook):
    found = matrices(rulebook, given())
    assert [matrix.library for matrix in found] == ["transformer_engine", "torch", "flash_attn"]


def test_a_named_framework_is_checked_alone(rulebook):
    (matrix,) = matrices(rulebook, given(workload__framework="torch_sdpa"))
    assert matrix.library == "torch"
    assert [backend for backend, _ in matrix.backends] == ["sdpa.flash", "sdpa.efficient", "sdpa.cudnn", "sdpa.math"]


def test_transformers_comes_with_the_library_it_hands_over_to(rulebook):
    facts = given(workload__framework="transformers", transformers__version="4.57.6")
    assert {matrix.library for matrix in matrices(rulebook, facts)} == {"transformers", "torch"}


@pytest.mark.parametrize(("sm", "flash"), [("9.0", False), ("8.0", False), ("absent", True)])
def test_a_cpu_build_serves_no_gpu(rulebook, sm, flash):
    """Without CUDA, torch has a flash kernel for the CPU alone."""
    (found,) = matrices(
        rulebook, given(torch__version="2.13.0+cpu", torch__cuda="absent", gpu__sm=sm, workload__framework="torch_sdpa")
    )
    assert {row.selected for row in found.rows if row.feature == "causal"} == {"sdpa.flash" if flash else None}
    assert verdicts(found, "causal")["sdpa.flash"] is flash


def test_the_head_dims_of_incident_d(rulebook):
    matrix = next(item for item in matrices(rulebook, given()) if item.library == "transformer_engine")
    assert row(matrix, "128").selected == "te.flash2"
    narrow = row(matrix, "192/128")
    assert narrow.selected == "te.unfused"
    assert verdicts(matrix, "192/128")["te.flash2"] is False
    reason = next(cell.reasons[0] for cell in narrow.cells if cell.backend == "te.flash2")
    assert "192 and 128" in reason.message
    assert reason.rule.startswith("TE")


def test_every_cell_is_what_the_batch_says(rulebook):
    base = given(workload__framework="transformer_engine", workload__head_dim_qk=96, workload__head_dim_v=96)
    (matrix,) = matrices(rulebook, base)
    start = {f"workload.{key.removeprefix('workload.')}": value for key, value in BASE.items()}
    for item in matrix.rows:
        values = {**start, "workload.head_dim_qk": 96, "workload.head_dim_v": 96, **item.changes}
        facts = base.with_(*(fact(key, value, "the test") for key, value in values.items()))
        prediction = predict_case(rulebook, facts)
        assert item.selected == prediction.selected, item.feature
        assert [(cell.backend, cell.available) for cell in item.cells] == [
            (candidate.backend, candidate.available) for candidate in prediction.candidates
        ], item.feature


def test_the_job_overrides_what_the_rows_start_from(rulebook):
    (matrix,) = matrices(rulebook, given(workload__framework="torch_sdpa", workload__dtype="float32"))
    assert matrix.workload["workload.dtype"] == "float32"
    assert verdicts(matrix, "as described")["sdpa.flash"] is False
    assert verdicts(matrix, "bfloat16")["sdpa.flash"] is True


def test_an_unknown_gpu_is_no_verdict(rulebook):
    facts = given(workload__framework="transformer_engine").without("gpu.sm")
    (matrix,) = matrices(rulebook, facts)
    assert not row(matrix, "as described").could_tell
    assert verdicts(matrix, "as described")["te.flash2"] is None


def test_rows_cover_what_the_workload_can_say(rulebook):
    found = list(features(given(workload__num_heads=32, workload__seq_len_kv=4096, workload__mask="no_mask")))
    groups = {feature.group for feature in found}
    job = {"job", "head dim", "dtype", "mask", "layout", "heads", "extras", "parallel"}
    assert groups == {*job, "KV cache", "serving"}
    packed = next(feature for feature in found if feature.label == "thd")
    assert packed.changes["workload.mask"] == "padding"
    assert len({(feature.group, feature.label) for feature in found}) == len(found)


def test_a_server_has_rows_of_its_own(rulebook):
    server = {"vllm.version": "0.27.1", "gpu.sm": "9.0", "flashinfer-python.version": "absent", "machine.nvcc": "true"}
    facts = given(workload__framework="vllm").with_(*(fact(key, value, "test") for key, value in server.items()))
    (matrix,) = matrices(rulebook, facts)
    assert row(matrix, "sparse MLA").selected == "vllm.flash_attn_mla_sparse"
    assert row(matrix, "fp8_e5m2").selected == "vllm.triton_attn"
    assert not [item for item in matrix.rows if item.feature == "FP8 attention"]


def test_parallel_and_packed_rows_are_for_who_can_check_them(rulebook):
    (torch_rows,) = matrices(rulebook, given(workload__framework="torch_sdpa"))
    assert not [item for item in torch_rows.rows if item.group in ("layout", "parallel")]
    (te_rows,) = matrices(rulebook, given(workload__framework="transformer_engine"))
    assert len([item for item in te_rows.rows if item.group == "parallel"]) == 4


def test_a_feature_that_stops_the_library_is_a_row_like_others(rulebook):
    base = given(
        workload__framework="transformer_engine", workload__qkv_layout="thd_thd_thd", workload__mask="padding_causal"
    )
    (matrix,) = matrices(rulebook, base)
    assert row(matrix, "none").import_error.rule.startswith("TE")
    assert row(matrix, "as described").import_error is None


def test_a_framework_without_backends_is_no_diagnosis(rulebook):
    with pytest.raises(NoDiagnosis, match="vllm"):
        matrices(rulebook, given(workload__framework="vllm"))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A facts file away from this checkout, whose pyproject.toml might set defaults."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({"facts": A100}))
    return str(path)


def test_the_command_prints_one_table_per_library(written, capsys):
    assert cli.run(["matrix", "--facts", written]) == 0
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if "rows change one thing" in line] == [
        "TransformerEngine", "PyTorch", "flash-attn",
    ]  # fmt: skip
    assert max(map(len, out.splitlines())) <= 100


def test_the_command_as_json(written, capsys):
    assert cli.run(["matrix", "--facts", written, "--set", "workload.framework=torch_sdpa", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert [matrix["library"] for matrix in document["matrices"]] == ["torch"]
    flash = {row["feature"]: row["cells"][0] for row in document["matrices"][0]["rows"]}
    assert flash["128"]["available"] is True
    assert flash["float32"]["reason"]["rule"].startswith("SDPA")


def test_nothing_to_tabulate_is_exit_3(written, capsys):
    assert cli.run(["matrix", "--facts", written, "--set", "workload.framework=vllm"]) == 3
    assert "no diagnosis was made" in capsys.readouterr().err
