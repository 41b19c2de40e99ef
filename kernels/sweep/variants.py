"""Run a case once more: replayed from a CUDA graph, or through torch.compile."""

import traceback

from ..protocol import LOST_DEVICE
from . import judge


def _judge(case, device, reference, got, observed, factor, label):
    errors = reference.errors(got)
    kinds, _ = judge.faults(case, errors, device, factor)
    fresh = [kind for kind in kinds if kind not in observed["faults"]]
    if fresh:
        observed[label + "_errors"] = errors
        observed["faults"].append(label)


def replay(torch, case, device, call, observed, factor):
    """Capture with one set of numbers and replay with another: constants baked into the graph show."""
    if case["dropout"]:
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call.both()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call.both()
    with torch.no_grad():
        for name in "qkv":
            tensor = call.space[name].data
            if 0 in tensor.stride():  # expanded: one element in memory represents many
                sizes = [n if s else 1 for n, s in zip(tensor.shape, tensor.stride())]  # noqa: B905 - Python 3.8
                tensor = tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())
            tensor.mul_(-0.5)
    for value in got.values():
        if 0 not in value.stride():
            value.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    _judge(case, device, call.reference(), got, observed, factor, "graph")


def compile_and_run(torch, case, device, call, reference, observed, factor):
    """Run the same call through torch.compile, which may take another kernel or fuse around it."""
    if case["dropout"]:
        return
    torch._dynamo.reset()
    eager, call.forward = call.forward, torch.compile(call.forward)
    try:
        got = call.both()
    except Exception as error:
        if any(mark in str(error) for mark in LOST_DEVICE):
            raise
        observed["faults"].append("compile")
        observed["notes"].append("".join(traceback.format_exception_only(type(error), error))[-2000:])
        return
    finally:
        call.forward = eager
    _judge(case, device, reference, got, observed, factor, "compile")
