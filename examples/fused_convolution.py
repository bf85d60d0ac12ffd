"""Sharpen a blurred image with FFT, filter and inverse FFT fused into one kernel, on the GPU or on the CPU.

    python examples/fused_convolution.py --device auto --out .

The image is scikit-image's "camera", 512 x 512, which ships with it. The kernel filters all rows and writes them as columns, so running it
twice applies a separable two-dimensional filter and brings the image back upright. A row goes from memory into registers, is
transformed, multiplied, transformed back and stored: one read and one write, where separate FFT calls make three of each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import cuda

import devmath as dm

N = 512
fft = dm.fft.FFT(size=N, precision=np.float32, fft_type="c2c", direction="forward")
ifft = fft.inverse()


@dm.kernel
def filter_rows(image, response, out):
    """Convolve each row of ``image`` (m, 512) with the filter whose transform is 512 * ``response``; row b becomes column b of ``out``."""
    r = fft.registers()  # this thread's elements of a row
    s = fft.scratch()
    b = fft.batch()  # which row this thread works on
    if b < image.shape[0]:
        fft.load(image[b], r)
    fft.execute(r, s)  # all threads of a block take part, also where there is no row left
    for i in range(fft.elements_per_thread):
        r[i] *= response[fft.index(i)]  # element i of this thread is element index(i) of the row
    ifft.execute(r, s)
    if b < image.shape[0]:
        ifft.store(r, out[:, b])


def separable(xp: Any, image: Any, response: Any) -> Any:
    """Filter rows, then columns, of a complex64 image (512, 512) of ``xp``, NumPy or CuPy."""
    # Neither direction of the FFT normalises: 1/N goes into the filter.
    scaled = response / np.float32(N)
    half, out = xp.empty_like(image), xp.empty_like(image)
    filter_rows[fft.launch(N)](image, scaled, half)
    filter_rows[fft.launch(N)](half, scaled, out)
    return out


def gaussian(width: float) -> np.ndarray:
    """Frequency response of a Gaussian blur with a standard deviation of ``width`` pixels."""
    return np.exp(-2 * (np.pi * width * np.fft.fftfreq(N)) ** 2).astype(np.complex64)


def wiener(blur: np.ndarray, noise: float) -> np.ndarray:
    """Wiener's filter against a blur: its inverse, as far as signal outweighs noise. An image's power falls as 1 / frequency^2."""
    noise_to_signal = 200 * noise * np.fft.fftfreq(N) ** 2
    return (np.conj(blur) / (np.abs(blur) ** 2 + noise_to_signal)).astype(np.complex64)


def by_scipy(image: np.ndarray, response: np.ndarray) -> np.ndarray:
    """The same filter through SciPy in double precision."""
    from scipy import fft as sp

    response = response.astype(np.complex128)
    return sp.ifft2(sp.fft2(image.astype(np.complex128)) * response * response[:, None])


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Euclidean norm of the difference over that of what it should be."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, for images of range 0 to 1."""
    return float(-10 * np.log10(np.mean((image.real - truth.real) ** 2)))


def draw(file: Path, panels: list[tuple[str, np.ndarray]]) -> None:
    """The images side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.3), layout="constrained", dpi=80)
    for axes, (title, image) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.imshow(image.real[64:320, 128:384], cmap="gray", vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
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
    parser.add_argument("--width", type=float, default=2.0, help="standard deviation of the blur in pixels (default: 2)")
    parser.add_argument("--noise", type=float, default=0.002, help="standard deviation of the noise, where white is 1 (default: 0.002)")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for fused_convolution.png")
    args = parser.parse_args(argv)
    try:
        from skimage import data

        truth = (data.camera() / 255).astype(np.complex64)
        xp, where = array_module(args.device)
        blur, sharpen = gaussian(args.width), wiener(gaussian(args.width), args.noise)
        theirs = by_scipy(truth, blur)
    except ImportError as e:
        parser.exit(1, f"{e.name} is missing: pip install " + ("cupy-cuda13x\n" if e.name == "cupy" else "'devmath[examples]'\n"))
    on_host = np.asarray if xp is np else xp.asnumpy

    start = time.perf_counter()
    blurred = on_host(separable(xp, xp.asarray(truth), xp.asarray(blur)))
    first = time.perf_counter() - start  # with compilation, or the compiled kernel's way from the cache
    noise = np.random.default_rng(1).normal(0, args.noise, truth.shape)
    taken = (blurred.real + noise).astype(np.complex64)

    image, response = xp.asarray(taken), xp.asarray(sharpen)
    start = time.perf_counter()
    restored = separable(xp, image, response)
    float(restored[0, 0].real)  # waits for the GPU
    seconds = time.perf_counter() - start
    restored = on_host(restored)
    start = time.perf_counter()
    want = by_scipy(taken, sharpen)
    scipy_seconds = time.perf_counter() - start

    print(f"image    camera, {N} x {N}, blurred by {args.width} pixels, noise {args.noise}")
    print(f"ran on   {where}: rows and columns in {seconds * 1e3:.3g} ms (the first call took {first:.2g} s)")
    print(f"SciPy    double precision, one CPU thread: {scipy_seconds * 1e3:.3g} ms")
    print(f"\n{'':<12} {'PSNR':>8} {'relative error against SciPy':>30}")
    print(f"{'blurred':<12} {psnr(taken, truth):5.1f} dB {relative_error(blurred, theirs):30.1e}")
    print(f"{'restored':<12} {psnr(restored, truth):5.1f} dB {relative_error(restored, want):30.1e}")

    args.out.mkdir(parents=True, exist_ok=True)
    draw(args.out / "fused_convolution.png", [("original", truth), (f"blurred, noisy: {psnr(taken, truth):.1f} dB", taken),
                                              (f"restored: {psnr(restored, truth):.1f} dB", restored)])  # fmt: skip
    print(f"picture  {args.out / 'fused_convolution.png'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
