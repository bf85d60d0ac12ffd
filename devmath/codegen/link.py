"""nvJitLink: LTO-IR to a cubin. Needs no GPU."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from ..arch import Arch
from ..errors import CodegenError, need_gpu_packages
from . import versions
from .sources import Blob


@functools.cache
def _nvjitlink():
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except (ImportError, RuntimeError) as e:
        raise need_gpu_packages("linking", e) from None
    return nvjitlink


@functools.cache
def version() -> tuple[int, int]:
    """Version of nvJitLink, (13, 5)."""
    return tuple(_nvjitlink().version())


def link(blobs: Sequence[Blob], arch: Arch, *, max_registers: int | None = None, ptx: bool = False) -> bytes:
    """A cubin for *arch* (or PTX text) from pieces of LTO-IR.

    Unused variables are removed: without that an FFT kernel keeps 2.6 MB of cuFFT's tables.
    """
    nvjitlink = _nvjitlink()
    for blob in blobs:
        versions.check_ltoir(blob.name, blob.isa, version())
    options = ["-lto", f"-arch={arch.name}", "-O3", "-optimize-unused-variables"]
    if max_registers:
        options.append(f"-maxrregcount={max_registers}")
    if ptx:
        options.append("-ptx")
    handle = nvjitlink.create(len(options), options)
    try:
        for blob in blobs:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, blob.ltoir, len(blob.ltoir), blob.name)
        nvjitlink.complete(handle)
        size, fetch = (
            (nvjitlink.get_linked_ptx_size, nvjitlink.get_linked_ptx) if ptx else (nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin)
        )
        out = bytearray(size(handle))
        fetch(handle, out)
        return bytes(out)
    except nvjitlink.nvJitLinkError as e:
        log = bytearray(max(nvjitlink.get_error_log_size(handle), 1))
        nvjitlink.get_error_log(handle, log)
        raise CodegenError(f"nvJitLink for {arch}: {e}: {log.decode(errors='replace').strip(chr(0) + chr(10))}") from None
    finally:
        nvjitlink.destroy(handle)


def entry_name(cubin: bytes) -> str:
    """Name of the one kernel in a cubin."""
    names = sorted(set(re.findall(rb"\.nv\.info\.([\w$.]+)\0", cubin)))
    if len(names) != 1:
        raise CodegenError(f"expected one kernel in the linked code, found {len(names)}")
    return names[0].decode()
