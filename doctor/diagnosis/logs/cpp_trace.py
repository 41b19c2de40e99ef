"""What C++ code prints after its message: the place that raised it, and the libraries of its frames."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .scan import Match

_RAISED = re.compile(r"^Exception raised from (?P<function>\S{1,300}) at (?P<file>[^\n]{3,300}?):\d+ \(", re.MULTILINE)
#: `frame #3: at::native::sdp(...) + 0x1f (0x7f… in /opt/…/libtorch_cpu.so)`, on Windows `… c10.dll!c10::Error::Error`.
_FRAME = re.compile(
    r"^(?:frame #\d+: (?P<symbol>[^\n]{0,2000}?)(?: \+ 0x[0-9a-f]+)? \(0x[0-9a-f]+ in (?P<library>[^\n()]{2,300})\)"
    r"|[0-9A-F]{32} (?P<dll>[\w.-]+\.(?:dll|pyd))!)",
    re.MULTILINE,
)
_NEXT = re.compile(r"^(?:Traceback |\w[\w.]*(?:Error|Exception): )", re.MULTILINE)
#: Where the folder of a source file is, on the machine that built it.
_BUILD = re.compile(r"^.*?(?:^|/)(?=(?:aten|c10|torch|caffe2|csrc)/)")
_TORCH = re.compile(r"(?:aten|c10|caffe2)/|torch/csrc/")
#: What only reports the failure of a kernel that ran before.
_REPORTS = re.compile(r"c10_cuda_check_implementation|checkTimeout|watchdog|checkAndThrow", re.IGNORECASE)
#: Libraries whose frames are between those of other code: of torch, CUDA, Python and the system.
_BETWEEN = re.compile(
    r"(?:^|/)(?:lib(?:c10|torch|cu|nv|nccl|c\.so|c-|stdc|gcc|gomp|python|pthread|ATen|caffe)[\w.+-]*|python[\d.]*|ld-\S+"
    r"|(?:c10|torch|ucrt|vcruntime|ntdll|kernel|python|cuda|nv|_C)[\w.-]*\.(?:dll|pyd)|_C\.[\w.-]+so)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CppTrace:
    """Where C++ code raised an error, as far as the log shows it."""

    function: str = ""
    file: str = ""  # below the root of its sources
    library: str = ""  # the innermost compiled file that is neither of torch nor of the system

    @property
    def is_of_torch(self) -> bool:
        """Whether the place is in the sources of torch, which have copies of other packages."""
        return _TORCH.match(self.file) is not None and not (self.only_reports and self.library)

    @property
    def only_reports(self) -> bool:
        """Whether the place reports what another one did."""
        return _REPORTS.search(self.function) is not None


def trace_after(match: Match) -> CppTrace:
    """Return what follows the message of a match, up to the next error; an empty trace where nothing does."""
    after = match.around.partition(match.text.replace("\\", "/"))[2]
    if "Exception raised from" not in after and "frame #" not in after:
        return CppTrace()
    following = _NEXT.search(after, 1)
    after = after[: following.start()] if following is not None else after
    raised = _RAISED.search(after)
    libraries = (found["library"] or found["dll"] for found in _FRAME.finditer(after))
    library = next((name for name in libraries if not _BETWEEN.search(name)), "")
    if raised is None:
        return CppTrace(library=library)
    return CppTrace(raised["function"].rpartition("::")[2], _BUILD.sub("", raised["file"]), library)
