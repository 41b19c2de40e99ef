"""pdm.lock, Pipfile.lock, conda-lock.yml, explicit lists and pixi.lock: what was chosen, and where it is."""

# ruff: noqa: E501 - files to read, each on one line

import json
import time

import pytest

from doctor.errors import DoctorError

PDM = """[metadata]
groups = ["default", "train"]
[[metadata.targets]]
requires_python = ">=3.11"

[[package]]
name = "torch"
version = "2.6.0+cu124"
groups = ["default"]

[[package]]
name = "flash-attn"
version = "2.7.3"
marker = "sys_platform == 'win32'"

[[package]]
name = "mine"
path = "./libs/mine"
"""

PIPFILE = json.dumps(
    {
        "_meta": {
            "requires": {"python_version": "3.11"},
            "sources": [{"name": "pt", "url": "https://download.pytorch.org/whl/cu126"}],
        },
        "default": {
            "torch": {"hashes": ["sha256:a"], "index": "pt", "version": "==2.6.0"},
            "flash-attn": {"git": "https://github.com/Dao-AILab/flash-attention.git", "ref": "v2.7.3"},
            "pywin32": {"markers": "sys_platform == 'win32'", "version": "==306"},
        },
        "develop": {"torch": {"version": "==1.0"}, "vllm": {"version": "==0.6.3"}},
    },
    indent=4,
)

CONDA = """version: 1
metadata: {}
package:
- name: python
  version: 3.11.10
  manager: conda
  platform: linux-64
  url: https://conda.anaconda.org/conda-forge/linux-64/python-3.11.10-hc5c86c4_0_cpython.conda
- name: pytorch
  version: 2.5.1
  manager: conda
  platform: osx-arm64
  url: https://conda.anaconda.org/conda-forge/osx-arm64/pytorch-2.5.1-cpu_generic_py311h.conda
- name: pytorch
  version: 2.5.1
  manager: conda
  platform: linux-64
  dependencies:
    cudnn: '>=9.3'
  url: https://conda.anaconda.org/conda-forge/linux-64/pytorch-2.5.1-cuda126_py311h1763f6d_306.conda
  category: main
- name: cudnn
  version: 9.3.0.75
  manager: conda
  platform: linux-64
  url: https://conda.anaconda.org/conda-forge/linux-64/cudnn-9.3.0.75-h93bb076_0.conda
- name: openssl
  version: 1.1.1w
  manager: conda
  platform: linux-64
- name: flash-attn
  version: 2.7.3
  manager: pip
  platform: linux-64
- name: vllm
  version: 0.6.3
  manager: pip
  platform: linux-64
  category: dev
"""

PIXI = """version: 6
environments:
  cpu: {channels: [], packages: {linux-64: []}}
  default:
    packages:
      linux-64:
      - conda: https://conda.anaconda.org/conda-forge/linux-64/pytorch-2.5.1-cuda126_py311h1763f6d_306.conda
      - pypi: https://files.example.org/packages/ab/flash_attn-2.7.3.tar.gz
      - pypi: https://x.org/xformers-0.0.29%2Bcu126-cp311-cp311-linux_x86_64.whl
      osx-arm64: []
packages:
- conda: https://conda.anaconda.org/conda-forge/linux-64/pytorch-2.5.1-cuda126_py311h1763f6d_306.conda
  sha256: aa
  depends:
  - python
- pypi: https://files.example.org/packages/ab/flash_attn-2.7.3.tar.gz
  name: flash-attn
  version: 2.7.3
- pypi: https://x.org/xformers-0.0.29%2Bcu126-cp311-cp311-linux_x86_64.whl
  name: xformers
  version: 0.0.29
"""


def told(declaration, key):
    fact = declaration.facts[key]
    return fact.value, int(fact.source.rpartition(":")[2])


def test_pdm(read):
    found = read({"pdm.lock": PDM})
    assert told(found, "torch.version") == ("2.6.0+cu124", 8)
    assert found.facts.value("flash-attn.version") == "absent"  # its marker does not hold
    assert found.facts.value("distributions.complete") is True
    assert "mine.version" not in found.facts


def test_pipfile_lock(read):
    found = read({"Pipfile.lock": PIPFILE})
    line = next(number for number, row in enumerate(PIPFILE.split("\n"), 1) if '"==2.6.0"' in row)
    assert told(found, "torch.version") == ("2.6.0", line) and told(found, "torch.cuda") == ("12.6", line)
    assert found.facts.value("flash-attn.version") == "2.7.3" and found.facts.value("pywin32.version") == "absent"
    assert "vllm.version" not in found.facts and "develop" in found.notes[0]
    assert read({"Pipfile.lock": json.dumps(json.loads(PIPFILE))}).facts["torch.version"].source.endswith(":1")


def test_conda_lock(read):
    found = read({"conda-lock.yml": CONDA})
    assert told(found, "torch.version") == ("2.5.1", 15) and told(found, "torch.cuda") == ("12.6", 15)
    assert told(found, "cudnn.version") == ("9.3.0.75", 23) and told(found, "python.version") == ("3.11.10", 5)
    assert told(found, "flash-attn.version") == ("2.7.3", 32)
    assert "vllm.version" not in found.facts and "other categories" in found.notes[0]
    assert found.facts["openssl.version"].value is None


def test_an_explicit_list_of_conda(read):
    text = "# platform: linux-64\n@EXPLICIT\nhttps://x/pytorch/linux-64/pytorch-2.4.1-py3.11_cuda12.4_cudnn9.1.0_0.tar.bz2#aa\n"
    found = read({"conda-linux-64.lock": text})
    assert told(found, "torch.version") == ("2.4.1", 3) and told(found, "cudnn.version") == ("9.1.0", 3)


def test_pixi_lock(read):
    found = read({"pixi.lock": PIXI})
    assert told(found, "torch.version") == ("2.5.1", 12) and told(found, "torch.cuda") == ("12.6", 12)
    assert told(found, "flash-attn.version") == ("2.7.3", 18)
    assert told(found, "xformers.version") == ("0.0.29+cu126", 21)
    assert "not cpu" in found.notes[0]


def test_a_long_lock_reads_as_a_short_one(read):
    """Of a long file only some lines are parsed."""
    filler = "".join(
        f"- name: p{n}\n  version: '{n}.0'\n  manager: conda\n  platform: linux-64\n  dependencies:\n    a: '>=1'\n"
        f"  hash:\n    md5: a\n  url: https://x/p{n}-{n}.0-h_0.conda\n" for n in range(3000)
    )  # fmt: skip
    short, long = read({"conda-lock.yml": CONDA}), read({"conda-lock.yml": CONDA + filler})
    for key in ("torch.version", "torch.cuda", "cudnn.version", "flash-attn.version"):
        assert told(long, key) == told(short, key)
    assert long.facts.value("p2999.version") == "2999.0"


@pytest.mark.parametrize(
    ("name", "text", "place", "why"),
    [
        ("pdm.lock", "[[package]]\nname = 'x'\nversion = 'oops'\n", "pdm.lock:3", "not a version"),
        ("pdm.lock", "metadata = 1\n", "pdm.lock", "needs to be a table"),
        ("pdm.lock", "[[package]]\nname = 'x'\n[[pack", "pdm.lock:3", "not TOML"),
        ("Pipfile.lock", "{", "Pipfile.lock:1", "not JSON"),
        ("Pipfile.lock", "{}", "Pipfile.lock:1", "no `default`"),
        ("Pipfile.lock", "[]", "Pipfile.lock:1", "a mapping"),
        ("Pipfile.lock", '{"default": {"a": 1}}', "Pipfile.lock:1", "a mapping"),
        ("Pipfile.lock", '{"default": {\n"a": {\n"version": "==oops"}}}', "Pipfile.lock:3", "not a version"),
        ("Pipfile.lock", '{"default": {"a": {}, "a": {}}}', "Pipfile.lock", "given twice"),
        ("Pipfile.lock", "[" * 100_000, "Pipfile.lock", ""),
        ("conda-lock.yml", "package:\n- 1\n", "conda-lock.yml:1", "a mapping"),
        ("conda-lock.yml", "package: 1\n", "conda-lock.yml:1", "no list"),
        ("conda-lock.yml", "package:\n- {name: x, version: '1', platform: osx-64}\n", "conda-lock.yml", "Linux"),
        ("conda-lock.yml", "package:\n- platform: linux-64\n  version: '1'\n", "conda-lock.yml:3", "needs `name`"),
        ("conda-lock.yml", "package:\n- {name: x, version: oops, manager: pip, platform: linux-64}\n", "conda-lock.yml:2", "not a version"),
        ("conda-x.lock", "@EXPLICIT\nnonsense\n", "conda-x.lock:2", "not the address"),
        ("pixi.lock", "version: 6\n", "pixi.lock:1", "no `environments`"),
        ("pixi.lock", "environments: {default: 1}\n", "pixi.lock:1", "has no packages"),
        ("pixi.lock", "environments: {default: {packages: {linux-64: [x]}}}\n", "pixi.lock:1", "a mapping"),
        ("pixi.lock", "environments:\n  default:\n    packages: {osx-64: []}\n", "pixi.lock", "Linux"),
        ("pixi.lock", "a: &a [x]\nb: &b [*a, *a]\nenvironments: *b\n", "pixi.lock:1", ""),
    ],
)  # fmt: skip
def test_bad_input_names_file_line_and_reason(name, text, place, why, read):
    with pytest.raises(DoctorError) as caught:
        read({name: text})
    assert f"/{place}: " in caught.value.message and why in caught.value.message


LINES = 100_000
LONG = {
    "pdm.lock": "".join(f'[[package]]\nname = "p{n}"\nversion = "1.{n}"\ngroups = []\n\n' for n in range(LINES // 5))
    + '[[package]]\nname = "torch"\nversion = "2.6.0"\n',
    "pyproject.toml": "[project]\ndependencies = [\n" + "".join(f'"p{n}=={n}.0",\n' for n in range(LINES)) + '"torch==2.6.0"]\n',
    "Pipfile": "[packages]\n" + "".join(f'p{n} = "=={n}.0"\n' for n in range(LINES)) + 'torch = "==2.6.0"\n',
    "environment.yml": "dependencies:\n" + "".join(f"- p{n}={n}.0.0\n" for n in range(LINES)) + "- pytorch=2.6.0\n",
    "Dockerfile": "FROM x\nRUN pip install \\\n" + "".join(f" p{n}=={n}.0 \\\n" for n in range(LINES)) + " torch==2.6.0\n",
    "run.sh": "".join(f"python step_{n}.py --x {n}\n" for n in range(LINES)) + "pip install torch==2.6.0\n",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_hundred_thousand_lines(name, read):
    """About two seconds on an idle core; the bound leaves room for a busy one and none for a square."""
    began = time.process_time()
    found = read({name: LONG[name]})
    assert time.process_time() - began < 15
    assert found.facts.value("torch.version") == "2.6.0"
