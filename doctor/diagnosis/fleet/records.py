"""What nodes send: JSON lines, cut into short parts, so that no engine mixes or splits them.

An answer is an object `{"node", "snapshot" | "problem", "results"}`. A part is `{"attn-doctor": "part", "node", "id",
"part", "parts", "text"}`; the texts joined are the answer, compressed by zlib and in base64. A line is shorter than
1024 bytes, which is what srun forwards as a whole. Everything a node sends is untrusted: sizes, names and counts are
limited, and a line that is not an answer is skipped.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError, reason_of
from doctor.util.credentials import without_credentials
from doctor.util.reading import bounded_lines, open_stream
from doctor.util.redact import shortened

PART = 700  # characters of text in one line
MOST_PARTS = 1 << 15
MAX_ANSWER = 16 << 20  # characters of one answer
MAX_LINE = MAX_ANSWER + 4096
MAX_OPEN = 20_000  # answers that have begun and are not complete
MAX_NAME = 253  # characters: the length of a host name
MAX_RESULTS = 20_000
_SNAPSHOTS = (".json", ".yaml", ".yml")
_LINES = (".jsonl", ".log", ".out")
_NAME = re.compile(r"[^A-Za-z0-9._:/\[\] -]")


@dataclass(frozen=True)
class NodeAnswer:
    """What one node sent. `snapshot` is the text of a facts file."""

    node: str
    snapshot: str | None
    problem: str = ""
    results: tuple[Mapping[str, Any], ...] = ()
    tool: str = ""


def node_name(text: object) -> str:
    """Return a name that is safe to print and to write into a page."""
    name = _NAME.sub("?", without_credentials(str(text).strip()))[:MAX_NAME]
    return name or "(no name)"


def encode(answer: Mapping[str, Any]) -> list[str]:
    """Return an answer as lines; each is complete JSON."""
    whole = json.dumps(answer, separators=(",", ":"), default=repr).encode()
    text = base64.b64encode(zlib.compress(whole, 6)).decode("ascii")
    pieces = [text[start : start + PART] for start in range(0, len(text), PART)]
    head = {"attn-doctor": "part", "node": answer.get("node"), "id": hashlib.sha256(whole).hexdigest()[:16]}
    return [
        json.dumps({**head, "part": number, "parts": len(pieces), "text": piece}, separators=(",", ":"))
        for number, piece in enumerate(pieces)
    ]


@dataclass
class Decoder:
    """Puts lines of many nodes together again, in whatever order they come."""

    dropped: int = 0  # lines that looked like ours and were not usable
    _open: dict[tuple[str, str], dict[int, str]] = field(default_factory=dict)
    _sizes: dict[tuple[str, str], int] = field(default_factory=dict)

    def feed(self, line: str) -> NodeAnswer | None:
        """Return the answer that this line completes, if it does."""
        start = line.find("{")  # a launcher may put a label in front
        if start < 0 or '"node"' not in line or len(line) > MAX_LINE:
            return None
        try:
            record = json.loads(line[start:])
        except (ValueError, RecursionError):
            self.dropped += 1
            return None
        if not isinstance(record, dict):
            return None
        return self._part(record) if record.get("attn-doctor") == "part" else answer_of(record)

    def unfinished(self) -> tuple[str, ...]:
        """Return the nodes whose answer is not complete."""
        return tuple(dict.fromkeys(node for node, _ in self._open))

    def _part(self, record: Mapping[str, Any]) -> NodeAnswer | None:
        number, parts, text = record.get("part"), record.get("parts"), record.get("text")
        if not (_counts(number) and _counts(parts) and isinstance(text, str) and number < parts <= MOST_PARTS):  # type: ignore[operator]
            self.dropped += 1
            return None
        key = (node_name(record.get("node")), str(record.get("id"))[:64])
        if key not in self._open and len(self._open) >= MAX_OPEN:
            self.dropped += 1
            return None
        pieces = self._open.setdefault(key, {})
        pieces[number] = text  # type: ignore[index]
        self._sizes[key] = self._sizes.get(key, 0) + len(text)
        if self._sizes[key] > MAX_ANSWER:
            del self._open[key], self._sizes[key]
            return NodeAnswer(key[0], None, f"its answer is larger than {MAX_ANSWER >> 20} MiB")
        if len(pieces) < parts:  # type: ignore[operator]
            return None
        del self._open[key], self._sizes[key]
        try:
            whole = json.loads(_unpacked("".join(pieces[position] for position in range(len(pieces)))))
        except (ValueError, RecursionError, KeyError, zlib.error):
            return NodeAnswer(key[0], None, "its answer is not readable")
        return answer_of(whole) if isinstance(whole, dict) else NodeAnswer(key[0], None, "its answer is not an object")


def _unpacked(text: str) -> bytes:
    """Return the bytes of a packed answer; ValueError for more than an answer may hold."""
    unpacker = zlib.decompressobj()
    whole = unpacker.decompress(base64.b64decode(text, validate=True), MAX_ANSWER)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"larger than {MAX_ANSWER} bytes")
    return whole


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def answer_of(record: Mapping[str, Any]) -> NodeAnswer | None:
    """Return the answer in an object; None where the object is none."""
    if "node" not in record or not ("snapshot" in record or "problem" in record or "results" in record):
        return None
    name = node_name(record["node"])
    results = record.get("results")
    kept = tuple(item for item in results[:MAX_RESULTS] if isinstance(item, dict)) if isinstance(results, list) else ()
    tool = str(record.get("tool") or "")[:80]
    problem = shortened(" ".join(str(record.get("problem") or "").split()), 500)
    snapshot = record.get("snapshot")
    if isinstance(snapshot, dict):
        return NodeAnswer(name, json.dumps(snapshot, separators=(",", ":")), problem, kept, tool)
    text = snapshot if isinstance(snapshot, str) and len(snapshot) <= MAX_ANSWER else None
    return NodeAnswer(name, text, problem or ("" if text is not None else "it sent no snapshot"), kept, tool)


def read_answers(names: Iterable[str], lines: Iterable[str | None] = ()) -> Iterator[NodeAnswer]:
    """Yield the answers in files: folders of snapshots, snapshots, or JSON Lines; `lines` are those of `-`.

    The name of a node is in its record, or the name of the file. DoctorError where a file cannot be read.
    """
    for name in names:
        if name == "-":
            yield from _from_lines(lines)
            continue
        path = Path(name)
        try:
            if path.is_dir():
                for inside in sorted(path.iterdir()):
                    if inside.is_file() and inside.suffix.lower() in (*_SNAPSHOTS, *_LINES):
                        yield from _from_file(inside)
            else:
                yield from _from_file(path)
        except (OSError, ValueError) as problem:
            raise DoctorError(f"cannot read `{name}`: {reason_of(problem)}") from None


def _from_file(path: Path) -> Iterator[NodeAnswer]:
    with io.TextIOWrapper(open_stream(path), encoding="utf-8", errors="replace") as file:
        if path.suffix.lower() in _LINES:
            yield from _from_lines(bounded_lines(file, MAX_LINE))
            return
        text = file.read(MAX_ANSWER + 1)
    if len(text) > MAX_ANSWER:
        yield NodeAnswer(node_name(path.stem), None, f"the file is larger than {MAX_ANSWER >> 20} MiB")
        return
    yield NodeAnswer(node_name(path.stem), text)


def _from_lines(lines: Iterable[str | None]) -> Iterator[NodeAnswer]:
    decoder = Decoder()
    for line in lines:
        answer = decoder.feed(line) if line is not None else None
        if answer is not None:
            yield answer
    for node in decoder.unfinished():
        yield NodeAnswer(node, None, "its answer broke off")
