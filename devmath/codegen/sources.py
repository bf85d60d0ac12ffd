"""Where the LTO-IR of a device function comes from, and building it: from libmathdx, or from a CUDA C++ shim under ``lto/``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import cache
from ..arch import Arch
from . import mathdx, nvrtc


@dataclass(frozen=True)
class MathdxSource:
    """A device function that libmathdx generates from a descriptor."""

    library: str
    operators: tuple[tuple[int, int | tuple[int, ...]], ...]
    symbol: str


@dataclass(frozen=True)
class ShimSource:
    """A device function of a CUDA C++ file under ``lto/``; *defines* are its ``-D`` options, *headers* the texts of what it includes."""

    file: str
    symbol: str
    defines: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


Source = MathdxSource | ShimSource


class Blob(NamedTuple):
    """A piece of LTO-IR for the linker; ``isa`` is its version, (13, 5)."""

    name: str
    ltoir: bytes
    isa: tuple[int, int]


def ltoir(sources: Sequence[Source], arch: Arch) -> list[Blob]:
    """The LTO-IR that holds all *sources* for *arch*, from the cache or built now.

    All functions of one libmathdx library are generated in one go and all of one shim compiled in one go: that costs far less than one by
    one.
    """
    blobs = []
    libraries = sorted({s.library for s in sources if isinstance(s, MathdxSource)})
    for library in libraries:
        # Two functions of one descriptor (or the same function twice) are one descriptor here.
        wanted = sorted({s.operators for s in sources if isinstance(s, MathdxSource) and s.library == library}, key=repr)
        groups = [wanted] if mathdx.combines(library) else [[w] for w in wanted]
        blobs += [_mathdx(library, tuple(group), arch) for group in groups]
    for file, defines, headers in sorted({(s.file, s.defines, s.headers) for s in sources if isinstance(s, ShimSource)}):
        blobs.append(_shim(file, defines, headers, arch))
    return blobs


def _mathdx(library: str, operators: tuple[tuple, ...], arch: Arch) -> Blob:
    def build() -> tuple[bytes, dict]:
        code = mathdx.finalize([mathdx.Descriptor(library, ops) for ops in operators], arch)
        return code.ltoir, {"isa": code.isa}

    key = cache.digest("mathdx", library, operators, arch.name, mathdx.version(), nvrtc.version())
    entry = cache.once("ltoir", key, build)
    isa = entry.meta["isa"]
    return Blob(f"{library}_{key[:12]}", entry.payload, (isa // 1000, isa % 1000 // 10))


def _shim(file: str, defines: tuple[tuple[str, str], ...], headers: tuple[tuple[str, str], ...], arch: Arch) -> Blob:
    text = nvrtc.shim_text(file)
    key = cache.digest("shim", file, text, defines, headers, arch.name, nvrtc.version())
    entry = cache.once("ltoir", key, lambda: (nvrtc.compile_ltoir(text, file, defines, headers, arch), {}))
    return Blob(f"{file}_{key[:12]}", entry.payload, nvrtc.version())
