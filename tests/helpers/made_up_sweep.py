"""Replaces the program `sweep` where no torch is needed: the environment says what its cases do.

`MADE_UP` holds pairs `backend=conduct`; a conduct is ok, slow, refused, failed, no-memory, exit or hang.
With `start=fails-later` no process starts once a case has run.
"""

import json
import os
import pathlib
import time

from ..protocol import Refused, step

BACKENDS = ("sdpa.default", "sdpa.flash", "sdpa.math")
ASKED = pathlib.Path(os.environ["ASKED"])
CONDUCT = dict(pair.split("=") for pair in os.environ.get("MADE_UP", "").split(",") if pair)


def run(request):
    op = request.get("op", "case")
    if op == "hello":
        states = {name: None for name in BACKENDS}
        return {"torch": "2.13", "cuda": None, "device": "cpu", "devices": [], "backends": states, "versions": {}}
    if op != "case":
        return {}
    asked = {name: value for name, value in request.items() if name not in ("profile", "memory_bytes")}
    with ASKED.open("a") as file:  # one line is written whole
        file.write(json.dumps(asked, sort_keys=True) + "\n")
    step("call")
    conduct = CONDUCT.get(request["backend"], "ok")
    if conduct == "slow":
        time.sleep(0.05)
    elif conduct == "refused":
        raise Refused("not here")
    elif conduct == "failed":
        raise RuntimeError("broke")
    elif conduct == "no-memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    elif conduct == "exit":
        os._exit(0)
    elif conduct == "hang":
        time.sleep(300)
    return {"verdict": "ok", "faults": [], "bits": request["seed"]}


if CONDUCT.get("start") == "fails-later" and ASKED.exists():
    raise SystemExit("this interpreter was taken away")
