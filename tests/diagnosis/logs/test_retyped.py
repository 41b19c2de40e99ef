"""Messages in other quotes, words and languages than those of Python are read as Python words them."""

import pytest

from doctor.diagnosis.logs.retyped import retyped


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: ‘Box’ object has no attribute ‘size’",
        'AttributeError: "Box" object has no attribute "size"',
        "AttributeError：`Box` object has no attribute `size`",
        "AttributeError: Box object has no attribute size.",
        "AttributeError: Box has no attirbute size",
        "AttributeError: 'Box 'has no attribute' size '",
        "AttributeError: 'Box' object has no attribute 'size'",
    ],
)
def test_a_missing_attribute(line):
    assert retyped(line) == "AttributeError: 'Box' object has no attribute 'size'"


@pytest.mark.parametrize(
    ("line", "worded"),
    [
        ("no module named flash-attn", "No module named 'flash_attn'"),
        ("ModuleNotFoundError: No module named “a.b”", "ModuleNotFoundError: No module named 'a.b'"),
        ("can't import name Net from a.b", "cannot import name 'Net' from 'a.b'"),
        ('f() got an unexpected keyword argument "mask"', "f() got an unexpected keyword argument 'mask'"),
        ('NameError: name "np" is not defined', "NameError: name 'np' is not defined"),
        ("module a.b has no attribute c", "module 'a.b' has no attribute 'c'"),
        ("x.so：未定义符号：_Z1f", "x.so: undefined symbol: _Z1f"),
        ("libx.so.1: 无法打开共享对象文件：没有", "libx.so.1: cannot open shared object file: 没有"),
        ("libx.so.1: Kann die Shared-Object-Datei nicht öffnen", "libx.so.1: cannot open shared object file"),
        ("libx.so.1: не удалось открыть общий объектный файл", "libx.so.1: cannot open shared object file"),
    ],
)
def test_other_messages(line, worded):
    assert retyped(line) == worded


@pytest.mark.parametrize("line", ["loss 0.5 | lr 1e-4", "No module named 'a.b'; try pip", "step 3: name of the run"])
def test_a_line_in_the_words_of_python_stays(line):
    assert retyped(line) == line


@pytest.mark.parametrize(
    "line",
    [
        "ImportError: cannot import name “flash_attn_unpadded_func” from “flash_attn”",
        "ImportError: cannot import name &#39;flash_attn_unpadded_func&#39; from &#39;flash_attn&#39;",
        "ImportError: cannot import name 'flash\\_attn\\_unpadded\\_func' from 'flash\\_attn'",
        "ImportError:\u00a0cannot\u00a0import name\u202f'flash_attn_\u200bunpadded_func' from 'flash_attn'",
        "importerror: cannot import name flash_attn_unpadded_func from flash_attn",
        """'ImportError: cannot import name \\'flash_attn_unpadded_func\\' from \\'flash_attn\\' ("/x/__init__.py")'""",
    ],
)
def test_the_cause_is_found_in_any_form(explain, line):
    found = explain(f"epoch 1\n{line}\nepoch 2\n", fixes=False).diagnosis
    assert [item.rule for item in found][:1] == ["LOGFA021"]
