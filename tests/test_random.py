"""Philox in kernels, on either side: known answers, the paper's algorithm, cuRAND's order, and the laws of the distributions."""

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numba import cuda
from scipy import stats
from support import host, philox, philox_words

import devmath as dm
from devmath.errors import KernelTypeError, PlanError
from devmath.random import Philox

rng = Philox()
seven = Philox(rounds=7)
u64 = st.integers(0, 2**64 - 1)
slow_start = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dm.kernel
def words_of(seed, stream, step, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = rng.bits4(seed[i], stream[i], step[i])


def words(xp, seeds, streams, steps, kernel=words_of):
    """The words of calls on a side; the arguments are lists of Python integers."""
    arrays = [xp.asarray(np.array(v, np.uint64)) for v in (seeds, streams, steps)]
    out = xp.zeros((len(seeds), 4), np.uint32)
    kernel[rng.launch(len(seeds), block=64)](*arrays, out)
    return host(out)


# --- Philox itself (cases 2, 4) ---------------------------------------------------------------------------------------

#: Counter, key, words: the known answers of Random123 1.14 (kat_vectors, philox4x32 10).
KNOWN = [
    (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (2**128 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (0x03707344_13198A2E_85A308D3_243F6A88, 0x299F31D0_A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    (1, 0, "f8e4cca4 5cb200db b1a574eb 097eff67"),
    (1 << 32, 0, "6ad0c5ec ea236249 73a459f5 074944b3"),
]


def spell(row):
    return " ".join(f"{int(w):08x}" for w in row)


@pytest.mark.sanitizer
def test_known_answers(xp):
    counters, keys, want = zip(*KNOWN, strict=True)
    got = words(xp, keys, [c >> 64 for c in counters], [c & 2**64 - 1 for c in counters])
    assert [spell(row) for row in got] == list(want)
    assert [spell(philox(c, k)) for c, k in zip(counters, keys, strict=True)] == list(want)


def test_known_answer_of_seven_rounds(xp):
    @dm.kernel
    def words_of_seven(seed, stream, step, out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = seven.bits4(seed[i], stream[i], step[i])

    assert spell(words(xp, [0], [0], [0], words_of_seven)[0]) == "5f6fb709 0d893f64 4f121f81 4f730a48"


@given(st.lists(st.tuples(u64, u64, u64), min_size=1, max_size=50))
@example([(2**64 - 1, 2**64 - 1, 2**64 - 1), (2**32, 2**32, 2**32), (2**63, 2**63, 2**63)])
@slow_start
def test_words_are_those_of_the_paper(xp, calls):
    np.testing.assert_array_equal(words(xp, *zip(*calls, strict=True)), [philox_words(*c) for c in calls])


def test_every_bit_of_seed_stream_and_step_counts(xp):
    flipped = [tuple(v ^ (1 << bit if k == part else 0) for k, v in enumerate((3, 5, 7))) for part in range(3) for bit in range(64)]
    got = words(xp, *zip((3, 5, 7), *flipped, strict=True))
    assert len({row.tobytes() for row in got}) == 193
    far = np.unpackbits((got[1:] ^ got[0]).view(np.uint8), axis=1).sum(axis=1)  # of 128 bits, half change
    assert far.min() > 32 and abs(far.mean() - 64) < 2


@dm.kernel
def words_of_integers(seed, stream, step, out):
    out[0], out[1], out[2], out[3] = rng.bits4(seed, stream, step)


@given(*[st.integers(-(2**63), 2**63 - 1)] * 3)
@example(-1, -2, -(2**63))
@slow_start
def test_negative_integers_are_taken_modulo_2_64(xp, seed, stream, step):
    out = xp.zeros(4, np.uint32)
    words_of_integers[1, 1](seed, stream, step, out)
    assert tuple(host(out)) == philox_words(seed, stream, step)


def test_narrow_integers_keep_their_value(xp):
    for dtype in (np.int8, np.int32, np.uint32):
        out = xp.zeros(4, np.uint32)
        top = np.iinfo(dtype).min or np.iinfo(dtype).max
        words_of_integers[1, 1](dtype(top), 1, 2, out)
        assert tuple(host(out)) == philox_words(int(top), 1, 2)


def test_all_numbers_of_rounds(xp):
    plans = tuple(Philox(r) for r in range(1, 17))
    p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16 = plans

    @dm.kernel
    def sums(out):
        out[0], out[1], out[2], out[3] = p1.bits4(1, 2, 3)[3], p2.bits4(1, 2, 3)[3], p3.bits4(1, 2, 3)[3], p4.bits4(1, 2, 3)[3]
        out[4], out[5], out[6], out[7] = p5.bits4(1, 2, 3)[3], p6.bits4(1, 2, 3)[3], p7.bits4(1, 2, 3)[3], p8.bits4(1, 2, 3)[3]
        out[8], out[9], out[10], out[11] = p9.bits4(1, 2, 3)[3], p10.bits4(1, 2, 3)[3], p11.bits4(1, 2, 3)[3], p12.bits4(1, 2, 3)[3]
        out[12], out[13], out[14], out[15] = p13.bits4(1, 2, 3)[3], p14.bits4(1, 2, 3)[3], p15.bits4(1, 2, 3)[3], p16.bits4(1, 2, 3)[3]

    out = xp.zeros(16, np.uint32)
    sums[1, 1](out)
    assert host(out).tolist() == [philox_words(1, 2, 3, rounds=p.rounds)[3] for p in plans]


@pytest.mark.parametrize("bad, words", [(0, "1 to 16 .*got 0"), (17, "got 17"), (10.0, "integer, got 10.0"), (True, "integer, got True")])
def test_rounds_that_do_not_exist(bad, words):
    with pytest.raises(PlanError, match=words):
        Philox(bad)


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
    # The largest of 53 bits: all words of ones give 2^53 - 2^32 + ... with the XOR; force each bit instead.
    top = [0x1FFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFE00000 ^ 0xFFFFFFFF]
    _, _, u64, co64 = uniforms(xp, [[0xFFFFFFFF, 0xFFFFFFFF ^ 0x7FF] * 2, [top[0] ^ 0xFFFFFFFF, 0xFFFFFFFF] * 2])
    assert (u64 > 0).all() and (u64 <= 1).all() and (co64 >= 0).all() and (co64 < 1).all()


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), min_size=1, max_size=30))
@example([tuple(FORCED[:4].tolist()), tuple(FORCED[1:].tolist())])
@slow_start
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


def box_muller(radius, turn):
    """sqrt(-2 ln u) (sin, cos)(2 pi v) in long double, with the radius."""
    radius, turn = np.longdouble(radius), np.longdouble(turn)
    eighth = np.longdouble(0.125)
    nearest = np.floor(turn / eighth + np.longdouble(0.5))  # reduced by hand: near a multiple of pi the angle must not be rounded
    rest = (turn - nearest * eighth) * 2 * np.longdouble("3.14159265358979323846264338327950288")
    whole = nearest.astype(int) % 8
    root = np.sqrt(np.longdouble(0.5))
    table = np.array([(0, 1), (root, root), (1, 0), (root, -root), (0, -1), (-root, -root), (-1, 0), (-root, root)], np.longdouble)[whole]
    s, c = np.sin(rest), np.cos(rest)
    r = np.sqrt(-2 * np.log(radius))
    return r * (table[..., 0] * c + table[..., 1] * s), r * (table[..., 1] * c - table[..., 0] * s), r


def edge_words(seed: int, n: int) -> np.ndarray:
    """Random words, with the ends of the range, quarter turns and their neighbours in all combinations."""
    ends = [0, 1, 2, 0x7F, 0xFF, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xBFFFFFFF, 0xC0000001, 0xFFFFFF00, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFFF]
    pairs = np.array([(a, b) for a in ends for b in ends], np.uint32)
    near_one = np.stack([2**32 - 1 - 2 ** np.arange(32, dtype=np.uint64), np.full(32, 0x12345678)], axis=1).astype(np.uint32)
    random = np.random.default_rng(seed).integers(0, 2**32, (n, 4), np.uint32)
    return np.concatenate([np.concatenate([pairs, pairs[::-1]], axis=1), np.concatenate([near_one, near_one], axis=1), random])


def uniform32(w):
    return np.float32(np.float32(w) * 2.0**-32 + 2.0**-33)


def test_normals_are_the_formula_on_their_uniforms(xp):
    """Within 1 ulp on the CPU, where they are computed in double precision; a few on the GPU."""
    w = edge_words(1, 20_000)
    z, _, z64 = normals(xp, w)
    u = uniform32(w)
    want = np.stack(box_muller(u[:, 0], u[:, 1])[:2] + box_muller(u[:, 2], u[:, 3])[:2], axis=1)
    # A multiple of pi has no relative accuracy in a float's angle; its sine is held to the radius's scale there.
    allowed = (1 if xp is np else 8) * np.maximum(np.spacing(np.abs(want).astype(np.float32)), 2.0**-50)
    assert (np.abs(z - want) <= allowed).all()
    assert np.isfinite(z).all() and np.abs(z).max() <= 6.77

    w = w.astype(np.uint64)
    bits = np.stack([w[:, 0] ^ w[:, 1] << np.uint64(21), w[:, 2] ^ w[:, 3] << np.uint64(21)], axis=1)
    first = bits[:, 0].astype(np.float64) * 2.0**-53 + 2.0**-54
    turn = (2 * bits[:, 1].astype(np.longdouble) + 1) * np.longdouble(2.0) ** -54
    sine, cosine, r = box_muller(first, turn)
    # The CPU rounds the angle to double precision: up to 2^-52 pi of the radius. The GPU does not.
    slack = r * 2.0**-50 if xp is np else 0
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
    assert (gap <= fast_bound(radius)).all()
    assert np.abs(fast).max() <= 6.77


def fast_bound(radius):
    return radius * 1.25e-6 + np.minimum(4e-7 / np.maximum(radius, 1e-30), 6.1e-4)


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


@pytest.mark.sanitizer
def test_first_normals_depend_on_the_seed(xp):
    @dm.kernel
    def first_two(out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            s = rng.new_state()
            rng.seed(s, i + 1, 0, 0)
            out[i, 0] = rng.normal(s)
            out[i, 1] = rng.normal(s)

    out = xp.zeros((1000, 2), np.float32)
    first_two[rng.launch(1000)](out)
    first, second = host(out).T
    assert len(set(first.tolist())) >= 990
    assert abs(first.mean()) < 0.13 and 0.9 < first.std() < 1.1
    assert (first != second).all()


# --- launch shapes (cases 5, 7), cuRAND's order -----------------------------------------------------------------------


def test_the_launch_shape_does_not_matter(xp):
    @dm.kernel
    def paths(out):
        for p in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
            x = np.float32(0)
            for step in range(out.shape[1]):
                a, b, c, d = rng.normal4(7, p, step)
                x += a + b + c + d
                out[p, step] = x

    found = []
    for grid, block in ((1, 32), (8, 128), (3, 1)):
        out = xp.full((1000, 5), np.nan, np.float32)
        paths[grid, block](out)
        found.append(host(out))
    assert np.isfinite(found[0]).all()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_the_tail_is_written(xp):
    @dm.kernel
    def rows(out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = rng.normal4(1, i, 0)[0]

    out = xp.full(1000, np.nan, np.float32)
    grid, block = rng.launch_shape(1000, "cpu", None)
    assert (grid.x, block.x) == (4, 256)
    rows[rng.launch(1000)](out)
    assert np.isfinite(host(out)).all()


@dm.kernel
def draw(seeds, streams, offsets, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        s = rng.new_state()
        rng.seed(s, seeds[i], streams[i], offsets[i])
        for k in range(out.shape[1]):
            out[i, k] = rng.bits(s)


#: seed, subsequence, offset, and the first draws of `curand` after `curand_init`, from cuRAND 10.4.5's own headers.
CURAND = [
    (1234, 0, 0, "2090b348 da7cf0ab 4401906f cbca470e 9eeede35 1cbe137c"),
    (1234, 0, 7, "147edd50 3fc9c8d8 fc06fa38 cc170b27 891d3b11 b6269a3e"),
    (1234, 77, 2**34 + 6, "a779444a 451937ba 1fb1228a eceb9b61 b1c8a4c9 67a74c47"),
    (1234, 2**40 + 3, 1, "c020d7e8 fd2151d5 ced01903 8878d586 e1a38d8f b940bd02"),
    (0xFEDCBA9876543210, 77, 7, "282d2036 1920a6df edd75db6 4c3e08d1 70483dc8 0f465fb6"),
    (0xFEDCBA9876543210, 2**40 + 3, 2**34 + 6, "83231b81 d3ba647a c47aedc8 3f8761a1 a1df0faf 9813e1cd"),
]


@pytest.mark.sanitizer
def test_draws_are_those_of_curand(xp):
    seeds, streams, offsets, want = zip(*CURAND, strict=True)
    out = xp.zeros((len(CURAND), 6), np.uint32)
    draw[rng.launch(len(CURAND))](*(xp.asarray(np.array(v, np.uint64)) for v in (seeds, streams, offsets)), out)
    assert [spell(row) for row in host(out)] == list(want)


def test_numbers_are_those_of_curand(xp):
    """What cuRAND 10.4.5 makes of seed 1234, subsequence 5, offset 0."""

    @dm.kernel
    def numbers(u, z, z4, u64, z64):
        s = rng.new_state()
        rng.seed(s, 1234, 5, 0)
        for k in range(5):
            u[k] = rng.uniform(s)
        rng.seed(s, 1234, 5, 0)
        for k in range(5):
            z[k] = rng.normal(s)
        z4[0], z4[1], z4[2], z4[3] = rng.normal4(1234, 5, 0)
        u64[0], u64[1] = rng.uniform2_f64(1234, 5, 0)
        z64[0], z64[1] = rng.normal2_f64(1234, 5, 0)

    out = [xp.zeros(5, np.float32), xp.zeros(5, np.float32), xp.zeros(4, np.float32), xp.zeros(2), xp.zeros(2)]
    numbers[1, 1](*out)
    u, z, z4, u64, z64 = map(host, out)
    assert u.tolist() == np.float32([0.973670244, 0.717302024, 0.543573439, 0.740565121, 0.360793531]).tolist()
    np.testing.assert_allclose(z, [-0.2261509, -0.0471269935, -1.10222578, -0.0654175356, 1.42787397], atol=5e-7)
    np.testing.assert_allclose(z4, z[:4], rtol=1e-6)
    assert u64.tolist() == [0.71730212496516144, 0.74056485696657992]
    np.testing.assert_allclose(z64, [-0.81374666549454688, -0.04829773499246176], rtol=1e-14)


# --- a state ----------------------------------------------------------------------------------------------------------


def sequence(seed, stream, offset, count):
    """Words number *offset* on of a stream."""
    return [philox_words(seed, stream, (offset + k) // 4)[(offset + k) % 4] for k in range(count)]


@pytest.mark.sanitizer
def test_a_state_gives_the_words_from_its_offset_on(xp):
    offsets = [*range(10), 5 + 2**32, 4 * (5 + 2**32), 2**34 - 2, 2**64 - 3]
    out = xp.zeros((len(offsets), 11), np.uint32)
    arrays = [xp.asarray(np.array(v, np.uint64)) for v in ([42] * len(offsets), [2**64 - 1] * len(offsets), offsets)]
    draw[rng.launch(len(offsets))](*arrays, out)
    assert host(out).tolist() == [sequence(42, 2**64 - 1, o, 11) for o in offsets]


BITS, UNIFORM, NORMAL, RESEED = range(4)


@dm.kernel
def perform(ops, bits, reals):
    s = rng.new_state()
    rng.seed(s, 9, 8, 1)
    for k in range(ops.shape[0]):
        if ops[k] == BITS:
            bits[k] = rng.bits(s)
        elif ops[k] == UNIFORM:
            reals[k] = rng.uniform(s)
        elif ops[k] == NORMAL:
            reals[k] = rng.normal(s)
        else:
            rng.seed(s, 9, k, 2)


@given(st.lists(st.sampled_from([BITS, UNIFORM, NORMAL, NORMAL, RESEED]), min_size=1, max_size=25))
@example([NORMAL, RESEED, NORMAL, BITS, NORMAL])
@slow_start
def test_draws_of_all_kinds_share_one_sequence(xp, ops):
    """`uniform` takes a word, `normal` two for every other call; seeding forgets the waiting one."""
    bits, reals = xp.zeros(len(ops), np.uint32), xp.zeros(len(ops), np.float32)
    perform[1, 1](xp.asarray(np.array(ops, np.int64)), bits, reals)
    words, spare = iter(sequence(9, 8, 1, 100)), None
    for k, op in enumerate(ops):
        if op == BITS:
            assert host(bits)[k] == next(words)
        elif op == UNIFORM:
            assert host(reals)[k] == uniform32(next(words))
        elif op == RESEED:
            words, spare = iter(sequence(9, k, 2, 100)), None
        else:
            if spare is None:
                a, b, _ = box_muller(uniform32(next(words)), uniform32(next(words)))
                want, spare = a, b
            else:
                want, spare = spare, None
            assert host(reals)[k] == pytest.approx(float(want), rel=1e-6, abs=1e-10)


@pytest.mark.sanitizer
def test_states_are_independent_and_travel_to_device_functions(xp):
    @cuda.jit(device=True)
    def advance(plan, state, times):
        last = np.uint32(0)
        for _ in range(times):
            last = plan.bits(state)
        return last

    @dm.kernel
    def two(out):
        a, b = rng.new_state(), rng.new_state()
        rng.seed(a, 1, 2, 0)
        rng.seed(b, 1, 3, 0)
        for k in range(0, out.shape[1], 2):
            out[0, k] = advance(rng, a, 1)
            out[1, k] = rng.bits(b)
            out[1, k + 1] = advance(rng, b, 1)
            out[0, k + 1] = rng.bits(a)
        out[0, 0] = advance(rng, a, 3)

    out = xp.zeros((2, 12), np.uint32)
    two[1, 1](out)
    first, second = sequence(1, 2, 0, 15), sequence(1, 3, 0, 12)
    assert host(out).tolist() == [[first[14], *first[1:12]], second]


def test_states_of_other_rounds(xp):
    @dm.kernel
    def draw_seven(out):
        s = seven.new_state()
        seven.seed(s, 3, 4, 2)
        for k in range(out.shape[0]):
            out[k] = seven.bits(s)

    out = xp.zeros(7, np.uint32)
    draw_seven[1, 1](out)
    assert host(out).tolist() == [philox_words(3, 4, k // 4, rounds=7)[k % 4] for k in range(2, 9)]


# --- errors -----------------------------------------------------------------------------------------------------------


def wrong_kind(out):
    rng.bits4(1.5, 2, 3)


def wrong_count(out):
    rng.bits4(1, 2)


def wrong_state(out):
    rng.bits(out)


def wrong_mean(out):
    rng.normal4_fast_scaled(1, 2, 3, out, 1.0)


@pytest.mark.parametrize(
    "body, words",
    [
        (wrong_kind, "Philox(10).bits4(seed, stream, step): seed is float64, it must be an integer"),
        (wrong_count, "Philox(10).bits4(seed, stream, step) takes 3 arguments, got 2"),
        (wrong_state, "Philox(10).bits(state): state is float32, the Philox works on uint32"),
        (wrong_mean, "Philox(10).normal4_fast_scaled(seed, stream, step, mean, scale): mean is 1-D float32 array, it must be a real number"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_wrong_types_are_one_line(xp, body, words):
    with pytest.raises(KernelTypeError, match=re.escape(words)) as caught:
        dm.kernel(body)[1, 1](xp.zeros(1, np.float32))
    assert "\n" not in str(caught.value)


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
    """Mean, variance, skewness and kurtosis of standard normals, each against its own standard error."""
    z = z.ravel().astype(float)
    n = z.size
    scores = [z.mean() * n**0.5, (np.mean(z**2) - 1) * (n / 2) ** 0.5, np.mean(z**3) * (n / 15) ** 0.5, (np.mean(z**4) - 3) * (n / 96) ** 0.5]
    return [2 * stats.norm.sf(abs(s)) for s in scores]


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


@pytest.mark.gpu
def test_making_a_generator_costs_less_than_a_draw():
    """2^22 threads: seeding a state and one draw against one draw (case 8)."""
    cupy = pytest.importorskip("cupy")

    @dm.kernel
    def seeded(out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            s = rng.new_state()
            rng.seed(s, 1, i, 0)
            out[i] = rng.normal(s)

    @dm.kernel
    def drawn(out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = rng.normal4(1, i, 0)[0]

    out = cupy.zeros(2**22, np.float32)

    def seconds(kernel):
        ready = kernel[rng.launch(out.size)]
        ready(out)
        times = []
        for _ in range(20):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            ready(out)
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end))
        return min(times)

    assert seconds(seeded) < 2 * seconds(drawn)


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
