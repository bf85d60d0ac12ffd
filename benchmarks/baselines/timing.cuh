// Event timing and result lines of the CUDA C++ baselines.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#ifdef FAST_MATH
#define BUILD "_fast_math"
#else
#define BUILD ""
#endif

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t status_ = (call);                                                            \
        if (status_ != cudaSuccess) {                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));     \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

// Milliseconds of one launch: the median of nine repetitions of four launches, after 0.3 s of them (clocks rise under load).
template <class Launch>
double median_ms(Launch launch) {
    constexpr int repetitions = 9, launches = 4;
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    const auto warm = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    do {
        for (int i = 0; i < launches; ++i) launch();
        CHECK(cudaDeviceSynchronize());
    } while (std::chrono::steady_clock::now() < warm);
    std::vector<float> times(repetitions);
    for (float &time : times) {
        CHECK(cudaEventRecord(start));
        for (int i = 0; i < launches; ++i) launch();
        CHECK(cudaEventRecord(stop));
        CHECK(cudaEventSynchronize(stop));
        CHECK(cudaEventElapsedTime(&time, start, stop));
    }
    CHECK(cudaGetLastError());
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(stop));
    std::sort(times.begin(), times.end());
    return times[repetitions / 2] / launches;
}

struct Best {
    double ms = 1e30;
    int block = 0;
};

template <class Launch>
Best best_block(unsigned threads, Launch launch) {
    Best best;
    for (int block : {128, 256, 512}) {
        const double ms = median_ms([&] { launch((threads + block - 1) / block, block); });
        if (ms < best.ms) best = {ms, block};
    }
    return best;
}

struct Moments {
    double mean, deviation;
};

template <class T>
Moments moments(const T *device, size_t n) {
    std::vector<T> host(n);
    CHECK(cudaMemcpy(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost));
    double sum = 0, squares = 0;
    for (T v : host) sum += v;
    for (T v : host) squares += (v - sum / n) * (v - sum / n);
    return {sum / n, sqrt(squares / n)};
}

inline void print(const std::string &name, double value, const char *unit, const std::string &check) {
    printf("{\"name\": \"%s" BUILD "\", \"value\": %.6g, \"unit\": \"%s\", \"check\": {%s}}\n", name.c_str(), value, unit,
           check.c_str());
    fflush(stdout);
}
