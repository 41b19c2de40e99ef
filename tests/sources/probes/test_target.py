"""Finding the target: real interpreters, trees without one, and all the ways either can be unfit."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.errors import DoctorError, NoDiagnosis
from doctor.model import Facts
from doctor.sources.probes import env_vars, interpreter
from doctor.sources.probes.collect import collect
from doctor.sources.probes.locate import find_target
from doctor.sources.probes.target import Target, TargetKind
from doctor.sources.watch import Watch
from tests.helpers.fake_trees import install


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real virtual environment, without pip."""
    folder = tmp_path_factory.mktemp("venv") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    install(site, "flash_attn", "2.6.3")
    editable = folder / "src"
    install(editable, "xtuner", "0.1.23")
    (site / "__editable__.xtuner.pth").write_text(f"{editable}\n")
    return folder


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def versions(target: Target) -> Facts:
    return collect(target, Watch(), ("platform", "distributions"))


def test_an_interpreter(venv: Path) -> None:
    target = find_target(str(venv / "bin/python"))
    assert target.kind == TargetKind.INTERPRETER
    assert target.python == str(venv / "bin/python")  # the link, not what it points at
    assert target.prefix == venv
    facts = versions(target)
    assert facts.value("flash-attn.version") == "2.6.3"
    assert facts.value("xtuner.version") == "0.1.23"  # editable
    assert "pytest.version" not in facts  # ours, not the target's
    assert facts.value("python.version") == ".".join(map(str, sys.version_info[:3]))
    assert facts.value("platform.system") == os.uname().sysname
    assert target.version in target.describe()


def test_a_folder_means_the_environment_in_it(venv: Path) -> None:
    assert find_target(str(venv)).python == str(venv / "bin/python")


def test_the_active_environment(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    assert find_target().prefix == venv
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setenv("CONDA_PREFIX", str(venv))
    assert find_target().prefix == venv


def test_an_active_environment_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    with pytest.raises(DoctorError, match="VIRTUAL_ENV") as caught:
        find_target()
    assert "--python" in (caught.value.hint or "")


def test_nothing_active_means_our_own() -> None:
    target = find_target()
    assert target.python == sys.executable
    facts = versions(target)
    assert facts.value("pytest.version") == pytest.__version__
    same = versions(find_target(sys.executable))
    for key in ("python.version", "platform.glibc", "packaging.version"):
        assert facts.value(key) == same.value(key), key


def test_pythonpath_is_part_of_the_target(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "extra", "flash_attn", "2.5.6")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "extra"))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    facts = versions(find_target(str(venv / "bin/python")))
    assert facts.value("flash-attn.version") == "2.5.6"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("kill -ABRT $$", "killed by SIGABRT"),
        ("echo 'Fatal Python error: init_fs_encoding' >&2; exit 1", "Fatal Python error: init_fs_encoding"),
        ("head -c 3000000 /dev/zero; exit 3", "status 3"),
    ],
)
def test_an_interpreter_that_dies_at_start(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(NoDiagnosis) as caught:
        find_target(script(tmp_path / "python", body))
    assert said in caught.value.message and "\n" not in caught.value.message
    assert caught.value.exit_code == 3


def test_a_real_python_that_dies_in_sitecustomize(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NoDiagnosis, match="SIGSEGV"):
        find_target(str(venv / "bin/python"))


def test_a_hang_ends_with_all_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    python = script(tmp_path / "python", f"sleep 300 &\necho $! > {mark}\nwait")
    began = time.monotonic()
    with pytest.raises(NoDiagnosis, match="did not respond within"):
        interpreter.InterpreterQuery(python).answer(timeout=0.5)
    assert time.monotonic() - began < 5
    pid = int(mark.read_text())
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("the grandchild lives on")


def test_noise_and_a_lingering_child_do_not_matter(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, subprocess, sys\n"
        "print('noise', end='')\n"
        "os.write(2, b'e' * 300_000)\n"
        "os.write(1, b'n' * 300_000)\n"
        "subprocess.Popen(['sleep', '60'])\n"
        "sys.stdout = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    assert find_target(str(venv / "bin/python")).prefix == venv
    assert time.monotonic() - began < 10


def test_no_interpreter_at_all(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fELF\0\0")
    garbage.chmod(0o755)
    for python, said in (
        (str(tmp_path / "missing"), "does not exist"),
        (str(plain), "not executable"),
        (str(tmp_path / "dangling"), "a missing file"),
        (str(tmp_path), "no Python under"),
        ("no-such-python-9.99", "not on the PATH"),
        (str(garbage), "cannot start"),
        (shutil.which("true") or "/bin/true", "not a Python interpreter"),
        ("", "needs the path"),
        ("a\0b", "needs the path"),
        ("x" * 5000 + "/python", "file name too long"),
    ):
        with pytest.raises(DoctorError) as caught:
            find_target(python)
        assert said in caught.value.message.lower() or said in caught.value.message, python
        assert caught.value.exit_code == 2, python


def test_one_too_old(tmp_path: Path) -> None:
    answer = (
        r"\n<attn-doctor\0003.6.9\000cpython\000/usr\000Linux\000x86_64\0002.31\000/usr/lib\000/x\000attn-doctor>\n"
    )
    with pytest.raises(DoctorError, match=r"Python 3\.6\.9: needs 3\.8"):
        find_target(script(tmp_path / "python", f"printf '{answer}'"))


def test_both_ways_at_once(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="exclude each other"):
        find_target("python", str(tmp_path))


def test_a_tree(site: Path) -> None:
    install(site, "torch", "2.6.0")
    (site / "torch").mkdir()
    (site / "torch/_C.cpython-310-aarch64-linux-gnu.so").write_bytes(b"")
    target = find_target(site_packages=str(site))
    assert (target.kind, target.python, target.prefix) == (TargetKind.SITE_PACKAGES, None, site.parents[2])
    facts = versions(target)
    assert facts.value("torch.version") == "2.6.0"
    assert facts.value("python.version") == "3.11"  # by the folder's name
    assert facts.value("platform.machine") == "aarch64"
    assert facts["platform.glibc"].value is None and "folder of packages" in (facts["platform.glibc"].problem or "")


@pytest.mark.parametrize(
    "inner", ["lib/python3.10/site-packages", "usr/lib/python3/dist-packages", "opt/venv/lib/python3.12/site-packages"]
)
def test_the_root_of_an_image(tmp_path: Path, inner: str) -> None:
    install(tmp_path / inner, "transformers", "4.44.2")
    assert versions(find_target(site_packages=str(tmp_path))).value("transformers.version") == "4.44.2"


def test_a_tree_with_editable_packages(site: Path, tmp_path: Path) -> None:
    install(site, "torch", "2.6.0")
    install(tmp_path / "src", "xtuner", "0.1.23")
    (site / "easy-install.pth").write_text(f"# comment\nimport os; os.abort()\n{tmp_path / 'src'}\n/no/such/folder\n\n")
    assert versions(find_target(site_packages=str(site))).value("xtuner.version") == "0.1.23"


def test_unfit_trees(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, said, code in (
        (str(tmp_path / "missing"), "does not exist", 2),
        (str(file), "is not a folder", 2),
        ("a\0b", "needs a folder", 2),
        ("x" * 5000, "cannot read", 2),
        (str(empty), "no installed packages", 3),
    ):
        with pytest.raises(DoctorError) as caught:
            find_target(site_packages=folder)
        assert said in caught.value.message and caught.value.exit_code == code, folder


@pytest.mark.skipif(os.geteuid() == 0, reason="root is never refused")
def test_a_tree_without_permission(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0)
    try:
        with pytest.raises(DoctorError, match="permission denied"):
            find_target(site_packages=str(locked))
    finally:
        locked.chmod(stat.S_IRWXU)


def test_listed_variables_and_no_other(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NVTE_FLASH_ATTN": "0",
        "NVTE_UNFUSED_ATTN": "",
        "NVTE_API_TOKEN": "abc",
        "NVTE_NOTE": "hf_abcdefghijklmnop",
        "NVTE_LONG": "x y " * 5000,
        "TORCH_CUDNN_SDPA_PREFERRED": "1",
        "LD_LIBRARY_PATH": "/home/ada/lib:/usr/lib",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PATH_TO_NOWHERE": "/x",
    }.items():
        monkeypatch.setenv(name, value)
    facts = collect(target, Watch(("NVTE_*", "TORCH_CUDNN_SDPA_PREFERRED", "NVTE_DEBUG")), ("env_vars",))
    assert facts.value("env.NVTE_FLASH_ATTN") == "0"
    assert facts.value("env.NVTE_UNFUSED_ATTN") == ""
    assert facts.value("env.TORCH_CUDNN_SDPA_PREFERRED") == "1"
    assert facts.value("env.LD_LIBRARY_PATH") == "~/lib:/usr/lib"
    for name in ("NVTE_API_TOKEN", "NVTE_NOTE", "NVTE_LONG"):
        assert facts[f"env.{name}"].value is None, name
    assert not {"env.AWS_SECRET_ACCESS_KEY", "env.PATH_TO_NOWHERE", "env.NVTE_DEBUG"} & set(facts)
    assert not any(secret in str(list(facts.values())) for secret in ("hf_abc", "'secret'"))


def test_a_probe_that_fails_costs_only_its_own_facts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    from doctor.sources.probes import cudnn, torch_build

    def explode(*_: object) -> object:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(cudnn, "predict", explode)
    monkeypatch.setattr(torch_build, "torch_folder", explode)
    facts = collect(target, Watch())
    for key in (*cudnn.PROMISES, *torch_build.PROMISES):
        assert facts[key].value is None
        assert (
            facts[key].problem
            == f"the {'cudnn' if key.startswith('cudnn') else 'torch_build'} probe failed: RuntimeError: disk on fire"
        )
    assert facts.value("distributions.complete") is True
    assert "target.path" in facts


def test_long_lists_of_names_are_safe(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_X", "1")
    assert not collect(target, Watch(("*",)), ("env_vars",)).get("env.NVTE_X")  # a bare star lists nothing
    assert "CUDA_HOME" in env_vars.ALWAYS


def test_what_is_said_between_two_looks_is_heard():
    """A process that speaks and ends after we looked at its pipes and before we checked whether it lives."""
    from doctor.sources.probes.interpreter import _BEGIN, _END, _read

    answer, to_answer = os.pipe()
    errors, to_errors = os.pipe()  # both stay open, as if a grandchild held them

    class Ends:
        stdout, stderr = os.fdopen(answer, "rb"), os.fdopen(errors, "rb")
        spoke = False

        def poll(self) -> int:
            if not self.spoke:
                self.spoke = True
                os.write(to_answer, _BEGIN + b"3.12.3" + _END)
            return 0

    try:
        said, _, late = _read(Ends(), 5.0)  # type: ignore[arg-type]
    finally:
        os.close(to_answer)
        os.close(to_errors)
    assert said == _BEGIN + b"3.12.3" + _END
    assert not late
