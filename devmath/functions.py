"""The record of a device function, and what is derived from it.

A device function is declared once, as a :class:`DeviceFunction`: its arguments, what it returns, its *meaning* (a plain Python
function that numba compiles and that runs uncompiled as well) and, where there is one, the generated code that does the same on the GPU.
The targets under ``devmath.targets`` derive the rest: numba-cuda typing and lowering, the CPU target, the simulator; the reference pages
and the differential tests read the same records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import types as nbt

from . import types as elements
from .errors import KernelTypeError

if TYPE_CHECKING:
    from .codegen.sources import Source
    from .plan import Plan, Traits


class Arg(NamedTuple):
    """One argument of a device function.

    kind
        ``"registers"``: this thread's elements, a 1-D array of the plan's value type;
        ``"shared"``: the block's scratch memory, any 1-D array;
        ``"data"``: the problem's own elements in shared memory, an array of the plan's value type;
        ``"row"``: a 1-D array in global or shared memory, any stride;
        ``"state"``: the words that the plan's ``state`` function made;
        ``"int"``: an index; ``"u64"`` / ``"u32"``: any integer, taken modulo 2^64 / 2^32; ``"f32"``: any real number.
    doc
        One line for the reference pages.
    dtypes
        Element types that a ``"row"`` may have, as a function of the plan; the plan's value type where it is left out.
    ndim
        Dimensions of an array, as a function of the plan; 1 where it is left out.
    form
        What an array must be, for messages, as a function of the plan.
    """

    name: str
    kind: str
    doc: str = ""
    dtypes: Callable[[Any], tuple[nbt.Type, ...]] | None = None
    ndim: Callable[[Any], int] | None = None
    form: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Array:
    """What an allocating function returns: a per-thread (``"local"``) array, or the block's dynamic shared memory.

    ``count`` and ``dtype`` are functions of the traits; ``count`` is ignored for ``"shared"``.
    """

    space: str
    dtype: Callable[[Plan], nbt.Type]
    count: Callable[[Traits], int] = lambda traits: 0


@dataclass(frozen=True)
class Part:
    """What a function returns that finds the problem's own part of the block's dynamic shared memory.

    ``dtype`` and ``ndim`` are functions of the plan; ``shape`` and ``strides`` (in elements) of the traits. ``first`` is a meaning, of the plan
    and the traits: the Python function that gives the number of the part's first element. The CPU target has one problem a block, from the start.
    """

    dtype: Callable[[Any], nbt.Type]
    ndim: Callable[[Any], int]
    shape: Callable[[Traits], tuple[int, ...]]
    strides: Callable[[Traits], tuple[int, ...]]
    first: Callable[[Any, Any], Callable]


@dataclass(frozen=True)
class View:
    """What a function returns that gives an argument's memory another type; *dtype* is a function of the plan."""

    dtype: Callable[[Any], nbt.Type]


@dataclass(frozen=True)
class Values:
    """A tuple of *count* equal scalars; one scalar where ``count`` is 1."""

    dtype: nbt.Type
    count: int = 1

    @property
    def numba(self) -> nbt.Type:
        """The numba type."""
        return self.dtype if self.count == 1 else nbt.UniTuple(self.dtype, self.count)


@dataclass(frozen=True)
class DeviceFunction:
    """One device function, declared once.

    name, args, doc
        As the user sees them; *args* does not name the plan itself.
    returns
        ``None``, :class:`Values`, :class:`View`, or :class:`Array` or :class:`Part` for a function that allocates.
    meaning
        ``meaning(plan, traits)`` gives the Python function of the arguments. It is what the CPU target and the simulator run, and what
        the GPU runs where there is no LTO-IR. It may use ``numba.cuda``'s ``threadIdx`` and the like. ``None`` for an allocating function.
    code
        ``code(plan, traits)`` gives the :class:`~devmath.codegen.sources.Source` of the LTO-IR that holds the function for the GPU, or
        ``None`` for a plan that needs none.
    fast_cpu, fast_gpu
        A quicker form of *meaning* for compiled CPU code, and for GPU code where there is no LTO-IR.
    cooperative
        Whether all threads of a block take part.
    """

    name: str
    args: tuple[Arg, ...]
    doc: str
    returns: Array | Part | View | Values | None = None
    meaning: Callable[[Any, Any], Callable] | None = None
    code: Callable[[Any, Any], Source | None] | None = None
    fast_cpu: Callable[[Any, Any], Callable] | None = None
    fast_gpu: Callable[[Any, Any], Callable] | None = None
    cooperative: bool = False

    def source(self, plan: Any, traits: Any) -> Source | None:
        """The LTO-IR's source for a plan on the GPU."""
        return self.code(plan, traits) if self.code else None

    def signature(self) -> str:
        """``execute(registers, scratch)``."""
        return f"{self.name}({', '.join(a.name for a in self.args)})"


def required_length(arg: Arg, traits: Traits) -> int | None:
    """Elements that an array argument must have, where a device function reads or writes all of them."""
    if arg.kind == "data" and arg.ndim is not None:
        return None
    return {"registers": traits.get("storage_size"), "state": traits.get("state_size"), "data": traits.get("data_size")}.get(arg.kind)


def return_type(fn: DeviceFunction, plan: Plan) -> nbt.Type:
    """The numba type that a call returns."""
    if fn.returns is None:
        return nbt.none
    if isinstance(fn.returns, Part):
        ndim = fn.returns.ndim(plan)
        return nbt.Array(fn.returns.dtype(plan), ndim, "C" if ndim == 1 else "A")
    if isinstance(fn.returns, Array | View):
        return nbt.Array(fn.returns.dtype(plan), 1, "C")
    return fn.returns.numba


def check_arguments(fn: DeviceFunction, plan: Plan, given: tuple[nbt.Type, ...], keywords: dict[str, nbt.Type]) -> tuple[nbt.Type, ...]:
    """Argument types as the function takes them, or a :class:`KernelTypeError` of one line that says what was got and what is valid."""
    names = [a.name for a in fn.args]
    bound = dict(zip(names, given, strict=False))
    call = f"{plan.short_name()}.{fn.signature()}"
    for name, ty in keywords.items():
        if name not in names:
            raise KernelTypeError(f"{call} has no argument {name!r}")
        if name in bound:
            raise KernelTypeError(f"{call}: {name!r} was given twice")
        bound[name] = ty
    if len(given) > len(names) or len(bound) < len(names):
        raise KernelTypeError(f"{call} takes {len(names)} argument{'s' * (len(names) != 1)}, got {len(given) + len(keywords)}")
    return tuple(_check_one(call, arg, plan, bound[arg.name], _writes(fn, arg)) for arg in fn.args)


def _writes(fn: DeviceFunction, arg: Arg) -> bool:
    """Whether *fn* writes into an array argument: a row in ``store`` alone, a thread's own arrays in all but it."""
    return (fn.name == "store") == (arg.kind == "row")


def _check_one(call: str, arg: Arg, plan: Plan, ty: nbt.Type, written: bool) -> nbt.Type:
    got = elements.describe(ty)
    if arg.kind in ("int", "u32", "u64"):
        if not isinstance(ty, nbt.Integer | nbt.Boolean):
            raise KernelTypeError(f"{call}: {arg.name} is {got}, it must be an integer")
        return {"int": nbt.int64, "u32": nbt.uint32, "u64": nbt.uint64}[arg.kind]
    if arg.kind == "f32":
        if not isinstance(ty, nbt.Integer | nbt.Float):
            raise KernelTypeError(f"{call}: {arg.name} is {got}, it must be a real number")
        return nbt.float32
    ndim = arg.ndim(plan) if arg.ndim else 1
    form = f": {arg.form(plan)}" if arg.form else ""
    if not isinstance(ty, nbt.Array):
        hint = f" (one element; was a {ndim}-D array indexed?)" if isinstance(ty, nbt.Float | nbt.Complex) else ""
        raise KernelTypeError(f"{call}: {arg.name} is {got}{hint}, it must be a {ndim}-D array{form}")
    if ty.ndim != ndim:
        one = form or (" (one transform or one thread's elements at a time)" if ndim == 1 else " (one transform at a time)")
        raise KernelTypeError(f"{call}: {arg.name} is a {got}, it must be {ndim}-D{one}")
    wanted = (nbt.uint32,) if arg.kind == "state" else arg.dtypes(plan) if arg.dtypes else (plan.element_type(),)
    if arg.kind != "shared" and ty.dtype not in wanted:
        what = "thread data" if arg.kind == "registers" else "shared data" if arg.kind == "data" else arg.name
        raise KernelTypeError(f"{call}: {what} is {ty.dtype}, the {plan.kind_name} works on {' or '.join(map(str, wanted))}{form}")
    if (arg.kind in ("registers", "state") or arg.kind == "data" and ndim == 1) and ty.layout != "C":
        makers = {"registers": "registers() or cuda.local.array make", "state": "new_state() or cuda.local.array make", "data": "data() makes"}
        raise KernelTypeError(f"{call}: {arg.name} must be contiguous, as {plan.short_name()}.{makers[arg.kind]} it")
    if written and not ty.mutable:
        raise KernelTypeError(f"{call}: {arg.name} is a read-only array and would be written")
    return ty
