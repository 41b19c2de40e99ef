"""The journal of a sweep: one JSON line per answer, so that a sweep that was stopped goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ..errors import DoctorError, reason_of
from ..target import Answer
from .plan import key

FIELDS = {field.name for field in dataclasses.fields(Answer)}


class Journal:
    """Answers by (GPU, case), read at the start and appended to; in memory alone where there is no path."""

    def __init__(self, path: Path | None, stack: Mapping[str, Any], *, restart: bool = False) -> None:
        self.path, self.answers = path, dict[tuple[str, str], Answer]()
        self.resumed = 0
        self._file: TextIO | None = None
        if path is None:
            return
        header = {"attn-doctor": "stress", "schema": 1, "stack": dict(stack)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not restart and self._read(path, header):
                self._file = path.open("a", encoding="utf-8")
                self._file.write("\n")  # the last line may have been cut short
            else:
                self.answers.clear()
                self._file = path.open("w", encoding="utf-8")
                self._write(header)
        except OSError as problem:
            raise DoctorError(f"cannot write the journal `{path}`: {reason_of(problem)}") from None
        self.resumed = len(self.answers)

    def _read(self, path: Path, header: Mapping[str, Any]) -> bool:
        """Take in what is there; False if it is of another stack, is finished, or is no journal."""
        try:
            lines = path.read_text("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return False
        records = []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # the line under way when the machine went down
                continue
            if isinstance(record, dict):
                records.append(record)
        if not any(line.strip() for line in lines):
            return False
        if not records or records[0].get("attn-doctor") != "stress":  # somebody's file: it is not ours to overwrite
            raise DoctorError(f"`{path}` is no journal of a sweep", "name another file with `--journal`")
        if records[0] != json.loads(json.dumps(header)) or records[-1].get("done"):
            return False
        for record in records[1:]:
            if isinstance(record.get("answer"), dict) and "key" in record:
                told = {name: value for name, value in record["answer"].items() if name in FIELDS}
                self.answers[record.get("gpu", ""), record["key"]] = Answer(**told)
        return True

    def add(self, gpu: str, case: dict[str, Any], answer: Answer) -> None:
        """Note an answer, on disk before anything else happens."""
        self.answers[gpu, key(case)] = answer
        told = {name: value for name, value in dataclasses.asdict(answer).items() if value}
        self._write({"gpu": gpu, "key": key(case), "answer": told})

    def finish(self) -> None:
        """The sweep is through: the next one begins anew."""
        self._write({"done": True})
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
