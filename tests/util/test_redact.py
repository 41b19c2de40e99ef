"""Homes and secrets stay here; everything else stays readable."""

from __future__ import annotations

import re

import pytest

from doctor.util.redact import is_secret, shortened, tilde
from tests.helpers.paths import ROOT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ada/venv/bin/python", "~/venv/bin/python"),
        ("/home/ada", "~"),
        ("/Users/bob/x:/home/eve/y", "~/x:~/y"),
        ("in `/data/own/lib` and /data/own", "in `~/lib` and ~"),
        ("/data/ownership/x", "/data/ownership/x"),
        ("/mnt/data/own/x", "/mnt/data/own/x"),
        ("/usr/lib/home/x", "/usr/lib/home/x"),
        ("9.1.0 /home/ada/lib/libcudnn.so.9", "9.1.0 ~/lib/libcudnn.so.9"),
        ("file:///home/ada/wheel.whl", "file://~/wheel.whl"),
        ("no path", "no path"),
        ("~/already", "~/already"),
    ],
)
def test_homes(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    monkeypatch.setenv("HOME", "/data/own/")
    assert tilde(text) == shown
    assert tilde(shown) == shown


@pytest.mark.parametrize("home", ["", "/", "relative", "/r"])
def test_a_home_that_is_none(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    assert tilde("/root/x /r/y relative/z") == "/root/x /r/y relative/z"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"), ("MY_API_KEY", "1"), ("DB_PASSWORD", "p"), ("X", "hf_abcdefghijklmnop"),
        ("X", "ghp_0123456789abcdef"), ("X", "https://user:pass@host/simple"), ("X", "AKIAIOSFODNN7EXAMPLE"),
        ("X", "a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6a7b8c9d0a1b2"),
    ],
)  # fmt: skip
def test_secrets(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVTE_FLASH_ATTN", "0"), ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/opt/very/long/path/of/libraries/lib1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-9f07a192-29a2-ddcd-a9f1-0b93d25c2fc6"), ("TORCH_CUDA_ARCH_LIST", "8.0;9.0a+PTX"),
    ],
)  # fmt: skip
def test_ordinary_values(name: str, value: str) -> None:
    assert not is_secret(name, value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 17 + "..."),
        ("https://bob:a-long-password-of-his@host/x", "https://…@host/x"),
        ("a https://token-of-someone@h.example/y", "a https://…@h.exa..."),
        (f"a https://{'token' * 3000}@h.example/y", "a https://…@h.exa..."),
        (f"a https://{'token' * 20_000}@h.example/y", "a ..."),
        ("ab https://token@host/x " + "y " * 50_000, "ab https://…@host..."),
    ],
)
def test_credentials_are_hidden_before_a_text_is_cut(text: str, shown: str) -> None:
    assert shortened(text, 20) == shown


def test_messages_are_shortened_by_one_function() -> None:
    """A slice in the braces of a message could cut a credential, so that it is no longer recognized."""
    slices = re.compile(r"\[:\d{2,}\]\}")
    harmless = (
        "hexdigest()",
        "_digest(",
        "target.name",
        "bits",
        "text[-40:]",
        "text[-30:]",
    )  # the last two cut after it
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "doctor").rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if slices.search(line) and not any(word in line for word in harmless)
    ]
    assert not found
