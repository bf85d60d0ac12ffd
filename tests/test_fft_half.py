"""Transforms in half precision, two of which a thread works on at once, on either side: against numpy.fft in double precision."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba import types as nbt
from support import ARCHS, error, host, plans, rows, target_of, tolerance

import devmath as dm
from devmath.arch import parse
from devmath.errors import ArgumentError, KernelTypeError, PlanError
from devmath.fft import FFT
from devmath.targets.cuda import compile_kernel

H = np.float16
C2C = [FFT(n, H) for n in (1, 2, 3, 7, 16, 31, 64, 100, 251, 512, 1000, 1024, 4093, 4096, 8192)]
KNOBS = [FFT(512, H, ffts_per_block=2), FFT(512, H, elements_per_thread=8, ffts_per_block=6), FFT(64, H, thread_layout="transposed")]
REAL = [FFT(n, H, "r2c") for n in (1, 2, 3, 4, 7, 31, 64, 100, 251, 512, 1000, 1024, 4096, 8192)]
REAL += [FFT(n, H, "r2c", complex_layout=layout) for n in (8, 100, 1024) for layout in ("packed", "full")]
REAL += [FFT(n, H, "r2c", real_mode="normal") for n in (8, 512)]
REAL += [FFT(64, H, "r2c", thread_layout="transposed"), FFT(65, H, "r2c", complex_layout="full")]
THREAD = [FFT(n, H, execution="thread") for n in (1, 2, 7, 32, 64)]
REAL_THREAD = [FFT(n, H, "r2c", execution="thread", complex_layout=lay) for n, lay in ((1, "natural"), (9, "full"), (32, "packed"), (31, "natural"))]
REAL_THREAD += [FFT(n, H, "r2c", execution="thread", real_mode="folded") for n in (4, 100)]
#: One of each kind.
KINDS = [FFT(512, H), FFT(100, H), FFT(64, H, "r2c"), FFT(100, H, "r2c"), FFT(32, H, "r2c", complex_layout="packed"), THREAD[2], REAL_THREAD[2]]


@functools.cache
def filtering(fft):
    """A kernel (x, h, y, z): y is the transform of x, z the inverse transform of y * h."""
    back = fft.inverse()
    if fft.execution == "thread":

        @dm.kernel
        def both(x, h, y, z):
            r = fft.registers()
            b = fft.batch()
            if b < x.shape[0]:
                fft.load(x[b : b + 2], r)
                fft.execute(r)
                fft.store(r, y[b : b + 2])
                fft.multiply(h, r)
                back.execute(r)
                back.store(r, z[b : b + 2])

        return both

    @dm.kernel
    def both(x, h, y, z):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b : b + 2], r)
        fft.execute(r, s)
        if b < x.shape[0]:
            fft.store(r, y[b : b + 2])
        fft.multiply(h, r)
        back.execute(r, s)
        if b < x.shape[0]:
            back.store(r, z[b : b + 2])

    return both


def parts(x):
    """Complex numbers as float16, real and imaginary parts in a last axis; real ones as they are."""
    return np.stack([x.real, x.imag], -1).astype(H) if np.iscomplexobj(x) else x.astype(H)


def wide(x):
    """Numbers of float16 in double precision: complex where there are parts."""
    x = host(x).astype(float)
    return x[..., 0] + 1j * x[..., 1] if x.ndim == 3 else x


def draw(rng, fft, batch, length=None):
    x = rng.standard_normal((batch, length or fft.size))
    return parts(x if fft.fft_type == "r2c" else x + 1j * rng.standard_normal(x.shape))


def spectrum(fft, x):
    """The transform of rows in double precision, in the plan's layout."""
    full = np.fft.fft(x, fft.size) if fft.direction == "forward" else np.fft.ifft(x, fft.size) * fft.size
    half = fft.size // 2
    if fft.fft_type == "c2c" or fft.complex_layout == "full":
        return full
    if fft.complex_layout == "natural":
        return full[:, : half + 1]
    packed = full[:, :half].copy()
    packed[:, 0] = full[:, 0].real + 1j * full[:, half].real
    return packed


def factors(fft, rng):
    """The transform of a filter that leaves the size of what goes through it, as many factors as `multiply` wants, and the filter."""
    taps = rng.standard_normal(fft.size) / fft.size
    h = np.fft.fft(taps)
    whole = fft.fft_type == "c2c" or fft.complex_layout == "full"
    return (h if whole else h[: fft.size // 2 + 1]).astype(np.complex64), taps


def results(fft, xp, batch, lengths=None):
    """Arrays that a kernel of `filtering` writes to."""
    y, z = lengths or (fft.output_length, fft.size)
    real = fft.fft_type == "r2c"
    return xp.full((batch, y, 2), np.nan, H), xp.full((batch, z) if real else (batch, z, 2), np.nan, H)


def run_filter(fft, xp, x, h):
    y, z = results(fft, xp, x.shape[0])
    filtering(fft)[fft.launch(x.shape[0])](xp.asarray(x), xp.asarray(h), y, z)
    return host(y), host(z)


def filtered(x, taps):
    """Rows through a circular filter, unnormalised."""
    y = np.fft.ifft(np.fft.fft(x) * np.fft.fft(taps)) * x.shape[1]
    return y if np.iscomplexobj(x) else y.real


# --- against numpy.fft ------------------------------------------------------------------------------------------------


@plans(C2C, KNOBS, REAL, THREAD, REAL_THREAD)
def test_transforms_and_filters(xp, fft, rng):
    """An odd number of rows: the last thread has one only."""
    batch = rows(fft, xp)
    assert batch % 2
    x, (h, taps) = draw(rng, fft, batch), factors(fft, rng)
    y, z = run_filter(fft, xp, x, h)
    assert error(wide(y), spectrum(fft, wide(x))) < tolerance(fft)
    assert error(wide(z), filtered(wide(x), taps)) < 2 * tolerance(fft)


@plans([FFT(512, H, direction="inverse"), FFT(7, H, direction="inverse", execution="thread")])
def test_the_inverse_is_not_normalised(xp, fft, rng):
    x = draw(rng, fft, 3)
    y, z = run_filter(fft, xp, x, np.ones(fft.size, np.float32) / fft.size)
    assert error(wide(y), np.fft.ifft(wide(x)) * fft.size) < tolerance(fft)
    assert error(wide(z), wide(x)) < 2 * tolerance(fft)


def plans_of_any_kind():
    def plan(size, kind, execution, layout, knobs):
        thread = execution == "thread"
        try:
            return FFT(
                size,
                H,
                kind,
                execution=execution,
                complex_layout=layout if kind == "r2c" else "natural",
                ffts_per_block=None if thread else knobs,
            )
        except PlanError:
            return None

    drawn = st.builds(
        plan,
        st.integers(1, 64),
        st.sampled_from(["c2c", "r2c"]),
        st.sampled_from(["block", "thread"]),
        st.sampled_from(["natural", "packed", "full"]),
        st.sampled_from([None, 2, 4]),
    )
    return drawn.filter(bool)


@settings(max_examples=12)
@given(plans_of_any_kind(), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_any_plan_and_batch(fft, batch, seed):
    rng = np.random.default_rng(seed)
    x, (h, taps) = draw(rng, fft, batch), factors(fft, rng)
    y, z = run_filter(fft, np, x, h)
    assert error(wide(y), spectrum(fft, wide(x))) < tolerance(fft)
    assert error(wide(z), filtered(wide(x), taps)) < 2 * tolerance(fft)


# --- two transforms at once -------------------------------------------------------------------------------------------


@plans(KINDS)
def test_two_at_once_are_two_separate_ones(xp, fft, rng):
    x, (h, _) = draw(rng, fft, 2), factors(fft, rng)
    y, z = run_filter(fft, xp, x, h)
    for p in range(2):
        for other in (x[p : p + 1], x[[p, p]]):
            y1, z1 = run_filter(fft, xp, other, h)
            np.testing.assert_array_equal(y1[0], y[p])
            np.testing.assert_array_equal(z1[0], z[p])


@plans(KINDS)
def test_what_is_not_finite_stays_in_its_own_transform(xp, fft, rng):
    x, (h, _) = draw(rng, fft, 4), factors(fft, rng)
    y, _ = run_filter(fft, xp, x, h)
    x[1, 0], x[2, 0] = np.nan, np.inf
    bad, _ = run_filter(fft, xp, x, h)
    np.testing.assert_array_equal(bad[[0, 3]], y[[0, 3]])
    assert np.isnan(bad[1]).any() and not np.isfinite(bad[2]).all()


@pytest.mark.sanitizer
@plans(KINDS)
@pytest.mark.parametrize("order", ["pairs", "parts first", "backwards", "every other", "columns"])
def test_rows_lie_in_memory_as_they_like(xp, fft, order, rng):
    """Among them cuFFTDx's other layout: the same number of two transforms side by side."""
    batch = rows(fft, xp)
    x, (h, _) = draw(rng, fft, batch), factors(fft, rng)
    want = run_filter(fft, xp, x, h)
    even = batch + batch % 2

    def laid(a):
        """An equal array, which lies in another order in memory, and what it lies in."""
        parted = a.ndim == 3
        if order == "pairs":
            room = xp.full((even // 2, *a.shape[1:], 2), np.nan, H)
            view = xp.moveaxis(room, -1, 1)  # a copy when reshaped: rows of a pair go to a kernel one pair at a time
            return view, room
        if order == "parts first" and parted:
            room = xp.full((2, *a.shape[:2]), np.nan, H)
            return xp.moveaxis(room, 0, -1), room
        if order == "backwards":
            room = xp.full(a.shape, np.nan, H)
            return room[:, ::-1], room
        if order == "every other":
            room = xp.full((a.shape[0], 2 * a.shape[1], *a.shape[2:]), np.nan, H)
            return room[:, 1::2], room
        room = xp.full((a.shape[1], a.shape[0], *a.shape[2:]), np.nan, H)
        return xp.moveaxis(room, 1, 0), room

    y, z = want
    (vx, _), (vy, _), (vz, _) = laid(x), laid(y), laid(z)
    if order == "pairs":
        padded = np.concatenate([x, np.zeros((even - batch, *x.shape[1:]), H)])
        vx[...] = xp.asarray(padded.reshape(vx.shape))
        paired(fft)[fft.launch(even)](vx, xp.asarray(h), vy, vz)
        got = [host(v).reshape(even, *w.shape[1:])[:batch] for v, w in ((vy, y), (vz, z))]
    else:
        vx[...] = xp.asarray(x)
        filtering(fft)[fft.launch(batch)](vx, xp.asarray(h), vy, vz)
        got = [host(vy), host(vz)]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


@functools.cache
def paired(fft):
    """`filtering` of arrays of pairs: (pair, which, element, ...)."""
    back = fft.inverse()
    thread = fft.execution == "thread"

    @cuda.jit(device=True)
    def work(plan, r):
        if thread:
            plan.execute(r)
        else:
            plan.execute(r, plan.scratch())

    if thread:

        @dm.kernel
        def both(x, h, y, z):
            r = fft.registers()
            c = fft.batch() // 2
            if c < x.shape[0]:
                fft.load(x[c], r)
                fft.execute(r)
                fft.store(r, y[c])
                fft.multiply(h, r)
                back.execute(r)
                back.store(r, z[c])

        return both

    @dm.kernel
    def both(x, h, y, z):
        r = fft.registers()
        s = fft.scratch()
        c = fft.batch() // 2
        if c < x.shape[0]:
            fft.load(x[c], r)
        fft.execute(r, s)
        if c < x.shape[0]:
            fft.store(r, y[c])
        fft.multiply(h, r)
        back.execute(r, s)
        if c < x.shape[0]:
            back.store(r, z[c])

    return both


@pytest.mark.sanitizer
@plans(KINDS)
def test_short_rows_are_padded_and_nothing_is_written_past_rows(xp, fft, rng):
    batch = rows(fft, xp)
    short = fft.size * 2 // 3
    x, (h, taps) = draw(rng, fft, batch, short), factors(fft, rng)
    lengths = (fft.output_length * 3 // 4, fft.size - 1)
    ys, zs = results(fft, xp, batch + 2, tuple(n + 2 for n in lengths))
    y, z = ys[1:-1, 1:-1], zs[1:-1, 1:-1]
    filtering(fft)[fft.launch(batch)](xp.asarray(x), xp.asarray(h), y, z)
    padded = np.pad(wide(x), ((0, 0), (0, fft.size - short)))
    assert error(wide(y), spectrum(fft, padded)[:, : lengths[0]]) < tolerance(fft)
    assert error(wide(z), filtered(padded, taps)[:, : lengths[1]]) < 2 * tolerance(fft)
    for all_, inner in ((ys, y), (zs, z)):
        inner[...] = np.nan
        assert np.isnan(host(all_)).all()


@plans(KINDS)
def test_empty_rows_are_zero(xp, fft):
    x = np.zeros((3, 0) if fft.fft_type == "r2c" else (3, 0, 2), H)
    y, _ = run_filter(fft, xp, x, np.ones(1, np.float32))
    assert (y == 0).all()


# --- elements ---------------------------------------------------------------------------------------------------------


@plans(KINDS)
def test_elements_are_where_the_docs_say(xp, fft, rng):
    """Loaded by hand, through `index`, and stored likewise."""
    real, thread = fft.fft_type == "r2c", fft.execution == "thread"

    @cuda.jit(device=True)
    def load(x, b, r):
        for p in range(min(2, x.shape[0] - b)):
            for i in range(fft.input_elements_per_thread):
                if fft.input_active(i):
                    k = fft.input_index(i)
                    if real:
                        r[2 * i + p] = x[b + p, k, 0]
                    else:
                        r[4 * i + p] = x[b + p, k, 0]
                        r[4 * i + 2 + p] = x[b + p, k, 1]

    @cuda.jit(device=True)
    def store(r, y, b):
        for p in range(min(2, y.shape[0] - b)):
            for i in range(fft.output_elements_per_thread):
                if fft.output_active(i):
                    k = fft.output_index(i)
                    y[b + p, k, 0] = r[4 * i + p]
                    y[b + p, k, 1] = r[4 * i + 2 + p]

    if thread:

        @dm.kernel
        def by_hand(x, y):
            r = cuda.local.array(fft.storage_size, fft.value_type)
            b = fft.batch()
            if b < x.shape[0]:
                for i in range(fft.storage_size):
                    r[i] = 0
                load(x, b, r)
                fft.execute(r)
                store(r, y, b)
    else:

        @dm.kernel
        def by_hand(x, y):
            r = cuda.local.array(fft.storage_size, fft.value_type)
            b = fft.batch()
            for i in range(fft.storage_size):
                r[i] = 0
            if b < x.shape[0]:
                load(x, b, r)
            fft.execute(r, fft.scratch())
            if b < x.shape[0]:
                store(r, y, b)

    batch = rows(fft, xp)
    x = draw(rng, fft, batch)
    want, _ = run_filter(fft, xp, x, np.ones(1, np.float32))
    y = xp.full(want.shape, np.nan, H)
    by_hand[fft.launch(batch)](xp.asarray(x[..., None] if real else x), y)
    np.testing.assert_array_equal(host(y), want)


def test_traits_count_as_documented():
    for plan in (FFT(512, H), FFT(512, H, "r2c")):
        for where in ("cpu", "sm_90a"):
            t = plan.traits(where)
            assert t.value_type is H and t.ffts_per_block % 2 == 0
            assert t.storage_size >= 4 * t.output_elements_per_thread
            if where != "cpu":
                assert t.block_dim.x * t.block_dim.y * t.elements_per_thread * 2 >= 512 * t.ffts_per_block / (2 if plan.fft_type == "r2c" else 1)
                assert t.block_dim.x * t.block_dim.y >= 32
    assert FFT(512, H, ffts_per_block=6).traits("sm_90a").block_dim.y == 3
    assert FFT(8, H, execution="thread").launch_shape(1000, parse("sm_90a"), None)[0].x == 4
    assert FFT(512, H, "r2c").traits("sm_90a").real_mode == "folded"
    assert all(pair[1] % 2 == 0 for pair in FFT(512, H).valid_knobs("sm_90a"))


# --- overflow ---------------------------------------------------------------------------------------------------------


@functools.cache
def windowed(fft):
    @dm.kernel
    def kernel(x, w, y):
        r = fft.registers()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load_window(x[b : b + 2], w, r)
        fft.execute(r, fft.scratch())
        if b < x.shape[0]:
            fft.store(r, y[b : b + 2])

    return kernel


@pytest.mark.parametrize("kind", ["c2c", "r2c"])
def test_sums_past_the_largest_half_are_infinite_and_a_scale_before_keeps_them(xp, kind):
    fft = FFT(4096, H, kind)
    x = parts(np.full((2, 4096), 32.0 if kind == "r2c" else 32.0 + 0j))
    y, _ = results(fft, xp, 2)
    for scale, want in ((1.0, np.inf), (1 / 4096, 32.0)):
        windowed(fft)[fft.launch(2)](xp.asarray(x), xp.full(4096, scale, np.float32), y)
        got = host(y)
        assert (got[:, 0, 0] == want).all()
        if scale != 1:
            assert (got[:, 1:] == 0).all() and (got[:, 0, 1] == 0).all()


@plans([FFT(100, H), FFT(512, H), FFT(100, H, "r2c"), FFT(512, H, "r2c")])
def test_windows(xp, fft, rng):
    batch, short = rows(fft, xp), fft.size - 9
    x, w = draw(rng, fft, batch), rng.standard_normal(short).astype(np.float32)
    y, _ = results(fft, xp, batch)
    windowed(fft)[fft.launch(batch)](xp.asarray(x), xp.asarray(w), y)
    product = parts(wide(x)[:, :short] * w)
    assert error(wide(y), spectrum(fft, wide(product))) < tolerance(fft)


# --- determinism, compilation, refusals -------------------------------------------------------------------------------


@plans(KINDS)
def test_twenty_runs_give_the_same_bits(xp, fft, rng):
    x, (h, _) = draw(rng, fft, rows(fft, xp)), factors(fft, rng)
    first = run_filter(fft, xp, x, h)
    for _ in range(19):
        for a, b in zip(run_filter(fft, xp, x, h), first, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("arch", ARCHS)
@plans(KINDS)
def test_kernels_compile_and_link_for_every_architecture(fft, arch):
    complexes, h = nbt.float16[:, :, ::1], nbt.complex64[::1]
    types = (nbt.float16[:, ::1] if fft.fft_type == "r2c" else complexes, h, complexes)
    kernel = filtering(fft)
    compiled = compile_kernel(kernel.py_func, (*types, types[0]), parse(arch))
    assert compiled.cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize("size", [1000, 1024])
def test_sizes_need_not_be_powers_of_two(size):
    """cuFFT's limit on half precision is not cuFFTDx's."""
    assert FFT(size, H, "r2c").traits("sm_90a").output_length == size // 2 + 1


def test_refusals():
    with pytest.raises(PlanError, match="ffts_per_block must be even with precision=np.float16.*got 3"):
        FFT(64, H, ffts_per_block=3)
    with pytest.raises(PlanError, match="api='shared' is for precision=np.float32 and np.float64"):
        FFT(64, H, api="shared")
    with pytest.raises(PlanError, match="implementation='devmath' is for precision=np.float32 and np.float64"):
        FFT(64, H, implementation="devmath")
    with pytest.raises(PlanError, match="at most 64 for float16"):
        FFT(65, H, execution="thread")
    with pytest.raises(PlanError, match="20736"):
        FFT(20736, H)


def call(fft, xp, x, h, y, z):
    filtering(fft)[fft.launch(2)](xp.asarray(x), xp.asarray(h), xp.asarray(y), xp.asarray(z))


@pytest.mark.parametrize("wrong", ["complex64", "float32", "two axes", "half factors"])
def test_what_is_not_halves_is_refused_with_what_is(xp, wrong):
    fft = KINDS[0]
    x, h = np.zeros((2, 512, 2), H), np.zeros(512, np.complex64)
    z, y = x.copy(), x.copy()
    if wrong == "complex64":
        x = np.zeros((2, 512), np.complex64)
    elif wrong == "float32":
        x = x.astype(np.float32)
    elif wrong == "two axes":
        x = x[..., 0]
    else:
        h = np.zeros(512, H)
    with pytest.raises((KernelTypeError, ArgumentError), match="float32" if wrong == "half factors" else r"float16.*\(2, length, 2\)"):
        call(fft, xp, x, h, y, z)


def test_targets_agree_on_what_a_block_is(xp):
    assert KINDS[0].traits(target_of(xp)).ffts_per_block % 2 == 0
