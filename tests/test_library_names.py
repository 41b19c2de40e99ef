"""What one library is called and does is knowledge of `rules/`: the code names fewer libraries, never more."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "release"))

from library_names import library_names, names_by_file, texts  # noqa: E402 - a script, not a package

#: Names in all of `doctor/`. This number may only shrink: lower it with every table that moves to a `library.yaml`.
MOST_NAMES = 108


RECORDS = "a column of a record, a key of JSON, or a named group: the word of a format, no library"
DEVICES = "a device or a class of devices, as torch and its users name it"
FOLDERS = "a folder, a program or a file that is no library"
ENGINE = "simulates what TransformerEngine loads at import, release by release"
KERNELS = "what a kernel program or an operator is called, in kernels/ as well"
COMPILER = "the compiler that torch's wheels bring: how its version follows is part of the mechanism of builds"
MODELS = "reads messages or records of this one package, whose form is its own"
#: File -> why it names libraries. A new file here needs a reason why a library file cannot say it.
REASONS = {
    "doctor/apply/edit/pyproject.py": RECORDS,
    "doctor/cli/backends.py": DEVICES,
    "doctor/cli/options.py": DEVICES,
    "doctor/cli/wheel_file.py": RECORDS,
    "doctor/cli/wheels.py": RECORDS,
    "doctor/cli/wheels_on_record.py": RECORDS,
    "doctor/diagnosis/api_coverage.py": "says what training with transformers' own trainer covers",
    "doctor/diagnosis/carried_words.py": "a word of the workload",
    "doctor/diagnosis/comparison.py": "groups of facts that differ together, by the first part of their keys",
    "doctor/diagnosis/job_runs.py": KERNELS,
    "doctor/diagnosis/logs/attribution.py": "a word of C++ code that names no package",
    "doctor/diagnosis/logs/choose.py": COMPILER,
    "doctor/diagnosis/logs/explain.py": MODELS,
    "doctor/diagnosis/logs/names.py": MODELS,
    "doctor/diagnosis/logs/nvte.py": MODELS,
    "doctor/diagnosis/reproduce.py": KERNELS,
    "doctor/diagnosis/speed.py": RECORDS,
    "doctor/drift/classes.py": "a method of torch's modules",
    "doctor/drift/program.py": "runs in a process of its own without the rulebook: what every environment has",
    "doctor/facts/derived/torch_sdpa.py": "moving it to implies changes the texts on why a fact is unknown",
    "doctor/facts/derived/transformers.py": "a value of attn_implementation",
    "doctor/facts/examples.py": "examples of values in the documentation",
    "doctor/facts/measurement.py": RECORDS,
    "doctor/facts/training/readings.py": "an option of many trainers",
    "doctor/facts/workload_terms.py": "values of a word of the workload",
    "doctor/model.py": "the one package whose builds the mechanism is about",
    "doctor/packages/compiled_records.py": RECORDS,
    "doctor/packages/release_wheels.py": "columns of the records, and the package that `wheels` finds by default",
    "doctor/packages/index.py": "the beginning of the names of CUDA's wheels",
    "doctor/report/conda.py": "the name of cuDNN in conda",
    "doctor/report/requirements.py": RECORDS,
    "doctor/rulebook/categories.py": "a category of failures is called after the compiler that reports them",
    "doctor/rulebook/authoring/module_imports.py": "what most packages import: for the script that writes tables",
    "doctor/rulebook/authoring/name_records.py": "how this one package imports its modules",
    "doctor/rulebook/job_fields.py": "an example in the documentation of the format",
    "doctor/rulebook/library_fields.py": RECORDS,
    "doctor/rulebook/rule_fields.py": "an example in the documentation of the format",
    "doctor/sources/binaries/survey.py": ENGINE,
    "doctor/sources/binaries/te_import.py": ENGINE,
    "doctor/sources/builds/project.py": "modules that a requirement of a build brings",
    "doctor/sources/manifests/discover.py": FOLDERS,
    "doctor/sources/manifests/formats/conda.py": COMPILER,
    "doctor/sources/manifests/scripts/base_images.py": RECORDS,
    "doctor/sources/manifests/scripts/compilers.py": FOLDERS,
    "doctor/sources/manifests/scripts/installs.py": COMPILER,
    "doctor/sources/manifests/scripts/interpreter.py": FOLDERS,
    "doctor/sources/manifests/version_ranges.py": COMPILER,
    "doctor/sources/printed.py": "labels of pasted reports, and programs that are no packages",
    "doctor/sources/probes/collect.py": "the name of a probe",
    "doctor/sources/probes/compiled.py": "packages whose files are judged by others: torch, its compiler, and frames",
    "doctor/sources/probes/cudnn.py": RECORDS,
    "doctor/sources/probes/te_cudnn.py": ENGINE,
    "doctor/sources/probes/toolkit.py": RECORDS,
    "doctor/sources/probes/torch_build.py": RECORDS,
    "doctor/sources/probes/xformers_build.py": "the one package with such a file",
    "doctor/sources/workload/defaults.py": "a value of attn_implementation",
    "doctor/sources/workload/serving.py": "a kind of layer",
    "doctor/stress/axes.py": KERNELS,
    "doctor/stress/devices.py": DEVICES,
    "doctor/stress/failures.py": KERNELS,
    "doctor/stress/fleet/sharded.py": RECORDS,
    "doctor/stress/report.py": RECORDS,
    "doctor/util/credentials.py": FOLDERS,
}


def test_each_file_that_names_libraries_has_a_reason() -> None:
    found = names_by_file(ROOT)
    assert not found.keys() - REASONS.keys(), "describe the library in its library.yaml, or give a reason here"
    assert not REASONS.keys() - found.keys(), "these files name no library any more"


def test_the_code_names_no_more_libraries_than_before() -> None:
    found = names_by_file(ROOT)
    count = sum(map(len, found.values()))
    largest = sorted(found, key=lambda path: -len(found[path]))[:5]
    assert count <= MOST_NAMES, f"{count} names; describe the library in its library.yaml ({', '.join(largest)})"
    assert count > MOST_NAMES - 40, f"{count} names are left: lower MOST_NAMES to that"


def test_names_count_and_docstrings_do_not() -> None:
    names = library_names(ROOT)
    assert (
        {"torch", "vllm", "flash-attn", "TransformerEngine"} <= names
        and "index" not in names
        and "declared" not in names
    )
    source = '"""torch"""\ndef f():\n    """vllm"""\n    return ["torch", f"{x} vllm", "torch>=2"]\n'
    assert [text for _, text in texts(ast.parse(source)) if text in names] == ["torch"]
