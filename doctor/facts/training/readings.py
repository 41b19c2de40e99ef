"""The ways in which options of a trainer together state words; the libraries say which trainer has which options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from doctor.facts.libraries.record import OtherWord, Reading

from .attention_options import attention
from .options import DTYPES, Options, ReadConfig, Statement
from .zero import STAGES, brought, offload, plain, zero

_ADAPTER, _QUANTIZED = "lora", "qlora"
_LENGTHS = ("seq_len_q", "seq_len_kv")

#: Yields what options say; `found` is what the readings before it said.
Reader = Callable[[Reading, Options, ReadConfig, "list[Statement]"], "Iterable[Statement]"]


def read_all(readings: Iterable[Reading], options: Options, read: ReadConfig, found: list[Statement]) -> None:
    """Add what each reading says to `found`."""
    for reading in readings:
        if reading.given and options.named(*reading.given) is None:
            continue
        if reading.without and options.named(*reading.without) is not None:
            continue
        found += READERS[reading.kind](reading, options, read, found)


def _default(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """What holds where no option says otherwise."""
    named = options.named(*reading.options) or reading.named or options.script
    yield Statement(reading.word, reading.value, named, reading.assumed)


def _named(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """What the first of the options that has a value says in words of its own, or as its text."""
    for name in reading.options:
        text = options.text(name)
        if text:
            value = text if isinstance(reading.words, str) else reading.words.get(text)
            if value is not None:
                yield Statement(reading.word, value, reading.named or name)
            return


def _unless_off(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    if options.flag(reading.options[0]) is not False:
        yield Statement(reading.word, reading.value, reading.options[0])


def _switch(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """A switch that is off where it is not given."""
    name = options.named(*reading.options)
    named = reading.named or name or f"{reading.options[0]} (default)"
    yield Statement(reading.word, bool(name and options.flag(name)), named)


def _opposite(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    yield Statement(reading.word, not options.flag(reading.options[0]), reading.options[0])


def _first_switch(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """The first of several switches that is on."""
    assert not isinstance(reading.words, str)
    name = next((name for name in reading.words if options.flag(name)), None)
    if name is not None:
        found = reading.words[name]
        word, value = found if isinstance(found, OtherWord) else (reading.word, found)
        yield Statement(word, value, name)


def _holds(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """Whether an option is this text, or is a list with an item that contains it."""
    value = options.value(reading.options[0])
    if isinstance(value, list):
        holds = any(reading.pattern in str(item).lower() for item in value)
    else:
        holds = value == reading.pattern
    yield Statement(reading.word, holds, reading.named or reading.options[0])


def _dtype(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """The dtype of autocast, else that of the weights; `bf16: auto` depends on the GPU."""
    for names, dtype in ((("bf16", "bfloat16", "pure_bf16"), "bfloat16"), (("fp16", "float16"), "float16")):
        for name in names:
            if options.flag(name) or options.value(name) == "full":
                yield Statement("dtype", dtype, name)
                return
    for name in ("dtype", "torch_dtype"):
        if dtype := DTYPES.get((options.text(name) or "").lower(), ""):
            yield Statement("dtype", dtype, name)
            return


def _tuner(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """What is trained: an adapter, on quantized weights or not, or the whole model."""
    name, tuned = _tuned(reading, options)
    if tuned is None:
        tuned = reading.value
    if tuned == _ADAPTER and any(options.flag(four) or options.integer(four) == 4 for four in reading.four_bit):
        tuned = _QUANTIZED
    if tuned is not None:
        yield Statement("finetuning", tuned, reading.named or name or f"{reading.options[0]} (default)")


def _tuned(reading: Reading, options: Options) -> tuple[str | None, str | None]:
    """Return the option that says what is trained, and what it says."""
    for name in reading.options:
        text = options.text(name)
        if reading.words == "text" and text:
            return name, text
        if reading.words == "rank" and options.integer(name):  # of the adapter's matrices
            return name, _ADAPTER
        if reading.words == "flag" and options.flag(name):
            return name, _ADAPTER
        if not isinstance(reading.words, str) and text is not None and text in reading.words:
            return name, reading.words[text]
    return None, None


def _length(reading: Reading, options: Options, _: ReadConfig, found: list[Statement]) -> Iterator[Statement]:
    """The length of packed rows; other rows have at most that length, and are assumed to reach it."""
    packed = any(statement.word == "packing" and statement.value for statement in found)
    name = next((name for name in reading.options if options.integer(name)), None)
    length = options.integer(name) if name else reading.value
    if length is not None:
        option = name or f"{reading.options[0]} (default)"
        yield from (Statement(word, int(length), option, not packed) for word in _LENGTHS)


def _split(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """Over how many ranks a sequence is split, and who does it."""
    for name in reading.options:
        ranks = options.integer(name)
        if ranks is not None and ranks != 1:
            yield Statement("cp_size", ranks, name)
            yield Statement("sequence_parallel", reading.value, name)


def _sharding(reading: Reading, options: Options, read: ReadConfig, _: object) -> Iterator[Statement]:
    """How ranks share the model: by a config of DeepSpeed, or by FSDP."""
    name = "deepspeed"
    text = options.text(name)
    if text is not None and reading.pattern and (found := re.fullmatch(reading.pattern, text)):
        yield from brought(text, found[1], name)
    elif text is not None:
        yield from zero(read(text), name)
    elif (table := options.mapping(name)) is not None:
        yield from zero(table, name)
    else:
        yield from _fsdp(options, read)


def _fsdp(options: Options, read: ReadConfig) -> Iterator[Statement]:
    given = options.value("fsdp") if options.flag("fsdp") is not False else None
    config = options.mapping("fsdp_config")
    text = options.text("fsdp_config")
    if config is None and text is not None and given:
        config = read(text)
    if not given and config is None:
        return
    inner = Options(config or {})
    version = options.integer("fsdp_version") or inner.integer("fsdp_version") or inner.integer("version") or 1
    if version == 1 and (text is not None and config is None):
        return
    yield Statement("sharding", "fsdp" if version == 1 else "fsdp2", "fsdp" if given else "fsdp_config")
    yield from _computed_again(inner)


def _computed_again(config: Options) -> Iterator[Statement]:
    """Whether FSDP, and not the model, has the backward pass compute the layers again."""
    name = config.named("fsdp_activation_checkpointing", "activation_checkpointing")
    again = config.flag(name) if name else None
    if again is not None:
        yield Statement("fsdp_activation_checkpointing", again, f"fsdp_config.{name}")


def _stage_of(reading: Reading, options: Options, read: ReadConfig, _: object) -> Iterator[Statement]:
    """The stage in the config that an option names."""
    if named := options.text(reading.options[0]):
        yield from zero(read(named), reading.named)


def _own_stage(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """The stage and the dtype of a config of ZeRO; `auto` leaves a value to the trainer."""
    names = ("zero_optimization", "optimizer")
    yield from zero({name: options.value(name) for name in names if name in options}, "zero_optimization")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if Options(options.mapping(name) or {}).flag("enabled"):
            yield Statement("dtype", dtype, name)


def _launch(reading: Reading, options: Options, read: ReadConfig, _: object) -> Iterator[Statement]:
    """What the config of a launcher says: sharding and compile mode."""
    kind = (options.text("distributed_type") or "").upper()
    if kind == "FSDP":
        inner = Options(options.mapping("fsdp_config") or {})
        version = inner.integer("fsdp_version") or 1
        yield Statement("sharding", "fsdp" if version == 1 else "fsdp2", "fsdp_config")
        yield from _computed_again(inner)
    elif kind == "DEEPSPEED":
        table = Options(options.mapping("deepspeed_config") or {})
        name = table.text("deepspeed_config_file")
        yield from zero(read(name), "deepspeed_config") if name else _own_zero(table)
    elif kind == "MULTI_GPU":
        yield Statement("sharding", "ddp", "distributed_type")
    dynamo = Options(options.mapping("dynamo_config") or {})
    if (dynamo.text("dynamo_backend") or "NO").upper() != "NO":
        yield Statement("torch_compile", True, "dynamo_config")
        if mode := dynamo.text("dynamo_mode"):
            yield Statement("torch_compile_mode", mode, "dynamo_config")


def _own_zero(table: Options) -> Iterator[Statement]:
    """What accelerate writes into a config of DeepSpeed: no optimizer, which it wraps as the job made it."""
    if stage := STAGES.get(str(table.value("zero_stage"))):
        yield Statement("sharding", stage, "deepspeed_config")
    yield offload(table.value("offload_optimizer_device") or "none", "deepspeed_config")
    yield from plain("deepspeed_config")


#: kind of a reading -> its reader
READERS: Mapping[str, Reader] = {
    "default": _default,
    "named": _named,
    "unless_off": _unless_off,
    "switch": _switch,
    "opposite": _opposite,
    "first_switch": _first_switch,
    "holds": _holds,
    "dtype": _dtype,
    "tuner": _tuner,
    "length": _length,
    "split": _split,
    "sharding": _sharding,
    "stage_of": _stage_of,
    "own_stage": _own_stage,
    "launch": _launch,
    "attention": attention,
}
