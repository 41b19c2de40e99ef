"""The journal of a sweep: one JSON line per result, so that a sweep that was stopped continues where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from doctor.errors import DoctorError, reason_of
from doctor.runner.result import KernelOutcome, KernelResult

from .plan import key
from .verdict import CaseVerdict, verdict

try:
    import fcntl
except ImportError:  # pragma: no cover - a system without file locks
    fcntl = None  # type: ignore[assignment]

OUTCOMES = tuple(str(outcome) for outcome in KernelOutcome)
FIELDS = {field.name for field in dataclasses.fields(KernelResult)}


class Journal:
    """Results by (GPU, case), read at the start and appended to; only in memory if there is no path.

    `limits` is what a case may take: the result of a case that took too much is valid until more is allowed.
    DoctorError if the file cannot be used.
    """

    def __init__(
        self,
        path: Path | None,
        stack: Mapping[str, Any],
        *,
        restart: bool = False,
        limits: Mapping[str, float | None] | None = None,
    ) -> None:
        self.path, self.results = path, dict[tuple[str, str], KernelResult]()
        self.problem: str | None = None  # why writing failed
        self._limits = dict(limits or {})
        self._file: TextIO | None = None
        if path is not None:
            header = json.loads(json.dumps({"attn-doctor": "stress", "schema": 1, "stack": dict(stack)}))
            try:
                self._open(path, header, restart)
            except (OSError, ValueError) as problem:  # ValueError: an impossible file name
                self.close()
                raise DoctorError(f"cannot write the journal `{path}`: {reason_of(problem)}") from None
            except DoctorError:
                self.close()
                raise
        self.resumed = len(self.results)

    def _open(self, path: Path, header: Mapping[str, Any], restart: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # reading a pipe would wait, a device has no end
            raise DoctorError(f"the journal `{path}` is not a file", "name a file with `--journal`")
        self._file = path.open("a+", encoding="utf-8", errors="replace")
        _claim(self._file, path)
        self._file.seek(0)
        known = self._read(
            self._file, header
        )  # raises for a file that is no journal: even `--restart` does not overwrite it
        if known and not restart:
            self._put("")  # the last line may have been cut short
        else:
            self.results.clear()
            self._file.truncate(0)
            self._put(json.dumps(header))
        self._put(json.dumps({"limits": self._limits}))

    def _read(self, file: TextIO, header: Mapping[str, Any]) -> bool:
        """Read the results; return False if the journal is of another stack or finished."""
        records, written = [], False
        for line in file:
            written = written or bool(line.strip())
            with contextlib.suppress(ValueError, RecursionError):  # a line that was cut short
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
        if not written:
            return False
        if not records or records[0].get("attn-doctor") != "stress":  # a file of the user
            raise DoctorError(f"`{self.path}` is not a journal of a sweep", "name another file with `--journal`")
        if records[0] != header or records[-1].get("done"):
            return False
        limits: Mapping[str, Any] = {}
        for record in records[1:]:
            if isinstance(record.get("limits"), dict):
                limits = record["limits"]
            result, case, gpu = result_of(record.get("answer")), record.get("key"), record.get("gpu", "")
            if result is None or not isinstance(case, str) or not isinstance(gpu, str):
                continue
            if self._is_valid(result, limits):
                self.results[gpu, case] = result
            else:
                self.results.pop((gpu, case), None)
        return True

    def _is_valid(self, result: KernelResult, limits: Mapping[str, Any]) -> bool:
        """Return whether the result would be the same within the current limits."""
        became = verdict(result)
        if became == CaseVerdict.TIMEOUT:
            before, now = limits.get("timeout"), self._limits.get("timeout")
            return not isinstance(before, (int, float)) or now is None or now <= before
        return became != CaseVerdict.NO_MEMORY or limits.get("memory") == self._limits.get("memory")

    def add(self, gpu: str, case: dict[str, Any], result: KernelResult) -> None:
        """Record a result and flush it to disk; a full disk costs the journal, not the sweep."""
        self.results[gpu, key(case)] = result
        fields = {name: value for name, value in dataclasses.asdict(result).items() if value}
        self._write({"gpu": gpu, "key": key(case), "answer": fields})

    def finish(self) -> None:
        """Mark the sweep as finished: the next one starts from the beginning."""
        self._write({"done": True})
        self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the buffered rest did not fit either
                file.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._put(json.dumps(record))
        except OSError as problem:
            self.problem = reason_of(problem)
            self.close()

    def _put(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()


def result_of(fields: Any) -> KernelResult | None:
    """Return the recorded result; None if the fields cannot be those of a result."""
    if not isinstance(fields, dict) or fields.get("outcome") not in OUTCOMES:
        return None
    known = {name: value for name, value in fields.items() if name in FIELDS}
    result = KernelResult(**{**known, "outcome": KernelOutcome(fields["outcome"])})
    observed, spent = result.observed, result.spent
    texts = (result.reason, result.stderr_tail, result.signal or "", result.where or "")
    sound = isinstance(observed, dict) and isinstance(spent, dict) and all(isinstance(text, str) for text in texts)
    return result if sound and isinstance(result.seconds, (int, float)) else None


def _claim(file: TextIO, path: Path) -> None:
    """Lock the file: two sweeps must not write to one journal."""
    if fcntl is None:  # pragma: no cover
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "wait for it, or name another file with `--journal`"
        raise DoctorError(f"another sweep is writing to the journal `{path}`", hint) from None
    except OSError:  # a file system without locks
        return
