"""Philox in kernels, on either side: known answers, the paper's algorithm, cuRAND's order, and the sequence of a state."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numba import cuda
from support import box_muller, host, philox, philox_words, uniform32

import devmath as dm
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
