"""A backend as the measurement uses it: how it takes the tensors of a job, the call, and how its results are read."""

import contextlib
import importlib

from ..attention.sdpa import repeatable
from ..protocol import Unavailable, step


class Engine:
    """One backend on one job. Sub-classes override what their library does otherwise.

    `call` takes what `prepare` made; `restore` returns a result as (batch, heads, sequence, width).
    """

    written_out = False  # holds the scores in the dtype of the inputs, so that they are rounded
    forward_only = False
    library = None  # the distribution and its release
    held = ()  # tensors that the call needs besides q, k and v: masks

    def __init__(self, torch, job):
        self.torch, self.job = torch, job
        self.notes = {}

    def prepare(self, q, k, v, dout):
        """Return ([q, k, v], dout) as this library takes them."""
        return [q, k, v], dout

    def call(self, q, k, v):
        """Return the output of one call."""
        raise NotImplementedError

    def restore(self, tensor):
        """Return an output or a gradient as (batch, heads, sequence, width)."""
        return tensor

    def context(self):
        """Return a context around forward and backward."""
        return repeatable(self.torch, self.job)

    def mask_bytes(self):
        """Return the bytes of what the call is given besides q, k and v."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.held)


class Heads(Engine):
    """A library that takes (batch, sequence, heads, width)."""

    def prepare(self, q, k, v, dout):
        """Return the tensors as they lie in memory."""
        return [tensor.transpose(1, 2) for tensor in (q, k, v)], dout.transpose(1, 2)

    def restore(self, tensor):
        """Return the heads to the second place."""
        return tensor.transpose(1, 2)


class Segments(Engine):
    """A library that takes the tokens of all sequences one behind the other, with the sequences' bounds."""

    def __init__(self, torch, job):
        super().__init__(torch, job)
        parts = job.segments()
        self.bounds = [_bounds(torch, [part[side] for part in parts], job.device) for side in (0, 1)]
        self.longest = [max(part[side] for part in parts) for side in (0, 1)]
        self.kept = [self._kept(side) for side in (0, 1)]

    def _kept(self, side):
        """Return the indices of the tokens that count, of queries (0) or keys (1); None for all of them."""
        job, torch = self.job, self.torch
        lengths = [part[side] for part in job.segments()]
        total = job["seq_len_q"] if side == 0 else job["seq_len_kv"]
        if not job.padded or sum(lengths) == job["batch_size"] * total:
            return None
        places = [torch.arange(length, device=job.device) + total * row for row, length in enumerate(lengths)]
        return torch.cat(places)

    def prepare(self, q, k, v, dout):
        """Return the tokens that count; a job removes the padding once a step, before its layers."""
        tensors = []
        for tensor, side in ((q, 0), (k, 1), (v, 1), (dout, 0)):
            tokens = tensor.transpose(1, 2).flatten(0, 1)
            tensors.append(tokens if self.kept[side] is None else tokens[self.kept[side]].contiguous())
        return tensors[:3], tensors[3]

    def restore(self, tensor):
        """Return the tokens to their places; zero where there is padding."""
        job = self.job
        side = 0 if tensor.shape[0] == self._tokens(0) and tensor.shape[1] == job["num_heads"] else 1
        total = job["seq_len_q"] if side == 0 else job["seq_len_kv"]
        if self.kept[side] is not None:
            full = tensor.new_zeros((job["batch_size"] * total,) + tuple(tensor.shape[1:]))
            full[self.kept[side]] = tensor
            tensor = full
        return tensor.unflatten(0, (job["batch_size"], total)).transpose(1, 2)

    def _tokens(self, side):
        kept = self.kept[side]
        return (
            self.job["batch_size"] * self.job["seq_len_q" if side == 0 else "seq_len_kv"] if kept is None else len(kept)
        )


def _bounds(torch, lengths, device):
    """Return the bounds of sequences of these lengths, int32, as every library takes them."""
    return torch.tensor([0] + lengths).cumsum(0).to(device=device, dtype=torch.int32)


def load(module, package=None):
    """Import a library; raise Unavailable where it is not installed."""
    step("import {}".format(module))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.split(".")[0]):
            raise
        raise Unavailable("{} is not installed".format(package or module.split(".")[0])) from error


def release(*distributions):
    """Return the first of these distributions that is installed with its release, as `flash-attn 2.8.3`; or None."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        return None
    for name in distributions:
        with contextlib.suppress(Exception):
            return "{} {}".format(name, metadata.version(name))
    return None
