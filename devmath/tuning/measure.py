"""Timing on the GPU: what a device can be asked, and how candidates are compared on it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .. import arch as _arch
from ..arch import Arch
from ..errors import TuningError

_WARM = 300.0  # milliseconds of load before anything is timed: clocks rise under it
_SAMPLE = 0.5  # milliseconds between two events at least, as far as _MOST_LAUNCHES goes
_MOST_LAUNCHES = 50
_FIRST_ROUNDS, _ROUNDS = 3, 9
_CLOSE = 1.15  # candidates within this factor of the fastest are measured longer


class Device(Protocol):
    """What tuning asks of a GPU. :class:`Gpu` is the one there is; tests have others."""

    arch: Arch
    name: str  # such as "NVIDIA H200"
    driver: str  # its CUDA version

    def put(self, host: np.ndarray) -> Any:
        """A copy of an array in the device's memory."""

    def get(self, array: Any) -> np.ndarray:
        """A copy of an array of the device in host memory."""

    def set(self, array: Any, host: np.ndarray) -> None:
        """Write an array of the device; same shape and dtype."""

    def synchronize(self) -> None:
        """Wait for all that was launched; what went wrong is raised here."""

    def milliseconds(self, launch: Callable[[], Any], launches: int) -> float:
        """The time of one launch, from *launches* of them between two events."""


class Gpu:
    """The current CUDA device, through numba-cuda."""

    def __init__(self) -> None:
        from .. import device

        if _arch.device_count() == 0:
            raise TuningError("measuring needs a CUDA device, and none was found")
        try:
            from numba import cuda
        except ImportError as e:  # pragma: no cover - a device was found through the same packages
            raise TuningError(f"measuring needs numba-cuda ({e})") from None
        ordinal = device.ensure_context()
        self._cuda = cuda
        self.arch = _arch.of_device(ordinal)
        driver = device._driver()
        self.name = driver.cuDeviceGetName(128, ordinal)[1].split(b"\0")[0].decode()
        version = device.driver_version()
        self.driver = "CUDA " + ".".join(map(str, version)) if version else "unknown"

    def put(self, host: np.ndarray) -> Any:
        return self._cuda.to_device(host)

    def _view(self, array: Any) -> Any:
        if hasattr(array, "copy_to_host"):
            return array
        if not hasattr(array, "__cuda_array_interface__"):
            raise TuningError(f"arrays of a pattern have a __cuda_array_interface__ (CuPy, PyTorch, numba), got a {type(array).__name__}")
        return self._cuda.as_cuda_array(array)

    def get(self, array: Any) -> np.ndarray:
        return self._view(array).copy_to_host()

    def set(self, array: Any, host: np.ndarray) -> None:
        self._view(array).copy_to_device(host)

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def milliseconds(self, launch: Callable[[], Any], launches: int) -> float:
        start, stop = self._cuda.event(), self._cuda.event()
        start.record()
        for _ in range(launches):
            launch()
        stop.record()
        stop.synchronize()
        return self._cuda.event_elapsed_time(start, stop) / launches


def compare(device: Device, launches: Sequence[Callable[[], Any]]) -> list[float]:
    """Milliseconds of each launch, the first of which is what the others are compared with: medians over rounds in which each has its turn, so
    that a change of clocks meets all of them. Those far behind the fastest drop out after a few rounds."""
    spent = 0.0
    while spent < _WARM:
        spent += max(device.milliseconds(launches[0], _MOST_LAUNCHES), 1e-3) * _MOST_LAUNCHES
    counts = [_count(device.milliseconds(launch, 1)) for launch in launches]
    times: list[list[float]] = [[] for _ in launches]

    def turn(which: Sequence[int]) -> None:
        for i in which:
            times[i].append(device.milliseconds(launches[i], counts[i]))

    everyone = range(len(launches))
    for _ in range(_FIRST_ROUNDS):
        turn(everyone)
    fastest = min(statistics.median(t) for t in times)
    close = [i for i in everyone if i == 0 or statistics.median(times[i]) <= _CLOSE * fastest]
    for _ in range(_ROUNDS - _FIRST_ROUNDS):
        turn(close)
    return [statistics.median(t) for t in times]


def _count(ms: float) -> int:
    return max(4, min(_MOST_LAUNCHES, round(_SAMPLE / max(ms, 1e-6))))
