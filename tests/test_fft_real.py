"""Real transforms in kernels, on either side, in every layout: against numpy.fft in double precision, filters, windows, rows."""

import functools

import numpy as np
import pytest
from scipy import signal
from support import error, host, noise, plans, rows, tolerance

import devmath as dm
from devmath.errors import KernelTypeError, PlanError
from devmath.fft import FFT

NATURAL = [FFT(n, fft_type="r2c") for n in (1, 2, 3, 4, 7, 31, 65, 128, 251, 256, 500, 512, 1000, 1024, 2048, 4093, 4096, 8192)]
DOUBLE = [FFT(n, np.float64, "r2c") for n in (2, 3, 49, 128, 256, 512, 1000, 1024, 2048, 4096)]
LAYOUTS = [FFT(n, fft_type="r2c", complex_layout=layout) for n in (8, 100, 256, 1024) for layout in ("packed", "full")]
LAYOUTS += [FFT(65, fft_type="r2c", complex_layout="full"), FFT(64, np.float64, "r2c", complex_layout="packed")]
FOLDED = [
    FFT(n, fft_type="r2c", complex_layout=layout, real_mode="folded", implementation="cufftdx")
    for n in (8, 1024)
    for layout in ("natural", "packed", "full")
]
OWN = [FFT(n, fft_type="r2c", implementation="devmath", elements_per_thread=e, ffts_per_block=f) for n, e, f in ((4, 4, 3), (16, 4, 2), (64, 64, 1))]
OWN += [FFT(n, fft_type="r2c", complex_layout="packed", implementation="devmath", elements_per_thread=8) for n in (32, 512)]
CUFFTDX = [FFT(512, fft_type="r2c", implementation="cufftdx", ffts_per_block=3)]
CUFFTDX += [FFT(128, np.float64, "r2c", implementation="cufftdx", real_mode="normal")]
THREAD = [FFT(n, fft_type="r2c", execution="thread") for n in (1, 2, 3, 8, 31, 64)]
THREAD += [FFT(n, np.float64, "r2c", execution="thread", complex_layout=lay) for n, lay in ((6, "packed"), (9, "full"), (40, "natural"))]
THREAD += [
    FFT(n, fft_type="r2c", execution="thread", complex_layout=layout, real_mode="folded")
    for n, layout in ((4, "natural"), (100, "packed"), (64, "full"))
]
#: One of each kind.
KINDS = [FFT(512, fft_type="r2c"), FFT(65, fft_type="r2c"), FFT(128, fft_type="r2c", complex_layout="packed"), THREAD[3], FOLDED[1]]


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
                fft.load(x[b], r)
                fft.execute(r)
                fft.store(r, y[b])
                fft.multiply(h, r)
                back.execute(r)
                back.store(r, z[b])

        return both

    @dm.kernel
    def both(x, h, y, z):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(r, s)
        if b < x.shape[0]:
            fft.store(r, y[b])
        fft.multiply(h, r)
        back.execute(r, s)
        if b < x.shape[0]:
            back.store(r, z[b])

    return both


def run_filter(fft, xp, x, h):
    x, h = xp.asarray(x), xp.asarray(h)
    y = xp.full((x.shape[0], spectrum(fft, np.zeros((1, fft.size))).shape[1]), np.nan, fft.value_type)
    z = xp.full((x.shape[0], fft.size), np.nan, fft.precision)
    filtering(fft)[fft.launch(x.shape[0])](x, h, y, z)
    return host(y), host(z)


def spectrum(fft, x):
    """The transform of rows in double precision, in the plan's layout."""
    full = np.fft.fft(x.astype(float), fft.size)
    half = fft.size // 2
    if fft.complex_layout == "full":
        return full
    if fft.complex_layout == "natural":
        return full[:, : half + 1]
    packed = full[:, :half].copy()
    packed[:, 0] = full[:, 0].real + 1j * full[:, half].real
    return packed


def factors(fft, rng):
    """The transform of a real filter, as many factors as `multiply` wants, and the filter."""
    taps = rng.standard_normal(fft.size)
    h = np.fft.fft(taps)
    return (h if fft.complex_layout == "full" else h[: fft.size // 2 + 1]).astype(fft.value_type), taps


def draw(rng, fft, batch):
    return rng.standard_normal((batch, fft.size)).astype(fft.precision)


def largest(fft, xp):
    try:
        return rows(fft, xp)
    except PlanError as e:
        pytest.skip(str(e))


# --- against numpy.fft ------------------------------------------------------------------------------------------------


@plans(NATURAL, DOUBLE, LAYOUTS, FOLDED, OWN, CUFFTDX, THREAD)
def test_real_transforms_and_filters(xp, fft, rng):
    x, (h, taps) = draw(rng, fft, largest(fft, xp)), factors(fft, rng)
    y, z = run_filter(fft, xp, x, h)
    assert error(y, spectrum(fft, x)) <= tolerance(fft)
    circular = np.fft.ifft(np.fft.fft(x.astype(float)) * np.fft.fft(taps)).real
    assert error(z / fft.size, circular) <= 4 * tolerance(fft)


def test_convolution_is_the_one_of_scipy(xp, rng):
    """Zero padding: rows shorter than the transform."""
    fft = FFT(1024, fft_type="r2c")
    x, taps = rng.standard_normal((9, 900)).astype(np.float32), rng.standard_normal(125).astype(np.float32)
    h = np.fft.rfft(taps, 1024).astype(np.complex64) / np.float32(1024)
    _, z = run_filter(fft, xp, x, h)
    assert error(z, np.array([signal.convolve(row.astype(float), taps.astype(float)) for row in x])) <= 4 * tolerance(fft)


def test_a_size_of_three_is_three(xp):
    """Case 11."""
    fft = FFT(3, fft_type="r2c")
    y, z = run_filter(fft, xp, np.array([[-9, 1, 3]], np.float32), np.ones(2, np.complex64))
    assert y.shape == (1, 2) and np.abs(y - [[-5, -11 + 1.7320508j]]).max() < 1e-5
    assert np.abs(z / 3 - [[-9, 1, 3]]).max() < 1e-5


@pytest.mark.sanitizer
@plans(KINDS)
def test_real_rows_of_any_length_stride_and_place(xp, fft, rng):
    """Elements past a row's end are zeros, nothing is written past it; rows that begin between two pairs work as well."""
    n, batch, (h, _) = fft.size, largest(fft, xp), factors(fft, rng)
    h = np.ones_like(h)
    data = rng.standard_normal((batch, 2 * n + 9)).astype(fft.precision)
    width = spectrum(fft, data[:, :n]).shape[1]
    for view in (np.s_[:, 1 : n + 1], np.s_[:, 2 : n + 2], np.s_[:, : n - 1], np.s_[:, : 2 * n : 2], np.s_[:, n - 1 :: -1], np.s_[::-1, : n + 5]):
        for room in (n - 1, n, n + 3):
            out = xp.full((batch, n + 9), 77, fft.precision)
            y, z = xp.full((batch, width + 5), 77, fft.value_type), out[:, 3 : 3 + room]
            filtering(fft)[fft.launch(batch)](xp.asarray(data)[view], xp.asarray(h), y[:, 1 : 1 + width], z)
            x = data[view][:, :n]
            y, out, written = host(y), host(out), min(room, n)
            assert error(y[:, 1 : 1 + width], spectrum(fft, x)) <= tolerance(fft) and (y[:, [0, -1]] == 77).all()
            padded = np.pad(x.astype(float), ((0, 0), (0, n - x.shape[1])))
            assert error(out[:, 3 : 3 + written], n * padded[:, :written]) <= 4 * tolerance(fft)
            assert (out[:, :3] == 77).all() and (out[:, 3 + written :] == 77).all()


@plans([FFT(256, fft_type="r2c"), FFT(30, fft_type="r2c"), FFT(512, fft_type="r2c", complex_layout="full"), THREAD[3]])
def test_imaginary_parts_of_real_elements_are_not_looked_at(xp, fft, rng):
    """Elements 0 and n / 2 of a real signal's transform are real; as NumPy, c2r does not read their imaginary parts."""
    back, n = fft.inverse(), fft.size
    x = spectrum(fft, draw(rng, fft, 3)).astype(fft.value_type)
    marked = x.copy()
    marked[:, [0, n // 2]] += 50j
    found = []
    for given in (x, marked):

        y = xp.zeros((3, n), fft.precision)
        if fft.execution == "block":

            @dm.kernel
            def inverse(x, y):
                r = back.registers()
                s = back.scratch()
                b = back.batch()
                if b < x.shape[0]:
                    back.load(x[b], r)
                back.execute(r, s)
                if b < x.shape[0]:
                    back.store(r, y[b])
        else:

            @dm.kernel
            def inverse(x, y):
                r = back.registers()
                b = back.batch()
                if b < x.shape[0]:
                    back.load(x[b], r)
                    back.execute(r)
                    back.store(r, y[b])

        inverse[back.launch(3)](xp.asarray(given), y)
        found.append(host(y))
    assert error(found[1], found[0]) <= 2 * tolerance(fft)


# --- elements by hand -------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
@plans(KINDS[:3], [FFT(512, fft_type="r2c", implementation="cufftdx"), FFT(512)])
def test_positions_agree_with_load_and_store(xp, fft, rng):
    """Every element of both rows is some thread's, once."""
    is_real = fft.fft_type == "r2c"

    @dm.kernel
    def by_hand(x, y, seen, seen_out):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        inside = b < x.shape[0]
        values = fft.as_real(r) if is_real else r
        for i in range(fft.input_elements_per_thread):
            values[i] = x[b, fft.input_index(i)] if inside else x[0, 0]
            if inside and fft.input_active(i):
                seen[b, fft.input_index(i)] += 1
        fft.execute(r, s)
        for i in range(fft.output_elements_per_thread):
            if inside and fft.output_active(i):
                y[b, fft.output_index(i)] = r[i]
                seen_out[b, fft.index(i)] += fft.active(i)

    batch = largest(fft, xp)
    x = draw(rng, fft, batch) if is_real else noise(rng, (batch, fft.size), fft.value_type)
    want = spectrum(fft, x) if is_real else np.fft.fft(x.astype(complex))
    y, seen, seen_out = (xp.zeros(s, t) for s, t in ((want.shape, fft.value_type), (x.shape, np.int64), (want.shape, np.int64)))
    by_hand[fft.launch(batch)](xp.asarray(x), y, seen, seen_out)
    assert error(y, want) <= tolerance(fft)
    assert (host(seen) == 1).all() and (host(seen_out) == 1).all()


@plans([FFT(256, fft_type="r2c"), FFT(65, fft_type="r2c"), FFT(256), FFT(65)])
def test_windows_over_frames_of_a_signal(xp, fft, rng):
    """A short-time transform: frames that overlap, the last ones past the signal's end."""

    @dm.kernel
    def stft(signal, window, hop, y):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < y.shape[0]:
            fft.load_window(signal[b * hop :], window, r)
        fft.execute(r, s)
        if b < y.shape[0]:
            fft.store(r, y[b])

    n, hop = fft.size, fft.size // 3
    samples = rng.standard_normal(5 * n).astype(fft.precision)
    data = samples if fft.fft_type == "r2c" else noise(rng, 5 * n, fft.value_type)
    window = np.hanning(n).astype(fft.precision)
    frames = -(-len(data) // hop)
    padded = np.concatenate([data, np.zeros(n, data.dtype)])
    cut = np.array([padded[k * hop : k * hop + n] * window for k in range(frames)])
    want = spectrum(fft, cut) if fft.fft_type == "r2c" else np.fft.fft(cut.astype(complex))
    y = xp.zeros(want.shape, fft.value_type)
    stft[fft.launch(frames)](xp.asarray(data), xp.asarray(window), hop, y)
    assert error(y, want) <= tolerance(fft)


def test_twenty_runs_give_the_same_bits(xp, rng):
    fft = FFT(1024, fft_type="r2c")
    x, (h, _) = draw(rng, fft, 33), factors(fft, rng)
    first = run_filter(fft, xp, x, h)
    for _ in range(19):
        for a, b in zip(first, run_filter(fft, xp, x, h), strict=True):
            np.testing.assert_array_equal(a, b)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"fft_type": "r2r"}, "fft_type must be one of 'c2c', 'r2c', 'c2r', got 'r2r'"),
        ({"fft_type": "r2c", "direction": "inverse"}, "fft_type='r2c' is forward, got direction='inverse'; .* fft_type='c2r'"),
        ({"fft_type": "c2r", "direction": "forward"}, "fft_type='c2r' is inverse, got direction='forward'; .* fft_type='r2c'"),
        ({"complex_layout": "packed"}, "complex_layout='packed' is for fft_type='r2c' and 'c2r'"),
        ({"real_mode": "folded"}, "real_mode='folded' is for fft_type='r2c' and 'c2r'"),
        ({"fft_type": "r2c", "complex_layout": "halved"}, "complex_layout must be"),
        ({"fft_type": "r2c", "size": 65, "complex_layout": "packed"}, "even size, got 65"),
        ({"fft_type": "r2c", "size": 96, "real_mode": "folded"}, r"power of two, 4 to 65536.*got 96 \(nearest: 128\)"),
        ({"fft_type": "r2c", "size": 7, "real_mode": "folded", "execution": "thread"}, r"even.*got 7 \(nearest: 8\)"),
        ({"fft_type": "r2c", "implementation": "devmath", "complex_layout": "full"}, "no complex_layout='full'"),
        ({"fft_type": "r2c", "implementation": "devmath", "size": 100}, r"powers of two from 4, got 100 \(nearest: 128\)"),
        ({"transposition": "sideways"}, "transposition must be"),
        ({"transposition": "any", "execution": "thread"}, "transposition is for execution='block'"),
    ],
    ids=lambda v: "-".join(map(str, v.values())) if isinstance(v, dict) else "",
)
def test_impossible_real_plans(fields, words):
    with pytest.raises(PlanError, match=words):
        FFT(**{"size": 64, **fields})


def test_lengths_and_types():
    for where in ("cpu", "sm_80", "sm_90a"):
        for layout, length in (("natural", 51), ("packed", 50), ("full", 100)):
            fft = FFT(100, fft_type="r2c", complex_layout=layout)
            for plan, sides in ((fft, ("input", "output")), (fft.inverse(), ("output", "input"))):
                t = plan.traits(where)
                assert [t[f"{s}_length"] for s in sides] == [100, length]
                assert [t[f"{s}_type"] for s in sides] == [np.float32, np.complex64]
                assert t.storage_size * 2 >= t[f"{sides[0]}_elements_per_thread"] and t.storage_size >= t[f"{sides[1]}_elements_per_thread"]
    fft = FFT(100, np.float64, "r2c")
    assert fft.inverse().fft_type == "c2r" and fft.inverse().inverse() == fft and fft.direction == "forward"
    assert dm.from_json(fft.to_json()) == fft


@pytest.mark.parametrize("name", ["none", "by_component", "by_complex", "by_component_padded", "any"])
def test_transposition_is_taken_or_refused_with_the_choices(name):
    fft = FFT(512, transposition=name)
    if name == "none":
        with pytest.raises(PlanError, match="by_component_padded"):
            fft.traits("sm_90a")
    else:
        assert fft.traits("sm_90a").implementation == "cufftdx"


def test_a_row_of_the_wrong_side_is_refused():
    """Case 36."""
    fft = FFT(64, fft_type="r2c")

    @dm.kernel
    def wrong(x, y):
        r = fft.registers()
        fft.load(x[0], r)

    @dm.kernel
    def wrong_output(x, y):
        r = fft.registers()
        fft.store(r, x[0])

    x, y = np.zeros((1, 64), np.float32), np.zeros((1, 33), np.complex64)
    with pytest.raises(KernelTypeError, match=r"row is complex64, the FFT works on float32"):
        wrong[fft.launch(1)](y, x)
    with pytest.raises(KernelTypeError, match=r"row is float32, the FFT works on complex64"):
        wrong_output[fft.launch(1)](x, y)
