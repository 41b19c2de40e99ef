"""Whatever is handed in: one clear line, exit 2 or 3, nothing lost, no traceback."""

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.cli import main as cli

ROOT = Path(__file__).parents[2]
INCIDENT_B = ROOT / "examples" / "incidents" / "b"
LLAMA = ROOT / "examples" / "models" / "llama-3-8b.json"

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
#: name → content that no command can take for a file of facts, of a workload or of rules.
HOSTILE = {
    "empty": b"",
    "only a comment": b"# nothing\n",
    "binary": bytes(range(256)) * 8,
    "NUL in text": b"gpu.sm: '9.0'\0\n",
    "UTF-16": "gpu.sm: '9.0'".encode("utf-16"),
    "a plain word": b"hello\n",
    "a list": b"- gpu.sm\n- '9.0'\n",
    "aliases of aliases": BOMB.encode(),
    "a Python tag": b"facts: !!python/object/apply:os.system ['touch owned']\n",
    "a made-up tag": b"facts: !secret {gpu.sm: '9.0'}\n",
    "nested without end": b"[" * 50_000,
    "nested mappings": b"{a: " * 5_000,
    "an unknown key": b"gpu.smm: '9.0'\n",
    "a key twice": b"gpu.sm: '9.0'\ngpu.sm: '8.0'\n",
    "a mapping as key": b"{a: 1}: 2\n",
    "broken YAML": b"facts: {gpu.sm: '9.0'\n",
    "a tab": b"facts:\n\tgpu.sm: '9.0'\n",
    "a value of the wrong kind": b"gpu.sm: ninety\n",
    "a mapping for a value": b"gpu.sm: {found: '9.0'}\n",
}
FACTS_ONLY = {
    "a newer schema": b"schema: 99\nfacts: {gpu.sm: '9.0'}\n",
    "a schema of letters": b"schema: new\nfacts: {gpu.sm: '9.0'}\n",
    "facts as a list": b"facts: [gpu.sm]\n",
    "a workload as a text": b"facts: {gpu.sm: '9.0'}\nworkload: big\n",
    "a version that is none": b"torch.version: two-point-six-ish!\n",
    "cut off JSON": b'{"facts": {"gpu.sm": ',
    "JSON twice over": b'{"facts": {"gpu.sm": "9.0"}} {"facts": {}}',
}
MODEL = {
    "empty": b"",
    "binary": bytes(range(256)),
    "a list": b"[1, 2]",
    "no JSON": b"{'hidden_size': 4096}",
    "nothing in it": b"{}",
    "sizes of letters": b'{"hidden_size": "wide", "num_attention_heads": 32}',
    "no heads": b'{"hidden_size": 4096, "num_attention_heads": 0}',
    "nested without end": b"[" * 100_000,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(capsys):
    """Run a command line that has to be refused; its one line."""

    def refused(*arguments, code=(2, 3)):
        found = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert found in ((code,) if isinstance(code, int) else code), (found, out, err)
        assert out == ""
        return one_line(err)

    return refused


def one_line(err):
    """The complaint, which is one line of bearable length and perhaps a hint; no traceback, no control characters."""
    lines = err.splitlines()
    assert lines and lines[0].startswith(("error: ", "fatal: ")), err
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), err
    assert "Traceback" not in err and "this is a fault of attn-doctor" not in err
    assert len(lines[0]) < 500
    assert all(character.isprintable() for line in lines for character in line)
    return lines[0]


class TestFiles:
    @pytest.mark.parametrize("name", [*HOSTILE, *FACTS_ONLY])
    def test_facts(self, name, refused, tmp_path):
        path = tmp_path / "facts.yaml"
        path.write_bytes({**HOSTILE, **FACTS_ONLY}[name])
        assert "facts.yaml" in refused("check", "--no-run", "--facts", path, code=2)
        assert not (tmp_path / "owned").exists()

    @pytest.mark.parametrize("name", HOSTILE)
    def test_workload(self, name, refused, tmp_path):
        path = tmp_path / "job.yaml"
        path.write_bytes(HOSTILE[name].replace(b"gpu.sm", b"head_dim_qk").replace(b"head_dim_qkm", b"head_dim_qq"))
        assert "job.yaml" in refused("check", "--no-run", "--set", "gpu.sm=9.0", "--workload", path, code=2)

    @pytest.mark.parametrize("name", MODEL)
    def test_model(self, name, refused, tmp_path):
        path = tmp_path / "config.json"
        path.write_bytes(MODEL[name])
        assert "config.json" in refused("check", "--no-run", "--set", "gpu.sm=9.0", "--model", path, code=2)

    @pytest.mark.parametrize("name", HOSTILE)
    def test_rules(self, name, refused, tmp_path):
        path = tmp_path / "team" / "acme" / "ACME001.yaml"
        path.parent.mkdir(parents=True)
        path.write_bytes(HOSTILE[name])
        assert "ACME001.yaml" in refused("check", "--no-run", "--rules", tmp_path / "team", code=2)

    @pytest.mark.parametrize("option", ["--facts", "--workload", "--model"])
    def test_too_large(self, option, refused, tmp_path):
        path = tmp_path / "huge.json"
        with path.open("wb") as stream:
            stream.truncate(50 * 1024 * 1024)
        assert "is larger than" in refused("check", "--no-run", option, path, code=2)

    @pytest.mark.parametrize("option", ["--facts", "--workload", "--model", "--rules", "--site-packages", "--python"])
    @pytest.mark.parametrize("path", ["nowhere", "nowhere/deeper", "x" * 5000, "a\0b", ""])
    def test_not_there(self, option, path, refused):
        refused("check", "--no-run", option, path, code=2)

    @pytest.mark.parametrize("option", ["--requirements", "--model", "--workload", "--facts", "--baseline", "--python"])
    @pytest.mark.parametrize("more", [(), ("--gpu", "a100,h100")])
    def test_an_empty_name_is_not_the_current_folder(self, option, more, refused, tmp_path):
        (tmp_path / "config.json").write_text(LLAMA.read_text())
        (tmp_path / "requirements.txt").write_text("torch==2.6.0")
        assert "names no file" in refused(
            "check", "--no-run", "--set", "torch.version=2.6.0", option, "", *more, code=2
        )

    def test_a_model_config_is_no_workload_file(self, tmp_path, capsys):
        assert cli.run(["check", "--no-run", "--set", "torch.version=2.6.0", "--workload", str(LLAMA)]) == 2
        assert "config.json of Hugging Face is for `--model`" in capsys.readouterr().err

    @pytest.mark.parametrize("count", [2, 5])
    def test_every_file_that_cannot_be_read_is_reported_and_the_others_are_judged(self, count, tmp_path, capsys):
        (tmp_path / "requirements.txt").write_text("torch==2.6.0\ntorchvision==0.19.0\n")
        bad = [option for number in range(count) for option in ("--requirements", f"bad{number}.txt")]
        code = cli.run(["check", "--requirements", "requirements.txt", *bad, "--format", "json"])
        out, err = capsys.readouterr()
        assert code == 2 and "TV001" in out
        assert "bad0.txt" in one_line(err) and "bad1.txt" in err and ("and 2 more" in err) is (count == 5)
        assert all(f"bad{number}.txt" in " ".join(json.loads(out)["notes"]) for number in range(count))

    def test_a_file_that_declares_nothing_is_no_clean_bill(self, refused, tmp_path):
        (tmp_path / "requirements.txt").write_text("numpy\n")
        assert "no attention libraries" in refused("check", "--requirements", "requirements.txt", code=3)

    @pytest.mark.parametrize("option", ["--facts", "--workload"])
    def test_a_folder_is_no_file(self, option, refused, tmp_path):
        assert "is a directory" in refused("check", "--no-run", option, tmp_path, code=2)

    @pytest.mark.parametrize("option", ["--facts", "--workload", "--model"])
    def test_a_file_that_cannot_be_read(self, option, refused, tmp_path):
        path = tmp_path / "locked.json"
        path.write_text("{}")
        path.chmod(0)
        if os.access(path, os.R_OK):  # root reads everything but what the kernel itself refuses
            path = Path("/proc/self/mem")
        line = refused("check", "--no-run", option, path, code=2)
        assert "permission denied" in line or "input/output error" in line

    def test_a_rules_folder_without_rules(self, refused, tmp_path):
        (tmp_path / "team").mkdir()
        assert "holds no .yaml file" in refused("check", "--no-run", "--rules", tmp_path / "team", code=2)

    def test_a_bad_line_of_pyproject(self, refused, tmp_path):
        (tmp_path / "pyproject.toml").write_text("[tool.attn-doctor]\nfail-on = error\n")
        assert "pyproject.toml:2: not TOML" in refused("check", "--no-run", code=2)


class TestTargets:
    @pytest.mark.parametrize(
        ("body", "part"),
        [
            ("#!/bin/sh\nkill -SEGV $$\n", "SIGSEGV"),
            ("#!/bin/sh\necho oops >&2\nexit 7\n", "oops"),
            ("#!/bin/sh\necho 'hello'\n", ""),
            ("#!/bin/sh\nhead -c 3000000 /dev/zero\n", ""),
            ("#!/nonexistent/interpreter\n", ""),
            ("not a program", ""),
        ],
    )
    def test_a_python_that_is_none(self, body, part, refused, tmp_path):
        python = tmp_path / "python"
        python.write_text(body)
        python.chmod(0o755)
        line = refused("check", "--no-run", "--python", python)
        assert part in line and str(python) in line

    def test_a_python_that_may_not_be_run(self, refused, tmp_path):
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\n")
        assert "is not executable" in refused("check", "--no-run", "--python", python, code=2)

    def test_an_environment_whose_python_is_gone(self, refused, tmp_path, monkeypatch):
        monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
        assert "VIRTUAL_ENV" in refused("check", "--no-run")

    def test_an_empty_tree(self, refused, tmp_path):
        refused("check", "--no-run", "--site-packages", tmp_path)

    def test_a_broken_dist_info_costs_only_itself(self, tmp_path, capsys):
        site = tmp_path / "site-packages"
        for name, files in {
            "torch-2.6.0.dist-info": {"METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n"},
            "empty-1.0.dist-info": {},
            "binary-1.0.dist-info": {"METADATA": bytes(range(256))},
            "nonsense-vx.dist-info": {"METADATA": b"Name: nonsense\nVersion: vx\n"},
            "file-1.0.dist-info": None,
        }.items():
            if files is None:
                (site / name).write_text("a file, where a folder should be")
                continue
            (site / name).mkdir(parents=True)
            for file, content in files.items():
                (site / name / file).write_bytes(content)
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text("")
        code = cli.run(["snapshot", "--site-packages", str(site)])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        facts = json.loads(out)["facts"]
        assert facts["torch.version"]["value"] == "2.6.0"
        assert any("nonsense" in name for name in facts["distributions.broken"]["value"])
        assert cli.run(["check", "--no-run", "--site-packages", str(site)]) in (0, 1)


class TestWriting:
    """A write that fails leaves what was there, and no litter."""

    FIX = ("fix", "--facts", INCIDENT_B / "facts.yaml", "--workload", INCIDENT_B / "workload.yaml")

    @pytest.mark.parametrize(
        "arguments",
        [
            (*FIX, "--pin", "out.txt", "--force"),
            (*FIX, "--output", "out.txt"),
            ("check", "--no-run", *FIX[1:], "--format", "json", "--output", "out.txt"),
            ("snapshot", *FIX[1:], "--output", "out.txt"),
        ],
        ids=["pins", "fix", "check", "snapshot"],
    )
    def test_a_full_disk(self, arguments, tmp_path):
        (tmp_path / "out.txt").write_text("precious")

        def nearly_full():  # in the child alone: the kernel refuses to let a file grow beyond this
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

        done = subprocess.run(
            [sys.executable, "-m", "doctor", *map(str, arguments)], capture_output=True, text=True, timeout=60,
            preexec_fn=nearly_full, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode == 2
        assert "cannot write `out.txt`: file too large" in one_line(done.stderr)
        assert (tmp_path / "out.txt").read_text() == "precious"
        assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]

    @pytest.mark.parametrize("option", ["--pin", "--output"])
    @pytest.mark.parametrize("path", ["nowhere/out.txt", ".", "", "a\0b", "x" * 300])
    def test_a_place_that_cannot_be_written(self, option, path, refused, tmp_path):
        refused(*self.FIX, option, path, code=2)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_without_permission(self, refused, tmp_path):
        folder = tmp_path / "locked"
        folder.mkdir()
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        place = folder / "out.txt"
        if os.access(folder, os.W_OK):  # root writes everywhere but where the kernel itself refuses
            place = Path("/proc/out.txt")
        assert "cannot write" in refused(*self.FIX, "--pin", place, code=2)

    def test_a_device_is_written_and_stays_a_device(self, capsys):
        assert cli.run([*map(str, self.FIX), "--pin", "/dev/null", "--force"]) == 1
        assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


class TestBatch:
    def test_a_bad_line_costs_only_itself(self, tmp_path, capsys):
        good = '{"id": "%s", "facts": {"torch.version": "2.6.0"}, "workload": {"framework": "torch_sdpa"}}'
        lines = [
            (good % "first").encode(), b"", b"{", b"[]", b'{"id": 7, "facts": 3}', 
            b'{"id": 8, "facts": {"gpu.smm": 1}}',
            b'{"id": ' + b"9" * 5000 + b"}", b"[" * 100_000, b"\xff\xfe", b"\0", (good % "\\ud800").encode(),
            (good % "last").encode(),
        ]  # fmt: skip
        path = tmp_path / "cases.jsonl"
        path.write_bytes(b"\n".join(lines))
        code = cli.run(["backends", "--batch", str(path)])
        out, err = capsys.readouterr()
        assert (code, err) == (2, "")
        answers = [json.loads(line) for line in out.splitlines()]
        assert len(answers) == len(lines) - 1  # an empty line is no query
        assert [answer["id"] for answer in answers if "error" not in answer] == ["first", "\ud800", "last"]
        assert answers[3]["id"] == 7 and "`facts` needs a JSON object" in answers[3]["error"]
        assert answers[4]["id"] == 8 and "gpu.smm" in answers[4]["error"]

    @pytest.mark.parametrize("name", ["nowhere", "."])
    def test_a_batch_file_that_cannot_be_read(self, name, refused):
        assert "cannot read batch file" in refused("backends", "--batch", name, code=2)
