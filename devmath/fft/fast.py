"""The next size that is fast."""

from __future__ import annotations

import bisect
import functools
from typing import Any

import numpy as np

from .. import arch as _arch
from .. import types
from ..errors import PlanError
from . import cufftdx, sizes
from .plan import FFT, _integer

_PRIMES = (2, 3, 5, 7)


def next_fast_size(
    n: int,
    precision: Any = np.float32,
    fft_type: str = "c2c",
    execution: str = "block",
    complex_layout: str = "natural",
    real_mode: str | None = None,
    implementation: str | None = None,
    arch: str | None = None,
) -> int:
    """The size to pad *n* points to: the smallest from there on that is a product of 2, 3, 5 and 7 and has a transform of its own.

    Of real transforms, a power of two comes first where it is done folded, for then it is half the work of any other size up to it. The largest size
    of a kind belongs to the fast ones whatever it is. As ``scipy.fft.next_fast_len``, with the limits of one block or one thread.

    Parameters
    ----------
    n : points that there are, at least 1.
    precision, fft_type, execution, complex_layout, real_mode, implementation, arch : as of :class:`FFT`; with ``arch`` no size is larger than that
        architecture takes (without libmathdx installed: than any does).

    Raises
    ------
    PlanError (a ValueError) where n is too large for one block, or for one thread, with the largest size.

    >>> next_fast_size(1100), next_fast_size(1100, fft_type="r2c")
    (1296, 2048)
    """
    real = np.dtype(types.precision(precision, valid=("float16", "float32", "float64")).numpy)
    n = _integer("n", n)
    if n < 1:
        raise PlanError(f"n must be at least 1, got {n}")
    where = None if arch is None else _arch.parse(arch)
    found = _fast(real, fft_type, execution, complex_layout, real_mode, implementation, where and where.name)
    if n > found[-1]:
        plan = FFT(found[-1], real, fft_type, None, execution, complex_layout, real_mode, implementation=implementation)
        raise PlanError(sizes.too_large(plan, found[-1], where, n))
    return found[bisect.bisect_left(found, n)]


@functools.lru_cache(maxsize=64)
def _fast(
    real: np.dtype, fft_type: str, execution: str, complex_layout: str, real_mode: str | None, implementation: str | None, arch: str | None
) -> list[int]:
    """All fast sizes of plans with these fields, in order."""
    FFT(8, real, fft_type, None, execution, complex_layout, real_mode, implementation=implementation)  # says what is wrong with the fields
    where = _arch.parse(arch) if arch else sizes.ROOMIEST
    cost: dict[int, tuple[int, int]] = {}
    own = range(1, 2 * cufftdx.THREAD_LIMIT[real.name] + 1) if execution == "thread" else (*cufftdx.OWN[real.name], 1 << 16)
    for size in own:
        try:
            plan = FFT(size, real, fft_type, None, execution, complex_layout, real_mode, implementation=implementation, arch=arch)
        except ValueError:  # not of this kind, or not on this architecture
            continue
        cost[size] = (size // 2 if plan.folds(where) else size, size)
    best = sorted(size for size in cost if _smooth(size) or size == max(cost))
    return [size for size in best if cost[size] == min(cost[m] for m in best if m >= size)]


def _smooth(n: int) -> bool:
    for prime in _PRIMES:
        while n % prime == 0:
            n //= prime
    return n == 1
