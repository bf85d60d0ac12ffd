"""What rows share: timing as the baselines do it, and the copy rate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent / "baselines"))
from _common import median_ms, median_seconds, random_rows  # noqa: E402, F401

GIB = 1 << 30


def milliseconds(launch: Callable[[], Any]) -> float:
    """Milliseconds of one launch: the median of nine repetitions of four between events, after 0.3 s of load."""
    import cupy as cp

    return median_ms(launch, cp.cuda.Event, cp.cuda.get_elapsed_time)


def best_block(kernel: Any, plan: Any, batch: int, args: tuple, blocks: tuple[int, ...] = (128, 256, 512)) -> tuple[float, int]:
    """Milliseconds at the best block size, and that size."""

    def at(block: int) -> float:
        launch = kernel[plan.launch(batch, block=block)]
        return milliseconds(lambda: launch(*args))

    return min((at(block), block) for block in blocks)


def copy_rate() -> float:
    """GB/s read and written by CuPy's copy of 1 GiB."""
    import cupy as cp

    x = cp.random.default_rng(1).random(GIB // 4, dtype=np.float32)
    y = cp.empty_like(x)
    ms = milliseconds(lambda: cp.copyto(y, x))
    if not bool((x == y).all()):
        raise RuntimeError("the copy differs from its source")
    return 2e-6 * GIB / ms


def free() -> None:
    """Give the memory of the last row back."""
    import cupy as cp

    cp.get_default_memory_pool().free_all_blocks()


def device_name() -> str | None:
    """The current GPU's name; ``None`` without a GPU that CuPy can use."""
    try:
        import cupy as cp

        return cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except Exception:  # no CuPy, no driver, no device
        return None
