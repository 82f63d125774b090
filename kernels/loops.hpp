// The loops that read whole rows. They are compiled once for each kind of processor and chosen at run time,
// so a build made on a new machine runs on an old one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specdec {

constexpr std::size_t kBlock = 512;  // entries that share one maximum

// NaN never wins: it loses every comparison, and counts as nothing in a sum.
struct Loops {
    const char* name;
    // The largest of n entries; -inf where all are NaN.
    float (*max)(const float* x, std::size_t n);
    // The maximum of each kBlock entries, the last one of what is left over; returns how many there are.
    std::size_t (*block_maxima)(const float* x, std::size_t n, float* maxima);
    // The sum of exp(x - best) over a few thousand entries; best is finite and no entry is larger.
    double (*sum_exp)(const float* x, std::size_t n, float best);
    // Writes the indices of entries that reach the bound, and returns how many; room for n is needed.
    std::size_t (*reach)(const float* x, std::size_t n, float bound, std::int32_t* indices);
};

namespace baseline { extern const Loops loops; }
#if defined(SPECDEC_X86)
namespace avx2 { extern const Loops loops; }
namespace avx512 { extern const Loops loops; }
#endif

// Those for the processor this runs on.
inline const Loops& loops() {
#if defined(SPECDEC_X86)
    static const Loops& chosen = [] () -> const Loops& {
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return avx512::loops;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::loops;
        return baseline::loops;
    }();
    return chosen;
#else
    return baseline::loops;
#endif
}

}  // namespace specdec
