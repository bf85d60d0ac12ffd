"""Which sizes a plan can have, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from .. import arch as _arch
from ..arch import Arch
from ..codegen import mathdx
from ..errors import LaunchError, PlanError
from . import stockham
from .cufftdx import ANY_SIZE, LARGE, OWN, THREAD_LIMIT

if TYPE_CHECKING:
    from .plan import FFT

ELSEWHERE = "a larger transform takes several kernels, see 'Too large for one block' in docs/fft.md"
_FOLDED_LIMIT = {"float16": 65536, "float32": 65536, "float64": 32768}
#: The architecture that has the most shared memory.
ROOMIEST = max(map(_arch.parse, _arch.supported()), key=lambda a: a.shared_limit)
_FREE = {"elements_per_thread": None, "ffts_per_block": None, "transposition": None, "arch": None}


def check(plan: FFT) -> None:
    """Raise PlanError for a size that no architecture has, with the nearest that one has."""
    n, real, folded = plan.size, np.dtype(plan.precision).name, _folded(plan)
    if n > (most := limit(plan)):
        where = None if plan.fields["arch"] is None else _arch.parse(plan.fields["arch"])
        if where is not None and mathdx.find_library() is not None:
            most = largest(plan.replace(size=most, **_FREE), where) or most
        raise PlanError(too_large(plan, most, where))
    if plan.execution == "thread":
        if n < 1:
            raise PlanError(f"size must be 1 to {most} for {real} with execution='thread', got {n} (nearest: 1)")
        if folded and (n % 2 or n < 4):
            near = max(4, n + 1)
            raise PlanError(f"size must be even and at least 4 with execution='thread' and real_mode='folded', got {n} (nearest: {near})")
    elif folded:
        if n & (n - 1) or n < 4:
            near = min(max(4, 1 << max(0, round(float(np.log2(max(n, 1)))))), most)
            raise PlanError(f"size must be a power of two, 4 to {most}, for {real} with real_mode='folded', got {n} (nearest: {near})")
    elif not (1 <= n <= ANY_SIZE or n in LARGE[real]):
        nearest = min((1, ANY_SIZE, *LARGE[real]), key=lambda v: abs(v - n))
        raise PlanError(
            f"size must be 1 to {ANY_SIZE} or one of {', '.join(map(str, LARGE[real]))} for {real} with execution='block', "
            f"got {n} (nearest: {nearest})"
        )


def _folded(plan: FFT) -> bool:
    return plan.fields["real_mode"] == "folded"


def limit(plan: FFT) -> int:
    """The largest size of plans of a form, on the architecture that has the most shared memory."""
    real, folded = np.dtype(plan.precision).name, _folded(plan)
    if plan.execution == "thread":
        return THREAD_LIMIT[real] * (2 if folded and plan.complex_layout != "full" else 1)
    most = _FOLDED_LIMIT[real] if folded else LARGE[real][-1]
    if plan.api == "shared":
        whole = plan.fft_type == "c2c" or plan.complex_layout == "full"
        fits = ROOMIEST.shared_limit // np.dtype(plan.value_type).itemsize  # complex elements
        return next(n for n in (_powers(most) if folded else reversed(LARGE[real])) if (n if whole else n // 2 + 1) <= fits)
    if plan.fields["implementation"] != "devmath":
        return most
    form = stockham.Transform(most, real, plan.fft_type != "c2c", plan.fields["thread_layout"] == "transposed")
    return next(n for n in _powers(most) if form._replace(size=n).fits(None, None, ROOMIEST))


def _powers(most: int) -> Iterable[int]:
    return (1 << p for p in range(most.bit_length() - 1, 0, -1))


def _candidates(plan: FFT) -> Iterable[int]:
    """Sizes of plans of a form, the largest first: where shared memory is short, only sizes with a transform of their own are above 4096."""
    if _folded(plan) or plan.fields["implementation"] == "devmath":
        return _powers(limit(plan))
    return (n for n in reversed(OWN[np.dtype(plan.precision).name]) if n >= ANY_SIZE // 2)


def largest(plan: FFT, where: Arch) -> int | None:
    """The largest size of a plan of this form on an architecture; ``None`` where it is not found, or the size is not what is wrong."""
    if plan.execution == "thread":
        return None
    if plan.size <= ANY_SIZE // 2 and plan.fields["implementation"] != "devmath":
        return None
    for n in _candidates(plan):
        try:
            plan.replace(size=n, **_FREE).traits_on(where)
        except (PlanError, LaunchError):
            continue
        return n
    return None


def too_large(plan: FFT, most: int, where: Arch | None, asked: int | None = None) -> str:
    """What is said of a size above the largest, *most*: of the plan's, or of one that was *asked* for as ``n``."""
    n, real = asked or plan.size, np.dtype(plan.precision).name
    fields = [f"{name}={plan.fields[name]!r}" for name in ("execution", "real_mode", "api", "implementation") if _said(plan, name)]
    form = f"{real} with {' and '.join(fields)}{f' on {where}' if where else ''}"
    at_most = f"{'n' if asked else 'size'} must be at most {most} for {form}, got {n} (nearest: {most})"
    if plan.execution == "thread":
        block = LARGE[real][-1]
        if n > block:
            return f"{at_most}: it is too large for one thread, and for one block, which takes at most {block} points; {ELSEWHERE}"
        return f"{at_most}: it is too large for one thread; execution='block' takes sizes up to {block}"
    memory = f", which has at most {where.shared_limit} bytes of shared memory there" if where else ""
    others = ""
    if plan.fft_type != "c2c" and not _folded(plan) and n <= _FOLDED_LIMIT[real] and not where:
        others = f"real_mode='folded' takes powers of two up to {_FOLDED_LIMIT[real]}; "
    if plan.fields["implementation"] == "devmath" and n <= LARGE[real][-1] and not where:
        others = f"implementation='cufftdx' takes sizes up to {LARGE[real][-1]}; "
    return f"{at_most}: it is too large for one block{memory}; {others}{ELSEWHERE}"


def _said(plan: FFT, name: str) -> bool:
    """Whether a field, other than as it is by default, has a say in what is the largest size."""
    return name == "execution" or plan.fields[name] not in (None, "normal", "registers", "cufftdx")
