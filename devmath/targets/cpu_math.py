"""Functions of ``math`` that numba-cuda compiles and numba does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import types as nbt
from numba.core.typing import templates

from .cpu_cuda import LOWERING, TYPING


def _fmod(x, y):
    return np.fmod(x, y)


def _modf(x):
    whole = np.trunc(x)
    return (math.copysign(x - whole, x) if abs(x) < math.inf else math.copysign(0.0, x)), whole


def _add(function: Callable, implementation: Callable, arguments: int, returned: Callable) -> None:
    cases_ = [templates.signature(returned(ty), *[ty] * arguments) for ty in (nbt.float32, nbt.float64)]

    class Template(templates.ConcreteTemplate):
        key = function
        cases = cases_

    def lower(context, builder, sig, args):
        return context.compile_internal(builder, implementation, sig, args)

    TYPING.register_global(function, nbt.Function(Template))
    for case in cases_:
        LOWERING.lower(function, *case.args)(lower)


_add(math.fmod, _fmod, 2, lambda ty: ty)
_add(math.modf, _modf, 1, lambda ty: nbt.UniTuple(ty, 2))
