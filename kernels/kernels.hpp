// The kernels of a round, over rows of float32 logits as they lie in llama.cpp's buffer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "loops.hpp"

namespace specdec {

constexpr size_t kStretch = 16 * kBlock;  // entries that fit the nearest cache
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The lowest id of the largest entry; 0 where all are NaN or -inf.
inline size_t argmax(const float* row, size_t n) {
    float best = kMinusInfinity;
    size_t begin = 0;
    for (size_t i = 0; i < n; i += kStretch) {
        const float m = loops().max(row + i, std::min(kStretch, n - i));
        if (m > best) {
            best = m;
            begin = i;
        }
    }
    if (!(best > kMinusInfinity)) return 0;
    return static_cast<size_t>(std::find(row + begin, row + n, best) - row);
}

struct Sure {
    size_t id;
    double p;  // its share of the softmax; NaN where no entry is above -inf
};

// One pass: each stretch is searched for its maximum, then summed while it is in the nearest cache; a new
// maximum rescales the sum so far.
inline Sure argmax_prob(const float* row, size_t n) {
    float best = kMinusInfinity;
    double sum = 0.0;
    size_t begin = 0;
    for (size_t i = 0; i < n; i += kStretch) {
        const size_t length = std::min(kStretch, n - i);
        const float m = loops().max(row + i, length);
        if (m > best) {
            sum *= std::exp(static_cast<double>(best) - static_cast<double>(m));
            best = m;
            begin = i;
        }
        if (std::isfinite(best)) sum += loops().sum_exp(row + i, length, best);
    }
    if (!(best > kMinusInfinity)) return {0, std::numeric_limits<double>::quiet_NaN()};
    const size_t id = static_cast<size_t>(std::find(row + begin, row + n, best) - row);
    if (std::isinf(best)) return {id, 1.0 / static_cast<double>(std::count(row, row + n, best))};
    return {id, 1.0 / sum};
}

// The ids of the k largest entries, ascending; NaN is left out, so there may be fewer. Among equals at the
// border the lowest ids are taken.
inline void top(const float* row, size_t n, size_t k, std::vector<float>& scratch, std::vector<int32_t>& ids) {
    const size_t blocks = (n + kBlock - 1) / kBlock;
    scratch.resize(2 * blocks);
    float* maxima = scratch.data();
    loops().block_maxima(row, n, maxima);
    float bound = kMinusInfinity;
    if (blocks > k) {
        // k blocks whose maxima reach the bound hold k entries that reach it: no smaller entry is needed.
        float* order = std::copy(maxima, maxima + blocks, maxima + blocks) - blocks;
        std::nth_element(order, order + (k - 1), order + blocks, std::greater<float>());
        bound = order[k - 1];
    }
    size_t found = 0;
    for (size_t b = 0; b < blocks; ++b) {
        if (!(maxima[b] >= bound)) continue;
        const size_t begin = b * kBlock;
        const size_t length = std::min(kBlock, n - begin);
        ids.resize(found + length);
        const size_t more = loops().reach(row + begin, length, bound, ids.data() + found);
        for (size_t i = 0; i < more; ++i) ids[found++] += static_cast<int32_t>(begin);
    }
    ids.resize(found);
    if (found > k) {
        const auto larger = [row](int32_t a, int32_t b) {
            return row[a] != row[b] ? row[a] > row[b] : a < b;
        };
        std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(), larger);
        ids.resize(k);
        std::sort(ids.begin(), ids.end());
    }
}

// max(0, scale * p(x) - q(x)) for each x of p's support, and their sum. Supports are ids with their
// probabilities; those of q may be in any order. Returns the sum.
inline double excess(const int32_t* p_ids, const double* p, size_t n, const int32_t* q_ids, const double* q,
                     size_t m, double scale, double* out) {
    if (std::equal(p_ids, p_ids + n, q_ids, q_ids + m)) {
        for (size_t i = 0; i < n; ++i) out[i] = std::max(0.0, scale * p[i] - q[i]);
    } else {
        std::vector<size_t> order(m);
        for (size_t j = 0; j < m; ++j) order[j] = j;
        std::sort(order.begin(), order.end(), [q_ids](size_t a, size_t b) { return q_ids[a] < q_ids[b]; });
        for (size_t i = 0; i < n; ++i) {
            const auto at = std::lower_bound(order.begin(), order.end(), p_ids[i],
                                             [q_ids](size_t j, int32_t id) { return q_ids[j] < id; });
            const bool found = at != order.end() && q_ids[*at] == p_ids[i];
            out[i] = std::max(0.0, scale * p[i] - (found ? q[*at] : 0.0));
        }
    }
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += out[i];
    return sum;
}

}  // namespace specdec
