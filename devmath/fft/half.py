"""Device functions of transforms in half precision, two of which a thread works on at once.

cuFFTDx puts the same number of two transforms side by side into a 32-bit word. A thread's array has them so: element ``i`` of transform ``p`` is
``r[4 * i + p]``, ``r[4 * i + 2 + p]``, its real and imaginary part, and real element ``j`` is ``r[2 * j + p]``. Rows in memory have any
strides, so that both usual layouts are theirs: real and imaginary part together (``complex32``), and the two transforms together.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from numba import cuda, njit
from numba import types as nbt

from ..functions import Arg, Array, DeviceFunction, Values
from . import access, records
from .access import Side

_LANE = 0x3FF
_BLOCK = 0x7FFFFFFF


def make_batch(plan, traits):
    """The first of the thread's two transforms."""
    if plan.execution == "thread":

        def batch():
            return 2 * ((cuda.blockIdx.x & _BLOCK) * (cuda.blockDim.x & 0x7FF) + (cuda.threadIdx.x & _LANE))

        return batch
    per_block, across = traits.ffts_per_block, access.turned(plan)

    def batch_in_block():
        return (cuda.blockIdx.x & _BLOCK) * per_block + 2 * ((cuda.threadIdx.x if across else cuda.threadIdx.y) & _LANE)

    return batch_in_block


# -- rows to registers and back ----------------------------------------------------------------------------------------


def make_load(plan, traits):
    """Elements past the end of a row, or of the transform, and those of a second row that is not there, are zero."""
    side = Side.of(plan, traits, "input")
    units, stride, alone, across, each = side.units, side.stride, side.alone, side.turned, 2 if side.pairs else 1
    length = each * side.length
    if side.real:

        def load(rows, registers):
            lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
            end = min(rows.shape[1], length)
            for p in range(2):
                for i in range(units):
                    for j in range(each):
                        k = each * (lane + i * stride) + j
                        registers[2 * (each * i + j) + p] = rows[p, k] if p < rows.shape[0] and k < end else np.float16(0)

        return load

    def load_complex(rows, registers):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(rows.shape[1], length)
        for p in range(2):
            for i in range(units):
                k = lane + i * stride
                for part in range(2):
                    registers[4 * i + 2 * part + p] = rows[p, k, part] if p < rows.shape[0] and k < end else np.float16(0)

    return load_complex


def make_load_window(plan, traits):
    """Products are made in float32 and rounded."""
    side = Side.of(plan, traits, "input")
    units, stride, alone, across, each = side.units, side.stride, side.alone, side.turned, 2 if side.pairs else 1
    length = each * side.length
    if side.real:

        def load_window(rows, window, registers):
            lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
            end = min(rows.shape[1], window.shape[0], length)
            for p in range(2):
                for i in range(units):
                    for j in range(each):
                        k = each * (lane + i * stride) + j
                        registers[2 * (each * i + j) + p] = (
                            np.float16(np.float32(rows[p, k]) * window[k]) if p < rows.shape[0] and k < end else np.float16(0)
                        )

        return load_window

    def load_window_complex(rows, window, registers):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(rows.shape[1], window.shape[0], length)
        for p in range(2):
            for i in range(units):
                k = lane + i * stride
                for part in range(2):
                    registers[4 * i + 2 * part + p] = (
                        np.float16(np.float32(rows[p, k, part]) * window[k]) if p < rows.shape[0] and k < end else np.float16(0)
                    )

    return load_window_complex


def make_store(plan, traits):
    """Nothing is written past the end of a row, of the transform, or to a second row that is not there."""
    side = Side.of(plan, traits, "output")
    units, stride, alone, across, each = side.units, side.stride, side.alone, side.turned, 2 if side.pairs else 1
    length = each * side.length
    if side.real:

        def store(registers, rows):
            lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
            end = min(rows.shape[1], length)
            for p in range(min(rows.shape[0], 2)):
                for i in range(units):
                    for j in range(each):
                        k = each * (lane + i * stride) + j
                        if k < end:
                            rows[p, k] = registers[2 * (each * i + j) + p]

        return store

    def store_complex(registers, rows):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(rows.shape[1], length)
        for p in range(min(rows.shape[0], 2)):
            for i in range(units):
                k = lane + i * stride
                if k < end:
                    for part in range(2):
                        rows[p, k, part] = registers[4 * i + 2 * part + p]

    return store_complex


def make_load_gpu(plan, traits):
    """:func:`make_load` with a 32-bit word for each complex element or pair of real ones, or a 64-bit one for those of both transforms."""
    from ..targets.cuda_memory import half_words, read_both, read_part, read_word, write_words

    side = Side.of(plan, traits, "input")
    if side.real and not side.pairs:
        return make_load(plan, traits)
    units, stride, length, alone, across = side.units, side.stride, side.length, side.alone, side.turned
    paired, shortest = side.pairs, 2 * length if side.pairs else length

    def load_words(rows, registers):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        layout = half_words(rows)
        if layout == 0 or rows.shape[0] < 2 or rows.shape[1] < shortest:
            end = min(rows.shape[1], shortest)
            for p in range(2):
                for i in range(units):
                    k = lane + i * stride
                    for part in range(2):
                        inside = p < rows.shape[0] and (k if not paired else 2 * k + part) < end
                        registers[4 * i + 2 * part + p] = read_part(rows, p, k, part) if inside else np.float16(0)
        elif layout == 1:
            for i in range(units):
                k = lane + i * stride
                inside = k < length
                a = read_word(rows, 0, k) if inside else np.uint32(0)
                b = read_word(rows, 1, k) if inside else np.uint32(0)
                write_words(registers, i, (a & np.uint32(0xFFFF)) | (b << np.uint32(16)), (a >> np.uint32(16)) | (b & np.uint32(0xFFFF0000)))
        else:
            for i in range(units):
                k = lane + i * stride
                if k < length:
                    real, imag = read_both(rows, k)
                    write_words(registers, i, real, imag)
                else:
                    write_words(registers, i, np.uint32(0), np.uint32(0))

    return load_words


def make_store_gpu(plan, traits):
    """:func:`make_store`, likewise."""
    from ..targets.cuda_memory import half_words, read_words, write_both, write_part, write_word

    side = Side.of(plan, traits, "output")
    if side.real and not side.pairs:
        return make_store(plan, traits)
    units, stride, length, alone, across = side.units, side.stride, side.length, side.alone, side.turned
    paired, shortest = side.pairs, 2 * length if side.pairs else length

    def store_words(registers, rows):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        layout = half_words(rows)
        if layout == 0 or rows.shape[0] < 2 or rows.shape[1] < shortest:
            end = min(rows.shape[1], shortest)
            for p in range(min(rows.shape[0], 2)):
                for i in range(units):
                    k = lane + i * stride
                    for part in range(2):
                        if (k if not paired else 2 * k + part) < end:
                            write_part(rows, p, k, part, registers[4 * i + 2 * part + p])
        else:
            for i in range(units):
                k = lane + i * stride
                if k < length:
                    real, imag = read_words(registers, i)
                    if layout == 1:
                        write_word(rows, 0, k, (real & np.uint32(0xFFFF)) | (imag << np.uint32(16)))
                        write_word(rows, 1, k, (real >> np.uint32(16)) | (imag & np.uint32(0xFFFF0000)))
                    else:
                        write_both(rows, k, real, imag)

    return store_words


# -- between them ------------------------------------------------------------------------------------------------------


def make_multiply(plan, traits):
    """As :func:`access.make_multiply`, for both transforms; products are made in float32 and rounded."""
    side = Side.of(plan, traits, access.spectrum(plan))
    units, stride, length, alone, packed = side.units, side.stride, side.length, side.alone, plan.complex_layout == "packed"
    across = side.turned
    none = np.complex64(0)

    def multiply(factors, registers):
        lane = 0 if alone else (cuda.threadIdx.y if across else cuda.threadIdx.x) & _LANE
        end = min(factors.shape[0], length)
        for i in range(units):
            k = lane + i * stride
            factor = factors[k] + none if k < end else none
            a, b = np.float32(factor.real), np.float32(factor.imag)
            if packed and k == 0:
                last = np.float32(factors[length].real) if factors.shape[0] > length else np.float32(0)
                for p in range(2):
                    registers[p] = np.float16(np.float32(registers[p]) * a)
                    registers[2 + p] = np.float16(np.float32(registers[2 + p]) * last)
            else:
                for p in range(2):
                    x, y = np.float32(registers[4 * i + p]), np.float32(registers[4 * i + 2 + p])
                    registers[4 * i + p] = np.float16(x * a - y * b)
                    registers[4 * i + 2 + p] = np.float16(x * b + y * a)

    return multiply


def _make_execute(plan, traits):
    """Both transforms, one after the other, in float32."""
    single = SimpleNamespace(
        size=plan.size, precision=np.float32, fft_type=plan.fft_type, direction=plan.direction, complex_layout=plan.complex_layout
    )
    transform, room, is_thread = njit(records.make_transform(single)), traits.storage_size // 4, plan.execution == "thread"

    def both(registers):
        wide = np.empty(room, np.complex64)
        reals = wide.view(np.float32)
        for p in range(2):
            for j in range(2 * room):
                reals[j] = registers[2 * j + p]
            transform(wide)
            for j in range(2 * room):
                registers[2 * j + p] = np.float16(reals[j])

    if is_thread:
        return both
    inner = njit(both)

    def execute(registers, scratch):
        inner(registers)

    return execute


def _execute_one_point(plan, traits):
    is_real = plan.fft_type == "r2c"

    def alone(registers):
        if is_real:
            registers[2] = np.float16(0)
            registers[3] = np.float16(0)

    if plan.execution == "thread":
        return alone

    def execute(registers, scratch):
        if is_real:
            registers[2] = np.float16(0)
            registers[3] = np.float16(0)

    return execute


# -- the records -------------------------------------------------------------------------------------------------------


def _ndim(side):
    return lambda plan: 2 if plan.is_real(side) else 3


def _rows(side):
    past = {"input": "what lies past their ends, or a second row that is not there, is read as zero", "output": "nothing is written past their ends"}
    text = (
        f"one or two rows of the {side}, an array of float16 (any strides) of shape (2, length) on a real side, (2, length, 2) on a complex one, "
        f"real parts at [..., 0] and imaginary parts at [..., 1]: `x[b : b + 2]`; {past[side]}"
    )

    def form(plan):
        return f"float16 of shape (2, length{'' if plan.is_real(side) else ', 2'}), the rows of two transforms, such as x[b : b + 2]"

    return Arg("rows", "row", text, lambda plan: (nbt.float16,), _ndim(side), form)


_REGISTERS = Arg("registers", "registers", "this thread's elements: `registers()`, or a local array of `storage_size` float16")
_WINDOW = Arg("window", "row", "a 1-D array of float32", lambda plan: (nbt.float32,))
_FACTORS = Arg("factors", "row", records.FACTORS.doc, lambda plan: (nbt.complex64, nbt.float32))

_ACCESS = (
    DeviceFunction(
        "registers",
        (),
        "This thread's elements, of two transforms: a new thread-local array of `storage_size` float16, not initialised. Element `i` of transform "
        "`p`, 0 or 1, has its real part at `4 * i + p` and its imaginary part at `4 * i + 2 + p`; real element `j` is at `2 * j + p`.",
        returns=Array("local", lambda plan: nbt.float16, lambda traits: traits.storage_size),
    ),
    DeviceFunction(
        "batch",
        (),
        "The first of the two transforms that this thread works on, an even integer from 0; at or past the batch for the last block's spare "
        "threads, which must not load or store but must call `execute`.",
        returns=Values(nbt.int64),
        meaning=make_batch,
    ),
    *(records.BLOCK[name] for name in ("index", "active", "input_index", "input_active", "output_index", "output_active")),
    DeviceFunction(
        "load",
        (_rows("input"), _REGISTERS),
        "Read this thread's elements of the input, of two transforms.",
        meaning=make_load,
        fast_gpu=make_load_gpu,
    ),
    DeviceFunction(
        "load_window",
        (_rows("input"), _WINDOW, _REGISTERS),
        "Read this thread's elements of the input, each multiplied in float32 by the window's value at the same place (zero past its end): a scale "
        "of 1 / size in it keeps what adds up from passing 65504, half precision's largest number.",
        meaning=make_load_window,
    ),
    DeviceFunction(
        "multiply",
        (_FACTORS, _REGISTERS),
        "Multiply this thread's elements in the frequency domain, in whichever `complex_layout`, in float32. In packed layout the factors of "
        "elements 0 and `size / 2` are taken to be real.",
        meaning=make_multiply,
    ),
    DeviceFunction(
        "store",
        (_REGISTERS, _rows("output")),
        "Write this thread's elements of the output, of two transforms.",
        meaning=make_store,
        fast_gpu=make_store_gpu,
    ),
)

_DOC = (
    "Transform two at once in place, unnormalised in both directions: sums past 65504 are infinite. On the GPU in half precision throughout, on the "
    "CPU in float32."
)

BLOCK = {
    fn.name: fn
    for fn in (
        *_ACCESS,
        DeviceFunction(
            "scratch",
            (),
            "The block's dynamic shared memory as an array of `value_type`. All plans of a kernel share it.",
            returns=Array("shared", lambda plan: nbt.float16),
            cooperative=True,
        ),
        DeviceFunction(
            "execute",
            (_REGISTERS, records.BLOCK["execute"].args[1]),
            f"{_DOC} All threads of the block must call it. Source: cuFFTDx, block execution with register input.",
            meaning=_make_execute,
            fast_gpu=_execute_one_point,
            code=records.BLOCK["execute"].code,
            cooperative=True,
        ),
    )
}
THREAD = {
    fn.name: fn
    for fn in (
        *_ACCESS,
        DeviceFunction(
            "execute",
            (_REGISTERS,),
            f"{_DOC} Source: cuFFTDx, thread execution.",
            meaning=_make_execute,
            fast_gpu=_execute_one_point,
            code=records.THREAD["execute"].code,
        ),
    )
}
