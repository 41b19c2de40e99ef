# ruff: noqa: E501
"""Every kind of use that is checked, broken and right."""

from __future__ import annotations

import pytest

BROKEN = {
    "module": ("import flash_attn.gone\n", ("MISSING_MODULE", "flash_attn.gone", 1)),
    "module of a from import": ("from flash_attn.gone import x\n", ("MISSING_MODULE", "flash_attn.gone", 1)),
    "name": ("from flash_attn.interface import gone\n", ("MISSING_NAME", "gone", 1)),
    "name in a function": ("def f():\n    from flash_attn.interface import gone\n", ("MISSING_NAME", "gone", 2)),
    "attribute of a module": (
        "import flash_attn\ndef f():\n    return flash_attn.gone(1)\n", ("MISSING_ATTRIBUTE", "gone", 3)),
    "attribute of a class": (
        "from flash_attn import Kernel\ndef f():\n    return Kernel.gone\n", ("MISSING_ATTRIBUTE", "gone", 3)),
    "attribute of an instance": (
        "from flash_attn import Kernel\ndef f():\n    k = Kernel(3)\n    k.gone(1)\n", ("MISSING_ATTRIBUTE", "gone", 4)),
    "attribute of an instance held by self": (
        "from flash_attn import Kernel\nclass A:\n    def __init__(self):\n        self.k = Kernel(3)\n"
        "    def f(self):\n        self.k.gone(1)\n", ("MISSING_ATTRIBUTE", "gone", 6)),
    "method of a subclass": (
        "from flash_attn import Kernel\nclass Mine(Kernel):\n    def f(self, q):\n        return self.gone(q)\n",
        ("MISSING_ATTRIBUTE", "gone", 4)),
    "required argument": (
        "from flash_attn.interface import backward\ndef f(a):\n    backward(a, a, a, a, rng=None)\n",
        ("MISSING_ARGUMENT", "softcap", 3)),
    "required argument of a constructor": (
        "from flash_attn import Kernel\ndef f():\n    return Kernel(causal=True)\n", ("MISSING_ARGUMENT", "size", 3)),
    "keyword": (
        "from flash_attn import attention\ndef f(a):\n    attention(a, a, a, dropout=1)\n",
        ("UNEXPECTED_KEYWORD", "dropout", 3)),
    "keyword of super().__init__": (
        "from flash_attn import Kernel\nclass Mine(Kernel):\n    def __init__(self):\n"
        "        super().__init__(3, dropout=1)\n", ("UNEXPECTED_KEYWORD", "dropout", 4)),
    "positionals": (
        "from flash_attn import attention\ndef f(a):\n    attention(a, a, a, 1.0, None)\n", ("TOO_MANY_POSITIONALS", "", 3)),
    "argument given twice": (
        "from flash_attn import attention\ndef f(a):\n    attention(a, a, a, q=a)\n", ("DUPLICATE_ARGUMENT", "q", 3)),
    "unpacked length": (
        "from flash_attn.interface import pair\ndef f(a):\n    x, y, z = pair(a)\n", ("UNPACK_LENGTH", "3", 3)),
    "index": ("from flash_attn.interface import pair\ndef f(a):\n    r = pair(a)\n    return r[2]\n", ("INDEX_RANGE", "2", 4)),
    "functools.partial": (
        "import functools\nfrom flash_attn import attention\ng = functools.partial(attention, dropout=1)\n"
        "def f(a):\n    attention\n    return g(a, a, a)\n", ("UNEXPECTED_KEYWORD", "dropout", 6)),
    "name through a re-export": (
        "from flash_attn import attention as fn\ndef f(a):\n    call = fn\n    return call(a, a)\n",
        ("MISSING_ARGUMENT", "v", 4)),
    "dict built step by step": (
        "from flash_attn import attention\ndef f(a, b):\n    d = {'scale': 1}\n    d['dropout'] = b\n"
        "    return attention(a, a, a, **d)\n", ("UNEXPECTED_KEYWORD", "dropout", 5)),
    "function passed to a helper": (
        "from flash_attn import attention\ndef helper(fn, a, **kw):\n    return fn(a, a, a, **kw)\n"
        "def f(a):\n    return helper(attention, a, dropout=1)\n", ("UNEXPECTED_KEYWORD", "dropout", 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_use_is_found_at_its_line(pair, name):
    text, expected = BROKEN[name]
    assert pair(text).labels() == [expected]


RIGHT = {
    "imports": "import flash_attn.interface\nfrom flash_attn import attention, Kernel, __version__\n",
    "calls": "from flash_attn import attention\ndef f(a):\n    return attention(a, a, v=a, window=1)\n",
    "star arguments": "from flash_attn import attention\ndef f(*a, **k):\n    return attention(*a, **k)\n",
    "open keywords": "from flash_attn.interface import backward\ndef f(a, d):\n    return backward(a, **d)\n",
    "unpacking": "from flash_attn.interface import pair\ndef f(a):\n    x, y = pair(a)\n    x, *r = pair(a)\n    return pair(a)[-2]\n",
    "methods": "from flash_attn import Kernel\ndef f(a):\n    k = Kernel(3, causal=True)\n    return k.run(a), k.size, k.limit\n",
    "an attribute that the caller sets": (
        "from flash_attn import Kernel\ndef f(a):\n    k = Kernel(3)\n    k.extra = a\n    return k.extra(a)\n"
    ),
    "a name that the caller patches in": (
        "import flash_attn\ndef mine(a): return a\nflash_attn.gone = mine\ndef f(a):\n    return flash_attn.gone(a)\n"
    ),
    "type checking only": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flash_attn import gone\ndef f(a: 'gone'): return a\n"
    ),
    "dead code": "from flash_attn import attention\ndef f(a):\n    return a\n    attention(a)\n",
    "an unknown decorator": "from flash_attn import attention\nfrom unknown import wrap\nattention = wrap(attention)\ndef f(a):\n    attention(a)\n",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_use_is_not_reported(pair, name):
    assert pair(RIGHT[name]).labels() == []


def test_the_finding_names_site_definition_and_signature(pair):
    text = "from flash_attn.interface import backward\ndef f(a):\n    backward(a, a, a, a)\n"
    (finding,) = pair(text).definite()
    assert (finding.symbol, finding.name) == ("flash_attn.interface.backward", "softcap")
    assert str(finding.site) == "peft/use.py:3" and finding.scope == "f"
    assert str(finding.definition) == "flash_attn/interface.py:4"
    assert finding.signature == "backward(dout, q, k, v, softcap, rng=None)"
    assert str(finding.caller) == "peft 0.1.0" and str(finding.callee) == "flash-attn 2.6.3"


def test_an_override_that_the_base_class_cannot_call_is_a_warning(pair):
    text = "from flash_attn import Kernel\nclass Mine(Kernel):\n    def helper(self):\n        return 1\n"
    (finding,) = pair(text).result().findings
    assert (finding.kind.name, finding.severity.value) == ("INCOMPATIBLE_OVERRIDE", "warning")
    assert finding.site.line == 3


def test_custom_op_wrappers_keep_the_signature(pair):
    callee = {
        "flash_attn/__init__.py": "",
        "flash_attn/interface.py": """
            import torch
            if torch.__version__ >= "2.4.0":
                wrapper = torch.library.custom_op
            else:
                def noop(name, fn=None, /, *, mutates_args):
                    def wrap(func):
                        return func
                    return wrap
                wrapper = noop
            @wrapper("flash_attn::op", mutates_args=())
            def op(q, k):
                return q, k
        """,
    }
    text = "from flash_attn.interface import op\ndef f(a):\n    x, y, z = op(a)\n"
    assert {item[0] for item in pair(text, callee=callee).labels()} == {"MISSING_ARGUMENT", "UNPACK_LENGTH"}


OPERATORS = {
    "flash_attn/__init__.py": "",
    "flash_attn/interface.py": """
        import torch
        @torch.library.custom_op(
            "flash_attn::_forward", mutates_args=(), device_types="cuda"
        )
        def _flash_attn_forward(q, k, v, softcap):
            return q
    """,
}


@pytest.mark.parametrize(
    "call", ["torch.ops.flash_attn._forward(a, a, a)", "op = torch.ops.flash_attn._forward.default; op(a, a, a)"]
)
def test_a_custom_operator_is_checked_by_its_python_function(pair, call):
    text = f"import torch\ndef f(a):\n    {call}\n"
    assert pair(text, callee=OPERATORS).labels() == [("MISSING_ARGUMENT", "softcap", 3)]


def test_an_operator_that_no_source_registers_is_unknown(pair):
    text = "import torch\ndef f(a):\n    torch.ops.flash_attn.compiled(a)\n    torch.ops.flash_attn._forward(a, a, a, 0.0)\n"
    assert pair(text, callee=OPERATORS).labels() == []


def test_a_deferred_import_under_a_condition_is_a_warning(pair):
    text = """
        def always():
            from flash_attn import gone
        def sometimes(sharded):
            if sharded:
                from flash_attn import lost
    """
    found = {item.name: item.severity.value for item in pair(text).definite()}
    assert found == {"gone": "error", "lost": "warning"}
