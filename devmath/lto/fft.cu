// Fourier transforms whose size is a power of two, for the threads of a block: Stockham's autosort passes (C. Van Loan, "Computational
// Frameworks for the Fast Fourier Transform", SIAM 1992, section 1.7) of radix FFT_RADICES, with an exchange through shared memory
// between two passes.
//
// Compiled by NVRTC with -dlto and linked into the caller's kernel. Set by -D:
//     FFT_NAME      prefix of the symbols
//     FFT_REAL      float or double
//     FFT_SIZE      points of the complex transform N
//     FFT_ELEMENTS  points a thread E; the N / E threads of a transform are consecutive in threadIdx.x, its number in the block is threadIdx.y
//     FFT_TURNED    1: the other way round, so that neighbouring threads have neighbouring transforms
//     FFT_RADICES   radices of the passes, none above E, with the product N
//     FFT_SPLIT     1: transforms of 2 N real numbers, taken as N complex ones; 0: complex ones
//     FFT_PACKED    1: the real parts of elements 0 and N of the complex side are both in element 0, as its two parts
// twiddles.h has the numbers of `table` (and `split_table`), in the order in which they are read here (devmath/fft/stockham.py).
//
// Element i of a thread is point t + i * N / E, t its place in the transform, before and after. Neither direction scales.
//
// What makes it fast: complex numbers move as one 64- or 128-bit word in global and shared memory; all shared addresses are one sum a pass
// plus constants, padded so that no two lanes that are served together meet in a bank; and twiddles are part of the butterflies, 6 fused
// multiply-adds for two points, so that a pass of radix R reads R / 2 of them instead of R - 1.

// Everything but the entry points is this file's own: several sizes are linked into one kernel.
namespace {

template <typename T> struct Vec;
template <> struct Vec<float> { typedef float2 type; };
template <> struct Vec<double> { typedef double2 type; };

typedef FFT_REAL Real;
typedef Vec<Real>::type Complex;

#define INLINE static __device__ __forceinline__

static __device__ const Complex table[] = {
#define FFT_TABLE
#include "twiddles.h"
#undef FFT_TABLE
};

// ------------------------------------------------------------------------------------------------------------ butterflies

// cos(2 pi i / 64)
constexpr double cosine(int i)
{
    constexpr double quarter[17] = {
        1.0, 0.99518472667219688624, 0.98078528040323044913, 0.95694033573220886494, 0.92387953251128675613, 0.88192126434835502971,
        0.83146961230254523708, 0.77301045336273696081, 0.70710678118654752440, 0.63439328416364549822, 0.55557023301960222474,
        0.47139673682599764856, 0.38268343236508977173, 0.29028467725446236764, 0.19509032201612826785, 0.098017140329560601994, 0.0};
    i &= 63;
    return i <= 16 ? quarter[i] : i <= 32 ? -quarter[32 - i] : i <= 48 ? -quarter[i - 32] : quarter[64 - i];
}

// a, b = a + w b, a - w b with w = c + i s. The difference is 2 a less the sum, one operation instead of two.
INLINE void butterfly(Complex &a, Complex &b, Real c, Real s)
{
    const Complex sum = {fma(c, b.x, fma(-s, b.y, a.x)), fma(s, b.x, fma(c, b.y, a.y))};
    b = {fma(Real(2), a.x, -sum.x), fma(Real(2), a.y, -sum.y)};
    a = sum;
}

// w = 1
INLINE void butterfly(Complex &a, Complex &b)
{
    const Complex p = a, q = b;
    a = {p.x + q.x, p.y + q.y};
    b = {p.x - q.x, p.y - q.y};
}

// w = -i forward, i inverse
template <bool INVERSE> INLINE void butterfly_quarter(Complex &a, Complex &b)
{
    const Complex p = a, q = INVERSE ? Complex{-b.y, b.x} : Complex{b.y, -b.x};
    a = {p.x + q.x, p.y + q.y};
    b = {p.x - q.x, p.y - q.y};
}

// The DFT of R points in bit-reversed order, from the stage that joins transforms of M / 2 points on.
template <unsigned R, unsigned M, unsigned P, bool INVERSE> struct Stage {
    static __device__ __forceinline__ void run(Complex (&v)[R])
    {
        constexpr Real c = Real(cosine(P * (64 / M))), s = Real((INVERSE ? 1 : -1) * cosine(P * (64 / M) - 16));
#pragma unroll
        for (unsigned b = P; b < R; b += M) {
            if constexpr (P == 0)
                butterfly(v[b], v[b + M / 2]);
            else if constexpr (4 * P == M)
                butterfly_quarter<INVERSE>(v[b], v[b + M / 2]);
            else
                butterfly(v[b], v[b + M / 2], c, s);
        }
        if constexpr (P + 1 < M / 2)
            Stage<R, M, P + 1, INVERSE>::run(v);
        else if constexpr (M < R)
            Stage<R, 2 * M, 0, INVERSE>::run(v);
    }
};

// The same after multiplying point q with w^q, w = exp(-2 pi i k / (NS R)). Entries of one stage are NS apart; `twiddle` points at this k.
template <unsigned R, unsigned M, unsigned NS, bool INVERSE> INLINE void stage_twiddled(Complex (&v)[R], const Complex *twiddle)
{
    constexpr unsigned DISTINCT = M < 4 ? 1 : M / 4; // the others are these times -i
#pragma unroll
    for (unsigned p = 0; p < DISTINCT; ++p) {
        const Complex w = __ldg(twiddle + p * NS);
        const Real c = w.x, s = INVERSE ? -w.y : w.y;
#pragma unroll
        for (unsigned b = p; b < R; b += M) {
            butterfly(v[b], v[b + M / 2], c, s);
            if constexpr (M >= 4)
                butterfly(v[b + M / 4], v[b + M / 4 + M / 2], INVERSE ? -s : s, INVERSE ? c : -c);
        }
    }
    if constexpr (M < R)
        stage_twiddled<R, 2 * M, NS, INVERSE>(v, twiddle + DISTINCT * NS);
}

// ------------------------------------------------------------------------------------------------------------- exchanges

constexpr unsigned N = FFT_SIZE, E = FFT_ELEMENTS, T = N / E;
constexpr unsigned first_of(unsigned first, ...) { return first; }

// A gap after every PAD points: threads that write R = PAD apart then meet in no bank. Shared memory serves a half-warp of 64-bit words,
// or a quarter-warp of 128-bit words, at a time.
constexpr unsigned PAD = first_of(FFT_RADICES) < 8 ? 8 : first_of(FFT_RADICES);
constexpr unsigned pad(unsigned i) { return i + i / PAD; }
constexpr unsigned LEAST_ROOM = pad(N) + (FFT_SPLIT ? 2 : 0);
// Odd where neighbouring threads have neighbouring transforms: then they meet in no bank.
constexpr unsigned ROOM = FFT_TURNED ? LEAST_ROOM | 1 : LEAST_ROOM;

#if FFT_TURNED
#define PLACE threadIdx.y
#define WHICH threadIdx.x
#else
#define PLACE threadIdx.x
#define WHICH threadIdx.y
#endif

INLINE void wait()
{
    if constexpr (T <= 32 && !FFT_TURNED)
        __syncwarp();
    else
        __syncthreads();
}

// Where point q = 0 of butterfly j goes after a pass that joins transforms of NS points into ones of NS R.
template <unsigned NS, unsigned R> constexpr unsigned place(unsigned j) { return j / NS * (NS * R) + j % NS; }

// Positions are sums of a thread's own part and of constants that share no bit, so that pad and place may be taken of each part.
template <bool INVERSE, unsigned NS, unsigned R, unsigned... REST>
INLINE void passes(Complex (&r)[E], Complex *s, unsigned t, const Complex *twiddle)
{
    constexpr unsigned G = E / R;
#pragma unroll
    for (unsigned g = 0; g < G; ++g) {
        Complex v[R];
#pragma unroll
        for (unsigned q = 0; q < R; ++q)
            v[__brev(q) / (0x80000000u / (R / 2))] = r[g + G * q];
        if constexpr (NS == 1)
            Stage<R, 2, 0, INVERSE>::run(v);
        else
            stage_twiddled<R, 2, NS, INVERSE>(v, twiddle + (t % NS + T * g % NS));
#pragma unroll
        for (unsigned q = 0; q < R; ++q)
            r[g + G * q] = v[q];
    }
    if constexpr (sizeof...(REST) > 0) {
        wait();
        Complex *to = s + pad(place<NS, R>(t));
#pragma unroll
        for (unsigned g = 0; g < G; ++g)
#pragma unroll
            for (unsigned q = 0; q < R; ++q)
                to[pad(place<NS, R>(T * g)) + pad(q * NS)] = r[g + G * q];
        wait();
        const Complex *from = s + pad(t);
#pragma unroll
        for (unsigned i = 0; i < E; ++i)
            r[i] = from[pad(T * i)];
        passes<INVERSE, NS * R, REST...>(r, s, t, NS == 1 ? twiddle : twiddle + R / 2 * NS);
    }
}

template <bool INVERSE> INLINE void transform(Complex *registers, Complex *s, unsigned t)
{
    Complex r[E];
#pragma unroll
    for (unsigned i = 0; i < E; ++i)
        r[i] = registers[i];
    passes<INVERSE, 1, FFT_RADICES>(r, s, t, table);
#pragma unroll
    for (unsigned i = 0; i < E; ++i)
        registers[i] = r[i];
}

} // namespace

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if !FFT_SPLIT

extern "C" __device__ void JOIN(FFT_NAME, _forward)(Complex *registers, Complex *scratch)
{
    transform<false>(registers, scratch + WHICH * ROOM, PLACE);
}

extern "C" __device__ void JOIN(FFT_NAME, _inverse)(Complex *registers, Complex *scratch)
{
    transform<true>(registers, scratch + WHICH * ROOM, PLACE);
}

#else

// Real transforms of 2 N points: z[j] = x[2 j] + i x[2 j + 1] is transformed, and Z and X follow from each other by pairs k, N - k (Press et
// al., "Numerical Recipes", section 12.3.2). split_table has -i/2 exp(-pi i k / N). A thread has E + 1 complex elements on the complex side:
// X[N] is element E of the first one.

static __device__ const Complex split_table[] = {
#define FFT_SPLIT_TABLE
#include "twiddles.h"
#undef FFT_SPLIT_TABLE
};

extern "C" __device__ void JOIN(FFT_NAME, _forward)(Complex *registers, Complex *scratch)
{
    const unsigned t = PLACE;
    Complex *s = scratch + WHICH * ROOM;
    transform<false>(registers, s, t);
    wait();
#pragma unroll
    for (unsigned i = 0; i < E; ++i)
        s[pad(t) + pad(T * i)] = registers[i];
    if (t == 0)
        s[pad(N)] = registers[0]; // Z[N] = Z[0]
    wait();
#pragma unroll
    for (unsigned i = 0; i < E; ++i) {
        const Complex z = registers[i], other = s[pad(N - t - T * i)], w = __ldg(split_table + t + T * i);
        const Complex sum = {z.x + other.x, z.y - other.y}, difference = {z.x - other.x, z.y + other.y};
        registers[i] = {fma(Real(0.5), sum.x, fma(w.x, difference.x, -w.y * difference.y)),
                        fma(Real(0.5), sum.y, fma(w.x, difference.y, w.y * difference.x))};
        if (i == 0)
            registers[E] = {z.x - z.y, Real(0)};
    }
    if (t == 0)
        registers[0].y = FFT_PACKED ? registers[E].x : Real(0);
}

extern "C" __device__ void JOIN(FFT_NAME, _inverse)(Complex *registers, Complex *scratch)
{
    const unsigned t = PLACE;
    Complex *s = scratch + WHICH * ROOM;
    // The first and the last value of a real signal's transform are real: their imaginary parts are not looked at.
    const Real last = FFT_PACKED ? registers[0].y : registers[E].x;
    if (t == 0)
        registers[0].y = Real(0);
    wait();
#pragma unroll
    for (unsigned i = 0; i < E; ++i)
        s[pad(t) + pad(T * i)] = registers[i];
    if (t == 0)
        s[pad(N)] = {last, Real(0)};
    wait();
#pragma unroll
    for (unsigned i = 0; i < E; ++i) {
        const Complex x = registers[i], other = s[pad(N - t - T * i)], w = __ldg(split_table + t + T * i);
        const Complex sum = {x.x + other.x, x.y - other.y}, difference = {x.x - other.x, x.y + other.y};
        // 2 conj(w) difference, w as in the forward direction
        registers[i] = {fma(Real(2), fma(w.x, difference.x, w.y * difference.y), sum.x),
                        fma(Real(2), fma(w.x, difference.y, -w.y * difference.x), sum.y)};
    }
    transform<true>(registers, s, t);
}

#endif
