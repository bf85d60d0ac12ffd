"""Kernels compiled ahead of time: for which architectures, in which file, loaded by whom, and what is refused with which words."""

import hashlib
import json
import struct

import numpy as np
import pytest
from numba import cuda
from numba import types as nbt
from support import host, noise, python

import devmath as dm
from devmath import arch
from devmath.artifact import _HEAD
from devmath.errors import ArgumentError, ArtifactError, LaunchError, PlanError
from devmath.fft import FFT
from devmath.random import Philox

rng_plan = Philox()
# Its traits, its scratch and its layout; nothing of it is generated, so that the kernel compiles quickly.
fft = FFT(64, elements_per_thread=8, ffts_per_block=4)


@dm.kernel
def scale(x, y, factor):
    r, s, b = fft.registers(), fft.scratch(), fft.batch()
    if b < x.shape[0]:
        fft.load(x[b], r)
        s[cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x] = r[0]
        for i in range(fft.elements_per_thread):
            r[i] *= factor
        fft.store(r, y[b])


SIGNATURE = "void(complex64[:,::1], complex64[:,::1], float32)"


@pytest.fixture(scope="module")
def compiled():
    return dm.compile(scale, SIGNATURE, ["sm_80", "sm_90a"])


# --- compiling --------------------------------------------------------------------------------------------------------


def test_one_and_several_architectures(compiled):
    assert compiled.archs == ["sm_80", "sm_90a"]
    assert compiled.cubin("sm_80") != compiled.cubin("sm_90a")
    assert all(compiled.cubin(a)[:4] == b"\x7fELF" for a in compiled.archs)
    assert compiled.plans == ((fft, True),)
    assert repr(compiled).startswith("<devmath compiled kernel scale(") and "for sm_80, sm_90a>" in repr(compiled)
    for one in ("sm_90a", "9.0a", (9, 0, "a"), arch.parse("sm_90a"), ["sm_90a"], ("sm_90a",), {"sm_90a"}):
        again = dm.compile(scale, SIGNATURE, one)
        assert again.archs == ["sm_90a"]
        assert again.cubin() == compiled.cubin("sm_90a")
    assert dm.compile(scale, SIGNATURE, (8, 0)).archs == ["sm_80"]
    assert dm.compile(scale, SIGNATURE, ["sm_80", "sm_80"]).archs == ["sm_80"]


def test_signatures_by_text_types_and_examples(compiled):
    rows = nbt.complex64[:, ::1]
    example = (np.zeros((1, 64), np.complex64), np.zeros((1, 64), np.complex64), np.float32(1))
    for signature in ((rows, rows, nbt.float32), [rows, rows, nbt.float32], nbt.void(rows, rows, nbt.float32), example, list(example)):
        again = dm.compile(scale, signature, "sm_90a")
        assert again.signature == compiled.signature == (rows, rows, nbt.float32)
        assert again.cubin() == compiled.cubin("sm_90a")


@pytest.mark.parametrize(
    "signature, words",
    [
        ("void(float32)", r"scale takes 3 arguments \(x, y, factor\), the signature has 1"),
        ("void(complex46[:], float32, float32)", "signature must be like 'void.*got 'void\\(complex46"),
        ("float32(complex64[:,::1], complex64[:,::1], float32)", "a kernel returns nothing, got a signature that returns float32"),
        (3, "signature must be like .* got 3"),
        ((object(), 1, 2), "signature must be like .*got \\(<object"),
        (("float33[:]", "int64", "int64"), "signature must be like .*float33"),
    ],
)
def test_wrong_signatures_say_what_is_valid(signature, words):
    with pytest.raises(ArgumentError, match=words):
        dm.compile(scale, signature, "sm_90a")


def test_wrong_kernels_and_architectures():
    with pytest.raises(TypeError, match="made by @devmath.kernel, got <function"):
        dm.compile(scale.py_func, SIGNATURE, "sm_90a")
    with pytest.raises(ValueError, match="arch must be one of 'sm_75'.*got 'sm_9'"):
        dm.compile(scale, SIGNATURE, "sm_9")
    for nothing in ([], ()):
        with pytest.raises(ValueError, match="arch.*at least one"):
            dm.compile(scale, SIGNATURE, nothing)
    if not arch.device_count():
        with pytest.raises(ValueError, match="no CUDA device was found: name an architecture"):
            dm.compile(scale, SIGNATURE)


def test_a_plan_that_an_architecture_cannot_run_is_refused_when_compiling():
    large = FFT(16384, ffts_per_block=2)

    @dm.kernel
    def too_large(x):
        large.load(x[0], large.registers())

    with pytest.raises((LaunchError, PlanError), match="FFT\\(16384\\).*sm_120"):
        dm.compile(too_large, "void(complex64[:,::1])", "sm_120")


# --- launch shapes, arguments -----------------------------------------------------------------------------------------


def test_launch_shapes_need_no_gpu(compiled):
    t = fft.traits("sm_90a")
    shape = compiled.launch_shape(fft.launch(9), "sm_90a")
    assert shape == ((3, 1, 1), tuple(t.block_dim), t.shared_memory_size)
    assert compiled.launch_shape((7, tuple(t.block_dim), 0, 20_000), "sm_90a") == ((7, 1, 1), tuple(t.block_dim), 20_000)
    assert compiled.launch_shape(fft.launch(0), "sm_80").grid.x == 0
    with pytest.raises(LaunchError, match=r"FFT\(64\).*needs blocks of \(8, 4, 1\).*gives \(32, 1, 1\)"):
        compiled.launch_shape((1, 32), "sm_90a")
    with pytest.raises(ValueError, match="arch must say which of sm_80, sm_90a"):
        compiled.cubin()


def test_code_runs_where_it_may(compiled):
    """Generic code runs on later minor versions, architecture-specific code on its own."""
    assert compiled.cubin("sm_86") == compiled.cubin("sm_80") == compiled.cubin("sm_89")
    assert compiled.cubin("sm_90") == compiled.cubin("sm_90a")
    for other in ("sm_75", "sm_100a", "sm_120"):
        with pytest.raises(LaunchError, match=f"scale was compiled for sm_80, sm_90a, none of which runs on {other}; .*arch='{other}'"):
            compiled.launch_shape(fft.launch(1), other)


class OnDevice:
    """As much of a device array as is looked at before the launch."""

    def __init__(self, shape, dtype, strides=None, readonly=False):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": np.dtype(dtype).str, "data": (4096, readonly), "strides": strides, "version": 3,
        }  # fmt: skip


def test_arguments_are_held_to_the_signature(compiled):
    run, rows = compiled[fft.launch(1)], OnDevice((1, 64), np.complex64)
    with pytest.raises(ArgumentError, match=r"scale takes 3 arguments \(x, y, factor\), got 2"):
        run(rows, rows)
    with pytest.raises(ArgumentError, match="y is in host memory"):
        run(rows, np.zeros((1, 64), np.complex64), 1.0)
    for wrong, type_ in (
        (OnDevice((1, 64), np.complex128), "array\\(complex128, 2d, C\\)"),
        (OnDevice((64,), np.complex64), "array\\(complex64, 1d, C\\)"),
        (OnDevice((2, 64), np.complex64, strides=(1024, 16)), "array\\(complex64, 2d, A\\)"),
        (OnDevice((1, 64), np.complex64, readonly=True), "readonly|nonwritable|array"),
        ("text", "str"),
    ):
        with pytest.raises(ArgumentError, match=f"scale: x is .*{type_}.*it was compiled for"):
            run(wrong, rows, 1.0)
    with pytest.raises(ArgumentError, match="factor is complex128, it was compiled for float32"):
        run(rows, rows, 1j)


# --- files ------------------------------------------------------------------------------------------------------------


def same(a, b):
    return (a.name, a.parameters, a.signature, a.images, a.plans) == (b.name, b.parameters, b.signature, b.images, b.plans)


def test_save_and_load(compiled, tmp_path):
    path = tmp_path / "scale.devmath"
    compiled.save(path)
    for loaded in (dm.load(path), dm.load(str(path)), dm.load(path.read_bytes())):
        assert same(loaded, compiled)
        assert loaded.to_bytes() == compiled.to_bytes() == path.read_bytes()
        assert loaded.launch_shape(fft.launch(9), "sm_90a") == compiled.launch_shape(fft.launch(9), "sm_90a")
    with pytest.raises(FileNotFoundError):
        dm.load(tmp_path / "none")


def test_every_type_survives(tmp_path):
    readonly = nbt.Array(nbt.float64, 2, "C", readonly=True)
    types = (
        readonly, nbt.float32[::1], nbt.float32[:], nbt.int8[:, :, :], nbt.uint32[::1, :], nbt.boolean[:], nbt.Array(nbt.float64, 0, "C"),
        nbt.complex64, nbt.complex128, nbt.int64, nbt.uint8, nbt.boolean, nbt.float16, nbt.UniTuple(nbt.int64, 3),
        nbt.Tuple((nbt.int64, nbt.float32)), nbt.Array(nbt.complex64, 1, "A", readonly=True),
    )  # fmt: skip

    def nothing(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):  # noqa: E741
        pass

    compiled = dm.compile(dm.kernel(nothing), types, "sm_90a")
    assert dm.load(compiled.to_bytes()).signature == types


def test_any_damage_is_found(compiled):
    data = compiled.to_bytes()
    (_, _, header) = _HEAD.unpack_from(data)
    edges = [
        0,
        1,
        8,
        _HEAD.size,
        _HEAD.size + header // 2,
        _HEAD.size + header,
        len(data) // 2,
        len(data) - 33,
        len(data) - 32,
        len(data) - 1,
    ]
    for end in edges:
        with pytest.raises(ArtifactError, match="is damaged|is not a saved devmath kernel"):
            dm.load(data[:end])
    for at in [*edges[:-1], 4, 12, 16, *range(_HEAD.size, len(data), 997), len(data) - 1]:
        for bit in (0, 7):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(ArtifactError):
                dm.load(bytes(broken))
    for wrong in (data + b"\0", b"", b"not a kernel at all" * 10, data[::-1]):
        with pytest.raises(ArtifactError):
            dm.load(wrong)


def resealed(data: bytes, **changes) -> bytes:
    """The same file with other things in its header, and a checksum that fits."""
    _, _, length = _HEAD.unpack_from(data)
    header = json.loads(data[_HEAD.size : _HEAD.size + length])
    text = json.dumps({k: v for k, v in {**header, **changes}.items() if v is not None}).encode()
    body = _HEAD.pack(data[:8], struct.unpack_from("<I", data, 8)[0], len(text)) + text + data[_HEAD.size + length : -32]
    return body + hashlib.sha256(body).digest()


def test_what_another_devmath_wrote_is_refused_in_one_line(compiled, tmp_path):
    data = compiled.to_bytes()
    assert resealed(data) == data
    later = bytearray(data)
    struct.pack_into("<I", later, 8, 99)
    with pytest.raises(ArtifactError, match="was saved in format 99, this devmath reads format 1; compile the kernel again"):
        dm.load(bytes(later))
    path = tmp_path / "k"
    for changes in (
        {"plans": [['{"plan": "Matmul", "size": 3}', True]]},
        {"plans": [['{"plan": "FFT", "size": 64, "colour": 1}', True]]},
        {"signature": ["float33[:]"]},
        {"images": [{"arch": "sm_999", "name": "k", "bytes": 10, "traits": [{}]}]},
        {"images": [{"arch": "sm_90", "name": "k", "bytes": 10, "traits": []}]},
        {"images": None},
    ):
        path.write_bytes(resealed(data, **changes))
        with pytest.raises(ArtifactError, match="k .*compile the kernel again") as caught:
            dm.load(path)
        assert "\n" not in str(caught.value)


LOADER = """
import sys
import devmath as dm
k = dm.load(sys.argv[1])
print(k.launch_shape(k.plans[0][0].launch(9), "sm_90a").grid.x)
maps = open("/proc/self/maps").read()
print([n for n in ("libnvrtc", "libnvJitLink", "libmathdx", "libnvvm") if n + ".so" in maps])
"""


def test_a_fresh_process_loads_without_any_compiler(compiled, tmp_path):
    """Nor libmathdx, which the machine need not have: what a launch needs of the plans is in the file."""
    compiled.save(tmp_path / "k")
    for there in ({}, {"DEVMATH_LIBMATHDX": "/nowhere/libmathdx.so.0"}):
        printed = python(LOADER, str(tmp_path / "k"), DEVMATH_CACHE_DIR=str(tmp_path / "empty"), **there)
        assert printed.split("\n")[:2] == ["3", "[]"]
    ((plan, _),) = dm.load(tmp_path / "k").plans
    assert plan._memo == {a: fft.traits(a) for a in map(arch.parse, compiled.archs)}


def test_fatbin(compiled):
    nvfatbin = pytest.importorskip("cuda.bindings.nvfatbin")
    try:
        nvfatbin.version()
    except Exception:
        with pytest.raises(ImportError, match="^writing a fat binary needs nvFatbin: pip install nvidia-nvfatbin$"):
            compiled.fatbin()
        pytest.skip("nvFatbin is not installed")
    fat = compiled.fatbin()
    assert struct.unpack_from("<I", fat)[0] == 0xBA55ED50
    assert len(fat) > len(dm.compile(scale, SIGNATURE, "sm_80").fatbin())


# --- on the GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.sanitizer
def test_a_loaded_kernel_runs(rng, tmp_path):
    cupy = pytest.importorskip("cupy")
    dm.compile(scale, SIGNATURE).save(tmp_path / "k")
    x = noise(rng, (9, 64), np.complex64)
    y = cupy.zeros((9, 64), np.complex64)
    loaded = dm.load(tmp_path / "k")
    loaded[fft.launch(9)](cupy.asarray(x), y, 2.5)  # any number for a float32
    np.testing.assert_array_equal(host(y), x * np.float32(2.5))
    loaded[fft.launch(0)](cupy.asarray(x), y, 2.5)


@pytest.mark.gpu
def test_code_for_another_architecture_is_refused_at_the_launch():
    cupy = pytest.importorskip("cupy")
    other = "sm_80" if arch.current().major != 8 else "sm_90a"
    x = cupy.zeros((1, 64), np.complex64)
    with pytest.raises(LaunchError, match=f"compiled for {other}, none of which runs on {arch.current()}"):
        dm.compile(scale, SIGNATURE, other)[fft.launch(1)](x, x, 1.0)


START = """
import time
import numpy as np, cupy as cp, devmath as dm
fft = dm.fft.FFT(512)

@dm.kernel
def convert(x):
    r, s, b = fft.registers(), fft.scratch(), fft.batch()
    if b < x.shape[0]:
        fft.load(x[b], r)
    fft.execute(r, s)
    if b < x.shape[0]:
        fft.store(r, x[b])

x = cp.ones((3, 512), np.complex64)
start = time.perf_counter()
convert[fft.launch(3)](x)
y = x.get()
print(time.perf_counter() - start)
assert abs(y[:, 0] - 512).max() < 1e-3 and abs(y[:, 1:]).max() < 1e-3
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_cold_and_warm_start(tmp_path):
    """One FFT: under 15 s with an empty cache, under 1 s in the next process (case 33)."""
    pytest.importorskip("cupy")
    cold, warm = (float(python(START, DEVMATH_CACHE_DIR=str(tmp_path))) for _ in range(2))
    assert cold < 15 and warm < 1


SECOND = """
import devmath as dm
from numba import types as nbt
from devmath.arch import parse
fft, rng = dm.fft.FFT(60), dm.random.Philox()

@dm.kernel
def draw(out):
    r, s = fft.registers(), fft.scratch()
    fft.load(out, r)
    fft.store(r, out)
    out[0] = rng.bits4(1, 2, 3)[0]

draw.linked((nbt.complex64[::1],), parse("sm_90a"))
print(fft.traits("sm_90a").block_dim.x)
maps = open("/proc/self/maps").read()
print([n for n in ("libnvrtc", "libnvJitLink", "libnvvm", "libmathdx") if n + ".so" in maps])
"""


def test_the_second_process_loads_no_compiler(tmp_path):
    """The linked kernel and its plans' traits come from the disk."""
    file = tmp_path / "second.py"
    file.write_text(SECOND)
    run = f"import runpy; runpy.run_path({str(file)!r}, run_name='second')"
    cold, warm = (python(run, DEVMATH_CACHE_DIR=str(tmp_path / "cache")).split("\n") for _ in range(2))
    assert cold[0] == warm[0]
    assert "libmathdx" in cold[1] and "libnvJitLink" in cold[1] and warm[1] == "[]"
