// Products of rows with packed weights: y = x W^T + b, and silu(x G^T) * (x U^T) in one pass.
//
// An output's bits depend on its own row and weights alone: the sum runs over the inputs in ascending order, of quantised
// weights block by block, however many rows there are. How many rows share a pass over the weights decides only how often they are read.
//
// Weights are packed into panels of 32 outputs. Within a panel, step after step over the inputs, lie the weights of all
// 32 outputs, so that a pass reads memory from end to end; quantised ones first of 16, then of the other 16. A gated
// product has 16 outputs of G and 16 of U in a panel.

#include "vectors.h"

namespace {

constexpr int PANEL = 2 * LANES;
constexpr int BLOCK = 32;  // inputs that share a scale in quantised weights
#ifdef __AVX512F__
constexpr int MOST_ROWS = 12;  // two sums a row, two weights, one input: 27 of 32 registers
#else
constexpr int MOST_ROWS = 3;
#endif
constexpr int MOST_QUANTISED_ROWS = MOST_ROWS * 2 / 3;  // three sums a row
constexpr int AHEAD = 2048;  // bytes to fetch ahead

struct Product {
    const void* rows;
    const void* panels;
    const float* bias;  // [num_outputs], or null
    void* output;
    float* block_sums;  // [num_rows, num_inputs / BLOCK], for weights with an offset
    int64_t num_rows, row_stride, num_inputs, num_outputs;
    int64_t is_gated;
};

template <int ROWS>
struct Sums {
    vec of[ROWS][2] = {};
};

struct Float32 {
    typedef float element;
    static constexpr int most_rows = MOST_ROWS;
    static constexpr bool has_offset = false;

    static int64_t panel_bytes(int64_t num_inputs) { return num_inputs * PANEL * sizeof(float); }

    template <int ROWS>
    static Sums<ROWS> multiply(const float* rows, const float*, const Product& product, const char* panel) {
        Sums<ROWS> sums;
        for (int64_t k = 0; k < product.num_inputs; ++k, panel += PANEL * sizeof(float)) {
            const vec w[2] = {load((const float*)panel), load((const float*)panel + LANES)};
            __builtin_prefetch(panel + AHEAD);
            __builtin_prefetch(panel + AHEAD + 64);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r) {
                const vec x = broadcast(rows[r * product.row_stride + k]);
                for (int half = 0; half < 2; ++half) sums.of[r][half] = add_product(sums.of[r][half], w[half], x);
            }
        }
        return sums;
    }
};

struct BFloat16 {
    typedef bfloat16 element;
    static constexpr int most_rows = MOST_ROWS;
    static constexpr bool has_offset = false;

    static int64_t panel_bytes(int64_t num_inputs) { return num_inputs * PANEL * sizeof(bfloat16); }

    template <int ROWS>
    static Sums<ROWS> multiply(const bfloat16* rows, const float*, const Product& product, const char* panel) {
        Sums<ROWS> sums;
        for (int64_t k = 0; k < product.num_inputs; k += 2, panel += 2 * PANEL * sizeof(bfloat16)) {
            const pair_vec w[2] = {load_pairs(panel), load_pairs(panel + sizeof(pair_vec))};
            __builtin_prefetch(panel + AHEAD);
            __builtin_prefetch(panel + AHEAD + 64);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r) {
                const pair_vec x = broadcast_pair(rows + r * product.row_stride + k);
                for (int half = 0; half < 2; ++half) sums.of[r][half] = add_products(sums.of[r][half], w[half], x);
            }
        }
        return sums;
    }
};

inline vec load_float16(const void* p) {
    const ivec bits = __builtin_convertvector(read<half_vec>(p), ivec);
    const vec magnitude = (vec)((bits & 0x7FFF) << 13) * 0x1p112f;  // exact, also where float16 is subnormal
    return (vec)((ivec)magnitude | ((bits & 0x8000) << 16));
}

inline uint16_t bfloat16_of_small(int number) {  // at most 8 significant bits: exact
    const float x = number;
    return read<uint32_t>(&x) >> 16;
}

// The weights of 16 outputs and BLOCK inputs: scale * number, each number of 8 bits with its sign.
struct Int8Block {
    static constexpr bool has_offset = false;
    static constexpr int64_t header_bytes = LANES * 2, bytes = header_bytes + LANES * BLOCK;

    static pair_vec pairs(const char* numbers, int step) {
        const char* from = numbers + step * 2 * LANES;
#ifdef __AVX512BF16__
        const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
        const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + LANES)));
        return (pair_vec)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
#else
        uint16_t halves[2 * LANES];
        for (int i = 0; i < 2 * LANES; ++i) halves[i] = bfloat16_of_small((signed char)from[i]);
        return load_pairs(halves);
#endif
    }
};

// The same with offset + scale * number, numbers of 4 bits without a sign. Sixteen bits hold the numbers of one output
// for every other one of eight inputs, so that a shift brings those of the next step down.
struct Int4Block {
    static constexpr bool has_offset = true;
    static constexpr int64_t header_bytes = LANES * 4, bytes = header_bytes + LANES * BLOCK / 2;

    static pair_vec pairs(const char* numbers, int step) {
        const char* from = numbers + step / 4 * 4 * LANES;
        const int shift = step % 4 * 4;
#ifdef __AVX512BF16__
        // Looks at the low 5 bits of an index: the table holds each number twice.
        const __m512i table = _mm512_set_epi16(
            0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40E0, 0x40C0, 0x40A0, 0x4080, 0x4040,
            0x4000, 0x3F80, 0, 0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40E0, 0x40C0, 0x40A0,
            0x4080, 0x4040, 0x4000, 0x3F80, 0);
        return (pair_vec)_mm512_permutexvar_epi16(_mm512_srli_epi16(_mm512_loadu_si512(from), shift), table);
#else
        uint16_t packed[2 * LANES], halves[2 * LANES];
        std::memcpy(packed, from, sizeof packed);
        for (int i = 0; i < 2 * LANES; ++i) halves[i] = bfloat16_of_small(packed[i] >> shift & 15);
        return load_pairs(halves);
#endif
    }
};

// Numbers are multiplied as they are, which bfloat16 holds exactly, and a block's sum is scaled: no weight is rounded.
template <class Block>
struct Quantised {
    typedef bfloat16 element;
    static constexpr int most_rows = MOST_QUANTISED_ROWS;
    static constexpr bool has_offset = Block::has_offset;

    static int64_t panel_bytes(int64_t num_inputs) { return 2 * (num_inputs / BLOCK) * Block::bytes; }

    template <int ROWS>
    static Sums<ROWS> multiply(const bfloat16* rows, const float* block_sums, const Product& product,
                               const char* panel) {
        Sums<ROWS> sums;
        const int64_t num_blocks = product.num_inputs / BLOCK;
        for (int half = 0; half < 2; ++half)
            for (int64_t b = 0; b < num_blocks; ++b, panel += Block::bytes) {
                vec even[ROWS] = {}, odd[ROWS] = {};
                for (int64_t ahead = 0; ahead < Block::bytes; ahead += 64) __builtin_prefetch(panel + AHEAD + ahead);
#pragma GCC unroll 8
                for (int step = 0; step < BLOCK / 2; step += 2) {
                    const pair_vec w[2] = {Block::pairs(panel + Block::header_bytes, step),
                                           Block::pairs(panel + Block::header_bytes, step + 1)};
#pragma GCC unroll 12
                    for (int r = 0; r < ROWS; ++r) {
                        const bfloat16* x = rows + r * product.row_stride + b * BLOCK + 2 * step;
                        even[r] = add_products(even[r], w[0], broadcast_pair(x));
                        odd[r] = add_products(odd[r], w[1], broadcast_pair(x + 2));
                    }
                }
                const vec scale = load_float16(panel);
                for (int r = 0; r < ROWS; ++r) {
                    sums.of[r][half] = add_product(sums.of[r][half], even[r] + odd[r], scale);
                    if constexpr (has_offset)
                        sums.of[r][half] = add_product(sums.of[r][half], load_float16(panel + 2 * LANES),
                                                       broadcast(block_sums[r * num_blocks + b]));
                }
            }
        return sums;
    }
};

// What an offset is multiplied by.
void sum_blocks(const Product& product) {
    const int64_t num_blocks = product.num_inputs / BLOCK;
    for (int64_t i = 0; i < product.num_rows * num_blocks; ++i) {
        const bfloat16* from = static_cast<const bfloat16*>(product.rows) + i / num_blocks * product.row_stride +
                               i % num_blocks * BLOCK;
        const vec both = load(from) + load(from + LANES);
        float sum = 0.0f;
        for (int lane = 0; lane < LANES; ++lane) sum += both[lane];
        product.block_sums[i] = sum;
    }
}

inline vec silu(vec x) {
    const vec magnitude = (vec)((ivec)x & 0x7FFFFFFF);
    const vec e = exp_of_negative(-magnitude);
    const ivec is_negative = x < 0.0f;
    const vec numerator = (vec)(((ivec)(x * e) & is_negative) | ((ivec)x & ~is_negative));
    return numerator / (1.0f + e);
}

template <typename T>
void store_some(T* to, vec v, int64_t num_wanted) {
    if (num_wanted >= LANES) {
        store(to, v);
    } else if (num_wanted > 0) {
        T all[LANES];
        store(all, v);
        std::memcpy(to, all, num_wanted * sizeof(T));
    }
}

template <typename T, int ROWS>
void finish(const Sums<ROWS>& sums, int64_t first_row, int64_t panel, const Product& product) {
    const int64_t width = product.is_gated ? LANES : PANEL;
    const int64_t first = panel * width, num_left = product.num_outputs - first;
    for (int r = 0; r < ROWS; ++r) {
        T* out = static_cast<T*>(product.output) + (first_row + r) * product.num_outputs + first;
        if (product.is_gated) {
            store_some(out, silu(sums.of[r][0]) * sums.of[r][1], num_left);
            continue;
        }
        for (int half = 0; half < 2; ++half) {
            vec v = sums.of[r][half];
            for (int lane = 0; product.bias && lane < LANES && half * LANES + lane < num_left; ++lane)
                v[lane] += product.bias[first + half * LANES + lane];
            store_some(out + half * LANES, v, num_left - half * LANES);
        }
    }
}

template <class Format, int ROWS>
DRAFTAHEAD_ONE_COPY void multiply_rows(int64_t first_row, int64_t panel, const Product& product) {
    typedef typename Format::element T;
    const T* rows = static_cast<const T*>(product.rows) + first_row * product.row_stride;
    const char* weights = static_cast<const char*>(product.panels) + panel * Format::panel_bytes(product.num_inputs);
    const float* block_sums = product.block_sums + first_row * (product.num_inputs / BLOCK);
    finish<T>(Format::template multiply<ROWS>(rows, block_sums, product, weights), first_row, panel, product);
}

template <class Format, int ROWS>
void multiply_last_rows(int64_t num_rows, int64_t first_row, int64_t panel, const Product& product) {
    if (num_rows == ROWS)
        multiply_rows<Format, ROWS>(first_row, panel, product);
    else if constexpr (ROWS > 1)
        multiply_last_rows<Format, ROWS - 1>(num_rows, first_row, panel, product);
}

template <class Format>
void multiply(const Product& product) {
    if constexpr (Format::has_offset) sum_blocks(product);
    const int64_t width = product.is_gated ? LANES : PANEL;
    const int64_t num_panels = (product.num_outputs + width - 1) / width;
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        int64_t row = 0;
        for (; row + Format::most_rows <= product.num_rows; row += Format::most_rows)
            multiply_rows<Format, Format::most_rows>(row, panel, product);
        multiply_last_rows<Format, Format::most_rows>(product.num_rows - row, row, panel, product);
    }
}

}  // namespace

extern "C" {

void draftahead_multiply_float32(const void* product) { multiply<Float32>(*static_cast<const Product*>(product)); }

void draftahead_multiply_bfloat16(const void* product) { multiply<BFloat16>(*static_cast<const Product*>(product)); }

void draftahead_multiply_int8(const void* product) {
    multiply<Quantised<Int8Block>>(*static_cast<const Product*>(product));
}

void draftahead_multiply_int4(const void* product) {
    multiply<Quantised<Int4Block>>(*static_cast<const Product*>(product));
}

}  // extern "C"
