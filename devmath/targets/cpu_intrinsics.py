"""What the CPU target needs beneath Python: the position of the running thread, stack arrays, shared memory, atomics.

All code that touches llvmlite for numba's CPU compiler is in this file, in ``cpu_atomics.py`` and in ``cpu.py``.

Each worker thread owns a record of 64-bit words: blockIdx, threadIdx, blockDim, gridDim (x, y, z each), the address of the
block's shared memory and the bytes of its dynamic part. The worker leaves the record's address in thread-specific storage, where
compiled code finds it.
"""

from __future__ import annotations

import ctypes
import functools
import operator

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types as nbt
from numba.core import cgutils
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

from ..errors import KernelTypeError
from ..types import describe

WORDS = 16
BLOCK_IDX, THREAD_IDX, BLOCK_DIM, GRID_DIM, SHARED, DYNAMIC_BYTES = 0, 3, 6, 9, 12, 13

#: Thread arrays up to this size live on the stack; larger ones on the heap.
STACK_LIMIT = 65_536


@functools.cache
def _key() -> int:
    """The process's key of the thread-specific record address."""
    libc = ctypes.CDLL(None)
    key = ctypes.c_uint()
    if libc.pthread_key_create(ctypes.byref(key), None):
        raise OSError("pthread_key_create failed")
    for name in ("pthread_getspecific", "pthread_setspecific"):
        llvm.add_symbol(f"devmath_{name}", ctypes.cast(getattr(libc, name), ctypes.c_void_p).value)
    return key.value


_I32, _I64, _BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def _record(builder):
    fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_BYTES, [_I32]), "devmath_pthread_getspecific")
    return builder.bitcast(builder.call(fn, [_I32(_key())]), _I64.as_pointer())


def _word(builder, i):
    return builder.gep(_record(builder), [_I32(i)])


@intrinsic
def set_record(typingctx, address):
    """Make *address* this thread's record."""

    def codegen(context, builder, sig, args):
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [_I32, _BYTES]), "devmath_pthread_setspecific")
        builder.call(fn, [_I32(_key()), builder.inttoptr(args[0], _BYTES)])
        return context.get_dummy_value()

    return nbt.void(nbt.uintp), codegen


@intrinsic(prefer_literal=True)
def word(typingctx, index):
    """Word *index* (a constant) of this thread's record."""
    if not isinstance(index, nbt.IntegerLiteral):
        return None
    i = index.literal_value

    def codegen(context, builder, sig, args):
        return builder.load(_word(builder, i))

    return nbt.int64(index), codegen


@intrinsic(prefer_literal=True)
def store_word(typingctx, index, value):
    """Set word *index* (a constant) of this thread's record."""
    if not isinstance(index, nbt.IntegerLiteral):
        return None
    i = index.literal_value

    def codegen(context, builder, sig, args):
        builder.store(args[1], _word(builder, i))
        return context.get_dummy_value()

    return nbt.void(index, nbt.int64), codegen


def element_count(shape: nbt.Type) -> int | None:
    """Number of elements of a constant shape, ``None`` if it is not one."""
    if isinstance(shape, nbt.IntegerLiteral):
        return shape.literal_value
    if isinstance(shape, nbt.BaseTuple) and all(isinstance(s, nbt.IntegerLiteral) for s in shape):
        return functools.reduce(operator.mul, (s.literal_value for s in shape), 1)
    return None


def shape_of(shape: nbt.Type) -> tuple[int, ...]:
    """A constant shape's extents."""
    return (shape.literal_value,) if isinstance(shape, nbt.IntegerLiteral) else tuple(s.literal_value for s in shape)


def array_type(shape: nbt.Type, dtype: nbt.Type) -> nbt.Array | None:
    """Type of an array of constant *shape* and *dtype*, ``None`` if they are not constants."""
    element = parse_dtype(dtype)
    if element is None or element_count(shape) is None:
        return None
    return nbt.Array(element, len(shape_of(shape)), "C")


def _make_array(context, builder, ty, extents, data, meminfo=None):
    item = context.get_abi_sizeof(context.get_data_type(ty.dtype))
    array = context.make_array(ty)(context, builder)
    shape = [e if isinstance(e, ir.Value) else _I64(e) for e in extents]
    strides = [_I64(item)]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    context.populate_array(
        array,
        data=builder.bitcast(data, array.data.type),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=_I64(item),
        meminfo=meminfo,
        parent=None,
    )
    return array._getvalue()


def _points(ty: ir.Type) -> bool:
    """Whether a value of this type holds an address, as an array does."""
    return isinstance(ty, ir.LiteralStructType) and any(isinstance(t, ir.PointerType) or _points(t) for t in ty.elements)


def stack_array(context, builder, ty: nbt.Array, extents: tuple[int, ...]):
    """An array of the function being lowered: on its stack, or on the heap where it is large or may be what the function returns."""
    item = context.get_abi_sizeof(context.get_data_type(ty.dtype))
    size = item * functools.reduce(operator.mul, extents, 1)
    if size > STACK_LIMIT or _points(builder.function.args[0].type.pointee):
        meminfo = context.nrt.meminfo_alloc_aligned(builder, size=_I64(size), align=32)
        return _make_array(context, builder, ty, extents, context.nrt.meminfo_data(builder, meminfo), meminfo)
    with builder.goto_entry_block():
        data = builder.alloca(ir.ArrayType(ir.IntType(8), size))
        data.align = 32
    return _make_array(context, builder, ty, extents, data)


def shared_array(context, builder, ty: nbt.Array, extents: tuple[int, ...] | None, offset: int):
    """A view of the block's shared memory: static at *offset*, or (no extents) the dynamic part, whose length the launch gives."""
    base = builder.load(_word(builder, SHARED))
    if extents is not None:
        return _make_array(context, builder, ty, extents, builder.inttoptr(builder.add(base, _I64(offset)), _BYTES))
    item = context.get_abi_sizeof(context.get_data_type(ty.dtype))
    length = builder.udiv(builder.load(_word(builder, DYNAMIC_BYTES)), _I64(item))
    return _make_array(context, builder, ty, (length,), builder.inttoptr(base, _BYTES))


def _integer(name: str, ty: nbt.Type) -> nbt.Integer:
    if not isinstance(ty, nbt.Integer):
        raise KernelTypeError(f"cuda.{name} takes an integer, got {describe(ty)}")
    return nbt.unliteral(ty)


@intrinsic
def popc(typingctx, x):
    """Number of bits that are set."""
    ty = _integer("popc", x)
    return ty(ty), lambda context, builder, sig, args: builder.ctpop(args[0])


@intrinsic
def clz(typingctx, x):
    """Number of leading zero bits; the width for 0."""
    ty = _integer("clz", x)
    return ty(ty), lambda context, builder, sig, args: builder.ctlz(args[0], ir.IntType(1)(0))


@intrinsic
def ffs(typingctx, x):
    """Number, from 1, of the lowest bit that is set; 0 for 0."""
    ty = _integer("ffs", x)

    def codegen(context, builder, sig, args):
        lowest = builder.add(builder.cttz(args[0], ir.IntType(1)(0)), args[0].type(1))
        none = builder.icmp_unsigned("==", args[0], args[0].type(0))
        return context.cast(builder, builder.select(none, args[0].type(0), lowest), ty, nbt.uint32)

    return nbt.uint32(ty), codegen


@intrinsic
def brev(typingctx, x):
    """The bits in reverse order, of 32 bits or of 64."""
    ty = nbt.uint64 if _integer("brev", x).bitwidth > 32 else nbt.uint32
    return ty(ty), lambda context, builder, sig, args: builder.bitreverse(args[0])


@intrinsic
def fma(typingctx, a, b, c):
    """``a * b + c`` with one rounding, in float32 where all three are."""
    for ty in (a, b, c):
        if not isinstance(ty, nbt.Integer | nbt.Float):
            raise KernelTypeError(f"cuda.fma takes real numbers, got {describe(ty)}")
    ty = nbt.float32 if a == b == c == nbt.float32 else nbt.float64
    return ty(ty, ty, ty), lambda context, builder, sig, args: builder.fma(*args)
