// routing.h: a model of routed rows, token by token, and of the numbers in them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "messages.cuh"
#include "operations.h"
#include "routed.cuh"

namespace sim {

// ------------------------------------------------------------------------------------ numbers

// Codes of element types.
enum Type : u32 { BYTES = 0, OF_F32 = 2, OF_F16, OF_BF16, OF_E4M3, OF_E5M2 };

struct Format {
  int bits, mantissa, bias;
  bool infinite;

  static Format of(u32 type) {
    return type == OF_F16 ? Format{16, 10, 15, true} : type == OF_BF16 ? Format{16, 7, 127, true} : type == OF_E4M3 ? Format{8, 3, 7, false} : Format{8, 2, 15, true};
  }
};

inline u32 size_of(u32 type) { return type == OF_F32 ? 4 : type == OF_F16 || type == OF_BF16 ? 2 : 1; }

inline float decode(u32 type, u32 code) {
  if (type == OF_F32) return __builtin_bit_cast(float, code);
  const Format f = Format::of(type);
  const u32 sign = code >> (f.bits - 1), magnitude = code & ((1u << (f.bits - 1)) - 1);
  const int exponent = (int)(magnitude >> f.mantissa);
  const u32 fraction = magnitude & ((1u << f.mantissa) - 1);
  double value = exponent == 0 ? std::ldexp(fraction, 1 - f.bias - f.mantissa) : std::ldexp((1u << f.mantissa) + fraction, exponent - f.bias - f.mantissa);
  if (f.infinite && exponent == (1 << (f.bits - 1 - f.mantissa)) - 1) value = fraction == 0 ? INFINITY : NAN;
  if (!f.infinite && magnitude == (1u << (f.bits - 1)) - 1) value = NAN;
  return (float)(sign ? -value : value);
}

inline u32 encode(u32 type, float number) {
  if (type == OF_F32) return std::isnan(number) ? 0x7fffffff : __builtin_bit_cast(u32, number);
  const Format f = Format::of(type);
  const u32 none = (1u << (f.bits - 1)) - 1, sign = std::signbit(number) ? 1u << (f.bits - 1) : 0;
  const u32 over = f.infinite ? (none >> f.mantissa << f.mantissa) | sign : none;
  if (std::isnan(number)) return none;
  if (std::isinf(number)) return over;
  const double value = std::fabs((double)number);
  const int lowest = 1 - f.bias, exponent = value == 0 ? lowest : std::max(std::ilogb(value), lowest);
  // A carry out of the fraction is one into the exponent.
  const u32 steps = (u32)std::nearbyint(std::ldexp(value, f.mantissa - exponent));
  const u32 code = ((u32)(exponent - lowest) << f.mantissa) + steps;
  return (f.infinite ? code >= (over & ~sign) : code >= none) ? over : code | sign;
}

inline u32 load_code(u32 type, const u8* at) {
  u32 code = 0;
  std::memcpy(&code, at, size_of(type));
  return code;
}
inline void store_code(u32 type, u8* at, u32 code) { std::memcpy(at, &code, size_of(type)); }

// Mostly numbers whose sums depend on the order; now and then what is none.
inline u32 any_code(Random& random, u32 type) {
  if (random.one_in(60)) return (u32)random.next() & (type == OF_F32 ? ~0u : (1u << 8 * size_of(type)) - 1);
  const float value = std::ldexp((float)(i32)random.next() / 2147483648.0f, (int)random.below(9) - 4);
  return encode(type, value);
}

// ------------------------------------------------------------------------------------- routes

struct RoutingShape {
  u32 world = 1, experts = 1, each = 1, layout = COMPACT, drop = 0;
  u64 max_tokens = 0, rows = 0, capacity = 0;

  u64 first(u32 rank) const { return (u64)rank * experts / world; }
  u32 owner(u64 expert) const {
    u32 rank = 0;
    while (first(rank + 1) <= expert) rank++;
    return rank;
  }
  u32 groups() const { return layout == RANK_MAJOR ? world : (experts + world - 1) / world; }
  u64 record_bytes() const { return sizeof(symmem::Record) + (layout == RANK_MAJOR ? each * 8 : 0); }
};

// What all ranks give one dispatch.
struct Choosing {
  std::vector<u64> rows;                  // of the sources
  std::vector<i64> count;                 // tokens, by a word or not
  std::vector<std::vector<i64>> choices;  // of all rows
  std::vector<std::vector<float>> weights;

  Choosing(Random& random, const RoutingShape& s, const std::vector<u64>& rows, bool has_count, bool is_wrong);
};

struct Row {
  bool is_used = false;
  u32 source = 0, choice = 0;
  u64 token = 0, from = 0, next = ~0ull;
};

constexpr u64 NOWHERE = ~0ull;

// What must become of it.
struct Routes {
  u64 rank = 0, what = 0, value = 0, limit = 0;  // the verdict
  std::vector<u64> tokens, dropped;
  std::vector<std::vector<Row>> received;        // by target and row
  std::vector<std::vector<i64>> groups;
  std::vector<std::vector<u64>> places;          // by source and choice

  static Routes of(const RoutingShape& s, const Choosing& c, u32 choice_bytes);
};

inline Choosing::Choosing(Random& random, const RoutingShape& s, const std::vector<u64>& rows, bool has_count, bool is_wrong) : rows(rows) {
  const u32 culprit = random.below(s.world), mode = random.below(4), favourite = random.below(s.experts);
  for (u32 r = 0; r < s.world; r++) {
    count.push_back(has_count ? (i64)random.below((u32)rows[r] + 1) : (i64)rows[r]);
    auto& mine = choices.emplace_back();
    auto& theirs = weights.emplace_back();
    for (u64 i = 0; i < rows[r] * s.each; i++) {
      // All for one expert, few for any, or the same.
      const bool none = random.one_in(mode == 0 ? 2 : 8);
      mine.push_back(none ? -1 : (i64)(mode == 1 && !random.one_in(4) ? favourite : random.below(s.experts)));
      theirs.push_back(std::ldexp((float)(i32)random.next() / 2147483648.0f, (int)random.below(5) - 2));
    }
    if (!is_wrong || (r != culprit && !random.one_in(3))) continue;
    if (has_count && random.one_in(2)) count[r] = random.of<i64>({-1, (i64)rows[r] + 1, 1ll << 40});
    else if (!mine.empty()) mine[random.below((u32)mine.size())] = random.of<i64>({-2, (i64)s.experts, (i64)s.experts + 5, -100});
  }
}

inline Routes Routes::of(const RoutingShape& s, const Choosing& c, u32) {
  Routes e;
  std::vector<u64> tokens(s.world);
  for (u32 r = 0; r < s.world; r++) {
    const bool is_out = c.count[r] < 0 || (u64)c.count[r] > c.rows[r];
    tokens[r] = is_out ? c.rows[r] : (u64)c.count[r];
    if (e.rank != 0) continue;
    if (is_out) {
      e.rank = r + 1, e.what = 6, e.value = (u64)c.count[r], e.limit = c.rows[r];
      continue;
    }
    for (u64 i = 0; i < tokens[r] * s.each && e.rank == 0; i++)
      if (c.choices[r][i] < -1 || c.choices[r][i] >= (i64)s.experts) e.rank = r + 1, e.what = 5 | i << 8, e.value = (u64)c.choices[r][i], e.limit = s.experts;
  }
  e.tokens.resize(s.world), e.dropped.resize(s.world);
  for (u32 r = 0; r < s.world; r++) {
    e.received.emplace_back(s.capacity);
    e.groups.emplace_back(2 * s.groups());
    e.places.emplace_back(c.rows[r] * s.each, NOWHERE);
  }
  if (e.rank != 0) return e;
  auto put = [&](u32 target, u64 row, u64 end, u32 source, u64 token, u32 k) {
    const bool fits = row < end;
    if (!fits) return e.dropped[target]++, false;
    e.places[source][token * s.each + k] = (u64)target << 48 | row;
    e.received[target][row] = Row{true, source, k, token, row};
    return true;
  };
  for (u32 target = 0; target < s.world; target++) {
    auto& groups = e.groups[target];
    if (s.layout == RANK_MAJOR) {
      for (u32 source = 0; source < s.world; source++) {
        u64 row = source * s.max_tokens;
        groups[s.world + source] = (i64)row;
        for (u64 token = 0; token < tokens[source]; token++) {
          bool goes = false;
          for (u32 k = 0; k < s.each; k++) {
            const i64 expert = c.choices[source][token * s.each + k];
            if (expert < 0 || s.owner((u64)expert) != target) continue;
            if (!goes) put(target, row, ~0ull, source, token, k);
            else e.places[source][token * s.each + k] = (u64)target << 48 | row;
            goes = true;
          }
          row += goes;
        }
        groups[source] = (i64)(row - source * s.max_tokens);
      }
      continue;
    }
    u64 at = 0, over = 0;
    const u64 room = s.layout == PADDED ? s.rows : s.capacity;
    for (u64 expert = s.first(target); expert < s.first(target + 1); expert++) {
      const u64 group = expert - s.first(target);
      if (s.layout == PADDED) at = group * s.rows;
      const u64 start = at, end = s.layout == PADDED ? start + s.rows : s.capacity;
      groups[s.groups() + group] = (i64)start;
      for (u32 source = 0; source < s.world; source++)
        for (u64 i = 0; i < tokens[source] * s.each; i++)
          if (c.choices[source][i] == (i64)expert) groups[group] += put(target, at++, end, source, i / s.each, (u32)(i % s.each));
      if (const u64 needed = s.layout == PADDED ? at - start : at; at != start && needed > room) over = std::max(over, needed);
      if (s.layout == COMPACT && s.rows != 0)
        while (at == start || (at - start) % s.rows != 0) at++;
    }
    if (over != 0 && !s.drop && e.rank == 0) e.rank = target + 1, e.what = 1, e.value = over, e.limit = room;
  }
  if (e.rank != 0) {
    const u64 rank = e.rank, what = e.what, value = e.value, limit = e.limit;
    e = Routes{};
    e.rank = rank, e.what = what, e.value = value, e.limit = limit;
    e.tokens.resize(s.world), e.dropped.resize(s.world);
    for (u32 r = 0; r < s.world; r++) {
      e.received.emplace_back(s.capacity);
      e.groups.emplace_back(2 * s.groups());
      e.places.emplace_back(c.rows[r] * s.each, NOWHERE);
    }
    return e;
  }
  e.tokens = tokens;
  // A token's payload lies where the first of its choices there went, from where it is copied to the others; a rank
  // has stored its own at all of them.
  for (u32 target = 0; target < s.world; target++)
    for (Row& row : e.received[target]) {
      if (!row.is_used) continue;
      for (u32 k = s.each; k-- != 0;) {
        const u64 place = e.places[row.source][row.token * s.each + k];
        if (place == NOWHERE || place >> 48 != target) continue;
        row.from = place & 0xffffffffffff;
        if (k > row.choice && s.layout != RANK_MAJOR && row.source != target) row.next = row.from;
      }
    }
  return e;
}

// ------------------------------------------------------------------------------------ records

// What a row's record must be.
inline std::vector<u64> record_of(const RoutingShape& s, const Choosing& c, const Row& row, u32 target, bool weighted) {
  auto weight = [&](u32 k) { return (u64)__builtin_bit_cast(u32, weighted ? c.weights[row.source][row.token * s.each + k] : 1.0f) << 32; };
  std::vector<u64> words{row.source | row.token << 32, row.choice | weight(row.choice), row.from, row.next};
  for (u32 k = 0; s.layout == RANK_MAJOR && k < s.each; k++) {
    const i64 expert = c.choices[row.source][row.token * s.each + k];
    const bool local = expert >= 0 && s.owner((u64)expert) == target;
    words.push_back((u32)(local ? expert - (i64)s.first(target) : -1) | weight(k));
  }
  return words;
}

// ---------------------------------------------------------------------------------- quantised

// Quantises a row: codes, and a scale for each 128 elements.
inline void quantise(u32 type, const u8* from, u64 elements, u8* to, float* scales) {
  for (u64 first = 0; first < elements; first += 128) {
    const u64 end = std::min(first + 128, elements);
    float highest = 0;
    auto x = [&](u64 i) { return decode(type, load_code(type, from + i * size_of(type))); };
    for (u64 i = first; i < end; i++) highest = std::isnan(x(i)) ? highest : std::max(highest, std::fabs(x(i)));
    const float quotient = highest / 448.0f;
    const float scale = quotient == 0 ? 1 : quotient;
    std::memcpy(scales + first / 128, &scale, 4);
    for (u64 i = first; i < end; i++) {
      const float y = x(i) / scale;
      to[i] = (u8)encode(OF_E4M3, std::isnan(y) ? y : std::clamp(y, -448.0f, 448.0f));
    }
  }
}

// ------------------------------------------------------------------------------------- combine

// The sum of rows of a type, each with a weight, in their order.
inline void sum_rows(u32 type, const std::vector<std::pair<float, const u8*>>& rows, u64 elements, u8* to) {
  for (u64 i = 0; i < elements; i++) {
    float acc = 0;
    for (size_t k = 0; k < rows.size(); k++) {
      const float product = rows[k].first * decode(type, load_code(type, rows[k].second + i * size_of(type)));
      acc = k == 0 ? product : acc + product;
    }
    store_code(type, to + i * size_of(type), rows.empty() ? 0 : encode(type, acc));
  }
}

// The places of a token in the order in which their rows are summed: choices, and their index.
inline std::vector<std::pair<u64, u32>> summed_places(const RoutingShape& s, const std::vector<u64>& places, u64 token) {
  std::vector<std::pair<u64, u32>> found;
  for (u32 k = 0; k < s.each; k++)
    if (places[token * s.each + k] != NOWHERE) found.push_back({places[token * s.each + k], k});
  if (s.layout != RANK_MAJOR) return found;
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end(), [](auto a, auto b) { return a.first == b.first; }), found.end());
  return found;
}

// What every kernel is given of what a rank keeps of its routing.
struct Kept {
  Bytes places, groups, counts;
  u64 tokens = 0;
  messages::Status status{};

  Kept(const RoutingShape& s) : places(s.max_tokens * s.each * 8), groups(16 * s.groups()), counts((s.layout == RANK_MAJOR ? s.world : s.experts) * 8) {}

  Routed routed(const RoutingShape& s, bool together) {
    Routed r{};
    r.places = places.address(), r.groups = groups.address(), r.counts = counts.address(), r.tokens = (u64)&tokens, r.status = (u64)&status;
    r.experts = s.experts, r.max_tokens = s.max_tokens, r.capacity = s.capacity, r.rows = s.rows;
    r.choices = s.each, r.layout = s.layout, r.group_completion = together;
    return r;
  }

  // That this is what a dispatch has left here, and nothing else was written.
  void check(const RoutingShape& s, const Routes& e, u32 r) {
    for (u32 i = 0; i < 2 * s.groups(); i++) {
      const i64 found = pointer<i64>(groups.address())[i];
      CHECK(found == e.groups[r][i], "word %u of %u of its groups is %lld, not %lld", i, s.groups(), (long long)found, (long long)e.groups[r][i]);
    }
    CHECK(tokens == e.tokens[r], "%llu tokens, not %llu", tokens, e.tokens[r]);
    for (u64 i = 0; i < e.tokens[r] * s.each; i++) {
      const u64 found = pointer<u64>(places.address())[i];
      CHECK(found == e.places[r][i], "choice %llu went to %llx, not %llx", i, found, e.places[r][i]);
    }
    CHECK(places.guards_hold() && groups.guards_hold() && counts.guards_hold(), "bytes outside of what it keeps were written");
  }

  // That it says what it must of a refusal; the host takes it.
  void take(const Routes& e) {
    const bool same = e.rank == 0 || (status.what == e.what && status.value == e.value && status.limit == e.limit);
    CHECK(status.rank == e.rank && same, "said of rank %d: %llx of %lld in %lld, not of rank %d: %llx of %lld in %lld", (int)status.rank - 1,
          status.what, (long long)status.value, (long long)status.limit, (int)e.rank - 1, e.what, (long long)e.value, (long long)e.limit);
    status.rank = 0;
  }
};

// ---------------------------------------------------------------------------------- scenarios

inline Setting some_setting(Random& random) {
  Setting s = any_setting(random);
  s.world = random.of({1u, 2u, 2u, 3u, 3u, 4u});
  s.packets = random.of({16u, 512u});
  return s;
}

// A call that one rank does not come to, or comes to another; then `check(rank, record)`.
template <class Check> void fail_in(Random& random, const Schedule& schedule, Setting setting, Operation& op, u32 odd, bool comes, Check check) {
  Place place(random, schedule, setting);
  for (u32 r = 0; r < setting.world; r++) {
    op.prepare(r);
    if (r != odd || comes) op.launch(place.group, r, place.group.next(r, 0xca11 + (r == odd)));
  }
  place.machine.run();
  for (u32 r = 0; r < setting.world; r++) {
    CHECK(place.group.has_failed(r), "rank %u does not know of the failure", r);
    check(r, place.group.record(r));
  }
}

}  // namespace sim
