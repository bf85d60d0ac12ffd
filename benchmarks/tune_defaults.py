"""Measure the defaults of FFT plans on the GPU at hand: ``python benchmarks/tune_defaults.py --out FILE``. See README.md here.

The file is of the form of ``devmath/fft/defaults.json`` and can take its place. It is written after each row; rows that were measured on this
GPU before and stand in it are left out, so that the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as OutOfTime
from pathlib import Path
from typing import Any, NamedTuple

import record

from devmath import arch as _arch
from devmath.errors import DevmathError
from devmath.fft import FFT, defaults
from devmath.fft.tune import PATTERNS, candidates
from devmath.tuning import bench, measure
from devmath.tuning.workers import Workers, reason

MEASURED = "transforms, and fused forward transform, product, inverse transform, of 256 MiB in one kernel; knobs by the geometric mean of both rates"
#: Nothing that is faster by less takes the place of what is there, and cuFFTDx not that of devmath's own.
GAIN = 1.01

_OTHER_SIZES = (
    100, 1000, 96, 200, 250, 300, 384, 400, 500, 600, 768, 800, 1200, 1536, 2000, 3000, 3072, 120, 144, 160, 180, 192, 240, 243, 288, 320, 360,
    480, 625, 640, 720, 729, 900, 960, 1125, 1250, 1296, 1500, 1728, 1920, 2187, 2400, 2401, 2500, 3125, 3600, 4000, 5000, 6000, 6144, 8000,
)  # fmt: skip


class Case(NamedTuple):
    """A row to be."""

    kind: str
    precision: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.precision}.{self.size}"

    def plan(self) -> FFT:
        return FFT(self.size, precision=self.precision, fft_type="c2c" if self.kind == "c2c" else "r2c")


def _powers(first: int, last: int) -> list[int]:
    return [1 << i for i in range(first.bit_length() - 1, last.bit_length())]


#: The most valuable rows first.
CASES = [
    *(Case("c2c", "float64", n) for n in _powers(64, 8192)),
    *(Case("real", "float32", n) for n in _powers(128, 16384)),
    *(Case("real", "float64", n) for n in _powers(128, 8192)),
    *(Case("c2c", "float32", n) for n in _powers(64, 16384)),
    *(Case(kind, "float32", n) for n in _OTHER_SIZES for kind in ("c2c", "real")),
    *(Case("c2c", "float64", n) for n in _OTHER_SIZES),
    *(Case(kind, "float16", n) for n in _powers(64, 8192) for kind in ("c2c", "real")),
]


def to_measure(case: Case, arch: _arch.Arch) -> list[FFT]:
    """The candidates of a row, with those that are defaults now."""
    plan = case.plan()
    found = candidates(plan, arch, real_modes=False)
    if any(p.fields["implementation"] == "devmath" for p in found) and case.kind == "real":
        found = [p for p in found if p.fields["implementation"] == "devmath"]  # cuFFTDx's normal mode is twice the work
    for now in current(case, arch).values():
        if now is not None and now not in found and now.fields["implementation"] in {p.fields["implementation"] for p in found}:
            found.append(now)
    return found


def current(case: Case, arch: _arch.Arch) -> dict[str, FFT | None]:
    """For each implementation the plan with the knobs that it has now where nothing is said, ``None`` where it has no transform."""
    found: dict[str, FFT | None] = {}
    for name in defaults.IMPLEMENTATIONS:
        found[name] = None
        with contextlib.suppress(DevmathError):
            plan = case.plan().replace(implementation=name)
            traits = plan.traits(arch)
            found[name] = plan.replace(elements_per_thread=traits.elements_per_thread, ffts_per_block=traits.ffts_per_block)
            found[name].traits(arch)  # type: ignore[union-attr]
    return found


def rates(device: measure.Device, case: Case, built: dict[FFT, Any]) -> dict[FFT, dict[str, float]]:
    """GB/s, read and written, of each candidate by pattern; without those that fail or are wrong."""
    found: dict[FFT, dict[str, float]] = {plan: {} for plan in built}
    for number, pattern in enumerate(PATTERNS):
        stand = bench.Bench(device, case.plan(), pattern, None)
        trials = []
        for plan in [p for p in found if p in built]:
            try:
                trials.append(stand.trial(plan, built[plan].kernels[number] if built[plan].kernels else None))
            except Exception as e:
                say(f"{case.name} {knobs(plan)}: {reason(e)}")
                del found[plan]
        if not trials:
            return {}
        for trial, ms in zip(trials, measure.compare(device, trials), strict=True):
            found[trial.plan][pattern] = 1e-6 * stand.bytes / ms
    return found


def knobs(plan: FFT) -> tuple[str, int, int]:
    """Implementation, elements a thread, transforms a block."""
    f = plan.fields
    return f["implementation"], f["elements_per_thread"], f["ffts_per_block"]


def score(by_pattern: dict[str, float]) -> float:
    """The geometric mean."""
    return math.exp(sum(math.log(v) for v in by_pattern.values()) / len(by_pattern))


def row(case: Case, measured: dict[FFT, dict[str, float]], now: dict[str, FFT | None]) -> dict[str, Any]:
    """The file's row: of each implementation the fastest knobs, and the faster implementation."""
    best: dict[str, FFT] = {}
    for name in defaults.IMPLEMENTATIONS:
        of_it = {p: score(r) for p, r in measured.items() if p.fields["implementation"] == name}
        if of_it:
            first = max(of_it, key=lambda p: of_it[p])
            kept = now.get(name)
            best[name] = kept if kept in of_it and of_it[first] < GAIN * of_it[kept] else first
    chosen = max(best, key=lambda n: score(measured[best[n]]) * (GAIN if n == "devmath" else 1))
    return {
        **case._asdict(),
        "default": chosen,
        **{n: list(knobs(p)[1:]) for n, p in best.items()},
        "GBps": {n: {k: float(f"{v:.5g}") for k, v in measured[p].items()} for n, p in best.items()},
    }


def merged(content: dict[str, Any], header: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The file's content with a row more, in a run of this header; the same row of earlier runs on this architecture is dropped."""

    def key(r: dict[str, Any]) -> tuple:
        return r["kind"], r["precision"], r["size"]

    cc = _arch.parse(header["arch"]).cc
    runs = []
    for run in content["runs"]:
        kept = [r for r in run["rows"] if _arch.parse(run["arch"]).cc != cc or key(r) != key(new)]
        runs.append({**run, "rows": kept})
    mine = next((run for run in runs if {k: v for k, v in run.items() if k != "rows"} == header), None)
    if mine is None:
        mine = {**header, "rows": []}
        runs.append(mine)
    order = {(c.kind, c.precision, c.size): i for i, c in enumerate(CASES)}
    mine["rows"] = sorted([*mine["rows"], new], key=lambda r: order.get(key(r), len(order)))
    return {"schema": defaults.SCHEMA, "runs": [run for run in runs if run["rows"]]}


def done(content: dict[str, Any], device: measure.Device) -> set[str]:
    """Names of the rows that were measured on this GPU."""
    runs = [r for r in content["runs"] if r["gpu"] == device.name and _arch.parse(r["arch"]).cc == device.arch.cc]
    return {Case(x["kind"], x["precision"], x["size"]).name for r in runs for x in r["rows"] if "GBps" in x}


def save(path: Path, content: dict[str, Any]) -> None:
    """In one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(defaults.write(content), encoding="utf-8")
    os.replace(temporary, path)


def say(text: str) -> None:
    print(text, flush=True)


def header_of(device: measure.Device) -> dict[str, Any]:
    """Where a run's rows come from."""
    names = ("devmath", "libmathdx", "NVRTC", "nvJitLink", "driver", "numba-cuda")
    versions = {k: v for k, v in record.versions().items() if k in names}
    arch = _arch.Arch(*device.arch.cc).name
    return {"gpu": device.name, "arch": arch, "date": record.today(), "measured": MEASURED, "commit": record.commit(), "versions": versions}


def sweep(device: measure.Device, cases: Sequence[Case], path: Path, deadline: float, workers: Workers) -> int:
    """Measure rows until the time is over; how many there were."""
    content = defaults.read((path if path.exists() else defaults.PATH).read_text(encoding="utf-8"))
    there = done(content, device) if path.exists() else set()
    left = [c for c in cases if c.name not in there]
    say(f"{len(cases) - len(left)} of {len(cases)} rows stand in {path}" if there else f"{len(cases)} rows to measure")
    header, count = header_of(device), 0
    jobs: list[tuple[Case, dict[FFT, Future]]] = []
    for case in left:
        jobs.append((case, {p: workers.submit(p, PATTERNS, device.arch) for p in to_measure(case, device.arch)}))
    for number, (case, futures) in enumerate(jobs):
        built = {}
        try:
            for plan, future in futures.items():
                built[plan] = future.result(max(0.0, deadline - time.monotonic()))
        except OutOfTime:
            say(f"out of time: {len(jobs) - number} rows left, from {case.name} on; run the same again to go on")
            break
        for plan, result in built.items():
            if result.error:
                say(f"{case.name} {knobs(plan)}: {result.error}")
        found = rates(device, case, {p: b for p, b in built.items() if not b.error})
        if not found:
            say(f"{case.name}: nothing could be measured")
            continue
        new = row(case, found, current(case, device.arch))
        content = merged(content, header, new)
        save(path, content)
        count += 1
        say(f"{case.name:<20} {new['default']} {new[new['default']]}  {new['GBps']}  ({len(found)} of {len(futures)} candidates)")
    return count


def select(patterns: Sequence[str]) -> list[Case]:
    """Rows that match any of the patterns (``c2c.float64.*``; a bare ``real`` means ``real.*``), all of them without."""
    found = [c for c in CASES if not patterns or any(fnmatch.fnmatch(c.name, p) or c.name.startswith(f"{p}.") for p in patterns)]
    if not found:
        raise SystemExit(f"no row matches {' '.join(patterns)}; rows are named as {CASES[0].name} is")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=float, metavar="SECONDS", default=380.0, help="stop after that time (default 380) with what there is")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=[], help="only these rows: c2c.float64, real.*.512, ...")
    parser.add_argument("--out", type=Path, default=defaults.PATH, help="the file to write (default: devmath's own)")
    options = parser.parse_args(argv)
    cases = select(options.only)
    try:
        device = measure.Gpu()
    except DevmathError as e:
        raise SystemExit(str(e)) from None
    with Workers() as workers:
        count = sweep(device, cases, options.out, began + options.limit, workers)
    say(f"{count} rows measured in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
