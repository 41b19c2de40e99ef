"""The journal of a sweep: one JSON line per answer, so that a sweep that was stopped goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from doctor.errors import DoctorError, reason_of
from doctor.runner.result import OUTCOMES, KernelResult

from .failures import verdict
from .plan import key

FIELDS = {field.name for field in dataclasses.fields(KernelResult)}


class Journal:
    """Answers by (GPU, case), read at the start and appended to; in memory alone where there is no path.

    `limits` are what a case may take: an answer that says it took too much holds until more is allowed.
    """

    def __init__(
        self,
        path: Path | None,
        stack: Mapping[str, Any],
        *,
        restart: bool = False,
        limits: Mapping[str, float | None] | None = None,
    ) -> None:
        self.path, self.answers = path, dict[tuple[str, str], KernelResult]()
        self.problem: str | None = None  # why it could not be written to the end
        self._limits = dict(limits or {})
        self._file: TextIO | None = None
        if path is not None:
            header = json.loads(json.dumps({"attn-doctor": "stress", "schema": 1, "stack": dict(stack)}))
            try:
                self._open(path, header, restart)
            except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
                self.close()
                raise DoctorError(f"cannot write the journal `{path}`: {reason_of(problem)}") from None
            except DoctorError:
                self.close()
                raise
        self.resumed = len(self.answers)

    def _open(self, path: Path, header: Mapping[str, Any], restart: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a pipe would keep us waiting, and a device has no end
            raise DoctorError(f"the journal `{path}` is no file", "name a file with `--journal`")
        self._file = path.open("a+", encoding="utf-8", errors="replace")
        _claim(self._file, path)
        self._file.seek(0)
        known = self._read(self._file, header)  # nobody's notes are overwritten, with `--restart` neither
        if known and not restart:
            self._put("")  # the last line may have been cut short
        else:
            self.answers.clear()
            self._file.truncate(0)
            self._put(json.dumps(header))
        self._put(json.dumps({"limits": self._limits}))

    def _read(self, file: TextIO, header: Mapping[str, Any]) -> bool:
        """Take in what is there; False if it is of another stack or is finished."""
        records, written = [], False
        for line in file:
            written = written or bool(line.strip())
            with contextlib.suppress(ValueError, RecursionError):  # the line under way when the machine went down
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
        if not written:
            return False
        if not records or records[0].get("attn-doctor") != "stress":  # somebody's file: it is not ours to overwrite
            raise DoctorError(f"`{self.path}` is no journal of a sweep", "name another file with `--journal`")
        if records[0] != header or records[-1].get("done"):
            return False
        limits: Mapping[str, Any] = {}
        for record in records[1:]:
            if isinstance(record.get("limits"), dict):
                limits = record["limits"]
            answer, case, gpu = _answer(record.get("answer")), record.get("key"), record.get("gpu", "")
            if answer is None or not isinstance(case, str) or not isinstance(gpu, str):
                continue
            if self._holds(answer, limits):
                self.answers[gpu, case] = answer
            else:
                self.answers.pop((gpu, case), None)
        return True

    def _holds(self, answer: KernelResult, limits: Mapping[str, Any]) -> bool:
        """Whether the answer would be the same within the limits of today."""
        became = verdict(answer)
        if became == "timeout":
            before, now = limits.get("timeout"), self._limits.get("timeout")
            return not isinstance(before, (int, float)) or now is None or now <= before
        return became != "no memory" or limits.get("memory") == self._limits.get("memory")

    def add(self, gpu: str, case: dict[str, Any], answer: KernelResult) -> None:
        """Note an answer, on disk before anything else happens; a disk that is full costs the journal alone."""
        self.answers[gpu, key(case)] = answer
        told = {name: value for name, value in dataclasses.asdict(answer).items() if value}
        self._write({"gpu": gpu, "key": key(case), "answer": told})

    def finish(self) -> None:
        """The sweep is through: the next one begins anew."""
        self._write({"done": True})
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what it still held did not fit either
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


def _answer(told: Any) -> KernelResult | None:
    """The answer that was written down; None for what none can have been."""
    if not isinstance(told, dict) or told.get("outcome") not in OUTCOMES:
        return None
    answer = KernelResult(**{name: value for name, value in told.items() if name in FIELDS})
    observed, spent = answer.observed, answer.spent
    texts = (answer.reason, answer.stderr_tail, answer.signal or "", answer.where or "")
    sound = isinstance(observed, dict) and isinstance(spent, dict) and all(isinstance(text, str) for text in texts)
    return answer if sound and isinstance(answer.seconds, (int, float)) else None


def _claim(file: TextIO, path: Path) -> None:
    """Ours alone: two sweeps in one file would each take the other's for its own."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - a system without such locks
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "wait for it, or name another file with `--journal`"
        raise DoctorError(f"another sweep is writing to the journal `{path}`", hint) from None
    except OSError:  # a file system that has no locks
        return
