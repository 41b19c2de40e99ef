"""Dockerfile: the last stage, its image, and what its commands leave installed, each at its own line."""

# ruff: noqa: E501 - files to read, each on one line

import pytest

from doctor.errors import DoctorError
from tests.helpers.rulebook import builtin_rulebook


@pytest.fixture
def docker(read):
    def docker(text, **files):
        return read(
            {"Dockerfile": text, **{name.replace("_", "."): body for name, body in files.items()}}, ["Dockerfile"]
        )

    return docker


def told(declaration, key):
    """(value, line)"""
    fact = declaration.facts[key]
    return fact.value, int(fact.source.rpartition(":")[2])


def test_each_requirement_of_a_long_run_is_at_its_own_line(docker):
    found = docker(
        "FROM python:3.11-slim\n"
        "RUN --mount=type=cache,target=/root/.cache \\\n"
        "    apt-get update && \\\n"
        "    # the stack\n"
        "    pip install --no-cache-dir \\\n"
        "      torch==2.6.0 \\\n"
        '      "flash-attn==2.7.4.post1" && \\\n'
        "    python3 -m pip install 'xformers==0.0.29.post3'\n"
        "RUN uv pip install --system transformers==4.46.0\n"
    )
    assert told(found, "torch.version") == ("2.6.0", 6)
    assert told(found, "flash-attn.version") == ("2.7.4.post1", 7)
    assert told(found, "xformers.version") == ("0.0.29.post3", 8)
    assert told(found, "transformers.version") == ("4.46.0", 9)
    assert told(found, "python.version") == ("3.11", 1)


def test_a_project_without_its_requirements(docker):
    text = "FROM python:3.11\nRUN pip install torch==2.6.0\nRUN pip install {} .\n"
    project = "setup(install_requires=['flash-attn==2.7.3'])\n"
    assert "flash-attn.version" not in docker(text.format("--no-deps"), setup_py=project).facts
    assert docker(text.format("-e"), setup_py=project).facts.value("flash-attn.version") == "2.7.3"


def test_an_index_that_an_included_file_names(docker):
    text = "FROM python:3.11\nRUN pip install -r requirements.txt\n"
    lines = "torch==2.6.0\nxformers==0.0.29.post3\n"
    index = "--index-url https://download.pytorch.org/whl/cu124\n"
    fact = docker(text, requirements_txt=index + lines).facts["xformers.fitting_torch"]
    assert fact.problem == f"{fact.source} names another index, whose builds are not on record"
    assert fact.source.endswith("requirements.txt:1")
    assert "xformers.fitting_torch" not in docker(text, requirements_txt=lines).facts


@pytest.mark.parametrize(
    ("command", "version"),
    [
        ("pip install 'sglang[all]==0.4.10.post2'", None),
        ("pip install --no-deps 'sglang[all]==0.4.10.post2'", "0.2.9rc1"),
        ("pip install sglang==0.4.10.post2 flashinfer-python==0.2.9rc2", "0.2.9rc2"),
    ],
)
def test_a_package_whose_pins_are_not_on_record_puts_earlier_installs_in_doubt(docker, command, version):
    found = docker(f"FROM python:3.11\nRUN pip install flashinfer-python==0.2.9rc1\nRUN {command}\n").facts
    assert found.value("flashinfer-python.version") == version
    assert version or "`sglang` in" in found["flashinfer-python.version"].problem


@pytest.mark.parametrize(
    ("commands", "cuda", "is_on_record"),
    [
        (
            "pip install torch==2.11.0 xformers==0.0.35 --index-url https://download.pytorch.org/whl/cu130",
            "13.0",
            False,
        ),
        ("pip install xformers==0.0.32.post2 --index-url https://download.pytorch.org/whl/cu129", "12.9", False),
        (
            "pip install torch==2.11.0 --index-url https://download.pytorch.org/whl/cu130 && pip install xformers==0.0.35",
            "13.0",
            True,
        ),
    ],
)
def test_builds_of_another_index_are_not_the_ones_on_record(docker, commands, cuda, is_on_record):
    found = docker(f"FROM python:3.11\nRUN {commands}\n").facts
    assert found.value("torch.cuda") == cuda
    assert ("xformers.fitting_torch" not in found) is is_on_record


def test_arguments_and_variables_are_filled_in(docker):
    found = docker(
        "ARG TORCH=2.6.0\nARG CUDA=cu126\nFROM ubuntu:22.04\nARG TORCH\nARG TE=1.11.0 FA\nENV FLASH=2.7.3\n"
        "RUN pip install torch==${TORCH} --index-url https://download.pytorch.org/whl/${CUDA:-cu124}\n"
        "RUN pip3 install transformer-engine==$TE flash-attn==${FLASH} xformers==${FA}\n"
    )
    assert told(found, "torch.version") == ("2.6.0", 7)
    assert told(found, "torch.cuda") == ("12.4", 7)  # an ARG before FROM counts in a stage only if named there again
    assert found.facts.value("transformer-engine.version") == "1.11.0"
    assert found.facts.value("flash-attn.version") == "2.7.3"
    assert found.facts["xformers.version"].value is None
    assert "value of the build" in found.facts["xformers.version"].problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ENV NVTE_FLASH_ATTN=0", "0"),
        ("ENV NVTE_FLASH_ATTN 0", "0"),
        ('ENV A=1 \\\n  NVTE_FLASH_ATTN="0" B=2', "0"),
        ("ARG X=1\nENV NVTE_FLASH_ATTN=${X}", "1"),
        ("RUN export NVTE_FLASH_ATTN=0", None),  # ends with its RUN
        ("RUN NVTE_FLASH_ATTN=0 python setup.py install", None),
    ],
)
def test_environment(text, value, docker):
    fact = docker(f"FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel\n{text}\n").facts.get("env.NVTE_FLASH_ATTN")
    assert (fact.value if fact else None) == value


def test_a_variable_that_no_rule_requests_and_a_secret_do_not_enter(docker):
    facts = docker("FROM python:3.11\nENV HF_TOKEN=hf_abcdefghijklmnop NVTE_API_KEY=x\nRUN pip install torch\n").facts
    assert "env.HF_TOKEN" not in facts
    assert facts["env.NVTE_API_KEY"].value is None


def test_the_last_stage_counts_with_what_it_is_built_on(docker):
    found = docker(
        "FROM python:3.11 AS base\nRUN pip install torch==2.5.1\n"
        "FROM base AS te\nRUN pip install transformer-engine==1.13.0\n"
        "FROM python:3.12 AS docs\nRUN pip install vllm==0.6.3\n"
        "FROM te\nRUN pip install flash-attn==2.7.3\n"
    )
    assert found.facts.value("torch.version") == "2.5.1"
    assert found.facts.value("transformer-engine.version") == "1.13.0"
    assert "vllm.version" not in found.facts


def test_packages_copied_from_another_stage(docker):
    build = "FROM python:3.11 AS build\nRUN pip install torch==2.6.0\n"
    assert docker(build + "FROM python:3.11-slim\nCOPY --from=build /opt/venv /opt/venv\n").facts.value(
        "torch.version"
    ) == "2.6.0"  # fmt: skip
    other = docker(build + "FROM python:3.11-slim\nCOPY --from=build /src/data /data\n").facts
    assert "torch.version" not in other


def test_requirements_that_are_copied_in(docker):
    found = docker(
        "FROM python:3.11\nCOPY requirements.txt /tmp/req.txt\nRUN pip install -r /tmp/req.txt\n",
        requirements_txt="# ours\ntorch==2.6.0\n",
    )
    assert found.facts["torch.version"].source.endswith("requirements.txt:2")
    gone = docker("FROM python:3.11\nRUN pip install -r gone.txt torch==2.6.0\n")
    assert "gone.txt" in gone.notes[0] and gone.facts.value("torch.version") == "2.6.0"


def test_a_file_outside_the_project_is_not_read(docker, tmp_path):
    (tmp_path.parent / "secret.txt").write_text("torch==1.0\n")
    found = docker("FROM python:3.11\nRUN pip install flash-attn==2.7.3 -r ../secret.txt\n")
    assert "torch.version" not in found.facts and "not in the project" in found.notes[0]


def test_texts_below_a_command(docker):
    found = docker(
        "FROM python:3.11\nRUN <<EOF\nset -e\npip install torch==2.6.0\nEOF\n"
        "COPY <<EOF /req.txt\nflash-attn==2.7.3\nEOF\nRUN pip install -r /req.txt\n"
        "RUN cat <<E2 > more.txt && pip install -r more.txt\ntransformers==4.46.0\nE2\n"
    )
    assert told(found, "torch.version") == ("2.6.0", 4)
    assert told(found, "flash-attn.version") == ("2.7.3", 7)
    assert told(found, "transformers.version") == ("4.46.0", 11)


@pytest.mark.parametrize(
    "install",
    [
        "pip install --index-url https://wheels.vllm.ai/nightly/cu130 vllm",
        "pip install vllm==0.19.1 --extra-index-url https://wheels.vllm.ai/0.19.1/cu130",
        "uv pip install --index https://wheels.vllm.ai/0.19.1/cu130 vllm",
        "pip install -r /tmp/req.txt",
    ],
)
def test_the_cuda_of_a_vllm_from_its_own_index_is_not_on_record(docker, install):
    text = f"FROM python:3.12\nCOPY requirements.txt /tmp/req.txt\nRUN {install}\n"
    req = "--extra-index-url https://wheels.vllm.ai/nightly/cu130\nvllm\n"
    fact = docker(text, requirements_txt=req).facts["vllm.wheel_cuda_major"]
    assert fact.value is None and "not on record" in fact.problem
    again = docker(text + "RUN pip install --force-reinstall vllm==0.19.1\n", requirements_txt=req).facts
    assert "vllm.wheel_cuda_major" not in again


def test_the_last_install_of_a_package_counts(docker):
    found = docker("FROM python:3.11\nRUN pip install torch==2.5.1\nRUN pip install torch==2.6.0\n")
    assert told(found, "torch.version") == ("2.6.0", 3)
    kept = docker("FROM python:3.11\nRUN pip install torch==2.5.1\nRUN pip install 'torch>=2.2' torch\n")
    assert told(kept, "torch.version") == ("2.5.1", 2)
    gone = docker("FROM python:3.11\nRUN pip install torch==2.5.1 xformers==0.0.29\nRUN pip uninstall -y xformers\n")
    assert told(gone, "xformers.version") == ("absent", 3)
    back = docker("FROM python:3.11\nRUN pip uninstall -y torch\nRUN pip install torch==2.6.0\n")
    assert told(back, "torch.version") == ("2.6.0", 3)


@pytest.mark.parametrize("again", ['"${FILE}"', "$(ls *.whl)", "./flash-attention"])
def test_an_uninstalled_package_is_unknown_after_an_install_that_was_not_read(docker, again):
    found = docker(f"FROM python:3.11\nRUN pip uninstall -y flash-attn\nRUN pip install {again}\n")
    fact = found.facts["flash-attn.version"]
    assert fact.value is None
    assert "may install it again" in (fact.problem or "")


def test_an_uninstalled_package_stays_away_where_only_others_are_installed(docker):
    found = docker("FROM python:3.11\nRUN pip uninstall -y flash-attn\nRUN pip install einops==0.8.0\n")
    assert told(found, "flash-attn.version") == ("absent", 2)


def test_a_wheel_by_name_after_an_uninstall_is_what_is_installed(docker):
    wheel = "./flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    found = docker(f"FROM python:3.11\nRUN pip uninstall -y flash-attn\nRUN pip install {wheel}\n")
    assert told(found, "flash-attn.version") == ("2.7.4.post1+cu12torch2.6cxx11abiFALSE", 3)


def test_what_a_branch_installs_is_not_certain(docker):
    found = docker(
        "FROM python:3.11\nARG GPU\nRUN pip install torch==2.6.0\n"
        'RUN if [ "$GPU" = a100 ]; then pip install flash-attn==2.6.3; fi\n'
        "RUN pip install xformers==0.0.29 || pip install xformers==0.0.27\n"
    )
    assert found.facts["flash-attn.version"].value is None
    assert "condition" in found.facts["flash-attn.version"].problem
    assert found.facts.value("xformers.version") == "0.0.29"


def test_an_unquoted_range_is_a_redirection_as_in_the_shell(docker):
    assert docker("FROM python:3.11\nRUN pip install torch>=2.6\n").open[0].range == ""


def test_pytorchs_image_says_torch_and_cuda(docker):
    found = docker("FROM docker.io/pytorch/pytorch:2.4.1-cuda12.1-cudnn9-devel\n")
    assert told(found, "torch.version") == ("2.4.1", 1)  # of conda, whose packages carry no label
    assert found.facts.value("torch.cuda") == "12.1"
    latest = docker("FROM pytorch/pytorch:latest\n").facts["torch.version"]
    assert latest.value is None and "fixes no release" in latest.problem


def test_ngc_release_on_record_and_not_on_record(docker):
    found = docker("FROM nvcr.io/nvidia/pytorch:25.10-py3\n").facts
    assert found.value("torch.version") == "2.9.0a0+145a3a7bda.nv25.10"
    assert (found.value("cudnn.version"), found.value("transformer-engine.version")) == ("9.14.0.64", "2.8.0")
    assert found["triton.version"].value is None and "unknown release" in found["triton.version"].problem
    unknown = docker("FROM nvcr.io/nvidia/pytorch:99.01-py3\n").facts
    for key in ("torch.version", "transformer-engine.version", "cudnn.version", "torch.cuda"):
        assert unknown[key].value is None and "99.01" in unknown[key].problem


def test_another_torch_takes_the_place_of_the_images(docker):
    found = docker("FROM nvcr.io/nvidia/pytorch:25.10-py3\nRUN pip install torch==2.6.0\n").facts
    assert found.value("torch.version") == "2.6.0"
    assert "cudnn.version" not in found and "torch.cuda" not in found and "torch.cxx11_abi" not in found


def test_an_image_that_no_one_knows_is_reported(docker):
    found = docker("FROM registry.example.org/team/train:7\nRUN pip install torch==2.6.0\n")
    assert "unknown content" in found.notes[0]
    assert "distributions.complete" not in found.facts


def test_the_table_of_images_is_sound():
    table = builtin_rulebook().images["nvcr.io/nvidia/pytorch"]
    assert len(table) >= 25
    for release, held in table.items():
        assert held["source"] and held["certainty"] in ("published", "seen", "reported"), release
        assert "a0+" in held["torch.version"]


def test_conda_and_locks_in_an_image(docker):
    found = docker(
        "FROM continuumio/miniconda3\n"
        "RUN conda install -y pytorch=2.4.1=py3.11_cuda12.1_cudnn9.1.0_0 pytorch-cuda=12.1 -c pytorch -c nvidia\n"
        "RUN uv sync --frozen\n",
        uv_lock='[[package]]\nname = "flash-attn"\nversion = "2.6.3"\n',
    )
    assert told(found, "torch.version") == ("2.4.1", 2)
    assert found.facts.value("cudnn.version") == "9.1.0"
    assert found.facts["flash-attn.version"].source.endswith("uv.lock:3")


def test_the_project_itself(docker):
    found = docker(
        "FROM python:3.11\nCOPY . .\nRUN pip install -e '.[train]'\n",
        pyproject_toml='[project]\ndependencies = ["torch==2.6.0"]\noptional-dependencies.train = ["flash-attn==2.7.3"]\n',
    )
    assert found.facts.value("torch.version") == "2.6.0" and found.facts.value("flash-attn.version") == "2.7.3"


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", "Dockerfile", "no `FROM`"),
        ("# nothing\n", "Dockerfile", "no `FROM`"),
        ("RUN pip install torch\n", "Dockerfile:1", "before the first `FROM`"),
        ("FROM a b c d\n", "Dockerfile:1", "needs an image"),
        ("FROM\n", "Dockerfile:1", "needs an image"),
        ("FROM a\nFROBNICATE x\n", "Dockerfile:2", "unknown instruction"),
        ("FROM a\nRUN <<EOF\npip install torch\n", "Dockerfile:2", "no closing"),
        ("FROM a\n{}\n", "Dockerfile:2", "unknown instruction"),
        ("FROM a\n" * 300, "Dockerfile:201", "stages"),
    ],
)
def test_bad_input_names_file_line_and_reason(text, place, why, docker):
    with pytest.raises(DoctorError) as caught:
        docker(text)
    assert f"/{place}: " in caught.value.message and why in caught.value.message


def test_stages_that_name_each_other_end(docker):
    assert docker("FROM b AS a\nFROM a AS b\nRUN pip install torch==2.6.0\n").facts.value("torch.version") == "2.6.0"
    chain = "FROM python:3.11 AS s0\n" + "".join(f"FROM s{n} AS s{n + 1}\n" for n in range(150))
    assert docker(chain + "RUN pip install torch==2.6.0\n").facts.value("torch.version") == "2.6.0"


def test_a_faulty_file_that_a_command_names_does_not_hide_the_rest(docker):
    found = docker(
        "FROM python:3.11\nRUN pip install torch==2.6.0\nRUN pip install -r requirements.txt\n",
        requirements_txt="???\n",
    )
    assert found.facts.value("torch.version") == "2.6.0" and "requirements.txt:1" in found.notes[0]


def test_a_stage_by_name_and_an_empty_last_one(read):
    text = (
        "FROM python:3.11 AS train\nRUN pip install torch==2.6.0\n"
        "FROM python:3.11 AS serve\nRUN pip install torch==2.5.1\nFROM scratch AS export\nCOPY --from=serve /x /x\n"
    )
    assert read({"Dockerfile": text}).facts.value("torch.version") == "2.5.1"
    assert read({"Dockerfile": text}, ["Dockerfile[train]"]).facts.value("torch.version") == "2.6.0"
    with pytest.raises(DoctorError, match="no stage `nope`"):
        read({"Dockerfile": text}, ["Dockerfile[nope]"])


def test_a_package_without_its_dependencies_pins_nothing(docker):
    text = "FROM example.org/image:1\nRUN pip install {} sglang==0.5.9\n"
    assert "torch.version" not in docker(text.format("--no-deps")).facts
    found = docker(text.format(""))
    assert (found.facts["torch.version"].value, found.facts["torch.version"].via) == ("2.9.1", "sglang 0.5.9")


def test_a_range_without_its_dependencies_pins_nothing(docker):
    text = "FROM example.org/image:1\nRUN pip install {} 'vllm>=0.20,<0.21' 'torch==2.9.1'\n"
    (open_,) = docker(text.format("--no-deps")).open or [None]
    assert open_ is not None and open_.name == "vllm" and open_.alone


COMPILERS = {  # Dockerfile -> the CUDA compiler that its image has; None where its release is unknown
    "FROM python:3.11\nRUN pip install torch==2.8.0": "absent",
    "FROM python:3.11\nRUN apt-get update && apt-get install -y cuda-toolkit-12-8": "12.8",
    "FROM ubuntu:24.04\nRUN apt-get install -y nvidia-cuda-toolkit": None,
    "FROM ubuntu:24.04\nRUN sh cuda_12.8.0_570.86.10_linux.run --silent": None,
    "FROM nvidia/cuda:12.8.1-devel-ubuntu22.04": "12.8",
    "FROM nvidia/cuda:12.8.1-devel-ubuntu22.04 AS a\nRUN python3 -m venv /venv\n"
    "FROM nvidia/cuda:12.8.1-runtime-ubuntu22.04\nCOPY --from=a /venv /venv": "absent",
    "FROM nvidia/cuda:12.8.1-devel-ubuntu22.04 AS a\nFROM ubuntu:24.04\n"
    "COPY --from=a /usr/local/cuda /usr/local/cuda\nRUN pip install torch==2.8.0": "12.8",
}


@pytest.mark.parametrize("text", COMPILERS)
def test_the_compiler_of_an_image_is_known(read, text):
    found = read({"Dockerfile": text + "\nRUN pip install torch==2.8.0\n"}).facts
    assert found["toolkit.nvcc"].value == COMPILERS[text]


def test_ninja_is_there_once_it_is_installed(read):
    base = "FROM python:3.11\nRUN pip install torch==2.8.0"
    assert read({"Dockerfile": base + "\n"}).facts.value("toolkit.ninja") is False
    assert read({"Dockerfile": base + " ninja\n"}).facts.value("toolkit.ninja") is True
    assert read({"Dockerfile": base + "\nRUN apt-get install -y ninja-build\n"}).facts.value("toolkit.ninja") is True


ISOLATED = {  # install commands -> the packages that pip builds in isolation
    "pip install torch==2.8.0 torch-scatter==2.1.2": ("torch-scatter",),
    "pip install torch==2.8.0 && pip install --no-build-isolation torch-scatter==2.1.2": None,
    "pip install torch==2.8.0 torch-scatter==2.1.2 && pip install --no-build-isolation torch-scatter": None,
    "pip install torch==2.8.0 && pip install torch_scatter-2.1.2+pt28cu128-cp312-cp312-linux_x86_64.whl": None,
    "pip install torch==2.8.0 numpy": None,
}


@pytest.mark.parametrize("command", ISOLATED)
def test_what_is_built_in_isolation_is_known(read, command):
    found = read({"Dockerfile": f"FROM python:3.12\nRUN {command}\n"}).facts
    assert found.value("declared.isolated") == ISOLATED[command]


RUNTIME = "nvidia/cuda:12.8.1-runtime-ubuntu22.04"
DEVEL = "nvidia/cuda:12.8.1-devel-ubuntu22.04"
OPEN = "pip install --no-build-isolation"
BUILT = {  # (image, commands) -> fact of what is built, packages; one for each way in which a build lacks something
    (RUNTIME, f"pip install ninja packaging && {OPEN} torch==2.8.0 torch-scatter==2.1.2"): {
        "declared.built_before_torch": ("torch-scatter",), "declared.built_without_nvcc": ("torch-scatter",)},
    (DEVEL, f"pip install torch==2.8.0 && {OPEN} torch-scatter==2.1.2"): {
        "declared.built_before_torch": None, "declared.built_without_nvcc": None,
        "declared.built_in_image": ("torch-scatter",)},
    (DEVEL, f"pip install accelerate && {OPEN} torch-scatter==2.1.2"): {"declared.built_before_torch": None},
    (DEVEL, f"conda env update -f unread.yml && {OPEN} torch-scatter==2.1.2"): {"declared.built_before_torch": None},
    ("example.org/own:1", f"{OPEN} torch-scatter==2.1.2"): {
        "declared.built_before_torch": None, "declared.built_without_nvcc": None},
    (RUNTIME, "pip install --only-binary :all: torch-scatter"): {"declared.built": None},
    (RUNTIME, f"{OPEN} torch-scatter && pip install torch==2.8.0 && {OPEN} torch-scatter"): {
        "declared.built_before_torch": None},
}  # fmt: skip


@pytest.mark.parametrize(("image", "command"), BUILT)
def test_what_a_build_lacks_is_known_at_its_command(read, image, command):
    found = read({"Dockerfile": f"FROM {image}\nRUN {command}\n"}).facts
    for key, packages in BUILT[image, command].items():
        assert found.value(key) == packages, key


def test_a_compiler_of_the_stage_that_builds_counts(read):
    text = (f"FROM {DEVEL} AS a\nRUN python3 -m venv /venv && pip install torch==2.8.0 && {OPEN} torch-scatter==2.1.2\n"
            f"FROM {RUNTIME}\nCOPY --from=a /venv /venv\n")  # fmt: skip
    found = read({"Dockerfile": text}).facts
    assert found.value("declared.built_without_nvcc") is None and found.value("toolkit.nvcc") == "absent"


@pytest.mark.parametrize(
    ("image", "command", "reason"),
    [
        (DEVEL, "pip install torch==2.8.0 && pip install .", "No module named 'torch'"),
        (DEVEL, "pip install torch==2.8.0 && pip install -e '.[train]'", "No module named 'torch'"),
        (DEVEL, f"{OPEN} -e .", "which is not installed yet"),
        (RUNTIME, f"pip install torch==2.8.0 && {OPEN} .", "no CUDA compiler: OSError"),
        (DEVEL, f"pip install torch==2.8.0 && {OPEN} .", ""),
        (DEVEL, "pip install torch==2.8.0 && pip install --only-binary :all: .", ""),
    ],
)
def test_the_build_of_the_projects_own_folder_is_followed(read, image, command, reason):
    script = (
        "from setuptools import setup\nfrom torch.utils.cpp_extension import BuildExtension, CUDAExtension\n"
        "setup(name='mine', ext_modules=[CUDAExtension('mine_cuda', ['a.cu'])], cmdclass={'build_ext': BuildExtension})\n"
    )
    found = read({"Dockerfile": f"FROM {image}\nRUN {command}\n", "setup.py": script}).facts
    stops = found.value("declared.local_stops")
    assert (stops is None) is (reason == "")
    assert not reason or (stops[0].startswith("the project in `.`") and reason in stops[0])


C_COMPILERS = {  # base image and system packages -> whether triton finds a C compiler; None where that is unknown
    ("nvidia/cuda:12.8.1-runtime-ubuntu22.04", "python3"): False,
    ("nvidia/cuda:12.8.1-runtime-ubuntu22.04", "build-essential"): None,
    ("nvidia/cuda:12.8.1-runtime-ubuntu22.04", "python3-pip"): None,  # recommends one
    ("nvidia/cuda:12.8.1-devel-ubuntu22.04", "python3"): True,
    ("python:3.12-slim", "git"): False,
    ("python:3.12", "git"): None,
    ("example.org/own:1", "git"): None,
}


@pytest.mark.parametrize(("image", "package"), C_COMPILERS)
def test_whether_an_image_has_a_c_compiler_is_known(read, image, package):
    text = f"FROM {image}\nRUN apt-get update && apt-get install -y {package}\nRUN pip install torch==2.8.0\n"
    assert read({"Dockerfile": text}).facts.value("toolkit.c_compiler") is C_COMPILERS[image, package]
