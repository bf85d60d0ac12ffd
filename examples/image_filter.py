"""Find the vessels of a retina with twelve two-dimensional filters, by Fourier transforms in three kernels, on the GPU or on the CPU.

    python examples/image_filter.py --device auto --out .

The image is scikit-image's "retina", 1411 x 1411, which ships with it; its green channel shows vessels as dark lines. Each filter is a piece of
a line, turned in steps of 15 degrees (Chaudhuri, Chatterjee, Katz, Nelson and Goldbaum, "Detection of blood vessels in retinal images using
two-dimensional matched filters", IEEE Transactions on Medical Imaging 8, 1989). Such a filter is no product of one for rows and one for
columns, and 45 x 45 numbers: it is applied to the image's two-dimensional spectrum.

    rows       real to complex                                            image -> spectrum
    columns    forward, then for each filter multiply and transform back  spectrum -> a spectrum of rows for each filter
    rows back  complex to real, and the largest of the filters' answers   -> result

A library's two-dimensional transforms read and write memory once more for each step; here columns stay in registers from the forward transform
to the inverse one. The zeros around the image are never in memory: a load past a row's end gives zeros, a store past it does nothing.
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import cuda

import devmath as dm

F = np.float32
#: Sizes that have a transform of their own: cuFFTDx takes most others above 1024 through one of 4096 points and more.
SIZES = (64, 128, 256, 512, 1000, 1024, 1296, 1728, 2048, 2744, 3375, 4096)


def column_plan(size: int) -> dm.fft.FFT:
    """The forward transform of columns, which lie across memory: neighbouring threads have neighbouring columns."""
    return dm.fft.FFT(size=size, precision=np.float32, fft_type="c2c", direction="forward", thread_layout="transposed")


class Kernels(NamedTuple):
    """Plans and kernels for transforms of one size."""

    row: dm.fft.FFT
    column: dm.fft.FFT
    rows: Any
    columns: Any
    rows_back: Any
    rows_largest: Any


@functools.cache
def kernels(height: int, width: int) -> Kernels:
    """Those for transforms of ``height`` x ``width``; images may be smaller."""
    row, column = dm.fft.FFT(size=width, precision=np.float32, fft_type="r2c"), column_plan(height)
    row_back, column_back = row.inverse(), column.inverse()

    @dm.kernel
    def rows(image, spectrum):
        """Row b of ``spectrum`` (m, width // 2 + 1): the transform of row b of ``image`` (m, n), zeros behind it."""
        r = row.registers()
        s = row.scratch()
        b = row.batch()
        if b < image.shape[0]:
            row.load(image[b], r)
        row.execute(r, s)
        if b < image.shape[0]:
            row.store(r, spectrum[b])

    @dm.kernel
    def columns(spectrum, responses, out):
        """Column c of each ``out[k]`` (filters, m, width // 2 + 1): that of ``spectrum`` filtered with ``responses[k, :, c]``."""
        r = column.registers()
        q = column.registers()
        s = column.scratch()
        c = column.batch()
        inside = c < spectrum.shape[1]
        if inside:
            column.load(spectrum[:, c], r)  # m elements, and zeros below them
        column.execute(r, s)
        for k in range(responses.shape[0]):
            for i in range(column.storage_size):
                q[i] = r[i]
            if inside:
                column.multiply(responses[k, :, c], q)
            column_back.execute(q, s)
            if inside:
                column_back.store(q, out[k, :, c])  # the first m elements; what is below them is padding

    @dm.kernel
    def rows_back(spectra, out):
        """Row b of ``out`` (m, n): the inverse transform of row b of ``spectra``, its first n elements."""
        r = row_back.registers()
        s = row_back.scratch()
        b = row_back.batch()
        if b < out.shape[0]:
            row_back.load(spectra[b], r)
        row_back.execute(r, s)
        if b < out.shape[0]:
            row_back.store(r, out[b])

    @dm.kernel
    def rows_largest(spectra, out):
        """The same for ``spectra`` (filters, m, width // 2 + 1): at each place the largest of the filters' results."""
        r = row_back.registers()
        largest = row_back.registers()
        s = row_back.scratch()
        b = row_back.batch()
        values, best = row_back.as_real(r), row_back.as_real(largest)
        for k in range(spectra.shape[0]):
            if b < out.shape[0]:
                row_back.load(spectra[k, b], r)
            row_back.execute(r, s)
            for i in range(row_back.output_elements_per_thread):
                best[i] = values[i] if k == 0 else max(best[i], values[i])
        if b < out.shape[0]:
            row_back.store(largest, out[b])

    return Kernels(row, column, rows, columns, rows_back, rows_largest)


def padded_size(length: int, reach: int) -> int:
    """Points of a transform for ``length`` pixels and filters that reach ``reach`` of them to both sides.

    What wraps around must meet padding or pixels that are not kept, for which ``reach`` zeros are enough; and a filter must fit.
    """
    fitting = [n for n in SIZES if n >= max(length, reach + 1) + reach]
    if not fitting:
        raise ValueError(f"{length} pixels and filters that reach {reach} further are too much: transforms have at most {SIZES[-1]} points here")
    return fitting[0]


def responses(filters: np.ndarray, height: int, width: int) -> np.ndarray:
    """Frequency responses (filters, height, width // 2 + 1) of filters (filters, odd, odd) with the origin in the middle.

    They are complex64, or float32 for filters that are the same upside down, whose responses are real: half the bytes.
    """
    rows, columns = filters.shape[1:]
    padded = np.pad(filters, ((0, 0), (0, height - rows), (0, width - columns)))
    padded = np.roll(padded, (-(rows // 2), -(columns // 2)), axis=(1, 2))
    found = np.fft.rfft2(padded) / (height * width)  # no transform in the kernels normalises
    even = np.array_equal(filters, filters[:, ::-1, ::-1])
    return found.real.astype(F) if even else found.astype(np.complex64)


def apply(xp: Any, image: Any, response: Any, size: tuple[int, int], largest: bool = False) -> Any:
    """Convolve an image (m, n) with each filter of ``response``: (filters, m, n), or (m, n) with the largest value at each place.

    All arrays are float32 of ``xp``, NumPy or CuPy; ``size`` is that of the transforms.
    """
    plans, (m, n), filters, half = kernels(*size), image.shape, len(response), size[1] // 2 + 1
    spectrum, filtered = xp.empty((m, half), np.complex64), xp.empty((filters, m, half), np.complex64)
    plans.rows[plans.row.launch(m)](image, spectrum)
    plans.columns[plans.column.launch(half)](spectrum, response, filtered)
    if largest:
        out = xp.empty((m, n), F)
        plans.rows_largest[plans.row.launch(m)](filtered, out)
        return out
    out = xp.empty((filters, m, n), F)
    plans.rows_back[plans.row.launch(filters * m)](filtered.reshape(-1, half), out.reshape(-1, n))
    return out


def lines(width: float, length: float, count: int = 12) -> np.ndarray:
    """Matched filters (count, odd, odd) for dark lines: Gaussian across with a standard deviation of ``width`` pixels, ``length`` along."""
    reach = int(np.ceil(np.hypot(3 * width, length / 2)))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    found = []
    for angle in np.pi * np.arange(count) / count:
        across, along = x * np.sin(angle) + y * np.cos(angle), x * np.cos(angle) - y * np.sin(angle)
        inside = (np.abs(across) <= 3 * width) & (np.abs(along) <= length / 2)
        dip = np.where(inside, -np.exp(-((across / width) ** 2) / 2), 0)
        dip[inside] -= dip[inside].mean()  # no answer to even brightness
        found.append((dip + dip[::-1, ::-1]) / 2 / np.abs(dip).sum())  # to the last bit the same upside down
    return np.array(found)


def by_scipy(image: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The same filters (filters, m, n) through SciPy's two-dimensional transforms in double precision, padded to the whole convolution."""
    from scipy import fft as sp

    (m, n), (rows, columns) = image.shape, filters.shape[1:]
    size = sp.next_fast_len(m + rows - 1, real=True), sp.next_fast_len(n + columns - 1, real=True)
    spectrum = sp.rfft2(image.astype(float), size)
    kept = np.s_[rows // 2 : rows // 2 + m, columns // 2 : columns // 2 + n]
    return np.array([sp.irfft2(spectrum * sp.rfft2(one, size), size)[kept] for one in filters])


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Euclidean norm of the difference over that of what it should be."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def load_image() -> np.ndarray:
    """The retina's green channel, 1411 x 1411, float32 from 0 to 1."""
    from skimage import data

    return data.retina()[:, :, 1].astype(F) / F(255)


def draw(file: Path, image: np.ndarray, filters: np.ndarray, found: np.ndarray) -> None:
    """The image, the filters, and the answer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained", dpi=80)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 0.62, 1))
    left.imshow(image, cmap="gray", vmin=0, vmax=image.max())
    left.set_title("retina, green channel", fontsize=10)
    shown = np.pad(filters, ((0, 0), (2, 2), (2, 2)))
    tiles = np.vstack([np.hstack(shown[k : k + 3]) for k in range(0, len(shown) // 3 * 3, 3)])
    limit = np.abs(tiles).max()
    middle.imshow(tiles, cmap="RdBu", vmin=-limit, vmax=limit)
    middle.set_title(f"{len(filters)} filters, {filters.shape[1]} x {filters.shape[2]}", fontsize=10)
    inside = image > 0.08  # the camera's round field; its rim is the strongest line of all
    right.imshow(np.where(inside, found, 0), cmap="magma", vmin=0, vmax=np.percentile(found[inside], 99))
    right.set_title("the strongest answer", fontsize=10)
    for axes in (left, middle, right):
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
    parser.add_argument("--width", type=float, default=4.0, help="standard deviation of a vessel's profile in pixels (default: 4)")
    parser.add_argument("--length", type=float, default=36.0, help="length of the filters' lines in pixels (default: 36)")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for image_filter.png")
    args = parser.parse_args(argv)
    try:
        image = load_image()
        xp, where = array_module(args.device)
        import scipy  # noqa: F401
    except ImportError as e:
        parser.exit(1, f"{e.name} is missing: pip install " + ("cupy-cuda13x\n" if e.name == "cupy" else "'devmath[examples]'\n"))
    on_host = np.asarray if xp is np else xp.asnumpy
    filters = lines(args.width, args.length)
    size = padded_size(image.shape[0], filters.shape[1] // 2), padded_size(image.shape[1], filters.shape[2] // 2)

    data, response = xp.asarray(image), xp.asarray(responses(filters, *size))
    start = time.perf_counter()
    one_by_one = on_host(apply(xp, data, response, size))
    apply(xp, data, response, size, largest=True)
    first = time.perf_counter() - start  # with compilation, or the compiled kernels' way from the cache
    start = time.perf_counter()
    found = apply(xp, data, response, size, largest=True)
    float(found[0, 0])  # waits for the GPU
    seconds = time.perf_counter() - start
    found = on_host(found)
    start = time.perf_counter()
    want = by_scipy(image, filters)
    scipy_seconds = time.perf_counter() - start

    print(f"image    retina, {image.shape[0]} x {image.shape[1]}, in transforms of {size[0]} x {size[1]}")
    print(f"filters  {len(filters)} of {filters.shape[1]} x {filters.shape[2]}")
    print(f"ran on   {where}: rows, columns and rows back in {seconds * 1e3:.3g} ms (the first calls took {first:.2g} s)")
    print(f"SciPy    double precision, one CPU thread: {scipy_seconds * 1e3:.3g} ms")
    print(f"\n{'':<22} {'relative error against SciPy':>30}")
    print(f"{'each filter':<22} {relative_error(one_by_one, want):30.1e}")
    print(f"{'the strongest answer':<22} {relative_error(found, want.max(axis=0)):30.1e}")

    args.out.mkdir(parents=True, exist_ok=True)
    draw(args.out / "image_filter.png", image, filters, found)
    print(f"picture  {args.out / 'image_filter.png'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
