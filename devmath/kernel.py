"""``@kernel``: one kernel source for the GPU and the CPU, launched on arrays of either."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types as nbt
from numba.core.errors import NumbaError

from . import arch as _arch
from . import cache, device, fingerprint, launch
from .arch import Arch
from .arguments import DEVICE, HOST, SCALAR, Argument, look_at
from .codegen import versions
from .errors import ArgumentError, CodegenError, DevmathError, one_of
from .plan import CPU, Plan, Target, from_json
from .targets import simulating

_TARGETS = ("cpu", "gpu")


class Linked(NamedTuple):
    """A kernel linked for one architecture and one signature."""

    cubin: bytes
    name: str
    plans: tuple[tuple[Plan, bool], ...]
    arch: Arch


class Kernel:
    """A kernel; made by :func:`kernel`. ``kernel[plan.launch(batch)](...)`` or ``kernel[grid, block](...)`` runs it."""

    def __init__(self, fn: Any, target: str | None, fastmath: bool, max_registers: int | None, lineinfo: bool, launch_bounds: Any):
        functools.update_wrapper(self, fn)
        self.py_func = fn
        self.target = target
        self.options = {
            "fastmath": bool(fastmath),
            "max_registers": max_registers,
            "lineinfo": bool(lineinfo),
            "launch_bounds": launch_bounds,
        }
        self.signature = inspect.signature(fn)
        self.parameters = list(self.signature.parameters)
        self._gpu: dict[tuple, Any] = {}
        self._linked: dict[tuple, Linked] = {}
        self._configs: dict[Any, _Launcher] = {}
        self._cpu: Any = None
        self._lock = threading.RLock()

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[attr-defined]  # by name, as functions are pickled

    def forall(self, n: int, *, block: int = 256, stream: Any = None) -> _Launcher:
        """The kernel over at least *n* threads, *block* a block: ``kernel.forall(len(x))(x)``. Threads from *n* on must do nothing."""
        return self[launch.ShapeLaunch.over(n, block, stream)]

    def __repr__(self) -> str:
        return f"<devmath kernel {self.__name__}({', '.join(self.parameters)})>"  # type: ignore[attr-defined]

    def __getitem__(self, cfg: Any) -> _Launcher:
        try:
            key = (cfg, *map(type, cfg)) if type(cfg) is tuple else cfg  # 1 and 1.0 are equal, but not both a grid
            found = self._configs.get(key)
        except TypeError:  # an unhashable stream
            return _Launcher(self, launch.config(cfg))
        if found is None:
            if len(self._configs) > 256:
                self._configs.clear()
            found = self._configs[key] = _Launcher(self, launch.config(cfg))
        return found

    def __call__(self, *args: Any) -> None:
        raise launch.LaunchError(
            f"{self.py_func.__name__} needs a launch configuration: {self.py_func.__name__}[plan.launch(batch)](...) or [grid, block](...)"
        )

    # -- the two compiled forms -----------------------------------------------------

    @property
    def cpu(self) -> Any:
        """The kernel's CPU form."""
        with self._lock:
            if self._cpu is None:
                from .targets.cpu import CpuKernel

                self._cpu = _in_users_words(self, lambda: CpuKernel(self.py_func, self.options["fastmath"]))
            return self._cpu

    def linked(self, types: tuple[nbt.Type, ...], arch: Arch) -> Linked:
        """The kernel linked for *arch*: from this process, from the cache on disk, or compiled now."""
        key = (types, arch)
        with self._lock:
            if key not in self._linked:
                self._linked[key] = self._from_disk(types, arch)
        return self._linked[key]

    def adopt(self, types: tuple[nbt.Type, ...], linked: Linked) -> None:
        """Take a kernel that another process linked from the same source."""
        with self._lock:
            self._linked.setdefault((types, linked.arch), linked)

    def _from_disk(self, types: tuple[nbt.Type, ...], arch: Arch) -> Linked:
        try:
            code = fingerprint.of_function(self.py_func)
        except fingerprint.Uncacheable:
            return self._compile(types, arch)
        options: tuple[Any, ...] = tuple(sorted((k, repr(v)) for k, v in self.options.items()))
        if self.options["lineinfo"]:
            options += (self.py_func.__code__.co_filename, self.py_func.__code__.co_firstlineno, self.py_func.__code__.co_linetable)
        key = cache.digest("kernel", code, tuple(map(str, types)), arch.name, options, versions.tools(), fingerprint.package_digest())
        built: list[Linked] = []

        def build() -> tuple[bytes, dict]:
            built.append(self._compile(types, arch))
            return built[0].cubin, {"name": built[0].name, "plans": [[p.to_json(), c] for p, c in built[0].plans]}

        entry = cache.once("kernel", key, build)
        if built:
            return built[0]
        return Linked(entry.payload, entry.meta["name"], tuple((from_json(p), bool(c)) for p, c in entry.meta["plans"]), arch)

    def _compile(self, types: tuple[nbt.Type, ...], arch: Arch) -> Linked:
        from .targets import cuda

        done = _in_users_words(self, lambda: cuda.compile_kernel(self.py_func, types, arch, **self.options))
        return Linked(done.cubin, done.name, tuple(done.build.plans()), arch)

    def on_device(self, types: tuple[nbt.Type, ...], arch: Arch) -> tuple[Any, Linked]:
        """The kernel loaded on the current device."""
        key = (types, arch)
        with self._lock:
            if key not in self._gpu:
                linked = self.linked(types, arch)
                self._gpu[key] = (device.GpuKernel(linked.cubin, linked.name, types, arch, device.tool_versions()), linked)
        return self._gpu[key]


class _Launcher:
    """A kernel with a launch configuration."""

    def __init__(self, kernel: Kernel, cfg: launch.Config):
        self._kernel, self._config = kernel, cfg
        self._stream = launch.stream_handle(cfg.stream)
        self._ready: dict[tuple, tuple[Any, launch.Shape]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs or len(args) != len(self._kernel.parameters):
            args = self._bind(args, kwargs)
        if simulating():
            self._simulate(args)
            return
        try:
            looked = [look_at(a) for a in args]
        except ArgumentError:
            raise self._name_the_argument(args) from None
        try:
            key = (*[a[:2] for a in looked], _device())  # type: ignore[index]
            ready = self._ready.get(key)
        except TypeError:  # an argument that is none
            key, ready = (), None
        if ready is None:
            ready = self._ready[key] = self._prepare(looked, args)
        loaded, shape = ready
        if loaded is None:
            self._kernel.cpu.launch(*shape, tuple(map(_exact, args)))
        else:
            loaded.launch(shape, looked, self._stream)

    def _name_the_argument(self, args: tuple[Any, ...]) -> ArgumentError:
        """What is wrong with the first argument that cannot be used, with its parameter's name."""
        for parameter, arg in zip(self._kernel.parameters, args, strict=False):
            try:
                look_at(arg)
            except ArgumentError as e:
                return ArgumentError(f"{self._kernel.py_func.__name__}: {parameter}: {e}")
        raise AssertionError("an argument was refused, and then none was")

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments by position, from keywords and defaults."""
        kernel = self._kernel
        try:
            bound = kernel.signature.bind(*args, **kwargs)
        except TypeError as e:
            got = f"got {len(args)}" + (f" and {', '.join(kwargs)}" if kwargs else "")
            takes = f"takes {len(kernel.parameters)} arguments ({', '.join(kernel.parameters)})"
            raise ArgumentError(f"{kernel.py_func.__name__} {takes}, {got}" + (f": {e}" if kwargs else "")) from None
        bound.apply_defaults()
        return tuple(bound.arguments[p] for p in kernel.parameters)

    def _prepare(self, looked: list[Argument | None], args: tuple[Any, ...]) -> tuple[Any, launch.Shape]:
        kernel = self._kernel
        name = kernel.py_func.__name__
        for parameter, value, arg in zip(kernel.parameters, looked, args, strict=True):
            if isinstance(arg, Plan):
                raise ArgumentError(f"{name}: {parameter} is a plan; a kernel uses plans as global or closure variables, not as arguments")
            if value is None:
                raise ArgumentError(f"{name}: {parameter} is a {type(arg).__name__}; a kernel takes arrays, numbers and tuples of numbers")
        arguments: list[Argument] = looked  # type: ignore[assignment]
        target = _choose(kernel, arguments)
        types = tuple(a.type for a in arguments)
        if target == CPU:
            _in_users_words(kernel, lambda: kernel.cpu.compile(types))
            plans = kernel.cpu.build.plans()
            shape = launch.resolve(name, self._config, plans, CPU)
            kernel.cpu.check_block(name, shape.block)
            return None, shape
        arch = _arch.of_device(device.ensure_context())
        linked = kernel.linked(types, arch)
        shape = launch.resolve(name, self._config, linked.plans, arch)
        return kernel.on_device(types, arch)[0], shape

    def _simulate(self, args: tuple[Any, ...]) -> None:
        from numba import cuda

        from .targets.rewrite import references, resolve

        plans = {}
        for ref in references(self._kernel.py_func.__code__):
            try:
                value = resolve(self._kernel.py_func, ref)
            except KeyError:
                continue
            if isinstance(value, Plan):
                plans[value] = any(f.cooperative for f in value.functions.values())
        shape = launch.resolve(self._kernel.py_func.__name__, self._config, list(plans.items()), CPU)
        if shape.grid.x:
            cuda.jit(self._kernel.py_func)[tuple(shape.grid), tuple(shape.block), 0, shape.shared_memory](*args)


def _exact(arg: Any) -> Any:
    """An argument as numba's dispatcher takes it for its type: it would take any Python integer for an int64."""
    if type(arg) is int and arg >= 2**63:
        return np.uint64(arg)
    return tuple(map(_exact, arg)) if type(arg) is tuple else arg


def _device() -> int:
    """The current device's number where there are several, since a launcher keeps what it prepared for each."""
    return device.ensure_context() if _arch.device_count() > 1 else 0


def _choose(kernel: Kernel, arguments: list[Argument]) -> Target:
    """Where a call runs: the arrays decide, ``target=`` overrides, a mixture is refused."""
    sides: dict[str, list[str]] = {HOST: [], DEVICE: [], SCALAR: []}
    for parameter, a in zip(kernel.parameters, arguments, strict=True):
        sides[a.side].append(parameter)
    name = kernel.py_func.__name__
    if sides[HOST] and sides[DEVICE]:
        raise ArgumentError(
            f"{name}: {_list(sides[HOST])} in host memory (NumPy) and {_list(sides[DEVICE])} on the GPU; a launch takes all its arrays from one side"
        )
    if kernel.target == "cpu" and sides[DEVICE]:
        raise ArgumentError(f"{name} has target='cpu' and {_list(sides[DEVICE])} on the GPU; hand it NumPy arrays")
    if kernel.target == "gpu" and sides[HOST]:
        raise ArgumentError(f"{name} has target='gpu' and {_list(sides[HOST])} in host memory (NumPy); hand it device arrays (CuPy, PyTorch, numba)")
    if kernel.target:
        return CPU if kernel.target == "cpu" else "gpu"
    if sides[HOST]:
        return CPU
    return "gpu" if sides[DEVICE] or _arch.device_count() else CPU


def _list(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _in_users_words(kernel: Kernel, work: Callable[[], Any]) -> Any:
    """Run a compilation; what devmath has to say about the kernel comes as one line, without numba's page around it."""
    try:
        return work()
    except DevmathError as e:
        raise e.with_traceback(None) from None
    except NumbaError as e:
        cause: BaseException | None = e
        while cause is not None:
            if isinstance(cause, DevmathError):
                raise cause.with_traceback(None) from None
            cause = cause.__cause__ or cause.__context__
        raise CodegenError(f"numba cannot compile {kernel.py_func.__name__}: {_gist(str(e))}") from e
    except AttributeError as e:
        raise CodegenError(f"{kernel.py_func.__name__}: {e}") from e


_WRAPPING = ("Failed in ", "Use of unsupported", "During: ", "<source elided>", "- Resolution failure", "- argument 0")


def _gist(page: str) -> str:
    """The line of numba's page that says what is wrong, and the place in the source."""
    page = re.sub(r"\x1b\[[0-9;]*m", "", page)
    lines = [line.strip() for line in page.splitlines() if line.strip() and not line.strip().startswith(_WRAPPING)]
    place = next((line.rstrip(":") for line in lines if line.startswith("File ")), "")
    call = next((line for line in lines if line.startswith(">>>")), "")
    hint = "; decorate it with @cuda.jit(device=True)" if "numba type of <class 'function'>" in page.lower() else ""
    return " ".join(filter(None, (lines[0] if lines else page, call, f"({place})" if place else ""))) + hint


def kernel(
    fn: Callable | None = None,
    *,
    target: str | None = None,
    fastmath: bool = False,
    max_registers: int | None = None,
    lineinfo: bool = False,
    launch_bounds: Any = None,
) -> Any:
    """Make a kernel of a Python function written as for ``numba.cuda.jit``.

    NumPy arrays run it on the CPU, compiled, with the blocks spread over the cores (``numba.set_num_threads`` says how many); device arrays
    (CuPy, PyTorch, numba, ``__cuda_array_interface__``, DLPack) on the GPU.

    Parameters
    ----------
    target : ``"cpu"`` or ``"gpu"`` instead of what the arrays say.
    fastmath : let the compilers reorder floating-point arithmetic and use approximate functions.
    max_registers : the most registers a thread may use on the GPU.
    lineinfo : keep line numbers for profilers.
    launch_bounds : threads a block, or (threads, blocks per multiprocessor), as in CUDA C++.
    """
    if target is not None and target not in _TARGETS:
        raise ValueError(one_of("target", target, _TARGETS))

    def make(f: Callable) -> Kernel:
        inner = getattr(f, "py_func", f)
        if not inspect.isfunction(inner):
            raise TypeError(f"@kernel takes a Python function, got {f!r}")
        return Kernel(inner, target, fastmath, max_registers, lineinfo, launch_bounds)

    return make if fn is None else make(fn)
