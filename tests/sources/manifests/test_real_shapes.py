"""Shapes met in the declared environments of public training projects, each of which was once misread or refused."""

from pathlib import Path

import pytest

from doctor.diagnosis import pipeline as session
from doctor.diagnosis.request import Request
from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError
from doctor.sources.manifests.detect import UnknownKind, kind_of
from doctor.sources.manifests.discover import discover
from tests.helpers.rulebook import builtin_rulebook


def pins(declaration):
    return {
        key.removesuffix(".version"): fact.value
        for key, fact in declaration.facts.items()
        if key.endswith(".version") and fact.known
    }


def test_versions_that_only_conda_counts_leave_the_other_packages_readable(read):
    text = "dependencies:\n  - openssl=1.1.1k\n  - tzdata=2023c=h04d1e81_0\n  - jpeg=9e\n  - pip:\n    - torch==2.2.1\n"
    declaration = read({"environment.yml": text})
    assert pins(declaration)["torch"] == "2.2.1"
    assert "1.1.1k" in declaration.facts["openssl.version"].problem
    assert not declaration.faults


@pytest.mark.parametrize(
    "line", [".", "./server[gpu]", "../common", "libs/kernels", ".[train] ; sys_platform == 'linux'"]
)
def test_a_project_in_a_folder_is_noted_and_the_rest_is_read(line, read):
    declaration = read({"requirements.txt": f"torch==2.4.0\n{line}\n"})
    assert pins(declaration) == {"torch": "2.4.0"}
    assert "requirements.txt:2: the requirements of the project in" in declaration.notes[0]


def test_duplicate_pins_of_one_package_do_not_hide_the_others(read):
    declaration = read({"requirements.txt": "pip==23.3.1\npip==24.0\ntorch==2.1.2\n"})
    assert pins(declaration)["torch"] == "2.1.2"
    assert "requirements.txt:2" in declaration.faults[0].message


@pytest.fixture
def struck(write):
    """The rules that match what a requirements file declares, for an H100."""

    def struck(text, *settings):
        path = str(write("requirements.txt", text))
        report = session.diagnose(Request(declared=(path,), gpu="h100", settings=settings, run=False, fixes=False))
        return {finding.rule for finding in report.findings}

    return struck


def open_versions(declaration, name):
    return next((item.versions for item in declaration.open if item.name == name), ())


def test_what_a_pinned_torch_requires_decides_an_open_triton(read):
    assert pins(read({"requirements.txt": "torch==2.5.1\ntriton\n"}))["triton"] == "3.1.0"


def test_an_old_triton_decides_an_open_torch(read):
    assert pins(read({"requirements.txt": "torch>=2.0.1\ntriton==2.0.0\n"}))["torch"] == "2.0.1"


def test_open_ranges_of_torch_and_triton_are_judged_in_pairs_that_go_together(read, struck):
    text = "torch>=2.7,<=2.8\ntriton>=3.3.0\n"
    assert {"2.7.0", "2.7.1", "2.8.0"} == set(open_versions(read({"requirements.txt": text}), "torch"))
    assert "TRITON001" not in struck(text)


def test_a_triton_that_torch_does_not_require_is_still_found(struck):
    assert "TRITON001" in struck("torch==2.7.0\ntriton==3.2.0\n")
    assert "TRITON007" in struck("torch==2.9.1\ntriton==3.6.0\n")


def test_a_cpu_build_of_torch_requests_no_triton(read):
    declaration = read({"requirements.txt": "torch==2.5.1+cpu\ntriton\n"})
    assert len(open_versions(declaration, "triton")) > 1


def test_another_index_decides_the_cuda_wheels_but_not_triton(read):
    index = "--extra-index-url https://download.pytorch.org/whl/cu118\n"
    declaration = read({"requirements.txt": f"{index}torch==2.5.1\ntriton\nnvidia-cudnn-cu12\n"})
    assert pins(declaration)["triton"] == "3.1.0"
    assert len(open_versions(declaration, "nvidia-cudnn-cu12")) > 1
    plain = read({"requirements.txt": "torch==2.5.1\ntriton\nnvidia-cudnn-cu12\n"})
    assert pins(plain)["nvidia-cudnn-cu12"] == "9.1.0.70"


def test_a_short_pin_is_the_release_it_installs(read, struck):
    text = "torch==2.2\ntriton==2.2\nxformers==0.0.24\n"
    assert pins(read({"requirements.txt": text})) == {"torch": "2.2.0", "triton": "2.2.0", "xformers": "0.0.24"}
    assert not struck(text) & {"XF001", "TRITON001"}


WHEEL = "flash-attn @ https://example.org/flash_attn-2.8.3%2Bcu128torch2.11-cp312-cp312-linux_x86_64.whl\n"


def test_a_wheel_built_for_this_torch_has_not_to_be_compiled(struck):
    assert not struck(f"torch==2.11.0\n{WHEEL}") & {"BIN020", "FA007", "FA012"}
    assert "BIN020" in struck("torch==2.11.0\nflash-attn==2.8.3\n")


def test_a_wheel_built_for_another_torch_is_found(struck):
    assert "FA012" in struck(f"torch==2.10.0\n{WHEEL}")


def test_releases_that_go_with_no_release_of_another_open_package_are_not_admitted(read):
    declaration = read({"requirements.txt": "vllm>=0.10.2\ntransformers>=4.54,<5\n"})
    assert open_versions(declaration, "vllm")[-1] == "0.23.0"  # 0.24 and later require transformers 5.5.3
    assert open_versions(declaration, "transformers")[0] == "4.55.2"  # what vllm 0.10.2 requires


def test_ranges_none_of_whose_releases_go_together_stay_as_they_were_declared(read):
    declaration = read({"requirements.txt": "vllm>=0.24,<0.26\ntransformers>=4.54,<5\n"})
    assert open_versions(declaration, "vllm") and open_versions(declaration, "transformers")


def test_the_core_of_a_transformer_engine_that_is_built_on_the_spot_is_not_guessed(read, struck):
    text = "--index-url https://download.pytorch.org/whl/cu126\ntorch==2.12.1\ntransformer-engine[pytorch]==2.17.0\n"
    assert "transformer-engine-cu13" not in pins(read({"requirements.txt": text}))
    assert "TE160" not in struck(text)
    assert "TE160" in struck(text + "transformer-engine-cu13==2.17.0\n")


def test_pip_replaces_the_torch_of_an_image_where_a_package_requests_another(read):
    text = "FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN pip uninstall -y transformer_engine flash_attn\n"
    found = pins(read({"Dockerfile": text + "RUN pip install vllm==0.7.2\n"}))
    assert (found["torch"], found["xformers"]) == ("2.5.1", "0.0.28.post3")
    assert found.get("cudnn") is None  # that of the image went with its torch


def test_pip_leaves_an_image_alone_where_nothing_requests_another_torch(read):
    text = "FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN pip install transformers==4.48.2\n"
    assert pins(read({"Dockerfile": text}))["torch"].startswith("2.4.0a0")
    assert pins(read({"Dockerfile": text + "RUN pip install --no-deps vllm==0.7.2\n"}))["torch"].startswith("2.4.0a0")


def test_what_is_compiled_from_a_repository_suits_the_torch_that_is_there(read):
    image = "FROM nvcr.io/nvidia/pytorch:25.01-py3\n"
    compiled = "RUN pip install -v git+https://github.com/facebookresearch/xformers.git@v0.0.29.post1#egg=xformers\n"
    declaration = read({"Dockerfile": image + compiled})
    assert pins(declaration)["torch"].startswith("2.6.0a0")
    assert declaration.facts.value("xformers.torch_pin") == "absent"
    assert pins(read({"Dockerfile": image + "RUN pip install xformers==0.0.29.post1\n"}))["torch"] == "2.5.1"


def test_options_behind_a_requirement_are_read_as_pip_reads_them(read):
    text = "torch==2.3.0 --index-url https://download.pytorch.org/whl/cu118\nxformers==0.0.26.post1 -i https://e.org\n"
    declaration = read({"requirements.txt": text})
    assert pins(declaration) == {"torch": "2.3.0", "xformers": "0.0.26.post1"}
    assert "torch.cuda" not in declaration.facts  # so PyPI's build is installed
    assert "requirements.txt:1: pip ignores `--index-url`" in declaration.notes[0]


@pytest.mark.parametrize("name", ["test_dockerfile_replay.py", "update-dockerfile-graph.sh", "dockerfile_page.rst"])
def test_a_file_about_dockerfiles_is_none(name):
    try:
        assert kind_of(Path(name), "#!/bin/bash\n") != "dockerfile"
    except UnknownKind as refusal:
        assert name in refusal.message


def test_an_unpacked_project_without_a_checkout_includes_across_its_folders(read):
    files = {
        "pyproject.toml": "[build-system]\n", "requirements/common.txt": "torch==2.6.0\n",
        "requirements/build/cuda.txt": "-r ../common.txt\n",
    }  # fmt: skip
    assert pins(read(files, only=["requirements/build/cuda.txt"])) == {"torch": "2.6.0"}
    with pytest.raises(DoctorError, match="is outside the project"):
        read({"requirements/x.txt": "-r ../../../x.txt\n"}, only=["requirements/x.txt"])


def test_a_list_that_only_includes_others_speaks_with_their_words(write, tmp_path):
    write("requirements.txt", "-r requirements/chat.txt\n-r requirements/demo.txt\n")
    write("requirements/chat.txt", "torch==2.6.0\n")
    write("requirements/demo.txt", "-r chat.txt\nstreamlit\n")
    write("requirements/bench.txt", "torch\n")
    used = [
        item.path.relative_to(tmp_path).as_posix()
        for item in discover(tmp_path, watch_of(builtin_rulebook()))
        if item.used
    ]
    assert used == ["requirements.txt"]


def test_pins_that_exclude_one_another_by_their_metadata_are_noted(read):
    declaration = read({"requirements.txt": "vllm==0.19.1\ntransformers==5.4.0\n"})
    assert any("vllm 0.19.1 requires `transformers!=5.0.*" in note for note in declaration.notes)
    assert not read({"requirements.txt": "vllm==0.19.1\ntransformers==4.57.6\n"}).notes
    assert not read({"requirements.txt": "torch==2.6.0+cu126\nnvidia-cudnn-cu12==9.5.1.17\n"}).notes  # another build
    assert not read({"requirements.txt": "torch==2.0.0\ntorchvision==0.15.0\n"}).notes  # requires torch==2.0.0+cu117
