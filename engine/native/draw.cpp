// Draws tokens: argmax over the tokens that truncation keeps of z + temperature * g(seed, t, token), g being Gumbel noise.
//
// The noise is that of engine/sampling/noise.py and the truncation that of engine/sampling/logits.py, in one pass over a
// row and without sorting it: only the tokens beside the cut are put in order. How far the runner-up is behind comes with
// each token.

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

struct Draw {
    const float* logits;  // [vocab_size], adjusted
    int64_t vocab_size, top_k;  // top_k 0 is off
    int64_t token;  // the result
    uint32_t key_low, key_high;
    float temperature, top_p, min_p;
    float margin;  // result: the winner's score less the runner-up's, over the temperature
};

struct Draws {
    int64_t num_rows;
    Draw* of;  // [num_rows]
};

typedef uint32_t uvec __attribute__((vector_size(LANES * sizeof(uint32_t))));

inline uvec mix(uvec x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return x;
}

// Natural logarithm of positive, normal numbers. Cephes' logf.
inline vec log_of(vec x) {
    const ivec bits = (ivec)x;
    ivec exponent = (bits >> 23) - 126;
    vec m = (vec)((bits & 0x007FFFFF) | 0x3F000000);  // 0.5 to 1
    const ivec is_small = m < 0.707106781186547524f;
    exponent += is_small;  // minus 1 where it is
    m = m + (vec)((ivec)m & is_small) - 1.0f;
    const vec e = __builtin_convertvector(exponent, vec), z = m * m;
    vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    vec y = m * z * p;
    y += e * -2.12194440e-4f;
    y -= 0.5f * z;
    return m + y + e * 0.693359375f;
}

inline vec noise(uvec tokens, const Draw& draw) {
    uvec x = mix(tokens * 0x9E3779B1u + draw.key_low);
    x = mix(x ^ draw.key_high);
    vec u = (__builtin_convertvector((ivec)(x & 0x7FFFFFFFu), vec) + 0.5f) * 0x1p-31f;
    const ivec is_last = u > 1.0f - 0x1p-24f;
    u = (vec)(((ivec)u & ~is_last) | ((ivec)broadcast(1.0f - 0x1p-24f) & is_last));
    // log(1 - u) as log(s) * -u / (s - 1), which keeps the digits of a small u that s rounds off.
    const vec s = 1.0f - u, difference = s - 1.0f;
    const ivec is_lost = difference == 0.0f;
    const vec divisor = (vec)(((ivec)difference & ~is_lost) | ((ivec)broadcast(1.0f) & is_lost));
    const vec quotient = log_of(s) * -u / divisor;
    const vec logarithm = (vec)(((ivec)quotient & ~is_lost) | ((ivec)-u & is_lost));
    return -log_of(-logarithm);
}

// Sixteen logits, -inf beyond the last.
inline vec load_logits(const Draw& draw, int64_t first) {
    if (first + LANES <= draw.vocab_size) return load(draw.logits + first);
    vec v = broadcast(-INFINITY);
    for (int64_t i = first; i < draw.vocab_size; ++i) v[i - first] = draw.logits[i];
    return v;
}

struct Token {
    float logit;
    int64_t id;

    // Better ones come first; of equal ones the smaller id.
    bool operator<(const Token& other) const {
        return logit != other.logit ? logit > other.logit : id < other.id;
    }
};

// The tokens kept are the best ones up to a last one.
class Truncation {
public:
    // peak: the largest logit, finite.
    Truncation(const Draw& draw, float peak)
        : draw_(draw), weights_((draw.vocab_size + LANES - 1) / LANES * LANES) {
        const float temperature = std::max(draw.temperature, 1.17549435e-38f);
        for (int64_t i = 0; i < draw.vocab_size; i += LANES)
            store(weights_.data() + i, exp_of_negative((load_logits(draw, i) - peak) / temperature));
        for (int64_t i = 0; i < draw.vocab_size; ++i) {
            if (!(weights_[i] > 0)) weights_[i] = 0;  // of a logit that is no number
            counts_[bucket(weights_[i])] += 1;
            masses_[bucket(weights_[i])] += weights_[i];
        }
    }

    Token last_kept() const {
        int64_t left = draw_.top_k > 0 ? std::min(draw_.top_k, draw_.vocab_size) : draw_.vocab_size;
        const double mass = draw_.top_p < 1 ? draw_.top_p * mass_of_best(left) : INFINITY;
        double before = 0;
        int last_whole = NUM_BUCKETS;
        for (int b = NUM_BUCKETS - 1; b > 0; --b) {
            if (counts_[b] == 0) continue;
            if (counts_[b] <= left && before + masses_[b] < mass && smallest_of(b) >= draw_.min_p) {
                before += masses_[b];
                left -= counts_[b];
                last_whole = b;
                continue;
            }
            Token last = {INFINITY, -1};
            for (const Token& token : sorted(b)) {
                const bool is_best = last.id < 0 && last_whole == NUM_BUCKETS;  // stays, whatever rounding says
                if (!is_best && (left == 0 || before >= mass || weights_[token.id] < draw_.min_p)) break;
                last = token;
                before += weights_[token.id];
                --left;
            }
            return last.id >= 0 ? last : sorted(last_whole).back();
        }
        return sorted(last_whole).back();
    }

private:
    static constexpr int SHIFT = 20;  // sign, exponent and three more bits name a bucket
    static constexpr int NUM_BUCKETS = (0x3F800000 >> SHIFT) + 1;

    static int bucket(float weight) { return read<uint32_t>(&weight) >> SHIFT; }

    static float smallest_of(int bucket) {
        const uint32_t bits = static_cast<uint32_t>(bucket) << SHIFT;
        return read<float>(&bits);
    }

    double mass_of_best(int64_t number) const {
        double mass = 0;
        for (int b = NUM_BUCKETS - 1; b > 0 && number > 0; --b) {
            if (counts_[b] <= number) {
                mass += masses_[b];
            } else {
                const std::vector<Token> tokens = sorted(b);
                for (int64_t i = 0; i < number; ++i) mass += weights_[tokens[i].id];
            }
            number -= counts_[b];
        }
        return mass;
    }

    std::vector<Token> sorted(int wanted) const {
        std::vector<Token> tokens;
        for (int64_t i = 0; i < draw_.vocab_size; ++i)
            if (bucket(weights_[i]) == wanted) tokens.push_back({draw_.logits[i], i});
        std::sort(tokens.begin(), tokens.end());
        return tokens;
    }

    const Draw& draw_;
    std::vector<float> weights_;  // exp((z - best) / temperature)
    int64_t counts_[NUM_BUCKETS] = {};
    double masses_[NUM_BUCKETS] = {};
};

// The noisiest of the tokens that are not worse than the last kept one.
void draw_best(Draw& draw, Token last) {
    float best = -INFINITY, second = -INFINITY;
    draw.token = 0;
    const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t first = 0; first < draw.vocab_size; first += LANES) {
        const vec z = load_logits(draw, first);
        const ivec ids = lanes + static_cast<int32_t>(first);
        const ivec is_kept = (z > last.logit) | ((z == last.logit) & (ids <= static_cast<int32_t>(last.id)));
        // No noise is above 22.2: what lies further below the best so far need not be looked at. It may be the true
        // runner-up, but hardly ever one that is close.
        const ivec may_win = is_kept & (z > best - 22.5f * draw.temperature);
        int32_t any = 0;
        for (int lane = 0; lane < LANES; ++lane) any |= may_win[lane];
        if (!any) continue;
        const vec score = z + noise((uvec)ids, draw) * draw.temperature;
        for (int lane = 0; lane < LANES; ++lane) {
            if (!may_win[lane] || !(score[lane] > second)) continue;
            const bool wins = score[lane] > best;
            second = wins ? best : score[lane];
            if (wins) best = score[lane], draw.token = first + lane;
        }
    }
    draw.margin = best > second ? (best - second) / draw.temperature : 0.0f;
}

int64_t best_logit(const Draw& draw) {
    int64_t best = 0;
    for (int64_t i = 1; i < draw.vocab_size; ++i)
        if (draw.logits[i] > draw.logits[best] || !(draw.logits[best] == draw.logits[best])) best = i;
    return best;
}

void draw_token(Draw& draw) {
    if (draw.top_k == 0 && draw.top_p >= 1 && draw.min_p <= 0) return draw_best(draw, {-INFINITY, draw.vocab_size});
    draw.token = best_logit(draw);
    draw.margin = INFINITY;
    const float peak = draw.logits[draw.token];
    // Beside an infinite one no other counts, and where all are forbidden none does.
    if (std::isfinite(peak)) draw_best(draw, Truncation(draw, peak).last_kept());
}

}  // namespace

extern "C" {

void draftahead_draw(const void* arguments) {
    const Draws& draws = *static_cast<const Draws*>(arguments);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < draws.num_rows; ++i) draw_token(draws.of[i]);
}

}  // extern "C"
