"""Random number rows: Asian options and stored paths of geometric Brownian motion, and Philox words; and the option on the CPU."""

from __future__ import annotations

import math
import os
from typing import Any

import asian as ref
import numpy as np
from numba import cuda, float32, int32, uint32
from numba import types as nbt
from numba.cuda import libdevice
from record import Measured, Row
from timing import best_block, median_seconds

import devmath as dm

PATHS = 1 << 22
STORED_PATHS, COLUMNS, STORED_DRIFT, STORED_VOL = 800_000, 252, 0.003, 0.027  # column 0 is S0
WORD_THREADS, WORD_CALLS = 1 << 22, 256
HASH_SEED = 20240229  # the C++ baselines', which print the hash of the same words
LOG2E = math.log2(math.e)

rng = dm.random.Philox()


def asian_f32(exp2: Any) -> dm.Kernel:
    """Payoffs of the arithmetic Asian option; *mu* and *sigma* are in base 2, since that is what the hardware's exponential takes."""

    @dm.kernel(fastmath=True)
    def asian(out, steps, mu, sigma, s0, strike, seed):
        i = cuda.grid(1)
        if i < out.shape[0]:
            x = float32(0)
            total = float32(0)
            for t in range(int32(steps // 4)):
                z0, z1, z2, z3 = rng.normal4_fast_scaled(seed, uint32(i), uint32(t), mu, sigma)
                x += z0
                total += exp2(x)
                x += z1
                total += exp2(x)
                x += z2
                total += exp2(x)
                x += z3
                total += exp2(x)
            out[i] = max(s0 * total / float32(steps) - strike, float32(0))

    return asian


def asian_f64() -> dm.Kernel:
    """The same in double precision, with natural exponentials."""

    @dm.kernel
    def asian(out, steps, mu, sigma, s0, strike, seed):
        i = cuda.grid(1)
        if i < out.shape[0]:
            x = 0.0
            total = 0.0
            for t in range(int32(steps // 2)):
                z0, z1 = rng.normal2_f64(seed, uint32(i), uint32(t))
                x += mu + sigma * z0
                total += math.exp(x)
                x += mu + sigma * z1
                total += math.exp(x)
            out[i] = max(s0 * total / steps - strike, 0.0)

    return asian


def paths_f32(exp2: Any) -> dm.Kernel:
    """Prices, out[step, path]: neighbouring threads write neighbouring words."""

    @dm.kernel(fastmath=True)
    def paths(out, mu, sigma, s0, seed):
        i = cuda.grid(1)
        if i < out.shape[1]:
            p = uint32(i)  # an unsigned index has no wrap-around to check
            steps = int32(out.shape[0] - 1)
            x = float32(0)
            out[0, p] = s0
            for t in range(int32(steps // 4)):
                z0, z1, z2, z3 = rng.normal4_fast_scaled(seed, p, uint32(t), mu, sigma)
                k = uint32(4 * t)
                x += z0
                out[uint32(k + 1), p] = s0 * exp2(x)
                x += z1
                out[uint32(k + 2), p] = s0 * exp2(x)
                x += z2
                out[uint32(k + 3), p] = s0 * exp2(x)
                x += z3
                out[uint32(k + 4), p] = s0 * exp2(x)
            left = steps % 4
            if left > 0:
                k = uint32(steps - left)
                z0, z1, z2, z3 = rng.normal4_fast_scaled(seed, p, uint32(steps // 4), mu, sigma)
                x += z0
                out[uint32(k + 1), p] = s0 * exp2(x)
                if left > 1:
                    x += z1
                    out[uint32(k + 2), p] = s0 * exp2(x)
                if left > 2:
                    x += z2
                    out[uint32(k + 3), p] = s0 * exp2(x)

    return paths


@dm.kernel
def words(out, calls, seed):
    """The exclusive or of all words of a stream."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        folded = uint32(0)
        for t in range(int32(calls)):
            a, b, c, d = rng.bits4(seed, uint32(i), uint32(t))
            folded ^= a ^ b ^ c ^ d
        out[i] = folded


def asian_arguments(out: Any, real: Any, strike: float, seed: int) -> tuple:
    """The arguments of an Asian option's kernel; in float32 drift and volatility are in base 2."""
    unit = LOG2E if real is np.float32 else 1.0
    numbers = (ref.DRIFT * unit, ref.VOL * unit, ref.S0, strike)
    return (out, np.int32(ref.STEPS), *map(real, numbers), np.uint64(seed))


def measure_asian(kernel: dm.Kernel, real: Any, session: Any) -> Measured:
    """Steps a nanosecond on the GPU."""
    import cupy as cp

    out = cp.empty(PATHS, real)

    def payoff(strike: float, seed: int) -> np.ndarray:
        out.fill(cp.nan)
        kernel[rng.launch(PATHS)](*asian_arguments(out, real, strike, seed))
        return cp.asnumpy(out)

    right, check = ref.check(payoff, real, session.seed())
    ms, block = best_block(kernel, rng, PATHS, asian_arguments(out, real, ref.STRIKE, session.seed()))
    return Measured(1e-6 * PATHS * ref.STEPS / ms if right else None, {**check, "ms": ms, "block": block})


def measure_asian_f32(session: Any) -> Measured:
    """``mc.gbm_asian.f32``."""
    return measure_asian(asian_f32(libdevice.exp2f), np.float32, session)


def measure_asian_f64(session: Any) -> Measured:
    """``mc.gbm_asian.f64``."""
    return measure_asian(asian_f64(), np.float64, session)


def path_arguments(out: Any, seed: int) -> tuple:
    """The arguments of the stored paths' kernel; drift and volatility are in base 2."""
    return (out, *map(np.float32, (STORED_DRIFT * LOG2E, STORED_VOL * LOG2E, ref.S0)), np.uint64(seed))


def check_paths(out: Any, seed: int) -> tuple[bool, dict[str, Any]]:
    """Whether stored paths (of NumPy or CuPy) are right, and what shows it."""
    steps, few = out.shape[0] - 1, min(ref.COMPARED, out.shape[1])
    expected = ref.prices(ref.normals(seed, few, steps, np.float32), STORED_DRIFT, STORED_VOL)
    mean = ref.S0 * math.exp(steps * (STORED_DRIFT + STORED_VOL**2 / 2))
    first, last = (a if isinstance(a, np.ndarray) else a.get() for a in (out[1:, :few], out[-1]))
    found, errors = ref.deviation(first.T, expected), ref.standard_errors(last, mean)
    right = ref.within(found, np.float32) and abs(errors) < ref.STANDARD_ERRORS
    right = right and bool((out[0] == ref.S0).all()) and bool(np.isfinite(out).all())
    return right, {**found, "last_standard_errors": errors, "limits": ref.LIMITS[np.float32]}


def measure_paths(session: Any) -> Measured:
    """Milliseconds to make and store the paths on the GPU."""
    import cupy as cp

    kernel, seed = paths_f32(libdevice.exp2f), session.seed()
    out = cp.full((COLUMNS, STORED_PATHS), cp.nan, np.float32)
    kernel[rng.launch(STORED_PATHS)](*path_arguments(out, seed))
    right, check = check_paths(out, seed)
    ms, block = best_block(kernel, rng, STORED_PATHS, path_arguments(out, seed))
    return Measured(ms if right else None, {**check, "GBps": 1e-6 * out.nbytes / ms, "block": block})


def fold(out: np.ndarray) -> int:
    """The C++ baselines' hash of what ``words`` gives: ``hash * 31 + word`` modulo 2^32, word after word."""
    powers = np.full(out.size, 31, np.uint32)
    powers[0] = 1
    return int((np.multiply.accumulate(powers, dtype=np.uint32)[::-1] * out).sum(dtype=np.uint32))


def measure_words(session: Any) -> Measured:
    """Words of 32 bits a nanosecond on the GPU; they must be equal to the reference bit by bit."""
    import cupy as cp

    seed = session.seed()
    out = cp.zeros(WORD_THREADS, np.uint32)
    words[rng.launch(WORD_THREADS)](out, np.int32(WORD_CALLS), np.uint64(seed))
    expected = np.bitwise_xor.reduce(ref.philox(seed, ref.COMPARED, WORD_CALLS), axis=(1, 2))
    right = bool((cp.asnumpy(out[: ref.COMPARED]) == expected).all())
    args = (out, np.int32(WORD_CALLS), np.uint64(HASH_SEED))
    ms, block = best_block(words, rng, WORD_THREADS, args)
    rate = 4e-6 * WORD_THREADS * WORD_CALLS / ms
    return Measured(rate if right else None, {"equal": right, "streams": ref.COMPARED, "hash": fold(cp.asnumpy(out)), "block": block})


def measure_asian_cpu(session: Any, paths: int = 1 << 16) -> Measured:
    """Seconds of the same option on the CPU target, all cores."""
    kernel = asian_f32(np.exp2)
    out = np.empty(paths, np.float32)
    launch = kernel[rng.launch(paths)]

    def payoff(strike: float, seed: int) -> np.ndarray:
        out.fill(np.nan)
        launch(*asian_arguments(out, np.float32, strike, seed))
        return out.copy()

    right, check = ref.check(payoff, np.float32, session.seed())
    args = asian_arguments(out, np.float32, ref.STRIKE, session.seed())
    _, seconds = median_seconds(lambda: launch(*args))
    return Measured(seconds if right else None, {**check, "cores": len(os.sched_getaffinity(0))})


def _cpp(p: Any) -> list:
    return [p.cpp(False), p.cpp(True)]


def _cpp_and_nvmath(p: Any) -> list:
    return [*_cpp(p), p.python("nvmath_rng.py")]


def _asian_types(f: nbt.Type) -> tuple[nbt.Type, ...]:
    return (f[::1], nbt.int32, f, f, f, f, nbt.uint64)


_F, _D, _U = nbt.float32, nbt.float64, nbt.uint64
ROWS = {
    "mc.gbm_asian.f32": Row("Gstep/s", measure_asian_f32, _cpp_and_nvmath, lambda: [(asian_f32(libdevice.exp2f), _asian_types(_F))]),
    "mc.gbm_asian.f64": Row("Gstep/s", measure_asian_f64, _cpp, lambda: [(asian_f64(), _asian_types(_D))]),
    "mc.gbm_paths.f32": Row("ms", measure_paths, _cpp_and_nvmath, lambda: [(paths_f32(libdevice.exp2f), (_F[:, ::1], _F, _F, _F, _U))]),
    "rng.philox_bits": Row("Gword/s", measure_words, _cpp, lambda: [(words, (nbt.uint32[::1], nbt.int32, _U))]),
    "cpu.gbm_asian.f32": Row("s", measure_asian_cpu, lambda p: [p.python("cpu_baselines.py")], gpu=False),
}
