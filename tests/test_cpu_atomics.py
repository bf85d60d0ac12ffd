"""Atomics and bit functions on the CPU target: the meaning of ``numba.cuda``'s, from its documentation."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import atomic

import devmath as dm
from devmath.errors import KernelTypeError

NAN = math.nan
NUMBERS = ["int32", "uint32", "int64", "uint64", "float32", "float64"]
INTEGERS = NUMBERS[:4]
UNSIGNED = ["uint32", "uint64"]


# -- one operation after the other: the old value comes back, the new one is there --------------------------------------------


@dm.kernel
def on_numbers(x, v, old):
    for i in range(v.shape[0]):
        old[0, i] = cuda.atomic.add(x, 0, v[i])
        old[1, i] = cuda.atomic.sub(x, 1, v[i])
        old[2, i] = cuda.atomic.max(x, 2, v[i])
        old[3, i] = cuda.atomic.min(x, 3, v[i])
        old[4, i] = cuda.atomic.nanmax(x, 4, v[i])
        old[5, i] = cuda.atomic.nanmin(x, 5, v[i])
        old[6, i] = cuda.atomic.exch(x, 6, v[i])


@dm.kernel
def on_integers(x, v, old):
    for i in range(v.shape[0]):
        old[0, i] = cuda.atomic.and_(x, 0, v[i])
        old[1, i] = cuda.atomic.or_(x, 1, v[i])
        old[2, i] = cuda.atomic.xor(x, 2, v[i])


@dm.kernel
def on_unsigned(x, v, old):
    for i in range(v.shape[0]):
        old[0, i] = cuda.atomic.inc(x, 0, v[i])
        old[1, i] = cuda.atomic.dec(x, 1, v[i])


BY_HAND = {
    on_numbers: [
        lambda x, v: x + v,
        lambda x, v: x - v,
        max,
        min,
        max,
        min,
        lambda x, v: v,
    ],
    on_integers: [lambda x, v: x & v, lambda x, v: x | v, lambda x, v: x ^ v],
    on_unsigned: [lambda x, v: 0 if x >= v else x + 1, lambda x, v: v if x == 0 or x > v else x - 1],
}
CASES = [(on_numbers, t) for t in NUMBERS] + [(on_integers, t) for t in INTEGERS] + [(on_unsigned, t) for t in UNSIGNED]


@pytest.mark.parametrize("kernel, dtype", CASES, ids=lambda v: getattr(v, "__name__", v))
def test_old_value_and_new_value(kernel, dtype):
    """Against Python's own arithmetic modulo the width; real numbers are small integers, so that sums are exact."""

    @settings(max_examples=50)
    @given(st.data())
    def check(data):
        if dtype.startswith("float"):
            values = st.integers(-1000, 1000).map(float)
        else:
            info = np.iinfo(dtype)
            values = st.integers(int(info.min), int(info.max)) | st.integers(0, 3)
        start, *changes = data.draw(st.lists(values, min_size=2, max_size=8))
        operations = BY_HAND[kernel]
        x, old = np.full(len(operations), start, dtype), np.zeros((len(operations), len(changes)), dtype)
        kernel[1, 1](x, np.array(changes, dtype), old)
        for operation, last, row in zip(operations, x.tolist(), old.tolist(), strict=True):
            states = [start]
            for v in changes:
                states.append(wrapped(operation(states[-1], v), dtype))
            assert [*row, last] == states

    check()


def wrapped(value, dtype):
    if dtype.startswith("float"):
        return value
    bits = np.dtype(dtype).itemsize * 8
    value %= 2**bits
    return value - 2**bits if dtype.startswith("int") and value >= 2 ** (bits - 1) else value


@dm.kernel
def swap(x, v, old):
    for i in range(v.shape[0] - 1):
        old[0, i] = cuda.atomic.cas(x, 1, v[i], v[i + 1])
        old[1, i] = cuda.atomic.compare_and_swap(x, v[i], v[i + 1])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_value_is_swapped_only_where_it_was_expected(dtype):
    x, old = np.array([5, 5], dtype), np.zeros((2, 3), dtype)
    swap[1, 1](x, np.array([5, 6, 6, 9], dtype), old)
    assert (old.tolist(), x.tolist()) == ([[5, 6, 6]] * 2, [9, 9])
    swap[1, 1](x, np.array([8, 1], dtype), old)
    assert (old[:, 0].tolist(), x.tolist()) == ([9, 9], [9, 9])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_leaves_max_and_min_alone_and_gives_way_in_nanmax_and_nanmin(dtype):
    """What numba-cuda's implementation does."""
    for start, value, plain, nan_is_missing in [(NAN, 2, NAN, 2), (2, NAN, 2, 2), (NAN, NAN, NAN, NAN)]:
        x, old = np.full(7, start, dtype), np.zeros((7, 1), dtype)
        on_numbers[1, 1](x, np.array([value], dtype), old)
        np.testing.assert_array_equal(x[2:6], [plain, plain, nan_is_missing, nan_is_missing])
        np.testing.assert_array_equal(old[2:6, 0], [start] * 4)


# -- many blocks at once --------------------------------------------------------------------------------------------------------


@dm.kernel
def all_at_once(i8, u4, f4, f8, bits, wheel, seen):
    i = cuda.grid(1)
    cuda.atomic.add(i8, (0, 1), 1)
    cuda.atomic.sub(u4, 0, 1)
    cuda.atomic.add(f4, 1, 1)
    cuda.atomic.max(f8, 0, float(i))
    cuda.atomic.min(f8, 1, -float(i))
    cuda.atomic.xor(bits, i % 2, 1 << (i % 31))
    seen[cuda.atomic.inc(wheel, 0, 99)] = 1
    atomic.add(f8, -1, 0.5)


def test_no_update_is_lost_among_blocks():
    n = 50_000
    i8, u4, f4 = np.zeros((2, 2), np.int64), np.full(1, n, np.uint32), np.zeros(2, np.float32)
    f8, bits, wheel, seen = np.zeros(3), np.zeros(2, np.int32), np.zeros(1, np.uint32), np.zeros(100)
    all_at_once[n // 10, 10](i8, u4, f4, f8, bits, wheel, seen)
    assert i8.tolist() == [[0, n], [0, 0]]
    assert u4[0] == 0
    assert f4.tolist() == [0, n]
    assert f8.tolist() == [n - 1, 1 - n, n / 2]
    expected = [0, 0]
    for i in range(n):
        expected[i % 2] ^= 1 << (i % 31)
    assert bits.tolist() == expected
    assert wheel[0] == n % 100
    assert seen.all()


# -- what is refused --------------------------------------------------------------------------------------------------------------


def _refused():
    @dm.kernel
    def add(x):
        cuda.atomic.add(x, 0, 1)

    @dm.kernel
    def or_(x):
        cuda.atomic.or_(x, 0, 1)

    @dm.kernel
    def inc(x):
        cuda.atomic.inc(x, 0, 1)

    @dm.kernel
    def cas(x):
        cuda.atomic.cas(x, 0, 1, 2)

    @dm.kernel
    def value(x):
        cuda.atomic.add(x, 0, 1j)

    read_only = np.zeros(3)
    read_only.flags.writeable = False
    return [
        (add, read_only, "cuda.atomic.add: the array is read-only"),
        (add, np.zeros((2, 3)), "cuda.atomic.add: a 2-D float64 array takes 2 indices, got 1"),
        (add, np.zeros(3, np.complex64), "cuda.atomic.add works on integers and real numbers, got a 1-D complex64 array"),
        (add, np.zeros(3, np.float16), "cuda.atomic.add works on integers and real numbers, got a 1-D float16 array"),
        (add, 3, "cuda.atomic.add works on an array, got int64"),
        (or_, np.zeros(3), "cuda.atomic.or_ works on integers, got a 1-D float64 array"),
        (inc, np.zeros(3, np.int32), "cuda.atomic.inc works on unsigned integers, got a 1-D int32 array"),
        (cas, np.zeros(3), "cuda.atomic.cas works on integers, got a 1-D float64 array"),
        (value, np.zeros(3), "cuda.atomic.add: the value is complex128, it must be a real number"),
    ]


@pytest.mark.parametrize("kernel, x, message", _refused(), ids=lambda v: v if isinstance(v, str) else "")
def test_what_cannot_be_done_is_refused_in_one_line(kernel, x, message):
    with pytest.raises(KernelTypeError) as e:
        kernel[1, 1](x)
    assert str(e.value) == message


# -- bits -------------------------------------------------------------------------------------------------------------------------


@dm.kernel
def bit_functions(x, popc, clz, ffs, brev):
    for i in range(x.shape[0]):
        popc[i], clz[i], ffs[i], brev[i] = cuda.popc(x[i]), cuda.clz(x[i]), cuda.ffs(x[i]), cuda.brev(x[i])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bit_functions(dtype):
    bits = np.dtype(dtype).itemsize * 8

    @settings(max_examples=30)
    @given(st.integers(0, 2**bits - 1))
    @example(0)
    @example(2**bits - 1)
    @example(1)
    def check(word):
        text = f"{word:0{bits}b}"
        x = np.array([word], f"uint{bits}").view(dtype)
        found = [np.zeros(1, np.uint64) for _ in range(4)]
        bit_functions[1, 1](x, *found)
        expected = [text.count("1"), len(text.split("1")[0]), text[::-1].find("1") + 1, int(text[::-1], 2)]
        assert [int(f[0]) for f in found] == expected

    check()


@dm.kernel
def fused(a, b, c, out):
    out[0] = cuda.fma(a, b, c)
    out[1] = cuda.selp(a > b, a, b)


def test_fma_rounds_once():
    """(1 + e)(1 - e) - 1 is -e^2; a product that was rounded first gives 0."""
    for real, e in ((np.float32, 2.0**-13), (np.float64, 2.0**-30)):
        out = np.zeros(2)
        fused[1, 1](real(1 + e), real(1 - e), real(-1), out)
        assert out.tolist() == [-(e**2), 1 + e]
    mixed = np.zeros(2)
    fused[1, 1](np.float32(1.5), 2.0, 1, mixed)  # float64 where one of them is
    assert mixed.tolist() == [4.0, 2.0]


def test_bit_functions_take_integers():
    with pytest.raises(KernelTypeError, match="^cuda.popc takes an integer, got float64$"):
        bit_functions[1, 1](np.zeros(1), *np.zeros((4, 1)))


def test_fences_and_the_warps_size():
    @dm.kernel
    def kernel(out):
        cuda.threadfence()
        cuda.threadfence_block()
        cuda.threadfence_system()
        out[0] = cuda.warpsize

    out = np.zeros(1)
    kernel[1, 1](out)
    assert out[0] == 32
