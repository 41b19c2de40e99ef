"""Failures whose error says nothing of the cause: NaN losses, ranks that hang, and memory that a fallback needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doctor.model import TORCH, Remedy
from doctor.report.log_model import Doubt, Explanation, LogLine
from doctor.util.redact import shortened

from .pattern import Pattern
from .scan import Match

_PACKAGES = (TORCH,)  # whose ranks and memory these are
NOT_FINITE = Pattern(
    r"(?i:\b(?:loss|grad_?norm|lm_loss|ppl)\b)['\"]?[ :=|]{1,4}(?:tensor\(|np\.float\d\d\()?(?:nan|NaN)\b",
    ("nan", "NaN"),
)
#: What faulthandler and py-spy print above the frames of a process that they interrupt.
DUMP = Pattern(
    r"\bTimeout \(\d{1,2}:\d\d:\d\d\)!|Thread \d{1,9} \((?:idle|active)[\w+]{0,12}\): \"MainThread\"",
    ("Timeout (", '"MainThread"'),
    64,
)
#: What the watchdog of NCCL prints of each rank whose collective call did not return.
WATCHDOG = Pattern(r"Watchdog caught collective operation timeout: WorkNCCL\(", ("Watchdog caught",), 256)
_WAITED = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught[^\n]*?WorkNCCL\(SeqNum=(?P<at>\d+), OpType=(?P<call>\w+)"
    r"(?:, NumelIn=(?P<size>\d+))?"
)
_NO_MEMORY = re.compile(
    r"(?:[Tt]ried to allocate (?P<size>[\d.]{1,20} ?(?:[KMGT]i?B|bytes))|OutOfMemoryError)(?![^\n]*RESOURCE_EXHAUSTED)"
)
#: The source text or the function of a frame, or of a C++ frame below the error, that runs fused attention.
_FUSED_CALL = re.compile(r"\bscaled_dot_product_attention\(|\bsdpa_attention_forward\b")
_MATH_PATH = re.compile(r"_scaled_dot_product_attention_math|_safe_softmax")
_SMALL = re.compile(r"^\d{1,8} ?bytes$|^[\d.]+ ?(?:KiB|KB)$|^\d{1,2}(?:\.\d+)? MiB$")
_FRAME = re.compile(
    r"^[^\n\"]{0,40}?(?:File \"(?P<file>[^\"\n]{1,300})\", line (?P<line>\d+) in (?P<function>[\w<>.]+)"
    r"|(?P<named>[\w<>.]+) \((?P<path>[^:()\n]{1,300}):(?P<at>\d+)\))",
    re.MULTILINE,
)
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|\b(?:send|recv|isend|irecv|wait)\b|batch_isend"
    r"|synchronize|_join"
)
#: Files of packages; py-spy names them below their folder.
_INSTALLED = re.compile(r"-packages/|/lib/python|^[^./][^:]*/")
_NEXT_DUMP = re.compile(r"^[^\n\"]{0,40}?(?:Timeout \(|Thread \d+ \(|(?:Current t|T)hread 0x)", re.MULTILINE)


@dataclass(frozen=True)
class _Held:
    """Where a process was held: the outer function it waits in, and the line of the job."""

    function: str
    place: str
    waits: bool


def hang(matches: Mapping[str, Sequence[Match]]) -> tuple[Explanation, ...]:
    """Return the cause of a hang whose stack dumps are in a log; empty where no rank waits in a collective."""
    dumps = matches.get(DUMP.match, ())
    held = [place for dump in dumps if (place := _held(dump)) is not None]
    if not held or not any(place.waits for place in held):
        return ()
    waiting = list(dict.fromkeys(f"`{place.function}` ({place.place})" for place in held if place.waits))
    others = list(dict.fromkeys(f"`{place.function}` ({place.place})" for place in held if not place.waits))
    message = f"the job hangs: a rank waits in {' and in '.join(waiting[:2])}"
    message += f", and another one is in {others[0]}" if others else ""
    first = dumps[0]
    found = Explanation(
        cause="hang-in-collective",
        rule=None,
        category="other",
        packages=_PACKAGES,
        doubts=(Doubt.VAGUE,) if others or len(waiting) > 1 else (Doubt.GENERAL,),
        signature=DUMP.match,
        line=LogLine(first.line, first.text.strip(), first.rank),
        message=message,
        why=(
            "A collective call returns when every rank of its group makes it, in the same order. One rank took another "
            "branch, died, or still works."
        ),
        remedies=(
            Remedy(note=f"let every rank reach the call: see why a rank is in {(others or waiting)[-1]}"),
            Remedy(set_env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, note="names the call in which the ranks differ"),
        ),
    )
    return (found,)


def watchdog(matches: Mapping[str, Sequence[Match]]) -> tuple[tuple[Explanation, ...], tuple[str, ...]]:
    """Return the cause of a timeout of NCCL where the ranks are in different calls, else what each rank waits in."""
    lines = matches.get(WATCHDOG.match, ())
    waited = {found["rank"]: (match, found) for match in lines if (found := _WAITED.search(match.text))}
    if not waited:
        return (), ()
    calls: dict[str, list[str]] = {}
    for rank, (_, found) in sorted(waited.items(), key=lambda item: int(item[0])):
        size = f" of {int(found['size']):,} elements" if found["size"] else ""
        calls.setdefault(f"{found['call']}{size} (number {found['at']})", []).append(rank)
    said = "; ".join(f"rank {', '.join(ranks)} waits in {call}" for call, ranks in calls.items())
    if len(calls) == 1:
        return (), (f"{said}: a rank that the log does not name did not make this call, or made it too late",)
    match = next(iter(waited.values()))[0]
    stated = Explanation(
        cause="ranks-in-different-collectives",
        rule=None,
        category="other",
        packages=_PACKAGES,
        doubts=(Doubt.VAGUE,),
        signature=WATCHDOG.match,
        line=LogLine(match.line, match.text.strip(), match.rank),
        message=f"the ranks are in different collective calls: {shortened(said, 300)}",
        why=(
            "NCCL pairs the calls of the ranks by their order alone. Ranks with other lengths, other layers or another "
            "branch make other calls, and wait for each other until the timeout."
        ),
        remedies=(
            Remedy(note="let every rank make the same calls in one order: same number of chunks, layers and experts"),
            Remedy(set_env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, note="raises where the calls of the ranks differ"),
            Remedy(set_env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, note="records the last calls of each rank"),
        ),
    )
    return (stated,), ()


def fallback_allocation(errors: Sequence[Match]) -> tuple[Explanation, ...]:
    """Return the cause of an allocation that fails inside of a call of SDPA: the path that holds the whole scores."""
    for match in errors:
        found = _NO_MEMORY.search(match.text)
        frames = [frame for frame in match.frames if not frame.passes_on]
        if found is None or not frames or _SMALL.match(found["size"] or ""):
            continue
        called = _FUSED_CALL.search(f"{frames[-1].code} {frames[-1].function}")
        math = _MATH_PATH.search(match.place.after.decode("utf-8", "replace"))
        if called is None:
            continue
        size = f"{found['size']} " if found["size"] else ""
        stated = Explanation(
            cause="oom-in-sdpa-math-path",
            rule=None,
            category="OOM-by-math-fallback",
            packages=_PACKAGES,
            doubts=() if math else (Doubt.VAGUE,),
            signature="",
            line=LogLine(match.line, match.text.strip(), match.rank),
            message=(
                f"the scores of the whole sequence (S x S) need {size}inside of `scaled_dot_product_attention`: its "
                "math path runs, not a fused backend"
            ),
            why=(
                "The fused backends never hold the matrix of scores, which grows with the square of the length. Math "
                "runs where they refuse the mask, the dtype, the head dim or the device, or where it is requested."
            ),
            remedies=(
                Remedy(
                    call="with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]): ...",
                    note="torch then prints why each fused backend refuses the inputs",
                ),
                Remedy(note="give is_causal=True instead of a dense causal mask, and no mask where nothing is padded"),
                Remedy(call="attn-doctor backends --set workload.framework=torch_sdpa", note="names what refuses"),
            ),
        )
        return (stated,)
    return ()


def _held(dump: Match) -> _Held | None:
    """Return where the process of a dump is; the innermost frame comes first."""
    after = dump.place.after.decode("utf-8", "replace")
    ends = [found.start() for found in _NEXT_DUMP.finditer(after) if found.start() > 2]
    first_frame = _FRAME.search(after)
    if first_frame is None:
        return None
    end = next((at for at in ends if at > first_frame.start()), len(after))
    frames = [
        (found["function"] or found["named"], found["file"] or found["path"], found["line"] or found["at"])
        for found in _FRAME.finditer(after[:end])
    ]
    own = next((frame for frame in frames if not _INSTALLED.search(frame[1])), frames[-1])
    called = next((name for name, _, _ in reversed(frames) if _COLLECTIVE.search(name)), None)
    return _Held(called or own[0], f"{own[1].rpartition('/')[2]}:{own[2]}", called is not None)


def not_finite(matches: Mapping[str, Sequence[Match]]) -> tuple[str, ...]:
    """Return from where on the loss is NaN, and how to find out why: many causes lead there."""
    lines = matches.get(NOT_FINITE.match, ())
    if not lines:
        return ()
    first = lines[0]
    return (
        f"the training gives NaN from line {first.line} on: {shortened(first.text.strip(), 160)}",
        "`torch.autograd.set_detect_anomaly(True)` names the first operation that gives NaN; `attn-doctor check --run` "
        "compares each attention backend with a reference; a row of a mask that is all False gives NaN",
    )
