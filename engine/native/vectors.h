// Sixteen float32 at a time, and bfloat16 as it is kept in memory. The compiler maps them to what the processor has.

#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

// One piece of code wherever it is called: copies that a compiler adapts to their callers may round otherwise.
#define DRAFTAHEAD_ONE_COPY __attribute__((noipa))

namespace {

constexpr int LANES = 16;

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint16_t half_vec __attribute__((vector_size(LANES * sizeof(uint16_t))));
// Sixteen times two consecutive bfloat16, the first in the low half.
typedef uint32_t pair_vec __attribute__((vector_size(LANES * sizeof(uint32_t))));

// Sixteen times four consecutive bytes, the first in the lowest.
typedef uint32_t quad_vec __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef int8_t byte_vec __attribute__((vector_size(LANES)));

struct bfloat16 {
    uint16_t bits;
};

// Wherever it lies: memory need not be aligned.
template <typename V>
inline V read(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline vec load(const float* p) { return read<vec>(p); }

inline vec load(const bfloat16* p) { return (vec)(__builtin_convertvector(read<half_vec>(p), ivec) << 16); }

inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }

inline void store(bfloat16* p, vec v) {
    const ivec bits = (ivec)v;
    const ivec rounded = bits + 0x7FFF + ((bits >> 16) & 1);  // to nearest, ties to even
    const half_vec h = __builtin_convertvector((rounded >> 16) & 0xFFFF, half_vec);
    std::memcpy(p, &h, sizeof h);
}

inline void store(int8_t* p, ivec small) {
    const byte_vec bytes = __builtin_convertvector(small, byte_vec);
    std::memcpy(p, &bytes, sizeof bytes);
}

// A float16 is kept as its bits.
inline vec load_float16(const void* p) {
#ifdef __AVX512F__
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#else
    const ivec bits = __builtin_convertvector(read<half_vec>(p), ivec);
    const vec magnitude = (vec)((bits & 0x7FFF) << 13) * 0x1p112f;  // exact, also where float16 is subnormal
    return (vec)((ivec)magnitude | ((bits & 0x8000) << 16));
#endif
}

// Of numbers below 2^22; ties to even.
inline ivec to_nearest(vec v) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction
    return (ivec)(v + magic) - read<int32_t>(&magic);
}

inline vec broadcast(float x) { return x - vec{}; }

// The only place where a product and a sum become one operation: compilers are told not to do so elsewhere.
inline vec add_product(vec sum, vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    __m256 s[2], x[2], y[2];
    std::memcpy(s, &sum, sizeof s);
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int half = 0; half < 2; ++half) s[half] = _mm256_fmadd_ps(x[half], y[half], s[half]);
    std::memcpy(&sum, s, sizeof s);
    return sum;
#else
    return sum + a * b;
#endif
}

inline vec add_products(vec sum, pair_vec weights, pair_vec inputs) {
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)inputs);
#else
    sum = add_product(sum, (vec)(weights << 16), (vec)(inputs << 16));
    return add_product(sum, (vec)(weights & 0xFFFF0000u), (vec)(inputs & 0xFFFF0000u));
#endif
}

inline pair_vec load_pairs(const void* p) { return read<pair_vec>(p); }

inline pair_vec broadcast_pair(const bfloat16* p) { return read<uint32_t>(p) - pair_vec{}; }

inline quad_vec broadcast_quad(const int8_t* p) { return read<uint32_t>(p) - quad_vec{}; }

// Of bytes without a sign and bytes with one; exact.
inline ivec add_products(ivec sum, quad_vec weights, quad_vec inputs) {
#ifdef __AVX512VNNI__
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)inputs);
#else
    for (int byte = 0; byte < 4; ++byte) {
        const ivec w = (ivec)(weights >> (8 * byte) & 0xFFu);
        sum += w * ((ivec)(inputs << (24 - 8 * byte)) >> 24);
    }
    return sum;
#endif
}

// In a fixed order, each half onto the other.
template <typename V>
inline auto sum_of(V v) {
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) v[lane] += v[lane + width];
    return v[0];
}

template <typename V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

template <typename V>
inline auto largest_of(V v) {
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) v[lane] = v[lane] > v[lane + width] ? v[lane] : v[lane + width];
    return v[0];
}

// Rows become columns, in four rounds of dealing two halves of the rows into each other.
template <typename V>
inline void transpose(V (&rows)[LANES]) {
    for (int round = 0; round < 4; ++round) {
        V dealt[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; ++i) {
            const V a = rows[i], b = rows[i + LANES / 2];
            dealt[2 * i] = __builtin_shuffle(a, b, ivec{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
            dealt[2 * i + 1] = __builtin_shuffle(a, b, ivec{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
        }
        for (int i = 0; i < LANES; ++i) rows[i] = dealt[i];
    }
}

// e^x for x <= 0; 0 below -87, and what is no number stays none. Cody-Waite reduction, then the Taylor terms that float32 can tell apart.
inline vec exp_of_negative(vec x) {
    const ivec is_tiny = x < -87.0f;
    const ivec n = __builtin_convertvector(x * 1.44269504088896341f - 0.5f, ivec);  // towards 0 of a negative number
    const vec k = __builtin_convertvector(n, vec);
    const vec r = add_product(add_product(x, k, broadcast(-0.693359375f)), k, broadcast(2.12194440e-4f));
    vec p = broadcast(1.0f / 5040);
    for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        p = add_product(broadcast(term), p, r);
    const ivec scale = (n + 127) << 23;
    const vec result = p * (vec)scale;
    return (vec)((ivec)result & ~is_tiny);
}

}  // namespace
