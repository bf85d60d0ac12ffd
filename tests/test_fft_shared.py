"""Transforms whose elements lie in shared memory: the same numbers as in registers, and every element in reach of every thread."""

import functools

import numpy as np
import pytest
from numba import cuda
from numba import types as nbt
from support import ARCHS, error, host, noise, plans, rows, tolerance

import devmath as dm
from devmath.arch import parse
from devmath.errors import KernelTypeError, PlanError
from devmath.fft import FFT
from devmath.targets.cuda import compile_kernel

C2C = [FFT(n, api="shared", **f) for n, f in ((1, {}), (2, {}), (7, {}), (65, {}), (512, {}), (1000, {}), (4096, {}), (8192, {}))]
C2C += [FFT(64, api="shared", ffts_per_block=3), FFT(243, np.float64, direction="inverse", api="shared")]
C2C += [FFT(n, api="shared", thread_layout="transposed") for n in (12, 128)] + [FFT(512, api="shared", implementation="cufftdx")]
REAL = [FFT(n, fft_type="r2c", complex_layout=lay, api="shared") for n in (30, 512) for lay in ("natural", "packed", "full")]
REAL += [FFT(n, fft_type="r2c", api="shared", ffts_per_block=3) for n in (1, 2, 31)] + [FFT(256, np.float64, "r2c", api="shared")]
REAL += [FFT(64, fft_type="r2c", real_mode="folded", implementation="cufftdx", api="shared")]


@functools.cache
def filtering(fft):
    """A kernel (x, h, y, z): y is the transform of x, z the inverse transform of y * h."""
    back = fft.inverse()

    @dm.kernel
    def both(x, h, y, z):
        data, b = fft.data(), fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], data)
        fft.execute(data)
        if b < x.shape[0]:
            fft.store(data, y[b])
        fft.multiply(h, data)
        back.execute(data)
        if b < x.shape[0]:
            back.store(data, z[b])

    return both


def outputs(fft, xp, batch):
    t = fft.traits("cpu")
    return xp.full((batch, t.output_length), np.nan, t.output_type), xp.full((batch, fft.size), np.nan, t.input_type)


def layout(fft, full):
    """A whole spectrum in the plan's layout."""
    half = fft.size // 2
    if fft.fft_type == "c2c" or fft.complex_layout == "full":
        return full
    if fft.complex_layout == "natural":
        return full[:, : half + 1]
    return np.concatenate([full[:, :1].real + 1j * full[:, half : half + 1].real, full[:, 1:half]], axis=1)


@pytest.mark.sanitizer
@plans(C2C, REAL)
def test_filters(xp, fft, rng):
    real = fft.fft_type == "r2c"
    batch, t = rows(fft, xp), fft.traits("cpu")
    x = rng.standard_normal((batch, fft.size)).astype(fft.precision) if real else noise(rng, (batch, fft.size), fft.value_type)
    taps = rng.standard_normal(fft.size)
    h = np.fft.fft(taps)[: fft.size if not real or fft.complex_layout == "full" else fft.size // 2 + 1].astype(fft.value_type)
    y, z = outputs(fft, xp, batch)
    filtering(fft)[fft.launch(batch)](xp.asarray(x), xp.asarray(h), y, z)
    wide = x.astype(np.complex128)
    forward, back = (np.fft.fft, np.fft.ifft) if fft.direction == "forward" else (np.fft.ifft, np.fft.fft)
    spectrum = forward(wide, norm="forward" if fft.direction == "inverse" else "backward")
    assert error(y, layout(fft, spectrum)) <= tolerance(fft)
    full = np.fft.fft(taps)
    want = back(spectrum * full, norm="forward" if fft.direction == "forward" else "backward")
    assert error(z, want.real if real else want) <= 4 * tolerance(fft)
    assert t.data_size >= max(t.output_length, fft.size // 2 if real else fft.size)


@pytest.mark.sanitizer
@plans([FFT(64, api="shared"), FFT(65, api="shared", ffts_per_block=2), FFT(48, fft_type="r2c", api="shared")])
def test_any_thread_reaches_any_element(xp, fft, rng):
    """The input backwards, and of the output every other element, by an index of the kernel's own."""
    n, real = fft.size, fft.fft_type == "r2c"
    wide = fft.block_dim.x if xp is not np else 1

    if real:

        @cuda.jit(device=True)
        def put(data, k, value):
            fft.as_real(data)[k] = value
    else:

        @cuda.jit(device=True)
        def put(data, k, value):
            data[k] = value

    @dm.kernel
    def every_other(x, y):
        data, b = fft.data(), fft.batch()
        if b < x.shape[0]:
            for k in range(cuda.threadIdx.x, n, wide):
                put(data, k, x[b, n - 1 - k])
        fft.execute(data)
        if b < x.shape[0]:
            for k in range(cuda.threadIdx.x, y.shape[1], wide):
                y[b, k] = data[2 * k]

    batch = rows(fft, xp)
    x = rng.standard_normal((batch, n)).astype(np.float32) if real else noise(rng, (batch, n), np.complex64)
    y = xp.zeros((batch, fft.output_length // 2), np.complex64)
    every_other[fft.launch(batch)](xp.asarray(x), y)
    assert error(y, np.fft.fft(x[:, ::-1].astype(complex))[:, : 2 * y.shape[1] : 2]) < tolerance(fft)


@pytest.mark.sanitizer
def test_rows_shorter_than_the_transform_are_filled_with_zeros(xp, rng):
    fft = FFT(100, fft_type="r2c", api="shared")

    @dm.kernel
    def windowed(x, w, y, z):
        data, b = fft.data(), fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], data)
        fft.execute(data)
        if b < x.shape[0]:
            fft.store(data, y[b])
        cuda.syncthreads()
        if b < x.shape[0]:
            fft.load_window(x[b], w, data)
        fft.execute(data)
        if b < x.shape[0]:
            fft.store(data, z[b])

    x, w = rng.standard_normal((5, 160)).astype(np.float32), np.hanning(70).astype(np.float32)
    y, z = (xp.full((5, 40), np.nan, np.complex64) for _ in range(2))
    windowed[fft.launch(5)](xp.asarray(x)[:, ::2], xp.asarray(w), y, z)
    rows_ = x[:, ::2].astype(float)
    assert error(y, np.fft.rfft(rows_, 100)[:, :40]) < tolerance(fft)
    assert error(z, np.fft.rfft(rows_[:, :70] * w, 100)[:, :40]) < tolerance(fft)


def in_registers(plan):
    @dm.kernel
    def kernel(x, y):
        r, s, b = plan.registers(), plan.scratch(), plan.batch()
        if b < x.shape[0]:
            plan.load(x[b], r)
        plan.execute(r, s)
        if b < x.shape[0]:
            plan.store(r, y[b])

    return kernel


def test_the_same_bits_as_in_registers(xp, rng):
    for plan in (FFT(512), FFT(65), FFT(256, fft_type="r2c")):
        shared, batch = plan.replace(api="shared"), rows(plan, xp)
        t = plan.traits("cpu")
        x = rng.standard_normal((batch, plan.size)).astype(t.input_type)
        y, z = xp.zeros((batch, t.output_length), np.complex64), outputs(shared, xp, batch)[1]
        w = xp.zeros_like(y)
        in_registers(plan)[plan.launch(batch)](xp.asarray(x), y)
        filtering(shared)[shared.launch(batch)](xp.asarray(x), xp.ones(plan.size, np.complex64), w, z)
        np.testing.assert_array_equal(host(y), host(w))


@pytest.mark.parametrize("where", ARCHS)
@plans(C2C[1:], REAL)
def test_the_memory_holds_the_data_and_the_exchange(fft, where):
    t, inner = fft.traits(where), fft.replace(api="registers").traits(where)
    assert t.block_dim == inner.block_dim
    assert t.shared_memory_size >= max(inner.shared_memory_size, t.ffts_per_block * t.data_size * np.dtype(fft.value_type).itemsize)


@pytest.mark.slow
@pytest.mark.parametrize("where", ARCHS)
@plans(C2C[:1] + C2C[4:6], REAL[3:5])
def test_compiles_for_every_architecture(fft, where):
    array = {np.float32: nbt.float32, np.complex64: nbt.complex64}
    t = fft.traits(where)
    x, y = (nbt.Array(array[t[side]], 2, "C") for side in ("input_type", "output_type"))
    compiled = compile_kernel(filtering(fft).py_func, (x, nbt.complex64[::1], y, x), parse(where))
    assert compiled.cubin[:4] == b"\x7fELF" and {fft, fft.inverse()} <= {plan for plan, _ in compiled.build.plans()}


def test_a_second_kernel_of_a_plan_is_linked_as_the_first():
    """numba-cuda compiles ``execute`` once; the code that it calls is in both kernels."""
    fft = FFT(32, api="shared")

    def one(x):
        fft.execute(fft.data())

    def another(x):
        fft.execute(fft.data())
        x[0, 0] = fft.data()[0]

    builds = [compile_kernel(kernel, (nbt.complex64[:, ::1],), parse("sm_90a")).build for kernel in (one, another)]
    assert builds[0].sources == builds[1].sources != {}
    assert set(builds[0].calls) == set(builds[1].calls)


def test_mistakes_are_named(xp):
    with pytest.raises(PlanError, match=r"^api='shared' is for execution='block'; a thread keeps its elements to itself$"):
        FFT(8, execution="thread", api="shared")
    with pytest.raises(PlanError, match=r"^api must be one of 'registers', 'shared', got 'share' \(did you mean 'shared'\?\)$"):
        FFT(8, api="share")
    with pytest.raises(PlanError, match=r"at most 5832 .* api='shared' on sm_120, got 8192 .*too large for one block, which has at most 101376"):
        FFT(8192, np.float64, api="shared").traits("sm_120")
    fft = FFT(8, api="shared")

    def fails(kernel, *more):
        with pytest.raises(KernelTypeError) as e:
            kernel[fft.launch(1)](xp.zeros((1, 8), np.complex64), *more)
        return str(e.value)

    @dm.kernel
    def in_registers(x):
        fft.execute(fft.registers(), fft.scratch())

    @dm.kernel
    def single(x):
        fft.execute(cuda.shared.array(8, np.float32))

    assert "FFT(8) has no attribute 'registers' inside a kernel; it has " in fails(in_registers)
    assert "FFT(8).execute(data): shared data is float32, the FFT works on complex64" in fails(single)
