"""Kernel arguments: on which side an array lives, what numba type it has, and the words that a GPU kernel takes for it."""

import collections
import enum
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, typeof
from numba import types as nbt

import devmath as dm
from devmath import arguments
from devmath.arguments import DEVICE, HOST, SCALAR, look_at
from devmath.errors import ArgumentError

few = settings(max_examples=80)
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


class OnDevice:
    """An array that says it is in device memory; nothing here follows its pointer."""

    def __init__(self, shape=(4,), typestr="<f4", data=(0x7000, False), **more):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": data, "version": 3, **more}


def as_device(x: np.ndarray, **more):
    """The interface of *x*, as if it were on the device."""
    info = x.__array_interface__
    return OnDevice(info["shape"], info["typestr"], info["data"], strides=info["strides"], **more)


# -- NumPy arrays ----------------------------------------------------------------------------------------------------------------


@st.composite
def views(draw):
    """A view of any layout: permuted, strided, reversed, with extents of 0 and 1."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    x = np.zeros([2 * n + 1 for n in shape], draw(st.sampled_from(DTYPES)))
    x = x.transpose(draw(st.permutations(range(x.ndim))))
    steps = draw(st.lists(st.sampled_from([None, 1, 2, -1, -2]), min_size=x.ndim, max_size=x.ndim))
    x = x[(..., *(slice(None, None, s) for s in steps))]
    ends = draw(st.lists(st.integers(0, 3), min_size=x.ndim, max_size=x.ndim))
    x = x[(..., *(slice(0, n) for n in ends))]
    if draw(st.booleans()):
        x.flags.writeable = False
    return x


@few
@given(views())
def test_a_numpy_array_has_the_type_that_numba_gives_it(x):
    looked = look_at(x)
    assert (looked.side, looked.type, looked.words) == (HOST, typeof(x), ())


def test_subclasses_and_unaligned_arrays_have_numbas_type_as_well(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 4))
    unaligned = np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float64)
    records = np.zeros(3, [("a", "i4"), ("b", "f8")])
    for x in (mapped, unaligned, records, np.rec.array(records)):
        assert look_at(x).type == typeof(x)


# -- arrays in device memory ----------------------------------------------------------------------------------------------------------


@few
@given(views())
def test_a_device_array_has_the_type_and_the_words_of_its_memory(x):
    """numba-cuda's array: meminfo, parent, number of items, itemsize, data, shape, strides."""
    looked = look_at(as_device(x))
    assert looked.side == DEVICE
    assert looked.words[: 5 + x.ndim] == (0, 0, x.size, x.itemsize, x.ctypes.data, *x.shape)
    steps = zip(x.shape, looked.words[5 + x.ndim :], x.strides, strict=True)
    assert x.size == 0 or all(n == 1 or ours == theirs for n, ours, theirs in steps)  # others mean nothing
    assert looked.type == (typeof(x) if x.size else typeof(x).copy(layout="C"))


def test_the_fields_of_the_interface():
    looked = look_at(OnDevice((2, 3), "<c8", (0x7000, True), strides=None, stream=7))
    assert looked.type == nbt.Array(nbt.complex64, 2, "C", readonly=True)
    assert looked.words == (0, 0, 6, 8, 0x7000, 2, 3, 24, 8) and looked.stream == 7
    assert look_at(OnDevice((2, 3), strides=(4, 8))).type.layout == "F"
    assert look_at(OnDevice((2, 3), strides=(4, 4))).type.layout == "A"
    assert look_at(OnDevice((2, 3), strides=(0, 0))).type.layout == "A"
    assert look_at(OnDevice((1, 3), strides=(999, 4))).type.layout == "C"
    assert look_at(OnDevice((0, 3), data=(0, False))).words[:5] == (0, 0, 0, 4, 0)
    assert look_at(OnDevice((0,), data=(None, False))).words[4] == 0
    assert look_at(OnDevice(())).words == (0, 0, 1, 4, 0x7000)
    assert look_at(OnDevice()).stream is None
    assert look_at(OnDevice(mask=None)).side == DEVICE


def test_a_masked_array_is_refused():
    for x in (OnDevice(mask=OnDevice()), np.ma.zeros(3)):
        with pytest.raises(ArgumentError, match="^masked arrays are not supported in kernels$"):
            look_at(x)


@pytest.mark.parametrize("typestr", [">f4", "|O", "|V12", "<f16"])
def test_an_array_of_a_dtype_without_a_numba_type_is_refused(typestr):
    text = f"an array of dtype {np.dtype(typestr)} cannot be used in a kernel"
    for x in (OnDevice(typestr=typestr), np.zeros(4, typestr)):
        with pytest.raises(ArgumentError) as e:
            look_at(x)
        assert str(e.value) == text
        assert isinstance(e.value, TypeError)


# -- scalars -----------------------------------------------------------------------------------------------------------------------------


@few
@given(st.integers(-(2**63), 2**64 - 1) | st.sampled_from([-(2**63), -1, 0, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]))
def test_an_integer_is_int64_or_else_uint64(n):
    assert look_at(n) == (SCALAR, typeof(n), (n,), None)
    assert look_at(n).type == (nbt.int64 if n < 2**63 else nbt.uint64)


@pytest.mark.parametrize("n", [2**64, -(2**63) - 1])
def test_an_integer_of_more_than_64_bits_is_refused(n):
    with pytest.raises(ArgumentError) as e:
        look_at(n)
    assert str(e.value) == f"the integer {n} does not fit into 64 bits"


SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.booleans(),
    *[st.integers(int(np.iinfo(t).min), int(np.iinfo(t).max)).map(np.dtype(t).type) for t in DTYPES[1:9]],
    *[st.floats(allow_nan=False, width=8 * np.dtype(t).itemsize).map(np.dtype(t).type) for t in ("f2", "f4", "f8")],
    st.complex_numbers(allow_nan=False, width=64).map(np.complex64),
    st.booleans().map(np.bool_),
)
TUPLES = st.recursive(SCALARS, lambda items: st.lists(items, max_size=3).map(tuple), max_leaves=6)


def flat(value):
    return [v for item in value for v in flat(item)] if isinstance(value, tuple) else [value]


@settings(max_examples=200)
@given(TUPLES)
def test_scalars_and_tuples_go_into_their_slots_bit_for_bit(value):
    """Each word starts a slot of 8 bytes, from which the kernel reads as many as its type has."""
    looked = look_at(value)
    assert (looked.side, looked.type) == (SCALAR, typeof(value))
    packed = arguments.packer((looked.type,)).pack(*looked.words)
    expected = []
    for item in flat(value):
        dtype = np.asarray(item).dtype
        parts = [item.real, item.imag] if dtype.kind == "c" else [item]
        part = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
        expected += [np.array(p, part).tobytes().ljust(8, b"\0") for p in parts]
    assert packed == b"".join(expected)


def test_slots_are_numba_cudas():
    """One kernel parameter a slot, as many as numba-cuda's own calling convention has."""
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.target_context
    numbers = [look_at(np.zeros(1, t)[0]).type for t in DTYPES]
    arrays = [nbt.Array(nbt.float32, n, "A") for n in range(4)]
    for ty in [*numbers, *arrays, nbt.UniTuple(nbt.int8, 3), nbt.Tuple((nbt.complex64, nbt.UniTuple(nbt.boolean, 2)))]:
        theirs = context.get_arg_packer([ty]).argument_types
        ours = re.findall(r"[^\dx](?:\dx)?", arguments.slots(ty))
        assert [struct.calcsize("=" + slot) for slot in ours] == [8] * len(theirs)
        assert [struct.calcsize("=" + slot[0]) for slot in ours] == [context.get_abi_sizeof(t) for t in theirs]


@pytest.mark.parametrize("value", [np.longdouble(1), np.clongdouble(1)], ids=repr)
def test_a_scalar_of_a_dtype_without_a_numba_type_is_refused(value):
    with pytest.raises(ArgumentError) as e:
        look_at(value)
    assert str(e.value) == f"a number of dtype {value.dtype} cannot be used in a kernel"


def test_a_gpu_kernel_takes_no_dates():
    with pytest.raises(ArgumentError, match=r"^a GPU kernel cannot take an argument of type datetime64\[D\]$"):
        arguments.packer((look_at(np.datetime64("2020-01-01")).type,))


# -- calls ---------------------------------------------------------------------------------------------------------------------------------


Point = collections.namedtuple("Point", "x y")


class Mode(enum.IntEnum):
    FAST = 1


@dm.kernel
def three(a, b, c):
    c[0] = 1


@dm.kernel(target="cpu")
def only_cpu(a, b, c):
    c[0] = 1


@dm.kernel(target="gpu")
def only_gpu(a, b, c):
    c[0] = 1


ODD = [None, "text", [1, 2], {}, object(), np.str_("a"), np.void(b"ab"), Point(1, 2), Mode.FAST, (1, None), (np.zeros(2),), int]


@pytest.mark.parametrize("value", ODD, ids=[f"{i}-{type(v).__name__}" for i, v in enumerate(ODD)])
def test_other_things_are_refused_by_the_parameters_name(value):
    with pytest.raises(ArgumentError) as e:
        three[1, 1](1, value, np.zeros(1))
    assert str(e.value) == f"three: b is a {type(value).__name__}; a kernel takes arrays, numbers and tuples of numbers"


@pytest.mark.parametrize(
    "kernel, call, message",
    [
        (
            three,
            (np.zeros(1), 1, OnDevice()),
            "three: a is in host memory (NumPy) and c is on the GPU; a launch takes all its arrays from one side",
        ),
        (
            three,
            (OnDevice(), np.zeros(1), OnDevice()),
            "three: b is in host memory (NumPy) and a, c are on the GPU; a launch takes all its arrays from one side",
        ),
        (only_cpu, (1, OnDevice(), OnDevice()), "only_cpu has target='cpu' and b, c are on the GPU; hand it NumPy arrays"),
        (
            only_gpu,
            (1, 2, np.zeros(1)),
            "only_gpu has target='gpu' and c is in host memory (NumPy); hand it device arrays (CuPy, PyTorch, numba)",
        ),
        (three, (1, 2), "three takes 3 arguments (a, b, c), got 2"),
        (three, (1, 2, 3, 4), "three takes 3 arguments (a, b, c), got 4"),
        (three, (), "three takes 3 arguments (a, b, c), got 0"),
    ],
)
def test_a_call_that_cannot_run_is_refused_by_name(kernel, call, message):
    with pytest.raises(ArgumentError) as e:
        kernel[1, 1](*call)
    assert str(e.value) == message


def test_the_arrays_choose_the_target_and_target_overrides():
    x = np.zeros(1)
    only_cpu[1, 1](1, 2, x)
    assert x[0] == 1

    from devmath.kernel import _choose

    def chosen(kernel, *values):
        return _choose(kernel, [look_at(v) for v in values])

    assert chosen(three, 1, x, 2) == "cpu"
    assert chosen(three, 1, OnDevice(), 2) == "gpu"
    assert chosen(only_gpu, 1, 2, 3) == "gpu"
    assert chosen(only_cpu, 1, 2, 3) == "cpu"


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError) as e:
        dm.kernel(target="gpus")
    assert str(e.value) == "target must be one of 'cpu', 'gpu', got 'gpus' (did you mean 'gpu'?)"
    with pytest.raises(TypeError, match="^@kernel takes a Python function, got 3$"):
        dm.kernel(3)


def test_a_kernel_made_of_a_cuda_kernel():
    @dm.kernel
    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)] = 2

    x = np.zeros(2)
    kernel[2, 1](x)
    assert x.tolist() == [2, 2]
