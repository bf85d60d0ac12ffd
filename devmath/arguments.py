"""Kernel arguments: on which side an array lives, its numba type, and the words that a GPU kernel takes for it."""

from __future__ import annotations

import enum
import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types as nbt
from numba.core.errors import NumbaError
from numba.np.numpy_support import from_dtype

from .errors import ArgumentError

HOST, DEVICE, SCALAR = "host", "device", "scalar"


class Argument(NamedTuple):
    """One argument, looked at.

    ``words`` are what numba-cuda's calling convention takes for it, each in a slot of its own of format ``formats``; ``stream`` is the
    stream its producer says it is being written on.
    """

    side: str
    type: nbt.Type
    words: tuple
    stream: int | None = None


def _element(dtype: np.dtype) -> nbt.Type:
    """numba type of an array's elements."""
    try:
        ty = from_dtype(dtype)
    except (NumbaError, NotImplementedError):
        ty = nbt.pyobject
    if ty == nbt.pyobject:
        raise ArgumentError(f"an array of dtype {dtype} cannot be used in a kernel")
    return ty


@functools.lru_cache(maxsize=4096)
def _array(dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None, readonly: bool) -> tuple[nbt.Type, tuple]:
    """numba type and trailing words of a device array (strides in bytes, ``None`` for C order)."""
    dt = np.dtype(dtype)
    contiguous = [dt.itemsize]
    for n in reversed(shape[1:]):
        contiguous.insert(0, contiguous[0] * n)
    c_strides = tuple(contiguous) if shape else ()
    strides = c_strides if strides is None else tuple(strides)
    many = [(s, n) for s, n in zip(strides, shape, strict=True) if n != 1]
    empty = 0 in shape
    f_strides, step = [], dt.itemsize
    for n in shape:
        f_strides.append(step)
        step *= n
    if empty or many == [(s, n) for s, n in zip(c_strides, shape, strict=True) if n != 1]:
        layout = "C"
    elif many == [(s, n) for s, n in zip(f_strides, shape, strict=True) if n != 1]:
        layout = "F"
    else:
        layout = "A"
    ty = nbt.Array(_element(dt), len(shape), layout, readonly=readonly)
    return ty, (math.prod(shape), dt.itemsize, shape, strides)


def device_array(
    pointer: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None, readonly: bool = False, stream: int | None = None
) -> Argument:
    """The argument for an array in device memory."""
    ty, (items, itemsize, extents, steps) = _array(dtype, shape, strides, readonly)
    return Argument(DEVICE, ty, (0, 0, items, itemsize, pointer, *extents, *steps), stream)


def _from_interface(value: Any) -> Argument:
    info = value.__cuda_array_interface__
    pointer, readonly = info["data"]
    if info.get("mask") is not None:
        raise ArgumentError("masked arrays are not supported in kernels")
    strides = info.get("strides")
    return device_array(
        pointer or 0,
        np.dtype(info["typestr"]),
        tuple(info["shape"]),
        None if strides is None else tuple(strides),
        bool(readonly),
        info.get("stream"),
    )


def _from_numba(value: Any) -> Argument:
    return device_array(value.device_ctypes_pointer.value or 0, value.dtype, value.shape, value.strides)


def _from_torch(value: Any) -> Argument | None:
    if not value.is_cuda:
        return None
    import torch

    if value.requires_grad and torch.is_grad_enabled():
        raise ArgumentError("a PyTorch tensor that requires grad is handed to a kernel: pass tensor.detach(), or work under torch.no_grad()")
    if value.is_conj() or value.is_neg():
        raise ArgumentError("a lazily conjugated PyTorch tensor is handed to a kernel: pass tensor.resolve_conj().resolve_neg()")
    itemsize = value.element_size()
    name = str(value.dtype).removeprefix("torch.")
    strides = tuple(s * itemsize for s in value.stride())
    return device_array(value.data_ptr(), np.dtype(name), tuple(value.shape), strides, stream=torch.cuda.current_stream(value.device).cuda_stream)


def _from_dlpack(value: Any) -> Argument | None:
    from cuda.core.utils import StridedMemoryView

    view = (
        StridedMemoryView.from_dlpack(value, stream_ptr=-1) if hasattr(StridedMemoryView, "from_dlpack") else StridedMemoryView(value, stream_ptr=-1)
    )
    if not view.is_device_accessible:
        return None
    dtype = np.dtype(view.dtype)
    strides = None if view.strides is None else tuple(s * dtype.itemsize for s in view.strides)
    return device_array(view.ptr, dtype, tuple(view.shape), strides, bool(view.readonly))


def _scalar(value: Any) -> Argument:
    if isinstance(value, bool | np.bool_):
        return Argument(SCALAR, nbt.boolean, (bool(value),))
    if isinstance(value, np.generic):
        try:
            dtype: Any = value.dtype
            ty = from_dtype(dtype)
        except (NumbaError, NotImplementedError):
            raise ArgumentError(f"a number of dtype {value.dtype} cannot be used in a kernel") from None
        return Argument(SCALAR, ty, (value.real.item(), value.imag.item()) if isinstance(ty, nbt.Complex) else (value.item(),))
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return Argument(SCALAR, nbt.int64, (value,))
        if 0 <= value < 2**64:
            return Argument(SCALAR, nbt.uint64, (value,))
        raise ArgumentError(f"the integer {value} does not fit into 64 bits")
    if isinstance(value, float):
        return Argument(SCALAR, nbt.float64, (value,))
    if isinstance(value, complex):
        return Argument(SCALAR, nbt.complex128, (value.real, value.imag))
    raise TypeError


def _general(value: Any) -> Argument | None:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError("masked arrays are not supported in kernels")
    if isinstance(value, np.ndarray):
        return _host(value)
    # Strings are no numbers, and the compilers give enums and named tuples types of their own.
    if isinstance(value, enum.Enum | np.flexible):
        return None
    if isinstance(value, bool | int | float | complex | np.generic):
        return _scalar(value)
    if type(value) is tuple:
        items = [look_at(v) for v in value]
        if any(i is None or i.side != SCALAR for i in items):
            return None
        types = tuple(i.type for i in items)  # type: ignore[union-attr]
        words = tuple(w for i in items for w in i.words)  # type: ignore[union-attr]
        return Argument(SCALAR, nbt.UniTuple(types[0], len(types)) if len(set(types)) == 1 else nbt.Tuple(types), words)
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        kind, _ = value.__dlpack_device__()
        if int(kind) == 1:
            return None
        return _from_dlpack(value)
    return None


@functools.lru_cache(maxsize=1024)
def _host_type(dtype: Any, ndim: int, layout: str, readonly: bool) -> nbt.Type:
    return nbt.Array(_element(dtype), ndim, layout, readonly=readonly)


def _host(value: np.ndarray) -> Argument:
    flags = value.flags
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return Argument(HOST, _host_type(value.dtype, value.ndim, layout, not flags.writeable), ())


#: How to look at arguments, by their class; classes are added as they are met.
_LOOK: dict[type, Callable[[Any], Argument | None]] = {np.ndarray: _host}


def look_at(value: Any) -> Argument | None:
    """Look at an argument; ``None`` if it is neither an array nor a number."""
    look = _LOOK.get(type(value))
    if look is None:
        look = _LOOK[type(value)] = _learn(type(value))
    return look(value)


def _learn(cls: type) -> Callable[[Any], Argument | None]:
    module = cls.__module__.partition(".")[0]
    if module == "torch" and hasattr(cls, "is_cuda"):
        return _from_torch
    if cls.__name__ == "DeviceNDArray" and cls.__module__.startswith(("numba.cuda", "numba_cuda")):
        return _from_numba
    return _general


_FORMATS: dict[nbt.Type, str] = {
    nbt.boolean: "?7x",
    nbt.int8: "b7x", nbt.int16: "h6x", nbt.int32: "i4x", nbt.int64: "q",
    nbt.uint8: "B7x", nbt.uint16: "H6x", nbt.uint32: "I4x", nbt.uint64: "Q",
    nbt.float16: "e6x", nbt.float32: "f4x", nbt.float64: "d",
    nbt.complex64: "f4xf4x", nbt.complex128: "dd",
}  # fmt: skip


def slots(ty: nbt.Type) -> str:
    """Format of the 8-byte slots that an argument of this type fills."""
    if isinstance(ty, nbt.Array):
        return "QQqqQ" + "q" * (2 * ty.ndim)
    if isinstance(ty, nbt.BaseTuple):
        return "".join(slots(t) for t in ty)
    if ty not in _FORMATS:
        raise ArgumentError(f"a GPU kernel cannot take an argument of type {ty}")
    return _FORMATS[ty]


def packer(types: tuple[nbt.Type, ...]) -> struct.Struct:
    """Packs the words of all arguments into their slots."""
    return struct.Struct("=" + "".join(slots(t) for t in types))
