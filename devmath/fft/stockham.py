"""The transforms of ``lto/fft.cu``: which sizes and knobs they have, and their source.

Powers of two alone, where they are faster than cuFFTDx: ``docs/fft.md`` has the figures.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from .. import arch as _arch
from ..arch import Arch
from ..codegen.sources import ShimSource
from . import defaults

FILE = "fft.cu"
_PAD_LEAST = 8
#: Transforms of a block whose neighbouring threads work on neighbouring transforms: 16 complex64 make a whole cache line.
TURNED_FFTS = 16
_TURNED_SHARED = 96 * 1024  # bytes: two blocks a multiprocessor on data-centre GPUs, one on all others


def radices(size: int, elements: int) -> tuple[int, ...]:
    """Radices of the passes for *elements* points a thread, the largest first."""
    found = []
    while size > 1:
        found.append(min(size, elements))
        size //= found[-1]
    return tuple(found)


class Transform(NamedTuple):
    """What is transformed and how its threads lie; the knobs of a block are apart."""

    size: int
    real: str  # "float32" or "float64"
    split: bool  # of *size* real numbers, taken as half as many complex ones
    turned: bool  # neighbouring threads have neighbouring transforms

    def _default(self, arch: Arch) -> defaults.Default | None:
        return defaults.find("real" if self.split else "c2c", self.real, self.size, arch)

    def _suggested(self, arch: Arch) -> tuple[int, int] | None:
        """The measured knobs, if the architecture has room for them."""
        default = self._default(arch)
        knobs = default.knobs.get("devmath") if default else None
        return knobs if knobs and knobs[0] in self.valid_elements and self._fit(*knobs, arch) else None

    def serves(self, arch: Arch) -> bool:
        """Whether these transforms are the ones to take where nothing else is said: they were measured to be faster than cuFFTDx's."""
        default = self._default(arch)
        return default is not None and default.implementation == "devmath"

    @property
    def valid_elements(self) -> list[int]:
        """Elements a thread may have; none where the size is not a power of two."""
        size, each = self.size, 2 if self.split else 1  # real elements are taken in pairs
        if size < 2 * each or size & (size - 1):
            return []
        return [e * each for e in (2, 4, 8, 16, 32) if e * each <= size and size // (e * each) <= _arch.MAX_THREADS_PER_BLOCK]

    def valid_knobs(self, arch: Arch) -> list[tuple[int, int]]:
        """(elements_per_thread, ffts_per_block) pairs for which an architecture has the threads and the shared memory."""
        return [(e, f) for e in self.valid_elements for f in (1, 2, 4, 8, 16, 32, 64) if self._fit(e, f, arch)]

    def _fit(self, elements: int, per_block: int, arch: Arch) -> bool:
        threads = self.size // elements * per_block
        return threads <= _arch.MAX_THREADS_PER_BLOCK and self.shared_bytes(elements, per_block) <= arch.shared_limit

    def fits(self, elements: int | None, per_block: int | None, arch: Arch) -> bool:
        """Whether an architecture has the shared memory and the threads."""
        return self._fit(*self.knobs(elements, per_block, arch), arch)

    def knobs(self, elements: int | None, per_block: int | None, arch: Arch) -> tuple[int, int]:
        """What is left open, filled in: with measured values, else by rule."""
        suggested = self._suggested(arch)
        if elements is None:
            some = 32 if self.split else 16
            elements = suggested[0] if suggested else max(e for e in self.valid_elements if e <= some or self.size // e > 256)
        if per_block is None and self.turned:
            per_block = max(1, min(TURNED_FFTS, _arch.MAX_THREADS_PER_BLOCK * elements // self.size))
            while per_block > 1 and self.shared_bytes(elements, per_block) > _TURNED_SHARED:
                per_block //= 2
        elif per_block is None:
            per_block = suggested[1] if suggested and suggested[0] == elements else max(1, 32 * elements // self.size)
        return elements, per_block

    def _points(self, elements: int) -> tuple[int, int]:
        """Points and points a thread of the complex transform."""
        return (self.size // 2, elements // 2) if self.split else (self.size, elements)

    def room(self, elements: int) -> int:
        """Complex elements of shared memory that one transform takes."""
        points, each = self._points(elements)
        pad = max(radices(points, each)[0], _PAD_LEAST)
        least = points + points // pad + (2 if self.split else 0)
        return least | 1 if self.turned else least

    def shared_bytes(self, elements: int, per_block: int) -> int:
        """Bytes of shared memory of a block; a complex transform that one thread has needs none."""
        if elements == self.size and not self.split:
            return 0
        return self.room(elements) * per_block * 2 * np.dtype(self.real).itemsize

    def source(self, elements: int, packed: bool, forward: bool) -> ShimSource:
        """Where the code comes from; both directions are in one piece of LTO-IR."""
        points, each = self._points(elements)
        kind = ("packed" if packed else "real") if self.split else "complex"
        real = {"float32": "float", "float64": "double"}[self.real]
        name = f"dm_fft_{kind}_{real}_{self.size}_{elements}{'_turned' if self.turned else ''}"
        defines = {
            "FFT_NAME": name,
            "FFT_REAL": real,
            "FFT_SIZE": points,
            "FFT_ELEMENTS": each,
            "FFT_RADICES": ",".join(map(str, radices(points, each))),
            "FFT_SPLIT": int(self.split),
            "FFT_PACKED": int(packed),
            "FFT_TURNED": int(self.turned),
        }
        headers = (("twiddles.h", twiddles(points, each, self.split, real)),)
        return ShimSource(FILE, f"{name}_{'forward' if forward else 'inverse'}", tuple((k, str(v)) for k, v in defines.items()), headers)


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
