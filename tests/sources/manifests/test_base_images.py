"""What base images hold: NVIDIA's by the table, with who said so, others by their tags; and what is judged of them."""

from pathlib import Path

import pytest

from doctor.diagnosis import pipeline as session
from doctor.diagnosis.request import Request
from doctor.model import Fact, Facts
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.resolver import FactResolver
from doctor.sources.manifests.scripts.base_images import image
from tests.helpers.rulebook import builtin_rulebook

INCIDENTS = Path(__file__).parents[3] / "examples" / "incidents"
IMAGES = builtin_rulebook().images


def held(reference):
    """Key → value of what the image brings, and the notes."""
    found = image(reference, IMAGES, "Dockerfile", 1)
    known = {f"{entry.name}.version": entry.version for entry in found.entries}
    return {**known, **{fact.key: fact.value for fact in found.facts}}, found.notes


@pytest.fixture
def judged(write):
    """(rules that match, rules that are undetermined) of a Dockerfile and an incident's job."""

    def judged(text, incident, gpu):
        request = Request(
            declared=(str(write("Dockerfile", text)),), gpu=gpu, run=False, fixes=False,
            workload=str(INCIDENTS / incident / "workload.yaml"),
        )  # fmt: skip
        report = session.diagnose(request)
        return {finding.rule for finding in report.findings}, {
            rule for item in report.undetermined for rule in item.rules
        }

    return judged


def test_a_row_says_what_its_publisher_says_and_what_others_saw():
    found, notes = held("nvcr.io/nvidia/pytorch:25.06-py3")
    assert found["torch.version"] == "2.8.0a0+5228986c39.nv25.06" and found["torch.cuda"] == "12.9"
    assert (found["transformer-engine.version"], found["flash-attn.version"]) == ("2.4.0+3cd6870", "2.7.4.post1")
    assert notes == (
        "Dockerfile:1: cudnn.version, transformer-engine.version, flash-attn.version of this image: reported by others "
        "(contents that two projects read off the image), not by its publisher",
    )
    assert held("nvcr.io/nvidia/pytorch:24.04-py3")[1] == ()


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_every_row_has_a_source_and_versions_that_can_be_compared(name):
    for release, row in IMAGES[name].items():
        for part in (row, row.get("reported", row)):
            assert part["source"]
        assert not row.keys() & row.get("reported", {}).keys() - {"source"}, release  # nothing is said twice
        found, _ = held(f"{name}:{release}")
        assert "a0" in found["torch.version"] and found["torch.cxx11_abi"] is True


def test_later_releases_hold_nothing_older():
    """A slip of the pen in the table would show as a step back."""
    from packaging.version import Version

    rows = [held(f"nvcr.io/nvidia/pytorch:{release}-py3")[0] for release in IMAGES["nvcr.io/nvidia/pytorch"]]
    for key in ("torch.version", "torch.cuda", "cudnn.version", "transformer-engine.version", "python.version"):
        versions = [Version(text).release[:2] for text in (row.get(key) for row in rows) if text]
        assert versions == sorted(versions) and len(versions) > 10, key


@pytest.mark.parametrize(
    ("bound", "holds"), [("<2.6", None), (">=2.6", None), (">=2.5", True), ("<2.7", True), ("<2.5", False)]
)
def test_a_build_from_before_a_release_is_neither_below_it_nor_at_it(bound, holds):
    found, _ = held("nvcr.io/nvidia/pytorch:25.01-py3")
    known = FactResolver(Facts([Fact("torch.version", found["torch.version"], "the image")]))
    assert parse_conditions({"torch.version": bound}).holds(known) is holds


@pytest.mark.parametrize(
    ("release", "rule", "outcome"),
    [("24.05", "TE103", "strikes"), ("24.08", "TE103", "open"), ("25.06", "TE103", "silent")],
)
def test_the_cudnn_of_the_image_decides_over_another_transformer_engine(release, rule, outcome, judged):
    """An own TransformerEngine on NVIDIA's image loads the image's cuDNN: 9.1, not on record, 9.10."""
    text = f"FROM nvcr.io/nvidia/pytorch:{release}-py3\nENV NVTE_FLASH_ATTN=0 NVTE_UNFUSED_ATTN=0\n"
    strikes, unknown = judged(text + "RUN pip install transformer-engine==2.3.0\n", "b", "h100")
    assert (rule in strikes, rule in unknown) == (outcome == "strikes", outcome == "open")


def test_an_incident_in_an_image_as_it_is(judged):
    """Latent attention, packed, without flash-attention, on an A100."""
    image = "FROM nvcr.io/nvidia/pytorch:25.04-py3\nENV NVTE_FLASH_ATTN=0\n"
    assert "TE111" in judged(image, "d", "a100")[0]
    assert "TE111" not in judged(image.replace("25.04", "24.08"), "d", "a100")[0]  # whose TransformerEngine is unknown


def test_nvidias_transformer_engine_is_built_from_source_and_has_no_core_of_its_own(read):
    found = read({"Dockerfile": "FROM nvcr.io/nvidia/pytorch:25.06-py3\n"}).facts
    assert "transformer-engine-cu12.version" not in found and found.value("transformer-engine.version")


def test_nemo_by_its_release_and_not_by_an_edition():
    found, notes = held("nvcr.io/nvidia/nemo:25.09.00")
    assert (found["transformer-engine.version"], found["cudnn.version"]) == ("2.7.0", "9.11.0.98") and notes == ()
    assert held("nvcr.io/nvidia/nemo:25.09")[0] == found
    edition = image("nvcr.io/nvidia/nemo:25.11.nemotron_3_nano", IMAGES, "Dockerfile", 1)
    assert all(entry.version is None and "unknown content" in entry.problem for entry in edition.entries)


@pytest.mark.parametrize(
    ("tag", "version", "build"),
    [
        ("2.4.1-cuda12.4-cudnn9-devel", "2.4.1", "package of conda"),
        ("2.5.0-cuda12.4-cudnn9-runtime", "2.5.0+cu124", "wheel"),
    ],
)
def test_pytorchs_images_are_of_conda_and_later_of_wheels(tag, version, build):
    found, notes = held(f"pytorch/pytorch:{tag}")
    assert (found["torch.version"], found["torch.cuda"]) == (version, "12.4") and build in notes[0]


def test_the_torch_of_vllms_image_is_the_one_it_requires(read):
    found = read({"Dockerfile": "FROM vllm/vllm-openai:v0.7.2\n"})
    assert (found.facts.value("vllm.version"), found.facts.value("torch.version")) == ("0.7.2", "2.5.1")
    assert "assumed to be the one that vLLM 0.7.2 requires" in found.notes[0]
    latest = read({"Dockerfile": "FROM vllm/vllm-openai:latest\n"}).facts
    assert latest["torch.version"].value is None and "fixes no release" in latest["vllm.version"].problem


def test_an_image_for_amd_is_distinguished():
    found = image("rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0", IMAGES, "Dockerfile", 3)
    assert "is for AMD GPUs" in found.notes[0] and found.entries[0].version is None


def test_a_toolkit_is_no_torch():
    assert "CUDA 12.4 and a cuDNN to build with" in held("nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04")[1][0]
    assert held("nvidia/cuda:12.4.1-devel-ubuntu22.04")[0] == {
        "toolkit.nvcc": "12.4", "toolkit.ninja": False, "toolkit.c_compiler": True,
    }  # fmt: skip


def test_an_image_without_a_compiler_is_recognised():
    for name in ("nvidia/cuda:12.4.1-runtime-ubuntu22.04", "nvidia/cuda:12.4.1-base-ubuntu22.04", "python:3.11-slim",
                 "debian:12", "ubuntu:24.04"):  # fmt: skip
        assert held(name)[0]["toolkit.nvcc"] == "absent", name
    assert held("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime")[0]["toolkit.nvcc"] == "absent"
    assert held("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel")[0]["toolkit.nvcc"] == "12.8"
    assert "toolkit.nvcc" not in held("example.com/team/base:1.0")[0]


def test_an_image_of_nvidia_has_the_toolkit_that_its_torch_was_compiled_with():
    found, _ = held("nvcr.io/nvidia/pytorch:25.06-py3")
    assert found["toolkit.nvcc"] == found["torch.cuda"] == "12.9"
