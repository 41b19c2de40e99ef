"""`[tool.attn-doctor]`: what a project says once; a mistake is reported with file, line and the nearest that exists."""

import pytest

from doctor.errors import DoctorError
from doctor.sources.project.config import Defaults, project_defaults, read_defaults, split_names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.attn-doctor]\nfail_on = 'error'", "no key `fail_on`"),
        ("[tool.attn-doctor]\nfail-on = 'fatal'", "`fail-on` needs one of error, warning, note, never, found `fatal`"),
        ("[tool.attn-doctor]\nrules = 'x'", "`rules` needs a list of folders"),
        ("[tool.attn-doctor]\ngpu = 5", "`gpu` needs a text or a list of texts, found `5`"),
        ("[tool.attn-doctor]\nignore = ['TE103']", "`ignore` needs tables"),
        ("[tool.attn-doctor]\nignore = [{rule = 'A', until = '2999-01-01'}]", "lacks `reason`"),
        ("[tool.attn-doctor]\nignore = [{rule = 'A', reason = 'b', until = 'soon'}]", "found `soon`"),
        ("[tool.attn-doctor]\nworkload = {head_dims = 64}", "head_dims"),
        ("[tool.attn-doctor]\nworkload = 5", "`workload` needs a file name, a list of them or a table"),
        ("[tool.attn-doctor\n", "not TOML"),
        ("tool = {attn-doctor = 3}\n", "needs to be a table"),
    ],
)
def test_faulty_defaults_are_reported_with_the_file(text, message, tmp_path):
    with pytest.raises(DoctorError) as caught:
        read_defaults(tmp_path / "pyproject.toml", text)
    assert message in caught.value.message
    assert str(tmp_path / "pyproject.toml") in caught.value.message


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("[tool.attn-doctor]\nfail-on = 'error'\ngpus = ['a100']", 3, "no key `gpus`", "did you mean `gpu`?"),
        ("[tool.attn-doctor]\n\nmodels = 'x'", 3, "no key `models`", "did you mean `model`?"),
        ("[project]\nname = 'x'\n[tool.attn-doctor]\nmodel = [5]", 4, "found `5`", None),
        (
            "[[tool.attn-doctor.ignore]]\nrule='A'\nreason='b'\nuntil=2999-01-01\n"
            "[[tool.attn-doctor.ignore]]\nrule='B'\nreson='b'\nuntil=2999-01-01",
            5, "no key `reson`", "did you mean `reason`?",
        ),
        ("[tool.attn-doctor]\nignore = [\n {rule = 'A', reason = 'b', until = 'soon'}]", 3, "needs a date", None),
        ("[[tool.attn-doctor.ignore]]\nrule = ['A']\nreason = 'b'\nuntil = 2999-01-01", 1, "`rule` needs a text", None),
        ("[tool.attn-doctor.workload]\nhead_dim_k = 64", 2, "head_dim_k", "did you mean `head_dim_qk`?"),
        ("[tool.attn-doctor]\ngpu = 'a100\n", 2, "not TOML", None),
        ("[tool.attn-doctor.environments]\ntrain = []", 2, "names no file", None),
        (
            "[tool.attn-doctor]\nrequirements = 'a.txt'\n[tool.attn-doctor.environments]\ntrain = 'a.txt'",
            3, "exclude each other", None,
        ),
    ],
)  # fmt: skip
def test_a_fault_is_reported_with_its_line_and_the_nearest_key(text, line, message, hint, tmp_path):
    path = tmp_path / "pyproject.toml"
    with pytest.raises(DoctorError) as caught:
        read_defaults(path, text)
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert message in caught.value.message
    assert hint is None or caught.value.hint == hint


def test_the_matrix_of_a_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.attn-doctor]\ngpu = ['a100', 'h100, b200', 'H100']\nmodel = ['m/a.json', 'm/b.json']\n"
        "workload = 'job.yaml'\nrequirements = ['requirements.txt']\n"
    )
    found = project_defaults()
    assert found.gpus == ("a100", "h100", "b200")
    assert (found.models, found.workloads) == (("m/a.json", "m/b.json"), ("job.yaml",))
    assert found.requirements == ("requirements.txt",)  # as reports and code hosts want it
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert project_defaults().requirements == (str(tmp_path / "requirements.txt"),)


def test_several_environments_have_names(tmp_path):
    text = "[tool.attn-doctor.environments]\ntrain = ['a.txt', 'b.txt']\n'eval set' = 'c.txt'\n"
    found = read_defaults(tmp_path / "pyproject.toml", text)
    assert found.environments == {
        "train": (str(tmp_path / "a.txt"), str(tmp_path / "b.txt")),
        "eval set": (str(tmp_path / "c.txt"),),
    }


def test_who_answers_for_an_ignored_rule_is_reported(tmp_path):
    text = "[[tool.attn-doctor.ignore]]\nrule='A'\nreason='b'\nowner='@infra'\nuntil=2999-01-01\n"
    assert read_defaults(tmp_path / "pyproject.toml", text).ignored == {"A": "b (@infra, until 2999-01-01)"}


def test_an_entry_that_ran_out_does_not_count_next_to_one_that_did_not(tmp_path):
    entry = "[[tool.attn-doctor.ignore]]\nrule='A'\nreason='b'\nuntil={}\n"
    found = read_defaults(tmp_path / "pyproject.toml", entry.format("2001-01-01") + entry.format("2999-01-01"))
    assert (set(found.ignored), found.expired) == ({"A"}, ())


def test_names_are_split_at_commas_and_reported_once():
    assert split_names(["a100", "h100,b200", " ", "A100"]) == ("a100", "h100", "b200")


@pytest.mark.parametrize(
    "text",
    [
        "[tool.attn-doctor]\ngpu = 'h100'", "[ tool . attn-doctor ]\ngpu = 'h100'",
        "[tool.\"attn-doctor\"]\ngpu = 'h100'",
        "[tool]\nattn-doctor = {gpu = 'h100'}", "tool.attn-doctor.gpu = 'h100'", "[tool]\nattn-doctor.gpu = 'h100'",
        "['tool'.'attn-doctor']\ngpu = 'h100'",
    ],
)  # fmt: skip
def test_the_section_is_found_however_it_is_written(text, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n\n{text}\n" if text[0] == "[" else text)
    assert project_defaults(tmp_path).gpus == ("h100",)


@pytest.mark.parametrize("text", ["dev = [\n  'attn-doctor',\n  'attn-doctor==0.1']", "# [tool.attn-doctor] is off"])
def test_a_file_without_the_section_is_not_even_parsed(text, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"{text}\nthis is no TOML")
    assert project_defaults(tmp_path) == Defaults()
