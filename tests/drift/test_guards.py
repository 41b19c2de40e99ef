# ruff: noqa: E501
"""Guards by shape: each keeps a use of the wrong release silent, and leaves the unguarded one to be found."""

from __future__ import annotations

import pytest

CALL_OLD = "attention(a, a, a)"
CALL_NEW = "attention(a, a, a, softcap=0.0)"  # the installed callee has no such parameter

VERSION_GUARDS = {
    "flag of a module": """
        from importlib.metadata import version as get_pkg_version
        from packaging.version import Version as PkgVersion
        _version = PkgVersion(get_pkg_version("flash-attn"))
        _2_7_plus = _version >= PkgVersion("2.7.0")
    """,
    "__version__ and parse": """
        import flash_attn
        from packaging import version
        _2_7_plus = version.parse(flash_attn.__version__) >= version.parse("2.7.0")
    """,
    "pkg_resources": """
        import pkg_resources
        _2_7_plus = pkg_resources.parse_version(pkg_resources.get_distribution("flash_attn").version) >= pkg_resources.parse_version("2.7")
    """,
    "tuple of integers": """
        import flash_attn
        _2_7_plus = tuple(int(x) for x in flash_attn.__version__.split(".")[:2]) >= (2, 7)
    """,
    "release of a version": """
        from importlib import metadata
        from packaging.version import Version
        _2_7_plus = Version(metadata.version("flash_attn")).release >= (2, 7)
    """,
    "string compare, as the code does it": """
        import flash_attn
        _2_7_plus = flash_attn.__version__ > "2.7"
    """,
    "digit_version": """
        import flash_attn
        from mmengine.utils import digit_version
        _2_7_plus = digit_version(flash_attn.__version__) >= digit_version("2.7")
    """,
    "class attribute set by a static method": """
        from importlib.metadata import version
        from packaging.version import Version
        class Utils:
            v2_7_plus = False
            version = None
            @staticmethod
            def set_version():
                Utils.v2_7_plus = Utils.version >= Version("2.7.0")
        Utils.version = Version(version("flash-attn"))
        Utils.set_version()
        _2_7_plus = Utils.v2_7_plus
    """,
    "function with a parameter": """
        import importlib.metadata
        from functools import lru_cache
        from packaging import version
        @lru_cache
        def is_flash_attn_greater_or_equal(text):
            return version.parse(importlib.metadata.version("flash_attn")) >= version.parse(text)
        _2_7_plus = is_flash_attn_greater_or_equal("2.7.0")
    """,
    "version read in a try block": """
        from importlib.metadata import PackageNotFoundError, version
        from packaging.version import Version
        _2_7_plus = False
        try:
            _v = Version(version("flash-attn"))
        except PackageNotFoundError:
            pass
        else:
            if Version("2.1") <= _v <= Version("2.8"):
                _2_7_plus = _v >= Version("2.7.0")
    """,
    "parameters of the signature": """
        import inspect
        from flash_attn import attention
        _2_7_plus = "softcap" in inspect.signature(attention).parameters
    """,
    "list of parameters": """
        import inspect
        from flash_attn import attention
        _2_7_plus = "softcap" in list(inspect.signature(attention).parameters.keys())
    """,
    "getfullargspec": """
        import inspect
        from flash_attn import attention
        _2_7_plus = "softcap" in inspect.getfullargspec(attention).args
    """,
    "hasattr": """
        import flash_attn.interface
        _2_7_plus = hasattr(flash_attn.interface, "softcap_attention")
    """,
    "getattr with a default": """
        import flash_attn.interface
        _2_7_plus = getattr(flash_attn.interface, "softcap_attention", None) is not None
    """,
    "try import": """
        try:
            from flash_attn.interface import softcap_attention
            _2_7_plus = True
        except ImportError:
            _2_7_plus = False
    """,
    "find_spec": """
        import importlib.util
        _2_7_plus = importlib.util.find_spec("flash_attn.softcap") is not None
    """,
}


def indent(text: str) -> str:
    import textwrap

    return textwrap.dedent(text).strip() + "\n"


@pytest.mark.parametrize("name", VERSION_GUARDS)
def test_the_branch_of_another_release_is_not_reported(pair, name):
    text = indent(VERSION_GUARDS[name]) + indent(f"""
        from flash_attn import attention
        def f(a):
            if _2_7_plus:
                return {CALL_NEW}
            return {CALL_OLD}
    """)
    assert pair(text).labels() == []


@pytest.mark.parametrize("name", VERSION_GUARDS)
def test_the_branch_that_runs_is_reported(pair, name):
    text = indent(VERSION_GUARDS[name]) + indent(f"""
        from flash_attn import attention
        def f(a):
            if not _2_7_plus:
                return {CALL_NEW}
            return {CALL_OLD}
    """)
    assert [item[:2] for item in pair(text).labels()] == [("UNEXPECTED_KEYWORD", "softcap")]


def test_keywords_added_under_version_flags(pair):
    text = indent("""
        from importlib.metadata import version
        from packaging.version import Version
        from flash_attn import attention
        v = Version(version("flash-attn"))
        def f(a, causal):
            kwargs = {"scale": 1.0}
            if v >= Version("2.3"):
                kwargs["window"] = (-1, 0) if causal else (-1, -1)
            if v >= Version("2.7"):
                kwargs["softcap"] = 0.0
            return attention(a, a, a, **kwargs)
    """)
    assert pair(text).labels() == []


def test_a_string_compare_is_evaluated_as_a_string_compare(pair):
    text = indent(f"""
        import flash_attn
        from flash_attn import attention
        def f(a):
            if flash_attn.__version__ > "2.7":
                return {CALL_NEW}
            return {CALL_OLD}
    """)
    assert pair(text, version="2.10.0").labels() == []  # "2.10.0" < "2.7" as text


HANDLERS = {
    "import": "try:\n    from flash_attn import gone\nexcept ImportError:\n    gone = None\n",
    "import, any exception": "try:\n    from flash_attn import gone\nexcept Exception:\n    gone = None\n",
    "module": "try:\n    import flash_attn.gone\nexcept ModuleNotFoundError:\n    pass\n",
    "tuple of exceptions": "try:\n    from flash_attn import gone\nexcept (ImportError, AttributeError):\n    pass\n",
    "suppress": "from contextlib import suppress\nwith suppress(ImportError):\n    from flash_attn import gone\n",
    "attribute": "import flash_attn\ndef f():\n    try:\n        return flash_attn.gone\n    except AttributeError:\n        return None\n",
    "call": (
        "from flash_attn import attention\ndef f(a):\n    try:\n        return attention(a, a, a, softcap=1)\n"
        "    except TypeError:\n        return attention(a, a, a)\n"
    ),
    "hasattr and": "import flash_attn\ndef f(a):\n    return hasattr(flash_attn, 'gone') and flash_attn.gone(a)\n",
    "early return": "import flash_attn\ndef f(a):\n    if not hasattr(flash_attn, 'gone'):\n        return a\n    return flash_attn.gone(a)\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HANDLERS)
def test_a_handled_failure_is_not_reported(pair, name):
    assert pair(HANDLERS[name]).labels() == []


UNHANDLED = {
    "handler for another exception": ("try:\n    from flash_attn import gone\nexcept KeyError:\n    gone = None\n", 2),
    "handler that needs the same name": (
        "try:\n    from flash_attn import gone\nexcept ImportError:\n    from flash_attn import gone\n", 4),
    "handler that raises": (
        "try:\n    from flash_attn import gone\nexcept ImportError as e:\n    raise ImportError('too old') from e\n", 2),
    "attribute error is no import error": (
        "import flash_attn\ndef f():\n    try:\n        return flash_attn.gone\n    except ImportError:\n        return None\n", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", UNHANDLED)
def test_a_handler_that_does_not_help_is_reported(pair, name):
    text, line = UNHANDLED[name]
    assert [item[2] for item in pair(text).labels()] == [line]


def test_a_guard_on_an_unknown_version_makes_the_finding_unknown(pair):
    text = indent(f"""
        import torch
        from packaging.version import Version
        from flash_attn import attention
        def f(a):
            if Version(torch.__version__) >= Version("2.5"):
                return {CALL_NEW}
    """)
    site = pair(text)
    (finding,) = site.result().findings
    assert site.labels() == [] and finding.certainty.value == "unknown" and "torch.__version__" in finding.unknown
    (verdict,) = site.result().pairs
    assert verdict.verdict.value == "unknown"


def test_a_guard_on_the_workload_leaves_the_finding_definite(pair):
    text = indent(f"""
        from flash_attn import attention
        def f(a, softcap):
            if a.is_cuda:
                return {CALL_NEW}
    """)
    (finding,) = pair(text).definite()
    assert finding.conditions == ("a.is_cuda",)


def test_a_keyword_that_the_workload_adds_to_a_call_that_fits_is_possible_only(pair):
    text = indent("""
        from flash_attn import attention
        def f(a, softcap):
            kwargs = {}
            if softcap is not None:
                kwargs["softcap"] = softcap
            return attention(a, a, a, **kwargs)
    """)
    site = pair(text)
    assert site.labels() == [] and [item.certainty.value for item in site.result().findings] == ["possible"]


def test_branches_of_one_condition_stay_together(pair):
    text = indent("""
        from flash_attn.interface import attention, backward
        def f(a, thd):
            kwargs = {"scale": 1.0}
            fn = attention
            if thd == "thd":
                fn = backward
                kwargs = {"softcap": 0.0}
            return fn(a, a, a, a, **kwargs) if thd == "thd" else fn(a, a, a, **kwargs)
    """)
    assert pair(text).labels() == []


def test_a_package_that_is_not_installed_takes_the_import_error_branch(pair):
    text = indent(f"""
        try:
            import another_attention
            NEW = True
        except ImportError:
            NEW = False
        from flash_attn import attention
        def f(a):
            return {CALL_NEW} if NEW else {CALL_OLD}
    """)
    assert pair(text).labels() == []


def test_a_refused_version_is_reported_where_nothing_else_decides(pair):
    text = indent("""
        from importlib.metadata import version
        from packaging.version import Version
        v = Version(version("flash-attn"))
        class Attention:
            def __init__(self):
                assert v <= Version("2.5.8"), "too new"
    """)
    (finding,) = pair(text).definite()
    assert (finding.kind.name, finding.callee.name, finding.reach.value) == (
        "VERSION_REFUSED",
        "flash-attn",
        "construction",
    )


def test_a_module_behind_a_dead_import_is_not_reported(pair):
    text = indent("""
        from importlib.metadata import version
        from packaging.version import Version
        if Version(version("flash-attn")) >= Version("2.7"):
            from .newer import x
    """)
    assert pair(text, more={"peft/newer.py": "from flash_attn.interface import gone as x\n"}).labels() == []


def test_isinstance_of_an_object_made_here_is_known(pair):
    text = indent("""
        from flash_attn import Kernel
        class Other(Kernel):
            def more(self): return 1
        def helper(k):
            if isinstance(k, Other):
                return k.gone()
            return k.run(1)
        def f():
            return helper(Kernel(3))
    """)
    assert pair(text).labels() == []


def test_flags_and_functions_of_a_device_branch_belong_together(pair):
    text = indent(f"""
        from importlib.metadata import version
        from packaging.version import Version
        import torch
        attention = None
        OLD = False
        v = Version(version("flash-attn"))
        if torch.cuda.get_device_capability() >= (10, 0):
            if v >= Version("2.7.3"):
                from flash_attn import attention
                OLD = v < Version("2.7")
        elif v >= Version("2.1"):
            from flash_attn import attention
            OLD = v < Version("2.7")
        def f(a):
            if OLD:
                return {CALL_OLD}
            return {CALL_NEW}
    """)
    assert pair(text).labels() == []


def test_a_name_that_a_function_binds_is_not_the_one_of_the_module(pair):
    text = indent(f"""
        from flash_attn import attention
        def f(a, other):
            if other is not None:
                attention = other.attention
            return {CALL_NEW}
        def g(a):
            global attention
            return {CALL_NEW}
    """)
    assert [item[2] for item in pair(text).labels()] == [8]


def test_a_function_inside_a_method_takes_no_instance(pair):
    text = """
        from flash_attn import Kernel
        class Mine(Kernel):
            def prepare(self, rows):
                def tokenize(example, size):
                    return example.gone(size)
                return rows.map(tokenize)
    """
    assert pair(text).labels() == []


def test_methods_bound_by_class_name_in_a_function_get_that_class(pair):
    text = """
        import types
        import flash_attn
        def dispatch(model):
            from .methods import run
            for module in model.modules():
                if type(module).__name__ in ("Kernel", "Other"):
                    module.run = types.MethodType(run, module)
    """
    method = "import flash_attn\ndef run(self, q):\n    return self.gone(q)\n"
    found = pair(text, more={"peft/methods.py": method}).definite()
    assert [(item.name, str(item.site)) for item in found] == [("gone", "peft/methods.py:3")]


def test_an_attribute_that_one_of_several_served_classes_has_depends_on_the_workload(pair):
    callee = {
        "flash_attn/__init__.py": "",
        "flash_attn/interface.py": "class Old:\n    def run(self): pass\nclass New:\n    def run(self): pass\n    def scale(self): pass\n",
    }
    text = """
        from flash_attn.interface import Old, New
        def run(self):
            return self.scale()
        Old.run = run
        New.run = run
    """
    (finding,) = pair(text, callee=callee).result().findings
    assert finding.certainty.value == "possible" and "another class" in finding.unknown


def test_attributes_that_the_caller_gives_to_objects_are_there(pair):
    text = """
        from flash_attn import Kernel
        def patch(model):
            model.kernel.extra = 1
            setattr(model.kernel, "more", 2)
        def run(self, q):
            return self.extra, self.more, hasattr(self, "maybe") and self.maybe
        Kernel.run = run
    """
    assert pair(text).labels() == []


def test_a_decorator_with_its_own_parameters_replaces_the_signature(pair):
    callee = {
        "flash_attn/__init__.py": "",
        "flash_attn/interface.py": """
            import functools
            def update(function):
                @functools.wraps(function)
                def wrapper(x, position_ids):
                    return function(x, position_ids)
                return wrapper
            @update
            def rotate(x, position_ids, **kwargs): return x
        """,
    }
    text = "from flash_attn.interface import rotate\ndef f(a):\n    rotate(a, a)\n    rotate(a, seq_len=a)\n"
    assert pair(text, callee=callee).labels() == [
        ("MISSING_ARGUMENT", "position_ids", 4),
        ("UNEXPECTED_KEYWORD", "seq_len", 4),
    ]


def test_a_module_behind_an_option_that_names_it_is_a_feature(pair):
    text = 'def f(kind):\n    if kind == "cute":\n        from flash_attn.cute import attention\n    else:\n        import flash_attn\n'
    (finding,) = pair(text).result().findings
    assert finding.reach.value == "feature" and finding.severity.value == "note"


def test_part_of_an_environment_may_have_flash_attn(site):
    files = {
        "peft/__init__.py": "",
        "peft/use.py": """
            import transformers
            try:
                import flash_attn
                HAS = True
            except ImportError:
                HAS = False
            def f(a):
                if HAS:
                    transformers.gone(a)
        """,
    }
    site.install("transformers", "4.50.0", {"transformers/__init__.py": "x = 1\n"})
    site.install("peft", "0.1.0", files)
    assert [item.name for item in site.definite()] == ["gone"]
    site.install("torch", "2.6.0", {"torch/__init__.py": ""})
    assert site.definite() == []


def test_a_comparison_chosen_by_name_is_evaluated(pair):
    text = """
        import importlib.metadata
        import operator as op
        from packaging.version import Version, parse
        OPERATIONS = {">": op.gt, "<": op.lt}
        def compare_versions(library, operation, wanted):
            if operation not in OPERATIONS.keys():
                raise ValueError(operation)
            operation = OPERATIONS[operation]
            if isinstance(library, str):
                library = parse(importlib.metadata.version(library))
            return operation(library, parse(wanted))
        def f():
            if compare_versions("flash-attn", "<", "2.0"):
                from flash_attn import gone
            elif compare_versions("flash-attn", ">", "2.0"):
                from flash_attn import lost
    """
    assert [(kind, name) for kind, name, _ in pair(text).labels()] == [("MISSING_NAME", "lost")]


def test_a_lazy_package_reaches_what_it_imports_for_type_checkers(pair):
    lazy = """
        import sys
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from .use import f
        else:
            from .lazy import LazyModule
            sys.modules[__name__] = LazyModule(__name__, {"use": ["f"]})
    """
    text = "from flash_attn import gone\ndef f(): pass\n"
    assert [name for _, name, _ in pair(text, more={"peft/__init__.py": lazy}).labels()] == ["gone"]


def test_a_function_that_wraps_another_is_not_passed_to_it(pair):
    text = """
        import functools
        import flash_attn
        from flash_attn import attention
        def patch(a):
            def wrapper(*given):
                return attention(a, a, a)
            flash_attn.attention = functools.wraps(attention)(wrapper)
            names = flash_attn.__dict__
            attention(names)
    """
    assert [name for _, name, _ in pair(text).labels()] == ["k", "v"]
