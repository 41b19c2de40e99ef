"""The wheel that a package was installed from, as pip's direct_url.json names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target
from tests.helpers.fake_trees import install
from tests.helpers.watches import built_in_watch

URL = "https://github.com/Dao-AILab/flash-attention/releases/download/v2.8.3/"
NAME = "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"


def note(site: Path, text: str) -> None:
    install(site, "flash-attn", "2.8.3")
    folder = next(site.glob("flash_attn-2.8.3.dist-info"), None) or next(site.glob("flash*2.8.3*-info"))
    (folder / "direct_url.json").write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("name", [NAME, NAME.replace("+", "%2B")])
def test_the_file_of_the_address(site: Path, target: Target, name: str) -> None:
    note(site, f'{{"url": "{URL}{name}", "archive_info": {{}}}}')
    assert collect(target, built_in_watch(), ("wheel_files",)).value("flash-attn.wheel") == NAME


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 3}', '{"url": "file:///src/flash-attention"}', "\udcff"])
def test_what_is_no_wheel_gives_no_fact(site: Path, target: Target, text: str) -> None:
    note(site, text)
    assert "flash-attn.wheel" not in collect(target, built_in_watch(), ("wheel_files",))
