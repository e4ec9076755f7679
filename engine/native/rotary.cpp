// Rotary position embedding: each pair (x[i], x[i + width / 2]) of a head is turned by the angle of its position.
//
// Source: Su et al., "RoFormer" (arXiv 2104.09864), equation 34, with the pairs as transformers lays them out.

#include "vectors.h"

namespace {

struct Rotation {
    int64_t num_rows, num_heads, width, row_stride, head_stride;
    const void *input, *cosines, *sines;  // [num_rows, num_heads, width] by the strides; [num_rows, width] both
    void* output;                         // [num_rows, num_heads, width]
};

template <typename T>
void rotate(const Rotation& r) {
    const int64_t half = r.width / 2;
#pragma omp parallel for if (r.num_rows > 64)
    for (int64_t row = 0; row < r.num_rows; ++row) {
        const T *cosines = static_cast<const T*>(r.cosines) + row * r.width,
                *sines = static_cast<const T*>(r.sines) + row * r.width;
        for (int64_t head = 0; head < r.num_heads; ++head) {
            const T* from = static_cast<const T*>(r.input) + row * r.row_stride + head * r.head_stride;
            T* to = static_cast<T*>(r.output) + (row * r.num_heads + head) * r.width;
            for (int64_t i = 0; i < half; i += LANES) {
                const vec a = load(from + i), b = load(from + half + i);
                store(to + i, a * load(cosines + i) - b * load(sines + i));
                store(to + half + i, b * load(cosines + half + i) + a * load(sines + half + i));
            }
        }
    }
}

}  // namespace

extern "C" {

void draftahead_rotate_float32(const void* rotation) { rotate<float>(*static_cast<const Rotation*>(rotation)); }

void draftahead_rotate_bfloat16(const void* rotation) { rotate<bfloat16>(*static_cast<const Rotation*>(rotation)); }

}  // extern "C"
