"""Loading cubins and launching them, through the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from typing import Any

from numba import types as nbt

from . import arch as _arch
from .arch import Arch
from .arguments import Argument, packer
from .codegen import versions
from .errors import CodegenError, LaunchError, need_gpu_packages
from .launch import Shape


@functools.cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise need_gpu_packages("launching on the GPU", e) from None
    return driver


def _ok(result: tuple, what: str) -> Any:
    status = result[0]
    if status:
        _, name = _driver().cuGetErrorName(status)
        _, text = _driver().cuGetErrorString(status)
        raise CodegenError(f"{what}: {name.decode()}: {text.decode()}")
    return result[1] if len(result) == 2 else result[1:]


def driver_version() -> tuple[int, int] | None:
    """The CUDA version that the driver speaks, ``None`` without a driver."""
    try:
        status, number = _driver().cuDriverGetVersion()
    except Exception:
        return None
    return None if status or not number else (number // 1000, number % 1000 // 10)


def ensure_context() -> int:
    """Make sure that a context is current on this thread (the first device's primary one if none is); the device's number."""
    driver = _driver()
    try:
        status, context = driver.cuCtxGetCurrent()
    except Exception as e:  # cuda-bindings found no driver library; which exception that is depends on its version
        raise CodegenError(f"launching on the GPU needs an NVIDIA driver, and none was found ({type(e).__name__})") from None
    if not status and int(context):
        return int(_ok(driver.cuCtxGetDevice(), "asking for the current device"))
    _ok(driver.cuInit(0), "starting the CUDA driver")
    context = _ok(driver.cuDevicePrimaryCtxRetain(0), "making a CUDA context")
    _ok(driver.cuCtxSetCurrent(context), "making a CUDA context current")
    return 0


def synchronize(stream: int) -> None:
    """Wait for a stream."""
    _ok(_driver().cuStreamSynchronize(stream), "waiting for a stream")


class GpuKernel:
    """A loaded cubin, ready to launch with arguments of one signature."""

    def __init__(self, cubin: bytes, name: str, types: tuple[nbt.Type, ...], arch: Arch, tool: tuple[int, int] | None = None):
        self._device = ensure_context()
        device = _arch.of_device(self._device)
        if not arch.runs_on(device):
            raise LaunchError(f"the kernel was compiled for {arch} and the current device is {device}; compile it for {device}")
        if tool is not None:
            versions.check_driver(driver_version(), tool)
        driver = _driver()
        self.name, self.arch = name, arch
        self._cubin = cubin
        self._library = _ok(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), "loading a kernel")
        self._kernel = _ok(driver.cuLibraryGetKernel(self._library, name.encode()), f"finding kernel {name}")
        self._function = driver.CUfunction(int(self._kernel))
        self._launch = driver.cuLaunchKernel
        self._opted: dict[int, int] = {}
        self._packer = packer(types)
        self._spare: deque[tuple[Any, Any, int]] = deque()

    def attribute(self, name: str) -> int:
        """A function attribute of the driver, such as ``NUM_REGS`` or ``LOCAL_SIZE_BYTES``."""
        driver = _driver()
        attr = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(_ok(driver.cuKernelGetAttribute(attr, self._kernel, self._device), f"asking for {name}"))

    def _opt_in(self, bytes_: int, device: int) -> None:
        if bytes_ > _arch.DEFAULT_SHARED_LIMIT and self._opted.get(device, 0) < bytes_:
            driver = _driver()
            attr = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _ok(driver.cuKernelSetAttribute(attr, bytes_, self._kernel, device), f"asking for {bytes_} bytes of shared memory")
            self._opted[device] = bytes_

    def _buffers(self) -> tuple[Any, Any, int]:
        try:
            return self._spare.pop()
        except IndexError:
            buffer = ctypes.create_string_buffer(max(self._packer.size, 8))
            base = ctypes.addressof(buffer)
            count = self._packer.size // 8
            table = (ctypes.c_void_p * max(count, 1))(*(base + 8 * i for i in range(count)))
            return buffer, table, ctypes.addressof(table)

    def launch(self, shape: Shape, args: list[Argument], stream: int | None) -> None:
        """Enqueue one launch on *stream*; by default on the stream that the arrays are being written on."""
        if shape.grid.x == 0:
            return
        words: list[Any] = []
        for a in args:
            words += a.words
            s = a.stream
            if s is not None and s != stream:
                if stream is None:
                    stream = s
                elif (s, stream) not in ((1, 0), (0, 1)):  # two names of the default stream
                    synchronize(s)
        if shape.shared_memory > _arch.DEFAULT_SHARED_LIMIT:
            self._opt_in(shape.shared_memory, ensure_context())
        buffers = self._buffers()
        self._packer.pack_into(buffers[0], 0, *words)
        (gx, gy, gz), (bx, by, bz) = shape.grid, shape.block
        (status,) = self._launch(self._function, gx, gy, gz, bx, by, bz, shape.shared_memory, stream or 0, buffers[2], 0)
        self._spare.append(buffers)
        if status:
            self._failed(status, shape, args, stream)

    def _failed(self, status: Any, shape: Shape, args: list[Argument], stream: int | None) -> None:
        driver = _driver()
        if status == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
            ensure_context()  # this thread had none yet
            self.launch(shape, args, stream)
            return
        _ok(
            (status, None),
            f"launching {self.name} with grid {tuple(shape.grid)}, block {tuple(shape.block)}, {shape.shared_memory} bytes of shared memory",
        )


def tool_versions() -> tuple[int, int] | None:
    """Version of nvJitLink where it can be told without loading it, for the check against the driver."""
    text = versions.installed("nvidia-nvjitlink") or versions.installed("nvidia-nvjitlink-cu12")
    return versions.parse(text)[:2] if text else None  # type: ignore[return-value]
