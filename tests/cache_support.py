"""What the tests of the disk cache share."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devmath import cache

KEY = cache.digest("a key")
OTHER = cache.digest("another key")
PAYLOAD = bytes(range(256)) * 8
META = {"symbol": "devmath_fft", "shape": [4, 8], "registers": 32}

# Another process loads the one file: it needs neither numba nor the rest of the package, so it starts at once.
LOADER = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("devmath_cache", {cache.__file__!r})
cache = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = cache
spec.loader.exec_module(cache)
"""


@pytest.fixture(name="folder")
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet; the environment names it."""
    path = tmp_path / "made" / "by" / "devmath"
    monkeypatch.setenv("DEVMATH_CACHE_DIR", str(path))
    monkeypatch.delenv("DEVMATH_CACHE", raising=False)
    monkeypatch.delenv("DEVMATH_CACHE_SIZE", raising=False)
    return path


def start(code: str, *args: object, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOADER + code, *map(str, args)]
    return subprocess.Popen(
        command, env=os.environ | env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def output(process: subprocess.Popen[str], told: str = "") -> str:
    out, err = process.communicate(told, timeout=60)
    assert process.returncode == 0, err
    return out


def path_of(folder: Path, kind: str = "kernel", key: str = KEY) -> Path:
    return folder / f"{kind}-{key}.devmath"


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def refuse(number: int):
    def refusing(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refusing
