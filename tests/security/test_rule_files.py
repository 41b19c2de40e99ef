"""Rule files that are wrong: one line with file and line and exit code 2, and only in the commands that read them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.rulebook import cache, signatures
from doctor.rulebook.cache import EXPLAINS_ONLY

from .conftest import ROOT, Doctor, Ran

#: Every key of a rule that `check` reads; facts of the examples make it fire.
CHECKED: dict[str, Any] = {
    "id": "X001", "name": "made-up", "since": "0.1", "severity": "error", "summary": "Made up", "why": "A reason.",
    "references": ["https://example.org/a"], "message": "made up ({torch.version})", "stage": "filter",
    "category": "other", "no_pin": "none", "weight": "1", "fix_reasons": "a", "yields_to": ["X002"], "cause": "made-up",
    "packages": ["torch"], "disables": ["mu.one"], "fails_at_run": ["mu.part"],
    "when": {
        "torch.version": ">=1.0", "any": [{"gpu.sm": ">=7.0"}, {"not": {"torch.cuda": "12.4"}}],
        "all": [{"workload.dtype": ["bfloat16", "float16"]}],
    },
    "needs": {"torch.cuda": "why"},
    "signatures": ["made up failure", {"match": "made (?P<package>\\w+) up", "near": ["a"], "unless": ["calls and names"]}],
    "confirm": {"kernel": "sdpa", "request": {"env": {"NVTE_FLASH_ATTN": "0"}}, "bad_if_any": [{"a": "b"}]},
    "fix": [
        {
            "require": {"torch": ">=2.7,<2.9"}, "set_env": {"NVTE_FLASH_ATTN": "0"}, "unset_env": ["NVTE_X"],
            "config": {"workload.dtype": "float16"}, "call": "f()", "note": "a note", "safety": "risky", "risk": "a risk",
            "index_url": "https://example.org/simple", "when": {"torch.cuda": "12.4"}, "build": "torch",
            "then": {"workload.dtype": "float16"},
        }
    ],
    "tests": {
        "fires": {"given": {"torch.version": "2.6.0"}, "expect": "fires", "message": "a"},
        "unknown": {"given": {}, "expect": "undetermined", "missing": ["torch.version"]},
    },
}  # fmt: skip
#: The same as a finding, which predicts no backend.
FINDING = {key: value for key, value in CHECKED.items() if key not in ("disables", "fails_at_run", "stage")}
#: A rule that only `explain` reads.
EXPLAINS: dict[str, Any] = {
    "id": "LOGX1", "name": "made-up-log", "summary": "Made up", "references": ["https://example.org/a"],
    "category": "missing-attribute", "packages": ["{log.package|torch}"], "benign": "false", "weight": "-1",
    "when": {"torch.version": ">=1.0"}, "message": "{log.line}", "why": "A reason.",
    "signatures": [{"match": "made up (?P<module>\\w+)", "near": "module up", "anywhere": "made module", "not_near": "zzz", "frame": "train"}],
    "fix": [{"call": "f()"}],
    "tests": {"shows": {"log": ["made up failure"], "expect": "matches"}},
}  # fmt: skip
LIBRARY: dict[str, Any] = {
    "name": "madeup", "title": "Made up", "import_name": "madeup", "distributions": ["madeup"], "environment": ["MU_*"],
    "packages": {"madeup": {"modules": ["madeup"], "opens": {"files": "mu/_C[.]so", "folders": {"sm90": "9.0"}}}},
    "modules": {"mu": "madeup"}, "seldom": ["madeup"], "references": ["https://example.org/a"],
    "backends": [{"id": "mu.one", "title": "One", "unfused": "true"}, {"id": "mu.part", "title": "P", "part_of": "mu.one"}],
    "applies": {"torch.version": ">=1.0"}, "stages": [{"when": {"torch.version": ">=1"}, "order": ["filter"]}],
    "preference": [{"order": ["mu.one"]}], "variants": {"mu.one": [{"order": ["mu.part"]}]},
    "releases": {"1.0": {"torch.cuda": "12.4", "local": {}}}, "choice": {"decode": "workload.dtype", "prefill": "workload.dtype"},
    "decisions": {"workload.mask": [{"when": {"torch.version": ">=1"}, "value": "causal"}]},
    "implies": [{"when": {"torch.version": ">=1"}, "facts": {"torch.cuda": "12.4"}}],
    "companions": [{"when": {"torch.version": ">=1"}, "usual": {"torch.cuda": ["12.4"]}}],
    "gpus": {"a100": {"sm": "8.0", "cuda": "12.0", "memory_gib": "80", "aliases": ["m100"]}},
    "cuda_drivers": {"12.4": {"driver": "550.1", "oldest": "525.1"}},
    "images": {"x/y": {"1.0": {"source": "a", "certainty": "seen", "torch.version": "2.6.0",
                               "reported": {"source": "b", "torch.cuda": "12.4"}}}},
}  # fmt: skip
#: What takes the place of a part; None is an empty value.
REPLACEMENTS: tuple[Any, ...] = (
    None, "", "x", "7", "9" * 5000, "{no.such}", "(", "..", "a\n\u202e`<b>", [], ["x"], [[]], [None], {}, {"x": "y"},
    {"x": {"y": ["z"]}}, {"": None}, [{"x": "y"}, "z"],
)  # fmt: skip
LOG = 'made module up\n  File "/srv/train.py", line 3, in main\nAttributeError: made up failure\n'


def _parts(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from _parts(item, (*at, key))


def _changed(content: Any, at: tuple[Any, ...], value: Any, *, drop: bool = False) -> Any:
    made = copy.deepcopy(content)
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    if drop:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return made


def _mutations(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every part dropped, and every part as each other type."""
    for at in _parts(content):
        name = ".".join(map(str, at))
        yield f"without {name}", _changed(content, at, None, drop=True)
        for value in REPLACEMENTS:
            yield f"{name} = {json.dumps(value)[:40]}", _changed(content, at, value)
    for value in REPLACEMENTS:
        yield f"whole = {json.dumps(value)[:40]}", value


@pytest.fixture
def small_rulebook(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rulebook of one library in place of the built-in one, so that a command line takes milliseconds."""
    for module in (cache, signatures):
        if hasattr(module, "rules_dir"):
            monkeypatch.setattr(module, "rules_dir", lambda: ROOT / "rules" / "triton")
    (project / "job.log").write_text(LOG)
    facts = {"torch.version": "2.6.0", "torch.cuda": "12.4", "gpu.sm": "9.0", "madeup.version": "1.0"}
    workload = {"framework": "torch_sdpa", "dtype": "bfloat16"}
    (project / "job.json").write_text(json.dumps({"facts": facts, "workload": workload}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    return project


def _commands(folder: Path) -> Iterator[tuple[object, ...]]:
    yield "check", "--no-run", "--facts", "job.json", "--rules", folder
    yield "fix", "--facts", "job.json", "--rules", folder
    yield "backends", "--facts", "job.json", "--rules", folder
    yield "explain", "job.log", "--facts", "job.json", "--rules", folder
    yield "rules", "list", "--rules", folder


def _fine(name: str, ran: Ran) -> bool:
    """Return whether a file was accepted, or refused in one line that names it."""
    lines = [line for line in ran.err.splitlines() if not line.startswith("hint:")]
    return ran.code in (0, 1) or (
        ran.code == 2 and len(lines) == 1 and re.search(rf"{re.escape(name)}:\d+: ", lines[0]) is not None
    )


FILES = {"X001.yaml": CHECKED, "X003.yaml": FINDING, "LOGX1.yaml": EXPLAINS, "library.yaml": LIBRARY}
SHARE = 40  # of the changes that a usual run tries, one in so many


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, SHARE))])
def test_wrong_rule_files(small_rulebook: Path, doctor: Doctor, name: str, first: int) -> None:
    folder = small_rulebook / "r" / "madeup"
    folder.mkdir(parents=True)
    if name.startswith("X"):
        library = {key: value for key, value in LIBRARY.items() if key != "gpus"}  # else it alone would know GPUs
        (folder / "library.yaml").write_text(json.dumps(library))
    for change, content in list(_mutations(FILES[name]))[first::SHARE]:
        (folder / name).write_text(json.dumps(content))
        for command in _commands(small_rulebook / "r"):
            ran = doctor(*command)
            assert _fine(name, ran), (change, command[0], ran.err)


@pytest.mark.parametrize("name", ["X001.yaml", "LOGX1.yaml"])
def test_a_rule_for_logs_alone_harms_no_other_command(small_rulebook: Path, doctor: Doctor, name: str) -> None:
    """Whatever its file is called, and also without `when`."""
    folder = small_rulebook / "r" / "madeup"
    folder.mkdir(parents=True)
    content = {key: value for key, value in EXPLAINS.items() if key != "when"}
    (folder / name).write_text(json.dumps(content))
    (small_rulebook / "pyproject.toml").write_text('[tool.attn-doctor]\nrules = ["r"]\n')
    for command in (*_commands(small_rulebook / "r"), ("check", "--no-run", "--facts", "job.json")):
        ran = doctor(*command)
        assert ran.code in (0, 1) or "no library" in ran.err or "framework" in ran.err, (command, ran.err)
    ran = doctor("explain", "job.log", "--rules", "r")
    assert ran.code == 1 and "LOGX1" in ran.out


def test_a_wrong_rule_for_logs_harms_explain_alone(small_rulebook: Path, doctor: Doctor) -> None:
    folder = small_rulebook / "r" / "madeup"
    folder.mkdir(parents=True)
    (folder / "LOGX1.yaml").write_text(json.dumps({**EXPLAINS, "signatures": ["("]}))
    assert doctor("check", "--no-run", "--facts", "job.json", "--rules", "r").code in (0, 1)
    ran = doctor("explain", "job.log", "--rules", "r")
    assert ran.code == 2 and "LOGX1.yaml:1" in ran.err


def test_a_folder_without_any_rule_file_is_refused(small_rulebook: Path, doctor: Doctor) -> None:
    (small_rulebook / "r").mkdir()
    for command in (
        ("check", "--no-run", "--facts", "job.json", "--rules", "r"),
        ("explain", "job.log", "--rules", "r"),
    ):
        ran = doctor(*command)
        assert ran.code == 2 and "holds no .yaml file" in ran.err and EXPLAINS_ONLY == "LOG"
