"""Launch configurations: what a user writes in ``kernel[...]``, and what becomes of it for a kernel on a target."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import arch as _arch
from .arch import Arch
from .errors import LaunchError
from .plan import Dim3, Plan, Target

#: Largest grid, CUDA C++ Programming Guide.
_GRID_LIMIT = (2**31 - 1, 65_535, 65_535)
_BLOCK_LIMIT = (1024, 1024, 64)


class PlanLaunch(NamedTuple):
    """*batch* problems of a plan; grid, block and shared memory follow when the target is known."""

    plan: Plan
    batch: int
    block: int | None
    stream: Any

    @classmethod
    def of(cls, plan: Plan, batch: Any, block: Any, stream: Any) -> PlanLaunch:
        """Checked in the user's words."""
        count = _index("batch", batch)
        if count < 0:
            raise LaunchError(f"batch must be at least 0, got {count}")
        threads = None if block is None else _index("block", block)
        if threads is not None and not 1 <= threads <= _arch.MAX_THREADS_PER_BLOCK:
            raise LaunchError(f"block must be 1 to {_arch.MAX_THREADS_PER_BLOCK} threads, got {threads}")
        return cls(plan, count, threads, stream)


class ShapeLaunch(NamedTuple):
    """A grid and a block as they are, with dynamic shared memory in bytes (0: what the kernel's plans need)."""

    grid: Dim3
    block: Dim3
    stream: Any
    shared_memory: int

    @classmethod
    def over(cls, n: Any, block: Any, stream: Any) -> ShapeLaunch:
        """At least *n* threads in one dimension, *block* a block."""
        count, threads = _index("n", n), _dim("block", block, _BLOCK_LIMIT)
        if count < 0:
            raise LaunchError(f"n must be at least 0, got {count}")
        return cls(Dim3(-(-count // threads.x)), threads, stream, 0)


Config = PlanLaunch | ShapeLaunch


class Shape(NamedTuple):
    """What the launch is in the end."""

    grid: Dim3
    block: Dim3
    shared_memory: int


def _index(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise LaunchError(f"{what} must be an integer, got {value!r}") from None


def _dim(what: str, value: Any, limit: tuple[int, int, int]) -> Dim3:
    items = tuple(value) if isinstance(value, Sequence) else (value,)
    if not 1 <= len(items) <= 3:
        raise LaunchError(f"{what} must have 1 to 3 extents, got {value!r}")
    dim = Dim3(*(_index(what, v) for v in items))
    if any(not 1 <= v <= m for v, m in zip(dim, limit, strict=True)):
        raise LaunchError(f"{what} must be 1 to {limit} (x, y, z), got {tuple(dim)}")
    return dim


def config(value: Any) -> Config:
    """What stands in ``kernel[...]``: ``plan.launch(batch)``, or ``grid, block[, stream[, shared memory bytes]]`` as in numba."""
    if isinstance(value, PlanLaunch | ShapeLaunch):
        return value
    if isinstance(value, tuple) and 2 <= len(value) <= 4:
        block = _dim("block", value[1], _BLOCK_LIMIT)
        if block.x * block.y * block.z > _arch.MAX_THREADS_PER_BLOCK:
            raise LaunchError(f"block has {block.x * block.y * block.z} threads, the most is {_arch.MAX_THREADS_PER_BLOCK}")
        stream = value[2] if len(value) > 2 else None
        shared = _index("shared memory", value[3]) if len(value) > 3 else 0
        if shared < 0:
            raise LaunchError(f"shared memory must be at least 0 bytes, got {shared}")
        return ShapeLaunch(_dim("grid", value[0], _GRID_LIMIT), block, None if stream in (0, None) else stream, shared)
    raise LaunchError(f"a kernel is launched as kernel[plan.launch(batch)](...) or kernel[grid, block](...), got kernel[{value!r}]")


def resolve(name: str, cfg: Config, plans: Sequence[tuple[Plan, bool]], target: Target) -> Shape:
    """Grid, block and dynamic shared memory of kernel *name*, which uses *plans* (each with whether cooperatively), on *target*."""
    if isinstance(cfg, PlanLaunch):
        grid, block = cfg.plan.launch_shape(cfg.batch, target, cfg.block)
        shared, origin = 0, f"{cfg.plan.short_name()}.launch({cfg.batch})"
        if any(n > most for n, most in zip(grid, _GRID_LIMIT, strict=True)):
            raise LaunchError(f"{name}: {origin} makes a grid of {tuple(grid)} blocks, the most is {_GRID_LIMIT}; split the batch")
    else:
        grid, block, shared, origin = cfg.grid, cfg.block, cfg.shared_memory, f"the block {tuple(cfg.block)}"
    need, biggest = 0, ""
    for plan, cooperative in plans:
        traits = plan.traits(target)
        if cooperative and traits.block_dim != block:
            raise LaunchError(
                f"{name}: {plan.short_name()} ({_describe(plan)}) needs blocks of {tuple(traits.block_dim)} threads on {target}, "
                f"and {origin} gives {tuple(block)}; " + _advice(cfg)
            )
        if traits.get("shared_memory_size", 0) > need:
            need, biggest = traits.shared_memory_size, plan.short_name()
    if isinstance(cfg, ShapeLaunch) and 0 < shared < need:
        raise LaunchError(f"{name}: {biggest} needs {need} bytes of dynamic shared memory, got {shared}")
    shared = max(shared, need)
    if isinstance(target, Arch) and shared > target.shared_limit:
        raise LaunchError(f"{name}: {shared} bytes of shared memory a block were asked for, {target} has {target.shared_limit}")
    return Shape(grid, block, shared)


def _describe(plan: Plan) -> str:
    return ", ".join(f"{k}={v}" for k, v in plan.identity()[1:] if v is not None and k != "size")


def _advice(cfg: Config) -> str:
    if isinstance(cfg, PlanLaunch):
        return "plans in one kernel must have equal block shapes: set elements_per_thread and ffts_per_block so that they agree"
    return "launch it with plan.launch(batch)"


def stream_handle(stream: Any) -> int | None:
    """The integer handle of a stream of any library; ``None`` where none was given."""
    if stream is None:
        return None
    if isinstance(stream, numbers.Integral):
        return int(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        if hasattr(stream, name):
            return int(getattr(stream, name))
    handle = getattr(stream, "handle", None)  # numba
    if handle is not None:
        return int(getattr(handle, "value", handle) or 0)
    raise LaunchError(f"stream must be an integer handle or a stream of CuPy, PyTorch, numba or cuda.core, got {stream!r}")
