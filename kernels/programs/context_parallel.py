"""Is the attention right when its sequence is divided among several ranks, forward and backward?

Starts `ranks` processes with torch.distributed.run and compares their joined result with the float64 reference.
Request: the workload's keys; `engine`: torch.allgather (default), torch.alltoall, te.p2p, te.all_gather, te.a2a,
te.a2a+p2p, ring_flash_attn.ring, ring_flash_attn.zigzag, ring_flash_attn.stripe, ring_flash_attn.llama3, or
`file:PATH:FUNCTION`; optional `ranks` (default: `cp_size`, at most the GPUs that are there; on a CPU what is stated),
`device`, `backend` (of SDPA), `load_balance`, `packed` (with `sequences`, 3 by default), `window`, `gqa`, `sharding`,
`timeout` in seconds without progress. `cases`: several such requests, which share the processes.
Observed: `errors`, `bound`, `wrong`, `offenders`, `ranks`, `shrunk`; of several `cases` a list of outcome, observed and
reason. A rank that crashes or hangs is the result of its case: `ended` is crashed or timeout, `ranks_at` says where.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from ..attention.gpu import import_torch
from ..protocol import Refused, Unavailable, step

TIMEOUT = 60.0  # seconds without any progress of any rank
STARTUP = 120.0  # seconds to import torch and to connect
TAIL = 4000  # characters of the launcher's output
POLL = 0.05


def run(request):
    """Run one case, or several in one start."""
    torch = import_torch()
    if not torch.distributed.is_available():
        raise Unavailable("this torch has no torch.distributed")
    device = str(request.get("device") or "cuda")
    cases = request.get("cases") or [request]
    ranks = _ranks(torch, request, cases, device)
    results = _all(cases, ranks, device, float(request.get("timeout") or TIMEOUT))
    if request.get("cases"):
        return {"cases": results, "ranks": ranks}
    (result,) = results
    return _single(result)


def _single(result):
    """Return the observations of the only case, or raise what became of it."""
    kinds = {"refused": Refused, "unavailable": Unavailable}
    if result["outcome"] == "ran":
        return result["observed"]
    error = kinds.get(result["outcome"], RuntimeError)(result["reason"])
    error.observed = result["observed"]
    raise error


def _ranks(torch, request, cases, device):
    """Return how many ranks to start; Unavailable where there are not two."""
    wanted = int(request.get("ranks") or max(int(case.get("cp_size") or 2) for case in cases))
    stated = int(request.get("ranks") or 0)  # ranks on a CPU can share its cores, if that is wanted
    there = torch.cuda.device_count() if device == "cuda" else max(2, os.cpu_count() or 2, stated)
    if device == "cuda" and there < 2:
        raise Unavailable("context parallelism needs two GPUs, torch sees {}".format(there))
    return max(2, min(wanted, there, 64))


def _all(cases, ranks, device, timeout):
    """Return a result for each case; a case that ends the processes costs a start."""
    results = []
    while len(results) < len(cases):
        collected = _start(cases, len(results), ranks, device, timeout)
        results += collected
        last = collected[-1]
        if last["observed"].get("before_cases") or last["outcome"] == "unavailable":
            results += [last] * (len(cases) - len(results))
    return results


def _start(cases, first, ranks, device, timeout):
    """Start the ranks on the cases from `first` on; return the results up to the one that ended the processes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="attn-doctor-ranks-"))
    order = {"cases": cases[first:], "first": first, "folder": str(folder), "device": device, "timeout": timeout}
    (folder / "order.json").write_text(json.dumps(order), "utf-8")
    script = pathlib.Path(__file__).resolve().parent.parent / "rank.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node={}".format(ranks),
        "--max-restarts=0", "--master-addr=127.0.0.1", "--master-port={}".format(port), str(script),
        str(folder / "order.json"),
    ]  # fmt: skip
    environment = dict(
        os.environ, TORCH_NCCL_ASYNC_ERROR_HANDLING="1", OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1")
    )
    step("start {} ranks".format(ranks))
    try:
        with open(str(folder / "log"), "wb") as log:  # noqa: PTH123 - Python 3.8
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            try:
                return _watch(process, folder, len(cases) - first, ranks, timeout)
            finally:
                _end(process, folder, ranks)
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


def _watch(process, folder, count, ranks, timeout):
    """Return the results of the cases, as far as they come."""
    followers = [_Follower(folder / "rank-{}.jsonl".format(rank)) for rank in range(ranks)]
    last, count_done = time.monotonic(), 0
    while True:
        if any([follower.read() for follower in followers]):
            last = time.monotonic()
        finished = len(followers[0].outcomes)
        while count_done < finished and all(count_done < len(follower.outcomes) for follower in followers):
            count_done += 1
            step("case {} of {} done".format(count_done, count))
        if count_done >= count:
            return _joined(followers, count_done)
        started = any(follower.case is not None for follower in followers)
        limit = timeout if started else max(timeout, STARTUP)
        if process.poll() is not None:
            time.sleep(2 * POLL)
            for follower in followers:
                follower.read()
            count_done = min(len(follower.outcomes) for follower in followers)
            results = _joined(followers, count_done)
            if count_done and not any(follower.goes_on for follower in followers):
                return results  # they ended after a case, and before the next
            return [*results, _ended(process, followers, folder, count_done, None)]
        if time.monotonic() - last > limit:
            return [*_joined(followers, count_done), _ended(process, followers, folder, count_done, limit)]
        time.sleep(POLL)


class _Follower:
    """Reads the lines of one rank as they are written."""

    def __init__(self, path):
        self.path, self.offset = path, 0
        self.outcomes, self.case, self.where = [], None, "before it started"
        self.goes_on = False  # it is in a case

    def read(self):
        """Read what is new; return whether there was anything."""
        try:
            with open(str(self.path), "rb") as file:  # noqa: PTH123 - Python 3.8
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return False
        whole = data.rpartition(b"\n")[0]
        self.offset += len(whole) + 1 if whole else 0
        for line in whole.split(b"\n") if whole else ():
            record = json.loads(line)
            if "outcome" in record:
                self.outcomes.append(record)
                self.goes_on = False
            else:
                self.case, self.where = record.get("case"), record["step"]
                self.goes_on = self.case is not None
        return bool(whole)


def _joined(followers, count):
    """Return the results of the cases that every rank finished: the worst outcome of any rank, observed by rank 0."""
    results = []
    for number in range(count):
        records = [follower.outcomes[number] for follower in followers]
        order = ("failed", "unavailable", "refused", "ran")
        worst = min(range(len(records)), key=lambda rank: (order.index(records[rank]["outcome"]), records[rank]["at"]))
        record = records[worst]
        observed = dict(records[0]["observed"]) if record["outcome"] == "ran" else dict(record["observed"])
        reason = (
            record["reason"]
            if worst == 0 or record["outcome"] == "ran"
            else "rank {}: {}".format(worst, record["reason"])
        )
        results.append({"outcome": record["outcome"], "observed": observed, "reason": reason})
    return results


def _ended(process, followers, folder, count_done, limit):
    """Return the result of the case in which the processes ended or stopped making progress."""
    where = {str(rank): follower.where for rank, follower in enumerate(followers)}
    alone = [
        (rank, follower.outcomes[count_done])
        for rank, follower in enumerate(followers)
        if count_done < len(follower.outcomes)
    ]
    failed = [(rank, record) for rank, record in alone if record["outcome"] != "ran"]
    observed = {"ranks_at": where, "ended": "timeout" if limit is not None else "crashed"}
    if all(follower.case is None for follower in followers):
        observed["before_cases"] = True
    with contextlib.suppress(OSError):
        observed["log"] = (folder / "log").read_text("utf-8", errors="replace")[-TAIL:]
    places = ", ".join("rank {} at `{}`".format(rank, text) for rank, text in where.items())
    cause = "" if limit is not None else _cause(observed.get("log", ""), process.returncode)
    if failed and not cause.startswith("SIG"):  # a rank that died is the cause of what the others say
        rank, record = min(failed, key=lambda pair: pair[1]["at"])
        observed.update(record["observed"])
        reason = "rank {} {} alone: {}".format(rank, record["outcome"], record["reason"])
    elif limit is not None:
        reason = "no rank made progress within {:g} s: {}".format(limit, places)
    else:
        reason = "the ranks ended ({}): {}".format(cause, places)
    return {"outcome": "failed", "observed": observed, "reason": reason}


def _cause(log, status):
    """Return what the launcher says about the rank that died of a signal, else about the one that ended first."""
    codes = [int(code) for code in re.findall(r"exitcode\s*: (-?\d+)", log)]
    died = [code for code in codes if code < 0 and code != -signal.SIGTERM]  # SIGTERM is from the launcher
    root = re.search(r"Root Cause.*?exitcode\s*: (-?\d+)", log, re.DOTALL)
    code = died[0] if died else int(root.group(1)) if root else codes[0] if codes else status
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return "status {}".format(code)


def _end(process, folder, ranks):
    """End the launcher and its ranks, which die with it."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    if process.poll() is None:
        process.kill()
        process.wait()
