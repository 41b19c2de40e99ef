"""cuDNN as a backend of the sweep: graphs of nvidia-cudnn-frontend with the true strides."""

from . import source

#: One plan per shape and layout, for the time of one case; the stream is set at each call, so that CUDA graphs work.
CLASS = """
class Graph(torch.autograd.Function):
    plans = {}

    @staticmethod
    def go(name, given, made, how):
        at = (name, *((t.shape, t.stride()) for t in (*given.values(), *made)))
        if at not in Graph.plans:
            g = cudnn.pygraph(io_data_type=kinds[given["q"].dtype], intermediate_data_type=kinds[torch.float32],
                              compute_data_type=kinds[torch.float32], handle=handle)
            tensors = {n: g.tensor(name=n, dim=list(t.shape), stride=list(t.stride()), data_type=kinds[t.dtype])
                       for n, t in given.items()}
            outs = getattr(g, name)(name=name, **tensors, **how)
            for node, t in zip(outs, made):
                node.set_output(True).set_dim(list(t.shape)).set_stride(list(t.stride())).set_data_type(kinds[t.dtype])
            g.validate(), g.build_operation_graph()
            g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            g.check_support(), g.build_plans()
            Graph.plans[at] = g, [*tensors.values(), *outs]
        g, nodes = Graph.plans[at]
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        space = torch.empty(max(1, g.get_workspace_size()), device=made[0].device, dtype=torch.uint8)
        g.execute(dict(zip(nodes, [*given.values(), *made])), space, handle=handle)

    @staticmethod
    def forward(ctx, q, k, v, more, how):
        out = q.new_empty(*q.shape[:3], v.shape[3])
        stats = torch.empty(*q.shape[:3], 1, device=q.device)
        Graph.go("sdpa", {"q": q, "k": k, "v": v, **more}, [out, stats], {"generate_stats": True, **how})
        ctx.save_for_backward(q, k, v, out, stats)
        ctx.more, ctx.how = more, how
        return out

    @staticmethod
    def backward(ctx, dout):
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        q, k, v, out, stats = ctx.saved_tensors
        grads = [t.new_empty(t.shape) for t in (q, k, v)]
        given = {"q": q, "k": k, "v": v, "o": out, "dO": dout, "stats": stats, **ctx.more}
        Graph.go("sdpa_backward", given, grads, {**ctx.how, **last})
        return (*grads, None, None)
"""

SETUP = [
    "import cudnn",
    "names = {'bfloat16': 'BFLOAT16', 'float16': 'HALF', 'float32': 'FLOAT', 'int32': 'INT32'}",
    "kinds = {getattr(torch, ours): getattr(cudnn.data_type, theirs) for ours, theirs in names.items()}",
    "cudnn.mine = handle = getattr(cudnn, 'mine', None) or cudnn.create_handle()",  # one for the process
]


def text(case):
    """Return the lines and the call of a case through cuDNN's frontend."""
    how, more, prepare = [("attn_scale", "scale")], [], []
    mask, window = case["mask"], source.window(case)
    corner = "TOP_LEFT" if mask == "causal" else "BOTTOM_RIGHT"
    if window:
        left, right = window
        how += [("diagonal_band_left_bound", left + 1), ("diagonal_band_right_bound", right)]
    elif mask in ("causal", "causal_bottom_right", "padding_causal"):
        how.append(("diagonal_band_right_bound", 0))
    if len(how) > 1:
        corner = "TOP_LEFT" if mask == "padding_causal" else corner
        how.append(("diagonal_alignment", "cudnn.diagonal_alignment." + corner))
    if mask.startswith("padding"):
        how.append(("use_padding_mask", True))
        ints = "dtype=torch.int32, device=q.device).view(-1, 1, 1, 1)"
        prepare += ["seq_q = torch.tensor([{}] * {}, {}".format(case["seq_len_q"], case["batch_size"], ints),
                    "seq_k = torch.tensor(lens_k, {}".format(ints)]  # fmt: skip
        more += [("seq_len_q", "seq_q"), ("seq_len_kv", "seq_k")]
    if mask.startswith("additive"):
        more.append(("bias", "bias"))
    made = ["last = dict(use_deterministic_algorithm={})".format(bool(case["deterministic"]))]
    call = "Graph.apply(q, k, v, dict({}), dict({}))".format(*(
        ", ".join("{}={}".format(*item) for item in items) for items in (more, how)))  # fmt: skip
    return {"setup": [*SETUP, *made, CLASS.strip()], "prepare": prepare, "call": call}
