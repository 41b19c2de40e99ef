"""A failed run as a script that needs torch and the library alone, run by itself before it is reported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from doctor.runner.batch import KernelRunner, environment_of
from doctor.runner.result import KernelResult
from doctor.runner.run import run_alone, run_one
from doctor.util.redact import shortened


def reproduction(
    bench: KernelRunner, kernel: str, request: Mapping[str, Any], answer: KernelResult, said: str
) -> str | None:
    """The script, headed by what it is to show and whether it did; None where a case cannot be put that way."""
    kind = _kind(answer)
    request_of_script = {
        "kernel": kernel,
        "request": dict(request),
        "where": answer.where,
        "kind": kind,
        **_which(answer),
    }
    made = run_one(sys.executable, "script", request_of_script, timeout=min(30.0, bench.timeout))
    script = made.observed.get("script")
    if not isinstance(script, str):
        return None
    shown = _shown(bench, request, script, kind, answer)
    about = " ".join(said.split())
    head = [f"# attn-doctor, kernel {kernel}: {shortened(about, 300)}"]
    if version := answer.observed.get("torch"):
        head[0] += f" (torch {version})"
    head.append(f"# {_TOLD[shown]}")
    return "\n".join(head) + "\n" + script


_TOLD = {
    True: "run on its own here, it showed the same",
    False: "run on its own here, it did not show it: the fault may need what ran before, or other numbers",
    None: "not run on its own",
}


def _kind(answer: KernelResult) -> str:
    """What the script must show: a wrong result, another kernel than predicted, or how the case ended."""
    if answer.outcome != "ran":
        return "failed"
    return "wrong" if answer.observed.get("wrong") else "ran"


def _which(answer: KernelResult) -> dict[str, str]:
    """Of a kernel that tries several backends in several layouts: the first pair that is wrong, or was under way."""
    backends = answer.observed.get("backends")
    if isinstance(backends, Mapping):
        for name in answer.observed.get("wrong_backends") or ():
            layouts = backends.get(name)
            for layout, result in layouts.items() if isinstance(layouts, Mapping) else ():
                if isinstance(result, Mapping) and result.get("wrong") and layout != "contiguous":
                    return {"backend": str(name), "layout": str(layout)}
    backend, colon, layout = (answer.where or "").partition(": ")
    if colon and ("sdpa." in backend or backend in ("transformer_engine", "flash_attn")):
        return {"backend": backend, **({} if layout in ("load", "contiguous", "control") else {"layout": layout})}
    return {}


def _shown(
    bench: KernelRunner, request: Mapping[str, Any], script: str, kind: str, answer: KernelResult
) -> bool | None:
    """Whether the script ends as it should; None where it was not tried, as another long wait would add nothing."""
    if answer.outcome in ("timeout", "unavailable") or kind == "ran":
        return None
    environment = dict(environment_of(request))
    tried = run_alone(bench.python, script, timeout=bench.timeout, env=environment)
    code, raised = tried.observed.get("code"), "Traceback" in str(tried.observed.get("said"))
    if tried.outcome != "ran" or not isinstance(code, int):
        return None
    if kind == "wrong":
        return code == 1 and not raised
    return code not in (0, 1) if answer.outcome == "crashed" else code == 1 and raised
