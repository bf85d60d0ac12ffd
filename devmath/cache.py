"""What was compiled once, kept on disk for the next process.

An entry is a payload of bytes and a small JSON `meta`, found by a kind and a key; the key is `digest` of all that the
payload depends on. Entries are checked completely on reading and never unpickled; a disk that is read-only or full only
costs speed (`load` returns None, `store` False), and processes may share the folder.

Environment, read at every call:

- ``DEVMATH_CACHE_DIR``: the folder, instead of the one that platformdirs names for this user.
- ``DEVMATH_CACHE_SIZE``: the limit in bytes, or with a suffix K, M or G (powers of 1024); 2 GiB if not set.
- ``DEVMATH_CACHE``: ``0`` turns the disk off.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["KINDS", "Entry", "Info", "Usage", "clear", "digest", "directory", "info", "load", "once", "store"]

KINDS = ("ltoir", "traits", "kernel", "tuning")

_SCHEMA = 1  # of the file format and of `digest`: a change of either needs a new number
_MAGIC = b"devmath\0"
_FIXED = struct.Struct("<8sII")  # magic, schema, length of the JSON header
_CHECK = hashlib.sha256().digest_size
_NAME = re.compile(rf"({'|'.join(KINDS)})-[0-9a-f]{{64}}\.(devmath|[0-9a-f]{{16}}\.tmp)")

_KEEP = 0.8  # an eviction goes down to this part of the limit, so that the next one is not due at once
_SCAN = 1 / 20  # the folder is scanned after this part of the limit has been stored
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_HOUR = 3600.0  # of both the age of a stale temporary file and the resolution of "recently used"


class Entry(NamedTuple):
    """A cached result: `meta` is JSON (string keys; tuples come back as lists), `payload` the bytes."""

    meta: dict[str, Any]
    payload: bytes


class Usage(NamedTuple):
    """How many entries there are, and their size in bytes."""

    entries: int
    bytes: int


class Info(NamedTuple):
    """The state of the cache: `limit` and `bytes` in bytes, `kinds` the part of each kind."""

    directory: Path
    entries: int
    bytes: int
    limit: int
    writable: bool
    enabled: bool
    kinds: dict[str, Usage]


class _File(NamedTuple):
    mtime: float
    path: str
    size: int
    kind: str
    temporary: bool


class _Slot:
    """What the threads that want the same entry at the same time share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.entry: Entry | None = None


_guard = threading.Lock()
_slots: dict[str, _Slot] = {}
_unscanned: dict[str, int] = {}  # bytes that this process stored in a folder since it last scanned it
_refused: set[str] = set()


def _after_fork() -> None:  # a lock that another thread held at the fork stays locked in the child
    global _guard, _slots
    _guard, _slots = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def directory() -> Path:
    """The cache folder, which need not exist: ``DEVMATH_CACHE_DIR``, or the user's cache folder for devmath."""
    if chosen := os.environ.get("DEVMATH_CACHE_DIR"):
        return Path(os.path.expanduser(chosen))
    import platformdirs

    return platformdirs.user_cache_path("devmath")


def digest(*parts: object) -> str:
    """The SHA-256 (64 hexadecimal digits) of a schema number and `parts`, the same in every process.

    A part is None, bool, int, float, str, bytes, or a tuple, list or dict of parts. Values of different types differ
    (``1``, ``True``, ``1.0`` and ``"1"``; a tuple and a list), floats are taken by their bits (``-0.0`` is not ``0.0``,
    a nan equals itself), the order of a dict does not matter. TypeError for any other type, subclasses included: an
    enum or a NumPy scalar would otherwise pass for the plain value it derives from.
    """
    return hashlib.sha256(_encoded((_SCHEMA, parts))).hexdigest()


def _encoded(value: Any) -> bytes:
    """An encoding of `value` that no other encoding starts with, so that encodings can be put one after the other."""
    kind = type(value)
    if value is None:
        return b"n"
    if kind is bool:
        return b"T" if value else b"F"
    if kind is int:
        return b"i%x;" % value
    if kind is float:
        return b"f" + struct.pack("<d", value)
    if kind is str:
        data = value.encode("utf-8", "surrogatepass")
        return b"s%d:" % len(data) + data
    if kind is bytes:
        return b"b%d:" % len(value) + value
    if kind in (tuple, list):
        return (b"(%d:" if kind is tuple else b"[%d:") % len(value) + b"".join(map(_encoded, value))
    if kind is dict:
        return b"{%d:" % len(value) + b"".join(sorted(map(_encoded, value.items())))
    valid = "None, bool, int, float, str, bytes, tuple, list and dict themselves"
    raise TypeError(f"`digest` got a {kind.__module__}.{kind.__qualname__} ({value!r:.60}); valid are {valid}")


def load(kind: str, key: str) -> Entry | None:
    """The entry of `kind` (one of `KINDS`) under `key` (from `digest`), or None if there is none that is whole.

    A damaged entry is removed. ValueError for another kind, a key that is no digest, or a bad environment variable.
    """
    name = _name(kind, key)
    root = _root()
    if root is None:
        return None
    path = os.path.join(root, name)
    try:
        with open(path, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | _NO_LINK)) as file:
            mtime = os.fstat(file.fileno()).st_mtime
            data = file.read()
    except OSError:
        return None
    entry = _unpack(data, kind, key)
    if entry is None:
        _remove(path)
    elif abs(time.time() - mtime) > _HOUR:
        with contextlib.suppress(OSError):
            os.utime(path)
    return entry


def store(kind: str, key: str, payload: bytes, meta: dict[str, Any] | None = None) -> bool:
    """Keep `payload` and `meta` (what JSON can hold) under `kind` and `key`, replacing what was there.

    False when the disk is off or refuses, or when the entry alone would take more than 80 % of the limit. The errors
    are those of `load`, and TypeError for a `meta` that is not JSON or a `payload` that is not bytes.
    """
    name = _name(kind, key)
    data = _pack(kind, key, payload, {} if meta is None else meta)
    limit = _limit()
    root = _root(make=True)
    if root is None or len(data) > _KEEP * limit:
        return False
    if not _write(os.path.join(root, name), data):
        return False
    with _guard:
        unscanned = _unscanned.get(root, limit) + len(data)  # the first store scans
        scan = unscanned > _SCAN * limit
        _unscanned[root] = 0 if scan else unscanned
    if scan:
        _evict(root, limit)
    return True


def once(kind: str, key: str, build: Callable[[], tuple[bytes, dict[str, Any]]]) -> Entry:
    """The entry of `kind` and `key`; if there is none, ``payload, meta = build()`` makes it and it is stored.

    Threads of this process that ask for the same entry at the same time share one build, even with the disk off; other
    processes may build it as well. What `build` raises is raised here, and the next thread that waits tries again.
    """
    name = _name(kind, key)
    with _guard:
        slot = _slots.setdefault(name, _Slot())
        slot.users += 1
    try:
        with slot.lock:
            slot.entry = slot.entry or load(kind, key)
            if slot.entry is None:
                payload, meta = build()
                store(kind, key, payload, meta)
                # Through JSON, so that the first process sees the same `meta` as those that read it from the disk.
                slot.entry = Entry(json.loads(json.dumps(meta)), payload)
            return slot.entry
    finally:
        with _guard:
            slot.users -= 1
            if not slot.users:
                _slots.pop(name, None)


def info() -> Info:
    """What the cache holds and whether it can be used; `writable` is asked of the nearest folder that exists."""
    root = directory()
    files = [file for file in _scan(str(root)) if not file.temporary]
    sizes = {kind: [file.size for file in files if file.kind == kind] for kind in KINDS}
    existing = next((folder for folder in (root, *root.parents) if os.path.lexists(folder)), root)
    return Info(
        directory=root,
        entries=len(files),
        bytes=sum(file.size for file in files),
        limit=_limit(),
        writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        enabled=_enabled() and _trusted(str(root), missing=True),
        kinds={kind: Usage(len(of_kind), sum(of_kind)) for kind, of_kind in sizes.items()},
    )


def clear(kind: str | None = None) -> int:
    """Remove all entries, or those of `kind`, and say how many; works with ``DEVMATH_CACHE=0`` as well.

    Unfinished temporary files go too (a writer at work then stores nothing); other files in the folder stay.
    """
    if kind is not None:
        _check_kind(kind)
    root = str(directory())
    if not _trusted(root):
        return 0
    return sum(_remove(file.path) and not file.temporary for file in _scan(root) if kind in (None, file.kind))


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not a kind of cache entry; valid are {', '.join(map(repr, KINDS))}")


def _name(kind: str, key: str) -> str:
    _check_kind(kind)
    name = f"{kind}-{key}.devmath"
    if not _NAME.fullmatch(name):
        raise ValueError(f"key={key!r} is not a key: it must be 64 lower-case hexadecimal digits, from `digest(...)`")
    return name


def _enabled() -> bool:
    value = os.environ.get("DEVMATH_CACHE", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"DEVMATH_CACHE={value!r} is not valid; 0 turns the disk cache off, 1 or nothing leaves it on")
    return value != "0"


def _limit() -> int:
    value = os.environ.get("DEVMATH_CACHE_SIZE") or "2G"
    match = re.fullmatch(r"([0-9]{1,18})([KMGkmg]?)", value)
    if match is None:
        valid = "a whole number of bytes, or one with the suffix K, M or G, such as 500M or 2G"
        raise ValueError(f"DEVMATH_CACHE_SIZE={value!r} is not a size; valid is {valid}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def _root(make: bool = False) -> str | None:
    """The folder if it exists (or could be made) and may be used."""
    _limit()  # a bad value is told before something is built, not when the result is lost
    if not _enabled():
        return None
    root = str(directory())
    if make:
        _make_private(root)
    return root if _trusted(root) else None


def _make_private(folder: str) -> None:
    if folder and not os.path.isdir(folder):
        _make_private(os.path.dirname(folder))
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)


def _trusted(root: str, missing: bool = False) -> bool:
    """Whether nobody but this user can put entries into `root`, which end up as code on the GPU; warns once if not."""
    try:
        link = os.lstat(root)
        folder = os.stat(root)
    except OSError:
        return missing
    is_folder = stat.S_ISDIR(folder.st_mode)
    if not is_folder or not hasattr(os, "geteuid"):  # Windows keeps a user's folders private by access lists
        return is_folder
    if {link.st_uid, folder.st_uid} != {os.geteuid()}:
        reason = "belongs to another user"
    elif folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"can be written by others (mode {stat.S_IMODE(folder.st_mode):o}; `chmod 700` mends it)"
    else:
        return True
    if root not in _refused:
        _refused.add(root)
        cure = "set DEVMATH_CACHE_DIR to a folder of your own, or DEVMATH_CACHE=0 to do without"
        warnings.warn(f"devmath cannot use the cache folder {root!r}: it {reason}; {cure}", RuntimeWarning, 4)
    return False


def _pack(kind: str, key: str, payload: bytes, meta: dict[str, Any]) -> bytes:
    if not isinstance(payload, bytes):
        raise TypeError(f"payload is a {type(payload).__name__}; it must be bytes")
    header = json.dumps({"kind": kind, "key": key, "size": len(payload), "meta": meta}).encode()
    body = b"".join((_FIXED.pack(_MAGIC, _SCHEMA, len(header)), header, payload))
    return body + hashlib.sha256(body).digest()


def _unpack(data: bytes, kind: str, key: str) -> Entry | None:
    body = memoryview(data)[:-_CHECK]
    if len(body) < _FIXED.size or hashlib.sha256(body).digest() != data[-_CHECK:]:
        return None
    magic, schema, length = _FIXED.unpack_from(body)
    payload = bytes(body[_FIXED.size + length :])
    try:
        header = json.loads(bytes(body[_FIXED.size : _FIXED.size + length]))
        stated = magic, schema, header["kind"], header["key"], header["size"]
        entry = Entry(header["meta"], payload)
    except (ValueError, TypeError, KeyError):
        return None
    return entry if stated == (_MAGIC, _SCHEMA, kind, key, len(payload)) else None


def _write(path: str, data: bytes) -> bool:
    """Put `data` at `path` in one step; a symbolic link there is replaced, not followed."""
    temporary = f"{path.removesuffix('.devmath')}.{os.urandom(8).hex()}.tmp"
    try:
        file = os.open(temporary, _CREATE, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)  # network file systems report a full disk only here
        finally:
            os.close(file)
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if not isinstance(error, OSError):
            raise
        return False
    return True


def _scan(root: str) -> list[_File]:
    """The files in `root` that this module made, the least recently used first."""
    files = []
    with contextlib.suppress(OSError), os.scandir(root) as found:
        for item in found:
            if (match := _NAME.fullmatch(item.name)) and item.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    status = item.stat(follow_symlinks=False)
                    files.append(_File(status.st_mtime, item.path, status.st_size, match[1], match[2] != "devmath"))
    return sorted(files)


def _evict(root: str, limit: int) -> None:
    files = _scan(root)
    total = sum(file.size for file in files if not file.temporary)
    goal = total if total <= limit else _KEEP * limit
    for file in files:
        if file.temporary and time.time() - file.mtime > _HOUR:  # its writer was killed
            _remove(file.path)
        elif not file.temporary and total > goal and _remove(file.path):
            total -= file.size


def _remove(path: str) -> bool:
    """Whether `path` is gone; two processes may remove the same file."""
    try:
        os.unlink(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True
