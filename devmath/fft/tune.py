"""What there is to tune about an FFT plan: candidates, and the kernels whose time decides (:mod:`devmath.tuning`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types as nbt

from ..arch import Arch
from ..errors import LaunchError, PlanError, TuningError
from ..kernel import Kernel, kernel
from .defaults import IMPLEMENTATIONS
from .plan import FFT

#: Kernels of devmath's own that can be measured.
PATTERNS = ("convolution", "transform")
#: The fields that are left to measurement where a plan leaves them open.
KNOBS = ("implementation", "real_mode", "elements_per_thread", "ffts_per_block")

_TURNED_FFTS = (4, 8, 16, 32)
_FFTS = (1, 2, 4, 8, 16, 32, 64, 128)
_FEW = 3  # pairs that cuFFTDx recommends, where it leaves something to try
_MOST_WORDS = 64  # 32-bit words of data a thread: more leave too few registers for the arithmetic
_MOST_THREADS = 256  # of a block with several transforms
#: Rows with which a candidate's results are checked: two of the largest blocks and some to spare.
_CHECKED = 133
#: Relative L2 error of a row beyond which a result is wrong. It is to find broken code, not to judge rounding.
_WRONG = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}


# -- candidates --------------------------------------------------------------------------------------------------------


def common(plan: FFT, pattern: object) -> FFT:
    """The plan whose measurement serves this one too: both directions have the same knobs, so that kernels can use them together."""
    if plan.fft_type == "c2c" or pattern == "convolution":
        return plan if plan.direction == "forward" else plan.inverse()
    return plan


def knobs_of(plan: FFT, arch: Arch) -> dict[str, Any]:
    """The knobs with which a plan runs on an architecture, whether it names them or not."""
    return {name: plan.traits(arch)[name] for name in KNOBS}


def candidates(plan: FFT, arch: Arch, real_modes: bool = True) -> list[FFT]:
    """Plans with all knobs set that are worth measuring: of each implementation that serves, the pairs that it has on the architecture, less
    those that have too many registers or threads to be fast. *real_modes*: with cuFFTDx's folded mode, which is half the work, where the plan
    leaves it open."""
    if plan.execution == "thread" or plan.size == 1:
        return []
    found: list[FFT] = []
    for implementation in IMPLEMENTATIONS:
        if plan.fields["implementation"] not in (None, implementation):
            continue
        base = None
        if real_modes and implementation == "cufftdx" and plan.fft_type != "c2c" and plan.fields["real_mode"] is None:
            base = _made(plan, arch, implementation=implementation, real_mode="folded", elements_per_thread=None)
        base = base or _made(plan, arch, implementation=implementation, elements_per_thread=None)
        if base is not None:
            found += _of(base, plan, arch)
    return found


def _made(plan: FFT, arch: Arch, **changes: Any) -> FFT | None:
    """The plan with other fields, if there is one on the architecture."""
    try:
        made = plan.replace(**changes)
        made.traits(arch)
    except (PlanError, LaunchError):
        return None
    return made


def _of(base: FFT, plan: FFT, arch: Arch) -> list[FFT]:
    """Candidates of one implementation."""
    own = base.fields["implementation"] == "devmath"
    pairs = base.replace(ffts_per_block=None).valid_knobs(arch)
    if not own and plan.thread_layout == "transposed":
        pairs = [(e, f) for e in sorted({e for e, _ in pairs}) for f in _TURNED_FFTS]
    elif not own and len(pairs) <= _FEW:
        pairs = sorted({*pairs, *((e, f) for e, most in pairs for f in _FFTS if f <= most)})
    asked = plan.fields["elements_per_thread"], plan.fields["ffts_per_block"]
    pairs = [p for p in pairs if all(a in (None, k) for a, k in zip(asked, p, strict=True))]
    light = [p for p in pairs if _words(plan, p[0]) <= _MOST_WORDS] or pairs
    some = [p for p in light if p[0] >= 4 or plan.size < 8] or light
    made = [_made(base, arch, elements_per_thread=e, ffts_per_block=f) for e, f in some]
    found = [m for m in made if m is not None]
    return [m for m in found if not own or _sensible(m, arch)] or found


def _words(plan: FFT, elements: int) -> int:
    each = np.dtype(plan.precision).itemsize // 4 or 1
    return elements * each * (1 if plan.fft_type != "c2c" else 2)


def _sensible(plan: FFT, arch: Arch) -> bool:
    """Whether a block has at least a warp, and not more threads than it needs."""
    threads = int(np.prod(plan.traits(arch).block_dim))
    return threads >= 32 and (threads <= _MOST_THREADS or plan.traits(arch).ffts_per_block == 1)


# -- what is measured --------------------------------------------------------------------------------------------------


class Case:
    """One of devmath's own patterns for a plan (that is :func:`common`): a kernel ``(x, h, y)`` or ``(x, y)``, its data, and what is right."""

    def __init__(self, plan: FFT, pattern: str):
        if plan.half and plan.thread_layout == "transposed":
            raise TuningError(
                f"{plan.short_name()}: half precision with thread_layout='transposed' is tuned with a kernel of your own as the pattern"
            )
        self.plan, self.pattern = plan, pattern
        self._traits = plan.traits("cpu")  # rows are the same on all targets
        self._fused = pattern == "convolution"
        back = plan.inverse()
        self._out = back.traits("cpu") if self._fused else self._traits
        make = _shared if plan.api == "shared" else _half if plan.half else _registers
        self.kernel: Kernel = make(plan, back)[0 if self._fused else 1]

    @property
    def types(self) -> tuple[nbt.Type, ...]:
        """numba types of the kernel's arguments."""
        layout = "F" if self.plan.thread_layout == "transposed" else "C"
        x, y = (nbt.Array(_numba(dtype), len(shape), layout) for dtype, shape in (self._side(1, True), self._side(1, False)))
        return (x, nbt.Array(_numba(self._factor_type), 1, "C"), y) if self._fused else (x, y)

    @property
    def _factor_type(self) -> Any:
        return np.complex128 if self.plan.precision is np.float64 else np.complex64

    def _side(self, batch: int, source: bool) -> tuple[Any, tuple[int, ...]]:
        """dtype and shape of the array that is read, or written."""
        t, side = (self._traits, "input") if source else (self._out, "output")
        which = self.plan if source or not self._fused else self.plan.inverse()
        pairs = (2,) if self.plan.half and not which.is_real(side) else ()
        return t[f"{side}_type"], (batch, t[f"{side}_length"], *pairs)

    def bytes_per_row(self) -> int:
        """Bytes that one transform reads."""
        dtype, shape = self._side(1, True)
        return int(np.prod(shape)) * np.dtype(dtype).itemsize

    def bytes_moved(self, batch: int) -> int:
        """Bytes that a launch reads and writes."""
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in (self._side(batch, True), self._side(batch, False)))

    def arrays(self, batch: int, seed: int) -> tuple[np.ndarray, ...]:
        """The kernel's arguments in host memory: normal numbers (a few thousand rows, repeated), factors, and NaN to be written over."""
        rng = np.random.default_rng(seed)
        order: Any = "F" if self.plan.thread_layout == "transposed" else "C"
        dtype, shape = self._side(batch, True)
        some = min(batch, max(_CHECKED, (4 << 20) // self.bytes_per_row()))
        x = np.empty(shape, dtype, order)
        values = rng.standard_normal((some, *shape[1:])).astype(dtype)
        if np.dtype(dtype).kind == "c":
            values = values + dtype(1j) * rng.standard_normal((some, *shape[1:])).astype(dtype)
        for first in range(0, batch, some):
            x[first : first + some] = values[: batch - first]
        if self.plan.fft_type == "c2r" and not self._fused and self.plan.complex_layout != "packed":
            x[:, 0] = x[:, 0].real if not self.plan.half else x[:, 0] * np.array([1, 0], dtype)  # what no real transform gives is not looked at
        dtype, shape = self._side(batch, False)
        y = np.full(shape, np.nan, dtype, order)
        if not self._fused:
            return x, y
        n = self.plan.size
        h = np.exp(2j * np.pi * rng.random(n if self.plan.fft_type == "c2c" or self.plan.complex_layout == "full" else n // 2 + 1)) / n
        if self.plan.fft_type != "c2c":
            h[0], h[n // 2] = 1 / n, 1 / n if n % 2 == 0 else h[n // 2]  # both are real where the filter is
            if self.plan.complex_layout == "full":
                h[n // 2 + 1 :] = np.conj(h[1 : (n + 1) // 2][::-1])
        return x, h.astype(self._factor_type), y

    def checked_arrays(self, seed: int) -> tuple[np.ndarray, ...]:
        """The arguments with which a candidate's results are checked."""
        return self.arrays(_CHECKED, seed)

    def expected(self, arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        """What the kernel makes of :meth:`arrays`, in double precision."""
        x = _complex(arrays[0], self.plan, self.plan.is_real("input"))
        y = _transformed(x, self.plan)
        if self._fused:
            y = _transformed(_filtered(y, arrays[1].astype(np.complex128), self.plan), self.plan.inverse())
        return y

    def why_wrong(self, got: np.ndarray, expected: np.ndarray) -> str:
        """What is wrong with a result, ``""`` if nothing is."""
        last = self.plan.inverse() if self._fused else self.plan
        y = _complex(got, self.plan, last.is_real("output"))
        if not np.isfinite(y).all():
            return f"wrong result: {np.count_nonzero(~np.isfinite(y))} of {y.size} elements not written or not finite"
        error = float((np.linalg.norm(y - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())
        limit = _WRONG[np.dtype(self.plan.precision).name]
        return "" if error < limit else f"wrong result: relative error {error:.3g}, the most is {limit:g}"


def _numba(dtype: Any) -> nbt.Type:
    from ..types import BY_NAME

    return BY_NAME[np.dtype(dtype).name].numba


def _complex(rows: np.ndarray, plan: FFT, real: bool) -> np.ndarray:
    """Rows in double precision, complex where they are."""
    if plan.half and not real:
        return rows[..., 0].astype(np.float64) + 1j * rows[..., 1]
    return rows.astype(np.float64 if real else np.complex128)


def _spectrum(full: np.ndarray, plan: FFT) -> np.ndarray:
    """A real transform's elements 0 ... n // 2 in the plan's layout."""
    n = plan.size
    if plan.complex_layout == "packed":
        first = full[:, :1].real + 1j * full[:, n // 2 : n // 2 + 1].real
        return np.concatenate([first, full[:, 1 : n // 2]], axis=1)
    if plan.complex_layout == "full":
        return np.concatenate([full, np.conj(full[:, 1 : (n + 1) // 2][:, ::-1])], axis=1)
    return full


def _halves(rows: np.ndarray, plan: FFT) -> np.ndarray:
    """Elements 0 ... n // 2 from the plan's layout."""
    n = plan.size
    if plan.complex_layout == "packed":
        return np.concatenate([rows[:, :1].real, rows[:, 1:], rows[:, :1].imag], axis=1)
    return rows[:, : n // 2 + 1]


def _transformed(x: np.ndarray, plan: FFT) -> np.ndarray:
    n = plan.size
    if plan.fft_type == "c2c":
        return np.fft.fft(x) if plan.direction == "forward" else np.fft.ifft(x, norm="forward")
    if plan.fft_type == "r2c":
        return _spectrum(np.fft.rfft(x), plan)
    return np.fft.irfft(_halves(x, plan), n, norm="forward")


def _filtered(rows: np.ndarray, h: np.ndarray, plan: FFT) -> np.ndarray:
    if plan.fft_type == "c2c":
        return rows * h
    return _spectrum(_halves(rows, plan) * h[: plan.size // 2 + 1], plan)


def _registers(fft: FFT, ifft: FFT) -> tuple[Kernel, Kernel]:
    @kernel
    def convolution(x, h, y):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(r, s)
        fft.multiply(h, r)
        ifft.execute(r, s)
        if b < x.shape[0]:
            ifft.store(r, y[b])

    @kernel
    def transform(x, y):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(r, s)
        if b < x.shape[0]:
            fft.store(r, y[b])

    return convolution, transform


def _shared(fft: FFT, ifft: FFT) -> tuple[Kernel, Kernel]:
    @kernel
    def convolution(x, h, y):
        d = fft.data()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], d)
        fft.execute(d)
        fft.multiply(h, d)
        ifft.execute(d)
        if b < x.shape[0]:
            ifft.store(d, y[b])

    @kernel
    def transform(x, y):
        d = fft.data()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], d)
        fft.execute(d)
        if b < x.shape[0]:
            fft.store(d, y[b])

    return convolution, transform


def _half(fft: FFT, ifft: FFT) -> tuple[Kernel, Kernel]:
    @kernel
    def convolution(x, h, y):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()  # the first of two transforms
        if b < x.shape[0]:
            fft.load(x[b : b + 2], r)
        fft.execute(r, s)
        fft.multiply(h, r)
        ifft.execute(r, s)
        if b < x.shape[0]:
            ifft.store(r, y[b : b + 2])

    @kernel
    def transform(x, y):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b : b + 2], r)
        fft.execute(r, s)
        if b < x.shape[0]:
            fft.store(r, y[b : b + 2])

    return convolution, transform


#: A pattern of the user's: a plan to ``(kernel, args)`` or ``(kernel, args, launch)``.
Pattern = Callable[[FFT], tuple]
