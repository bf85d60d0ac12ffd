"""Transforms in two and three dimensions inside a block, on either side: against numpy.fft in double precision."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba import types as nbt
from support import ARCHS, TOLERANCE, error, host, noise, target_of

import devmath as dm
from devmath.arch import parse
from devmath.errors import KernelTypeError, LaunchError, PlanError
from devmath.fft import FFTN
from devmath.launch import resolve
from devmath.targets.cuda import compile_kernel

TWO = [FFTN(s) for s in ((1, 1), (1, 7), (5, 1), (2, 2), (8, 8), (16, 16), (7, 31), (64, 64), (3, 64), (33, 10), (32, 64))]
TWO += [FFTN((16, 24), np.float64), FFTN((40, 40), np.float64), FFTN((13, 5), np.float64, "inverse")]
THREE = [FFTN(s) for s in ((1, 1, 1), (4, 4, 4), (8, 8, 8), (2, 3, 5), (16, 16, 16), (1, 6, 4), (7, 1, 9), (24, 24, 24))]
THREE += [FFTN((8, 4, 10), np.float64), FFTN((5, 6, 7), np.float64, "inverse")]
KNOBS = [FFTN((8, 8), ffts_per_block=1), FFTN((8, 8), ffts_per_block=5), FFTN((4, 4, 4), ffts_per_block=3)]
KINDS = [FFTN((8, 12)), FFTN((16, 16), np.float64), FFTN((4, 6, 5)), FFTN((8, 8), ffts_per_block=3)]


def plan_id(plan):
    fields = plan.fields
    return "-".join(["x".join(map(str, plan.shape)), np.dtype(plan.precision).name, plan.direction, str(fields["ffts_per_block"] or "")]).rstrip("-")


def plans(*groups):
    return pytest.mark.parametrize("fft", [p for g in groups for p in g], ids=plan_id)


def tolerance(plan):
    return TOLERANCE[np.dtype(plan.precision).name]


def rows(fft, xp):
    """A batch that leaves the last block with some to spare, wherever a block has several."""
    return 2 * fft.traits(target_of(xp)).ffts_per_block + 1


@functools.cache
def filtering(fft):
    """A kernel (x, h, y, z): y is the transform of x, z the inverse transform of y * h."""
    back = fft.inverse()

    @dm.kernel
    def both(x, h, y, z):
        d = fft.data()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], d)
        fft.execute(d)
        if b < x.shape[0]:
            fft.store(d, y[b])
        fft.multiply(h, d)
        back.execute(d)
        if b < x.shape[0]:
            back.store(d, z[b])

    return both


def run(fft, xp, x, h=None):
    h = np.ones(fft.shape, fft.precision) if h is None else h
    y, z = (xp.full((x.shape[0], *fft.shape), np.nan, fft.value_type) for _ in range(2))
    filtering(fft)[fft.launch(x.shape[0])](xp.asarray(x), xp.asarray(h), y, z)
    return host(y), host(z)


def reference(fft, x, direction=None):
    """The unnormalised transform in double precision of arrays that are padded or cut to the plan's shape."""
    axes = tuple(range(-len(fft.shape), 0))
    forward = (direction or fft.direction) == "forward"
    transform = np.fft.fftn if forward else np.fft.ifftn
    return transform(x.astype(complex), fft.shape, axes, "backward" if forward else "forward")


# --- against numpy.fft ------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
@plans(TWO, THREE, KNOBS)
def test_transforms_and_filters(xp, fft, rng):
    x, h = noise(rng, (rows(fft, xp), *fft.shape), fft.value_type), noise(rng, fft.shape, fft.value_type)
    y, z = run(fft, xp, x, h)
    want = reference(fft, x)
    assert error(y, want) < tolerance(fft)
    assert error(z, reference(fft, want * h, fft.inverse().direction)) < 2 * tolerance(fft)


@settings(max_examples=10)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=3), st.sampled_from([np.float32, np.float64]), st.booleans(), st.integers(1, 5))
def test_any_shape_and_batch(shape, precision, forward, batch):
    fft = FFTN(tuple(shape), precision, "forward" if forward else "inverse")
    rng = np.random.default_rng(fft.size)
    x = noise(rng, (batch, *fft.shape), fft.value_type)
    y, z = run(fft, np, x)
    assert error(y, reference(fft, x)) < tolerance(fft)
    assert error(z, x.astype(complex) * fft.size) < 2 * tolerance(fft)


@plans(KINDS)
def test_laws(xp, fft, rng):
    """Parseval's, of shifts, and the transform of a delta."""
    x = noise(rng, (3, *fft.shape), fft.value_type)
    x[1] = np.roll(x[0], 1, axis=-1)
    x[2] = 0
    x[2].flat[0] = 1
    y, _ = run(fft, xp, x)
    assert np.isclose(np.linalg.norm(y[0]) ** 2, fft.size * np.linalg.norm(x[0]) ** 2, rtol=10 * tolerance(fft))
    n = fft.shape[-1]
    assert error(y[1], y[0] * np.exp(-2j * np.pi * np.arange(n) / n)) < 3 * tolerance(fft)
    np.testing.assert_array_equal(y[2], 1)


def test_a_two_dimensional_filter_is_a_circular_convolution(xp, rng):
    fft = FFTN((12, 10))
    image, kernel = rng.standard_normal((2, 12, 10))
    h = (np.fft.fft2(kernel) / fft.size).astype(np.complex64)
    _, z = run(fft, xp, image[None].astype(np.complex64), h)
    want = sum(kernel[i, j] * np.roll(image, (i, j), (0, 1)) for i in range(12) for j in range(10))
    assert error(z[0], want) < 2e-6


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
@plans(KINDS)
@pytest.mark.parametrize("order", ["transposed", "backwards", "every other", "batch last"])
def test_arrays_lie_in_memory_as_they_like(xp, fft, order, rng):
    batch = rows(fft, xp)
    x = noise(rng, (batch, *fft.shape), fft.value_type)
    want = run(fft, xp, x)

    def laid():
        shape = (batch, *fft.shape)
        if order == "transposed":
            return xp.full((batch, *fft.shape[::-1]), np.nan, fft.value_type).transpose(0, *range(len(fft.shape), 0, -1))
        if order == "backwards":
            return xp.full(shape, np.nan, fft.value_type)[:, ::-1, ..., ::-1]
        if order == "every other":
            return xp.full((batch, *(2 * n for n in fft.shape)), np.nan, fft.value_type)[(slice(None), *[slice(1, None, 2)] * len(fft.shape))]
        return xp.moveaxis(xp.full((*fft.shape, batch), np.nan, fft.value_type), -1, 0)

    device, y, z = laid(), laid(), laid()
    device[...] = xp.asarray(x)
    filtering(fft)[fft.launch(batch)](device, xp.ones(fft.shape, fft.precision), y, z)
    for got, w in zip((y, z), want, strict=True):
        np.testing.assert_array_equal(host(got), w)


@pytest.mark.sanitizer
@plans(KINDS)
@pytest.mark.parametrize("change", [-3, 2])
def test_other_shapes_are_padded_or_cut_and_nothing_is_written_past_arrays(xp, fft, change, rng):
    batch, shape = rows(fft, xp), tuple(n + change for n in fft.shape)
    x = noise(rng, (batch, *shape), fft.value_type)
    outer = [xp.full((batch + 2, *(n + 2 for n in shape)), np.nan, fft.value_type) for _ in range(2)]
    y, z = (a[(slice(1, -1),) * a.ndim] for a in outer)
    h = noise(rng, shape, fft.value_type)
    filtering(fft)[fft.launch(batch)](xp.asarray(x), xp.asarray(h), y, z)
    inner = (slice(None), *(slice(0, min(n, m)) for n, m in zip(shape, fft.shape, strict=True)))
    want = reference(fft, x)
    factors = np.zeros(fft.shape, complex)
    factors[inner[1:]] = h[inner[1:]]
    assert error(y[inner], want[inner]) < tolerance(fft)
    assert error(z[inner], reference(fft, want * factors, fft.inverse().direction)[inner]) < 2 * tolerance(fft)
    for a, mine in zip(outer, (y, z), strict=True):
        mine[inner] = np.nan
        assert np.isnan(host(a)).all()


def test_an_empty_array_is_zero(xp):
    fft = KINDS[0]
    y, _ = run(fft, xp, np.zeros((2, 0, 4), np.complex64))
    assert (y == 0).all()


@pytest.mark.sanitizer
@plans([KINDS[0], KINDS[2]])
def test_index_and_active_reach_each_element_once(xp, fft, rng):
    three = len(fft.shape) == 3

    @cuda.jit(device=True)
    def scale(d, i):
        if three:
            d[fft.index(i)] *= 2
        else:
            d[fft.index(i)] *= 2

    @dm.kernel
    def twice(x, y):
        d = fft.data()
        b = fft.batch()
        if b < x.shape[0]:
            fft.load(x[b], d)
        cuda.syncthreads()
        for i in range(fft.elements_per_thread):
            if fft.active(i):
                scale(d, i)
        cuda.syncthreads()
        if b < x.shape[0]:
            fft.store(d, y[b])

    batch = rows(fft, xp)
    x = noise(rng, (batch, *fft.shape), fft.value_type)
    y = xp.zeros(x.shape, x.dtype)
    twice[fft.launch(batch)](xp.asarray(x), y)
    np.testing.assert_array_equal(host(y), 2 * x)


@plans(KINDS)
def test_twenty_runs_give_the_same_bits(xp, fft, rng):
    x = noise(rng, (rows(fft, xp), *fft.shape), fft.value_type)
    first = run(fft, xp, x)
    for _ in range(19):
        for a, b in zip(run(fft, xp, x), first, strict=True):
            np.testing.assert_array_equal(a, b)


# --- traits, compilation, refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ARCHS)
@plans(TWO, KNOBS, [p for p in THREE if p.size < 4096])
def test_elements_have_places_of_their_own_and_threads_have_registers(fft, where):
    t = fft.traits(where)
    places = np.tensordot(t.strides, np.indices(fft.shape), 1)
    assert len(np.unique(places)) == fft.size and places.max() < t.pitch
    assert t.shared_memory_size == t.pitch * t.ffts_per_block * np.dtype(fft.value_type).itemsize <= parse(where).shared_limit
    assert t.block_dim.x * t.block_dim.y <= 1024 and t.block_dim.y == t.ffts_per_block
    assert t.block_dim.x * t.elements_per_thread >= fft.size
    assert fft.inverse().traits(where).strides == t.strides


COMPILED = [(KINDS[0], where) for where in ARCHS] + [(fft, "sm_90a") for fft in KINDS[1:]]


@pytest.mark.parametrize(("fft", "where"), COMPILED, ids=lambda v: v if isinstance(v, str) else plan_id(v))
def test_compiles_for_every_architecture(fft, where):
    element, n = nbt.complex64 if fft.precision is np.float32 else nbt.complex128, len(fft.shape)
    array, factors = nbt.Array(element, n + 1, "C"), nbt.Array(element, n, "C")
    compiled = compile_kernel(filtering(fft).py_func, (array, factors, array, array), parse(where))
    assert compiled.cubin[:4] == b"\x7fELF" and {fft, fft.inverse()} <= {plan for plan, _ in compiled.build.plans()}


def test_refusals():
    for shape, text in (
        (8, r"FFT is for one dimension"),
        ((8,), r"FFT\(size=8\)"),
        ((2, 2, 2, 2), r"2 or 3 axes, got 4"),
        ((65, 8), r"1 to 64 points in float32, got 65 \(nearest: 64\).*Large transforms"),
        ((0, 8), r"1 to 64 points in float32, got 0 \(nearest: 1\)"),
        ((64, 64, 64), r"is 2097152 bytes of complex64, and a block has at most \d+ bytes of shared memory: shapes of up to \d+ elements fit, such"),
        ((8, 2.5), r"an axis of shape must be an integer, got 2.5"),
    ):
        with pytest.raises(PlanError, match=text):
            FFTN(shape)
    with pytest.raises(PlanError, match="1 to 40 points in float64, got 41"):
        FFTN((41, 2), np.float64)
    with pytest.raises(PlanError, match="direction must be one of 'forward', 'inverse', got 'backward'"):
        FFTN((8, 8), direction="backward")
    with pytest.raises(PlanError, match="precision"):
        FFTN((8, 8), np.float16)
    with pytest.raises(PlanError, match="ffts_per_block must be at least 1"):
        FFTN((8, 8), ffts_per_block=0)
    with pytest.raises(LaunchError, match=r"FFTN\(28, 28, 28\) needs 175616 bytes of shared memory, sm_120 has \d+: shapes of up to"):
        FFTN((28, 28, 28)).traits("sm_120")
    with pytest.raises(LaunchError, match=r"ffts_per_block can be at most \d+ here"):
        FFTN((40, 40), ffts_per_block=10).traits("sm_120")
    with pytest.raises(LaunchError, match=r"FFTN\(8, 8\) sets its own block, \(1, 1, 1\); leave block out, got 64"):
        fft = FFTN((8, 8))
        resolve("k", fft.launch(10, block=64), [(fft, True)], "cpu")
    with pytest.raises(PlanError, match="was made for sm_80 and is used on sm_90a"):
        FFTN((8, 8), arch="sm_80").traits("sm_90a")


def test_wrong_arrays_are_named(xp):
    fft = KINDS[0]
    with pytest.raises(KernelTypeError, match=r"FFTN\(8, 12\).load\(x, data\): x is a 1-D complex64 array, it must be 2-D"):
        filtering(fft)[fft.launch(1)](*(xp.zeros(s, np.complex64) for s in ((1, 8), (8, 12), (1, 8, 12), (1, 8, 12))))
    with pytest.raises(KernelTypeError, match="complex128, the FFTN works on complex64"):
        filtering(fft)[fft.launch(1)](
            xp.zeros((1, 8, 12), np.complex128), xp.zeros((8, 12), np.complex64), *(xp.zeros((1, 8, 12), np.complex64) for _ in range(2))
        )


def test_threads_meet_in_few_banks():
    """Lines along the first and along the last axis of a square, each thread its own line: no two of a warp's threads in one bank."""
    t = FFTN((32, 32)).traits("sm_90a")
    assert t.strides[1] == 1 and t.strides[0] % 2 == 1
