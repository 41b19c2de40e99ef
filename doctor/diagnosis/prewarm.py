"""Import torch in the examined interpreter while rules and facts are read: for a job whose kernels may run here."""

from __future__ import annotations

import os
import sys

from doctor.errors import NoDiagnosis
from doctor.runner.batch import prewarm
from doctor.runner.run import PrewarmedProcess
from doctor.sources.probes.locate import named_interpreter

from .request import Request

#: Files that show a driver without loading it: Linux, Linux under Windows.
_DRIVER = ("/dev/nvidiactl", "/dev/dxg")


def prewarm_kernels(request: Request) -> PrewarmedProcess | None:
    """A process that imports torch while rules and facts are read: for a job on this machine, if it has a driver."""
    stated = (*(setting.partition("=")[0].strip() for setting in request.settings), *request.given)
    job = request.model or request.workload or stated or request.defaults.model or request.defaults.workload
    elsewhere = request.site_packages or request.facts or request.declared or request.gpu
    if not request.run or not job or elsewhere or any(not key.startswith("workload.") for key in stated):
        return None
    if not any(map(os.path.exists, _DRIVER)):
        return None
    try:
        return prewarm(named_interpreter(request.python) or sys.executable)
    except NoDiagnosis:  # no folder for the kernels: where one is needed, the report says so
        return None
