"""The device functions of an FFT plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import cuda
from numba import types as nbt

from ..functions import Arg, Array, DeviceFunction, Values

# Positions are masked to their range, which changes nothing but tells the compiler that they are not negative: it can then drop
# Python's wrap-around of negative indices.
_LANE = 0x3FF
_BLOCK = 0x7FFFFFFF


def _alone(plan, traits):
    """Whether one thread has the whole transform, so that its position does not matter: thread execution, and the CPU target."""
    return plan.execution == "thread" or traits.block_dim == (1, 1, 1)


def _batch(plan, traits):
    if plan.execution == "thread":

        def batch():
            return (cuda.blockIdx.x & _BLOCK) * (cuda.blockDim.x & 0x7FF) + (cuda.threadIdx.x & _LANE)

        return batch
    per_block = traits.ffts_per_block

    def batch():
        return (cuda.blockIdx.x & _BLOCK) * per_block + (cuda.threadIdx.y & _LANE)

    return batch


def _index(plan, traits):
    """Element ``i`` of a thread is element ``lane + i * stride`` of the transform; a thread that works alone has them all."""
    stride, last = traits.stride, plan.size - 1
    if _alone(plan, traits):

        def index(i):
            return min(i, last)

        return index
    if traits.elements_per_thread * stride == plan.size:

        def index(i):
            return (cuda.threadIdx.x & _LANE) + i * stride

        return index

    def index(i):
        return min((cuda.threadIdx.x & _LANE) + i * stride, last)

    return index


def _active(plan, traits):
    stride, size = traits.stride, plan.size
    if _alone(plan, traits):

        def active(i):
            return i < size

        return active

    def active(i):
        return (cuda.threadIdx.x & _LANE) + i * stride < size

    return active


def _load(plan, traits):
    count, stride, size = traits.elements_per_thread, traits.stride, plan.size
    alone, zero = _alone(plan, traits), plan.value_type(0)

    def load(row, registers):
        lane = 0 if alone else cuda.threadIdx.x & _LANE
        if row.shape[0] >= size and count * stride == size:
            for i in range(count):
                registers[i] = row[lane + i * stride]
        else:
            # A padded plan, or a row shorter than the transform, which is read as if zeros followed it.
            end = min(row.shape[0], size)
            for i in range(count):
                k = lane + i * stride
                registers[i] = row[k] if k < end else zero

    return load


def _load_whole(plan, traits):
    from ..targets.cuda_memory import read, whole

    count, stride, size = traits.elements_per_thread, traits.stride, plan.size
    alone, zero = _alone(plan, traits), plan.value_type(0)

    def load(row, registers):
        lane = 0 if alone else cuda.threadIdx.x & _LANE
        if row.shape[0] >= size and count * stride == size and whole(row):
            for i in range(count):
                registers[i] = read(row, lane + i * stride)
        else:
            end = min(row.shape[0], size)
            for i in range(count):
                k = lane + i * stride
                registers[i] = row[k] if k < end else zero

    return load


def _store_whole(plan, traits):
    from ..targets.cuda_memory import whole, write

    count, stride, size = traits.elements_per_thread, traits.stride, plan.size
    alone = _alone(plan, traits)

    def store(registers, row):
        lane = 0 if alone else cuda.threadIdx.x & _LANE
        if row.shape[0] >= size and count * stride == size and whole(row):
            for i in range(count):
                write(row, lane + i * stride, registers[i])
        else:
            end = min(row.shape[0], size)
            for i in range(count):
                k = lane + i * stride
                if k < end:
                    row[k] = registers[i]

    return store


def _store(plan, traits):
    count, stride, size = traits.elements_per_thread, traits.stride, plan.size
    alone = _alone(plan, traits)

    def store(registers, row):
        lane = 0 if alone else cuda.threadIdx.x & _LANE
        if row.shape[0] >= size and count * stride == size:
            for i in range(count):
                row[lane + i * stride] = registers[i]
        else:
            end = min(row.shape[0], size)
            for i in range(count):
                k = lane + i * stride
                if k < end:
                    row[k] = registers[i]

    return store


def _execute(plan, traits):
    size = plan.size
    forward = plan.direction == "forward"
    transform: Callable = np.fft.fft if forward else np.fft.ifft
    unscaled = "backward" if forward else "forward"  # NumPy's names for the direction that is not scaled
    if plan.execution == "thread":

        def execute(registers):
            registers[:size] = transform(registers[:size], size, -1, unscaled)

        return execute

    def execute(registers, scratch):
        registers[:size] = transform(registers[:size], size, -1, unscaled)

    return execute


def _execute_in_place(plan, traits):
    from . import cpu

    return cpu.execute(plan)


def _code(plan, traits):
    return plan.source(traits)


def _value_type(plan):
    return plan.element_type()


_REGISTERS = Arg("registers", "registers", "this thread's elements: `registers()`, or a local array of `storage_size` elements of `value_type`")
_SCRATCH = Arg("scratch", "shared", "the block's shared memory: `scratch()`, or any shared array of `shared_memory_size` bytes")

_ACCESS = (
    DeviceFunction(
        "registers",
        (),
        "This thread's elements: a new thread-local array of `storage_size` elements of `value_type`, not initialised.",
        returns=Array("local", _value_type, lambda traits: traits.storage_size),
    ),
    DeviceFunction(
        "batch",
        (),
        "Which transform this thread works on, an integer from 0; at or past the batch for the last block's spare threads, "
        "which must not load or store but must call `execute`.",
        returns=Values(nbt.int64),
        meaning=_batch,
    ),
    DeviceFunction(
        "index",
        (Arg("i", "int", "number of an element of this thread, 0 <= i < elements_per_thread"),),
        "Which element of the transform the thread's element `i` is. Where the threads have room for more elements than the transform has "
        "(`elements_per_thread * stride > size`), spare elements have the index of the last one: safe to read by, not to write by; ask `active(i)`.",
        returns=Values(nbt.int64),
        meaning=_index,
    ),
    DeviceFunction(
        "active",
        (Arg("i", "int", "number of an element of this thread"),),
        "Whether the thread's element `i` is an element of the transform. Always true where `elements_per_thread * stride == size`.",
        returns=Values(nbt.boolean),
        meaning=_active,
    ),
    DeviceFunction(
        "load",
        (
            Arg("row", "row", "the transform's input, a 1-D array of `value_type` (any stride); elements past its end are read as zero"),
            _REGISTERS,
        ),
        "Read this thread's elements of a transform from an array.",
        meaning=_load,
        fast_gpu=_load_whole,
    ),
    DeviceFunction(
        "store",
        (
            _REGISTERS,
            Arg("row", "row", "the transform's output, a 1-D array of `value_type` (any stride); nothing is written past its end"),
        ),
        "Write this thread's elements of a transform to an array.",
        meaning=_store,
        fast_gpu=_store_whole,
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
        "Transform in place, unnormalised in both directions (inverse after forward gives `size` times the input). All threads of the block must "
        "call it. Source: cuFFTDx, block execution with register input.",
        meaning=_execute,
        fast_cpu=_execute_in_place,
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
        code=_code,
    ),
)

BLOCK = {fn.name: fn for fn in (*_ACCESS, *_BLOCK_ONLY)}
THREAD = {fn.name: fn for fn in (*_ACCESS, *_THREAD_ONLY)}
