"""Records of single distributions: what a `library.yaml` states reaches the sources, without a line of Python."""

import re

import pytest

from doctor.errors import DoctorError
from doctor.packages.records import UNKNOWN_PACKAGE, Opens, records_of
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.schema import read_source
from tests.helpers.paths import RULES

STATED = {
    "acme": {
        "modules": ["acme", "acme_cuda"], "opens": {"files": r"acme/_C\.so", "any_one": "True", "after": ["b"]},
        "conda": ["py-acme"], "wheel_names_build": "true",
    }
}  # fmt: skip


def test_a_record_has_what_is_stated_and_nothing_else():
    record = records_of([STATED])["acme"]
    assert record.opens == Opens(r"acme/_C\.so", any_one=True, after=("b",))
    assert (record.modules, record.conda, record.wheel_names_build) == (("acme", "acme_cuda"), ("py-acme",), True)
    assert record == UNKNOWN_PACKAGE._replace(
        opens=record.opens, modules=record.modules, conda=record.conda, wheel_names_build=True
    )


def test_each_distribution_is_described_by_one_library():
    named = [
        name for path in sorted(RULES.glob("*/library.yaml")) for name in read_source(path).content.get("packages", ())
    ]
    assert len(named) > 20
    assert sorted(set(named)) == sorted(named)


def test_a_module_belongs_to_one_distribution():
    modules = [module for record in load_rulebook().packages.values() for module in record.modules]
    assert len(modules) > 30
    assert sorted(set(modules)) == sorted(modules)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{acme: {opens: {files: '('}}}", "`(` is no regular expression"),
        ("{acme: {opens: {}}}", "`files` is missing"),
        ("{acme: {opens: {files: a, folder: b}}}", "unknown key `folder`"),
        ("{acme: {has_load_rule: perhaps}}", "needs true or false"),
        ("{Acme_X: {modules: [acme]}}", "no normalized distribution name"),
        ("{acme: {modules: acme}}", "needs a list"),
    ],
)
def test_a_faulty_record_is_reported_with_its_line(tmp_path, text, problem):
    file = tmp_path / "acme" / "library.yaml"
    file.parent.mkdir()
    file.write_text(f"name: acme\ntitle: Acme\ndistributions: [acme]\npackages: {text}\n")
    with pytest.raises(DoctorError, match=re.escape(problem)) as caught:
        read_source(file)
    assert f"{file}:4" in str(caught.value)
