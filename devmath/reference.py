"""The reference pages of the device functions, written from their records."""

from __future__ import annotations

import inspect

from .functions import Array, DeviceFunction, Part, Values, View
from .plan import _REGISTRY, Plan

_KINDS = {
    "registers": "1-D array of the plan's elements, thread-local",
    "shared": "1-D array, shared memory",
    "data": "array of the plan's elements, in shared memory",
    "row": "array of the plan's elements",
    "state": "array of uint32, thread-local",
    "int": "integer",
    "u32": "integer, modulo 2^32",
    "u64": "integer, modulo 2^64",
    "f32": "real number, as float32",
}


def plans() -> list[type[Plan]]:
    """The plan classes that devmath itself declares, by name."""
    return [kind for name, kind in sorted(_REGISTRY.items()) if kind.__module__.startswith("devmath.")]


def _returns(fn: DeviceFunction) -> str:
    if isinstance(fn.returns, Values):
        return f"{fn.returns.count} x {fn.returns.dtype}" if fn.returns.count > 1 else str(fn.returns.dtype)
    if isinstance(fn.returns, Array):
        return "the block's shared memory" if fn.returns.space == "shared" else "a thread-local array"
    if isinstance(fn.returns, Part):
        return "an array in shared memory"
    return "a view of its argument" if isinstance(fn.returns, View) else "nothing"


def _function(fn: DeviceFunction) -> list[str]:
    source = "generated code on the GPU" if fn.code else "compiled from its meaning on every target"
    who = "all threads of the block call it together" if fn.cooperative else "each thread on its own"
    lines = [f"### `{fn.signature()}`", "", fn.doc, ""]
    lines += [f"- `{a.name}`: {_KINDS[a.kind]}" + (f"; {a.doc}" if a.doc else "") for a in fn.args]
    return [*lines, f"- returns: {_returns(fn)}", f"- {who}; {source}", ""]


def page(kind: type[Plan]) -> str:
    """The Markdown page of a plan class: its documentation, its constants and traits, and every device function of every variant."""
    lines = [f"# {kind.kind_name}", "", inspect.getdoc(kind) or "", ""]
    lines += [f"Constants in kernels: {', '.join(f'`{n}`' for n in (*kind.constants, *kind.trait_names))}.", ""]
    for variant, table in kind.variants.items():
        lines += [f"## Device functions{f', {variant} execution' if len(kind.variants) > 1 else ''}", ""]
        for fn in table.values():
            lines += _function(fn)
    return "\n".join(lines).rstrip() + "\n"
