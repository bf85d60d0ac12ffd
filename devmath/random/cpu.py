"""Quicker forms of the Monte Carlo normals for compiled CPU code: polynomials without calls or branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from .philox_math import TWO_32, TWO_33, make_words

_F = np.float32
_I = np.int32

# Cephes' single-precision coefficients (logf.c, sinf.c): ln(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)), sin and cos on [-pi/4, pi/4].
_LOG = tuple(map(_F, (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
    -2.4999993993e-1, 3.3333331174e-1,
)))  # fmt: skip
_SIN = tuple(map(_F, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)))
_COS = tuple(map(_F, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)))
_LN2, _HALF, _ONE, _TWO = _F(0.6931471805599453), _F(0.5), _F(1.0), _F(2.0)
_PI_31 = _F(3.141592653589793 * 2.0**-31)
_ROOT_HALF_BITS = _I(0x3F3504F3)
_EXP_MASK, _MANTISSA_BITS = _I(-(1 << 23)), _I(23)
_QUARTER_ROUND, _QUARTER_BITS = _I(1 << 29), _I(30)
_ZERO_I, _ONE_I, _TWO_I = _I(0), _I(1), _I(2)


@njit(inline="always", fastmath={"contract", "nsz", "nnan", "ninf"})
def fast_pair(first, second, mean, scale):
    """Two normals ``mean + scale * z`` of two words; the angle is the second word as a signed fraction of a half turn."""
    u = _F(first) * TWO_32 + TWO_33
    bits = np.float32(u).view(np.int32)
    exponent = (bits - _ROOT_HALF_BITS) >> _MANTISSA_BITS
    f = np.int32(bits - (exponent << _MANTISSA_BITS)).view(np.float32) - _ONE
    p = _LOG[0]
    for c in _LOG[1:]:
        p = p * f + c
    f2 = f * f
    ln = f + f2 * (p * f - _HALF) + _F(exponent) * _LN2
    r = scale * np.sqrt(np.abs(_TWO * ln))
    turn = _I(np.uint32(second))
    quarter = _I((turn + _QUARTER_ROUND) >> _QUARTER_BITS)
    x = _F(_I(turn - (quarter << _QUARTER_BITS))) * _PI_31
    x2 = x * x
    s = x + x * x2 * ((_SIN[0] * x2 + _SIN[1]) * x2 + _SIN[2])
    k = _ONE - _HALF * x2 + x2 * x2 * ((_COS[0] * x2 + _COS[1]) * x2 + _COS[2])
    odd = (quarter & _ONE_I) != _ZERO_I
    sine = k if odd else s
    cosine = -s if odd else k
    sign = -_ONE if (quarter & _TWO_I) != _ZERO_I else _ONE
    r = r * sign
    return mean + r * sine, mean + r * cosine


def normal4_fast(plan: Any, traits: Any) -> Callable:
    """``normal4_fast`` for compiled CPU code."""
    words = njit(inline="always")(make_words(plan.rounds))

    def normal4_fast(seed, stream, step):
        w = words(seed, stream, step)
        a, b = fast_pair(w[0], w[1], _F(0.0), _ONE)
        c, d = fast_pair(w[2], w[3], _F(0.0), _ONE)
        return a, b, c, d

    return normal4_fast


def normal4_fast_scaled(plan: Any, traits: Any) -> Callable:
    """``normal4_fast_scaled`` for compiled CPU code."""
    words = njit(inline="always")(make_words(plan.rounds))

    def normal4_fast_scaled(seed, stream, step, mean, scale):
        w = words(seed, stream, step)
        a, b = fast_pair(w[0], w[1], mean, scale)
        c, d = fast_pair(w[2], w[3], mean, scale)
        return a, b, c, d

    return normal4_fast_scaled


def normal4_fast_from_bits(plan: Any, traits: Any) -> Callable:
    """``normal4_fast_from_bits`` for compiled CPU code."""

    def normal4_fast_from_bits(x, y, z, w):
        a, b = fast_pair(x, y, _F(0.0), _ONE)
        c, d = fast_pair(z, w, _F(0.0), _ONE)
        return a, b, c, d

    return normal4_fast_from_bits
