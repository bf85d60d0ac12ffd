"""Candidates made ready to be timed: loaded, and their results checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import TuningError
from ..kernel import Kernel, Linked
from ..plan import Plan
from . import subjects
from .measure import Device

#: Bytes that a launch reads where no batch is given: several times the largest cache.
DATA = 256 << 20
_SEED = 7


class Trial:
    """A launch of a candidate's kernel: call it to enqueue one."""

    def __init__(self, plan: Plan, pattern: str, kernel: Kernel, config: Any, args: tuple):
        self.plan, self.pattern = plan, pattern
        self._launcher, self._args = kernel[config], args

    def __call__(self) -> None:
        self._launcher(*self._args)


class Bench:
    """One of devmath's own patterns for all candidates of a plan, with one set of arrays for them."""

    def __init__(self, device: Device, plan: Plan, pattern: str, batch: int | None):
        self.device, self.pattern = device, pattern
        case = subjects.of(plan).Case(plan, pattern)
        self.batch = batch or default_batch(plan, pattern)
        self.bytes = case.bytes_moved(self.batch)
        self._args = tuple(map(device.put, case.arrays(self.batch, _SEED)))
        host = case.checked_arrays(_SEED)
        self._nothing, self._checked = host[-1], tuple(map(device.put, host))
        self._expected, self._rows = case.expected(host), len(host[0])

    def trial(self, plan: Plan, linked: Linked | None) -> Trial:
        """The launch of a candidate, checked on a few rows; TuningError where what it computes is wrong."""
        case = subjects.of(plan).Case(plan, self.pattern)
        if linked is not None:
            case.kernel.adopt(case.types, linked)
        self.device.set(self._checked[-1], self._nothing)
        case.kernel[plan.launch(self._rows)](*self._checked)
        self.device.synchronize()
        wrong = case.why_wrong(self.device.get(self._checked[-1]), self._expected)
        if wrong:
            raise TuningError(wrong)
        return Trial(plan, self.pattern, case.kernel, plan.launch(self.batch), self._args)


class OwnBench:
    """A user's own kernel for all candidates: ``pattern(plan)`` gives ``(kernel, args)`` or ``(kernel, args, launch)``.

    What the default plan's kernel leaves in its arrays is what the others are held to. Arrays are put back to what they were before each check,
    and in the end.
    """

    def __init__(self, device: Device, pattern: Any, batch: int | None):
        self.device, self.pattern, self.batch = device, pattern, batch
        self._before: list[tuple[Any, np.ndarray]] = []
        self._expected: list[np.ndarray] | None = None

    def made(self, plan: Plan) -> tuple[Kernel, tuple, Any]:
        """The kernel, its arguments and its launch configuration."""
        got = self.pattern(plan)
        form = "a pattern returns (kernel, args) or (kernel, args, launch)"
        if not isinstance(got, tuple) or len(got) not in (2, 3) or not isinstance(got[0], Kernel) or not isinstance(got[1], tuple | list):
            raise TuningError(f"{form} with a kernel made by @devmath.kernel and its arguments, got {got!r:.80}")
        if len(got) == 2 and self.batch is None:
            raise TuningError(f"{form}; without the launch, tuned(batch=...) says how many problems there are")
        return got[0], tuple(got[1]), got[2] if len(got) == 3 else plan.launch(self.batch or 0)

    def trial(self, plan: Plan, linked: Linked | None = None) -> Trial:
        """As :meth:`Bench.trial`; the first one is the default's, whose results the others must have."""
        kernel, args, config = self.made(plan)
        arrays = [a for a in args if hasattr(a, "dtype") and len(getattr(a, "shape", ()))]
        if self._expected is None:
            self._before = [(a, self.device.get(a)) for a in arrays]
        before = [host for _, host in self._before]
        if [(a.shape, str(a.dtype)) for a in arrays] != [(h.shape, str(h.dtype)) for h in before] and self._expected is not None:
            raise TuningError("the pattern's arrays must be the same for all plans that it is called with")
        for array, host in zip(arrays, before, strict=True):
            self.device.set(array, host)
        kernel[config](*args)
        self.device.synchronize()
        after = [self.device.get(a) for a in arrays]
        if self._expected is None:
            self._expected = after
        for number, (got, want) in enumerate(zip(after, self._expected, strict=True)):
            _compare(number, got, want)
        return Trial(plan, "own", kernel, config, args)

    def restore(self) -> None:
        """Give the first call's arrays their content back."""
        for array, host in self._before:
            self.device.set(array, host)


def default_batch(plan: Plan, pattern: str) -> int:
    """How many problems make :data:`DATA` bytes."""
    return max(1, DATA // subjects.of(plan).Case(plan, pattern).bytes_per_row())


def _compare(number: int, got: np.ndarray, want: np.ndarray) -> None:
    """Equal in all but rounding, as far as the element type has digits."""
    if got.dtype.kind not in "fc":
        if not np.array_equal(got, want):
            raise TuningError(f"wrong result: array {number} is not what the default plan makes of it")
        return
    limit = {2: 2e-2, 4: 1e-4, 8: 1e-10}[got.real.dtype.itemsize]
    both_nan = np.isnan(got) & np.isnan(want)
    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = np.where(both_nan, 0, got).astype(kind), np.where(both_nan, 0, want).astype(kind)
    difference, size = np.linalg.norm((a - b).ravel()), np.linalg.norm(b.ravel())
    if not difference <= limit * size:  # NaN counts as wrong
        raise TuningError(f"wrong result: array {number} differs from the default plan's by {difference / (size or 1):.3g}, the most is {limit:g}")
