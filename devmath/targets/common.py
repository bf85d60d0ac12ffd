"""What both compiled targets share: the type of a plan inside kernels and the typing of its attributes and device functions.

numba and numba-cuda keep separate registries with the same interfaces, so the templates are made once for each from the same code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numba import types as nbt

from ..errors import KernelTypeError
from ..functions import DeviceFunction, check_arguments, return_type
from ..plan import CPU, Dim3, Plan, Target, Traits


class PlanType(nbt.Type):
    """A plan bound to a target, as a compile-time constant: its name, and with it its identity, covers every field and the target."""

    def __init__(self, plan: Plan, target: Target):
        self.plan, self.target = plan, target
        super().__init__(f"devmath.{plan.kind_name}({plan.to_json()}, {target})")

    @property
    def traits(self) -> Traits:
        """The plan's traits on the target."""
        return self.plan.traits(self.target)


@dataclass
class Build:
    """What one compilation collects while functions are lowered."""

    #: (plan, function) pairs that the kernel calls.
    calls: dict[tuple[Plan, str], DeviceFunction] = field(default_factory=dict)
    #: LTO-IR that has to be linked.
    sources: dict[Any, None] = field(default_factory=dict)
    #: Bytes of static shared memory of the CPU target.
    static_shared: int = 0
    #: Functions of the CPU target that need the threads of a block to be one.
    single_thread: list[str] = field(default_factory=list)

    def note(self, plan: Plan, fn: DeviceFunction) -> None:
        """Remember that the kernel calls *fn* of *plan*."""
        self.calls[plan, fn.name] = fn

    def plans(self) -> list[tuple[Plan, bool]]:
        """The plans in use, each with whether a cooperative function of it is called."""
        found: dict[Plan, bool] = {}
        for (plan, _), fn in self.calls.items():
            found[plan] = found.get(plan, False) or fn.cooperative
        return list(found.items())


_active = threading.local()


@contextlib.contextmanager
def building(build: Build) -> Iterator[Build]:
    """Collect into *build* what is lowered meanwhile, on this thread."""
    outer = getattr(_active, "build", None)
    _active.build = build
    try:
        yield build
    finally:
        _active.build = outer


def current_build() -> Build | None:
    """The build in progress on this thread."""
    return getattr(_active, "build", None)


def constant_type(value: Any) -> nbt.Type:
    """numba type of a compile-time constant of a plan."""
    if isinstance(value, bool):
        return nbt.literal(value)
    if isinstance(value, int):
        return nbt.IntegerLiteral(value)
    if isinstance(value, str):
        return nbt.StringLiteral(value)
    if isinstance(value, float):
        return nbt.float64
    if isinstance(value, Dim3):
        return nbt.NamedUniTuple(nbt.int64, len(value), Dim3)
    if isinstance(value, tuple):
        return nbt.UniTuple(nbt.int64, len(value))
    if isinstance(value, type) and issubclass(value, np.generic):
        return nbt.NumberClass(_numba_dtype(value))
    raise TypeError(f"no numba type for the constant {value!r}")


def _numba_dtype(value: type) -> nbt.Type:
    from ..types import BY_NAME

    return BY_NAME[np.dtype(value).name].numba


def constant(ty: PlanType, name: str) -> Any:
    """Value of a plan's field or trait on its target."""
    return ty.traits[name] if name in ty.plan.trait_names else getattr(ty.plan, name)


def lower_constant(context: Any, builder: Any, ty: PlanType, value: Any, attr: str) -> Any:
    """Lowering of a plan's field or trait; it is the same for numba and numba-cuda."""
    const = constant(ty, attr)
    kind = constant_type(const)
    if isinstance(kind, nbt.NumberClass):
        return context.get_dummy_value()
    return context.get_constant_generic(builder, nbt.unliteral(kind), tuple(const) if isinstance(const, tuple) else const)


def make_templates(templates: Any, lower: Callable[[tuple, DeviceFunction], None]) -> type:
    """The attribute template of :class:`PlanType` for one typing registry.

    The template of a device function is made when it is first met, so that plans may be declared at any time; *lower* is then called with
    its key, to register its lowering.
    """

    @functools.cache
    def method(kind: Hashable, variant: str, name: str) -> type:
        fn = cast(Any, kind).variants[variant][name]
        key_ = ("devmath", kind, variant, name)
        parameters = [inspect.Parameter(a.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in fn.args]

        class Method(templates.AbstractTemplate):
            key = key_

            def generic(self, args, kws):
                plan_type = self.this
                checked = check_arguments(fn, plan_type.plan, args, dict(kws))
                sig = templates.signature(return_type(fn, plan_type.plan), *checked, recvr=plan_type)
                return sig.replace(pysig=inspect.Signature(parameters))

        lower(key_, fn)
        return Method

    class PlanAttributes(templates.AttributeTemplate):
        key = PlanType

        def generic_resolve(self, ty, attr):
            plan = ty.plan
            if attr in plan.functions:
                return nbt.BoundFunction(method(cast(Hashable, type(plan)), plan.variant, attr), ty)
            if attr in plan.constants or attr in plan.trait_names:
                return constant_type(constant(ty, attr))
            names = ", ".join(sorted({*plan.functions, *plan.constants, *plan.trait_names}))
            raise KernelTypeError(f"{plan.short_name()} has no attribute {attr!r} inside a kernel; it has {names}")

    return PlanAttributes


def meaning_of(fn: DeviceFunction, ty: PlanType, rewritten: Callable[[Callable], Callable] | None = None) -> Callable:
    """The Python function to compile for *fn*, one object for each plan and target so that numba compiles it once.

    *rewritten* is given by a target that puts other things in place of ``numba.cuda``.
    """
    memo = ty.plan.meanings
    key = (fn.name, ty.target)
    if key not in memo:
        make = (fn.fast_cpu if ty.target == CPU else fn.fast_gpu) or fn.meaning
        assert make is not None
        made = make(ty.plan, ty.traits)
        memo[key] = rewritten(made) if rewritten else made
    return memo[key]
