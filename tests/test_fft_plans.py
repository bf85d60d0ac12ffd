"""Random FFT plans: on every architecture consistent traits or a clear error, on the machine's own targets the right transform."""

import functools
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ARCHS, error, noise, run, tolerance

from devmath import arch
from devmath.errors import LaunchError, PlanError
from devmath.fft import FFT
from devmath.fft.cufftdx import LARGE as LARGE_SIZES

LARGE = sorted({n for sizes in LARGE_SIZES.values() for n in sizes})
precisions = st.sampled_from([np.float32, np.float64])
directions = st.sampled_from(["forward", "inverse"])
archs = st.sampled_from(ARCHS)


@st.composite
def plan_fields(draw, knobs=True):
    """Fields of a plan that the constructor may still refuse."""
    fields = {"precision": draw(precisions), "direction": draw(directions), "execution": draw(st.sampled_from(["block"] * 4 + ["thread"]))}
    powers = st.builds(lambda p, q, r, s: 2**p * 3**q * 5**r * 7**s, *(st.integers(0, m) for m in (13, 6, 4, 3)))
    any_size = st.integers(1, 8192) | st.integers(1, 70) | powers | st.sampled_from(LARGE)
    fields["size"] = draw(st.integers(1, 66) if fields["execution"] == "thread" else any_size)
    if fields["execution"] == "block":
        fields["thread_layout"] = draw(st.sampled_from(["regular", "regular", "transposed"]))
    if knobs and draw(st.booleans()):
        fields["elements_per_thread"] = draw(st.none() | st.integers(1, 66) | st.sampled_from([2, 4, 8, 10, 16, 32]))
        fields["ffts_per_block"] = draw(st.none() | st.integers(1, 16) | st.integers(1, 1200))
    return fields


def try_plan(fields):
    """The plan, or ``None`` where its constructor says in one line why not."""
    try:
        return FFT(**fields)
    except PlanError as e:
        check_message(e, fields)
        return None


def check_message(error, fields):
    """One line that says what was got; the nearest choice that it names is one that works."""
    text = str(error)
    assert "\n" not in text and "internal" not in text.lower()
    assert any(str(v) in text for k, v in fields.items() if k in ("size", "elements_per_thread", "ffts_per_block") and v is not None)
    if size := re.search(r"got \d+ \(nearest: (\d+)", text):
        FFT(**{**fields, "size": int(size[1]), "elements_per_thread": None, "ffts_per_block": None})


def check_traits(plan, where):
    """Traits are consistent on an architecture."""
    t, a = plan.traits(where), arch.parse(where)
    assert t.storage_size >= t.elements_per_thread
    assert t.shared_memory_size <= a.shared_limit
    x, y, z = t.block_dim
    assert z == 1 and x * y <= 1024
    if plan.thread_layout == "transposed":
        x, y = y, x
    assert y == t.ffts_per_block or plan.execution == "thread"
    for knob in ("elements_per_thread", "ffts_per_block"):
        assert plan.fields[knob] in (None, t[knob])
    assert x * t.elements_per_thread >= plan.size
    # Lane l has the elements l, l + stride, ...: all of them together are 0 ... size - 1, each once.
    indices = np.arange(x)[:, None] + t.stride * np.arange(t.elements_per_thread)
    assert (np.bincount(indices[indices < plan.size], minlength=plan.size) == 1).all()
    return t


@given(plan_fields(), archs)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_traits_are_consistent_or_the_error_is_clear(fields, where):
    plan = try_plan(fields)
    if plan is None:
        return
    try:
        traits = check_traits(plan, where)
    except (PlanError, LaunchError) as e:
        check_message(e, fields)
        follow(str(e), plan, where)
    else:
        other = plan.inverse().traits(where)  # the same layout, so that one thread array serves both directions
        assert {**traits, "symbol": ""} == {**other, "symbol": ""}


def follow(text, plan, where):
    """What an error advises works."""
    no_knobs = {"elements_per_thread": None, "ffts_per_block": None}
    if pairs := re.search(r"can be ((?:\(\d+, \d+\)(?:, )?)+) \(nearest: \((\d+), (\d+)\)\)", text):
        for elements, per_block in [*re.findall(r"\((\d+), (\d+)\)", pairs[1]), pairs.groups()[1:]]:
            check_traits(plan.replace(elements_per_thread=int(elements), ffts_per_block=int(per_block)), where)
    elif size := re.search(r"has no transform of .* \(nearest: (\d+)\)", text):
        check_traits(plan.replace(size=int(size[1]), **no_knobs), where)
    elif largest := re.search(r"got \d+ \(nearest: (\d+)\): it is too large for one block", text):
        check_traits(plan.replace(size=int(largest[1]), **no_knobs), where)
    elif most := re.search(r"ffts_per_block can be at most (\d+) here", text):
        check_traits(plan.replace(ffts_per_block=int(most[1])), where)
        with pytest.raises((PlanError, LaunchError)):
            plan.replace(ffts_per_block=int(most[1]) + 1).traits(where)
    else:
        raise AssertionError(f"no advice in: {text}")


@given(plan_fields(knobs=False), archs)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_recommended_pair_of_knobs_is_taken(fields, where):
    plan = try_plan(fields)
    if plan is None:
        return
    try:
        plan.traits(where)
    except (PlanError, LaunchError):
        return
    pairs = plan.valid_knobs(where)
    assert pairs == sorted(set(pairs))
    for elements, per_block in pairs:
        if plan.execution == "block":
            check_traits(plan.replace(elements_per_thread=elements, ffts_per_block=per_block), where)


@pytest.mark.parametrize("where", arch.supported())
def test_sizes_with_measured_knobs_work_everywhere(where):
    for size in (128, 256, 512, 1024, 2048, 4096):
        check_traits(FFT(size), where)


@pytest.mark.parametrize(
    "fields, words",
    [
        (
            {"size": 64, "elements_per_thread": 1},
            r"2 to 64 \(the size\): .*at least 2 elements, got 1",
        ),  # case 17
        ({"size": 1, "elements_per_thread": 2}, "a transform of 1 point has no elements_per_thread=2; leave it out"),
        ({"size": 1, "implementation": "cufftdx"}, "a transform of 1 point has no implementation='cufftdx'; leave it out"),
        ({"size": 1, "transposition": "any"}, "a transform of 1 point has no transposition='any'; leave it out"),
        ({"size": 1, "fft_type": "r2c", "complex_layout": "packed"}, r"complex_layout='packed' needs an even size, got 1 \(nearest: 2\)"),
        ({"size": 64, "elements_per_thread": 65}, "elements_per_thread must be 2 to 64"),
        ({"size": 64, "ffts_per_block": 1025}, "ffts_per_block must be 1 to 1024, got 1025"),
        ({"size": 64, "elements_per_thread": 2, "ffts_per_block": 33}, "1056 threads.*at most 32 here"),
        ({"size": 8, "execution": "thread", "ffts_per_block": 2}, "ffts_per_block is for execution='block'"),
        ({"size": 8, "execution": "thread", "elements_per_thread": 4}, "elements_per_thread is the size, 8, got 4"),
    ],
    ids=lambda v: " ".join(f"{k}={x}" for k, x in v.items()) if isinstance(v, dict) else "",
)
def test_impossible_knobs_name_the_rule_and_the_choices(fields, words):
    with pytest.raises(PlanError, match=words):
        FFT(**fields)


@functools.cache
def data(size, batch):
    return noise(np.random.default_rng(size), (batch, size), np.complex128)


@given(plan_fields(), st.integers(0, 9), st.integers(0, 100), st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_plans_transform(xp, fields, batch, pick, draw):
    """On the CPU, and on the GPU where there is one: random plans, knobs that the architecture recommends, any batch."""
    plan = try_plan({**fields, "elements_per_thread": None, "ffts_per_block": None})
    if plan is None:
        return
    if plan.execution == "block" and draw.draw(st.booleans()):
        try:
            pairs = plan.valid_knobs("sm_90a" if xp is np else None)
        except PlanError:
            return
        elements, per_block = pairs[pick % len(pairs)]
        plan = plan.replace(elements_per_thread=elements, ffts_per_block=per_block)
    x = data(plan.size, batch).astype(plan.value_type)
    forward, inverse = run(plan, xp, x)[:: 1 if plan.direction == "forward" else -1]
    assert error(forward, np.fft.fft(x.astype(np.complex128))) <= tolerance(plan)
    assert error(inverse, np.fft.ifft(x.astype(np.complex128), norm="forward")) <= tolerance(plan)
