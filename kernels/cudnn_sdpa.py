"""Does cuDNN itself run this attention, with which mask alignment, and is the result right?

Request: the workload's keys, `via`: frontend (the `cudnn` module of nvidia-cudnn-frontend), torch (torch's cuDNN
backend) or auto (the frontend if it is there); optional `layout` (bshd, sbhd, bhsd), `seed`. Observed: `via`, `cudnn`
(the version that answers), `errors`, `wrong`, `bound`. Outputs are filled with NaN before the call.
"""

import _attention
import _cudnn
import _gpu
import _layouts
import _sdpa
from _probe import Refused, Unavailable, main, step


def _through_torch(request):
    observed = _sdpa.measure(dict(request, backend="cudnn"))
    observed["via"] = "torch"
    return observed


def run(request):
    """One workload through cuDNN, forward and backward."""
    via = request.get("via", "auto")
    torch = _attention.import_torch()
    step("import cudnn frontend")
    try:
        cudnn = _cudnn.frontend() if via != "torch" else None
    except Unavailable:
        if via == "frontend":
            raise
        cudnn = None
    device = _attention.pick_device(torch, request)
    if not device.startswith("cuda"):
        raise Unavailable("cuDNN attention needs a GPU")
    if cudnn is None:
        return _through_torch(request)
    case, shrunk = _attention.workload(request)
    mask = case["mask"]
    if mask not in _attention.PLAIN_MASKS or case.get("window"):
        raise Unavailable("this program does not ask the frontend about mask {}".format(mask))
    observed = {
        "via": "frontend",
        "frontend": str(getattr(cudnn, "__version__", "?")),
        "shrunk": shrunk,
        "case": _attention.described(case),
    }
    observed["torch"] = str(torch.__version__)
    observed["gpu"] = _gpu.state(device)
    observed["cudnn"] = cudnn.backend_version()
    step("reference")
    data = _attention.tensors(torch, case, device, request.get("seed", 0))
    truth = _attention.Truth(torch, case, *data, backward=bool(case["training"]))
    layout = request.get("layout", "bshd")
    q, k, v, dout = (_layouts.laid_out(t, layout) for t in data)
    scale = case.get("scale") or case["head_dim_qk"] ** -0.5
    try:
        step("cudnn handle")
        engine = _cudnn.Frontend(cudnn, torch)
        got = engine.both(q, k, v, dout, mask, scale, backward=bool(case["training"]))
    except Refused as declined:
        declined.observed = observed
        raise
    step("compare")
    observed.update(_attention.compared(torch, case, truth, got, device))
    return observed


if __name__ == "__main__":
    main(run)
