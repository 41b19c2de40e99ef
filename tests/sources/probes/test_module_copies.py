"""Which copy of a module is imported: compared with Python's own search, on many small import paths."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from doctor.model import Facts
from doctor.sources.probes import compiled
from doctor.sources.probes.collect import collect
from doctor.sources.probes.module_copies import module_copies, stray_files
from doctor.sources.probes.target import Target, TargetKind
from tests.helpers.fake_trees import elf, install
from tests.helpers.watches import built_in_watch

VERSION = ".".join(str(part) for part in sys.version_info[:3])
TAG = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu"
FILES = (
    "{module}/__init__.py", "{module}/part.py", f"{{module}}.{TAG}.so", "{module}.abi3.so", "{module}.so",
    "{module}.py", "{module}.cpython-27-x86_64-linux-gnu.so", "{module}.so.1", "{module}_other.so",
)  # fmt: skip
_CHILD = """
import importlib.machinery, json, sys
answers = []
for path, module in json.loads(sys.stdin.read()):
    spec = importlib.machinery.PathFinder.find_spec(module, path)
    answers.append(spec.origin if spec and spec.origin else None)
print(json.dumps(answers))
"""


def target(*folders: Path) -> Target:
    return Target(
        sys.executable, folders[0], folders, TargetKind.INTERPRETER, VERSION, "cpython", "Linux", "x86_64", "2.36", {}
    )


def facts_of(*folders: Path) -> Facts:
    return collect(target(*folders), built_in_watch(), ("module_copies",))


def test_the_first_copy_is_the_one_that_python_finds(tmp_path: Path) -> None:
    chance = random.Random(16)
    cases = []
    for number in range(150):
        folders = [tmp_path / f"{number}/{name}" for name in "abc"]
        for folder in folders:
            folder.mkdir(parents=True)
            for module in ("flash_attn", "flash_attn_2_cuda"):
                for name in chance.sample(FILES, chance.choice([0, 0, 1, 2, 3])):
                    path = folder / name.format(module=module)
                    path.parent.mkdir(exist_ok=True)
                    path.touch()
        cases += [(folders, module) for module in ("flash_attn", "flash_attn_2_cuda")]
    request = json.dumps([([str(folder) for folder in folders], module) for folders, module in cases])
    done = subprocess.run([sys.executable, "-c", _CHILD], input=request, capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout)
    assert 50 < sum(answer is not None for answer in answers) < len(answers)
    for (folders, module), answer in zip(cases, answers, strict=True):
        copies = module_copies(target(*folders), built_in_watch().packages).get(module)
        mine = None
        if copies:
            inside = "" if "." in copies[0].file else "/__init__.py"
            mine = f"{copies[0].folder}/{copies[0].file}{inside}"
        assert mine == answer, (module, answer)


def test_a_build_in_front_of_the_installed_package(tmp_path: Path) -> None:
    checkout, site = tmp_path / "src", tmp_path / "site"
    install(site, "flash-attn", "2.8.3")
    for folder in (checkout, site):
        elf(folder / f"flash_attn_2_cuda.{TAG}.so", ("libc10.so",))
    facts = facts_of(checkout, site)
    (text,) = facts.value("modules.stray")
    assert f"`flash_attn_2_cuda` is imported from `{checkout}" in text and "no distribution owns it" in text
    assert f"not from `{site}" in text and "(flash-attn 2.8.3)" in text
    assert "modules.hidden" not in facts
    assert stray_files(target(checkout, site), built_in_watch().packages) == {
        "flash-attn": (str(checkout), (f"flash_attn_2_cuda.{TAG}.so",))
    }
    reverse = facts_of(site, checkout)
    assert "modules.stray" not in reverse and str(checkout) in reverse.value("modules.hidden")[0]
    assert stray_files(target(site, checkout), built_in_watch().packages) == {}


def test_python_code_of_one_copy_and_a_compiled_module_of_another(tmp_path: Path) -> None:
    checkout, site = tmp_path / "src", tmp_path / "site"
    install(site, "flash-attn", "2.8.3")
    for folder in (checkout, site):
        (folder / "flash_attn").mkdir(parents=True)
        (folder / "flash_attn/__init__.py").touch()
    elf(site / "flash_attn_2_cuda.abi3.so")
    (text,) = facts_of(checkout, site).value("modules.split")
    assert f"`flash_attn` is imported from `{checkout}" in text and f"`flash_attn_2_cuda` from `{site}" in text
    assert "modules.split" not in facts_of(site, checkout)


def test_one_copy_is_no_finding(tmp_path: Path) -> None:
    site, checkout = tmp_path / "site", tmp_path / "src"
    install(site, "xformers", "0.0.35")
    (checkout / "xformers").mkdir(parents=True)
    (checkout / "xformers/__init__.py").touch()  # an editable installation
    linked = tmp_path / "linked"
    linked.symlink_to(checkout)
    assert not facts_of(checkout, site, linked)


def test_the_imported_copy_is_judged(tmp_path: Path) -> None:
    checkout, site = tmp_path / "src", tmp_path / "site"
    module = f"flash_attn_2_cuda.{TAG}.so"
    folder = install(site, "flash-attn", "2.8.3")
    elf(site / module, ("libc10.so",))
    (folder / "RECORD").write_text(f"{module},sha256=x,1\n")
    elf(checkout / module, ("libc10.so",))
    records = built_in_watch().packages
    bases = {name: base for name, _, base, _ in compiled._packages(target(checkout, site), records)}
    assert bases == {"flash-attn": str(checkout)}
    bases = {name: base for name, _, base, _ in compiled._packages(target(site, checkout), records)}
    assert bases == {"flash-attn": str(site)}
