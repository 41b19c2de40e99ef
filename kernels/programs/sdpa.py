"""Does torch run this workload on this SDPA backend, which kernel is it really, and is the result right?

Request: the workload's keys (see `attention.workload`), and `backend`: flash, efficient, cudnn, math or default (torch
chooses); optional `device` (cuda; the CPU only on request), `layout` (bshd: transposed views as models pass them; sbhd;
bhsd), `gqa` (enable, repeat), `profile` (true: by operators; kernels: by those on the GPU; false), `repeat`, `seed`.
Observed: `wrong`, `errors`, `bound`, `ran` (families), `kernels` (the names that show it), `gpu`, and the cost compared
with what the workload needs (see `attention.cost`). Refused carries torch's own warnings.
"""

from ..attention import sdpa


def run(request):
    """Run one workload on one backend, forward and backward."""
    return sdpa.measure(request)
