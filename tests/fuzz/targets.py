"""Targets for coverage-guided fuzzers: `python -m tests.fuzz.targets KIND` under atheris, one kind of input each.

Each target reads the bytes as a file of that kind through the same readers as the program. A DoctorError is an answer;
any other exception is a finding. `TARGETS` is what OSS-Fuzz builds one fuzzer per entry of.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from doctor.diagnosis.batch import answer
from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.schema import read_source
from doctor.sources.manifests.read import read_manifests
from doctor.sources.project.config import read_defaults
from doctor.sources.snapshot import parse_facts
from doctor.sources.watch import Watch
from doctor.sources.workload.huggingface import read_model_config
from doctor.sources.workload.recipes import read_job
from doctor.util.printable import safe_text
from doctor.util.reading import text_of
from doctor.util.redact import without_credentials

from .harness import CORPUS, DECLARED


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            read(path)

    return target


_rulebook = functools.cache(load_rulebook)


def _batch(data: bytes) -> None:
    for line in data.decode("utf-8", "replace").splitlines():
        answer(_rulebook(), line)


def _output(data: bytes) -> None:
    text = without_credentials(safe_text(data.decode("utf-8", "replace")))
    assert "\x1b" not in text


TARGETS: dict[str, Callable[[bytes], None]] = {
    **{
        kind: _file(next((CORPUS / kind).iterdir()).name, lambda path: read_manifests([str(path)], Facts(), Watch()))
        for kind in DECLARED
    },
    "facts": lambda data: void(parse_facts(text_of(data, Path("facts.yaml"), "facts file"), "facts.yaml")),
    "workload": _file("job.yaml", read_job), "model": _file("config.json", read_model_config),
    "section": lambda data: void(read_defaults(Path("pyproject.toml"), data.decode("utf-8", "replace"))),
    "rule": _file("X001.yaml", read_source), "library": _file("library.yaml", read_source), "batch": _batch,
    "output": _output,
}  # fmt: skip


def void(_: object) -> None:
    """Drop a result."""


def run(kind: str, data: bytes) -> None:
    """Run one target on one input; DoctorError is an answer."""
    try:
        TARGETS[kind](data)
    except DoctorError as problem:
        assert problem.message


def main() -> None:
    """Fuzz one kind with atheris, which measures coverage."""
    import atheris

    kind = sys.argv.pop(1)
    atheris.instrument_all()
    atheris.Setup(sys.argv, lambda data: run(kind, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
