// Two sources of the same Philox4x32-10 streams for the kernels of mc.cu.
#pragma once
#include <cstdint>

#include <curand_kernel.h>

// The special function unit's own operations, whatever the build's flags are.
#define SPECIAL_UNIT(name, instruction)                          \
    __device__ __forceinline__ float name(float x) {             \
        float y;                                                 \
        asm(instruction ".f32 %0, %1;" : "=f"(y) : "f"(x));      \
        return y;                                                \
    }
SPECIAL_UNIT(exp2_unit, "ex2.approx.ftz")
SPECIAL_UNIT(log2_unit, "lg2.approx.ftz")
SPECIAL_UNIT(sqrt_unit, "sqrt.approx.ftz")

// One IMAD.WIDE. A C++ product of two widened words costs an addition more (nvcc 13.0), __umulhi a second multiplication.
__device__ __forceinline__ uint64_t wide_product(unsigned a, unsigned b) {
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
}

struct Curand {
    static constexpr const char *normals_name = "curand_normal4", *words_name = "curand4";
    curandStatePhilox4_32_10_t state;

    __device__ Curand(uint64_t seed, unsigned subsequence) { curand_init(seed, subsequence, 0, &state); }
    __device__ uint4 words() { return curand4(&state); }
    __device__ float4 normals() { return curand_normal4(&state); }
};

// The same streams as Curand: key = seed, counter = (block of four words, 0, subsequence, 0).
struct Philox {
    static constexpr const char *normals_name = "philox", *words_name = "philox";
    uint64_t seed;
    unsigned subsequence, block = 0;

    __device__ Philox(uint64_t seed, unsigned subsequence) : seed(seed), subsequence(subsequence) {}

    __device__ uint4 words() {
        unsigned a = block++, b = 0, c = subsequence, d = 0;
#pragma unroll
        for (unsigned round = 0; round < 10; ++round) {
            const unsigned key0 = unsigned(seed) + round * 0x9E3779B9u;
            const unsigned key1 = unsigned(seed >> 32) + round * 0xBB67AE85u;
            const uint64_t p = wide_product(a, 0xD2511F53u), q = wide_product(c, 0xCD9E8D57u);
            a = unsigned(q >> 32) ^ b ^ key0;
            b = unsigned(q);
            c = unsigned(p >> 32) ^ d ^ key1;
            d = unsigned(p);
        }
        return make_uint4(a, b, c, d);
    }

    // cuRAND's Box-Muller; reading the angle's word as signed keeps it within [-pi, pi), where __sincosf is accurate.
    static __device__ float2 normal_pair(unsigned radius_word, unsigned angle_word) {
        const float u = fmaf(float(radius_word), 0x1p-32f, 0x1p-33f);
        const float angle = fmaf(float(int(angle_word)), 0x1p-31f * 3.14159265f, 0x1p-32f * 3.14159265f);
        const float radius = sqrt_unit(-1.38629436f * log2_unit(u));  // -2 ln 2
        float s, c;
        __sincosf(angle, &s, &c);
        return make_float2(radius * s, radius * c);
    }

    __device__ float4 normals() {
        const uint4 w = words();
        const float2 p = normal_pair(w.x, w.y), q = normal_pair(w.z, w.w);
        return make_float4(p.x, p.y, q.x, q.y);
    }
};
