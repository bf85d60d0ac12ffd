"""What goes wrong is said in one line, where it is written, with what was got, what is valid and the nearest choice."""

import itertools
import json
import pickle
import re

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba import types as nbt

import devmath as dm
from devmath import arch, errors
from devmath.errors import CodegenError, KernelTypeError, KernelValueError, PlanError, TargetError
from devmath.fft import FFT as make_fft
from devmath.plan import from_json
from devmath.random import Philox

FFT = make_fft(8)
ALONE = make_fft(8, execution="thread")
OTHER = make_fft(8, arch="sm_80")
RNG = Philox()
H200 = arch.parse("sm_90a")
few = settings(max_examples=60)


# -- plans ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, nearest",
    [
        ({"size": 0}, 1),
        ({"size": -5}, 1),
        ({"size": 8193}, 8192),
        ({"size": 9000}, 9261),
        ({"size": 40_000}, 32_768),
        ({"size": 20_000, "precision": np.float64}, 16_384),
        ({"size": 0, "execution": "thread"}, 1),
        ({"size": 65, "execution": "thread"}, 64),
        ({"size": 64, "execution": "thread", "precision": np.float64}, 40),
    ],
)
def test_a_size_out_of_range_names_the_nearest(fields, nearest):
    with pytest.raises(PlanError) as e:
        make_fft(**fields)
    text = str(e.value)
    assert text.startswith("size must be ") and f"got {fields['size']} (nearest: {nearest}" in text and "\n" not in text
    assert make_fft(**{**fields, "size": nearest}).size == nearest
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"direction": "forwards"}, "direction must be one of 'forward', 'inverse', None, got 'forwards' (did you mean 'forward'?)"),
        ({"direction": "invers"}, "direction must be one of 'forward', 'inverse', None, got 'invers' (did you mean 'inverse'?)"),
        ({"direction": 1}, "direction must be one of 'forward', 'inverse', None, got 1"),
        ({"complex_layout": "pack"}, "complex_layout must be one of 'natural', 'packed', 'full', got 'pack' (did you mean 'packed'?)"),
        ({"real_mode": "fold"}, "real_mode must be one of 'normal', 'folded', None, got 'fold' (did you mean 'folded'?)"),
        ({"implementation": "cufft"}, "implementation must be one of 'cufftdx', 'devmath', None, got 'cufft' (did you mean 'cufftdx'?)"),
        (
            {"transposition": "by_complexity"},
            "transposition must be one of 'any', 'none', 'by_component', 'by_complex', 'by_component_padded', None, got 'by_complexity' "
            "(did you mean 'by_complex'?)",
        ),
        ({"execution": "blocks"}, "execution must be one of 'block', 'thread', got 'blocks' (did you mean 'block'?)"),
        ({"fft_type": "c2x"}, "fft_type must be one of 'c2c', 'r2c', 'c2r', got 'c2x' (did you mean 'c2r'?)"),
        ({"precision": np.int32}, "precision must be np.float16, np.float32 or np.float64, got <class 'numpy.int32'>"),
        ({"precision": "quarter"}, "precision must be np.float16, np.float32 or np.float64, got 'quarter'"),
        ({"size": 8.0}, "size must be an integer, got 8.0"),
        ({"size": True}, "size must be an integer, got True"),
        ({"elements_per_thread": 2.5}, "elements_per_thread must be an integer, got 2.5"),
        ({"ffts_per_block": 0}, "ffts_per_block must be at least 1, got 0"),
    ],
)
def test_a_field_that_no_plan_has_names_the_choices(fields, message):
    with pytest.raises(PlanError) as e:
        make_fft(**{"size": 8, **fields})
    assert str(e.value) == message


@pytest.mark.parametrize("rounds, got", [(0, "1 to 16"), (17, "1 to 16"), (1.5, "an integer"), ("10", "an integer"), (True, "an integer")])
def test_rounds_out_of_range(rounds, got):
    with pytest.raises(PlanError, match=f"^rounds must be {got}.*, got {rounds!r}$"):
        Philox(rounds)


@pytest.mark.parametrize("name", ["sm_99", "sm_9", "hopper", "", 91, None, 9.0, (9,), "sm_90x"])
@pytest.mark.parametrize("ask", [arch.parse, lambda a: make_fft(8, arch=a or "x"), FFT.traits], ids=["parse", "plan", "traits"])
def test_an_unknown_architecture_lists_the_known_ones(ask, name):
    if ask == FFT.traits and name is None:
        return  # the current device
    with pytest.raises(ValueError) as e:
        ask(name)
    assert all(repr(known) in str(e.value) for known in arch.supported()) and "\n" not in str(e.value)


def test_architectures_by_every_spelling():
    assert arch.parse(90) == arch.parse("sm_90") and arch.parse(120) == arch.parse("sm_120")
    for spelling in ("sm_90a", "SM_90A", "compute_90a", "90a", "9.0a", (9, 0, "a"), arch.Arch(9, 0, "a")):
        assert arch.parse(spelling) == H200
    assert [arch.parse(n).name for n in arch.supported()] == arch.supported()
    with pytest.raises(ValueError, match="^arch sm_80a does not exist: feature suffixes begin with sm_90a; use sm_80$"):
        arch.parse("sm_80a")


def test_a_target_that_is_misspelt_or_not_there():
    with pytest.raises(ValueError, match=r"got 'cpus' \(did you mean 'cpu'\?\)$"):
        FFT.traits("cpus")
    if not arch.device_count():
        with pytest.raises(ValueError, match="^target 'gpu' was asked for and no CUDA device was found; name an architecture"):
            FFT.traits("gpu")


PLANS = st.one_of(
    st.builds(Philox, st.integers(1, 16)),
    st.builds(
        make_fft,
        size=st.integers(2, 40),
        precision=st.sampled_from([np.float32, "float64", np.complex64, np.dtype("f8")]),
        direction=st.sampled_from(["forward", "inverse"]),
        execution=st.sampled_from(["block", "thread"]),
        arch=st.none() | st.sampled_from(arch.supported()),
    ),
    st.builds(make_fft, st.just(2048), elements_per_thread=st.none() | st.integers(4, 32), ffts_per_block=st.none() | st.just(1)),
)


@few
@given(PLANS)
def test_a_plan_survives_json_and_pickle(plan):
    for again in (
        from_json(plan.to_json()),
        pickle.loads(pickle.dumps(plan)),
        plan.replace(),
        eval(repr(plan), {"FFT": make_fft, "Philox": Philox}),
    ):
        assert again == plan and hash(again) == hash(plan) and again.fields == plan.fields
    assert json.loads(plan.to_json())["plan"] == plan.kind_name


def test_plans_that_differ_in_any_field_differ():
    base = make_fft(64, elements_per_thread=8, ffts_per_block=2, arch="sm_90a")
    changes = [
        {"size": 128},
        {"precision": np.float64},
        {"direction": "inverse"},
        {"elements_per_thread": 16},
        {"ffts_per_block": 1},
        {"arch": None},
        {"fft_type": "r2c"},
        {"fft_type": "r2c", "complex_layout": "packed"},
        {"fft_type": "r2c", "real_mode": "folded"},
        {"fft_type": "r2c", "real_mode": "normal"},
        {"transposition": "by_complex"},
        {"thread_layout": "transposed"},
        {"api": "shared"},
        {"implementation": "cufftdx"},
    ]
    changes.append({"execution": "thread", "elements_per_thread": None, "ffts_per_block": None})
    assert {f for c in changes for f in c} == set(base.fields)
    plans = [base, *(base.replace(**c) for c in changes), Philox(), Philox(7)]
    for a, b in itertools.combinations(plans, 2):
        assert a != b and a.to_json() != b.to_json()
    assert len({*plans, *(pickle.loads(pickle.dumps(p)) for p in plans)}) == len(plans)
    assert base != "FFT" and base.inverse().inverse() == base


def test_a_plan_cannot_be_changed():
    for change in (lambda: setattr(FFT, "size", 16), lambda: setattr(FFT, "new", 1), lambda: delattr(FFT, "size")):
        with pytest.raises(AttributeError):
            change()
    with pytest.raises(AttributeError, match=r"^a plan cannot be changed; make another one with plan.replace\(size=...\)$"):
        FFT.size = 16
    assert FFT.size == 8 and make_fft(8) == FFT


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"plan": "FTF", "size": 8}', r"^plan must be one of 'FFT', .*, got 'FTF' \(did you mean 'FFT'\?\)$"),
        ("[]", "^plan must be one of 'FFT', .*, got None$"),
        ('{"plan": "FFT", "size": 8, "stride": 2}', "^FFT has no field 'stride'; its fields are api, arch, complex_layout, direction, "),
        ('{"plan": "FFT", "size": 0}', r"^size must be .*, got 0 \(nearest: 1\)$"),
    ],
)
def test_json_of_no_plan_is_refused(text, message):
    with pytest.raises(PlanError, match=message):
        from_json(text)


# -- device functions in kernels, on both targets -------------------------------------------------------------------------------------


def _wrong():
    """Kernels that are wrong, with the line that says so; ``#`` stands for the line of the call."""

    def data(x):
        r, s = cuda.local.array(FFT.storage_size, np.float32), FFT.scratch()
        FFT.execute(r, s)

    def data_of_double(x):
        FFT.load(x[0], cuda.local.array(FFT.storage_size, np.complex128))

    def row(x):
        FFT.load(x, FFT.registers())

    def strided(x):
        FFT.execute(x[:, 0], FFT.scratch())

    def number(x):
        FFT.store(1, x[0])

    def too_few(x):
        FFT.execute(FFT.registers())

    def too_many(x):
        RNG.normal4(1, 2, 3, 4)

    def unknown_keyword(x):
        FFT.execute(FFT.registers(), shared=FFT.scratch())

    def twice(x):
        FFT.execute(FFT.registers(), registers=FFT.registers())

    def real_index(x):
        FFT.index(1.5)

    def real_seed(x):
        RNG.bits4(0.5, 1, 2)

    def state(x):
        RNG.bits(cuda.local.array(13, np.int32))

    def attribute(x):
        x[0, 0] = FFT.sise

    def of_the_other_execution(x):
        ALONE.scratch()

    return {
        data: "FFT(8).execute(registers, scratch): thread data is float32, the FFT works on complex64",
        data_of_double: "FFT(8).load(row, registers): thread data is complex128, the FFT works on complex64",
        row: "FFT(8).load(row, registers): row is a 2-D complex64 array, it must be 1-D (one transform or one thread's elements at a time)",
        strided: "FFT(8).execute(registers, scratch): registers must be contiguous, as FFT(8).registers() or cuda.local.array make it",
        number: "FFT(8).store(registers, row): registers is the integer 1, it must be a 1-D array",
        too_few: "FFT(8).execute(registers, scratch) takes 2 arguments, got 1",
        too_many: "Philox(10).normal4(seed, stream, step) takes 3 arguments, got 4",
        unknown_keyword: "FFT(8).execute(registers, scratch) has no argument 'shared'",
        twice: "FFT(8).execute(registers, scratch): 'registers' was given twice",
        real_index: "FFT(8).index(i): i is float64, it must be an integer",
        real_seed: "Philox(10).bits4(seed, stream, step): seed is float64, it must be an integer",
        state: "Philox(10).bits(state): state is int32, the Philox works on uint32",
        attribute: "FFT(8) has no attribute 'sise' inside a kernel; it has ",
        of_the_other_execution: "FFT(8) has no attribute 'scratch' inside a kernel; it has ",
    }


WRONG = _wrong()


def fails(kernel, target, dtype=np.complex64, error=KernelTypeError):
    """The message with which *kernel* fails to compile."""
    with pytest.raises(error) as e:
        if target == "cpu":
            kernel[1, 1](np.zeros((2, 8), dtype))
        else:
            kernel.linked((nbt.Array(numba.from_dtype(np.dtype(dtype)), 2, "C"),), arch.parse(target))
    return str(e.value)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("function", WRONG, ids=lambda f: f.__name__)
def test_a_wrong_call_is_one_line(function, target):
    text = fails(dm.kernel(function), target)
    assert "\n" not in text
    if WRONG[function].endswith("it has "):
        plan = ALONE if "scratch" in WRONG[function] else FFT
        assert text.removeprefix(WRONG[function]).split(", ") == sorted({*plan.functions, *plan.constants, *plan.trait_names})
    else:
        assert text == WRONG[function]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_registers_of_the_wrong_length_are_refused_with_their_line(target):
    three, pair = 3, (3,)

    @dm.kernel
    def number(x):
        r = cuda.local.array(3, FFT.value_type)
        FFT.execute(r, FFT.scratch())

    @dm.kernel
    def closure(x):
        r = cuda.local.array(shape=three, dtype=np.complex64)
        FFT.execute(scratch=FFT.scratch(), registers=r)

    @dm.kernel
    def in_a_tuple(x):
        r = cuda.local.array((3,), FFT.value_type)
        FFT.load(x[0], r)

    @dm.kernel
    def tuple_of_a_closure(x):
        r = cuda.local.array(pair, FFT.value_type)
        FFT.store(r, x[0])

    @dm.kernel
    def state(x):
        s = cuda.local.array(3, np.uint32)
        RNG.seed(s, 1, 2, 3)

    need = FFT.traits(target).storage_size
    where = "the CPU target" if target == "cpu" else target
    for kernel in (number, closure, in_a_tuple, tuple_of_a_closure):
        text = fails(kernel, target, error=KernelValueError)
        line = kernel.py_func.__code__.co_firstlineno + 3
        assert f" at line {line} of {kernel.__name__}: registers has 3 elements, the plan needs {need} on {where}: use " in text
        assert "\n" not in text
    text = fails(state, target, error=KernelValueError)
    assert text.endswith(f"of state: state has 3 elements, the plan needs 13 on {where}: use Philox(10).new_state()")


def test_registers_of_another_plan_and_lengths_known_late():
    small = make_fft(4)

    @dm.kernel
    def of_another(x):
        FFT.execute(small.registers(), FFT.scratch())

    assert "registers has 4 elements, the plan needs 8 on the CPU target" in fails(of_another, "cpu", error=KernelValueError)

    @dm.kernel
    def late(x):
        FFT.execute(x, FFT.scratch())

    x = np.ones(7, np.complex64)
    with pytest.raises(ValueError, match=r"^FFT\(8\).execute\(registers, scratch\): registers has too few elements, the plan needs 8"):
        late[1, 1](x)
    assert (x == 1).all()
    late[1, 1](np.ones(8, np.complex64))


def test_cross_compiling_does_not_ask_the_current_device(monkeypatch):
    """The length of ``plan.storage_size`` elements is a matter of the plan's own architecture."""
    from devmath import plan

    monkeypatch.setattr(plan, "default_target", lambda: H200)

    @dm.kernel
    def kernel(x):
        r = cuda.local.array(OTHER.storage_size, OTHER.value_type)
        OTHER.load(x[0], r)

    assert kernel.linked((nbt.complex64[:, ::1],), arch.parse("sm_80")).cubin.startswith(b"\x7fELF")


def test_a_plan_for_another_architecture_says_so():
    @dm.kernel
    def kernel(x):
        OTHER.load(x[0], OTHER.registers())

    assert (
        fails(kernel, "sm_90a", error=PlanError) == "FFT(8) was made for sm_80 and is used on sm_90a; leave arch out, or make it for sm_90a"
    )
    kernel[1, 1](np.zeros((2, 8), np.complex64))


def test_device_functions_outside_kernels():
    with pytest.raises(TargetError, match=r"^FFT\(8\).execute\(registers, scratch\) is a device function: call it inside a kernel"):
        FFT.execute(None, None)
    with pytest.raises(AttributeError, match=r"^FFT\(8\) with thread execution has no scratch\(\); it has registers, "):
        ALONE.scratch()
    fails(dm.kernel(next(iter(WRONG))), "cpu")  # numba knows plans from the first kernel on

    @numba.njit
    def host():
        return FFT.size

    with pytest.raises(TargetError, match=r"^FFT\(8\) reached numba in a list, a numba.njit function or the like: kernels use plans as global"):
        host()


def test_what_numba_cannot_compile_names_the_kernel():
    @dm.kernel
    def kernel(x):
        x[0, 0] = x.nothing_like_this

    for target in ("cpu", "sm_90a"):
        assert fails(kernel, target, error=CodegenError).startswith("numba cannot compile kernel: Unknown attribute 'nothing_like_this'")


def test_an_undefined_name_is_told_with_its_place():
    @dm.kernel
    def kernel(x):
        x[0, 0] = not_defined_anywhere  # noqa: F821

    for target in ("cpu", "sm_90a"):
        assert re.match(r"not_defined_anywhere \(line \d+ of kernel, .*test_errors.py\) is not defined$", fails(kernel, target, error=CodegenError))


# -- packages ---------------------------------------------------------------------------------------------------------------------


def test_without_the_device_packages_one_line_says_what_to_install(monkeypatch):
    from devmath.targets import cuda as target

    monkeypatch.setattr(target, "available", lambda: False)

    @dm.kernel
    def kernel(x):
        x[0, 0] = 1

    text = fails(kernel, "sm_90a", error=ImportError)
    assert text == "compiling for the GPU needs the device packages: pip install 'devmath[cu13]'"
    kernel[1, 1](np.zeros((1, 1)))


def test_every_error_is_devmaths_and_an_ordinary_one():
    ordinary = (ValueError, TypeError, NotImplementedError, RuntimeError, ImportError)
    ours = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.DevmathError)]
    assert len(ours) > 5
    assert all(issubclass(v, ordinary) for v in ours if v is not errors.DevmathError)
