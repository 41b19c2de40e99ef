"""Whatever a file holds, the answer is a declaration or one clear complaint."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from doctor.declared import FORMATS, declare
from doctor.errors import DoctorError
from doctor.model import Facts

NAMES = {
    "requirements.txt": "requirements", "uv.lock": "uv", "poetry.lock": "poetry", "pylock.toml": "pylock",
    "pyproject.toml": "pyproject", "environment.yml": "conda", "pdm.lock": "pdm", "pixi.lock": "pixi",
    "pixi.toml": "pixi_project", "Pipfile.lock": "pipfile_lock", "Pipfile": "pipfile",
    "conda-lock.yml": "conda_lock", "Dockerfile": "dockerfile", "train.sbatch": "jobscript",
    ".github/workflows/ci.yml": "workflow",
}  # fmt: skip
PIECES = (
    "torch", "==", "2.6.0", ">=", "<", "~=", "*", "+cu124", "[", "]", "[pytorch]", "@", "git+https://x/y.git@v1.2",
    " ", "\n", ";", "python_version", "'3.11'", "sys_platform == 'linux'", "-r ", "-c ", "-e ", "--hash=sha256:a",
    "\\\n", "://", "file:", "[[package]]\n", "[[packages]]\n", "name = ", '"torch"', "version = ", '"2.6.0"',
    "[project]\n", "dependencies", "#", ",", "dependencies:\n", "  - ", "pytorch=2.4", "pip:\n", "    - ", "(",
    ")", "%", "\t", "é", "\u2028", "===", "!=", "lock-version = '1.0'\n", "resolution-markers = ", "\x0c",
    "markers = ", "x.whl", "=",
)  # fmt: skip
texts = some.lists(some.one_of(some.sampled_from(PIECES), some.text(max_size=6)), max_size=30).map("".join)


def test_every_format_is_tried():
    assert set(NAMES.values()) == {"requirements", "workflow", *(module for _, module in FORMATS)}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts)
def test_a_declaration_or_a_complaint(name: str, text: str, tmp_path: Path):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", "surrogatepass")
    try:
        declaration = declare([str(path)], Facts())
    except DoctorError as problem:
        assert name in problem.message
    else:
        assert all(fact.known or fact.problem for fact in declaration.facts.values())
