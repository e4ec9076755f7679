// Root mean square normalisation: y = x / sqrt(mean(x^2) + epsilon) * weight, each row by itself.
//
// Source: Zhang and Sennrich, "Root mean square layer normalization" (arXiv 1910.07467), equation 4.

#include <cmath>

#include "vectors.h"

namespace {

struct Norm {
    int64_t num_rows, num_heads, width, row_stride, head_stride;
    const void* rows;     // [num_rows, num_heads, width] by the strides
    const float* weight;  // [width]
    void* output;         // [num_rows, num_heads, width]
    float epsilon;
};

template <typename T>
void normalise(const Norm& norm) {
#pragma omp parallel for if (norm.num_rows > 64)
    for (int64_t i = 0; i < norm.num_rows * norm.num_heads; ++i) {
        const int64_t row = i / norm.num_heads, head = i % norm.num_heads;
        const T* from = static_cast<const T*>(norm.rows) + row * norm.row_stride + head * norm.head_stride;
        T* to = static_cast<T*>(norm.output) + i * norm.width;
        vec squares = {};
        for (int64_t d = 0; d < norm.width; d += LANES) squares = add_product(squares, load(from + d), load(from + d));
        const float factor = 1.0f / std::sqrt(sum_of(squares) / norm.width + norm.epsilon);
        for (int64_t d = 0; d < norm.width; d += LANES)
            store(to + d, load(from + d) * factor * load(norm.weight + d));
    }
}

}  // namespace

extern "C" {

void draftahead_normalise_float32(const void* norm) { normalise<float>(*static_cast<const Norm*>(norm)); }

void draftahead_normalise_bfloat16(const void* norm) { normalise<bfloat16>(*static_cast<const Norm*>(norm)); }

}  // extern "C"
