"""Half precision on the CPU target, which numba itself does not have: every value, every rounding, as NumPy has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda

import devmath as dm

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)


@dm.kernel
def copy(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i]


def copied(x, dtype):
    y = np.zeros(len(x), dtype)
    copy[-(-len(x) // 64), 64](x, y)
    return y


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.complex128])
def test_every_half_is_widened_exactly(dtype):
    got = copied(ALL, dtype)
    np.testing.assert_array_equal(got, ALL.astype(dtype))
    finite = np.isfinite(ALL)
    if not np.issubdtype(dtype, np.complexfloating):
        np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(ALL[finite]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_beside_every_half_and_midway_are_rounded_as_by_numpy(dtype):
    finite = np.sort(ALL[np.isfinite(ALL)].astype(dtype))
    middle = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middle, dtype(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([finite, middle, *beside, dtype([1e30, -1e30, np.inf, -np.inf, np.nan])])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(copied(x, np.float16), want)


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_any_double_is_rounded_once(values):
    x = np.array(values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(copied(x, np.float16), x.astype(np.float16))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.bool_])
def test_integers(dtype):
    x = np.array([0, 1, 1, 0, 1] if dtype is np.bool_ else [0, 1, 2, 100, 127], dtype)
    np.testing.assert_array_equal(copied(x, np.float16), x.astype(np.float16))
    np.testing.assert_array_equal(copied(x.astype(np.float16), dtype), x)


@pytest.mark.parametrize("value", [np.float16(0.1), np.float16(65504), np.float16(-np.inf)])
def test_an_argument_of_a_kernel(value):
    @dm.kernel
    def put(x, y):
        y[0], y[1] = x, x * np.float32(2)

    y = np.zeros(2, np.float32)
    put[1, 1](value, y)
    np.testing.assert_array_equal(y, [np.float32(value), np.float32(value) * 2])


def test_fields_and_shared_memory():
    @dm.kernel
    def work(x, y):
        s = cuda.shared.array(2, np.float16)
        s[0] = x[0].a
        x[1].a = s[0] * np.float16(2)
        y[()] = x[1].a

    x, y = np.zeros(2, [("a", "f2"), ("b", "f4")]), np.zeros((), np.float16)
    x["a"] = 3
    work[1, 1](x, y)
    assert y == 6 and x["a"].tolist() == [3, 6]


def test_arithmetic_is_that_of_float32(rng):
    half, third = np.float16(0.5), np.float32(1 / 3)

    @dm.kernel
    def work(x, y, z):
        i = cuda.grid(1)
        if i < x.shape[0]:
            own = cuda.local.array(2, np.float16)
            own[0], own[1] = x[i], np.float16(third)
            y[i] = own[0] * own[0] + x[i] * third - half
            z[i] = max(own[1], np.float16(x[i].real)) + np.float32(own[0].imag)

    x = rng.standard_normal(100).astype(np.float16)
    y, z = np.zeros(100, np.float32), np.zeros(100, np.float16)
    work[2, 64](x, y, z)
    wide = x.astype(np.float32)
    np.testing.assert_allclose(y, wide * wide + wide * third - np.float32(0.5), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(z, np.maximum(x, np.float16(third)))
