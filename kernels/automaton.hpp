// A suffix automaton over token ids (Blumer et al. 1985), grown online: the longest end of a text that
// occurred before, in constant amortised time for each token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace specdec {

class SuffixAutomaton {
  public:
    // capacity: the most tokens remembered; past it the older half is forgotten.
    explicit SuffixAutomaton(size_t capacity) : capacity_(std::max<size_t>(capacity, 2)) { reset(); }

    void reset() {
        text_.clear();
        clear_states();
    }

    void extend(const int32_t* tokens, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            if (text_.size() == capacity_) forget();
            text_.push_back(tokens[i]);
            append(tokens[i]);
        }
    }

    size_t size() const { return text_.size(); }

    // The length of the longest end of the text that also occurs earlier in it.
    size_t match_length() const { return match_length_; }

    // What followed that earlier occurrence, at most `limit` tokens.
    std::pair<const int32_t*, size_t> continuation(size_t limit) const {
        if (match_length_ == 0) return {nullptr, 0};
        return {text_.data() + match_end_, std::min(limit, text_.size() - match_end_)};
    }

    // How often this very match was the longest one before, and how often that went on as at its last time.
    int32_t match_tried() const { return states_[static_cast<size_t>(match_state_)].tried; }
    int32_t match_kept() const { return states_[static_cast<size_t>(match_state_)].kept; }

    // The longest end of another text, of n tokens, that occurs in this one: its length, and what followed
    // there, at most `limit` tokens.
    struct Found {
        size_t length;
        const int32_t* tokens;
        size_t count;
    };
    Found find(const int32_t* tokens, size_t n, size_t limit) {
        int32_t state = 0;
        size_t length = 0;
        for (size_t i = 0; i < n; ++i) {
            const int32_t* target = find(state, tokens[i]);
            while (target == nullptr && state != 0) {
                state = at(state).link;
                length = static_cast<size_t>(at(state).length);
                target = find(state, tokens[i]);
            }
            if (target == nullptr) continue;
            state = *target;
            ++length;
        }
        if (length == 0) return {0, nullptr, 0};
        const auto end = static_cast<size_t>(at(state).end);
        return {length, text_.data() + end, std::min(limit, text_.size() - end)};
    }

  private:
    // Most states have one edge, which they hold themselves; further ones are in a hash table.
    struct State {
        int32_t length;      // of the longest string that ends here
        int32_t link;        // the longest proper suffix that ends elsewhere too
        int32_t end;         // one past where it last was seen to end
        int32_t token;       // of the first edge
        int32_t target;      // of the first edge, kNone before there is one
        int32_t other_edges; // the list through Edge::next
        int32_t tried;       // how often it was the match,
        int32_t kept;        // and how often its continuation came again
    };
    struct Edge {
        int32_t state;
        int32_t token;
        int32_t target;
        int32_t next;
    };
    static constexpr int32_t kNone = -1;

    void clear_states() {
        states_.assign(1, {0, kNone, 0, 0, kNone, kNone, 0, 0});
        edges_.clear();
        table_.assign(64, kNone);
        last_ = 0;
        match_state_ = 0;
        match_length_ = 0;
        match_end_ = 0;
    }

    void forget() {
        text_.erase(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>((text_.size() + 1) / 2));
        clear_states();
        // The states are rebuilt for the half that is kept, so each token is appended twice at most.
        std::vector<int32_t> kept;
        kept.swap(text_);
        for (const int32_t token : kept) {
            text_.push_back(token);
            append(token);
        }
    }

    void append(int32_t token) {
        judge_match(token);
        const auto end = static_cast<int32_t>(text_.size());
        const int32_t fresh = new_state(at(last_).length + 1, 0, end);
        int32_t p = last_;
        const int32_t* target = nullptr;
        while (p != kNone && (target = find(p, token)) == nullptr) {
            add_edge(p, token, fresh);
            p = at(p).link;
        }
        if (p != kNone) {
            const int32_t q = *target;
            at(fresh).link = at(q).length == at(p).length + 1 ? q : split(p, q, token);
        }
        last_ = fresh;
        note_match(end);
    }

    // Makes a state of its own for the shorter strings that end in q and are reached from p.
    int32_t split(int32_t p, int32_t q, int32_t token) {
        const int32_t clone = new_state(at(p).length + 1, at(q).link, at(q).end);
        add_edge(clone, at(q).token, at(q).target);  // q is not the last state, so it has one
        for (int32_t e = at(q).other_edges; e != kNone; e = edges_[static_cast<size_t>(e)].next) {
            const Edge edge = edges_[static_cast<size_t>(e)];
            add_edge(clone, edge.token, edge.target);
        }
        for (; p != kNone; p = at(p).link) {
            int32_t* target = find(p, token);
            if (target == nullptr || *target != q) break;
            *target = clone;
        }
        at(q).link = clone;
        at(clone).tried = at(q).tried;
        at(clone).kept = at(q).kept;
        return clone;
    }

    // The token that follows a match, which may be what followed it the last time.
    void judge_match(int32_t token) {
        if (match_state_ == 0) return;
        State& match = at(match_state_);
        ++match.tried;
        match.kept += text_[match_end_] == token;
    }

    // The suffix link of the whole text is its longest end that occurred before.
    void note_match(int32_t end) {
        const int32_t match = at(last_).link;
        match_length_ = match == kNone ? 0 : static_cast<size_t>(at(match).length);
        match_end_ = match == kNone ? 0 : static_cast<size_t>(at(match).end);
        match_state_ = std::max(match, 0);
        if (match > 0) at(match).end = end;
    }

    State& at(int32_t state) { return states_[static_cast<size_t>(state)]; }

    int32_t new_state(int32_t length, int32_t link, int32_t end) {
        states_.push_back({length, link, end, 0, kNone, kNone, 0, 0});
        return static_cast<int32_t>(states_.size() - 1);
    }

    static size_t hash(int32_t state, int32_t token) {
        uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32) | static_cast<uint32_t>(token);
        key *= 0x9E3779B97F4A7C15ull;
        return static_cast<size_t>(key ^ (key >> 29));
    }

    // Where the edge of this token leads, nullptr for none; valid until a state or an edge is added.
    int32_t* find(int32_t state, int32_t token) {
        State& s = at(state);
        if (s.target != kNone && s.token == token) return &s.target;
        if (s.other_edges == kNone) return nullptr;
        const size_t mask = table_.size() - 1;
        for (size_t slot = hash(state, token) & mask;; slot = (slot + 1) & mask) {
            const int32_t e = table_[slot];
            if (e == kNone) return nullptr;
            Edge& edge = edges_[static_cast<size_t>(e)];
            if (edge.state == state && edge.token == token) return &edge.target;
        }
    }

    void add_edge(int32_t state, int32_t token, int32_t target) {
        State& s = at(state);
        if (s.target == kNone) {
            s.token = token;
            s.target = target;
            return;
        }
        edges_.push_back({state, token, target, s.other_edges});
        const auto e = static_cast<int32_t>(edges_.size() - 1);
        s.other_edges = e;
        if (2 * edges_.size() > table_.size()) {
            table_.assign(2 * table_.size(), kNone);
            for (size_t i = 0; i < edges_.size(); ++i) place(static_cast<int32_t>(i));
        } else {
            place(e);
        }
    }

    void place(int32_t e) {
        const Edge& edge = edges_[static_cast<size_t>(e)];
        const size_t mask = table_.size() - 1;
        size_t slot = hash(edge.state, edge.token) & mask;
        while (table_[slot] != kNone) slot = (slot + 1) & mask;
        table_[slot] = e;
    }

    size_t capacity_;
    std::vector<int32_t> text_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_;
    int32_t last_ = 0;
    int32_t match_state_ = 0;  // of the longest end that occurred before; 0 for none
    size_t match_length_ = 0;
    size_t match_end_ = 0;
};

}  // namespace specdec
