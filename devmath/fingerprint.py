"""What a kernel's code is, as plain values: the part of a cache key that covers the kernel and all it refers to."""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from numba import types as nbt

from .plan import Plan
from .targets.rewrite import Reference, is_device_function, is_leaf_module, references, resolve


class Uncacheable(Exception):
    """A kernel refers to something whose value cannot be told from its outside; it is compiled anew in each process."""


_PLAIN = (bool, int, float, complex, str, bytes)

#: Options of a device function that change its code.
_DEVICE_OPTIONS = ("debug", "lineinfo", "opt", "fastmath", "inline", "forceinline", "max_registers")


@functools.cache
def package_digest() -> str:
    """A hash over devmath's own sources: what they generate changes with them."""
    h = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted([*root.rglob("*.py"), *(root / "lto").glob("*.cu*"), *root.rglob("*.json")]):
        h.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()


def of_function(fn: types.FunctionType) -> tuple:
    """The fingerprint of a kernel's Python function; raises :class:`Uncacheable`."""
    return (sys.version_info[:3], _Reader().function(fn))


class _Reader:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def function(self, fn: types.FunctionType) -> tuple:
        if id(fn) in self._seen:
            return ("again", self._seen[id(fn)])
        self._seen[id(fn)] = len(self._seen)
        names = []
        for ref in sorted({(r.name, r.free, r.attributes) for r in references(fn.__code__)}):
            name, free, attributes = ref
            try:
                value = resolve(fn, Reference(name, free, attributes, 0))
            except KeyError:
                names.append((name, free, attributes, "missing"))
                continue
            names.append((name, free, attributes, self.value(value, attributes)))
        defaults = self.value(fn.__defaults__, ()), self.value(tuple(sorted((fn.__kwdefaults__ or {}).items())), ())
        return ("function", fn.__name__, self.code(fn.__code__), defaults, tuple(names))

    def code(self, code: types.CodeType) -> tuple:
        consts = tuple(self.code(c) if isinstance(c, types.CodeType) else self.value(c, ()) for c in code.co_consts)
        return (
            "code", code.co_name, code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags,
        )  # fmt: skip

    def value(self, value: Any, attributes: tuple[str, ...]) -> Any:
        if value is None or value is Ellipsis or type(value) in _PLAIN:
            return (type(value).__name__, repr(value) if isinstance(value, complex) or value is Ellipsis else value)
        if isinstance(value, Plan):
            return ("plan", value.identity())
        if isinstance(value, np.generic):
            return ("numpy scalar", _dtype(value.dtype), value.tobytes())
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise Uncacheable("an array of objects")
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return ("array", _dtype(value.dtype), value.shape, value.strides, digest)
        if isinstance(value, tuple):
            names = getattr(value, "_fields", ())
            return ("tuple", type(value).__qualname__, names, tuple(self.value(v, ()) for v in value))
        if isinstance(value, frozenset):
            return ("frozenset", tuple(sorted(repr(v) for v in value)))
        if isinstance(value, enum.Enum):
            return ("enum", type(value).__module__, type(value).__qualname__, value.name, repr(value.value))
        if isinstance(value, np.dtype):
            return ("dtype", _dtype(value))
        if isinstance(value, nbt.Type):
            return ("numba type", str(value))
        if isinstance(value, types.ModuleType):
            return self.module(value, attributes)
        if is_device_function(value) or (hasattr(value, "py_func") and hasattr(value, "targetoptions")):
            options = tuple((k, repr(value.targetoptions.get(k))) for k in _DEVICE_OPTIONS)
            if value.targetoptions.get("link"):
                raise Uncacheable("a device function that links other code")
            return ("device function", self.function(value.py_func), options)
        return self.named(value)

    def module(self, module: types.ModuleType, attributes: tuple[str, ...]) -> tuple:
        if is_leaf_module(module):
            return ("module", module.__name__)
        if not attributes:
            raise Uncacheable(f"the module {module.__name__} as a whole")
        if not hasattr(module, attributes[0]):
            return ("module", module.__name__, attributes[0], "missing")
        return ("module", module.__name__, attributes[0], self.value(getattr(module, attributes[0]), attributes[1:]))

    def named(self, value: Any) -> tuple:
        """Things known by their name, which must lead back to them: functions and classes of the libraries that every target knows."""
        owner, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        module = sys.modules.get(owner) if isinstance(owner, str) else None
        if module is not None and name and (owner == "builtins" or is_leaf_module(module)):
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is value:
                return ("named", owner, name)
        raise Uncacheable(f"{name or type(value).__qualname__} of {owner or type(value).__module__}")


def _dtype(dtype: np.dtype) -> str:
    return dtype.str if dtype.fields is None else repr(dtype)
