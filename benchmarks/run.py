"""Measure the performance table's rows against their baselines: ``python benchmarks/run.py --record``. See README.md here."""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import record
import rows_fft
import rows_rng
import rows_start
import timing
from peers import Peers
from record import Measured, Row

from devmath import arch

ROWS: dict[str, Row] = {name: {**rows_fft.ROWS, **rows_rng.ROWS, **rows_start.ROWS}[name] for name in record.TARGETS}


class Session:
    """What the rows of one run share."""

    def __init__(self, peers: Peers, copy: float | None = None):
        self.peers, self.copy = peers, copy

    def seed(self) -> int:
        """A new seed, below 2^63, for data that no run has seen."""
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))


def select(patterns: Sequence[str]) -> list[str]:
    """Names of the rows that match any of the patterns (``fft.conv.*``; a bare ``fft`` means ``fft.*``); all of them without patterns."""
    found = [n for n in ROWS if not patterns or any(fnmatch.fnmatch(n, p) or n.startswith(f"{p}.") for p in patterns)]
    if not found:
        raise SystemExit(f"no row matches {' '.join(patterns)}; the rows are {', '.join(ROWS)}")
    return found


def compile_row(name: str, target: str) -> tuple[str, int, str]:
    """Compile a row's kernels into the cache on disk: name, bytes, error message."""
    try:
        return name, sum(len(k.linked(types, arch.parse(target)).cubin) for k, types in ROWS[name].kernels()), ""
    except Exception as e:
        return name, 0, f"{type(e).__name__}: {e}"


def compile_rows(names: list[str], target: arch.Arch) -> list[tuple[str, int, str]]:
    """Compile the kernels of rows in processes side by side (threads do not help: NVRTC serialises them)."""
    wanted = [n for n in names if ROWS[n].kernels()]
    if not wanted:
        return []
    workers = min(len(wanted), max(1, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(compile_row, wanted, [target.name] * len(wanted)))


def measure(name: str, session: Session, stamp: dict[str, str]) -> dict[str, Any]:
    """A row's entry for the record; one whose code fails says so there."""
    row = ROWS[name]
    try:
        got = row.measure(session)
    except Exception as e:
        traceback.print_exc()
        got = Measured(None, {}, f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
    return record.entry(name, row, got, row.peers(session.peers), session.copy, stamp)


def copy_rate(peers: Peers) -> dict[str, float]:
    """GB/s of a device-to-device copy by each program that can tell."""
    rates = {"cupy": timing.copy_rate(), **{n: line["value"] for n, line in peers.cpp(False, "copy").lines.items()}}
    timing.free()
    return rates


def show(e: dict[str, Any]) -> None:
    """One line for a row."""
    value = "wrong" if e["value"] is None else f"{e['value']:.5g} {e['unit']}"
    baselines = "  ".join(f"{k} {v:.5g}" for k, v in e["baselines"].items())
    print(f"{e['name']:<20} {value:<16} {'met   ' if e['met'] else 'NOT met'} [{e['target']}]  {baselines}  {e['note']}", flush=True)


def conv_sizes(names: list[str]) -> dict[str, list[int]]:
    """Sizes of the convolutions among rows, by dtype."""
    out: dict[str, list[int]] = {"complex64": [], "complex128": []}
    for dtype, size in (n.split(".")[2:] for n in names if n.startswith("fft.conv.")):
        out[{"c64": "complex64", "c128": "complex128"}[dtype]].append(int(size))
    return out


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=[], help="only these rows: fft, mc.*, start.warm.fft, ...")
    parser.add_argument("--no-baselines", action="store_true", help="measure no baseline (targets that need one count as not met)")
    parser.add_argument("--record", action="store_true", help=f"write {record.DEFAULT_PATH.name}, which an H200 alone may do")
    parser.add_argument("--out", type=Path, help="write the record there instead")
    parser.add_argument("--limit", type=float, metavar="SECONDS", default=float("inf"), help="start no row after that time")
    parser.add_argument("--compile", metavar="ARCH", help="compile the rows' kernels (for sm_90a, say) and stop; needs no GPU")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the number of rows that were wrong or did not run."""
    began = time.monotonic()
    options = parse(argv)
    names = select(options.only)
    if options.compile:
        built = compile_rows(names, arch.parse(options.compile))
        print(*(f"{n:<20} {size} bytes  {message}" for n, size, message in built), sep="\n")
        return sum(bool(message) for *_, message in built)
    device = timing.device_name()
    if options.record and options.out is None and "H200" not in (device or ""):
        raise SystemExit(f"--record is for an H200 and this is {device or 'no GPU'}; name another file with --out")
    path = options.out or (record.DEFAULT_PATH if options.record else None)
    for name in [n for n in names if ROWS[n].gpu and device is None]:
        print(f"{name:<20} needs a GPU and CuPy")
        names.remove(name)

    peers = Peers(not options.no_baselines, began + options.limit, conv_sizes(names))
    session = Session(peers)
    stamp = {"date": record.today(), "commit": record.commit()}
    header: dict[str, Any] = {"device": device or "no GPU", "host": record.host(), **stamp, "versions": record.versions()}
    if any(ROWS[n].gpu for n in names):
        peers.start_building()
        for name, _, message in compile_rows(names, arch.current()):
            if message:
                print(f"{name:<20} {message}")
        rates = copy_rate(peers)
        session.copy = max(rates.values())
        header |= {"copy_GBps": session.copy, "copy": rates}
        print(f"copy {session.copy:.5g} GB/s, {time.monotonic() - began:.0f} s", flush=True)
    wrong = 0
    for i, name in enumerate(names):
        if time.monotonic() - began > options.limit:
            print(f"out of time after {options.limit:.0f} s: left out {', '.join(names[i:])}")
            break
        entry = measure(name, session, stamp)
        show(entry)
        wrong += entry["value"] is None
        if path:
            record.save(path, record.merge(record.load(path), header, [entry]))
        if device:
            timing.free()
    print(f"{time.monotonic() - began:.0f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
