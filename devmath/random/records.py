"""The device functions of a Philox plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numba import types as nbt

from ..codegen.sources import ShimSource
from ..functions import Arg, Array, DeviceFunction, Values
from . import philox_math as pm

_WHERE = (
    Arg("seed", "u64", "the generator's key"),
    Arg("stream", "u64", "which stream, such as the path's number; cuRAND's `subsequence`"),
    Arg("step", "u64", "which call within the stream: 0, 1, 2, ...; call `step` gives draws 4 * step to 4 * step + 3 of cuRAND's sequence"),
)
_WORDS = tuple(Arg(n, "u32", "a word of 32 random bits") for n in "xyzw")
_STATE = Arg("state", "state", "what `new_state()` made and `seed` set; it is moved on")

_uniform, _uniform_co, _normal_pair = pm.uniform, pm.uniform_co, pm.normal_pair
_uniform_f64, _uniform_co_f64, _normal_pair_f64 = pm.uniform_f64, pm.uniform_co_f64, pm.normal_pair_f64


@njit
def _bits4(x, y, z, w):
    return np.uint32(x), np.uint32(y), np.uint32(z), np.uint32(w)


@njit
def _uniform4(x, y, z, w):
    return _uniform(x), _uniform(y), _uniform(z), _uniform(w)


@njit
def _uniform4_co(x, y, z, w):
    return _uniform_co(x), _uniform_co(y), _uniform_co(z), _uniform_co(w)


@njit
def _normal4(x, y, z, w):
    a, b = _normal_pair(x, y)
    c, d = _normal_pair(z, w)
    return a, b, c, d


@njit
def _uniform2_f64(x, y, z, w):
    return _uniform_f64(x, y), _uniform_f64(z, w)


@njit
def _uniform2_co_f64(x, y, z, w):
    return _uniform_co_f64(x, y), _uniform_co_f64(z, w)


@njit
def _normal2_f64(x, y, z, w):
    return _normal_pair_f64(x, y, z, w)


class _Form(NamedTuple):
    """A distribution on the four words of one call."""

    name: str
    values: Values
    of_words: Callable
    doc: str


_FORMS = (
    _Form("bits4", Values(nbt.uint32, 4), _bits4, "Four words of 32 random bits: Philox4x32 itself."),
    _Form(
        "uniform4", Values(nbt.float32, 4), _uniform4,
        "Four float32 uniforms of (0, 1], cuRAND's rule: word * 2^-32 + 2^-33. The smallest is 2^-33; the top 128 words of 2^32 give 1.0.",
    ),
    _Form(
        "uniform4_co", Values(nbt.float32, 4), _uniform4_co,
        "Four float32 uniforms of [0, 1), the top 24 bits of the words: `int(n * u)` stays below n.",
    ),
    _Form(
        "normal4", Values(nbt.float32, 4), _normal4,
        "Four float32 standard normals by Box and Muller on cuRAND's uniforms, in cuRAND's order. |z| <= 6.77. CPU and GPU agree within a few ulp.",
    ),
    _Form(
        "normal4_fast", Values(nbt.float32, 4), _normal4,
        "`normal4` for Monte Carlo, from the GPU's special function units (polynomials on the CPU). It follows `normal4` of the same words to a "
        "part of the pair's radius r = sqrt(-2 ln u): on the CPU within 4e-7 r, on the GPU within 1.3e-6 r (8.8e-6 at the most), and "
        "where r < 1.18 within 1.1e-6 r + min(3.4e-7 / r, 6.1e-4). |z| <= 6.77.",
    ),
    _Form("uniform2_f64", Values(nbt.float64, 2), _uniform2_f64, "Two float64 uniforms of (0, 1] from 53 bits each; the smallest is 2^-54."),
    _Form("uniform2_co_f64", Values(nbt.float64, 2), _uniform2_co_f64, "Two float64 uniforms of [0, 1) from 53 bits each."),
    _Form(
        "normal2_f64", Values(nbt.float64, 2), _normal2_f64,
        "Two float64 standard normals by Box and Muller on 53-bit uniforms. |z| <= 8.66. Within a few ulp of the formula.",
    ),
)  # fmt: skip


def _of_position(of_words: Callable) -> Callable:
    def meaning(plan, traits):
        words = plan.words

        def draw(seed, stream, step):
            x, y, z, w = words(seed, stream, step)
            return of_words(x, y, z, w)

        return draw

    return meaning


def _code(what: str) -> Callable:
    def code(plan, traits):
        return ShimSource("philox.cu", f"dm_philox_{what}_r{plan.rounds}", (("DM_ROUNDS", str(plan.rounds)),))

    return code


def _fast(name: str) -> Callable:
    def make(plan, traits):
        from . import cpu

        return getattr(cpu, name)(plan, traits)

    return make


def _functions() -> list[DeviceFunction]:
    made = []
    for form in _FORMS:
        fast = form.name == "normal4_fast"
        made.append(
            DeviceFunction(
                form.name, _WHERE, form.doc, form.values, _of_position(form.of_words), _code(form.name), _fast(form.name) if fast else None
            )
        )
        name = f"{form.name}_from_bits"
        if form.name == "bits4":
            continue
        made.append(
            DeviceFunction(
                name, _WORDS, f"What `{form.name}` makes of four given words.", form.values,
                lambda plan, traits, of_words=form.of_words: of_words.py_func, _code(name), _fast(name) if fast else None,
            )
        )  # fmt: skip
    return made


def _scaled(plan, traits):
    words = plan.words

    def normal4_fast_scaled(seed, stream, step, mean, scale):
        x, y, z, w = words(seed, stream, step)
        a, b, c, d = _normal4(x, y, z, w)
        return mean + scale * a, mean + scale * b, mean + scale * c, mean + scale * d

    return normal4_fast_scaled


# -- a state in registers ---------------------------------------------------------------------------------------------------------

# Words of a state: counter 0 to 3, key 4 and 5, position 6 (4: the next draw makes new words), words 7 to 10, second normal 11 (its bits) and
# whether it is there 12.
STATE_WORDS = 13
_POSITION, _FIRST_WORD, _SPARE, _HAS_SPARE = 6, 7, 11, 12
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def _seed(plan, traits):
    words = plan.words

    def start(state, seed, stream, offset):
        step = offset >> np.uint64(2)
        state[0], state[1] = np.uint32(step & _LOW), np.uint32(step >> _SHIFT)
        state[2], state[3] = np.uint32(stream & _LOW), np.uint32(stream >> _SHIFT)
        state[4], state[5] = np.uint32(seed & _LOW), np.uint32(seed >> _SHIFT)
        state[_POSITION] = np.uint32(offset & np.uint64(3))
        x, y, z, w = words(seed, stream, step)
        state[7], state[8], state[9], state[10] = np.uint32(x), np.uint32(y), np.uint32(z), np.uint32(w)
        state[_SPARE], state[_HAS_SPARE] = np.uint32(0), np.uint32(0)

    return start


def _bits(plan, traits):
    words = plan.words

    def bits(state):
        position = state[_POSITION]
        if position == np.uint32(4):
            position = np.uint32(0)
            step = ((np.uint64(state[1]) << _SHIFT) | np.uint64(state[0])) + np.uint64(1)
            state[0], state[1] = np.uint32(step & _LOW), np.uint32(step >> _SHIFT)
            stream = (np.uint64(state[3]) << _SHIFT) | np.uint64(state[2])
            seed = (np.uint64(state[5]) << _SHIFT) | np.uint64(state[4])
            x, y, z, w = words(seed, stream, step)
            state[7], state[8], state[9], state[10] = np.uint32(x), np.uint32(y), np.uint32(z), np.uint32(w)
        state[_POSITION] = np.uint32(position + np.uint32(1))
        # Chosen by comparison, not by a computed index, so that the state can stay in registers.
        if position == np.uint32(0):
            return state[7]
        if position == np.uint32(1):
            return state[8]
        if position == np.uint32(2):
            return state[9]
        return state[10]

    return bits


def _uniform_of_state(plan, traits):
    bits = plan.jitted("bits")

    def uniform(state):
        return _uniform(bits(state))

    return uniform


def _normal_of_state(plan, traits):
    bits = plan.jitted("bits")

    def normal(state):
        if state[_HAS_SPARE] != np.uint32(0):
            state[_HAS_SPARE] = np.uint32(0)
            return state[_SPARE : _SPARE + 1].view(np.float32)[0]
        first = bits(state)
        a, b = _normal_pair(first, bits(state))
        state[_SPARE : _SPARE + 1].view(np.float32)[0] = b
        state[_HAS_SPARE] = np.uint32(1)
        return a

    return normal


_STATEFUL = (
    DeviceFunction(
        "new_state",
        (),
        f"A thread-local array of {STATE_WORDS} words for a generator's state, to be set by `seed`. It stays in registers where the compiler "
        "can see all its uses.",
        returns=Array("local", lambda plan: nbt.uint32, lambda traits: traits.state_size),
    ),
    DeviceFunction(
        "seed",
        (
            _STATE,
            *_WHERE[:2],
            Arg("offset", "u64", "how many draws of 32 bits to skip, 0 to 2^64 - 1; all 64 bits count"),
        ),
        "Set a state to draw `offset` of a stream: cuRAND's `curand_init(seed, stream, offset)`.",
        meaning=_seed,
        code=_code("seed"),
    ),
    DeviceFunction("bits", (_STATE,), "The next 32 random bits.", Values(nbt.uint32), _bits, _code("bits")),
    DeviceFunction(
        "uniform", (_STATE,), "The next float32 uniform of (0, 1], cuRAND's rule.", Values(nbt.float32), _uniform_of_state, _code("uniform")
    ),
    DeviceFunction(
        "normal",
        (_STATE,),
        "The next float32 standard normal; the second one of a Box-Muller pair waits in the state, as in cuRAND.",
        Values(nbt.float32),
        _normal_of_state,
        _code("normal"),
    ),
)

_SCALED = DeviceFunction(
    "normal4_fast_scaled",
    (*_WHERE, Arg("mean", "f32", "the normals' mean"), Arg("scale", "f32", "their standard deviation")),
    "Four float32 normals `mean + scale * z` with the z of `normal4_fast`, for the price of those.",
    Values(nbt.float32, 4),
    _scaled,
    _code("normal4_fast_scaled"),
    _fast("normal4_fast_scaled"),
)

PHILOX = {fn.name: fn for fn in (*_functions(), _SCALED, *_STATEFUL)}
