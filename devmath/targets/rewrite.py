"""Reading what a Python function refers to, and giving it other things to refer to.

A kernel is written once. To compile it for a target, its function is copied with that target's things in place of what it names: plans
bound to the target, device functions compiled for it, and on the CPU a stand-in for the ``cuda`` module.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import CodegenError

#: Modules whose functions mean the same on every target.
_LEAF_PACKAGES = {"numpy", "numba", "numba_cuda", "llvmlite", "scipy", "rocket_fft", "cuda"}


class Reference(NamedTuple):
    """A name that code loads, with the attributes that are taken from it at once: ``cuda.atomic.add`` at line 12."""

    name: str
    free: bool
    attributes: tuple[str, ...]
    line: int


def references(code: types.CodeType) -> Iterator[Reference]:
    """Every global and closure name that *code* (and the code inside it) loads."""
    free = set(code.co_freevars)
    pending: tuple[str, bool, int] | None = None
    chain: list[str] = []
    for ins in dis.get_instructions(code):
        if pending and ins.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(ins.argval)
            continue
        if ins.opname in ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP"):
            continue
        if pending:
            yield Reference(pending[0], pending[1], tuple(chain), pending[2])
            pending, chain = None, []
        if ins.opname in ("LOAD_GLOBAL", "LOAD_NAME") or (ins.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF") and ins.argval in free):
            line = ins.positions.lineno if ins.positions and ins.positions.lineno else code.co_firstlineno
            pending = (ins.argval, ins.opname not in ("LOAD_GLOBAL", "LOAD_NAME"), line)
    if pending:
        yield Reference(pending[0], pending[1], tuple(chain), pending[2])
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from references(const)


def resolve(fn: types.FunctionType, ref: Reference) -> Any:
    """The object that a reference's name stands for; raises ``KeyError`` where it stands for nothing yet."""
    if ref.free:
        names = fn.__code__.co_freevars
        if ref.name in names and fn.__closure__:
            try:
                return fn.__closure__[names.index(ref.name)].cell_contents
            except ValueError:
                raise KeyError(ref.name) from None
        raise KeyError(ref.name)
    if ref.name in fn.__globals__:
        return fn.__globals__[ref.name]
    builtins = fn.__globals__.get("__builtins__", {})
    builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
    return builtins[ref.name]


def is_leaf_module(module: types.ModuleType) -> bool:
    """Whether a module's contents are the same for every target (and identified by versions alone)."""
    top = module.__name__.partition(".")[0]
    return top in _LEAF_PACKAGES or top in sys.stdlib_module_names


def is_device_function(value: Any) -> bool:
    """Whether *value* is a function made by ``@cuda.jit(device=True)`` (or used as one)."""
    return type(value).__name__ == "CUDADispatcher" and hasattr(value, "py_func")


class Where(NamedTuple):
    """Where a reference stands, for messages."""

    function: str
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (line {self.line} of {self.function}, {self.file})"


class Rewriter:
    """Copies functions with other things to refer to. Subclasses say which, in :meth:`replace` and :meth:`device_function`."""

    def __init__(self) -> None:
        self._memo: dict[int, tuple[Any, Any]] = {}

    def replace(self, value: Any, attributes: tuple[str, ...], where: Where) -> Any:
        """What stands in for *value*; *value* itself where nothing has to."""
        return value

    def device_function(self, dispatcher: Any) -> Any:
        """The target's form of a user's device function."""
        raise NotImplementedError

    def function(self, fn: types.FunctionType) -> types.FunctionType:
        """*fn* with everything it names replaced; *fn* itself if nothing had to be."""
        new: dict[tuple[str, bool], Any] = {}
        for ref in references(fn.__code__):
            try:
                old = resolve(fn, ref)
            except KeyError:
                where = Where(fn.__name__, fn.__code__.co_filename, ref.line, ref.name)
                raise CodegenError(f"{where} is not defined") from None
            name = ".".join((ref.name, *ref.attributes))
            value = self._value(old, ref.attributes, Where(fn.__name__, fn.__code__.co_filename, ref.line, name))
            if value is not old:
                new[ref.name, ref.free] = value
        if not new:
            return fn
        names = {n: v for (n, free), v in new.items() if not free}
        cells = None
        if fn.__closure__:
            cells = tuple(
                types.CellType(new[n, True]) if (n, True) in new else cell for n, cell in zip(fn.__code__.co_freevars, fn.__closure__, strict=True)
            )
        copy = types.FunctionType(fn.__code__, {**fn.__globals__, **names}, fn.__name__, fn.__defaults__, cells)
        copy.__kwdefaults__ = fn.__kwdefaults__
        copy.__qualname__ = fn.__qualname__
        copy.__module__ = fn.__module__
        return copy

    def _value(self, value: Any, attributes: tuple[str, ...], where: Where) -> Any:
        replaced = self.replace(value, attributes, where)
        if replaced is not value:
            return replaced
        if is_device_function(value):
            return self._once(value, lambda: self.device_function(value))
        if isinstance(value, tuple):
            items = [self._value(v, (), where) for v in value]
            if any(a is not b for a, b in zip(items, value, strict=True)):
                return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
            return value
        if isinstance(value, types.ModuleType) and not is_leaf_module(value):
            return self._module(value, attributes, where)
        return value

    def _module(self, module: types.ModuleType, attributes: tuple[str, ...], where: Where) -> types.ModuleType:
        def make() -> types.ModuleType:
            proxy = types.ModuleType(module.__name__)
            # For what is taken from the module through another name: `m = module; m.f(x)`.
            proxy.__getattr__ = lambda name: self._value(getattr(module, name), (), where)  # type: ignore[method-assign]
            return proxy

        proxy = self._once(module, make)
        if attributes and hasattr(module, attributes[0]):
            setattr(proxy, attributes[0], self._value(getattr(module, attributes[0]), attributes[1:], where))
        return proxy

    def _once(self, value: Any, make: Any) -> Any:
        # The original is kept beside its copy so that its id stays its own.
        if id(value) not in self._memo:
            self._memo[id(value)] = (value, make())
        return self._memo[id(value)][1]
