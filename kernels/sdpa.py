"""Does torch run this workload on this SDPA backend, which kernel is it really, and is the result right?

Request: the workload's keys (see `_attention.workload`), and `backend`: flash, efficient, cudnn, math or default (torch
chooses); optional `device` (cuda; cpu must be asked for), `layout` (bshd: transposed views as models pass them; sbhd;
bhsd), `gqa` (enable, repeat), `profile` (true: by operators; kernels: by those on the GPU; false), `repeat`, `seed`.
Observed: `wrong`, `errors`, `bound`, `ran` (families), `kernels` (the names that tell it), `gpu`, and what it cost
beside what it needs (see `_cost.measured`). Refused carries torch's own warnings.
"""

import _sdpa
from _probe import main


def run(request):
    """One workload on one backend, forward and backward."""
    return _sdpa.measure(request)


if __name__ == "__main__":
    main(run)
