"""The error of a backend against float64, of all that fits: some queries of one group of heads.

The gradient that comes in is zero but for these queries. So the gradients of keys and values depend on them alone, and
are compared as a whole.
"""

from ..attention.bounds import judge
from ..attention.reference import Reference, Rounding

#: Scores of the float64 reference.
MAX_SCORES = 1 << 24


class Truth:
    """What is compared of a job, and the reference for it."""

    def __init__(self, torch, job, tensors):
        self.torch, self.job, self.tensors = torch, job, tensors
        self.entry = job["batch_size"] - 1  # the most padded one
        self.heads = slice(job["num_heads"] - job.group, job["num_heads"])  # those of the last key head
        self.rows = self._rows()
        self.references = {}

    def _rows(self):
        """Return the indices of the queries that are compared: all that count, or some at equal distances."""
        torch, job = self.torch, self.job
        count = job["seq_len_q"]
        if job.padded and count == job["seq_len_kv"]:
            count = job.lengths[self.entry]
        most = max(16, MAX_SCORES // (job.group * job["seq_len_kv"]))
        if count <= most:
            return torch.arange(count, device=job.device)
        return torch.linspace(0, count - 1, most, dtype=torch.float64, device=job.device).round().long()

    @property
    def scope(self):
        """What is compared, in words; None for everything."""
        job = self.job
        everything = len(self.rows) == job["seq_len_q"]
        if everything and job["batch_size"] == 1 and job["num_kv_heads"] == 1:
            return None
        queries = "all" if everything else str(len(self.rows))
        return "{} queries of {} of {} heads in one of {} sequences".format(
            queries, job.group, job["num_heads"], job["batch_size"]
        )

    def incoming(self):
        """Return the gradient of the output that is zero but for the compared queries."""
        dout = self.tensors[3]
        # Laid out as in the measured runs: torch's cuDNN plans are kept without the layout of this gradient, and a
        # second layout gets the plan of the first, and wrong numbers (torch 2.11).
        some = self.torch.zeros_like(dout)
        some[self.entry, self.heads, self.rows] = dout[self.entry, self.heads, self.rows]
        return some

    def reference(self, written_out):
        """Return the float64 reference; `written_out`: for a backend that holds scores in the dtype of the inputs."""
        if written_out not in self.references:
            job, (q, k, v, dout) = self.job, self.tensors
            key = slice(job["num_kv_heads"] - 1, job["num_kv_heads"])
            at = slice(self.entry, self.entry + 1)
            problem = {
                "q": q[at, self.heads][:, :, self.rows], "k": k[at, key], "v": v[at, key],
                "dout": dout[at, self.heads][:, :, self.rows], "scale": job.scale,
                "keep": job.dense_mask(self.rows, self.entry), "softcap": job.get("softcap") or None,
                "alibi": job.alibi_bias(self.heads, self.rows) if job.alibi else None,
            }  # fmt: skip
            rounding = Rounding(written_out=written_out)
            self.references[written_out] = Reference(self.torch, problem, backward=job.backward, rounding=rounding)
        return self.references[written_out]

    def compare(self, got, written_out):
        """Return {max_error, right, errors} of a result as (batch, heads, sequence, width)."""
        job, entry, key = self.job, self.entry, self.job["num_kv_heads"] - 1
        seen = {}
        for name, value in got.items():
            if value is None:
                continue
            if name in ("out", "dq"):
                seen[name] = value[entry : entry + 1, self.heads][:, :, self.rows]
            else:
                seen[name] = value[entry : entry + 1, key : key + 1]
        errors = self.reference(written_out).errors(seen)
        case = {
            "dtype": job["dtype"], "batch_size": 1, "num_heads": job.group, "num_kv_heads": 1,
            "seq_len_q": len(self.rows), "seq_len_kv": job["seq_len_kv"], "head_dim_qk": job["head_dim_qk"],
            "head_dim_v": job["head_dim_v"],
        }  # fmt: skip
        _, wrong, _ = judge(case, errors, job.device)
        worst = max([error["rel"] for error in errors.values()] or [0.0], key=lambda rel: (rel != rel, rel))
        return {"max_error": worst, "right": not wrong, "errors": {name: e["rel"] for name, e in errors.items()}}
