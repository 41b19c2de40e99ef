"""Small synthetic packages, written to a folder laid out like site-packages."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.drift.analysis import analyze_caller
from doctor.drift.collector import breaks
from doctor.drift.findings import CallerResult, Finding
from doctor.drift.sources import Environment, is_readable
from tests.helpers.rulebook import builtin_stack

Files = dict[str, str]


class Site:
    """A site-packages folder under construction; the caller is `peft` and the callee `flash_attn` unless named."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def install(self, distribution: str, version: str, files: Files) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        information = self.root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")

    def result(self, caller: str = "peft") -> CallerResult:
        environment = Environment([self.root], builtin_stack())
        callees = [item for item in environment.packages.values() if is_readable(item)]
        return analyze_caller(environment, environment.packages[caller], callees)

    def definite(self, caller: str = "peft") -> list[Finding]:
        return [item for item in self.result(caller).findings if breaks(item)]

    def labels(self, caller: str = "peft") -> list[tuple[str, str, int]]:
        """Kind, missing name and line of every definite finding."""
        return [(item.kind.name, item.name, item.site.line) for item in self.definite(caller)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return Site(folder)


CALLEE = {
    "flash_attn/__init__.py": '__version__ = "2.6.3"\nfrom .interface import attention, Kernel\n',
    "flash_attn/interface.py": """
        def attention(q, k, v, scale=None, *, window=None):
            return q
        def backward(dout, q, k, v, softcap, rng=None):
            return q, k, v
        def pair(q):
            return q, q
        class Kernel:
            limit = 8
            def __init__(self, size, *, causal=False):
                self.size = size
            def run(self, q):
                return self.helper(q)
            def helper(self, q):
                return q
    """,
}


@pytest.fixture
def pair(site: Site) -> Callable[..., Site]:
    """Install a callee like flash-attn 2.6.3, and a caller with the given module."""

    def install(text: str, version: str = "2.6.3", callee: Files = CALLEE, more: Files | None = None) -> Site:
        files = {name: content.replace("2.6.3", version) for name, content in callee.items()}
        site.install("flash-attn", version, files)
        site.install("peft", "0.1.0", {"peft/__init__.py": "", "peft/use.py": text, **(more or {})})
        return site

    return install
