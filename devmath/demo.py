"""``devmath demo``: run the option pricing example, from the checkout or from the copy that is installed with devmath."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from .errors import MissingDependency

_HERE = Path(__file__).parent
_PLACES = (_HERE.parent / "examples" / "option_pricing.py", _HERE / "examples" / "option_pricing.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Price three options on a real price series, print the table that says where it ran, draw the picture; the example's exit status."""
    path = next((p for p in _PLACES if p.is_file()), None)
    if path is None:
        raise MissingDependency("examples/option_pricing.py is not part of this installation; run the demo from a checkout of devmath")
    spec = importlib.util.spec_from_file_location("devmath_demo", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return int(example.main(list(argv or [])))
