"""The stand-in for the ``cuda`` module on the CPU target: what a kernel may use there, and what each means."""

from __future__ import annotations

import types as pytypes
from typing import Any

from numba import types as nbt
from numba.core.datamodel.models import OpaqueModel
from numba.core.extending import overload, register_model
from numba.core.imputils import Registry
from numba.core.typing import templates
from numba.core.typing.typeof import typeof_impl

from . import cpu_intrinsics as low
from .common import current_build

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
    """``cuda.local.array`` or ``cuda.shared.array``: typed and lowered without a call in between, since a stack array lives in its function."""

    def array(shape, dtype, alignment=None):
        raise NotImplementedError

    class _Array(templates.CallableTemplate):
        key = array
        prefer_literal = True

        def generic(self):
            def typer(shape, dtype, alignment=None):
                return low.array_type(shape, dtype)

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
    overload(stand_in, inline="always", prefer_literal=True)(factory)
    return stand_in


threadIdx, blockIdx = _Dim3(low.THREAD_IDX), _Dim3(low.BLOCK_IDX)
blockDim, gridDim = _Dim3(low.BLOCK_DIM), _Dim3(low.GRID_DIM)


def _grid(ndim):
    n = getattr(ndim, "literal_value", None)
    if n == 1:
        return lambda ndim: low.word(0) * low.word(6) + low.word(3)
    if n == 2:
        return lambda ndim: (low.word(0) * low.word(6) + low.word(3), low.word(1) * low.word(7) + low.word(4))
    if n == 3:
        return lambda ndim: (
            low.word(0) * low.word(6) + low.word(3),
            low.word(1) * low.word(7) + low.word(4),
            low.word(2) * low.word(8) + low.word(5),
        )
    return None


def _gridsize(ndim):
    n = getattr(ndim, "literal_value", None)
    if n == 1:
        return lambda ndim: low.word(6) * low.word(9)
    if n == 2:
        return lambda ndim: (low.word(6) * low.word(9), low.word(7) * low.word(10))
    if n == 3:
        return lambda ndim: (low.word(6) * low.word(9), low.word(7) * low.word(10), low.word(8) * low.word(11))
    return None


def _bits(x):
    return x.bitwidth if isinstance(x, nbt.Integer) else None


def _popc(x):
    if not _bits(x):
        return None

    def popc(x):
        n = 0
        while x:
            x &= x - 1
            n += 1
        return n

    return popc


def _clz(x):
    bits = _bits(x)
    if not bits:
        return None

    def clz(x):
        n = 0
        for i in range(bits):
            if (x >> (bits - 1 - i)) & 1:
                break
            n += 1
        return n

    return clz


def _ffs(x):
    bits = _bits(x)
    if not bits:
        return None

    def ffs(x):
        for i in range(bits):
            if (x >> i) & 1:
                return i + 1
        return 0

    return ffs


def _brev(x):
    bits = _bits(x)
    if not bits:
        return None

    def brev(x):
        r = x & 0
        for i in range(bits):
            r = (r << 1) | ((x >> i) & 1)
        return r

    return brev


_none = _function("none", lambda: lambda: None)


def _namespace(name: str, **members: Any) -> pytypes.ModuleType:
    module = pytypes.ModuleType(name)
    module.__dict__.update(members)
    return module


grid = _function("grid", _grid)
gridsize = _function("gridsize", _gridsize)
syncthreads = _function("syncthreads", lambda: lambda: None)
syncwarp = _function("syncwarp", lambda mask=None: lambda mask=None: None)

local = _namespace("cuda.local", array=_array_maker("local"))
shared = _namespace("cuda.shared", array=_array_maker("shared"))
const = _namespace("cuda.const", array_like=_function("array_like", lambda a: lambda a: a))
atomic = _namespace(
    "cuda.atomic",
    compare_and_swap=_function("compare_and_swap", lambda a, o, v: lambda a, o, v: low.compare_and_swap(a, o, v)),
)


def _atomic(name: str) -> Any:
    intrinsic = low.atomic_rmw(name)
    return _function(name, lambda a, i, v: lambda a, i, v: intrinsic(a, i, v))


for _name in low._ATOMIC:
    setattr(atomic, _name, _atomic(_name))

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
    "popc": _function("popc", _popc),
    "clz": _function("clz", _clz),
    "ffs": _function("ffs", _ffs),
    "brev": _function("brev", _brev),
    "fma": _function("fma", lambda a, b, c: lambda a, b, c: low.fma(a, b, c)),
    "selp": _function("selp", lambda p, a, b: lambda p, a, b: a if p else b),
}
MODULE = _namespace("devmath.targets.cpu_cuda", **MEMBERS)
NAMESPACES = {"local", "shared", "const", "atomic"}


def lookup(attributes: tuple[str, ...]) -> bool:
    """Whether ``cuda.<attributes>`` exists here (a bare ``cuda`` does)."""
    if not attributes:
        return True
    if attributes[0] not in MEMBERS:
        return False
    if attributes[0] in NAMESPACES:
        return len(attributes) > 1 and hasattr(MEMBERS[attributes[0]], attributes[1])
    return True
