"""Memory access that numba-cuda has no words for: one 64- or 128-bit word for each complex element.

numba-cuda reads and writes a complex element as two numbers, since it knows no more than their own alignment. CUDA arrays of complex numbers
are aligned to whole elements nearly always, and ``whole`` tells; the half as many instructions and memory transactions are worth 10 to 20 %
of a transform that stands at the memory's speed.
"""

from __future__ import annotations

import functools

from numba import types as nbt
from numba.cuda.extending import intrinsic


@intrinsic
def whole(typingctx, row):
    """Whether every element of an array begins at a multiple of its size."""

    def codegen(context, builder, sig, args):
        data, strides = _data_and_strides(context, builder, sig.args[0], args[0])
        word = strides[0].type
        bits = builder.ptrtoint(data, word)
        if sig.args[0].layout != "C":
            for stride in strides:
                bits = builder.or_(bits, stride)
        return builder.icmp_unsigned("==", builder.and_(bits, word(_bytes(sig.args[0].dtype) - 1)), word(0))

    return nbt.boolean(row), codegen


@intrinsic
def pairs(typingctx, row):
    """Whether a 1-D array's elements 2 k and 2 k + 1 can be read as one: side by side, from a multiple of their common size."""

    def codegen(context, builder, sig, args):
        data, (stride,) = _data_and_strides(context, builder, sig.args[0], args[0])
        one = _bytes(sig.args[0].dtype)
        start = builder.icmp_unsigned("==", builder.and_(builder.ptrtoint(data, stride.type), stride.type(2 * one - 1)), stride.type(0))
        return builder.and_(start, builder.icmp_signed("==", stride, stride.type(one)))

    return nbt.boolean(row), codegen


@intrinsic
def read(typingctx, row, k):
    """Element *k* (an index, or a tuple of them) of a complex array of which ``whole`` holds; 0 <= k."""

    def codegen(context, builder, sig, args):
        return _load(context, builder, sig.return_type, _at(context, builder, sig.args[0], args[0], sig.args[1], args[1]))

    return row.dtype(row, k), codegen


@intrinsic
def write(typingctx, row, k, value):
    """Set element *k* (an index, or a tuple of them) of a complex array of which ``whole`` holds; 0 <= k."""

    def codegen(context, builder, sig, args):
        _store(context, builder, sig.args[2], args[2], _at(context, builder, sig.args[0], args[0], sig.args[1], args[1]))
        return context.get_dummy_value()

    return nbt.none(row, k, row.dtype), codegen


@intrinsic
def read_pair(typingctx, row, k):
    """Elements 2 k and 2 k + 1 of a 1-D real array of which ``pairs`` holds, as a complex number; 0 <= k."""

    def codegen(context, builder, sig, args):
        return _load(context, builder, sig.return_type, _pair(context, builder, sig, args))

    return _COMPLEX[row.dtype](row, k), codegen


@intrinsic
def write_pair(typingctx, row, k, value):
    """Set elements 2 k and 2 k + 1 of a 1-D real array of which ``pairs`` holds to a complex number's parts; 0 <= k."""

    def codegen(context, builder, sig, args):
        _store(context, builder, sig.args[2], args[2], _pair(context, builder, sig, args))
        return context.get_dummy_value()

    return nbt.none(row, k, _COMPLEX[row.dtype]), codegen


# -- half precision: two rows, of parts [p, k, part] or of pairs of real numbers [p, 2 k + part] -------------------------------------------------


@intrinsic
def half_words(typingctx, rows):
    """How the parts of element k of two rows of halves lie: 1 where those of one row fill a 32-bit word, 2 where those of both, the rows' side by
    side, fill a 64-bit one, 0 elsewhere."""

    def codegen(context, builder, sig, args):
        data, strides = _data_and_strides(context, builder, sig.args[0], args[0])
        row, step, part = _half_strides(builder, sig.args[0], strides)
        word = part.type

        def fits(part_step, size, *distances):
            start = functools.reduce(builder.or_, distances, builder.ptrtoint(data, word))
            aligned = builder.icmp_unsigned("==", builder.and_(start, word(size - 1)), word(0))
            return builder.and_(aligned, builder.icmp_signed("==", part, word(part_step)))

        apart = fits(2, 4, row, step)
        together = builder.and_(fits(4, 8, step), builder.icmp_signed("==", row, word(2)))
        kind = sig.return_type
        one, two, none = (context.get_constant(kind, n) for n in (1, 2, 0))
        return builder.select(apart, one, builder.select(together, two, none))

    return nbt.int32(rows), codegen


@intrinsic
def read_part(typingctx, rows, p, k, part):
    """A part of element *k* of row *p*."""

    def codegen(context, builder, sig, args):
        pointer = _half(context, builder, sig, args, args[3])
        return builder.load(builder.bitcast(pointer, context.get_value_type(nbt.float16).as_pointer(pointer.type.addrspace)))

    return nbt.float16(rows, nbt.int64, nbt.int64, nbt.int64), codegen


@intrinsic
def write_part(typingctx, rows, p, k, part, value):
    """Set a part of element *k* of row *p*."""

    def codegen(context, builder, sig, args):
        pointer = _half(context, builder, sig, args, args[3])
        builder.store(args[4], builder.bitcast(pointer, args[4].type.as_pointer(pointer.type.addrspace)))
        return context.get_dummy_value()

    return nbt.none(rows, nbt.int64, nbt.int64, nbt.int64, nbt.float16), codegen


@intrinsic
def read_word(typingctx, rows, p, k):
    """Both parts of element *k* of row *p*, where ``half_words`` is 1: the real part in the lower half."""

    def codegen(context, builder, sig, args):
        return _load_words(builder, _half(context, builder, sig, args, args[2].type(0)), 1)[0]

    return nbt.uint32(rows, nbt.int64, nbt.int64), codegen


@intrinsic
def write_word(typingctx, rows, p, k, value):
    """Set both parts of element *k* of row *p*."""

    def codegen(context, builder, sig, args):
        _store_words(builder, _half(context, builder, sig, args, args[2].type(0)), [args[3]])
        return context.get_dummy_value()

    return nbt.none(rows, nbt.int64, nbt.int64, nbt.uint32), codegen


@intrinsic
def read_both(typingctx, rows, k):
    """Element *k* of both rows, where ``half_words`` is 2: real parts in one word, imaginary ones in another, row 0 in the lower halves."""

    def codegen(context, builder, sig, args):
        zero = args[1].type(0)
        words = _load_words(builder, _half(context, builder, sig, (args[0], zero, args[1]), zero), 2)
        return context.make_tuple(builder, sig.return_type, words)

    return nbt.UniTuple(nbt.uint32, 2)(rows, nbt.int64), codegen


@intrinsic
def write_both(typingctx, rows, k, real, imag):
    """Set element *k* of both rows."""

    def codegen(context, builder, sig, args):
        zero = args[1].type(0)
        _store_words(builder, _half(context, builder, sig, (args[0], zero, args[1]), zero), args[2:])
        return context.get_dummy_value()

    return nbt.none(rows, nbt.int64, nbt.uint32, nbt.uint32), codegen


@intrinsic
def read_words(typingctx, registers, i):
    """Complex element *i* of a thread's own two transforms: two words, as of ``read_both``."""

    def codegen(context, builder, sig, args):
        return context.make_tuple(builder, sig.return_type, _load_words(builder, _registers(context, builder, sig, args), 2))

    return nbt.UniTuple(nbt.uint32, 2)(registers, nbt.int64), codegen


@intrinsic
def write_words(typingctx, registers, i, real, imag):
    """Set complex element *i* of a thread's own two transforms."""

    def codegen(context, builder, sig, args):
        _store_words(builder, _registers(context, builder, sig, args), args[2:])
        return context.get_dummy_value()

    return nbt.none(registers, nbt.int64, nbt.uint32, nbt.uint32), codegen


def _half_strides(builder, ty, strides):
    """Bytes from row to row, from element to element, from part to part."""
    if ty.layout == "C":
        strides[-1] = strides[-1].type(2)
    if ty.ndim == 3:
        return strides
    row, one = strides
    return row, builder.mul(one, one.type(2)), one


def _half(context, builder, sig, args, part):
    """Where a part of element args[2] of row args[1] lies."""
    data, strides = _data_and_strides(context, builder, sig.args[0], args[0])
    steps = [builder.mul(i, s) for i, s in zip((args[1], args[2], part), _half_strides(builder, sig.args[0], strides), strict=True)]
    return _offset(builder, data, functools.reduce(builder.add, steps))


def _registers(context, builder, sig, args):
    data, _ = _data_and_strides(context, builder, sig.args[0], args[0])
    return _offset(builder, data, builder.mul(args[1], args[1].type(8)))


def _load_words(builder, pointer, count):
    from llvmlite import ir

    if count == 1:
        return [builder.load(builder.bitcast(pointer, ir.IntType(32).as_pointer(pointer.type.addrspace)), align=4)]
    pair = ir.VectorType(ir.IntType(32), 2)
    word = builder.load(builder.bitcast(pointer, pair.as_pointer(pointer.type.addrspace)), align=8)
    return [builder.extract_element(word, ir.IntType(32)(i)) for i in range(2)]


def _store_words(builder, pointer, values):
    from llvmlite import ir

    if len(values) == 1:
        builder.store(values[0], builder.bitcast(pointer, ir.IntType(32).as_pointer(pointer.type.addrspace)), align=4)
        return
    pair = ir.VectorType(ir.IntType(32), 2)
    word = ir.Constant(pair, ir.Undefined)
    for i, value in enumerate(values):
        word = builder.insert_element(word, value, ir.IntType(32)(i))
    builder.store(word, builder.bitcast(pointer, pair.as_pointer(pointer.type.addrspace)), align=8)


_COMPLEX = {nbt.float32: nbt.complex64, nbt.float64: nbt.complex128}


def _bytes(dtype) -> int:
    return dtype.bitwidth // 8


def _data_and_strides(context, builder, ty, value):
    from numba.cuda import cgutils

    array = context.make_array(ty)(context, builder, value)
    return array.data, cgutils.unpack_tuple(builder, array.strides, ty.ndim)


def _at(context, builder, ty, value, index_type, index):
    from numba.cuda import cgutils

    data, strides = _data_and_strides(context, builder, ty, value)
    if ty.layout == "C":
        strides[-1] = strides[-1].type(_bytes(ty.dtype))
    if isinstance(index_type, nbt.BaseTuple):
        types, indices = list(index_type), cgutils.unpack_tuple(builder, index, len(index_type))
    else:
        types, indices = [index_type], [index]
    steps = [builder.mul(context.cast(builder, i, t, nbt.intp), s) for i, t, s in zip(indices, types, strides, strict=True)]
    return _offset(builder, data, functools.reduce(builder.add, steps))


def _pair(context, builder, sig, args):
    data, strides = _data_and_strides(context, builder, sig.args[0], args[0])
    step = strides[0].type(2 * _bytes(sig.args[0].dtype))
    return _offset(builder, data, builder.mul(context.cast(builder, args[1], sig.args[1], nbt.intp), step))


def _offset(builder, data, by):
    from llvmlite import ir

    return builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer(data.type.addrspace)), [by])


def _word(ty):
    from llvmlite import ir

    return ir.VectorType(ir.FloatType() if ty == nbt.complex64 else ir.DoubleType(), 2)


def _load(context, builder, ty, pointer):
    from llvmlite import ir

    word = builder.load(builder.bitcast(pointer, _word(ty).as_pointer(pointer.type.addrspace)), align=_bytes(ty))
    number = context.make_complex(builder, ty)
    number.real, number.imag = (builder.extract_element(word, ir.IntType(32)(i)) for i in range(2))
    return number._getvalue()


def _store(context, builder, ty, value, pointer):
    from llvmlite import ir

    number = context.make_complex(builder, ty, value=value)
    word = ir.Constant(_word(ty), ir.Undefined)
    for i, part in enumerate((number.real, number.imag)):
        word = builder.insert_element(word, part, ir.IntType(32)(i))
    builder.store(word, builder.bitcast(pointer, _word(ty).as_pointer(pointer.type.addrspace)), align=_bytes(ty))
