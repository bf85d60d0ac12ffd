"""The examples on Fourier transforms: what a spectrogram, a filter bank and a filter of images must satisfy, and SciPy in double precision."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from support import error, host

scipy_signal = pytest.importorskip("scipy.signal")

F = np.float32


def _example(name):
    file = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sound = _example("spectrogram")
images = _example("image_filter")


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def side(request):
    """What ``--device`` takes."""
    if request.param == "gpu":
        pytest.importorskip("cupy")
    return request.param


def _is_png(file):
    return file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and file.stat().st_size > 10_000


def _lines(printed, *names):
    """The first number after each name at the beginning of a line."""
    rows = [line for line in printed.splitlines() if line.strip()]
    return [float(next(line for line in rows if line.startswith(n))[len(n) :].split()[0]) for n in names]


# -- spectrogram.py: power --------------------------------------------------------------------------------------------------------


def power(xp, x, window, hop):
    """Not in dB, in double precision."""
    got = sound.spectrogram(xp, xp.asarray(x, F), xp.asarray(window, F), hop)
    return 10 ** (host(got).astype(float) / 10) - float(sound.FLOOR)


def test_a_tone_of_full_scale_has_0_db_in_its_bin(xp):
    """Under Hann's window of the transform's length: 0 dB in the bin, a quarter of the power in its neighbours, nothing elsewhere."""
    n, k = sound.POINTS, 37
    tone = np.cos(2 * np.pi * k / n * np.arange(6 * n) + 0.3)
    got = host(sound.spectrogram(xp, xp.asarray(tone, F), xp.asarray(sound.hann(n)), 160))
    assert got.shape == (17, 257) and np.abs(got[:, k]).max() < 1e-3
    assert np.abs(got[:, [k - 1, k + 1]] - 10 * np.log10(0.25)).max() < 1e-3
    assert np.delete(got, [k - 1, k, k + 1], axis=1).max() < -100


@pytest.mark.parametrize("length", [512, 400, 301])
def test_a_chirp_is_where_it_should_be(xp, length):
    """A tone that rises from bin 20 at the beginning to bin 220 at the end is found there in each segment, also in padded ones."""
    n, samples, hop = sound.POINTS, 40_000, 97
    t = np.arange(samples)
    bin_of = 20 + 200 * t / samples
    got = power(xp, np.cos(2 * np.pi * np.cumsum(bin_of) / n), sound.hann(length), hop)
    whole = np.arange(len(got)) * hop + length <= samples
    found = got.argmax(axis=1)
    centre = np.arange(len(got)) * hop + length // 2
    assert whole.sum() > 400 and np.abs(found[whole] - bin_of[np.minimum(centre, samples - 1)][whole]).max() <= 1


def test_an_impulse_is_seen_by_the_segments_that_hold_it(xp):
    """Its spectrum is flat, as high as the window is where it lies."""
    window, hop, at = sound.hann(400), 70, 1234
    x = np.zeros(4000, F)
    x[at] = 1
    got = power(xp, x, window, hop)
    place = at - np.arange(len(got)) * hop
    weight = np.where((place >= 0) & (place < 400), window[np.clip(place, 0, 399)].astype(float), 0)
    assert np.abs(got - weight[:, None] ** 2).max() < 1e-6 * weight.max() ** 2 + 1e-18


def test_power_is_parsevals(xp, rng):
    """The bins of a segment, those between the first and the last twice, sum to 512 times the windowed samples' squares."""
    x, window, hop = rng.standard_normal(5000), rng.uniform(0.1, 1, 400), 123
    got = power(xp, x, window, hop)
    x, window = x.astype(F).astype(float), window.astype(F).astype(float)
    padded = np.concatenate([x, np.zeros(512)])
    squares = np.array([((padded[b * hop : b * hop + 400] * window) ** 2).sum() for b in range(len(got))])
    twice = np.full(257, 2.0)
    twice[[0, -1]] = 1
    assert (len(got) - 1) * hop + 400 >= 5000 > (len(got) - 2) * hop + 400  # the last one reaches the end, the one before does not
    assert np.abs(got @ twice / (512 * squares) - 1).max() < 2e-5


@pytest.mark.parametrize("samples, length, hop", [(1, 512, 1), (5, 400, 80), (399, 400, 80), (400, 400, 80), (401, 400, 80), (3001, 511, 509)])
def test_segments_at_the_end(xp, rng, samples, length, hop):
    """Signals shorter than a segment, and lengths that are no multiple of the hop: as SciPy's, which takes what is missing as zero."""
    x, window = rng.standard_normal(samples).astype(F), rng.uniform(0.1, 1, length).astype(F)
    got = power(xp, x, window, hop)
    assert len(got) == 1 + max(0, int(np.ceil((samples - length) / hop)))
    padded = np.concatenate([x, np.zeros(length, F)])
    want = np.array([np.abs(np.fft.rfft(padded[b * hop : b * hop + length].astype(float) * window, 512)) ** 2 for b in range(len(got))])
    assert error(got, want) < 2e-6


def test_power_is_scipys(xp, rng):
    x, hop = rng.standard_normal(7777).astype(F), 111
    for length in (512, 400):
        window = sound.hann(length)
        got = power(xp, x, window, hop)
        assert error(got, sound.spectrogram_by_scipy(x, window, hop, len(got))) < 2e-6
        _, _, old = scipy_signal.spectrogram(x.astype(float), 1.0, window.astype(float), noverlap=length - hop, nfft=512, detrend=False,
                                             scaling="spectrum", mode="complex")  # fmt: skip
        assert error(got[: old.shape[1]], np.abs(old.T * window.sum(dtype=float)) ** 2) < 2e-6


# -- spectrogram.py: bands ----------------------------------------------------------------------------------------------------------

#: Shorter than a filter's reach, than a hop, one more and one less than a hop, several blocks and a bit.
LENGTHS = [1, 2, 100, 128, 129, 767, 768, 769, 1024, 5000]


def _bands(xp, x, taps):
    return host(sound.filter_bank(xp, xp.asarray(x, F), taps))


@pytest.mark.parametrize("samples", LENGTHS)
def test_bands_are_scipys_to_both_ends(xp, rng, samples):
    """Filters without any symmetry; each element, not only the norm, so that an edge is not lost in a long signal."""
    x, taps = rng.standard_normal(samples).astype(F), rng.standard_normal((3, sound.TAPS)) / 16
    got, want = _bands(xp, x, taps), sound.bands_by_scipy(x, taps)
    assert got.shape == want.shape == (3, samples)
    assert np.abs(got - want).max() < 2e-5


def test_bands_of_an_impulse_are_the_taps(xp):
    """Wherever it lies, also on both sides of a border between blocks and at both ends."""
    taps = np.random.default_rng(3).standard_normal((2, sound.TAPS))
    for at in (0, 100, 767, 768, 895, 896, 1999):
        x = np.zeros(2000, F)
        x[at] = 1
        want = np.zeros((2, 2000 + 2 * sound.REACH))
        want[:, at : at + sound.TAPS] = taps
        assert np.abs(_bands(xp, x, taps) - want[:, sound.REACH : -sound.REACH]).max() < 1e-5


def test_bands_sum_to_the_signal(xp, rng):
    taps = sound.octaves([250, 500, 1000, 2000, 4000], 16000)
    impulse = np.zeros(sound.TAPS)
    impulse[sound.REACH] = 1
    assert np.abs(taps.sum(axis=0) - impulse).max() < 1e-15
    for samples in LENGTHS:
        x = rng.standard_normal(samples).astype(F)
        assert np.abs(_bands(xp, x, taps).sum(axis=0, dtype=float) - x).max() < 1e-5


def test_a_tone_goes_to_its_band(xp):
    taps, rate = sound.octaves([250, 500, 1000, 2000, 4000], 16000), 16000
    for band, frequency in enumerate((60, 355, 710, 1414, 2830, 6000)):
        got = _bands(xp, np.sin(2 * np.pi * frequency / rate * np.arange(8000)), taps)[:, 500:-500].astype(float)
        rms = np.sqrt((got**2).mean(axis=1))
        assert abs(rms[band] - np.sqrt(0.5)) < 0.01 and np.delete(rms, band).max() < 0.02


def test_bands_move_with_the_signal(xp, rng):
    """By any number of samples, not only by whole blocks."""
    taps, x = rng.standard_normal((2, sound.TAPS)) / 16, rng.standard_normal(2500)
    still = _bands(xp, np.concatenate([x, np.zeros(901)]), taps)
    for shift in (1, 500, 768, 901):
        moved = _bands(xp, np.concatenate([np.zeros(shift), x, np.zeros(901 - shift)]), taps)
        assert np.abs(moved[:, shift + 200 : shift + 2300] - still[:, 200:2300]).max() < 2e-5


def test_bands_write_nothing_else(xp, rng):
    x = xp.asarray(rng.standard_normal(1000), F)
    y = xp.full((3, 1010), 77, F)
    h = xp.asarray(sound.responses(rng.standard_normal((3, sound.TAPS))))
    sound.bands_of_blocks[sound.forward.launch(2)](x, h, y[:, 5:1005])
    got = host(y)
    assert (got[:, :5] == 77).all() and (got[:, 1005:] == 77).all() and (got[:, 5:1005] != 77).all()


def test_spectrogram_runs_and_draws(side, tmp_path, capsys):
    pytest.importorskip("amfm_decompy")
    pytest.importorskip("matplotlib")
    assert sound.main(["--device", side, "--out", str(tmp_path)]) == 0
    assert _is_png(tmp_path / "spectrogram.png")
    printed = capsys.readouterr().out
    assert ("the CPU" in printed) == (side == "cpu")
    assert max(_lines(printed, "spectrogram", "bands", "their sum")) < 1e-6
    with pytest.raises(SystemExit):
        sound.main(["--device", side, "--window", "50"])
    assert "--window must be 0.125 to 32 ms" in capsys.readouterr().err


def test_the_recording_is_speech():
    """16 kHz; the voice is strongest between 100 and 1000 Hz."""
    pytest.importorskip("amfm_decompy")
    rate, x = sound.load_recording()
    assert rate == 16000 and x.shape == (14259,) and x.dtype == F and 0.05 < np.abs(x).max() <= 1
    mean = power(np, x, sound.hann(400), 80).mean(axis=0)
    assert 100 < mean.argmax() * rate / 512 < 1000


# -- image_filter.py ----------------------------------------------------------------------------------------------------------------

#: Images and transforms: not square, odd, one pixel, padded far and as little as the filters (9 x 5, which reach 4 and 2) allow.
SHAPES = [((60, 62), (64, 64)), ((45, 28), (49, 30)), ((1, 1), (9, 5)), ((31, 90), (64, 100)), ((70, 33), (81, 35))]


def _apply(xp, image, filters, size, **options):
    response = images.responses(filters, *size)
    return host(images.apply(xp, xp.asarray(image, F), xp.asarray(response), size, **options))


@pytest.mark.parametrize("shape, size", SHAPES, ids=str)
def test_filters_of_images_are_scipys(xp, rng, shape, size):
    """Filters without symmetry, whose responses are complex, and even ones; against sums over pixels and against SciPy's transforms."""
    image, filters = rng.standard_normal(shape).astype(F), rng.standard_normal((3, 9, 5))
    for f in (filters, filters + filters[:, ::-1, ::-1]):
        direct = np.array([scipy_signal.convolve2d(image.astype(float), one, mode="full")[4:, 2:][: shape[0], : shape[1]] for one in f])
        assert error(images.by_scipy(image, f), direct) < 1e-13
        assert np.abs(_apply(xp, image, f, size) - direct).max() < 5e-5
        assert np.abs(_apply(xp, image, f, size, largest=True) - direct.max(axis=0)).max() < 5e-5
    assert images.responses(f, *size).dtype == F and images.responses(filters, *size).dtype == np.complex64


def test_an_impulse_gives_the_filter(xp):
    """In the middle, and cut off at a corner: nothing comes back on the other side."""
    f = np.random.default_rng(4).standard_normal((2, 9, 5))
    for at in ((20, 17), (0, 0), (39, 35)):
        image = np.zeros((40, 36))
        image[at] = 1
        want = np.zeros((2, 48, 40))
        want[:, at[0] : at[0] + 9, at[1] : at[1] + 5] = f
        assert np.abs(_apply(xp, image, f, (64, 64)) - want[:, 4:-4, 2:-2]).max() < 2e-6


def test_filters_move_with_the_image(xp, rng):
    image, f, size = np.zeros((60, 60)), rng.standard_normal((2, 9, 5)), (64, 64)
    image[10:30, 10:40] = rng.standard_normal((20, 30))
    moved = _apply(xp, np.roll(image, (17, 9), axis=(0, 1)), f, size)
    assert np.abs(moved - np.roll(_apply(xp, image, f, size), (17, 9), axis=(1, 2))).max() < 1e-5


def test_rows_are_a_real_transform(xp, rng):
    """The first kernel alone, with Parseval's equation."""
    k, x = images.kernels(64, 100), rng.standard_normal((31, 90)).astype(F)
    spectrum = xp.full((31, 53), 77, np.complex64)
    k.rows[k.row.launch(31)](xp.asarray(x), spectrum[:, 1:52])
    got = host(spectrum)
    assert error(got[:, 1:52], np.fft.rfft(x.astype(float), 100)) < 1e-6 and (got[:, [0, 52]] == 77).all()
    twice = np.full(51, 2.0)
    twice[[0, -1]] = 1
    squares = (np.abs(got[:, 1:52].astype(complex)) ** 2) @ twice / 100
    assert np.abs(squares / (x.astype(float) ** 2).sum(axis=1) - 1).max() < 1e-5


def test_columns_write_the_rows_that_there_are(xp, rng):
    k = images.kernels(64, 100)
    x = (rng.standard_normal((31, 51)) + 1j * rng.standard_normal((31, 51))).astype(np.complex64)
    h = (rng.standard_normal((2, 64, 51)) + 1j * rng.standard_normal((2, 64, 51))).astype(np.complex64)
    out = xp.full((2, 33, 53), 77, np.complex64)
    k.columns[k.column.launch(51)](xp.asarray(x), xp.asarray(h), out[:, 1:32, 1:52])
    want = 64 * np.fft.ifft(np.fft.fft(x.astype(complex), 64, axis=0) * h, axis=1)[:, :31]
    got = host(out)
    assert error(got[:, 1:32, 1:52], want) < 1e-6
    got[:, 1:32, 1:52] = 77
    assert (got == 77).all()


def test_lines_answer_to_dark_lines_of_their_direction(xp):
    """Even brightness gives nothing; of dark lines through the image's middle each is found by the filter of its angle."""
    f = images.lines(2, 20)
    assert len(f) == 12 and np.abs(f.sum(axis=(1, 2))).max() < 1e-14 and (f == f[:, ::-1, ::-1]).all()
    y, x = np.mgrid[-50:51, -50:51]
    size = (128, 128)
    assert np.abs(_apply(xp, np.ones((101, 101)), f, size)[:, 20:-20, 20:-20]).max() < 1e-6
    for k in (0, 2, 5, 9):
        angle = np.pi * k / 12
        image = 1 - np.exp(-(((x * np.sin(angle) + y * np.cos(angle)) / 2) ** 2) / 2)
        at_line = _apply(xp, image, f, size)[:, 50, 50]
        assert at_line.argmax() == k and at_line[k] > 0.2
    singular = np.linalg.svd(f[1], compute_uv=False)
    assert singular[1] > 0.1 * singular[0]  # no product of a row and a column


def test_padded_sizes_hold_image_and_reach():
    assert [images.padded_size(n, r) for n, r in ((1411, 22), (512, 0), (500, 13), (64, 1), (1, 0), (1, 40))] == [1728, 512, 1000, 128, 64, 128]
    with pytest.raises(ValueError, match="at most 4096 points"):
        images.padded_size(4090, 10)


def test_image_filter_runs_and_draws(side, tmp_path, capsys):
    pytest.importorskip("skimage")
    pytest.importorskip("matplotlib")
    assert images.main(["--device", side, "--out", str(tmp_path)]) == 0
    assert _is_png(tmp_path / "image_filter.png")
    printed = capsys.readouterr().out
    assert ("the CPU" in printed) == (side == "cpu") and "1411 x 1411" in printed
    assert max(_lines(printed, "each filter", "the strongest answer")) < 1e-6
