"""Time `attn-doctor explain` on a large log, next to `grep -cE` and ripgrep with the same patterns.

    python bench/explain.py [--megabytes 1000]

The log is made up: training output with progress bars and warnings, and a traceback at its end. One core does
all the work. grep and ripgrep count the lines that match any signature; they find no cause. Then logs of one kind of
line: one line without end, different tracebacks, and one error again and again.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from doctor.rulebook.signatures import load_log_rules

SLOWEST = 1.0  # MB per second of a log of one kind of line
LIMIT_SECONDS, LIMIT_MEGABYTES = 20, 200  # per GB of log, and of memory
LINES = (
    "iter {a}: grad_norm {b:.3f} time_ms {a}", "step {a}/90000 | loss {b:.4f} | lr 3.45e-04 | {a} tok/s",
    "INFO:root:rank {a} joined group of 8", "node-{a}:17375:17375 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE",
    "Loading checkpoint shards: {a}%|####      | 3/8 [00:{a}<00:07]", "trainable params: {a} || all params: 900000000",
    "[rank{a}]: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
    "{{'loss': {b:.3f}, 'grad_norm': {b:.2f}, 'learning_rate': 1e-05, 'epoch': {b:.2f}}}",
)  # fmt: skip
END = (
    'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n    main()\n'
    "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'\n"
)


def write_log(path: Path, megabytes: int) -> None:
    """Write a log of this size."""
    rng = random.Random(7)
    block = "\n".join(rng.choice(LINES).format(a=rng.randrange(90_000), b=rng.random() * 9) for _ in range(200_000))
    with path.open("w") as stream:
        for _ in range(megabytes * 1_000_000 // len(block) + 1):
            stream.write(block + "\n")
        stream.write(END)


def of_one_kind() -> Iterator[tuple[str, str]]:
    """Yield the name and text of logs that are made of one kind of line."""
    fault = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    for size in (1, 2, 4, 8):
        yield f"line of {size} MB", f"{fault}; " * (size * 1_000_000 // len(fault))
    for count in (8_000, 100_000):
        yield (
            f"{count} tracebacks",
            "".join(
                f'Traceback (most recent call last):\n  File "/srv/app{n}/train{n % 97}.py", line {n % 900}, in f{n}\n'
                f"    call{n}()\nTypeError: object {n} has no attribute 'x{n}' in module{n % 500}\n"
                for n in range(count)
            ),
        )
    yield "50 MB the same", f"{fault}\n" * (50_000_000 // len(fault))
    yield "50 MB numbered", "".join(f"{fault} {n}\n" for n in range(50_000_000 // len(fault)))


def measure_kinds(folder: Path) -> bool:
    """Measure these logs; return whether one was read too slowly, start-up left out."""
    slow = False
    path = folder / "kind.log"
    path.write_text("nothing\n")
    measure("first start", [sys.executable, "-m", "doctor", "explain", str(path)])  # it compiles the rules
    started, _ = measure("start", [sys.executable, "-m", "doctor", "explain", str(path)])
    for name, text in of_one_kind():
        path.write_text(text)
        seconds, _ = measure(name, [sys.executable, "-m", "doctor", "explain", str(path)])
        speed = len(text) / 1e6 / max(seconds - started, 0.01)
        print(f"{'':14} {speed:7.1f} MB/s")
        slow = slow or speed < SLOWEST
    return slow


def grep_takes(pattern: str) -> bool:
    """Return whether `grep -E` reads a pattern."""
    return subprocess.run(["grep", "-cE", "--", pattern], input="", capture_output=True, text=True).returncode < 2


def for_ripgrep(pattern: str) -> str:
    """Return a pattern as ripgrep takes it: it joins all, so no group has a name, and knows few escapes."""
    unnamed = re.sub(r"\(\?P<\w+>", "(?:", pattern)
    return re.sub(r"\\(.)", lambda found: found[1] if found[1] in "\"'`/=,:!@%~ " else found[0], unnamed)


def measure(name: str, command: list[str]) -> tuple[float, float]:
    """Run a command; print and return its processor seconds and its memory in MB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode > 1:  # 0: found, 1: nothing found
        print(f"{name:14} failed: {done.stderr.strip().splitlines()[-1][:200]}", flush=True)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = after.ru_maxrss / 1024
    print(f"{name:14} {seconds:7.1f} s CPU  {memory:6.0f} MB  {' '.join(done.stdout.split())[:90]}", flush=True)
    return seconds, memory


def main() -> int:
    """Measure, and return 1 if a limit was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    size = parser.parse_args().megabytes
    patterns = sorted({item.match for rule in load_log_rules() for item in rule.signatures})
    with tempfile.TemporaryDirectory() as folder:
        log, listed = Path(folder, "train.log"), Path(folder, "patterns")
        write_log(log, size)
        # POSIX has no `(?:`, `\d` and named groups
        posix = [item.replace("(?:", "(").replace(r"\d", "[0-9]").replace(r"[^\n]", ".") for item in patterns]
        taken = [item for item in posix if "(?" not in item and grep_takes(item)]
        listed.write_text("\n".join(taken) + "\n")
        print(f"{len(patterns)} signatures, {size} MB; grep takes {len(taken)} of them")
        seconds, memory = measure("explain", [sys.executable, "-m", "doctor", "explain", str(log)])
        if shutil.which("rg"):
            plain = Path(folder, "plain")
            plain.write_text("\n".join(map(for_ripgrep, patterns)) + "\n")
            command = [
                "rg",
                "--count",
                "--no-config",
                "--no-unicode",
                "-j1",
                "--dfa-size-limit",
                "1G",
                "--regex-size-limit",
                "1G",
            ]
            measure("ripgrep", [*command, "-f", str(plain), str(log)])
        else:
            print("ripgrep        is not installed")
        sample = Path(folder, "sample.log")  # grep takes minutes for the whole
        with log.open("rb") as stream:
            sample.write_bytes(stream.read(10_000_000))
        measure("grep of 10 MB", ["grep", "-cE", "-f", str(listed), str(sample)])
        slow = measure_kinds(Path(folder))
    return int(slow or seconds > LIMIT_SECONDS * size / 1000 or memory > LIMIT_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
