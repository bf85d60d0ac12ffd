"""The performance table's targets, and the record file: what was measured, where, against what, and how it compares."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from peers import nvcc_version, nvmath_version

from devmath import cli
from devmath.codegen.versions import installed

HERE = Path(__file__).resolve().parent
DEFAULT_PATH = HERE / "results" / "h200.json"


class Measured(NamedTuple):
    """A row's figure with what shows the result to be right; ``value`` is ``None`` where it was wrong."""

    value: float | None
    check: dict[str, Any]
    note: str = ""
    baselines: Mapping[str, float] = {}  # those that the row measured itself, side by side


class Row(NamedTuple):
    """A row of the table: how to measure it, its baselines' programs, and the kernels to compile beforehand."""

    unit: str
    measure: Callable[[Any], Measured]
    peers: Callable[[Any], list] = lambda peers: []
    kernels: Callable[[], list[tuple[Any, tuple]]] = list
    gpu: bool = True


class Target(NamedTuple):
    """What a value must reach; the fields that are set all count."""

    least: float | None = None
    most: float | None = None
    of_copy: float | None = None  # at least this fraction of the copy rate
    over: Mapping[str, float] = {}  # a rate: at least this many times a baseline's
    under: Mapping[str, float] = {}  # a time or a size: at most this many times a baseline's

    def text(self, unit: str) -> str:
        """In words."""
        parts = [f"{self.of_copy:g} of copy"] if self.of_copy else []
        parts += [f"at least {self.least:g} {unit}"] if self.least else []
        parts += [f"at most {self.most:g} {unit}"] if self.most else []
        parts += [f"at least {f:g} x {name}" for name, f in self.over.items()]
        parts += [f"at most {f:g} x {name}" for name, f in self.under.items()]
        return ", ".join(parts)

    def missed(self, value: float, copy: float | None, baselines: Mapping[str, float]) -> list[str]:
        """What is not reached, or cannot be judged because its baseline is missing; empty where the target is met."""
        out = []
        if self.of_copy and (copy is None or value < self.of_copy * copy):
            out.append("copy rate not measured" if copy is None else f"{value / copy:.3f} of copy")
        if (self.least and value < self.least) or (self.most and value > self.most):
            out.append(f"{value:.4g}")
        for name, factor in (*self.over.items(), *self.under.items()):
            if name not in baselines:
                out.append(f"not judged against {name}: not measured")
            elif (value < factor * baselines[name]) if name in self.over else (value > factor * baselines[name]):
                out.append(f"{value / baselines[name]:.2f} x {name}")
        return out


_OF_COPY = {128: 0.92, 256: 0.92, 512: 0.92, 1024: 0.90, 2048: 0.85, 4096: 0.75}

#: Every row of the table that is measured here, in the order in which they are measured and stand in the record.
TARGETS: dict[str, Target] = {
    **{f"fft.conv.c64.{n}": Target(of_copy=f, over={"nvmath": 1.4}) for n, f in _OF_COPY.items()},
    "fft.conv.c128.512": Target(of_copy=0.85),
    **{f"fft.c2c.c64.{n}": Target(of_copy=0.95) for n in _OF_COPY},
    **{f"fft.r2c.f32.{n}": Target(over={"cufft": 1.0}) for n in (256, 512, 1024, 2048, 4096)},
    "mc.gbm_asian.f32": Target(least=1000, over={"curand_normal4_fast_math": 1.0}),
    "mc.gbm_asian.f64": Target(over={"curand_normal2_double": 1.2}),
    "mc.gbm_paths.f32": Target(most=0.25),
    "rng.philox_bits": Target(least=1500),
    "launch.overhead": Target(under={"numba_cuda": 1.1}),
    "size.cubin.fft512": Target(most=65_536),
    "start.warm.fft": Target(under={"numba_cuda": 1.0}),
    "start.warm.rng": Target(under={"numba_cuda": 1.0}),
    "start.cold.fft": Target(most=4),
    "start.cold.rng": Target(most=3),
    "cpu.conv.c64.512": Target(under={"scipy": 0.8}),
    "cpu.gbm_asian.f32": Target(under={"numpy": 0.2}),
}


def entry(name: str, row: Row, got: Measured, peers: list, copy: float | None, stamp: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it stands in the record; *peers* are the outcomes of its baselines' programs, *stamp* its date and commit."""
    lines = {k.partition(":")[2]: v for p in peers for k, v in p.lines.items() if k.partition(":")[0] == name}
    baselines = {**{k: v["value"] for k, v in lines.items()}, **got.baselines}
    target, notes = TARGETS[name], [got.note, *(p.note for p in peers)]
    if got.value is None:
        met, notes = False, ["no value: the result is wrong or there is none", *notes]
    else:
        missed = target.missed(got.value, copy, baselines)
        met, notes = not missed, [*(f"target: {m}" for m in missed), *notes]
    out = {
        "name": name, "value": got.value, "unit": row.unit, "target": target.text(row.unit), "met": met, "baselines": baselines,
        "check": got.check, "baseline_checks": {k: v["check"] for k, v in lines.items()}, "note": "; ".join(filter(None, notes)), **stamp,
    }  # fmt: skip
    if row.unit == "GB/s" and copy and got.value:
        out |= {"copy_GBps": copy, "fraction_of_copy": got.value / copy}
    return out


def load(path: Path) -> dict[str, Any]:
    """The record in *path*, or an empty one."""
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def merge(record: Mapping[str, Any], header: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The record with *rows* in place of those of the same names; a header's ``None`` leaves what stands there."""
    by_name = {r["name"]: r for r in (*record["rows"], *rows)}
    order = {name: i for i, name in enumerate(TARGETS)}
    kept = {k: v for k, v in record.items() if k != "rows"} | {k: v for k, v in header.items() if v is not None}
    return {**kept, "rows": sorted(by_name.values(), key=lambda r: (order.get(r["name"], len(order)), r["name"]))}


def save(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record in one step, so that a run that is stopped leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    plain = json.loads(json.dumps(record), parse_constant=str)  # JSON has no infinity
    part.write_text(json.dumps(plain, indent=1) + "\n")
    os.replace(part, path)


def commit() -> str:
    """The checkout's commit: ``DEVMATH_COMMIT`` where it is set (a copy may have no history), else what git says."""
    if os.environ.get("DEVMATH_COMMIT"):
        return os.environ["DEVMATH_COMMIT"]

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(HERE), *args], capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/benchmarks/results")
        return git("rev-parse", "HEAD") + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def today() -> str:
    """The date in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def host() -> str:
    """The processor, and how many cores this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def versions() -> dict[str, str]:
    """Versions of everything that takes part, as ``devmath info`` names them."""
    # Where a toolkit's libraries lie is the machine's own business.
    found = {name: re.sub(r" \(/[^)]*\)", " (toolkit)", value) for name, value in cli.info() if name != "cache"}
    cupy = next((v for n in ("cupy", "cupy-cuda13x", "cupy-cuda12x") if (v := installed(n))), "not installed")
    return {**found, "CuPy": cupy, "nvcc": nvcc_version(), "nvmath-python": nvmath_version()}
