// Paged attention for CPUs: each query row reads the keys of its sequence block by block, in order of position, with a
// running softmax in float32.
//
// A row's bits depend on its own query and keys alone. Every sum has a fixed order: over the head dimension by lanes and
// then a fixed tree, over keys by position. How many rows, sequences or threads there are decides only who does the work.
//
// Plain C interface, so that it compiles in a second without any header of torch.

#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

constexpr int KEY_TILE = 32;  // keys between two updates of the running softmax

struct Shape {
    int64_t num_heads, num_kv_heads, head_dim, block_size, table_width;
    int64_t query_row_stride, query_head_stride;
    int64_t window;  // keys a row looks back over, itself included; 0 is all
    float scale, softcap;  // softcap 0 is off
};

// A run of rows of one sequence: rows first_row .. first_row + num_rows - 1, at consecutive positions.
struct Chunk {
    int32_t sequence, first_row, num_rows, first_position;
};

// Keys and values of KEY_TILE positions for one key head. Keys are transposed, so that scores need no sum across lanes.
template <int DIMS>
struct Tile {
    float keys[DIMS * LANES][KEY_TILE];
    vec values[KEY_TILE][DIMS];

    template <typename T>
    void fill(const T* all_keys, const T* all_values, const int32_t* table, int64_t start, int64_t last_position,
              int64_t kv_head, const Shape& shape) {
        for (int j = 0; j < KEY_TILE && start + j <= last_position; ++j) {
            const int64_t position = start + j;
            const int64_t slot = table[position / shape.block_size] * shape.block_size + position % shape.block_size;
            const int64_t offset = (slot * shape.num_kv_heads + kv_head) * shape.head_dim;
            for (int d = 0; d < DIMS; ++d) {
                const vec key = load(all_keys + offset + d * LANES);
                for (int lane = 0; lane < LANES; ++lane) keys[d * LANES + lane][j] = key[lane];
                values[j][d] = load(all_values + offset + d * LANES);
            }
        }
    }
};

// One query head of one row on its way over the keys.
template <int DIMS>
struct Walker {
    float query[DIMS * LANES];
    vec output[DIMS];
    float peak, total;
    int64_t first_key, last_key;

    template <typename T>
    void start(const T* q, int64_t position, const Shape& shape) {
        for (int d = 0; d < DIMS; ++d) {
            store(query + d * LANES, load(q + d * LANES) * shape.scale);
            output[d] = vec{};
        }
        peak = -INFINITY;
        total = 0.0f;
        last_key = position;
        first_key = shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0;
    }

    // Never inlined: one piece of code for every row, whatever a compiler makes of it.
    __attribute__((noinline)) void visit(const Tile<DIMS>& tile, int64_t tile_start, const Shape& shape) {
        float scores[KEY_TILE];
        const float tile_peak = score(tile, tile_start, shape, scores);
        if (tile_peak == -INFINITY) return;
        const float new_peak = tile_peak > peak ? tile_peak : peak;
        const float decay = peak == -INFINITY ? 0.0f : std::exp(peak - new_peak);
        for (int j = 0; j < KEY_TILE; j += LANES) store(scores + j, exp_of_negative(load(scores + j) - new_peak));

        vec sums[DIMS];
        for (int d = 0; d < DIMS; ++d) sums[d] = output[d] * decay;
        float tile_total = 0.0f;
        const int64_t last = last_key - tile_start;
        for (int j = 0; j < KEY_TILE && j <= last; ++j) {
            tile_total += scores[j];
            for (int d = 0; d < DIMS; ++d) sums[d] += scores[j] * tile.values[j][d];
        }
        for (int d = 0; d < DIMS; ++d) output[d] = sums[d];
        total = total * decay + tile_total;
        peak = new_peak;
    }

    // Scores of a tile, -inf where the row may not look; the largest.
    float score(const Tile<DIMS>& tile, int64_t tile_start, const Shape& shape, float* scores) const {
        vec even[KEY_TILE / LANES] = {}, odd[KEY_TILE / LANES] = {};
        for (int e = 0; e < DIMS * LANES; e += 2)
            for (int v = 0; v < KEY_TILE / LANES; ++v) {
                even[v] += query[e] * load(tile.keys[e] + v * LANES);
                odd[v] += query[e + 1] * load(tile.keys[e + 1] + v * LANES);
            }
        for (int v = 0; v < KEY_TILE / LANES; ++v) store(scores + v * LANES, even[v] + odd[v]);
        float largest = -INFINITY;
        for (int j = 0; j < KEY_TILE; ++j) {
            const int64_t position = tile_start + j;
            if (position < first_key || position > last_key)
                scores[j] = -INFINITY;
            else if (shape.softcap > 0)
                scores[j] = shape.softcap * std::tanh(scores[j] / shape.softcap);
            largest = scores[j] > largest ? scores[j] : largest;
        }
        return largest;
    }
};

// All rows of the chunk and all query heads that share one key head pass over its keys together.
template <int DIMS, typename T>
void attend_chunk(const T* query, const T* keys, const T* values, T* output, const int32_t* block_tables,
                  const Chunk& chunk, int64_t kv_head, const Shape& shape) {
    const int64_t group = shape.num_heads / shape.num_kv_heads;
    const int64_t last_position = chunk.first_position + chunk.num_rows - 1;
    const int32_t* table = block_tables + chunk.sequence * shape.table_width;
    std::vector<Walker<DIMS>> walkers(chunk.num_rows * group);
    for (int64_t i = 0; i < static_cast<int64_t>(walkers.size()); ++i) {
        const int64_t row = i / group, head = kv_head * group + i % group;
        walkers[i].start(query + (chunk.first_row + row) * shape.query_row_stride + head * shape.query_head_stride,
                         chunk.first_position + row, shape);
    }
    Tile<DIMS> tile = {};  // finite everywhere: what lies beyond the last key is multiplied by 0
    for (int64_t start = walkers[0].first_key / KEY_TILE * KEY_TILE; start <= last_position; start += KEY_TILE) {
        tile.fill(keys, values, table, start, last_position, kv_head, shape);
        for (Walker<DIMS>& walker : walkers)
            if (walker.last_key >= start) walker.visit(tile, start, shape);
    }
    for (int64_t i = 0; i < static_cast<int64_t>(walkers.size()); ++i) {
        const int64_t row = chunk.first_row + i / group, head = kv_head * group + i % group;
        T* out = output + (row * shape.num_heads + head) * shape.head_dim;
        for (int d = 0; d < DIMS; ++d) store(out + d * LANES, walkers[i].output[d] / walkers[i].total);
    }
}

template <int DIMS, typename T>
void attend(const T* query, const T* keys, const T* values, T* output, const int32_t* block_tables,
            const Chunk* chunks, int64_t num_chunks, const Shape& shape) {
    const int64_t num_tasks = num_chunks * shape.num_kv_heads;
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < num_tasks; ++task)
        attend_chunk<DIMS>(query, keys, values, output, block_tables, chunks[task / shape.num_kv_heads],
                           task % shape.num_kv_heads, shape);
}

// The head dimension as a constant keeps a row's sums in registers.
template <typename T>
int dispatch(const void* query, const void* keys, const void* values, void* output, const int32_t* block_tables,
             const void* chunks, int64_t num_chunks, const void* raw_shape) {
    const Shape& shape = *static_cast<const Shape*>(raw_shape);
    const auto run = [&](auto attend_dims) {
        attend_dims(static_cast<const T*>(query), static_cast<const T*>(keys), static_cast<const T*>(values),
                    static_cast<T*>(output), block_tables, static_cast<const Chunk*>(chunks), num_chunks, shape);
        return 0;
    };
    switch (shape.head_dim) {
        case 16: return run(attend<1, T>);
        case 32: return run(attend<2, T>);
        case 64: return run(attend<4, T>);
        case 80: return run(attend<5, T>);
        case 96: return run(attend<6, T>);
        case 128: return run(attend<8, T>);
        case 256: return run(attend<16, T>);
        default: return 1;
    }
}

}  // namespace

extern "C" {

// 0, or 1 if the head dimension is none of those above.
int draftahead_attend_float32(const void* query, const void* keys, const void* values, void* output,
                              const int32_t* block_tables, const void* chunks, int64_t num_chunks,
                              const void* shape) {
    return dispatch<float>(query, keys, values, output, block_tables, chunks, num_chunks, shape);
}

int draftahead_attend_bfloat16(const void* query, const void* keys, const void* values, void* output,
                               const int32_t* block_tables, const void* chunks, int64_t num_chunks,
                               const void* shape) {
    return dispatch<bfloat16>(query, keys, values, output, block_tables, chunks, num_chunks, shape);
}

}  // extern "C"
