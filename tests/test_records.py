"""Laws of the records: documented, compiled to what they mean on the CPU, compiled for every architecture, and one type for each plan."""

import inspect
import struct

import numpy as np
import pytest
from numba import cuda, njit
from numba import types as nbt
from support import ARCHS, TOLERANCE, error, host, noise, plan_id, tolerance

import devmath as dm
from devmath.arch import parse
from devmath.codegen import link
from devmath.fft import FFT, FFTN
from devmath.functions import Array, Part, Values
from devmath.plan import _REGISTRY, CPU, Dim3
from devmath.random import Philox
from devmath.targets import rewrite
from devmath.targets.common import PlanType
from devmath.targets.cuda import compile_kernel

BLOCK, THREAD, SHARED = FFT(512, ffts_per_block=1), FFT(4, execution="thread"), FFT(512, ffts_per_block=1, api="shared")
HALF, HALF_THREAD = FFT(512, np.float16, elements_per_thread=16, ffts_per_block=2), FFT(4, np.float16, execution="thread")
FFTS = {"block": BLOCK, "thread": THREAD, "shared": SHARED, "half": HALF, "half thread": HALF_THREAD}
FFTNS = {"2-D": FFTN((8, 6), ffts_per_block=1), "3-D": FFTN((3, 4, 5), ffts_per_block=1)}
EXAMPLES = {("Philox", "thread"): Philox()} | {(p.kind_name, variant): p for plans in (FFTS, FFTNS) for variant, p in plans.items()}
RECORDS = [(kind, variant, name) for (kind, variant), plan in EXAMPLES.items() for name in plan.functions]

# --- kernels that call every record of a plan class, and what they are called with ------------------------------------


def fft_kernel(block, thread, shared, half, half_thread, cuda=cuda):
    def call_all(x, y, seen, xt, yt, seen_t, window, z, xh, yh, seen_h, xht, yht, seen_ht, reals):
        r, s, b = block.registers(), block.scratch(), block.batch()
        if b < x.shape[0]:
            block.load(x[b], r)
            if window.shape[0] > 0:
                block.load_window(x[b], window, r)
        block.execute(r, s)
        block.multiply(window, r)
        if b < x.shape[0]:
            block.store(r, y[b])
            for i in range(block.elements_per_thread):
                if block.active(i) and block.input_active(i) and block.output_active(i):
                    block.as_real(r)[2 * i] = 1
                    seen[b, block.index(i)] += block.input_index(i) + 1 - block.output_index(i) + (r[i].real - 1)
        q, t = thread.registers(), thread.batch()
        if t < xt.shape[0]:
            thread.load(xt[t], q)
            if window.shape[0] > 0:
                thread.load_window(xt[t], window, q)
            thread.execute(q)
            thread.multiply(window, q)
            thread.store(q, yt[t])
            for i in range(thread.elements_per_thread):
                if thread.active(i) and thread.input_active(i) and thread.output_active(i):
                    thread.as_real(q)[2 * i] = 1
                    seen_t[t, thread.index(i)] += thread.input_index(i) + 1 - thread.output_index(i) + (q[i].real - 1)
        cuda.syncthreads()
        d, c = shared.data(), shared.batch()
        if c < x.shape[0]:
            shared.load(x[c], d)
            if window.shape[0] > 0:
                shared.load_window(x[c], window, d)
        shared.execute(d)
        shared.multiply(window, d)
        if c < x.shape[0]:
            shared.store(d, z[c])
            shared.as_real(d)[0] = 1
            seen[c, 0] += d[0].real - 1
        cuda.syncthreads()
        h, hs, e = half.registers(), half.scratch(), half.batch()
        if e < xh.shape[0]:
            half.load(xh[e : e + 2], h)
            if reals.shape[0] > 0:
                half.load_window(xh[e : e + 2], reals, h)
        half.execute(h, hs)
        half.multiply(window, h)
        if e < xh.shape[0]:
            half.store(h, yh[e : e + 2])
            for i in range(half.elements_per_thread):
                if half.active(i) and half.input_active(i) and half.output_active(i):
                    for p in range(min(2, xh.shape[0] - e)):
                        seen_h[e + p, half.index(i)] += half.input_index(i) + 1 - half.output_index(i)
        g, f = half_thread.registers(), half_thread.batch()
        if f < xht.shape[0]:
            half_thread.load(xht[f : f + 2], g)
            if reals.shape[0] > 0:
                half_thread.load_window(xht[f : f + 2], reals, g)
            half_thread.execute(g)
            half_thread.multiply(window, g)
            half_thread.store(g, yht[f : f + 2])
            for i in range(half_thread.elements_per_thread):
                if half_thread.active(i) and half_thread.input_active(i) and half_thread.output_active(i):
                    for p in range(min(2, xht.shape[0] - f)):
                        k = half_thread.index(i)
                        seen_ht[f + p, k] += half_thread.input_index(i) + 1 - half_thread.output_index(i)

    return call_all


FFT_TYPES = (nbt.complex64[:, ::1], nbt.complex64[:, ::1], nbt.int64[:, ::1]) * 2 + (nbt.float32[::1], nbt.complex64[:, ::1])
FFT_TYPES += (nbt.float16[:, :, ::1], nbt.float16[:, :, ::1], nbt.int64[:, ::1]) * 2 + (nbt.float32[::1],)


def fftn_kernel(two, three, cuda=cuda):
    def call_all(x, h, y, seen, x3, h3, y3, seen3):
        d, b = two.data(), two.batch()
        if b < x.shape[0]:
            two.load(x[b], d)
        two.execute(d)
        two.multiply(h, d)
        if b < x.shape[0]:
            two.store(d, y[b])
            for i in range(two.elements_per_thread):
                if two.active(i):
                    j, k = two.index(i)
                    seen[b, j, k] += 1
        cuda.syncthreads()
        e, c = three.data(), three.batch()
        if c < x3.shape[0]:
            three.load(x3[c], e)
        three.execute(e)
        three.multiply(h3, e)
        if c < x3.shape[0]:
            three.store(e, y3[c])
            for i in range(three.elements_per_thread):
                if three.active(i):
                    j, k, m = three.index(i)
                    seen3[c, j, k, m] += 1

    return call_all


FFTN_TYPES = (nbt.complex64[:, :, ::1], nbt.complex64[:, ::1], nbt.complex64[:, :, ::1], nbt.int64[:, :, ::1])
FFTN_TYPES += tuple(t.copy(ndim=t.ndim + 1) for t in FFTN_TYPES)
#: What a Philox record's arguments are in the kernel; a record with an argument of another name needs a line here.
GIVEN = {"seed": "w[i, 0]", "stream": "w[i, 1]", "step": "w[i, 2]", "offset": "w[i, 3]", "mean": "0.5", "scale": "2.0", "state": "state"}
GIVEN |= {name: f"w[i, {k}]" for k, name in enumerate("xyzw")}
OUT = {nbt.uint32: "bits", nbt.float32: "singles", nbt.float64: "doubles"}


def philox_source(plan):
    """A kernel that calls every record with values, as text, and how many of each type it makes."""
    lines, counts = ["state = plan.new_state()"], dict.fromkeys(OUT.values(), 0)
    for fn in plan.functions.values():
        call = f"plan.{fn.name}({', '.join(GIVEN[a.name] for a in fn.args)})"
        if isinstance(fn.returns, Values):
            out = OUT[fn.returns.dtype]
            places = [f"{out}[i, {counts[out] + k}]" for k in range(fn.returns.count)]
            counts[out] += fn.returns.count
            call = f"{', '.join(places)} = {call}"
        elif isinstance(fn.returns, Array):
            continue
        lines.append(call)
    body = "\n        ".join(lines)
    return f"def call_all(w, bits, singles, doubles):\n    i = cuda.grid(1)\n    if i < w.shape[0]:\n        {body}\n", counts


def philox_kernel(plan, cuda=cuda):
    names = {"plan": plan, "cuda": cuda}
    exec(philox_source(plan)[0], names)
    return names["call_all"]


PHILOX_TYPES = (nbt.uint64[:, ::1], nbt.uint32[:, ::1], nbt.float32[:, ::1], nbt.float64[:, ::1])
#: Plan class -> the kernel of every record, its signature, the plans in it.
EXERCISES = {
    "FFT": (fft_kernel, FFT_TYPES, tuple(FFTS.values())),
    "FFTN": (fftn_kernel, FFTN_TYPES, tuple(FFTNS.values())),
    "Philox": (philox_kernel, PHILOX_TYPES, (Philox(),)),
}


def called(build):
    return {(plan.kind_name, plan.variant, name) for plan, name in build.calls}


def records_of(kind):
    return {(k, v, n) for k, v, n in RECORDS if k == kind}


def test_every_plan_class_and_variant_is_covered():
    own = {kind: cls for kind, cls in _REGISTRY.items() if cls.__module__.startswith("devmath.")}
    assert set(EXERCISES) == set(own), "a new plan class needs an exercise here"
    assert set(EXAMPLES) == {(kind, variant) for kind, cls in own.items() for variant in cls.variants}


# --- the records themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, variant, name", RECORDS)
def test_a_record_is_whole(kind, variant, name):
    plan = EXAMPLES[kind, variant]
    fn, traits = plan.functions[name], plan.traits("sm_90a")
    assert fn.name == name and fn.doc.endswith(".") and getattr(type(plan), name).__doc__
    assert all(a.doc and a.kind in {"registers", "shared", "data", "row", "state", "int", "u64", "u32", "f32"} for a in fn.args)
    assert (fn.meaning is None) == isinstance(fn.returns, Array | Part)
    for form in (fn.meaning, fn.fast_cpu):
        if form is not None:
            assert list(inspect.signature(form(plan, plan.traits(CPU))).parameters) == [a.name for a in fn.args]
    assert fn.code is None or fn.code(plan, traits).symbol


# --- the CPU target against the meaning in plain Python ---------------------------------------------------------------


class PlainPython(rewrite.Rewriter):
    """Takes numba out of a function: compiled helpers become Python again, and the thread's position is given."""

    def __init__(self, thread=(0, 0), block=0, width=1):
        super().__init__()
        x, y = thread
        self.cuda = type("cuda", (), {"threadIdx": Dim3(x, y, 0), "blockIdx": Dim3(block, 0, 0), "blockDim": Dim3(width)})

    def replace(self, value, attributes, where):
        if value is cuda:
            return self.cuda
        return self.function(value.py_func) if isinstance(value, type(njit(lambda: 0))) else value


#: What typing makes of a record's arguments.
CASTS = {"u32": lambda v: np.uint32(int(v) % 2**32), "u64": lambda v: np.uint64(int(v) % 2**64), "f32": np.float32}


class Interpreted:
    """A plan whose device functions run their meanings in plain Python, for one thread of a target."""

    def __init__(self, plan, target=CPU, **position):
        self.plan, self.traits, self.python = plan, plan.traits(target), PlainPython(**position)

    def __getattr__(self, name):
        if name not in self.plan.functions:
            return self.traits[name] if name in self.traits else getattr(self.plan, name)
        fn = self.plan.functions[name]
        if isinstance(fn.returns, Array | Part):
            kinds = {nbt.complex64: np.complex64, nbt.complex128: np.complex128, nbt.uint32: np.uint32, nbt.float16: np.float16}
            shape = fn.returns.shape if isinstance(fn.returns, Part) else fn.returns.count
            return lambda: np.full(shape(self.traits), 77, kinds[fn.returns.dtype(self.plan)])
        meaning = self.python.function(fn.meaning(self.plan, self.traits))
        casts = [CASTS.get(a.kind, lambda v: v) for a in fn.args]
        return lambda *args: meaning(*(cast(v) for cast, v in zip(casts, args, strict=True)))


def fft_arguments(rng, xp=np):
    """Fresh arguments of the FFT kernel: input, output and how often each element was met, of the block and of the thread transform."""
    made = []
    for plan in (BLOCK, THREAD):
        x = noise(rng, (5, plan.size), plan.value_type)
        made += [xp.asarray(x), xp.zeros(x.shape, x.dtype), xp.zeros(x.shape, np.int64)]
    window = xp.asarray(rng.uniform(0.5, 1, BLOCK.size).astype(np.float32))
    made += [window, xp.zeros((5, SHARED.size), SHARED.value_type)]
    for plan in (HALF, HALF_THREAD):
        x = rng.standard_normal((5, plan.size, 2)).astype(np.float16)
        made += [xp.asarray(x), xp.zeros(x.shape, x.dtype), xp.zeros(x.shape[:2], np.int64)]
    return [*made, window]


def check_transforms(arguments):
    for plan, (x, y, seen), also in ((BLOCK, arguments[:3], arguments[7:8]), (THREAD, arguments[3:6], ())):
        w = host(arguments[6])[: plan.size]
        for got in (y, *also):
            assert error(got, w * np.fft.fft(w * host(x).astype(complex))) <= tolerance(plan)
        assert (host(seen) == 1).all()
    for plan, (x, y, seen) in ((HALF, arguments[8:11]), (HALF_THREAD, arguments[11:14])):
        w = host(arguments[6])[: plan.size]
        x, y = (host(a).astype(float) @ [1, 1j] for a in (x, y))
        assert error(y, w * np.fft.fft(w * x)) <= tolerance(plan)
        assert (host(seen) == 1).all()


def test_the_fft_means_the_same_compiled_and_not():
    kernel = dm.kernel(fft_kernel(*FFTS.values()))
    compiled, plain = (fft_arguments(np.random.default_rng(3)) for _ in range(2))
    kernel[BLOCK.launch(5)](*compiled)
    for b in range(6):
        fft_kernel(*(Interpreted(plan, block=b) for plan in FFTS.values()), type("cuda", (), {"syncthreads": lambda: None}))(*plain)
    check_transforms(compiled)
    check_transforms(plain)
    assert called(kernel.cpu.build) == records_of("FFT")


def fftn_arguments(rng, xp=np):
    """The same of the FFTN kernel: input, filter, output, how often each element was met, in two and in three dimensions."""
    made = []
    for plan in FFTNS.values():
        x, h = noise(rng, (5, *plan.shape), plan.value_type), noise(rng, plan.shape, plan.value_type)
        made += [xp.asarray(x), xp.asarray(h), xp.zeros(x.shape, x.dtype), xp.zeros(x.shape, np.int64)]
    return made


def check_fftn(arguments):
    for plan, (x, h, y, seen) in zip(FFTNS.values(), (arguments[:4], arguments[4:]), strict=True):
        axes = tuple(range(1, 1 + len(plan.shape)))
        assert error(host(y), host(h) * np.fft.fftn(host(x).astype(complex), axes=axes)) <= TOLERANCE["float32"]
        assert (host(seen) == 1).all()


def test_the_fftn_means_the_same_compiled_and_not():
    kernel = dm.kernel(fftn_kernel(*FFTNS.values()))
    compiled, plain = (fftn_arguments(np.random.default_rng(3)) for _ in range(2))
    kernel[FFTNS["2-D"].launch(5)](*compiled)
    for b in range(6):
        fftn_kernel(*(Interpreted(plan, block=b) for plan in FFTNS.values()), type("cuda", (), {"syncthreads": lambda: None}))(*plain)
    check_fftn(compiled)
    check_fftn(plain)
    assert called(kernel.cpu.build) == records_of("FFTN")


def philox_words(rng):
    w = rng.integers(0, 2**64, (40, 4), np.uint64)
    w[:3] = [[0] * 4, [2**64 - 1] * 4, [2**32 - 1, 0, 2**32, 0x80000000]]
    return w


def philox_outputs(n, xp=np):
    _, counts = philox_source(Philox())
    return [xp.zeros((n, counts[name]), dtype) for name, dtype in zip(OUT.values(), (np.uint32, np.float32, np.float64), strict=True)]


def check_numbers(got, want):
    np.testing.assert_array_equal(host(got[0]), want[0])
    # normal4_fast is loose next to zero, where the first rows' forced words put it; how far each form may be off has a test of its own.
    np.testing.assert_allclose(host(got[1])[:3], want[1][:3], atol=1.3e-3)
    np.testing.assert_allclose(host(got[1])[3:], want[1][3:], atol=1e-4)
    np.testing.assert_allclose(host(got[2]), want[2], rtol=1e-14, atol=2e-14)


def test_philox_means_the_same_compiled_and_not(rng):
    plan, w = Philox(), philox_words(rng)
    kernel = dm.kernel(philox_kernel(plan))
    compiled, plain = philox_outputs(len(w)), philox_outputs(len(w))
    kernel[plan.launch(len(w))](w, *compiled)
    for i in range(len(w)):
        philox_kernel(Interpreted(plan), type("cuda", (), {"grid": lambda n, i=i: i}))(w, *plain)
    check_numbers(compiled, plain)
    assert called(kernel.cpu.build) == records_of("Philox")


# --- positions on the GPU, in plain Python ----------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [FFTN((7, 5)), FFTN((16, 16)), FFTN((3, 4, 5)), FFTN((8, 8), ffts_per_block=2)], ids=lambda p: p.short_name())
@pytest.mark.parametrize("where", ARCHS)
def test_all_threads_of_an_fftn_together_have_each_element_once(plan, where):
    t = plan.traits(where)
    width, height, _ = t.block_dim
    count = np.zeros((2 * height, *plan.shape), int)
    for block in range(2):
        for lane in np.ndindex(width, height):
            thread = Interpreted(plan, where, thread=lane, block=block, width=width)
            for i in range(t.elements_per_thread):
                assert thread.active(i) or thread.index(i) == tuple(n - 1 for n in plan.shape)
                count[thread.batch()][thread.index(i)] += thread.active(i)
    assert (count == 1).all()


@pytest.mark.parametrize(
    "plan",
    [
        *(FFT(65), FFT(64), FFT(12, ffts_per_block=5), FFT(1), FFT(2)),
        *(FFT(7, execution="thread"), FFT(65, thread_layout="transposed")),
    ],
    ids=plan_id,
)
@pytest.mark.parametrize("where", ARCHS)
def test_all_threads_together_load_and_store_each_element_once(plan, where, rng):
    t = plan.traits(where)
    batch = 2 * t.ffts_per_block - 1 if plan.execution == "block" else 5
    x, y = noise(rng, (batch, plan.size), plan.value_type), np.full((batch, plan.size + 2), 9, plan.value_type)
    count = np.zeros((batch, plan.size), int)
    width, height, _ = t.block_dim if plan.execution == "block" else (3, 1, 1)
    for block in range(2):
        for lane in np.ndindex(width, height):
            thread = Interpreted(plan, where, thread=lane, block=block, width=width)
            b, r = thread.batch(), thread.registers()
            if b >= batch:
                continue
            thread.load(x[b], r)
            assert (r[[i for i in range(t.elements_per_thread) if not thread.active(i)]] == 0).all()
            for i in range(t.elements_per_thread):
                k = thread.index(i)
                count[b, k] += thread.active(i)
                assert r[i] == x[b, k] or not thread.active(i) and k == plan.size - 1
            thread.store(r, y[b, 1:-1])
    assert (count == 1).all()
    np.testing.assert_array_equal(y[:, 1:-1], x)
    assert (y[:, [0, -1]] == 9).all()


# --- the GPU target ---------------------------------------------------------------------------------------------------


def sm_of(cubin: bytes) -> int:
    """The architecture in a cubin's ELF header."""
    assert cubin[:4] == b"\x7fELF"
    (flags,) = struct.unpack_from("<I", cubin, 48)
    return flags >> 8 & 0xFF


@pytest.mark.slow
@pytest.mark.parametrize("where", ARCHS)
@pytest.mark.parametrize("kind", EXERCISES)
def test_every_record_compiles_for_every_architecture(kind, where):
    make, signature, plans = EXERCISES[kind]
    compiled = compile_kernel(make(*plans), signature, parse(where))
    assert {record for record in called(compiled.build) if record[0] == kind} == records_of(kind)
    assert set(plans) == {plan for plan, _ in compiled.build.plans() if plan.kind_name == kind}
    assert sm_of(compiled.cubin) == parse(where).major * 10 + parse(where).minor
    assert len(compiled.cubin) <= 40_960 * len(plans)  # cuFFT's tables, megabytes of them, are left out
    assert compiled.name in compiled.cubin.decode("latin1")


@pytest.mark.gpu
@pytest.mark.sanitizer
def test_every_record_runs_on_the_gpu(rng):
    cupy = pytest.importorskip("cupy")
    arguments = fft_arguments(rng, cupy)
    dm.kernel(fft_kernel(*FFTS.values()))[BLOCK.launch(5)](*arguments)
    check_transforms(arguments)
    arguments = fftn_arguments(rng, cupy)
    dm.kernel(fftn_kernel(*FFTNS.values()))[FFTNS["2-D"].launch(5)](*arguments)
    check_fftn(arguments)
    w = philox_words(rng)
    kernel, got, want = dm.kernel(philox_kernel(Philox())), philox_outputs(len(w), cupy), philox_outputs(len(w))
    kernel[Philox().launch(len(w))](cupy.asarray(w), *got)
    kernel[Philox().launch(len(w))](w, *want)
    check_numbers(got, want)


def ptx_of(kernel, signature, where, monkeypatch):
    """PTX of a kernel, linked for an architecture."""
    seen, real = [], link.link
    with monkeypatch.context() as patch:
        patch.setattr(link, "link", lambda blobs, arch, **kw: seen.append((blobs, arch)) or real(blobs, arch, **kw))
        kernel._compile(signature, parse(where))
    ((blobs, arch),) = seen
    return real(blobs, arch, ptx=True).decode()


def test_each_architecture_keeps_its_own_traits(monkeypatch):
    """Also in a device function that kernels for several architectures share."""
    plan = FFT(251)
    marks = {where: 1_000_003 * plan.traits(where).elements_per_thread + plan.traits(where).stride for where in ("sm_80", "sm_90a")}
    assert len(set(marks.values())) == 2

    @cuda.jit(device=True)
    def mark():
        return 1_000_003 * plan.elements_per_thread + plan.stride

    @dm.kernel
    def one(out):
        out[0] = mark()

    @dm.kernel
    def another(out):
        out[0] = mark() + 0 * out[1]

    for kernel, where in ((one, "sm_80"), (one, "sm_90a"), (another, "sm_90a"), (another, "sm_80"), (one, "sm_80")):
        text = ptx_of(kernel, (nbt.int64[::1],), where, monkeypatch)
        assert [w for w, m in marks.items() if f" {m};" in text] == [where]
    out = np.zeros(2, np.int64)
    one[1, 1](out)
    assert out[0] == 1_000_003 * 251 + 1


# --- one type for each plan -------------------------------------------------------------------------------------------

#: A plan of each class and another value for each of its fields.
CHANGES = {
    "FFT": (
        FFT(64, elements_per_thread=8, ffts_per_block=2),
        {
            "size": 32, "precision": np.float64, "direction": "inverse", "execution": "thread", "elements_per_thread": 4,
            "ffts_per_block": 4, "implementation": "cufftdx", "arch": "sm_90a", "fft_type": "r2c", "transposition": "by_complex",
            "thread_layout": "transposed", "api": "shared",
        },
    ),
    "FFTN": (
        FFTN((8, 8)), {"shape": (8, 4), "precision": np.float64, "direction": "inverse", "ffts_per_block": 1, "arch": "sm_90a"},
    ),
    "Philox": (Philox(), {"rounds": 7}),
}  # fmt: skip
#: Fields that have another value for other plans alone (tests/test_fft_real.py).
FIXED = {"FFT": {"complex_layout", "real_mode"}, "FFTN": set(), "Philox": set()}


@pytest.mark.parametrize("kind", EXERCISES)
def test_plans_that_differ_have_different_types(kind):
    base, changes = CHANGES[kind]
    assert set(changes) | FIXED[kind] == set(base.fields)
    plans = [base]
    for field, value in changes.items():
        knobs = {"elements_per_thread": None, "ffts_per_block": None} if value == "thread" else {}
        plans.append(base.replace(**{field: value, **knobs}))
    types = [PlanType(p, t) for p in plans for t in (CPU, *map(parse, ARCHS))]
    assert len(set(types)) == len({t.name for t in types}) == len(types)
    for p in plans:
        again = dm.from_json(p.to_json())
        assert PlanType(p, CPU) == PlanType(again, CPU) and hash(PlanType(p, CPU)) == hash(PlanType(again, CPU))
