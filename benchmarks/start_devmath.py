"""devmath: a fresh process to its first checked result; the same work as the baselines' nvmath_start.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "baselines"))
from _common import emit, process_age, random_rows, relative_error  # noqa: E402  (first: it notes the time)

# isort: split
import argparse  # noqa: E402

import numpy as np  # noqa: E402
from numba import cuda  # noqa: E402

import devmath as dm  # noqa: E402

# The first words of Philox4x32-10 for key 0 and counter 0, from the authors' known-answer tests (Random123, kat_vectors).
KNOWN = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.float64)


def fft(device):
    """1,024 forward transforms of 512 complex64: the largest relative error."""
    size, batch = 512, 1024
    plan = dm.fft.FFT(size)

    @dm.kernel
    def transform(x, y):
        r = plan.registers()
        s = plan.scratch()
        b = plan.batch()
        if b < x.shape[0]:
            plan.load(x[b], r)
        plan.execute(r, s)
        if b < x.shape[0]:
            plan.store(r, y[b])

    x = random_rows(np, batch, size, np.complex64)
    y = device(np.zeros_like(x))
    transform[plan.launch(batch)](device(x), y)
    error = relative_error(host(y), np.fft.fft(x))
    return {"max_rel_err": error}, error < 1e-5


def rng(device):
    """2^20 normals: the first four from the published words, and the mean and deviation of all."""
    threads = 1 << 18
    plan = dm.random.Philox()

    @dm.kernel
    def draw(out, seed):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = plan.normal4(seed, i, 0)

    out = device(np.zeros((threads, 4), np.float32))
    draw[plan.launch(threads)](out, 0)
    normals = host(out)
    u = KNOWN * 2.0**-32 + 2.0**-33
    radius, angle = np.sqrt(-2 * np.log(u[::2])), 2 * np.pi * u[1::2]
    known = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1).ravel()
    mean, deviation = float(normals.mean()), float(normals.std())
    right = np.allclose(normals[0], known, rtol=0, atol=1e-5) and abs(mean) < 0.005 and abs(deviation - 1) < 0.005
    return {"known_answer": bool(np.allclose(normals[0], known, rtol=0, atol=1e-5)), "mean": mean, "std": deviation}, right


def host(array):
    """The array in host memory."""
    return array if isinstance(array, np.ndarray) else array.copy_to_host()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=["fft", "rng"], required=True)
    parser.add_argument("--cpu", action="store_true", help="on NumPy arrays instead, to try the script without a GPU")
    options = parser.parse_args()
    check, correct = {"fft": fft, "rng": rng}[options.what](np.asarray if options.cpu else cuda.to_device)
    if not correct:
        raise SystemExit(f"{options.what}: wrong result: {check}")
    age, before = process_age()
    emit(f"start.{options.what}:devmath", age, "s", check | {"before_script_s": before})


if __name__ == "__main__":
    main()
