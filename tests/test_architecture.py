"""The architecture, held by walking the syntax trees: who may import whom, who may print, how long a file may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "doctor").rglob("*.py"))
KERNELS = sorted((ROOT / "kernels").rglob("*.py"))
NAMES = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES}

#: Lowest first: a module imports only from layers below, or from its own.
LAYERS = (
    {"errors", "records", "model", "job_terms"},
    {"vocabulary", "privacy", "yamltext", "plainyaml", "assets", "versions", "regexsafety",
     "wholefile", "tomlread"},
    {"derive", "known", "conditions", "shape", "schema", "compiled", "rulebook", "ruleindex", "decisions", "wording",
     "answer", "lifeline", "process", "target", "release_index"},
    {"backends", "foretold", "evaluate", "ground", "ruletests", "rulenew", "rulelint", "probes", "workload",
     "facts_file", "solve", "pinset", "pins", "edit", "confirm", "jobruns", "bench", "reproduce", "config", "project",
     "batch", "matrix", "patient", "declared", "wheels", "building"},
    {"report"},
    {"session", "stress", "gate", "joint", "settled", "baseline"},
    {"api", "ranks"},
    {"proof"},
    {"rulepage", "cli_options", "asked", "rule_commands", "stress_command", "wheel_commands", "fix_command",
     "init_command", "proof_command", "edit_command", "commands", "cli", "__main__"},
)  # fmt: skip
#: The table of GPUs is data, and lies in the rulebook; `--gpu` reads it there.
READS_ITS_TABLE = ("doctor.sources.probes.gpu_table", "rulebook")
#: A fix as packages to install is worked out from the report alone, and for these formats only.
READ_PINS = {(f"doctor.report.{name}", "pinset") for name in ("uv", "conda", "shell")}
RULES = {
    "rulebook", "conditions", "evaluate", "backends", "known", "wording", "foretold", "schema", "shape", "compiled",
    "ruletests", "rulelint", "rulenew", "solve", "confirm",
}  # fmt: skip
PATIENTS = {
    "torch", "torchvision", "transformers", "transformer_engine", "transformer_engine_torch", "flash_attn", "xformers",
    "megatron", "xtuner", "vllm", "triton", "numpy", "cudnn", "deepspeed", "lmdeploy",
}  # fmt: skip


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, *, top_level: bool = False) -> Iterator[tuple[str, int]]:
    """(absolute name of what is imported, line): modules, and each name taken from one."""
    tree = parsed(path)
    package = NAMES.get(path, path.stem)
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    for node in _outside_functions(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield (whole if whole in NAMES.values() else module), node.lineno


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """What runs at import: not the bodies of functions, not what only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _outside_functions(child)


def part(name: str) -> str:
    """`doctor.report.text` → report"""
    return name.split(".")[1] if "." in name else ""


def ours(path: Path) -> Iterator[tuple[str, int]]:
    """The parts of the doctor that a module imports, itself left out."""
    for name, line in imports(path):
        if name.startswith("doctor.") and part(name) != part(NAMES[path]):
            yield part(name), line


def test_every_module_has_a_layer():
    listed = [name for layer in LAYERS for name in layer]
    assert len(listed) == len(set(listed))
    assert {part(name) for name in NAMES.values()} - {""} <= set(listed), "give the new module its place in LAYERS"


def test_imports_point_downwards():
    rank = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{NAMES[path]}:{line} imports {name}, which lies above it"
        for path in MODULES
        for name, line in ours(path)
        if rank.get(name, -1) > rank.get(part(NAMES[path]), len(LAYERS))
    ]
    assert not wrong, "\n".join(wrong)


def test_reports_see_the_report_alone():
    allowed = {"model", "errors", "records"}
    wrong = [
        f"{NAMES[path]}:{line} imports {name}"
        for path in MODULES
        if part(NAMES[path]) == "report"
        for name, line in ours(path)
        if name not in allowed and (NAMES[path], name) not in READ_PINS
    ]
    assert not wrong, "\n".join(wrong)


def test_probes_and_rules_share_the_vocabulary_only():
    wrong = []
    for path in MODULES:
        me = part(NAMES[path])
        for name, line in ours(path):
            if (NAMES[path], name) == READS_ITS_TABLE:
                continue
            if (me == "probes" and name in RULES) or (me in RULES - {"solve", "confirm"} and name == "probes"):
                wrong.append(f"{NAMES[path]}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_kernels_import_nothing_of_ours():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in KERNELS
        for name, line in imports(path)
        if name.split(".")[0] in {"doctor", "yaml", "packaging", "rich"}
    ]
    assert KERNELS and not wrong, "\n".join(wrong)


def test_nothing_of_ours_imports_a_patient():
    wrong = [
        f"{NAMES[path]}:{line} imports {name}"
        for path in MODULES
        for name, line in imports(path)
        if name.split(".")[0] in PATIENTS
    ]
    assert not wrong, "\n".join(wrong)


def test_heavy_imports_wait_until_they_are_needed():
    heavy = {
        "rich", "yaml", "typer", "pydantic", "importlib.metadata", "asyncio", "http", "urllib.request", "sqlite3",
        "hashlib", "tempfile", "subprocess", "concurrent.futures", "xml", "pynvml", "packaging.specifiers",
        "packaging.requirements", "email",
    }  # fmt: skip
    # Imported late as a whole.
    late = {
        "process", "target", "release_index", "solve", "probes", "report", "workload", "stress", "declared", "proof",
    }  # fmt: skip
    wrong = [
        f"{NAMES[path]}:{line} imports {name} at its top"
        for path in MODULES
        if part(NAMES[path]) not in late
        for name, line in imports(path, top_level=True)
        if any(name == item or name.startswith(f"{item}.") for item in heavy)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_prints():
    wrong = []
    for path in MODULES:
        if part(NAMES[path]) in LAYERS[-1]:
            continue
        if path.parent.name == "probes" and path.name.startswith("_"):
            continue  # a program for the patient's interpreter, whose output is its answer
        for node in ast.walk(parsed(path)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"):
                wrong.append(f"{NAMES[path]}:{node.lineno} calls {called}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", [*MODULES, *KERNELS], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_read_in_one_sitting(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


def test_the_walk_sees_what_it_should(tmp_path):
    """The tests above could not fail if the walk were blind."""
    path = tmp_path / "module.py"
    path.write_text("import torch.nn\ndef f():\n    from yaml import x\nif TYPE_CHECKING:\n    import rich\n")
    assert {name for name, _ in imports(path)} == {"torch.nn", "rich", "yaml"}
    assert [name for name, _ in imports(path, top_level=True)] == ["torch.nn"]
    session = ROOT / "doctor" / "session.py"
    assert {"evaluate", "rulebook"} <= {name for name, _ in ours(session)}
