"""Does cuDNN itself run this attention, with which mask alignment, and is the result right?

Request: the workload's keys, `via`: frontend (the `cudnn` module of nvidia-cudnn-frontend), torch (torch's cuDNN
backend) or auto (the frontend if it is installed); optional `layout` (bshd, sbhd, bhsd), `seed`. Observed: `via`,
`cudnn` (the version that ran), `errors`, `wrong`, `bound`. Outputs are filled with NaN before the call.
"""

from ..attention import cudnn, sdpa
from ..attention.bounds import compare
from ..attention.gpu import import_torch, pick_device, state
from ..attention.layouts import form_of, job_inputs, laid_out, layout_of
from ..attention.reference import reference_of
from ..attention.tensors import make_tensors
from ..attention.workload import PLAIN_MASKS, has_backward, has_window, workload, workload_of
from ..protocol import Refused, Unavailable, step


def run(request):
    """Run one workload through cuDNN, forward and backward."""
    via = request.get("via", "auto")
    torch = import_torch()
    step("import cudnn frontend")
    try:
        frontend = cudnn.frontend() if via != "torch" else None
    except Unavailable:
        if via == "frontend":
            raise
        frontend = None
    device = pick_device(torch, request)
    if not device.startswith("cuda"):
        raise Unavailable("cuDNN attention needs a GPU")
    if frontend is None:
        return dict(sdpa.measure(dict(request, backend="cudnn")), via="torch")
    case, shrunk = workload(request)
    mask = case["mask"]
    if mask not in PLAIN_MASKS or has_window(case.get("window")):
        raise Unavailable("this program does not run mask {} through the frontend".format(mask))
    observed = {"via": "frontend", "frontend": str(getattr(frontend, "__version__", "?")), "shrunk": shrunk}
    observed.update(case=workload_of(case), torch=str(torch.__version__), gpu=state(device))
    observed["cudnn"] = frontend.backend_version()
    step("reference")
    data = make_tensors(torch, case, device, request.get("seed", 0))
    reference = reference_of(torch, case, data, backward=has_backward(case))
    layout = request.get("layout") or layout_of(case)
    q, k, v = job_inputs(torch, case, layout, *data[:3])
    dout = laid_out(data[3], form_of(layout))
    scale = case.get("scale") or case["head_dim_qk"] ** -0.5
    try:
        step("cudnn handle")
        engine = cudnn.Frontend(frontend, torch)
        got = engine.both(q, k, v, dout, mask, scale, backward=has_backward(case))
    except Refused as declined:
        declined.observed = observed
        raise
    step("compare")
    observed.update(compare(case, reference, got, device))
    return observed
