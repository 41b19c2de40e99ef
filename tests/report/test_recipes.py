"""A fix as a shell script and as Dockerfile lines: every command one that runs, everything else a comment."""

from __future__ import annotations

import subprocess

import pytest

from doctor.errors import DoctorError
from doctor.model import Change, Facts, Finding, Fix, Report
from doctor.report import Style, renderer

CHANGES = (
    Change("package", "torch", "2.6.0", "2.7.1", "why", ("X001",)),
    Change("package", "nvidia-cudnn-cu13", "9.19.0.56", None, "why", ("X001",)),
    Change("env", "NVTE_FUSED_ATTN", None, "0 1", "why", ("X001",)),
    Change("env", "NVTE_UNFUSED_ATTN", "0", None, "why", ("X001",)),
    Change("config", "cp_comm_type", "all_gather", "p2p", "why", ("X001",)),
    Change("call", "q = q.contiguous()", None, "q = q.contiguous()", "why", ("X001",)),
)


def show(name: str, *changes: Change, note: str | None = None) -> str:
    fixes = (Fix("Do it", changes, ("X001",), ("Y001",), note=note),) if changes else ()
    finding = Finding("X001", "n", "error", "fires", "S", "M", "", (), ())
    return renderer(name, "fixes")(Report("t", {}, Facts(), (finding,), (), fixes, (), {}), Style())


def test_a_script_does_what_the_fix_says():
    lines = show("shell", *CHANGES).splitlines()
    assert lines[0] == "#!/bin/sh" and "# Do it" in lines and "# leaves Y001" in lines
    assert [line for line in lines if not line.startswith("#")] == [
        "pip uninstall --yes nvidia-cudnn-cu13",
        "pip install torch==2.7.1",
        "unset NVTE_UNFUSED_ATTN",
        "export NVTE_FUSED_ATTN='0 1'",
    ]
    assert "# q = q.contiguous()" in lines


def test_a_shell_reads_it_and_has_the_variables():
    script = show("shell", *CHANGES[2:]) + 'printf "%s|%s" "$NVTE_FUSED_ATTN" "$NVTE_UNFUSED_ATTN"\n'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={"NVTE_UNFUSED_ATTN": "0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1|", "")


def test_a_dockerfile_has_only_instructions_and_comments():
    lines = show("docker", *CHANGES).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "RUN pip uninstall --yes nvidia-cudnn-cu13",
        "RUN pip install torch==2.7.1",
        "ENV NVTE_FUSED_ATTN='0 1'",
    ]
    assert "# take out the ENV lines of NVTE_UNFUSED_ATTN" in lines


@pytest.mark.parametrize("name", ["shell", "docker"])
def test_no_text_breaks_out_of_its_line(name: str):
    evil = "first\nrm -rf /\n\x1b[31mpip install evil"
    call = Change("call", evil, None, evil, evil, ("X001",))
    for line in show(name, call, note=evil).splitlines():
        assert line.startswith("#"), line


@pytest.mark.parametrize("name", ["shell", "docker"])
def test_where_there_is_no_fix_it_says_so_and_does_nothing(name: str):
    assert all(line.startswith("#") for line in show(name).splitlines()) and "no fix for X001" in show(name)


@pytest.mark.parametrize("name", ["shell", "docker"])
def test_they_show_fixes_and_nothing_else(name: str):
    with pytest.raises(DoctorError, match="cannot show diagnosis"):
        renderer(name)
