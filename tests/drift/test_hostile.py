"""Sources that no analyzer should trust: each is skipped with one line, and the rest is still checked."""

from __future__ import annotations

import time

import pytest

from doctor.drift.analysis import analyze_caller
from doctor.drift.sources import FILE_LIMIT, Environment, is_readable
from tests.helpers.rulebook import builtin_stack

BROKEN_USE = "from flash_attn.interface import gone\n"

SKIPPED = {
    "syntax error": b"import flash_attn\ndef f(:\n",
    "Python 2": b"import flash_attn\nprint 'x'\nexec 'y' in {}\n",
    "undecodable bytes": b"import flash_attn\nx = '\xff\xfe\xff'\n",
    "unknown encoding": b"# -*- coding: no-such-codec -*-\nimport flash_attn\n",
    "null bytes": b"import flash_attn\n\0\0\0\n",
    "brackets": b"import flash_attn\nx = " + b"[" * 5000 + b"]" * 5000 + b"\n",
    "generated": b"import flash_attn\n" + b"x = 1\n" * (FILE_LIMIT // 6 + 10),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_a_file_that_cannot_be_read_costs_one_line(pair, name):
    site = pair(BROKEN_USE)
    (site.root / "peft" / "bad.py").write_bytes(SKIPPED[name])
    result = site.result()
    assert [item.name for item in result.findings] == ["gone"]
    assert len([item for item in result.notices if "bad.py" in item.subject]) == 1
    assert all("\n" not in item.reason for item in result.notices)


ENDURED = {
    "long chain of operators": "import flash_attn\nx = " + " + ".join(["flash_attn.y"] * 3000) + "\n",
    "nested functions": "import flash_attn\n"
    + "".join(f"{'  ' * i}def f{i}():\n" for i in range(60))
    + "  " * 60
    + "pass\n",
    "deep if": "import flash_attn\n" + "".join(f"{' ' * i}if a{i}:\n" for i in range(80)) + " " * 80 + "x = 1\n",
    "a million assignments in branches": (
        "from flash_attn import attention\ndef f(a):\n    d = {}\n"
        + "".join(f"    if a.c{i}:\n        d['k{i}'] = attention\n" for i in range(300))
        + "    attention(a, a, a, **d)\n"
    ),
    "recursion": "from flash_attn import attention\ndef f(a):\n    return g(attention)\ndef g(h):\n    return f(h)\n",
    "huge repetition": "import flash_attn\nx = [0] * 10 ** 9\ny = 'a' * 10 ** 9\nz = 9 ** 9 ** 9\n",
    "endless loop": "from flash_attn import attention\ndef f(a):\n    while True:\n        attention(a, a, a)\n",
    "own import": "import peft.bad\nfrom .bad import x\nfrom . import bad\nimport flash_attn\n",
    "star circle": "from .other import *\nimport flash_attn\n",
    "class that inherits from itself": "import flash_attn\nclass A(A): pass\nclass B(flash_attn.Kernel, B): pass\n",
    "names of the interpreter": "import flash_attn\n__class__ = 1\n__name__ = 2\nglobals()['x'] = 3\ndel __name__\n",
    "lambda and walrus": "import flash_attn\nf = lambda *a, **k: (y := flash_attn.attention(*a, **k))\nf(1)\n",
}


@pytest.mark.parametrize("name", ENDURED)
def test_odd_code_neither_crashes_nor_hangs(pair, name):
    site = pair(BROKEN_USE, more={"peft/other.py": "from .bad import *\n"})
    (site.root / "peft" / "bad.py").write_text(ENDURED[name])
    started = time.process_time()
    assert "gone" in [item.name for item in site.result().findings]
    assert time.process_time() - started < 20


def test_links_that_form_a_loop_are_not_followed(pair):
    site = pair(BROKEN_USE)
    (site.root / "peft" / "loop").symlink_to(site.root / "peft", target_is_directory=True)
    (site.root / "peft" / "self.py").symlink_to(site.root / "peft" / "self.py")
    assert [str(item.site) for item in site.result().findings] == ["peft/use.py:1"]


def test_a_hostile_callee_is_unknown_and_nothing_is_missing(pair):
    site = pair("from flash_attn.interface import gone\nfrom flash_attn.folder import x\n")
    (site.root / "flash_attn" / "interface.py").write_bytes(b"def f(:\n")
    (site.root / "flash_attn" / "folder.py").write_bytes(b"x = '\xff'\n")
    assert site.result().findings == ()


def test_a_compiled_module_has_unknown_names(pair):
    site = pair("from flash_attn.native import anything\nimport flash_attn_2_cuda\nflash_attn_2_cuda.fwd(1)\n")
    (site.root / "flash_attn" / "native.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    assert site.result().findings == ()


def test_a_module_with_getattr_and_a_lazy_module_answer_for_names_they_list(site):
    site.install("flash-attn", "2.6.3", {
        "flash_attn/__init__.py": "def __getattr__(name):\n    return 1\n",
    })  # fmt: skip
    site.install("transformers", "5.0.0", {
        "transformers/__init__.py": """
            import sys
            from typing import TYPE_CHECKING
            from .utils import _LazyModule
            _import_structure = {"models": ["AutoThing"]}
            if TYPE_CHECKING:
                from .models import AutoThing
            else:
                sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], _import_structure)
        """,
        "transformers/utils.py": "class _LazyModule: pass\n",
        "transformers/models.py": "class AutoThing:\n    pass\n__all__ = ['AutoThing', 'Listed']\nListed = AutoThing\n",
    })  # fmt: skip
    site.install("peft", "0.1.0", {
        "peft/__init__.py": "from flash_attn import whatever\nfrom transformers import AutoThing, Listed, AutoGone\n"
    })  # fmt: skip
    assert [item.name for item in site.definite()] == ["AutoGone"]


LAZY_CLASS = """
    from types import ModuleType
    class _LazyModule(ModuleType):
        def __getattr__(self, name):
            if name.endswith("TokenizerFast"):
                return getattr(self, name[:-4])
            if name.endswith("Tokenizer"):
                from .converters import CONVERTERS
                return CONVERTERS[name]
            raise AttributeError(name)
"""


def test_a_lazy_module_gives_names_that_its_class_works_out_by_their_ending(site):
    site.install("transformers", "5.0.0", {
        "transformers/__init__.py": """
            import sys
            from .utils import _LazyModule
            sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], {})
        """,
        "transformers/utils.py": LAZY_CLASS,
        "transformers/converters.py": "CONVERTERS = {'FNetTokenizer': 1}\n",
        "transformers/models.py": "__all__ = ['T5Tokenizer']\nclass T5Tokenizer: ...\n",
    })  # fmt: skip
    site.install("peft", "0.1.0", {
        "peft/__init__.py": """
            from transformers import FNetTokenizer, FNetTokenizerFast, T5TokenizerFast
            from transformers import GoneTokenizer, GoneTokenizerFast, T5Fast
        """
    })  # fmt: skip
    assert [item.name for item in site.definite()] == ["GoneTokenizer", "GoneTokenizerFast", "T5Fast"]


def test_modules_that_a_finder_serves_by_a_regular_expression_are_there(site):
    site.install("transformers", "5.0.0", {
        "transformers/__init__.py": """
            import re
            import sys
            from .finder import Finder
            OLD = re.compile(rf"{re.escape(__name__)}\\.models\\.(\\w+)\\.image_(?!pil_)(\\w+)_fast")
            EVIL = re.compile(r"(transformers(a+)+)+$")
            sys.meta_path.append(Finder(OLD))
        """,
        "transformers/finder.py": "class Finder: pass\n",
        "transformers/models/__init__.py": "", "transformers/models/clip/__init__.py": "",
    })  # fmt: skip
    site.install("peft", "0.1.0", {
        "peft/__init__.py": """
            from transformers.models.clip.image_clip_fast import Fast
            from transformers.models.clip.image_clip_slow import Slow
        """
    })  # fmt: skip
    assert [item.symbol for item in site.definite()] == ["transformers.models.clip.image_clip_slow"]


def test_an_unreadable_folder_is_a_notice(tmp_path):
    environment = Environment([tmp_path / "nowhere"], builtin_stack())
    assert not environment.packages and "cannot be read" in environment.notices[0].reason


def test_a_project_folder_is_examined_under_its_own_paths(pair, tmp_path):
    site = pair("")
    project = tmp_path / "my project"
    (project / ".venv").mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("")
    (project / ".venv" / "x.py").write_text(BROKEN_USE)
    (project / "train.py").write_text(BROKEN_USE)
    environment = Environment([site.root], builtin_stack(), code=[project])
    code = next(item for item in environment.packages.values() if item.is_code)
    result = analyze_caller(environment, code, [item for item in environment.packages.values() if is_readable(item)])
    assert [str(item.site) for item in result.findings] == [f"{project}/train.py:1"]
