"""requirements.txt: what pip would make of it."""

import time

import pytest

from doctor.errors import DoctorError


def pins(declaration):
    return {
        key.removesuffix(".version"): fact.value
        for key, fact in declaration.facts.items()
        if key.endswith(".version") and fact.known
    }


@pytest.mark.parametrize(
    ("line", "name", "version"),
    [
        ("torch==2.6.0", "torch", "2.6.0"),
        ("torch == 2.6.0  # pinned", "torch", "2.6.0"),
        ("Torch_Vision===0.19.0", "torch-vision", "0.19.0"),
        ("torch==2.6.0+cu124", "torch", "2.6.0+cu124"),
        ("torch (==2.6.0)", "torch", "2.6.0"),
        ("torch==2.6.0,>=2", "torch", "2.6.0"),
        ("accelerate[test, dev]==0.33.0", "accelerate", "0.33.0"),
        ("torch==2.6.0 --hash=sha256:aa --hash=sha256:bb", "torch", "2.6.0"),
        ("torch \\\n  ==2.6.0 \\\n  --hash=sha256:aa", "torch", "2.6.0"),
        ("torch==2.6.0 ; sys_platform == 'linux'", "torch", "2.6.0"),
        ("torch==2.6.0 ; (sys_platform == 'linux' and platform_machine != 'arm64')", "torch", "2.6.0"),
        (
            "flash-attn @ https://example.org/v2.7.4.post1/flash_attn-2.7.4.post1%2Bcu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl",
            "flash-attn", "2.7.4.post1+cu12torch2.6cxx11abiFALSE",
        ),
        (
            "https://example.org/flash_attn-2.7.3+cu124torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl",
            "flash-attn", "2.7.3+cu124torch2.6cxx11abiFALSE",
        ),
        ("./wheels/xformers-0.0.29-cp311-cp311-manylinux_2_28_x86_64.whl", "xformers", "0.0.29"),
        ("flash-attn @ git+https://github.com/Dao-AILab/flash-attention@v2.5.8", "flash-attn", "2.5.8"),
        ("git+https://github.com/NVIDIA/TransformerEngine.git@v1.11", "transformer-engine", "1.11.0"),
        ("-e git+https://example.org/x/megatron.git@v0.9.0#egg=megatron-core", "megatron-core", "0.9.0"),
        ("\ufeff torch==2.6.0\r", "torch", "2.6.0"),
    ],
)  # fmt: skip
def test_a_line_that_fixes_a_version(line, name, version, read):
    declaration = read({"requirements.txt": f"# first line\n{line}\n".replace("# first line\n\ufeff", "\n")})
    assert pins(declaration)[name] == version
    assert declaration.facts[f"{name}.version"].source.endswith("requirements.txt:2")


@pytest.mark.parametrize(
    "line",
    [
        "torch>=2.4", "torch", "torch==2.*", "torch @ git+https://example.org/pytorch.git@0123abc",
        "torch @ https://example.org/torch.tar.gz",
    ],
)  # fmt: skip
def test_what_fixes_no_version_is_unknown_with_the_reason(line, read):
    fact = read({"requirements.txt": line}).facts["torch.version"]
    assert fact.value is None
    assert "torch" in fact.problem


@pytest.mark.parametrize("line", ["torch==2.6.0; sys_platform == 'win32'", "torch==2.6.0; python_version < '3.0'"])
def test_a_line_for_another_machine_does_not_count(line, read):
    assert "torch.version" not in read({"requirements.txt": line}).facts


def test_a_line_that_depends_on_the_python_is_decided_by_the_python(read):
    text = "torch==2.4.1; python_version < '3.12'\ntorch==2.6.0; python_version >= '3.12'\n"
    fact = read({"requirements.txt": text}).facts["torch.version"]
    assert fact.value is None and "2.4.1" in fact.problem and "2.6.0" in fact.problem
    assert pins(read({"requirements.txt": text}, python_version="3.11.7"))["torch"] == "2.4.1"
    assert pins(read({"requirements.txt": text}, python_version="3.12.1"))["torch"] == "2.6.0"


def test_the_wheels_of_addresses_that_count_are_listed(read):
    address = "https://example.org/v2/flash_attn-2.8.3%2Bcu12torch2.8cxx11abiTRUE-cp312-cp312-{}.whl"
    text = "\n".join(
        (
            f"flash-attn @ {address.format('linux_x86_64')} ; sys_platform == 'linux'",
            f"flash-attn @ {address.format('win_amd64')} ; sys_platform == 'win32'",
            "torch==2.8.0",
        )
    )
    found = read({"requirements.txt": text}).facts["declared.wheels"].value
    assert found == ("flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",)


def test_includes_and_constraints(read):
    declaration = read(
        {
            "requirements.txt": "-r base/common.txt\n-c constraints.txt\n--requirement=more.txt\nflash-attn\n",
            "base/common.txt": "torch==2.6.0\n",
            "constraints.txt": "flash-attn==2.7.4.post1\nxformers==0.0.29\n",
            "more.txt": "-rbase/common.txt\ntransformers==4.44.2\n",
        },
        only=["requirements.txt"],
    )
    found = pins(declaration)
    assert found["flash-attn"] == "2.7.4.post1"  # a constraint pins what is requested
    assert "xformers" not in found  # and requires nothing
    assert found["transformers"] == "4.44.2"
    assert declaration.facts["torch.version"].source.endswith("base/common.txt:1")


def test_the_index_says_which_cuda_torch_is_built_for(read):
    text = "--extra-index-url https://download.pytorch.org/whl/cu124\ntorch==2.6.0\n"
    fact = read({"requirements.txt": text}).facts["torch.cuda"]
    assert (fact.value, fact.source.rpartition(":")[2]) == ("12.4", "1")


def test_an_index_of_others_says_nothing_about_torch(read):
    text = "--extra-index-url https://example.org/autogptq-index/whl/cu118/\ntorch==2.6.0\n"
    assert "torch.cuda" not in read({"requirements.txt": text}).facts


def test_hashes_on_every_line_mean_that_nothing_else_is_installed(read):
    hashed = "torch==2.6.0 --hash=sha256:aa\nnumpy==1.26.4 \\\n    --hash=sha256:bb\n"
    assert read({"requirements.txt": hashed}).facts.value("distributions.complete") is True
    assert read({"requirements.txt": hashed + "six==1.16.0\n"}).facts.value("distributions.complete") is None


def test_options_without_a_bearing_are_passed_over(read):
    text = "--no-binary :all:\n--pre\n-f https://example.org\n-i https://example.org/simple\n-e .\ntorch==2.6.0\n"
    declaration = read({"requirements.txt": text})
    assert pins(declaration) == {"torch": "2.6.0"}
    assert "requirements.txt:5" in declaration.notes[0]  # what the project itself needs was not read


@pytest.mark.parametrize(
    ("files", "place", "why"),
    [
        ({"a.txt": "torch==\n"}, "a.txt:1", "not a requirement"),
        ({"a.txt": "ok==1\ntorch==2.6.0,\ntor ch\n"}, "a.txt:3", "not a requirement"),
        ({"a.txt": "\ntorch>=oops\n"}, "a.txt:2", "not a requirement"),
        ({"a.txt": "torch===nightly\n"}, "a.txt:1", "not a version"),
        ({"a.txt": "--frobnicate\n"}, "a.txt:1", "unknown option"),
        ({"a.txt": "-r\n"}, "a.txt:1", "names no file"),
        ({"a.txt": "torch==2\n-r gone.txt\n"}, "a.txt:2", "no such file"),
        ({"a.txt": "-r b.txt\n", "b.txt": "x==1\n-r a.txt\n"}, "b.txt:2", "a.txt -> b.txt -> a.txt"),
        ({"a.txt": "-r a.txt\n"}, "a.txt:1", "include each other"),
        ({"a.txt": "-r ../../../../../etc/passwd\n"}, "a.txt:1", "is outside the project"),
        ({"a.txt": "-r /etc/hostname\n"}, "a.txt:1", "is outside the project"),
        ({"a.txt": "https://example.org/archive\n"}, "a.txt:1", "does not name its package"),
        ({"a.txt": "torch==2.6.0 \\\n"}, None, None),
    ],
)
def test_bad_input_names_file_line_and_reason(files, place, why, read, tmp_path):
    if place is None:
        assert pins(read(files))["torch"] == "2.6.0"
        return
    with pytest.raises(DoctorError) as caught:
        read(files, only=["a.txt"])
    assert f"{tmp_path.name}/{place}: " in caught.value.message
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("files", "place", "why"),
    [
        ({"a.txt": "torch==2.6.0; os == 'x'\n"}, "a.txt:1", "marker"),
        ({"a.txt": "torch==2.6.0\ntorch==2.5.0\n"}, "a.txt:2", "contradicts `torch==2.6.0`"),
        ({"a.txt": "torch==2.6.0\ntorch<2.5\n"}, "a.txt:2", "contradicts"),
        ({"a.txt": "torch==2.6.0\n-c b.txt\n", "b.txt": "torch==2.5.1\n"}, "b.txt:1", "contradicts"),
    ],
)
def test_what_cannot_be_satisfied_leaves_its_package_unknown_and_the_others_judged(files, place, why, read, tmp_path):
    files = {**files, "a.txt": files["a.txt"] + "flash-attn==2.7.3\n"}
    declaration = read(files, only=["a.txt"])
    assert f"{tmp_path.name}/{place}: " in declaration.faults[0].message
    assert why in declaration.faults[0].message
    assert pins(declaration) == {"flash-attn": "2.7.3"}
    assert why in declaration.facts["torch.version"].problem


def test_two_files_that_contradict_each_other(read, tmp_path):
    (problem,) = read({"a.txt": "torch==2.6.0", "b.txt": "torch==2.5.1"}).faults
    folder = tmp_path.name
    assert f"{folder}/b.txt:1: `torch==2.5.1` contradicts `torch==2.6.0` of " in problem.message
    assert problem.message.endswith(f"{folder}/a.txt:1")


def test_a_label_says_more_than_none_and_contradicts_nothing(read):
    assert pins(read({"a.txt": "torch==2.6.0", "b.txt": "torch==2.6.0+cu126"}))["torch"] == "2.6.0+cu126"


def test_a_password_in_an_address_is_not_repeated(read):
    with pytest.raises(DoctorError) as caught:
        read({"a.txt": "https://user:hunter2@example.org/archive"})
    assert "hunter2" not in caught.value.message


def test_a_bad_file_does_not_hide_the_others(read):
    declaration = read({"a.txt": "torch==2.6.0", "b.txt": "???"})
    assert pins(declaration) == {"torch": "2.6.0"}
    assert "b.txt:1" in declaration.faults[0].message


def test_a_hundred_thousand_lines_are_read_in_seconds(read):
    text = "".join(f"package-{number}=={number}.0\n" for number in range(99_999)) + "torch==2.6.0\n"
    began = time.process_time()
    declaration = read({"requirements.txt": text})
    assert time.process_time() - began < 20
    assert declaration.facts["torch.version"].source.endswith(":100000")


def test_many_includes_end(read):
    files = {f"r{number}.txt": f"-r r{number + 1}.txt\n" for number in range(400)} | {"r400.txt": "torch==2.6.0"}
    with pytest.raises(DoctorError, match="more than 200 files"):
        read(files, only=["r0.txt"])


def test_a_marker_behind_an_address_needs_one_space_only(read):
    wheel = "https://example.org/flash_attn-2.7.4+torch2.6.0cxx11abiFALSE-cp311-cp311-{}.whl; platform_system == '{}'"
    lines = [wheel.format("win_amd64", "Windows"), wheel.format("linux_x86_64", "Linux")]
    found = read({"requirements.txt": "\n".join(lines)}).facts["flash-attn.version"]
    assert found.value == "2.7.4+torch2.6.0cxx11abiFALSE" and found.source.endswith(":2")


def test_a_package_that_a_pin_requires_names_that_pin(read):
    facts = read({"a.txt": "torchvision==0.21.0\nxformers==0.0.29.post3\n"}).facts
    assert facts["torch.version"].value == "2.6.0"
    assert facts["torch.version"].source.endswith("a.txt:1")
    assert facts["torch.version"].via == "torchvision 0.21.0"
    assert facts["torch.version"].origin.endswith("a.txt:1, required by torchvision 0.21.0")
    assert facts["xformers.version"].via is None


@pytest.mark.parametrize(("index", "judged"), [("nightly/cu130", False), ("0.19.1/cu130", True)])
def test_the_releases_of_a_nightly_index_of_vllm_are_not_those_of_the_package_index(read, index, judged):
    # alibaba/ROLL: a release of 2023 is all that the package index offers for this transformers and torch
    text = f"torch==2.10.0\ntransformers==5.2.0\n--extra-index-url https://wheels.vllm.ai/{index}\nvllm\n"
    declaration = read({"requirements.txt": text})
    assert ("vllm" in {item.name for item in declaration.open}) == judged
    assert not declaration.facts["vllm.version"].known


@pytest.mark.parametrize(
    ("lines", "said", "system"),
    [
        ("torch==2.6.0\n", {}, "Linux"),
        ("torch==2.6.0\n", {"platform_system": "Windows"}, None),
        ("torch==2.6.0\ntriton-windows==3.2.0.post11\n", {}, None),
    ],
)
def test_lines_are_chosen_for_linux_and_the_facts_say_so(read, lines, said, system):
    fact = read({"requirements.txt": lines}, **said).facts.get("platform.system")
    assert (fact and fact.value) == system
    assert fact is None or fact.assumed
