// Compiled with -DSPECDEC_LOOPS=NAME and the flags of that kind of processor. Nothing of the standard library
// is instantiated here: the linker keeps one copy of each inline function, and it could be this one.

#include "loops.hpp"

#ifndef SPECDEC_LOOPS
#define SPECDEC_LOOPS baseline
#endif
#define SPECDEC_STRING(x) #x
#define SPECDEC_NAME(x) SPECDEC_STRING(x)

namespace {

using std::int32_t;
using std::size_t;

constexpr float kMinusInfinity = -__builtin_huge_valf();
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLowest = -126.0f;       // what is less than 2^-126, or NaN, counts as 2^-126: as nothing
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added and taken away, it rounds to an integer

#if defined(__GNUC__)

#if defined(__AVX512F__)
#define SPECDEC_BYTES 64
#elif defined(__AVX__)
#define SPECDEC_BYTES 32
#else
#define SPECDEC_BYTES 16
#endif
// Vectors of the compiler's own, as wide as the registers; rows may lie at any float's address.
typedef float Floats __attribute__((vector_size(SPECDEC_BYTES)));
typedef float Unaligned __attribute__((vector_size(SPECDEC_BYTES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(SPECDEC_BYTES)));
constexpr size_t kWidth = SPECDEC_BYTES / sizeof(float);
constexpr size_t kVectors = 4;  // results kept apart, so that one need not wait for another
constexpr size_t kStride = kWidth * kVectors;

#define SPECDEC_LOAD(p) (*reinterpret_cast<const Unaligned*>(p))

inline float largest(const Floats (&best)[kVectors]) {
    const Floats a = best[0] > best[1] ? best[0] : best[1];
    const Floats b = best[2] > best[3] ? best[2] : best[3];
    const Floats c = a > b ? a : b;
    float lane[kWidth];
    __builtin_memcpy(lane, &c, sizeof lane);
    for (size_t width = kWidth / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; ++j) lane[j] = lane[j] > lane[j + width] ? lane[j] : lane[j + width];
    return lane[0];
}

float max(const float* x, size_t n) {
    const Floats low = Floats{} + kMinusInfinity;
    Floats best[kVectors] = {low, low, low, low};
    size_t i = 0;
    for (; i + kStride <= n; i += kStride)
        for (size_t v = 0; v < kVectors; ++v) {
            const Floats y = SPECDEC_LOAD(x + i + v * kWidth);
            best[v] = y > best[v] ? y : best[v];
        }
    float m = largest(best);
    for (; i < n; ++i) m = x[i] > m ? x[i] : m;
    return m;
}

// 2^y for y in [-126, 0]: its integer part goes into the exponent, the rest through a polynomial (minimax on
// [-1/2, 1/2], to 4e-6 of the value).
inline Floats exp2_vector(Floats y) {
    const Floats shifted = y + kRounder;
    const Floats f = y - (shifted - kRounder);
    Floats p = Floats{} + 9.57010059e-03f;
    p = p * f + 5.59178602e-02f;
    p = p * f + 2.40247449e-01f;
    p = p * f + 6.93121815e-01f;
    p = p * f + 9.99999261e-01f;
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(shifted) << 23));
}

double sum_exp(const float* x, size_t n, float best) {
    const volatile float lowest = kLowest;  // from a constant GCC makes a compare and a blend, not one max
    const Floats low = Floats{} + lowest;
    Floats sum[2] = {};
    size_t i = 0;
    for (; i + 2 * kWidth <= n; i += 2 * kWidth)
        for (size_t v = 0; v < 2; ++v) {
            const Floats y = (SPECDEC_LOAD(x + i + v * kWidth) - best) * kLog2E;
            sum[v] += exp2_vector(y > low ? y : low);
        }
    const Floats all = sum[0] + sum[1];
    double total = 0.0;
    for (size_t j = 0; j < kWidth; ++j) total += static_cast<double>(all[j]);
    for (; i < n; ++i) {
        const float y = (x[i] - best) * kLog2E;
        total += static_cast<double>(exp2_vector(Floats{} + (y > kLowest ? y : kLowest))[0]);
    }
    return total;
}

// Whether any of kStride entries reaches the bound.
inline bool any_reaches(const float* x, float bound) {
    Ints any = {};
    for (size_t v = 0; v < kVectors; ++v) any |= SPECDEC_LOAD(x + v * kWidth) >= bound;
    typedef long long Wide __attribute__((vector_size(SPECDEC_BYTES)));
    const Wide wide = reinterpret_cast<Wide>(any);
    long long folded = 0;
    for (size_t j = 0; j < kWidth / 2; ++j) folded |= wide[j];
    return folded != 0;
}

#else  // a compiler without such vectors: plain loops, which it may vectorise

constexpr size_t kStride = 32;

float max(const float* x, size_t n) {
    float m = kMinusInfinity;
    for (size_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
    return m;
}

double sum_exp(const float* x, size_t n, float best) {
    double total = 0.0;
    for (size_t i = 0; i < n; ++i) {
        const float y = (x[i] - best) * kLog2E;
        if (y > kLowest) total += static_cast<double>(__builtin_exp2f(y));
    }
    return total;
}

inline bool any_reaches(const float* x, float bound) {
    bool any = false;
    for (size_t j = 0; j < kStride; ++j) any |= x[j] >= bound;
    return any;
}

#endif

size_t block_maxima(const float* x, size_t n, float* maxima) {
    size_t count = 0;
    for (size_t i = 0; i < n; i += specdec::kBlock)
        maxima[count++] = max(x + i, n - i > specdec::kBlock ? specdec::kBlock : n - i);
    return count;
}

// Few entries reach the bound, so stretches without any are stepped over.
size_t reach(const float* x, size_t n, float bound, int32_t* indices) {
    size_t found = 0;
    size_t i = 0;
    while (i < n) {
        const size_t stop = n - i > kStride ? i + kStride : n;
        if (stop - i == kStride && !any_reaches(x + i, bound)) {
            i = stop;
            continue;
        }
        for (; i < stop; ++i)
            if (x[i] >= bound) indices[found++] = static_cast<int32_t>(i);
    }
    return found;
}

}  // namespace

namespace specdec {
namespace SPECDEC_LOOPS {
extern const Loops loops;
const Loops loops = {SPECDEC_NAME(SPECDEC_LOOPS), max, block_maxima, sum_exp, reach};
}  // namespace SPECDEC_LOOPS
}  // namespace specdec
