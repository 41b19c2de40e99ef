"""A kernel program: run planned cases in turn until one shows the planted fault."""

import sys
import types

from ..protocol import Refused, Unavailable
from ..sweep.run import measure


def run(request):
    """`cases`, in order; `kinds`, how the fault may be reported; `modules`, name → source of libraries made up."""
    for name, source in (request.get("modules") or {}).items():
        module = sys.modules[name] = types.ModuleType(name)
        exec(source, module.__dict__)
    asked, others = 0, set()
    for case in request["cases"]:
        try:
            kinds = measure(case)["faults"]
        except (Refused, Unavailable):
            continue
        asked += 1
        if set(request["kinds"]) & set(kinds):
            return {"found": True, "asked": asked, "kinds": kinds, "case": case}
        others.update(kinds)
    return {"found": False, "asked": asked, "others": sorted(others)}
