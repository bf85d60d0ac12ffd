"""What the Monte Carlo rows are checked against: closed forms, an independent price, and the same paths in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from devmath.random.philox_math import make_words

S0 = STRIKE = 100.0
STEPS, DRIFT, VOL = 252, 1e-4, 0.01  # drift and volatility of the logarithm, a step

#: How far a mean may be from its reference in standard errors; and paths from the same paths in double precision: relative L2 of all, and
#: the largest relative error of one, which in float32 is left room for the few normals whose radius is near 0, where it has few digits.
STANDARD_ERRORS = 4
LIMITS = {np.float32: {"rel_l2": 1e-5, "worst": 1e-4}, np.float64: {"rel_l2": 1e-13, "worst": 1e-12}}
#: Paths that are compared one by one.
COMPARED = 4096

_words = make_words(10)


def philox(seed: int, streams: int, calls: int) -> np.ndarray:
    """The words of the first streams and calls, (streams, calls, 4)."""
    stream, step = np.arange(streams, dtype=np.uint64)[:, None], np.arange(calls, dtype=np.uint64)[None, :]
    return np.stack(np.broadcast_arrays(*_words(np.uint64(seed), stream, step)), axis=-1)


def normals(seed: int, streams: int, count: int, real: Any) -> np.ndarray:
    """The first standard normals of the first streams in float64, from float32's (32 bits each) or float64's (64 bits) uniforms."""
    if real is np.float32:
        u = uniform(philox(seed, streams, -(-count // 4)).astype(np.float32)).astype(np.float64)
    else:
        w = philox(seed, streams, -(-count // 2))
        u = (w[..., ::2] ^ (w[..., 1::2] << np.uint64(21))) * 2.0**-53 + 2.0**-54
    radius, angle = np.sqrt(-2 * np.log(u[..., ::2])), 2 * math.pi * u[..., 1::2]
    pairs = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=-1)
    return pairs.reshape(streams, -1)[:, :count]


def uniform(words: np.ndarray) -> np.ndarray:
    """cuRAND's float32 uniforms of words that were rounded to float32."""
    return words * np.float32(2.0**-32) + np.float32(2.0**-33)


def prices(z: np.ndarray, drift: float, vol: float) -> np.ndarray:
    """Prices after each step."""
    return S0 * np.exp(np.cumsum(drift + vol * z, axis=1))


def expected_average() -> float:
    """The mean of the average price, in closed form."""
    growth = DRIFT + VOL**2 / 2
    return S0 * float(np.exp(growth * np.arange(1, STEPS + 1)).mean())


def reference_price(rng: np.random.Generator, paths: int = 1 << 15) -> tuple[float, float]:
    """The option's mean payoff and its standard error from NumPy's generator, with the geometric average as control variate.

    Source: Kemna and Vorst, "A pricing method for options based on average asset values", J. Banking & Finance 14 (1990).
    """
    x, average, logs = np.zeros(paths), np.zeros(paths), np.zeros(paths)
    for _ in range(STEPS):
        x += DRIFT + VOL * rng.standard_normal(paths)
        average += np.exp(x)
        logs += x
    gap = np.maximum(S0 * average / STEPS - STRIKE, 0) - np.maximum(S0 * np.exp(logs / STEPS) - STRIKE, 0)
    mean = DRIFT * (STEPS + 1) / 2
    deviation = VOL * math.sqrt((STEPS + 1) * (2 * STEPS + 1) / (6 * STEPS))
    d2 = (mean + math.log(S0 / STRIKE)) / deviation
    geometric = S0 * math.exp(mean + deviation**2 / 2) * _cdf(d2 + deviation) - STRIKE * _cdf(d2)
    return geometric + float(gap.mean()), float(gap.std() / math.sqrt(paths))


def _cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def deviation(got: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Relative L2 error, and the largest relative error; NaN counts as infinite."""
    gap = got - expected
    found = {"rel_l2": float(np.linalg.norm(gap) / np.linalg.norm(expected)), "worst": float(abs(gap / expected).max())}
    return {k: v if math.isfinite(v) else math.inf for k, v in found.items()}


def within(found: dict[str, float], real: Any) -> bool:
    """Whether a deviation is within the limits of a type."""
    return all(found[k] < limit for k, limit in LIMITS[real].items())


def standard_errors(values: np.ndarray, expected: float, error: float = 0.0) -> float:
    """How far the mean of *values* is from *expected* (itself known to *error*), in standard errors."""
    values = values.astype(np.float64)
    z = (values.mean() - expected) / math.hypot(values.std() / math.sqrt(values.size), error)
    return float(z) if math.isfinite(z) else math.inf


def check(payoff: Callable[[float, int], np.ndarray], real: Any, seed: int) -> tuple[bool, dict[str, Any]]:
    """Whether ``payoff(strike, seed)``, one for each path, is right, and what shows it.

    With strike 0 the payoff is the average price: its mean is known, and so is each path's value for a seed.
    """
    average, paid = payoff(0.0, seed), payoff(STRIKE, seed)
    few = min(COMPARED, average.size)
    same = prices(normals(seed, few, STEPS, real), DRIFT, VOL).mean(axis=1)
    price, price_error = reference_price(np.random.default_rng(seed))
    means = {
        "average_standard_errors": standard_errors(average, expected_average()),
        "payoff_standard_errors": standard_errors(paid, price, price_error),
    }
    # A payoff can be 0: the strike is put back where that changes nothing else.
    paths = {"average": deviation(average[:few], same), "payoff": deviation(paid[:few] + STRIKE, np.maximum(same, STRIKE))}
    right = all(within(d, real) for d in paths.values()) and all(abs(z) < STANDARD_ERRORS for z in means.values())
    mean = float(paid.mean(dtype=np.float64))
    return right, {**paths, **means, "mean": mean, "reference": price, "paths": paid.size, "limits": LIMITS[real]}
