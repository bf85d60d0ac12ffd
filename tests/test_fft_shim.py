"""``lto/fft.cu`` as ordinary C++: the threads of a block are threads of the machine, so that the GPU's code is checked without a GPU."""

import shutil
import subprocess

import numpy as np
import pytest
from support import ROOT, noise

from devmath.fft import stockham

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

#: What CUDA has and C++ has not. A barrier of all threads stands for both of CUDA's.
DRIVER = """
#include <barrier>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>
struct float2 { float x, y; };
struct double2 { double x, y; };
struct Index { unsigned x, y; };
static thread_local Index threadIdx;
static std::barrier<> *all;
#define __device__
#define __forceinline__ inline
static void __syncwarp() { all->arrive_and_wait(); }
static void __syncthreads() { all->arrive_and_wait(); }
template <typename T> static T __ldg(const T *p) { return *p; }
static unsigned __brev(unsigned v) { unsigned r = 0; for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i); return r; }
using std::fma;
#include "fft.cu"

int main()
{
    const unsigned F = FFTS, ROW = N + 1;
    std::barrier<> barrier(F * T);
    all = &barrier;
    std::vector<Complex> in(F * ROW), forward(F * ROW), back(F * ROW), shared(F * ROOM);
    if (fread(in.data(), sizeof(Complex), in.size(), stdin) != in.size()) return 1;
    auto run = [&](unsigned t, unsigned f) {
        threadIdx = FFT_TURNED ? Index{f, t} : Index{t, f};
        Complex r[E + 1];
        const unsigned own = f * ROW + t;
        for (unsigned i = 0; i < E; ++i) r[i] = in[own + T * i];
        JOIN(FFT_NAME, _forward)(r, shared.data());
        for (unsigned i = 0; i < E; ++i) forward[own + T * i] = r[i];
        if (t == 0) forward[own + N] = r[E];
        r[0].y += FFT_SPLIT && t == 0 ? 5 : 0;  // the imaginary part of a real signal's mean is not looked at
        JOIN(FFT_NAME, _inverse)(r, shared.data());
        for (unsigned i = 0; i < E; ++i) back[own + T * i] = r[i];
    };
    std::vector<std::thread> threads;
    for (unsigned f = 0; f < F; ++f)
        for (unsigned t = 0; t < T; ++t) threads.emplace_back(run, t, f);
    for (auto &t : threads) t.join();
    fwrite(forward.data(), sizeof(Complex), forward.size(), stdout);
    fwrite(back.data(), sizeof(Complex), back.size(), stdout);
}
"""
FFTS = 2
#: Every radix as the first and as a later one, threads of several warps, sizes of one pass.
SHAPES = [(2, 2), (16, 16), (8, 4), (64, 8), (128, 16), (64, 32), (512, 32), (1024, 32), (512, 8), (256, 2)]


def transforms(folder, size, elements, split, real, x, turned=False):
    """Both directions by the compiled shim: of *x*, and of what the first gave."""
    width = {"float": "float32", "double": "float64"}[real]
    source = stockham.Transform(size * (1 + split), width, split, turned).source(elements * (1 + split), False, True)
    for name, text in (*source.headers, ("main.cpp", DRIVER)):
        (folder / name).write_text(text)
    flags = [f"-D{k}={v}" for k, v in (*source.defines, ("FFTS", FFTS))]
    lto = ROOT / "devmath" / "lto"
    build = ["g++", "-std=c++20", "-O1", "-w", "-pthread", f"-I{lto}", f"-I{folder}", *flags, str(folder / "main.cpp"), "-o", str(folder / "main")]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = subprocess.run([str(folder / "main")], input=x.tobytes(), capture_output=True, check=True).stdout
    return np.frombuffer(out, x.dtype).reshape(2, FFTS, size + 1)


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("size, elements", SHAPES)
@pytest.mark.parametrize("split", [False, True], ids=["complex", "real"])
@pytest.mark.parametrize("real", ["float", "double"])
def test_the_gpu_code_transforms_as_numpy_does(tmp_path, rng, size, elements, split, real):
    if real == "double" and size > 256:
        pytest.skip("the same code")
    x = noise(rng, (FFTS, size + 1), np.complex64 if real == "float" else np.complex128)
    forward, back = transforms(tmp_path, size, elements, split, real, x)
    z, limit = x[:, :size].astype(complex), np.finfo(x.dtype).eps * (np.log2(size) + 2)
    if split:
        assert error(forward, np.fft.rfft(z.view(float), axis=1)) < limit
        assert (forward[:, [0, -1]].imag == 0).all()
        assert error(back[:, :size], 2 * size * z) < 2 * limit
    else:
        assert error(forward[:, :size], np.fft.fft(z)) < limit
        assert error(back[:, :size], size * z) < 2 * limit


@pytest.mark.parametrize("size, elements", [(64, 8), (512, 32), (16, 16)])
@pytest.mark.parametrize("split", [False, True], ids=["complex", "real"])
def test_neighbouring_threads_may_have_neighbouring_transforms(tmp_path, rng, size, elements, split):
    x = noise(rng, (FFTS, size + 1), np.complex64)
    assert (transforms(tmp_path, size, elements, split, "float", x, True) == transforms(tmp_path, size, elements, split, "float", x)).all()
    assert stockham.Transform(size * (1 + split), "float32", split, True).room(elements * (1 + split)) % 2 == 1


def test_roots_of_unity_to_the_last_bit():
    """Against the same angle in long double."""
    for denominator in (1, 2, 3, 8, 12, 64, 100, 4096):
        for numerator in range(-3, denominator + 5):
            angle = -2 * np.longdouble("3.14159265358979323846264338327950288") * (numerator % denominator) / denominator
            want = np.cos(angle), np.sin(angle)
            for got, exact in zip(stockham.unit(numerator, denominator), want, strict=True):
                assert abs(got - float(exact)) <= 1.5 * np.spacing(max(abs(float(exact)), 1e-3)), (numerator, denominator)
    assert stockham.unit(0, 7) == (1, 0) and stockham.unit(2, 8) == (0, -1) and stockham.unit(4, 8) == (-1, 0)


@pytest.mark.parametrize("size, elements", SHAPES)
def test_the_table_has_as_many_numbers_as_the_passes_read(size, elements):
    radices = stockham.radices(size, elements)
    assert np.prod(radices) == size and max(radices) <= elements
    reads, done = 0, radices[0]
    for r in radices[1:]:
        reads, done = reads + r // 2 * done, done * r
    text = stockham.twiddles(size, elements, True, "double").split("#ifdef")
    assert text[1].count("{") == max(reads, 1) and text[2].count("{") == size
