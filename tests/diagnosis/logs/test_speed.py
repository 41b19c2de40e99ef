"""Logs of one kind of line without end: explained at 1 MB/s and more, and linear in their length."""

import random
import time

import pytest

ERRORS = ("RuntimeError", "ValueError", "AttributeError", "ImportError", "TypeError")


def tracebacks(count):
    rng = random.Random(1)
    return "".join(
        f'Traceback (most recent call last):\n  File "/srv/app{n}/train{n % 97}.py", line {n % 900 + 1}, in func{n}\n'
        f"    call{n}()\n{rng.choice(ERRORS)}: object {n} has no attribute 'x{n}' in mod{rng.randrange(500)}\n"
        for n in range(count)
    )


def one_line(megabytes):
    unit = "RuntimeError: CUDA error: no kernel image is available for execution on the device; "
    return unit * (megabytes * 1_000_000 // len(unit)) + "\n"


def seconds(explain, log):
    start = time.process_time()
    explain(log)
    return time.process_time() - start


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(lambda: one_line(4), id="one line"),
        pytest.param(lambda: "".join(f"step {n} error: loss {n}; " for n in range(60_000)), id="one line of others"),
        pytest.param(lambda: tracebacks(16_000), id="tracebacks"),
        pytest.param(lambda: "RuntimeError: CUDA error: an illegal access\n" * 100_000, id="one error"),
        pytest.param(
            lambda: "".join(f"RuntimeError: CUDA error: an illegal access at {n}\n" for n in range(60_000)),
            id="one error with a number",
        ),
    ],
)
def test_a_log_of_one_kind_of_line_is_read_at_a_megabyte_a_second(explain, log):
    explain("RuntimeError: first\n")  # what is compiled once
    text = log()
    assert seconds(explain, text) < 3 * len(text) / 1_000_000  # three times: other tests share the processor


def test_the_time_grows_with_the_length_only(explain):
    explain("RuntimeError: first\n")
    assert seconds(explain, tracebacks(24_000)) < 6 * max(seconds(explain, tracebacks(8_000)), 0.5)
