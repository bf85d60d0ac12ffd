"""Kernels compiled in processes side by side: threads do not help, since NVRTC and libmathdx take one at a time.

A worker is a fresh Python that reads a job a line and answers with a line, both JSON. It does not import the program that started it, so that a
script may tune at its top level, and it sees no GPU.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .. import arch as _arch
from ..arch import Arch
from ..kernel import Linked
from ..plan import Plan, from_json
from . import subjects

_CODE = "from devmath.tuning.workers import serve; serve()"


class Built(NamedTuple):
    """What became of a job: a kernel for each pattern, or why there is none."""

    kernels: tuple[Linked, ...]
    error: str


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def build(plan: Plan, patterns: Sequence[str], arch: Arch) -> list[Linked]:
    """Compile devmath's own kernels of a plan for an architecture, in this process."""
    cases = [subjects.of(plan).Case(plan, p) for p in patterns]
    return [c.kernel.linked(c.types, arch) for c in cases]


class Workers:
    """Processes that compile; ``with Workers(4) as pool: pool.submit(...)``. Leaving it ends them, whatever they are at."""

    def __init__(self, count: int | None = None):
        self.count = max(1, cores() if count is None else count)
        self._threads = ThreadPoolExecutor(self.count, "devmath-tune")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen] = []
        self._closed = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            _end(process)

    def submit(self, plan: Plan, patterns: Sequence[str], arch: Arch) -> Future[Built]:
        """Compile devmath's own kernels of a plan, one for each pattern, for an architecture; jobs are taken in the order of their submission."""
        return self._threads.submit(self._run, {"plan": plan.to_json(), "patterns": list(patterns), "arch": arch.name})

    def _run(self, job: dict[str, Any]) -> Built:
        process = self._process()
        if process is None:
            return Built((), "stopped")
        assert process.stdin is not None and process.stdout is not None
        line = ""
        with contextlib.suppress(OSError):  # it ended before it read
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            code = _end(process)
            self._own.process = None
            return Built((), "stopped" if self._closed else f"the process that compiled it ended with code {code}")
        answer = json.loads(line)
        if "error" in answer:
            return Built((), answer["error"])
        return Built(tuple(_unpacked(k) for k in answer["kernels"]), "")

    def _process(self) -> subprocess.Popen | None:
        """This thread's process."""
        process = getattr(self._own, "process", None)
        if process is None:
            with self._lock:
                if self._closed:
                    return None
                process = self._own.process = _start()
                self._processes.append(process)
        return process


def _start() -> subprocess.Popen:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _CODE]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment, text=True, encoding="utf-8")


def _end(process: subprocess.Popen) -> int:
    """Close the pipes of a process that has ended, or is about to; its exit code."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not written is not wanted any more
            pipe.close()  # type: ignore[union-attr]
    return process.wait()


def _packed(kernel: Linked) -> dict[str, Any]:
    plans = [[plan.to_json(), cooperative] for plan, cooperative in kernel.plans]
    return {"cubin": base64.b64encode(kernel.cubin).decode(), "name": kernel.name, "plans": plans, "arch": kernel.arch.name}


def _unpacked(data: dict[str, Any]) -> Linked:
    plans = tuple((from_json(p), bool(c)) for p, c in data["plans"])
    return Linked(base64.b64decode(data["cubin"]), data["name"], plans, _arch.parse(data["arch"]))


def serve() -> None:
    """What a worker does: answer each line of the standard input with one of the standard output, until there is no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    for line in sys.stdin:
        job = json.loads(line)
        try:
            kernels = build(from_json(job["plan"]), job["patterns"], _arch.parse(job["arch"]))
            answer: dict[str, Any] = {"kernels": [_packed(k) for k in kernels]}
        except Exception as e:
            answer = {"error": reason(e)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def reason(error: BaseException) -> str:
    """An error as one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
