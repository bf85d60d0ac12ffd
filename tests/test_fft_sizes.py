"""Sizes that are too large for one block, on every architecture, and sizes that are fast."""

import itertools
import re

import numpy as np
import pytest
from support import ARCHS

from devmath.arch import parse
from devmath.errors import LaunchError, PlanError
from devmath.fft import FFT, cufftdx, next_fast_size
from devmath.fft.cufftdx import ANY_SIZE, LARGE, OWN

PRECISIONS = ["float16", "float32", "float64"]
#: Forms of plans, with the largest size of each by precision.
FORMS = [
    ({}, (32768, 32768, 16384)),
    ({"fft_type": "r2c"}, (32768, 32768, 16384)),
    ({"fft_type": "c2r", "real_mode": "folded"}, (65536, 65536, 32768)),
    ({"thread_layout": "transposed"}, (32768, 32768, 16384)),
    ({"api": "shared"}, (None, 27000, 13824)),
    ({"api": "shared", "fft_type": "r2c"}, (None, 32768, 16384)),
    ({"api": "shared", "fft_type": "r2c", "real_mode": "folded"}, (None, 32768, 16384)),
    ({"implementation": "devmath"}, (None, 16384, 8192)),
    ({"implementation": "devmath", "fft_type": "r2c"}, (None, 32768, 16384)),
]
CASES = [(form, precision, most) for form, all_most in FORMS for precision, most in zip(PRECISIONS, all_most, strict=True) if most]
cases = pytest.mark.parametrize(
    "form, precision, most", CASES, ids=lambda v: "-".join(v.values()) or "plain" if isinstance(v, dict) else str(v)
)


# --- too large ----------------------------------------------------------------------------------------------------------


@cases
@pytest.mark.parametrize("size", ["next", 40_000, 100_000, 1 << 20])
def test_a_size_that_no_block_takes(form, precision, most, size):
    n = most + 1 if size == "next" else size
    if n <= most:
        return
    with pytest.raises(PlanError) as e:
        FFT(n, precision, **form)
    text = str(e.value)
    got = rf"size must be at most {most} for {precision} with execution='block'.*, got {n} \(nearest: {most}\): it is too large for one block"
    assert re.match(got, text)
    assert text.endswith("a larger transform takes several kernels, see 'Too large for one block' in docs/fft.md") and "\n" not in text
    assert all(f"{k}={v!r}" in text for k, v in form.items() if k in ("real_mode", "api", "implementation"))
    assert FFT(most, precision, **form).size == most


def named(error):
    """The largest size that a message names."""
    return int(re.search(r"must be at most (\d+) for .*too large for one block", str(error))[1])


def works(size, precision, form, where):
    try:
        FFT(size, precision, **form).traits(where)
    except (PlanError, LaunchError):
        return False
    return True


@cases
@pytest.mark.parametrize("where", ARCHS)
def test_the_largest_size_on_an_architecture(form, precision, most, where):
    """It is named by ``arch=``, and by traits and launches for sizes that other architectures take; it works, and none above does."""
    with pytest.raises(PlanError, match=f" on {where}, got 200000 ") as e:
        FFT(200_000, precision, **form, arch=where)
    largest = named(e.value)
    assert works(largest, precision, form, where) and largest <= most
    power = form.get("real_mode") == "folded" or "implementation" in form
    above = [n for n in (LARGE[precision] if not power else [1 << p for p in range(2, 17)]) if largest < n <= most]
    if not power and largest < ANY_SIZE:
        above += [largest + 1, 8000, 8191, 8192]
    for n in above:
        plan = FFT(n, precision, **form)
        for ask in (plan.traits, lambda a, p=plan: p.launch_shape(3, parse(a), None), lambda a, p=plan: p.replace(arch=a)):
            with pytest.raises(PlanError, match=f"on {where}, got {n} .*has at most {parse(where).shared_limit} bytes.*several kernels") as e:
                ask(where)
            assert named(e.value) == largest


def test_where_it_matters():
    """Known answers: shared memory of 99 KB takes less than 227 KB."""
    for precision, form, largest in (("float32", {}, 24389), ("float64", {}, 12167), ("float64", {"api": "shared"}, 5832)):
        with pytest.raises(PlanError) as e:
            FFT(100_000, precision, arch="sm_120", **form)
        assert named(e.value) == largest
    with pytest.raises(PlanError, match=r"real_mode='folded' takes powers of two up to 65536"):
        FFT(65536, fft_type="r2c")
    with pytest.raises(PlanError, match=r"most 27000 for float32 with execution='block' and api='shared', got 32768"):
        FFT(32768, api="shared")
    with pytest.raises(PlanError, match=r"implementation='cufftdx' takes sizes up to 32768"):
        FFT(32768, implementation="devmath")


@pytest.mark.parametrize("size, precision", [(16384, np.float32), (16384, np.float64), (32768, np.float32)])
def test_a_knob_that_is_too_large_is_not_the_size(size, precision):
    """Of the largest size as well."""
    with pytest.raises((PlanError, LaunchError), match="ffts_per_block can be at most 1 here"):
        FFT(size, precision, ffts_per_block=4).traits("sm_80")


@pytest.mark.parametrize("form, most", [({}, 64), ({"precision": np.float64}, 40), ({"precision": np.float16}, 64)])
def test_a_size_that_no_thread_takes(form, most):
    block = LARGE[np.dtype(form.get("precision", np.float32)).name][-1]
    alone = rf"at most {most} .*, got {most + 1} .*too large for one thread; execution='block' takes sizes up to {block}$"
    with pytest.raises(PlanError, match=alone):
        FFT(most + 1, execution="thread", **form)
    together = rf"at most {most} .*, got 40000 .*one thread, and for one block, which takes at most {block} points; .*several"
    with pytest.raises(PlanError, match=together):
        FFT(40_000, execution="thread", **form)
    with pytest.raises(PlanError, match=r"at most 128 .*real_mode='folded', got 130 \(nearest: 128\): it is too large for one thread"):
        FFT(130, fft_type="r2c", execution="thread", real_mode="folded")


# --- fast -----------------------------------------------------------------------------------------------------------------


FAST = [{"precision": p} for p in PRECISIONS]
FAST += [{"precision": p, "fft_type": t} for p in PRECISIONS for t in ("r2c", "c2r")]
FAST += [{"fft_type": "r2c", "complex_layout": layout} for layout in ("packed", "full")]
FAST += [{"fft_type": "r2c", "real_mode": mode, "execution": e} for mode in ("normal", "folded") for e in ("block", "thread")]
FAST += [{"execution": "thread", "precision": p} for p in PRECISIONS]
FAST += [{"implementation": "devmath"}, {"implementation": "devmath", "fft_type": "c2r", "precision": "float64"}]
FAST += [{"arch": "sm_120", "precision": p} for p in PRECISIONS] + [{"arch": "sm_80", "fft_type": "r2c"}]


@pytest.mark.parametrize("form", FAST, ids=lambda f: "-".join(f.values()))
def test_the_next_fast_size(form):
    """Of every number of points: at least as large, of a valid plan, its own next fast size; and larger numbers have none that are smaller."""
    with pytest.raises(PlanError, match=r"^n must be at most \d+ .*, got 1000000 .*too large for one .*several kernels") as e:
        next_fast_size(1_000_000, **form)
    largest = int(re.match(r"n must be at most (\d+)", str(e.value))[1])
    found = [next_fast_size(n, **form) for n in range(1, largest + 1)]
    assert all(size >= n for n, size in enumerate(found, 1)) and found == sorted(found) and found[-1] == largest
    for size in set(found):
        assert FFT(size, **form).size == size and found[size - 1] == size
    with pytest.raises(PlanError, match=rf", got {largest + 1} \(nearest: {largest}\)"):
        next_fast_size(largest + 1, **form)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_table_of_sizes_with_transforms_of_their_own_is_what_the_traits_say(precision):
    for where in ("sm_90a", "sm_120"):
        target, own = parse(where), []
        for n in (*range(2, ANY_SIZE + 1), *LARGE[precision]):
            plan = FFT(n, precision)
            d = cufftdx.mathdx.Descriptor("cufftdx", cufftdx.operators(plan, target, (None, None)))
            if d.supported() and d.trait(4) * d.trait(6) == n:  # elements_per_thread, stride
                own.append(n)
        assert own == [n for n in OWN[precision][1:] if n <= own[-1]]
    assert next_fast_size(ANY_SIZE, precision) == ANY_SIZE


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_smaller_size_would_have_done(precision):
    """A complex transform's next fast size is the first from there on that is smooth and has a transform of its own."""
    smooth = {2**a * 3**b * 5**c * 7**d for a, b, c, d in itertools.product(range(16), range(11), range(7), range(6))}
    fast = sorted(smooth & set(OWN[precision]))
    for n in (1, 11, 65, 257, 1025, 1100, 2200, 4097, 8193, fast[-1]):
        assert next_fast_size(n, precision) == min(m for m in fast if m >= n)


def test_powers_of_two_come_first_where_they_are_folded():
    assert [next_fast_size(n, fft_type="r2c") for n in (65, 513, 1100, 8193)] == [128, 1024, 2048, 16384]
    assert next_fast_size(16_385, fft_type="r2c") == 16_807  # 32768 is not, unless asked for
    assert next_fast_size(16_385, fft_type="r2c", real_mode="folded") == 32_768
    assert next_fast_size(1100, fft_type="r2c", complex_layout="full") == 1296


@pytest.mark.parametrize(
    "args, words",
    [
        ((0,), "n must be at least 1, got 0"),
        ((2.5,), "n must be an integer, got 2.5"),
        ((5, np.int8), "precision must be np.float16"),
        ((5, np.float32, "c2x"), "fft_type must be one of"),
        ((5, np.float32, "c2c", "warp"), "execution must be one of"),
        ((5, np.float32, "c2c", "block", "packed"), "complex_layout='packed' is for"),
        ((5, np.float16, "c2c", "block", "natural", None, "devmath"), "implementation='devmath' is for"),
        ((5, np.float32, "c2c", "block", "natural", None, None, "sm_99"), "arch must be one of"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_call(args, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        next_fast_size(*args)
