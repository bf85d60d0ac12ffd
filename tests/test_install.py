"""Installations of all kinds: without the device packages, with versions that do not fit, and what importing and `devmath info` cost."""

import pytest
from support import python

import devmath as dm
from devmath import cli

#: Hides the device packages from a fresh process: their modules cannot be imported and their metadata is not there.
WITHOUT_DEVICE_PACKAGES = """
import importlib.metadata, sys

class Without:  # a finder that does not find them
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        gone = name.partition(".")[0] in ("numba_cuda", "cuda", "nvidia", "cupy", "torch")
        return None if gone else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(f) for f in sys.meta_path if type(f).__module__ != "_numba_cuda_redirector"]
from_name = importlib.metadata.Distribution.from_name.__func__

def hidden(cls, name):
    if name.startswith(("numba-cuda", "cuda-", "nvidia-")):
        raise importlib.metadata.PackageNotFoundError(name)
    return from_name(cls, name)

importlib.metadata.Distribution.from_name = classmethod(hidden)
"""

CPU_PART = """
import numpy as np, devmath as dm
from numba import cuda
fft, rng = dm.fft.FFT(60), dm.random.Philox()
ifft = fft.inverse()

@cuda.jit(device=True)
def halve(r, n):
    for i in range(n):
        r[i] *= np.float32(0.5)

@dm.kernel
def smooth(x, y, noise):
    r, s, b = fft.registers(), fft.scratch(), fft.batch()
    if b < x.shape[0]:
        fft.load(x[b], r)
    fft.execute(r, s)
    halve(r, fft.elements_per_thread)
    ifft.execute(r, s)
    if b < x.shape[0]:
        fft.store(r, y[b])
        state = rng.new_state()
        rng.seed(state, 1, b, 0)
        noise[b] = rng.normal(state)

x = np.random.default_rng(0).standard_normal((5, 60)).astype(np.complex64)
y, noise = np.zeros_like(x), np.zeros(5, np.float32)
smooth[fft.launch(5)](x, y, noise)
assert np.allclose(y, 30 * x, atol=1e-4) and len(set(noise)) == 5
assert dm.from_json(fft.to_json()) == fft and fft.block_dim == (1, 1, 1)
"""

REFUSED = """
def advice(work):
    try:
        work()
    except ImportError as e:
        text = str(e)
        assert "pip install 'devmath[cu13]'" in text and "\\n" not in text, text
        return
    raise AssertionError("nothing was raised")

advice(lambda: dm.compile(smooth, "void(complex64[:,::1], complex64[:,::1], float32[::1])", "sm_90a"))
advice(lambda: fft.traits("sm_90a"))
advice(lambda: fft.valid_knobs("sm_90a"))
try:
    dm.kernel(smooth.py_func, target="gpu")[fft.launch(5)](x, y, noise)
except TypeError as e:
    assert "host memory" in str(e)
from devmath import cli
assert cli.main(["info"]) == 0
"""


def test_the_cpu_part_works_without_the_device_packages():
    """And the device part says in one line what to install (case 42)."""
    printed = python(WITHOUT_DEVICE_PACKAGES + CPU_PART + REFUSED)
    for name in ("numba-cuda", "NVVM"):
        assert f"{name:<12} not installed" in printed
    for name in ("NVRTC", "nvJitLink", "libmathdx"):
        assert f"{name:<12} not available (" in printed
    assert f"{'driver':<12} not found" in printed


def test_a_saved_kernel_is_read_without_the_device_packages(tmp_path):
    @dm.kernel
    def nothing(x):
        x[0] = 1

    dm.compile(nothing, "void(float32[::1])", "sm_90a").save(tmp_path / "k")
    code = "import sys, devmath as dm; print(dm.load(sys.argv[1]).launch_shape((3, 32)))"
    assert "x=3" in python(WITHOUT_DEVICE_PACKAGES + code, str(tmp_path / "k"))


# --- devmath info (case 39) -------------------------------------------------------------------------------------------

LINES = [
    "devmath", "Python", "NumPy", "numba", "rocket-fft", "numba-cuda", "driver", "devices", "NVRTC", "nvJitLink", "NVVM", "libmathdx",
    "cache",
]  # fmt: skip


def names(printed):
    return [line[:12].strip() for line in printed.splitlines()]


def test_info_names_everything_that_takes_part(capsys):
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert names(printed) == LINES
    answers = {line[:12].strip(): line[12:].strip() for line in printed.splitlines()}
    assert all(answers.values())
    assert answers["devmath"] == dm.__version__
    for tool in ("numba-cuda", "NVRTC", "nvJitLink", "libmathdx"):
        assert answers[tool][0].isdigit()
    assert answers["NVVM"][0].isdigit() or answers["NVVM"].startswith("IR ")  # a package, or a toolkit's library


def test_info_finds_the_nvvm_of_a_toolkit(monkeypatch):
    monkeypatch.setattr(cli.versions, "installed", lambda name: None)
    assert dict(cli.info())["NVVM"].startswith("IR 2.0 (/")


@pytest.mark.parametrize(
    "environment",
    [
        {"DEVMATH_LIBMATHDX": "/nowhere/libmathdx.so.0"},
        {"DEVMATH_LIBMATHDX": __file__},
        {"DEVMATH_CACHE_DIR": "/proc/nowhere", "DEVMATH_CACHE_SIZE": "plenty"},
        {"DEVMATH_CACHE": "0", "CUDA_VISIBLE_DEVICES": ""},
    ],
    ids=lambda e: " ".join(e),
)
def test_info_never_raises(environment, monkeypatch, capsys):
    """Whatever is missing or set to nonsense."""
    code = "from devmath import cli; raise SystemExit(cli.main(['info']))"
    assert names(python(code, **environment)) == LINES


def test_info_answers_for_each_part_alone(monkeypatch):
    """A part that fails in any way is a line, the others stay."""

    def broken(*args, **kwargs):
        raise RuntimeError("broken\nwith a second line")

    for module, name in (
        (cli.nvrtc, "version"), (cli.link, "version"), (cli.mathdx, "version"), (cli.cache, "info"), (cli.arch, "device_count"),
        (cli.versions, "installed"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, broken)
    lines = dict(cli.info())
    assert list(lines) == LINES
    for name in ("NVRTC", "nvJitLink", "libmathdx", "cache", "devices", "numba-cuda", "NVVM"):
        assert lines[name] == "not available (broken)"


# --- versions (case 41) -----------------------------------------------------------------------------------------------

EXCLUDED = """
import devmath as dm
from devmath.codegen import mathdx, versions
from devmath.errors import VersionError

def refused(name, version, work):
    try:
        work()
    except VersionError as e:
        text = str(e)
        assert text.startswith(f"{name} {version} is not supported: devmath works with {name} >= "), text
        assert "pip install" in text and "\\n" not in text
        return
    raise AssertionError("nothing was raised")

@dm.kernel
def nothing(x):
    x[0] = 1

real = versions.installed
for version in ("0.29.9", "0.31.0"):
    versions.check_numba_cuda.cache_clear()
    versions.installed = lambda name: version if name == "numba-cuda" else real(name)
    refused("numba-cuda", version, lambda: dm.compile(nothing, "void(float32[::1])", "sm_90a"))
versions.installed = real
versions.check_numba_cuda.cache_clear()
dm.compile(nothing, "void(float32[::1])", "sm_90a")

for version in ((0, 3, 0), (0, 5, 0)):
    mathdx._library.cache_clear()
    mathdx._version = lambda lib: version
    refused("libmathdx", ".".join(map(str, version)), lambda: dm.fft.FFT(34).traits("sm_90a"))
for version in ((0, 3, 1), (0, 4, 9)):
    mathdx._library.cache_clear()
    mathdx.version.cache_clear()
    mathdx._version = lambda lib: version
    dm.fft.FFT(34).traits("sm_90a")
"""


def test_excluded_versions_are_refused_by_their_version(tmp_path):
    python(EXCLUDED, DEVMATH_CACHE_DIR=str(tmp_path))


# --- importing --------------------------------------------------------------------------------------------------------


def test_importing_loads_no_compiler_and_no_other_library():
    code = """
import sys
import devmath
maps = open("/proc/self/maps").read()
print([n for n in ("libnvrtc", "libnvJitLink", "libmathdx", "libnvvm") if n + ".so" in maps])
print([n for n in ("cupy", "torch", "matplotlib", "rocket_fft") if n in sys.modules])
"""
    assert python(code).split() == ["[]", "[]"]
