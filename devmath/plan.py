"""What all plans have in common.

A plan is an immutable, hashable, picklable value with a JSON form; its construction has checked everything that can be
known without a compiler. What only a target knows is a *trait*, asked for lazily.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from . import arch as _arch
from .arch import Arch
from .errors import PlanError, one_of
from .functions import DeviceFunction

#: The CPU target's name wherever a target is asked for; GPU targets are an :class:`~devmath.arch.Arch`.
CPU = "cpu"

Target = Arch | str


class Dim3(NamedTuple):
    """Extent of a block or a grid."""

    x: int
    y: int = 1
    z: int = 1


class Traits(dict[str, Any]):
    """What a target knows about a plan: a mapping whose items are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def parse_target(value: object) -> Target:
    """``"cpu"``, ``"gpu"`` (the current device), or an architecture's name."""
    if isinstance(value, Arch):
        return value
    if value == CPU:
        return CPU
    if value == "gpu":
        current = _arch.current()
        if current is None:
            raise ValueError("target 'gpu' was asked for and no CUDA device was found; name an architecture such as 'sm_90a', or use 'cpu'")
        return current
    try:
        return _arch.parse(value)
    except ValueError:
        raise ValueError(one_of("target", value, ["cpu", "gpu", *_arch.supported()])) from None


def default_target() -> Target:
    """The current GPU, or the CPU where there is none (or numba's simulator stands in for it)."""
    from .targets import simulating

    return CPU if simulating() else (_arch.current() or CPU)


_REGISTRY: dict[str, type[Plan]] = {}


class Plan:
    """Base of all plans: an immutable value made of named fields.

    A subclass sets the class attributes below, takes its fields as arguments of ``__init__``, checks them and hands them to
    :meth:`_set_fields`. Where a field and a trait have one name (a knob that may be left open), the attribute is the trait; the field is in
    :attr:`fields`.
    """

    #: Name of this kind in messages and in JSON.
    kind_name: ClassVar[str]
    #: The device functions by name, for each variant of the plan (such as block and thread execution).
    variants: ClassVar[dict[str, dict[str, DeviceFunction]]]
    #: Names of fields that are compile-time constants inside kernels.
    constants: ClassVar[tuple[str, ...]]
    #: Names of the traits; they are compile-time constants inside kernels as well.
    trait_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _REGISTRY[cls.kind_name] = cls
        for name in {n for table in cls.variants.values() for n in table}:
            setattr(cls, name, _method(name, next(t[name] for t in cls.variants.values() if name in t)))

    def _set_fields(self, **fields: Any) -> None:
        self.__dict__["fields"] = MappingProxyType(fields)
        self.__dict__["_identity"] = (self.kind_name, *((k, _plain(v)) for k, v in fields.items()))
        self.__dict__["_memo"] = {}
        self.__dict__["meanings"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a plan cannot be changed; make another one with plan.replace({name}=...)")

    def __getattr__(self, name: str) -> Any:
        cls = type(self)
        if name in cls.trait_names:
            return self.traits()[name]
        if not name.startswith("_") and name in self.__dict__.get("fields", ()):
            return self.fields[name]
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")

    # -- identity ---------------------------------------------------------------

    #: Every field by name, as the plan was made.
    fields: Mapping[str, Any]
    #: Python functions made from the records for each target, kept so that compilers see the same object again.
    meanings: dict[Any, Callable]

    def identity(self) -> tuple[Any, ...]:
        """Everything that distinguishes this plan from another, as plain values."""
        return self.__dict__["_identity"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())

    def __repr__(self) -> str:
        return f"{self.kind_name}({', '.join(f'{k}={v!r}' for k, v in self.identity()[1:])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_json, (self.to_json(),))

    def replace(self, **changes: Any) -> Any:
        """The same plan with other fields: ``plan.replace(size=256)``."""
        return type(self)(**{**self.fields, **changes})

    def to_json(self) -> str:
        """The plan as JSON text; :func:`from_json` reads it back."""
        return json.dumps({"plan": self.kind_name, **dict(self.identity()[1:])})

    def short_name(self) -> str:
        """How messages call this plan: ``FFT(512)``."""
        return self.kind_name

    @property
    def variant(self) -> str:
        """Which of the plan's tables of device functions is in force."""
        return self.fields.get("execution", "thread")

    @property
    def functions(self) -> dict[str, DeviceFunction]:
        """The device functions of this plan, by name."""
        return type(self).variants[self.variant]

    # -- traits -----------------------------------------------------------------

    def compute_traits(self, target: Target) -> Traits:
        """The traits for *target*; may be slow. Subclasses implement it."""
        raise NotImplementedError

    def traits(self, target: object = None) -> Traits:
        """What *target* (``"cpu"``, ``"gpu"``, ``"sm_90a"``, ...; default: the current device, or the CPU without one) knows about the plan."""
        where = default_target() if target is None else parse_target(target)
        found = self._memo.get(where)
        if found is None:
            found = self._memo[where] = self.compute_traits(where)
        return found

    def element_type(self) -> Any:
        """numba type of one element of the plan's data."""
        raise NotImplementedError

    # -- launching --------------------------------------------------------------

    def launch_shape(self, batch: int, target: Target, block: int | None) -> tuple[Dim3, Dim3]:
        """Grid and block for *batch* problems on *target*."""
        raise NotImplementedError

    def launch(self, batch: int, *, block: int | None = None, stream: Any = None) -> Any:
        """How to launch a kernel that works through *batch* problems of this plan: ``kernel[plan.launch(batch)](...)``.

        Gives grid, block, dynamic shared memory and the opt-in above 48 KB for whichever target the arrays ask for.

        Parameters
        ----------
        batch : number of problems (transforms, paths, ...); 0 launches nothing.
        block : threads a block, for functions that each thread runs on its own; cooperative plans set it themselves.
        stream : a CUDA stream (an integer handle, or an object of CuPy, PyTorch, numba or cuda.core); ignored on the CPU.
        """
        from .launch import PlanLaunch

        return PlanLaunch.of(self, batch, block, stream)


def _plain(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    return tuple(value) if isinstance(value, list) else value


def from_json(text: str) -> Plan:
    """The plan that :meth:`Plan.to_json` wrote."""
    try:
        fields = json.loads(text)
    except ValueError as e:
        raise PlanError(f"not the JSON of a plan: {e}") from None
    kind = fields.pop("plan", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in _REGISTRY:
        raise PlanError(one_of("plan", kind, sorted(_REGISTRY)))
    known = set(inspect.signature(_REGISTRY[kind]).parameters)
    unknown = sorted(set(fields) - known)
    if unknown:
        raise PlanError(f"{kind} has no field {unknown[0]!r}; its fields are {', '.join(sorted(known))}")
    needed = [n for n, p in inspect.signature(_REGISTRY[kind]).parameters.items() if p.default is p.empty and n not in fields]
    if needed:
        raise PlanError(f"{kind} needs a {needed[0]}, and its JSON has none")
    return _REGISTRY[kind](**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


class BoundPlan(NamedTuple):
    """A plan together with the target that a kernel is being compiled for; what the compilers see."""

    plan: Plan
    target: Target


def _method(name: str, fn: DeviceFunction) -> Callable[..., Any]:
    """The Python method that runs a device function uncompiled: in the simulator, where a thread's position is known."""

    def method(self: Plan, *args: Any, **kwargs: Any) -> Any:
        from .targets import simulator

        if name not in self.functions:
            raise AttributeError(f"{self.short_name()} with {self.variant} execution has no {name}(); it has {', '.join(self.functions)}")
        return simulator.call(self, self.functions[name], args, kwargs)

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *(a.name for a in fn.args))]
    method.__name__ = method.__qualname__ = name
    method.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    method.__doc__ = "\n".join([fn.doc, "", *(f"{a.name} : {a.doc}" for a in fn.args)]).strip()
    return method
