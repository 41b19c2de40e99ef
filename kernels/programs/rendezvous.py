"""Exchange one text of every rank of a job through torch's key-value store; no process group and no GPU is used.

Request: `rank`, `world`, `address`, `port`, `agent` (the launcher's own store listens there), `text`, `timeout` in
seconds, `most` (characters of one text). Observed: on rank 0 `texts` by rank and `missing`, the ranks that sent none.
"""

import datetime
import time

from ..attention.gpu import import_torch
from ..protocol import Unavailable, step

PREFIX = "attn-doctor"
PIECE = 1 << 20  # characters in one value of the store


def _store(request, timeout):
    import_torch()
    try:
        from torch.distributed import PrefixStore, TCPStore
    except ImportError as error:
        raise Unavailable("this torch has no torch.distributed") from error
    master = request["rank"] == 0 and not request.get("agent")
    step("connect to {address}:{port}".format(**request))
    wait = datetime.timedelta(seconds=timeout)
    store = TCPStore(request["address"], request["port"], None, master, timeout=wait, wait_for_workers=False)
    return PrefixStore(PREFIX, store)


def _collect(store, request, deadline):
    """Return the texts of all ranks, as far as they come in time."""
    texts = {}
    for rank in range(request["world"]):
        try:
            left = max(0.1, deadline - time.monotonic())
            store.wait(["{}/count".format(rank)], datetime.timedelta(seconds=left))
            count = int(store.get("{}/count".format(rank)))
            if 0 < count <= request["most"] // PIECE + 1:
                pieces = [store.get("{}/{}".format(rank, number)) for number in range(count)]
                texts[str(rank)] = b"".join(pieces).decode("utf-8", "replace")
        except Exception as error:  # a time-out has another type in every release
            step("rank {} sent nothing: {}".format(rank, str(error)[:200]))
    return texts


def run(request):
    """Send the text of this rank; on rank 0 wait for the others."""
    deadline = time.monotonic() + float(request["timeout"])
    store = _store(request, float(request["timeout"]))
    text = request["text"].encode("utf-8")
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)] or [b""]
    for number, piece in enumerate(pieces):
        store.set("{}/{}".format(request["rank"], number), piece)
    store.set("{}/count".format(request["rank"]), str(len(pieces)))
    if request["rank"]:
        return {"sent": len(text)}
    texts = _collect(store, request, deadline)
    return {"texts": texts, "missing": [rank for rank in range(request["world"]) if str(rank) not in texts]}
