"""nvmath-python's device random numbers: GBM from an array of initialised Philox4_32_10 states."""

import math

import numpy as np
from _common import emit, median_ms
from numba import cuda
from nvmath.device import random

SEED = 20240229
S0, STRIKE = np.float32(100), np.float32(100)
ASIAN_PATHS, ASIAN_STEPS = 1 << 22, np.int32(252)
STORED_PATHS, COLUMNS = 800_000, 252  # column 0 is S0
BLOCKS = (32, 64, 128, 256, 512)


def build(apis, fastmath):
    """The kernels that initialise states, compute Asian payoffs and store paths."""
    jit = cuda.jit(link=apis.files, extensions=apis.extension, fastmath=fastmath)

    @jit
    def initialise(states, seed, n):
        i = cuda.grid(1)
        if i < n:
            random.init(seed, i, 0, states[i])

    @jit
    def asian(states, payoff, steps, drift, vol, s0, strike):
        i = cuda.grid(1)
        if i >= payoff.shape[0]:
            return
        x = total = np.float32(0)
        for _ in range(0, steps, 4):
            z = random.normal4(states[i])
            x += drift + vol * z.x
            total += math.exp(x)
            x += drift + vol * z.y
            total += math.exp(x)
            x += drift + vol * z.z
            total += math.exp(x)
            x += drift + vol * z.w
            total += math.exp(x)
        payoff[i] = max(s0 * total / np.float32(steps) - strike, np.float32(0))

    @jit
    def paths(states, out, drift, vol, s0):  # out[column, path]: neighbouring threads write neighbouring words
        i = cuda.grid(1)
        if i >= out.shape[1]:
            return
        price = s0
        out[0, i] = price
        for column in range(1, COLUMNS, 4):
            z = random.normal4(states[i])
            price *= math.exp(drift + vol * z.x)
            out[column, i] = price
            price *= math.exp(drift + vol * z.y)
            out[column + 1, i] = price
            price *= math.exp(drift + vol * z.z)
            out[column + 2, i] = price
            if column + 3 < COLUMNS:  # 251 steps: the last draw leaves one normal over
                price *= math.exp(drift + vol * z.w)
                out[column + 3, i] = price

    return initialise, asian, paths


def gpu_ms(launch):
    return median_ms(launch, cuda.event, cuda.event_elapsed_time)


def times_by_form(builds, run):
    """Milliseconds for each build and block size."""
    return {f"{name}, block {block}": run(kernels, block) for name, kernels in builds.items() for block in BLOCKS}


def moments(values):
    return {"mean": float(values.mean(dtype=np.float64)), "std": float(values.std(dtype=np.float64))}


def main():
    apis = random.Compile()
    builds = {"default": build(apis, False), "fastmath": build(apis, True)}
    states = random.StatesPhilox4_32_10(ASIAN_PATHS)  # as many as the larger of the two runs
    payoff = cuda.device_array(ASIAN_PATHS, np.float32)
    stored = cuda.device_array((COLUMNS, STORED_PATHS), np.float32)

    def run_asian(kernels, block):
        initialise, asian, _ = kernels
        grid = -(-ASIAN_PATHS // block)
        initialise[grid, block](states, SEED, ASIAN_PATHS)
        arguments = states, payoff, ASIAN_STEPS, np.float32(1e-4), np.float32(0.01), S0, STRIKE
        launch = asian[grid, block]
        return gpu_ms(lambda: launch(*arguments))

    def run_paths(kernels, block):
        initialise, _, paths = kernels
        grid = -(-STORED_PATHS // block)
        initialise[grid, block](states, SEED, STORED_PATHS)
        launch = paths[grid, block]
        return gpu_ms(lambda: launch(states, stored, np.float32(0.003), np.float32(0.027), S0))

    steps = ASIAN_PATHS * int(ASIAN_STEPS)
    rates = {form: steps / ms / 1e6 for form, ms in times_by_form(builds, run_asian).items()}
    emit("mc.gbm_asian.f32:nvmath", max(rates.values()), "Gstep/s", moments(payoff.copy_to_host()) | {"forms": rates})

    times = times_by_form(builds, run_paths)
    last = stored[COLUMNS - 1].copy_to_host()
    emit("mc.gbm_paths.f32:nvmath", min(times.values()), "ms", moments(last) | {"forms": times})


if __name__ == "__main__":
    main()
