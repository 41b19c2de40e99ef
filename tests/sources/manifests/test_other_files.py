"""pyproject.toml and conda's environment.yml."""

import pytest

from doctor.errors import DoctorError

PYPROJECT = """[project]
name = "trainer"
version = "0"
requires-python = ">=3.11,<3.12"
dependencies = [
  "torch==2.6.0",
  "flash-attn @ https://example.org/flash_attn-2.7.3-cp311-cp311-linux_x86_64.whl",
  "transformers>=4.40,<4.45",
  "xformers==0.0.20; python_version < '3.11'",
]
[project.optional-dependencies]
dev = ["vllm==0.6.3"]
"""

CONDA = """name: train
channels: [pytorch, nvidia]
dependencies:
  - python=3.11
  - pytorch::pytorch=2.4.0=py3.11_cuda12.1_cudnn9.1.0_0
  - pytorch-cuda=12.1
  - numpy >=1.26, <2
  - pip
  - pip:
      - flash-attn==2.6.3
      - transformers==4.44.2  # held
"""


def test_pyproject(read, values):
    declaration = read({"pyproject.toml": PYPROJECT})
    found = values(declaration)
    assert found["torch.version"] == "2.6.0"
    assert declaration.facts["torch.version"].source.endswith("pyproject.toml:6")
    assert found["flash-attn.version"] == "2.7.3"
    assert "vllm.version" not in found and "skipped" in declaration.notes[0]
    assert "xformers.version" not in found  # requires-python excludes it
    assert [item.name for item in declaration.open] == ["transformers"]
    assert all(version.startswith("4.4") for version in declaration.open[0].versions)


def test_conda(read, values):
    declaration = read({"environment.yml": CONDA})
    found = values(declaration)
    assert found["torch.version"] == "2.4.0"
    assert declaration.facts["torch.version"].source.endswith("environment.yml:5")
    assert (found["torch.cuda"], found["cudnn.version"], found["python.version"]) == ("12.1", "9.1.0", "3.11")
    assert found["nvidia-cudnn-cu12.version"] == "absent"
    assert found["transformers.version"] == "4.44.2"
    assert declaration.facts["flash-attn.version"].source.endswith("environment.yml:10")
    assert "distributions.complete" not in found


def test_condas_torch_brings_no_cudnn_that_anyone_knows(read):
    facts = read({"environment.yaml": "dependencies:\n  - pytorch=2.4.0\n  - cudatoolkit=11.8\n"}).facts
    assert facts["cudnn.version"].value is None and "channel" in facts["cudnn.version"].problem
    assert facts.value("torch.cuda") == "11.8"


@pytest.mark.parametrize(
    ("specification", "version", "ranges"),
    [
        ("pytorch==2.4.0", "2.4.0", None),
        ("pytorch 2.4.0", "2.4.0", None),
        ("pytorch=2.4.0", "2.4.0", None),
        ("conda-forge/linux-64::pytorch 2.4.0 cuda120_py311", "2.4.0", None),
        ("pytorch[version='2.4.0', build=py3.11_cuda12.1*]", "2.4.0", None),
        ("pytorch=2.4", None, "==2.4.*"),
        ("pytorch >= 2.2, < 2.5", None, ">=2.2,<2.5"),
        ("pytorch", None, ""),
        ("pytorch 2.3|2.4", None, ""),
    ],
)
def test_specifications_of_conda(specification, version, ranges, read):
    declaration = read({"environment.yml": f"dependencies:\n  - {specification!r}\n".replace("\\'", "''")})
    assert declaration.facts.value("torch.version") == version
    if version is None:
        assert declaration.open[0].range == ranges


@pytest.mark.parametrize(
    ("name", "text", "place", "why"),
    [
        ("pyproject.toml", "[tool.x]\n", "pyproject.toml", "no `[project]`"),
        ("pyproject.toml", "[project]\ndynamic = ['dependencies']\n", "pyproject.toml:2", "only the build knows"),
        ("pyproject.toml", "[project]\ndependencies = 'torch'\n", "pyproject.toml:2", "list of strings"),
        ("pyproject.toml", "[project]\ndependencies = [\n'ok',\n'tor ch']\n", "pyproject.toml:4", "not a requirement"),
        ("pyproject.toml", "[project]\ndependencies = [\n'-r x.txt']\n", "pyproject.toml:3", "not a requirement"),
        ("pyproject.toml", "[project\n", "pyproject.toml:1", "not TOML"),
        ("environment.yml", "dependencies:\n  - a: b\n", "environment.yml:2", "unexpected `a`"),
        ("environment.yml", "name: x\n", "environment.yml:1", "no list `dependencies`"),
        ("environment.yml", "dependencies:\n  - x\n  - pytorch=>2\n", "environment.yml:3", "not a version range"),
        ("environment.yml", "dependencies:\n  - [1]\n", "environment.yml:2", "not a package specification"),
        ("environment.yml", "dependencies:\n  - x=1\n  - x=2\n", "environment.yml:3", "declared twice"),
        ("environment.yml", "dependencies: [\n", "environment.yml:2", ""),
        (
            "environment.yml",
            "dependencies:\n- pip:\n  - -r /etc/hostname\n",
            "environment.yml:3",
            "outside the project",
        ),
        ("environment.yml", "a: &a [x]\nb: [*a,*a]\ndependencies: !!python/object:x {}\n", "environment.yml:3", "tag"),
    ],
)
def test_bad_input_names_file_line_and_reason(name, text, place, why, read):
    with pytest.raises(DoctorError) as caught:
        read({name: text})
    assert f"/{place}:" in caught.value.message
    assert why in caught.value.message
