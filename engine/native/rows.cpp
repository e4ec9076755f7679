// Rows moved and added, each by itself.

#include "vectors.h"

namespace {

struct Sum {
    int64_t num_rows, width;
    const void *a, *b;  // [num_rows, width]
    void* output;       // the same
};

template <typename T>
void add(const Sum& sum) {
    const T *a = static_cast<const T*>(sum.a), *b = static_cast<const T*>(sum.b);
    T* output = static_cast<T*>(sum.output);
    const int64_t size = sum.num_rows * sum.width;
#pragma omp parallel for if (sum.num_rows > 64)
    for (int64_t i = 0; i < size; i += LANES) store(output + i, load(a + i) + load(b + i));
}

struct Scatter {
    int64_t num_rows, row_bytes, row_stride;  // bytes
    const char* rows;
    char* slots;               // [number of slots, row_bytes]
    const int64_t* positions;  // [num_rows], the slot of each row
};

}  // namespace

extern "C" {

void draftahead_add_float32(const void* sum) { add<float>(*static_cast<const Sum*>(sum)); }

void draftahead_add_bfloat16(const void* sum) { add<bfloat16>(*static_cast<const Sum*>(sum)); }

void draftahead_scatter(const void* arguments) {
    const Scatter& s = *static_cast<const Scatter*>(arguments);
    for (int64_t row = 0; row < s.num_rows; ++row)
        std::memcpy(s.slots + s.positions[row] * s.row_bytes, s.rows + row * s.row_stride, s.row_bytes);
}

}  // extern "C"
