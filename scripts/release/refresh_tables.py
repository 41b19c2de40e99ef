"""Which script renews which generated table, and for which packages: run by `refresh.py --tables`.

A script runs where a package that its table is about has a new release, and for those packages alone. Not among them
are `refresh_symbols.py`, `refresh_fits.py` and `record_wheels.py`, which read gigabytes of wheels, and
`refresh_wheels.py`, which needs a clone.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from table_files import read_table  # noqa: E402

from doctor.errors import DoctorError  # noqa: E402
from doctor.packages.archives import fetch_archive  # noqa: E402
from doctor.rulebook.tables import RowKey  # noqa: E402

MESSAGES = ROOT / "rules" / "index" / "messages"


class Table(NamedTuple):
    """A script that writes a table."""

    script: str
    about: Callable[[], Collection[str]]  # the packages whose new releases change the table
    #: `{cache}` is a folder of its own, `{releases}` that of the stores, `{archives}` that of the new releases
    arguments: Sequence[str] = ()
    only: bool = False  # `--only` takes names of packages
    named: bool = False  # releases are arguments: NAME==VERSION


def _listed(module: str, name: str) -> Callable[[], Collection[str]]:
    return lambda: getattr(importlib.import_module(module), name)


TABLES = (
    Table("make_name_history.py", _listed("make_name_history", "PACKAGES"), ("--cache", "{cache}"), only=True),
    Table("make_known_names.py", _listed("make_known_names", "PACKAGES"), only=True),
    Table("refresh_names.py", lambda: ()),
    Table("refresh_imports.py", _listed("refresh_imports", "CALLERS"), ("--cache", "{releases}"), only=True),
    Table("refresh_declared.py", _listed("refresh_declared", "CALLERS"), ("--cache", "{cache}"), only=True),
    Table("refresh_checked.py", lambda: {RowKey.of(key).caller for key in read_table("checked")["rows"]}, only=True),
    Table("refresh_api_history.py", _listed("refresh_api_history", "CALLEES"), ("--cache", "{cache}")),
    Table("refresh_pins.py", lambda: {"torchaudio", "sgl-kernel", "sglang-kernel", "sglang", "vllm"}),
    Table("refresh_models.py", lambda: {"transformers"}, ("--wheels", "{cache}")),
    Table("refresh_model_configs.py", lambda: {"transformers"}, ("{transformers}",)),
    Table("refresh_server_models.py", _listed("refresh_server_models", "SERVERS"), ("--transformers", "{transformers}"),
          only=True),
    Table("refresh_messages.py", lambda: {path.name.removesuffix(".json.xz") for path in MESSAGES.glob("*.json.xz")},
          ("--archives", "{archives}"), only=True),
    Table("refresh_options.py", _listed("refresh_options", "LIBRARIES"), ("--folder", "{archives}"), named=True),
)  # fmt: skip


def renew(
    cache: Path, new: dict[str, list[str]], newest: Callable[[str], str], tables: Sequence[Table] = TABLES
) -> Iterator[str]:
    """Run the scripts whose tables are about a package with new releases; yield what each did."""
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    for table in tables:
        names = sorted(set(table.about()) & set(new))
        if table.about() and not names:
            yield f"{table.script}: nothing new"
            continue
        try:
            yield f"{table.script}: {_run(table, names, cache, archives, new, newest)}"
        except DoctorError as error:
            yield f"{table.script} failed: {error.message}"


def _run(
    table: Table, names: list[str], cache: Path, archives: Path, new: dict[str, list[str]], newest: Callable[[str], str]
) -> str:
    """Run one script, and return its last line; DoctorError where it fails."""
    places = {"cache": str(cache / table.script.removesuffix(".py")), "archives": str(archives)}
    places["releases"] = str(cache / "releases")
    if any("{archives}" in text for text in table.arguments):
        for name in names:
            for version in new[name]:
                fetched(name, version, archives)
    if any("{transformers}" in text for text in table.arguments):
        places["transformers"] = str(fetched("transformers", newest("transformers"), archives))
    command = [sys.executable, str(HERE / table.script), *(text.format(**places) for text in table.arguments)]
    command += ["--only", *names] if table.only else []
    command += [f"{name}=={version}" for name in names for version in new[name]] if table.named else []
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    if ended.returncode:
        raise DoctorError((ended.stderr.strip().splitlines() or ["no message"])[-1])
    return lines[-1] if lines else "done"


def fetched(name: str, version: str, folder: Path) -> Path:
    """Return the archive of a release, downloaded where the folder lacks it; pip runs nothing of it."""
    file = name.replace("-", "_")
    for path in sorted(folder.glob("*-*")):
        parts = path.name.removesuffix(".tar.gz").removesuffix(".whl").split("-")
        if len(parts) > 1 and parts[0].lower().replace(".", "_") == file and Version(parts[1]) == Version(version):
            return path
    got = fetch_archive(name, version, folder)
    return got.replace(folder / got.name)
