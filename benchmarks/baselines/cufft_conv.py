"""cuFFT through CuPy: batched C2C and R2C transforms, and a convolution as two transforms with a multiplication between."""

import argparse

import cupy as cp
import numpy as np
from _common import emit, median_ms, random_rows, relative_error, transfer_function
from cupy.cuda import cufft

BYTES = 1 << 30
CASES = [(1 << k, "complex64") for k in range(7, 13)] + [(512, "complex128")]
REAL_SIZES = [1 << k for k in range(8, 13)]


def gpu_ms(launch, before=lambda: None):
    return median_ms(launch, cp.cuda.Event, cp.cuda.get_elapsed_time, before)


def rate(ms):
    return 2e-6 * BYTES / ms


def run(size, dtype):
    short = {"complex64": "c64", "complex128": "c128"}[dtype]
    kind = cufft.CUFFT_C2C if dtype == "complex64" else cufft.CUFFT_Z2Z
    rows = BYTES // (size * np.dtype(dtype).itemsize)
    plan = cufft.Plan1d(size, kind, rows)
    x = random_rows(cp, rows, size, dtype)
    y = cp.empty_like(x)
    sample = [0, rows // 2 + 1, rows - 1]
    spectrum = np.fft.fft(cp.asnumpy(x[sample]).astype(np.complex128))

    def transform():
        plan.fft(x, y, cufft.CUFFT_FORWARD)

    def transform_in_place():
        plan.fft(y, y, cufft.CUFFT_FORWARD)

    apart = gpu_ms(transform)
    error = relative_error(cp.asnumpy(y[sample]), spectrum)
    in_place = gpu_ms(transform_in_place, before=lambda: cp.copyto(y, x))
    emit(
        f"fft.c2c.{short}.{size}:cufft",
        rate(min(apart, in_place)),
        "GB/s",
        {"max_rel_err": error, "out_of_place": rate(apart), "in_place": rate(in_place)},
    )

    h = transfer_function(cp, size, dtype)
    scale = x.real.dtype.type(1 / size)
    multiply = cp.ElementwiseKernel(
        f"raw C h, {x.real.dtype} scale, int32 last", "C y", "y *= h[i & last] * scale", f"multiply_{short}"
    )

    def convolve():
        plan.fft(x, y, cufft.CUFFT_FORWARD)
        multiply(h, scale, size - 1, y)
        plan.fft(y, y, cufft.CUFFT_INVERSE)

    ms = gpu_ms(convolve)
    expected = np.fft.ifft(spectrum * cp.asnumpy(h))
    error = relative_error(cp.asnumpy(y[sample]), expected)
    emit(f"fft.conv.{short}.{size}:cufft_pair", rate(ms), "GB/s", {"max_rel_err": error, "ms": ms})


def run_real(size):
    rows = BYTES // (size * 4)
    plan = cufft.Plan1d(size, cufft.CUFFT_R2C, rows)
    x = random_rows(cp, rows, size, cp.float32)
    y = cp.empty((rows, size // 2 + 1), cp.complex64)
    ms = gpu_ms(lambda: plan.fft(x, y, cufft.CUFFT_FORWARD))
    sample = [0, rows // 2 + 1, rows - 1]
    error = relative_error(cp.asnumpy(y[sample]), np.fft.rfft(cp.asnumpy(x[sample]).astype(np.float64)))
    emit(f"fft.r2c.f32.{size}:cufft", 1e-6 * (x.nbytes + y.nbytes) / ms, "GB/s", {"max_rel_err": error, "ms": ms})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", help="only these sizes (powers of two)")
    sizes = parser.parse_args().sizes
    for size, dtype in CASES:
        if sizes is None or size in sizes:
            run(size, dtype)
            cp.get_default_memory_pool().free_all_blocks()
    for size in REAL_SIZES:
        if sizes is None or size in sizes:
            run_real(size)
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
