"""What kernels do with an FFT plan, on either side: positions and constants, several plans, shared memory, element types."""

import functools

import numpy as np
import pytest
from numba import cuda
from numba import types as nbt
from support import ARCHS, error, host, noise, plans, rows, run, target_of, tolerance, transforms

import devmath as dm
from devmath import launch
from devmath.arch import parse
from devmath.codegen import link
from devmath.errors import KernelTypeError, LaunchError, PlanError
from devmath.fft import FFT
from devmath.targets.cuda import compile_kernel

# --- positions and constants ------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
@plans([FFT(12, ffts_per_block=2), FFT(65), FFT(7, execution="thread")])
def test_index_active_and_batch_agree_with_load_and_store(xp, fft, rng):
    if fft.execution == "thread":

        @cuda.jit(device=True)
        def execute(r):
            fft.execute(r)
    else:

        @cuda.jit(device=True)
        def execute(r):
            fft.execute(r, fft.scratch())

    @dm.kernel
    def by_hand(x, y, seen, last):
        r = fft.registers()
        b = fft.batch()
        for i in range(fft.elements_per_thread):
            r[i] = x[b, fft.index(i)] if b < x.shape[0] and fft.active(i) else 0
        execute(r)
        if b < x.shape[0]:
            for i in range(fft.elements_per_thread):
                k = fft.index(i)
                if fft.active(i):
                    y[b, k] = r[i]
                    cuda.atomic.add(seen, (b, k), 1)
                elif k != x.shape[1] - 1:
                    last[b] = k

    batch = rows(fft, xp)
    x = noise(rng, (batch, fft.size), fft.value_type)
    device = xp.asarray(x)
    y, seen, last = xp.zeros_like(device), xp.zeros(x.shape, np.int32), xp.full(batch, -1, np.int64)
    by_hand[fft.launch(batch)](device, y, seen, last)
    np.testing.assert_array_equal(host(y), run(fft, xp, x)[0])
    assert (host(seen) == 1).all()  # each element once
    assert (host(last) == -1).all()  # spare elements have the index of the last one


@pytest.mark.sanitizer
def test_local_arrays_stand_for_registers(xp, rng):
    fft = FFT(65)

    @dm.kernel
    def convert(x, y):
        r = cuda.local.array(fft.storage_size, fft.value_type)
        s = cuda.shared.array(0, fft.value_type)
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(registers=r, scratch=s)
        if b < x.shape[0]:
            fft.store(r, y[b])

    x = noise(rng, (5, 65), np.complex64)
    y = xp.zeros((5, 65), np.complex64)
    convert[fft.launch(5)](xp.asarray(x), y)
    np.testing.assert_array_equal(host(y), run(fft, xp, x)[0])


def test_fields_and_traits_are_constants_in_kernels(xp):
    fft = FFT(64, precision=np.float64, direction="inverse", elements_per_thread=4, ffts_per_block=3)

    @dm.kernel
    def constants(out, reals):
        a = cuda.local.array(fft.size, fft.precision)  # only a constant can be a local array's length
        e = cuda.local.array((fft.elements_per_thread, fft.stride), fft.value_type)
        if cuda.grid(1) == 0 and cuda.threadIdx.y == 0:
            a[0], e[0, 0] = 1.5, 2.5j
            reals[0], reals[1] = a[0], e[0, 0].imag
            out[0], out[1], out[2] = a.size, e.shape[0], e.shape[1]
            out[3], out[4] = fft.storage_size, fft.ffts_per_block
            out[5], out[6], out[7] = fft.block_dim.x, fft.block_dim.y, fft.block_dim[2]
            out[8] = fft.shared_memory_size
            out[9] = fft.direction == "inverse"
            out[10] = fft.execution == "block"
            out[11] = fft.fft_type == "c2c"

    out, reals = xp.zeros(12, np.int64), xp.zeros(2)
    constants[fft.launch(1)](out, reals)
    t = fft.traits(target_of(xp))
    assert host(reals).tolist() == [1.5, 2.5]
    assert host(out).tolist() == [
        64, t.elements_per_thread, t.stride, t.storage_size, t.ffts_per_block, *t.block_dim, t.shared_memory_size, 1, 1, 1
    ]  # fmt: skip


def test_an_unknown_attribute_is_named(xp):
    fft = FFT(24)

    @dm.kernel
    def wrong(out):
        out[0] = fft.element_per_thread

    with pytest.raises(KernelTypeError, match=r"FFT\(24\) has no attribute 'element_per_thread'.*elements_per_thread"):
        wrong[1, 1](xp.zeros(1))


# --- several plans, device functions ----------------------------------------------------------------------------------


@pytest.mark.sanitizer
def test_two_sizes_in_one_kernel(xp, rng):
    """Plans of equal block shapes share a kernel, and its shared memory."""
    small, large = FFT(64, elements_per_thread=4, ffts_per_block=2), FFT(128, elements_per_thread=8, ffts_per_block=2)
    back = large.inverse()

    @dm.kernel
    def upsample(x, y, z):
        s = small.scratch()
        b = small.batch()
        r, q = small.registers(), large.registers()
        if b < x.shape[0]:
            small.load(x[b], r)
        small.execute(r, s)
        if b < x.shape[0]:
            small.store(r, y[b])
            large.load(y[b], q)  # 64 elements and as many zeros
        back.execute(q, s)
        if b < x.shape[0]:
            large.store(q, z[b])

    x = noise(rng, (5, 64), np.complex64)
    # Every thread reads back what it wrote itself: the rows go through memory of the block's own transform.
    assert small.traits("sm_90a").stride == large.traits("sm_90a").stride
    y, z = xp.zeros((5, 64), np.complex64), xp.zeros((5, 128), np.complex64)
    upsample[small.launch(5)](xp.asarray(x), y, z)
    spectrum = np.fft.fft(x.astype(np.complex128))
    assert error(y, spectrum) <= tolerance(small)
    assert error(z, np.fft.ifft(spectrum, 128, norm="forward")) <= 2 * tolerance(large)


def test_block_shapes_that_differ_are_refused_before_the_launch():
    small, large = FFT(64, elements_per_thread=4, ffts_per_block=2), FFT(128, elements_per_thread=4, ffts_per_block=2)
    with pytest.raises(LaunchError, match=r"FFT\(128\).*needs blocks of \(32, 2, 1\).*gives \(16, 2, 1\).*equal block shapes"):
        launch.resolve("k", small.launch(5), [(small, True), (large, True)], parse("sm_90a"))


@pytest.mark.sanitizer
def test_plans_in_device_functions(xp, rng):
    fft = FFT(48)

    @cuda.jit(device=True)
    def closed_over(row, r):
        fft.load(row, r)

    @cuda.jit(device=True)
    def handed_over(plan, r, s):
        for i in range(plan.elements_per_thread):
            r[i] = r[i] * plan.size
        plan.execute(r, s)

    @dm.kernel
    def convert(x, y):
        r, s, b = fft.registers(), fft.scratch(), fft.batch()
        if b < x.shape[0]:
            closed_over(x[b], r)
        handed_over(fft, r, s)
        if b < x.shape[0]:
            fft.store(r, y[b])

    x = noise(rng, (rows(fft, xp), 48), np.complex64)
    y = xp.zeros(x.shape, np.complex64)
    convert[fft.launch(x.shape[0])](xp.asarray(x), y)
    assert error(y, 48 * np.fft.fft(x.astype(np.complex128))) <= tolerance(fft)


# --- shared memory (case 34) ------------------------------------------------------------------------------------------


def test_more_than_48_kilobytes_of_shared_memory(xp, rng):
    fft = FFT(8192)
    x = noise(rng, (3, 8192), np.complex64)
    y, z = xp.zeros((3, 8192), np.complex64), xp.zeros((3, 8192), np.complex64)
    t = fft.traits(target_of(xp))
    grid = -(-3 // t.ffts_per_block)
    transforms(fft)[grid, tuple(t.block_dim), 0, 65_536](xp.asarray(x), y, z)
    assert error(y, np.fft.fft(x.astype(np.complex128))) <= tolerance(fft)


def test_more_shared_memory_than_there_is_names_both_numbers():
    fft = FFT(16384, precision=np.float64)
    t = fft.traits("sm_90a")
    with pytest.raises(LaunchError, match=r"k: 262144 bytes.*sm_90a has 232448"):
        launch.resolve("k", launch.config((1, tuple(t.block_dim), 0, 262_144)), [(fft, True)], parse("sm_90a"))
    with pytest.raises(LaunchError, match=r"needs 262144 bytes of shared memory, sm_90a has 232448; .* at most 1 here"):
        fft.replace(ffts_per_block=2).traits("sm_90a")
    small = launch.config((1, tuple(t.block_dim), 0, 1024))
    with pytest.raises(LaunchError, match=rf"FFT\(16384\) needs {t.shared_memory_size} bytes.*got 1024"):
        launch.resolve("k", small, [(fft, True)], parse("sm_90a"))


@pytest.mark.gpu
def test_the_gpu_refuses_too_much_shared_memory_before_the_launch():
    cupy = pytest.importorskip("cupy")
    fft = FFT(512)
    x = cupy.zeros((1, 512), np.complex64)
    with pytest.raises(LaunchError, match="262144 bytes"):
        transforms(fft)[1, tuple(fft.block_dim), 0, 262_144](x, x, x)


# --- element types (cases 35, 36) -------------------------------------------------------------------------------------


@dm.kernel
def pair_up(re, im, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = complex(re[i], im[i])


def test_complex_of_two_floats(xp):
    out = xp.zeros(2, np.complex64)
    pair_up[1, 32](xp.asarray(np.float32([1.5, 0])), xp.asarray(np.float32([-2, -0.0])), out)
    assert host(out)[0] == np.complex64(1.5 - 2j)
    assert np.signbit(host(out)[1].imag)


def test_complex_of_two_floats_needs_no_double_precision(monkeypatch):
    linked, real = [], link.link
    monkeypatch.setattr(link, "link", lambda blobs, arch, **kw: linked.append((blobs, arch)) or real(blobs, arch, **kw))
    pair_up._compile((nbt.float32[::1], nbt.float32[::1], nbt.complex64[::1]), parse("sm_90a"))
    ((blobs, arch),) = linked
    ptx = real(blobs, arch, ptx=True).decode()
    assert ".visible .entry" in ptx and "st.global" in ptx
    assert "f64" not in ptx


def float32_data(fft):
    @dm.kernel
    def wrong(x, y):
        r = cuda.local.array(fft.storage_size, np.float32)
        fft.execute(r, fft.scratch())

    return wrong


def float32_rows(fft):
    @dm.kernel
    def wrong(x, y):
        fft.load(x[0], fft.registers())

    return wrong


def two_dimensional(fft):
    @dm.kernel
    def wrong(x, y):
        fft.load(x, fft.registers())

    return wrong


def too_few(fft):
    @dm.kernel
    def wrong(x, y):
        fft.execute(fft.registers())

    return wrong


def not_an_integer(fft):
    @dm.kernel
    def wrong(x, y):
        y[0, 0] = fft.index(0.5)

    return wrong


@pytest.mark.parametrize(
    "make, words",
    [
        (float32_data, "FFT(65).execute(registers, scratch): thread data is float32, the FFT works on complex64"),
        (float32_rows, "FFT(65).load(row, registers): row is float32, the FFT works on complex64"),
        (
            two_dimensional,
            "FFT(65).load(row, registers): row is a 2-D float32 array, it must be 1-D (one transform or one thread's elements at a time)",
        ),
        (too_few, "FFT(65).execute(registers, scratch) takes 2 arguments, got 1"),
        (not_an_integer, "FFT(65).index(i): i is float64, it must be an integer"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_wrong_types_are_one_line(xp, make, words):
    x = xp.zeros((1, 65), np.float32)
    fft = FFT(65)
    with pytest.raises(KernelTypeError) as caught:
        make(fft)[fft.launch(1)](x, x)
    assert str(caught.value) == words


def test_scratch_holds_a_transform_of_the_kernels_own(xp, rng):
    """The elements of one transform go through the block's scratch memory and come back reversed."""
    fft = FFT(64, ffts_per_block=1)

    @dm.kernel
    def reverse(x, y):
        r, s, b = fft.registers(), fft.scratch(), fft.batch()
        fft.load(x[b], r)
        half = fft.shared_memory_size // 8 // 2  # cuFFTDx's scratch has room for one of the two parts of each element
        for i in range(fft.elements_per_thread):
            if fft.index(i) < half:
                s[fft.index(i)] = r[i]
        cuda.syncthreads()
        for i in range(fft.elements_per_thread):
            if fft.index(i) < half:
                y[b, fft.index(i)] = s[half - 1 - fft.index(i)]

    x = noise(rng, (3, 64), np.complex64)
    y = xp.zeros((3, 64), np.complex64)
    reverse[fft.launch(3)](xp.asarray(x), y)
    half = fft.traits(target_of(xp)).shared_memory_size // 8 // 2
    assert half >= 16
    np.testing.assert_array_equal(host(y)[:, :half], x[:, :half][:, ::-1])


# --- columns ----------------------------------------------------------------------------------------------------------


@functools.cache
def columns(fft):
    """A kernel ``(x, y)``: column b of *y* is the transform of column b of *x*."""

    @dm.kernel
    def transform(x, y):
        r, s, b = fft.registers(), fft.scratch(), fft.batch()
        if b < x.shape[1]:
            fft.load(x[:, b], r)
        fft.execute(r, s)
        if b < x.shape[1]:
            fft.store(r, y[:, b])

    return transform


TURNED = [
    FFT(size, thread_layout="transposed", **fields)
    for size, fields in [
        (1, {}), (2, {}), (12, {}), (65, {"ffts_per_block": 3}), (64, {}), (512, {}), (512, {"implementation": "cufftdx"}), (2048, {}),
        (256, {"precision": np.float64, "direction": "inverse"}), (64, {"implementation": "devmath", "elements_per_thread": 4, "ffts_per_block": 5}),
        (256, {"fft_type": "r2c"}), (128, {"fft_type": "c2r", "complex_layout": "packed"}), (30, {"fft_type": "r2c", "real_mode": "normal"}),
        (64, {"fft_type": "r2c", "real_mode": "folded", "implementation": "cufftdx"}),
    ]
]  # fmt: skip


@pytest.mark.sanitizer
@plans(TURNED)
def test_columns(xp, fft, rng):
    """With neighbouring threads on neighbouring columns the numbers are those of rows, to the last bit where the code is the same."""
    batch = rows(fft, xp)
    shape = (fft.traits("cpu").input_length, batch)
    x = rng.standard_normal(shape).astype(fft.precision) if fft.fft_type == "r2c" else noise(rng, shape, fft.value_type)
    if fft.fft_type == "c2r":  # element 0 of packed layout has two real numbers
        want = np.fft.irfft(np.concatenate([x[:1].real, x[1:], x[:1].imag]), fft.size, axis=0, norm="forward")
    elif fft.fft_type == "r2c":
        want = np.fft.rfft(x.astype(np.float64), axis=0)
    else:
        want = np.fft.fft(x, axis=0) if fft.direction == "forward" else np.fft.ifft(x, axis=0, norm="forward")
    y = xp.full(want.shape, np.nan, fft.traits("cpu").output_type)
    columns(fft)[fft.launch(batch)](xp.asarray(x), y)
    assert error(y, want) < tolerance(fft)


@pytest.mark.parametrize("where", ARCHS)
@plans(TURNED)
def test_columns_take_a_block_across(fft, where):
    """The transforms of a block are in threadIdx.x, and there are enough of them for whole lines of memory."""
    t, rows_of = fft.traits(where), fft.replace(thread_layout="regular").traits(where)
    assert t.block_dim.x == t.ffts_per_block and t.block_dim.y == t.stride
    if fft.fields["ffts_per_block"] is None:
        assert t.ffts_per_block * np.dtype(t.input_type).itemsize >= 32
    if fft.fields["elements_per_thread"] is None:
        assert t.elements_per_thread * t.stride >= fft.size // (2 if t.real_mode == "folded" else 1)
    assert (t.input_length, t.output_length) == (rows_of.input_length, rows_of.output_length)


@pytest.mark.slow
@pytest.mark.parametrize("where", ARCHS)
@plans(TURNED[0:8:2] + TURNED[10:12])
def test_columns_compile_for_every_architecture(fft, where):
    array = {np.float32: nbt.float32, np.complex64: nbt.complex64}
    t = fft.traits(where)
    signature = tuple(nbt.Array(array[t[side]], 2, "C") for side in ("input_type", "output_type"))
    compiled = compile_kernel(columns(fft).py_func, signature, parse(where))
    assert compiled.cubin[:4] == b"\x7fELF" and [plan for plan, _ in compiled.build.plans()] == [fft]


def test_columns_are_of_block_execution():
    with pytest.raises(PlanError, match=r"^thread_layout='transposed' is for execution='block'; a thread has a transform of its own$"):
        FFT(8, execution="thread", thread_layout="transposed")
    with pytest.raises(PlanError, match=r"^thread_layout must be one of 'regular', 'transposed', got 'transpose' \(did you mean 'transposed'\?\)$"):
        FFT(8, thread_layout="transpose")
