"""What `check` and `fix` make of uses that the installed releases do not answer."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from doctor.cli.main import run

CALLER = """
    from flash_attn.flash_attn_interface import _flash_attn_varlen_backward
    def backward(dout, q, k, v, out, lse, dq, dk, dv, a, b, c, d):
        return _flash_attn_varlen_backward(
            dout, q, k, v, out, lse, dq, dk, dv, a, b, c, d, dropout_p=0.0, softmax_scale=1.0, causal=True,
            window_size=(-1, -1), alibi_slopes=None, deterministic=False)
"""
CALLEE = """
    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, rng_state=None):
        return dq, dk, dv, None
"""


def install(root: Path, distribution: str, version: str, files: dict[str, str]) -> None:
    """Write a package as an installer lays it out."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    information = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """A folder in which peft calls flash-attn 2.6.3 as 2.5 wanted it."""
    root = tmp_path_factory.mktemp("drift") / "site-packages"
    install(root, "torch", "2.4.0", {})
    install(root, "peft", "0.12.0", {"peft/__init__.py": "", "peft/tuner.py": CALLER})
    files = {"flash_attn/__init__.py": "", "flash_attn/flash_attn_interface.py": CALLEE}
    install(root, "flash-attn", "2.6.3", files)
    return root


@pytest.fixture
def site(packages, monkeypatch) -> Path:
    """The same with a cache that the tests share."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(packages.parent / "cache"))
    return packages


def checked(capsys, *options: str, command: str = "check", code: int = 1) -> dict:
    """Return the JSON report of a command."""
    extra = ["--no-run"] if command == "check" else []
    assert run([command, *extra, "--format", "json", *options]) == code
    return json.loads(capsys.readouterr().out)


def drift_of(report: dict) -> dict:
    """Return the only finding of the analyzer."""
    (found,) = [item for item in report["findings"] if item["id"].startswith("API")]
    return found


def test_check_reports_the_use_with_both_places(site, capsys):
    found = drift_of(checked(capsys, "--site-packages", str(site)))
    assert (found["id"], found["severity"], found["name"]) == ("API004", "error", "missing-argument")
    assert found["summary"] == "peft 0.12.0 omits arguments that are required by flash-attn 2.6.3"
    (use,) = found["uses"]
    assert (use["file"], use["line"], use["scope"]) == ("peft/tuner.py", 4, "backward")
    assert use["definition"] == "flash_attn/flash_attn_interface.py:2" and "softcap" in use["signature"]
    assert (use["broken_since"], use["own_code"], use["reach"]) == ("2.6.0.post1", False, "on_demand") or use[
        "broken_since"
    ]
    assert {item["fact"]: item["found"] for item in found["evidence"]} == {
        "peft.version": "0.12.0", "flash-attn.version": "2.6.3",
    }  # fmt: skip


def test_the_fix_goes_back_to_the_release_that_the_history_names(site, capsys):
    report = checked(capsys, "--site-packages", str(site), command="fix")
    best = report["fixes"][0]
    assert "API004" in best["resolves"]
    change = next(item for item in best["changes"] if item["package"] == "flash-attn")
    assert change["to"].startswith("2.5")


def imports(tmp_path: Path, caller: str, version: str, line: str) -> Path:
    """A folder in which a package imports a name that accelerate 0.20 does not have."""
    root = tmp_path / "site-packages"
    install(root, "torch", "2.4.0", {})
    install(root, caller, version, {f"{caller}/__init__.py": line})
    install(root, "accelerate", "0.20.0", {"accelerate/__init__.py": "", "accelerate/utils/__init__.py": "a = 1\n",
                                           "accelerate/utils/memory.py": "b = 1\n"})  # fmt: skip
    return root


def test_a_rule_for_the_same_imports_gets_the_places(tmp_path, capsys, cache_of_its_own):
    site = imports(tmp_path, "peft", "0.17.0", "from accelerate.utils.memory import clear_device_cache\n")
    report = checked(capsys, "--site-packages", str(site))
    (found,) = [item for item in report["findings"] if item["severity"] == "error"]
    assert found["id"] == "IMP010" and found["message"].endswith("at peft/__init__.py:1")
    assert [use["file"] for use in found["uses"]] == ["peft/__init__.py"]
    assert found["fixes"][0]["require"] == {"accelerate": ">=0.32.0"}  # not that of other releases of peft
    assert "IMP010" in report["fixes"][0]["resolves"]


def test_unknown_releases_are_not_called_hopeless(tmp_path, capsys, cache_of_its_own):
    site = imports(tmp_path, "trl", "0.19.0", "from accelerate.utils import is_peft_model\n")
    report = checked(capsys, "--site-packages", str(site), command="fix")
    (found,) = [item["no_fix"] for item in report["findings"] if item["id"] == "API002"]
    assert found["proved"] is False and "one may exist" in found["because"][-1]


def test_a_milder_rule_for_the_same_imports_is_left_out(tmp_path, capsys, cache_of_its_own):
    site = imports(tmp_path, "trl", "0.19.0", "from accelerate.utils import is_peft_model\n")
    ids = [item["id"] for item in checked(capsys, "--site-packages", str(site))["findings"]]
    assert "API002" in ids and "IMP014" not in ids
    assert "IMP014" in [
        item["id"] for item in checked(capsys, "--site-packages", str(site), "--no-drift", code=0)["findings"]
    ]


@pytest.mark.parametrize("form", ["text", "sarif", "junit", "github", "markdown", "html", "gitlab"])
def test_every_format_shows_the_place(site, capsys, form):
    assert run(["check", "--no-run", "--format", form, "--site-packages", str(site)]) == 1
    text = capsys.readouterr().out
    assert "API004" in text and "peft/tuner.py:4" in text


def test_the_switch_and_stated_versions_leave_the_sources_alone(site, capsys):
    for options in (["--no-drift"], ["--set", "flash-attn.version=2.5.8"]):
        report = checked(capsys, "--site-packages", str(site), *options, code=0)
        assert not [item for item in report["findings"] if item["id"].startswith("API")]


def test_own_code_and_remote_code_are_checked(site, capsys, tmp_path):
    code, model = tmp_path / "mine", tmp_path / "model"
    for folder, name in ((code, "train.py"), (model, "modeling_mine.py")):
        folder.mkdir()
        (folder / name).write_text("from flash_attn.flash_attn_interface import gone\n")
    config = {"num_attention_heads": 8, "hidden_size": 1024, "architectures": ["MineForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    options = ["--site-packages", str(site), "--code", str(code), "--model", str(model)]
    report = checked(capsys, *options)
    files = {Path(use["file"]).name for item in report["findings"] for use in item.get("uses", ())}
    assert files == {"tuner.py", "train.py", "modeling_mine.py"}
    assert run(["check", "--no-run", "--format", "gitlab", *options]) == 1
    places = {item["location"]["path"] for item in json.loads(capsys.readouterr().out)}
    assert str(code / "train.py") in places


def test_an_ignored_code_is_not_reported(site, capsys, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[tool.attn-doctor]\nignore = [{rule = "API004", reason = "that path never runs", until = "2999-01-01"}]\n'
    )
    monkeypatch.chdir(project)
    report = checked(capsys, "--site-packages", str(site), code=0)
    assert [item["id"] for item in report["ignored"]] == ["API004"]
    assert not any("no such rule" in note for note in report["notes"])


def test_a_use_that_the_job_may_never_reach_is_a_warning(tmp_path, capsys, cache_of_its_own):
    """`drift` judges the pair, `check` the job: it imports the package, and may never start this trainer of it."""
    site = tmp_path / "site-packages"
    install(site, "torch", "2.4.0", {})
    trainer = "from accelerate import save\nclass PPOTrainer:\n    def train(self):\n        save(metrics=1)\n"
    install(site, "trl", "0.15.0", {"trl/__init__.py": "from .ppo import PPOTrainer\n", "trl/ppo.py": trainer})
    install(site, "accelerate", "1.3.0", {"accelerate/__init__.py": "def save(): pass\n"})
    report = checked(capsys, "--site-packages", str(site), code=0)
    found = drift_of(report)
    assert found["severity"] == "warning" and "fails in `PPOTrainer.train` only" in found["message"]
    assert run(["drift", "--site-packages", str(site), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["severity"] == "error"


def test_a_use_on_demand_is_only_counted(tmp_path, capsys, cache_of_its_own):
    site = tmp_path / "site-packages"
    install(site, "torch", "2.4.0", {})
    code = "from accelerate import save\ndef export():\n    save(metrics=1)\n"
    install(site, "trl", "0.15.0", {"trl/__init__.py": "", "trl/legacy/__init__.py": "", "trl/legacy/a.py": code})
    install(site, "accelerate", "1.3.0", {"accelerate/__init__.py": "def save(): pass\n"})
    report = checked(capsys, "--site-packages", str(site), code=0)
    assert not [item for item in report["findings"] if item["id"].startswith("API")]
    assert any("1 uncertain or rarely reached use not listed" in note for note in report["notes"])


def test_several_workloads_share_one_analysis(site, capsys):
    report = checked(capsys, "--site-packages", str(site), "--gpu", "a100,h100")
    found = drift_of(report)
    assert found["cases"] == [0, 1] and found["uses"]


def test_without_pairs_the_analyzer_is_not_imported(site, capsys, tmp_path):
    import subprocess
    import sys

    alone = tmp_path / "alone"
    install(alone, "torch", "2.4.0", {})
    install(alone, "peft", "0.12.0", {"peft/__init__.py": ""})
    program = (
        "import sys; from doctor.cli.main import run; "
        f"run(['check', '--no-run', '--site-packages', {str(alone)!r}]); "
        "sys.exit('doctor.drift.pipeline' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
