"""``devmath demo``: price three options, say where it ran, and check the prices.

The job of ``examples/option_pricing.py`` with its numbers written in, so that an installed devmath can show that it works with nothing else
around it: no data file, no QuantLib, no CuPy. The kernel is that example's; the tests hold the two, and the references, together.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import cuda

from . import arch
from .errors import DevmathError
from .kernel import kernel
from .random import Philox

DAYS = 252
F = np.float32
rng = Philox()

#: Google's close of 2008-10-14, the volatility a year of its closes since 2004-08-19, and a rate a year.
SPOT, SIGMA, RATE = 362.71, 0.3748, 0.02
STRIKE, BARRIER = SPOT, 1.5 * SPOT
#: What the calls are worth, and by whom.
REFERENCES = (
    ("European", 57.0503, "Black-Scholes"),
    ("Asian, daily mean", 32.7108, "QuantLib 1.44, Sobol paths with control"),
    ("up-and-out, daily", 13.6158, "quadrature day by day"),
)
#: Standard errors between a price and its reference that pass: one run in 500,000 fails by chance.
ALLOWED = 5.0


@cuda.jit(device=True)
def one_close(x, total, high, spot):
    """Add the close at log return ``x`` to a path's sum and maximum."""
    close = spot * math.exp(x)
    return total + close, max(high, close)


@kernel(fastmath=True)
def payoffs_of_paths(payoffs, spot, strike, barrier, drift, vol, seed):
    """Column i of ``payoffs`` (3, n): what path i pays on the European, Asian and barrier call."""
    path = cuda.grid(1)
    if path < payoffs.shape[1]:
        x, total, high = F(0), F(0), F(0)
        for step in range(DAYS // 4):
            a, b, c, d = rng.normal4_fast_scaled(seed, path, step, drift, vol)
            x += a
            total, high = one_close(x, total, high, spot)
            x += b
            total, high = one_close(x, total, high, spot)
            x += c
            total, high = one_close(x, total, high, spot)
            x += d
            total, high = one_close(x, total, high, spot)
        european = max(spot * math.exp(x) - strike, F(0))
        payoffs[0, path] = european
        payoffs[1, path] = max(total / F(DAYS) - strike, F(0))
        payoffs[2, path] = european if high < barrier else F(0)


def simulate(payoffs: Any, seed: int) -> None:
    """Fill ``payoffs`` (3, n), a NumPy or a device array, undiscounted."""
    drift, vol = F((RATE - SIGMA**2 / 2) / DAYS), F(SIGMA / math.sqrt(DAYS))
    payoffs_of_paths[rng.launch(payoffs.shape[1])](payoffs, F(SPOT), F(STRIKE), F(BARRIER), drift, vol, seed)


def _timed(payoffs: Any, seed: int, gpu: bool) -> float:
    start = time.perf_counter()
    simulate(payoffs, seed)
    if gpu:
        cuda.synchronize()
    return time.perf_counter() - start


def _device(gpu: bool) -> str:
    if not gpu:
        return f"the CPU, {numba.get_num_threads()} threads"
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    return f"{name}, compute capability {'.'.join(map(str, device.compute_capability))}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; 0 if every price is where it should be, 1 if not or if it cannot run."""
    parser = argparse.ArgumentParser(prog="devmath demo", description="Price three options in one kernel, and say where it ran.")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="where to run (default: the GPU if there is one)")
    parser.add_argument("--paths", type=int, help="number of paths (default: 2^17 on the CPU, 2^22 on the GPU)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if args.paths is not None and args.paths < 2:
        parser.error(f"--paths must be at least 2, got {args.paths}")
    found = arch.device_count() > 0 and cuda.is_available()
    if args.device == "gpu" and not found:
        parser.exit(1, "devmath demo: no CUDA device was found; --device cpu runs it here\n")
    gpu = found and args.device != "cpu"
    paths = args.paths or (2**22 if gpu else 2**17)
    payoffs: Any = cuda.device_array((3, paths), F) if gpu else np.empty((3, paths), F)
    try:
        first = _timed(payoffs, args.seed, gpu)  # with compilation, or the compiled kernel's way from the cache
        seconds = _timed(payoffs, args.seed, gpu)
    except DevmathError as e:
        parser.exit(1, f"devmath demo: {e}\n")
    values = (payoffs.copy_to_host() if gpu else payoffs) * F(math.exp(-RATE))
    prices, errors = values.mean(axis=1, dtype=np.float64), values.std(axis=1, dtype=np.float64) / math.sqrt(paths)

    print(f"one-year calls on Google at the money: {SPOT} US$, volatility {SIGMA}, rate {RATE:.0%}")
    print(f"ran on {_device(gpu)}")
    speed = paths * DAYS / seconds / 1e9
    print(f"{paths:,} paths of {DAYS} days in {seconds:.3g} s, {speed:.3g} Gstep/s (the first call took {first:.2g} s)\n")
    print(f"{'call':<18} {'price':>8} {'std err':>8} {'reference':>10} {'off by':>9}")
    distances = [(p - r) / e if e else math.inf for (_, r, _), p, e in zip(REFERENCES, prices, errors, strict=True)]
    for (name, reference, by), price, error, off in zip(REFERENCES, prices, errors, distances, strict=True):
        print(f"{name:<18} {price:8.4f} {error:8.4f} {reference:10.4f} {off:+6.1f} se  {by}")
    if max(map(abs, distances)) > ALLOWED:
        print(f"\na price is more than {ALLOWED:g} standard errors from its reference")
        return 1
    return 0
