"""Job scripts and GitHub workflows: variables, GPUs, images and installs, each at its line."""

# ruff: noqa: E501 - files to read, each on one line

import pytest

from doctor.errors import DoctorError
from doctor.sources.manifests.detect import kind_of
from doctor.sources.manifests.scripts.shell import commands
from doctor.sources.variables import UNKNOWN

JOB = """#!/bin/bash
#SBATCH --gres=gpu:a100:8
#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.10-py3
module purge
module load cuda/12.4 cudnn/9.1
export NVTE_FLASH_ATTN=0 NVTE_DEBUG=${DEBUG:-2}
if [ "$FUSED" = no ]; then
    export NVTE_FUSED_ATTN=0
fi
export HF_TOKEN=hf_abcdefghijklmnop
NVTE_UNFUSED_ATTN=0 srun --export=ALL,CUDA_LAUNCH_BLOCKING=1 python train.py
"""


def told(declaration, key):
    fact = declaration.facts[key]
    return fact.value, int(fact.source.rpartition(":")[2])


def test_a_slurm_job(read):
    found = read({"train.sbatch": JOB})
    assert told(found, "gpu.sm") == ("8.0", 2) and told(found, "gpu.count") == (8, 2)
    assert told(found, "torch.version") == ("2.5.0a0+e000cf0ad9.nv24.10", 3)
    assert told(found, "env.NVTE_FLASH_ATTN") == ("0", 6) and told(found, "env.NVTE_DEBUG") == ("2", 6)
    assert found.facts["env.NVTE_FUSED_ATTN"].value is None
    assert "condition" in found.facts["env.NVTE_FUSED_ATTN"].problem
    assert told(found, "env.NVTE_UNFUSED_ATTN") == ("0", 11) and told(found, "env.CUDA_LAUNCH_BLOCKING") == ("1", 11)
    assert "env.HF_TOKEN" not in found.facts
    assert any("cuda 12.4" in note for note in found.notes) and any("cudnn 9.1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "sm"),
    [
        ("--gres=gpu:h100:4", "9.0"), ("--gpus=a100:2", "8.0"), ("--gpus-per-node=h200:8", "9.0"),
        ("--constraint=v100", "7.0"), ("-C a100", "8.0"), ("--constraint=a100|h100", None), ("--gres=gpu:4", None),
        ("--gres=gpu:big:4", None),
    ],
)  # fmt: skip
def test_the_gpu_a_job_requests(line, sm, read):
    found = read({"job.slurm": f"#!/bin/bash\n#SBATCH {line}\npip install torch==2.6.0\n"})
    assert found.facts.value("gpu.sm") == sm
    if "|" in line or "big" in line:
        assert "GPU" in found.notes[0]


def test_unset_and_the_last_value(read):
    facts = read({"run.sh": "export NVTE_FLASH_ATTN=0\nexport NVTE_FLASH_ATTN=1\nexport NVTE_FUSED_ATTN=0\nunset NVTE_FUSED_ATTN\n"}).facts  # fmt: skip
    assert facts.value("env.NVTE_FLASH_ATTN") == "1" and facts.value("env.NVTE_FUSED_ATTN") == "absent"


def test_two_files_that_set_a_variable_differently_leave_it_open(read):
    facts = read({"a.sh": "export NVTE_FLASH_ATTN=0\n", "b.sh": "export NVTE_FLASH_ATTN=1\n"}).facts
    assert facts["env.NVTE_FLASH_ATTN"].value is None and "b.sh:1 says 1" in facts["env.NVTE_FLASH_ATTN"].problem


def test_what_a_script_prints_is_not_installed(read):
    found = read({"a.sh": "echo pip install torch==1.0\necho 'pip install torch==1.0'\npip install torch==2.6.0\n"})
    assert told(found, "torch.version") == ("2.6.0", 3)


WORKFLOW = """name: ci
on: [push]
env:
  NVTE_FLASH_ATTN: 0
jobs:
  gpu:
    runs-on: gpu
    container:
      image: pytorch/pytorch:2.4.1-cuda12.1-cudnn9-devel
    env:
      NVTE_FUSED_ATTN: "1"
      NVTE_DEBUG: ${{ inputs.debug }}
    steps:
      - uses: actions/checkout@v4
      - run: |
          pip install -U pip
          pip install transformer-engine==1.13.0 \\
            flash-attn==2.6.3
      - run: pip install xformers==${{ matrix.xformers }}
      - run: echo "NVTE_UNFUSED_ATTN=0" >> $GITHUB_ENV
      - if: github.event_name == 'schedule'
        run: pip install vllm==0.6.3
        env: {NVTE_FWD_LAYERNORM_SM_MARGIN: 8}
"""


def test_a_workflow(read):
    found = read({".github/workflows/gpu.yml": WORKFLOW})
    assert told(found, "env.NVTE_FLASH_ATTN") == ("0", 4) and told(found, "env.NVTE_FUSED_ATTN") == ("1", 11)
    assert found.facts["env.NVTE_DEBUG"].value is None
    assert told(found, "torch.version") == ("2.4.1", 9)
    assert told(found, "transformer-engine.version") == ("1.13.0", 17) and told(found, "flash-attn.version") == (
        "2.6.3",
        18,
    )
    assert found.facts["xformers.version"].value is None
    assert told(found, "env.NVTE_UNFUSED_ATTN") == ("0", 20)
    assert "vllm.version" not in found.facts
    assert found.facts["env.NVTE_FWD_LAYERNORM_SM_MARGIN"].value is None


SEVERAL = """env: {NVTE_FUSED_ATTN: 1}
jobs:
  lint:
    env: {NVTE_FLASH_ATTN: 0}
    steps: [{run: ruff check}]
  train:
    env: {NVTE_UNFUSED_ATTN: 0, NVTE_DEBUG: 1}
    steps: [{run: pip install torch==2.6.0}]
  evaluate:
    env: {NVTE_UNFUSED_ATTN: 0}
    steps: [{run: pip install torch==2.6.0}]
"""


def test_a_variable_counts_where_every_job_that_installs_the_stack_sets_it(read):
    facts = read({".github/workflows/ci.yml": SEVERAL}).facts
    assert (facts.value("env.NVTE_FUSED_ATTN"), facts.value("env.NVTE_UNFUSED_ATTN")) == ("1", "0")
    assert "env.NVTE_FLASH_ATTN" not in facts  # the linter's own
    problem = facts["env.NVTE_DEBUG"].problem
    assert facts["env.NVTE_DEBUG"].value is None and problem.endswith("sets it in 1 of 2 installing jobs")


def test_where_no_job_is_seen_to_install_all_of_them_count(read):
    text = SEVERAL.replace("pip install torch==2.6.0", "make train")
    facts = read({".github/workflows/ci.yml": text}).facts
    assert facts.value("env.NVTE_FUSED_ATTN") == "1"
    assert facts["env.NVTE_UNFUSED_ATTN"].problem.endswith("sets it in 2 of 3 jobs")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".github/workflows/nv-lightning-v100.yml", "# on: push\n# jobs:\n#   gpu:\n#     runs-on: gpu\n"),
        (".github/workflows/environment.yml", "on: push\njobs:\n  a:\n    steps: []\n"),
        ("ci/environment.yml", "jobs:\n  a:\n    steps:\n      - run: make\ndependencies: []\n"),
    ],
)
def test_a_workflow_is_known_by_its_content_and_its_place_before_its_name(name, text, write):
    assert kind_of(write(name, text), text) == "workflow"


def test_jobs_that_install_different_releases(read):
    text = "jobs:\n  a:\n    steps:\n      - run: pip install torch==2.5.1\n  b:\n    steps:\n      - run: pip install torch==2.6.0\n"
    fact = read({".github/workflows/ci.yml": text}).facts["torch.version"]
    assert fact.value is None and "2.5.1 (line 4)" in fact.problem and "2.6.0 (line 7)" in fact.problem


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("jobs: [a]\n", "ci.yml:1", "needs a mapping"),
        ("jobs:\n  a: 1\n", "ci.yml:2", "needs a mapping"),
        ("jobs:\n  a:\n    steps: {}\n", "ci.yml:3", "needs a list"),
        ("jobs:\n  a:\n    steps:\n      - x\n", "ci.yml:4", "needs a mapping"),
        ("jobs:\n  a: {a: 1, a: 2}\n", "ci.yml:2", "given twice"),
        ("jobs:\n  a: [\n", "ci.yml:3", ""),
        ("jobs: " + "[" * 2000, "ci.yml:1", "deeper"),
    ],
)
def test_a_bad_workflow(text, place, why, read):
    with pytest.raises(DoctorError) as caught:
        read({".github/workflows/ci.yml": text})
    assert f"/{place}: " in caught.value.message and why in caught.value.message


def words(text, **variables):
    return [[text for word in command.words for text in word.expanded(variables)] for command in commands(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'b c' \"d  e\"", [["a", "b c", "d  e"]]),
        ("a b\\ c", [["a", "b c"]]),
        ("a \\\n b # c", [["a", "b"]]),
        ("a && b || c; d | e &\nf", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a $X ${X} ${Y:-z} ${X:+y} \"$L\" $L", [["a", "x", "x", "z", "y", "p q", "p", "q"]]),
        ("a $(date) `date`", [["a", UNKNOWN, UNKNOWN]]),
        ("a '$X'", [["a", "$X"]]),
        ("a > b c 2>&1", [["a", "c"]]),
        ("a ''", [["a", ""]]),
        ("", []), ("'", [["'"]]), ("\"", [["\""]]), ("a <<", [["a"]]), ("$(", [["$"]]),
    ],
)  # fmt: skip
def test_words_of_a_shell(text, expected):
    assert words(text, X="x", L="p q") == expected


def test_lines_of_commands():
    text = "a\n\nb \\\n  c\ncat <<E\nx\ny\nE\nd\n"
    assert [(command.line, command.words[-1].line) for command in commands(text)] == [(1, 1), (3, 4), (5, 5), (9, 9)]
