// Every kernel against its definition, on random and on awkward rows; built with the sanitizers.
//
//     check [SEED]      exits 0, or says what differed

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include <algorithm>

#include "automaton.hpp"
#include "kernels.hpp"

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect(bool right, const std::string& what) {
    if (right) return;
    std::fprintf(stderr, "check: %s\n", what.c_str());
    std::exit(1);
}

// A row on the heap, with nothing after its last entry.
std::vector<float> random_row(std::mt19937& rng, size_t n) {
    std::normal_distribution<float> normal(0.0f, 4.0f);
    std::uniform_int_distribution<int> kind(0, 9);
    std::vector<float> row(n);
    for (auto& x : row) {
        x = normal(rng);
        switch (kind(rng)) {
            case 0: x = std::round(x); break;  // ties
            case 1: x = kNan; break;
            case 2: x = -kInfinity; break;
            case 3: x = std::numeric_limits<float>::denorm_min(); break;
            default: break;
        }
    }
    if (kind(rng) == 0) row[n / 2] = kInfinity;
    if (kind(rng) == 0) std::fill(row.begin(), row.end(), kNan);
    row.shrink_to_fit();
    return row;
}

void check_argmax(const std::vector<float>& row) {
    size_t best = 0;
    bool any = false;
    for (size_t i = 0; i < row.size(); ++i)
        if (row[i] > (any ? row[best] : -kInfinity)) {
            best = i;
            any = true;
        }
    expect(specdec::argmax(row.data(), row.size()) == best, "argmax of " + std::to_string(row.size()));
    const auto sure = specdec::argmax_prob(row.data(), row.size());
    expect(sure.id == best, "argmax_prob's id");
    if (!any) return expect(std::isnan(sure.p), "argmax_prob of nothing");
    if (std::isinf(row[best])) return expect(sure.p > 0.0 && sure.p <= 1.0, "argmax_prob of infinity");
    double sum = 0.0;
    for (const float x : row)
        if (!std::isnan(x)) sum += std::exp(static_cast<double>(x) - static_cast<double>(row[best]));
    expect(std::abs(sure.p * sum - 1.0) < 1e-5, "argmax_prob's p");
}

void check_top(const std::vector<float>& row, size_t k) {
    std::vector<float> scratch;
    std::vector<int32_t> ids;
    specdec::top(row.data(), row.size(), k, scratch, ids);
    std::vector<float> got;
    for (const int32_t id : ids) got.push_back(row[static_cast<size_t>(id)]);
    std::vector<float> expected;
    for (const float x : row)
        if (!std::isnan(x)) expected.push_back(x);
    std::sort(expected.begin(), expected.end(), std::greater<float>());
    expected.resize(std::min(k, expected.size()));
    std::sort(got.begin(), got.end(), std::greater<float>());
    expect(got == expected, "top " + std::to_string(k) + " of " + std::to_string(row.size()));
    expect(std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<int32_t>()) == ids.end(), "top's order");
}

void check_excess(std::mt19937& rng, size_t n, size_t m) {
    std::uniform_int_distribution<int32_t> id(0, 60);
    std::uniform_real_distribution<double> unit(0.0, 1.0);
    std::vector<int32_t> p_ids, q_ids;
    std::vector<double> p, q;
    const auto fill = [&](std::vector<int32_t>& ids, std::vector<double>& probs, size_t count) {
        while (ids.size() < count) {
            const int32_t candidate = id(rng);
            if (std::find(ids.begin(), ids.end(), candidate) != ids.end()) continue;
            ids.push_back(candidate);
            probs.push_back(unit(rng));
        }
    };
    fill(p_ids, p, n);
    fill(q_ids, q, m);
    std::vector<double> out(n);
    const double sum = specdec::excess(p_ids.data(), p.data(), n, q_ids.data(), q.data(), m, 0.7, out.data());
    double expected_sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
        const auto at = std::find(q_ids.begin(), q_ids.end(), p_ids[i]);
        const double other = at == q_ids.end() ? 0.0 : q[static_cast<size_t>(at - q_ids.begin())];
        const double expected = std::max(0.0, 0.7 * p[i] - other);
        expect(out[i] == expected, "excess");
        expected_sum += expected;
    }
    expect(std::abs(sum - expected_sum) < 1e-12, "excess's sum");
}

// Whether the tokens follow an earlier occurrence of the text's last `length` tokens.
bool follows_a_match(const std::vector<int32_t>& text, size_t length, const int32_t* tokens, size_t count) {
    const auto suffix = text.end() - static_cast<std::ptrdiff_t>(length);
    for (auto end = text.begin() + static_cast<std::ptrdiff_t>(length); end != text.end(); ++end) {
        const auto left = static_cast<size_t>(text.end() - end);
        if (std::equal(suffix, text.end(), end - static_cast<std::ptrdiff_t>(length)) && count <= left &&
            std::equal(tokens, tokens + count, end))
            return true;
    }
    return false;
}

void check_automaton(std::mt19937& rng, size_t capacity) {
    std::uniform_int_distribution<int32_t> token(0, 3);
    specdec::SuffixAutomaton automaton(capacity);
    std::vector<int32_t> text;
    for (size_t i = 0; i < 300; ++i) {
        const int32_t next = token(rng);
        if (text.size() == capacity) text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>((text.size() + 1) / 2));
        text.push_back(next);
        automaton.extend(&next, 1);
        expect(automaton.size() == text.size(), "the automaton's size");
        const size_t n = text.size();
        size_t longest = 0;
        for (size_t end = 1; end < n; ++end) {
            size_t length = 0;
            while (length < end && text[end - 1 - length] == text[n - 1 - length]) ++length;
            longest = std::max(longest, length);
        }
        expect(automaton.match_length() == longest, "the automaton's match");
        expect(0 <= automaton.match_kept() && automaton.match_kept() <= automaton.match_tried(), "what was kept");
        const auto [tokens, count] = automaton.continuation(5);
        if (longest == 0) {
            expect(count == 0, "a continuation of nothing");
            continue;
        }
        expect(count >= 1 && count <= 5, "the continuation's length");
        expect(follows_a_match(text, longest, tokens, count), "the continuation");
    }
    const std::vector<int32_t> query = {0, 1, 2, 3, 0, 1, 9, 2, 1};
    const auto found = automaton.find(query.data(), query.size(), 5);
    const auto occurs = [&](size_t n) {
        return std::search(text.begin(), text.end(), query.end() - static_cast<std::ptrdiff_t>(n), query.end()) != text.end();
    };
    expect(found.count <= 5 && (found.length == 0 || occurs(found.length)), "what is found");
    expect(found.length == query.size() || !occurs(found.length + 1), "nothing longer is found");
    automaton.reset();
    expect(automaton.size() == 0 && automaton.match_length() == 0, "the automaton after reset");
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned seed = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 1u;
    std::mt19937 rng(seed);
    for (const size_t n : {1u, 2u, 31u, 32u, 33u, 255u, 256u, 257u, 511u, 2000u, 20000u}) {
        for (int repeat = 0; repeat < 20; ++repeat) {
            const auto row = random_row(rng, n);
            check_argmax(row);
            for (const size_t k : {1u, 2u, 7u, 40u, 256u, 5000u}) check_top(row, k);
        }
    }
    for (const size_t n : {0u, 1u, 5u, 40u})
        for (const size_t m : {0u, 1u, 5u, 40u}) check_excess(rng, n, m);
    for (const size_t capacity : {2u, 3u, 17u, 1000u}) check_automaton(rng, capacity);
    std::printf("check: all kernels agree with their definitions (seed %u)\n", seed);
    return 0;
}
