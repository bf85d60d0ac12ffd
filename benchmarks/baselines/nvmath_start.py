"""nvmath-python: a fresh process to its first checked result."""

from _common import emit, process_age, random_rows, relative_error  # first: it notes the time

# isort: split
import argparse

import numpy as np
from numba import cuda


def fft():
    """1,024 forward transforms of 512 complex64: the largest relative error."""
    from nvmath.device import FFT

    size, batch = 512, 1024
    plan = FFT(
        size=size,
        precision=np.float32,
        fft_type="c2c",
        execution="Block",
        direction="forward",
        elements_per_thread="suggested",
        ffts_per_block="suggested",
    )
    elements, per_block, stride = plan.elements_per_thread, plan.ffts_per_block, plan.stride
    storage, value_type = plan.storage_size, plan.value_type

    @cuda.jit
    def transform(x, y):
        registers = cuda.local.array(storage, value_type)
        scratch = cuda.shared.array(0, value_type)
        row = cuda.blockIdx.x * per_block + cuda.threadIdx.y
        if row < batch:
            for i in range(elements):
                registers[i] = x[row, cuda.threadIdx.x + i * stride]
        plan.execute(registers, scratch)
        if row < batch:
            for i in range(elements):
                y[row, cuda.threadIdx.x + i * stride] = registers[i]

    x = random_rows(np, batch, size, np.complex64)
    y = cuda.device_array_like(x)
    transform[-(-batch // per_block), tuple(plan.block_dim), 0, plan.shared_memory_size](cuda.to_device(x), y)
    error = relative_error(y.copy_to_host(), np.fft.fft(x))
    return {"max_rel_err": error}, error < 1e-5


def rng():
    """2^20 normals from Philox4_32_10 states: their mean and deviation."""
    from nvmath.device import random

    threads = 1 << 18
    apis = random.Compile()

    @cuda.jit(link=apis.files, extensions=apis.extension)
    def initialise(states, seed):
        i = cuda.grid(1)
        random.init(seed, i, 0, states[i])

    @cuda.jit(link=apis.files, extensions=apis.extension)
    def draw(states, out):
        i = cuda.grid(1)
        z = random.normal4(states[i])
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = z.x, z.y, z.z, z.w

    states = random.StatesPhilox4_32_10(threads)
    out = cuda.device_array((threads, 4), np.float32)
    initialise[threads // 256, 256](states, 1)
    draw[threads // 256, 256](states, out)
    normals = out.copy_to_host()
    mean, deviation = float(normals.mean()), float(normals.std())
    return {"mean": mean, "std": deviation}, abs(mean) < 0.005 and abs(deviation - 1) < 0.005


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=["fft", "rng"], required=True)
    what = parser.parse_args().what
    check, correct = {"fft": fft, "rng": rng}[what]()
    if not correct:
        raise SystemExit(f"{what}: wrong result: {check}")
    age, before = process_age()
    emit(f"start.{what}:nvmath", age, "s", check | {"before_script_s": before})


if __name__ == "__main__":
    main()
