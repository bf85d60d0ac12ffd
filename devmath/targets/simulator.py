"""numba's CUDA simulator (``NUMBA_ENABLE_CUDASIM=1``): device functions run their meaning in plain Python."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types as nbt
from numba.core.registry import CPUDispatcher

from ..errors import KernelTypeError, KernelValueError, TargetError
from ..functions import Array, DeviceFunction, Part, Values, check_arguments, required_length
from ..plan import CPU, Plan
from ..types import BY_NAME
from . import rewrite, simulating

_SCALARS: dict[str, Any] = {
    "int": int,
    "u32": lambda v: np.uint32(int(v) & 0xFFFFFFFF),
    "u64": lambda v: np.uint64(int(v) & 0xFFFFFFFFFFFFFFFF),
    "f32": np.float32,
}


def call(plan: Plan, fn: DeviceFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run *fn* of *plan* for the simulated thread that calls it."""
    if not simulating():
        raise TargetError(
            f"{plan.short_name()}.{fn.signature()} is a device function: call it inside a kernel "
            "(or set NUMBA_ENABLE_CUDASIM=1 to run kernels in Python)"
        )
    from numba.cuda.simulator.kernel import _get_kernel_context, swapped_cuda_module

    check_arguments(fn, plan, tuple(map(_typeof, args)), {k: _typeof(v) for k, v in kwargs.items()})
    bound = inspect.Signature([inspect.Parameter(a.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in fn.args]).bind(*args, **kwargs)
    traits = plan.traits(CPU)
    if isinstance(fn.returns, Array):
        dtype = _numpy(fn.returns.dtype(plan))
        if fn.returns.space == "shared":
            return _get_kernel_context().shared.array(0, np.dtype(dtype))
        return np.empty(fn.returns.count(traits), dtype)
    if isinstance(fn.returns, Part):
        shape = fn.returns.shape(traits)
        memory = _get_kernel_context().shared.array(0, np.dtype(_numpy(fn.returns.dtype(plan))))
        return memory[: math.prod(shape)].reshape(shape)
    values = []
    for arg in fn.args:
        value = bound.arguments[arg.name]
        need = required_length(arg, traits)
        if need is not None and len(value) < need:
            raise KernelValueError(f"{plan.short_name()}.{fn.signature()}: {arg.name} has {len(value)} elements, the plan needs {need}")
        values.append(_SCALARS[arg.kind](value) if arg.kind in _SCALARS else value)
    meaning = _meaning(plan, fn)
    with swapped_cuda_module(meaning, _get_kernel_context()):
        result = meaning(*values)
    if isinstance(fn.returns, Values):
        scalar = _numpy(fn.returns.dtype)
        return scalar(result) if fn.returns.count == 1 else tuple(scalar(r) for r in result)
    return result


class _Plain(rewrite.Rewriter):
    """Puts Python functions in place of compiled ones: a simulated kernel waits for no compiler, and a debugger can step into all of it."""

    def replace(self, value: Any, attributes: tuple[str, ...], where: rewrite.Where) -> Any:
        return self.function(value.py_func) if isinstance(value, CPUDispatcher) else value


def _meaning(plan: Plan, fn: DeviceFunction) -> Callable:
    """The meaning of *fn*, one object for each plan."""
    key = (fn.name, "simulator")
    if key not in plan.meanings:
        assert fn.meaning is not None
        plan.meanings[key] = _Plain().function(fn.meaning(plan, plan.traits(CPU)))  # type: ignore[arg-type]
    return plan.meanings[key]


def _typeof(value: Any) -> nbt.Type:
    if isinstance(value, bool | np.bool_):
        return nbt.boolean
    if isinstance(value, int | np.integer):
        return nbt.int64
    dtype, ndim = getattr(value, "dtype", None), getattr(value, "ndim", None)
    if dtype is not None and ndim:
        element = BY_NAME.get(np.dtype(dtype).name)
        if element is None:
            raise KernelTypeError(f"a {ndim}-D {dtype} array is none of the element types {', '.join(BY_NAME)}")
        contiguous = value.strides is None or value.strides[-1] == np.dtype(dtype).itemsize
        return nbt.Array(element.numba, ndim, "C" if contiguous else "A")
    return nbt.float64 if isinstance(value, float | np.floating) else nbt.pyobject


def _numpy(ty: nbt.Type) -> type:
    return next((e.numpy for e in BY_NAME.values() if e.numba == ty), np.bool_ if ty == nbt.boolean else np.int64)
