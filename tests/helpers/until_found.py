"""Asks planned cases in turn until one shows the fault that is looked for. Runs in the interpreter that has torch."""

import sys
import types

import _sweep_run
from _probe import Refused, Unavailable, main


def run(request):
    """`cases`, in order; `kinds`, how the fault may be told; `modules`, name → source of libraries made up."""
    for name, source in (request.get("modules") or {}).items():
        module = sys.modules[name] = types.ModuleType(name)
        exec(source, module.__dict__)
    asked, others = 0, set()
    for case in request["cases"]:
        try:
            kinds = _sweep_run.measure(case)["faults"]
        except (Refused, Unavailable):
            continue
        asked += 1
        if set(request["kinds"]) & set(kinds):
            return {"found": True, "asked": asked, "kinds": kinds, "case": case}
        others.update(kinds)
    return {"found": False, "asked": asked, "others": sorted(others)}


if __name__ == "__main__":
    main(run)
