"""The CPU: SciPy's FFT convolution on all cores, and NumPy's vectorised Asian option."""

import os

import numpy as np
import scipy.fft
from _common import emit, median_seconds, random_rows, relative_error, transfer_function

ROWS, SIZE = 20_000, 512
PATHS, STEPS = 1 << 16, 252
DRIFT, VOL = np.float32(1e-4), np.float32(0.01)
S0, STRIKE = np.float32(100), np.float32(100)


def convolution():
    workers = os.cpu_count()
    x = random_rows(np, ROWS, SIZE, np.complex64)
    h = transfer_function(np, SIZE, np.complex64)

    def convolve():
        spectrum = scipy.fft.fft(x, workers=workers)
        spectrum *= h
        return scipy.fft.ifft(spectrum, workers=workers, overwrite_x=True)

    y, seconds = median_seconds(convolve)
    expected = np.fft.ifft(np.fft.fft(x[:3].astype(np.complex128)) * h)
    check = {"max_rel_err": relative_error(y[:3], expected), "workers": workers}
    emit("cpu.conv.c64.512:scipy", seconds, "s", check)


def asian_by_steps():
    rng = np.random.default_rng(1)
    x, total = np.zeros(PATHS, np.float32), np.zeros(PATHS, np.float32)
    z = np.empty(PATHS, np.float32)
    for _ in range(STEPS):
        rng.standard_normal(dtype=np.float32, out=z)
        z *= VOL
        z += DRIFT
        x += z
        total += np.exp(x, out=z)
    return np.maximum(S0 / np.float32(STEPS) * total - STRIKE, 0)


def asian_whole():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((PATHS, STEPS), dtype=np.float32)
    x *= VOL
    x += DRIFT
    np.cumsum(x, axis=1, out=x)
    np.exp(x, out=x)
    return np.maximum(S0 * x.mean(axis=1) - STRIKE, 0)


def asian():
    forms = {"steps": asian_by_steps, "whole_array": asian_whole}
    results = {form: median_seconds(work) for form, work in forms.items()}
    best = min(results, key=lambda form: results[form][1])
    payoff, seconds = results[best]
    check = {"mean": float(payoff.mean()), "std": float(payoff.std()), "form": best}
    emit("cpu.gbm_asian.f32:numpy", seconds, "s", check | {form: t for form, (_, t) in results.items()})


if __name__ == "__main__":
    convolution()
    asian()
