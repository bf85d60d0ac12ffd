"""Plain numba-cuda: a fresh process to its first checked result, and the host time of one launch of a tiny kernel."""

from _common import emit, process_age  # first: it notes the time

# isort: split
import gc
import statistics
import time

import numpy as np
from numba import cuda

N = 1 << 20
BATCHES, LAUNCHES = 20, 1000
FLUSH = 500  # fewer launches than the queue holds, so that none waits for the device


@cuda.jit
def axpy(x, y, a):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


@cuda.jit
def tiny(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i]


def first_result():
    x = np.linspace(-1, 1, N, dtype=np.float32)
    y = np.ones(N, np.float32)
    device_y = cuda.to_device(y)
    axpy[N // 256, 256](cuda.to_device(x), device_y, np.float32(0.5))
    if not np.allclose(device_y.copy_to_host(), y + np.float32(0.5) * x, rtol=1e-6):
        raise SystemExit("axpy: wrong result")
    age, before = process_age()
    emit("start:numba_cuda", age, "s", {"correct": True, "before_script_s": before})


def microseconds(launch):
    """Host time of `launch()`, the median over batches; the device is waited for outside the timed stretches."""
    launch()
    cuda.synchronize()
    gc.disable()
    batches = []
    for _ in range(BATCHES):
        spent = 0
        for _ in range(LAUNCHES // FLUSH):
            begin = time.perf_counter_ns()
            for _ in range(FLUSH):
                launch()
            spent += time.perf_counter_ns() - begin
            cuda.synchronize()
        batches.append(spent / LAUNCHES / 1000)
    gc.enable()
    return statistics.median(batches)


def launch_overhead():
    x, y = cuda.to_device(np.arange(32, dtype=np.float32)), cuda.to_device(np.zeros(32, np.float32))
    n = 32
    configured = tiny[1, 32]
    value = microseconds(lambda: tiny[1, 32](x, y, n))
    check = {
        "correct": bool((y.copy_to_host() == np.arange(32)).all()),
        "configured_once": microseconds(lambda: configured(x, y, n)),
        "empty_call": microseconds(lambda: None),
    }
    emit("launch.overhead:numba_cuda", value, "us", check)


if __name__ == "__main__":
    first_result()
    launch_overhead()
