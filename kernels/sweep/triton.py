"""Does triton compile and run a small kernel? Finds trouble with ptxas, libcuda, compilers and cache folders."""

import os
import tempfile

from ..attention.gpu import import_torch, pick_device
from ..protocol import Unavailable, step

tl = None  # triton.language, which a kernel looks up among the globals of its module


def smoke_test(request):
    """Add two vectors with a kernel that is compiled now, not taken from a cache."""
    global tl
    torch = import_torch()
    device = pick_device(torch, request)
    if not device.startswith("cuda"):
        raise Unavailable("triton needs a GPU")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        step("import triton")
        try:
            import triton
            import triton.language as tl
        except ModuleNotFoundError as error:
            raise Unavailable(str(error)) from error

        @triton.jit
        def add(x, y, out, n, block: tl.constexpr):
            at = tl.program_id(0) * block + tl.arange(0, block)
            tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

        count = 1000
        x, y = torch.randn(count, device=device), torch.randn(count, device=device)
        out = torch.full_like(x, float("nan"))
        step("triton compile and run")
        add[(triton.cdiv(count, 256),)](x, y, out, count, block=256)
        torch.cuda.synchronize()
    right = bool(torch.equal(out, x + y))
    return {"triton": triton.__version__, "verdict": "ok" if right else "wrong", "faults": [] if right else ["out"]}
