"""The FFT plan."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import arch as _arch
from .. import cache, types
from ..arch import Arch
from ..codegen import mathdx, versions
from ..codegen.sources import MathdxSource, Source
from ..errors import LaunchError, PlanError, one_of
from ..plan import CPU, Dim3, Plan, Target, Traits
from . import records, stockham

#: Sizes above 8192 that cuFFTDx has an implementation for, by precision; which of them fit depends on the architecture's shared memory.
_LARGE = {
    "float32": (9261, 10000, 10648, 12167, 13824, 15625, 16384, 16807, 17576, 19683, 20736, 21952, 24389, 27000, 29791, 32768),
    "float64": (9261, 10000, 10648, 12167, 13824, 15625, 16384),
}
_ANY_SIZE = 8192
_THREAD_LIMIT = {"float32": 64, "float64": 40}

#: (elements_per_thread, ffts_per_block) found by measurement on an H200: fused forward, scale, inverse of 1 GiB of complex64
#: (benchmarks/run.py). They are defaults where the user sets neither and the generator accepts them for the architecture.
_SUGGESTED = {
    "float32": {128: (16, 8), 256: (16, 8), 512: (16, 2), 1024: (16, 1), 2048: (16, 1), 4096: (16, 1)},
    "float64": {},
}

# Codes of libcufftdx.h.
_OP = {
    "size": 0,
    "direction": 1,
    "type": 2,
    "precision": 3,
    "sm": 4,
    "execution": 5,
    "ffts_per_block": 6,
    "elements_per_thread": 7,
    "api": 10,
}
_TRAIT = {
    "elements_per_thread": 4,
    "storage_size": 5,
    "stride": 6,
    "block_dim": 7,
    "shared_memory_size": 8,
    "ffts_per_block": 9,
    "symbol": 10,
}


class FFT(Plan):
    """A Fourier transform for use inside kernels: a compile-time constant there.

    Parameters
    ----------
    size : number of points. ``execution="block"``: 2 to 8192, and 9261, 10000, 10648, 12167, 13824, 15625, 16384 (float32 also 16807, 17576, 19683,
        20736, 21952, 24389, 27000, 29791, 32768) as far as the architecture's shared memory goes. ``execution="thread"``: 2 to 64 in
        float32, 2 to 40 in float64.
    precision : ``np.float32`` or ``np.float64``; the elements are complex64 or complex128.
    fft_type : ``"c2c"``.
    direction : ``"forward"`` (exponent sign -1) or ``"inverse"``. Neither normalises, as in cuFFT.
    execution : ``"block"`` (the threads of a block work on it together) or ``"thread"`` (each thread on its own).
    elements_per_thread, ffts_per_block : knobs of block execution; ``None`` leaves them to devmath. See :meth:`valid_knobs`.
    implementation : ``"cufftdx"``, or ``"devmath"`` for transforms of our own (``devmath/lto/fft.cu``), which powers of two have; ``None`` takes
        the faster one, as measured.
    arch : an architecture such as ``"sm_90a"`` that the plan is for; ``None`` for whichever one it is used on.

    Raises
    ------
    PlanError (a ValueError) for anything that cuFFTDx has no implementation of, with the valid choices.

    Inside kernels a plan has the device functions ``registers``, ``scratch``, ``batch``, ``index``, ``active``, ``load``, ``store`` and ``execute``
    and, as constants, all of the above and the traits below. On the host a trait is that of the current GPU (the CPU target's where there is
    none); :meth:`traits` asks for any architecture, with or without a GPU.

    Traits: ``elements_per_thread``, ``ffts_per_block``, ``storage_size`` (elements a thread's array must have), ``stride`` (between a
    thread's elements), ``block_dim``, ``shared_memory_size`` (bytes).

    Source: cuFFTDx, https://docs.nvidia.com/cuda/cufftdx/ (operators and traits carry its names).
    """

    kind_name: ClassVar[str] = "FFT"
    variants: ClassVar = {"block": records.BLOCK, "thread": records.THREAD}
    constants: ClassVar = ("size", "precision", "fft_type", "direction", "execution")
    trait_names: ClassVar = (
        "elements_per_thread",
        "ffts_per_block",
        "storage_size",
        "stride",
        "block_dim",
        "shared_memory_size",
        "value_type",
        "implementation",
    )

    def __init__(
        self,
        size: int,
        precision: Any = np.float32,
        fft_type: str = "c2c",
        direction: str = "forward",
        execution: str = "block",
        elements_per_thread: int | None = None,
        ffts_per_block: int | None = None,
        implementation: str | None = None,
        arch: str | None = None,
    ):
        real = types.precision(precision)
        for name, got, valid in (
            ("fft_type", fft_type, ["c2c"]),
            ("direction", direction, ["forward", "inverse"]),
            ("execution", execution, ["block", "thread"]),
            ("implementation", implementation, ["cufftdx", "devmath", None]),
        ):
            if got not in valid:
                raise PlanError(one_of(name, got, valid))
        self._set_fields(
            size=_integer("size", size),
            precision=real.numpy,
            fft_type=fft_type,
            direction=direction,
            execution=execution,
            elements_per_thread=_knob("elements_per_thread", elements_per_thread),
            ffts_per_block=_knob("ffts_per_block", ffts_per_block),
            implementation=implementation,
            arch=None if arch is None else _arch.parse(arch).name,
        )
        self._check_size(real.name)
        self._check_knobs()
        if implementation == "devmath":
            self._check_own()
        if self.arch is not None and (self._own or mathdx.find_library() is not None):
            self.traits(self.arch)  # what the architecture cannot do is said here, where it was asked for

    def _check_size(self, real: str) -> None:
        n = self.size
        if self.execution == "thread":
            most = _THREAD_LIMIT[real]
            if not 2 <= n <= most:
                raise PlanError(
                    f"size must be 2 to {most} for {real} with execution='thread', got {n} (nearest: {min(max(n, 2), most)}; "
                    "execution='block' takes other sizes)"
                )
            return
        large = _LARGE[real]
        if not (2 <= n <= _ANY_SIZE or n in large):
            nearest = min((2, _ANY_SIZE, *large), key=lambda v: abs(v - n))
            raise PlanError(
                f"size must be 2 to {_ANY_SIZE} or one of {', '.join(map(str, large))} for {real} with execution='block', "
                f"got {n} (nearest: {nearest})"
            )

    def _check_knobs(self) -> None:
        elements, per_block = self.fields["elements_per_thread"], self.fields["ffts_per_block"]
        if self.execution == "thread":
            if per_block is not None:
                raise PlanError(
                    f"ffts_per_block is for execution='block'; with execution='thread' each thread has a transform of its own, got {per_block}"
                )
            if elements not in (None, self.size):
                raise PlanError(f"with execution='thread' elements_per_thread is the size, {self.size}, got {elements}")
            return
        if elements is not None and not 2 <= elements <= self.size:
            raise PlanError(
                f"elements_per_thread must be 2 to {self.size} (the size): a thread of a block transform has at least 2 elements, got {elements}"
            )
        if per_block is not None and per_block > _arch.MAX_THREADS_PER_BLOCK:
            raise PlanError(f"ffts_per_block must be 1 to {_arch.MAX_THREADS_PER_BLOCK}, got {per_block}")
        if elements is not None and per_block is not None:
            threads = -(-self.size // elements) * per_block
            if threads > _arch.MAX_THREADS_PER_BLOCK:
                most = _arch.MAX_THREADS_PER_BLOCK // -(-self.size // elements)
                mend = f"ffts_per_block can be at most {most} here" if most else f"take at least {-(-self.size // 1024)} elements_per_thread"
                raise PlanError(
                    f"elements_per_thread={elements} and ffts_per_block={per_block} make a block of {threads} threads, a block has at most "
                    f"{_arch.MAX_THREADS_PER_BLOCK}: {mend}"
                )

    def _check_own(self) -> None:
        if self.execution == "thread":
            raise PlanError("implementation='devmath' has block execution alone; execution='thread' is cuFFTDx's")
        valid = stockham.valid_elements(self.size)
        if not valid:
            near = 1 << max(1, round(float(np.log2(max(self.size, 2)))))
            raise PlanError(f"implementation='devmath' takes sizes that are powers of two, got {self.size} (nearest: {near}); cuFFTDx takes others")
        asked = self.fields["elements_per_thread"]
        if asked not in (None, *valid):
            raise PlanError(one_of("elements_per_thread", asked, valid))

    @property
    def _own(self) -> bool:
        """Whether the code is of devmath's own transforms."""
        asked = self.fields["implementation"]
        if asked is not None or self.execution == "thread":
            return asked == "devmath"
        real = np.dtype(self.precision).name
        return stockham.serves(self.size, real) and self.fields["elements_per_thread"] in (None, *stockham.valid_elements(self.size))

    def short_name(self) -> str:
        """``FFT(512)``."""
        return f"FFT({self.size})"

    def element_type(self) -> Any:
        """numba's complex64 or complex128."""
        return types.complex_of(types.precision(self.precision)).numba

    @property
    def value_type(self) -> type:
        """NumPy type of the elements: ``np.complex64`` or ``np.complex128``."""
        return types.complex_of(types.precision(self.precision)).numpy

    def inverse(self) -> FFT:
        """The plan of the other direction, with everything else the same (and on each target the same layout of elements over threads)."""
        return self.replace(direction="inverse" if self.direction == "forward" else "forward")

    # -- what a target knows ------------------------------------------------------

    def operators(self, arch: str, knobs: tuple[int | None, int | None] | None = None) -> tuple[tuple[int, int], ...]:
        """The libmathdx operators of this plan for an architecture."""
        elements, per_block = knobs or self._knobs(_arch.parse(arch))
        ops = [
            (_OP["api"], 0),
            (_OP["sm"], _arch.parse(arch).number),
            (_OP["size"], self.size),
            (_OP["precision"], types.precision(self.precision).mathdx),
            (_OP["type"], 0),
            (_OP["direction"], 0 if self.direction == "forward" else 1),
            (_OP["execution"], 1 if self.execution == "block" else 0),
        ]
        if self.execution == "block":
            if elements:
                ops.append((_OP["elements_per_thread"], elements))
            if per_block:
                ops.append((_OP["ffts_per_block"], per_block))
        return tuple(ops)

    def _knobs(self, arch: Arch) -> tuple[int | None, int | None]:
        asked = (self.fields["elements_per_thread"], self.fields["ffts_per_block"])
        if self.execution == "thread" or asked != (None, None):
            return asked
        return _SUGGESTED[np.dtype(self.precision).name].get(self.size, asked)

    def valid_knobs(self, arch: object = None) -> list[tuple[int, int]]:
        """(elements_per_thread, ffts_per_block) pairs on an architecture (default: the current device): those that cuFFTDx recommends, or, of
        devmath's own transforms, all that are powers of two."""
        if self.execution == "thread":
            return [(self.size, 1)]
        where = _gpu(arch)
        if self._own:
            return stockham.valid_knobs(self.size, np.dtype(self.precision).name, where)
        pairs = sorted(mathdx.Descriptor("cufftdx", self.operators(where.name, (None, None))).knobs((0, 1)))
        return [(elements, per_block) for elements, per_block in pairs if self._fits((elements, per_block), where)]

    def _fits(self, pair: tuple[int, int], where: Arch) -> bool:
        """Whether the architecture has the shared memory and the threads: cuFFTDx also names pairs for which it has not."""
        try:
            self.replace(elements_per_thread=pair[0], ffts_per_block=pair[1], arch=None).traits(where)
        except (PlanError, LaunchError):
            return False
        return True

    def compute_traits(self, target: Target) -> Traits:
        """Traits on the CPU (one thread, all elements) or on an architecture (from libmathdx, cached)."""
        if target == CPU:
            common = {"elements_per_thread": self.size, "storage_size": self.size, "stride": 1, "value_type": self.value_type}
            # The CPU's transform needs no scratch memory; a kernel that keeps one transform of its own there has room for it.
            scratch = self.size * np.dtype(self.value_type).itemsize if self.execution == "block" else 0
            return Traits(common, ffts_per_block=1, block_dim=Dim3(1), shared_memory_size=scratch, implementation="numpy")
        assert isinstance(target, Arch)
        self._check_arch(target)
        if self._own:
            return self._own_traits(target)
        operators = self.operators(target.name)
        key = cache.digest("cufftdx traits", operators, target.name, versions.libmathdx())
        entry = cache.load("traits", key)
        found = entry.meta if entry else self._ask(target, operators)
        if entry is None:
            cache.store("traits", key, b"", found)
        return Traits(found, block_dim=Dim3(*found["block_dim"]), value_type=self.value_type, implementation="cufftdx")

    def _own_traits(self, target: Arch) -> Traits:
        real = np.dtype(self.precision).name
        elements, per_block = stockham.knobs(self.size, real, self.fields["elements_per_thread"], self.fields["ffts_per_block"])
        found = {
            "arch": target.name,
            "elements_per_thread": elements,
            "storage_size": elements,
            "stride": self.size // elements,
            "ffts_per_block": per_block,
            "block_dim": Dim3(self.size // elements, per_block),
            "shared_memory_size": stockham.shared_bytes(self.size, elements, per_block, real),
        }
        self._check_fits(target, found)
        return Traits(found, value_type=self.value_type, implementation="devmath")

    def source(self, traits: Traits) -> Source:
        """Where the code of ``execute`` comes from."""
        if traits.implementation == "devmath":
            real = {"float32": "float", "float64": "double"}[np.dtype(self.precision).name]
            return stockham.source(self.size, traits.elements_per_thread, False, real, self.direction == "forward")
        return MathdxSource("cufftdx", self.operators(traits.arch), traits.symbol)

    def _check_arch(self, target: Arch) -> None:
        if self.arch is not None and _arch.parse(self.arch).cc != target.cc:
            raise PlanError(f"{self.short_name()} was made for {self.arch} and is used on {target}; leave arch out, or make it for {target}")

    def _ask(self, target: Arch, operators: tuple) -> dict[str, Any]:
        d = mathdx.Descriptor("cufftdx", operators)
        if not d.supported():
            raise PlanError(self._why_not(target))
        t = _TRAIT
        found: dict[str, Any] = {"arch": target.name, "symbol": d.text(t["symbol"])}
        for name in ("elements_per_thread", "storage_size", "stride"):
            found[name] = d.trait(t[name])
        if self.execution == "thread":
            return {**found, "ffts_per_block": 1, "block_dim": [1, 1, 1], "shared_memory_size": 0, "stride": 1}
        found["ffts_per_block"] = d.trait(t["ffts_per_block"])
        found["block_dim"] = list(d.traits(t["block_dim"], 3))
        found["shared_memory_size"] = d.trait(t["shared_memory_size"])
        self._check_fits(target, found)
        return found

    def _check_fits(self, target: Arch, found: dict[str, Any]) -> None:
        """Refuse what the architecture has not the shared memory or the threads for."""
        shared, threads, per_block = found["shared_memory_size"], int(np.prod(found["block_dim"])), found["ffts_per_block"]
        too_much = shared > target.shared_limit
        if not too_much and threads <= _arch.MAX_THREADS_PER_BLOCK:
            return
        most = min(target.shared_limit * per_block // max(shared, 1), _arch.MAX_THREADS_PER_BLOCK * per_block // threads)
        what = f"{self.short_name()} with ffts_per_block={per_block}"
        advice = f"; ffts_per_block can be at most {most} here" if most else ""
        if too_much:
            raise LaunchError(f"{what} needs {shared} bytes of shared memory, {target} has {target.shared_limit}{advice}")
        raise PlanError(f"{what} makes blocks of {threads} threads, the most is {_arch.MAX_THREADS_PER_BLOCK}{advice}")

    def _why_not(self, target: Arch) -> str:
        asked = self.fields["elements_per_thread"]
        free = mathdx.Descriptor("cufftdx", self.operators(target.name, (None, None)))
        real = np.dtype(self.precision).name
        if not free.supported():
            return f"cuFFTDx has no transform of {self.size} points in {real} on {target}{self._nearest(target)}"
        pairs = self.valid_knobs(target)
        near = min(pairs, key=lambda p: abs(p[0] - (asked or p[0])))
        return (
            f"{self.short_name()} in {real} on {target} has no implementation with elements_per_thread={asked}; "
            f"(elements_per_thread, ffts_per_block) can be {', '.join(map(str, pairs))} (nearest: {near})"
        )

    def _nearest(self, target: Arch) -> str:
        """The nearest size that does work, as the end of a message."""
        real = np.dtype(self.precision).name
        sizes = (*range(2, _ANY_SIZE + 1), *_LARGE[real]) if self.execution == "block" else range(2, _THREAD_LIMIT[real] + 1)
        for n in sorted(sizes, key=lambda n: abs(n - self.size)):
            plan = self.replace(size=n, elements_per_thread=None, ffts_per_block=None)
            if mathdx.Descriptor("cufftdx", plan.operators(target.name, (None, None))).supported():
                return f" (nearest: {n})"
        return ""

    def launch_shape(self, batch: int, target: Target, block: int | None) -> tuple[Dim3, Dim3]:
        """Grid and block for *batch* transforms."""
        traits = self.traits(target)
        if self.execution == "block":
            if block is not None:
                raise LaunchError(f"{self.short_name()} sets its own block, {tuple(traits.block_dim)}; leave block out, got {block}")
            return Dim3(-(-batch // traits.ffts_per_block)), traits.block_dim
        threads = block or 128
        return Dim3(-(-batch // threads)), Dim3(threads)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise PlanError(f"{name} must be an integer, got {value!r}")
    return int(value)


def _knob(name: str, value: Any) -> int | None:
    if value is None:
        return None
    number = _integer(name, value)
    if number < 1:
        raise PlanError(f"{name} must be at least 1, got {number}")
    return number


def _gpu(arch: object) -> Arch:
    if arch is None:
        current = _arch.current()
        if current is None:
            raise PlanError("no CUDA device was found: name an architecture, such as arch='sm_90a'")
        return current
    return _arch.parse(arch)
