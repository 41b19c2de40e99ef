"""What the code says of an error that no rule knows: the place that raises it, its condition, and what it proposes.

The place is read in the installed source where the log names file and line and the environment is at hand, else looked
up in the record of messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from doctor.model import TORCH, Remedy
from doctor.report.log_model import Explanation, LogLine
from doctor.util.raise_sites import raised_in
from doctor.util.redact import shortened
from doctor.util.traceback_frames import Frame

from . import sites
from .attribution import Attribution, Origin, attributed
from .confidence import doubts_of_code
from .cpp_trace import trace_after
from .frames import Stack
from .kinds import category_of, is_compiled_fault
from .scan import Match
from .sites import Site

CAUSE = "stated-by-the-code"
_RESTATED = "change the call so"  # a fix that only turns the condition round begins so
_LARGEST = 4 << 20  # bytes of a source file
_SHORT = 60  # characters of a value that is shown
_WHOLE = 1_500  # characters of a message in which a proposal is looked for
_WORDS = 20  # characters of a message that states something
_LONG = 40  # fixed characters of a message that says enough without a frame
_CALLERS = 10  # frames before an error that say what it is about
_ERRORS = 6  # different errors before the end of a log that are looked up
#: What reports the failure of another process or call.
_WRAPPER = re.compile(
    r"ChildFailedError|Failed to import|EngineCore|EngineDeadError|RayTaskError|ProcessRaisedException"
    r"|BackendCompilerFailed|exit(?:ed)? (?:with )?code|CalledProcessError|SystemExit|KeyboardInterrupt"
    r"|local_rank|Primary job terminated|srun: error|Terminated process|SignalException"
)
#: Words by which a message, function or file shows that the failure is one of attention and its kernels.
_ATTENTION = re.compile(
    r"(?i)att(?:entio)?n(?!ame)|sdpa|scaled_dot|\bflash|_flash|\brope|_rope|rotary|\bkv|past_key|qkv|\bhead|_head"
    r"|num_heads|embed_dim"
    r"|flex_|\bnested|jagged|\bfmha|\bmla\b|sliding|softcap|varlen|cu_?seqlens|context.?parallel|ulysses|block_?mask"
    r"|score_mod|mask_mod|padd(?:ed|ing)_mask|attn_mask|\bvmap|fake tensor|register_fake|custom op|data-dependent"
    r"|fullgraph|graph break|dtensor|\bgqa|quantiz|blocksize|flashinfer|sparse|utils/checkpoint|CUDA_HOME"
    r"|nvcc|sdp_utils|native/transformers/|nn/modules/(?:transformer|activation)\.py"
    r"|custom operator|infer_schema|_functorch/|torch/(?:_dynamo|_inductor|_library|export)/|torch\.compile"
    r"|device_?mesh|nn/parallel/|monitored_?barrier|TORCH_LIBRARY|symbolic_shapes"
)
_EXCEPTION = re.compile(r"(?:[\w.]+(?:Error|Exception|Failure|Interrupt|Unsupported))\b|torch\.[\w.]+\.[A-Z]\w+(?=:)")
_PIP = re.compile(r"`?\b((?:uv )?pip3? install [^`\n,;]{2,120}?)(?=[`\n,;]|\. |\.?$)")
_ADVICE = re.compile(
    r"(?:^|[.!;:,] )((?:[Pp]lease|[Tt]ry|[Uu]se|[Ss]et|[Cc]onsider|[Rr]eplace|[Pp]ass"
    r"|[Yy]ou (?:can|should|need to|must)|[Mm]ake sure) [^.\n]{4,220}(?:\.\d[^.\n]{0,80}|\.\w[^.\n]{0,120}){0,3})"
)
#: What Python and the operators of torch say of the code of any package.
_OF_ANY_CODE = re.compile(
    r"has no attribute|unexpected keyword|positional argument|is not (?:subscriptable|callable|iterable|defined)"
    r"|cannot be multiplied|is invalid for input|must match the (?:size|existing)|No module named|cannot import name"
    r"|no file named|index out of range|out of memory"
)
_ATTENTION_WORDS = re.compile(
    r"(?i)(?:\b|_)att(?:entio)?n(?!_heads)|sdpa|scaled_dot|flash|qkv|flex_|block_mask|\bgqa|_gqa|head_dim"
)
_LACKS = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
_MISSING_KEY = re.compile(r"KeyError: (['\"][^'\"\n]{1,80}['\"])")
_TABLE = re.compile(r"(?P<table>[A-Za-z_][\w.]*)\[(?P<key>[\w.]+)\]")
_ATTENTION_CALL = re.compile(
    r"(?:(?P<module>[A-Za-z_]\w*)\.)?(?P<name>scaled_dot_product_attention|flex_attention|flash_attn\w*|varlen_attn|sageattn\w*"
    r"|memory_efficient_attention|multi_head_attention_forward|create_block_mask)\("
)
#: The source text of a frame whose message is one of Python code.
_NOT_REGISTERED = re.compile(
    r"Could not run '(?P<space>\w{2,60})::(?P<name>[\w.]{1,80})' with arguments from the '(?P<device>\w{2,20})' backend"
)
_FOR_BACKENDS = re.compile(r"is only available for these backends: \[([^\]]{2,2000})")
_DEVICES = frozenset(["CPU", "CUDA", "XPU", "HPU", "MPS", "HIP", "NestedTensorCPU", "NestedTensorCUDA"])
_TOO_MANY = re.compile(
    r"\(\) takes (?:from )?(?:\d{1,2} to )?(?P<most>\d{1,2}) positional arguments? but (?P<given>\d{1,2})"
)
_IN_PYTHON = re.compile(r"raise\b|assert\b")
_COMPILED_ON_RECORD = TORCH
#: Files and functions of torch whose checks speak of attention, and the exceptions that a check of C++ raises.
_OF_KERNELS = re.compile(r"(?i)native/transformers/|sdp_utils|nested|attention|flash|\bmha|ring|functorch|c10d|library")
_OF_CHECKS = re.compile(r"(?:Runtime|NotImplemented|Accelerator|OutOfMemory)Error\b")
#: The values that a message lists, and what it misses.
_VALUES = re.compile(
    r"(?i:choose one of|should be (?:one of|in)|must be (?:one of|in)|expected one of|known options are"
    r"|(?:valid|available|allowed|supported) \w{3,20} (?:are|is)|options are)[^\n]{3,240}"
    r"|(?i:missing required (?:keys?|fields?|options?|arguments?))[^\n]{2,200}"
    r"|(?i:see) `[\w.]+\(\)`[^\n.]{0,80}|\b(?:call|use|set) [\w.]+(?:\(\))? first\b"
)
#: What operators of torch begin their messages with, in the modes that this is about.
_OF_OPERATORS = re.compile(r"vmap: |NestedTensor|jagged|Nested ?[Tt]ensor|DTensor|FakeTensor|functorch")
_REPORT = re.compile(r"(?i)\b(?:report|open|file|raise) (?:this|an?) (?:issue|bug)|github\.com\S*/issues|stack trace")
_SHOULD = re.compile(
    r"(?:\bbut (?:should|must|got)|\bmust\b|\bshould\b|\bexpect(?:s|ed)?\b|\bonly\b|\brequires?\b|\bneeds?\b)", re.I
)


@dataclass(frozen=True)
class Located:
    """An error, whose code raised it, and the places that have its message."""

    match: Match
    blame: Attribution
    places: tuple[Site, ...]
    exact: bool  # the place is the one of the frame
    stated: str = ""  # what is wrong, where the message does not say it
    fix: str = ""  # what to do, where the message proposes nothing

    of_attention: bool = False  # the package is there for attention
    looked_up: bool = False  # a value is missing in a table, and nothing shows why it is given

    @property
    def is_of_attention(self) -> bool:
        """Whether message, function or file, or the code of the stack that called it, speak of attention."""
        if self.of_attention:
            return True
        site = self.places[0]
        calls = (f"{frame.file.partition('-packages/')[2]} {frame.function}" for frame in self.match.frames[-_CALLERS:])
        return _ATTENTION.search(" ".join((self.match.text, site.file, site.function, site.guard, *calls))) is not None

    @property
    def says_more(self) -> bool:
        """Whether it says more than the message: its condition, its releases, or what is wrong in words of its own."""
        return bool(self.places[0].releases or self.places[0].guard or self.stated)


def _of_copy(item: Explanation, package: str) -> Explanation:
    """Return what a rule says of a package, for the copy of its code that another one has compiled in."""
    return replace(item, packages=(package, *item.packages), message=f"in the copy of {package}: {item.message}")


def located(errors: Sequence[Match], stack: Stack, root: str | None, site_dirs: Sequence[Path]) -> Located | None:
    """Return the first error of the failure that ended a log, with the places in the code; None if none is found."""
    found = (_placed(match, stack, site_dirs) for match in _last_failure(errors, root))
    first = next((item for item in found if item is not None), None)
    return first and replace(first, of_attention=first.places[0].package in stack.of_attention)


def _placed(match: Match, stack: Stack, site_dirs: Sequence[Path]) -> Located | None:
    """Return the places in the code that have the message of an error; None if none is found."""
    blame = attributed(match, stack)
    if (site := _installed(match, blame, site_dirs)) is not None:
        return Located(match, blame, (site,), exact=True)
    return (
        _dispatched(match, blame, stack)
        or _recorded(match, blame)
        or _compiled(match, blame)
        or _looked_up(match, blame)
        or _value(match, blame)
        or _called(match, blame, stack)
        or _of_sources(match, blame)
        or _raised_in(match, blame, stack)
        or _refused_inside(match, blame)
    )


def with_place(item: Explanation, errors: Sequence[Match], stack: Stack, site_dirs: Sequence[Path]) -> Explanation:
    """Return what a rule says of an error, with the place that raises it, its condition and what it proposes.

    A proposal comes first where something leaves the cause of the rule open.
    """
    match = next((error for error in errors if error.line == item.line.number), None)
    found = _placed(match, stack, site_dirs) if match is not None else None
    if match is None or found is None or not found.exact:
        return item
    package = found.places[0].package
    if package not in item.packages:
        return _of_copy(item, package) if found.places[0].native and found.blame.package == package else item
    known = " ".join(f"{remedy.call} {remedy.note}" for remedy in item.remedies)
    proposed = tuple(
        remedy
        for remedy in _proposed(match, found.places[0])
        if not (remedy.note or "").startswith(_RESTATED) and (remedy.note or "") not in known
    )
    remedies = (*proposed, *item.remedies) if item.doubts else (*item.remedies, *proposed)
    return replace(item, reasons=(*item.reasons, _why(found)), remedies=remedies)


def is_wrapper(line: str) -> bool:
    """Return whether a line reports the failure of another process or call."""
    return _WRAPPER.search(line) is not None


def shown(errors: Sequence[Match], stack: Stack, root: str | None) -> tuple[str, ...]:
    """Return what the last failure of a log shows, where neither a rule nor the code says its cause."""
    last = list(_last_failure(errors, root))[-1:]
    return tuple(text for match in last if (text := _seen(attributed(match, stack))))


def _seen(blame: Attribution) -> str:
    """Return whose code failed and where, in words; empty where that is unknown."""
    if blame.frame is None:
        return f"the compiled code of {blame.package} failed" if blame.package is not None else ""
    where = f"{blame.frame.file}:{blame.frame.line}, in {blame.frame.function}"
    whose = blame.package or "the job's own code"
    return f"{whose} failed ({where})" + (f", called by {blame.caller}" if blame.caller else "")


def _last_failure(errors: Sequence[Match], root: str | None) -> Sequence[Match]:
    """Return the last different errors, in order; of the rank that failed first, where that is known."""
    own = [match for match in errors if root is None or match.rank in (None, root)]
    distinct = {
        match.text.strip(): match for match in own if _EXCEPTION.search(match.text) and not _WRAPPER.search(match.text)
    }
    return sorted(list(distinct.values())[-_ERRORS:], key=lambda match: match.line)


def _installed(match: Match, blame: Attribution, site_dirs: Sequence[Path]) -> Site | None:
    """Return the statement that the last frame names, from the installed source; None where it is not at hand."""
    frame = match.frames[-1] if match.frames else None
    relative = frame.file.partition("-packages/")[2] if frame is not None else ""
    if frame is None or not relative or ".." in PurePosixPath(relative).parts or blame.package is None:
        return None
    for folder in site_dirs:
        file = folder / relative
        try:
            if not file.is_file() or file.stat().st_size > _LARGEST:
                continue
            content = file.read_bytes()
        except OSError:
            continue
        for site in raised_in(content):
            if site.first <= frame.line <= site.last:
                values = sites.values_of(site.template, match.text)
                if values is not None:
                    return Site(
                        blame.package, relative, site.function, site.guard, (), (), tuple(values.items()), site.fixed
                    )
    return None


def _recorded(match: Match, blame: Attribution) -> Located | None:
    if blame.origin in (Origin.JOB, Origin.EXTENSION, Origin.INSTALLED) or _OF_ANY_CODE.search(match.text):
        return None
    if blame.package is not None and not sites.has(blame.package):
        return None
    found = sites.sites_of(match.text, (blame.package,) if blame.package else ())
    own = [site for site in found if _is_at(site, match.frames)]
    if match.frames:
        found = tuple(site for site in found if _is_near(site, match.frames[-1]) or _is_called(site, match.frames[-1]))
    if not (own or found) or (not match.frames and not _says_enough(match, found)):
        return None
    exact = bool(own) or (bool(match.frames) and found[0].native and found[0].is_clear)
    return Located(match, blame, tuple(own or found), exact=exact)


def _of_sources(match: Match, blame: Attribution) -> Located | None:
    """Return the check in C++ or CUDA sources whose message an extension or the code that calls it raises."""
    frame = match.frames[-1] if match.frames else None
    if frame is None or not _is_call(frame) or is_compiled_fault(match.text) or _OF_ANY_CODE.search(match.text):
        return None
    if blame.origin == Origin.STACK and blame.package != _COMPILED_ON_RECORD:
        return None
    found = sites.source_sites_of(match.text)
    clear = bool(found) and found[0].is_clear and len({site.package for site in found}) == 1
    return Located(match, blame, found, exact=False) if clear else None


def _raised_in(match: Match, blame: Attribution, stack: Stack) -> Located | None:
    """Return the function of a package of the stack whose frame shows the statement that raises.

    Without a record of its messages, what it says has to speak of attention, or the package is there for nothing else.
    """
    frame = match.frames[-1] if match.frames else None
    if frame is None or blame.origin != Origin.STACK or blame.package is None or blame.frame != frame:
        return None
    if ".." in PurePosixPath(frame.file).parts:
        return None
    spoken = _ATTENTION_WORDS.search(f"{match.text} {frame.function}")
    if not spoken and blame.package not in stack.of_attention and blame.package != _COMPILED_ON_RECORD:
        return None
    raises = frame.code.startswith("raise ") or match.text.strip().startswith("AssertionError: ")
    if not raises or len(_stated(match.text)) < _WORDS or _OF_ANY_CODE.search(match.text):
        return None
    site = Site(blame.package, _inside(frame.file), frame.function, "", (), (), (), len(_stated(match.text)))
    return Located(match, blame, (site,), exact=True)


def _compiled(match: Match, blame: Attribution) -> Located | None:
    """Return the check of compiled code that raised a message: as its C++ trace says, else by the message alone."""
    trace = trace_after(match)
    found = sites.native_sites_of(_COMPILED_ON_RECORD, match.text)
    if trace.function and not trace.only_reports:
        own = tuple(site for site in found if (site.function, site.file) == (trace.function, trace.file))
        package = _COMPILED_ON_RECORD if trace.is_of_torch else blame.package or "the extension"
        stated = Site(package, trace.file, trace.function, "", (), (), (), len(_stated(match.text)), native=True)
        return Located(match, blame, own or (stated,), exact=True)
    code = blame.frame.code if blame.frame is not None else ""
    if not all(_OF_KERNELS.search(f"{site.file} {site.function}") for site in found):  # operators of any code check it
        return None
    if not found or is_compiled_fault(match.text) or _OF_ANY_CODE.search(match.text) or _IN_PYTHON.match(code):
        return None
    if not _OF_CHECKS.search(match.text):
        return None
    calls = "(" in code and found[0].is_clear
    return Located(match, blame, found, exact=calls) if calls or found[0].fixed >= _LONG else None


def _says_enough(match: Match, found: Sequence[Site]) -> bool:
    """Return whether a line without frames has a long message of one package only, which speaks of attention."""
    one = len({site.package for site in found}) == 1
    return one and found[0].fixed >= _LONG and _ATTENTION_WORDS.search(match.text) is not None


def _looked_up(match: Match, blame: Attribution) -> Located | None:
    """Return the table of a package that lacks a key, from the source text of the last frame."""
    missing = _MISSING_KEY.search(match.text)
    frame = match.frames[-1] if match.frames else None
    table = _TABLE.search(frame.code) if frame is not None else None
    if missing is None or table is None or frame is None or blame.origin != Origin.STACK or blame.package is None:
        return None
    guard = f"{missing[1]} not in {table['table']}"
    site = Site(blame.package, _inside(frame.file), frame.function, guard, (), (), ((table["key"], missing[1]),), 0)
    stated = f"`{table['table']}` of {blame.package} has no entry {missing[1]}"
    fix = f"give `{table['key']}` a value that `{table['table']}` has, or take a release that has this one"
    return Located(match, blame, (site,), exact=True, stated=stated, fix=fix, looked_up=True)


def _value(match: Match, blame: Attribution) -> Located | None:
    """Return the function of a package that looks a value up as the name of an attribute, and does not find it."""
    lacking = _LACKS.search(match.text)
    frame = match.frames[-1] if match.frames else None
    if lacking is None or frame is None or "getattr(" not in frame.code or blame.package is None:
        return None
    guard = f"{lacking['module']} has no `{lacking['name']}`"
    site = Site(blame.package, _inside(frame.file), frame.function, guard, (), (), (), 0)
    stated = (
        f"`{frame.function}` of {blame.package} looks `{lacking['name']}` up in {lacking['module']}, which has none"
    )
    fix = f"give {blame.package} another value than `{lacking['name']}`"
    return Located(match, blame, (site,), exact=True, stated=stated, fix=fix, looked_up=True)


def _dispatched(match: Match, blame: Attribution, stack: Stack) -> Located | None:
    """Return the operator of an extension that is not registered for the device of its tensors."""
    found = _NOT_REGISTERED.search(match.text)
    if found is None or found["space"] in ("aten", "prims", "quantized"):
        return None
    package = stack.owner(found["space"]) or blame.package or found["space"].replace("_", "-")
    having = _FOR_BACKENDS.search(match.around.partition(match.text[:60])[2] or match.text)
    listed = [name.strip() for name in (having[1].split(",") if having else ()) if name.strip() in _DEVICES]
    where = f"; it has one for {', '.join(listed)}" if listed else ""
    site = Site(package, "the dispatcher of torch", found["name"], "", (), (), (), 60)
    return Located(
        match,
        blame,
        (site,),
        exact=True,
        stated=f"operator `{found['space']}::{found['name']}` has no kernel for the {found['device']} backend{where}",
        fix=f"move its tensors to {' or '.join(listed) or 'a device that it serves'}, or install a build of "
        f"{package} for {found['device']}",
    )


def _called(match: Match, blame: Attribution, stack: Stack) -> Located | None:
    """Return the attention function that the job calls, where its compiled code raises what the message states."""
    frame = blame.frame
    call = _ATTENTION_CALL.search(frame.code) if frame is not None else None
    own = call is not None and call["module"] in ("self", "cls", "model")
    if call is None or own or frame is None or blame.origin != Origin.JOB:
        return None
    package = stack.owner(call["module"]) if call["module"] else None
    many = _TOO_MANY.search(match.text)
    if many is not None and call["name"] in match.text:
        site = Site(
            package or _COMPILED_ON_RECORD, "its signature", call["name"], "", (), (), (), len(_stated(match.text))
        )
        stated = f"`{call['name']}` takes {many['most']} positional arguments, and the call gives {many['given']}"
        fix = f"give the arguments after number {many['most']} by name, as is_causal=True or scale=0.125"
        return Located(match, blame, (site,), exact=True, stated=stated, fix=fix)
    if not _SHOULD.search(_stated(match.text)):
        return None
    site = Site(
        package or _COMPILED_ON_RECORD, "its compiled code", call["name"], "", (), (), (), len(_stated(match.text))
    )
    return Located(match, blame, (site,), exact=True)


def _refused_inside(match: Match, blame: Attribution) -> Located | None:
    """Return whose compiled code refuses a call, where no record has its message: that of the frame that calls it.

    The operators of torch are called by code of any kind, also without a call in the source text.
    """
    frame = match.frames[-1] if match.frames else None
    if frame is None or not frame.code or _IN_PYTHON.match(frame.code) or not _OF_CHECKS.search(match.text):
        return None
    text = _stated(match.text)
    if _OF_ANY_CODE.search(text) or is_compiled_fault(text) or len(text) < _WORDS:
        return None
    if not (_SHOULD.search(text) or _ADVICE.search(_stated(match.text, _WHOLE))):
        return None
    own = blame.origin == Origin.STACK and blame.frame == frame and _is_call(frame)
    if own and not _ATTENTION_WORDS.search(f"{text} {frame.code} {frame.function}"):
        return None
    if not own and (blame.origin != Origin.JOB or not _OF_OPERATORS.match(text)):
        return None
    function = frame.function if own else "an operator"
    site = Site(blame.package or _COMPILED_ON_RECORD, "its compiled code", function, "", (), (), (), len(text))
    return Located(match, blame, (site,), exact=own)


def _inside(file: str) -> str:
    return file.rpartition("-packages/")[2]


def _is_near(site: Site, frame: Frame) -> bool:
    """Return whether a place is in the folder of a frame, whose compiled code may have the same check."""
    return frame.file.rpartition("/")[0].endswith(site.file.rpartition("/")[0])


def _is_call(frame: Frame) -> bool:
    """Return whether the source text of a frame calls something, and raises nothing itself."""
    return "(" in frame.code and _IN_PYTHON.match(frame.code) is None


def _is_called(site: Site, frame: Frame) -> bool:
    """Return whether a place is in compiled code that the function of a frame may call."""
    return site.native and _is_call(frame)


def _is_at(site: Site, frames: Sequence[Frame]) -> bool:
    """Return whether one of the last frames is in the function of a place; models copy functions of each other."""
    name = site.function.rpartition(".")[2]
    return any(frame.function.rpartition(".")[2] == name or frame.file.endswith(site.file) for frame in frames[-3:])


def explained(item: Located) -> Explanation:
    """Return what is said of an error that was found in the code."""
    site, match = item.places[0], item.match
    text = match.text.strip()
    function = f"`{site.function}`" if site.function else "the module"
    message = item.stated or f"{function} of {site.package} refuses this call: {_stated(text)}"
    remedies = (Remedy(note=item.fix),) if item.fix else tuple(_proposed(match, site))
    proposes = bool(item.fix) or not all((remedy.note or "").startswith(_RESTATED) for remedy in remedies)
    return Explanation(
        cause=CAUSE,
        rule=None,
        category=category_of(None, text),
        packages=(site.package,),
        doubts=doubts_of_code(
            item.places, match, item.blame, exact=item.exact, proposes=proposes, looked_up=item.looked_up
        ),
        signature="",
        line=LogLine(match.line, text, match.rank),
        message=message,
        why=_why(item),
        remedies=remedies,
        reasons=tuple(_others(item)),
    )


def _stated(text: str, longest: int = 300) -> str:
    """Return the message of an exception without the name of its class."""
    found = _EXCEPTION.search(text)
    rest = text[found.end() :].lstrip(": ") if found else text
    return re.sub(r"\s+", " ", rest or text)[:longest]


def _why(item: Located) -> str:
    """Return where the code raises it and when."""
    site = item.places[0]
    parts = [f"{site.file} raises it"]
    if site.guard:
        parts.append(f" where {in_words(site.guard)}")
    values = ", ".join(
        f"`{name}` is {value.strip()}" for name, value in site.values if value.strip() and len(value) < 60
    )
    parts.append(f" ({values})." if values else ".")
    if site.without:
        parts.append(f" Of the releases on record, {site.package} {site.without} has no such check.")
    if item.blame.caller is not None and item.blame.caller != site.package:
        parts.append(f" {item.blame.caller} makes the call.")
    return "".join(parts)


def in_words(guard: str) -> str:
    """Return a condition of source code in plain words."""
    text = f" {guard} "
    for source, words in (
        (r"([\w.\[\]()]+) is not None", r"`\1` is given"),
        (r"([\w.\[\]()]+) is None", r"`\1` is not given"),
        (r"not isinstance\(([^,()]+), ([^()]+)\)", r"`\1` is no `\2`"),
        (r"isinstance\(([^,()]+), ([^()]+)\)", r"`\1` is a `\2`"),
        (r"([\w.\[\]()-]+) != ([\w.\[\]()'\"-]+)", r"`\1` differs from `\2`"),
        (r"([\w.\[\]()-]+) == ([\w.\[\]()'\"-]+)", r"`\1` is `\2`"),
    ):
        text = re.sub(source, words, text)
    text = text.strip()
    return text if "`" in text else f"`{text}`"


def _others(item: Located) -> Iterator[str]:
    for site in item.places[1:3]:
        if site.guard != item.places[0].guard:
            where = f", where {in_words(site.guard)}" if site.guard else ""
            yield f"or `{site.function}` of {site.package}{where}"


def _proposed(match: Match, site: Site) -> Iterator[Remedy]:
    """Yield what the message itself proposes, else the opposite of the condition."""
    after = match.around.partition(match.text)[2].splitlines()[:4]
    text = " ".join(
        [_stated(match.text, _WHOLE), *(line.strip() for line in after if not _EXCEPTION.match(line.strip()))]
    )
    notes = list(dict.fromkeys(found[1].strip() for found in _ADVICE.finditer(text) if not _REPORT.search(found[1])))
    notes += [f"as the message states: {shortened(found[0].strip(), 240)}" for found in _VALUES.finditer(text)]
    for command in dict.fromkeys(found[1].strip() for found in _PIP.finditer(text)):
        yield Remedy(note=f"the message proposes: {command}")
    for note in notes[:2]:
        yield Remedy(note=f"{note[0].upper()}{note[1:]}")
    if not notes and _SHOULD.search(text):
        yield Remedy(note=f"change the call as the message states: {shortened(_stated(match.text), 200)}")
    if not notes and site.guard:
        yield Remedy(note=f"{_RESTATED} that this no longer holds: {in_words(site.guard)}")
