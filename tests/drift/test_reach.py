"""What leads to a use, and how much of the caller it breaks: no error where the use does not run, or on demand only."""

from __future__ import annotations

import pytest

from doctor.drift.analysis import analyze_caller
from doctor.drift.collector import breaks
from doctor.drift.sources import Environment, is_readable
from tests.helpers.rulebook import builtin_stack

BROKEN_CALL = "attention(a, a, a, softcap=0.0)"


def found(site, caller="peft"):
    environment = Environment([site.root], builtin_stack())
    callees = [item for item in environment.packages.values() if is_readable(item)]
    result = analyze_caller(environment, environment.packages[caller], callees)
    return [(item.name, item.severity.value) for item in result.findings if breaks(item)]


@pytest.mark.parametrize(("folder", "severity"), [("models", "error"), ("deprecated", "warning")])
def test_a_use_in_a_folder_of_deprecated_code_is_a_warning(pair, folder, severity):
    site = pair("")
    code = f"from flash_attn import attention\ndef forward(a):\n    return {BROKEN_CALL}\n"
    for name, text in ((f"peft/{folder}/__init__.py", ""), (f"peft/{folder}/a.py", code)):
        (site.root / name).parent.mkdir(exist_ok=True)
        (site.root / name).write_text(text)
    assert found(site) == [("softcap", severity)]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("models/modeling_a.py", "error"),
        ("models/modeling_flax_a.py", "warning"),
        ("onnxruntime/trainer.py", "warning"),
    ],
)
def test_a_use_in_a_file_for_another_framework_is_a_warning(pair, name, severity):
    site = pair("")
    code = f"from flash_attn import attention\ndef forward(a):\n    return {BROKEN_CALL}\n"
    (site.root / "peft" / name).parent.mkdir()
    (site.root / "peft" / name).write_text(code)
    assert found(site) == [("softcap", severity)]


@pytest.mark.parametrize(("passed", "expected"), [("False", []), ("True", ["softcap"]), ("a", ["softcap"])])
def test_a_constant_that_every_call_of_a_private_method_passes_is_known_in_it(pair, passed, expected):
    text = f"""
        from flash_attn import attention
        class Layer:
            def forward(self, a):
                return self._attend(a, {passed})
            def _attend(self, a, use_softcap):
                if use_softcap:
                    return {BROKEN_CALL}
    """
    assert [name for _, name, _ in pair(text).labels()] == expected


def test_a_call_that_was_not_reached_leaves_the_arguments_of_a_private_method_unknown(pair):
    text = f"""
        from flash_attn import attention
        class Layer:
            def forward(self, a):
                return self._attend(a, False)
            def _attend(self, a, use_softcap):
                if use_softcap:
                    return {BROKEN_CALL}
            def later(self, a):
                return [lambda: self._attend(a, True)]
    """
    assert [name for _, name, _ in pair(text).labels()] == ["softcap"]


ENGINES = """
    from flash_attn import Kernel
    class Trainer:
        def __init__(self, other):
            try:
                import engine_that_is_absent as absent
                BRANCH
            except ImportError:
                self.engine = Kernel(8)
        def step(self):
            self.engine.gone()
"""


@pytest.mark.parametrize(
    ("branch", "expected"),
    [("self.engine = absent.Engine()", []), ("raise ImportError", ["gone"]), ("pass", ["gone"])],
)
def test_an_attribute_that_is_also_assigned_where_a_package_is_missing_has_no_known_class(pair, branch, expected):
    assert [name for _, name, _ in pair(ENGINES.replace("BRANCH", branch)).labels()] == expected


def test_super_follows_the_order_in_which_a_shared_base_comes_last(site):
    site.install("flash-attn", "2.6.3", {"flash_attn/__init__.py": """
        class Base:
            def __init__(self, model): pass
        class Special(Base):
            def __init__(self, model, rewards): pass
    """})  # fmt: skip
    site.install("peft", "0.1.0", {"peft/__init__.py": """
        from flash_attn import Base, Special
        class Mixin(Base):
            pass
        class Mine(Mixin, Special):
            def __init__(self, model, rewards):
                super().__init__(model=model, rewards=rewards)
        class Wrong(Mixin, Special):
            def __init__(self, model, rewards):
                super().__init__(model=model, lost=rewards)
    """})  # fmt: skip
    assert sorted(name for name, _ in found(site)) == ["lost", "rewards"]


def test_a_part_of_a_namespace_package_may_be_of_a_distribution_that_is_not_installed(site):
    site.install("megatron-core", "0.16.1", {"megatron/core/__init__.py": "def used(a): pass\n"})
    site.install("peft", "0.1.0", {"peft/__init__.py": """
        def train(a):
            from megatron import get_args
            from megatron.training.arguments import parse
            from megatron.core import gone
    """})  # fmt: skip
    assert [name for name, _ in found(site)] == ["gone"]


def test_a_requirement_that_is_not_met_ends_the_path_and_with_it_the_class(site):
    site.install("flash-attn", "2.6.3", {"flash_attn/__init__.py": "class Kernel:\n    pass\n"})
    text = """
        from flash_attn import Kernel
        from versions import require_version
        class Trainer(Kernel):
            def __init__(self, dataset):
                if dataset is None:
                    raise ValueError("no data")
                try:
                    require_version("flash-attn<=REQUIRED", "install another release")
                except ImportError as error:
                    raise error
            def step(self):
                self.gone()
    """
    site.install("peft", "0.1.0", {"peft/__init__.py": text.replace("REQUIRED", "2.5")})
    site.install("trl", "0.1.0", {"trl/__init__.py": text.replace("REQUIRED", "2.7")})
    assert found(site) == []
    assert found(site, "trl") == [("gone", "error")]


def test_a_class_of_the_callee_that_reads_an_attribute_itself_is_completed_by_others(pair):
    callee = {"flash_attn/__init__.py": """
        class Extension:
            def load(self):
                self.runner.load()
    """}  # fmt: skip
    text = """
        from flash_attn import Extension
        class Mine(Extension):
            def load_all(self):
                self.runner.load()
                self.gone.load()
    """
    assert [name for _, name, _ in pair(text, callee=callee).labels()] == ["gone"]


def test_a_module_that_the_callee_registers_under_an_old_name_is_there(pair):
    callee = {
        "flash_attn/__init__.py": "",
        "flash_attn/aliases.py": "import sys\nOLD = {'flash_attn.old': 'flash_attn.new'}\nsys.meta_path.append(OLD)\n",
        "flash_attn/new.py": "",
    }
    text = "import flash_attn.old\nimport flash_attn.gone\n"
    assert [name for _, name, _ in pair(text, callee=callee).labels()] == ["flash_attn.gone"]


@pytest.mark.parametrize(("condition", "count"), [("new", 0), ("True", 1)])
def test_a_constructor_call_that_fits_on_another_path_is_possible_only(pair, condition, count):
    text = f"""
        from flash_attn import Kernel
        def make(a, new):
            options = {{}}
            if {condition}:
                options["lost"] = a
            return Kernel(**options)
    """
    callee = {"flash_attn/__init__.py": "class Kernel:\n    def __init__(self, scale=None): pass\n"}
    assert len(pair(text, callee=callee).labels()) == count


def test_a_function_that_alone_of_its_module_is_never_named_is_a_warning(site):
    site.install("flash-attn", "2.6.3", {"flash_attn/__init__.py": "def attention(q): pass\n"})
    site.install("peft", "0.1.0", {
        "peft/__init__.py": "from .patch import apply\n",
        "peft/patch.py": """
            from flash_attn import attention
            def apply(a):
                attention(a, first=1)
            def undo(a):
                attention(a, second=1)
        """,
    })  # fmt: skip
    assert sorted(found(site)) == [("first", "error"), ("second", "warning")]


NAMES = [f"model{index}" for index in range(40)]


@pytest.mark.parametrize("file", ["{}.py", "{}/patch.py"])
def test_a_file_for_one_of_many_models_is_a_warning(site, file):
    models = {f"transformers/models/{name}/__init__.py": "" for name in NAMES}
    models |= {f"transformers/models/{name}/modeling_{name}.py": "def rotate(q): pass\n" for name in NAMES}
    site.install(
        "transformers", "4.50.0", {**models, "transformers/__init__.py": "", "transformers/models/__init__.py": ""}
    )
    text = "from transformers.models.NAME.modeling_NAME import rotate\ndef forward(a):\n    rotate(a, gone=a)\n"
    many = {f"peft/models/{file.format(name)}": text.replace("NAME", name) for name in NAMES[:12]}
    site.install("peft", "0.1.0", {**many, "peft/__init__.py": "", "peft/models/__init__.py": ""})
    site.install("trl", "0.1.0", {"trl/__init__.py": "", "trl/model0.py": text.replace("NAME", "model0")})
    assert set(found(site)) == {("gone", "warning")}
    assert found(site, "trl") == [("gone", "error")]


REFUSAL = """
    import flash_attn
    from importlib.metadata import version
    from packaging.version import Version
    class NAMEContainer:
        def __init__(self):
            assert Version(version("flash-attn")) < Version("2.0")
"""


@pytest.mark.parametrize(("count", "severity"), [(12, "warning"), (1, "error")])
def test_a_refusal_by_one_of_many_classes_is_a_warning(site, count, severity):
    site.install("flash-attn", "2.6.3", {"flash_attn/__init__.py": ""})
    files = {f"peft/c{index}.py": REFUSAL.replace("NAME", f"A{index}") for index in range(count)}
    site.install("peft", "0.1.0", {**files, "peft/__init__.py": "".join(f"from . import c{i}\n" for i in range(count))})
    assert {severity for _, severity in found(site)} == {severity}


def test_a_callee_that_a_file_imports_in_functions_only_under_a_condition_is_optional(site):
    site.install("flash-attn", "2.6.3", {"flash_attn/__init__.py": "class Kernel:\n    def __init__(self): pass\n"})
    text = """
        HEAD
        class Context:
            def kernel(self):
                if self.known is None:
                    from flash_attn import Kernel
                    self.known = Kernel(gone=1)
    """
    site.install("peft", "0.1.0", {"peft/__init__.py": text.replace("HEAD", "")})
    site.install("trl", "0.1.0", {"trl/__init__.py": text.replace("HEAD", "import flash_attn")})
    assert found(site) == [("gone", "warning")]
    assert found(site, "trl") == [("gone", "error")]
