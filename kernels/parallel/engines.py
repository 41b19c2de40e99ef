"""Context-parallel attention of the installed libraries, each called as a training step calls it.

An engine is a function (torch, case, group, q, k, v, dout) of global (batch, heads, seq, dim) tensors. It divides them
itself and returns the output and the gradients of this rank, with the pattern by which they are to be put together;
or the whole tensors, with None. Unavailable: the library is not installed, or this program cannot call it for the case.
"""

import importlib
import importlib.util
import inspect
import pathlib

from ..attention import sdpa
from ..attention.layouts import laid_out, layout_of
from ..protocol import Unavailable, step
from .shards import shard

#: Engine names by library.
TORCH = ("torch.allgather", "torch.alltoall")
TE = ("te.p2p", "te.all_gather", "te.a2a", "te.a2a+p2p")
#: Engine → how its sequences are divided.
RING = {
    "ring_flash_attn.ring": "contiguous", "ring_flash_attn.zigzag": "head_tail", "ring_flash_attn.stripe": "stripe",
    "ring_flash_attn.llama3": "batch",
}  # fmt: skip
#: What a library says about a case that it does not serve.
DECLINED = (
    "not supported", "NotImplemented", "not implemented", "No available kernel", "unsupported", "requires",
    "does not support", "No dot product attention",
)  # fmt: skip
_HIERARCHIES = {}  # size of the a2a group, ranks → the a2a and p2p groups of this rank


def engine_of(name):
    """Return the function of an engine."""
    if name in TORCH:
        return through_torch
    if name in TE:
        return through_te
    if name in RING:
        return through_ring_flash_attn
    if name.startswith("file:"):
        return through_file
    raise ValueError("unknown engine {!r}".format(name))


def _leaves(tensors):
    return [tensor.detach().clone().requires_grad_(True) for tensor in tensors]


def _grads(torch, out, inputs, dout, training):
    if not training:
        return [None] * 3
    step("backward")
    return torch.autograd.grad(out, inputs, dout)


def through_torch(torch, case, group, q, k, v, dout):
    """torch's context parallelism (torch.distributed.tensor.experimental), all-gather or all-to-all."""
    if case.get("packed") or case.get("window"):
        raise Unavailable(
            "torch's context parallelism of scaled_dot_product_attention takes no window and no packed batch"
        )
    try:
        experimental = importlib.import_module("torch.distributed.tensor.experimental")
        internals = importlib.import_module("torch.distributed.tensor.experimental._attention")
        context_parallel = experimental.context_parallel
    except (ImportError, AttributeError) as error:
        raise Unavailable("torch {} has no context_parallel".format(torch.__version__)) from error
    if not hasattr(internals, "set_rotate_method"):
        raise Unavailable("torch {} has no choice of rotation".format(torch.__version__))
    internals.set_rotate_method(case["engine"].partition(".")[2])
    layout = layout_of(case)
    if layout not in ("bhsd", "bshd", "sbhd"):
        raise Unavailable("q, k and v of one projection (qkv_interleaved) are not divided among ranks here")
    causal = case["mask"] == "causal"
    balance = bool(case.get("load_balance", True)) and causal
    internals._cp_options.enable_load_balance = balance
    if q.device.type == "cpu":
        pattern = "head_tail" if balance else "contiguous"
        return _torch_ring_on_cpu(torch, internals, case, group, [q, k, v, dout], pattern)
    mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, q.device.type)
    buffers = [tensor.detach().clone() for tensor in (q, k, v, dout)]
    step("context_parallel")
    sharded = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4)
    with sdpa.only(torch, sdpa.backend_of(case)), sharded:
        # A model computes q, k and v from the sharded sequence, so that each rank lays out its own part.
        inputs = [laid_out(tensor, layout).detach().requires_grad_(bool(case["training"])) for tensor in buffers[:3]]
        step("forward")
        out, _ = sdpa.call(torch, case, *inputs, None, sdpa.grouping_of(case))
        grads = _grads(torch, out, inputs, laid_out(buffers[3], layout), case["training"])
        local = [out.detach(), *(grad for grad in grads if grad is not None)]
        step("unshard")
        whole = experimental._attention.context_parallel_unshard(mesh, local, [2] * len(local))
    names = ("out", "dq", "dk", "dv")
    return dict(zip(names, whole)), None  # noqa: B905 - Python 3.8


def _torch_ring_on_cpu(torch, internals, case, group, tensors, pattern):
    """torch dispatches only operators of GPUs to its ring: on a CPU the ring itself is called, as those do."""
    if case["head_dim_qk"] != case["head_dim_v"]:
        raise Unavailable("the CPU's flash attention takes equal head dims only")
    ops = torch.ops.aten
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    causal, scale = case["mask"] == "causal", case.get("scale") or case["head_dim_qk"] ** -0.5
    modules = [internals]
    if not hasattr(internals, "_templated_ring_attention_backward"):
        modules.append(importlib.import_module("torch.distributed.tensor.experimental._context_parallel._attention"))
    forward = next(getattr(module, "_templated_ring_attention") for module in modules)  # noqa: B009
    backward = next(
        (module._templated_ring_attention_backward for module in reversed(modules)
         if hasattr(module, "_templated_ring_attention_backward")), None,
    )  # fmt: skip
    if backward is None:
        raise Unavailable("torch {} has no ring attention that a CPU can run".format(torch.__version__))
    group_of_heads = case["num_heads"] // case["num_kv_heads"]

    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(context, q, k, v):
            out, logsumexp = forward(
                group, 2, ops._scaled_dot_product_flash_attention_for_cpu, q, k, v, is_causal=causal, dropout_p=0.0,
                scale=scale,
            )[:2]  # fmt: skip
            context.save_for_backward(q, k, v, out, logsumexp)
            return out

        @staticmethod
        def backward(context, dout):
            q, k, v, out, logsumexp = context.saved_tensors
            return backward(
                group, 2, ops._scaled_dot_product_flash_attention_for_cpu_backward, dout.contiguous(), "grad_out",
                query=q, key=k, value=v, out=out, logsumexp=logsumexp, is_causal=causal, dropout_p=0.0, scale=scale,
            )[:3]  # fmt: skip

    parts = [shard(torch, tensor, rank, ranks, pattern) for tensor in tensors]
    inputs = _leaves(parts[:3])
    q, k, v = inputs
    if group_of_heads > 1:
        k, v = k.repeat_interleave(group_of_heads, 1), v.repeat_interleave(group_of_heads, 1)
    step("forward")
    out = Ring.apply(q, k, v)
    grads = _grads(torch, out, inputs, parts[3], case["training"])
    return {"out": out.detach(), "dq": grads[0], "dk": grads[1], "dv": grads[2]}, pattern


def through_te(torch, case, group, q, k, v, dout):
    """TransformerEngine's DotProductAttention with a context-parallel group; sequences are divided head and tail."""
    from ..attention import te as engine

    te = engine.load()
    comm, pattern = case["engine"].partition(".")[2], "head_tail"
    starts = case.get("starts")
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    form = "thd" if starts else layout_of(case)
    if form not in ("thd", "bshd", "sbhd"):
        raise Unavailable("q, k and v as {} are not divided among ranks here".format(form))
    mask = case["mask"] if not starts else {"causal": "padding_causal"}.get(case["mask"], "padding")
    layer = engine.layer(te, dict(case, mask=mask), form)
    known = inspect.signature(layer.set_context_parallel_group).parameters
    stream = torch.cuda.Stream()
    groups = _hierarchy(torch, case, group) if comm == "a2a+p2p" else group
    arguments = [groups, torch.distributed.get_process_group_ranks(group), stream]
    if "cp_comm_type" in known:
        layer.set_context_parallel_group(*arguments, comm)
    elif comm == "p2p":
        layer.set_context_parallel_group(*arguments)
    else:
        raise Unavailable("TransformerEngine {} has only p2p".format(engine.version()))
    parts = [shard(torch, tensor, rank, ranks, pattern, starts) for tensor in (q, k, v, dout)]
    there, back = _te_layout(form)
    inputs = _leaves([there(part) for part in parts[:3]])
    more = {"window_size": tuple(case["window"])} if case.get("window") else {}
    if starts:
        cumulated = torch.tensor(starts, dtype=torch.int32, device=q.device)
        longest = max(last - first for first, last in zip(starts[:-1], starts[1:]))  # noqa: B905, RUF007
        more.update(cu_seqlens_q=cumulated, cu_seqlens_kv=cumulated, max_seqlen_q=longest, max_seqlen_kv=longest)
        given = inspect.signature(layer.forward).parameters
        for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
            if name in given:
                more[name] = cumulated
    step("DotProductAttention: forward, {}".format(comm))
    with engine.Log() as log:
        out = layer(*inputs, attn_mask_type=mask, **more)
    shape = tuple(inputs[0].shape[:-1]) + (case["head_dim_v"],)
    shaped = out.view(shape)
    grads = _grads(torch, shaped, inputs, there(parts[3]), case["training"])
    case.setdefault("log", []).extend(log.lines[-20:])
    got = {"out": back(shaped.detach())}
    for name, grad in zip(("dq", "dk", "dv"), grads):  # noqa: B905
        got[name] = None if grad is None else back(grad)
    return got, pattern


def _hierarchy(torch, case, group):
    """Return the [a2a, p2p] groups of this rank: heads are divided within the first, sequences over the second."""
    ranks = torch.distributed.get_process_group_ranks(group)
    inner = min(int(case.get("cp_size_a2a") or 2), len(ranks))
    if len(ranks) % inner:
        raise Unavailable("a2a over {} ranks does not divide {}".format(inner, len(ranks)))
    key = (inner, *ranks)
    if key not in _HIERARCHIES:
        near = [ranks[first : first + inner] for first in range(0, len(ranks), inner)]
        far = [ranks[first::inner] for first in range(inner)]
        made = []
        for members in (near, far):
            groups = [torch.distributed.new_group(part) for part in members]  # on every rank, in the same order
            own = next(at for at, part in enumerate(members) if torch.distributed.get_rank() in part)
            made.append(groups[own])
        _HIERARCHIES[key] = made
    a2a, p2p = _HIERARCHIES[key]
    sizes = tuple(torch.distributed.get_world_size(one) for one in (a2a, p2p))
    case.setdefault("log", []).append("a2a over {} ranks, p2p over {}".format(*sizes))
    return [a2a, p2p]


def _te_layout(form):
    """Return functions from (batch, heads, seq, dim) to the layout and back."""
    if form == "thd":
        return (lambda t: t[0].transpose(0, 1).contiguous()), (lambda t: t.transpose(0, 1).unsqueeze(0))
    order = {"sbhd": (2, 0, 1, 3), "bshd": (0, 2, 1, 3)}[form]
    inverse = [order.index(axis) for axis in range(4)]
    return (lambda t: t.permute(order).contiguous()), (lambda t: t.permute(inverse))


def through_ring_flash_attn(torch, case, group, q, k, v, dout):
    """ring-flash-attn: ring, zigzag (head and tail), stripe, or llama3 (gathers keys); packed by the varlen calls."""
    step("import ring_flash_attn")
    try:
        library = importlib.import_module("ring_flash_attn")
    except ModuleNotFoundError as error:
        if error.name != "ring_flash_attn":
            raise
        raise Unavailable("ring_flash_attn is not installed") from error
    engine, starts = case["engine"], case.get("starts")
    kind, pattern = engine.partition(".")[2], RING[engine]
    if kind == "llama3" and not starts:
        raise Unavailable("llama3 of ring_flash_attn takes packed batches only")
    prefix = "zigzag_ring" if kind == "zigzag" else kind
    name = "{}_flash_attn{}_func".format(prefix, "_varlen" if starts else "")
    function = getattr(library, name, None)
    if function is None:
        raise Unavailable("this ring_flash_attn has no {}".format(name))
    if not starts and layout_of(case) != "bshd":
        raise Unavailable("ring_flash_attn takes separate tensors in the layout bshd")
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    parts = [shard(torch, tensor, rank, ranks, pattern, starts) for tensor in (q, k, v, dout)]
    more = {"causal": case["mask"] == "causal", "softmax_scale": case.get("scale"), "group": group}
    if case.get("window"):
        more["window_size"] = tuple(case["window"])
    if kind == "llama3":
        cumulated = torch.tensor(starts, dtype=torch.int32, device=q.device)
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
        made = library.llama3_flash_attn_prepare_cu_seqlens(cumulated, more["causal"], rank, ranks)
        more.update(zip(names, made), heads_k_stride=1)  # noqa: B905 - Python 3.8
    elif starts:
        own = [start // ranks for start in starts]
        cumulated = torch.tensor(own, dtype=torch.int32, device=q.device)
        longest = max(last - first for first, last in zip(own[:-1], own[1:]))  # noqa: B905, RUF007
        more.update(cu_seqlens=cumulated, max_seqlen=longest)
    there, back = _te_layout("thd" if starts else "bshd")
    inputs = _leaves([there(part) for part in parts[:3]])
    step("{}: forward".format(name))
    out = function(*inputs, **more)
    grads = _grads(torch, out, inputs, there(parts[3]), case["training"])
    got = {"out": back(out.detach())}
    for tensor, grad in zip(("dq", "dk", "dv"), grads):  # noqa: B905
        got[tensor] = None if grad is None else back(grad)
    return got, pattern


def through_file(torch, case, group, q, k, v, dout):
    """The user's own `function(q, k, v, group, causal, scale, starts, window)` of this rank's (batch, heads, seq, dim).

    `sharding` of the case says how sequences are divided: contiguous (default) or head_tail.
    """
    path, _, name = case["engine"][5:].rpartition(":")
    step("import {}".format(path))
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if function is None:
        raise Unavailable("{} has no function {}".format(path, name))
    pattern, starts = case.get("sharding") or "contiguous", case.get("starts")
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    parts = [shard(torch, tensor, rank, ranks, pattern, starts) for tensor in (q, k, v, dout)]
    inputs = _leaves(parts[:3])
    wanted = inspect.signature(function).parameters
    offered = {
        "group": group, "causal": case["mask"] == "causal", "starts": starts, "window": case.get("window"),
        "scale": case.get("scale") or case["head_dim_qk"] ** -0.5, "sharding": pattern,
    }  # fmt: skip
    step("{}: forward".format(name))
    out = function(*inputs, **{key: value for key, value in offered.items() if key in wanted})
    grads = _grads(torch, out, inputs, parts[3], case["training"])
    return {"out": out.detach(), "dq": grads[0], "dk": grads[1], "dv": grads[2]}, pattern
