"""``devmath info | demo | tune | cache | reference``."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence

from . import __version__, arch, cache, reference
from .codegen import link, mathdx, nvrtc, versions
from .tuning import cli as tune


def _ask(question: Callable[[], object]) -> str:
    """An answer for ``info``, or why there is none: info never raises."""
    try:
        return str(question())
    except Exception as e:
        return f"not available ({str(e).splitlines()[0] if str(e) else type(e).__name__})"


def _dotted(version: Sequence[int] | None) -> str:
    return "not found" if version is None else ".".join(map(str, version))


def _package(*names: str) -> Callable[[], str]:
    return lambda: next((f"{v} ({n})" for n in names if (v := versions.installed(n))), "not installed")


def _driver() -> str:
    from .device import driver_version

    found = driver_version()
    return f"CUDA {_dotted(found)}" if found else "not found"


def _nvvm() -> str:
    package = _package("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")()
    if package != "not installed":
        return package
    try:
        from cuda import pathfinder
        from cuda.bindings import nvvm
    except ImportError:
        return package
    major, minor = nvvm.ir_version()[:2]  # of a toolkit; the library does not know its CUDA version
    return f"IR {major}.{minor} ({pathfinder.load_nvidia_dynamic_lib('nvvm').abs_path})"


def _devices() -> str:
    n = arch.device_count()
    if n == 0:
        return "none"
    return ", ".join(f"{i}: compute capability {arch.of_device(i).major}.{arch.of_device(i).minor} ({arch.of_device(i)})" for i in range(n))


def _cache() -> str:
    found = cache.info()
    state = "" if found.enabled else ", off"
    return f"{found.directory} ({found.entries} entries, {found.bytes / 2**20:.1f} MiB of {found.limit / 2**20:.0f} MiB{state})"


def info() -> list[tuple[str, str]]:
    """What ``devmath info`` prints: name and value of each line."""
    lines: list[tuple[str, Callable[[], object]]] = [
        ("devmath", lambda: __version__),
        ("Python", platform.python_version),
        ("NumPy", _package("numpy")),
        ("numba", _package("numba")),
        ("rocket-fft", _package("rocket-fft")),
        ("numba-cuda", _package("numba-cuda")),
        ("driver", _driver),
        ("devices", _devices),
        ("NVRTC", lambda: _dotted(nvrtc.version())),
        ("nvJitLink", lambda: _dotted(link.version())),
        ("NVVM", _nvvm),
        ("libmathdx", lambda: _dotted(mathdx.version())),
        ("cache", _cache),
    ]
    return [(name, _ask(question)) for name, question in lines]


def _cache_command(what: str) -> int:
    if what == "clear":
        print(f"{cache.clear()} entries removed from {cache.directory()}")
        return 0
    found = cache.info()
    print(f"folder   {found.directory}{'' if found.enabled else ' (off)'}{'' if found.writable else ' (not writable)'}")
    print(f"size     {found.bytes / 2**20:.1f} MiB of {found.limit / 2**20:.0f} MiB")
    for kind, usage in found.kinds.items():
        print(f"{kind:<8} {usage.entries} entries, {usage.bytes / 2**20:.1f} MiB")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command ``devmath``."""
    parser = argparse.ArgumentParser(prog="devmath", description="Device math libraries inside kernels written in Python.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="info | demo | tune | cache | reference")
    commands.add_parser("info", help="print the versions of everything that takes part")
    commands.add_parser("demo", help="price options on a real price series, and say where it ran", add_help=False)
    tune.add_parser(commands)
    caching = commands.add_parser("cache", help="look at or empty the cache of compiled code")
    caching.add_argument("what", choices=["info", "clear"])
    pages = commands.add_parser("reference", help="print the reference page of a plan's device functions")
    pages.add_argument("plan", choices=[kind.kind_name for kind in reference.plans()])
    args, rest = parser.parse_known_args(argv)
    if args.command == "demo":
        from .demo import main as demo

        return demo(rest)
    if rest:
        parser.error(f"unknown argument {rest[0]}")
    if args.command == "reference":
        print(reference.page(next(k for k in reference.plans() if k.kind_name == args.plan)), end="")
        return 0
    if args.command == "tune":
        return tune.run(args)
    if args.command == "cache":
        return _cache_command(args.what)
    for name, value in info():
        print(f"{name:<12} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
