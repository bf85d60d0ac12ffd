"""The CPU target: what a kernel may use there, and that it means what it means on a GPU."""

import itertools
import math

import numba
import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba import cuda as c
from numba.cuda import blockIdx, grid, local, shared, threadIdx

import devmath as dm
from devmath.errors import KernelTypeError, KernelValueError, LaunchError, TargetError

FFT = dm.fft.FFT(8)
EXTENT, SHAPE = 3, (2, 3)
few = settings(max_examples=25)


def filled(kernel, config, *args, n=8, dtype=np.float64):
    """What *kernel* leaves in its last argument, an array of zeros."""
    out = np.zeros(n, dtype)
    kernel[config](*args, out)
    return out


def line(kernel, offset=1):
    """Line of a kernel's source, counted from its ``def``."""
    return kernel.py_func.__code__.co_firstlineno + 1 + offset


# -- positions -------------------------------------------------------------------------------------------------------------


@dm.kernel
def positions(out):
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    row = out[b, t]
    row[0], row[1], row[2] = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    row[3], row[4], row[5] = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    row[6], row[7], row[8] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    row[9], row[10], row[11] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    row[12], row[13] = cuda.grid(1), cuda.gridsize(1)
    row[14], row[15] = cuda.grid(2)
    row[16], row[17] = cuda.gridsize(2)
    row[18], row[19], row[20] = cuda.grid(3)
    row[21], row[22], row[23] = cuda.gridsize(3)


def positions_by_hand(grid, block):
    rows = []
    for b in itertools.product(*map(range, grid[::-1])):
        for t in itertools.product(*map(range, block[::-1])):
            b_, t_ = b[::-1], t[::-1]
            at = [i * n + j for i, n, j in zip(b_, block, t_, strict=True)]
            size = [g * n for g, n in zip(grid, block, strict=True)]
            rows.append([*t_, *b_, *block, *grid, at[0], size[0], *at[:2], *size[:2], *at, *size])
    return np.array(rows)


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@few
@given(shapes, shapes)
def test_every_thread_runs_once_at_its_place(grid, block):
    wide_grid, wide_block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
    out = np.full((math.prod(grid), math.prod(block), 24), -1)
    positions[grid, block](out)
    np.testing.assert_array_equal(out.reshape(-1, 24), positions_by_hand(wide_grid, wide_block))


@dm.kernel
def axpy(a, x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i] += a * x[i] + i


@few
@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 200))
def test_a_grid_stride_loop_does_not_depend_on_the_launch(grid, block, n):
    x, y = np.arange(n) * 0.5, np.ones(n)
    axpy[grid, block](2.0, x, y)
    np.testing.assert_array_equal(y, 1 + 2.0 * x + np.arange(n))


@dm.kernel
def by_import(out):
    out[grid(1)] = 10 * blockIdx.x + threadIdx.x


@dm.kernel
def by_other_name(out):
    out[c.grid(1)] = 10 * c.blockIdx.x + c.threadIdx.x


@dm.kernel
def by_numba(out):
    out[numba.cuda.grid(1)] = numba.float64(10 * nb.cuda.blockIdx.x + nb.cuda.threadIdx.x)


@dm.kernel
def by_local_name(out):
    d = cuda
    t = d.threadIdx
    out[d.grid(1)] = 10 * d.blockIdx.x + t.x


@pytest.mark.parametrize("kernel", [by_import, by_other_name, by_numba, by_local_name])
def test_the_cuda_module_by_any_name(kernel):
    np.testing.assert_array_equal(filled(kernel, (2, 4)), [0, 1, 2, 3, 10, 11, 12, 13])


def test_grid_of_four_dimensions_is_refused():
    @dm.kernel
    def kernel(out):
        out[0] = cuda.grid(4)

    with pytest.raises(KernelValueError, match=r"^cuda.grid takes 1, 2 or 3, written as a constant, got 4$"):
        filled(kernel, (1, 1))


# -- arrays of a thread and of a block ----------------------------------------------------------------------------------------


def test_local_arrays_of_every_shape():
    n = 5

    @dm.kernel
    def kernel(out):
        a = cuda.local.array(4, np.float32)
        b = cuda.local.array((2, 3, 4), nb.int64)
        d = cuda.local.array(shape=SHAPE, dtype="complex64")
        e = local.array((EXTENT,), cuda.float64)
        f = cuda.local.array(n, nb.types.int8)
        m = 6
        g = cuda.local.array(m, np.bool_)
        h = cuda.local.array(FFT.storage_size, FFT.value_type)
        b[:] = cuda.threadIdx.x
        i = cuda.threadIdx.x
        out[i, 0], out[i, 1], out[i, 2] = a.size, b.size, d.size
        out[i, 3], out[i, 4], out[i, 5] = e.size, f.size, g.size
        out[i, 6], out[i, 7] = h.size, b.sum()

    expected = [[4, 24, 6, 3, 5, 6, 8, 24 * t] for t in range(3)]
    np.testing.assert_array_equal(filled(kernel, (1, 3), n=(3, 8)), expected)


def test_a_local_array_needs_constants():
    @dm.kernel
    def kernel(n, out):
        out[0] = cuda.local.array(n, np.float32).size

    with pytest.raises(KernelTypeError, match=r"^cuda.local.array takes a shape and a dtype that are compile-time con"):
        filled(kernel, (1, 1), 4)


def test_large_local_arrays_are_freed():
    from numba.core.runtime import _nrt_python, rtsys

    @dm.kernel
    def kernel(out):
        big = cuda.local.array((100, 200), np.float64)
        i = cuda.grid(1)
        big[:] = i
        out[i] = big.sum()

    np.testing.assert_array_equal(filled(kernel, (2, 4)), np.arange(8) * 20_000)
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        filled(kernel, (100, 4), n=400)
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.free - before.free == after.alloc - before.alloc >= 400


@cuda.jit(device=True)
def ramp(first):
    made = cuda.local.array(4, np.float64)
    for i in range(4):
        made[i] = first + i
    return made


@cuda.jit(device=True)
def two_ramps(first):
    return ramp(first), (ramp(-first), 7)


@cuda.jit(device=True)
def overwrite_the_stack(value):
    scratch = cuda.local.array(200, np.float64)
    scratch[:] = value
    return scratch.sum()


def test_a_device_function_may_return_its_array():
    @dm.kernel
    def kernel(out):
        a, (b, n) = two_ramps(cuda.grid(1))
        out[cuda.grid(1), 4] = overwrite_the_stack(-1)
        for i in range(4):
            out[cuda.grid(1), i] = a[i] * 1000 + b[i] * n

    i, first = np.arange(4), np.arange(6)[:, None]
    expected = np.hstack([1000 * (first + i) + 7 * (i - first), np.full((6, 1), -200)])
    np.testing.assert_array_equal(filled(kernel, (3, 2), n=(6, 5)), expected)


def test_constant_arrays():
    table = np.arange(6.0).reshape(2, 3)

    @dm.kernel
    def kernel(out):
        out[0] = cuda.const.array_like(table)[1, 2] + table[1, 1]

    assert filled(kernel, (1, 1))[0] == 9


@cuda.jit(device=True)
def shared_in_function(value):
    a = cuda.shared.array(4, np.float64)
    b = cuda.shared.array((2, 2), np.int32)
    t = cuda.threadIdx.x
    a[t] = value
    b[t // 2, t % 2] = 2 * value
    return a[0] + b[0, 0]


def test_static_shared_memory_is_the_blocks():
    """The threads of a block run in order, so that a later one sees what the earlier ones left; no two arrays overlap."""

    @dm.kernel
    def kernel(out):
        a = cuda.shared.array(4, np.float64)
        b = shared.array(shape=(4,), dtype=nb.uint8)
        i, t = cuda.grid(1), cuda.threadIdx.x
        a[t] = i
        b[t] = t + 1
        third = shared_in_function(cuda.blockIdx.x)
        total = 0.0
        for k in range(t + 1):
            total += a[k] + 100 * b[k]
        out[i] = total + 10_000 * third

    blocks = 300
    i, t = np.arange(4 * blocks), np.arange(4 * blocks) % 4
    block = i // 4
    expected = (t + 1) * 4 * block + t * (t + 1) / 2 + 100 * (t + 1) * (t + 2) / 2 + 30_000 * block
    np.testing.assert_array_equal(filled(kernel, (blocks, 4), n=4 * blocks), expected)


def test_dynamic_shared_memory_is_as_long_as_the_launch_says():
    @dm.kernel
    def kernel(out):
        a = cuda.shared.array(0, np.float32)
        b = cuda.shared.array(shape=(0,), dtype=nb.int32)
        static = cuda.shared.array(4, np.int32)
        static[:] = 7
        for k in range(a.size):
            a[k] = 1.0
        cuda.syncthreads()
        out[0], out[1], out[2], out[3] = a.size, b.size, static[0], b[b.size - 1] if b.size else 0

    one = np.float32(1).view(np.int32)
    np.testing.assert_array_equal(filled(kernel, (3, 1, 0, 64)), [16, 16, 7, one, 0, 0, 0, 0])
    np.testing.assert_array_equal(filled(kernel, (3, 1)), [0, 0, 7, 0, 0, 0, 0, 0])
    with pytest.raises(LaunchError, match="dynamic shared memory of 2097152 bytes: the CPU target has 1048576"):
        kernel[1, 1, 0, 1 << 21](np.zeros(8))


# -- waiting for each other ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def waits():
    cuda.syncthreads()


def _waiting():
    @dm.kernel
    def direct(out):
        cuda.syncthreads()
        out[0] = 1

    @dm.kernel
    def in_a_function(out):
        waits()
        out[0] = 1

    @dm.kernel
    def of_a_warp(out):
        cuda.syncwarp()
        out[0] = 1

    return {direct: ("cuda.syncthreads", "direct"), in_a_function: ("cuda.syncthreads", "waits"), of_a_warp: ("cuda.syncwarp", "of_a_warp")}


@pytest.mark.parametrize("kernel, name, function", [(k, *v) for k, v in _waiting().items()], ids=lambda v: str(v))
def test_threads_cannot_wait_for_each_other(kernel, name, function):
    assert filled(kernel, (2, 1))[0] == 1
    where = (waits if function == "waits" else kernel).py_func.__code__.co_firstlineno + 2
    with pytest.raises(LaunchError) as e:
        filled(kernel, (1, 4))
    assert f"{name} (line {where} of {function}, " in str(e.value)
    assert str(e.value).endswith("Launch it with one thread a block, got 4")


def test_syncthreads_by_a_local_name_is_found_as_well():
    @dm.kernel
    def kernel(out):
        d = cuda
        d.syncthreads()

    with pytest.raises(LaunchError, match="cuda.syncthreads needs the threads of a block to run side by side"):
        filled(kernel, (1, 2))


# -- what does not exist here -------------------------------------------------------------------------------------------------


def _missing():
    from numba.cuda import libdevice, shfl_sync

    @dm.kernel
    def shuffle(out):
        out[0] = cuda.shfl_sync(0xFFFFFFFF, out[0], 0)

    @dm.kernel
    def imported(out):
        out[0] = shfl_sync(0xFFFFFFFF, out[0], 0)

    @dm.kernel
    def ballot(out):
        out[0] = cuda.ballot_sync(0xFFFFFFFF, True)

    @dm.kernel
    def device_library(out):
        out[0] = cuda.libdevice.exp(out[0])

    @dm.kernel
    def device_library_imported(out):
        out[0] = libdevice.exp(out[0])

    @dm.kernel
    def cooperative_groups(out):
        cuda.cg.this_grid().sync()

    return {
        "cuda.shfl_sync": shuffle,
        "shfl_sync": imported,
        "cuda.ballot_sync": ballot,
        "cuda.libdevice.exp": device_library,
        "libdevice.exp": device_library_imported,
        "cuda.cg.this_grid": cooperative_groups,
    }


@pytest.mark.parametrize("name, kernel", _missing().items(), ids=lambda v: str(v))
def test_what_only_a_gpu_has_is_named_with_its_line(name, kernel):
    with pytest.raises(TargetError) as e:
        filled(kernel, (1, 1))
    assert str(e.value).startswith(f"{name} (line {line(kernel)} of {kernel.__name__}, {__file__}) does not exist on the CPU")
    assert "\n" not in str(e.value)


def test_what_only_a_gpu_has_by_a_local_name():
    @dm.kernel
    def kernel(out):
        d = cuda
        out[0] = d.shfl_sync(0xFFFFFFFF, out[0], 0)

    with pytest.raises(TargetError, match="^cuda.shfl_sync does not exist on the CPU target"):
        filled(kernel, (1, 1))
