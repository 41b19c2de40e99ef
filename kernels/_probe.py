"""The contract between the doctor and a program it runs in the interpreter under examination.

A program defines `run(request) -> dict` and ends with `main(run)`. Python >= 3.8, standard library only: this file
runs wherever the patient runs. See `main` for what is read and written.
"""

import contextlib
import json
import os
import sys
import time
import traceback

CONTRACT = 1
AHEAD = "--ahead"  # the program is started before its questions are known
LOST_DEVICE = ("CUDA error", "device-side assert", "illegal memory access", "CUDNN_STATUS_EXECUTION_FAILED")

#: As they are now: what is imported later may put something else in their place.
_dumps, _write, _getpid, _clock = json.dumps, os.write, os.getpid, time.monotonic

_channel = None  # the descriptor that answers go to; None until main() has claimed it
_owner = None  # process that may answer: a child forked by an import must not answer in our name
_case = None


class Refused(Exception):
    """The stack declined the workload; the text is the stack's own reason."""


class Unavailable(Exception):
    """What the program wanted to ask is not there: no package, no device, no such entry point."""


def _send(record):
    if _channel is None or _getpid() != _owner:
        return
    # The host's clock is the same; when it comes to read this line is another matter.
    record = dict(record, contract=CONTRACT, at=_clock())
    # The newline in front ends whatever half line somebody printed before we took the channel.
    data = ("\n" + _dumps(record, default=repr) + "\n").encode("ascii")
    while data:
        data = data[_write(_channel, data) :]


def step(text):
    """Say what comes next, before it is tried: if the process dies there, the host still knows where."""
    _send({"progress": {"case": _case, "step": str(text)}})


def _claim_stdout():
    """Keep fd 1 for answers alone; whatever else writes to it, from C or from a child, lands on stderr."""
    global _channel, _owner
    _channel = os.dup(1)  # not inheritable across exec, so no child process can write to it
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
    os.dup2(null, 0)  # nothing that is imported later may wait for a keyboard
    os.close(null)
    if not any(chunks):  # taken by what runs at start: a reader, or a fork of us, which then answers in our place
        sys.stderr.write("nothing came on stdin: something that runs at the start of this interpreter took it\n")
        sys.stderr.flush()
        os._exit(0)
    return json.loads(b"".join(chunks).decode("utf-8"))


def _finite(value):
    """The same value with numbers that JSON lacks written as text, so that any parser can read the answer."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)  # nan, inf, -inf
    return value


def _answer(run, request):
    """One case: outcome, observed, reason, and whether the process is fit for another case."""
    began = _clock()
    observed, reason, fit = {}, None, True
    try:
        observed = run(request)
        outcome = "ran"
    except Refused as error:
        outcome, reason = "refused", str(error)
        observed = getattr(error, "observed", {})
    except Unavailable as error:
        outcome, reason = "unavailable", str(error)
        observed = getattr(error, "observed", {})
    except BaseException as error:  # SystemExit in an import is an answer too
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        outcome, reason = "failed", text[:8000]
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        observed = {"traceback": ["{}:{} {}".format(f.filename, f.lineno, f.name) for f in frames]}
        # After such an error every later call in this process fails with it: the host goes on in a fresh one.
        fit = not any(mark in text for mark in LOST_DEVICE)
    seconds = _clock() - began
    return {"outcome": outcome, "observed": _finite(observed), "reason": reason, "seconds": round(seconds, 4)}, fit


def _prepare(ahead):
    """Do what every case will need while the questions are still on their way; `ahead` keeps what goes wrong in it."""
    with contextlib.suppress(BaseException):  # told by the case that meets it
        ahead()
    if _getpid() != _owner:
        os._exit(0)  # a fork that came back out of an import: the parent reads and answers
    step("ready")


def main(run, ahead=None):
    """Answer the request on stdin with `run`; started with `--ahead`, do `ahead()` before it is read.

    Stdin holds one JSON object: a request, or `{"contract": 1, "cases": [request, ...]}`. For each case one JSON line
    goes to stdout: `{"contract": 1, "case": i, "outcome": ..., "observed": {...}, "reason": ..., "seconds": ...}`; the
    last line on stdout is the last answer. Lines with a `progress` key tell what is about to be tried.
    """
    global _case
    _claim_stdout()
    if ahead is not None and AHEAD in sys.argv[1:]:
        _prepare(ahead)
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
        answer, fit = _answer(run, case)
        if _getpid() != _owner:
            os._exit(0)  # a fork that came back out of run(): the parent answers
        _send(dict(answer, case=index))
        if not fit:
            break
    sys.stderr.flush()
    # Not sys.exit: tearing down CUDA and thread pools at exit is where a process that has answered well still dies.
    os._exit(0)
