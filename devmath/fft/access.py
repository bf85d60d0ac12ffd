"""What the device functions that find, read and write a thread's elements mean.

A side of a plan, input or output, is a row in memory: of complex elements, or of real ones, which registers hold as they lie in memory, two in
each complex element. In folded mode such a pair is one element of the transform, and neighbours; else a thread has every ``stride``-th element.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda

# Positions are masked to their range, which changes nothing but tells the compiler that they are not negative: it can then drop
# Python's wrap-around of negative indices.
_LANE = 0x3FF
_BLOCK = 0x7FFFFFFF


class Side(NamedTuple):
    """One side of a plan on a target, counted in the units that threads take turns with: elements, or pairs of a folded side."""

    real: bool
    pairs: bool
    units: int  # of a thread
    whole: int  # of a thread, those that all threads have
    stride: int
    length: int  # of the row, in units
    alone: bool
    turned: bool  # threadIdx.y is the position in the transform, not threadIdx.x

    @classmethod
    def of(cls, plan: Any, traits: Any, which: str) -> Side:
        """The side ``"input"`` or ``"output"``."""
        real = plan.is_real(which)
        pairs = real and traits.real_mode == "folded"
        each = 2 if pairs else 1
        units, length = traits[f"{which}_elements_per_thread"] // each, traits[f"{which}_length"] // each
        return cls(real, pairs, units, min(units, length // traits.stride), traits.stride, length, alone(plan, traits), turned(plan))


def alone(plan: Any, traits: Any) -> bool:
    """Whether one thread has the whole transform, so that its position does not matter: thread execution, and the CPU target."""
    return plan.execution == "thread" or traits.block_dim == (1, 1, 1)


def turned(plan: Any) -> bool:
    """Whether neighbouring threads work on neighbouring transforms."""
    return plan.execution == "block" and plan.thread_layout == "transposed"


def spectrum(plan: Any) -> str:
    """The side in the frequency domain: the complex one of a real transform, the output of a complex one."""
    return "input" if plan.fft_type == "c2r" else "output"


def make_batch(plan, traits):
    if plan.execution == "thread":

        def batch():
            return (cuda.blockIdx.x & _BLOCK) * (cuda.blockDim.x & 0x7FF) + (cuda.threadIdx.x & _LANE)

        return batch
    per_block, across = traits.ffts_per_block, turned(plan)

    def batch():
        return (cuda.blockIdx.x & _BLOCK) * per_block + ((cuda.threadIdx.x if across else cuda.threadIdx.y) & _LANE)

    return batch


def make_index(plan, traits, which):
    """Unit ``i`` of a thread is unit ``lane + i * stride`` of the row; a thread that works alone has them all."""
    side = Side.of(plan, traits, which)
    stride, last, across = side.stride, side.length - 1, side.turned
    if side.pairs and side.alone:

        def index(i):
            return min(i, 2 * last + 1)

        return index
    if side.pairs:

        def index(i):
            return 2 * min(((cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE) + (i >> 1) * stride, last) + (i & 1)

        return index
    if side.alone:

        def index(i):
            return min(i, last)

        return index
    if side.units == side.whole:

        def index(i):
            return ((cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE) + i * stride

        return index

    def index(i):
        return min(((cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE) + i * stride, last)

    return index


def make_active(plan, traits, which):
    side = Side.of(plan, traits, which)
    stride, length, halve, across = side.stride, side.length, 1 if side.pairs else 0, side.turned
    if side.alone:

        def active(i):
            return i >> halve < length

        return active

    def active(i):
        return ((cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE) + (i >> halve) * stride < length

    return active


def make_as_real(plan, traits):
    real = plan.precision

    def as_real(registers):
        return registers.view(real)

    return as_real


# -- rows to registers ------------------------------------------------------------------------------------------------


def make_load(plan, traits):
    """Elements past the end of a row, or of the transform, are read as zero."""
    side = Side.of(plan, traits, "input")
    units, whole, stride, length, alone_ = side.units, side.whole, side.stride, side.length, side.alone
    across = side.turned
    real, zero, none = plan.precision, plan.value_type(0), plan.precision(0)
    if not side.real:

        def load(row, registers):
            lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
            if row.shape[0] >= length:
                for i in range(whole):
                    registers[i] = row[lane + i * stride]
                for i in range(whole, units):
                    k = lane + i * stride
                    registers[i] = row[k] if k < length else zero
            else:
                for i in range(units):
                    k = lane + i * stride
                    registers[i] = row[k] if k < row.shape[0] else zero

        return load
    if side.pairs:

        def load(row, registers):
            lane, reals = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, registers.view(real)
            end = min(row.shape[0], 2 * length)
            for i in range(units):
                k = 2 * (lane + i * stride)
                reals[2 * i] = row[k] if k < end else none
                reals[2 * i + 1] = row[k + 1] if k + 1 < end else none

        return load

    def load(row, registers):
        lane, reals = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, registers.view(real)
        if row.shape[0] >= length:
            for i in range(whole):
                reals[i] = row[lane + i * stride]
            for i in range(whole, units):
                k = lane + i * stride
                reals[i] = row[k] if k < length else none
        else:
            for i in range(units):
                k = lane + i * stride
                reals[i] = row[k] if k < row.shape[0] else none

    return load


def make_load_gpu(plan, traits):
    """:func:`make_load` with one memory access for a complex element or a pair of real ones, where the row's place in memory allows it."""
    from ..targets.cuda_memory import pairs, read, read_pair, whole

    side = Side.of(plan, traits, "input")
    units, full, stride, length, alone_ = side.units, side.whole, side.stride, side.length, side.alone
    across = side.turned
    real, zero, none = plan.precision, plan.value_type(0), plan.precision(0)
    if side.pairs:

        def load_pairs(row, registers):
            lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
            if row.shape[0] >= 2 * length and pairs(row):
                for i in range(full):
                    registers[i] = read_pair(row, lane + i * stride)
                for i in range(full, units):
                    k = lane + i * stride
                    registers[i] = read_pair(row, k) if k < length else zero
            else:
                reals, end = registers.view(real), min(row.shape[0], 2 * length)
                for i in range(units):
                    k = 2 * (lane + i * stride)
                    reals[2 * i] = row[k] if k < end else none
                    reals[2 * i + 1] = row[k + 1] if k + 1 < end else none

        return load_pairs
    if side.real:
        return make_load(plan, traits)

    def load_(row, registers):
        lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        if row.shape[0] >= length and whole(row):
            for i in range(full):
                registers[i] = read(row, lane + i * stride)
            for i in range(full, units):
                k = lane + i * stride
                registers[i] = read(row, k) if k < length else zero
        else:
            end = min(row.shape[0], length)
            for i in range(units):
                k = lane + i * stride
                registers[i] = row[k] if k < end else zero

    return load_


def make_load_window(plan, traits):
    """Elements past the end of the row or of the window are zero."""
    side = Side.of(plan, traits, "input")
    units, stride, length, alone_, each = side.units, side.stride, side.length, side.alone, 2 if side.pairs else 1
    across = side.turned
    real, zero, none = plan.precision, plan.value_type(0), plan.precision(0)
    if side.real:

        def load_window(row, window, registers):
            lane, reals = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, registers.view(real)
            end = min(row.shape[0], window.shape[0], each * length)
            for i in range(units):
                k = each * (lane + i * stride)
                for j in range(each):
                    reals[each * i + j] = row[k + j] * window[k + j] if k + j < end else none

        return load_window

    def load_window(row, window, registers):
        lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(row.shape[0], window.shape[0], length)
        for i in range(units):
            k = lane + i * stride
            registers[i] = row[k] * window[k] if k < end else zero

    return load_window


# -- registers to rows ------------------------------------------------------------------------------------------------


def make_store(plan, traits):
    """Nothing is written past the end of a row, or of the transform."""
    side = Side.of(plan, traits, "output")
    units, whole, stride, length, alone_ = side.units, side.whole, side.stride, side.length, side.alone
    across = side.turned
    real, each = plan.precision, 2 if side.pairs else 1
    if side.real:

        def store(registers, row):
            lane, reals = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, registers.view(real)
            end = min(row.shape[0], each * length)
            for i in range(units):
                k = each * (lane + i * stride)
                for j in range(each):
                    if k + j < end:
                        row[k + j] = reals[each * i + j]

        return store

    def store(registers, row):
        lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        if row.shape[0] >= length:
            for i in range(whole):
                row[lane + i * stride] = registers[i]
            for i in range(whole, units):
                k = lane + i * stride
                if k < length:
                    row[k] = registers[i]
        else:
            for i in range(units):
                k = lane + i * stride
                if k < row.shape[0]:
                    row[k] = registers[i]

    return store


def make_store_gpu(plan, traits):
    """:func:`make_store` with one memory access for a complex element or a pair of real ones, where the row's place in memory allows it."""
    from ..targets.cuda_memory import pairs, whole, write, write_pair

    side = Side.of(plan, traits, "output")
    units, full, stride, length, alone_ = side.units, side.whole, side.stride, side.length, side.alone
    across = side.turned
    real = plan.precision
    if side.pairs:

        def store(registers, row):
            lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
            if row.shape[0] >= 2 * length and pairs(row):
                for i in range(full):
                    write_pair(row, lane + i * stride, registers[i])
                for i in range(full, units):
                    k = lane + i * stride
                    if k < length:
                        write_pair(row, k, registers[i])
            else:
                reals, end = registers.view(real), min(row.shape[0], 2 * length)
                for i in range(units):
                    k = 2 * (lane + i * stride)
                    for j in range(2):
                        if k + j < end:
                            row[k + j] = reals[2 * i + j]

        return store
    if side.real:

        def store_real(registers, row):
            lane, reals = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE, registers.view(real)
            if row.shape[0] >= length:
                for i in range(full):
                    row[lane + i * stride] = reals[i]
                for i in range(full, units):
                    k = lane + i * stride
                    if k < length:
                        row[k] = reals[i]
            else:
                for i in range(units):
                    k = lane + i * stride
                    if k < row.shape[0]:
                        row[k] = reals[i]

        return store_real

    def store_(registers, row):
        lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        if row.shape[0] >= length and whole(row):
            for i in range(full):
                write(row, lane + i * stride, registers[i])
            for i in range(full, units):
                k = lane + i * stride
                if k < length:
                    write(row, k, registers[i])
        else:
            end = min(row.shape[0], length)
            for i in range(units):
                k = lane + i * stride
                if k < end:
                    row[k] = registers[i]

    return store_


def make_multiply(plan, traits):
    """In packed layout element 0 has the real parts of two elements, which are real themselves: each takes its factor's real part."""
    side = Side.of(plan, traits, spectrum(plan))
    units, stride, length, alone_, packed = side.units, side.stride, side.length, side.alone, plan.complex_layout == "packed"
    across = side.turned
    real, zero = plan.precision, plan.value_type(0)

    def multiply(factors, registers):
        lane = 0 if alone_ else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(factors.shape[0], length)
        if packed and lane == 0:
            reals = registers.view(real)
            first, last = reals[0], reals[1]
        for i in range(units):
            k = lane + i * stride
            registers[i] = registers[i] * factors[k] if k < end else zero
        if packed and lane == 0:
            reals[0] = first * factors[0].real if end > 0 else real(0)
            reals[1] = last * factors[length].real if factors.shape[0] > length else real(0)

    return multiply
