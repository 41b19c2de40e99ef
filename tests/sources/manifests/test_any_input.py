"""Whatever a file holds, the answer is a declaration or one clear complaint."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.sources.manifests.base import ManifestKind
from doctor.sources.manifests.read import read_manifests
from tests.helpers.rulebook import builtin_rulebook

NAMES = {
    "requirements.txt": "requirements", "uv.lock": "uv", "poetry.lock": "poetry", "pylock.toml": "pylock",
    "pyproject.toml": "pyproject", "environment.yml": "conda", "pdm.lock": "pdm", "pixi.lock": "pixi",
    "pixi.toml": "pixi_project", "Pipfile.lock": "pipfile_lock", "Pipfile": "pipfile",
    "conda-lock.yml": "conda_lock", "Dockerfile": "dockerfile", "train.sbatch": "jobscript",
    ".github/workflows/ci.yml": "workflow", "compose.yaml": "containers",
    "setup.py": "setuptools", "setup.cfg": "setuptools",
}  # fmt: skip
PIECES = (
    "torch", "==", "2.6.0", ">=", "<", "~=", "*", "+cu124", "[", "]", "[pytorch]", "@", "git+https://x/y.git@v1.2",
    " ", "\n", ";", "python_version", "'3.11'", "sys_platform == 'linux'", "-r ", "-c ", "-e ", "--hash=sha256:a",
    "\\\n", "://", "file:", "[[package]]\n", "[[packages]]\n", "name = ", '"torch"', "version = ", '"2.6.0"',
    "[project]\n", "dependencies", "#", ",", "dependencies:\n", "  - ", "pytorch=2.4", "pip:\n", "    - ", "(",
    ")", "%", "\t", "é", "\u2028", "===", "!=", "lock-version = '1.0'\n", "resolution-markers = ", "\x0c",
    "markers = ", "x.whl", "=", "{", "}", ":", "'", '"', "`", "$", "${X:-", "$(", "<<EOF\n", "EOF\n", "&&", "||", "|",
    ">", "if ", "then ", "fi\n", "case ", "esac", "export ", "NVTE_X=", "pip install ", "conda install ", "\\",
    "#SBATCH --gres=gpu:", "a100", "module load cuda/", "FROM ", "RUN ", "ENV ", "ARG ", "COPY ", "--from=", " AS ",
    "nvcr.io/nvidia/pytorch:", "24.10-py3", "jobs:\n", "  a:\n", "    steps:\n", "      - run: ", "env:", "{{", "}}",
    "package:\n", "- name: ", "platform: linux-64\n", "  manager: pip\n", "environments:\n", "  default:\n",
    "    packages:\n", "      linux-64:\n", "- conda: ", "- pypi: ", "@EXPLICIT\n", "[dependency-groups]\n",
    "[tool.uv]\n", "[tool.uv.sources]\n", "[tool.poetry.dependencies]\n", "[dependencies]\n", "[packages]\n", "^",
    '{"default": {', '"_meta"', "include-group", "&a ", "*a", "!!x", "- - - ", "9" * 400, "[metadata]\n",
    "services:\n", "    image: ", "vllm/vllm-openai:v0.16.0", "vllm serve ", "--kv-cache-dtype ", "containers:\n",
    "args: [", "setup(", "install_requires=", "install_requires =\n  ", "[options]\n", "extras_require={", "open(",
    "def f():\n ",
)  # fmt: skip
texts = some.lists(some.one_of(some.sampled_from(PIECES), some.text(max_size=6)), max_size=40).map("".join)
#: What a file of each kind begins with, so that what follows is looked at.
BEGINNINGS = {
    "pyproject.toml": "[project]\n", "pylock.toml": "lock-version = '1.0'\n[[packages]]\n", "uv.lock": "[[package]]\n",
    "poetry.lock": "[[package]]\n", "pdm.lock": "[[package]]\n", "Pipfile": "[packages]\n",
    "Dockerfile": "FROM x\nRUN ",
    "pixi.toml": "[dependencies]\n", "Pipfile.lock": '{"default": {', "conda-lock.yml": "package:\n- ",
    "pixi.lock": "environments:\n  default:\n    packages:\n      linux-64:\n      - ",
    "environment.yml": "dependencies:\n- ", ".github/workflows/ci.yml": "jobs:\n  a:\n    steps:\n    - ",
    "compose.yaml": "services:\n  a:\n    command: ", "setup.py": "x = ['torch==2.6.0']\n",
    "setup.cfg": "[options]\ninstall_requires =\n  ",
}  # fmt: skip


def test_every_format_is_tried():
    assert set(NAMES.values()) == set(ManifestKind)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts, begun=some.booleans())
def test_a_declaration_or_a_complaint(name: str, text: str, begun: bool, tmp_path: Path):
    text = BEGINNINGS.get(name, "") + text if begun else text
    judged(tmp_path / name, text.encode("utf-8", "surrogatepass"), name)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.binary(max_size=80))
def test_any_bytes(name: str, data: bytes, tmp_path: Path):
    judged(tmp_path / name, data, name)


def judged(path: Path, data: bytes, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        declaration = read_manifests([str(path)], Facts(), watch_of(builtin_rulebook()))
    except DoctorError as problem:
        assert name in problem.message
    else:
        assert all(fact.known or fact.problem for fact in declaration.facts.values())
