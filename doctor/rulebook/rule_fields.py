"""The keys of a rule file: lint, JSON Schema and docs/rule-format.md are made from this definition.

The order of the keys is their order in a file (`attn-doctor rules format`).
"""

from __future__ import annotations

import re
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from doctor.model import ABSENT, SEVERITIES, TORCH
from doctor.util.variables import is_kernel_switch, is_variable_name

from .categories import CATEGORIES
from .fields import (
    ANYTHING,
    BACKENDS,
    BOOLEAN,
    CONDITION,
    DISTRIBUTION,
    FACT_KEY,
    FACT_VALUE,
    INTEGER,
    OUTCOME,
    RANGES,
    SENTENCE,
    TEXT,
    TEXTS,
    VERSION,
    Field,
    Fields,
    Kind,
    Schema,
    either,
    list_of,
    one_of,
    plain,
    record,
    record_schema,
    table_of,
)
from .other_messages import other_messages
from .proofs import ANY_RANGE, BINARY, CONSTANT, IMPORT, LACKS, MEASURED, METADATA, NOT_REQUIRED, SOURCE, STATED, WHEEL
from .rule import EFFECTS, is_checked
from .shape import At, Shape

EXPLANATION_NEEDED = ("category", "packages", "signatures", "tests")  # of a rule without any of the effects
REMEDIES = ("require", "build", "set_env", "unset_env", "config", "call", "note")  # one at least: else it does nothing
SAFETIES = ("safe", "changes numbers", "risky")  # of a fix, as its rule states it
BUILDS = (TORCH,)  # of which builds for several CUDA releases are on record
EXPECTATIONS = ("fires", "silent", "undetermined")
LOG_EXPECTATIONS = ("matches", "no match")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")


def _repository(shape: Shape, value: Any, at: At) -> None:
    if not isinstance(value, str) or not _REPOSITORY.fullmatch(value):
        raise shape.fault(at, f"`{value}` is no repository", "write `owner/name`")


def _required(shape: Shape, value: Any, at: At) -> None:
    if value not in (NOT_REQUIRED, ANY_RANGE):
        RANGES.check(shape, value, at)


def _groups(shape: Shape, value: Any, at: At) -> None:
    shape.texts(value, at)
    for name in [value] if isinstance(value, str) else value:
        if name not in other_messages():
            known = ", ".join(f"`{one}`" for one in other_messages())
            raise shape.fault(at, f"`{name}` is no group of messages (known: {known})")


def _request(shape: Shape, value: Any, at: At) -> None:
    """Check a kernel's request; its `env` may hold switches only, since any other variable could make it run code."""
    shape.values(shape.text, lambda item, here: None)(value, at)
    variables = value.get("env")
    if variables is None:
        return
    if not isinstance(variables, dict):
        raise shape.fault((*at, "env"), "`env` needs a mapping of variables")
    for name, text in variables.items():
        if not is_kernel_switch(name, text):
            hint = "only switches of attention libraries, such as NVTE_FLASH_ATTN, with plain values"
            raise shape.fault((*at, "env"), f"a kernel does not take the variable `{name}` with this value", hint)


def _variable(shape: Shape, value: Any, at: At) -> None:
    if not is_variable_name(value):
        raise shape.fault(at, f"`{value}` is not the name of an environment variable")


def _variables(shape: Shape, value: Any, at: At) -> None:
    shape.texts(value, at)
    for name in value if isinstance(value, list) else [value]:
        _variable(shape, name, at)


def _specifier(shape: Shape, value: Any, at: At) -> None:
    if value == ABSENT:  # the distribution is to be uninstalled
        return
    shape.text(value, at)
    keys = _PLACEHOLDER.findall(value)
    for key in keys:
        shape.fact_key(key, at)
    # a bound, ">={hf.model_since}", or a whole range, "{hf.wants_tokenizers}", that follows from a fact
    filled = "==0" if _PLACEHOLDER.fullmatch(value) else _PLACEHOLDER.sub("0", value)
    try:
        SpecifierSet(filled)
    except InvalidSpecifier:
        found = f'`{at[-1]}` needs a version range, as ">=2.1,<2.9", or `absent`, found `{filled}`'
        raise shape.fault(at, found) from None


def _setting(shape: Shape, value: Any, at: At) -> None:
    shape.fact_key(value, at)
    if not value.startswith("workload."):
        raise shape.fault(at, f"`config` sets `workload.…` keys, not `{value}`")


def _url(shape: Shape, value: Any, at: At) -> None:
    if not isinstance(value, str) or not re.match(r"https?://\S+$", value):
        raise shape.fault(at, f"`index_url` needs a URL, found `{value}`")


_TEXT_SCHEMA = TEXT.schema()
REPOSITORY = plain("`owner/name`", _repository, _TEXT_SCHEMA)
REQUIRED = plain(f"range of releases, or list of them, `{NOT_REQUIRED}` or `{ANY_RANGE}`", _required, TEXTS.schema())
VARIABLE = plain("variable", _variable, _TEXT_SCHEMA)
FACTS = table_of(FACT_KEY, FACT_VALUE)
OBJECT = table_of(TEXT, ANYTHING, "mapping")
GROUPS = Kind(
    "name of a group, or list of them",
    _groups,
    lambda: {
        "anyOf": [
            {"enum": [*other_messages()]},
            {"type": "array", "minItems": 1, "items": {"enum": [*other_messages()]}},
        ]
    },
)

SIGNATURE: Fields = {
    "match": Field(TEXT, "the line that shows the cause", "'undefined symbol: _ZN3c105ErrorC[12]E'", True),
    "near": Field(
        TEXTS, "further expressions; each matches in the lines around it, such as the traceback", "acme_attn"
    ),
    "not_near": Field(TEXTS, "expressions that match nowhere there", "[vllm]"),
    "unless": Field(
        GROUPS,
        "groups of expressions that match nowhere there either, by their names in `rules/index/other_messages.json`",
        "calls and names",
    ),
    "anywhere": Field(TEXTS, "expressions that match in some line of the log", "'CUDA Version: 11\\.'"),
    "frame": Field(
        TEXT,
        "an expression for the file of the last frame of the traceback: whose code raised the error",
        "/transformers/",
    ),
}
_ONE_SIGNATURE = either(TEXT, record(SIGNATURE), lambda value: isinstance(value, dict))
SIGNATURES = either(
    _ONE_SIGNATURE,
    list_of(_ONE_SIGNATURE),
    lambda value: isinstance(value, list),
    "[signature](#signatures), or list of them",
)

_PACKAGE = Field(DISTRIBUTION, "the package whose releases are read", "acme-attn", True)
_FILE = Field(TEXTS, "the file, or several, as patterns of paths below site-packages", "'**/attention.py'", True)
_IN = Field(RANGES, "the releases that the claim is about", '">=2.0,<2.18"', True)
_OF = Field(DISTRIBUTION, "the distribution that the condition of the rule is on, if it is another one", "acme-attn")
_SHOWS = Field(TEXT, "an expression for the code that fails", "assert softcap == 0", True)
_HIDES = Field(TEXT, "an expression that matches nowhere in the file", "supports_softcap")
PROOFS: dict[str, tuple[str, Fields]] = {
    SOURCE: (
        "in every release of `package` in the range `in`, a file matches `shows` and not `hides`. In the releases "
        "next to "
        "the range none does. With `repository` instead of `package` the releases are the tags of a repository",
        {
            "package": _PACKAGE._replace(needed=False),
            "repository": Field(REPOSITORY, "the repository whose tags are read", "NVIDIA/TransformerEngine"),
            "of": _OF,
            "file": _FILE,
            "shows": _SHOWS,
            "hides": _HIDES,
            "in": _IN,
        },
    ),
    BINARY: (
        "the same for compiled files: symbols, library names, architectures as text",
        {"package": _PACKAGE, "of": _OF, "file": _FILE, "shows": _SHOWS, "hides": _HIDES, "in": _IN},
    ),
    METADATA: (
        "the releases in `in` require `range` of the package `requires`, and those next to it do not: `absent` is no "
        "requirement, `any` one without a range. `extras`: the bounds of these extras count, too; a pin there is a "
        "lowest "
        "release",
        {
            "package": _PACKAGE,
            "requires": Field(DISTRIBUTION, "the package that is required", "acme-core", True),
            "range": Field(REQUIRED, "what the metadata says", '">=2.4.0,<2.11.0"', True),
            "in": _IN,
            "of": _OF,
            "extras": Field(TEXTS, "extras that count, too", "[cu128]"),
        },
    ),
    CONSTANT: (
        "in the releases in `in`, code accepts `range`: the group of the first match of `find` in one of the files is "
        "that range, or its lowest release. In the releases next to it, it is another one or there is none",
        {
            "package": _PACKAGE,
            "file": _FILE,
            "find": Field(TEXT, "an expression with one group", "'MIN_VERSION = \"(.*)\"'", True),
            "range": Field(REQUIRED, "the range that the group says", '">=2.1"', True),
            "in": _IN,
            "of": _OF,
        },
    ),
    IMPORT: (
        "in the releases in `in`, a file imports `name` (`module.name`) of the package `from` at its top: not in a "
        "function or a `try`, and behind no check for a package that may be missing. Releases next to the range may "
        "import it, too",
        {
            "package": _PACKAGE,
            "file": _FILE,
            "name": Field(TEXT, "what is imported", "acme_core.utils.x", True),
            "from": Field(DISTRIBUTION, "the package that is to have it", "acme-core", True),
            "in": _IN,
            "of": _OF,
        },
    ),
    LACKS: (
        "the releases in `in` lack `name`, and those next to it have it, by the record in `rules/index/names`",
        {
            "package": _PACKAGE,
            "name": Field(TEXT, "what is missing", "acme_core.utils.x", True),
            "in": _IN,
            "of": _OF,
        },
    ),
    WHEEL: (
        "what the release index has on the wheels of the releases in `in` matches `shows` and not `hides`, and in "
        "those "
        "next to it does not: lines such as `wheel for cp313`, `wheel for aarch64`, `requires Python >=3.10`, `source "
        "archive`, `withdrawn`; of torch `cu128 code for 10.0`, `cu126 abi 1`, `cu126 cudnn 9.5.1.17` of each build",
        {"package": _PACKAGE, "shows": _SHOWS, "in": _IN, "hides": _HIDES, "of": _OF},
    ),
    MEASURED: (
        "a line of `capture`, a file in `tests/captures`, matches `shows`",
        {"capture": Field(TEXT, "a file in `tests/captures`", "h200-answers.jsonl", True), "shows": _SHOWS},
    ),
    STATED: (
        'somebody says so at `url`; nothing is checked. The page of the rule says "reported by users"',
        {"url": Field(TEXT, "where", "https://github.com/owner/repository/issues/1", True)},
    ),
}


def _one_proof(shape: Shape, value: Any, at: At) -> None:
    if len(value) != 1:
        raise shape.fault(at, "an entry of `proof` has one kind", f"kinds are {', '.join(PROOFS)}")
    (kind, body) = next(iter(value.items()))
    if "repository" in PROOFS[kind][1] and len({"package", "repository"} & set(body)) != 1:
        raise shape.fault((*at, kind), "the sources are those of a `package` or of a `repository`", "name one of them")


PROOF = record(
    {kind: Field(record(fields), claim, "") for kind, (claim, fields) in PROOFS.items()},
    "[proof](#proofs)",
    also=_one_proof,
    more={"minProperties": 1, "maxProperties": 1},
)

CONFIRM: Fields = {
    "kernel": Field(TEXT, "the program that shows the flaw on a GPU", "te_attention", True),
    "request": Field(
        plain("mapping", _request, {"type": "object", "minProperties": 1}),
        "overrides the workload; `env` in it: variables that are set before anything is imported",
        '{dtype: bfloat16, env: {NVTE_FLASH_ATTN: "0"}}',
    ),
    "regardless_of": Field(
        TEXTS,
        "words of the workload on which the claim does not depend, so that a kernel without them counts",
        "[cp_size, cp_comm_type]",
    ),
    "bad_if_any": Field(
        list_of(OBJECT, "list of mappings"),
        "conditions on what the kernel observed",
        '[{error_forward: ">0.01"}]',
    ),
}


def _a_remedy(shape: Shape, value: Any, at: At) -> None:
    if not any(key in value for key in REMEDIES):
        raise shape.fault(at, f"a fix needs one of {', '.join(REMEDIES)}")
    if value.get("safety", SAFETIES[0]) != SAFETIES[0] and "risk" not in value:
        raise shape.fault((*at, "safety"), f"`safety: {value['safety']}` needs a `risk`: one sentence that says why")


FIX: Fields = {
    "require": Field(
        table_of(DISTRIBUTION, plain("version range, or `absent`", _specifier, _TEXT_SCHEMA)),
        'the release of a package, or `absent` to remove it. `{fact.key}` inserts a fact: `">={hf.model_since}"`, or a '
        'whole range, `"{hf.wants_tokenizers}"`; without that fact the entry is left out',
        '{torch: ">=2.7.1,<2.9"}',
    ),
    "set_env": Field(table_of(VARIABLE, TEXT), "environment variables to set", '{NVTE_FLASH_ATTN: "0"}'),
    "unset_env": Field(
        plain("variable, or list of them", _variables, TEXTS.schema()),
        "environment variables to unset",
        "[LD_LIBRARY_PATH]",
    ),
    "config": Field(
        table_of(plain("workload key", _setting, _TEXT_SCHEMA), FACT_VALUE),
        "what the job is to state",
        "{workload.mask: causal}",
    ),
    "call": Field(SENTENCE, "a line of code", "model.config.use_cache = False"),
    "then": Field(
        table_of(FACT_KEY, OUTCOME),
        "what holds afterwards without being set, after a `call` or with a new release",
        '{workload.head_dim_v: "{workload.head_dim_qk}"}',
    ),
    "build": Field(
        one_of(BUILDS),
        "the installed release in a build for another CUDA; one remedy for each build on record, which the rules then "
        "judge (driver, GPU)",
        "torch",
    ),
    "when": Field(
        CONDITION,
        "as in the rule. False on the changed facts: not offered. Unknown: offered with the condition named, and never "
        "recommended",
        '{gpu.sm: ">=9.0"}',
    ),
    "note": Field(TEXT, "what it brings or costs", "brings cuDNN 9.5.1"),
    "partial": Field(
        TEXT,
        "why the rule may still fire after it, or another error follows; otherwise a test demands that neither happens",
        "another rule then names a further change",
    ),
    "safety": Field(
        one_of(SAFETIES),
        "`safe` is the default. `changes numbers`: other results, or another job. `risky`: it works around what a "
        "package "
        "checks or pins. A `config` that sets dtype, mask, window, batches or the like changes numbers without "
        "saying so",
        "risky",
    ),
    "risk": Field(
        TEXT,
        "one sentence on what is not safe; needed with `changes numbers` and `risky`",
        "torch was tested with the pinned cuDNN only",
    ),
    "index_url": Field(
        plain("URL", _url, {"type": "string", "pattern": r"^https?://\S+"}),
        "where the packages are, if not the usual index",
        "https://download.pytorch.org/whl/cu126",
    ),
}

TEST: Fields = {
    "given": Field(
        table_of(FACT_KEY, FACT_VALUE, or_empty=True),
        "the facts, `workload.…` included; `null` means unknown. A variable that is not given is unset. As soon as one "
        "`workload.…` key is given, the others have their defaults",
        "{torch.version: 2.5.0, workload.mask: causal}",
        True,
    ),
    "expect": Field(
        one_of(EXPECTATIONS), "for a rule that `disables`, *fires* means that the backend is unavailable", "fires", True
    ),
    "missing": Field(list_of(FACT_KEY, or_empty=True), "all facts that are missing", "[cudnn.version]"),
    "message": Field(TEXT, "a part of the message with the values filled in", "needs cuDNN >= 9.3"),
}
LOG_TEST: Fields = {
    "log": Field(TEXTS, "the lines of a log", '["undefined symbol: _ZN3c105ErrorC2E"]', True),
    "expect": Field(one_of(LOG_EXPECTATIONS), "whether a signature is to match", "matches", True),
}

RULE: Fields = {
    "id": Field(TEXT, "a library's letters and three digits; the file's name", "TE103", True),
    "name": Field(TEXT, "the flaw in kebab-case", "fused-attention-bottom-right-needs-cudnn-9.3", True),
    "severity": Field(
        one_of(SEVERITIES),
        "`error` will fail or compute wrong, `warning` slow or fragile. Without it the rule is no finding, only a "
        "reason",
        "error",
    ),
    "category": Field(
        plain("[category](#categories)", Shape.text, {**_TEXT_SCHEMA, "examples": [*CATEGORIES]}),
        "what kind of failure it is: groups findings; a rule that only explains needs one of logs",
        "crash",
    ),
    "weight": Field(INTEGER, "the higher of two equally severe findings is reported first", "10"),
    "stage": Field(
        TEXT,
        "the position of the reason in the library's own order of filters: a name from `stages` in its `library.yaml`",
        "head_dim",
    ),
    "yields_to": Field(
        TEXTS,
        "ids of more specific rules; where one of them fires, this one is silent (an error only where one of them is "
        "an error, too)",
        "[TORCH005]",
    ),
    "replaces": Field(
        TEXTS, "ids of former rules that this one covers; `rules show` and ignore entries still know them", "[VLLM930]"
    ),
    "since": Field(TEXT, "when the rule was added", "0.2.0"),
    "summary": Field(
        TEXT,
        "a headline: one line, at most 100 characters, no period",
        "FusedAttention has no bottom-right causal mask before cuDNN 9.3",
        True,
    ),
    "why": Field(TEXT, "one or two sentences that a user understands", "The kernel ignores the mask."),
    "references": Field(
        TEXTS,
        "sources; at least one is a URL, `path@tag` or `owner/repository#number`",
        "[Dao-AILab/flash-attention#680]",
        True,
    ),
    "proof": Field(
        list_of(PROOF),
        "evidence that a machine can check",
        "[{stated: {url: 'https://github.com/owner/repository/issues/1'}}]",
    ),
    "when": Field(CONDITION, "what holds when the rule fires", '{cudnn.version: "<9.3"}'),
    "examined_to": Field(
        table_of(DISTRIBUTION, VERSION),
        "the newest release in which the cause was looked at. The condition then has no upper end: an upper end says "
        '"fixed in". A finding on a later release says "not examined after", and an error is a warning there',
        "{torch: 2.15.0}",
    ),
    "needs": Field(
        table_of(FACT_KEY, TEXT),
        'the words after "needs" in the evidence, where the opposite of the condition reads badly',
        "{te.selected: another backend}",
    ),
    "disables": Field(BACKENDS, "the backends that this makes unavailable", "te.fused"),
    "fails_at_run": Field(
        BACKENDS,
        "the backend that is selected and then fails at run time; the rule fires only if it is the selected one",
        "te.fused",
    ),
    "import_error": Field(
        TEXT,
        "the library (the rule's folder) that refuses to import or construct; with `vllm.selected: absent` in "
        "`when` it is "
        "judged after the choice",
        "acme_serve",
    ),
    "message": Field(
        SENTENCE,
        "the sentence for the user; `{fact.key}` is replaced by the value; an item in parentheses whose value is "
        "unknown "
        "is left out. Without it: `summary`",
        '"needs cuDNN >= 9.3 (found cuDNN {cudnn.version})"',
    ),
    "signatures": Field(SIGNATURES, "what a log shows if it triggers", "'cuDNN Error: execution failed'"),
    "confirm": Field(
        record(CONFIRM, "[confirmation](#confirmation)"),
        "the kernel that shows the flaw on a GPU",
        "{kernel: te_attention}",
    ),
    "fix_reasons": Field(
        TEXT, "a library: the fixes of the rules against its backends count first, before those in `fix`", "acme_attn"
    ),
    "fix": Field(
        list_of(
            record(FIX, "[fix](#fixes)", also=_a_remedy, more={"anyOf": [{"required": [key]} for key in REMEDIES]})
        ),
        "alternatives, best first among those that cost the same",
        '[{require: {torch: ">=2.7.1,<2.9"}}]',
    ),
    "no_pin": Field(TEXT, "why no package version fixes it", "no release is known to fix it"),
    "myth": Field(TEXT, "the popular fix that does not work, and why", "Upgrading cuDNN changes nothing here."),
    "reach": Field(
        TEXTS,
        "the distributions, or parts of them, that a job must call to meet the flaw; without it those of the library",
        "trl.trainers",
    ),
    "cause": Field(
        TEXT, "only of a rule that explains: the name of the cause, where several rules speak of one", "drv-too-old"
    ),
    "packages": Field(TEXTS, "of a rule that explains: the distributions that are involved", "[flash-attn, torch]"),
    "benign": Field(
        BOOLEAN, "only of a rule that explains, with `category: none`: the line looks bad and is not", "true"
    ),
    "tests": Field(
        table_of(
            TEXT,
            either(record(TEST), record(LOG_TEST), lambda value: isinstance(value, dict) and "log" in value),
            "name → [test](#tests)",
        ),
        "facts on which the rule fires, is silent or is undetermined, and logs that its signatures match",
        "{fires: {given: {torch.version: 2.5.0}, expect: fires}}",
    ),
}


def _complete(shape: Shape, value: Any, at: At) -> None:
    if is_checked(value):
        if "when" not in value:
            raise shape.fault(at, "`when` is missing")
        return
    if "signatures" not in value:
        raise shape.fault(at, "`severity` is missing, and the rule neither disables a backend nor explains a log")
    for key in EXPLANATION_NEEDED:
        if key not in value:
            raise shape.fault(at, f"`{key}` is missing: a rule without `severity` explains logs")


RULE_KIND = record(RULE, "a rule", also=_complete)


def rule_schema() -> Schema:
    """Return the JSON Schema of a rule file."""
    return {
        "description": "One rule; its tests are in the same file.",
        **record_schema(RULE),
        "anyOf": [*({"required": [name, "when"]} for name in EFFECTS), {"required": list(EXPLANATION_NEEDED)}],
        "$defs": {"condition": condition_schema()},
    }


def condition_schema() -> Schema:
    """Return the JSON Schema of a condition."""
    inner: Schema = {"$ref": "#/$defs/condition"}
    listed: Schema = {"type": "array", "minItems": 1, "items": inner}
    return {"type": "object", "minProperties": 1, "properties": {"all": listed, "any": listed, "not": inner}}
