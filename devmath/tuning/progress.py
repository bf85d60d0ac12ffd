"""A line on the standard error that says how far tuning is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

#: Called with how many of how many candidates are done, and what is being done.
Progress = Callable[[int, int, str], Any]


def reporter(progress: bool | Progress | None, what: str) -> Progress:
    """The function to report to: the user's own; a line where that is asked for or, with ``None``, where somebody is looking; or nothing."""
    if callable(progress):
        return progress
    if progress is None:
        progress = sys.stderr.isatty()
    return _Line(what) if progress else lambda done, total, text: None


class _Line:
    """One line, written over until all is done."""

    def __init__(self, what: str):
        self._what, self._length = what, 0

    def __call__(self, done: int, total: int, text: str) -> None:
        line = f"tuning {self._what}: {text} {done} of {total}"
        end = "\n" if text == "measured" and done == total else ""
        sys.stderr.write("\r" + line.ljust(self._length) + end)
        sys.stderr.flush()
        self._length = len(line)
