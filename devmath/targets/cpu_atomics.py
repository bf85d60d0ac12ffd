"""``cuda.atomic`` on the CPU target, with the GPU's meaning: the old value is returned, and NaN counts as there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types as nbt
from numba.core import cgutils
from numba.extending import intrinsic

from ..errors import KernelTypeError
from ..types import describe

#: What the processor does itself, for signed, unsigned and real numbers.
_NATIVE = {
    "add": ("add", "add", "fadd"),
    "sub": ("sub", "sub", "fsub"),
    "max": ("max", "umax", None),
    "min": ("min", "umin", None),
    "nanmax": ("max", "umax", None),
    "nanmin": ("min", "umin", None),
    "and_": ("and", "and", None),
    "or_": ("or", "or", None),
    "xor": ("xor", "xor", None),
    "exch": ("xchg", "xchg", "xchg"),
}


def _nan_extreme(worse: str) -> Callable:
    """``nanmax`` (``"<"``) or ``nanmin``: NaN gives way to any number, and never replaces one."""

    def change(builder, old, value):
        better = builder.fcmp_unordered(worse, old, value)
        return builder.select(builder.and_(builder.fcmp_ordered("ord", value, value), better), value, old)

    return change


def _inc(builder, old, value):
    """``old + 1`` up to *value*, then 0."""
    past = builder.icmp_unsigned(">=", old, value)
    return builder.select(past, old.type(0), builder.add(old, old.type(1)))


def _dec(builder, old, value):
    """``old - 1`` down to 0, then *value*."""
    past = builder.or_(builder.icmp_unsigned("==", old, old.type(0)), builder.icmp_unsigned(">", old, value))
    return builder.select(past, value, builder.sub(old, old.type(1)))


#: What is tried again until no other thread came between. A NaN on either side leaves ``max`` and ``min`` without effect.
_LOOPS: dict[str, tuple[type, Callable]] = {
    "max": (nbt.Float, lambda builder, old, value: builder.select(builder.fcmp_ordered("<", old, value), value, old)),
    "min": (nbt.Float, lambda builder, old, value: builder.select(builder.fcmp_ordered(">", old, value), value, old)),
    "nanmax": (nbt.Float, _nan_extreme("<")),
    "nanmin": (nbt.Float, _nan_extreme(">")),
    "inc": (nbt.Integer, _inc),
    "dec": (nbt.Integer, _dec),
}


def _loop(builder, pointer, change: Callable):
    """Put ``change(old)`` in place of *old*, atomically; gives *old*."""
    kind = pointer.type.pointee
    bits = kind if isinstance(kind, ir.IntType) else ir.IntType(32 if isinstance(kind, ir.FloatType) else 64)
    pointer = builder.bitcast(pointer, bits.as_pointer())
    first, start = builder.load_atomic(pointer, "seq_cst", bits.width // 8), builder.block
    again, done = builder.append_basic_block("again"), builder.append_basic_block("done")
    builder.branch(again)
    builder.position_at_end(again)
    old = builder.phi(bits)
    new = builder.bitcast(change(builder.bitcast(old, kind)), bits)
    found = builder.cmpxchg(pointer, old, new, "seq_cst", "seq_cst")
    old.add_incoming(first, start)
    old.add_incoming(builder.extract_value(found, 0), builder.block)
    builder.cbranch(builder.extract_value(found, 1), done, again)
    builder.position_at_end(done)
    return builder.bitcast(old, kind)


def _check(name: str, array: nbt.Type, index: nbt.Type, values: tuple[nbt.Type, ...], kinds: str) -> None:
    """Refuse what the GPU's form does not take, or would write where it must not."""
    call = f"cuda.atomic.{name}"
    if not isinstance(array, nbt.Array):
        raise KernelTypeError(f"{call} works on an array, got {describe(array)}")
    ty = array.dtype
    real = ty in (nbt.float32, nbt.float64) and "real" in kinds
    if not real and not (isinstance(ty, nbt.Integer) and not (ty.signed and kinds == "unsigned integers")):
        raise KernelTypeError(f"{call} works on {kinds}, got a {describe(array)}")
    if not array.mutable:
        raise KernelTypeError(f"{call}: the array is read-only")
    given = len(index) if isinstance(index, nbt.BaseTuple) else 1
    if given != array.ndim:
        raise KernelTypeError(f"{call}: a {describe(array)} takes {array.ndim} indices, got {given}")
    for value in values:
        if not isinstance(value, nbt.Integer | nbt.Float | nbt.Boolean):
            raise KernelTypeError(f"{call}: the value is {describe(value)}, it must be a real number")


def _pointer(context, builder, ty: nbt.Array, array, index_ty, index):
    """Address of an element."""
    indices = cgutils.unpack_tuple(builder, index, len(index_ty)) if isinstance(index_ty, nbt.BaseTuple) else [index]
    kinds = list(index_ty) if isinstance(index_ty, nbt.BaseTuple) else [index_ty]
    indices = [context.cast(builder, i, k, nbt.intp) for i, k in zip(indices, kinds, strict=True)]
    made = context.make_array(ty)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, ty, made, indices, wraparound=True)


def _operation(name: str) -> Any:
    """``cuda.atomic.<name>(array, index, value)``."""
    signed, unsigned, real = _NATIVE.get(name, (None, None, None))
    loops_on, change = _LOOPS.get(name, (None, None))
    kinds = "integers and real numbers" if real or loops_on is nbt.Float else "integers" if signed else "unsigned integers"

    def codegen(context, builder, sig, args):
        ty, index_ty, value_ty = sig.args
        pointer = _pointer(context, builder, ty, args[0], index_ty, args[1])
        value = context.cast(builder, args[2], value_ty, ty.dtype)
        if loops_on is not None and isinstance(ty.dtype, loops_on):
            return _loop(builder, pointer, lambda old: change(builder, old, value))  # type: ignore[misc]
        native = real if isinstance(ty.dtype, nbt.Float) else signed if ty.dtype.signed else unsigned
        return builder.atomic_rmw(native, pointer, value, "seq_cst")

    @intrinsic
    def atomic(typingctx, array, index, value):
        _check(name, array, index, (value,), kinds)
        return array.dtype(array, index, value), codegen

    return atomic


def _swap(context, builder, pointer, ty: nbt.Type, old, value):
    """Put *value* where *old* is found; each of the two is (numba type, value)."""
    expected, new = (context.cast(builder, v, t, ty) for t, v in (old, value))
    return builder.extract_value(builder.cmpxchg(pointer, expected, new, "seq_cst", "seq_cst"), 0)


@intrinsic
def _cas(typingctx, array, index, old, value):
    """``cuda.atomic.cas(array, index, old, value)``."""
    _check("cas", array, index, (old, value), "integers")

    def codegen(context, builder, sig, args):
        pointer = _pointer(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        return _swap(context, builder, pointer, array.dtype, (old, args[2]), (value, args[3]))

    return array.dtype(array, index, old, value), codegen


@intrinsic
def _compare_and_swap(typingctx, array, old, value):
    """``cuda.atomic.compare_and_swap(array, old, value)`` on element 0."""
    _check("compare_and_swap", array, nbt.intp, (old, value), "integers")

    def codegen(context, builder, sig, args):
        pointer = _pointer(context, builder, sig.args[0], args[0], nbt.intp, context.get_constant(nbt.intp, 0))
        return _swap(context, builder, pointer, array.dtype, (old, args[1]), (value, args[2]))

    return array.dtype(array, old, value), codegen


OPERATIONS = {name: _operation(name) for name in {**_NATIVE, **_LOOPS}} | {"cas": _cas, "compare_and_swap": _compare_and_swap}
