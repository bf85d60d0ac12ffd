"""libmathdx through its C API: descriptors in, traits and LTO-IR out. Needs no GPU.

Source: the headers ``libcommondx.h`` and ``libcufftdx.h`` that the wheel ``nvidia-libmathdx-cu13`` ships; the
integer codes below are theirs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..arch import Arch
from ..errors import CodegenError, need_gpu_packages
from .versions import check_libmathdx

_I64 = ctypes.c_longlong
_SIZE = ctypes.c_size_t

_OPTION_TARGET_SM = 1
_OPTION_CODE_ISA = 3
_ARCH_MODIFIER = {"": 0, "a": 1, "f": 2}

#: libmathdx keeps its last error per thread and NVRTC serialises anyway.
_LOCK = threading.RLock()


def find_library() -> Path | None:
    """Path of libmathdx in the installed wheels, or ``None``."""
    override = os.environ.get("DEVMATH_LIBMATHDX")
    if override:
        return Path(override)
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in ("cu13", "cu12", "mathdx"):
            path = Path(root) / folder / "lib" / "libmathdx.so.0"
            if path.exists():
                return path
    return None


@functools.cache
def _library() -> ctypes.CDLL:
    path = find_library()
    if path is None:
        raise need_gpu_packages("code generation")
    try:
        from cuda import pathfinder

        pathfinder.load_nvidia_dynamic_lib("nvrtc")  # libmathdx expects it to be loaded already
    except ImportError as e:
        raise need_gpu_packages("code generation", e) from None
    lib = ctypes.CDLL(str(path))
    check_libmathdx(_version(lib))
    return lib


def _version(lib: ctypes.CDLL) -> tuple[int, int, int]:
    parts = [ctypes.c_int() for _ in range(3)]
    if lib.mathdxGetVersionEx(*map(ctypes.byref, parts)):
        return (0, 0, 0)
    return (parts[0].value, parts[1].value, parts[2].value)


@functools.cache
def version() -> tuple[int, int, int]:
    """Version of libmathdx."""
    return _version(_library())


def _last_error(lib: ctypes.CDLL) -> str:
    n = _SIZE()
    if lib.commondxGetLastErrorStrSize(ctypes.byref(n)) or not n.value:
        return ""
    text, code = ctypes.create_string_buffer(n.value + 1), ctypes.c_int()
    if lib.commondxGetLastErrorStr(ctypes.byref(code), n, text):
        return ""
    return text.value.decode(errors="replace").strip()


def _check(lib: ctypes.CDLL, status: int, what: str) -> None:
    if status == 0:
        return
    lib.commondxStatusToStr.restype = ctypes.c_char_p
    name = (lib.commondxStatusToStr(status) or b"?").decode()
    detail = _last_error(lib)
    raise CodegenError(f"libmathdx: {what}: {name}" + (f": {detail}" if detail else ""))


class Descriptor:
    """One libmathdx descriptor of a library (``cufftdx``, ...), destroyed with the object.

    *operators* maps an operator's code to an integer or a tuple of integers.
    """

    def __init__(self, library: str, operators: Iterable[tuple[int, int | tuple[int, ...]]]):
        self._lib, self._prefix, self._handle = _library(), library, _I64()
        with _LOCK:
            self._call("CreateDescriptor", ctypes.byref(self._handle))
            for op, value in operators:
                if isinstance(value, tuple):
                    self._call("SetOperatorInt64s", self._handle, op, _SIZE(len(value)), (_I64 * len(value))(*value))
                else:
                    self._call("SetOperatorInt64", self._handle, op, _I64(value))

    def _call(self, name: str, *args: object) -> None:
        _check(self._lib, getattr(self._lib, self._prefix + name)(*args), f"{self._prefix}{name}")

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle is not None:
            getattr(self._lib, self._prefix + "DestroyDescriptor")(handle)

    def supported(self) -> bool:
        """Whether the library has an implementation for this descriptor."""
        value = ctypes.c_int()
        with _LOCK:
            self._call("IsSupported", self._handle, ctypes.byref(value))
        return bool(value.value)

    def trait(self, code: int) -> int:
        """An integer trait."""
        value = _I64()
        with _LOCK:
            self._call("GetTraitInt64", self._handle, code, ctypes.byref(value))
        return value.value

    def traits(self, code: int, count: int) -> tuple[int, ...]:
        """A trait of *count* integers."""
        values = (_I64 * count)()
        with _LOCK:
            self._call("GetTraitInt64s", self._handle, code, _SIZE(count), values)
        return tuple(values)

    def text(self, code: int) -> str:
        """A string trait, such as a symbol's name."""
        n = _SIZE()
        with _LOCK:
            self._call("GetTraitStrSize", self._handle, code, ctypes.byref(n))
            buffer = ctypes.create_string_buffer(n.value)
            self._call("GetTraitStr", self._handle, code, n, buffer)
        return buffer.value.decode()

    def knobs(self, codes: Sequence[int]) -> list[tuple[int, ...]]:
        """Every valid combination of the given knobs."""
        k = (ctypes.c_int * len(codes))(*codes)
        n = _SIZE()
        with _LOCK:
            self._call("GetKnobInt64Size", self._handle, _SIZE(len(codes)), k, ctypes.byref(n))
            values = (_I64 * n.value)()
            self._call("GetKnobInt64s", self._handle, _SIZE(len(codes)), k, n, values)
        flat = list(values)
        return [tuple(flat[i : i + len(codes)]) for i in range(0, len(flat), len(codes))]


class Code(NamedTuple):
    """LTO-IR of one or more device functions; ``isa`` is the LTO-IR's version, 13050 for 13.5."""

    ltoir: bytes
    isa: int


def combines(library: str) -> bool:
    """Whether this libmathdx generates code for several descriptors at once (0.4 and newer)."""
    return hasattr(_library(), f"{library}FinalizeCodes")


def finalize(descriptors: Sequence[Descriptor], arch: Arch) -> Code:
    """LTO-IR for all *descriptors* (of one library) together: much cheaper than one by one."""
    lib, code = _library(), _I64()
    prefix = descriptors[0]._prefix
    with _LOCK:
        _check(lib, lib.commondxCreateCode(ctypes.byref(code)), "commondxCreateCode")
        try:
            target = (_I64 * 2)(arch.number, _ARCH_MODIFIER[arch.suffix])
            _check(lib, lib.commondxSetCodeOptionInt64s(code, _OPTION_TARGET_SM, _SIZE(2), target), f"target {arch}")
            if len(descriptors) == 1:
                status = getattr(lib, prefix + "FinalizeCode")(code, descriptors[0]._handle)
            else:
                handles = (_I64 * len(descriptors))(*[d._handle.value for d in descriptors])
                status = getattr(lib, prefix + "FinalizeCodes")(code, _SIZE(len(descriptors)), handles)
            _check(lib, status, f"{prefix}FinalizeCode for {arch}")
            n, isa = _SIZE(), _I64()
            _check(lib, lib.commondxGetCodeLTOIRSize(code, ctypes.byref(n)), "commondxGetCodeLTOIRSize")
            buffer = ctypes.create_string_buffer(n.value)
            _check(lib, lib.commondxGetCodeLTOIR(code, n, buffer), "commondxGetCodeLTOIR")
            _check(lib, lib.commondxGetCodeOptionInt64(code, _OPTION_CODE_ISA, ctypes.byref(isa)), "code ISA")
            return Code(buffer.raw, isa.value)
        finally:
            lib.commondxDestroyCode(code)
