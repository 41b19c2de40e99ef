"""The page of captures is made of one list of commands; the machine that they ran on does not show in it."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SESSION = yaml.safe_load((ROOT / "scripts" / "gpu" / "h200_session.yaml").read_text("utf-8"))
COMMANDS = [capture["command"] for section in SESSION["sections"] for capture in section.get("captures", ())]
CAPTURE = json.loads((ROOT / "tests" / "captures" / "h200-torch2.11.0-cu130-two-cudnns.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def script():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("capture_session", ROOT / "scripts" / "gpu" / "capture_session.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def known(script):
    return script.places("/opt/stack/venv", "/opt/stack/venv/lib/python3.12/site-packages", "/data/te", None, "/root")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "/opt/stack/venv/lib/python3.12/site-packages/nvidia/cudnn",
            "~/venv/lib/python3.12/site-packages/nvidia/cudnn",
        ),
        ("from /data/te/transformer_engine-2.20.2.dist-info.", "from ~/te/transformer_engine-2.20.2.dist-info."),
        ("CUDNN_HOME=/data/te.", "CUDNN_HOME=~/te."),
        ("/usr/lib:/data/te:/root/lib", "/usr/lib:~/te:~/lib"),
        ("/data/team and /data/te.old and /data/te-2", "/data/team and /data/te.old and /data/te-2"),
        ("/mnt/data/te", "/mnt/data/te"),
    ],
)
def test_folders_of_the_machine_are_replaced_where_a_whole_name_ends(script, known, text, told):
    assert script.scrubbed(text, known) == told


def test_the_longest_folder_is_replaced_first(script):
    known = script.places("/root/env", "/root/env/lib", "/root/te", None, "/root")
    assert script.scrubbed("/root/env/x /root/te/y /root/z", known) == "~/venv/x ~/te/y ~/z"


def test_packages_outside_the_environment_have_a_name_of_their_own(script):
    known = script.places("/usr", "/usr/lib/python3/dist-packages", None, None, "/home/me")
    text = "/usr/lib/python3/dist-packages/torch /usr/lib/x86_64-linux-gnu/libcudnn.so"
    assert script.scrubbed(text, known) == "<site-packages>/torch /usr/lib/x86_64-linux-gnu/libcudnn.so"


def test_what_is_left_of_the_machine_is_seen(script, known):
    assert script.leaks("fine ~/venv\n/usr/lib/libcudnn.so\n", known) == []
    assert script.leaks("a\nin /opt/stack/venv.bak\nunder /home/me/x", known) == [
        "in /opt/stack/venv.bak",
        "under /home/me/x",
    ]


def test_the_machine_is_reported_from_its_facts(script):
    told = script.machine(CAPTURE["facts"])
    assert told["machine"].startswith(
        "one NVIDIA H200 (driver 580.159.04) with torch 2.11.0+cu130, transformers 5.17.0"
    )
    assert told["machine"].endswith("and cuDNN 9.19.0")
    assert told["copies"] == "It has more than one cuDNN: 9.19.0, 9.14.0."
    with pytest.raises(SystemExit, match="no GPU is seen"):
        script.machine({"torch.version": "2.11.0"})


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one_that_the_program_takes(command, tmp_path):
    """Judged on the facts of a machine like it, it ends well."""
    import subprocess

    program, *arguments = shlex.split(command)
    assert program == "attn-doctor" and arguments[1:3] == ["--python", "python3"]
    facts = str(ROOT / "tests" / "captures" / "h200-te2.20.2-one-cudnn.json")
    asked = [sys.executable, "-m", "doctor", arguments[0], "--facts", facts, *arguments[3:]]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True)
    assert done.returncode in (0, 1), done.stderr
    assert b"H200" in done.stdout


def page(script, known, about, run):
    return script.document(SESSION, {"machine": "M", "program": "P", "copies": "C", **about}, known, run)


def test_the_page_holds_every_command_with_what_it_printed(script, known):
    asked = []

    def run(arguments, variables):
        asked.append((arguments[0], dict(variables)))
        return f"in /data/te: {len(asked)}\n\n", len(asked) % 2

    told = page(script, known, {"te": "/data/te", "cudnn": "/data/c"}, run)
    assert (
        told.startswith("# attn-doctor on an H200\n\nCaptured on M. C\n")
        and told.count("```console\n$ attn-doctor") == 8
    )
    assert "in ~/te: 8\nexit code 0\n```\n" in told and "{" not in told.replace("{machine}", "")
    assert [variables for _, variables in asked[:3]] == [{}] * 3
    assert asked[3][1] == {"PYTHONPATH": "/data/te"}
    assert asked[4][1] == {"PYTHONPATH": "/data/te", "CUDNN_HOME": "/data/c", "LD_LIBRARY_PATH": "/data/c/lib"}
    assert told.endswith("with a lost node and the time limit.\n") and "\n\n\n" not in told


def test_without_transformer_engine_its_sections_are_left_out(script, known):
    told = page(script, known, {}, lambda arguments, variables: ("ok", 0))
    assert told.count("```console") == 3 and "two cuDNNs in one process" not in told


def test_a_command_that_fails_ends_the_session(script, known):
    with pytest.raises(SystemExit, match="ended with 2:\nattn-doctor: no such model"):
        page(script, known, {}, lambda arguments, variables: ("attn-doctor: no such model", 2))


def test_the_doctor_is_really_run(script, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/there")
    printed, code = script.runner(sys.executable, 60)(
        ["snapshot", "--python", "python3", "-o", "-"], {"LD_LIBRARY_PATH": "/mine"}
    )
    facts = json.loads(printed)["facts"]
    assert code == 0 and facts["env.LD_LIBRARY_PATH"]["value"] == "/mine:/there"
    assert script.runner(sys.executable, 60)(["check", "--no-such-option"], {})[1] == 2


def test_the_wheel_s_libraries_get_their_plain_names(script, tmp_path):
    (tmp_path / "wheel" / "lib").mkdir(parents=True)
    for name in ("libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_graph.so.9.19", "notes.txt"):
        (tmp_path / "wheel" / "lib" / name).write_text(name)
    home = Path(script.linked_cudnn(str(tmp_path / "wheel"), tmp_path / "home"))
    assert sorted(path.name for path in (home / "lib").iterdir()) == [
        "libcudnn.so", "libcudnn.so.9", "libcudnn_graph.so", "libcudnn_graph.so.9", "libcudnn_graph.so.9.19",
    ]  # fmt: skip
    assert (home / "lib" / "libcudnn.so").read_text() == "libcudnn.so.9"
