"""CUDA C++ shims to LTO-IR through NVRTC. Needs no GPU."""

from __future__ import annotations

import functools
from importlib import resources

from ..arch import Arch
from ..errors import CodegenError, need_gpu_packages


@functools.cache
def _nvrtc():
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except ImportError as e:
        raise need_gpu_packages("compiling CUDA C++", e) from None
    return nvrtc


@functools.cache
def version() -> tuple[int, int]:
    """Version of NVRTC, (13, 5)."""
    status, major, minor = _nvrtc().nvrtcVersion()
    if int(status):
        raise CodegenError(f"NVRTC does not answer: {status.name}")
    return (major, minor)


def shim_text(file: str) -> str:
    """Source of a shim that is packaged under ``devmath/lto``."""
    return resources.files("devmath").joinpath("lto", file).read_text(encoding="utf-8")


_Pairs = tuple[tuple[str, str], ...]


def compile_ltoir(text: str, name: str, defines: _Pairs, headers: _Pairs, arch: Arch) -> bytes:
    """LTO-IR of CUDA C++ *text*, which may include *headers* (name, text); a :class:`CodegenError` carries NVRTC's log."""
    nvrtc = _nvrtc()
    options = ["-dlto", f"-arch={arch.name}", "-std=c++17", "-default-device", *(f"-D{k}={v}" for k, v in defines)]

    def check(status, what: str) -> None:
        if int(status):
            raise CodegenError(f"NVRTC: {what} failed for {name}: {status.name}")

    status, program = nvrtc.nvrtcCreateProgram(
        text.encode(), name.encode(), len(headers), [content.encode() for _, content in headers], [file.encode() for file, _ in headers]
    )
    check(status, "creating the program")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        if int(status):
            _, n = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * n
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CodegenError(f"NVRTC refuses {name}: {log.decode(errors='replace').strip(chr(0) + ' ')}")
        status, n = nvrtc.nvrtcGetLTOIRSize(program)
        check(status, "asking for the size of the LTO-IR")
        code = b" " * n
        (status,) = nvrtc.nvrtcGetLTOIR(program, code)
        check(status, "fetching the LTO-IR")
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)
