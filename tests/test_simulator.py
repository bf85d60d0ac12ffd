"""numba's CUDA simulator (NUMBA_ENABLE_CUDASIM=1): the same kernels, run in plain Python, in a process of their own."""

import pytest
from support import python

HEAD = """
import numpy as np, devmath as dm
from numba import cuda
rng = np.random.default_rng(5)
fft = dm.fft.FFT(30)
ifft = fft.inverse()
philox = dm.random.Philox()

def noise(*shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

def close(got, want, tolerance=1e-6):
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want), (got, want)
"""

FUSED = """
@dm.kernel
def convolve(x, h, y):
    r = fft.registers()
    s = fft.scratch()
    b = fft.batch()
    if b < x.shape[0]:
        fft.load(x[b], r)
    fft.execute(r, s)
    for i in range(fft.elements_per_thread):
        if fft.active(i):
            r[i] *= h[fft.index(i)]
    ifft.execute(r, s)
    if b < x.shape[0]:
        ifft.store(r, y[b])

x, h = noise(5, 30), noise(30)
y = np.zeros_like(x)
convolve[fft.launch(5)](x, h, y)
close(y, np.fft.ifft(np.fft.fft(x.astype(complex)) * h, norm="forward"))
convolve[7, 1](x, h, y)
"""

ROWS = """
@dm.kernel
def convert(x, y):
    r, s, b = fft.registers(), fft.scratch(), fft.batch()
    if b < x.shape[0]:
        fft.load(x[b, :14:2], r)
    fft.execute(r, s)
    if b < x.shape[0]:
        fft.store(r, y[b, 4:24])

# The simulator takes whole arrays alone: rows are cut inside the kernel, strided ones are those of a Fortran-ordered array.
x, out = np.asfortranarray(noise(3, 60)), np.full((3, 40), 9, np.complex64)
convert[fft.launch(3)](x, out)
close(out[:, 4:24], np.fft.fft(x[:, :14:2].astype(complex), 30)[:, :20])
assert (out[:, :4] == 9).all() and (out[:, 24:] == 9).all()
"""

THREAD = """
small = dm.fft.FFT(6, precision=np.float64, execution="thread", direction="inverse")

@cuda.jit(device=True)
def transform(plan, row, r):
    plan.load(row, r)
    plan.execute(r)

@dm.kernel
def threads(x, y):
    b = small.batch()
    if b < x.shape[0]:
        r = cuda.local.array(small.storage_size, small.value_type)
        transform(small, x[b], r)
        small.store(r, y[b])

x = noise(9, 6).astype(complex)
y = np.zeros_like(x)
threads[small.launch(9, block=4)](x, y)
close(y, np.fft.ifft(x, norm="forward"), 1e-14)
"""

PLAIN = """
import numba

@cuda.jit
def plain(x, y):
    r = cuda.local.array(fft.storage_size, fft.value_type)
    s = cuda.shared.array(0, numba.complex64)  # the simulator's dynamic shared memory takes no NumPy type
    b = cuda.blockIdx.x * fft.ffts_per_block + cuda.threadIdx.y
    if b < x.shape[0]:
        fft.load(x[b], r)
    fft.execute(r, s)
    for i in range(fft.elements_per_thread):
        r[i] *= np.float32(1 / fft.size)
    if b < x.shape[0]:
        fft.store(r, y[b])

x = noise(4, 30)
y = np.zeros_like(x)
plain[4, fft.block_dim, 0, fft.shared_memory_size](x, y)
close(y, np.fft.fft(x.astype(complex)) / 30)
"""

STATELESS = """
import support

@dm.kernel
def draw(seed, bits, u, z, fast, z64, forced):
    i = cuda.grid(1)
    if i < bits.shape[0]:
        bits[i, 0], bits[i, 1], bits[i, 2], bits[i, 3] = philox.bits4(seed, i, -1)
        u[i, 0], u[i, 1], u[i, 2], u[i, 3] = philox.uniform4(seed, i, -1)
        z[i, 0], z[i, 1], z[i, 2], z[i, 3] = philox.normal4(seed, i, -1)
        fast[i, 0], fast[i, 1], fast[i, 2], fast[i, 3] = philox.normal4_fast_scaled(seed, i, -1, 1.0, 0.5)
        z64[i, 0], z64[i, 1] = philox.normal2_f64(seed, i, -1)
        forced[i, 0], forced[i, 1], forced[i, 2], forced[i, 3] = philox.uniform4_co_from_bits(0, 1, 0xFFFFFF80, 2**32 + 0xFFFFFFFF)

bits, forced = np.zeros((6, 4), np.uint32), np.zeros((6, 4), np.float32)
u, z, fast, z64 = np.zeros((6, 4), np.float32), np.zeros((6, 4), np.float32), np.zeros((6, 4), np.float32), np.zeros((6, 2))
draw[philox.launch(6, block=4)](-3, bits, u, z, fast, z64, forced)
words = np.array([support.philox_words(-3, i, -1) for i in range(6)])
assert (bits == words).all()
assert (u == support.uniform32(words)).all()
a, b, _ = support.box_muller(u[:, ::2], u[:, 1::2])
want = np.stack([a[:, 0], b[:, 0], a[:, 1], b[:, 1]], axis=1).astype(float)
close(z, want)
close(fast, 1 + 0.5 * want)
assert np.isfinite(z64).all() and z64.any()
assert (forced == np.float32([0, 0, 0.99999994, 0.99999994])).all()
"""

STATEFUL = """
import support

@cuda.jit(device=True)
def advance(plan, state):
    return plan.bits(state)

@dm.kernel
def sequence(out, reals):
    i = cuda.grid(1)
    s = philox.new_state()
    philox.seed(s, 7, i, 2)
    for k in range(out.shape[1]):
        out[i, k] = advance(philox, s)
    philox.seed(s, 7, i, 4)
    reals[i, 0] = philox.normal(s)
    reals[i, 1] = philox.normal(s)
    reals[i, 2] = philox.uniform(s)

out, reals = np.zeros((3, 9), np.uint32), np.zeros((3, 3), np.float32)
sequence[1, 3](out, reals)
for i in range(3):
    words = [w for step in range(4) for w in support.philox_words(7, i, step)]
    assert out[i].tolist() == words[2:11]
    u = support.uniform32(np.array(words[4:7]))
    a, b, _ = support.box_muller(u[0], u[1])
    close(reals[i], np.float32([a, b, u[2]]))
"""

ERRORS = """
def refused(words, body):
    try:
        dm.kernel(body)[1, 1](np.zeros(30, np.float32))
    except Exception as e:
        assert words in str(e), str(e)
    else:
        raise AssertionError("nothing was raised")

def wrong_data(x):
    fft.execute(x, fft.scratch())

def wrong_row(x):
    fft.load(x, fft.registers())

def wrong_count(x):
    fft.execute(fft.registers())

def wrong_name(x):
    fft.execute(fft.registers(), scratch=fft.scratch(), extra=1)

def wrong_kind(x):
    philox.bits4(0.5, 1, 2)

def too_short(x):
    fft.execute(cuda.local.array(7, np.complex64), fft.scratch())

def no_such(x):
    fft.element_per_thread

def block_only(x):
    dm.fft.FFT(6, execution="thread").scratch()

refused("FFT(30).execute(registers, scratch): thread data is float32, the FFT works on complex64", wrong_data)
refused("FFT(30).load(row, registers): row is float32, the FFT works on complex64", wrong_row)
refused("takes 2 arguments, got 1", wrong_count)
refused("has no argument 'extra'", wrong_name)
refused("seed is float64, it must be an integer", wrong_kind)
refused("the plan needs 30", too_short)
refused("no attribute 'element_per_thread'", no_such)
refused("no scratch()", block_only)
"""


@pytest.mark.parametrize(
    "body",
    [pytest.param(v, id=k.lower()) for k, v in list(globals().items()) if k.isupper() and k != "HEAD"],
)
def test_kernels_in_plain_python(body):
    support = "import sys; sys.path.insert(0, 'tests')\n"
    python(support + HEAD + body, NUMBA_ENABLE_CUDASIM="1")


def test_device_functions_outside_kernels_say_where_they_belong():
    """Without the simulator a call on the host is refused in one line."""
    code = """
import devmath as dm
try:
    dm.random.Philox().bits4(1, 2, 3)
except NotImplementedError as e:
    assert "call it inside a kernel (or set NUMBA_ENABLE_CUDASIM=1" in str(e)
"""
    python(code)
