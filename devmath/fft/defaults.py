"""Which implementation and knobs a plan has that leaves them open: what was measured (``defaults.json``), and for which architecture it serves.

``benchmarks/tune_defaults.py`` writes the file. It has runs, each with its GPU, architecture, date, versions and what was measured; and a run
has rows::

    {"kind": "c2c", "precision": "float32", "size": 512, "default": "devmath", "devmath": [16, 1], "cufftdx": [16, 2], "GBps": {...}}

``kind`` is ``"c2c"`` or ``"real"`` (both directions are in one row, since kernels use them together), ``default`` the implementation that is
the faster one, and for each implementation that was measured its fastest ``[elements_per_thread, ffts_per_block]``; ``GBps`` has their
rates, read and written, by implementation and pattern. A later run's row takes the place of an earlier one's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..arch import Arch, parse

PATH = Path(__file__).with_name("defaults.json")
SCHEMA = 1
IMPLEMENTATIONS = ("devmath", "cufftdx")

#: Dynamic shared memory, bytes, of a block on data-centre GPUs is more than this, and less on all others.
_LARGE_SHARED = 128 * 1024

Key = tuple[str, str, int]  # kind, precision, size


class Default(NamedTuple):
    """A row: the implementation to take, and each one's (elements_per_thread, ffts_per_block)."""

    implementation: str
    knobs: Mapping[str, tuple[int, int]]


def kind_of(fft_type: str) -> str:
    """In which rows a plan's type is: ``"c2c"``, or ``"real"`` for both directions of real transforms."""
    return "c2c" if fft_type == "c2c" else "real"


def read(text: str) -> dict[str, Any]:
    """The file's content, checked to be of a form that this version reads; ValueError where it is not."""
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else None
        raise ValueError(f"a file of measured defaults has schema {SCHEMA}, got {found!r}")
    for run in content["runs"]:
        parse(run["arch"])
        for row in run["rows"]:
            if row["default"] not in IMPLEMENTATIONS or row["default"] not in row:
                raise ValueError(f"a row's default is one of its implementations, {', '.join(IMPLEMENTATIONS)}: {row}")
    return content


def write(content: Mapping[str, Any]) -> str:
    """The file's text, a row a line."""
    runs = []
    for run in content["runs"]:
        head = "".join(f"   {json.dumps(k)}: {json.dumps(v)},\n" for k, v in run.items() if k != "rows")
        rows = ",\n".join(f"    {json.dumps(row)}" for row in run["rows"])
        runs.append(f'  {{\n{head}   "rows": [\n{rows}\n   ]\n  }}')
    body = ",\n".join(runs)
    return f'{{\n "schema": {SCHEMA},\n "runs": [\n{body}\n ]\n}}\n'


def tables(content: Mapping[str, Any]) -> dict[tuple[int, int], dict[Key, Default]]:
    """The rows by compute capability; the last of several runs of one capability counts."""
    found: dict[tuple[int, int], dict[Key, Default]] = {}
    for run in content["runs"]:
        table = found.setdefault(parse(run["arch"]).cc, {})
        for row in run["rows"]:
            knobs = {name: (int(row[name][0]), int(row[name][1])) for name in IMPLEMENTATIONS if name in row}
            table[row["kind"], row["precision"], int(row["size"])] = Default(row["default"], knobs)
    return found


@functools.cache
def _measured() -> dict[tuple[int, int], dict[Key, Default]]:
    return tables(read(PATH.read_text(encoding="utf-8")))


def nearest(measured: Iterable[tuple[int, int]], arch: Arch) -> tuple[int, int] | None:
    """The capability among *measured* ones whose values are the likeliest for *arch*: of the same class of shared memory if there is one, then
    the nearest by major and minor number, of two the older."""

    def distance(cc: tuple[int, int]) -> tuple[bool, int, int, tuple[int, int]]:
        other_class = (Arch(*cc).shared_limit > _LARGE_SHARED) != (arch.shared_limit > _LARGE_SHARED)
        return other_class, abs(cc[0] - arch.major), abs(cc[1] - arch.minor), cc

    return min(measured, key=distance, default=None)


def find(kind: str, precision: str, size: int, arch: Arch) -> Default | None:
    """The row for an architecture: its own, or where it has none the nearest measured architecture's that has one.

    Whether the knobs fit is for the caller to see, who has a rule where they do not.
    """
    measured, key = _measured(), (kind, precision, size)
    near = nearest([cc for cc, table in measured.items() if key in table], arch)
    return None if near is None else measured[near][key]
