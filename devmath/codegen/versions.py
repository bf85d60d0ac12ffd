"""Which versions of the tools are installed, which fit together, and how to mend what does not."""

from __future__ import annotations

import functools
import importlib.metadata as md
import os
import re

from ..errors import VersionError

#: First and first-excluded version of what devmath drives through undocumented or unstable interfaces.
SUPPORTED = {
    "numba-cuda": ((0, 30), (0, 31)),
    "libmathdx": ((0, 3, 1), (0, 5)),
}


def parse(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    return tuple(int(p) for p in re.findall(r"\d+", text.split("+")[0])[:4])


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, ``None`` where it is missing."""
    try:
        return md.version(distribution)
    except md.PackageNotFoundError:
        return None


def libmathdx() -> str:
    """Which libmathdx is in use, without loading it where it is an installed package."""
    if not os.environ.get("DEVMATH_LIBMATHDX"):
        for name in ("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12"):
            if version := installed(name):
                return f"{name} {version}"
    from . import mathdx

    return _dotted(mathdx.version())


def _dotted(v: tuple[int, ...]) -> str:
    return ".".join(map(str, v))


def require(name: str, version: tuple[int, ...]) -> None:
    """Refuse a version outside the supported range, with the command that mends it."""
    low, high = SUPPORTED[name]
    if not low <= version < high:
        raise VersionError(
            f"{name} {_dotted(version)} is not supported: devmath works with {name} >= {_dotted(low)}, < {_dotted(high)}. "
            "Install a fitting set with: pip install -U 'devmath[cu13]'"
        )


def check_libmathdx(version: tuple[int, ...]) -> None:
    """Refuse a libmathdx that devmath does not know."""
    require("libmathdx", version)


@functools.cache
def check_numba_cuda() -> None:
    """Refuse a numba-cuda that devmath does not know."""
    text = installed("numba-cuda")
    if text is not None:
        require("numba-cuda", parse(text))


def check_ltoir(what: str, isa: tuple[int, int], linker: tuple[int, int]) -> None:
    """LTO-IR is read by an nvJitLink of its own version or newer of the same major one; say so before the linker fails."""
    if isa[0] != linker[0] or isa > linker:
        if isa[0] == linker[0]:
            suffix = "-cu12" if isa[0] == 12 else ""
            mend = f"pip install -U 'nvidia-nvjitlink{suffix}>={_dotted(isa)}' (or an older nvidia-cuda-nvrtc{suffix})"
        else:
            mend = f"pip install -U 'devmath[cu{linker[0]}]', which brings NVRTC and libmathdx of the same line"
        raise VersionError(
            f"{what} was generated as LTO-IR {_dotted(isa)}, and nvJitLink is {_dotted(linker)}: it reads its own version and older "
            f"ones of CUDA {linker[0]}. Mend it with: {mend}"
        )


def check_driver(driver: tuple[int, int] | None, tool: tuple[int, int]) -> None:
    """A cubin of a newer major CUDA than the driver's cannot be loaded; minor versions are compatible within one major."""
    if driver is not None and tool[0] > driver[0]:
        raise VersionError(
            f"the driver speaks CUDA {_dotted(driver)}, but NVRTC and nvJitLink are {_dotted(tool)}: update the driver, or install the tools "
            f"of the driver's line with: pip install 'devmath[cu{driver[0]}]'"
        )


#: Everything whose version decides what code comes out.
_TOOLS = (
    "numba", "numba-cuda", "llvmlite", "cuda-bindings", "nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12",
    "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12",
)  # fmt: skip


@functools.cache
def tools() -> tuple[tuple[str, str], ...]:
    """Name and version of every tool that takes part in a compilation, without loading any that is installed as a package."""
    found = [(name, installed(name) or "-") for name in _TOOLS]
    if all(v == "-" for name, v in found if "nvjitlink" in name):
        # From a CUDA toolkit: only the libraries themselves know.
        from . import link, nvrtc

        found += [("nvJitLink", str(link.version())), ("NVRTC", str(nvrtc.version()))]
    return tuple(found)
