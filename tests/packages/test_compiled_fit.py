"""One judgement for every package with compiled files: by installed files, by label, by record."""

from __future__ import annotations

from doctor.packages.compiled_fit import Wanted, fit_of
from doctor.packages.compiled_records import CompiledRecords, load_compiled_records
from doctor.packages.compiled_remedies import remedies
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecord

GB10 = Wanted(sm="12.1", torch="2.10.0+cu130", cuda="13.0", machine="aarch64")


def test_installed_files_come_before_the_record() -> None:
    by_record = fit_of("fa3-fwd", "0.0.3", Wanted(sm="12.0"))
    by_files = fit_of("fa3-fwd", "0.0.3", Wanted(sm="12.0"), ("9.0a", "12.0"))
    assert by_record.gpu.answer is False and "fa3_fwd-0.0.3" in by_record.gpu.source
    assert by_files.gpu.answer is True and by_files.gpu.source == "the installed files"


def test_a_label_is_another_file_than_the_registrys() -> None:
    fit = fit_of("xformers", "0.0.33.post2+cu130", Wanted(sm="7.0", cuda="13.0"))
    assert fit.gpu.answer is None and fit.cuda.answer is True


def test_a_set_up_script_that_knows_no_cuda_13_downloads_a_wheel_for_12() -> None:
    fit = fit_of("mamba-ssm", "2.2.5", Wanted(torch="2.8.0a0+34c6371d24.nv25.08", cuda="13.0"))
    assert fit.cuda.answer is False and fit.cuda.found == "CUDA 12"
    assert fit_of("mamba-ssm", "2.2.5", Wanted(cuda="12.9")).cuda.answer is None


def test_code_that_only_newer_compilers_make_is_unknown() -> None:
    fit = fit_of("causal-conv1d", "1.6.2.post1", GB10)
    assert fit.gpu.answer is None and "nvcc >= 1" in fit.gpu.found
    assert fit_of("causal-conv1d", "1.6.2.post1", Wanted(sm="9.0")).gpu.answer is True
    assert fit_of("causal-conv1d", "1.4.0", GB10).gpu.answer is False


def test_the_compiler_that_builds_a_package_decides_its_code() -> None:
    older = fit_of("mamba-ssm", "2.3.0", Wanted(sm="12.0", nvcc="12.6"))
    newer = fit_of("mamba-ssm", "2.3.0", Wanted(sm="12.0", nvcc="12.9"))
    assert (older.gpu.answer, newer.gpu.answer) == (False, True) and "nvcc 12.6" in older.gpu.source
    assert fit_of("mamba-ssm", "2.3.0", Wanted(sm="12.0")).gpu.answer is None


def test_a_wheel_may_be_downloaded_unless_a_build_is_forced() -> None:
    build = load_compiled_records().source("mamba-ssm", "2.3.0")
    assert build is not None and build.wheels
    assert build.is_compiled("TRUE") and not build.is_compiled(None) and not build.is_compiled("FALSE")


def test_a_package_that_is_not_on_record_is_unknown() -> None:
    fit = fit_of("no-such-kernels", "1.0", GB10)
    assert not fit.fails and not fit.on_record and fit.gpu.answer is None


def test_another_wheel_serves_the_other_machine() -> None:
    assert fit_of("vllm", "0.33.0", Wanted(sm="11.0", machine="aarch64")).gpu.how == "machine code"
    assert fit_of("vllm", "0.33.0", Wanted(sm="11.0", machine="x86_64")).gpu.how == "PTX"


def test_a_remedy_names_a_build_that_has_the_code() -> None:
    first, *_ = remedies("mamba-ssm", "2.2.5", Wanted(sm="12.0", cuda="13.0"), UNKNOWN_PACKAGE)
    assert "MAMBA_FORCE_BUILD=TRUE" not in first or "12.0" not in first  # its script leaves the GPU out
    assert "mamba-ssm==2.3" in first


def test_no_remedy_names_a_release_that_is_wrong_on_the_gpu() -> None:
    wrong = PackageRecord(wrong_on={">=2.3.2": ("12.",)})
    wanted = Wanted(sm="12.0", cuda="13.0")
    assert "2.3.2" in " ".join(remedies("mamba-ssm", "2.2.5", wanted, UNKNOWN_PACKAGE))
    assert "2.3.2" not in " ".join(remedies("mamba-ssm", "2.2.5", wanted, wrong))


def test_post_releases_share_what_their_build_needs() -> None:
    body = {"sources": {"kernels": {"2.3.2.post1": {"imports": ["torch"]}}}}
    source = CompiledRecords(body).source("kernels", "2.3.2")
    assert source is not None and source.imports_torch


def test_every_row_of_the_table_can_be_read() -> None:
    records = load_compiled_records()
    rows = [wheel for name in records.packages for one in records.releases(name) for wheel in records.wheels(name, one)]
    assert len(rows) >= 80
    assert all(row.gpu_code or row.cuda or row.torch is not None for row in rows)
    assert all(
        records.source(name, one) is not None for name in records.packages for one in records.source_releases(name)
    )
