"""The wire protocol between the doctor and a program that runs in the target interpreter.

A program defines `run(request) -> dict`; `__main__.py` passes it to `main`. Python >= 3.8, standard library only,
because this file runs in the target environment. `main` documents what is read and written.
"""

import contextlib
import json
import os
import sys
import time
import traceback

CONTRACT = 1
AHEAD = "--ahead"  # the process starts before its requests are known
#: Errors after which every later CUDA call in the process fails too.
LOST_DEVICE = ("CUDA error", "device-side assert", "illegal memory access", "CUDNN_STATUS_EXECUTION_FAILED")

#: Bound now: a library that is imported later may replace the attributes of these modules.
_dumps, _write, _getpid, _clock = json.dumps, os.write, os.getpid, time.monotonic

_channel = None  # file descriptor of the results; None until main() has claimed it
_owner = None  # pid of the process that may send results: a child forked by an import may not
_case = None


class Refused(Exception):
    """The stack declined the workload; the message is the stack's own reason."""


class Unavailable(Exception):
    """The package, device or entry point that the program tests is missing."""


def _send(record):
    if _channel is None or _getpid() != _owner:
        return
    # The host has the same clock, but it may read this line late.
    record = dict(record, contract=CONTRACT, at=_clock())
    # The leading newline ends an unfinished line that was printed before the channel was claimed.
    data = ("\n" + _dumps(record, default=repr) + "\n").encode("ascii")
    while data:
        data = data[_write(_channel, data) :]


def step(text):
    """Announce the next step before it runs: if the process dies there, the host knows where."""
    _send({"progress": {"case": _case, "step": str(text)}})


def _claim_stdout():
    """Reserve fd 1 for results; other output, from C code or child processes, goes to stderr."""
    global _channel, _owner
    _channel = os.dup(1)  # not inherited across exec, so no child process can write to it
    _owner = _getpid()
    os.dup2(2, 1)


def _read_request():
    chunks = []
    while True:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # so that nothing imported later waits for input
    os.close(null)
    if not any(chunks):  # a start-up hook read stdin, or forked, and the other process has the request
        sys.stderr.write("stdin was empty: something that runs at the start of this interpreter read it\n")
        sys.stderr.flush()
        os._exit(0)
    return json.loads(b"".join(chunks).decode("utf-8"))


def _finite(value):
    """Return the value with NaN and infinities written as text, so that every JSON parser can read it."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)  # nan, inf, -inf
    return value


def _run_case(run, request):
    """Run one case; return its result and whether the process can run another one."""
    began = _clock()
    observed, reason, usable = {}, None, True
    try:
        observed = run(request)
        outcome = "ran"
    except Refused as error:
        outcome, reason = "refused", str(error)
        observed = getattr(error, "observed", {})
    except Unavailable as error:
        outcome, reason = "unavailable", str(error)
        observed = getattr(error, "observed", {})
    except BaseException as error:  # SystemExit in an import is a result too
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        outcome, reason = "failed", text[:8000]
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        observed = {"traceback": ["{}:{} {}".format(f.filename, f.lineno, f.name) for f in frames]}
        # Every later call in this process would fail with the same error: the host starts a new one.
        usable = not any(mark in text for mark in LOST_DEVICE)
    seconds = _clock() - began
    result = {"outcome": outcome, "observed": _finite(observed), "reason": reason, "seconds": round(seconds, 4)}
    return result, usable


def _prepare(prepare):
    """Do the work that every case needs while the host still prepares the requests; ignore its errors."""
    with contextlib.suppress(BaseException):  # the case that needs it reports the error
        prepare()
    if _getpid() != _owner:
        os._exit(0)  # a fork that returned from an import: the parent reads the requests
    step("ready")


def main(run, prepare=None):
    """Run `run` on the requests on stdin. With `--ahead` on the command line, call `prepare()` before reading them.

    Stdin holds one JSON object: a request, or `{"contract": 1, "cases": [request, ...]}`. For each case one JSON line
    goes to stdout: `{"contract": 1, "case": i, "outcome": ..., "observed": {...}, "reason": ..., "seconds": ...}`; the
    last line on stdout is the last result. Lines with a `progress` key announce the next step.
    """
    global _case
    _claim_stdout()
    if prepare is not None and AHEAD in sys.argv[1:]:
        _prepare(prepare)
    try:
        request = _read_request()
        several = isinstance(request, dict) and request.get("contract") == CONTRACT and "cases" in request
        cases = request["cases"] if several else [request]
    except ValueError as error:
        _send({"case": None, "outcome": "failed", "observed": {}, "reason": "unreadable request: %s" % error})
        sys.exit(0)
    for index, case in enumerate(cases):
        _case = index
        step("start")
        result, usable = _run_case(run, case)
        if _getpid() != _owner:
            os._exit(0)  # a fork that returned from run(): the parent sends the result
        _send(dict(result, case=index))
        if not usable:
            break
    sys.stderr.flush()
    # Not sys.exit: a process whose results are sent may still crash when it tears down CUDA and thread pools.
    os._exit(0)
