"""What the CPU target needs beneath Python: the position of the running thread, stack arrays, shared memory, atomics.

All code that touches llvmlite for numba's CPU compiler is in this file and in ``cpu.py``.

Each worker thread owns a record of 64-bit words: blockIdx, threadIdx, blockDim, gridDim (x, y, z each), the address of the
block's shared memory and the bytes of its dynamic part. The worker leaves the record's address in thread-specific storage, where compiled code finds it.
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


def stack_array(context, builder, ty: nbt.Array, extents: tuple[int, ...]):
    """An array that lives as long as the function being lowered: on its stack, or on the heap where it is large."""
    item = context.get_abi_sizeof(context.get_data_type(ty.dtype))
    size = item * functools.reduce(operator.mul, extents, 1)
    if size > STACK_LIMIT:
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


_ATOMIC = {
    "add": ("add", "add", "fadd"),
    "sub": ("sub", "sub", "fsub"),
    "max": ("max", "umax", "fmax"),
    "min": ("min", "umin", "fmin"),
    "and_": ("and", "and", None),
    "or_": ("or", "or", None),
    "xor": ("xor", "xor", None),
    "exch": ("xchg", "xchg", "xchg"),
}


def atomic_rmw(name: str):
    """The intrinsic ``cuda.atomic.<name>(array, index, value)``; the old value is returned."""

    def codegen(context, builder, sig, args):
        ty, index_ty, value_ty = sig.args
        array = context.make_array(ty)(context, builder, args[0])
        indices = cgutils.unpack_tuple(builder, args[1], len(index_ty)) if isinstance(index_ty, nbt.BaseTuple) else [args[1]]
        kinds = list(index_ty) if isinstance(index_ty, nbt.BaseTuple) else [index_ty]
        indices = [context.cast(builder, i, k, nbt.intp) for i, k in zip(indices, kinds, strict=True)]
        pointer = cgutils.get_item_pointer(context, builder, ty, array, indices, wraparound=True)
        value = context.cast(builder, args[2], value_ty, ty.dtype)
        signed, unsigned, real = _ATOMIC[name]
        if isinstance(ty.dtype, nbt.Float):
            op = real
        else:
            op = signed if ty.dtype.signed else unsigned
        return builder.atomic_rmw(op, pointer, value, "seq_cst")

    @intrinsic
    def atomic(typingctx, array, index, value):
        if not isinstance(array, nbt.Array) or not isinstance(array.dtype, nbt.Integer | nbt.Float):
            return None
        if isinstance(array.dtype, nbt.Float) and _ATOMIC[name][2] is None:
            return None
        return array.dtype(array, index, value), codegen

    return atomic


@intrinsic
def compare_and_swap(typingctx, array, old, value):
    """``cuda.atomic.compare_and_swap(array, old, value)`` on element 0."""

    def codegen(context, builder, sig, args):
        ty, old_ty, value_ty = sig.args
        data = context.make_array(ty)(context, builder, args[0]).data
        expected = context.cast(builder, args[1], old_ty, ty.dtype)
        new = context.cast(builder, args[2], value_ty, ty.dtype)
        result = builder.cmpxchg(data, expected, new, "seq_cst", "seq_cst")
        return builder.extract_value(result, 0)

    if not isinstance(array, nbt.Array) or not isinstance(array.dtype, nbt.Integer):
        return None
    return array.dtype(array, old, value), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """``a * b + c`` with one rounding."""
    if not (isinstance(a, nbt.Float) and a == b == c):
        return None

    def codegen(context, builder, sig, args):
        return builder.fma(*args)

    return a(a, b, c), codegen
