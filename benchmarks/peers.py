"""Running the baselines' programs. What cannot be run leaves a note, never an exception."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
BASELINES = HERE / "baselines"
BUILT = HERE.parent / "out" / "benchmarks"


class Outcome(NamedTuple):
    """The JSON lines that a program printed, by their names, and what went wrong (empty if nothing did)."""

    lines: Mapping[str, dict[str, Any]]
    note: str = ""


def nvmath_environment() -> dict[str, str] | None:
    """The environment for nvmath-python's programs: its own folder comes first, since its libmathdx is older. ``None`` without one."""
    site = os.environ.get("DEVMATH_BASELINE_SITE", "")
    if not site or not Path(site).is_dir():
        return None
    libraries = str(Path(site) / "nvidia" / "cu13" / "lib")  # cuda.pathfinder looks into site-packages and here, not along PYTHONPATH
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH", "")])),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH", "")])),
    }


def nvmath_version() -> str:
    """Version of the nvmath-python that the baselines use."""
    site = os.environ.get("DEVMATH_BASELINE_SITE")
    found = importlib.metadata.distributions(name="nvmath-python", path=[site]) if site else ()
    return next((d.version for d in found), "not installed")


@functools.cache
def _nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


@functools.cache
def nvcc_version() -> str:
    """The compiler of the C++ baselines."""
    if _nvcc() is None:
        return "not found"
    text = subprocess.run([_nvcc(), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found[1] if found else "unknown"


def run(command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 300) -> Outcome:
    """Run a program and read its lines; those printed before a failure count."""
    name = next((Path(c).name for c in command if c.endswith(".py")), Path(command[0]).name.partition("-")[0])
    try:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as e:
        return Outcome({}, f"{name}: {e.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the workers that it may have started
        out, err = process.communicate()
        return Outcome(_lines(out), f"{name}: stopped after {timeout:.0f} s")
    if process.returncode:
        print(f"{name} failed:", *err.splitlines()[-12:], sep="\n    ", file=sys.stderr, flush=True)
    return Outcome(_lines(out), f"{name}: {last_words(err) or f'exit status {process.returncode}'}" if process.returncode else "")


def last_words(errors: str) -> str:
    """The last line of a program's errors that says something."""
    return next((line.strip()[:300] for line in reversed(errors.splitlines()) if any(map(str.isalpha, line))), "")


def _lines(text: str) -> dict[str, dict[str, Any]]:
    out = {}
    for line in text.splitlines():
        try:
            item = json.loads(line)
            out[item["name"]] = item
        except (ValueError, TypeError, KeyError):  # not a result
            continue
    return out


def build_cpp(fast_math: bool) -> Path:
    """Compile ``mc.cu`` for this machine's GPU; the binary is kept under ``out/`` until its sources change."""
    sources = [BASELINES / f for f in ("mc.cu", "generators.cuh", "timing.cuh")]
    options = ["-O3", "-arch=native", *(["-use_fast_math", "-DFAST_MATH"] if fast_math else [])]
    key = hashlib.sha256(b"\0".join([*(p.read_bytes() for p in sources), nvcc_version().encode(), *(o.encode() for o in options)]))
    binary = BUILT / f"mc-{key.hexdigest()[:16]}"
    if binary.exists():
        return binary
    BUILT.mkdir(parents=True, exist_ok=True)
    for site in sys.path:  # cuRAND's headers, for a toolkit without them
        include = Path(site) / "nvidia" / "cu13" / "include"
        if (include / "curand_kernel.h").exists():
            options += ["-Xcompiler", f"-idirafter,{include}"]
            break
    part = binary.with_suffix(f".{os.getpid()}")
    subprocess.run([_nvcc(), *options, sources[0].name, "-o", str(part)], check=True, capture_output=True, text=True, cwd=BASELINES)
    os.replace(part, binary)
    return binary


class Peers:
    """The baselines of one run; each program runs once however many rows it serves."""

    def __init__(self, enabled: bool = True, deadline: float = float("inf"), conv_sizes: Mapping[str, list[int]] | None = None):
        self.enabled, self._deadline = enabled, deadline
        self.conv_sizes = dict(conv_sizes or {})  # which sizes' rows were asked for, by dtype: nvmath-python builds them side by side
        self._done: dict[tuple, Outcome] = {}
        self._cpp: dict[bool, Future[Path]] = {}

    def start_building(self) -> None:
        """Compile the C++ baselines in the background."""
        if self.enabled and _nvcc() and not self._cpp:
            pool = ThreadPoolExecutor(2)
            self._cpp = {fast: pool.submit(build_cpp, fast) for fast in (False, True)}

    def _once(self, command: tuple[str, ...], env: Mapping[str, str] | None) -> Outcome:
        if command not in self._done:
            left = self._deadline - time.monotonic()
            self._done[command] = run(command, env, timeout=min(300, max(20, left)))
        return self._done[command]

    def python(self, script: str, *args: object) -> Outcome:
        """A Python baseline's outcome."""
        if not self.enabled:
            return Outcome({})
        env = None
        if script.startswith("nvmath"):
            env = nvmath_environment()
            if env is None:
                return Outcome({}, f"{script}: DEVMATH_BASELINE_SITE names no folder with nvmath-python")
        return self._once((sys.executable, str(BASELINES / script), *map(str, args)), env)

    def cpp(self, fast_math: bool, *args: str) -> Outcome:
        """The C++ baselines' outcome."""
        if not self.enabled:
            return Outcome({})
        if _nvcc() is None:
            return Outcome({}, "mc.cu: nvcc was not found")
        self.start_building()
        try:
            binary = self._cpp[fast_math].result()
        except subprocess.CalledProcessError as e:
            return Outcome({}, f"mc.cu: {(e.stderr.strip().splitlines() or ['nvcc failed'])[0][:300]}")
        return self._once((str(binary), *args), None)

    def nvmath_fft(self, dtype: str) -> Outcome:
        """nvmath-python's fused convolution for all sizes of *dtype* that were asked for."""
        jobs = max(1, (os.cpu_count() or 2) - 2)
        return self.python("nvmath_fft.py", "--dtype", dtype, "--candidates", 2, "--jobs", jobs, "--sizes", *self.conv_sizes[dtype])
