"""Compute capabilities and their limits; the current device, or one that is asked for."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from .errors import ArchError, CodegenError

#: Largest dynamic shared memory of one block in bytes, after the opt-in
#: (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
_SHARED_LIMIT = {
    (7, 5): 65_536,
    (8, 0): 166_912,
    (8, 6): 101_376,
    (8, 7): 166_912,
    (8, 9): 101_376,
    (9, 0): 232_448,
    (10, 0): 232_448,
    (10, 3): 232_448,
    (11, 0): 232_448,
    (12, 0): 101_376,
    (12, 1): 101_376,
}
#: What a block may have without asking the driver for more.
DEFAULT_SHARED_LIMIT = 49_152
MAX_THREADS_PER_BLOCK = 1024
REGISTERS_PER_BLOCK = 65_536


class Arch(NamedTuple):
    """A compute capability and the feature suffix of its code (``"a"`` arch-specific, ``"f"`` family, ``""`` generic)."""

    major: int
    minor: int
    suffix: str = ""

    @property
    def name(self) -> str:
        """``sm_90a`` and the like, as compilers spell it."""
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def cc(self) -> tuple[int, int]:
        """The compute capability as (major, minor)."""
        return (self.major, self.minor)

    @property
    def number(self) -> int:
        """900 for 9.0, as libmathdx spells it."""
        return self.major * 100 + self.minor * 10

    @property
    def shared_limit(self) -> int:
        """Most dynamic shared memory a block may ask for, bytes."""
        return _SHARED_LIMIT[self.cc]

    def runs_on(self, device: Arch) -> bool:
        """Whether a cubin of this architecture runs on *device*."""
        if self.suffix == "a":
            return self.cc == device.cc
        return self.major == device.major and self.minor <= device.minor

    def __str__(self) -> str:
        return self.name


def supported() -> list[str]:
    """The names of the architectures that devmath knows."""
    return [Arch(*cc).name for cc in sorted(_SHARED_LIMIT)]


def parse(value: object) -> Arch:
    """An :class:`Arch` from ``"sm_90a"``, ``"sm_80"``, ``"9.0"``, ``90``, ``(9, 0)`` or an ``Arch``.

    Raises :class:`ArchError` (a ``ValueError``) that lists the known ones for anything else.
    """
    unknown = ArchError(
        f"arch must be one of {', '.join(map(repr, supported()))}, or one of those with a feature suffix such as 'sm_90a', got {value!r}"
    )
    if isinstance(value, Arch):
        arch = value
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 10:
        arch = Arch(value // 10, value % 10)
    elif isinstance(value, str):
        m = re.fullmatch(r"(?:sm_?|compute_)?(\d+)\.?(\d)([af]?)", value.strip().lower())
        if m is None:
            raise unknown
        arch = Arch(int(m[1]), int(m[2]), m[3])
    elif isinstance(value, tuple) and 2 <= len(value) <= 3 and all(isinstance(v, int) for v in value[:2]):
        arch = Arch(*value)
    else:
        raise unknown
    if arch.cc not in _SHARED_LIMIT:
        raise unknown
    if arch.suffix not in ("", "a", "f"):
        raise unknown
    if arch.suffix and arch.major < 9:
        raise ArchError(f"arch {arch.name} does not exist: feature suffixes begin with sm_90a; use {Arch(*arch.cc).name}")
    return arch


def native(cc: tuple[int, int]) -> Arch:
    """The architecture to compile for a device of capability *cc*: its own features where it has any."""
    return parse((*cc, "a" if cc >= (9, 0) else ""))


@functools.cache
def _driver():
    from cuda.bindings import driver

    (status,) = driver.cuInit(0)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CodegenError(f"the CUDA driver does not start: {status.name}")
    return driver


@functools.cache
def device_count() -> int:
    """Number of CUDA devices; 0 without a driver or without the device packages."""
    try:
        driver = _driver()
        status, n = driver.cuDeviceGetCount()
        return int(n) if status == driver.CUresult.CUDA_SUCCESS else 0
    except Exception:
        return 0


def of_device(ordinal: int) -> Arch:
    """Architecture of device number *ordinal*."""
    return _of_device(int(ordinal))


@functools.cache
def _of_device(ordinal: int) -> Arch:
    driver = _driver()
    attr = driver.CUdevice_attribute
    major = driver.cuDeviceGetAttribute(attr.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal)[1]
    minor = driver.cuDeviceGetAttribute(attr.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal)[1]
    return native((int(major), int(minor)))


def current() -> Arch | None:
    """Architecture of the current device (the first one where no context is current), ``None`` without a GPU."""
    if device_count() == 0:
        return None
    driver = _driver()
    status, context = driver.cuCtxGetCurrent()
    if status != driver.CUresult.CUDA_SUCCESS or not int(context):
        return of_device(0)
    return of_device(int(driver.cuCtxGetDevice()[1]))
