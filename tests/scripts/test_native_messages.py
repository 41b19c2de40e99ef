"""The checks of compiled libraries: which file, function and message belong together, from the order of the code."""

import struct

from scripts.release.native_messages import HOLE, compiled_messages

FILE = "/build/aten/src/ATen/native/transformers/attention.cpp"


def load(at, target, register):
    """Return `lea register, [rip + distance]` at an address."""
    return b"\x48\x8d" + bytes([register]) + struct.pack("<i", target - at - 7)


RCX, RSI, RDI, RAX = 0x0D, 0x35, 0x3D, 0x05


def library(code, texts):
    """Return a shared library whose code loads texts: (text, register, bytes of other code after it)."""
    rodata = b"\0"
    places = {}
    for text in texts:
        places[text] = len(rodata)
        rodata += text.encode() + b"\0"
    base, start = 0x10000, 0x100
    body = b""
    for text, register, gap in code:
        body += load(base + len(body), places[text] + start, register) + b"\x90" * gap
    names = b"\0.rodata\0.text\0.shstrtab\0"
    head = bytearray(start)
    head[:5] = b"\x7fELF\x02"
    content = bytes(head) + rodata
    text_at = len(content)
    content += body
    names_at = len(content)
    content += names
    table = len(content)
    rows = (
        (0, 0, 0, 0),
        (1, start, start, len(rodata)),
        (9, base, text_at, len(body)),
        (15, 0, names_at, len(names)),
    )
    for name, address, offset, size in rows:
        content += struct.pack("<IIQQQQ", name, 1, 0, address, offset, size)
    made = bytearray(content)
    struct.pack_into("<Q", made, 0x28, table)
    struct.pack_into("<HHH", made, 0x3A, struct.calcsize("<IIQQQQ"), len(rows), 3)
    return bytes(made)


def read(*code):
    return list(compiled_messages(library(code, dict.fromkeys(text for text, *_ in code))))


def test_a_message_belongs_to_the_file_and_function_that_are_loaded_after_it():
    (found,) = read(("attn_mask has to be bool", RCX, 5), (FILE, RSI, 0), ("validate", RDI, 20))
    assert (found.file, found.function) == ("aten/src/ATen/native/transformers/attention.cpp", "validate")
    assert found.template == "attn_mask has to be bool"


def test_the_pieces_around_values_are_one_message():
    (found,) = read(
        ("got query.dtype: ", RSI, 30), (" and key.dtype: ", RSI, 60), (FILE, RSI, 0), ("validate", RDI, 20)
    )  # fmt: skip
    assert found.template == f"got query.dtype: {HOLE} and key.dtype: " and found.fixed == 33


def test_two_checks_do_not_share_a_message():
    found = read(
        ("the first message", RCX, 5), (FILE, RSI, 0), ("one", RDI, 20),
        ("the second message", RCX, 5), ("two_of_them", RAX, 0), (FILE, RCX, 20),
    )  # fmt: skip
    assert [(item.function, item.template) for item in found] == [
        ("one", "the first message"),
        ("two_of_them", "the second message"),
    ]


def test_a_text_far_before_a_check_is_of_other_code():
    assert read(("another text", RCX, 0x400), (FILE, RSI, 0), ("validate", RDI, 20)) == []


def test_a_check_without_words_states_its_condition():
    unworded = "Expected q.dim() == 4 to be true, but got false. (Could this error message be improved?"
    (found,) = read((unworded, RCX, 5), (FILE, RSI, 0), ("validate", RDI, 20))
    assert found.template == "Expected q.dim() == 4 to be true, but got false"


def test_another_kind_of_file_has_no_messages():
    assert list(compiled_messages(b"MZ" + bytes(200))) == []
    assert list(compiled_messages(b"")) == []
