"""Uniforms and normals in kernels, on either side: exact rules and their ends, accuracy, statistics, and paths built of them."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numba import cuda
from scipy import stats
from support import box_muller, host, uniform32

import devmath as dm
from devmath.random import Philox

rng = Philox()

# --- uniforms (cases 1, 9, 10) ----------------------------------------------------------------------------------------

FORCED = np.array([0, 1, 0x80000000, 0xFFFFFF80, 0xFFFFFFFF], np.uint32)


@dm.kernel
def uniforms_of(words, u, co, u64, co64):
    i = cuda.grid(1)
    if i < words.shape[0]:
        x, y, z, w = words[i, 0], words[i, 1], words[i, 2], words[i, 3]
        u[i, 0], u[i, 1], u[i, 2], u[i, 3] = rng.uniform4_from_bits(x, y, z, w)
        co[i, 0], co[i, 1], co[i, 2], co[i, 3] = rng.uniform4_co_from_bits(x, y, z, w)
        u64[i, 0], u64[i, 1] = rng.uniform2_f64_from_bits(x, y, z, w)
        co64[i, 0], co64[i, 1] = rng.uniform2_co_f64_from_bits(x, y, z, w)


def uniforms(xp, given_words):
    n = len(given_words)
    out = [xp.zeros((n, 4), np.float32), xp.zeros((n, 4), np.float32), xp.zeros((n, 2)), xp.zeros((n, 2))]
    uniforms_of[rng.launch(n)](xp.asarray(np.asarray(given_words, np.uint32)), *out)
    return [host(o) for o in out]


def exact_uniforms(w):
    """The four rules in exact arithmetic, each rounded once: words are columns of Python integers."""
    u = [[np.float32(np.float32(v) * 2.0**-32 + 2.0**-33) for v in row] for row in w]
    co = [[np.float32((v >> 8) * 2.0**-24) for v in row] for row in w]
    pairs = [[row[0] ^ row[1] << 21, row[2] ^ row[3] << 21] for row in w]
    return u, co, [[(v + 0.5) * 2.0**-53 for v in row] for row in pairs], [[v * 2.0**-53 for v in row] for row in pairs]


@pytest.mark.sanitizer
def test_uniforms_at_the_ends(xp):
    u, co, u64, co64 = uniforms(xp, np.repeat(FORCED[:, None], 4, axis=1))
    assert u[:, 0].tolist() == np.float32([1.1641532e-10, 3.4924597e-10, 0.5, 1.0, 1.0]).tolist()
    assert co[:, 0].tolist() == np.float32([0.0, 0.0, 0.5, 0.99999994, 0.99999994]).tolist()
    assert (u == u[:, :1]).all() and (co == co[:, :1]).all() and (u64 == u64[:, :1]).all() and (co64 == co64[:, :1]).all()
    assert u64[0, 0] == 2.0**-54 and co64[0, 0] == 0.0
    _, _, u64, co64 = uniforms(xp, [[0x1FFFFF, 0xFFFFFFFF] * 2])  # 53 ones
    assert u64[0, 0] == 1.0 and co64[0, 0] == 1 - 2.0**-53


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), min_size=1, max_size=30))
@example([tuple(FORCED[:4].tolist()), tuple(FORCED[1:].tolist())])
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_uniforms_are_their_rules_bit_for_bit(xp, w):
    for got, want in zip(uniforms(xp, w), exact_uniforms(w), strict=True):
        assert got.tolist() == np.array(want, got.dtype).tolist()


def test_every_uniform_documents_its_interval():
    closed = {True: "[0, 1)", False: "(0, 1]"}
    for name, fn in rng.functions.items():
        if name.startswith("uniform") and not name.endswith("_from_bits"):
            assert closed["_co" in name] in fn.doc and closed["_co" not in name] not in fn.doc


def test_indices_from_half_open_uniforms_stay_inside():
    for n in (3, 10, 1000, 2**20, 2**24):
        assert int(np.float32(n) * np.float32(0.99999994)) < n


# --- normals (cases 3, 10) --------------------------------------------------------------------------------------------


@dm.kernel
def normals_of(words, z, fast, z64):
    i = cuda.grid(1)
    if i < words.shape[0]:
        a, b, c, d = words[i, 0], words[i, 1], words[i, 2], words[i, 3]
        z[i, 0], z[i, 1], z[i, 2], z[i, 3] = rng.normal4_from_bits(a, b, c, d)
        fast[i, 0], fast[i, 1], fast[i, 2], fast[i, 3] = rng.normal4_fast_from_bits(a, b, c, d)
        z64[i, 0], z64[i, 1] = rng.normal2_f64_from_bits(a, b, c, d)


def normals(xp, given_words):
    n = len(given_words)
    out = [xp.zeros((n, 4), np.float32), xp.zeros((n, 4), np.float32), xp.zeros((n, 2))]
    normals_of[rng.launch(n)](xp.asarray(np.asarray(given_words, np.uint32)), *out)
    return [host(o) for o in out]


def edge_words(seed: int, n: int) -> np.ndarray:
    """Random words, with the ends of the range, quarter turns and their neighbours in all combinations."""
    ends = [0, 1, 2, 0x7F, 0xFF, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xBFFFFFFF, 0xC0000001]
    ends += [0xFFFFFF00, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFFF]
    pairs = np.array([(a, b) for a in ends for b in ends], np.uint32)
    near_one = np.stack([2**32 - 1 - 2 ** np.arange(32, dtype=np.uint64), np.full(32, 0x12345678)], axis=1).astype(np.uint32)
    random = np.random.default_rng(seed).integers(0, 2**32, (n, 4), np.uint32)
    return np.concatenate([np.concatenate([pairs, pairs[::-1]], axis=1), np.concatenate([near_one, near_one], axis=1), random])


def test_normals_are_the_formula_on_their_uniforms(xp):
    """Within 1 ulp on the CPU, where they are computed in double precision; a few on the GPU."""
    w = edge_words(1, 20_000)
    z, _, z64 = normals(xp, w)
    u = uniform32(w)
    want = np.stack(box_muller(u[:, 0], u[:, 1])[:2] + box_muller(u[:, 2], u[:, 3])[:2], axis=1)
    assert (np.abs(z - want) <= (1 if xp is np else 8) * np.spacing(np.abs(want).astype(np.float32))).all()
    assert np.isfinite(z).all() and np.abs(z).max() <= 6.77

    w = w.astype(np.uint64)
    bits = np.stack([w[:, 0] ^ w[:, 1] << np.uint64(21), w[:, 2] ^ w[:, 3] << np.uint64(21)], axis=1)
    first = bits[:, 0].astype(np.float64) * 2.0**-53 + 2.0**-54
    turn = (2 * bits[:, 1].astype(np.longdouble) + 1) * np.longdouble(2.0) ** -54
    sine, cosine, r = box_muller(first, turn)
    slack = r * 2.0**-51 if xp is np else 0  # the CPU rounds the uniform of the angle to 53 bits of a turn, the GPU does not
    for got, want in zip(z64.T, (sine, cosine), strict=True):
        assert (np.abs(got - want) <= np.maximum(6 * np.spacing(np.abs(want).astype(np.float64)), 1e-30) + slack).all()
    assert np.isfinite(z64).all() and np.abs(z64).max() <= 8.66


def test_fast_normals_follow_the_accurate_ones(xp):
    """The accuracy that the docstring of ``normal4_fast`` states."""
    w = edge_words(2, 200_000)
    _, fast, _ = normals(xp, w)
    u = uniform32(w)
    sine, cosine, r = box_muller(u[:, ::2], u[:, 1::2])
    want = np.stack([sine[:, 0], cosine[:, 0], sine[:, 1], cosine[:, 1]], axis=1)
    radius = np.repeat(r, 2, axis=1).astype(float)
    gap = np.abs(fast - want).astype(float)
    if xp is np:
        assert (gap <= 4e-7 * radius).all()
    else:
        small = 1.1e-6 * radius + np.minimum(3.4e-7 / np.maximum(radius, 1e-30), 6.1e-4)
        assert (gap <= np.where(radius < 1.18, small, 1.3e-6 * radius)).all()
    assert np.abs(fast).max() <= 6.77


def test_the_scaled_fast_normals_are_the_fast_ones_scaled(xp):
    @dm.kernel
    def both(plain, scaled, mean, scale):
        i = cuda.grid(1)
        if i < plain.shape[0]:
            plain[i, 0], plain[i, 1], plain[i, 2], plain[i, 3] = rng.normal4_fast(11, i, 5)
            scaled[i, 0], scaled[i, 1], scaled[i, 2], scaled[i, 3] = rng.normal4_fast_scaled(11, i, 5, mean, scale)

    for mean, scale in ((0.0, 1.0), (-3.5, 0.25), (100.0, 20.0)):
        plain, scaled = xp.zeros((1000, 4), np.float32), xp.zeros((1000, 4), np.float32)
        both[rng.launch(1000)](plain, scaled, np.float32(mean), np.float32(scale))
        np.testing.assert_allclose(host(scaled), mean + scale * host(plain).astype(float), rtol=0, atol=2e-6 * (abs(mean) + 7 * scale))


def test_the_normal_of_the_smallest_uniform_is_far_out(xp):
    _, _, z64 = normals(xp, [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    assert np.abs(z64).max(axis=1)[0] > 8  # 32-bit uniforms stop at 6.8
    assert len({row.tobytes() for row in z64}) == 3


def test_all_53_bits_count_in_double_precision(xp):
    """Words that differ in their second half alone give other doubles."""
    base = [0x12345678, 0x9ABCDEF0, 0x0F1E2D3C, 0x4B5A6978]
    flipped = [[v ^ (1 << bit if k == part else 0) for k, v in enumerate(base)] for part in range(4) for bit in range(32)]
    _, _, u64, co64 = uniforms(xp, [base, *flipped])
    _, _, z64 = normals(xp, [base, *flipped])
    for values in (u64, co64, z64):
        assert all((row != values[0]).any() for row in values[1:])


# --- statistics -------------------------------------------------------------------------------------------------------


@dm.kernel
def sample(seed, w, u, z, fast, z64):
    i = cuda.grid(1)
    if i < w.shape[0]:
        w[i, 0], w[i, 1], w[i, 2], w[i, 3] = rng.bits4(seed, i, 0)
        u[i, 0], u[i, 1], u[i, 2], u[i, 3] = rng.uniform4(seed, i, 1)
        z[i, 0], z[i, 1], z[i, 2], z[i, 3] = rng.normal4(seed, i, 2)
        fast[i, 0], fast[i, 1], fast[i, 2], fast[i, 3] = rng.normal4_fast(seed, i, 3)
        z64[i, 0], z64[i, 1] = rng.normal2_f64(seed, i, 4)


def sampled(xp, seed, n=50_000):
    out = [xp.zeros((n, 4), t) for t in (np.uint32, np.float32, np.float32, np.float32)] + [xp.zeros((n, 2))]
    sample[rng.launch(n)](seed, *out)
    return [host(o) for o in out]


def p_moments(z):
    """Hermite polynomials of standard normals: zero on average with variance k!, and uncorrelated, unlike the moments themselves."""
    z = z.ravel().astype(float)
    polynomials = [z, z**2 - 1, z**3 - 3 * z, z**4 - 6 * z**2 + 3]
    return [2 * stats.norm.sf(abs(p.mean()) * (z.size / math.factorial(k)) ** 0.5) for k, p in enumerate(polynomials, 1)]


def p_lags(x):
    """Correlation of neighbours, within a call and between streams."""
    x = (x - x.mean()) / x.std()
    pairs = [(x[:, k], x[:, k + 1]) for k in range(x.shape[1] - 1)] + [(x[:-1, 0], x[1:, 0]), (x[:-1, -1], x[1:, 0])]
    return [2 * stats.norm.sf(abs((a * b).mean()) * a.size**0.5) for a, b in pairs]


def p_bits(w):
    """Each bit is set half of the time, and bytes are equally frequent."""
    n = w.size
    bits = np.unpackbits(w.ravel().view(np.uint8)).reshape(n, 32).sum(axis=0)
    counts = [np.bincount(w.ravel() >> np.uint32(shift) & np.uint32(255), minlength=256) for shift in (0, 8, 16, 24)]
    return [stats.chi2.sf(((bits - n / 2) ** 2 / (n / 4)).sum(), 32)] + [stats.chisquare(c).pvalue for c in counts]


@pytest.mark.parametrize("seed", [0, 1, 20260101, 2**63 - 1])
def test_statistics(xp, seed):
    """Fixed seeds; the p-values of all tests together by Fisher's rule."""
    w, u, z, fast, z64 = (s.astype(float) if s.dtype != np.uint32 else s for s in sampled(xp, seed))
    ps = p_bits(w) + [stats.kstest(u.ravel(), "uniform").pvalue] + p_lags(u)
    for normal in (z, fast, z64):
        ps += [stats.kstest(normal.ravel(), "norm").pvalue, *p_moments(normal), *p_lags(normal)]
    combined = stats.combine_pvalues(ps).pvalue
    assert combined > 0.005 and min(ps) > 1e-5, sorted(ps)[:5]


def test_streams_of_neighbouring_seeds_are_independent(xp):
    a, b = (sampled(xp, seed, 20_000)[2].astype(float) for seed in (5, 6))
    assert abs((a * b).mean()) < 4 / a.size**0.5


# --- between the sides, and speed -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_words_and_uniforms_are_bit_identical_on_both_sides():
    cupy = pytest.importorskip("cupy")
    cpu, gpu = sampled(np, 77), sampled(cupy, 77)
    np.testing.assert_array_equal(cpu[0], gpu[0])
    np.testing.assert_array_equal(cpu[1], gpu[1])
    for a, b in zip(uniforms(np, cpu[0]), uniforms(cupy, cpu[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(cpu[2], gpu[2], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(cpu[4], gpu[4], rtol=1e-14, atol=1e-15)


# --- Monte Carlo (case 6) ---------------------------------------------------------------------------------------------


def test_geometric_brownian_motion_keeps_its_law(xp):
    """S0 = 100, mu = 0.003 and sigma = 0.027 a step, 252 steps: mean and deviation of the end, and two ways to the same path."""
    paths, steps, s0, mu, sigma = (40_000 if xp is np else 800_000), 252, 100.0, 0.003, 0.027

    @dm.kernel(fastmath=True)
    def walk(log_end, end, s0, drift, sigma):
        i = cuda.grid(1)
        if i < end.shape[0]:
            x, s = np.float32(0), s0
            for t in range(63):
                for z in rng.normal4(2026, i, t):
                    x += drift + sigma * z
                    s *= math.exp(drift + sigma * z)
            log_end[i], end[i] = s0 * math.exp(x), s

    log_end, end = xp.zeros(paths, np.float32), xp.zeros(paths, np.float32)
    walk[rng.launch(paths)](log_end, end, np.float32(s0), np.float32(mu), np.float32(sigma))
    log_end, end = host(log_end).astype(float), host(end).astype(float)
    np.testing.assert_allclose(log_end, end, rtol=1e-4)
    # E S = S0 exp(n (mu + sigma^2 / 2)), and the log-normal deviation.
    mean = s0 * math.exp(steps * (mu + sigma**2 / 2))
    deviation = mean * math.sqrt(math.expm1(steps * sigma**2))
    assert abs(end.mean() - mean) < 4 * deviation / paths**0.5
    assert abs(end.std() / deviation - 1) < (0.05 if xp is np else 0.01)
