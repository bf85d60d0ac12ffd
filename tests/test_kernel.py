"""Kernels as objects: how they are called, pickled and copied."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from numba import cuda

import devmath as dm
from devmath.errors import ArgumentError, LaunchError

RNG = dm.random.Philox()


@dm.kernel
def axpy(x, y, a=2.0):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] += a * x[i]


@dm.kernel
def keep(out, seed, pair):
    out[0], out[1], out[2] = seed, pair[0], pair[1]


@dm.kernel
def first_word(out, seed):
    out[0] = RNG.bits4(seed, 0, 0)[0]


def test_arguments_by_keyword_and_by_default():
    x = np.arange(10.0)
    for call, factor in ((lambda k, y: k(x, y), 2), (lambda k, y: k(x, y=y, a=3.0), 3), (lambda k, y: k(a=0.5, y=y, x=x), 0.5)):
        y = np.ones(10)
        call(axpy[1, 32], y)
        np.testing.assert_array_equal(y, 1 + factor * x)


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((), {}, r"^axpy takes 3 arguments \(x, y, a\), got 0$"),
        ((1,), {"z": 1}, r"^axpy takes 3 arguments \(x, y, a\), got 1 and z: "),
        ((1, 2), {"x": 1}, r"^axpy takes 3 arguments \(x, y, a\), got 2 and x: multiple values"),
        ((RNG, np.ones(3)), {}, "^axpy: x is a plan; a kernel uses plans as global or closure variables, not as arguments$"),
    ],
)
def test_calls_that_do_not_fit(args, kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        axpy[1, 32](*args, **kwargs)


def test_integers_of_64_bits_in_any_order():
    """numba's dispatcher would take any Python integer for the int64 of an earlier call."""
    for values in ((1, 2**63, 2**64 - 1), (2**63, 1), (-1, 2**64 - 1, -(2**63))):
        for v in values:
            out = np.zeros(3, np.uint64)
            keep[1, 1](out, v, (v, 1) if v < 2**63 else (v, 2**63))
            assert int(out[0]) == int(out[1]) == v % 2**64
    words = []
    for seed in (-1, 2**64 - 1, np.uint64(2**64 - 1)):
        out = np.zeros(1, np.uint32)
        first_word[1, 1](out, seed)
        words.append(int(out[0]))
    assert len(set(words)) == 1


def test_kernels_are_pickled_and_copied_by_name():
    assert pickle.loads(pickle.dumps(axpy)) is axpy
    assert copy.deepcopy({"k": axpy})["k"] is axpy


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1000])
def test_forall(n):
    x, y = np.ones(n), np.zeros(n)
    axpy.forall(n)(x, y)
    axpy.forall(n, block=32)(x, y, 1.0)
    np.testing.assert_array_equal(y, np.full(n, 3.0))
    for bad in ({"n": -1}, {"n": 1.5}, {"n": 1, "block": 2000}):
        with pytest.raises(LaunchError):
            axpy.forall(**bad)


def test_methods_of_plans_show_their_arguments():
    import inspect

    assert list(inspect.signature(RNG.normal4).parameters) == ["seed", "stream", "step"]
    assert "stream : which stream" in inspect.getdoc(RNG.normal4)
