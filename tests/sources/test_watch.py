"""A team's `--rules` reach every source: its variables, distributions, GPUs and base images are read there too."""

import pytest

from doctor.api import diagnose

LIBRARY = """\
name: acme
title: Acme's trainer
distributions: [acme-trainer]
environment: [ACME_MODE]
references: [https://example.org/acme]
gpus:
  Acme X1: {sm: "9.0", cuda: "12.0", memory_gib: 80}
images:
  acme.example/trainer:
    "1.0": {torch.version: 2.6.0, torch.cuda: "12.4", source: the image's own notes, certainty: published}
"""

RULE = """\
id: ACME001
name: acme-mode-is-bad
severity: warning
summary: ACME_MODE=bad is slow
why: The bad mode is slow.
references: [https://example.org/acme]
when: {env.ACME_MODE: bad}
message: ACME_MODE is bad
tests:
  fires: {given: {env.ACME_MODE: bad}, expect: fires}
  silent: {given: {env.ACME_MODE: good}, expect: silent}
"""

TORCH = "torch==2.6.0\n"


@pytest.fixture
def rules(tmp_path):
    folder = tmp_path / "rules" / "acme"
    folder.mkdir(parents=True)
    (folder / "library.yaml").write_text(LIBRARY)
    (folder / "ACME001.yaml").write_text(RULE)
    return str(folder.parent)


@pytest.fixture
def check(tmp_path, rules):
    """The report on declared files: {name: text}, all of them named unless `only` says which."""

    def check(files, only=None, **options):
        for name, text in files.items():
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        named = [str(tmp_path / "project" / name) for name in (only or files)]
        return diagnose(requirements=named, rules=[rules], fixes=False, **options)

    return check


def ids(report):
    return [finding.rule for finding in report.findings]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", "FROM python:3.11\nRUN pip install torch==2.6.0\nENV ACME_MODE=bad\n"),
        ("job.sh", "#!/bin/bash\npip install torch==2.6.0\nexport ACME_MODE=bad\n"),
        ("job.sbatch", "#!/bin/bash\n#SBATCH --export=ALL,ACME_MODE=bad\npip install torch==2.6.0\n"),
        (
            ".github/workflows/train.yml",
            "jobs:\n  train:\n    env: {ACME_MODE: bad}\n    steps:\n    - run: pip install torch==2.6.0\n",
        ),
    ],
)
def test_a_variable_of_a_team_library_is_read_from_declared_files(check, name, text):
    assert "ACME001" in ids(check({name: text}))


def test_a_job_script_in_a_project_folder_counts_when_it_sets_a_variable_of_the_team(check):
    files = {"requirements.txt": TORCH, "job.sh": "#!/bin/bash\nexport ACME_MODE=bad\n"}
    assert "ACME001" in ids(check(files, only=["."]))


def test_extras_are_read_where_a_plain_install_brings_nothing_but_a_team_package_is_enough(check):
    project = (
        '[project]\nname = "x"\ndependencies = ["acme-trainer==1.0"]\n'
        '[project.optional-dependencies]\ntrain = ["torch==2.6.0"]\n'
    )
    report = check({"pyproject.toml": project})
    assert report.facts.value("acme-trainer.version") == "1.0"
    assert not report.facts.value("torch.version")  # an extra, which no plain install brings


def test_a_base_image_of_a_team_library_is_known(check):
    report = check({"Dockerfile": "FROM acme.example/trainer:1.0\n"})
    assert report.facts.value("torch.version") == "2.6.0"


def test_a_gpu_of_a_team_library_is_known_to_gpu_options_and_job_scripts(check):
    assert check({"requirements.txt": TORCH}, gpu="Acme X1").facts.value("gpu.sm") == "9.0"
    job = "#!/bin/bash\n#SBATCH --gres=gpu:acmex1:8\npip install torch==2.6.0\n"
    assert check({"job.sh": job}).facts.value("gpu.sm") == "9.0"


def test_a_gpu_of_a_team_library_in_a_facts_file_has_its_capability(tmp_path, rules):
    (tmp_path / "facts.yaml").write_text('facts: {gpu.name: Acme X1, torch.version: "2.6.0"}\n')
    report = diagnose(facts=tmp_path / "facts.yaml", rules=[rules], fixes=False)
    assert report.facts.value("gpu.sm") == "9.0"
