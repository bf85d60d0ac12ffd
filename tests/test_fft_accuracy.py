"""How far transforms are off: errors against long double, at most a small multiple of eps log2(size), at every small size and up to the largest.

On the CPU a kernel costs about a second to compile whatever its size, so there all sizes run without their kernels: the plans' meanings in plain
Python, and the compiled transform with its size left open. Kernels run a spread of sizes, on the GPU also every size (``slow``).
"""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.fft
from numba import cuda, njit
from support import ARCHS, host, plan_id, plans, target_of

import devmath as dm
from devmath.arch import parse
from devmath.errors import PlanError
from devmath.fft import FFT, cpu, cufftdx
from devmath.fft.cufftdx import THREAD_LIMIT
from devmath.targets.simulator import _Plain

#: Relative L2 errors and the largest relative to the RMS, in units of eps max(1, log2 size): three times what was measured over the sizes below
#: on the CPU, 0.38, 0.38 and 0.46 for L2 and 0.8, 1.1 and 1.5 for the largest. docs/fft.md has the first ones.
L2 = {"float16": 1.0, "float32": 1.0, "float64": 1.5}
MOST = {"float16": 3.0, "float32": 3.0, "float64": 4.5}
PRECISIONS = ("float16", "float32", "float64")
SMALL = range(1, 513)
#: Primes, powers of two, products and what lies next to them, up to the largest.
SPREAD = {
    "float16": (1000, 1021, 1024, 2047, 4093, 6561, 8191, 8192, 10000, 16384, 19683, 32768),
    "float32": (1000, 1021, 1024, 2047, 4093, 6561, 8191, 8192, 10000, 16384, 20736, 29791, 32768),
    "float64": (1000, 1021, 1024, 2047, 4093, 6561, 8191, 8192, 10000, 12167, 16384),
}
REAL = [("r2c", "natural"), ("r2c", "packed"), ("r2c", "full"), ("c2r", "natural"), ("c2r", "packed"), ("c2r", "full")]
KINDS = [("c2c", "forward"), ("c2c", "inverse"), *REAL]


# --- the yardstick ----------------------------------------------------------------------------------------------------


def law(plan) -> float:
    """The unit of errors: eps max(1, log2 size)."""
    return float(np.finfo(plan.precision).eps) * max(1.0, np.log2(plan.size))


def exact(plan, x):
    """The transform of rows in long double. Those of the complex side of a c2r plan are in its layout."""
    n = plan.size
    x = x.astype(np.clongdouble if np.iscomplexobj(x) else np.longdouble)
    if plan.fft_type == "c2c":
        return scipy.fft.fft(x) if plan.direction == "forward" else scipy.fft.ifft(x, norm="forward")
    if plan.fft_type == "r2c":
        return packed(plan, scipy.fft.fft(x))
    spectrum = x[:, : n // 2 + 1].copy()
    if plan.complex_layout == "packed":
        spectrum = np.concatenate([x, x[:, :1].imag], axis=1)
    spectrum[:, 0] = spectrum[:, 0].real
    if n == 1:
        return spectrum.real
    return scipy.fft.irfft(spectrum, n, norm="forward")


def packed(plan, full):
    """A whole spectrum in the plan's layout."""
    half = plan.size // 2
    if plan.complex_layout == "packed":
        row = full[:, :half].copy()
        row[:, 0] = full[:, 0].real + 1j * full[:, half].real
        return row
    return full if plan.complex_layout == "full" else full[:, : half + 1]


def check(plan, got, x):
    """Both errors of rows, in units of the law."""
    want = exact(plan, x)
    size = np.abs(want)
    off = np.abs(got - want)
    rms = np.sqrt((size**2).mean())
    name, unit = np.dtype(plan.precision).name, law(plan)
    l2, most = float(np.sqrt((off**2).mean()) / rms) / unit, float(off.max() / rms) / unit
    assert l2 <= L2[name] and most <= MOST[name], (plan_id(plan), l2, most)
    return l2, most


def draw(rng, plan, batch):
    """Rows of what goes in, in the plan's precision but for the type: complex numbers whose parts are in it."""
    length = plan.traits("cpu").input_length
    x = rng.standard_normal((batch, length))
    if plan.is_real("input"):
        return x.astype(plan.precision)
    parts = np.stack([x, rng.standard_normal(x.shape)], -1).astype(plan.precision)
    return (parts[..., 0] + 1j * parts[..., 1].astype(float)).astype(np.complex128 if plan.precision == np.float64 else np.complex64)


@pytest.mark.parametrize("n", [1, 2, 7, 251, 512, 1021])
def test_the_yardstick_is_a_sum_in_long_double(n, rng):
    """The defining sum, with angles that are exact fractions of a turn."""
    x = (rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))).astype(np.clongdouble)
    k = np.arange(n)
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288") * (k[:, None] * k % n) / np.longdouble(n)
    want = x @ (np.cos(turn) - 1j * np.sin(turn))
    got = exact(SimpleNamespace(size=n, fft_type="c2c", direction="forward"), x)
    assert got.dtype == np.clongdouble
    off = np.sqrt((np.abs(got - want) ** 2).sum() / (np.abs(want) ** 2).sum())
    assert off <= np.finfo(np.longdouble).eps * max(1, np.log2(n))


@pytest.mark.parametrize("n", [16, 512, 4096])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_twiddle_that_is_wrong_shows(precision, n, rng):
    """The last pass of radix 2 in long double: right, with one twiddle off by some bits, and with all of them good to half the digits."""
    plan = FFT(n, precision)
    x = draw(rng, plan, 2)
    half = SimpleNamespace(size=n // 2, fft_type="c2c", direction="forward")
    even, odd = exact(half, x[:, ::2]), exact(half, x[:, 1::2])
    right = np.exp(-2j * np.pi * np.arange(n // 2).astype(np.longdouble) / n)
    check(plan, np.concatenate([even + right * odd, even - right * odd], axis=1), x)
    one, coarse = right.copy(), right.copy()
    one[1] *= 1 + 256 * law(plan)
    coarse += np.finfo(plan.precision).eps ** 0.5 * rng.standard_normal(n // 2)
    for wrong in (one, coarse):
        with pytest.raises(AssertionError, match=f"{n}-c2c"):
            check(plan, np.concatenate([even + wrong * odd, even - wrong * odd], axis=1), x)


# --- every size without a kernel --------------------------------------------------------------------------------------


def form(fft_type, how):
    """The fields that an element of KINDS stands for."""
    return {"fft_type": fft_type, "direction" if fft_type == "c2c" else "complex_layout": how}


def in_plain_python(plan, x):
    """The plan's ``execute`` of rows, uncompiled, as one thread of the CPU target has them."""
    traits = plan.traits("cpu")
    execute = _Plain().function(plan.functions["execute"].meaning(plan, traits))
    real_in, real_out = plan.is_real("input"), plan.is_real("output")
    length, rows = traits.output_length, []
    step = 2 if plan.half else 1  # of half precision, two transforms share the registers
    for pair in x.reshape(-1, step, x.shape[1]):
        r = np.zeros(traits.storage_size, plan.value_type)
        reals = r.view(plan.precision).reshape(-1, step)
        parts = pair if real_in else np.stack([pair.real, pair.imag], -1).reshape(step, -1)
        reals[: parts.shape[1]] = parts.T
        execute(r) if plan.execution == "thread" else execute(r, None)
        wide = reals.T.astype(np.float64)
        rows.append(wide[:, :length] if real_out else wide[:, : 2 * length : 2] + 1j * wide[:, 1 : 2 * length : 2])
    return np.concatenate(rows)


def sizes_of(kind, sizes):
    return [n for n in sizes if kind[1] != "packed" or n % 2 == 0]


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_every_size_means(precision, kind, rng):
    """Of all types and layouts. NumPy computes float32 in double precision inside, so the next tests have its errors."""
    large = [n for n in SPREAD[precision] if precision != "float16" or n <= 2048]  # whose elements Python moves one by one
    for n in sizes_of(kind, (*SMALL, *large)):
        plan = FFT(n, precision, **form(*kind))
        x = draw(rng, plan, 2)
        check(plan, in_plain_python(plan, x), x)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_every_size_means_to_one_thread(precision, kind, rng):
    for n in sizes_of(kind, range(1, THREAD_LIMIT[precision] + 1)):
        plan = FFT(n, precision, execution="thread", **form(*kind))
        x = draw(rng, plan, 2)
        check(plan, in_plain_python(plan, x), x)


@pytest.mark.parametrize("direction", ["forward", "inverse"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_size_compiled_for_the_cpu(precision, direction, rng):
    """The code that kernels run; a row in place of registers is as long as its transform, so that one compilation serves all sizes."""
    transform = njit(cpu.execute(SimpleNamespace(size=None, direction=direction, execution="thread")))
    for n in (*SMALL, *SPREAD[precision]):
        plan = FFT(n, precision, direction=direction)
        x = draw(rng, plan, 3)
        y = x.copy()
        for row in y:
            transform(row)
        check(plan, y, x)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_real_size_compiled_for_the_cpu(precision, rng):
    """The calls that the compiled meanings of real transforms make, with the size left open."""

    @njit
    def forward(x, n):
        return np.fft.rfft(x, n, -1, "backward")

    @njit
    def inverse(x, n):
        return np.fft.irfft(x, n, -1, "forward")

    for n in (*SMALL[1:], *SPREAD[precision]):
        for transform, fft_type in ((forward, "r2c"), (inverse, "c2r")):
            plan = FFT(n, precision, fft_type)
            x = draw(rng, plan, 2)
            got = np.array([transform(row, n) for row in x])
            assert got.dtype == (plan.precision if fft_type == "c2r" else plan.value_type)
            check(plan, got, x)


# --- in kernels -------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def block_transform(fft, x, y):
    r = fft.registers()
    s = fft.scratch()
    b = fft.batch()
    if b < x.shape[0]:
        fft.load(x[b], r)
    fft.execute(r, s)
    if b < x.shape[0]:
        fft.store(r, y[b])


@cuda.jit(device=True)
def thread_transform(fft, x, y):
    r = fft.registers()
    b = fft.batch()
    if b < x.shape[0]:
        fft.load(x[b], r)
        fft.execute(r)
        fft.store(r, y[b])


@cuda.jit(device=True)
def half_block_transform(fft, x, y):
    r = fft.registers()
    s = fft.scratch()
    b = fft.batch()
    if b < x.shape[0]:
        fft.load(x[b : b + 2], r)
    fft.execute(r, s)
    if b < x.shape[0]:
        fft.store(r, y[b : b + 2])


@cuda.jit(device=True)
def half_thread_transform(fft, x, y):
    r = fft.registers()
    b = fft.batch()
    if b < x.shape[0]:
        fft.load(x[b : b + 2], r)
        fft.execute(r)
        fft.store(r, y[b : b + 2])


TRANSFORM = {
    "block": block_transform,
    "thread": thread_transform,
    "half": half_block_transform,
    "half thread": half_thread_transform,
}


def kernel_of(plans):
    """A kernel ``(which, x, y)`` of up to eight plans of one form whose blocks are alike: compiled together they cost a third."""
    transform = TRANSFORM[plans[0].variant]
    if len(plans) == 1:
        a = plans[0]

        @dm.kernel
        def one(which, x, y):
            transform(a, x, y)

        return one
    a, b, c, d, e, f, g, h = (plans * 8)[:8] if len(plans) < 8 else plans

    @dm.kernel
    def eight(which, x, y):
        if which == 0:
            transform(a, x, y)
        elif which == 1:
            transform(b, x, y)
        elif which == 2:
            transform(c, x, y)
        elif which == 3:
            transform(d, x, y)
        elif which == 4:
            transform(e, x, y)
        elif which == 5:
            transform(f, x, y)
        elif which == 6:
            transform(g, x, y)
        else:
            transform(h, x, y)

    return eight


def run(kernel, which, plan, xp, x):
    """Rows through a kernel; complex numbers of halves travel as their parts."""
    batch, length = x.shape[0], plan.traits("cpu").output_length
    if plan.half and np.iscomplexobj(x):
        x = np.stack([x.real, x.imag], -1).astype(np.float16)
    shape, kind = ((batch, length), plan.precision) if plan.is_real("output") or plan.half else ((batch, length), plan.value_type)
    y = xp.full((*shape, 2) if plan.half and not plan.is_real("output") else shape, np.nan, kind)
    kernel[plan.launch(batch)](which, xp.asarray(x), y)
    y = host(y)
    return y.astype(float) @ [1, 1j] if y.ndim == 3 else y


def check_in_kernels(group, xp, rng):
    """Plans whose blocks are alike, in one kernel."""
    kernel = kernel_of(group)
    for which, plan in enumerate(group):
        x = draw(rng, plan, 2 * plan.traits(target_of(xp)).ffts_per_block + 1)
        check(plan, run(kernel, which, plan, xp, x), x)


def here(plan, xp):
    """The plan's traits, where the target has it."""
    try:
        return plan.traits(target_of(xp))
    except PlanError as e:  # the largest sizes do not exist on every architecture
        pytest.skip(str(e))


IN_KERNELS = [FFT(n, np.float32) for n in (499, 8191, 32768)]
IN_KERNELS += [FFT(509, np.float64, direction="inverse"), FFT(16384, np.float64)]
IN_KERNELS += [FFT(61, np.float32, execution="thread"), FFT(1000, np.float64, "c2r", complex_layout="packed"), FFT(4093, np.float32, "r2c")]
ON_THE_GPU = [FFT(n, np.float32) for n in (1, 5, 512, 4093, 8192, 20736)]
ON_THE_GPU += [FFT(n, np.float32, direction="inverse") for n in (383, 1021)]
ON_THE_GPU += [FFT(n, np.float64, direction=d) for n, d in ((11, "inverse"), (509, "forward"), (8191, "forward"), (8192, "inverse"))]
ON_THE_GPU += [FFT(n, np.float16) for n in (509, 512, 8191, 32768)]
ON_THE_GPU += [FFT(n, p, execution="thread") for n, p in ((64, np.float32), (37, np.float64), (59, np.float16))]
ON_THE_GPU += [
    FFT(n, p, fft_type, complex_layout=layout)
    for n, p, fft_type, layout in (
        *((512, np.float32, *kind) for kind in REAL),
        *((1000, np.float64, *kind) for kind in REAL),
        *((2048, np.float16, *kind) for kind in REAL),
        (8191, np.float32, "r2c", "natural"),
        (4093, np.float64, "c2r", "natural"),
    )
]


@plans(IN_KERNELS)
def test_a_spread_of_sizes_in_kernels(xp, fft, rng):
    here(fft, xp)
    check_in_kernels([fft], xp, rng)


@pytest.mark.gpu
@plans(ON_THE_GPU)
def test_a_wider_spread_on_the_gpu(fft, rng):
    xp = pytest.importorskip("cupy")
    here(fft, xp)
    check_in_kernels([fft], xp, rng)


def alike(plans, xp):
    """Groups of up to eight plans whose blocks are alike on the target."""
    by_block = {}
    for plan in plans:
        t = plan.traits(target_of(xp))
        by_block.setdefault((t.block_dim, t.ffts_per_block), []).append(plan)
    return [group[i : i + 8] for group in by_block.values() for i in range(0, len(group), 8)]


def test_several_sizes_in_one_kernel(xp, rng):
    """What the test of every size on the GPU rests on."""
    for group in alike([FFT(n) for n in (96, 97)], xp):
        check_in_kernels(group, xp, rng)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("first", SMALL[::32])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_size_on_the_gpu(precision, first, rng):
    """Neighbours have different directions: they are done by the same algorithm."""
    xp = pytest.importorskip("cupy")
    for group in alike([FFT(n, precision, direction=("forward", "inverse")[n % 2]) for n in range(first, first + 32)], xp):
        check_in_kernels(group, xp, rng)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_size_on_the_gpu_in_one_thread(precision, kind, rng):
    xp = pytest.importorskip("cupy")
    sizes = sizes_of(kind, range(1, THREAD_LIMIT[precision] + 1))
    for group in alike([FFT(n, precision, execution="thread", **form(*kind)) for n in sizes], xp):
        check_in_kernels(group, xp, rng)


# --- without a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("where", ARCHS)
def test_every_size_exists_on_every_architecture(where, precision):
    target = parse(where)
    for n in SMALL[1:]:
        plan = FFT(n, precision)
        found = cufftdx.ask(plan, target, cufftdx.operators(plan, target, (None, None)))  # past the cache, whose files cost more
        assert found["elements_per_thread"] * found["stride"] >= n and found["shared_memory_size"] <= target.shared_limit
    for n in (*SMALL[::31], *SPREAD[precision]):
        if n <= 4096:
            t = FFT(n, precision).traits(where)
            assert t.elements_per_thread * t.stride >= n
