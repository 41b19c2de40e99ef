"""The time of a call: on a GPU between events, with a cold L2 cache and its launches hidden; on a CPU by its clock."""

import time

#: Seconds that the repetitions of one call may take, and how many there are at least and at most.
SECONDS, LEAST, MOST = 0.15, 7, 60
#: Below this many seconds a call is repeated at least LEAST times; a slower one three times.
SLOW = 0.4
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


def timed(torch, device, function):
    """Return the Times of a function that has run before."""
    return _on_gpu(torch, device, function) if device.startswith("cuda") else _on_cpu(function)


def _on_cpu(function):
    first = _seconds(function)
    times = [_seconds(function) for _ in range(_repeats(first))]
    return Times([1e3 * seconds for seconds in times], None)


def _seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _repeats(seconds):
    return 3 if seconds > SLOW else max(LEAST, min(MOST, int(SECONDS / max(seconds, 1e-6))))


def _on_gpu(torch, device, function):
    """Time with events behind an idle kernel, which runs while the CPU launches the call."""
    if device not in _buffers:
        _buffers[device] = torch.empty(FLUSHED, dtype=torch.int8, device=device)
    torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    launch = time.perf_counter() - began  # the call may wait for the GPU; then it is no launch time, and harmless
    torch.cuda.synchronize()
    whole = time.perf_counter() - began
    repeats = _repeats(whole)
    idle = int(CYCLES * min(2 * launch + 1e-4, 5e-3)) if launch < 0.9 * whole or whole < 2e-3 else 0
    pairs, launches = [], []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _buffers[device].zero_()
        if idle:
            torch.cuda._sleep(idle)
        start.record()
        began = time.perf_counter()
        function()
        launches.append(time.perf_counter() - began)
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
        _rates[device, dtype] = 2e3 * n**3 / max(timed(torch, device, lambda: a @ b).median, 1e-9)
    return _rates[device, dtype]
