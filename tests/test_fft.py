"""FFTs in kernels, on either side: against numpy.fft in double precision, the laws of the transform, and the edges of rows."""

import numpy as np
import pytest
from support import error, host, noise, plans, rows, run, tolerance, transforms

from devmath.errors import PlanError
from devmath.fft import FFT

SINGLE = [1, 2, 3, 7, 65, 127, 251, 343, 512, 625, 729, 1000, 4093, 8192, 10000, 16384, 32768]
DOUBLE = [1, 2, 49, 65, 127, 243, 1024, 4093, 10000]
KNOBS = [
    FFT(128, elements_per_thread=8, ffts_per_block=4),
    FFT(1000, ffts_per_block=2),
    FFT(64, precision=np.float64, elements_per_thread=4, ffts_per_block=8, direction="inverse"),
]
#: Both implementations of powers of two: with one pass and with several, threads of less than a warp and of several, and open knobs.
OWN = [FFT(n, implementation="devmath") for n in (2, 8, 32, 64, 128, 256, 1024, 2048, 4096, 8192, 16384)]
OWN += [FFT(n, precision=np.float64, implementation="devmath", direction="inverse") for n in (4, 64, 128, 256, 512, 2048, 4096)]
OWN += [FFT(512, implementation="devmath", elements_per_thread=e, ffts_per_block=f) for e, f in ((2, 1), (4, 2), (8, 4), (32, 16), (16, 3))]
OWN += [FFT(n, implementation="cufftdx") for n in (512, 4096)]
THREAD = [FFT(n, execution="thread") for n in (1, 2, 3, 7, 16, 31, 61, 64)]
THREAD += [FFT(n, precision=np.float64, execution="thread", direction="inverse") for n in (2, 13, 32, 40)]
#: One plan of each kind for the laws: whole, padded, in double precision, in one thread.
LAWS = [FFT(512), FFT(512, implementation="cufftdx"), FFT(65), FFT(243, precision=np.float64), FFT(7, execution="thread")]


def expected(fft, x):
    """Both directions in double precision, unnormalised, the plan's own first."""
    n = fft.size
    pair = np.fft.fft(x, n), np.fft.ifft(x, n, norm="forward")
    return pair if fft.direction == "forward" else pair[::-1]


# --- against numpy.fft ------------------------------------------------------------------------------------------------


@plans([FFT(n) for n in SINGLE], [FFT(n, precision=np.float64) for n in DOUBLE], KNOBS, OWN, THREAD)
def test_transforms_are_those_of_numpy(xp, fft, rng):
    try:
        batch = rows(fft, xp)
    except PlanError as e:  # the largest sizes do not exist on every architecture
        pytest.skip(str(e))
    x = noise(rng, (batch, fft.size), fft.value_type)
    for got, want in zip(run(fft, xp, x), expected(fft, x.astype(np.complex128)), strict=True):
        assert error(got, want) <= tolerance(fft)
        assert max(error(g, w) for g, w in zip(got, want, strict=True)) <= 4 * tolerance(fft)  # no single row is off


@pytest.mark.sanitizer
@plans([FFT(65), KNOBS[0], THREAD[3], FFT(64, implementation="devmath", ffts_per_block=3), FFT(2048, implementation="devmath", ffts_per_block=2)])
def test_any_batch(xp, fft, rng):
    for batch in (1, 3, 4, 5, 9):
        x = noise(rng, (batch, fft.size), fft.value_type)
        assert error(run(fft, xp, x)[0], expected(fft, x)[0]) <= tolerance(fft)
    assert run(fft, xp, np.zeros((0, fft.size), fft.value_type))[0].shape == (0, fft.size)


def test_threads_a_block_do_not_matter_to_thread_execution(xp, rng):
    fft = THREAD[3]
    x = xp.asarray(noise(rng, (33, fft.size), fft.value_type))
    found = []
    for block in (1, 7, 32, 256):
        y, z = xp.zeros_like(x), xp.zeros_like(x)
        transforms(fft)[fft.launch(33, block=block)](x, y, z)
        found.append(host(y))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


# --- laws -------------------------------------------------------------------------------------------------------------


@plans(LAWS)
def test_inverse_after_forward_is_the_size_times_the_input(xp, fft, rng):
    x = noise(rng, (rows(fft, xp), fft.size), fft.value_type)
    assert error(run(fft, xp, run(fft, xp, x)[0])[1], fft.size * x) <= 2 * tolerance(fft)


@plans(LAWS)
def test_linearity(xp, fft, rng):
    x, y = noise(rng, (2, rows(fft, xp), fft.size), fft.value_type)
    a, b = 0.75 - 2j, -3.5
    together = run(fft, xp, (a * x + b * y).astype(fft.value_type))[0]
    assert error(together, a * run(fft, xp, x)[0].astype(np.complex128) + b * run(fft, xp, y)[0]) <= 4 * tolerance(fft)


@plans(LAWS)
def test_parseval(xp, fft, rng):
    x = noise(rng, (rows(fft, xp), fft.size), fft.value_type)
    for y in run(fft, xp, x):
        energy = np.sum(np.abs(y.astype(np.complex128)) ** 2, axis=1)
        np.testing.assert_allclose(energy, fft.size * np.sum(np.abs(x.astype(np.complex128)) ** 2, axis=1), rtol=4 * tolerance(fft))


@plans(LAWS)
def test_shift_theorem(xp, fft, rng):
    x = noise(rng, (rows(fft, xp), fft.size), fft.value_type)
    for by in (1, fft.size // 2, fft.size - 1):
        phase = np.exp(-2j * np.pi * (by * np.arange(fft.size) % fft.size) / fft.size)
        assert error(run(fft, xp, np.roll(x, by, axis=1))[0], run(fft, xp, x)[0] * phase) <= 4 * tolerance(fft)


@plans(LAWS)
def test_a_delta_becomes_waves_and_ones_become_a_delta(xp, fft):
    n = fft.size
    deltas = np.eye(n, dtype=fft.value_type)[[0, 1, n // 2, n - 1]]
    forward, inverse = run(fft, xp, deltas)
    k = np.arange(n)
    waves = np.array([np.exp(-2j * np.pi * (k * at % n) / n) for at in (0, 1, n // 2, n - 1)])
    assert np.abs(forward[0] - 1).max() <= tolerance(fft)
    assert error(forward, waves) <= tolerance(fft)
    assert error(inverse, waves.conj()) <= tolerance(fft)
    assert error(run(fft, xp, np.ones((1, n), fft.value_type))[0], n * np.eye(1, n)) <= tolerance(fft)


@plans(LAWS)
def test_conjugation_exchanges_the_directions(xp, fft, rng):
    x = noise(rng, (rows(fft, xp), fft.size), fft.value_type)
    assert error(run(fft, xp, x.conj())[0], run(fft, xp, x)[1].conj()) <= 2 * tolerance(fft)


# --- rows -------------------------------------------------------------------------------------------------------------

ROWS = [FFT(12, ffts_per_block=2), FFT(65), FFT(7, execution="thread")]


@pytest.mark.sanitizer
@plans(ROWS)
def test_short_and_long_rows(xp, fft, rng):
    """Elements past the end of a row are read as zeros, and nothing is written past it, or past the transform's size."""
    n, batch, guard = fft.size, rows(fft, xp), 1234.5
    for have in (1, n - 1, n, n + 3):
        for room in (1, n - 1, n, n + 3):
            x = noise(rng, (batch, n + 7), fft.value_type)
            out = [xp.full((batch, n + 9), guard, fft.value_type) for _ in range(2)]
            views = [o[:, 2 : 2 + room] for o in out]
            transforms(fft)[fft.launch(batch)](xp.asarray(x)[:, 3 : 3 + have], *views)
            for got, want in zip(map(host, out), expected(fft, x[:, 3 : 3 + min(have, n)]), strict=True):
                written = min(room, n)
                assert error(got[:, 2 : 2 + written], want[:, :written]) <= 4 * tolerance(fft)
                assert (got[:, :2] == guard).all() and (got[:, 2 + written :] == guard).all()


def test_empty_rows(xp):
    fft = ROWS[0]
    y, z = xp.full((3, 12), 5, np.complex64), xp.full((3, 12), 5, np.complex64)
    transforms(fft)[fft.launch(3)](xp.zeros((3, 0), np.complex64), y, z)
    assert not host(y).any() and not host(z).any()
    transforms(fft)[fft.launch(3)](y, xp.zeros((3, 0), np.complex64), xp.zeros((3, 0), np.complex64))


@plans(ROWS)
def test_rows_of_any_stride(xp, fft, rng):
    n, batch = fft.size, rows(fft, xp)
    data = noise(rng, (3 * batch, 2 * n), fft.value_type)
    device = xp.asarray(data)
    for take in (np.s_[:batch, ::2], np.s_[::3, n - 1 :: -1], np.s_[:batch, :n], np.s_[batch - 1 :: -1, :n]):
        out = xp.zeros((batch, 2 * n), fft.value_type)
        y, z = out[:, ::2], out[:, 1::2]
        transforms(fft)[fft.launch(batch)](device[take], y, z)
        for got, want in zip((y, z), expected(fft, data[take]), strict=True):
            assert error(got, want) <= tolerance(fft)


@plans(ROWS)
def test_fortran_order(xp, fft, rng):
    x = noise(rng, (rows(fft, xp), fft.size), fft.value_type)
    columns = xp.asfortranarray(xp.asarray(x))
    y, z = xp.zeros_like(columns), xp.zeros_like(columns)
    assert y.flags.f_contiguous
    transforms(fft)[fft.launch(x.shape[0])](columns, y, z)
    for got, want in zip((y, z), expected(fft, x), strict=True):
        assert error(got, want) <= tolerance(fft)
