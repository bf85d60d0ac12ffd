"""Philox4x32 and its distributions as plain Python on integers and floats: what the CPU target compiles and the simulator runs.

Every function here works the same compiled by numba and not. Integers are ``uint64`` that hold 32-bit words: a product of two words fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit

# Names and values of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
SHIFT_53 = np.uint64(21)

TWO_32 = np.float32(2.0**-32)
TWO_33 = np.float32(2.0**-33)
TWO_24 = np.float32(2.0**-24)
EIGHT = np.uint64(8)


def make_words(rounds: int) -> Callable:
    """``words(seed, stream, step)``: the four words of one call, each a ``uint64`` below 2^32."""

    def words(seed, stream, step):
        c0, c1 = np.uint64(step) & LOW, np.uint64(step) >> SHIFT
        c2, c3 = np.uint64(stream) & LOW, np.uint64(stream) >> SHIFT
        k0, k1 = np.uint64(seed) & LOW, np.uint64(seed) >> SHIFT
        for _ in range(rounds):
            p0, p1 = M0 * c0, M1 * c2
            c0, c1, c2, c3 = (p1 >> SHIFT) ^ c1 ^ k0, p1 & LOW, (p0 >> SHIFT) ^ c3 ^ k1, p0 & LOW
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        return c0, c1, c2, c3

    return words


@njit
def uniform(w):
    """cuRAND's float32 uniform of a word: (0, 1]."""
    return np.float32(np.float32(w) * TWO_32 + TWO_33)


@njit
def uniform_co(w):
    """float32 of [0, 1): the top 24 bits."""
    return np.float32(np.float32(np.uint64(w) >> EIGHT) * TWO_24)


@njit
def uniform_f64(first, second):
    """float64 of (0, 1] from 53 bits of two words; the smallest is 2^-54."""
    return np.float64(np.uint64(first) ^ (np.uint64(second) << SHIFT_53)) * 2.0**-53 + 2.0**-54


@njit
def uniform_co_f64(first, second):
    """float64 of [0, 1) from 53 bits of two words."""
    return np.float64(np.uint64(first) ^ (np.uint64(second) << SHIFT_53)) * 2.0**-53


@njit
def sincos_of_turn(u):
    """Sine and cosine of 2 pi u for 0 <= u <= 1. Quarter turns are taken off exactly, so that small values keep all their digits."""
    quarters = 4.0 * u
    whole = math.floor(quarters + 0.5)
    angle = (quarters - whole) * (0.5 * math.pi)
    s, c = math.sin(angle), math.cos(angle)
    k = int(whole) & 3
    if k == 1:
        return c, -s
    if k == 2:
        return -s, -c
    if k == 3:
        return -c, s
    return s, c


@njit
def normal_pair(first, second):
    """Box and Muller on cuRAND's uniforms, in double precision and rounded once: sine before cosine."""
    r = math.sqrt(-2.0 * math.log(np.float64(uniform(first))))
    s, c = sincos_of_turn(np.float64(uniform(second)))
    return np.float32(r * s), np.float32(r * c)


@njit
def normal_pair_f64(a, b, c, d):
    """Box and Muller on 53-bit uniforms: radius from the words *a*, *b*, angle from *c*, *d*."""
    r = math.sqrt(-2.0 * math.log(uniform_f64(a, b)))
    sine, cosine = sincos_of_turn(uniform_f64(c, d))
    return r * sine, r * cosine
