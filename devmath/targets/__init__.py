"""The targets: each turns the records of device functions into compiled code."""

from __future__ import annotations

import functools


@functools.cache
def simulating() -> bool:
    """Whether numba's CUDA simulator stands in for the GPU (``NUMBA_ENABLE_CUDASIM=1``)."""
    from numba.core import config

    return bool(config.ENABLE_CUDASIM)
