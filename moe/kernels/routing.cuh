// routing.cuh: what kernels of routed rows know: who has which expert, where each row goes.
//
// Layouts, orders and sums are those of the crate's `Shape`: every block of every rank computes the same of all
// ranks' counts, and each rank the places of its own tokens.

#ifndef SYMMEM_ROUTING_CUH
#define SYMMEM_ROUTING_CUH

#include "messages.cuh"
#include "numerics.cuh"
#include "routed.cuh"

namespace symmem {

namespace routing {

using namespace messages;

// A choice's place: a rank, then a row of 48 bits.
constexpr u64 NOWHERE = ~0ull;
constexpr u32 RANK_SHIFT = 48;
SYMMEM_FN u64 place_at(u32 rank, u64 row) { return (u64)rank << RANK_SHIFT | row; }
SYMMEM_FN u32 rank_of(u64 place) { return (u32)(place >> RANK_SHIFT); }
SYMMEM_FN u64 row_of(u64 place) { return place & ((1ull << RANK_SHIFT) - 1); }

// Who has which expert: as evenly as it goes, in rank order. A bin is what rows are counted for: an expert, or where
// rows lie by rank a target.
struct Shape {
  u32 world;
  u64 experts;
  bool by_rank;

  SYMMEM_FN Shape(const Lane& lane, const Routed& r) : world(lane.world), experts(r.experts), by_rank(r.layout == RANK_MAJOR) {}
  SYMMEM_FN u64 first(u32 rank) const { return quotient(rank * experts, world); }
  SYMMEM_FN u32 owner(u64 expert) const { return (u32)quotient((expert + 1) * world - 1, experts); }
  SYMMEM_FN u32 bins() const { return by_rank ? world : (u32)experts; }
  // What a rank is told of what it receives.
  SYMMEM_FN u32 groups() const { return by_rank ? world : (u32)quotient(experts + world - 1, world); }
};

// ----------------------------------------------------------------------------------- tokens

// The tokens that a block places, and what it sends of them: blocks share a part where there are few tokens.
struct Part {
  u64 first, last;     // tokens
  u32 index, sharers;  // which of the blocks that share it, of how many

  SYMMEM_FN Part(u64 tokens, u32 each) {
    // As many choices for a part as a warp places in a few steps.
    constexpr u64 SHARE = 64;
    const u32 parts = (u32)least(most(quotient(tokens * each + SHARE - 1, SHARE), 1), grid_size()), part = block_index() % parts;
    first = quotient(tokens * part, parts), last = quotient(tokens * (part + 1), parts);
    index = block_index() / parts;
    sharers = (grid_size() - part + parts - 1) / parts;
  }
};

// Bins that a block counts at a time: of more, it goes over the choices again.
constexpr u32 WINDOW = 512;

// Choices of a part whose places are at hand.
constexpr u32 PLACES = 512;

struct Counted {
  u32 total[WINDOW];   // of each bin: this rank's rows,
  u32 before[WINDOW];  // and those of tokens before the block's part;
  u64 next[WINDOW];    // where the block's next row goes,
  u64 end[WINDOW];     // and one past the last row that there is room for
  u64 places[PLACES];  // of the part's choices, if it has no more
  u64 wrong[MOST_WARPS];
};

// What a call is given of its tokens.
struct Given {
  u64 indices;  // array: the expert of each token and choice, of `index` bytes, signed
  u64 weights;  // array: f32 of each; 0 for 1
  u64 count;    // i64: how many tokens there are; 0 for all
  u64 rows;     // of the sources
  u32 index;
};

// How many tokens there are.
SYMMEM_FN u64 tokens_of(const Given& given) {
  return given.count == 0 ? given.rows : least(load_element<u64>(pointer<u64>(given.count)), given.rows);
}

// How many tokens the last dispatch had, of which a call has room for so many rows. The first thread tells the host of
// more.
SYMMEM_FN u64 tokens_again(const Lane& lane, const Routed& routed, u64 room) {
  const u64 found = load_element<u64>(pointer<u64>(routed.tokens));
  if (found > room && block_index() == 0 && thread_index() == 0)
    tell_host(routed.status, Verdict{(u64)lane.rank + 1, finding(WRONG_TOKENS, 0, found, room)});
  return least(found, room);
}

// This rank's tokens and their choices.
struct Tokens {
  const Lane& lane;
  const Routed& routed;
  const Given given;
  Counted& counted;
  Shape shape;
  u32 each;  // choices of a token
  u64 count;
  Part part;

  SYMMEM_FN Tokens(const Lane& lane, const Routed& routed, const Given& given, u64 count, Counted& counted)
      : lane(lane), routed(routed), given(given), counted(counted), shape(lane, routed), each(routed.choices), count(count), part(count, each) {}

  SYMMEM_FN u64 value(u64 i) const {
    if (given.index == 4) return (u64)(i64)(i32)load_element<u32>(pointer<u32>(given.indices) + i);
    return load_element<u64>(pointer<u64>(given.indices) + i);
  }
  // NOTHING for none, and for one that there is not.
  SYMMEM_FN u64 expert(u64 i) const {
    const u64 found = value(i);
    return found < shape.experts ? found : NOTHING;
  }
  SYMMEM_FN u32 weight(u64 i) const { return given.weights == 0 ? 0x3f800000 : load_element<u32>(pointer<u32>(given.weights) + i); }
  // Where choices went, in memory and at hand. A resend finds them in memory alone.
  SYMMEM_FN bool has_places() const { return given.indices != 0 && (part.last - part.first) * each <= PLACES; }
  SYMMEM_FN void set_place(u64 i, u64 place) const {
    store_element<u64>(pointer<u64>(routed.places) + i, place);
    if (has_places()) counted.places[i - part.first * each] = place;
  }
  SYMMEM_FN u64 place(u64 i) const {
    return has_places() ? counted.places[i - part.first * each] : load_element<u64>(pointer<u64>(routed.places) + i);
  }
};

// Whether one of a token's choices before its choice `k` is of the experts `low..high`.
SYMMEM_FN bool has_before(const Tokens& t, u64 token, u32 k, u64 low, u64 high) {
  bool found = false;
#pragma unroll 1
  for (u32 i = 0; i < k; i++) {
    const u64 expert = t.expert(token * t.each + i);
    found |= expert >= low && expert < high;
  }
  return found;
}

// Counts choices by expert, of those from `base` on, by the threads of a block: of each warp one for all that say the
// same, since few experts get all of many choices. The first choice that is no expert and does not say none, or
// NOTHING.
SYMMEM_FN u64 count_choices(const Tokens& t, u32 base) {
  constexpr u32 U = 4;
  Counted& c = t.counted;
  const u64 count = t.count * t.each, first = t.part.first * t.each;
  const u32 n = block_size(), me = warp_thread();
  u64 wrong = NOTHING;
#pragma unroll 1
  for (u64 from = 0; from < count; from += U * n) {
    // Several are under way at once.
    u64 found[U];
#pragma unroll
    for (u32 k = 0; k < U; k++) {
      const u64 i = from + k * n + thread_index();
      found[k] = i < count ? t.value(i) : ~0ull;
    }
#pragma unroll
    for (u32 k = 0; k < U; k++) {
      const u64 i = from + k * n + thread_index();
      if (found[k] >= t.shape.experts && found[k] != ~0ull) wrong = least(wrong, i);
      const u32 bin = found[k] < t.shape.experts && found[k] - base < WINDOW ? (u32)(found[k] - base) : ~0u;
      const u32 same = warp_match(bin);
      // The first of them counts for all.
      if (bin == ~0u || (same & ((1u << me) - 1)) != 0) continue;
      shared_add(&c.total[bin], count_ones(same));
      // Of those before the block's part, which the warp's first threads have.
      const u64 begin = i - me;
      const u32 earlier = begin >= first ? 0 : first - begin >= 32 ? ~0u : (1u << (u32)(first - begin)) - 1;
      if ((same & earlier) != 0) shared_add(&c.before[bin], count_ones(same & earlier));
    }
  }
  return wrong;
}

// The same of rows that lie by rank: one row for all choices of a rank.
__device__ __attribute__((noinline)) inline u64 count_tokens(const Tokens t, u32 base) {
  Counted& c = t.counted;
  u64 wrong = NOTHING;
#pragma unroll 1
  for (u64 token = thread_index(); token < t.count; token += block_size())
#pragma unroll 1
    for (u32 k = 0; k < t.each; k++) {
      const u64 i = token * t.each + k, found = t.value(i);
      if (found >= t.shape.experts) {
        if (found != ~0ull) wrong = least(wrong, i);
        continue;
      }
      const u32 rank = t.shape.owner(found), bin = rank - base;
      if (bin >= WINDOW || has_before(t, token, k, t.shape.first(rank), t.shape.first(rank + 1))) continue;
      shared_add(&c.total[bin], 1);
      if (token < t.part.first) shared_add(&c.before[bin], 1);
    }
  return wrong;
}

// Counts this rank's rows for the bins from `base` on, of all tokens and of those before the block's part. Every
// thread of the block calls it. The first choice that is no expert and does not say none, or NOTHING.
SYMMEM_FN u64 count_rows(const Tokens& t, u32 base) {
  Counted& c = t.counted;
#pragma unroll 1
  for (u32 i = thread_index(); i < WINDOW; i += block_size()) c.total[i] = c.before[i] = 0;
  block_sync();
  u64 wrong = t.shape.by_rank ? count_tokens(t, base) : count_choices(t, base);
  wrong = of_warp(wrong, least);
  if (warp_thread() == 0) c.wrong[warp_index()] = wrong;
  block_sync();
#pragma unroll 1
  for (u32 w = 0; w < block_size() / 32; w++) wrong = least(wrong, c.wrong[w]);
  return wrong;
}

// What is wrong with the tokens, of which `wrong` is the first choice that is.
SYMMEM_FN Finding look_at(const Tokens& t, u64 wrong) {
  if (t.given.count != 0) {
    const u64 found = load_element<u64>(pointer<u64>(t.given.count));
    if (found > t.given.rows) return finding(WRONG_TOKENS, 0, found, t.given.rows);
  }
  if (wrong != NOTHING) return finding(NO_EXPERT, wrong, t.value(wrong), t.shape.experts);
  return Finding{};
}

// ----------------------------------------------------------------------------------- places

// Where the choices of a block's part go that are of the bins from `base` on, by one warp: in the order of tokens
// and choices, each after those before it in its bin.
SYMMEM_FN void place_choices(const Tokens& t, u32 base) {
  Counted& c = t.counted;
  const u32 me = warp_thread();
#pragma unroll 1
  for (u64 from = t.part.first * t.each; from < t.part.last * t.each; from += 32) {
    const u64 at = from + me;
    const bool is_choice = at < t.part.last * t.each;
    const u64 expert = is_choice ? t.expert(at) : NOTHING;
    const u32 bin = expert != NOTHING ? (u32)expert - base : WINDOW;
    // Choices of the same bin.
    const u32 same = warp_match(bin), before = count_ones(same & ((1u << me) - 1));
    const bool is_last = same >> me == 1;
    u64 row = 0;
    if (bin < WINDOW) row = c.next[bin] + before;
    // All have read it.
    warp_sync();
    if (bin < WINDOW) {
      t.set_place(at, row < c.end[bin] ? place_at(t.shape.owner(expert), row) : NOWHERE);
      if (is_last) c.next[bin] = row + 1;
    } else if (is_choice && expert == NOTHING) {
      t.set_place(at, NOWHERE);
    }
    warp_sync();
  }
}

// The same where rows lie by rank, of the targets from `base` on: a target has one row for all choices of a token,
// and room for all of them.
SYMMEM_FN void place_tokens(const Tokens& t, u32 base) {
  const u32 end = t.shape.world - base < WINDOW ? t.shape.world : base + WINDOW;
#pragma unroll 1
  for (u32 target = base; target < end; target++) {
    const u64 low = t.shape.first(target), high = t.shape.first(target + 1);
    u64 next = t.lane.rank * t.routed.max_tokens + t.counted.before[target - base];
#pragma unroll 1
    for (u64 from = t.part.first; from < t.part.last; from += 32) {
      const u64 token = from + warp_thread();
      const bool goes = token < t.part.last && has_before(t, token, t.each, low, high);
      u64 all;
      const u64 row = next + sum_before(goes, all);
      next += all;
      for (u32 k = 0; token < t.part.last && k < t.each; k++) {
        const u64 at = token * t.each + k, expert = t.expert(at);
        if (expert == NOTHING) t.set_place(at, NOWHERE);
        else if (expert >= low && expert < high) t.set_place(at, place_at(target, row));
      }
    }
  }
}

// ------------------------------------------------------------------------------------- rows

// Calls `act` with the places that a token's row is stored at, by a warp: that of its first choice of each rank that
// it goes to; of this rank all, since those take no link, unless rows lie by rank.
template <class Act> SYMMEM_FN void for_targets(const Tokens& t, u64 token, Act act) {
  const u64 first = token * t.each;
#pragma unroll 1
  for (u32 base = 0; base < t.each; base += 32) {
    const u32 choice = base + warp_thread(), end = (u32)least(t.each - base, 32);
    const u64 mine = choice < t.each ? t.place(first + choice) : NOWHERE;
    const u32 rank = rank_of(mine);
    bool is_first = mine != NOWHERE;
#pragma unroll 4
    for (u32 k = 0; k < end; k++) is_first &= warp_read(rank, k) != rank || k >= warp_thread();
    for (u32 i = 0; i < base; i++) is_first &= rank_of(t.place(first + i)) != rank;
    is_first |= rank == t.lane.rank && !t.shape.by_rank;
    u32 targets = warp_vote(is_first);
#pragma unroll 1
    for (u32 k = 0; targets != 0; k++, targets >>= 1) {
      if ((targets & 1) == 0) continue;
      const u64 place = warp_read(mine, k);
      act(rank_of(place), row_of(place));
    }
  }
}

// Elements that a warp quantises at a time: eight blocks.
constexpr u32 BLOCK = 128, QUANTISED = 1024;

using messages::pieces_of;
SYMMEM_FN u32 pieces_of(const Payload& p) { return p.dtype != 0 ? (u32)quotient(p.row + QUANTISED - 1, QUANTISED) : (u32)pieces_of(p.row); }

SYMMEM_FN float element_of(u32 dtype, u64 at, u64 i) {
  if (dtype == F32) return float_of(load_element<u32>(pointer<u32>(at) + i));
  const u32 code = load_element<u16>(pointer<u16>(at) + i);
  return dtype == F16 ? Half::widen(code) : BFloat::widen(code);
}

// A block of a row's elements in eight bits, four of each thread of a warp: to the bit as the crate below's
// `BlockQuantiser`.
struct Quantised {
  u32 codes, scale;

  // Of the elements `start..end`, at most a block.
  SYMMEM_FN void load(u32 dtype, u64 from, u64 start, u64 end) {
    const u64 at = start + warp_thread() * 4;
    const u32 infinite = 0x7f800000;
    float x[4];
    // Magnitudes are ordered as their bits are.
    u32 highest = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      x[i] = at + i < end ? element_of(dtype, from, at + i) : 0.0f;
      const u32 magnitude = bits_of(x[i]) & 0x7fffffff;
      if (magnitude <= infinite && magnitude > highest) highest = magnitude;
    }
    highest = of_warp(highest, [](u32 a, u32 b) { return a > b ? a : b; });
    const float largest = 448.0f, ratio = float_of(highest) / largest, divisor = ratio == 0.0f ? 1.0f : ratio;
    codes = 0, scale = bits_of(divisor);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 y = bits_of(x[i] / divisor), magnitude = y & 0x7fffffff;
      const bool exceeds = magnitude > bits_of(largest) && magnitude <= infinite;
      codes |= E4M3::narrow(float_of(exceeds ? bits_of(largest) | (y & 0x80000000) : y)) << (8 * i);
    }
  }
  SYMMEM_FN void store(u64 to, u64 scales, u64 start, u64 end) const {
    const u64 at = start + warp_thread() * 4;
    if (at + 4 <= end && (to + at) % 4 == 0) {
      store_element<u32>(pointer<u32>(to + at), codes);
    } else {
#pragma unroll
      for (u32 i = 0; i < 4; i++)
        if (at + i < end) store_element<u8>(pointer<u8>(to + at + i), (u8)(codes >> (8 * i)));
    }
    if (warp_thread() == 0) store_element<u32>(pointer<u32>(scales) + start / BLOCK, scale);
  }
};

// One piece of one payload of a token, to all ranks that it goes to, by a warp: it is read, or quantised, once.
__device__ __attribute__((noinline)) inline void send_quantised(const Tokens t, const Payload& p, u64 token, u32 piece) {
  constexpr u32 U = 4;
  const u64 from = p.source + token * p.source_row, first = (u64)piece * QUANTISED, last = least(first + QUANTISED, p.row);
#pragma unroll 1
  for (u64 start = first; start < last; start += U * BLOCK) {
    Quantised blocks[U];
#pragma unroll
    for (u32 k = 0; k < U; k++) blocks[k].load(p.dtype, from, start + k * BLOCK, least(start + (k + 1) * BLOCK, last));
    for_targets(t, token, [&](u32 rank, u64 row) {
      const u64 to = pointer<const u64>(p.peers)[rank] + p.offset + row * p.row;
      const u64 scales = pointer<const u64>(p.scale_peers)[rank] + p.scale_offset + row * p.scale_row;
#pragma unroll
      for (u32 k = 0; k < U; k++)
        if (start + k * BLOCK < last) blocks[k].store(to, scales, start + k * BLOCK, least(start + (k + 1) * BLOCK, last));
    });
  }
}
SYMMEM_FN void send_piece(const Tokens& t, const Payload& p, u64 token, u32 piece) {
  if (p.dtype != 0) return send_quantised(t, p, token, piece);
  const u64 at = (u64)piece * PIECE, from = p.source + token * p.source_row + at;
  const u32 bytes = (u32)least(p.row - at, PIECE);
  Piece data;
  data.load(from, bytes);
  for_targets(t, token, [&](u32 rank, u64 row) { data.store(pointer<const u64>(p.peers)[rank] + p.offset + row * p.row + at, bytes); });
}

// Each token of the block's part to every rank that it goes to, once, by the workers of the blocks that share it.
SYMMEM_FN void send_tokens(const Tokens& t, const Payload* payloads, u32 count) {
  u32 pieces = 0;
  for (u32 i = 0; i < count; i++) pieces += pieces_of(payloads[i]);
  if (pieces == 0) return;
  const u64 warps = (u64)t.part.sharers * (workers() / 32), items = (t.part.last - t.part.first) * pieces;
#pragma unroll 1
  for (u64 item = t.part.index + (u64)t.part.sharers * warp_index(); item < items; item += warps) {
    const u64 token = quotient(item, pieces);
    SYMMEM_STALL_WARP(t.lane.host, STALL_PUT_DATA);
    u32 piece = (u32)(item - token * pieces), i = 0;
    for (; piece >= pieces_of(payloads[i]); i++) piece -= pieces_of(payloads[i]);
    send_piece(t, payloads[i], t.part.first + token, piece);
  }
}

// Where ranks have their records.
struct Records {
  u64 peers, offset;  // array: by rank, where its allocation of them is mapped; where they begin in that
  u64 bytes;          // of one
};

// The records of the block's part, by the workers of the blocks that share it.
SYMMEM_FN void send_records(const Tokens& t, const Records& records) {
  const u64 end = t.part.last * t.each, threads = (u64)t.part.sharers * workers();
#pragma unroll 1
  for (u64 at = t.part.first * t.each + t.part.index * workers() + thread_index(); at < end; at += threads) {
    const u64 place = t.place(at), token = quotient(at, t.each);
    if (place == NOWHERE) continue;
    const u32 k = (u32)(at - token * t.each), rank = rank_of(place);
    // The first of the token's places there, and the next one after this.
    u32 first = k, next = t.each;
#pragma unroll 1
    for (u32 i = t.each; i-- != 0;) {
      if (rank_of(t.place(token * t.each + i)) != rank) continue;
      first = i;
      if (i > k) next = i;
    }
    if (t.shape.by_rank && first != k) continue;
    u64* words = pointer<u64>(pointer<const u64>(records.peers)[rank] + records.offset + row_of(place) * records.bytes);
    store_element<u64>(words, t.lane.rank | token << 32);
    store_element<u64>(words + 1, k | (u64)t.weight(at) << 32);
    store_element<u64>(words + 2, row_of(t.place(token * t.each + first)));
    // A rank stores its own at all places.
    const bool is_last = t.shape.by_rank || next == t.each || rank == t.lane.rank;
    store_element<u64>(words + 3, is_last ? NOWHERE : row_of(t.place(token * t.each + next)));
    if (!t.shape.by_rank) continue;
    const u64 low = t.shape.first(rank), high = t.shape.first(rank + 1);
#pragma unroll 1
    for (u32 i = 0; i < t.each; i++) {
      const u64 expert = t.expert(token * t.each + i);
      const u32 index = expert >= low && expert < high ? (u32)(expert - low) : ~0u;
      store_element<u64>(words + 4 + i, index | (u64)t.weight(token * t.each + i) << 32);
    }
  }
}

}  // namespace routing
}  // namespace symmem

#endif  // SYMMEM_ROUTING_CUH
