"""The device functions of an FFT plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numba import types as nbt

from .. import types
from ..functions import Arg, Array, DeviceFunction, Values, View
from . import access


def make_transform(plan):
    """What ``execute`` does to a thread that has the whole transform. (Loops, since numba takes seconds to compile an assignment to a slice.)"""
    n, real, layout = plan.size, plan.precision, plan.complex_layout
    half = n // 2
    if n == 1:
        is_real = plan.fft_type == "r2c"

        def one_point(registers):
            if is_real:
                registers[0] = registers[0].real

        return one_point
    if plan.fft_type == "c2c":
        forward = plan.direction == "forward"
        transform: Callable = np.fft.fft if forward else np.fft.ifft
        unscaled = "backward" if forward else "forward"  # NumPy's names for the direction that is not scaled

        def c2c(registers):
            result = transform(registers[:n], n, -1, unscaled)
            for k in range(n):
                registers[k] = result[k]

        return c2c
    if plan.fft_type == "r2c":

        def r2c(registers):
            spectrum = np.fft.rfft(registers.view(real)[:n], n, -1, "backward")
            if layout == "packed":
                for k in range(half):
                    registers[k] = spectrum[k]
                registers.view(real)[1] = spectrum[half].real
            else:
                for k in range(half + 1):
                    registers[k] = spectrum[k]
                if layout == "full":
                    for k in range(half + 1, n):
                        registers[k] = np.conj(spectrum[n - k])

        return r2c

    def c2r(registers):
        spectrum, reals = np.empty(half + 1, registers.dtype), registers.view(real)
        if layout == "packed":
            for k in range(half):
                spectrum[k] = registers[k]
            spectrum[0], spectrum[half] = reals[0], reals[1]
        else:
            for k in range(half + 1):
                spectrum[k] = registers[k]
        result = np.fft.irfft(spectrum, n, -1, "forward")
        for k in range(n):
            reals[k] = result[k]

    return c2r


def _execute(plan, traits):
    transform = njit(make_transform(plan))
    if plan.execution == "thread":

        def execute(registers):
            transform(registers)

        return execute

    def execute(registers, scratch):
        transform(registers)

    return execute


def _execute_one_point(plan, traits):
    """On the GPU, of a plan that has no generated code: one point is its own transform, and the spectrum of a real one is real."""
    is_real = plan.fft_type == "r2c"
    if plan.execution == "thread":

        def execute_alone(registers):
            if is_real:
                registers[0] = registers[0].real

        return execute_alone

    def execute(registers, scratch):
        if is_real:
            registers[0] = registers[0].real

    return execute


def _execute_in_place(plan, traits):
    from . import cpu

    return cpu.execute(plan) if plan.fft_type == "c2c" and plan.size > 1 else _execute(plan, traits)


def _code(plan, traits):
    return plan.source(traits)


def _value_type(plan):
    return plan.element_type()


_REGISTERS = Arg("registers", "registers", "this thread's elements: `registers()`, or a local array of `storage_size` elements of `value_type`")
_SCRATCH = Arg("scratch", "shared", "the block's shared memory: `scratch()`, or any shared array of `shared_memory_size` bytes")

_I = Arg("i", "int", "number of an element of this thread")


def row_of(side):
    """The argument for a row of a side of a transform."""
    past = {"input": "elements past its end are read as zero", "output": "nothing is written past its end"}[side]
    return Arg("row", "row", f"the {side}, a 1-D array of `{side}_type` (any stride); {past}", lambda plan: (plan.row_type(side),))


def real_of(plan):
    """numba type of the plan's real numbers."""
    return types.BY_NAME[np.dtype(plan.precision).name].numba


def reals_of(plan):
    """The same, as the types of a row."""
    return (real_of(plan),)


WINDOW = Arg("window", "row", "a 1-D array of real numbers of the plan's precision", reals_of)
FACTORS = Arg(
    "factors",
    "row",
    "a 1-D array, complex or real: element k multiplies element k of the spectrum (natural order, `size // 2 + 1` of them for a "
    "real transform); zero past its end",
    lambda plan: (plan.element_type(), real_of(plan)),
)


def _on(which, meaning):
    """A meaning that concerns one side of the plan, or the one in the frequency domain."""
    return lambda plan, traits: meaning(plan, traits, which or access.spectrum(plan))


_ACCESS = (
    DeviceFunction(
        "registers",
        (),
        "This thread's elements: a new thread-local array of `storage_size` elements of `value_type`, not initialised.",
        returns=Array("local", _value_type, lambda traits: traits.storage_size),
    ),
    DeviceFunction(
        "as_real",
        (_REGISTERS,),
        "The registers as real numbers, two for each complex one: element `i` of the real side of a transform is number `i` of them, and "
        "`input_index(i)` or `output_index(i)` says which element of the row that is.",
        returns=View(real_of),
        meaning=access.make_as_real,
    ),
    DeviceFunction(
        "batch",
        (),
        "Which transform this thread works on, an integer from 0; at or past the batch for the last block's spare threads, "
        "which must not load or store but must call `execute`.",
        returns=Values(nbt.int64),
        meaning=access.make_batch,
    ),
    DeviceFunction(
        "index",
        (Arg("i", "int", "number of a complex element of this thread, from 0"),),
        "Which element in the frequency domain the thread's element `i` is: of the output, or of a c2r transform's input. Where the threads "
        "have room for more elements than there are, spare ones have the index of the last: safe to read by, not to write by; ask `active(i)`.",
        returns=Values(nbt.int64),
        meaning=_on(None, access.make_index),
    ),
    DeviceFunction(
        "active",
        (_I,),
        "Whether the thread's element `i` in the frequency domain exists. Always true where `elements_per_thread * stride == size` and the "
        "transform is complex.",
        returns=Values(nbt.boolean),
        meaning=_on(None, access.make_active),
    ),
    *(
        record
        for side in ("input", "output")
        for record in (
            DeviceFunction(
                f"{side}_index",
                (_I,),
                f"Which element of the {side} row the thread's element `i` is, `i < {side}_elements_per_thread`; the last one for spare elements.",
                returns=Values(nbt.int64),
                meaning=_on(side, access.make_index),
            ),
            DeviceFunction(
                f"{side}_active",
                (_I,),
                f"Whether the thread's element `i` is an element of the {side} row.",
                returns=Values(nbt.boolean),
                meaning=_on(side, access.make_active),
            ),
        )
    ),
    DeviceFunction(
        "load",
        (
            row_of("input"),
            _REGISTERS,
        ),
        "Read this thread's elements of the input from an array.",
        meaning=access.make_load,
        fast_gpu=access.make_load_gpu,
    ),
    DeviceFunction(
        "load_window",
        (
            row_of("input"),
            WINDOW,
            _REGISTERS,
        ),
        "Read this thread's elements of the input, each multiplied by the window's value at the same place (zero past its end).",
        meaning=access.make_load_window,
    ),
    DeviceFunction(
        "multiply",
        (
            FACTORS,
            _REGISTERS,
        ),
        "Multiply this thread's elements in the frequency domain, in whichever `complex_layout`: a filter, between `execute` of the forward and "
        "of the inverse plan. In packed layout the factors of elements 0 and `size / 2` are taken to be real.",
        meaning=access.make_multiply,
    ),
    DeviceFunction(
        "store",
        (
            _REGISTERS,
            row_of("output"),
        ),
        "Write this thread's elements of the output to an array.",
        meaning=access.make_store,
        fast_gpu=access.make_store_gpu,
    ),
)

_BLOCK_ONLY = (
    DeviceFunction(
        "scratch",
        (),
        "The block's dynamic shared memory as an array of `value_type`. All plans of a kernel share it.",
        returns=Array("shared", _value_type),
        cooperative=True,
    ),
    DeviceFunction(
        "execute",
        (_REGISTERS, _SCRATCH),
        "Transform in place, unnormalised in both directions (inverse after forward gives `size` times the input). The imaginary parts of a c2r "
        "transform's elements 0 and `size / 2` are not looked at. All threads of the block must call it. Source: cuFFTDx, block execution with "
        "register input, or devmath's own transforms, as `implementation` says.",
        meaning=_execute,
        fast_cpu=_execute_in_place,
        fast_gpu=_execute_one_point,
        code=_code,
        cooperative=True,
    ),
)

_THREAD_ONLY = (
    DeviceFunction(
        "execute",
        (_REGISTERS,),
        "Transform this thread's elements in place, unnormalised in both directions. Source: cuFFTDx, thread execution.",
        meaning=_execute,
        fast_cpu=_execute_in_place,
        fast_gpu=_execute_one_point,
        code=_code,
    ),
)

BLOCK = {fn.name: fn for fn in (*_ACCESS, *_BLOCK_ONLY)}
THREAD = {fn.name: fn for fn in (*_ACCESS, *_THREAD_ONLY)}
