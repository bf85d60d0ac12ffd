"""FFT rows: batched transforms and fused convolutions, 1 GiB read and as much written by one user kernel; and the convolution on the CPU."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
from numba import types as nbt
from record import Measured, Row
from timing import GIB, median_seconds, milliseconds, random_rows

import devmath as dm

SIZES = (128, 256, 512, 1024, 2048, 4096)
REAL_SIZES = (256, 512, 1024, 2048, 4096)
PRECISION = {"c64": np.float32, "c128": np.float64, "f32": np.float32}

CONV = [*(("c64", n) for n in SIZES), ("c128", 512)]

#: Largest relative L2 error of any transform. The reference has more digits: complex128, and long double for complex128.
ERROR_LIMIT = {"c64": 1e-6, "c128": 1e-14, "f32": 1e-6}


def convolution(fft: dm.fft.FFT) -> dm.Kernel:
    """FFT -> * h[i] * scale -> inverse FFT."""
    ifft = fft.inverse()

    @dm.kernel
    def convolve(x, h, y, scale):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(r, s)
        for i in range(fft.elements_per_thread):
            r[i] *= h[fft.index(i)] * scale
        ifft.execute(r, s)
        if b < x.shape[0]:
            ifft.store(r, y[b])

    return convolve


def transform(fft: dm.fft.FFT) -> dm.Kernel:
    """One batched transform."""

    @dm.kernel
    def c2c(x, y):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(r, s)
        if b < x.shape[0]:
            fft.store(r, y[b])

    return c2c


def make(kind: str, dtype: str, size: int) -> tuple[dm.fft.FFT, dm.Kernel, tuple[nbt.Type, ...]]:
    """Plan, kernel and argument types of a row: what a user gets who says no more than the size."""
    if kind == "r2c":
        fft = dm.fft.FFT(size, precision=PRECISION[dtype], fft_type="r2c")
        return fft, transform(fft), (nbt.float32[:, ::1], nbt.complex64[:, ::1])
    fft = dm.fft.FFT(size, precision=PRECISION[dtype])
    c, f = {"c64": (nbt.complex64, nbt.float32), "c128": (nbt.complex128, nbt.float64)}[dtype]
    if kind == "conv":
        return fft, convolution(fft), (c[:, ::1], c[::1], c[:, ::1], f)
    return fft, transform(fft), (c[:, ::1], c[:, ::1])


def error(x: np.ndarray, y: np.ndarray, h: np.ndarray | None) -> float:
    """The largest relative L2 error of a row of *y* as the transform of *x*, or as its convolution with *h*; NaN counts as infinite."""
    if x.dtype == np.float32:
        expected = np.fft.rfft(x.astype(np.float64))
    else:
        wide = np.complex128 if x.dtype == np.complex64 else np.clongdouble
        expected = np.fft.fft(x.astype(wide))
    if h is not None:
        expected = np.fft.ifft(expected * h.astype(expected.dtype))
    worst = (np.linalg.norm(y - expected, axis=1) / np.linalg.norm(expected, axis=1)).max()
    return float(worst) if np.isfinite(worst) else float("inf")


def sample(batch: int, rng: np.random.Generator) -> np.ndarray:
    """Transforms to compare: the first and last eight and 112 between."""
    return np.unique(np.concatenate([np.arange(min(8, batch)), rng.integers(0, batch, 112), np.arange(max(0, batch - 8), batch)]))


def judged(value: float, dtype: str, found: float, **check: Any) -> Measured:
    """The row's figure, if the result is right."""
    right = found < ERROR_LIMIT[dtype]
    return Measured(value if right else None, {"rel_l2": found, "limit": ERROR_LIMIT[dtype], **check})


def measure(kind: str, dtype: str, size: int, session: Any) -> Measured:
    """GB/s read and written by the row's kernel on the GPU."""
    import cupy as cp

    fft, kernel, _ = make(kind, dtype, size)
    batch = GIB // (size * np.dtype(fft.input_type).itemsize)
    x = random_rows(cp, batch, size, fft.input_type, session.seed())
    y = cp.full((batch, fft.output_length), cp.nan, fft.output_type)
    h = cp.asarray(random_rows(np, 1, size, fft.value_type, session.seed())[0])
    args = (x, h, y, PRECISION[dtype](1 / size)) if kind == "conv" else (x, y)
    launch = kernel[fft.launch(batch)]
    launch(*args)
    rows = cp.asarray(sample(batch, np.random.default_rng(session.seed())))
    found = error(cp.asnumpy(x[rows]), cp.asnumpy(y[rows]), cp.asnumpy(h) if kind == "conv" else None)
    if not bool(cp.isfinite(y).all()):
        found = float("inf")
    ms = milliseconds(lambda: launch(*args))
    knobs = {k: fft.traits()[k] for k in ("implementation", "elements_per_thread", "ffts_per_block")}
    return judged(1e-6 * (x.nbytes + y.nbytes) / ms, dtype, found, transforms=len(rows), ms=ms, **knobs)


def measure_cpu(session: Any, batch: int = 20_000, size: int = 512) -> Measured:
    """Seconds of the convolution on the CPU target, all cores."""
    fft = dm.fft.FFT(size)
    kernel = convolution(fft)
    x, h = random_rows(np, batch, size, np.complex64, session.seed()), random_rows(np, 1, size, np.complex64, session.seed())[0]
    y = np.full_like(x, np.nan)
    launch, scale = kernel[fft.launch(batch)], np.float32(1 / size)
    _, seconds = median_seconds(lambda: launch(x, h, y, scale))
    return judged(seconds, "c64", error(x, y, h), transforms=batch, cores=len(os.sched_getaffinity(0)))


def _row(kind: str, dtype: str, size: int) -> Row:
    def peers(p: Any) -> list:
        cufft = p.python("cufft_conv.py", "--sizes", size)
        return [cufft, p.nvmath_fft({"c64": "complex64", "c128": "complex128"}[dtype])] if kind == "conv" else [cufft]

    return Row("GB/s", functools.partial(measure, kind, dtype, size), peers, lambda: [make(kind, dtype, size)[1:]])


ROWS = {
    **{f"fft.conv.{dtype}.{size}": _row("conv", dtype, size) for dtype, size in CONV},
    **{f"fft.c2c.c64.{size}": _row("c2c", "c64", size) for size in SIZES},
    **{f"fft.r2c.f32.{size}": _row("r2c", "f32", size) for size in REAL_SIZES},
    "cpu.conv.c64.512": Row("s", measure_cpu, lambda p: [p.python("cpu_baselines.py")], gpu=False),
}
