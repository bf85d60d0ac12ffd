"""Half precision in numba's CPU compiler, which knows the type's name and nothing else of it: 16 bits in memory, and conversions.

A half that takes part in arithmetic becomes a float32, as in C. Conversions round to nearest, ties to even, as IEEE 754 has it.
"""

from __future__ import annotations

import functools

import numpy as np
from llvmlite import ir
from numba import types as nbt
from numba.core import boxing, pythonapi
from numba.core.datamodel.models import FloatModel, PrimitiveModel
from numba.extending import NativeValue, register_model

from . import cpu_cuda

_HALF, _WORD = ir.HalfType(), ir.IntType(16)
_LARGEST_EXPONENT = 15
_FRACTION = 2**52


class _Model(FloatModel):
    """numba's model of floats, with one more."""

    def __init__(self, dmm, fe_type):
        if fe_type == nbt.float16:
            PrimitiveModel.__init__(self, dmm, fe_type, _HALF)
        else:
            super().__init__(dmm, fe_type)


def _to_bits(x):
    """The nearest half of a double, as its bits."""
    bits = np.float64(x).view(np.int64)
    sign, exponent, fraction = (bits >> 48) & 0x8000, ((bits >> 52) & 0x7FF) - 1023, bits & (_FRACTION - 1)
    if exponent == 1024:
        return np.uint16(sign | (0x7E00 if fraction else 0x7C00))
    if exponent > _LARGEST_EXPONENT:
        return np.uint16(sign | 0x7C00)
    if exponent < -25:
        return np.uint16(sign)
    whole = fraction | _FRACTION
    shift = 42 if exponent >= -14 else 28 - exponent  # 10 bits of fraction, fewer below the normal numbers
    kept, rest, half = whole >> shift, whole & ((1 << shift) - 1), 1 << (shift - 1)
    if rest > half or (rest == half and kept & 1):
        kept += 1
    # A carry out of the fraction is the next exponent, infinity at the last.
    return np.uint16(sign | (kept + ((exponent + 14) << 10) if exponent >= -14 else kept))


def _from_bits(bits):
    """A half, from its bits, as a float32."""
    word = np.int32(bits)
    exponent, fraction = (word >> 10) & 0x1F, word & 0x3FF
    if exponent == 0:
        small = np.float32(fraction) * np.float32(2.0**-24)
        return -small if word & 0x8000 else small
    high = 0xFF if exponent == 0x1F else exponent + 112
    return np.int32(((word & 0x8000) << 16) | (high << 23) | (fraction << 13)).view(np.float32)


@functools.cache
def install() -> None:
    """Make numba's CPU compiler know halves."""
    register_model(nbt.Float)(_Model)
    lowering = cpu_cuda.LOWERING
    numbers = (*nbt.real_domain, *nbt.integer_domain, nbt.boolean)

    def widen(context, builder, fromty, toty, value):
        single = context.compile_internal(builder, _from_bits, nbt.float32(nbt.uint16), (builder.bitcast(value, _WORD),))
        return context.cast(builder, single, nbt.float32, toty)

    def narrow(context, builder, fromty, toty, value):
        double = context.cast(builder, value, fromty, nbt.float64)
        return builder.bitcast(context.compile_internal(builder, _to_bits, nbt.uint16(nbt.float64), (double,)), _HALF)

    for other in {*numbers, *nbt.complex_domain} - {nbt.float16}:
        lowering.lower_cast(nbt.float16, other)(widen)
    for other in set(numbers) - {nbt.float16}:
        lowering.lower_cast(other, nbt.float16)(narrow)

    others = boxing.unbox_float

    def unbox(ty, value, c):
        if ty != nbt.float16:
            return others(ty, value, c)
        double = others(nbt.float64, value, c)
        made = c.context.compile_subroutine(c.builder, _to_bits, nbt.uint16(nbt.float64)).fndesc
        function = c.context.declare_function(c.builder.module, made)
        # Nothing to hand an exception to here, and none to hand.
        _, bits = c.context.call_conv.call_function(c.builder, function, made.restype, made.argtypes, (double.value,))
        return NativeValue(c.builder.bitcast(bits, _HALF), is_error=double.is_error)

    pythonapi._unboxers.functions[nbt.Float] = unbox

    @lowering.lower_constant(nbt.float16)
    def constant(context, builder, ty, value):
        return _WORD(int(np.float16(value).view(np.uint16))).bitcast(_HALF)
