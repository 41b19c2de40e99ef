"""The keys of a `library.yaml`: lint, JSON Schema and docs/rule-format.md are made from this definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from doctor.facts.vocabulary import nearest

from .fields import (
    ANYTHING,
    BOOLEAN,
    CONDITION,
    DISTRIBUTION,
    FACT_KEY,
    INTEGER,
    OUTCOME,
    PATTERN,
    TEXT,
    TEXTS,
    VERSION,
    Field,
    Fields,
    Kind,
    Schema,
    backend_id,
    either,
    list_of,
    one_of,
    plain,
    record,
    record_schema,
    table_of,
)
from .job_fields import ATTENTION_CALL, FRAMEWORK, SCRIPT_CALL, TITLE, TRAINER
from .rule_fields import FACTS, condition_schema
from .shape import At, Shape

CALLED = ("always", "maybe")  # when a call is made, where no condition of the job decides it
PHASES = ("decode", "prefill")  # each may have a backend of its own
PACKAGE_ROLES = ("attention", "trainer", "other")  # in what packages call of each other
AT_RUN_TOOLS = ("nvcc", "ninja", "c_compiler")  # what packages compile with while a job runs
CERTAINTIES = ("published", "seen", "reported")  # by the publisher, in a running container, by others
_TEXT_SCHEMA = TEXT.schema()


def _files(shape: Shape, value: Any, at: At) -> None:
    shape.text(value, at)
    PATTERN.check(shape, value.replace("{cuda}", "128"), at)


def _sm(shape: Shape, value: Any, at: At) -> None:
    shape.condition({"gpu.sm": value}, at)


def _backend_word(shape: Shape, value: Any, at: At) -> None:
    shape.text(value, at)
    backend_id(shape, value, at)


def _called(shape: Shape, value: Any, at: At) -> None:
    if value not in CALLED:
        shape.condition(value, at)


def _usual(shape: Shape, value: Any, at: At) -> None:
    shape.items(lambda item, _: OUTCOME.check(shape, item, at))(value, at)


def _decided(shape: Shape, value: Any, at: At) -> None:
    OUTCOME.check(shape, value, (*at, at[-3]))  # it fits the fact that the list decides


def _release(shape: Shape, value: Any, at: At) -> None:
    VERSION.check(shape, at[-1], at)
    facts = {key: item for key, item in value.items() if key != "local"} if isinstance(value, dict) else value
    if facts != {}:
        FACTS.check(shape, facts, at)


def _held(fields: Fields, *, words: str) -> Kind:
    """Return the kind of what an image holds: facts next to these keys."""
    inner: Schema = {
        "type": "object",
        "required": [key for key, field in fields.items() if field.needed],
        "properties": {key: field.kind.schema() for key, field in fields.items()},
    }

    def check(shape: Shape, value: Any, at: At) -> None:
        free = dict.fromkeys((key for key in value if key not in fields) if isinstance(value, dict) else (), ANY)
        record({**free, **fields}).check(shape, value, at)
        FACTS.check(shape, {key: given for key, given in value.items() if key not in fields}, at)

    return Kind(words, check, lambda: inner)


ANY = Field(ANYTHING, "", "")
NAMES = list_of(DISTRIBUTION, "list of distributions")
SM = plain("compute capability", _sm, True)
BACKEND_ID = plain("`library.backend`", _backend_word, _TEXT_SCHEMA)


def _order(item: Kind) -> Kind:
    fields: Fields = {
        "when": Field(CONDITION, "the first entry whose condition holds counts", '{gpu.sm: ">=9.0"}'),
        "order": Field(list_of(item, or_empty=True), "the first is tried first; `[]`: none is chosen", "[]", True),
    }
    return list_of(record(fields), "list of `when` and `order`")


def _is_ordered(value: Any) -> bool:
    return not (isinstance(value, list) and all(isinstance(item, str) for item in value))


BACKEND: Fields = {
    "id": Field(BACKEND_ID, "all of a library have the same first part", "te.fused", True),
    "title": TITLE,
    "part_of": Field(TEXT, "the backend of which it is one way to work", "te.fused"),
    "unfused": Field(BOOLEAN, "true: the slow implementation that supports nearly everything", "true"),
}
DECISION: Fields = {
    "when": Field(CONDITION, "when the case counts", '{gpu.sm: "9.0"}'),
    "value": Field(plain(OUTCOME.words, _decided, True), "the value of the fact then", "fa3", True),
}
OPENS: Fields = {
    "files": Field(
        plain("regular expression", _files, _TEXT_SCHEMA),
        "the paths below site-packages; the CUDA release of torch replaces `{cuda}`: 128 for 12.8",
        "'bitsandbytes/libbitsandbytes_cuda{cuda}\\.so'",
        True,
    ),
    "without_cuda": Field(PATTERN, "the paths next to a torch without CUDA", "'bitsandbytes/libbitsandbytes_cpu\\.so'"),
    "cuda_variable": Field(TEXT, "the environment variable whose value replaces `{cuda}` instead", "BNB_CUDA_VERSION"),
    "any_one": Field(BOOLEAN, "true: one file that loads is enough", "true"),
    "after": Field(
        list_of(PATTERN),
        "files of other packages that it loads first, with symbols visible to all",
        "['tvm_ffi/lib/libtvm_ffi\\.so']",
    ),
    "alternatives": Field(TEXT, "a part of the name of each file of which it opens only one", "_abi"),
    "folders": Field(
        table_of(TEXT, TEXT),
        'folder → the architecture that its files serve (`"9.0"`), or all others (`"!9.0"`)',
        '{sm90: "9.0"}',
    ),
}
AT_RUN: Fields = {
    "needs": Field(list_of(one_of(AT_RUN_TOOLS)), "the tools", "[nvcc, ninja]", True),
    "called_by": Field(list_of(TEXT), "the frameworks whose jobs reach it", "[sglang]", True),
    "unless": Field(NAMES, "distributions that bring its kernels compiled", "[flashinfer-cubin]"),
}
PACKAGE: Fields = {
    "modules": Field(
        list_of(TEXT),
        "what it installs at the top level of site-packages: Python code first, then compiled modules",
        "[flash_attn, flash_attn_2_cuda]",
    ),
    "modules_also_in": Field(NAMES, "other distributions that install the same modules", "[fa3-fwd]"),
    "opens": Field(
        record(OPENS, "[files](#files-that-a-package-opens)"),
        "which of its compiled files it opens at import; without it, each file is judged alone",
        "{files: 'a/b\\.so'}",
    ),
    "facts": Field(TEXTS, "[families of derived facts](#families-of-derived-facts) that it has", "[compiled_files]"),
    "built_against_torch": Field(
        BOOLEAN,
        "true: compiled against one torch, so that another torch needs another build of the same release",
        "true",
    ),
    "built_per_index": Field(
        BOOLEAN, "true: built for each CUDA in the PyTorch indexes; the registry has one build of each", "true"
    ),
    "loose_from_source": Field(
        BOOLEAN,
        "true: its wheels require one torch or one core; compiled from a repository, it uses the installed torch",
        "true",
    ),
    "own_index": Field(
        TEXT,
        "a part of the addresses of its own index, whose builds for several CUDA releases are not on record",
        "wheels.vllm.ai",
    ),
    "parts": Field(
        PATTERN, "names of its parts: what it brings along, at the version that it pins", "'transformer-engine-.+'"
    ),
    "pins": Field(NAMES, "what it pins: its install replaces other releases of these", "[torch, xgrammar]"),
    "torch_extras": Field(
        TEXTS,
        "the extras with which a job on torch has it; the major release of torch's CUDA replaces `{cuda_major}`",
        "[pytorch]",
    ),
    "chooses_by_modules": Field(
        BOOLEAN, "true: it chooses attention by which of its compiled modules are there", "true"
    ),
    "usual_modules": Field(
        list_of(TEXTS),
        "compiled modules that its usual builds hold, without their suffix, each with the names that it had",
        "[[vllm/vllm_flash_attn/_vllm_fa3_C]]",
    ),
    "also_called": Field(TEXTS, "what pasted reports and repositories call it, in lower case", "[flash attention]"),
    "shown_as": Field(TEXT, "its name in the line of packages of a report", "SageAttention"),
    "shown_rank": Field(INTEGER, "its place in that line", "10"),
    "has_load_rule": Field(
        BOOLEAN, "true: a rule on `<distribution>.known_unloadable` reports that it does not load", "true"
    ),
    "has_gpu_rule": Field(
        BOOLEAN,
        "true: a rule of its own reports that it has no code for a GPU, or its code serves some GPUs alone",
        "true",
    ),
    "has_label_rule": Field(
        BOOLEAN, "true: a rule of its own compares torch and the C++ ABI with the label of its wheel", "true"
    ),
    "has_cuda_rule": Field(BOOLEAN, "true: a rule of its own compares torch's CUDA with that label", "true"),
    "has_build_rule": Field(BOOLEAN, "true: a rule of its own reports that its build stops in isolation", "true"),
    "compiles_at_run": Field(
        record(AT_RUN, "[tools](#tools-that-a-package-compiles-with)"),
        "what it compiles with while a job runs",
        "{needs: [nvcc], called_by: [vllm]}",
    ),
    "wrong_on": Field(
        table_of(TEXT, TEXTS),
        "releases → beginnings of compute capabilities on which they compute wrong results; no fix builds them there",
        '{"<2.9": ["12."]}',
    ),
    "wheel_names_build": Field(
        BOOLEAN, "true: its wheel files name the torch or CUDA that they were built for", "true"
    ),
    "conda": Field(list_of(TEXT), "its names in conda", "[pytorch, pytorch-gpu]"),
    "held_with_torch": Field(
        BOOLEAN, "true: its newer releases need a newer torch, so that a fix keeps the installed one", "true"
    ),
    "role": Field(
        one_of(PACKAGE_ROLES),
        "in the analysis of [API drift](drift.md), where its sources are read: `attention` (a job that has it runs "
        "it), "
        "`trainer` (of transformers' models) or `other`",
        "trainer",
    ),
}
OVERRIDE: Fields = {
    "package": Field(DISTRIBUTION, "the part", "nvidia-cudnn-cu12", True),
    "owner": Field(DISTRIBUTION, "the package that pins it", "acme-core", True),
    "range": Field(TEXT, "the releases that work, if they are newer than the pin", '">=9.1,<10"', True),
    "when": Field(CONDITION, "conditions on the owner", '{torch.version: ">=2.4"}', True),
    "facts": Field(list_of(FACT_KEY), "facts that follow from the part's release", "[cudnn.version]", True),
    "source": Field(TEXT, "who says so", "https://docs.nvidia.com/deeplearning/cudnn", True),
}
GPU: Fields = {
    "sm": Field(SM, "its compute capability", '"8.0"', True),
    "cuda": Field(VERSION, "the oldest CUDA that knows it", '"11.0"'),
    "memory_gib": Field(TEXT, "its memory", "80"),
    "aliases": Field(TEXTS, "further names", "[A100-SXM4]"),
}
DRIVER: Fields = {
    "driver": Field(VERSION, "the driver of this CUDA release", "550.54.14"),
    "oldest": Field(VERSION, "the oldest driver that runs its programs", "525.60.13"),
}
_REPORTED: Fields = {"source": Field(TEXT, "who reports it", "https://github.com/owner/repository/issues/1", True)}
IMAGE: Fields = {
    "source": Field(TEXT, "where it is published", "https://docs.nvidia.com/deeplearning/frameworks", True),
    "certainty": Field(
        one_of(CERTAINTIES), "by the publisher, in a running container, or by others", "published", True
    ),
    "reported": Field(
        _held(_REPORTED, words="facts, with their `source`"),
        "what only others than its publisher report",
        "{source: 'https://github.com/owner/repository/issues/1', torch.version: 2.6.0}",
    ),
}
_LIBRARY_BACKENDS = list_of(record(BACKEND, "[backend](#keys-of-a-backend)"))
_IMPLIED: Fields = {
    "when": Field(CONDITION, "the releases", '{torch.version: "<2"}', True),
    "facts": Field(FACTS, "what follows", "{torch.cxx11_abi: false}", True),
}
_COMPANIONS: Fields = {
    "when": Field(CONDITION, "the releases", '{torch.version: ">=2"}', True),
    "usual": Field(
        table_of(FACT_KEY, plain("list of values", _usual, {"type": "array", "minItems": 1})),
        "what is usual there",
        '{gpu.sm: ["8.0", "9.0"]}',
        True,
    ),
}
_LABELLED = plain("facts, and `local`", _release, {"type": "object"})

LIBRARY: Fields = {
    "name": Field(TEXT, "the folder", "acme_attn", True),
    "title": Field(TEXT, "what people call it", "FlashAttention"),
    "distributions": Field(
        list_of(DISTRIBUTION, "list of distributions", or_empty=True),
        "the first is the one whose version speaks for the library",
        "[flash-attn]",
    ),
    "import_name": Field(TEXT, "the module by which Python imports it", "acme_attn"),
    "modules": Field(
        table_of(TEXT, DISTRIBUTION), "imported module → its distribution, if that is another one", "{mmcv: mmcv}"
    ),
    "seldom": Field(NAMES, "distributions that few environments have", "[flash-attn-4]"),
    "unregistered": Field(
        NAMES,
        "distributions that the package registry does not have, or has from another project: a command that installs a "
        "package which only a log names leaves them out",
        "[deep-ep]",
    ),
    "report_title": Field(TEXT, "what reports call it, if that is not its name", "torch SDPA"),
    "spoken": Field(
        table_of(TEXT, PATTERN),
        "module → how people write it; for `explain`",
        "{sageattention: '\\bsage[ _-]?attention'}",
    ),
    "spoken_inside_others": Field(
        BOOLEAN,
        "true: names of other packages contain it, so that it counts where no other is named: ring flash attention",
        "true",
    ),
    "plain_words": Field(
        TEXTS,
        "names of its packages that are words of the language, too: in a log such a word names no package",
        "[kernels]",
    ),
    "environment": Field(
        TEXTS, "variables worth reading: `NVTE_*` for a prefix, `*_FORCE_BUILD` for a suffix", "[NVTE_*]"
    ),
    "references": Field(TEXTS, "sources", "['https://github.com/Dao-AILab/flash-attention']"),
    "packages": Field(
        table_of(DISTRIBUTION, record(PACKAGE, "[package](#keys-of-a-package)")),
        "what holds for all releases of a distribution, which need not be one of `distributions`",
        "{trl: {role: trainer}}",
    ),
    "backends": Field(_LIBRARY_BACKENDS, "the implementations that it chooses from", "[{id: te.fused, title: Fused}]"),
    "applies": Field(CONDITION, "when a prediction makes sense", "{workload.framework: transformer_engine}"),
    "stages": Field(
        either(list_of(TEXT), _order(TEXT), _is_ordered), "its order of filters", "[install, dtype, head_dim]"
    ),
    "preference": Field(_order(BACKEND_ID), "orders of choice", "[{order: [te.fused]}]"),
    "variants": Field(
        table_of(BACKEND_ID, _order(BACKEND_ID)),
        "the same among the parts of a backend",
        "{te.fused: [{order: [te.fused]}]}",
    ),
    "decisions": Field(
        table_of(FACT_KEY, list_of(record(DECISION, "[case](#cases-of-a-decision)"))),
        "of a library that decides step by step. The first case whose condition holds gives the value. An unknown case "
        "leaves the fact unknown, unless the later ones agree with it",
        "{sglang.base: [{value: fa3}]}",
    ),
    "choice": Field(
        record(
            {
                phase: Field(FACT_KEY, "the fact that holds the backend of this phase", f"sglang.{phase}", True)
                for phase in PHASES
            },
            "`decode`, `prefill`",
        ),
        "the facts that hold the backend of each phase",
        "{decode: sglang.decode, prefill: sglang.prefill}",
    ),
    "companions": Field(
        list_of(record(_COMPANIONS, "`when`, `usual`")),
        "what is usually installed with a range of releases; the first whose condition holds counts",
        '[{when: {torch.version: ">=2"}, usual: {gpu.sm: ["9.0"]}}]',
    ),
    "releases": Field(
        table_of(ANYTHING, _LABELLED, "version → facts, and `local`"),
        "what a release brings; `local` names the build for which it holds",
        '{2.6.0: {local: cu124, torch.cuda: "12.4"}}',
    ),
    "implies": Field(
        list_of(record(_IMPLIED, "`when`, `facts`")),
        "what a range of releases brings",
        '[{when: {torch.version: "<2"}, facts: {torch.cxx11_abi: false}}]',
    ),
    "overrides": Field(
        list_of(record(OVERRIDE, "[override](#keys-of-an-override)")),
        "parts that work at other releases than their owner pins; a fix may then replace the part alone",
        '[{package: nvidia-cudnn-cu12, owner: torch, range: ">=9.1", when: {torch.version: ">=2.4"}, '
        "facts: [cudnn.version], source: 'https://docs.nvidia.com'}]",
    ),
    "reach": Field(TEXTS, "what the rules of this folder are about, unless a rule has its own", "trl.trainers"),
    "calls": Field(
        table_of(TEXT, table_of(TEXT, plain("`always`, `maybe` or condition", _called, True))),
        "the library, or a part of it → what that calls, and when",
        "{trl: {transformers: always}}",
    ),
    "needed": Field(
        CONDITION,
        "the jobs that import the library without an alternative: without it they get an error",
        "{workload.liger_kernel: true}",
    ),
    "requested": Field(
        table_of(DISTRIBUTION, CONDITION),
        "the jobs that call a distribution by name: where no input states its release, the newest that fits is judged",
        "{flash-attn: {hf.request: flash_attention_2}}",
    ),
    "script_calls": Field(
        list_of(record(SCRIPT_CALL, "[call](#keys-of-a-script-call)")),
        "what calls in a Python program state of its job",
        "[{call: [trl.SFTTrainer], facts: {workload.training: true}}]",
    ),
    "attention_calls": Field(
        list_of(record(ATTENTION_CALL, "[call](#keys-of-an-attention-call)")),
        "what `attn-doctor backends --run` measures of it",
        '[{id: fa.flash3, title: FlashAttention 3, select: {"*": call it}}]',
    ),
    "trainers": Field(
        list_of(record(TRAINER, "[trainer](#keys-of-a-trainer)")),
        "how its programs are started, and what options state",
        "[{id: swift, title: ms-swift}]",
    ),
    "frameworks": Field(
        list_of(record(FRAMEWORK, "[framework](#keys-of-a-framework)")),
        "who calls attention in a job",
        "[{word: acme_attn}]",
    ),
    "gpus": Field(
        table_of(TEXT, record(GPU, "[GPU](#keys-of-a-gpu)")),
        "the GPUs by name",
        '{A100: {sm: "8.0"}}',
    ),
    "cuda_drivers": Field(
        table_of(ANYTHING, record(DRIVER), "CUDA release → [drivers](#drivers-of-a-cuda-release)"),
        "drivers of each CUDA release",
        '{"12.4": {driver: 550.54.14, oldest: 525.60.13}}',
    ),
    "images": Field(
        table_of(
            TEXT, table_of(TEXT, _held(IMAGE, words="[image](#keys-of-an-image)")), "image → release → what it holds"
        ),
        "what a release of a container image holds",
        "{nvcr.io/nvidia/pytorch: {24.12: {torch.version: 2.6.0, source: 'https://docs.nvidia.com', certainty: seen}}}",
    ),
}
FRAMEWORKS_KIND = LIBRARY["frameworks"].kind


def _joined(shape: Shape, value: Any, at: At) -> None:
    """Check what joins the keys of a library: its backends, and what has companions."""
    known = _known_backends(shape, value.get("backends") or ())
    named = [
        *(
            (item["part_of"], ("backends", str(index), "part_of"))
            for index, item in enumerate(value.get("backends") or ())
            if "part_of" in item
        ),
        *_ordered(value.get("preference"), "preference"),
        *((backend, ("variants", backend)) for backend in value.get("variants") or ()),
        *(
            found
            for backend, orders in (value.get("variants") or {}).items()
            for found in _ordered(orders, "variants", backend)
        ),
    ]
    for backend, place in named:
        if backend not in known:
            raise shape.fault(place, f"there is no backend `{backend}`", nearest(backend, known))
    if "companions" in value and not value.get("distributions"):
        raise shape.fault(("companions",), "`companions` needs a distribution whose releases have them")


def _known_backends(shape: Shape, backends: Sequence[dict[str, Any]]) -> list[str]:
    known: list[str] = []
    for index, item in enumerate(backends):
        place = ("backends", str(index), "id")
        if known and known[0].split(".")[0] != item["id"].split(".")[0]:
            raise shape.fault(place, f"`{item['id']}` and `{known[0]}` need the same first part")
        if item["id"] in known:
            raise shape.fault(place, f"`{item['id']}` is given twice")
        known.append(item["id"])
    return known


def _ordered(orders: Any, *at: str) -> list[tuple[str, At]]:
    return [
        (backend, (*at, str(index), "order", str(place)))
        for index, item in enumerate(orders or ())
        for place, backend in enumerate(item["order"])
    ]


LIBRARY_KIND = record(LIBRARY, "a library", also=_joined)


def library_schema() -> Schema:
    """Return the JSON Schema of a `library.yaml`."""
    return {
        "description": "One library: what is known of it.",
        **record_schema(LIBRARY),
        "$defs": {"condition": condition_schema()},
    }
