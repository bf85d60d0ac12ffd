"""What several test modules need: arrays on either side, errors, kernels of a plan, and Philox written from its paper."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import devmath as dm

ROOT = Path(__file__).parent.parent
#: Relative L2 error that a transform may have.
TOLERANCE = {"float16": 3e-3, "float32": 1e-6, "float64": 1e-14}
ARCHS = ["sm_80", "sm_90a", "sm_100a", "sm_120"]


def host(array) -> np.ndarray:
    """A NumPy copy of an array of either side."""
    return array.get() if hasattr(array, "get") else np.array(array)


def target_of(xp) -> str:
    """The target that arrays of the module *xp* run on."""
    return "cpu" if xp is np else "gpu"


def noise(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    """Complex standard normals."""
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def error(got, want) -> float:
    """Relative L2 error; absolute where *want* is zero."""
    got, want = host(got).astype(np.complex128), np.asarray(want)
    return float(np.linalg.norm(got - want) / (np.linalg.norm(want) or 1.0))


def tolerance(plan) -> float:
    """The error that a plan's transforms may have."""
    return TOLERANCE[np.dtype(plan.precision).name]


def plan_id(plan) -> str:
    """A plan in the name of a test."""
    fields = plan.fields
    knobs = "x".join(str(fields[k]) for k in ("elements_per_thread", "ffts_per_block") if fields[k])
    parts = [str(plan.size), plan.fft_type, np.dtype(plan.precision).name, plan.direction, plan.execution, plan.complex_layout]
    parts += [fields["real_mode"], fields["implementation"], knobs]
    parts += [fields[k] for k in ("api", "thread_layout") if fields[k] not in ("registers", "regular")]
    return "-".join(filter(None, parts))


def plans(*groups):
    """Parametrises a test over plans."""
    return pytest.mark.parametrize("fft", [p for g in groups for p in g], ids=plan_id)


def rows(fft, xp, spare: int = 1) -> int:
    """A number of rows that leaves the last block with some to spare, wherever a block has several."""
    return 2 * fft.traits(target_of(xp)).ffts_per_block + spare


@functools.cache
def transforms(fft):
    """A kernel ``(x, y, z)``: row b of *y* is the transform of row b of *x*, row b of *z* the one of the other direction."""
    other = fft.inverse()
    if fft.execution == "thread":

        @dm.kernel
        def both(x, y, z):
            r = fft.registers()
            b = fft.batch()
            if b < x.shape[0]:
                fft.load(x[b], r)
                fft.execute(r)
                fft.store(r, y[b])
                fft.load(x[b], r)
                other.execute(r)
                other.store(r, z[b])

        return both

    @dm.kernel
    def both(x, y, z):
        r = fft.registers()
        s = fft.scratch()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], r)
        fft.execute(r, s)
        if b < x.shape[0]:
            fft.store(r, y[b])
            fft.load(x[b], r)
        other.execute(r, s)
        if b < x.shape[0]:
            other.store(r, z[b])

    return both


def run(fft, xp, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both transforms of each row of *x* through :func:`transforms`."""
    x = xp.asarray(x)
    y, z = xp.full((x.shape[0], fft.size), np.nan, x.dtype), xp.full((x.shape[0], fft.size), np.nan, x.dtype)
    transforms(fft)[fft.launch(x.shape[0])](x, y, z)
    return host(y), host(z)


def python(code: str, *args: str, timeout: float = 120, **env: str) -> str:
    """What a fresh Python process prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **env}
    done = subprocess.run([sys.executable, "-c", code, *args], env=environment, text=True, capture_output=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def philox(counter: int, key: int, rounds: int = 10) -> tuple[int, int, int, int]:
    """Philox4xR-32 of a 128-bit counter and a 64-bit key.

    Written from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11), section 3.3: in a round each even word is
    multiplied by its constant; the high half of the product, XORed with the odd word of the other pair and a round key, goes to the
    other pair's even place, the low half to its odd place; then the key is bumped by a Weyl constant.
    """
    mask = 2**32 - 1
    left, right = [(counter >> 64 * i & mask, counter >> 64 * i + 32 & mask) for i in range(2)]
    keys = [key & mask, key >> 32 & mask]
    for _ in range(rounds):
        (hi0, lo0), (hi1, lo1) = divmod(left[0] * 0xD2511F53, 2**32), divmod(right[0] * 0xCD9E8D57, 2**32)
        left, right = (hi1 ^ left[1] ^ keys[0], lo1), (hi0 ^ right[1] ^ keys[1], lo0)
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return (*left, *right)


def philox_words(seed: int, stream: int, step: int, rounds: int = 10) -> tuple[int, int, int, int]:
    """The four words of a call: the step in the counter's low half, the stream in its high half, the seed as the key."""
    mask = 2**64 - 1
    return philox((stream & mask) << 64 | step & mask, seed & mask, rounds)


def uniform32(w):
    """cuRAND's float32 uniform of words."""
    return np.float32(np.float32(w) * 2.0**-32 + 2.0**-33)


def box_muller(radius, turn):
    """sqrt(-2 ln u) (sin, cos)(2 pi v) in long double, with the radius."""
    radius, turn = np.longdouble(radius), np.longdouble(turn)
    eighth = np.longdouble(0.125)
    nearest = np.floor(turn / eighth + np.longdouble(0.5))  # reduced by hand: near a multiple of pi the angle must not be rounded
    rest = (turn - nearest * eighth) * 2 * np.longdouble("3.14159265358979323846264338327950288")
    whole = nearest.astype(int) % 8
    root = np.sqrt(np.longdouble(0.5))
    table = np.array([(0, 1), (root, root), (1, 0), (root, -root), (0, -1), (-root, -root), (-1, 0), (-root, root)], np.longdouble)[whole]
    s, c = np.sin(rest), np.cos(rest)
    r = np.sqrt(-2 * np.log(radius))
    return r * (table[..., 0] * c + table[..., 1] * s), r * (table[..., 1] * c - table[..., 0] * s), r
