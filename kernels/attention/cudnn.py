"""cuDNN attention called directly, through the graphs of its own frontend and with explicit strides."""

from ..protocol import Refused, Unavailable, step

# ruff: noqa: B905 - zip has no strict= before Python 3.10

REFUSALS = (
    "GraphNotSupported",
    "NOT_SUPPORTED",
    "not supported",
    "only supported",
    "No valid",
    "no valid",
    "No engine",
)


def frontend():
    """Return the `cudnn` module; raise Unavailable if it is missing."""
    try:
        import cudnn
    except ModuleNotFoundError as error:
        raise Unavailable("nvidia-cudnn-frontend is not installed ({})".format(error)) from error
    if not hasattr(cudnn, "pygraph"):
        raise Unavailable("the module `cudnn` at {} has no pygraph".format(getattr(cudnn, "__file__", "?")))
    return cudnn


def _mask_arguments(cudnn, mask, old):
    """Return the arguments for this mask; `old` is the spelling before diagonal_alignment was added."""
    if mask == "no_mask":
        return {}
    if old:
        return {"use_causal_mask" if mask == "causal" else "use_causal_mask_bottom_right": True}
    alignment = cudnn.diagonal_alignment
    corner = alignment.TOP_LEFT if mask == "causal" else alignment.BOTTOM_RIGHT
    return {"diagonal_alignment": corner, "diagonal_band_right_bound": 0}


def _with_either_spelling(cudnn, mask, call):
    """Return `call(arguments)`, first with the older spelling of the mask; newer releases raise TypeError for it."""
    try:
        return call(_mask_arguments(cudnn, mask, old=True))
    except TypeError:
        if not hasattr(cudnn, "diagonal_alignment"):
            raise
        return call(_mask_arguments(cudnn, mask, old=False))


class Frontend:
    """Run cuDNN attention as graphs of its own frontend, one per direction."""

    def __init__(self, cudnn, torch):
        self.cudnn, self.torch = cudnn, torch
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.types = {
            torch.bfloat16: cudnn.data_type.BFLOAT16,
            torch.float16: cudnn.data_type.HALF,
            torch.float32: cudnn.data_type.FLOAT,
        }

    def _graph(self, dtype):
        kind = self.cudnn.data_type
        return self.cudnn.pygraph(
            io_data_type=self.types[dtype],
            intermediate_data_type=kind.FLOAT,
            compute_data_type=kind.FLOAT,
            handle=self.handle,
        )

    def _input(self, graph, name, tensor, strides=None):
        return graph.tensor(
            name=name,
            dim=list(tensor.shape),
            stride=list(strides or tensor.stride()),
            data_type=self.types[tensor.dtype],
        )

    def _output(self, node, tensor):
        node.set_output(True).set_dim(list(tensor.shape)).set_stride(list(tensor.stride()))
        return node.set_data_type(self.types[tensor.dtype])

    def _build_and_run(self, graph, pack, what):
        step("{}: build".format(what))
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
        except Exception as error:
            # Nothing has run yet. cuDNN has an exception type for unsupported graphs; older frontends only a text.
            text = "{}: {}".format(type(error).__name__, error)
            if any(mark in text for mark in REFUSALS):
                raise Refused("{}: {}".format(what, text[:2000])) from error
            raise
        workspace = self.torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=self.torch.uint8)
        step("{}: execute".format(what))
        graph.execute(pack, workspace, handle=self.handle)
        self.torch.cuda.synchronize()

    def forward(self, q, k, v, out, mask, scale, strides=(None, None, None)):
        """Fill `out`; return the softmax statistics for `backward`."""
        graph = self._graph(q.dtype)
        nodes = [self._input(graph, n, t, s) for n, t, s in zip(("q", "k", "v"), (q, k, v), strides)]

        def call(mask_arguments):
            arguments = dict(name="sdpa", q=nodes[0], k=nodes[1], v=nodes[2], attn_scale=scale, **mask_arguments)
            try:
                return graph.sdpa(generate_stats=True, **arguments)
            except TypeError:
                return graph.sdpa(is_inference=False, **arguments)

        o_node, stats_node = _with_either_spelling(self.cudnn, mask, call)
        stats = self.torch.full((*out.shape[:3], 1), float("nan"), device="cuda", dtype=self.torch.float32)
        self._output(o_node, out)
        self._output(stats_node, stats)
        pack = dict(zip(nodes, (q, k, v)))
        pack.update({o_node: out, stats_node: stats})
        self._build_and_run(graph, pack, "forward")
        return stats

    def backward(self, q, k, v, out, dout, stats, grads, mask, scale, strides=(None, None, None)):
        """Fill `grads` = (dq, dk, dv)."""
        graph = self._graph(q.dtype)
        tensors = (q, k, v, out, dout, stats)
        names = ("q", "k", "v", "o", "dO", "stats")
        nodes = [self._input(graph, n, t, s) for n, t, s in zip(names, tensors, tuple(strides) + (None,) * 3)]

        def call(mask_arguments):
            return graph.sdpa_backward(
                name="sdpa_backward",
                **dict(zip(("q", "k", "v", "o", "dO", "stats"), nodes)),
                attn_scale=scale,
                **mask_arguments,
            )

        outputs = _with_either_spelling(self.cudnn, mask, call)
        pack = dict(zip(nodes, tensors))
        for node, grad in zip(outputs, grads):
            pack[self._output(node, grad)] = grad
        self._build_and_run(graph, pack, "backward")

    def both(self, q, k, v, dout, mask, scale, backward=True, strides=(None, None, None)):
        """Return the results by name; each is filled with NaN first, so that an unwritten element shows."""
        torch = self.torch
        out = torch.full_like(dout, float("nan"))
        stats = self.forward(q, k, v, out, mask, scale, strides)
        got = {"out": out}
        if backward:
            grads = [torch.full_like(t, float("nan"), memory_format=torch.contiguous_format) for t in (q, k, v)]
            self.backward(q, k, v, out, dout, stats, grads, mask, scale, strides)
            got.update(zip(("dq", "dk", "dv"), grads))
        return got
