// Products of rows with packed weights: y = x W^T + b, and silu(x G^T) * (x U^T) in one pass.
//
// An output's bits depend on its own row and weights alone: the sum runs over the inputs in ascending order, however many
// rows there are. How many rows share a pass over the weights decides only how often they are read.
//
// Rows that meet quantised weights are rounded to 8 bits, with a scale for each block of their own, so that a block's sum
// is one of integers and exact in any order.
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
constexpr int AHEAD = 2048;  // bytes to fetch ahead

struct Product {
    int64_t num_rows, row_stride, num_inputs, num_outputs;
    int64_t is_gated;
    const void* rows;
    const void* panels;
    const float* bias;  // [num_outputs], or null
    void* output;
    void* quantised_rows;  // RowBlock [num_rows, num_inputs / BLOCK], for quantised weights
};

template <int ROWS>
struct Sums {
    vec of[ROWS][2] = {};
};

struct Float32 {
    typedef float element;

    static int64_t panel_bytes(int64_t num_inputs) { return num_inputs * PANEL * sizeof(float); }

    static void prepare(const Product&) {}

    template <int ROWS>
    static Sums<ROWS> multiply(int64_t first_row, const Product& product, const char* panel) {
        Sums<ROWS> sums;
        const float* rows = static_cast<const float*>(product.rows) + first_row * product.row_stride;
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

    static int64_t panel_bytes(int64_t num_inputs) { return num_inputs * PANEL * sizeof(bfloat16); }

    static void prepare(const Product&) {}

    template <int ROWS>
    static Sums<ROWS> multiply(int64_t first_row, const Product& product, const char* panel) {
        Sums<ROWS> sums;
        const bfloat16* rows = static_cast<const bfloat16*>(product.rows) + first_row * product.row_stride;
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

// BLOCK inputs of one row: scale * number.
struct RowBlock {
    float scale;
    int32_t sum;  // of the numbers
    int8_t numbers[BLOCK];
};

RowBlock round_to_8_bits(const bfloat16* from) {
    const vec x[2] = {load(from), load(from + LANES)};
    // As integers, so that the largest of numbers and a NaN is the NaN.
    const ivec magnitudes[2] = {(ivec)x[0] & 0x7FFFFFFF, (ivec)x[1] & 0x7FFFFFFF};
    const int32_t bits = largest_of(larger(magnitudes[0], magnitudes[1]));
    const float largest = read<float>(&bits);
    const float steps = largest > 1e-30f ? 127.0f / largest : 0.0f;  // the reciprocal of less may be infinite
    RowBlock block = {largest / 127.0f, 0, {}};
    ivec sum = {};
    for (int half = 0; half < 2; ++half) {
        const ivec number = to_nearest(x[half] * steps);
        sum += number;
        store(block.numbers + half * LANES, number);
    }
    block.sum = sum_of(sum);
    return block;
}

// Shared out among the threads of the region that it is called in.
void quantise_rows(const Product& product) {
    const bfloat16* rows = static_cast<const bfloat16*>(product.rows);
    RowBlock* blocks = static_cast<RowBlock*>(product.quantised_rows);
    const int64_t num_blocks = product.num_inputs / BLOCK;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < product.num_rows * num_blocks; ++i)
        blocks[i] = round_to_8_bits(rows + i / num_blocks * product.row_stride + i % num_blocks * BLOCK);
}

// The weights of 16 outputs and BLOCK inputs: scale * (number - 128), numbers of 8 bits without a sign.
struct Int8Block {
    static constexpr int64_t header_bytes = LANES * 2, bytes = header_bytes + LANES * BLOCK;

    const char* at;

    // Those of inputs 4 * step and the three after it, and the same of the next step.
    void quads(int step, quad_vec (&weights)[2]) const {
        for (int i = 0; i < 2; ++i) weights[i] = read<quad_vec>(at + header_bytes + (step + i) * sizeof(quad_vec));
    }

    ivec begin(const RowBlock& row) const { return row.sum * -128 - ivec{}; }

    vec end(vec total, ivec sum, const RowBlock& row) const {
        return add_product(total, __builtin_convertvector(sum, vec), load_float16(at) * row.scale);
    }
};

// The same with offset + scale * number, numbers of 4 bits: those of two steps share their bytes.
struct Int4Block {
    static constexpr int64_t header_bytes = LANES * 4, bytes = header_bytes + LANES * BLOCK / 2;

    const char* at;

    void quads(int step, quad_vec (&weights)[2]) const {
        const quad_vec both = read<quad_vec>(at + header_bytes + step / 2 * sizeof(quad_vec));
        weights[0] = both & 0x0F0F0F0Fu;
        weights[1] = both >> 4 & 0x0F0F0F0Fu;
    }

    ivec begin(const RowBlock&) const { return ivec{}; }

    vec end(vec total, ivec sum, const RowBlock& row) const {
        total = add_product(total, __builtin_convertvector(sum, vec), load_float16(at) * row.scale);
        return add_product(total, load_float16(at + 2 * LANES), broadcast(row.sum * row.scale));
    }
};

template <class Block>
struct Quantised {
    typedef bfloat16 element;

    static int64_t panel_bytes(int64_t num_inputs) { return 2 * (num_inputs / BLOCK) * Block::bytes; }

    static void prepare(const Product& product) { quantise_rows(product); }

    template <int ROWS>
    static Sums<ROWS> multiply(int64_t first_row, const Product& product, const char* panel) {
        Sums<ROWS> sums;
        const int64_t num_blocks = product.num_inputs / BLOCK;
        const RowBlock* rows = static_cast<const RowBlock*>(product.quantised_rows) + first_row * num_blocks;
        for (int half = 0; half < 2; ++half)
            for (int64_t b = 0; b < num_blocks; ++b, panel += Block::bytes) {
                for (int64_t ahead = 0; ahead < Block::bytes; ahead += 64) __builtin_prefetch(panel + AHEAD + ahead);
                const Block block = {panel};
                ivec of_block[ROWS];
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; ++r) of_block[r] = block.begin(rows[r * num_blocks + b]);
#pragma GCC unroll 4
                for (int step = 0; step < BLOCK / 4; step += 2) {
                    quad_vec w[2];
                    block.quads(step, w);
#pragma GCC unroll 12
                    for (int r = 0; r < ROWS; ++r) {
                        const int8_t* x = rows[r * num_blocks + b].numbers + 4 * step;
                        of_block[r] = add_products(of_block[r], w[0], broadcast_quad(x));
                        of_block[r] = add_products(of_block[r], w[1], broadcast_quad(x + 4));
                    }
                }
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; ++r)
                    sums.of[r][half] = block.end(sums.of[r][half], of_block[r], rows[r * num_blocks + b]);
            }
        return sums;
    }
};

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
    const char* weights = static_cast<const char*>(product.panels) + panel * Format::panel_bytes(product.num_inputs);
    finish<typename Format::element>(Format::template multiply<ROWS>(first_row, product, weights), first_row, panel,
                                     product);
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
    const int64_t width = product.is_gated ? LANES : PANEL;
    const int64_t num_panels = (product.num_outputs + width - 1) / width;
#pragma omp parallel
    {
        Format::prepare(product);
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < num_panels; ++panel) {
            int64_t row = 0;
            for (; row + MOST_ROWS <= product.num_rows; row += MOST_ROWS)
                multiply_rows<Format, MOST_ROWS>(row, panel, product);
            multiply_last_rows<Format, MOST_ROWS>(product.num_rows - row, row, panel, product);
        }
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
