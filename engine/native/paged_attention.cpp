// Paged attention for CPUs: each query row reads the keys of its sequence block by block, in order of position, with a
// running softmax in float32.
//
// A row's bits depend on its own query and keys alone. Every sum has a fixed order: over the head dimension in two sums of
// every other one (of pairs, in bfloat16), over keys by position within fixed parts of a context, whose results are merged from first to last.
// How many rows, sequences or threads there are decides only who does the work.
//
// Plain C interface, so that it compiles in a second without any header of torch.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "vectors.h"

namespace {

constexpr int KEY_TILE = 32;   // keys between two updates of the running softmax
constexpr int KEY_PART = 128;  // keys whose softmax is computed by itself, and then merged with that of the keys before
constexpr int FEW_TASKS = 16;  // below this the parts of a context are shared out among threads,
constexpr int64_t MOST_BYTES = 16 << 20;  // if what they hold meanwhile is no more than this

struct Shape {
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    int64_t query_row_stride, query_head_stride;
    int64_t window;  // keys a row looks back over, itself included; 0 is all
    float scale, softcap;  // softcap 0 is off
};

// A run of rows of one sequence: rows first_row .. first_row + num_rows - 1, at consecutive positions.
struct Chunk {
    int32_t sequence, first_row, num_rows, first_position;

    int64_t last_position() const { return first_position + num_rows - 1; }
};

// What all layers of a step share.
struct Step {
    const int32_t* block_tables;  // [number of sequences, table_width]
    const Chunk* chunks;
    int64_t num_chunks, table_width;
};

struct Arguments {
    int64_t num_rows;
    const Step* step;
    const void *query, *keys, *values;  // [num_rows, num_heads, head_dim]; [number of slots, num_kv_heads, head_dim] both
    void* output;                       // [num_rows, num_heads, head_dim]
    Shape shape;
};

// Sixteen keys at a time with their dimensions across, so that scores need no sum across lanes.
template <int DIMS, typename T>
struct Keys;

template <int DIMS>
struct Keys<DIMS, float> {
    float of[DIMS * LANES][KEY_TILE];

    void fill(const float* const (&from)[KEY_TILE], int num_keys) {
        for (int first = 0; first < num_keys; first += LANES)
            for (int d = 0; d < DIMS; ++d) {
                vec rows[LANES];
                for (int i = 0; i < LANES; ++i) rows[i] = load(from[first + i] + d * LANES);
                transpose(rows);
                for (int i = 0; i < LANES; ++i) store(of[d * LANES + i] + first, rows[i]);
            }
    }

    vec score(const float* query, int first) const {
        vec even = {}, odd = {};
        for (int e = 0; e < DIMS * LANES; e += 2) {
            even = add_product(even, load(of[e] + first), broadcast(query[e]));
            odd = add_product(odd, load(of[e + 1] + first), broadcast(query[e + 1]));
        }
        return even + odd;
    }
};

template <int DIMS>
struct Keys<DIMS, bfloat16> {
    uint32_t of[DIMS * LANES / 2][KEY_TILE];

    void fill(const bfloat16* const (&from)[KEY_TILE], int num_keys) {
        for (int first = 0; first < num_keys; first += LANES)
            for (int p = 0; p < DIMS * LANES / 2; p += LANES) {
                // Sixteen pairs, or the last eight, whose neighbours are not looked at.
                const int64_t num_bytes = p + LANES <= DIMS * LANES / 2 ? sizeof(pair_vec) : sizeof(pair_vec) / 2;
                pair_vec rows[LANES] = {};
                for (int i = 0; i < LANES; ++i) std::memcpy(&rows[i], from[first + i] + 2 * p, num_bytes);
                transpose(rows);
                for (int i = 0; i < LANES && p + i < DIMS * LANES / 2; ++i)
                    std::memcpy(of[p + i] + first, &rows[i], sizeof rows[i]);
            }
    }

    vec score(const bfloat16* query, int first) const {
        vec even = {}, odd = {};
        for (int p = 0; p < DIMS * LANES / 2; p += 2) {
            even = add_products(even, load_pairs(of[p] + first), broadcast_pair(query + 2 * p));
            odd = add_products(odd, load_pairs(of[p + 1] + first), broadcast_pair(query + 2 * p + 2));
        }
        return even + odd;
    }
};

// Where the keys of one head lie, position after position.
struct Offsets {
    const int32_t* block;
    int64_t within, kv_head, offset;
    const Shape& shape;

    Offsets(const int32_t* table, int64_t position, int64_t kv_head, const Shape& shape)
        : block(table + position / shape.block_size),
          within(position % shape.block_size),
          kv_head(kv_head),
          shape(shape) {
        find();
    }

    void advance() {
        if (++within == shape.block_size) within = 0, ++block;
        find();
    }

    void find() { offset = ((*block * shape.block_size + within) * shape.num_kv_heads + kv_head) * shape.head_dim; }
};

// Keys and values of KEY_TILE positions for one key head.
template <int DIMS, typename T>
struct Tile {
    Keys<DIMS, T> keys;
    vec values[KEY_TILE][DIMS];

    void fill(const T* all_keys, const T* all_values, const int32_t* table, int64_t start, int64_t last_position,
              int64_t kv_head, const Shape& shape) {
        const int num_keys = last_position - start < KEY_TILE ? last_position - start + 1 : KEY_TILE;
        const T* from[KEY_TILE];
        const int64_t next = start + KEY_TILE, num_later = last_position + 1 - next;
        Offsets here(table, start, kv_head, shape), later(table, std::min(next, last_position), kv_head, shape);
        for (int j = 0; j < KEY_TILE; ++j) {
            from[j] = all_keys + here.offset;
            for (int d = 0; d < DIMS; ++d) values[j][d] = load(all_values + here.offset + d * LANES);
            // Beyond the last key the last one again: its score is masked.
            if (j + 1 < num_keys) here.advance();
            if (j >= num_later) continue;
            // What the next tile reads is on its way while this one is worked on.
            for (int d = 0; d < DIMS * LANES; d += 64 / sizeof(T)) {
                __builtin_prefetch(all_keys + later.offset + d);
                __builtin_prefetch(all_values + later.offset + d);
            }
            if (j + 1 < num_later) later.advance();
        }
        keys.fill(from, num_keys);
    }
};

// By how much what was seen under one peak counts under another.
inline float decay_of(float peak, float new_peak) {
    if (peak == new_peak) return 1.0f;
    return peak == -INFINITY ? 0.0f : std::exp(peak - new_peak);
}

// The softmax over some keys, as far as it can be told without the others.
template <int DIMS>
struct Partial {
    vec output[DIMS] = {};
    float peak = -INFINITY, total = 0.0f;

    DRAFTAHEAD_ONE_COPY void add(const Partial& later) {
        if (later.peak == -INFINITY) return;
        const float new_peak = later.peak > peak ? later.peak : peak;
        const float decay = decay_of(peak, new_peak), later_decay = decay_of(later.peak, new_peak);
        for (int d = 0; d < DIMS; ++d) output[d] = output[d] * decay + later.output[d] * later_decay;
        total = total * decay + later.total * later_decay;
        peak = new_peak;
    }
};

// One query head of one row on its way over the keys of a part.
template <int DIMS, typename T>
struct Walker {
    const T* query;
    int64_t first_key, last_key;
    Partial<DIMS> seen;

    DRAFTAHEAD_ONE_COPY void visit(const Tile<DIMS, T>& tile, int64_t tile_start, const Shape& shape) {
        float scores[KEY_TILE];
        const float tile_peak = score(tile, tile_start, shape, scores);
        if (tile_peak == -INFINITY) return;
        const float new_peak = tile_peak > seen.peak ? tile_peak : seen.peak;
        const float decay = decay_of(seen.peak, new_peak);
        vec weights = {};
        for (int j = 0; j < KEY_TILE; j += LANES) {
            const vec w = exp_of_negative(load(scores + j) - new_peak);
            weights += w;
            store(scores + j, w);
        }
        vec sums[DIMS];
        for (int d = 0; d < DIMS; ++d) sums[d] = seen.output[d] * decay;
        const int64_t num_seen = std::min<int64_t>(KEY_TILE, last_key - tile_start + 1);
        for (int64_t j = 0; j < num_seen; ++j)
            for (int d = 0; d < DIMS; ++d) sums[d] = add_product(sums[d], tile.values[j][d], broadcast(scores[j]));
        for (int d = 0; d < DIMS; ++d) seen.output[d] = sums[d];
        seen.total = seen.total * decay + sum_of(weights);
        seen.peak = new_peak;
    }

    // Scores of a tile, -inf where the row may not look; the largest.
    float score(const Tile<DIMS, T>& tile, int64_t tile_start, const Shape& shape, float* scores) const {
        for (int j = 0; j < KEY_TILE; j += LANES) store(scores + j, tile.keys.score(query, j) * shape.scale);
        if (shape.softcap > 0)
            for (int j = 0; j < KEY_TILE; ++j) scores[j] = shape.softcap * std::tanh(scores[j] / shape.softcap);
        for (int j = 0; tile_start + j < first_key && j < KEY_TILE; ++j) scores[j] = -INFINITY;
        for (int j = KEY_TILE - 1; tile_start + j > last_key && j >= 0; --j) scores[j] = -INFINITY;
        vec largest = load(scores);
        for (int j = LANES; j < KEY_TILE; j += LANES) largest = larger(largest, load(scores + j));
        return largest_of(largest);
    }
};

template <int DIMS, typename T>
struct Attention {
    const T *query, *keys, *values;
    T* output;
    const Step& step;
    const Shape& shape;

    int64_t group() const { return shape.num_heads / shape.num_kv_heads; }

    // All rows of a chunk and all query heads that share a key head.
    std::vector<Walker<DIMS, T>> walkers(const Chunk& chunk, int64_t kv_head) const {
        std::vector<Walker<DIMS, T>> all(chunk.num_rows * group());
        for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
            const int64_t row = i / group(), head = kv_head * group() + i % group();
            const int64_t position = chunk.first_position + row;
            all[i].query = query + (chunk.first_row + row) * shape.query_row_stride + head * shape.query_head_stride;
            all[i].first_key = shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0;
            all[i].last_key = position;
        }
        return all;
    }

    // Pass over the keys of one part together.
    void visit_part(std::vector<Walker<DIMS, T>>& all, const Chunk& chunk, int64_t kv_head, int64_t part) const {
        const int32_t* table = step.block_tables + chunk.sequence * step.table_width;
        const int64_t end = std::min((part + 1) * KEY_PART, chunk.last_position() + 1);
        Tile<DIMS, T> tile;
        for (int64_t start = part * KEY_PART; start < end; start += KEY_TILE) {
            if (start + KEY_TILE <= all[0].first_key) continue;
            tile.fill(keys, values, table, start, chunk.last_position(), kv_head, shape);
            for (Walker<DIMS, T>& walker : all)
                if (walker.last_key >= start) walker.visit(tile, start, shape);
        }
    }

    void write(const Partial<DIMS>& whole, const Chunk& chunk, int64_t kv_head, int64_t i) const {
        const int64_t row = chunk.first_row + i / group(), head = kv_head * group() + i % group();
        T* out = output + (row * shape.num_heads + head) * shape.head_dim;
        for (int d = 0; d < DIMS; ++d) store(out + d * LANES, whole.output[d] / whole.total);
    }

    // A thread takes all parts of its task, one after the other.
    void run_whole_tasks() const {
#pragma omp parallel for schedule(dynamic)
        for (int64_t task = 0; task < step.num_chunks * shape.num_kv_heads; ++task) {
            const Chunk& chunk = step.chunks[task / shape.num_kv_heads];
            const int64_t kv_head = task % shape.num_kv_heads;
            std::vector<Walker<DIMS, T>> all = walkers(chunk, kv_head);
            std::vector<Partial<DIMS>> wholes(all.size());
            for (int64_t part = all[0].first_key / KEY_PART; part <= chunk.last_position() / KEY_PART; ++part) {
                for (Walker<DIMS, T>& walker : all) walker.seen = {};
                visit_part(all, chunk, kv_head, part);
                for (size_t i = 0; i < all.size(); ++i) wholes[i].add(all[i].seen);
            }
            for (size_t i = 0; i < all.size(); ++i) write(wholes[i], chunk, kv_head, i);
        }
    }

    // Threads share the parts; they are merged in the same order as above, and so to the same bits.
    void run_parts(int64_t num_parts) const {
        const int64_t num_tasks = step.num_chunks * shape.num_kv_heads;
        std::vector<std::vector<Walker<DIMS, T>>> done(num_tasks * num_parts);
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < num_tasks * num_parts; ++i) {
            const int64_t task = i / num_parts, part = i % num_parts;
            const Chunk& chunk = step.chunks[task / shape.num_kv_heads];
            if (part * KEY_PART > chunk.last_position()) continue;
            done[i] = walkers(chunk, task % shape.num_kv_heads);
            visit_part(done[i], chunk, task % shape.num_kv_heads, part);
        }
        for (int64_t task = 0; task < num_tasks; ++task)
            for (size_t i = 0; i < done[task * num_parts].size(); ++i) {
                Partial<DIMS> whole;
                for (int64_t part = 0; part < num_parts; ++part)
                    if (i < done[task * num_parts + part].size()) whole.add(done[task * num_parts + part][i].seen);
                write(whole, step.chunks[task / shape.num_kv_heads], task % shape.num_kv_heads, i);
            }
    }

    void run(int64_t num_rows) const {
        int64_t num_parts = 1;
        for (int64_t i = 0; i < step.num_chunks; ++i)
            num_parts = std::max(num_parts, step.chunks[i].last_position() / KEY_PART + 1);
        const int64_t num_bytes = num_rows * shape.num_heads * num_parts * sizeof(Walker<DIMS, T>);
        if (num_parts > 1 && step.num_chunks * shape.num_kv_heads < FEW_TASKS && num_bytes < MOST_BYTES)
            run_parts(num_parts);
        else
            run_whole_tasks();
    }
};

template <int DIMS, typename T>
void attend(const Arguments& a) {
    const Attention<DIMS, T> attention = {static_cast<const T*>(a.query), static_cast<const T*>(a.keys),
                                          static_cast<const T*>(a.values), static_cast<T*>(a.output), *a.step, a.shape};
    attention.run(a.num_rows);
}

// The head dimension as a constant keeps a row's sums in registers.
template <typename T>
void dispatch(const Arguments& arguments) {
    switch (arguments.shape.head_dim) {
        case 16: return attend<1, T>(arguments);
        case 32: return attend<2, T>(arguments);
        case 64: return attend<4, T>(arguments);
        case 80: return attend<5, T>(arguments);
        case 96: return attend<6, T>(arguments);
        case 128: return attend<8, T>(arguments);
        case 256: return attend<16, T>(arguments);
        default: std::abort();  // the caller has to know these
    }
}

}  // namespace

extern "C" {

void draftahead_attend_float32(const void* arguments) { dispatch<float>(*static_cast<const Arguments*>(arguments)); }

void draftahead_attend_bfloat16(const void* arguments) {
    dispatch<bfloat16>(*static_cast<const Arguments*>(arguments));
}

}  // extern "C"
