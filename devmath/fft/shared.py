"""Device functions of block transforms whose elements lie in shared memory.

A transform's row is there in natural order, as it lies in an array. On the GPU ``execute`` takes it to registers, transforms it as the plan with
``api="registers"`` does, and brings it back; its exchange uses the same memory.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, njit
from numba import types as nbt

from .. import arch as _arch
from ..functions import Arg, DeviceFunction, Part, Values, View
from ..plan import BoundPlan
from . import access
from .records import FACTORS, WINDOW, make_transform, real_of, row_of

_LANE = 0x3FF


def pitch(traits):
    """Elements from one transform of a block to the next: odd, so that neighbouring threads of neighbouring transforms meet in no bank."""
    return traits.data_size | 1 if traits.ffts_per_block > 1 else traits.data_size


def _make_first(plan, traits):
    step, across = pitch(traits), access.turned(plan)

    def first():
        return ((cuda.threadIdx.x if across else cuda.threadIdx.y) & _LANE) * step

    return first


class _Lanes:
    """How the threads of a transform share the elements of a row: thread ``lane`` has every ``threads``-th one, ``steps`` of them."""

    def __init__(self, plan, traits, which):
        self.length = traits[f"{which}_length"]
        self.real = plan.is_real(which)
        self.across, self.alone = access.turned(plan), access.alone(plan, traits)
        self.threads = traits.block_dim.y if self.across else traits.block_dim.x
        self.steps = -(-self.length // self.threads)


def _make_load(plan, traits):
    """Elements past the end of the row are zero."""
    of = _Lanes(plan, traits, "input")
    length, threads, steps, across, alone, real = of.length, of.threads, of.steps, of.across, of.alone, plan.precision
    zero = real(0) if of.real else plan.value_type(0)
    if of.real:

        def load_real(row, data):
            lane, reals = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, data.view(real)
            end = min(row.shape[0], length)
            for i in range(steps):
                k = lane + i * threads
                if k < length:
                    reals[k] = row[k] if k < end else zero

        return load_real

    def load(row, data):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(row.shape[0], length)
        for i in range(steps):
            k = lane + i * threads
            if k < length:
                data[k] = row[k] if k < end else zero

    return load


def _make_load_gpu(plan, traits):
    """:func:`_make_load` with one memory access for a complex element, where the row's place in memory allows it."""
    from ..targets.cuda_memory import read, whole, write

    of = _Lanes(plan, traits, "input")
    length, threads, steps, across, zero = of.length, of.threads, of.steps, of.across, plan.value_type(0)
    if of.real:
        return _make_load(plan, traits)

    def load_(row, data):
        lane = (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        if row.shape[0] >= length and whole(row) and whole(data):
            for i in range(steps):
                k = lane + i * threads
                if k < length:
                    write(data, k, read(row, k))
        else:
            end = min(row.shape[0], length)
            for i in range(steps):
                k = lane + i * threads
                if k < length:
                    data[k] = row[k] if k < end else zero

    return load_


def _make_load_window(plan, traits):
    of = _Lanes(plan, traits, "input")
    length, threads, steps, across, alone, real = of.length, of.threads, of.steps, of.across, of.alone, plan.precision
    zero = real(0) if of.real else plan.value_type(0)
    if of.real:

        def load_window_real(row, window, data):
            lane, reals = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, data.view(real)
            end = min(row.shape[0], window.shape[0], length)
            for i in range(steps):
                k = lane + i * threads
                if k < length:
                    reals[k] = row[k] * window[k] if k < end else zero

        return load_window_real

    def load_window(row, window, data):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(row.shape[0], window.shape[0], length)
        for i in range(steps):
            k = lane + i * threads
            if k < length:
                data[k] = row[k] * window[k] if k < end else zero

    return load_window


def _make_store(plan, traits):
    """Nothing is written past the end of the row."""
    of = _Lanes(plan, traits, "output")
    length, threads, steps, across, alone, real = of.length, of.threads, of.steps, of.across, of.alone, plan.precision
    if of.real:

        def store_real(data, row):
            lane, reals = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, data.view(real)
            end = min(row.shape[0], length)
            for i in range(steps):
                k = lane + i * threads
                if k < end:
                    row[k] = reals[k]

        return store_real

    def store(data, row):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(row.shape[0], length)
        for i in range(steps):
            k = lane + i * threads
            if k < end:
                row[k] = data[k]

    return store


def _make_store_gpu(plan, traits):
    """:func:`_make_store` with one memory access for a complex element, where the row's place in memory allows it."""
    from ..targets.cuda_memory import read, whole, write

    of = _Lanes(plan, traits, "output")
    length, threads, steps, across = of.length, of.threads, of.steps, of.across
    if of.real:
        return _make_store(plan, traits)

    def store_(data, row):
        lane = (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(row.shape[0], length)
        if whole(row) and whole(data):
            for i in range(steps):
                k = lane + i * threads
                if k < end:
                    write(row, k, read(data, k))
        else:
            for i in range(steps):
                k = lane + i * threads
                if k < end:
                    row[k] = data[k]

    return store_


def _make_multiply(plan, traits):
    """In packed layout element 0 has the real parts of two elements, which are real themselves: each takes its factor's real part."""
    of = _Lanes(plan, traits, access.spectrum(plan))
    length, threads, steps, across, alone, real = of.length, of.threads, of.steps, of.across, of.alone, plan.precision
    packed, zero = plan.complex_layout == "packed", plan.value_type(0)

    def multiply(factors, data):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(factors.shape[0], length)
        if packed and lane == 0:
            reals = data.view(real)
            first, last = reals[0], reals[1]
        for i in range(steps):
            k = lane + i * threads
            if k < length:
                data[k] = data[k] * factors[k] if k < end else zero
        if packed and lane == 0:
            reals[0] = first * factors[0].real if end > 0 else real(0)
            reals[1] = last * factors[length].real if factors.shape[0] > length else real(0)

    return multiply


def _make_as_real(plan, traits):
    real = plan.precision

    def as_real(data):
        return data.view(real)

    return as_real


def _make_execute(plan, traits):
    """What ``execute`` does where one thread has the whole transform."""
    transform = njit(make_transform(plan))

    def execute(data):
        transform(data)

    return execute


def _make_execute_cpu(plan, traits):
    from . import cpu

    if plan.fft_type != "c2c" or plan.size == 1:
        return _make_execute(plan, traits)
    transform = njit(cpu.execute(plan.replace(api="registers")))

    def execute(data):
        transform(data, data)

    return execute


def _make_execute_gpu(plan, traits):
    inner: Any = BoundPlan(plan.replace(api="registers"), _arch.parse(traits.arch))
    if plan.fft_type == "r2c":

        def execute_r2c(data):
            registers, scratch = inner.registers(), inner.scratch()
            cuda.syncthreads()
            inner.load(inner.as_real(data), registers)
            cuda.syncthreads()
            inner.execute(registers, scratch)
            cuda.syncthreads()
            inner.store(registers, data)
            cuda.syncthreads()

        return execute_r2c
    if plan.fft_type == "c2r":

        def execute_c2r(data):
            registers, scratch = inner.registers(), inner.scratch()
            cuda.syncthreads()
            inner.load(data, registers)
            cuda.syncthreads()
            inner.execute(registers, scratch)
            cuda.syncthreads()
            inner.store(registers, inner.as_real(data))
            cuda.syncthreads()

        return execute_c2r

    def execute(data):
        registers, scratch = inner.registers(), inner.scratch()
        cuda.syncthreads()
        inner.load(data, registers)
        cuda.syncthreads()
        inner.execute(registers, scratch)
        cuda.syncthreads()
        inner.store(registers, data)
        cuda.syncthreads()

    return execute


_DATA = Arg("data", "data", "this transform's elements in shared memory: `data()`, or another shared array of `data_size` elements of `value_type`")

RECORDS = {
    fn.name: fn
    for fn in (
        DeviceFunction(
            "data",
            (),
            "This transform's elements: an array of `data_size` elements of `value_type` in the block's dynamic shared memory, not initialised, "
            "which all threads of the transform see. All plans of a kernel share that memory.",
            returns=Part(lambda plan: plan.element_type(), lambda plan: 1, lambda traits: (traits.data_size,), lambda traits: (1,), _make_first),
        ),
        DeviceFunction(
            "as_real",
            (_DATA,),
            "The elements as real numbers, two for each complex one: the real side of a transform, in order.",
            returns=View(real_of),
            meaning=_make_as_real,
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
            "load",
            (row_of("input"), _DATA),
            "Copy the input from an array to shared memory, each thread its share of it. Others see it after `execute` or `cuda.syncthreads()`.",
            meaning=_make_load,
            fast_gpu=_make_load_gpu,
        ),
        DeviceFunction(
            "load_window",
            (row_of("input"), WINDOW, _DATA),
            "Copy the input to shared memory, each element multiplied by the window's value at the same place (zero past its end).",
            meaning=_make_load_window,
        ),
        DeviceFunction(
            "multiply",
            (FACTORS, _DATA),
            "Multiply the elements in the frequency domain, in whichever `complex_layout`, each thread its share: a filter, between `execute` of the "
            "forward and of the inverse plan. In packed layout the factors of elements 0 and `size / 2` are taken to be real.",
            meaning=_make_multiply,
        ),
        DeviceFunction(
            "execute",
            (_DATA,),
            "Transform in place, unnormalised in both directions (inverse after forward gives `size` times the input). The imaginary parts of a c2r "
            "transform's elements 0 and `size / 2` are not looked at. All threads of the block must call it; it waits for them before and after. "
            "Source: as with `api='registers'`.",
            meaning=_make_execute,
            fast_cpu=_make_execute_cpu,
            fast_gpu=_make_execute_gpu,
            cooperative=True,
        ),
        DeviceFunction(
            "store",
            (_DATA, row_of("output")),
            "Copy the output from shared memory to an array, each thread its share of it.",
            meaning=_make_store,
            fast_gpu=_make_store_gpu,
        ),
    )
}
