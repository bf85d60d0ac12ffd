"""The stand-in for the ``cuda`` module on the CPU target: what a kernel may use there, and what each means."""

from __future__ import annotations

import types as pytypes
from typing import Any

import numpy as np
from numba import types as nbt
from numba.core.datamodel.models import OpaqueModel
from numba.core.extending import intrinsic, overload, register_model
from numba.core.imputils import Registry
from numba.core.typing import templates
from numba.core.typing.typeof import typeof_impl

from ..errors import KernelTypeError, KernelValueError, TargetError
from ..types import describe
from . import cpu_intrinsics as low
from .common import current_build
from .cpu_atomics import OPERATIONS

#: The CPU target's own registries: numba-cuda reads numba's built-in ones as well, and must not find these definitions there.
TYPING = templates.Registry()
LOWERING = Registry("devmath")

#: Names that make the threads of a block wait for or talk to each other. With one thread a block they do nothing.
SINGLE_THREAD_ONLY = {"syncthreads", "syncwarp"}


class Dim3Type(nbt.Type):
    """``cuda.threadIdx`` and the like: three words of the running thread's record."""

    def __init__(self, first: int):
        self.first = first
        super().__init__(f"devmath.Dim3({first})")


class _Dim3:
    def __init__(self, first: int):
        self.first = first


@typeof_impl.register(_Dim3)
def _typeof_dim3(value, c):
    return Dim3Type(value.first)


register_model(Dim3Type)(OpaqueModel)


@LOWERING.lower_constant(Dim3Type)
def _constant_dim3(context, builder, ty, value):
    return context.get_dummy_value()


@TYPING.register_attr
class _Dim3Attributes(templates.AttributeTemplate):
    key = Dim3Type

    def generic_resolve(self, ty, attr):
        return nbt.int32 if attr in ("x", "y", "z") else None


@LOWERING.lower_getattr_generic(Dim3Type)
def _dim3_getattr(context, builder, ty, value, attr):
    word = builder.load(low._word(builder, ty.first + "xyz".index(attr)))
    return builder.trunc(word, low._I32)


def _array_maker(space: str) -> Any:
    """``cuda.local.array`` or ``cuda.shared.array``, without a call in between: a stack array lives in its function."""

    def array(shape, dtype, alignment=None):
        raise NotImplementedError

    class _Array(templates.CallableTemplate):
        key = array
        prefer_literal = True

        def generic(self):
            def typer(shape, dtype, alignment=None):
                ty = low.array_type(shape, dtype)
                if ty is None:
                    got = f"{describe(shape)} and {describe(dtype)}"
                    raise KernelTypeError(f"cuda.{space}.array takes a shape and a dtype that are compile-time constants, got {got}")
                return ty

            return typer

    TYPING.register_global(array, nbt.Function(_Array))

    def lower(context, builder, sig, args):
        ty, shape = sig.return_type, low.shape_of(sig.args[0])
        if space == "local":
            return low.stack_array(context, builder, ty, shape)
        build = current_build()
        if build is None:
            raise NotImplementedError("cuda.shared.array outside a devmath kernel")
        if shape == (0,):
            return low.shared_array(context, builder, ty, None, 0)
        item = context.get_abi_sizeof(context.get_data_type(ty.dtype))
        # The dynamic part comes first; static arrays follow a launch's largest dynamic part (see cpu.py).
        offset = build.static_shared
        build.static_shared += -(-item * low.element_count(sig.args[0]) // 64) * 64
        return low.shared_array(context, builder, ty, shape, offset + STATIC_OFFSET)

    for extra in ((), (nbt.Any,)):
        LOWERING.lower(array, nbt.Any, nbt.Any, *extra)(lower)
    return array


#: Dynamic shared memory comes first in the block's arena and is at most this large; static arrays follow.
STATIC_OFFSET = 1 << 20


def _function(name: str, factory: Any) -> Any:
    """A stand-in function whose compiled form *factory* gives."""

    def stand_in(*args):
        raise NotImplementedError(name)

    stand_in.__name__ = name
    # Not inline="always": after inlining numba removes writes through views of an array as dead.
    overload(stand_in, prefer_literal=True)(factory)
    return stand_in


threadIdx, blockIdx = _Dim3(low.THREAD_IDX), _Dim3(low.BLOCK_IDX)
blockDim, gridDim = _Dim3(low.BLOCK_DIM), _Dim3(low.GRID_DIM)


def _dimensions(name: str, ndim: nbt.Type) -> int:
    n = getattr(ndim, "literal_value", None)
    if n not in (1, 2, 3):
        raise KernelValueError(f"cuda.{name} takes 1, 2 or 3, written as a constant, got {n if n is not None else describe(ndim)}")
    return n


def _grid(ndim):
    n = _dimensions("grid", ndim)
    if n == 1:
        return lambda ndim: low.word(0) * low.word(6) + low.word(3)
    if n == 2:
        return lambda ndim: (low.word(0) * low.word(6) + low.word(3), low.word(1) * low.word(7) + low.word(4))
    return lambda ndim: (
        low.word(0) * low.word(6) + low.word(3),
        low.word(1) * low.word(7) + low.word(4),
        low.word(2) * low.word(8) + low.word(5),
    )


def _gridsize(ndim):
    n = _dimensions("gridsize", ndim)
    if n == 1:
        return lambda ndim: low.word(6) * low.word(9)
    if n == 2:
        return lambda ndim: (low.word(6) * low.word(9), low.word(7) * low.word(10))
    return lambda ndim: (low.word(6) * low.word(9), low.word(7) * low.word(10), low.word(8) * low.word(11))


def _barrier(context, builder, sig, args):
    build = current_build()
    if build is not None and not build.single_thread:  # reached through another name: `c = cuda; c.syncthreads()`
        build.single_thread.append("cuda.syncthreads")
    return context.get_dummy_value()


# Intrinsics, since those are lowered anew in every kernel; a function is once.
@intrinsic
def syncthreads(typingctx):
    return nbt.none(), _barrier


@intrinsic
def syncwarp(typingctx, mask=None):
    return nbt.none(nbt.Omitted(None) if mask is None else mask), _barrier


_none = _function("none", lambda: lambda: None)


class _Missing(TargetError, AttributeError):
    """An attribute that is not there: numba looks for some that need not be."""


def _namespace(name: str, **members: Any) -> pytypes.ModuleType:
    def missing(attribute: str) -> Any:
        raise _Missing(str(missing_here(f"{name}.{attribute}")))

    module = pytypes.ModuleType(name)
    module.__dict__.update(members, __getattr__=missing)
    return module


def missing_here(what: object) -> TargetError:
    """What to say about something that only a GPU has."""
    return TargetError(f"{what} does not exist on the CPU target; run the kernel on the GPU, or write that part for both")


grid = _function("grid", _grid)
gridsize = _function("gridsize", _gridsize)

local = _namespace("cuda.local", array=_array_maker("local"))
shared = _namespace("cuda.shared", array=_array_maker("shared"))
const = _namespace("cuda.const", array_like=_function("array_like", lambda a: lambda a: a))
atomic = _namespace("cuda.atomic", **OPERATIONS)

#: Everything that exists on the CPU target, by its name in the ``cuda`` module.
MEMBERS: dict[str, Any] = {
    "threadIdx": threadIdx,
    "blockIdx": blockIdx,
    "blockDim": blockDim,
    "gridDim": gridDim,
    "grid": grid,
    "gridsize": gridsize,
    "local": local,
    "shared": shared,
    "const": const,
    "atomic": atomic,
    "syncthreads": syncthreads,
    "syncwarp": syncwarp,
    "threadfence": _none,
    "threadfence_block": _none,
    "threadfence_system": _none,
    "warpsize": 32,
    "popc": low.popc,
    "clz": low.clz,
    "ffs": low.ffs,
    "brev": low.brev,
    "fma": low.fma,
    "cbrt": _function("cbrt", lambda x: lambda x: np.cbrt(x)),
    "rsqrt": _function("rsqrt", lambda x: lambda x: np.reciprocal(np.sqrt(x))),
    "selp": _function("selp", lambda p, a, b: lambda p, a, b: a if p else b),
}
NAMESPACES = {"local", "shared", "const", "atomic"}
#: Element types are in the ``cuda`` module as well: ``cuda.float32``.
_TYPES = {"types": nbt, **{name: ty for name, ty in vars(nbt).items() if isinstance(ty, nbt.Type)}}
MODULE = _namespace("cuda", **_TYPES, **MEMBERS)


def lookup(attributes: tuple[str, ...]) -> bool:
    """Whether ``cuda.<attributes>`` exists here (a bare ``cuda`` does)."""
    if not attributes:
        return True
    if attributes[0] in NAMESPACES:
        return len(attributes) == 1 or attributes[1] in vars(MEMBERS[attributes[0]])
    return attributes[0] in MEMBERS or attributes[0] in _TYPES
