"""The table of options: archives are fetched and read, and nothing of them runs."""

import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "release"))

import refresh_options

SOURCE = """
raise SystemExit("this ran")
class EngineArgs:
    attention_backend: str | None = None
    flash_attn_version: Literal[2, 3] = 2
    max_tokens: int = 0
parser.add_argument("--use-flash-attn", action="store_true")
"""


def test_options_come_from_the_archive_that_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, version: str, into: Path) -> Path:
        path = into / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("server/engine/arg_utils.py", SOURCE)
        return path

    monkeypatch.setattr(refresh_options, "fetch_archive", fetch)
    archive = refresh_options._archive("server", "1.0", tmp_path)
    assert refresh_options._options(archive, ("engine/arg_utils",)) == {
        "attention_backend": {},
        "flash_attn_version": {"default": 2, "choices": [2, 3]},
        "use_flash_attn": {"default": False},
    }
    monkeypatch.setattr(refresh_options, "fetch_archive", None)  # it is there
    assert refresh_options._archive("server", "1.0", tmp_path) == archive


def test_the_newest_release_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_options, "published_releases", lambda name: ("1.0", "1.1", "1.2rc1"))
    assert refresh_options._release("server") == ("server", "1.1")
    assert refresh_options._release("server==1.2rc1") == ("server", "1.2rc1")
