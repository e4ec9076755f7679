// Sixteen float32 at a time, and bfloat16 as it is kept in memory. The compiler maps them to what the processor has.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 16;

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint16_t half_vec __attribute__((vector_size(LANES * sizeof(uint16_t))));

struct bfloat16 {
    uint16_t bits;
};

inline vec load(const float* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline vec load(const bfloat16* p) {
    half_vec h;
    std::memcpy(&h, p, sizeof h);
    const ivec shifted = __builtin_convertvector(h, ivec) << 16;
    return (vec)shifted;
}

inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }

inline void store(bfloat16* p, vec v) {
    const ivec bits = (ivec)v;
    const ivec rounded = bits + 0x7FFF + ((bits >> 16) & 1);  // to nearest, ties to even; no NaN comes here
    const half_vec h = __builtin_convertvector((rounded >> 16) & 0xFFFF, half_vec);
    std::memcpy(p, &h, sizeof h);
}

// e^x for x <= 0; 0 below -87. Cody-Waite reduction, then the Taylor terms that float32 can tell apart.
inline vec exp_of_negative(vec x) {
    const ivec is_tiny = x < -87.0f;
    const vec n_float = x * 1.44269504088896341f;
    const ivec n = __builtin_convertvector(n_float - 0.5f, ivec);  // truncation towards 0 of a negative number
    const vec k = __builtin_convertvector(n, vec);
    const vec r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
    vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const ivec scale = (n + 127) << 23;
    const vec result = p * (vec)scale;
    return (vec)((ivec)result & ~is_tiny);
}

}  // namespace
