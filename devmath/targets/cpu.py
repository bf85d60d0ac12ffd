"""The CPU target: a kernel's own Python function, compiled by numba, its blocks spread over the cores.

The threads of a block run one after the other. Kernels that call a cooperative function run with one thread a block.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numba
import numpy as np
from numba import types as nbt
from numba.core.compiler_lock import global_compiler_lock

from ..errors import LaunchError, TargetError
from ..functions import Array, DeviceFunction, Part, required_length
from ..plan import CPU, BoundPlan, Dim3, Plan
from . import cpu_cuda, cpu_half, cpu_math, rewrite  # noqa: F401
from . import cpu_intrinsics as low
from .check import check_registers
from .common import Build, PlanType, building, current_build, lower_constant, make_templates, meaning_of


@functools.cache
def _install() -> None:
    from numba.core.datamodel.models import OpaqueModel
    from numba.core.extending import register_model
    from numba.core.registry import cpu_target
    from numba.core.typing import templates
    from numba.core.typing.typeof import typeof_impl

    lowering = cpu_cuda.LOWERING
    cpu_half.install()

    def lower(key: tuple, fn: DeviceFunction) -> None:
        lowering.lower(key, PlanType, nbt.VarArg(nbt.Any))(functools.partial(_lower_call, fn))
        cpu_target.target_context.install_registry(lowering)

    typeof_impl.register(BoundPlan)(lambda value, c: PlanType(value.plan, value.target))

    @typeof_impl.register(Plan)
    def _unbound(value, c):
        raise TargetError(
            f"{value.short_name()} reached numba in a list, a numba.njit function or the like: kernels use plans as global or closure variables, "
            "or in tuples of those"
        )

    register_model(PlanType)(OpaqueModel)
    cpu_cuda.TYPING.register_attr(make_templates(templates, lower))
    lowering.lower_constant(PlanType)(lambda context, builder, ty, value: context.get_dummy_value())
    lowering.lower_getattr_generic(PlanType)(lower_constant)
    cpu_target.target_context.refresh()  # numba's own registries first: it puts intrinsics into the first one it finds
    cpu_target.typing_context.install_registry(cpu_cuda.TYPING)
    cpu_target.target_context.install_registry(lowering)


def _lower_call(fn: DeviceFunction, context, builder, sig, args):
    ty: PlanType = sig.args[0]
    build = current_build()
    if build is None:
        raise TargetError(f"{ty.plan.short_name()}.{fn.name} is called outside a devmath kernel")
    build.note(ty.plan, fn)
    if isinstance(fn.returns, Array):
        if fn.returns.space == "shared":
            return low.shared_array(context, builder, sig.return_type, None, 0)
        return low.stack_array(context, builder, sig.return_type, (fn.returns.count(ty.traits),))
    if isinstance(fn.returns, Part):
        return low.shared_array(context, builder, sig.return_type, fn.returns.shape(ty.traits), 0)
    inner, values = list(sig.args[1:]), list(args[1:])
    for arg, arg_type, value in zip(fn.args, inner, values, strict=True):
        need = required_length(arg, ty.traits)
        if need is not None:
            message = f"{ty.plan.short_name()}.{fn.signature()}: {arg.name} has too few elements, the plan needs {need} on the CPU target"
            context.compile_internal(builder, _length_check(need, message), nbt.none(arg_type), (value,))
    return context.compile_internal(
        builder, meaning_of(fn, ty, cast(Any, _ForCpu(build, False).function)), sig.replace(args=tuple(inner), recvr=None), values
    )


@functools.cache
def _length_check(need: int, message: str) -> Any:
    def check(array):
        if array.size < need:
            raise ValueError(message)

    return check


class _ForCpu(rewrite.Rewriter):
    """Puts the stand-in in place of ``numba.cuda`` and compiles device functions for the CPU."""

    def __init__(self, build: Build, fastmath: bool):
        super().__init__()
        self._build, self._fastmath = build, fastmath
        import numba.cuda as cuda

        self._cuda = cuda
        self._stand_ins = dict(_members(cuda))

    def replace(self, value, attributes, where):
        if isinstance(value, Plan):
            return BoundPlan(value, CPU)
        if value is self._cuda:
            self._need(attributes, where)
            return cpu_cuda.MODULE
        if value is numba and attributes[:1] == ("cuda",):
            self._need(attributes[1:], where)
            return self._numba_with_stand_in
        if id(value) in self._stand_ins:
            path, stand_in = self._stand_ins[id(value)]
            self._need((*path, *attributes), where)
            return stand_in
        owner = getattr(value, "__module__", None) or ""
        if isinstance(owner, str) and owner.startswith(("numba.cuda", "numba_cuda")) and not rewrite.is_device_function(value):
            raise cpu_cuda.missing_here(where)
        if getattr(value, "__name__", "").startswith("numba.cuda") and hasattr(value, "__file__"):
            raise cpu_cuda.missing_here(where)
        return value

    def _need(self, attributes: tuple[str, ...], where: rewrite.Where) -> None:
        if not cpu_cuda.lookup(attributes):
            raise cpu_cuda.missing_here(where)
        if attributes and attributes[0] in cpu_cuda.SINGLE_THREAD_ONLY:
            self._build.single_thread.append(str(where))

    @functools.cached_property
    def _numba_with_stand_in(self):
        import types

        module = types.ModuleType("numba")
        module.__dict__.update({k: v for k, v in vars(numba).items() if not k.startswith("__")})
        module.__dict__["cuda"] = cpu_cuda.MODULE
        return module

    def device_function(self, dispatcher):
        # The memo must hold the compiled form before its body is read: it may call itself.
        compiled = numba.njit(dispatcher.py_func, fastmath=self._fastmath or bool(dispatcher.targetoptions.get("fastmath")), error_model="numpy")
        self._memo[id(dispatcher)] = (dispatcher, compiled)
        compiled.py_func = self.function(dispatcher.py_func)
        compiled._compiler.py_func = compiled.py_func
        check_registers(compiled.py_func)
        return compiled


def _members(cuda: Any) -> Iterator[tuple[int, tuple[tuple[str, ...], Any]]]:
    """What a kernel may have imported from ``numba.cuda`` by itself: its id, its path there and its stand-in."""
    for name, stand_in in cpu_cuda.MEMBERS.items():
        if name == "warpsize" or not hasattr(cuda, name):
            continue
        original = getattr(cuda, name)
        yield id(original), ((name,), stand_in)
        if name in cpu_cuda.NAMESPACES:
            for inner, value in vars(stand_in).items():
                if not inner.startswith("__") and hasattr(original, inner):
                    yield id(getattr(original, inner)), ((name, inner), value)


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="devmath")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


_arena = threading.local()


class CpuKernel:
    """A kernel compiled for the CPU, for any number of signatures."""

    def __init__(self, fn: Any, fastmath: bool = False):
        _install()
        self._build = Build()
        self._name = fn.__name__
        bound = _ForCpu(self._build, fastmath).function(fn)
        check_registers(bound)
        kernel = numba.njit(bound, fastmath=fastmath, error_model="numpy", nogil=True)

        @numba.njit(nogil=True, error_model="numpy")
        def run(record, first, last, args):
            low.set_record(record)
            bx, by, bz = low.word(6), low.word(7), low.word(8)
            gx, gy = low.word(9), low.word(10)
            for block in range(first, last):
                low.store_word(0, block % gx)
                low.store_word(1, block // gx % gy)
                low.store_word(2, block // (gx * gy))
                for z in range(bz):
                    low.store_word(5, z)
                    for y in range(by):
                        low.store_word(4, y)
                        for x in range(bx):
                            low.store_word(3, x)
                            kernel(*args)

        self._run = run

    @property
    def build(self) -> Build:
        """What the compilations found."""
        return self._build

    def compile(self, argtypes: tuple[nbt.Type, ...]) -> None:
        """Compile for one signature."""
        sig = (nbt.uintp, nbt.int64, nbt.int64, nbt.Tuple(argtypes))
        if sig not in self._run.overloads:
            with global_compiler_lock, building(self._build):
                self._run.compile(sig)

    def check_block(self, name: str, block: Dim3) -> None:
        """Refuse a block of several threads where they would have to wait for each other."""
        threads = block.x * block.y * block.z
        if threads > 1 and self._build.single_thread:
            raise LaunchError(
                f"{name}: {self._build.single_thread[0]} needs the threads of a block to run side by side; on the CPU target they run one "
                f"after the other. Launch it with one thread a block, got {threads}"
            )

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, args: tuple[Any, ...]) -> None:
        """Run every block; returns when all are done."""
        blocks = grid.x * grid.y * grid.z
        if blocks == 0:  # an empty batch
            return
        workers = min(numba.get_num_threads(), blocks)
        if shared_bytes > cpu_cuda.STATIC_OFFSET:
            raise LaunchError(f"dynamic shared memory of {shared_bytes} bytes: the CPU target has {cpu_cuda.STATIC_OFFSET}")
        arena = cpu_cuda.STATIC_OFFSET + self._build.static_shared

        def work(first: int, last: int) -> None:
            record, memory = _worker(arena)
            record[:3] = 0
            record[6:9], record[9:12] = block, grid
            record[low.SHARED] = memory.ctypes.data + -memory.ctypes.data % 64
            record[low.DYNAMIC_BYTES] = shared_bytes
            self._run(np.uintp(record.ctypes.data), first, last, args)

        if workers == 1:
            work(0, blocks)
            return
        parts = min(blocks, 4 * workers)
        bounds = [blocks * i // parts for i in range(parts + 1)]
        pool = _pool(workers)
        futures = [pool.submit(work, a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
        for f in futures:
            f.exception()  # all blocks end before an error is raised, since the caller may free the arrays
        for f in futures:
            f.result()


def _worker(arena: int) -> tuple[np.ndarray, np.ndarray]:
    """This thread's record and shared memory. The memory is reserved, not touched, until a kernel uses it."""
    memory = getattr(_arena, "memory", None)
    if memory is None or memory.size < arena + 64:
        _arena.memory = memory = np.empty(arena + 64, np.uint8)
        _arena.record = np.zeros(low.WORDS, np.int64)
    return _arena.record, memory
