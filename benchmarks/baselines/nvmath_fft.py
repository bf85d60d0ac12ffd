"""nvmath-python's device FFT: FFT -> * H[i] / N -> inverse FFT in one numba-cuda kernel, 1 GiB in and 1 GiB out."""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from _common import emit, median_ms, random_rows, relative_error, transfer_function

BYTES = 1 << 30
SIZES = {"complex64": [1 << k for k in range(7, 13)], "complex128": [512]}
# (elements_per_thread, ffts_per_block) that came out best in an earlier sweep over all pairs
LEADING = {128: (16, 8), 256: (16, 8), 512: (16, 2), 1024: (16, 1), 2048: (16, 1), 4096: (16, 1)}

_gpu = None  # held by the one worker that measures while the others compile


def plan(size, dtype, direction, **knobs):
    from nvmath.device import FFT

    precision = np.float32 if dtype == "complex64" else np.float64
    return FFT(size=size, precision=precision, fft_type="c2c", execution="Block", direction=direction, **knobs)


def candidates(size, dtype, count):
    """At most `count` pairs that the library calls valid, nearest to 16 elements a thread first."""
    suggested = plan(size, dtype, "forward", elements_per_thread="suggested", ffts_per_block="suggested")
    valid = plan(size, dtype, "forward").valid("elements_per_thread", "ffts_per_block")
    nearest = sorted(valid, key=lambda pair: abs(np.log2(pair[0] / 16)))
    first = [LEADING[size]] if dtype == "complex64" and size in LEADING else []
    pairs = [*first, (suggested.elements_per_thread, suggested.ffts_per_block), *nearest]
    return list(dict.fromkeys(pairs))[:count]


def build(size, dtype, rows, pair):
    """The kernel, and the launch configuration but for the stream."""
    from numba import cuda

    knobs = {"elements_per_thread": pair[0], "ffts_per_block": pair[1]}
    fft, ifft = plan(size, dtype, "forward", **knobs), plan(size, dtype, "inverse", **knobs)
    elements, per_block, stride = fft.elements_per_thread, fft.ffts_per_block, fft.stride
    storage, value_type = fft.storage_size, fft.value_type
    scale = np.float32(1 / size) if dtype == "complex64" else np.float64(1 / size)

    @cuda.jit(fastmath=True)
    def convolve(x, h, y):
        registers = cuda.local.array(storage, value_type)
        scratch = cuda.shared.array(0, value_type)
        row = cuda.blockIdx.x * per_block + cuda.threadIdx.y
        if row < rows:
            for i in range(elements):
                registers[i] = x[row, cuda.threadIdx.x + i * stride]
        fft.execute(registers, scratch)
        for i in range(elements):
            registers[i] *= h[cuda.threadIdx.x + i * stride] * scale
        ifft.execute(registers, scratch)
        if row < rows:
            for i in range(elements):
                y[row, cuda.threadIdx.x + i * stride] = registers[i]

    shared = max(fft.shared_memory_size, ifft.shared_memory_size)
    return convolve, (-(-rows // per_block), tuple(fft.block_dim)), shared


def run(size, dtype, rows, launch):
    """Milliseconds of one launch on random rows, and the error of three of them."""
    import cupy as cp
    from numba import cuda

    x, h = random_rows(cp, rows, size, dtype), transfer_function(cp, size, dtype)
    y = cp.zeros_like(x)
    cp.cuda.Device().synchronize()
    arguments = [cuda.as_cuda_array(a) for a in (x, h, y)]  # once: numba would convert them at each launch
    ms = median_ms(lambda: launch(*arguments), cuda.event, cuda.event_elapsed_time)
    sample = [0, rows // 2 + 1, rows - 1]
    expected = np.fft.ifft(np.fft.fft(cp.asnumpy(x[sample]).astype(np.complex128)) * cp.asnumpy(h))
    return ms, relative_error(cp.asnumpy(y[sample]), expected)


def measure(size, dtype, pair):
    """Compile for one pair, then run alone on the GPU: (pair, ms, error, message)."""
    import cupy as cp
    from numba import types

    try:
        rows = BYTES // (size * np.dtype(dtype).itemsize)
        kernel, (grid, block), shared = build(size, dtype, rows, pair)
        matrix, vector = getattr(types, dtype)[:, ::1], getattr(types, dtype)[::1]
        kernel.compile((matrix, vector, matrix))
        with _gpu:
            ms, error = run(size, dtype, rows, kernel[grid, block, 0, shared])
            cp.get_default_memory_pool().free_all_blocks()
        return pair, ms, error, None
    except Exception as failure:  # a pair that does not build or run is reported beside those that do
        return pair, None, None, repr(failure)[:200]


def take_gpu(lock):
    global _gpu
    _gpu = lock


def report(size, dtype, results):
    rate = {pair: 2e-6 * BYTES / ms for pair, ms, _, _ in results if ms}
    tried = {f"{e},{f}": rate.get((e, f), message) for (e, f), _, _, message in results}
    if not rate:
        raise SystemExit(f"{dtype} {size}: no pair ran: {tried}")
    best = max(rate, key=rate.get)
    error = next(error for pair, _, error, _ in results if pair == best)
    check = {"max_rel_err": error, "elements_per_thread": best[0], "ffts_per_block": best[1], "tried": tried}
    emit(f"fft.conv.{'c64' if dtype == 'complex64' else 'c128'}.{size}:nvmath", rate[best], "GB/s", check)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of 128 ... 4096 (complex64) and 512 (complex128)")
    parser.add_argument("--pair", type=int, nargs=2, metavar=("ELEMENTS", "FFTS"), help="only this pair")
    parser.add_argument("--candidates", type=int, default=4, help="pairs tried a size (4)")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile (8)")
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, initializer=take_gpu, initargs=(context.Lock(),)) as pool:
        pending = {}
        for dtype in options.dtype:
            for size in options.sizes or SIZES[dtype]:
                pairs = [tuple(options.pair)] if options.pair else candidates(size, dtype, options.candidates)
                pending[size, dtype] = [pool.submit(measure, size, dtype, pair) for pair in pairs]
        for (size, dtype), futures in pending.items():
            report(size, dtype, [future.result() for future in futures])


if __name__ == "__main__":
    main()
