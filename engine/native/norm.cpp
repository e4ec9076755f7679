// Root mean square normalisation: y = x / sqrt(mean(x^2) + epsilon) * weight, each row by itself.
//
// Source: Zhang and Sennrich, "Root mean square layer normalization" (arXiv 1910.07467), equation 4.

#include <cmath>

#include "vectors.h"

namespace {

template <typename T>
void normalise(const T* rows, const float* weight, T* output, int64_t num_rows, int64_t width, float epsilon) {
#pragma omp parallel for if (num_rows > 64)
    for (int64_t row = 0; row < num_rows; ++row) {
        const T* from = rows + row * width;
        T* to = output + row * width;
        vec squares = {};
        for (int64_t i = 0; i < width; i += LANES) squares = add_product(squares, load(from + i), load(from + i));
        const float factor = 1.0f / std::sqrt(sum_of(squares) / width + epsilon);
        for (int64_t i = 0; i < width; i += LANES) store(to + i, load(from + i) * factor * load(weight + i));
    }
}

}  // namespace

extern "C" {

void draftahead_normalise_float32(const void* rows, const void* weight, void* output, int64_t num_rows, int64_t width,
                                  float epsilon) {
    normalise(static_cast<const float*>(rows), static_cast<const float*>(weight), static_cast<float*>(output),
              num_rows, width, epsilon);
}

void draftahead_normalise_bfloat16(const void* rows, const void* weight, void* output, int64_t num_rows, int64_t width,
                                   float epsilon) {
    normalise(static_cast<const bfloat16*>(rows), static_cast<const float*>(weight), static_cast<bfloat16*>(output),
              num_rows, width, epsilon);
}

}  // extern "C"
