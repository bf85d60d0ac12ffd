// Monte Carlo, Philox and copy rates in CUDA C++, with cuRAND's device functions and with a Philox4x32-10 of its own.
// Built twice: as it is, and with -use_fast_math -DFAST_MATH, which marks the names of its results.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "generators.cuh"
#include "timing.cuh"

constexpr uint64_t SEED = 20240229;
constexpr double S0 = 100, STRIKE = 100;
constexpr double LOG2E = 1.4426950408889634;

constexpr unsigned ASIAN_PATHS = 1u << 22, ASIAN_STEPS = 252;
constexpr double ASIAN_GSTEPS = 1e-9 * ASIAN_PATHS * ASIAN_STEPS;
constexpr double ASIAN_DRIFT = 1e-4, ASIAN_VOL = 0.01;  // of the logarithm, per step

constexpr unsigned STORED_PATHS = 800000, COLUMNS = 252;  // column 0 is S0
constexpr double STORED_DRIFT = 0.003, STORED_VOL = 0.027;

constexpr size_t GIB = size_t(1) << 30;
constexpr unsigned BITS_THREADS = 1u << 22, BITS_WORDS = 1024;

template <class Rng>
__global__ void gbm_asian(float *payoff, uint64_t seed) {
    const unsigned path = blockIdx.x * blockDim.x + threadIdx.x;
    constexpr float drift = ASIAN_DRIFT * LOG2E, vol = ASIAN_VOL * LOG2E;
    Rng rng(seed, path);
    float x = 0, sum = 0;
    for (unsigned step = 0; step < ASIAN_STEPS; step += 4) {
        const float4 z = rng.normals();
        sum += exp2_unit(x += fmaf(vol, z.x, drift));
        sum += exp2_unit(x += fmaf(vol, z.y, drift));
        sum += exp2_unit(x += fmaf(vol, z.z, drift));
        sum += exp2_unit(x += fmaf(vol, z.w, drift));
    }
    payoff[path] = fmaxf(sum * float(S0 / ASIAN_STEPS) - float(STRIKE), 0.0f);
}

__global__ void gbm_asian_double(double *payoff, uint64_t seed) {
    const unsigned path = blockIdx.x * blockDim.x + threadIdx.x;
    Curand rng(seed, path);
    double x = 0, sum = 0;
    for (unsigned step = 0; step < ASIAN_STEPS; step += 2) {
        const double2 z = curand_normal2_double(&rng.state);
        sum += exp(x += fma(ASIAN_VOL, z.x, ASIAN_DRIFT));
        sum += exp(x += fma(ASIAN_VOL, z.y, ASIAN_DRIFT));
    }
    payoff[path] = fmax(sum * (S0 / ASIAN_STEPS) - STRIKE, 0.0);
}

template <class Rng>
__global__ void gbm_paths(float *paths, uint64_t seed) {  // paths[column][path]: neighbouring threads write neighbouring words
    const unsigned path = blockIdx.x * blockDim.x + threadIdx.x;
    if (path >= STORED_PATHS) return;
    constexpr float drift = STORED_DRIFT * LOG2E, vol = STORED_VOL * LOG2E;
    Rng rng(seed, path);
    float x = 0;
    paths[path] = float(S0);
    for (unsigned column = 1; column < COLUMNS; column += 4) {
        const float4 z = rng.normals();
        const float normal[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
            if (column + i < COLUMNS) {
                x += fmaf(vol, normal[i], drift);
                paths[(column + i) * STORED_PATHS + path] = float(S0) * exp2_unit(x);
            }
    }
}

template <class Rng>
__global__ void philox_bits(unsigned *out, uint64_t seed) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    Rng rng(seed, thread);
    unsigned folded = 0;
    for (unsigned i = 0; i < BITS_WORDS; i += 4) {
        const uint4 w = rng.words();
        folded ^= w.x ^ w.y ^ w.z ^ w.w;
    }
    out[thread] = folded;
}

__global__ void fill(uint4 *out, uint64_t seed) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    out[thread] = Philox(seed, thread).words();
}

template <unsigned PER_THREAD>
__global__ void copy(const float4 *from, float4 *to) {
    const size_t first = size_t(blockIdx.x) * blockDim.x * PER_THREAD + threadIdx.x;
    float4 held[PER_THREAD];
#pragma unroll
    for (unsigned i = 0; i < PER_THREAD; ++i) held[i] = from[first + i * blockDim.x];
#pragma unroll
    for (unsigned i = 0; i < PER_THREAD; ++i) to[first + i * blockDim.x] = held[i];
}

std::string checked(const Moments &m, int block) {
    char text[160];
    snprintf(text, sizeof text, "\"mean\": %.6f, \"std\": %.6f, \"block\": %d", m.mean, m.deviation, block);
    return text;
}

template <class Rng>
void run_single(float *out) {
    Best best = best_block(ASIAN_PATHS, [&](int grid, int block) { gbm_asian<Rng><<<grid, block>>>(out, SEED); });
    print(std::string("mc.gbm_asian.f32:") + Rng::normals_name, ASIAN_GSTEPS / best.ms * 1e3, "Gstep/s",
          checked(moments(out, ASIAN_PATHS), best.block));

    best = best_block(STORED_PATHS, [&](int grid, int block) { gbm_paths<Rng><<<grid, block>>>(out, SEED); });
    const float *last = out + size_t(COLUMNS - 1) * STORED_PATHS;
    print(std::string("mc.gbm_paths.f32:") + Rng::normals_name, best.ms, "ms", checked(moments(last, STORED_PATHS), best.block));
}

void run_double(double *out) {
    const Best best = best_block(ASIAN_PATHS, [&](int grid, int block) { gbm_asian_double<<<grid, block>>>(out, SEED); });
    print("mc.gbm_asian.f64:curand_normal2_double", ASIAN_GSTEPS / best.ms * 1e3, "Gstep/s",
          checked(moments(out, ASIAN_PATHS), best.block));
}

template <class Rng>
void run_bits(unsigned *out) {
    const Best best = best_block(BITS_THREADS, [&](int grid, int block) { philox_bits<Rng><<<grid, block>>>(out, SEED); });
    std::vector<unsigned> folded(BITS_THREADS);
    CHECK(cudaMemcpy(folded.data(), out, BITS_THREADS * sizeof(unsigned), cudaMemcpyDeviceToHost));
    unsigned hash = 0;  // the same for every generator of these streams
    for (unsigned word : folded) hash = hash * 31 + word;
    print(std::string("rng.philox_bits:") + Rng::words_name, double(BITS_THREADS) * BITS_WORDS / best.ms / 1e6, "Gword/s",
          "\"hash\": " + std::to_string(hash) + ", \"block\": " + std::to_string(best.block));
}

template <unsigned PER_THREAD>
double copy_ms(const float4 *from, float4 *to) {
    const unsigned threads = GIB / sizeof(float4) / PER_THREAD;
    return best_block(threads, [&](int grid, int block) { copy<PER_THREAD><<<grid, block>>>(from, to); }).ms;
}

void run_copy(const float4 *from, float4 *to) {
    const double kernel = std::min({copy_ms<1>(from, to), copy_ms<2>(from, to), copy_ms<4>(from, to)});
    CHECK(cudaMemset(to, 0, GIB));
    copy<4><<<GIB / sizeof(float4) / 4 / 256, 256>>>(from, to);
    std::vector<char> sent(GIB), received(GIB);
    CHECK(cudaMemcpy(sent.data(), from, GIB, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(received.data(), to, GIB, cudaMemcpyDeviceToHost));
    const double transfer = median_ms([&] { CHECK(cudaMemcpyAsync(to, from, GIB, cudaMemcpyDeviceToDevice)); });
    char check[160];
    snprintf(check, sizeof check, "\"kernel\": %.6g, \"memcpy\": %.6g, \"equal\": %s", 2e-6 * GIB / kernel, 2e-6 * GIB / transfer,
             sent == received ? "true" : "false");
    print("copy:best", 2e-6 * GIB / std::min(kernel, transfer), "GB/s", check);
}

int main(int argc, char **argv) {  // "copy": that alone
    char *from, *to;
    CHECK(cudaMalloc(&from, GIB));
    CHECK(cudaMalloc(&to, GIB));
    fill<<<GIB / sizeof(uint4) / 256, 256>>>(reinterpret_cast<uint4 *>(from), SEED);
    run_copy(reinterpret_cast<const float4 *>(from), reinterpret_cast<float4 *>(to));
    if (argc > 1 && std::string(argv[1]) == "copy") return 0;

    run_single<Curand>(reinterpret_cast<float *>(to));
    run_single<Philox>(reinterpret_cast<float *>(to));
    run_double(reinterpret_cast<double *>(to));
    run_bits<Curand>(reinterpret_cast<unsigned *>(to));
    run_bits<Philox>(reinterpret_cast<unsigned *>(to));
}
