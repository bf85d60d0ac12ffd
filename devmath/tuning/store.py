"""What was measured, kept for the next process: a folder with a JSON file for each question.

The folder is ``DEVMATH_TUNING_DIR``, or the one that platformdirs names for this user's data of devmath. A file is written whole and renamed, so that
processes may share the folder: of two that answer the same question the last one counts.

A file, and an element of an exported one::

    {"schema": 1,
     "key": {"plan": {...}, "pattern": "convolution", "batch": 262144, "arch": "sm_90a", "gpu": "NVIDIA H200", "driver": "CUDA 13.0",
             "libmathdx": "...", "devmath": "..."},
     "knobs": {"implementation": "devmath", "elements_per_thread": 16, ...} or null where the default is the fastest,
     "ms": 0.51, "default_ms": 0.55, "batch": 262144, "date": "2026-12-07T10:00:00+00:00",
     "trials": [{"knobs": {...}, "ms": 0.51}, {"knobs": {...}, "dropped": "wrong result: ..."}]}

``batch`` in the key is a power of two, the measured batch rounded up.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import cache
from ..errors import DevmathError, TuningError
from ..plan import from_json

SCHEMA = 1
_NAME = re.compile(r"tuning-[0-9a-f]{64}\.json")
_KEY = {"plan": dict, "pattern": str, "batch": int | None, "arch": str, "gpu": str, "driver": str, "libmathdx": str, "devmath": str}
#: What an answer holds for besides the question: without a GPU it is not known.
_OF_DEVICE = ("gpu", "driver")

Entry = dict[str, Any]


class _Newer(TuningError):
    """An entry of a newer devmath."""


def directory() -> Path:
    """The folder, which need not exist."""
    if chosen := os.environ.get("DEVMATH_TUNING_DIR"):
        return Path(os.path.expanduser(chosen))
    import platformdirs

    return platformdirs.user_data_path("devmath") / "tuning"


@functools.cache
def code_version() -> str:
    """devmath's version and a hash over the sources that decide what code comes out, and what is the default."""
    from .. import __version__

    root = Path(__file__).parents[1]
    parts = ("fft", "lto", "codegen", "targets")
    h = hashlib.sha256()
    for path in sorted(p for part in parts for p in (root / part).rglob("*") if p.suffix in (".py", ".json", ".cu", ".cuh", ".h")):
        h.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__} {h.hexdigest()[:16]}"


def today() -> str:
    """The time now, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def check(entry: Any) -> Entry:
    """An entry as it was read; ValueError where it is none, :class:`TuningError` where a newer devmath wrote it."""
    if not isinstance(entry, dict) or type(entry.get("schema")) is not int:
        raise ValueError("it is not an entry")
    if entry["schema"] > SCHEMA:
        raise _Newer(f"{_newer(entry['schema'])}, or name another folder in DEVMATH_TUNING_DIR, or empty this one with `devmath tune clear`")
    key, knobs = entry.get("key"), entry.get("knobs")
    if not isinstance(key, dict) or set(key) != set(_KEY) or not all(isinstance(key[k], t) for k, t in _KEY.items()):
        raise ValueError("its key is not one")
    if not (knobs is None or isinstance(knobs, dict)) or not all(isinstance(entry.get(k), int | float) for k in ("ms", "default_ms")):
        raise ValueError("it has no knobs or times")
    if not isinstance(entry.get("date"), str) or not isinstance(entry.get("trials"), list):
        raise ValueError("it has no date or trials")
    try:
        plan = from_json(json.dumps(key["plan"]))
        plan.replace(**(knobs or {}))
    except (DevmathError, TypeError, ValueError) as e:
        raise ValueError(f"it is of no valid plan ({e})") from None
    return entry


def _newer(schema: int) -> str:
    return f"it was written by a newer devmath (schema {schema}; this one reads up to {SCHEMA}): upgrade devmath"


def name_of(key: Mapping[str, Any]) -> str:
    """The name of the file that answers a question."""
    return f"tuning-{cache.digest(dict(key))}.json"


def load(key: Mapping[str, Any]) -> Entry | None:
    """The answer to a question, ``None`` if there is none that can be read (a damaged one is a warning)."""
    entry = _read(directory() / name_of(key))
    return entry if entry is not None and entry["key"] == dict(key) else None


def find(key: Mapping[str, Any]) -> Entry | None:
    """The newest answer to a question on whichever GPU of its architecture."""
    same = [k for k in _KEY if k not in _OF_DEVICE]
    found = [e for e in entries() if all(e["key"][k] == key[k] for k in same)]
    return max(found, key=lambda e: e["date"], default=None)


def save(entry: Entry) -> bool:
    """Keep an answer; ``False``, with a warning, where the disk refuses."""
    folder = directory()
    path = folder / name_of(entry["key"])
    temporary = folder / f"{path.name}.{os.urandom(8).hex()}.tmp"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink()
        warnings.warn(f"what was measured cannot be kept in {folder}: {e}", RuntimeWarning, 4)
        return False
    return True


def entries() -> list[Entry]:
    """All answers, the oldest first."""
    found = [_read(path) for path in _files()]
    return sorted((e for e in found if e is not None), key=lambda e: (e["date"], json.dumps(e["key"], sort_keys=True)))


def clear() -> int:
    """Remove all answers, those that cannot be read as well, and say how many."""
    count = 0
    for path in _files():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            count += 1
    return count


def export(path: str | os.PathLike) -> int:
    """Write all answers to one file, for :func:`import_` on another machine, and say how many."""
    found = entries()
    Path(path).write_text(json.dumps({"schema": SCHEMA, "entries": found}, indent=1) + "\n", encoding="utf-8")
    return len(found)


def import_(path: str | os.PathLike) -> int:
    """Keep the answers of a file that :func:`export` wrote, in place of older ones to the same questions, and say how many there were to keep.

    :class:`TuningError` where the file is none of these, or a newer devmath's; nothing is kept then.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or type(content.get("schema")) is not int:
            raise ValueError("it is no file of `devmath tune export`")
        if content["schema"] > SCHEMA:
            raise _Newer(_newer(content["schema"]))
        if not isinstance(content.get("entries"), list):
            raise ValueError("it has no entries")
        found = [check(e) for e in content["entries"]]
    except OSError as e:
        raise TuningError(f"{path} cannot be read: {e.strerror or e}") from None
    except (_Newer, ValueError) as e:
        raise TuningError(f"{path} cannot be imported: {e}") from None
    count = 0
    for entry in found:
        there = load(entry["key"])
        if there is None or there["date"] < entry["date"]:
            count += save(entry)
    return count


def _files() -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(p for p in directory().iterdir() if _NAME.fullmatch(p.name))
    return []


def _read(path: Path) -> Entry | None:
    try:
        entry = check(json.loads(path.read_text(encoding="utf-8")))
        if name_of(entry["key"]) != path.name:
            raise ValueError("its key is not that of its name")
    except OSError:
        return None
    except _Newer as e:
        raise TuningError(f"{path}: {e}") from None
    except (ValueError, RecursionError) as e:
        warnings.warn(f"{path} is damaged and ignored ({e}); `devmath tune clear` removes it", RuntimeWarning, 4)
        return None
    return entry
