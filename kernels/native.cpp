// Python's view of the kernels: arrays are checked and read where they lie, the GIL is released.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "automaton.hpp"
#include "kernels.hpp"

namespace nb = nanobind;

namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;

std::string described(const Array& array) {
    static const char* kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
    const auto code = array.dtype().code;
    std::string text = code < 7 ? kinds[code] : "other";
    if (code != 6) text += std::to_string(array.dtype().bits);
    text += " [";
    for (size_t i = 0; i < array.ndim(); ++i) text += (i ? ", " : "") + std::to_string(array.shape(i));
    return text + "]";
}

bool contiguous(const Array& array) {
    if (array.size() == 0) return true;
    int64_t expected = 1;
    for (size_t i = array.ndim(); i-- > 0;) {
        if (array.shape(i) > 1 && array.stride(i) != expected) return false;
        expected *= static_cast<int64_t>(array.shape(i));
    }
    return true;
}

// The array's data, if it is of type T, contiguous and of this many dimensions; else a ValueError.
template <typename T>
const T* data(const Array& array, size_t ndim, const char* wanted) {
    if (array.dtype() != nb::dtype<T>() || array.ndim() != ndim)
        throw nb::value_error((std::string(wanted) + ", got " + described(array)).c_str());
    if (!contiguous(array)) throw nb::value_error((std::string(wanted) + ", contiguous").c_str());
    return static_cast<const T*>(array.data());
}

const float* row_data(const Array& row, const char* wanted) {
    const float* x = data<float>(row, 1, wanted);
    if (row.shape(0) == 0) throw nb::value_error((std::string(wanted) + ", got an empty row").c_str());
    return x;
}

// Hands a vector over to numpy without copying it.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return {owned->data(), {owned->size()}, owner};
}

auto argmax(const Array& rows) {
    const char* wanted = "argmax needs float32 [n, vocab]";
    const float* x = data<float>(rows, 2, wanted);
    const size_t n = rows.shape(0);
    const size_t width = rows.shape(1);
    if (width == 0) throw nb::value_error((std::string(wanted) + ", got " + described(rows)).c_str());
    std::vector<int32_t> ids(n);
    {
        nb::gil_scoped_release released;
        for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(specdec::argmax(x + i * width, width));
    }
    return to_numpy(std::move(ids));
}

auto argmax_prob(const Array& row) {
    const float* x = row_data(row, "argmax_prob needs float32 [vocab]");
    specdec::Sure sure{};
    {
        nb::gil_scoped_release released;
        sure = specdec::argmax_prob(x, row.shape(0));
    }
    return nb::make_tuple(sure.id, sure.p);
}

auto top(const Array& row, int64_t k, const Array& extra_ids) {
    const float* x = row_data(row, "top needs float32 [vocab]");
    const size_t n = row.shape(0);
    const int32_t* extra = data<int32_t>(extra_ids, 1, "top needs int32 [m] extra ids");
    if (k < 1) throw nb::value_error(("top needs k >= 1, got " + std::to_string(k)).c_str());
    for (size_t i = 0; i < extra_ids.shape(0); ++i)
        if (extra[i] < 0 || static_cast<size_t>(extra[i]) >= n)
            throw nb::value_error(
                ("top needs extra ids within the row of " + std::to_string(n) + ", got " + std::to_string(extra[i]))
                    .c_str());
    std::vector<int32_t> ids;
    std::vector<float> logits;
    {
        nb::gil_scoped_release released;
        static thread_local std::vector<float> scratch;
        specdec::top(x, n, static_cast<size_t>(k), scratch, ids);
        if (extra_ids.shape(0) > 0) {
            for (size_t i = 0; i < extra_ids.shape(0); ++i)
                if (!std::isnan(x[extra[i]])) ids.push_back(extra[i]);
            std::sort(ids.begin(), ids.end());
            ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        }
        logits.resize(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) logits[i] = x[ids[i]];
    }
    return nb::make_tuple(to_numpy(std::move(ids)), to_numpy(std::move(logits)));
}

struct Support {
    const int32_t* ids;
    const double* probs;
    size_t n;
};

Support support(const Array& ids, const Array& probs) {
    const char* wanted = "a support needs int32 [n] ids and float64 [n] probabilities";
    const Support s{data<int32_t>(ids, 1, wanted), data<double>(probs, 1, wanted), ids.shape(0)};
    if (probs.shape(0) != s.n) throw nb::value_error((std::string(wanted) + ", of one length").c_str());
    return s;
}

auto excess(const Array& p_ids, const Array& p, const Array& q_ids, const Array& q, double scale) {
    const Support target = support(p_ids, p);
    const Support drafter = support(q_ids, q);
    std::vector<double> out(target.n);
    double sum = 0.0;
    {
        nb::gil_scoped_release released;
        sum = specdec::excess(target.ids, target.probs, target.n, drafter.ids, drafter.probs, drafter.n, scale,
                              out.data());
    }
    return nb::make_tuple(to_numpy(std::move(out)), sum);
}

auto residual(const Array& p_ids, const Array& p, const Array& q_ids, const Array& q, double scale) {
    const Support target = support(p_ids, p);
    const Support drafter = support(q_ids, q);
    std::vector<int32_t> ids;
    std::vector<double> probs(target.n);
    {
        nb::gil_scoped_release released;
        const double sum = specdec::excess(target.ids, target.probs, target.n, drafter.ids, drafter.probs,
                                           drafter.n, scale, probs.data());
        size_t kept = 0;
        for (size_t i = 0; i < target.n; ++i)
            if (probs[i] > 0.0) {
                ids.push_back(target.ids[i]);
                probs[kept++] = probs[i] / sum;
            }
        probs.resize(kept);
    }
    return nb::make_tuple(to_numpy(std::move(ids)), to_numpy(std::move(probs)));
}

void extend(specdec::SuffixAutomaton& automaton, const Array& tokens) {
    const int32_t* x = data<int32_t>(tokens, 1, "extend needs int32 [n] tokens");
    nb::gil_scoped_release released;
    automaton.extend(x, tokens.shape(0));
}

auto continuation(const specdec::SuffixAutomaton& automaton, int64_t limit) {
    if (limit < 0) throw nb::value_error("continuation needs a limit of at least 0");
    const auto [tokens, n] = automaton.continuation(static_cast<size_t>(limit));
    return to_numpy(std::vector<int32_t>(tokens, tokens + n));
}

auto find(specdec::SuffixAutomaton& automaton, const Array& tokens, int64_t limit) {
    if (limit < 0) throw nb::value_error("find needs a limit of at least 0");
    const int32_t* x = data<int32_t>(tokens, 1, "find needs int32 [n] tokens");
    const auto found = automaton.find(x, tokens.shape(0), static_cast<size_t>(limit));
    return nb::make_tuple(found.length, to_numpy(std::vector<int32_t>(found.tokens, found.tokens + found.count)));
}

specdec::SuffixAutomaton* make_automaton(int64_t capacity) {
    if (capacity < 2 || capacity > (int64_t{1} << 28))
        throw nb::value_error("a suffix automaton needs a capacity of 2 to 2**28 tokens");
    return new specdec::SuffixAutomaton(static_cast<size_t>(capacity));
}

}  // namespace

NB_MODULE(native, m) {
    m.def("argmax", &argmax, nb::arg("rows"));
    m.def("argmax_prob", &argmax_prob, nb::arg("row"));
    m.def("top", &top, nb::arg("row"), nb::arg("k"), nb::arg("extra_ids"));
    m.def("excess", &excess, nb::arg("p_ids"), nb::arg("p"), nb::arg("q_ids"), nb::arg("q"), nb::arg("scale"));
    m.def("residual", &residual, nb::arg("p_ids"), nb::arg("p"), nb::arg("q_ids"), nb::arg("q"), nb::arg("scale"));
    nb::class_<specdec::SuffixAutomaton>(m, "SuffixAutomaton")
        .def(nb::new_(&make_automaton), nb::arg("capacity") = 1 << 18)
        .def("extend", &extend, nb::arg("tokens"))
        .def("continuation", &continuation, nb::arg("limit"))
        .def("find", &find, nb::arg("tokens"), nb::arg("limit"))
        .def("reset", &specdec::SuffixAutomaton::reset)
        .def("__len__", &specdec::SuffixAutomaton::size)
        .def_prop_ro("match_length", &specdec::SuffixAutomaton::match_length)
        .def_prop_ro("match_tried", &specdec::SuffixAutomaton::match_tried)
        .def_prop_ro("match_kept", &specdec::SuffixAutomaton::match_kept);
}
