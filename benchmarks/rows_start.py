"""What a user waits for and carries: start of a process, host time of a launch, size of a linked kernel."""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda
from numba import types as nbt
from peers import BASELINES, last_words, nvmath_environment
from record import Measured, Row
from rows_fft import transform

import devmath as dm
from devmath import arch
from devmath.codegen import link
from devmath.targets.cuda import compile_kernel

HERE = Path(__file__).resolve().parent
ROUNDS = {"warm": 5, "cold": 3}
LIMIT = 120  # seconds for one process


class ProgramError(Exception):
    """A program ended without a result."""


def first_line(command: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of a process to the arrival of its first result, which it has checked, and that result.

    The clock is this process's, so that every program is timed alike (the start that the kernel notes is off in some sandboxes).
    """
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
        watch = threading.Timer(LIMIT, process.kill)
        watch.start()
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        process.communicate()
        watch.cancel()
        errors.seek(0)
        if not line:
            raise ProgramError(f"{Path(command[1]).name}: {last_words(errors.read()) or 'no result'}")
    return seconds, json.loads(line)


def devmath_start(what: str, folder: str, *options: str) -> tuple[float, dict[str, Any]]:
    """One process of devmath with its cache in *folder*."""
    command = (sys.executable, str(HERE / "start_devmath.py"), "--what", what, *options)
    return first_line(command, {**os.environ, "DEVMATH_CACHE_DIR": folder})


@functools.cache
def nvmath_start(what: str) -> list[float]:
    """Three processes of nvmath-python after one that is not counted; it keeps nothing, so that one is like another."""
    env = nvmath_environment()
    if env is None:
        raise ProgramError("nvmath_start.py: DEVMATH_BASELINE_SITE names no folder with nvmath-python")
    command = (sys.executable, str(BASELINES / "nvmath_start.py"), "--what", what)
    return [first_line(command, env)[0] for _ in range(4)][1:]


def measure_start(what: str, state: str, session: Any) -> Measured:
    """Median seconds from process start to checked result, with an empty or a filled cache; plain numba-cuda in turn with it."""
    times: dict[str, list[float]] = {"devmath": [], "numba_cuda": [], "nvmath": []}
    notes: list[str] = []

    def baseline(name: str, seconds: Callable[[], list[float]]) -> None:
        if session.peers.enabled and not any(n.startswith(name) for n in notes):
            try:
                times[name] += seconds()
            except ProgramError as e:
                notes.append(f"{name}: {e}")

    with tempfile.TemporaryDirectory() as filled:
        _, line = devmath_start(what, filled)  # fills the cache, and Python's own caches of the modules
        for _ in range(ROUNDS[state]):
            with tempfile.TemporaryDirectory() as empty:
                seconds, line = devmath_start(what, filled if state == "warm" else empty)
            times["devmath"].append(seconds)
            baseline("numba_cuda", lambda: [first_line((sys.executable, str(BASELINES / "numba_start.py")))[0]])
    baseline("nvmath", lambda: nvmath_start(what))
    medians = {k: statistics.median(v) for k, v in times.items() if v}
    check = {**line["check"], "age_s": line["value"], "all": times}
    return Measured(medians.pop("devmath"), check, "; ".join(notes), medians)


def microseconds(launches: Mapping[str, Callable], synchronize: Callable, rounds: int = 40, count: int = 500) -> dict[str, float]:
    """Host time of one launch of each, medians over rounds in which they take turns; the queue holds *count* launches, so none waits."""
    times: dict[str, list[float]] = {name: [] for name in launches}
    for launch in launches.values():
        launch()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, launch in launches.items():
                synchronize()
                begin = time.perf_counter_ns()
                for _ in range(count):
                    launch()
                times[name].append((time.perf_counter_ns() - begin) / count / 1000)
    finally:
        gc.enable()
    synchronize()
    return {name: statistics.median(t) for name, t in times.items()}


def tiny(x, y, n):
    """Launched as devmath's and as numba-cuda's kernel."""
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i]


TINY = dm.kernel(tiny)


def measure_launch(session: Any) -> Measured:
    """Microseconds of ``kernel[1, 32](x, y, n)`` with numba's device arrays."""
    plain = cuda.jit(tiny)
    n = 32
    x, y, z = cuda.to_device(np.arange(n, dtype=np.float32)), cuda.device_array(n, np.float32), cuda.device_array(n, np.float32)
    ready, plain_ready = TINY[1, n], plain[1, n]
    launches = {
        "devmath": lambda: TINY[1, n](x, y, n),
        "numba_cuda": lambda: plain[1, n](x, z, n),
        "devmath, configured once": lambda: ready(x, y, n),
        "numba_cuda, configured once": lambda: plain_ready(x, z, n),
    }
    us = microseconds(launches, cuda.synchronize)
    right = bool((y.copy_to_host() == np.arange(n)).all())
    check = {
        "equal": right,
        "ratio": us["devmath"] / us["numba_cuda"],
        "ratio_configured_once": us["devmath, configured once"] / us["numba_cuda, configured once"],
        "us": us,
    }
    return Measured(us["devmath"] if right else None, check, baselines={"numba_cuda": us["numba_cuda"]})


_C = nbt.complex64[:, ::1]


def cubin_without_removal(kernel: dm.Kernel, types: tuple, target: arch.Arch) -> bytes:
    """The same inputs linked as numba-cuda and nvmath-python link them: unused variables stay."""
    from cuda.bindings import nvjitlink

    seen: list = []
    original = link.link

    def record(blobs, *args, **kwargs):
        seen.extend(blobs)
        return original(blobs, *args, **kwargs)

    link.link = record
    try:
        compile_kernel(kernel.py_func, types, target)
    finally:
        link.link = original
    options = ["-lto", f"-arch={target.name}", "-O3"]
    handle = nvjitlink.create(len(options), options)
    try:
        for blob in seen:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, blob.ltoir, len(blob.ltoir), blob.name)
        nvjitlink.complete(handle)
        out = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, out)
    finally:
        nvjitlink.destroy(handle)
    return bytes(out)


def measure_size(session: Any) -> Measured:
    """Bytes of the linked kernel of one forward FFT of 512 points."""
    target = arch.current() or arch.parse("sm_90a")
    kernel = transform(dm.fft.FFT(512))
    linked = kernel.linked((_C, _C), target)
    plain = {"link_without_removal": len(cubin_without_removal(kernel, (_C, _C), target))} if session.peers.enabled else {}
    return Measured(len(linked.cubin), {"arch": target.name, "one_kernel": link.entry_name(linked.cubin) == linked.name}, baselines=plain)


ROWS = {
    "launch.overhead": Row("us", measure_launch, kernels=lambda: [(TINY, (nbt.float32[::1], nbt.float32[::1], nbt.int64))]),
    "size.cubin.fft512": Row("bytes", measure_size, kernels=lambda: [(transform(dm.fft.FFT(512)), (_C, _C))], gpu=False),
    **{
        f"start.{state}.{what}": Row("s", functools.partial(measure_start, what, state))
        for state in ("warm", "cold")
        for what in ("fft", "rng")
    },
}
