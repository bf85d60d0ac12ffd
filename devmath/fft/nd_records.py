"""The device functions of an FFTN plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, njit
from numba import types as nbt

from .. import arch as _arch
from ..functions import Arg, DeviceFunction, Part, Values
from ..plan import BoundPlan
from .records import real_of

_LANE = 0x3FF
_INDEX = 0x7FFFFFFF


# -- what the device functions mean ------------------------------------------------------------------------------------------


def _make_first(plan: Any, traits: Any) -> Callable:
    pitch = traits.pitch

    def first():
        return (cuda.threadIdx.y & _LANE) * pitch

    return first


def _make_batch(plan, traits):
    per_block = traits.ffts_per_block

    def batch():
        return (cuda.blockIdx.x & _INDEX) * per_block + (cuda.threadIdx.y & _LANE)

    return batch


def _make_place(shape, turned=False):
    """The place of element number *e*, in C order, or in Fortran order."""
    n0, n1, n2 = shape[0], shape[1], shape[-1]
    if len(shape) == 2 and turned:

        def place(e):
            return e % n0, e // n0

    elif len(shape) == 2:

        def place(e):
            return e // n1, e % n1

    elif turned:

        def place(e):
            rest = e // n0
            return e % n0, rest % n1, rest // n1

    else:

        def place(e):
            rest = e // n2
            return rest // n1, rest % n1, e % n2

    return njit(place)


def _make_inside(shape):
    """Whether a place is one of an array."""
    if len(shape) == 2:

        def inside(place, extents):
            return place[0] < extents[0] and place[1] < extents[1]

    else:

        def inside(place, extents):
            return place[0] < extents[0] and place[1] < extents[1] and place[2] < extents[2]

    return njit(inside)


def _make_index(plan, traits):
    threads, last, place = traits.block_dim.x, math.prod(plan.shape) - 1, _make_place(plan.shape)

    def index(i):
        return place(min((cuda.threadIdx.x & _LANE) + i * threads, last) & _INDEX)

    return index


def _make_active(plan, traits):
    threads, size = traits.block_dim.x, math.prod(plan.shape)

    def active(i):
        return (cuda.threadIdx.x & _LANE) + i * threads < size

    return active


def _make_load(plan, traits):
    """Where one thread has the whole transform, as is the case wherever this is run."""
    n0, n1, n2, zero = plan.shape[0], plan.shape[1], plan.shape[-1], plan.value_type(0)
    if len(plan.shape) == 2:

        def load(x, data):
            for i in range(n0):
                for j in range(n1):
                    data[i, j] = x[i, j] if i < x.shape[0] and j < x.shape[1] else zero

    else:

        def load(x, data):
            for i in range(n0):
                for j in range(n1):
                    for k in range(n2):
                        data[i, j, k] = x[i, j, k] if i < x.shape[0] and j < x.shape[1] and k < x.shape[2] else zero

    return load


def _make_store(plan, traits):
    n0, n1, n2 = plan.shape[0], plan.shape[1], plan.shape[-1]
    if len(plan.shape) == 2:

        def store(data, x):
            for i in range(min(n0, x.shape[0])):
                for j in range(min(n1, x.shape[1])):
                    x[i, j] = data[i, j]

    else:

        def store(data, x):
            for i in range(min(n0, x.shape[0])):
                for j in range(min(n1, x.shape[1])):
                    for k in range(min(n2, x.shape[2])):
                        x[i, j, k] = data[i, j, k]

    return store


def _make_multiply(plan, traits):
    n0, n1, n2, zero = plan.shape[0], plan.shape[1], plan.shape[-1], plan.value_type(0)
    if len(plan.shape) == 2:

        def multiply(factors, data):
            for i in range(n0):
                for j in range(n1):
                    data[i, j] = data[i, j] * factors[i, j] if i < factors.shape[0] and j < factors.shape[1] else zero

    else:

        def multiply(factors, data):
            for i in range(n0):
                for j in range(n1):
                    for k in range(n2):
                        there = i < factors.shape[0] and j < factors.shape[1] and k < factors.shape[2]
                        data[i, j, k] = data[i, j, k] * factors[i, j, k] if there else zero

    return multiply


def _make_execute(plan, traits):
    n0, n1, n2 = plan.shape[0], plan.shape[1], plan.shape[-1]
    forward = plan.direction == "forward"
    transform: Callable = np.fft.fftn if forward else np.fft.ifftn
    unscaled = "backward" if forward else "forward"  # NumPy's names for the direction that is not scaled
    if len(plan.shape) == 2:

        def execute(data):
            data[:n0, :n1] = transform(data[:n0, :n1], None, None, unscaled)

    else:

        def execute(data):
            data[:n0, :n1, :n2] = transform(data[:n0, :n1, :n2], None, None, unscaled)

    return execute


def _make_execute_cpu(plan, traits):
    from . import cpu

    return cpu.execute_axes(plan.shape, plan.direction == "forward")


# -- the same for the threads of a block -------------------------------------------------------------------------------------


class _Share(NamedTuple):
    """Elements of a transform that each thread copies: ``whole`` that all threads have, in batches of ``together``, of ``steps``."""

    size: int
    threads: int
    steps: int
    whole: int
    together: int

    @classmethod
    def of(cls, plan, traits):
        size, threads = math.prod(plan.shape), traits.block_dim.x
        whole = size // threads
        together = next((n for n in (8, 7, 6, 5, 4) if whole % n == 0), min(whole, 8))
        return cls(size, threads, -(-size // threads), whole // together * together, together)


def _make_copies(plan, traits):
    """Functions of an array in memory, one in shared memory and the thread that copy all elements, in C or in Fortran order of the array.

    Elements are on their way together: that many loads before the first store, which the compiler could not be sure not to overwrite one.
    """
    from ..targets.cuda_memory import read, write

    size, threads, steps, whole, together = _Share.of(plan, traits)
    value_type = plan.value_type

    def make(turned):
        place = _make_place(plan.shape, turned)

        @njit
        def copy(source, target, lane):
            some = cuda.local.array(together, value_type)
            for first in range(0, whole, together):
                for j in range(together):
                    some[j] = read(source, place(lane + (first + j) * threads))
                for j in range(together):
                    write(target, place(lane + (first + j) * threads), some[j])
            for i in range(whole, steps):
                e = lane + i * threads
                if e < size:
                    write(target, place(e), read(source, place(e)))

        return copy

    return make(False), make(True)


def _make_covers(shape):
    """Whether an array has all places of a transform."""
    n0, n1, n2 = shape[0], shape[1], shape[-1]
    if len(shape) == 2:

        def covers(extents):
            return extents[0] >= n0 and extents[1] >= n1

    else:

        def covers(extents):
            return extents[0] >= n0 and extents[1] >= n1 and extents[2] >= n2

    return njit(covers)


def _make_load_gpu(plan, traits):
    from ..targets.cuda_memory import whole

    copy, copy_turned = _make_copies(plan, traits)
    size, threads, steps, *_ = _Share.of(plan, traits)
    place, inside, covers, zero = _make_place(plan.shape), _make_inside(plan.shape), _make_covers(plan.shape), plan.value_type(0)

    def load(x, data):
        lane = cuda.threadIdx.x & _LANE
        if covers(x.shape) and whole(x) and whole(data):
            if abs(x.strides[0]) < abs(x.strides[-1]):
                copy_turned(x, data, lane)
            else:
                copy(x, data, lane)
        else:
            for i in range(steps):
                e = lane + i * threads
                if e < size:
                    p = place(e)
                    data[p] = x[p] if inside(p, x.shape) else zero

    return load


def _make_store_gpu(plan, traits):
    from ..targets.cuda_memory import whole

    copy, copy_turned = _make_copies(plan, traits)
    size, threads, steps, *_ = _Share.of(plan, traits)
    place, inside, covers = _make_place(plan.shape), _make_inside(plan.shape), _make_covers(plan.shape)

    def store(data, x):
        lane = cuda.threadIdx.x & _LANE
        if covers(x.shape) and whole(x) and whole(data):
            if abs(x.strides[0]) < abs(x.strides[-1]):
                copy_turned(data, x, lane)
            else:
                copy(data, x, lane)
        else:
            for i in range(steps):
                e = lane + i * threads
                if e < size:
                    p = place(e)
                    if inside(p, x.shape):
                        x[p] = data[p]

    return store


def _make_multiply_gpu(plan, traits):
    size, threads, steps, *_ = _Share.of(plan, traits)
    place, inside, zero = _make_place(plan.shape), _make_inside(plan.shape), plan.value_type(0)

    def multiply(factors, data):
        lane = cuda.threadIdx.x & _LANE
        for i in range(steps):
            e = lane + i * threads
            if e < size:
                p = place(e)
                data[p] = data[p] * factors[p] if inside(p, factors.shape) else zero

    return multiply


def _make_execute_gpu(plan, traits):
    where, (n0, n1, n2), threads = _arch.parse(traits.arch), (plan.shape[0], plan.shape[1], plan.shape[-1]), traits.block_dim.x
    lines: list[Any] = [BoundPlan(plan.line(axis), where) for axis in range(len(plan.shape))]
    first, second, third = lines[0], lines[1], lines[-1]
    if len(plan.shape) == 2:

        def execute(data):
            lane = cuda.threadIdx.x & _LANE
            cuda.syncthreads()
            if n1 > 1:
                r = second.registers()
                for i in range(lane, n0, threads):
                    second.load(data[i, :], r)
                    second.execute(r)
                    second.store(r, data[i, :])
                cuda.syncthreads()
            if n0 > 1:
                q = first.registers()
                for i in range(lane, n1, threads):
                    first.load(data[:, i], q)
                    first.execute(q)
                    first.store(q, data[:, i])
                cuda.syncthreads()

        return execute

    def execute_3d(data):
        lane = cuda.threadIdx.x & _LANE
        cuda.syncthreads()
        if n2 > 1:
            r = third.registers()
            for i in range(lane, n0 * n1, threads):
                third.load(data[i // n1, i % n1, :], r)
                third.execute(r)
                third.store(r, data[i // n1, i % n1, :])
            cuda.syncthreads()
        if n1 > 1:
            q = second.registers()
            for i in range(lane, n0 * n2, threads):
                second.load(data[i // n2, :, i % n2], q)
                second.execute(q)
                second.store(q, data[i // n2, :, i % n2])
            cuda.syncthreads()
        if n0 > 1:
            p = first.registers()
            for i in range(lane, n1 * n2, threads):
                first.load(data[:, i // n2, i % n2], p)
                first.execute(p)
                first.store(p, data[:, i // n2, i % n2])
            cuda.syncthreads()

    return execute_3d


# -- the records ---------------------------------------------------------------------------------------------------------------


def _ndim(plan):
    return len(plan.shape)


_DATA = Arg("data", "data", "this transform's elements: `data()`, or another shared array of at least the plan's shape", ndim=_ndim)
_FACTORS = Arg(
    "factors",
    "row",
    "an array of the plan's dimensions, complex or real (any strides), in `numpy.fft.fftn`'s order; zero past its ends",
    lambda plan: (plan.element_type(), real_of(plan)),
    _ndim,
)


def _array(side, past):
    return Arg("x", "row", f"the {side}, an array of `value_type` and of the plan's dimensions, with any strides; {past}", ndim=_ndim)


def _table(ndim):
    return {
        fn.name: fn
        for fn in (
            DeviceFunction(
                "data",
                (),
                "This transform's elements: an array of `shape` elements of `value_type` and of `strides` in the block's dynamic shared memory, not "
                "initialised, which all threads of the transform see. All plans of a kernel share that memory.",
                returns=Part(lambda plan: plan.element_type(), _ndim, lambda traits: traits.data_shape, lambda traits: traits.strides, _make_first),
            ),
            DeviceFunction(
                "batch",
                (),
                "Which transform this thread works on, an integer from 0; at or past the batch for the last block's spare threads, "
                "which must not load or store but must call `execute`.",
                returns=Values(nbt.int64),
                meaning=_make_batch,
            ),
            DeviceFunction(
                "index",
                (Arg("i", "int", "number of an element of this thread, from 0, less than `elements_per_thread`"),),
                f"The place of the thread's element `i`, a tuple of {ndim} integers: `data[plan.index(i)]`. Together the threads have each element "
                "once; spare ones have the place of the last: safe to read by, not to write by; ask `active(i)`.",
                returns=Values(nbt.int64, ndim),
                meaning=_make_index,
            ),
            DeviceFunction(
                "active",
                (Arg("i", "int", "number of an element of this thread"),),
                "Whether the thread's element `i` exists.",
                returns=Values(nbt.boolean),
                meaning=_make_active,
            ),
            DeviceFunction(
                "load",
                (_array("input", "elements past its ends are read as zero"), _DATA),
                "Copy the input from an array to shared memory, each thread its share of it. Others see it after `execute` or `cuda.syncthreads()`.",
                meaning=_make_load,
                fast_gpu=_make_load_gpu,
            ),
            DeviceFunction(
                "multiply",
                (_FACTORS, _DATA),
                "Multiply the elements, each thread its share: a filter, between `execute` of the forward and of the inverse plan.",
                meaning=_make_multiply,
                fast_gpu=_make_multiply_gpu,
            ),
            DeviceFunction(
                "execute",
                (_DATA,),
                "Transform in place along all axes, unnormalised in both directions (inverse after forward gives the number of elements times the "
                "input). All threads of the block must call it; it waits for them before and after. Source: cuFFTDx, thread execution, of each line.",
                meaning=_make_execute,
                fast_cpu=_make_execute_cpu,
                fast_gpu=_make_execute_gpu,
                cooperative=True,
            ),
            DeviceFunction(
                "store",
                (_DATA, _array("output", "nothing is written past its ends")),
                "Copy the output from shared memory to an array, each thread its share of it.",
                meaning=_make_store,
                fast_gpu=_make_store_gpu,
            ),
        )
    }


TWO, THREE = _table(2), _table(3)
