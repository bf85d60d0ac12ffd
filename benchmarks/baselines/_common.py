"""What the Python baselines share: result lines, event timing, the age of the process, the spectral multiplier."""

import json
import os
import statistics
import time

WARM_UP = 0.3  # seconds: clocks rise under load, and were 8 % lower without it

_LOADED = time.clock_gettime(time.CLOCK_BOOTTIME)


def emit(name, value, unit, check):
    """Print one result as a line of JSON."""
    print(json.dumps({"name": name, "value": value, "unit": unit, "check": check}), flush=True)


def median_ms(launch, event, elapsed_ms, before=lambda: None, repetitions=9, launches=4):
    """Milliseconds of one `launch()` between device events: the median of `repetitions`, after `WARM_UP` seconds of the same.

    `event()` makes an event and `elapsed_ms(start, stop)` reads two of them, so that CuPy's and numba's both serve.
    `before()` runs ahead of each repetition, outside the timed region.
    """
    start, stop = event(), event()

    def once():
        before()
        start.record()
        for _ in range(launches):
            launch()
        stop.record()
        stop.synchronize()
        return elapsed_ms(start, stop) / launches

    once()  # the first call may compile
    warm = time.monotonic() + WARM_UP
    while time.monotonic() < warm:
        once()
    return statistics.median(once() for _ in range(repetitions))


def median_seconds(work, repetitions=9):
    """The result of the last call of `work()` and the median time of `repetitions` of them, after a warm-up."""
    times = []
    for _ in range(repetitions + 1):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return result, statistics.median(times[1:])


def process_age():
    """Seconds since this process started, and the share of them before this module was loaded.

    The kernel counts the start in clock ticks, 10 ms as a rule. Where that count makes no sense (some sandboxes
    have another origin for it) the age is taken from the load of this module and the share is None.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    started = ticks / os.sysconf("SC_CLK_TCK")
    before_load = _LOADED - started
    if -0.02 <= before_load < 60:
        return now - started, before_load
    return now - _LOADED, None


def random_rows(xp, rows, size, dtype, seed=1):
    """Normal rows, real or complex, made by the namespace `xp` (NumPy or CuPy)."""
    dtype = xp.dtype(dtype)
    real = {8: xp.float32, 16: xp.float64}[dtype.itemsize] if dtype.kind == "c" else dtype
    rng = xp.random.default_rng(seed)
    return rng.standard_normal((rows, size * (2 if dtype.kind == "c" else 1)), dtype=real).view(dtype)


def transfer_function(xp, size, dtype):
    """A complex H of unit size with a different phase at each element."""
    return xp.exp(1j * xp.arange(size) ** 2 * (0.7 / size)).astype(dtype)


def relative_error(got, expected):
    """The largest deviation over the largest expected magnitude."""
    return float(abs(got - expected).max() / abs(expected).max())
