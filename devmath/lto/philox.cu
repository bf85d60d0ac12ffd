// Philox4x32 counter-based random numbers for kernels (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
//
// Compiled by NVRTC with -dlto and -DDM_ROUNDS=1..16 (10 is the published generator, 7 the fewest that pass BigCrush) and
// linked into the caller's kernel. Self-contained, and every symbol ends in the number of rounds, so that several can be linked.
//
// Words: counter = (step lo, step hi, stream lo, stream hi), key = (seed lo, seed hi). With 10 rounds word j of
// (seed, stream, step) is draw 4 * step + j of cuRAND's curand_init(seed, subsequence=stream, offset=0).
// Each distribution takes the four words of one call, and has two symbols:
//     dm_philox_<name>_r<rounds>(T *out, u64 seed, u64 stream, u64 step)
//     dm_philox_<name>_from_bits_r<rounds>(T *out, u32 x, u32 y, u32 z, u32 w)    the same on given words

typedef unsigned int u32;
typedef unsigned long long u64;

struct Words { u32 x, y, z, w; };

// The low and the high half of each product are written apart because ptxas joins them into one IMAD.WIDE, whereas for a 64-bit
// product it adds a zero to each high half. Products that do not depend on the step leave the caller's loop.
static __device__ __forceinline__ Words philox(u64 seed, u64 stream, u64 step)
{
    const u32 M0 = 0xD2511F53u, M1 = 0xCD9E8D57u, W0 = 0x9E3779B9u, W1 = 0xBB67AE85u;
    Words c = {(u32)step, (u32)(step >> 32), (u32)stream, (u32)(stream >> 32)};
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < DM_ROUNDS; ++round) {
        c = {__umulhi(M1, c.z) ^ c.y ^ k0, M1 * c.z, __umulhi(M0, c.x) ^ c.w ^ k1, M0 * c.x};
        k0 += W0;
        k1 += W1;
    }
    return c;
}

static __device__ __forceinline__ void bits4(u32 *out, Words c)
{
    out[0] = c.x, out[1] = c.y, out[2] = c.z, out[3] = c.w;
}

// ---------------------------------------------------------------------------------------------------------- single precision

// cuRAND's uniform: (0, 1], the smallest is 2^-33, and the top 128 words give 1.
static __device__ __forceinline__ float uniform(u32 word)
{
    return __fmaf_rn((float)word, 0x1p-32f, 0x1p-33f);
}

static __device__ __forceinline__ void uniform4(float *out, Words c)
{
    out[0] = uniform(c.x), out[1] = uniform(c.y), out[2] = uniform(c.z), out[3] = uniform(c.w);
}

// [0, 1): the top 24 bits, each value exact.
static __device__ __forceinline__ void uniform4_co(float *out, Words c)
{
    out[0] = (float)(c.x >> 8) * 0x1p-24f, out[1] = (float)(c.y >> 8) * 0x1p-24f;
    out[2] = (float)(c.z >> 8) * 0x1p-24f, out[3] = (float)(c.w >> 8) * 0x1p-24f;
}

// Box and Muller (1958), cuRAND's arrangement: radius from the first word, angle from the second, sine before cosine.
// Within a few ulp of the formula on the two uniforms; |z| <= sqrt(66 ln 2) = 6.76.
static __device__ __forceinline__ void normal_pair(float *out, u32 radius, u32 angle)
{
    float r, s, c;
    // sqrt.approx is within 2^-23 (PTX manual) and, unlike sqrtf, does not change with the caller's -prec-sqrt.
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(-2.0f * logf(uniform(radius))));
    sincospif(2.0f * uniform(angle), &s, &c);
    out[0] = r * s, out[1] = r * c;
}

static __device__ __forceinline__ void normal4(float *out, Words c)
{
    normal_pair(out, c.x, c.y);
    normal_pair(out + 2, c.z, c.w);
}

// Box-Muller on the special function units, for Monte Carlo: mean + scale * sqrt(2 ln 2) * sqrt(-log2 u) * (sin, cos)(angle),
// where scale_ln = scale * sqrt(2 ln 2). Eight plain instructions and four on the special function unit a pair.
//  - u is the 32-bit uniform of (0, 1], so log2 is finite and |z| <= 6.76. The absolute value is a free operand modifier and keeps
//    the root real should log2 of a u just below 1 come out positive.
//  - The word taken as signed is the same angle modulo 2 pi with at least 24 bits, in [-pi, pi), where sin.approx is best.
//  - Error of z by the bounds in the PTX and CUDA manuals (log2 2^-22, absolute on (0.5, 2) and relative below; sqrt 2^-23
//    relative; sine and cosine 2^-21.2 absolute): r * 2^-20 from the angle, and from the radius r * 2^-22 where r > 1.18,
//    min(2^-21.5 / r, 2^-10.7) where it is smaller. It follows normal4 of the same words to that accuracy.
static __device__ __forceinline__ void normal_pair_fast(float *out, u32 radius, u32 angle, float mean, float scale_ln)
{
    float l, r, s, c, radians = (float)(int)angle * 0x1.921fb6p-30f;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(uniform(radius)));
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fabsf(l)));
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(radians));
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(radians));
    r *= scale_ln;
    out[0] = __fmaf_rn(r, s, mean), out[1] = __fmaf_rn(r, c, mean);
}

static __device__ __forceinline__ void normal4_fast_scaled(float *out, Words c, float mean, float scale)
{
    const float scale_ln = scale * 0x1.2d6abep+0f;
    normal_pair_fast(out, c.x, c.y, mean, scale_ln);
    normal_pair_fast(out + 2, c.z, c.w, mean, scale_ln);
}

static __device__ __forceinline__ void normal4_fast(float *out, Words c)
{
    normal4_fast_scaled(out, c, 0.0f, 1.0f);
}

// ---------------------------------------------------------------------------------------------------------- double precision

// 53 bits of a pair of words, cuRAND's way: all bits of both count, and pairs that differ in one word differ.
static __device__ __forceinline__ u64 bits53(u32 first, u32 second)
{
    return first ^ (u64)second << 21;
}

// (0, 1]: the smallest is 2^-54.
static __device__ __forceinline__ double uniform_f64(u32 first, u32 second)
{
    return __fma_rn((double)bits53(first, second), 0x1p-53, 0x1p-54);
}

static __device__ __forceinline__ void uniform2_f64(double *out, Words c)
{
    out[0] = uniform_f64(c.x, c.y), out[1] = uniform_f64(c.z, c.w);
}

// [0, 1), each value exact.
static __device__ __forceinline__ void uniform2_co_f64(double *out, Words c)
{
    out[0] = (double)bits53(c.x, c.y) * 0x1p-53, out[1] = (double)bits53(c.z, c.w) * 0x1p-53;
}

// Minimax polynomials of degree 6, 6 and 7. The three highest coefficients were fitted with a zero low word, which makes them
// immediate operands; of the others, here from the lowest power on, each would cost two moves in the caller's loop if the compiler
// saw its value, so they are read from constant memory behind its back.
static __constant__ double LOG[4] = {  // (4 atanh(s) / s - 4) / s^2 in s^2, |s| <= 3 - sqrt 8, error 4e-15
    0x1.5555555555558p+0, 0x1.99999999950d1p-1, 0x1.2492492e22afdp-1, 0x1.c71c62b2df696p-2};
static __constant__ double SIN[4] = {  // sin(pi q / 2) / q in q^2, |q| <= 1/2, error 4e-17
    0x1.921fb54442d18p+0, -0x1.4abbce625be6cp-1, 0x1.466bc6775a1f7p-4, -0x1.32d2cce387f74p-8};
static __constant__ double COS[4] = {  // (cos(pi q / 2) - 1) / q^2 in q^2, |q| <= 1/2, error 7e-18
    -0x1.3bd3cc9be45e4p+0, 0x1.03c1f081b5d70p-2, -0x1.55d3c7e3e8048p-6, 0x1.e1f5069502ca5p-11};

// ((h2 x + h1) x + h0) x^4 + c[3] x^3 + ... + c[0]
static __device__ __forceinline__ double horner(double h2, double h1, double h0, const double *c, double x)
{
    double p = __fma_rn(__fma_rn(h2, x, h1), x, h0);
#pragma unroll
    for (int i = 3; i >= 0; --i) {
        double coefficient;
        asm("ld.const.f64 %0, [%1];" : "=d"(coefficient) : "l"(__cvta_generic_to_constant(c + i)));
        p = __fma_rn(p, x, coefficient);
    }
    return p;
}

// -2 ln u for a normal u in (0, 1], within 2 ulp: fdlibm's scheme, ln(1+f) = f - f^2/2 + s (f^2/2 + R(s^2)) with s = f / (2 + f),
// without its special cases.
static __device__ __forceinline__ double minus_2_log(double u)
{
    const int high = __double2hiint(u), exponent = (high - 0x3fe6a09e) >> 20;  // 1 + f in [sqrt(1/2), sqrt 2)
    const double f = __hiloint2double(high - (exponent << 20), __double2loint(u)) - 1.0, d = f + 2.0;
    double q;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(q) : "d"(d));
    double e = __fma_rn(-d, q, 1.0);
    e = __fma_rn(e, e, e);
    const double s = f * __fma_rn(q, e, q), s2 = s * s, f2 = f * f;
    const double tail = __fma_rn(s2, horner(0x1.2b663p-2, 0x1.39fd3p-2, 0x1.7462cp-2, LOG, s2), f2);
    return __fma_rn((double)exponent, -0x1.62e42fefa39efp+0, __fma_rn(-s, tail, __fma_rn(f, -2.0, f2)));
}

// Square root of x = 0 or x in [2^-60, 2^60] by one third-order step from the hardware's reciprocal root; within 1 ulp.
static __device__ __forceinline__ double root(double x)
{
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x + 0x1p-900));  // finite for 0
    const double r = x * y, e = __fma_rn(-r, y, 1.0);
    return __fma_rn(r, __fma_rn(e, 0.375, 0.5) * e, r);
}

// Sine and cosine of pi (2 bits + 1) / 2^53, cuRAND's angle. With the nearest quarter turn taken off in integers,
// what is left becomes the mantissa of a double in [1, 2).
static __device__ __forceinline__ void sincos53(double *sine, double *cosine, u64 bits)
{
    const u64 turned = 2 * bits + 1 + (1ull << 51);
    const double q = __longlong_as_double((turned & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull) - 1.5, q2 = q * q;
    const double s = q * horner(0x1.e3f3ap-25, -0x1.e3007p-19, 0x1.50783p-13, SIN, q2);
    const double c = __fma_rn(q2, horner(-0x1.b264dp-28, 0x1.f9cc4p-22, -0x1.a6d1fp-16, COS, q2), 1.0);
    const u32 high = (u32)(turned >> 32);  // bits 20 and 21: how many quarter turns were taken off, modulo 4
    const double a = high & 0x100000u ? c : s, b = high & 0x100000u ? s : c;
    *sine = __hiloint2double(__double2hiint(a) ^ (high << 10 & 0x80000000u), __double2loint(a));
    *cosine = __hiloint2double(__double2hiint(b) ^ (high + 0x100000u << 10 & 0x80000000u), __double2loint(b));
}

// Box-Muller as in normal4, on 53-bit uniforms: |z| <= sqrt(108 ln 2) = 8.65, within 4 ulp of the exact value for the uniforms of
// cuRAND's curand_normal2_double.
static __device__ __forceinline__ void normal2_f64(double *out, Words c)
{
    const double r = root(minus_2_log(uniform_f64(c.x, c.y)));
    double sine, cosine;
    sincos53(&sine, &cosine, bits53(c.z, c.w));
    out[0] = r * sine, out[1] = r * cosine;
}

// ------------------------------------------------------------------------------------------------------------------- symbols

#define DM_PASTE(name, rounds) dm_philox_##name##_r##rounds
#define DM_SYMBOL(name, rounds) DM_PASTE(name, rounds)
#define DM_EXPORT(name, T) \
    extern "C" __device__ void DM_SYMBOL(name, DM_ROUNDS)(T *out, u64 seed, u64 stream, u64 step) \
    { \
        name(out, philox(seed, stream, step)); \
    } \
    extern "C" __device__ void DM_SYMBOL(name##_from_bits, DM_ROUNDS)(T *out, u32 x, u32 y, u32 z, u32 w) \
    { \
        name(out, {x, y, z, w}); \
    }

DM_EXPORT(bits4, u32)
DM_EXPORT(uniform4, float)
DM_EXPORT(uniform4_co, float)
DM_EXPORT(normal4, float)
DM_EXPORT(normal4_fast, float)
DM_EXPORT(uniform2_f64, double)
DM_EXPORT(uniform2_co_f64, double)
DM_EXPORT(normal2_f64, double)

// mean + scale * normal4_fast for the price of normal4_fast: two instructions a pair less than scaling outside.
extern "C" __device__ void DM_SYMBOL(normal4_fast_scaled, DM_ROUNDS)(
    float *out, u64 seed, u64 stream, u64 step, float mean, float scale)
{
    normal4_fast_scaled(out, philox(seed, stream, step), mean, scale);
}

// --------------------------------------------------------------------------------------------------------- a state in registers

// cuRAND's sequential interface on 13 words of the caller's: counter 0-3, key 4-5, position 6 (4: the next draw makes new words),
// words 7-10, the spare normal 11 and whether it is there 12. Words are chosen by comparison, since an index that is
// not a constant would force the state out of registers.
enum { POSITION = 6, WORD = 7, SPARE = 11, HAS_SPARE = 12 };

static __device__ __forceinline__ void refill(u32 *state, u64 step)
{
    const u64 stream = (u64)state[3] << 32 | state[2], seed = (u64)state[5] << 32 | state[4];
    const Words c = philox(seed, stream, step);
    state[0] = (u32)step, state[1] = (u32)(step >> 32);
    state[WORD] = c.x, state[WORD + 1] = c.y, state[WORD + 2] = c.z, state[WORD + 3] = c.w;
}

static __device__ __forceinline__ u32 next(u32 *state)
{
    u32 position = state[POSITION];
    if (position == 4) {
        refill(state, ((u64)state[1] << 32 | state[0]) + 1);
        position = 0;
    }
    state[POSITION] = position + 1;
    const u32 low = position == 0 ? state[WORD] : state[WORD + 1], high = position == 2 ? state[WORD + 2] : state[WORD + 3];
    return position < 2 ? low : high;
}

extern "C" __device__ void DM_SYMBOL(seed, DM_ROUNDS)(u32 *state, u64 seed, u64 stream, u64 offset)
{
    state[2] = (u32)stream, state[3] = (u32)(stream >> 32);
    state[4] = (u32)seed, state[5] = (u32)(seed >> 32);
    state[POSITION] = (u32)offset & 3;
    state[SPARE] = state[HAS_SPARE] = 0;
    refill(state, offset >> 2);
}

extern "C" __device__ void DM_SYMBOL(bits, DM_ROUNDS)(u32 *out, u32 *state)
{
    *out = next(state);
}

extern "C" __device__ void DM_SYMBOL(uniform, DM_ROUNDS)(float *out, u32 *state)
{
    *out = uniform(next(state));
}

extern "C" __device__ void DM_SYMBOL(normal, DM_ROUNDS)(float *out, u32 *state)
{
    if (state[HAS_SPARE]) {
        state[HAS_SPARE] = 0;
        *out = __uint_as_float(state[SPARE]);
        return;
    }
    float pair[2];
    const u32 radius = next(state);
    normal_pair(pair, radius, next(state));
    state[SPARE] = __float_as_uint(pair[1]);
    state[HAS_SPARE] = 1;
    *out = pair[0];
}
