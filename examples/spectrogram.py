"""Spectrogram and filter bank of a recording, each one kernel around real transforms, on the GPU or on the CPU.

    python examples/spectrogram.py --device auto --out .

The recording is 0.9 s of speech at 16 kHz that ships with AMFM-decompy (amfm_decompy/sample.wav). The first kernel goes from samples to
decibels: segments that overlap are read where they lie, windowed on the way into registers, transformed, squared. The second one splits
the signal into octave bands by overlap-save: a block is transformed once, and multiplied, transformed back and stored for each band.
"""

from __future__ import annotations

import argparse
import math
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import cuda

import devmath as dm

F = np.float32
FLOOR = F(1e-12)  # -120 dB: what silence is shown as

POINTS = 512  # of a spectrogram's transform; segments may be shorter
fft = dm.fft.FFT(size=POINTS, precision=np.float32, fft_type="r2c")

BLOCK = 1024  # samples that go into a transform of the filter bank
TAPS = 257  # of each of its filters, which reach REACH samples to both sides
REACH = TAPS // 2
HOP = BLOCK - 2 * REACH  # samples that come out
forward = dm.fft.FFT(size=BLOCK, precision=np.float32, fft_type="r2c")
inverse = forward.inverse()


# -- the kernels ----------------------------------------------------------------------------------------------------------------


@dm.kernel
def power_of_segments(x, window, hop, power):
    """Row b of ``power`` (segments, 257), in dB: the squared spectrum of ``x[b * hop:]`` under ``window`` (at most 512)."""
    r = fft.registers()
    s = fft.scratch()
    b = fft.batch()  # which segment this thread works on
    if b < power.shape[0]:
        fft.load_window(x[b * hop :], window, r)  # zero past the window's end, and past the signal's
    fft.execute(r, s)
    if b < power.shape[0]:
        for i in range(fft.output_elements_per_thread):
            if fft.output_active(i):  # 257 elements are no multiple of the threads
                p = r[i].real * r[i].real + r[i].imag * r[i].imag
                power[b, fft.output_index(i)] = F(10) * math.log10(p + FLOOR)


@dm.kernel
def bands_of_blocks(x, responses, y):
    """Row k of ``y`` (bands, n): the n samples ``x`` under the filter of ``responses[k]`` (bands, 513)."""
    r = forward.registers()
    q = forward.registers()
    s = forward.scratch()
    b = forward.batch()  # which block: samples b * HOP ... (b + 1) * HOP of each band, of which a spare thread finds none
    values = forward.as_real(r)
    for i in range(forward.input_elements_per_thread):
        k = b * HOP - REACH + forward.input_index(i)  # before the signal as well as past it there are zeros
        values[i] = x[k] if 0 <= k < x.shape[0] else F(0)
    forward.execute(r, s)
    for band in range(responses.shape[0]):
        for i in range(forward.storage_size):
            q[i] = r[i]
        forward.multiply(responses[band], q)
        inverse.execute(q, s)
        inverse.store(q, y[band, b * HOP : (b + 1) * HOP])  # what wrapped around lies past the row's end, as does what is past the signal's


# -- what goes into them --------------------------------------------------------------------------------------------------------


def load_recording() -> tuple[int, np.ndarray]:
    """Samples a second, and the samples: float32, full scale is 1."""
    from scipy.io import wavfile

    with resources.as_file(resources.files("amfm_decompy") / "sample.wav") as file:
        rate, samples = wavfile.read(file)
    return rate, samples.astype(F) / F(32768)


def hann(samples: int) -> np.ndarray:
    """Hann's window, periodic, with the sum 2: a tone of amplitude 1 in the middle of a bin has 0 dB."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(samples) / samples)
    return (2 / window.sum() * window).astype(F)


def spectrogram(xp: Any, x: Any, window: Any, hop: int) -> Any:
    """Power in dB (segments, 257), float32. Segments begin at 0, hop, 2 hop ...; the last one holds the last sample, and zeros if need be."""
    segments = 1 + max(0, -(-(len(x) - len(window)) // hop))
    power = xp.empty((segments, POINTS // 2 + 1), F)
    power_of_segments[fft.launch(segments)](x, window, hop, power)
    return power


def octaves(edges: list[float], rate: float) -> np.ndarray:
    """Taps (len(edges) + 1, 257) of the bands between *edges* in Hz: differences of low passes, the last one of a whole impulse, so that
    they add up to an impulse."""
    from scipy import signal

    impulse = np.zeros(TAPS)
    impulse[REACH] = 1
    low = [signal.firwin(TAPS, edge, fs=rate) for edge in edges]
    return np.diff([np.zeros(TAPS), *low, impulse], axis=0)


def responses(taps: np.ndarray) -> np.ndarray:
    """Frequency responses (bands, 513), complex64, for :func:`bands_of_blocks`.

    A block is loaded from REACH samples before its first result. The impulse responses are turned back by twice that, so that result 0 is the
    transform's element 0; what wraps around the circle meets the last 2 * REACH elements alone, and they are not stored.
    """
    turned = np.roll(np.pad(taps, ((0, 0), (0, BLOCK - TAPS))), -2 * REACH, axis=1)
    return (np.fft.rfft(turned) / BLOCK).astype(np.complex64)  # neither direction normalises


def filter_bank(xp: Any, x: Any, taps: np.ndarray) -> Any:
    """Bands (bands, n) of n samples, float32, as long as the signal and not delayed against it."""
    y = xp.empty((len(taps), len(x)), F)
    bands_of_blocks[forward.launch(-(-len(x) // HOP))](x, xp.asarray(responses(taps)), y)
    return y


# -- what should come out -------------------------------------------------------------------------------------------------------


def spectrogram_by_scipy(x: np.ndarray, window: np.ndarray, hop: int, segments: int) -> np.ndarray:
    """Power (segments, 257), not in dB, in double precision."""
    from scipy import signal

    stft = signal.ShortTimeFFT(window.astype(float), hop, fs=1, mfft=POINTS, phase_shift=None)
    half = stft.m_num_mid  # its segment 0 is centred at the first sample unless that one is moved
    return np.abs(stft.stft(x.astype(float), 0, segments, k_offset=half)).T ** 2


def bands_by_scipy(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Bands (bands, n) in double precision."""
    from scipy import signal

    return signal.oaconvolve(x.astype(float)[None], taps, axes=1)[:, REACH : REACH + len(x)]


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Euclidean norm of the difference over that of what it should be."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


# -- the picture, and the command line ------------------------------------------------------------------------------------------


def draw(file: Path, rate: int, power: np.ndarray, centre: float, hop: int, names: list[str], bands: np.ndarray) -> None:
    """The spectrogram; and the bands, one above the other. The first segment is centred at ``centre`` seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=80)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    half = hop / rate / 2
    last = centre + (len(power) - 1) * hop / rate
    shown = left.imshow(power.T, origin="lower", aspect="auto", cmap="magma", vmin=power.max() - 70, vmax=power.max(),
                        extent=(centre - half, last + half, 0, rate / 2000))  # fmt: skip
    figure.colorbar(shown, ax=left, label="dB", pad=0.01)
    left.set(title="Spectrogram", xlabel="time (s)", ylabel="frequency (kHz)")
    t = np.arange(bands.shape[1]) / rate
    for k, (name, band) in enumerate(zip(names, bands, strict=True)):
        right.plot(t, k + 0.45 * band / np.abs(band).max(), lw=0.4, color=f"C{k}")
        right.annotate(name, (1, k + 0.2), xycoords=("axes fraction", "data"), ha="right", fontsize=8)
    right.set(title="Octave bands, each to its own scale", xlabel="time (s)", yticks=[], xlim=(t[0], 1.2 * t[-1]))
    right.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(file)


def array_module(device: str) -> tuple[Any, str]:
    """CuPy and the GPU's name, or NumPy and the CPU."""
    if device == "cpu" or (device == "auto" and not cuda.is_available()):
        return np, f"the CPU, {numba.get_num_threads()} threads"
    import cupy

    return cupy, cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--window", type=float, default=25.0, help="length of a segment in ms (default: 25; at most 32)")
    parser.add_argument("--hop", type=float, default=2.5, help="from one segment to the next, in ms (default: 2.5)")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for spectrogram.png")
    args = parser.parse_args(argv)
    try:
        rate, samples = load_recording()
        xp, where = array_module(args.device)
    except ImportError as e:
        parser.exit(1, f"{e.name} is missing: pip install " + ("cupy-cuda13x\n" if e.name == "cupy" else "'devmath[examples]'\n"))
    length, hop = round(args.window * rate / 1000), round(args.hop * rate / 1000)
    if not (2 <= length <= POINTS and hop >= 1):
        limits = f"--window must be {2000 / rate:g} to {1000 * POINTS / rate:g} ms and --hop at least {1000 / rate:g}"
        parser.error(f"{limits}, got {args.window:g} and {args.hop:g}")
    on_host = np.asarray if xp is np else xp.asnumpy
    edges = [250.0, 500.0, 1000.0, 2000.0, 4000.0]
    names = ["below 250 Hz", *(f"{low:g} to {2 * low:g} Hz" for low in edges[:-1]), f"above {edges[-1]:g} Hz"]

    x, window, taps = xp.asarray(samples), xp.asarray(hann(length)), octaves(edges, rate)
    start = time.perf_counter()
    spectrogram(xp, x, window, hop)
    on_host(filter_bank(xp, x, taps))
    first = time.perf_counter() - start  # with compilation, or the compiled kernels' way from the cache
    start = time.perf_counter()
    power = on_host(spectrogram(xp, x, window, hop))
    bands = on_host(filter_bank(xp, x, taps))
    seconds = time.perf_counter() - start

    want = spectrogram_by_scipy(samples, hann(length), hop, len(power))
    linear = 10 ** (power.astype(float) / 10) - float(FLOOR)
    loud = want > want.max() * 1e-8
    off = np.abs(power - 10 * np.log10(want + float(FLOOR)))[loud].max()
    their_bands = bands_by_scipy(samples, taps)

    print(f"data     speech, {len(samples):,} samples at {rate} Hz (AMFM-decompy's sample.wav)")
    print(f"ran on   {where}: both in {seconds * 1e3:.3g} ms (the first call took {first:.2g} s)")
    print(f"segments {len(power)} of {length} samples, padded to {POINTS}, one every {hop}")
    print(f"blocks   {-(-len(samples) // HOP)} of {BLOCK} samples for {len(taps)} bands of {TAPS} taps, one every {HOP}")
    print(f"\n{'':<14} {'relative error against SciPy':>30}")
    print(f"{'spectrogram':<14} {relative_error(linear, want):30.1e}   at most {off:.1e} dB off down to 80 dB below the peak")
    print(f"{'bands':<14} {relative_error(bands, their_bands):30.1e}")
    print(f"{'their sum':<14} {relative_error(bands.sum(axis=0, dtype=float), samples.astype(float)):30.1e}   against the recording itself")
    print("\nband             rms, dB of full scale")
    for name, band in zip(names, bands, strict=True):
        print(f"{name:<16} {10 * np.log10(np.mean(band.astype(float) ** 2)):7.1f}")

    args.out.mkdir(parents=True, exist_ok=True)
    draw(args.out / "spectrogram.png", rate, power, length / 2 / rate, hop, names, bands)
    print(f"picture  {args.out / 'spectrogram.png'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
