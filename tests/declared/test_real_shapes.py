"""Shapes met in the declared environments of public training projects, each of which was once misread or refused."""

import pytest


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
    assert "requirements.txt:2: what the project in" in declaration.notes[0]


def test_duplicate_pins_of_one_package_do_not_hide_the_others(read):
    declaration = read({"requirements.txt": "pip==23.3.1\npip==24.0\ntorch==2.1.2\n"})
    assert pins(declaration)["torch"] == "2.1.2"
    assert "requirements.txt:2" in declaration.faults[0].message
