"""Element types: one table, NumPy <-> numba <-> libmathdx <-> C."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types as nbt

from .errors import PlanError


class Element(NamedTuple):
    """One row of the table.

    ``mathdx`` is the code of the real precision in ``commondxPrecision_t`` (``None`` where it has none).
    """

    name: str
    numpy: type
    numba: nbt.Type
    c: str
    real: str
    is_complex: bool
    mathdx: int | None


_TABLE = (
    Element("float16", np.float16, nbt.float16, "__half", "float16", False, 3),
    Element("float32", np.float32, nbt.float32, "float", "float32", False, 5),
    Element("float64", np.float64, nbt.float64, "double", "float64", False, 6),
    Element("complex64", np.complex64, nbt.complex64, "float2", "float32", True, 5),
    Element("complex128", np.complex128, nbt.complex128, "double2", "float64", True, 6),
    Element("uint32", np.uint32, nbt.uint32, "unsigned int", "uint32", False, 13),
    Element("uint64", np.uint64, nbt.uint64, "unsigned long long", "uint64", False, 14),
)
BY_NAME = {e.name: e for e in _TABLE}
BY_NUMBA = {e.numba: e for e in _TABLE}


def precision(value: object, what: str = "precision", valid: tuple[str, ...] = ("float32", "float64")) -> Element:
    """The real element for what a user may write: ``np.float32``, ``"float32"``, a dtype, or a complex of that precision; one of *valid*."""
    try:
        name = "None" if value is None else np.dtype(value).name  # type: ignore[call-overload]  # NumPy takes None for float64
    except TypeError:
        name = str(value)
    element = BY_NAME.get(name)
    if element is None or element.real not in valid:
        names = [f"np.{v}" for v in valid]
        raise PlanError(f"{what} must be {', '.join(names[:-1])} or {names[-1]}, got {value!r}")
    return BY_NAME[element.real]


def complex_of(real: Element) -> Element:
    """The complex element of a real precision (there is none of float16)."""
    return BY_NAME["complex64" if real.name == "float32" else "complex128"]


def describe(ty: nbt.Type) -> str:
    """A numba type in a user's words: ``float32``, ``2-D complex64 array``."""
    if isinstance(ty, nbt.Array):
        return f"{ty.ndim}-D {ty.dtype} array"
    if isinstance(ty, nbt.IntegerLiteral):
        return f"the integer {ty.literal_value}"
    return str(nbt.unliteral(ty))
