"""The FFT's quicker form for the CPU target: DUCC through rocket-fft, in place, without temporary arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rocket_fft.lowlevel import c2c

_AXIS, _TWO_AXES, _THREE_AXES = np.arange(1), np.arange(2), np.arange(3)


def execute(plan: Any) -> Callable:
    """``execute`` of an FFT plan for compiled CPU code."""
    size, forward = plan.size, plan.direction == "forward"
    if plan.execution == "thread":

        def execute(registers):
            c2c(registers[:size], registers[:size], _AXIS, forward, 1.0, 1)

        return execute

    def execute(registers, scratch):
        c2c(registers[:size], registers[:size], _AXIS, forward, 1.0, 1)

    return execute


def execute_axes(shape: tuple[int, ...], forward: bool) -> Callable:
    """The same of an FFTN plan, along all axes."""
    n0, n1, n2 = shape[0], shape[1], shape[-1]
    if len(shape) == 2:

        def execute(data):
            c2c(data[:n0, :n1], data[:n0, :n1], _TWO_AXES, forward, 1.0, 1)

        return execute

    def execute(data):
        c2c(data[:n0, :n1, :n2], data[:n0, :n1, :n2], _THREE_AXES, forward, 1.0, 1)

    return execute
