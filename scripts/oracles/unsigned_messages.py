"""List error messages of a release that no signature knows: those about versions, GPUs, dtypes, shapes and builds.

    python scripts/oracles/unsigned_messages.py flash-attn==2.8.3 FOLDER ... [--examples FILE] [--all]

A release is fetched with pip; nothing of it is built or run. A folder holds unpacked sources, also C++ and CUDA. Each
message that a `raise`, an `assert` or a check macro can print is filled with usual values and compared with the
signatures, with a frame of its own file above it. `--examples` writes a line for each signature of a rule for `check`
that some message shows, as JSON Lines; `--all` prints the messages that are known, too, with the rule.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from doctor.diagnosis.logs.choose import OWNER
from doctor.diagnosis.logs.frames import Stack
from doctor.drift.download import fetch_release, parse_pin
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.signatures import LogRule, load_log_rules

#: A message that speaks of what a user can install, set or choose.
TOPIC = re.compile(
    r"(?i)version|requires?\b|install|not available|compatib|capability|compute cap|\bsm_?\d|cuda|cudnn|\bgpu|hopper"
    r"|ampere|blackwell|dtype|bf16|fp16|float16|bfloat16|fp8|head[_ ]?(?:dim|size)|attention|attn|flash|contiguous"
    r"|stride|layout|window|softcap|backend|kernel|triton|nvcc|compil"
)
#: What the library itself or its tests got wrong, and no user can meet.
INTERNAL = re.compile(r"(?i)not implemented|should not (?:happen|reach)|unreachable|internal error|abstract|subclass")
HOLES = ("64", "torch.float32", "Foo", "2.1.0", "sm_90")
SOURCES = {".py", ".cpp", ".cc", ".cu", ".cuh", ".h", ".hpp"}
SKIPPED = re.compile(r"(?:^|/)(?:tests?|testing|benchmarks?|examples?|docs?|third_party|cutlass|composable_kernel)/")
_CHECK = re.compile(
    r"\b(?:TORCH_CHECK(?:_\w+)?|TORCH_INTERNAL_ASSERT|NVTE_CHECK|NVTE_ERROR|AT_ERROR|AT_ASSERTM|CHECK_(?:SHAPE|INPUT)"
    r"|FLASHINFER_(?:CHECK|ERROR)|TVM_FFI_\w+|XFORMERS_CHECK|STD_TORCH_CHECK|runtime_error|invalid_argument)\s*\("
)
_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def messages(path: Path) -> Iterator[str]:
    """Yield the messages that a source file can print, `{}` where a value goes."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        yield from _of_python(ast.parse(text)) if path.suffix == ".py" else _of_cpp(text)
    except (SyntaxError, ValueError, RecursionError):
        return


def _of_python(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.msg is not None:
            yield "AssertionError: " + _text(node.msg)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield f"{ast.unparse(node.exc.func)}: {_text(node.exc.args[0])}"


def _text(node: ast.expr) -> str:
    """Return the text of an expression with `{}` for its values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return re.sub(r"%[-\d.]*[sdrfx]", "{}", _text(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "strip"):
        return re.sub(r"\{[^{}]*\}", "{}", _text(node.func.value))
    return "{}"


def _of_cpp(text: str) -> Iterator[str]:
    for found in _CHECK.finditer(text):
        depth, at = 1, found.end()
        while depth and at < min(len(text), found.end() + 2000):
            literal = _TEXT.match(text, at)
            if literal:
                at = literal.end()
                continue
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        arguments = text[found.end() : at - 1]
        parts = re.split(r'((?:"(?:[^"\\\n]|\\.)*"\s*)+)', arguments)
        texts = ["".join(_TEXT.findall(part)) for part in parts[1::2]]
        if texts:
            between = ["{}" if re.search(r"\w", part) else "" for part in parts[2::2]]
            joined = "".join(text + hole for text, hole in zip(texts, between, strict=True))
            yield "RuntimeError: " + joined.replace("\\n", "\n").replace('\\"', '"')


class Judge:
    """Which rule explains a message, by signature alone."""

    def __init__(self) -> None:
        self.rules = load_log_rules()
        self.stack = Stack(load_rulebook().libraries)
        self.ordered = sorted(self.rules, key=lambda rule: -int(rule.rule.stated.get("weight", 0)))

    def rule(self, message: str, place: str) -> str | None:
        """Return the most specific rule that explains a message with some value; None if there is none."""
        owner = self.stack.owner_of_file(place)
        for hole in HOLES:
            log = line_of(message, place, hole)
            for rule in self.ordered:
                if owner is None and any(OWNER.fullmatch(name) and "|" not in name for name in rule.packages):
                    continue
                for signature in rule.signatures:
                    if any(anchor in log for anchor in signature.anchors) and signature.explains(log):
                        return rule.rule.id
        return None


def line_of(message: str, place: str, hole: str) -> str:
    """Return a log with a message."""
    return f'  File "/x/site-packages/{place}", line 1, in f\n{message.replace("{}", hole)}\n'


def examples(rules: tuple[LogRule, ...], found: list[tuple[str, str]]) -> Iterator[dict[str, object]]:
    """Yield a line of a log for each signature of a rule for `check` that a message shows."""
    logs = [line_of(message, place, hole) for message, place in found for hole in HOLES]
    for rule in rules:
        for number, signature in enumerate(rule.signatures):
            shown = next((log for log in logs if signature.explains(log)), None)
            if shown is not None and not rule.explains_only:
                yield {"rule": rule.rule.id, "signature": number, "log": shown}


def collect(root: Path) -> dict[tuple[str, str], None]:
    """Return the messages below a folder, each once, with the file that it is in."""
    package = re.sub(r"-[\d.]+\w*$", "", root.name.removesuffix("-latest")).replace("-", "_")
    found: dict[tuple[str, str], None] = {}
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root).as_posix()
        if path.suffix != ".py":  # called from Python: the last frame is in the package itself
            place = f"{package}/{place}"
        if path.suffix not in SOURCES or SKIPPED.search(place) or not path.is_file():
            continue
        for message in messages(path):
            plain = message.partition(": ")[2]
            if len(re.sub(r"\W|\{\}", "", plain)) > 12 and TOPIC.search(plain) and not INTERNAL.search(plain):
                found.setdefault((message.strip(), place))
    return found


def main() -> int:
    """Print the messages without a signature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="+", help="name==version, or a folder of sources")
    parser.add_argument("--examples", type=Path, help="write lines that show signatures to this file")
    parser.add_argument("--all", action="store_true", help="print known messages, too")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "attn-doctor" / "sources")
    options = parser.parse_args()
    judge = Judge()
    every: list[tuple[str, str]] = []
    for release in options.releases:
        root = Path(release) if Path(release).is_dir() else fetch_release(*parse_pin(release), options.cache)
        found = list(collect(root))
        every += found
        ruled = [(judge.rule(message, place), message, place) for message, place in found]
        known = sum(rule is not None for rule, _, _ in ruled)
        print(f"## {root.name}: {known} of {len(found)} messages have a signature", flush=True)
        for rule, message, place in ruled:
            if rule is None or options.all:
                print(f"{rule or '-'}\t{place}\t{' '.join(message.split())[:300]}")
    if options.examples:
        lines = (json.dumps(item) for item in examples(judge.rules, every))
        options.examples.write_text("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
