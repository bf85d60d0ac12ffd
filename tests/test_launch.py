"""Launch configurations: what stands in ``kernel[...]``, and what becomes of it on a target."""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import devmath as dm
from devmath import launch, plan
from devmath.arch import Arch, parse
from devmath.errors import LaunchError, PlanError
from devmath.functions import DeviceFunction
from devmath.plan import Dim3, Plan, Traits

H200, A100, AMPERE_SMALL = parse("sm_90a"), parse("sm_80"), parse("sm_86")
FFT = dm.fft.FFT(512)
PHILOX = dm.random.Philox()
few = settings(max_examples=60)


class Fake(Plan):
    """A plan whose traits are as the test says: no code generator is asked."""

    kind_name = "Fake"
    variants = {"thread": {"work": DeviceFunction("work", (), "", cooperative=True)}}
    constants = ("name",)
    trait_names = ("block_dim", "shared_memory_size")

    def __init__(self, name, block=(32, 1, 1), shared=0):
        self._set_fields(name=name, block="x".join(map(str, block)), shared=shared)

    def short_name(self):
        return self.fields["name"]

    def compute_traits(self, target):
        if target == "cpu":
            return Traits(block_dim=Dim3(1), shared_memory_size=0)
        block = Dim3(*map(int, self.fields["block"].split("x")))
        return Traits(block_dim=block, shared_memory_size=self.fields["shared"])

    def launch_shape(self, batch, target, block):
        return Dim3(batch), self.traits(target).block_dim


plan._REGISTRY.pop("Fake")  # no test elsewhere meets it


# -- grid, block, stream, shared memory ----------------------------------------------------------------------------------------


@few
@given(
    st.lists(st.integers(1, 65_535), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple),
    st.integers(0, 2**20),
)
def test_a_grid_and_a_block_stay_as_they_are(grid, block, shared):
    cfg = launch.config((grid, block, 0, shared))
    expected = launch.Shape(Dim3(*grid), Dim3(*block), shared)
    assert launch.resolve("k", cfg, [], "cpu") == expected
    if len(grid) == len(block) == 1:
        assert launch.config((grid[0], np.int64(block[0]), None, shared)) == cfg == launch.config((list(grid), list(block), 0, shared))


@pytest.mark.parametrize(
    "cfg, message",
    [
        ((0, 32), "grid must be 1 to (2147483647, 65535, 65535) (x, y, z), got (0, 1, 1)"),
        ((2**31, 32), "grid must be 1 to (2147483647, 65535, 65535) (x, y, z), got (2147483648, 1, 1)"),
        (((1, 65_536), 32), "grid must be 1 to (2147483647, 65535, 65535) (x, y, z), got (1, 65536, 1)"),
        ((1, 0), "block must be 1 to (1024, 1024, 64) (x, y, z), got (0, 1, 1)"),
        ((1, -32), "block must be 1 to (1024, 1024, 64) (x, y, z), got (-32, 1, 1)"),
        ((1, 1025), "block must be 1 to (1024, 1024, 64) (x, y, z), got (1025, 1, 1)"),
        ((1, (1, 1, 65)), "block must be 1 to (1024, 1024, 64) (x, y, z), got (1, 1, 65)"),
        ((1, (32, 33)), "block has 1056 threads, the most is 1024"),
        ((1, (1, 1, 1, 1)), "block must have 1 to 3 extents, got (1, 1, 1, 1)"),
        ((1, ()), "block must have 1 to 3 extents, got ()"),
        ((1.5, 32), "grid must be an integer, got 1.5"),
        ((1, 32.0), "block must be an integer, got 32.0"),
        (("4", 32), "grid must be an integer, got '4'"),
        ((1, None), "block must be an integer, got None"),
        ((1, 32, None, -1), "shared memory must be at least 0 bytes, got -1"),
        ((1, 32, None, 1e3), "shared memory must be an integer, got 1000.0"),
    ],
)
def test_what_no_device_can_launch_is_refused(cfg, message):
    with pytest.raises(LaunchError) as e:
        launch.config(cfg)
    assert str(e.value) == message
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize("cfg", [4, (4,), (1, 2, 3, 4, 5), None, "x", (), FFT], ids=repr)
def test_other_things_in_the_brackets_are_refused(cfg):
    with pytest.raises(LaunchError, match=r"^a kernel is launched as kernel\[plan.launch\(batch\)\]\(...\) or kernel\[grid"):
        launch.config(cfg)


def test_the_largest_that_is_allowed():
    assert launch.config(((2**31 - 1, 65_535, 65_535), (1024, 1, 1))).block == Dim3(1024)
    assert launch.config((1, (1, 16, 64))).block == Dim3(1, 16, 64)


def test_a_kernel_needs_a_configuration():
    @dm.kernel
    def kernel(x):
        x[0] = 1

    x = np.zeros(1)
    with pytest.raises(LaunchError, match=r"^kernel needs a launch configuration: kernel\[plan.launch\(batch\)\]\(...\)"):
        kernel(x)
    with pytest.raises(LaunchError, match="block must be an integer, got 1.0"):
        kernel[1, 1.0](x)
    assert x[0] == 0
    kernel[1, 1](x)
    assert x[0] == 1


# -- plan.launch -------------------------------------------------------------------------------------------------------------------


@few
@given(st.integers(0, 10**9), st.none() | st.integers(1, 1024))
def test_every_stream_of_a_generator_has_a_thread(batch, block):
    grid, shape, shared = launch.resolve("k", PHILOX.launch(batch, block=block), [(PHILOX, False)], H200)
    threads = block or 256
    assert shape == Dim3(threads) and shared == 0
    assert (grid.x - 1) * threads < batch <= grid.x * threads or batch == grid.x == 0


@pytest.mark.parametrize("arch", [H200, A100], ids=str)
@pytest.mark.parametrize("batch", [1, 2, 3, 1000, 0])
def test_every_transform_has_its_place_in_a_block(arch, batch):
    traits = FFT.traits(arch)
    grid, block, shared = launch.resolve("k", FFT.launch(batch), [(FFT, True)], arch)
    assert (block, shared) == (traits.block_dim, traits.shared_memory_size)
    assert grid == Dim3(-(-batch // traits.ffts_per_block))
    assert launch.resolve("k", FFT.launch(batch), [(FFT, True)], "cpu") == (Dim3(batch), Dim3(1), FFT.traits("cpu").shared_memory_size)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch": -1}, "batch must be at least 0, got -1"),
        ({"batch": 2.0}, "batch must be an integer, got 2.0"),
        ({"batch": None}, "batch must be an integer, got None"),
        ({"batch": 4, "block": 0}, "block must be 1 to 1024 threads, got 0"),
        ({"batch": 4, "block": 1025}, "block must be 1 to 1024 threads, got 1025"),
        ({"batch": 4, "block": (32, 2)}, "block must be an integer, got (32, 2)"),
    ],
)
def test_a_bad_batch_or_block_is_refused_where_it_is_written(arguments, message):
    with pytest.raises(LaunchError) as e:
        PHILOX.launch(**arguments)
    assert str(e.value) == message


@pytest.mark.parametrize("target", [H200, "cpu"], ids=str)
def test_a_batch_with_more_blocks_than_a_grid_is_refused(target):
    with pytest.raises(LaunchError) as e:
        launch.resolve("k", PHILOX.launch(2**40), [(PHILOX, False)], target)
    blocks = (2**32, 1, 1)
    assert (
        str(e.value)
        == f"k: Philox(10).launch({2**40}) makes a grid of {blocks} blocks, the most is (2147483647, 65535, 65535); split the batch"
    )


def test_cooperative_plans_set_their_own_block():
    with pytest.raises(LaunchError, match=r"^FFT\(512\) sets its own block, \(1, 1, 1\); leave block out, got 64$"):
        launch.resolve("k", FFT.launch(4, block=64), [(FFT, True)], "cpu")


# -- several plans in one kernel ------------------------------------------------------------------------------------------------------


@few
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=4), st.booleans())
def test_plans_share_the_largest_shared_memory(sizes, by_plan):
    plans = [(Fake(f"F{i}", shared=s), True) for i, s in enumerate(sizes)]
    cfg = plans[0][0].launch(7) if by_plan else launch.config((7, 32))
    assert launch.resolve("k", cfg, plans, H200) == (Dim3(7), Dim3(32), max(sizes))


def test_plans_with_different_blocks_are_refused_by_name():
    one, two = Fake("One", (32, 2, 1)), Fake("Two", (64, 1, 1))
    with pytest.raises(LaunchError) as e:
        launch.resolve("k", one.launch(5), [(one, True), (two, True)], H200)
    text = str(e.value)
    assert text.startswith("k: Two (") and "needs blocks of (64, 1, 1) threads on sm_90a, and One.launch(5) gives (32, 2, 1); " in text
    assert text.endswith("set elements_per_thread and ffts_per_block so that they agree")
    assert launch.resolve("k", one.launch(5), [(one, True), (two, False)], H200).block == (32, 2, 1)  # not cooperative: any block
    assert launch.resolve("k", one.launch(5), [(one, True), (two, True)], "cpu") == (Dim3(5), Dim3(1), 0)


def test_plans_of_the_code_generator_with_different_blocks():
    short = FFT.replace(size=128)
    with pytest.raises(LaunchError) as e:
        launch.resolve("k", FFT.launch(8), [(FFT, True), (short, True)], H200)
    assert "FFT(128)" in str(e.value) and "FFT(512).launch(8)" in str(e.value)
    knobs = {"elements_per_thread": 8, "ffts_per_block": 1}
    same = [(FFT.replace(**knobs), True), (FFT.replace(direction="inverse", **knobs), True)]
    assert launch.resolve("k", same[0][0].launch(8), same, H200).block == (64, 1, 1)


def test_a_wrong_block_is_refused_before_launch():
    with pytest.raises(LaunchError) as e:
        launch.resolve("k", launch.config((4, 128)), [(Fake("One"), True)], H200)
    text = str(e.value)
    assert "One" in text and "needs blocks of (32, 1, 1) threads on sm_90a, and the block (128, 1, 1) gives (128, 1, 1)" in text
    assert text.endswith("launch it with plan.launch(batch)")


# -- shared memory -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [H200, A100, AMPERE_SMALL], ids=str)
def test_shared_memory_up_to_the_architectures_limit(arch: Arch):
    limit = arch.shared_limit
    assert launch.resolve("k", launch.config((1, 32, 0, limit)), [], arch).shared_memory == limit
    for cfg, plans in [
        (launch.config((1, 32, 0, limit + 1)), []),
        (launch.config((1, 32)), [(Fake("Big", shared=limit + 1), True)]),
        (Fake("Big", shared=limit + 1).launch(3), [(Fake("Big", shared=limit + 1), True)]),
    ]:
        with pytest.raises(LaunchError) as e:
            launch.resolve("k", cfg, plans, arch)
        assert str(e.value) == f"k: {limit + 1} bytes of shared memory a block were asked for, {arch} has {limit}"


def test_more_than_48_kilobytes_are_fine_and_more_than_there_are_name_both_numbers():
    """16,384 complex128 are 262,144 bytes, 8192 complex64 are 65,536; the H200 has 232,448."""
    assert launch.resolve("k", launch.config((1, 32, 0, 8192 * 8)), [], H200).shared_memory == 65_536
    with pytest.raises(LaunchError) as e:
        launch.resolve("k", launch.config((1, 32, 0, 16_384 * 16)), [], H200)
    assert "262144" in str(e.value) and "232448" in str(e.value)


def test_a_transform_that_an_architecture_has_no_room_for():
    big = dm.fft.FFT(16_384, np.float64)
    assert big.traits(H200).shared_memory_size <= H200.shared_limit
    with pytest.raises((LaunchError, PlanError)) as e:
        big.traits(AMPERE_SMALL)
    assert "16384" in str(e.value) and "sm_86" in str(e.value)


def test_shared_memory_less_than_a_plan_needs():
    one = Fake("One", shared=4096)
    with pytest.raises(LaunchError) as e:
        launch.resolve("k", launch.config((1, 32, 0, 1024)), [(one, True)], H200)
    assert str(e.value) == "k: One needs 4096 bytes of dynamic shared memory, got 1024"
    assert launch.resolve("k", launch.config((1, 32, 0, 8192)), [(one, True)], H200).shared_memory == 8192
    assert launch.resolve("k", launch.config((1, 32)), [(one, True)], H200).shared_memory == 4096


# -- streams -------------------------------------------------------------------------------------------------------------------------------


class CudaCore:
    def __cuda_stream__(self):
        return (0, 42)


def _streams():
    thing = types.SimpleNamespace
    return {
        "integer": 42,
        "NumPy integer": np.int64(42),
        "CuPy": thing(ptr=42),
        "PyTorch": thing(cuda_stream=42),
        "numba": thing(handle=thing(value=42)),
        "numba, plain": thing(handle=42),
        "protocol": CudaCore(),
        "protocol, attribute": thing(__cuda_stream__=(0, 42)),
    }


@pytest.mark.parametrize("name", _streams())
def test_streams_of_every_library(name):
    stream = _streams()[name]
    assert launch.stream_handle(stream) == 42
    assert launch.stream_handle(launch.config((1, 32, stream)).stream) == 42
    assert launch.stream_handle(PHILOX.launch(4, stream=stream).stream) == 42


def test_no_stream_and_the_default_stream():
    assert launch.stream_handle(None) is None
    assert launch.config((1, 32, 0)).stream is None
    assert launch.stream_handle(types.SimpleNamespace(handle=types.SimpleNamespace(value=None))) == 0
    for odd in ("stream", object(), 1.5):
        with pytest.raises(LaunchError, match="^stream must be an integer handle or a stream of CuPy, PyTorch, numba or cuda.core"):
            launch.stream_handle(odd)


def test_a_stream_means_nothing_on_the_cpu():
    @dm.kernel
    def kernel(x):
        x[0] += 1

    x = np.zeros(1)
    for stream in _streams().values():
        kernel[1, 1, stream](x)
    kernel[PHILOX.launch(1, block=1, stream=CudaCore())](x)
    assert x[0] == len(_streams()) + 1
