"""What is examined: the request of a command line becomes the facts of an environment and a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.model import ABSENT, Facts, ReadInput
from doctor.packages.gpus import gpu_facts
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.attention_options import KEY
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.files import parse_settings

from .diagnosis_input import DiagnosisInput
from .environment import environment_of
from .merge import Contradiction, notes_of, over
from .request import Request, Requirements
from .todays_releases import with_todays_releases
from .watch import watch_of

if TYPE_CHECKING:
    from doctor.sources.probes.interpreter import InterpreterQuery
    from doctor.sources.workload.layers import LayerKind


#: Kind of a file that describes a job -> module and function that read it.
_READERS = {
    "model": ("doctor.sources.workload.huggingface", "read_model_config"),
    "workload": ("doctor.sources.workload.recipes", "read_job"),
    "script": ("doctor.sources.programs.read", "read_script"),
}


class InputCache:
    """What GPU names, model configs and workload files say, each looked up once for all cases."""

    def __init__(self, rulebook: Rulebook, request: Request) -> None:
        self._rulebook = rulebook
        self._read: dict[tuple[str, str], Facts] = dict(request.held)
        self._layers: dict[str, Sequence[LayerKind]] = dict(request.held_layers)

    def gpu(self, name: str) -> Facts:
        """The facts of a GPU by its name."""

        return self._once("gpu", name, lambda: Facts(gpu_facts(name, self._rulebook.gpus)))

    def model(self, name: str) -> Facts:
        """The workload of a model config."""
        return self._once("model", name, lambda: self._read_file("model", name))

    def layers(self, name: str) -> Sequence[LayerKind]:
        """The other kinds of layers of a model config."""
        if name not in self._layers:
            self._layers[name] = import_module(_READERS["model"][0]).read_layers(Path(name))
        return self._layers[name]

    def workload(self, name: str) -> Facts:
        """The workload of a workload file, or of a trainer's config."""
        return self._once("workload", name, lambda: self._read_file("workload", name))

    def script(self, name: str) -> Facts:
        """The job of a program, as its syntax tree shows it."""
        return self._once("script", name, lambda: self._read_file("script", name))

    def _read_file(self, kind: str, name: str) -> Facts:
        """Read a file with the reader of its kind, which is imported now (door: manifest reader)."""
        module, function = _READERS[kind]
        more = () if kind == "model" else (watch_of(self._rulebook),)
        found: Facts = getattr(import_module(module), function)(Path(name), *more)
        return found

    @property
    def rulebook(self) -> Rulebook:
        """The rules of the request."""
        return self._rulebook

    def _once(self, kind: str, name: str, read: Callable[[], Facts]) -> Facts:
        found = self._read.get((kind, name))
        if found is None:
            found = self._read[kind, name] = read()
        return found


def examine(request: Request, rulebook: Rulebook, query: InterpreterQuery | None = None) -> DiagnosisInput:
    """Gather the facts: the environment, then the job, then what the user says outright. Later ones win."""
    return with_job(environment_of(request, rulebook, query), request, InputCache(rulebook, request))


def with_job(examined: DiagnosisInput, request: Request, inputs: InputCache) -> DiagnosisInput:
    """Return what was examined in an environment, with the job and the GPU that the request names."""

    layers = list(_layers(examined, request, inputs))
    facts, differing, read = examined.facts, list[Contradiction](), list[ReadInput]()
    for item, more in layers:
        facts, found = over(facts, more)
        differing += found
        if item is not None:
            read.append(item._replace(gave=tuple(key for key, fact in more.items() if facts.get(key) is fact)))
    said = request.given.with_(*parse_settings(request.settings).values())
    gpu = request.gpu or (request.defaults.gpu if takes_project_gpus(request, examined) else None)
    if gpu:
        said = inputs.gpu(gpu).with_(*said.values())
    differing = [item for item in differing if item.key not in said]
    facts = complete_workload(facts.with_(*said.values()))
    whole = examined._replace(
        facts=facts,
        requirements=_but(examined.requirements, said),
        variables={**examined.variables, **_variables(more for _, more in layers)},
        remarks=(*notes_of(differing), *_not_understood(facts), *examined.remarks),
        read=(*examined.read, *read),
        layers=tuple(_layers_of(request, examined, inputs, facts)),
    )
    whole = with_todays_releases(whole, request, inputs.rulebook)
    other = next((fact for key, fact in said.items() if not key.startswith("workload.")), None)
    same = not any(key.endswith(".version") for key in said)  # else the sources are of other releases
    site_dirs = whole.site_dirs if same else ()
    if whole.python and other:
        why_not = f"{other.source} describes another machine than this one"
        return whole._replace(python=None, why_not=why_not, site_dirs=site_dirs)
    return whole._replace(site_dirs=site_dirs)


def _layers_of(request: Request, examined: DiagnosisInput, inputs: InputCache, facts: Facts) -> Iterator[LayerKind]:
    """Yield the model's other kinds of layers, with what no stronger input says otherwise."""
    model = request.model
    if names_no_job(request, examined.job_facts):
        model = request.defaults.model
    if model is None:
        return
    main = inputs.model(model)
    for layer in inputs.layers(model):
        kept = [fact for key, fact in layer.facts.items() if facts.get(key) is main.get(key)]
        if kept:
            yield layer._replace(facts=Facts(kept))


def _not_understood(facts: Facts) -> tuple[str, ...]:
    fact = facts.get(KEY)
    if fact is None or not fact.value or fact.value == ABSENT:
        return ()
    shown = ", ".join(f"`{one}`" for one in fact.value)
    return (f"not understood: {shown} ({fact.source}), so its effect on attention was not checked",)


def _layers(examined: DiagnosisInput, request: Request, inputs: InputCache) -> Iterator[tuple[ReadInput | None, Facts]]:
    """Yield what describes the job, the weakest first: model, trainer's config, the command, scripts."""
    model, workload = request.model, request.workload
    if names_no_job(request, examined.job_facts):
        model, workload = request.defaults.model, request.defaults.workload
        yield None, request.defaults.workload_facts
    with request.defaults.naming(filter(None, (model, workload))):
        if model is not None:
            yield ReadInput(model, "model"), inputs.model(model)
        if workload is not None:
            facts = inputs.workload(workload)
            yield ReadInput(workload, "workload"), facts
            if facts.value("workload.trainer") is not None:  # else the user's own words, which stay
                yield None, examined.launch
    for name in request.scripts:
        yield ReadInput(name, "script"), inputs.script(name)


def _variables(layers: Iterable[Facts]) -> dict[str, str | None]:
    """Return the environment variables that the job sets itself."""
    found = (fact for facts in layers for fact in facts.values() if fact.key.startswith("env.") and fact.known)
    return {fact.key.removeprefix("env."): str(fact.value) for fact in found}


def names_no_job(request: Request, facts: Facts) -> bool:
    """Whether neither the request nor the facts of its environment describe a job, so that the project's counts."""
    if request.model is not None or request.workload is not None or request.scripts:
        return False
    return not (facts.has_workload or request.given.has_workload)


def takes_project_gpus(request: Request, examined: DiagnosisInput) -> bool:
    """Whether the project's GPUs count: none is stated, and none found except what a declared job script requests."""
    if any(said.startswith("gpu.") for said in (*request.settings, *request.given)):
        return False
    return examined.declaration is not None or examined.facts.value("gpu.sm") in (None, ABSENT)


def _but(requirements: Requirements | None, said: Facts) -> Requirements | None:
    """The requirements without those of packages whose version the user says outright: they are another release's."""
    if requirements is None:
        return None
    other = {key.removesuffix(".version") for key in said if key.endswith(".version")}
    return lambda: {name: lines for name, lines in requirements().items() if name not in other}
