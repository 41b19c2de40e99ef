"""The time of a call: on a GPU between events, with a cold L2 cache and its launches hidden; on a CPU by its clock."""

import time

#: Seconds that the repetitions of one call may take, and how many there are at least and at most.
SECONDS, LEAST, MOST = 0.15, 7, 60
#: Above SLOW seconds a call is repeated three times, above SLOWEST it is run once.
SLOW, SLOWEST = 0.1, 0.6
#: Launches are hidden up to this many seconds; a longer call hides them itself.
COVERED = 5e-3
#: Bytes that are written between two repetitions: more than the L2 cache of any GPU on the market.
FLUSHED = 256 << 20
#: Clock cycles a second at most: an idle kernel of so many cycles takes a second or longer.
CYCLES = 2e9

_rates = {}
_buffers = {}


class Times:
    """The times of one call: milliseconds in rising order, and what the CPU took to start it."""

    def __init__(self, times, launch):
        self.times, self.launch = sorted(times), launch

    @property
    def median(self):
        """The median in milliseconds."""
        return _quantile(self.times, 0.5)

    @property
    def spread(self):
        """The milliseconds between the first and the third quartile."""
        return _quantile(self.times, 0.75) - _quantile(self.times, 0.25)


def _quantile(values, share):
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def timed(torch, device, function, seconds, repeats=None):
    """Return the Times of a function that has run before and took about so many seconds.

    `repeats`: how often it runs; by default as often as SECONDS allow.
    """
    repeats = repeats or _repeats(seconds)
    make_room(torch, device)
    if not device.startswith("cuda"):
        return Times([1e3 * _seconds(function) for _ in range(repeats)], None)
    return _on_gpu(torch, device, function, seconds, repeats)


def make_room(torch, device):
    """Allocate what is written between two repetitions: before a caller reads how much memory is in use."""
    if device.startswith("cuda") and device not in _buffers:
        _buffers[device] = torch.empty(FLUSHED, dtype=torch.int8, device=device)


def seconds_of(torch, device, function):
    """Return (result, seconds) of one run, with what the GPU has to finish."""
    began = time.perf_counter()
    result = function()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return result, time.perf_counter() - began


def _seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _repeats(seconds):
    if seconds > SLOW:
        return 1 if seconds > SLOWEST else 3
    return max(LEAST, min(MOST, int(SECONDS / max(seconds, 1e-6))))


def _on_gpu(torch, device, function, seconds, repeats):
    """Time with events behind an idle kernel, which runs while the CPU launches the call."""
    idle = 0
    if seconds < COVERED:
        torch.cuda.synchronize()
        idle = int(CYCLES * min(2 * _seconds(function) + 1e-4, COVERED))
    pairs, launches = [], []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _buffers[device].zero_()
        if idle:
            torch.cuda._sleep(idle)
        start.record()
        launches.append(_seconds(function))
        end.record()
        end.synchronize()
        pairs.append((start, end))
    return Times([start.elapsed_time(end) for start, end in pairs], 1e3 * _quantile(sorted(launches), 0.5))


def matrix_rate(torch, device, dtype):
    """Return the operations per second of a large matrix product in this dtype, on numbers drawn at random."""
    if (device, dtype) not in _rates:
        n = 8192 if device.startswith("cuda") else 512
        a, b = (torch.randn(n, n, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
        for _ in range(3):
            a @ b
        _, seconds = seconds_of(torch, device, lambda: a @ b)
        _rates[device, dtype] = 2e3 * n**3 / max(timed(torch, device, lambda: a @ b, seconds).median, 1e-9)
    return _rates[device, dtype]
