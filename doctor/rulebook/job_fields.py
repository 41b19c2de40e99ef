"""The keys of a `library.yaml` that say what programs, options and calls state of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from doctor.facts.libraries.record import OPTION_KINDS, READING_KINDS
from doctor.facts.libraries.servers import SERVER_OPTION_KINDS

from .fields import (
    ANYTHING,
    BOOLEAN,
    CONDITION,
    DISTRIBUTION,
    FACT_KEY,
    FACT_VALUE,
    INTEGER,
    PATTERN,
    TEXT,
    TEXTS,
    Field,
    Fields,
    Kind,
    either,
    list_of,
    one_of,
    plain,
    record,
    table_of,
)
from .rule_fields import FACTS
from .shape import At, Shape


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _option_word(shape: Shape, value: Any, at: At) -> None:
    shape.fact_key(f"workload.{value}", at)


def _fact_keys(shape: Shape, value: Any, at: At) -> None:
    for key in value if isinstance(value, list) else [value]:
        shape.fact_key(key, at)


TITLE = Field(TEXT, "in reports", "FlashAttention 3", True)
FACT_KEYS = plain("fact key, or list of them", _fact_keys, TEXTS.schema())


def options_of(kinds: Sequence[str]) -> Kind:
    """Return the kind of options: each with the word that it states, and its kind or the words for its values."""
    word = plain("word", _option_word, TEXT.schema())
    meaning = either(one_of(kinds), table_of(TEXT, ANYTHING, or_empty=True), _is_table)
    return table_of(TEXT, table_of(word, meaning), "option → {word: kind, or the words for its values}")


SCRIPT_CALL: Fields = {
    "call": Field(
        TEXTS,
        "patterns of the path with the module; `?.backward` is a method",
        "[transformers.AutoModel*.from_pretrained]",
        True,
    ),
    "facts": Field(FACTS, "what every such call states", "{workload.training: true}"),
    "arguments": Field(
        table_of(TEXT, FACT_KEYS),
        "argument → the fact that it states; a pair of keys takes a pair of values",
        "{attn_implementation: workload.attn_implementation}",
    ),
    "values": Field(
        table_of(TEXT, table_of(TEXT, table_of(FACT_KEY, FACT_VALUE, or_empty=True), "value → facts")),
        'argument → what its values state; `"*"` is any value, `absent` none',
        '{is_causal: {"true": {workload.mask: causal}}}',
    ),
    "positional": Field(TEXTS, "names of the arguments without one", "[query, key, value]"),
    "rank": Field(INTEGER, "of two calls that state the same fact, the higher counts", "2"),
    "options": Field(TEXT, "the trainer of which the arguments are options", "acme_train"),
    "assigned": Field(
        BOOLEAN,
        "true: what the program assigns to attributes counts, too: `cfg.model.dtype = …` as `model.dtype`",
        "true",
    ),
}
ATTENTION_CALL: Fields = {
    "id": Field(TEXT, "`kernels/programs/measure.py` has a call of each", "fa.flash3", True),
    "title": TITLE,
    "package": Field(
        TEXTS, "measured where one of them is installed; without it the library's first", "[flash-attn-3]"
    ),
    "backends": Field(TEXTS, "the predicted backends that make this call; without it the one of its id", "[fa.flash3]"),
    "rank": Field(INTEGER, "the order in which calls are measured; without it a call goes last", "3"),
    "only_compiled": Field(BOOLEAN, "true: it exists through torch.compile alone", "true"),
    "for_errors": Field(BOOLEAN, "true: it serves to find errors, and is measured when all else was", "true"),
    "compiled": Field(BOOLEAN, "true: torch.compile may change its speed, so that both are measured", "true"),
    "when": Field(CONDITION, "only for such jobs", "{workload.window: present}"),
    "env": Field(ANYTHING, "variables of the process that measures it", '{NVTE_FLASH_ATTN: "1"}'),
    "select": Field(
        table_of(TEXT, TEXT),
        'framework → what makes a job take this call; `"*"` is any other framework',
        '{"*": "call `flash_attn_func`"}',
        True,
    ),
}
#: Kind of reading → what it states.
READINGS = {
    "default": "`value`; with `given` or `without`, only where one of those options is there, or none",
    "named": "what the first of the options says, as text or by `words`",
    "unless_off": "`value` unless the switch is off",
    "switch": "whether a switch is on",
    "opposite": "the opposite of a switch",
    "first_switch": "the word of the first switch that is on",
    "holds": "whether an option is or contains `pattern`",
    "dtype": "the dtype of autocast, else of the weights",
    "tuner": "what is trained: an adapter, on four bits (`four_bit`) or not, or the whole model",
    "length": "the length of rows",
    "split": "over how many ranks a sequence is split, and who does it (`value`)",
    "sharding": "how ranks share the model: by DeepSpeed or FSDP",
    "stage_of": "the same, by the config that an option names",
    "own_stage": "the same, of a config of DeepSpeed",
    "launch": "the same, of a launcher",
    "attention": "options that write out the attention of a model, as those of Megatron-LM do",
}
READING: Fields = {
    "kind": Field(one_of(READING_KINDS, "[kind](#kinds-of-readings)"), "how the options are read", "switch", True),
    "word": Field(TEXT, "the word of the workload that is stated", "packing"),
    "options": Field(TEXTS, "the options, the first that is given counts", "[use_liger_kernel]"),
    "value": Field(ANYTHING, "what is stated", "true"),
    "named": Field(TEXT, "the option that a report names", "per_device_train_batch_size"),
    "given": Field(TEXTS, "only where one of these options is given", "[deepspeed]"),
    "without": Field(TEXTS, "only where none of these options is given", "[fsdp]"),
    "four_bit": Field(TEXTS, "options which say that an adapter is trained on four bits", "[load_in_4bit]"),
    "words": Field(ANYTHING, "the words for the values", "{bf16: bfloat16}"),
    "pattern": Field(PATTERN, "an expression for the value", "'flash'"),
    "assumed": Field(BOOLEAN, "true: the usual case, not a certain one", "true"),
}
_CONFIG: Fields = {
    "all": Field(TEXTS, "all of these keys", "[base_model]"),
    "any": Field(TEXTS, "and one of these", "[datasets, rl]", True),
}
TRAINER: Fields = {
    "id": Field(TEXT, "its name in the library files", "swift", True),
    "title": TITLE,
    "framework": Field(TEXT, "the word of who calls attention in its jobs", "acme_attn"),
    "trainer": Field(TEXT, "its name in `calls`", "acme_train"),
    "general": Field(BOOLEAN, "true: others build on its options, whose signs come first", "true"),
    "config": Field(
        record(_CONFIG, "`all`, `any`"),
        "keys by which its config is recognized: all of the one list, and one of the other",
        "{any: [datasets]}",
    ),
    "config_option": Field(TEXT, "the option that names its config", "--config"),
    "programs": Field(table_of(TEXT, TEXTS), "program → its commands that train", "{swift: [sft, pt]}"),
    "modules": Field(list_of(PATTERN), "modules after `-m`", "['swift\\.cli\\.sft']"),
    "scripts": Field(list_of(PATTERN), "paths of its own scripts", "['(?:.*/)?run_recipe\\.py']"),
    "launchers": Field(TEXTS, "programs that start another trainer's script", "[accelerate]"),
    "launcher_option": Field(TEXT, "the option of a launcher that names its config", "--config_file"),
    "script": Field(PATTERN, "the name of a script of the user's", "'train.*\\.py'"),
    "script_options": Field(
        list_of(TEXTS), "options by which such a script is recognized: all of one group", "[[--model_name, --dataset]]"
    ),
    "reads_config_of_scripts": Field(BOOLEAN, "true: a script of the user's may take its config", "true"),
    "signs": Field(
        list_of(TEXTS),
        "a config with one name of each group, in any of its tables, is its own; options count by their last name",
        "[[model_path, model_name], [lr]]",
    ),
    "takes_assignments": Field(BOOLEAN, "true: `key=value` is an option too", "true"),
    "needs": Field(
        table_of(TEXT, TEXTS), "option → its values with which the options say something", "{trainer: [fsdp]}"
    ),
    "alone": Field(options_of(OPTION_KINDS), "options after which no other says anything", "{fp8: {fp8: flag}}"),
    "options": Field(options_of(OPTION_KINDS), "what each option states by itself", "{packing: {packing: flag}}"),
    "readings": Field(
        list_of(record(READING, "[reading](#keys-of-a-reading)")),
        "what several options state together, in this order",
        "[{kind: switch, word: liger_kernel, options: [use_liger_kernel]}]",
    ),
}
SERVER: Fields = {
    "title": TITLE,
    "package": Field(DISTRIBUTION, "its distribution", "acme-serve", True),
    "programs": Field(
        table_of(TEXT, TEXT), 'program → its command that serves, `"*"` where it does nothing else', "{acme: serve}"
    ),
    "modules": Field(list_of(PATTERN), "modules after `-m`", "['acme\\.launch']"),
    "images": Field(
        table_of(TEXT, list_of(TEXT, or_empty=True)),
        "container image → the command that it runs",
        "{acme/acme-serve: [acme, serve]}",
    ),
    "options": Field(
        options_of(SERVER_OPTION_KINDS),
        "what each option states; `switch` and `off` have a form with `--no-`, `draft` is a model that speculates",
        "{--attention-backend: {attention_backend_option: text}}",
    ),
    "prints": Field(PATTERN, "what it writes before each line of its log", "'^\\[acme\\] '"),
    "config_options": Field(TEXTS, "options that name a file of further options", "[--config]"),
    "json_options": Field(
        table_of(TEXT, options_of(SERVER_OPTION_KINDS), "option → members, as `options`"),
        "options that take JSON: what its members state",
        "{--speculative-config: {method: {speculative_algorithm: text}}}",
    ),
}
FRAMEWORK: Fields = {
    "word": Field(TEXT, "the value of `workload.framework`", "acme_attn", True),
    "spellings": Field(TEXTS, "what people write for it, in lower case", "[acme, acme-attention]"),
    "backends_of": Field(
        TEXT, "the folder of the library whose backends serve it, if that is another one", "transformers"
    ),
    "call": Field(TEXT, "the function that a job's own code calls", "acme_attn.attention"),
    "implementation": Field(TEXT, "the value of `attn_implementation` that means it", "sdpa"),
    "own_implementation": Field(TEXT, "the value that it sets itself", "flash_attention_2"),
    "takes_attn_implementation": Field(BOOLEAN, "true: a job chooses its attention by that option", "true"),
    "without_attention": Field(
        BOOLEAN, "true: such a job computes no attention, and nothing is predicted for it", "true"
    ),
    "packages": Field(TEXTS, "the distributions of an environment for it, if the word names none", "[torch]"),
    "predicted_with": Field(
        DISTRIBUTION, "an environment with this package gets its backends predicted without a job", "acme-attn"
    ),
    "rank": Field(INTEGER, "the order of such predictions", "1"),
    "assumed_with": Field(
        DISTRIBUTION,
        "a job that names no framework is taken for one of it, if this package is installed",
        "acme-attn",
    ),
    "assumed_rank": Field(INTEGER, "the order in which such packages are looked for: the most specific first", "1"),
    "is_default": Field(BOOLEAN, "true: a job that names no framework calls it", "true"),
    "kernel": Field(TEXT, "the kernel program that runs the attention of its jobs, for `--run`", "sdpa"),
    "sweep": Field(
        table_of(TEXT, TEXTS),
        "backend of `attn-doctor stress` → what serves it: a backend, the prefix of a library that selects, or a "
        "library without backends",
        "{flash2: [fa.flash2]}",
    ),
    "matrix": Field(
        TEXTS,
        "rows of the feature matrix that mean something for its calls: `fp8`, `bias`, `context_parallel`, `kv_cache`, "
        "`enable_gqa`, and layouts",
        "[bias, enable_gqa]",
    ),
    "sequence_first": Field(BOOLEAN, "true: its usual layout has tokens before samples", "true"),
    "calls": Field(
        table_of(TEXT, TEXT),
        "a value of its option for backends → the framework that computes attention then",
        "{FLASH_ATTN: flash_attn}",
    ),
    "server": Field(
        record(SERVER, "[server](#keys-of-a-server)"),
        "how it is started, if it is a server",
        "{title: Acme, package: acme-serve}",
    ),
}
