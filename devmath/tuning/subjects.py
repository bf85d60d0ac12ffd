"""Which module knows what there is to tune about a kind of plan."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import TuningError
from ..plan import Plan

_MODULES = {"FFT": "devmath.fft.tune"}


def of(plan: Plan) -> Any:
    """The module with ``PATTERNS``, ``KNOBS``, ``common``, ``candidates``, ``knobs_of`` and ``Case`` for a plan."""
    if plan.kind_name not in _MODULES:
        raise TuningError(f"there is nothing to tune about a plan of kind {plan.kind_name}; there is about {', '.join(_MODULES)}")
    return importlib.import_module(_MODULES[plan.kind_name])
