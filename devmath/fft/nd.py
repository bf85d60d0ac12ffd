"""Complex transforms in two and three dimensions that a block does in its shared memory: the plan.

On the GPU each thread takes whole lines along an axis through its registers (cuFFTDx, thread execution), with a barrier between the axes. Rows lie
in shared memory with spare elements between them, so that neighbouring threads meet in no bank whichever axis they work on.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import arch as _arch
from .. import types
from ..arch import Arch
from ..errors import LaunchError, PlanError, one_of
from ..plan import CPU, Dim3, Plan, Target, Traits
from . import nd_records
from .cufftdx import THREAD_LIMIT
from .plan import FFT, _integer, _knob

_MOST_SHARED = max(_arch.parse(name).shared_limit for name in _arch.supported())
_THREADS = 128  # of a block that has several transforms
_ELSEWHERE = "larger transforms take a kernel for each axis, see 'Large transforms in two and three dimensions' in docs/fft.md"


class FFTN(Plan):
    """A complex Fourier transform in two or three dimensions for use inside kernels, each done by one block in its shared memory.

    Parameters
    ----------
    shape : points along each axis, two or three numbers: 1 to 64 in float32, 1 to 40 in float64; all elements together, as complex64 or complex128,
        must fit the shared memory of a block (227 KB on sm_90 and sm_100, 163 KB on sm_80, 99 KB on sm_86, sm_89 and sm_120).
    precision : ``np.float32`` or ``np.float64``; the elements are complex64 or complex128.
    direction : ``"forward"`` (exponent sign -1) or ``"inverse"``. Neither normalises, as in cuFFT.
    ffts_per_block : transforms of a block, which all of its threads wait for together; ``None`` leaves it to devmath. On the CPU target it is 1.
    arch : an architecture such as ``"sm_90a"`` that the plan is for; ``None`` for whichever one it is used on.

    Raises
    ------
    PlanError (a ValueError) for anything that cannot be done, with the valid choices; LaunchError (a ValueError) where the architecture has not the
    shared memory.

    Inside kernels a plan has device functions (``devmath reference FFTN`` lists them) and, as constants, its fields and the traits below. On the
    host a trait is that of the current GPU (the CPU target's where there is none); :meth:`traits` asks for any architecture, with or without a GPU.

    Traits: ``ffts_per_block``, ``elements_per_thread`` (as ``index(i)`` deals them out), ``strides`` (of the axes in shared memory, in elements),
    ``block_dim`` (threads of a transform, transforms), ``shared_memory_size`` (bytes of a block), ``value_type``, ``implementation``.

    Source: cuFFTDx, thread execution, along each axis, https://docs.nvidia.com/cuda/cufftdx/.
    """

    kind_name: ClassVar[str] = "FFTN"
    variants: ClassVar = {"2-D": nd_records.TWO, "3-D": nd_records.THREE}
    constants: ClassVar = ("shape", "size", "precision", "direction")
    trait_names: ClassVar = (
        "elements_per_thread",
        "ffts_per_block",
        "strides",
        "block_dim",
        "shared_memory_size",
        "value_type",
        "implementation",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        precision: Any = np.float32,
        direction: str = "forward",
        ffts_per_block: int | None = None,
        arch: str | None = None,
    ):
        real = types.precision(precision)
        if direction not in ("forward", "inverse"):
            raise PlanError(one_of("direction", direction, ["forward", "inverse"]))
        self._set_fields(
            shape=_shape(shape),
            precision=real.numpy,
            direction=direction,
            ffts_per_block=_knob("ffts_per_block", ffts_per_block),
            arch=None if arch is None else _arch.parse(arch).name,
        )
        self._check_shape(real.name)
        if self.arch is not None:
            self.traits(self.arch)  # what the architecture cannot do is said here, where it was asked for

    def _check_shape(self, real: str) -> None:
        most = THREAD_LIMIT[real]
        for n in self.shape:
            if not 1 <= n <= most:
                near = min(max(n, 1), most)
                text = f"shape {self.shape}: an axis has 1 to {most} points in {real}, got {n} (nearest: {near})"
                raise PlanError(text + (f"; {_ELSEWHERE}" if n > most else ""))
        if self._bytes > _MOST_SHARED:
            raise PlanError(
                f"shape {self.shape} is {self._bytes} bytes of {np.dtype(self.value_type)}, and a block has at most {_MOST_SHARED} bytes of shared "
                f"memory: {self._that_fit(_MOST_SHARED)}; {_ELSEWHERE}"
            )

    def _that_fit(self, limit: int) -> str:
        """What is small enough, in words: how many elements, and a shape like the plan's."""
        shape = self.shape
        while math.prod(shape) * self._itemsize > limit:
            longest = max(shape)
            axis = len(shape) - 1 - shape[::-1].index(longest)
            shape = (*shape[:axis], longest - 1, *shape[axis + 1 :])
        return f"shapes of up to {limit // self._itemsize} elements fit, such as {shape}"

    @property
    def variant(self) -> str:
        """Which of the plan's tables of device functions is in force."""
        return f"{len(self.shape)}-D"

    @property
    def size(self) -> int:
        """Elements of a transform."""
        return math.prod(self.shape)

    @property
    def value_type(self) -> type:
        """NumPy type of the elements: ``np.complex64`` or ``np.complex128``."""
        return types.complex_of(types.precision(self.precision)).numpy

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.value_type).itemsize

    @property
    def _bytes(self) -> int:
        return self.size * self._itemsize

    def short_name(self) -> str:
        """``FFTN(16, 16)``."""
        return f"FFTN{self.shape}"

    def element_type(self) -> Any:
        """numba's complex64 or complex128."""
        return types.BY_NAME[np.dtype(self.value_type).name].numba

    def inverse(self) -> FFTN:
        """The plan of the other direction, with everything else the same (and on each target the same layout of elements and threads)."""
        return self.replace(direction="inverse" if self.direction == "forward" else "forward")

    def line(self, axis: int) -> FFT:
        """The plan by which a thread transforms a line along an axis on the GPU."""
        return FFT(self.shape[axis], self.precision, direction=self.direction, execution="thread")

    # -- what a target knows ----------------------------------------------------------------------------------------------

    def compute_traits(self, target: Target) -> Traits:
        """Traits on the CPU (one thread, no spare elements) or on an architecture."""
        if target == CPU:
            threads, per_block, layout = 1, 1, Layout.plain(self.shape)
        else:
            assert isinstance(target, Arch)
            if self.arch is not None and _arch.parse(self.arch).cc != target.cc:
                raise PlanError(f"{self.short_name()} was made for {self.arch} and is used on {target}; leave arch out, or make it for {target}")
            threads, per_block, layout = self._block(target)
        return Traits(
            arch=str(target),
            elements_per_thread=-(-self.size // threads),
            ffts_per_block=per_block,
            strides=layout.strides,
            pitch=layout.pitch,
            data_shape=self.shape,
            block_dim=Dim3(threads, per_block),
            shared_memory_size=layout.pitch * per_block * self._itemsize,
            value_type=self.value_type,
            implementation="numpy" if target == CPU else "cufftdx",
        )

    def _block(self, target: Arch) -> tuple[int, int, Layout]:
        """Threads of a transform, transforms of a block and how they lie."""
        most, asked = self._most_threads, self.fields["ffts_per_block"]
        if asked is not None and asked > most:
            raise PlanError(f"{self.short_name()}: ffts_per_block must be 1 to {most} (threads that have the registers for a line each), got {asked}")
        threads = line_threads(self.shape, most // (asked or 1))
        for layout in (Layout.padded(self.shape, self._itemsize, threads), Layout.plain(self.shape)):
            one = layout.pitch * self._itemsize
            fit = target.shared_limit // one
            if fit >= (asked or 1):
                return threads, asked or _per_block(threads, most, max(1, _arch.DEFAULT_SHARED_LIMIT // one)), layout
        what = f"{self.short_name()}{f' with ffts_per_block={asked}' if asked else ''} needs {self._bytes * (asked or 1)} bytes of shared memory"
        advice = f"ffts_per_block can be at most {fit} here" if fit else f"{self._that_fit(target.shared_limit)}; {_ELSEWHERE}"
        raise LaunchError(f"{what}, {target} has {target.shared_limit}: {advice}")

    @property
    def _most_threads(self) -> int:
        """Threads that have the registers for a line each (measured: about 2.5 words an element and 40 more)."""
        words = max(self.shape) * self._itemsize // 4
        each = min(255, 40 + words * 5 // 4)
        return min(_arch.MAX_THREADS_PER_BLOCK, _arch.REGISTERS_PER_BLOCK // each // 32 * 32)

    def launch_shape(self, batch: int, target: Target, block: int | None) -> tuple[Dim3, Dim3]:
        """Grid and block for *batch* transforms."""
        traits = self.traits(target)
        if block is not None:
            raise LaunchError(f"{self.short_name()} sets its own block, {tuple(traits.block_dim)}; leave block out, got {block}")
        return Dim3(-(-batch // traits.ffts_per_block)), traits.block_dim


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise PlanError(f"shape must be a tuple of 2 or 3 integers, got {value!r}" + ("; FFT is for one dimension" if np.ndim(value) == 0 else ""))
    shape = tuple(_integer("an axis of shape", n) for n in value)
    if len(shape) == 1:
        raise PlanError(f"shape must have 2 or 3 axes, got {shape}; in one dimension it is FFT(size={shape[0]})")
    if not 2 <= len(shape) <= 3:
        raise PlanError(f"shape must have 2 or 3 axes, got {len(shape)}: {shape}")
    return shape


# -- which threads work on a transform, and how it lies in shared memory -----------------------------------------------------


def _per_block(threads: int, most: int, room: int) -> int:
    """Transforms of a block where nobody says: about 128 threads, in whole warps, in the shared memory that needs no opt-in."""
    largest = max(1, min(room, 2 * _THREADS // threads, most // threads))

    def spare(transforms: int) -> float:
        return -threads * transforms % 32 / (threads * transforms)

    return min(range(1, largest + 1), key=lambda f: (f * threads < 64, round(spare(f), 3), abs(f * threads - _THREADS)))


def line_threads(shape: tuple[int, ...], most: int) -> int:
    """Threads of a transform, at most *most*: as many as keep busy on all axes, counting rounds of lines by the work in a line."""
    size = math.prod(shape)
    axes = [(n, size // n) for n in shape if n > 1]
    if not axes:
        return 1
    least = min(min(lines for _, lines in axes), most)

    def time(threads: int) -> float:
        return threads * sum(-(-lines // threads) * n * (2 + math.log2(n)) for n, lines in axes)

    choices = range(least if least < most else most // 2 + 1, min(max(lines for _, lines in axes), most) + 1)
    return min(choices, key=lambda t: (round(time(t)), t if least < most else -t))


class Layout(NamedTuple):
    """Strides of a transform's axes and from transform to transform, in elements."""

    strides: tuple[int, ...]
    pitch: int

    @classmethod
    def plain(cls, shape: tuple[int, ...]) -> Layout:
        """Without spare elements."""
        strides = tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))
        return cls(strides, math.prod(shape))

    @classmethod
    @functools.lru_cache(maxsize=256)
    def padded(cls, shape: tuple[int, ...], itemsize: int, threads: int) -> Layout:
        """The one in which threads meet in the fewest banks; of several, the smallest."""
        banks = 128 // itemsize
        found = min(_candidates(shape, banks), key=lambda s: (_collisions(shape, cls(s, 0), threads, 1, banks), s[0] * shape[0]))
        least, several = found[0] * shape[0], 32 // threads + 1
        pitches = range(least, least + (banks if threads % 32 else 1))
        return cls(found, min(pitches, key=lambda p: (_collisions(shape, cls(found, p), threads, several, banks), p)))


def _candidates(shape: tuple[int, ...], banks: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(1,)]
    for axis in reversed(range(len(shape) - 1)):
        spare = banks if shape[axis] > 1 else 1
        found = [(s[0] * shape[axis + 1] + more, *s) for s in found for more in range(spare)]
    return found


def _collisions(shape: tuple[int, ...], layout: Layout, threads: int, transforms: int, banks: int) -> int:
    """Accesses that wait because of bank conflicts, in one access by each thread of some transforms, on each axis and in copies."""
    total = 0
    for places, which, group in _accesses(shape, threads, transforms, banks):
        bank = (np.array(layout.strides) @ places + which * layout.pitch) % banks
        counts = np.bincount(group * banks + bank, minlength=banks * (group[-1] + 1)).reshape(-1, banks)
        total += int(np.maximum(counts.max(axis=1) - 1, 0).sum())
    return total


@functools.lru_cache(maxsize=16)
def _accesses(shape: tuple[int, ...], threads: int, transforms: int, banks: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of the threads that work on lines of an axis, for each axis, and of those that copy: which element of which transform they have,
    and with which others they share an access: as many as there are banks of an element's size."""
    number = np.arange(threads * transforms)
    found = []
    for axis in (*(a for a, n in enumerate(shape) if n > 1), None):
        extents = [1 if a == axis else n for a, n in enumerate(shape)]
        on = number[number % threads < math.prod(extents)]
        found.append((np.stack(np.unravel_index(on % threads, extents)), on // threads, on // banks))
    return found
