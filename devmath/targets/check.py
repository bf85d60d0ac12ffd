"""Checks on a kernel's code that types cannot make: the length of the registers that are handed to a device function."""

from __future__ import annotations

from typing import Any

from ..errors import KernelValueError
from ..functions import required_length
from ..plan import CPU, BoundPlan


def check_registers(fn: Any) -> None:
    """Refuse a thread array of the wrong length, where it is a constant, with the line of the call.

    Reads numba's own intermediate form of the function; what it cannot follow is left to the run-time check.
    """
    from numba.core import ir
    from numba.core.compiler import run_frontend

    if not any(isinstance(v, BoundPlan) for v in _referred(fn)):
        return
    try:
        blocks = run_frontend(fn).blocks
    except Exception:  # numba reports it again, with its own words, when it compiles the function
        return
    definitions: dict[str, list[Any]] = {}
    calls = []
    for block in blocks.values():
        for stmt in block.body:
            if isinstance(stmt, ir.Assign):
                definitions.setdefault(stmt.target.name, []).append(stmt.value)
                if isinstance(stmt.value, ir.Expr) and stmt.value.op == "call":
                    calls.append(stmt.value)

    def value_of(var: Any) -> Any:
        """The constant, plan or expression behind a variable; ``None`` where it has several."""
        for _ in range(20):
            if isinstance(var, ir.Var):
                found = definitions.get(var.name, [])
                if len(found) != 1:
                    return None
                var = found[0]
            elif isinstance(var, ir.Global | ir.FreeVar | ir.Const):
                return var.value
            else:
                return var
        return None

    for call in calls:
        func = value_of(call.func)
        if not (isinstance(func, ir.Expr) and func.op == "getattr"):
            continue
        bound = value_of(func.value)
        if not isinstance(bound, BoundPlan) or func.attr not in bound.plan.functions:
            continue
        function = bound.plan.functions[func.attr]
        given = {a.name: v for a, v in zip(function.args, call.args, strict=False)} | dict(call.kws)
        for arg in function.args:
            need = required_length(arg, bound.plan.traits(bound.target))
            if need is not None and arg.name in given:
                length = _local_length(value_of(given[arg.name]), value_of)
                if length is not None and length != need:
                    plan, where = bound.plan.short_name(), "the CPU target" if bound.target == CPU else str(bound.target)
                    maker = "registers() or cuda.local.array(plan.storage_size, plan.value_type)" if arg.kind == "registers" else "new_state()"
                    raise KernelValueError(
                        f"{plan}.{function.signature()} at line {call.loc.line} of {fn.__name__}: {arg.name} has {length} elements, "
                        f"the plan needs {need} on {where}: use {plan}.{maker}"
                    )


def _local_length(expr: Any, value_of: Any) -> int | None:
    """Length of ``cuda.local.array(n, ...)`` or of another plan's ``registers()``, where it can be read off."""
    from numba.core import ir

    if not (isinstance(expr, ir.Expr) and expr.op == "call"):
        return None
    func = value_of(expr.func)
    if not (isinstance(func, ir.Expr) and func.op == "getattr"):
        return None
    owner = value_of(func.value)
    if isinstance(owner, BoundPlan):
        return owner.plan.traits(owner.target).storage_size if func.attr == "registers" else None
    if func.attr != "array":
        return None
    if isinstance(owner, ir.Expr) and owner.op == "getattr":
        if owner.attr != "local":
            return None
    elif getattr(owner, "__name__", "").rpartition(".")[2] != "local":  # `from numba.cuda import local`
        return None
    length = value_of(expr.args[0] if expr.args else dict(expr.kws).get("shape"))
    if isinstance(length, ir.Expr) and length.op == "build_tuple" and len(length.items) == 1:
        length = value_of(length.items[0])
    if isinstance(length, tuple) and len(length) == 1:
        length = length[0]
    if isinstance(length, ir.Expr) and length.op == "getattr":
        plan = value_of(length.value)
        if isinstance(plan, BoundPlan):
            traits = plan.plan.traits(plan.target)
            # Not `get`: its default would ask for the current device's traits.
            length = traits[length.attr] if length.attr in traits else getattr(plan.plan, length.attr, None)
    return int(length) if isinstance(length, int) else None


def _referred(fn: Any) -> list[Any]:
    from .rewrite import references, resolve

    values = []
    for ref in references(fn.__code__):
        try:
            value = resolve(fn, ref)
        except KeyError:
            continue
        for name in ref.attributes:
            if isinstance(value, BoundPlan):
                break
            value = getattr(value, name, None)
        values.append(value)
    return values
