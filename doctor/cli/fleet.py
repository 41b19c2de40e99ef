"""`attn-doctor fleet`: many nodes, through Ray, Slurm, the ranks of a job, or files that nodes wrote."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from doctor.cli.options import Device
from doctor.diagnosis.fleet.groups import Collection, report_of
from doctor.diagnosis.fleet.records import MAX_LINE, NodeAnswer, encode, read_answers
from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.model import SEVERITIES
from doctor.report.fleet_model import FleetReport, NodeState
from doctor.report.formats import renderer
from doctor.stress.fleet import kubernetes, ranks, ray_engine, slurm_engine
from doctor.stress.fleet.probe import CASES, ProbeTask, host_name, probe
from doctor.stress.fleet.prolog import NodeVerdict, prolog_verdict
from doctor.stress.fleet.sharded import ShardedOptions, run_sharded, work
from doctor.util.reading import bounded_lines, read_text
from doctor.util.redact import shortened

from .answer import Answer, reports
from .options import FailOn, Gpu, Model, Output, Python, Rules, Settings, WorkloadFile, path, seconds
from .output import deliver, unwritable, write
from .progress import Progress
from .request import TargetOptions, request_of
from .streams import packed_to_stdout

REACH = "How to reach the nodes"
NODE_TIMEOUT = 300.0  # seconds
POOL_TIMEOUT = 3600.0  # seconds

app = typer.Typer(rich_markup_mode="rich", no_args_is_help=False, add_completion=False)

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", rich_help_panel=REACH,
        help="A Ray cluster: `auto` for the running one, `ray://HOST:PORT`, or `local` to start one here.",
    ),
]  # fmt: skip
Slurm = Annotated[bool, typer.Option("--slurm", rich_help_panel=REACH, help="The nodes of this Slurm allocation.")]
Expect = Annotated[
    str | None,
    typer.Option(
        metavar="NODES", rich_help_panel=REACH,
        help="Nodes that must answer: a file with one name per line, or names with commas. Others are reported lost.",
    ),
]  # fmt: skip
NodeTimeout = Annotated[
    float,
    typer.Option("--timeout", parser=seconds, metavar="SECONDS", show_default="300", help="Longest wait for a node."),
]


@app.callback(invoke_without_command=True)
@reports()
def fleet(
    ctx: typer.Context,
    answer: Answer,
    snapshots: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            parser=path,
            rich_help_panel=REACH,
            help="What nodes wrote: a folder of snapshots, a snapshot, JSON Lines, or `-` for stdin. Repeatable.",
        ),
    ] = None,
    ray: Ray = None,
    slurm: Slurm = False,
    of_ranks: Annotated[
        bool, typer.Option("--ranks", rich_help_panel=REACH, help="The ranks of this job (torchrun, mpirun, srun).")
    ] = False,
    folder: Annotated[
        str | None,
        typer.Option(metavar="DIR", rich_help_panel=REACH, help="With --ranks: a folder that all ranks see."),
    ] = None,
    expect: Expect = None,
    python: Python = None,
    gpu: Gpu = None,
    settings: Settings = None,
    rules: Rules = None,
    model: Model = None,
    workload: WorkloadFile = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the same kernels on every GPU and compare results and bits.")
    ] = False,
    cases: Annotated[int, typer.Option(metavar="N", min=1, max=2000, help="With --run: cases on each GPU.")] = CASES,
    device: Annotated[Device | None, typer.Option(metavar="DEVICE", help="With --run.")] = None,
    timeout: NodeTimeout = NODE_TIMEOUT,
    fail_on: FailOn = None,
) -> int:
    """Check many nodes: group equal environments, check each once, name outliers, report lost nodes.

    Formats: text, json, markdown, html, sarif, junit, github, gitlab.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    engines = {"--snapshots": bool(snapshots), "--ray": ray is not None, "--slurm": slurm, "--ranks": of_ranks}
    named = [name for name, given in engines.items() if given]
    if len(named) != 1:
        hint = f"one of {', '.join(engines)}"
        raise DoctorError("`fleet` needs to know how to reach the nodes" if not named else
                          f"`{named[0]}` and `{named[1]}` exclude each other", hint)  # fmt: skip
    outputs, screen = [(renderer(item.format, "fleet"), item) for item in answer.outputs], answer.screen
    request = request_of(TargetOptions.of(None, None, None, None, gpu, settings, rules, model, workload))
    task = ProbeTask(python, tuple(os.path.abspath(name) for name in rules or ()), run, cases, device=device)  # noqa: PTH100
    progress = Progress(quiet=screen.quiet)
    gathering = _Gathering(Collection(), progress)
    expected = _expected(expect)
    if ray is not None:
        gathering.from_ray(ray, task, timeout)
    elif slurm:
        expected = [*expected, *gathering.from_slurm(task, timeout)]
    elif of_ranks:
        if not gathering.from_ranks(task, timeout, Path(folder) if folder else None):
            return 0  # only rank 0 reports
    else:
        gathering.from_files(snapshots or [])
    progress.close()
    report = report_of(gathering.collection, request, expected)
    if not report.nodes:
        raise NoDiagnosis("no node answered", "`attn-doctor fleet probe` is what a node runs")
    for render, item in outputs:
        deliver(render, report, item.file, screen, commands=item.format == "github")
    return _exit_code(report, fail_on or request.defaults.fail_on or "error")


class _Gathering:
    """Takes answers from one engine, with the progress on stderr."""

    def __init__(self, collection: Collection, progress: Progress) -> None:
        self.collection, self.progress = collection, progress

    def _take(self, answers: Iterator[NodeAnswer], total: int | None = None) -> None:
        for count, answer in enumerate(answers, 1):
            self.collection.add(answer)
            text = f"nodes, {len(self.collection.problems)} not checked"
            self.progress.count(text, count, total or count + 1)

    def from_files(self, names: Sequence[str]) -> None:
        """Read what nodes wrote."""
        if sys.stdin is not None and hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        lines = bounded_lines(sys.stdin, MAX_LINE) if sys.stdin is not None else ()
        self._take(read_answers(names, lines))

    def from_ray(self, address: str, task: ProbeTask, timeout: float) -> None:
        """Examine every node of a Ray cluster."""
        ray = ray_engine.connect(address)
        try:
            alive = sum(node[2] for node in ray_engine.nodes_of(ray))
            self._take(
                ray_engine.probe_nodes(ray, task, timeout, self.collection.miss, lambda done, total: None), alive
            )
        finally:
            ray.shutdown()

    def from_slurm(self, task: ProbeTask, timeout: float) -> tuple[str, ...]:
        """Examine every node of the allocation; return their names."""
        nodes = slurm_engine.allocation().nodes
        command = slurm_engine.probe_command(nodes, ["probe", "--task", task.to_json()])
        stream = slurm_engine.Stream(command, timeout)
        self._take(read_answers(["-"], stream.lines()), len(nodes))
        for node in nodes:
            if node not in self.collection.answered:
                late = f"no answer within {timeout:g} s"
                state = NodeState.SLOW if stream.timed_out else NodeState.LOST
                self.collection.miss(node, state, late if stream.timed_out else stream.error_of(node))
        return nodes

    def from_ranks(self, task: ProbeTask, timeout: float, folder: Path | None) -> bool:
        """Examine this rank and exchange the answers; return whether this rank reports."""
        where = ranks.place()
        answer = probe(task, ranks.name_of(where.rank, host_name()))

        def missing(rank: int, problem: str) -> None:
            self.collection.miss(ranks.missing_rank(rank), NodeState.LOST, problem)

        if folder is not None:
            answers = ranks.exchange_by_folder(folder, where, answer, timeout, missing)
        else:
            answers = ranks.exchange_by_store(task.python or sys.executable, where, answer, timeout, missing)
        self._take(answers, where.world)
        return where.rank == 0


def _expected(expect: str | None) -> list[str]:
    if not expect:
        return []
    try:
        file = Path(expect)
        if file.exists() and not file.is_dir():
            lines = read_text(file, "list of nodes", named=True).splitlines()
            return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read `{expect}`: {reason_of(problem)}") from None
    return [name.strip() for name in expect.split(",") if name.strip()]


def _exit_code(report: FleetReport, fail_on: str) -> int:
    """Return 1 for a finding at or above `fail_on`, a node that was not checked, or a GPU that is wrong."""
    if fail_on == "never" or report.combined is None:
        return 0
    limit = SEVERITIES.index(fail_on)
    bad_kernels = any(report.kernels.get(word) for word in ("wrong", "failed", "crashed", "timeout"))
    return int(bad_kernels or any(item.severity.rank <= limit for item in report.combined.findings))


def _send(lines: Sequence[str]) -> None:
    """Write lines for another attn-doctor."""
    try:
        packed_to_stdout("".join(f"{line}\n" for line in lines))
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise unwritable(problem) from None


@app.command("probe")
def probe_node(
    python: Python = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="The name of this node (default: its host).")] = None,
    run: Annotated[bool, typer.Option("--run", help="Also run kernels on every GPU of this node.")] = False,
    task: Annotated[str | None, typer.Option(metavar="JSON", hidden=True)] = None,
) -> int:
    """Examine this node and print its answer as JSON lines, which `fleet --snapshots -` reads."""
    try:
        work_order = ProbeTask.from_json(task) if task else ProbeTask(python, run=run)
    except (ValueError, TypeError) as problem:
        raise DoctorError(f"`--task` is not usable: {shortened(str(problem), 200)}") from None
    name = node or os.environ.get("NODE_NAME") or os.environ.get("SLURMD_NODENAME") or host_name()
    _send(encode(probe(work_order, name)))
    return 0


@app.command("manifest")
def manifest(
    image: Annotated[str, typer.Option(metavar="IMAGE", help="An image with attn-doctor and the training stack.")],
    python: Annotated[str, typer.Option(metavar="PATH", help="The interpreter in the image.")] = "python3",
    namespace: Annotated[str, typer.Option(metavar="NAME")] = "default",
    gpus: Annotated[int, typer.Option(metavar="N", min=0, max=64, help="GPUs that each pod reserves.")] = 0,
    run: Annotated[bool, typer.Option("--run", help="Also run kernels on every GPU.")] = False,
    nodes: Annotated[
        int, typer.Option(metavar="N", min=0, max=100_000, help="A Job of N pods, one per node (default: a DaemonSet).")
    ] = 0,
    output: Output = None,
) -> int:
    """Print a Kubernetes manifest that examines every node and writes JSON lines to the log."""
    write(kubernetes.manifest(kubernetes.PodOptions(image, python, namespace, gpus, run, nodes)), output)
    return 0


@app.command("prolog")
def prolog(
    python: Python = None,
    like: Annotated[
        str | None, typer.Option(metavar="FILE", parser=path, help="A snapshot of a good node: any difference drains.")
    ] = None,
    gpu: Gpu = None,
    settings: Settings = None,
    rules: Rules = None,
    model: Model = None,
    workload: WorkloadFile = None,
    fail_on: FailOn = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also drain where no diagnosis could be made, or a GPU is missing.")
    ] = False,
) -> int:
    """Check this node before a job, as Slurm's Prolog or HealthCheckProgram: exit code 1 drains it.

    One line says why. A node that cannot be examined, or lacks a GPU, is not drained, unless --strict.
    """
    target = TargetOptions.of(python, None, None, None, gpu, settings, rules, model, workload)
    try:
        request = request_of(target)._replace(fixes=False)
        verdict = prolog_verdict(request, like, fail_on or "error", strict=strict)
    except DoctorError as problem:
        verdict = NodeVerdict(not strict, f"no diagnosis: {problem.message}")
    lines = filter(None, (verdict.warning, verdict.reason))
    write("".join(f"attn-doctor: {shortened(' '.join(line.split()), 400)}\n" for line in lines), None)
    return int(not verdict.good)


@app.command("stress")
@reports()
def stress(
    answer: Answer,
    ray: Ray = None,
    slurm: Slurm = False,
    python: Python = None,
    cases: Annotated[int, typer.Option(metavar="N", min=1, max=10**6, help="Cases over all backends.")] = 2400,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=10**9, help="Another sample of cases.")] = 0,
    backend: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this backend. Repeatable.")] = None,
    device: Annotated[Device | None, typer.Option(metavar="DEVICE", help="cuda or cpu.")] = None,
    share: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Cases of one task.")] = 25,
    case_timeout: Annotated[
        float, typer.Option(parser=seconds, metavar="SECONDS", show_default="60", help="Time limit of one case.")
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option(parser=seconds, metavar="SECONDS", show_default="3600", help="Time limit of all.")
    ] = POOL_TIMEOUT,
    journal: Annotated[
        str | None, typer.Option(metavar="FILE", parser=path, help="Continue from this file, and write to it.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the journal and start over.")] = False,
) -> int:
    """Divide the cases of `attn-doctor stress` among all GPUs; one journal survives lost nodes and resumes."""
    if (ray is None) == (not slurm):
        raise DoctorError("`fleet stress` needs `--ray ADDRESS` or `--slurm`, one of them")
    outputs, screen = [(renderer(item.format, "sharded"), item) for item in answer.outputs], answer.screen
    answer.require_writable()
    bar = Progress(quiet=screen.quiet)
    options = ShardedOptions(
        python, cases, seed, tuple(backend or ()), device, share, case_timeout, timeout,
        Path(journal) if journal else None, restart, ray,
    )  # fmt: skip

    def show(done: int, total: int, bad: int) -> None:
        bar.count(f"cases, {bad} bad", done, total)

    result = run_sharded(options, show)
    bar.close()
    for render, item in outputs:
        deliver(render, result, item.file, screen)
    return int(result.bad)


@app.command("work", hidden=True)
def work_on_share() -> int:
    """Run the share of this task of the cases on stdin; write a JSON line after each."""
    try:
        order = json.loads(sys.stdin.read())
    except ValueError:
        raise DoctorError("stdin holds no JSON object") from None
    work(order, lambda line: _send([line]))
    return 0
