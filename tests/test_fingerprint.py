"""A kernel's fingerprint changes with everything that its code depends on, and with nothing else."""

import collections
import enum
import functools
import math
import operator
import subprocess
import sys
import types

import numba
import numpy as np
import pytest
from numba import cuda
from numba import types as nbt
from numba.extending import intrinsic

import devmath as dm
from devmath import arch, cache, fingerprint
from devmath.codegen import versions
from devmath.fingerprint import Uncacheable

FFT = dm.fft.FFT(64)
READS = "def k(x):\n    x[0] = x[1] + v\n"


def of(source: str = READS, **names) -> str:
    """The fingerprint of the function ``k`` in *source*, with *names* as its globals, as the cache takes it."""
    scope = dict(names)
    exec(source, scope)
    return cache.digest(fingerprint.of_function(scope["k"]))


def all_differ(prints):
    prints = list(prints)
    return len(set(prints)) == len(prints)


# -- code ----------------------------------------------------------------------------------------------------------------------------


def test_code_and_constants():
    bodies = ["x[0] = 1", "x[0] = 2", "x[0] = 1.0", "x[0] = True", "x[0] = -0.0", "x[0] = 0.0", "x[1] = 1", "x[0] += 1", "x[0] = 1j"]
    bodies += ["x[0] = x.size", "x[0] = x.ndim", "x[0] = len('a')", "x[0] = len('b')", "x[1, 2] = 1", "x[1, 3] = 1"]
    bodies += ["[x[i] for i in range(3)]", "x[0] = (lambda y: y + 1)(2)", "x[0] = (lambda y: y + 2)(2)"]
    assert all_differ(of(f"def k(x): {b}") for b in bodies)
    assert of("def k(x): x[0] = 1") == of("def k(x): x[0] = 1") == of("\n\ndef k(x):\n    # why\n    x[0] = 1\n")
    assert all_differ([of("def k(x): x[0] = 1"), of("def k(x, y): x[0] = 1"), of("def k(y): y[0] = 1"), of("def k(x, y=1): x[0] = 1")])


def test_default_arguments():
    assert all_differ([of(f"def k(x, n={n}): x[0] = n") for n in ("1", "2", "1.0")])
    assert all_differ([of(f"def k(x, *, n={n}): x[0] = n") for n in ("1", "2")])


# -- what the code refers to ---------------------------------------------------------------------------------------------------------


Point, Swapped = collections.namedtuple("P", "x y"), collections.namedtuple("P", "y x")


class Mode(enum.IntEnum):
    A = 1
    B = 2


def test_values_of_globals():
    values = [1, 2, 1.0, True, 0.0, -0.0, math.nan, 1j, -1j, "1", b"1", None, (1, 2), (1, 2.0), ((1,), 2), Mode.A, Mode.B]
    values += [np.float64(1), np.float32(1), np.int64(1), np.uint8(1), np.complex64(1), np.bool_(True), Point(1, 2), Swapped(1, 2)]
    values += [np.dtype("f4"), np.dtype("f8"), np.float32, np.float64, nbt.float32, nbt.float64, nbt.Array(nbt.float32, 1, "C")]
    values += [math.sin, math.cos, np.sin, np.cos, np.sum, np.dot, operator.add, operator.sub, min, max, range]
    values += [cuda.grid, cuda.gridsize, cuda.atomic, cuda.local, cuda.popc, cuda.libdevice.exp, cuda.libdevice.log, numba.prange]
    assert all_differ([*(of(v=v) for v in values), of()])
    assert of(v=math.nan) == of(v=math.nan)
    assert of(v=1, unused=1) == of(v=1, unused=2)


def test_values_of_a_closure():
    def make(value, bits):
        def k(x):
            x[0] = value + bits

        return cache.digest(fingerprint.of_function(k))

    assert all_differ([make(1, 2), make(2, 1), make(1, 3), make(1.0, 2)])
    assert make(1, 2) == make(1, 2)


def test_contents_and_form_of_arrays():
    base = np.arange(6.0)
    records = np.zeros(2, [("a", "i4"), ("b", "f4")])
    arrays = [base, base + 1, base.reshape(2, 3), np.asfortranarray(base.reshape(2, 3)), base.astype("f4"), base.astype("i8"), base[::2]]
    arrays += [records, records.view([("b", "i4"), ("a", "f4")]), records.view([("a", "f4"), ("b", "i4")]), records[0], np.zeros(2, "V8")]
    assert all_differ(of(v=a) for a in arrays)
    changed = base.copy()
    before = of(v=changed)
    changed[5] = 7
    assert of(v=changed) != before == of(v=base)


def test_fields_of_plans():
    plans = [FFT, FFT.inverse(), FFT.replace(size=128), FFT.replace(precision="float64"), FFT.replace(elements_per_thread=8)]
    plans += [FFT.replace(arch="sm_90a"), FFT.replace(execution="thread"), dm.random.Philox(), dm.random.Philox(7)]
    assert all_differ(of(v=p) for p in [*plans, (FFT, FFT.inverse()), (FFT.inverse(), FFT)])
    assert of(v=FFT) == of(v=FFT.replace()) == of(v=FFT.inverse().inverse())


def device(body: str, **names):
    exec(f"def f(x):\n    return {body}\n", names)
    return cuda.jit(device=True)(names["f"])


def test_bodies_of_device_functions():
    functions = [device("x + 1"), device("x + 2"), device("x + n", n=1), device("x + n", n=2)]
    functions += [device("g(x)", g=f) for f in functions]
    functions += [device("h.g(x)", h=_module(g=f)) for f in functions[:2]]
    assert all_differ(of("def k(x): x[0] = v(x[1])", v=f) for f in functions)
    assert of(v=device("x + 1")) == of(v=device("x + 1"))
    options = [cuda.jit(device=True, **o)(functions[0].py_func) for o in ({}, {"fastmath": True}, {"inline": "always"})]
    assert all_differ(of(v=f) for f in options)
    assert all_differ([of(v=numba.njit(f.py_func)) for f in functions[:4]])


def test_device_functions_that_call_each_other():
    def make(last):
        scope = {"cuda": cuda}
        exec(
            "@cuda.jit(device=True)\ndef even(n):\n    if n == 0: return True\n    return odd(n - 1)\n"
            f"@cuda.jit(device=True)\ndef odd(n):\n    if n == 0: return {last}\n    return even(n - 1)\n",
            scope,
        )
        return of(v=scope["even"])

    assert make("False") == make("False") != make("True")


def _module(**names):
    module = types.ModuleType("helpers")
    module.__dict__.update(names)
    return module


def test_attributes_of_modules():
    source = "def k(x): x[0] = m.a + m.inner.b"
    base = {"a": 1, "inner": _module(b=2, unused=1)}
    prints = [of(source, m=_module(**{**base, **c})) for c in ({}, {"a": 2}, {"inner": _module(b=3)}, {"a": np.arange(3)})]
    prints.append(of(source, m=_module(inner=base["inner"])))  # a is missing
    assert all_differ(prints)
    assert of(source, m=_module(**base, unused=5)) == prints[0]
    functions = [device("x + 1"), device("x + 2")]
    assert all_differ(of("def k(x): x[0] = m.f(1)", m=_module(f=f)) for f in functions)


# -- what cannot be told from outside ---------------------------------------------------------------------------------------------------


@intrinsic
def own_intrinsic(typingctx, x):
    return x(x), lambda context, builder, sig, args: args[0]


def _odd():
    return {
        "object": object(),
        "class": Mode,
        "lambda": lambda x: x,
        "list": [1],
        "dict": {},
        "set": {1},
        "typed list": numba.typed.List([1]),
        "intrinsic": own_intrinsic,
        "vectorize": numba.vectorize(lambda x: x + 1),
        "function that wraps another": functools.wraps(math.sin)(lambda x: x),
        "linked function": cuda.declare_device("f", "int32(int32)"),
        "method": np.add.reduce,
        "generator": np.random.default_rng(),
        "kernel": dm.kernel(lambda x: None),
        "array of objects": np.array([object()]),
        "module as a whole": _module(a=1),
        "in a tuple": (1, object()),
        "in a device function": device("x + n", n=object()),
        "in a module": _module(v=_module(w=object())),
    }


@pytest.mark.parametrize("name", _odd())
def test_odd_objects_are_not_cached(name):
    source = "def k(x): x[0] = v.v.w" if name == "in a module" else READS
    with pytest.raises(Uncacheable):
        of(source, v=_odd()[name])


def test_a_kernel_that_cannot_be_cached_compiles_anyway(monkeypatch):
    module = _module(n=3)

    @dm.kernel
    def kernel(x):
        m = module
        x[0] = m.n

    monkeypatch.setattr(cache, "once", lambda *a: pytest.fail("looked into the cache"))
    with pytest.raises(Uncacheable):
        fingerprint.of_function(kernel.py_func)
    assert kernel.linked((nbt.float32[::1],), arch.parse("sm_90a")).cubin.startswith(b"\x7fELF")


# -- from process to process ------------------------------------------------------------------------------------------------------------


PROGRAM = """
import numpy as np, math
from numba import cuda
import devmath as dm
from devmath import cache, fingerprint

fft, table, names = dm.fft.FFT(64), np.arange(5.0), ("a", "b", "c")

@cuda.jit(device=True)
def f(x):
    return math.sin(x) * table[2] if x in {1, 2, 3, "a", "b"} else abs(x)

def make(n, kind):
    def kernel(x, y=2.5):
        i = cuda.grid(1)
        s = cuda.shared.array(n, kind)
        r = fft.registers()
        for j in (1, 2, 3):
            x[i] += f(j) + len(names) + np.float32(s[0])
    return kernel

print(cache.digest(fingerprint.of_function(make(4, np.float32)), fingerprint.package_digest()))
"""


def test_equal_sources_have_equal_fingerprints_in_every_process():
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env={**_environment(), "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("0", "4242")
    ]
    first, second = (p.communicate(timeout=120)[0].strip() for p in processes)
    assert len(first) == 64 and first == second


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


# -- the key under which a linked kernel is kept ----------------------------------------------------------------------------------------


class Recorder:
    """Stands in for the cache and the compiler, and keeps the keys."""

    def __init__(self, monkeypatch):
        self.keys = []
        monkeypatch.setattr(cache, "once", self.once)

    def once(self, kind, key, build):
        self.keys.append(key)
        return cache.Entry({"name": "k", "plans": []}, b"cubin")

    def key(self, types=(nbt.float32[::1],), target="sm_90a", **options):
        @dm.kernel(**options)
        def k(x):
            x[0] = 1

        assert k.linked(types, arch.parse(target)).cubin == b"cubin"
        return self.keys[-1]


def test_a_linked_kernels_key(monkeypatch):
    recorder = Recorder(monkeypatch)
    key = recorder.key
    keys = [key(), key(fastmath=True), key(max_registers=64), key(lineinfo=True), key(launch_bounds=128), key(launch_bounds=(128, 2))]
    keys += [key(target="sm_90"), key(target="sm_80"), key(types=(nbt.float64[::1],)), key(types=(nbt.float32[:],))]
    keys += [key(types=(nbt.Array(nbt.float32, 1, "C", readonly=True),)), key(types=(nbt.float32[::1],) * 2)]
    for change in (("numba", "0.0"), ("nvidia-nvjitlink", "99.9")):
        tools = (*versions.tools(), change)
        monkeypatch.setattr(versions, "tools", lambda tools=tools: tools)
        keys.append(key())
        monkeypatch.undo()
        recorder = Recorder(monkeypatch)
        key = recorder.key
    monkeypatch.setattr(fingerprint, "package_digest", lambda: "another devmath")
    keys.append(key())
    assert all_differ(keys)
    monkeypatch.undo()
    assert Recorder(monkeypatch).key() == keys[0]


def test_all_of_devmaths_sources_count(monkeypatch, tmp_path):
    monkeypatch.setattr(fingerprint, "__file__", str(tmp_path / "fingerprint.py"))
    digest = fingerprint.package_digest.__wrapped__
    files = [tmp_path / name for name in ("kernel.py", "targets/cpu.py", "lto/philox.cu", "lto/normal.cuh")]
    for f in files:
        f.parent.mkdir(exist_ok=True)
        f.write_text("one")
    digests = [digest()]
    for f in files:
        f.write_text("another")
        digests.append(digest())
    files[0].rename(tmp_path / "renamed.py")
    digests.append(digest())
    assert all_differ(digests)
    (tmp_path / "notes.txt").write_text("x")
    assert digest() == digests[-1]
