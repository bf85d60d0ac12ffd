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
from . import cufftdx, defaults, half, records, shared, sizes, stockham

_SIDES = ("input", "output")
_POINTS_PER_BLOCK = 128
#: Threads that a block in half precision has at least, by default; cuFFTDx itself takes those of two transforms, 16 at 512 points.
_HALF_THREADS = 64


class FFT(Plan):
    """A Fourier transform for use inside kernels: a compile-time constant there.

    Parameters
    ----------
    size : number of points. ``execution="block"``: 1 to 8192, and 9261, 10000, 10648, 12167, 13824, 15625, 16384 (float32 also 16807, 17576, 19683,
        20736, 21952, 24389, 27000, 29791, 32768; float16 those but 20736) as far as the architecture's shared memory goes.
        ``execution="thread"``: 1 to 64 in float32 and float16, 1 to 40 in float64.
    precision : ``np.float16``, ``np.float32`` or ``np.float64``: complex elements of twice 16 (see below), 32 or 64 bits.
    fft_type : ``"c2c"``, ``"r2c"`` (real to complex) or ``"c2r"`` (complex to real).
    direction : ``"forward"`` (exponent sign -1; ``"r2c"`` is forward) or ``"inverse"`` (``"c2r"`` is inverse). Neither normalises, as in cuFFT.
    execution : ``"block"`` (the threads of a block work on it together) or ``"thread"`` (each thread on its own).
    complex_layout : how the complex side of a real transform is stored: ``"natural"`` (elements 0 ... size // 2), ``"packed"`` (size / 2 elements:
        element 0 has the real parts of elements 0 and size / 2, both of which are real; even sizes) or ``"full"`` (all elements).
    real_mode : ``"normal"``, or ``"folded"``, which takes two real numbers as one complex one and does half the work (block execution: powers
        of two from 4; thread execution: even sizes from 4, twice as large ones); ``None`` leaves it to devmath. Rows are the same in both.
    api : ``"registers"`` (each thread has some of the elements, in an array of its own) or ``"shared"`` (a transform's elements lie in shared memory,
        in natural order, where every thread of it may read and write any); block execution.
    elements_per_thread, ffts_per_block : knobs of block execution; ``None`` leaves them to devmath. See :meth:`valid_knobs`.
    thread_layout : ``"regular"`` (neighbouring threads of a block have neighbouring elements of a transform: for rows that are contiguous) or
        ``"transposed"`` (they have the same element of neighbouring transforms: for columns, ``fft.load(x[:, b], r)``); block execution.
    transposition : cuFFTDx's way of exchanging elements: ``"any"``, ``"none"``, ``"by_component"``, ``"by_complex"``, ``"by_component_padded"``.
    implementation : ``"cufftdx"``, or ``"devmath"`` for transforms of our own (``devmath/lto/fft.cu``), which powers of two have; ``None`` takes
        the faster one, as measured.
    arch : an architecture such as ``"sm_90a"`` that the plan is for; ``None`` for whichever one it is used on.

    Raises
    ------
    PlanError (a ValueError) for anything that cuFFTDx has no implementation of, with the valid choices.

    Inside kernels a plan has device functions (``devmath reference FFT`` lists them) and, as constants, all of the above and the traits
    below. On the host a trait is that of the current GPU (the CPU target's where there is none); :meth:`traits` asks for any architecture,
    with or without a GPU.

    In half precision a thread works on two transforms at once, ``batch()`` and the next one, and its elements are numbers of float16, four for a
    complex element of the two. Their rows are arrays of float16 of shape (2, length, 2), with real and imaginary parts in the last axis, or
    (2, length) where they are real: ``x[b : b + 2]`` of an array of all transforms. ``ffts_per_block`` counts transforms and is even.

    Traits: ``elements_per_thread``, ``ffts_per_block``, ``storage_size`` (complex elements that a thread's array must have; in half precision,
    numbers of float16), ``data_size`` (complex elements of one transform in shared memory, for ``api="shared"``), ``stride`` (between a
    thread's elements), ``block_dim``, ``shared_memory_size`` (bytes), ``implementation``, and of the rows that go in and come out, in their own
    elements: ``input_type``, ``output_type``, ``input_length``, ``output_length``, ``input_elements_per_thread``, ``output_elements_per_thread``.

    Source: cuFFTDx, https://docs.nvidia.com/cuda/cufftdx/ (operators and traits carry its names).
    """

    kind_name: ClassVar[str] = "FFT"
    variants: ClassVar = {"block": records.BLOCK, "thread": records.THREAD, "shared": shared.RECORDS, "half": half.BLOCK, "half thread": half.THREAD}
    constants: ClassVar = ("size", "precision", "fft_type", "direction", "execution", "complex_layout", "api", "thread_layout")
    trait_names: ClassVar = (
        "elements_per_thread",
        "ffts_per_block",
        "storage_size",
        "data_size",
        "stride",
        "block_dim",
        "shared_memory_size",
        "value_type",
        "implementation",
        "real_mode",
        *(f"{side}_{what}" for side in _SIDES for what in ("type", "length", "elements_per_thread")),
    )

    def __init__(
        self,
        size: int,
        precision: Any = np.float32,
        fft_type: str = "c2c",
        direction: str | None = None,
        execution: str = "block",
        complex_layout: str = "natural",
        real_mode: str | None = None,
        api: str = "registers",
        elements_per_thread: int | None = None,
        ffts_per_block: int | None = None,
        thread_layout: str = "regular",
        transposition: str | None = None,
        implementation: str | None = None,
        arch: str | None = None,
    ):
        real = types.precision(precision, valid=("float16", "float32", "float64"))
        for name, got, valid in (
            ("fft_type", fft_type, list(cufftdx.FFT_TYPES)),
            ("direction", direction, ["forward", "inverse", None]),
            ("execution", execution, ["block", "thread"]),
            ("complex_layout", complex_layout, list(cufftdx.LAYOUTS)),
            ("real_mode", real_mode, [*cufftdx.REAL_MODES, None]),
            ("api", api, ["registers", "shared"]),
            ("thread_layout", thread_layout, list(cufftdx.THREAD_LAYOUTS)),
            ("transposition", transposition, [*cufftdx.TRANSPOSITIONS, None]),
            ("implementation", implementation, ["cufftdx", "devmath", None]),
        ):
            if got not in valid:
                raise PlanError(one_of(name, got, valid))
        self._set_fields(
            size=_integer("size", size),
            precision=real.numpy,
            fft_type=fft_type,
            direction=direction or ("inverse" if fft_type == "c2r" else "forward"),
            execution=execution,
            complex_layout=complex_layout,
            real_mode=real_mode,
            api=api,
            elements_per_thread=_knob("elements_per_thread", elements_per_thread),
            ffts_per_block=_knob("ffts_per_block", ffts_per_block),
            thread_layout=thread_layout,
            transposition=transposition,
            implementation=implementation,
            arch=None if arch is None else _arch.parse(arch).name,
        )
        self._check_type()
        sizes.check(self)
        self._check_knobs()
        if self.half:
            self._check_half()
        if implementation == "devmath" and (size > 1 or execution == "thread"):
            self._check_own()
        if self.arch is not None and (self._own(_arch.parse(self.arch)) or mathdx.find_library() is not None):
            self.traits(self.arch)  # what the architecture cannot do is said here, where it was asked for

    def _check_type(self) -> None:
        if self.fft_type == "c2c":
            for name, plain in (("complex_layout", "natural"), ("real_mode", None)):
                if self.fields[name] != plain:
                    raise PlanError(f"{name}={self.fields[name]!r} is for fft_type='r2c' and 'c2r'; leave it out with 'c2c'")
            return
        only = {"r2c": "forward", "c2r": "inverse"}[self.fft_type]
        if self.direction != only:
            other = {"r2c": "c2r", "c2r": "r2c"}[self.fft_type]
            raise PlanError(f"fft_type={self.fft_type!r} is {only}, got direction={self.direction!r}; the other direction is fft_type={other!r}")
        if self.complex_layout == "packed" and self.size % 2:
            raise PlanError(f"complex_layout='packed' needs an even size, got {self.size} (nearest: {self.size + 1})")

    def _check_knobs(self) -> None:
        elements, per_block = self.fields["elements_per_thread"], self.fields["ffts_per_block"]
        if self.execution == "thread":
            if self.api != "registers":
                raise PlanError(f"api={self.api!r} is for execution='block'; a thread keeps its elements to itself")
            if self.thread_layout != "regular":
                raise PlanError(f"thread_layout={self.thread_layout!r} is for execution='block'; a thread has a transform of its own")
            if self.fields["transposition"] is not None:
                raise PlanError("transposition is for execution='block'; a thread exchanges nothing with others")
            if per_block is not None:
                raise PlanError(
                    f"ffts_per_block is for execution='block'; with execution='thread' each thread has a transform of its own, got {per_block}"
                )
            if elements not in (None, self.size):
                raise PlanError(f"with execution='thread' elements_per_thread is the size, {self.size}, got {elements}")
            return
        if self.size == 1:
            for name, most in (("elements_per_thread", 1), ("transposition", None), ("implementation", "devmath")):
                if self.fields[name] not in (None, most):
                    raise PlanError(f"a transform of 1 point has no {name}={self.fields[name]!r}; leave it out")
        elif elements is not None and not 2 <= elements <= self.size:
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

    def _check_half(self) -> None:
        for name, plain in (("api", "registers"), ("implementation", "cufftdx")):
            if self.fields[name] not in (plain, None):
                raise PlanError(f"{name}={self.fields[name]!r} is for precision=np.float32 and np.float64; np.float16 has {plain!r}")
        per_block = self.fields["ffts_per_block"]
        if per_block is not None and per_block % 2:
            raise PlanError(f"ffts_per_block must be even with precision=np.float16, where a thread works on two transforms, got {per_block}")

    def _check_own(self) -> None:
        if self.execution == "thread":
            raise PlanError("implementation='devmath' has block execution alone; execution='thread' is cuFFTDx's")
        for name, has in (("complex_layout", ("natural", "packed")), ("real_mode", ("folded", None)), ("transposition", (None,))):
            if self.fields[name] not in has:
                choices = " or ".join(repr(h) for h in has if h) or "none"
                raise PlanError(f"implementation='devmath' has no {name}={self.fields[name]!r} (it has {choices}); cuFFTDx has it")
        valid = self._transform.valid_elements
        if not valid:
            least = 4 if self._split else 2
            near = max(least, 1 << round(float(np.log2(max(self.size, 1)))))
            raise PlanError(
                f"implementation='devmath' takes sizes that are powers of two from {least}, got {self.size} (nearest: {near}); cuFFTDx takes others"
            )
        asked = self.fields["elements_per_thread"]
        if asked not in (None, *valid):
            raise PlanError(one_of("elements_per_thread", asked, valid))

    @property
    def variant(self) -> str:
        """Which of the plan's tables of device functions is in force."""
        if self.half:
            return "half" if self.execution == "block" else "half thread"
        return "shared" if self.api == "shared" else self.execution

    @property
    def half(self) -> bool:
        """Whether the plan is one of half precision, in which a thread works on two transforms at once."""
        return self.precision is np.float16

    @property
    def _split(self) -> bool:
        return self.fft_type != "c2c"

    @property
    def _turned(self) -> bool:
        return self.thread_layout == "transposed"

    @property
    def _transform(self) -> stockham.Transform:
        return stockham.Transform(self.size, np.dtype(self.precision).name, self._split, self._turned)

    def _own(self, where: Arch) -> bool:
        """Whether the code is of devmath's own transforms on an architecture."""
        f, transform = self.fields, self._transform
        if self.size == 1:
            return True
        if self.half:
            return False
        if f["implementation"] is not None or self.execution == "thread":
            return f["implementation"] == "devmath"
        return (
            transform.serves(where)
            and f["elements_per_thread"] in (None, *transform.valid_elements)
            and f["complex_layout"] != "full"
            and f["real_mode"] != "normal"
            and f["transposition"] is None
            and transform.fits(f["elements_per_thread"], f["ffts_per_block"], where)
        )

    def folds(self, where: Arch) -> bool:
        """Whether two real numbers are taken as one complex one on an architecture."""
        return self._split and (cufftdx.real_mode(self) == "folded" or (self.size > 1 and self._own(where)))

    def short_name(self) -> str:
        """``FFT(512)``."""
        return f"FFT({self.size})"

    def element_type(self) -> Any:
        """numba's complex64 or complex128, or float16."""
        return types.BY_NAME[np.dtype(self.value_type).name].numba

    @property
    def value_type(self) -> type:
        """NumPy type of the elements: ``np.complex64`` or ``np.complex128``; of the numbers that they are made of, ``np.float16``."""
        return np.float16 if self.half else types.complex_of(types.precision(self.precision)).numpy

    def inverse(self) -> FFT:
        """The plan of the other direction, with everything else the same (and on each target the same layout of elements over threads)."""
        other = {"c2c": "c2c", "r2c": "c2r", "c2r": "r2c"}[self.fft_type]
        return self.replace(fft_type=other, direction="inverse" if self.direction == "forward" else "forward")

    def tuned(self, batch: int | None = None, pattern: Any = "convolution", measure: Any = None, progress: Any = None, again: bool = False) -> FFT:
        """The same plan with the knobs that are the fastest on the device at hand, as measured now or before (``docs/tuning.md``).

        Knobs that the plan names stay; the others become fields of the plan that is returned. Its :meth:`inverse` has the same ones. A plan that
        is not asked for ``tuned()`` never reads what was measured.

        Parameters
        ----------
        batch : transforms of a launch; what is measured serves for all batches with the same next power of two. ``None``: 256 MiB of input.
        pattern : the kernel that is measured: ``"convolution"`` (this transform, a product, and the inverse), ``"transform"``, or a function of the
            plan that gives ``(kernel, args)`` or ``(kernel, args, launch)`` of a kernel of one's own, on arrays of the GPU.
        measure : the device to measure on (:class:`devmath.tuning.measure.Device`); ``None``: the current GPU.
        progress : ``True`` for a line on the standard error, ``False`` for none, ``None`` for one where that is a terminal; or a function of (done,
            total, text).
        again : measure even if it was measured before.

        Raises
        ------
        TuningError without a GPU, unless the plan names an ``arch`` for which a measurement is kept; where no candidate gives right results.
        """
        from ..tuning.search import tuned

        return tuned(self, batch, pattern, measure, progress, again)  # type: ignore[return-value]

    def row_type(self, side: str) -> Any:
        """numba type of the elements of a row on a side, ``"input"`` or ``"output"``."""
        return records.real_of(self) if self.is_real(side) else self.element_type()

    def is_real(self, side: str) -> bool:
        """Whether the elements on a side, ``"input"`` or ``"output"``, are real."""
        return self.fft_type == {"input": "r2c", "output": "c2r"}[side]

    def _row_traits(self) -> dict[str, Any]:
        """Types and lengths of the rows on both sides."""
        n = self.size
        layout = {"natural": n // 2 + 1, "packed": n // 2, "full": n}[self.complex_layout]
        lengths = {side: n if self.is_real(side) or not self._split else layout for side in _SIDES}
        kinds = {side: self.precision if self.is_real(side) else self.value_type for side in _SIDES}
        return {f"{side}_length": lengths[side] for side in _SIDES} | {f"{side}_type": kinds[side] for side in _SIDES}

    # -- what a target knows ------------------------------------------------------

    def _knobs_on(self, target: Arch) -> cufftdx.Knobs:
        """The knobs for cuFFTDx, which itself takes the fewest transforms a block where neighbouring threads are to have neighbouring transforms,
        and in half precision."""
        elements, per_block = self.fields["elements_per_thread"], self.fields["ffts_per_block"]
        if (elements, per_block) == (None, None):
            elements, per_block = self._measured_knobs(target)
        if per_block is not None or self.execution == "thread" or not (self._turned or self.half):
            return elements, per_block
        each = 2 if self.half else 1  # transforms of a thread
        one = self._ask(target, (elements, each))
        threads = one["block_dim"][1 if self._turned else 0]
        want = stockham.TURNED_FFTS if self._turned else -(-_HALF_THREADS // threads)
        room = min(_arch.MAX_THREADS_PER_BLOCK // threads, target.shared_limit // max(one["shared_memory_size"], 1))
        return elements, each * max(1, min(want, room))

    def _measured_knobs(self, target: Arch) -> cufftdx.Knobs:
        """cuFFTDx's fastest knobs as measured, where the plan is of the form that was measured and they fit; else it is left to cuFFTDx."""
        f = self.fields
        if self.execution == "thread" or self._turned or f["transposition"] or f["real_mode"] or self.complex_layout != "natural":
            return None, None
        default = defaults.find(defaults.kind_of(self.fft_type), np.dtype(self.precision).name, self.size, target)
        knobs = default.knobs.get("cufftdx") if default else None
        if knobs is None:
            return None, None
        try:
            self._ask(target, knobs)
        except (PlanError, LaunchError):  # measured on another architecture
            return None, None
        return knobs

    def valid_knobs(self, arch: object = None) -> list[tuple[int, int]]:
        """(elements_per_thread, ffts_per_block) pairs on an architecture (default: the current device): those that cuFFTDx recommends, or, of
        devmath's own transforms, all that are powers of two."""
        if self.execution == "thread":
            return [(self.size, 2 if self.half else 1)]
        where = _gpu(arch)
        if self._own(where):
            return self._transform.valid_knobs(where) if self.size > 1 else [(1, f) for f in (32, 64, 128, 256, 512, 1024)]
        free = self.replace(elements_per_thread=None, ffts_per_block=None, arch=None)
        return [pair for pair in cufftdx.valid_knobs(free, where) if self._fits(pair, where)]

    def _fits(self, pair: tuple[int, int], where: Arch) -> bool:
        """Whether the architecture has the shared memory and the threads: cuFFTDx also names pairs for which it has not."""
        try:
            self.replace(elements_per_thread=pair[0], ffts_per_block=pair[1], implementation="cufftdx", arch=None).traits(where)
        except (PlanError, LaunchError):
            return False
        return True

    def compute_traits(self, target: Target) -> Traits:
        """Traits on the CPU (one thread, all elements) or on an architecture (from libmathdx, cached)."""
        if target == CPU:
            return self._cpu_traits()
        assert isinstance(target, Arch)
        self._check_arch(target)
        try:
            return self.traits_on(target)
        except (PlanError, LaunchError):
            most = sizes.largest(self, target)
            if most is None or most >= self.size:  # then it is the knobs
                raise
            raise PlanError(sizes.too_large(self, most, target)) from None

    def traits_on(self, target: Arch) -> Traits:
        """Traits on an architecture, or why not, whether or not a smaller size would do."""
        if self.api == "shared":
            return self._shared_traits(target)
        if self._own(target):
            return self._own_traits(target) if self.size > 1 else self._traits_of_one_point(target)
        found = self._ask(target, self._knobs_on(target))
        if self.fft_type == "c2c":
            found = {**found, "real_mode": "normal", **{f"{side}_elements_per_thread": found["elements_per_thread"] for side in _SIDES}}
        return self._gpu_traits({**found, "block_dim": Dim3(*found["block_dim"]), "implementation": "cufftdx"})

    def _gpu_traits(self, found: dict[str, Any]) -> Traits:
        """With what no target decides."""
        return Traits({**self._row_traits(), **found, "data_size": self._data_size, "value_type": self.value_type})

    @property
    def _data_size(self) -> int:
        """Complex elements that either side takes; two real ones fill one."""
        rows = self._row_traits()
        return max(-(-self.size // 2) if self.is_real(side) else rows[f"{side}_length"] for side in _SIDES)

    def _shared_traits(self, target: Arch) -> Traits:
        """Those of the same transform in registers; its exchange takes the place of the data, which are in registers meanwhile."""
        found = self.replace(api="registers", arch=None).traits_on(target)
        data = shared.pitch(found) * found.ffts_per_block * np.dtype(self.value_type).itemsize
        found = Traits({**found, "shared_memory_size": max(found.shared_memory_size, data)})
        self._check_fits(target, found)
        return found

    def _ask(self, target: Arch, knobs: cufftdx.Knobs) -> dict[str, Any]:
        """cuFFTDx's traits, from the cache where they are."""
        operators = cufftdx.operators(self, target, knobs)
        key = cache.digest("cufftdx traits", operators, target.name, versions.libmathdx())
        entry = cache.load("traits", key)
        if entry:
            return dict(entry.meta)
        found = cufftdx.ask(self, target, operators)
        self._check_fits(target, found)
        cache.store("traits", key, b"", found)
        return found

    def _cpu_traits(self) -> Traits:
        rows, storage = self._row_traits(), self._data_size
        # The CPU's transform needs no scratch memory; a kernel that keeps one transform of its own there has room for it.
        scratch = max(self.size, storage) * np.dtype(self.value_type).itemsize * (4 if self.half else 1) if self.execution == "block" else 0
        return Traits(
            rows,
            elements_per_thread=self.size,
            input_elements_per_thread=rows["input_length"],
            output_elements_per_thread=rows["output_length"],
            storage_size=storage * (4 if self.half else 1),
            data_size=storage,
            stride=1,
            value_type=self.value_type,
            ffts_per_block=2 if self.half else 1,
            block_dim=Dim3(1),
            shared_memory_size=scratch,
            implementation="numpy",
            real_mode="normal",
        )

    def _own_traits(self, target: Arch) -> Traits:
        elements, per_block = self._transform.knobs(self.fields["elements_per_thread"], self.fields["ffts_per_block"], target)
        threads, sides = self.size // elements, dict.fromkeys(_SIDES, elements)
        if self._split:
            spectrum = elements // 2 + (self.complex_layout == "natural")
            sides["output" if self.fft_type == "r2c" else "input"] = spectrum
        found = {
            "arch": target.name,
            "elements_per_thread": elements,
            "storage_size": elements // 2 + 1 if self._split else elements,
            "stride": threads,
            "ffts_per_block": per_block,
            "block_dim": Dim3(per_block, threads) if self._turned else Dim3(threads, per_block),
            "shared_memory_size": self._transform.shared_bytes(elements, per_block),
            "real_mode": "folded" if self._split else "normal",
            **{f"{side}_elements_per_thread": count for side, count in sides.items()},
        }
        self._check_fits(target, found)
        return self._gpu_traits({**found, "implementation": "devmath"})

    def _traits_of_one_point(self, target: Arch) -> Traits:
        each = 2 if self.half else 1  # transforms of a thread
        per_block = each if self.execution == "thread" else self.fields["ffts_per_block"] or _POINTS_PER_BLOCK
        block = Dim3(per_block // each, 1) if self._turned else Dim3(1, per_block // each)
        ones = ("elements_per_thread", "storage_size", "stride", *(f"{side}_elements_per_thread" for side in _SIDES))
        found = {"arch": target.name, "ffts_per_block": per_block, "block_dim": block, "shared_memory_size": 0, "real_mode": "normal"}
        if self.half:
            found["storage_size"] = 4
        return self._gpu_traits({**dict.fromkeys(ones, 1), **found, "implementation": "devmath"})

    def source(self, traits: Traits) -> Source | None:
        """Where the code of ``execute`` comes from; a transform of 1 point has none."""
        if self.size == 1:
            return None
        if traits.implementation == "devmath":
            return self._transform.source(traits.elements_per_thread, self.complex_layout == "packed", self.direction == "forward")
        target = _arch.parse(traits.arch)
        operators = cufftdx.operators(self, target, self._knobs_on(target))
        return MathdxSource("cufftdx", operators, traits.symbol)

    def _check_arch(self, target: Arch) -> None:
        if self.arch is not None and _arch.parse(self.arch).cc != target.cc:
            raise PlanError(f"{self.short_name()} was made for {self.arch} and is used on {target}; leave arch out, or make it for {target}")

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

    def launch_shape(self, batch: int, target: Target, block: int | None) -> tuple[Dim3, Dim3]:
        """Grid and block for *batch* transforms."""
        traits = self.traits(target)
        if self.execution == "block":
            if block is not None:
                raise LaunchError(f"{self.short_name()} sets its own block, {tuple(traits.block_dim)}; leave block out, got {block}")
            return Dim3(-(-batch // traits.ffts_per_block)), traits.block_dim
        threads = block or 128
        return Dim3(-(-batch // (threads * traits.ffts_per_block))), Dim3(threads)


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
