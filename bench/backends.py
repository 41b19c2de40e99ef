"""Backend decisions per second on one core, and how the time grows with cases and with rules.

    python bench/backends.py [--cases N] [--rounds N] [--seed N] [--json FILE]

A seeded stream of made-up environments and workloads (TransformerEngine and torch SDPA, no two alike) goes through
`attn-doctor backends --batch`, the real program in a process of its own. Counted is processor time, because a
machine that does other things too would otherwise be measured along; wall time is shown next to it. The rulebook
twice as large has a copy of every rule, for releases and libraries that the stream does not meet.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _harness import DOCTOR, ROOT, Took, arguments, run, write_json

from doctor.rulebook.schema import read_sources

GOAL = 2500.0  # decisions per second
TIMES = 2  # rules of the large rulebook, in rules of the real one
GROWTH = 1.1  # what twice the rules may cost

TE = ("1.9.0", "1.10.0", "1.11.0", "1.12.0", "1.13.0", "2.0", "2.1", "2.2", "2.3.0", "2.4.0", "2.5.0", "2.6.0",
      "2.7.0", "2.8.0", "2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0", "2.16.0", "2.17.0",
      "2.18.0", "2.19.0", "2.20.0")  # fmt: skip
TORCH = ("2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.0", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0",
         "2.12.1", "2.13.0", "2.14.0")  # fmt: skip
CUDNN = ("8.9.0", "8.9.7", "9.0.0", "9.1.0", "9.2.1", "9.3.0", "9.5.1", "9.7.1", "9.10.2", "9.13.0", "9.15.1", "9.20.0")
FLASH = ("absent", "2.4.2", "2.5.8", "2.6.3", "2.7.3", "2.7.4.post1", "2.8.1", "2.8.3")
SM = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
MASKS = ("no_mask", "padding", "causal", "causal", "padding_causal", "causal_bottom_right",
         "padding_causal_bottom_right", "arbitrary")  # fmt: skip
HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (128, 128), (160, 160), (192, 128), (192, 192), (256, 256))


def main() -> int:
    """Measure, print, and return 1 if a goal is missed."""
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="attn-doctor-bench-") as folder:
        work = Path(folder)
        stream = [json.dumps(case) for case in cases(options.cases, random.Random(options.seed))]
        sizes = [1, len(stream) // 4, len(stream) // 2, len(stream)]
        by_size = {size: median_run(work, stream[:size], (), options.rounds) for size in sizes}
        more, rules = grown_rulebook(work / "rules")
        large = median_run(work, stream, ("--rules", str(more)), options.rounds)
    start, full = by_size[1], by_size[len(stream)]
    rate = len(stream) / full.processor
    marginal = {size: (by_size[size].processor - start.processor) / size for size in sizes[1:]}
    linear = max(marginal.values()) / min(marginal.values())
    growth = large.processor / full.processor
    for size, took in by_size.items():
        print(f"{size:>7} cases  {took.processor:>7.2f} s processor  {took.wall:>7.2f} s wall")
    print(
        f"{len(stream):>7} cases  {large.processor:>7.2f} s processor  {large.wall:>7.2f} s wall  {TIMES} × the rules"
    )
    print(f"{rate:.0f} decisions per second (goal {GOAL:.0f})")
    print(f"time per case, most over least: {linear:.2f} × from {sizes[1]} to {sizes[-1]} cases (1 is linear)")
    print(f"{rules * TIMES} rules instead of {rules}: {growth:.2f} × the time (goal {GROWTH:g})")
    report = {
        "cases": len(stream), "seed": options.seed, "rules": rules, "per_second": rate, "linear": linear,
        "growth": growth, "runs": {str(size): took._asdict() for size, took in by_size.items()},
        "large": large._asdict(),
    }  # fmt: skip
    write_json(options.json, report)
    return int(rate < GOAL or growth > GROWTH)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, cases=6000, rounds=3, seed=1)
    options = parser.parse_args()
    if options.cases < 8 or options.rounds < 1:
        parser.error("needs at least 8 cases and one round")
    return options


def cases(count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Cases of which no two are alike, in an order that mixes both libraries."""
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        facts, workload = sdpa_case(draw) if draw.random() < 0.4 else te_case(draw)
        case = {"facts": facts, "workload": workload}
        found.setdefault(json.dumps(case, sort_keys=True), case)
    return [{"id": index, **case} for index, case in enumerate(found.values())]


def te_case(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """One job of TransformerEngine."""
    facts = {
        "transformer-engine.version": draw.choice(TE), "gpu.sm": draw.choice(SM), "cudnn.version": draw.choice(CUDNN),
        "flash-attn.version": draw.choice(FLASH), "flash-attn-3.version": "absent", "flash-attn-4.version": "absent",
        "flashattn-hopper.version": "absent",
    }  # fmt: skip
    workload = common(draw, "transformer_engine")
    layout = draw.choice(("bshd", "sbhd", "thd"))
    if layout == "thd" and not workload["mask"].startswith("padding"):
        workload["mask"] = "padding_causal"
    workload["qkv_layout"] = f"{layout}_{layout}_{layout}"
    if draw.random() < 0.2:
        workload.update(cp_size=draw.choice((2, 4)), cp_comm_type=draw.choice(("p2p", "all_gather", "a2a")))
    if draw.random() < 0.1:
        facts[f"env.{draw.choice(('NVTE_FLASH_ATTN', 'NVTE_FUSED_ATTN', 'NVTE_UNFUSED_ATTN'))}"] = "0"
    return facts, workload


def sdpa_case(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """One job of torch's scaled_dot_product_attention."""
    facts = {"torch.version": draw.choice(TORCH), "gpu.sm": draw.choice(SM), "cudnn.version": draw.choice(CUDNN)}
    workload = common(draw, "torch_sdpa")
    workload["enable_gqa"] = draw.random() < 0.3
    return facts, workload


def common(draw: random.Random, framework: str) -> dict[str, Any]:
    """What both libraries get as input."""
    qk, v = draw.choice(HEAD_DIMS)
    heads = draw.choice((8, 16, 32, 64))
    length = draw.choice((128, 512, 1000, 2048, 4096, 8192, 32768))
    return {
        "framework": framework, "dtype": draw.choice(("bfloat16", "bfloat16", "float16", "float32")),
        "head_dim_qk": qk, "head_dim_v": v, "num_heads": heads, "num_kv_heads": draw.choice((heads, heads // 4)),
        "batch_size": draw.choice((1, 2, 8)), "seq_len_q": length,
        "seq_len_kv": draw.choice((length, length, length, 2 * length)), "mask": draw.choice(MASKS),
        "window": draw.choice((None, None, None, [1023, 0])), "dropout": draw.choice((0.0, 0.0, 0.1)),
        "training": draw.random() < 0.7, "deterministic": draw.random() < 0.1,
    }  # fmt: skip


def median_run(work: Path, lines: list[str], more: tuple[str, ...], rounds: int) -> Took:
    """The middle one of several runs, after one that fills the caches."""
    source, answers = work / "cases.jsonl", work / "answers.jsonl"
    source.write_text("\n".join(lines[:1]) + "\n")
    decide(work, source, answers, more)
    source.write_text("\n".join(lines) + "\n")
    runs = [decide(work, source, answers, more) for _ in range(rounds)]
    told = answers.read_text().splitlines()
    if len(told) != len(lines) or any('"error"' in line for line in told):
        raise SystemExit(f"the batch answered {len(told)} of {len(lines)} cases, or with errors")
    middle = statistics.median_low(took.processor for took in runs)
    return next(took for took in runs if took.processor == middle)


def decide(work: Path, source: Path, answers: Path, more: tuple[str, ...]) -> Took:
    """One run of the program."""
    command = [*DOCTOR, "backends", "--batch", str(source), "--output", str(answers), *more]
    done, took = run(command, work, cwd=work)
    if done.returncode:
        raise SystemExit(f"exit {done.returncode}: {done.stderr.strip()}")
    return took


def grown_rulebook(folder: Path) -> tuple[Path, int]:
    """(a folder that makes the rulebook `TIMES` as large, the rules of the real one)."""
    files = sorted(path for path in (ROOT / "rules").rglob("*.yaml") if not path.name.startswith("LOG"))
    sources = [source for path in files for source in read_sources(path)]  # `check` does not read those of logs
    rules = [source for source in sources if source.kind == "rule"]
    distributions = {
        source.library: (source.content.get("distributions") or [None])[0]
        for source in sources if source.kind == "library"
    }  # fmt: skip
    for number, source in enumerate(rules):
        rule = source.content
        for copy in range(1, TIMES):
            distribution = distributions[source.library]
            foreign = (number + copy) % 2 == 0 or not distribution  # every other copy is of a library that no one has
            library = f"nobody_{copy}" if foreign else source.library
            never = {f"nobody-{copy}.version": "present"} if foreign else {f"{distribution}.version": f">={90 + copy}"}
            made = {key: value for key, value in rule.items() if key not in ("tests", "x-base")}
            made |= {"id": f"X{copy}N{number:04d}", "name": f"copy-{copy}-of-{rule['name']}"}
            made["when"] = {**never, "all": [rule["when"]]}
            if foreign:
                made.pop("disables", None)
                made.setdefault("severity", "error")
            target = folder / library / f"{made['id']}.yaml"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(made))
    return folder, len(rules)


if __name__ == "__main__":
    sys.exit(main())
