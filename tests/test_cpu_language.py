"""What a kernel on the CPU target is made of: arguments of every kind, functions, modules, closures and plans."""

import math
import types

import numpy as np
import pytest
from numba import cuda

import devmath as dm
from devmath.errors import ArgumentError, LaunchError

FFT = dm.fft.FFT(8)
INVERSE = FFT.inverse()
ALONE = dm.fft.FFT(8, execution="thread")
PLANS = (FFT, INVERSE)
SIGNAL = (np.arange(16).reshape(2, 8) ** 2 % 7 + 1j * np.arange(8)).astype(np.complex64)


def transformed(kernel, plan=FFT, x=SIGNAL):
    out = np.zeros_like(x)
    kernel[plan.launch(len(x))](x, out)
    return out


def filled(kernel, config, *args, n=4, dtype=np.float64):
    out = np.zeros(n, dtype)
    kernel[config](*args, out)
    return out


# -- arguments ----------------------------------------------------------------------------------------------------------------


@dm.kernel
def copy(value, out):
    out[()] = value


@pytest.mark.parametrize("code", "?bhilBHILfdFD")
def test_scalars_of_every_dtype_arrive_unchanged(code):
    dtype = np.dtype(code)
    if dtype.kind in "iu":
        values = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    else:
        values = {"b": [True], "f": [-0.0, 1 / 3, np.inf], "c": [1 / 3 - 2j, complex(np.inf, -0.0)]}[dtype.kind]
    for value in values:
        out = np.zeros((), dtype)
        copy[1, 1](dtype.type(value), out)
        assert out.tobytes() == dtype.type(value).tobytes()


@pytest.mark.parametrize(
    "value, dtype",
    [(-(2**63), "i8"), (2**63 - 1, "i8"), (2**63, "u8"), (2**64 - 1, "u8"), (True, "?"), (0.1, "f8"), (1 - 0.1j, "c16")],
)
def test_pythons_own_numbers_arrive_unchanged(value, dtype):
    out = np.zeros((), dtype)
    copy[1, 1](value, out)
    assert out.item() == value


@dm.kernel
def of_tuples(a, b, out):
    out[0], out[1] = a[0] + a[1], a[2]
    out[2] = b[1][0] if b[0] else -1
    out[3] = b[1][1].imag


def test_tuples_of_scalars():
    assert filled(of_tuples, (1, 1), (1, 2, 3), (True, (0.5, 2j))).tolist() == [3, 3, 0.5, 2]
    assert filled(of_tuples, (1, 1), (np.float32(1), 2, 3.5), (False, (0.5, 2j))).tolist() == [3, 3.5, -1, 2]


@dm.kernel
def twice(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = 2 * x[i, j]


def _layouts():
    base = np.arange(48.0).reshape(6, 8)
    unaligned = np.frombuffer(bytearray(1 + base.nbytes), np.uint8)[1:].view(np.float64).reshape(6, 8)
    unaligned[:] = base
    read_only = base.copy()
    read_only.flags.writeable = False
    return {
        "C": base,
        "F": np.asfortranarray(base),
        "strided": base[::2, 1::3],
        "negative": base[::-1, ::-2],
        "broadcast": np.broadcast_to(base[0], (5, 8)),
        "unaligned": unaligned,
        "read-only": read_only,
        "empty": base[:0],
    }


@pytest.mark.parametrize("name", _layouts())
def test_arrays_of_every_layout(name):
    x = _layouts()[name]
    out = np.zeros_like(x, shape=x.shape)
    twice[(2, 2), (3, 4)](x, out)
    np.testing.assert_array_equal(out, 2 * x)
    strided = np.zeros((2 * x.shape[0], 3 * x.shape[1]))
    twice[(2, 2), (3, 4)](x, strided[::-2, 1::3])
    np.testing.assert_array_equal(strided[::-2, 1::3], 2 * x)
    assert strided.sum() == 2 * x.sum()


def test_a_memory_mapped_file(tmp_path):
    x = np.memmap(tmp_path / "x", np.float64, "w+", shape=(6, 8))
    x[:] = 1.5
    out = np.zeros((6, 8))
    twice[(2, 2), (3, 4)](x, out)
    assert (out == 3).all()


def test_records_and_zero_dimensions():
    @dm.kernel
    def kernel(points, total):
        for i in range(points.shape[0]):
            total[()] += points[i].a * points[i].b

    total = np.zeros(())
    kernel[1, 1](np.array([(1, 2.5), (2, 0.25)], [("a", "i4"), ("b", "f8")]), total)
    assert total == 3.0


def test_a_read_only_array_is_not_written():
    x = SIGNAL.copy()
    x.flags.writeable = False

    @dm.kernel
    def into_row(x, out):
        FFT.store(FFT.registers(), x[0])

    @dm.kernel
    def in_place(x, out):
        FFT.execute(x[0], FFT.scratch())

    for kernel, name in ((into_row, "FFT(8).store(registers, row): row"), (in_place, "FFT(8).execute(registers, scratch): registers")):
        with pytest.raises(TypeError) as e:
            kernel[1, 1](x, x)
        assert str(e.value) == f"{name} is a read-only array and would be written"
    np.testing.assert_array_equal(x, SIGNAL)


@dm.kernel
def elementary(x, out):
    out[0], out[1], out[2], out[3] = math.sin(x), math.exp(-x), math.sqrt(x), math.atan2(x, 2.0)
    out[4], out[5], out[6], out[7] = math.erf(x), np.cos(x), abs(-x), min(x, 1.0)
    out[8], out[9], out[10], out[11] = math.floor(x), math.lgamma(x), x**3, math.fmod(7.0, x)
    out[12], out[13] = math.pi, x / 0.0  # as on the GPU, no exception
    out[14], out[15] = math.modf(-x)
    out[16], out[17] = cuda.cbrt(x), cuda.rsqrt(x)


def test_mathematical_functions():
    for x in (0.3, 1.7):
        expected = [math.sin(x), math.exp(-x), math.sqrt(x), math.atan2(x, 2), math.erf(x), math.cos(x), x, min(x, 1)]
        expected += [math.floor(x), math.lgamma(x), x**3, math.fmod(7, x), math.pi, math.inf]
        expected += [*math.modf(-x), math.cbrt(x), 1 / math.sqrt(x)]
        np.testing.assert_allclose(filled(elementary, (1, 1), x, n=18), expected, rtol=1e-13)


# -- writes through views ------------------------------------------------------------------------------------------------------
# numba once removed them as dead where it had inlined one of these calls.


@dm.kernel
def through_views(out):
    r, q, s = cuda.local.array(4, np.complex64), ALONE.registers(), cuda.shared.array(4, np.complex64)
    i = cuda.grid(1)
    for k in range(4):
        r.view(np.float32)[2 * k], r.view(np.float32)[2 * k + 1] = k + 1, 0
        ALONE.as_real(q)[2 * k], ALONE.as_real(q)[2 * k + 1] = k + 1, 0
        s.view(np.float32)[2 * k], s.view(np.float32)[2 * k + 1] = k + 1, 0
    cuda.syncthreads()
    cuda.syncwarp()
    cuda.threadfence()
    if cuda.gridsize(1) > i:
        for k in range(4):
            out[k] = r[k].real + 10 * q[k].real + 100 * s[k].real + cuda.selp(True, 0, 1)


def test_writes_through_a_view_are_kept():
    assert filled(through_views, (1, 1)).tolist() == [111, 222, 333, 444]


# -- functions, closures and modules ------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def square(x):
    return x * x


@cuda.jit(device=True)
def fourth(x, offset=0.5):
    return square(square(x)) + offset


@cuda.jit(device=True)
def factorial(n):
    if n <= 1:
        return 1
    return n * factorial(n - 1)


@cuda.jit(device=True)
def is_even(n):
    if n == 0:
        return True
    return is_odd(n - 1)


@cuda.jit(device=True)
def is_odd(n):
    if n == 0:
        return False
    return is_even(n - 1)


@cuda.jit(device=True)
def fill(array, value):
    array[cuda.threadIdx.x] = value + cuda.grid(1)


def test_device_functions_call_each_other_and_themselves():
    @dm.kernel
    def kernel(out):
        out[0], out[1], out[2] = fourth(2.0), fourth(2, offset=1), factorial(5)
        out[3] = 2 * is_even(6) + is_odd(6)

    assert filled(kernel, (1, 1)).tolist() == [16.5, 17, 120, 2]


def test_two_kernels_share_a_device_function():
    @dm.kernel
    def first(out):
        fill(out, 10)

    @dm.kernel
    def second(out):
        fill(out[::-1], 20)
        out[0] += square(3)

    for _ in range(2):
        assert filled(first, (1, 4)).tolist() == [10, 11, 12, 13]
        assert filled(second, (1, 4)).tolist() == [23 + 9 * 4 - 27, 22, 21, 20]


def scaled_by(factor, table):
    @cuda.jit(device=True)
    def scale(x):
        return factor * x

    @dm.kernel
    def kernel(out):
        def shifted(x):
            return x + factor

        i = cuda.grid(1)
        out[i] = scale(i) + table[i] + shifted(0)

    return kernel


def test_kernels_made_in_a_function_keep_their_own_values():
    a, b = scaled_by(2, np.array([0.5] * 4)), scaled_by(10, np.array([0.25] * 4))
    for _ in range(2):
        assert filled(a, (2, 2)).tolist() == [2.5, 4.5, 6.5, 8.5]
        assert filled(b, (2, 2)).tolist() == [10.25, 20.25, 30.25, 40.25]


def _helpers():
    module = types.ModuleType("helpers")
    module.inner = types.ModuleType("helpers.inner")
    module.f, module.fft, module.N, module.cuda = fourth, FFT, 3, cuda
    module.inner.f, module.inner.ifft = square, INVERSE
    module.only_through_another_name, module.deeper = square, module.inner
    return module


helpers = _helpers()


def test_functions_and_values_of_another_module():
    @dm.kernel
    def kernel(out):
        m = helpers
        i = helpers.cuda.grid(1)
        out[i] = helpers.f(i) + helpers.inner.f(i) + helpers.N
        out[i] += m.only_through_another_name(1) + m.deeper.f(1)

    assert filled(kernel, (2, 2)).tolist() == [x**4 + 0.5 + x**2 + 3 + 2 for x in range(4)]
    assert helpers.f is fourth and helpers.cuda is cuda


# -- plans ------------------------------------------------------------------------------------------------------------------------


def test_plans_of_another_module():
    @dm.kernel
    def kernel(x, out):
        r, s, b = helpers.fft.registers(), helpers.fft.scratch(), helpers.fft.batch()
        helpers.fft.load(x[b], r)
        helpers.fft.execute(r, s)
        helpers.inner.ifft.execute(r, s)
        helpers.fft.store(r, out[b])

    np.testing.assert_allclose(transformed(kernel), 8 * SIGNAL, rtol=1e-5, atol=1e-5)


@cuda.jit(device=True)
def forward(x, b, r, s):
    FFT.load(x[b], r)
    FFT.execute(r, s)


def test_plans_in_device_functions_and_in_tuples():
    @dm.kernel
    def kernel(x, out):
        r, s, b = PLANS[0].registers(), PLANS[0].scratch(), FFT.batch()
        forward(x, b, r, s)
        PLANS[1].execute(r, s)
        PLANS[1].store(r, out[b])

    np.testing.assert_allclose(transformed(kernel), 8 * SIGNAL, rtol=1e-5, atol=1e-5)


def test_plans_of_a_closure_differ_between_kernels():
    def make(plan):
        @dm.kernel
        def kernel(x, out):
            r, s, b = plan.registers(), plan.scratch(), plan.batch()
            plan.load(x[b], r)
            plan.execute(r, s)
            plan.store(r, out[b])

        return kernel

    one, two = make(FFT), make(INVERSE)
    np.testing.assert_allclose(transformed(one), np.fft.fft(SIGNAL), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(transformed(two), 8 * np.fft.ifft(SIGNAL), rtol=1e-5, atol=1e-5)


def test_device_functions_take_keywords():
    @dm.kernel
    def kernel(x, out):
        r, s, b = FFT.registers(), FFT.scratch(), FFT.batch()
        FFT.load(registers=r, row=x[b])
        FFT.execute(scratch=s, registers=r)
        FFT.store(r, row=out[b])

    np.testing.assert_allclose(transformed(kernel), np.fft.fft(SIGNAL), rtol=1e-5, atol=1e-5)


@dm.kernel
def each_thread_its_own(x, out):
    b = ALONE.batch()
    if b < x.shape[0]:
        r = cuda.local.array(ALONE.storage_size, ALONE.value_type)
        ALONE.load(x[b], r)
        ALONE.execute(r)
        ALONE.store(r, out[b])


@pytest.mark.parametrize("config", [ALONE.launch(11), ALONE.launch(11, block=3), (1, 16), (11, 1), (3, (4,))])
def test_thread_execution_in_any_block(config):
    x = np.tile(SIGNAL, (6, 1))[:11]
    out = np.zeros_like(x)
    each_thread_its_own[config](x, out)
    np.testing.assert_allclose(out, np.fft.fft(x), rtol=1e-5, atol=1e-5)


def test_plans_are_constants_with_fields_and_traits():
    @dm.kernel
    def kernel(out):
        out[0], out[1], out[2] = FFT.size, FFT.elements_per_thread, FFT.stride
        out[3] = FFT.block_dim[0] if FFT.direction == "forward" else -1
        out[4] = FFT.block_dim.x if INVERSE.direction == "forward" else -1

    assert filled(kernel, (1, 1), n=5).tolist() == [8, 8, 1, 1, -1]


def test_cooperative_kernels_run_one_thread_a_block():
    @dm.kernel
    def kernel(x, out):
        r, s = FFT.registers(), FFT.scratch()
        FFT.execute(r, s)

    with pytest.raises(LaunchError, match=r"needs blocks of \(1, 1, 1\) threads on cpu, and the block \(32, 1, 1\) gives"):
        kernel[1, 32](SIGNAL, SIGNAL.copy())


def test_one_kernel_takes_one_signature_after_the_other():
    for dtype in (np.float32, np.int16, np.complex128, np.float32):
        out = np.zeros((2, 3), dtype)
        twice[(1, 1), (2, 3)](np.ones((2, 3), dtype), out)
        assert (out == 2).all()
    with pytest.raises(ArgumentError, match=r"^twice takes 2 arguments \(x, out\), got 1$"):
        twice[1, 1](np.ones((2, 3)))
