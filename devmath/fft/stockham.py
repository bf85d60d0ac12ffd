"""The transforms of ``lto/fft.cu``: which sizes and knobs they have, and their source.

Powers of two alone, where they are faster than cuFFTDx: ``docs/fft.md`` has the figures.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from .. import arch as _arch
from ..arch import Arch
from ..codegen.sources import ShimSource

FILE = "fft.cu"
_PAD_LEAST = 8

#: (elements_per_thread, ffts_per_block) found by measurement on an H200: transforms and fused convolutions of 1 GiB (benchmarks/run.py).
SUGGESTED = {
    "float32": {
        64: (8, 8), 128: (16, 8), 256: (16, 2), 512: (16, 1), 1024: (16, 1), 2048: (16, 1), 4096: (32, 1), 8192: (32, 1), 16384: (32, 1),
    },
    "float64": {64: (8, 8), 128: (8, 4), 256: (8, 2), 512: (16, 1), 1024: (16, 1), 2048: (16, 1), 4096: (8, 1), 8192: (16, 1)},
}  # fmt: skip
#: The same for real transforms, whose elements are real numbers.
SUGGESTED_REAL = {
    "float32": {128: (16, 8), 256: (32, 4), 512: (32, 2), 1024: (32, 1), 2048: (64, 4), 4096: (32, 1), 8192: (64, 1), 16384: (64, 1)},
    "float64": {128: (16, 8), 256: (16, 4), 512: (16, 2), 1024: (32, 1), 2048: (32, 1), 4096: (32, 1), 8192: (32, 1)},
}


def radices(size: int, elements: int) -> tuple[int, ...]:
    """Radices of the passes for *elements* points a thread, the largest first."""
    found = []
    while size > 1:
        found.append(min(size, elements))
        size //= found[-1]
    return tuple(found)


def serves(size: int, real: str, split: bool) -> bool:
    """Whether these transforms are the ones to take for *size* points (*split*: of real numbers) where nothing else is said."""
    return size in (SUGGESTED_REAL if split else SUGGESTED)[real]


def valid_elements(size: int, split: bool) -> list[int]:
    """Elements a thread that a transform of *size* points may have; none where the size is not a power of two."""
    each = 2 if split else 1  # real elements are taken in pairs
    if size < 2 * each or size & (size - 1):
        return []
    return [e * each for e in (2, 4, 8, 16, 32) if e * each <= size and size // (e * each) <= _arch.MAX_THREADS_PER_BLOCK]


def valid_knobs(size: int, real: str, split: bool, arch: Arch) -> list[tuple[int, int]]:
    """(elements_per_thread, ffts_per_block) pairs for which an architecture has the threads and the shared memory."""
    return [
        (e, f)
        for e in valid_elements(size, split)
        for f in (1, 2, 4, 8, 16, 32, 64)
        if size // e * f <= _arch.MAX_THREADS_PER_BLOCK and shared_bytes(size, e, f, real, split) <= arch.shared_limit
    ]


def _points(size: int, elements: int, split: bool) -> tuple[int, int]:
    """Points and points a thread of the complex transform."""
    return (size // 2, elements // 2) if split else (size, elements)


def shared_bytes(size: int, elements: int, per_block: int, real: str, split: bool) -> int:
    """Bytes of shared memory of a block; a complex transform that one thread has needs none."""
    if elements == size and not split:
        return 0
    return room(*_points(size, elements, split), split) * per_block * 2 * np.dtype(real).itemsize


def knobs(size: int, real: str, split: bool, elements: int | None, per_block: int | None) -> tuple[int, int]:
    """What is left open, filled in."""
    suggested = (SUGGESTED_REAL if split else SUGGESTED)[real].get(size)
    if elements is None:
        some = 32 if split else 16
        elements = suggested[0] if suggested else max(e for e in valid_elements(size, split) if e <= some or size // e > 256)
    if per_block is None:
        per_block = suggested[1] if suggested and suggested[0] == elements else max(1, 32 * elements // size)
    return elements, per_block


def fits(size: int, real: str, split: bool, elements: int | None, per_block: int | None, arch: Arch) -> bool:
    """Whether an architecture has the shared memory and the threads."""
    e, f = knobs(size, real, split, elements, per_block)
    return size // e * f <= _arch.MAX_THREADS_PER_BLOCK and shared_bytes(size, e, f, real, split) <= arch.shared_limit


def room(size: int, elements: int, split: bool) -> int:
    """Complex elements of shared memory that one transform takes."""
    pad = max(radices(size, elements)[0], _PAD_LEAST)
    return size + size // pad + (2 if split else 0)


def unit(numerator: int, denominator: int) -> tuple[float, float]:
    """cos and sin of -2 pi *numerator* / *denominator*, each the nearest double but for a last bit: the angle is brought below pi/4 first."""
    eighths, rest = divmod(8 * numerator % (8 * denominator), denominator)
    # An odd eighth is counted back from the next one, so that the angle of the series stays small.
    back = eighths % 2
    angle = math.pi / 4 * ((denominator - rest if back else rest) / denominator)
    c, s = math.cos(angle), math.sin(angle)
    if back:
        s = -s
    turns = (eighths + back) // 2 % 4
    for _ in range(turns):
        c, s = -s, c
    return c, -s


@functools.lru_cache(maxsize=64)
def twiddles(size: int, elements: int, split: bool, real: str) -> str:
    """The text of ``twiddles.h``."""
    values, done, *rest = [], *radices(size, elements)
    for radix in rest:
        m = 2
        while m <= radix:
            # exp(-2 pi i (k / (done m) + p / m))
            values += [unit(k + p * done, done * m) for p in range(max(1, m // 4)) for k in range(done)]
            m *= 2
        done *= radix
    text = f"#ifdef FFT_TABLE\n{_numbers(values or [(1.0, 0.0)], real)}\n#endif\n"
    if split:
        turned = [(s / 2, -c / 2) for c, s in (unit(k, 2 * size) for k in range(size))]  # -i/2 times it
        text += f"#ifdef FFT_SPLIT_TABLE\n{_numbers(turned, real)}\n#endif\n"
    return text


def _numbers(values: list[tuple[float, float]], real: str) -> str:
    kind, suffix = (np.float32, "f") if real == "float" else (np.float64, "")
    return ",\n".join(f"{{{float(kind(a))!r}{suffix}, {float(kind(b))!r}{suffix}}}" for a, b in values)


def source(size: int, elements: int, split: bool, packed: bool, real: str, forward: bool) -> ShimSource:
    """Where the code of a transform comes from; both directions are in one piece of LTO-IR."""
    points, each = _points(size, elements, split)
    kind = ("packed" if packed else "real") if split else "complex"
    name = f"dm_fft_{kind}_{real}_{size}_{elements}"
    defines = {
        "FFT_NAME": name,
        "FFT_REAL": real,
        "FFT_SIZE": points,
        "FFT_ELEMENTS": each,
        "FFT_RADICES": ",".join(map(str, radices(points, each))),
        "FFT_SPLIT": int(split),
        "FFT_PACKED": int(packed),
    }
    headers = (("twiddles.h", twiddles(points, each, split, real)),)
    return ShimSource(FILE, f"{name}_{'forward' if forward else 'inverse'}", tuple((k, str(v)) for k, v in defines.items()), headers)
