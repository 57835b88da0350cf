// dispatch.cu: tokens to the ranks of their experts.
//
// All ranks tell each other how many rows they have for which bin, after which each knows where its rows go, and
// whether all fit. A token's row is stored once in every other rank that it goes to, at the place of the first of its
// choices there, and records say where the others are: once all blocks of all ranks have said that theirs are
// there, the receiver copies it to them. What a rank has for itself is stored at all places at once, while the link is
// busy with the others.

#include "routing.cuh"

namespace symmem {

namespace routing {

// What a block has at hand of messages, where all of them fit.
constexpr u32 SHARED_WORDS = 2304;

// Groups of received rows that are at hand.
constexpr u32 SHARED_GROUPS = 256;

struct Shared {
  Counted counted;
  u64 words[SHARED_WORDS];
  u64 starts[SHARED_GROUPS], ends[SHARED_GROUPS];
  // By warp.
  u64 overflow[MOST_WARPS], needed[MOST_WARPS];
};
static_assert(sizeof(Shared) <= 48 << 10, "what every device has");

// What the ranks have told each other: tokens and findings, then rows for each bin.
template <bool AT_HAND> struct Counts : Messages<Counts<AT_HAND>, AT_HAND> {
  using Base = Messages<Counts<AT_HAND>, AT_HAND>;
  using Base::word, Base::words;

  const Dispatch& p;
  Shared& shared;
  Tokens tokens;
  Finding wrong;

  SYMMEM_FN Counts(const Dispatch& p, Shared& shared, const Given& given, u64 count)
      : Base(p.lane, words_of(p), shared.words), p(p), shared(shared), tokens(p.lane, p.routed, given, count, shared.counted), wrong{} {}

  static SYMMEM_FN u32 words_of(const Dispatch& p) { return HEAD + Shape(p.lane, p.routed).bins(); }
  // Those of one window are counted once, and stay.
  static SYMMEM_FN bool fits(const Dispatch& p) {
    const u32 words = words_of(p);
    return words <= HEAD + WINDOW && fit_at_hand(p.lane, words, SHARED_WORDS);
  }

  // Of this rank's message. Of wrong tokens no row counts.
  SYMMEM_FN u64 own_word(u32 i) const {
    if (i >= HEAD) return wrong.what != 0 ? 0 : AT_HAND ? shared.counted.total[i - HEAD] : load_element<u64>(pointer<u64>(p.routed.counts) + (i - HEAD));
    return i == 0 ? tokens.count : i == 1 ? wrong.what : i == 2 ? wrong.value : wrong.limit;
  }
  SYMMEM_FN u64 rows(u32 source, u32 bin) const { return word(source, HEAD + bin); }
};

// Counts this rank's rows, window by window, of which the first is at hand afterwards. Every thread of the block
// calls it; every block writes the same.
template <bool AT_HAND> SYMMEM_FN void count_all(Counts<AT_HAND>& m) {
  u64 wrong = NOTHING;
  const u32 bins = m.words - HEAD;
#pragma unroll 1
  for (u32 base = AT_HAND ? 0 : (bins - 1) / WINDOW * WINDOW;; base -= WINDOW) {
    wrong = count_rows(m.tokens, base);
    if constexpr (!AT_HAND) {
      for (u32 i = thread_index(); i < WINDOW && base + i < bins; i += block_size())
        store_element<u64>(pointer<u64>(m.p.routed.counts) + base + i, m.shared.counted.total[i]);
      block_sync();
    }
    if (base == 0) break;
  }
  m.wrong = look_at(m.tokens, wrong);
}

// Goes over the bins of a target, by one warp: where this rank's rows for them begin, of those that are at hand from
// `window` on; or, of this rank's own bins, how many rows it receives and where those begin. How many rows are
// needed beyond what there is room for, or 0.
template <bool AT_HAND>
__device__ __attribute__((noinline)) inline u64 place_bins(const Dispatch& p, Shared& shared, u32 parity, u32 target, u32 window, bool tells) {
  const Routed& r = p.routed;
  const u32 me = p.lane.rank, words = Counts<AT_HAND>::words_of(p);
  const Shape shape(p.lane, r);
  // As `Counts` has them.
  auto rows = [&](u32 source, u32 bin) {
    if constexpr (AT_HAND) return shared.words[source * words + HEAD + bin];
    else if (source == me) return load_element<u64>(pointer<u64>(r.counts) + bin);
    else return load_element<u64>(pointer<u64>(staging_from(p.lane, parity, source)) + HEAD + bin);
  };
  const u32 first = (u32)shape.first(target), last = (u32)shape.first(target + 1), groups = shape.groups();
  const bool padded = r.layout == PADDED;
  const u64 room = padded ? r.rows : r.capacity;
  Counted& c = shared.counted;
  u64 next = 0, over = 0, dropped = 0;
#pragma unroll 1
  for (u32 base = first; base < last; base += 32) {
    const u32 bin = base + warp_thread(), group = bin - first;
    u64 total = 0, before = 0;
#pragma unroll 1
    for (u32 source = 0; bin < last && source < shape.world; source++) {
      if (source == me) before = total;
      total = add(total, rows(source, bin));
    }
    u64 length = bin < last ? total : 0;
    if (!padded && r.rows > 1) {
      // A bin without rows is as long as one of the multiples.
      length = most(total, 1);
      length = bin < last ? add(length, r.rows - 1 - remainder(length - 1, r.rows)) : 0;
    } else if (!padded && r.rows == 1 && bin < last) {
      length = most(total, 1);
    }
    u64 all;
    const u64 earlier = sum_before(length, all), start = padded ? group * r.rows : add(next, earlier);
    next = add(next, all);
    if (bin >= last) continue;
    const u64 needed = padded ? total : add(start, total), end = padded ? start + r.rows : r.capacity;
    if (total != 0 && needed > room) over = most(over, needed);
    if (tells) {
      const u64 kept = kept_rows(total, start, end);
      store_element<u64>(pointer<u64>(r.groups) + group, kept);
      store_element<u64>(pointer<u64>(r.groups) + groups + group, least(start, ~0ull >> 1));
      dropped = add(dropped, total - kept);
    } else if (bin - window < WINDOW) {
      c.next[bin - window] = add(add(start, before), c.before[bin - window]), c.end[bin - window] = end;
    }
  }
  if (!tells) return of_warp(over, most);
  for (u32 i = last - first + warp_thread(); i < groups; i += 32)
    store_element<u64>(pointer<u64>(r.groups) + i, 0), store_element<u64>(pointer<u64>(r.groups) + groups + i, 0);
  dropped = of_warp(dropped, add);
  if (warp_thread() == 0) count_dropped(r.status, dropped);
  return 0;
}

// The first rank whose tokens are wrong; else the first whose rows do not fit. Places the bins that are at hand on
// the way. Every thread of the block calls it, and all blocks of all ranks get the same.
template <bool AT_HAND> SYMMEM_FN Verdict judge(const Counts<AT_HAND>& m) {
  const Verdict found = first_finding(m);
  // Of rows by rank there is always room.
  if (found.rank != 0 || m.tokens.shape.by_rank) return found;
  const u32 warps = workers() / 32;
  if (is_worker()) {
    u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
    for (u32 target = warp_index(); target < m.world; target += warps) {
      const u64 rows = place_bins<AT_HAND>(m.p, m.shared, m.parity, target, 0, false);
      if (overflow == NOTHING && rows != 0) overflow = target, needed = rows;
    }
    if (warp_thread() == 0) m.shared.overflow[warp_index()] = overflow, m.shared.needed[warp_index()] = needed;
  }
  block_sync();
  u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
  for (u32 w = 0; w < warps; w++)
    if (m.shared.overflow[w] < overflow) overflow = m.shared.overflow[w], needed = m.shared.needed[w];
  if (overflow == NOTHING || m.p.drop) return Verdict{};
  const u64 room = m.p.routed.layout == PADDED ? m.p.routed.rows : m.p.routed.capacity;
  return Verdict{overflow + 1, finding(OVERFLOW, 0, needed, room)};
}

// Where the choices of the block's part go, window by window. Every thread of the block calls it.
template <bool AT_HAND> SYMMEM_FN void place_part(const Counts<AT_HAND>& m) {
  const bool by_rank = m.tokens.shape.by_rank;
#pragma unroll 1
  for (u32 base = 0; base < m.words - HEAD; base += WINDOW) {
    if (!AT_HAND && base != 0) {
      count_rows(m.tokens, base);
      if (!by_rank && is_worker())
        for (u32 target = warp_index(); target < m.world; target += workers() / 32) place_bins<AT_HAND>(m.p, m.shared, m.parity, target, base, false);
      block_sync();
    }
    if (warp_index() == 0) {
      if (by_rank) place_tokens(m.tokens, base);
      else place_choices(m.tokens, base);
    }
    block_sync();
  }
}

// How many rows this rank receives, where they begin, and how many are dropped, by one warp.
template <bool AT_HAND> SYMMEM_FN void tell(const Counts<AT_HAND>& m) {
  const Routed& r = m.p.routed;
  u64* groups = pointer<u64>(r.groups);
  if (m.tokens.shape.by_rank) {
#pragma unroll 1
    for (u32 source = warp_thread(); source < m.world; source += 32) {
      store_element<u64>(groups + source, m.rows(source, m.me));
      store_element<u64>(groups + m.world + source, source * r.max_tokens);
    }
  } else {
    place_bins<AT_HAND>(m.p, m.shared, m.parity, m.me, 0, true);
  }
  if (warp_thread() == 0) store_element<u64>(pointer<u64>(r.tokens), m.tokens.count);
}

// What is told of a call that moves nothing, by block 0.
template <bool AT_HAND> SYMMEM_FN void refuse(const Counts<AT_HAND>& m, const Verdict& verdict) {
  const Routed& r = m.p.routed;
  for (u32 i = thread_index(); i < 2 * m.tokens.shape.groups(); i += block_size()) store_element<u64>(pointer<u64>(r.groups) + i, 0);
  if (thread_index() != 0) return;
  store_element<u64>(pointer<u64>(r.tokens), 0);
  tell_host(r.status, verdict);
}

// ------------------------------------------------------------------------------------- spread

// The rows of a group that a rank has received: where they begin, and one past the last.
struct Group {
  u64 start, end;
};
SYMMEM_FN Group group_of(const Dispatch& p, u32 count, u32 i) {
  const u64* groups = pointer<const u64>(p.routed.groups);
  // Whoever wrote these, rows end where the outputs do.
  const u64 start = load_element<u64>(groups + count + i);
  return Group{start, start + kept_rows(load_element<u64>(groups + i), start, p.routed.capacity)};
}

SYMMEM_FN u32 pieces_here(const Payload& p) { return (u32)(pieces_of(p.row) + (p.scales != 0 ? pieces_of(p.scale_row) : 0)); }

// A piece of a row that was received, or of its scales.
struct PartOfRow {
  u64 base, row, at;
  u32 bytes;

  SYMMEM_FN PartOfRow(const Payload* payloads, u32 piece) {
    for (; piece >= pieces_here(*payloads); payloads++) piece -= pieces_here(*payloads);
    const u32 pieces = (u32)pieces_of(payloads->row);
    const bool is_scale = piece >= pieces;
    base = is_scale ? payloads->scales : payloads->target, row = is_scale ? payloads->scale_row : payloads->row;
    at = (u64)(is_scale ? piece - pieces : piece) * PIECE;
    bytes = (u32)least(row - at, PIECE);
  }
  SYMMEM_FN u64 address(u64 i) const { return base + i * row + at; }
};

// Rows that a thread follows at once of those that a token has here.
constexpr u32 CHAIN = 4;

// The first rows of tokens among 32, to all other places of those, by a warp: each is read once.
SYMMEM_FN void spread_rows(const Dispatch& p, u64 first, u64 end, const PartOfRow& part) {
  // Where a row's payload was stored, and the next place of it.
  auto from_and_next = [&](u64 row) { return pointer<u64>(p.records + row * p.record_bytes) + 2; };
  const u64 mine = first + warp_thread();
  u64 next = NOWHERE;
  if (mine < end) {
    const u64 from = load_element<u64>(from_and_next(mine)), after = load_element<u64>(from_and_next(mine) + 1);
    if (from == mine) next = after;
  }
  u32 threads = warp_vote(next < p.routed.capacity);
  // Whoever wrote them, rows have no end of places.
#pragma unroll 1
  for (u32 n = 0; n < p.routed.choices && threads != 0; n += CHAIN, threads = warp_vote(next < p.routed.capacity)) {
    // Of every thread's row the next few places, which are all on their way together.
    u64 places[CHAIN];
#pragma unroll
    for (u32 k = 0; k < CHAIN; k++) {
      places[k] = next;
      next = next < p.routed.capacity ? load_element<u64>(from_and_next(next) + 1) : NOWHERE;
    }
#pragma unroll 1
    for (u32 i = 0; threads != 0; i++, threads >>= 1) {
      if ((threads & 1) == 0) continue;
      Piece data;
      data.load(part.address(first + i), part.bytes);
#pragma unroll
      for (u32 k = 0; k < CHAIN; k++) {
        const u64 to = warp_read(places[k], i);
        if (to < p.routed.capacity) data.store(part.address(to), part.bytes);
      }
    }
  }
}

// Rows of tokens that several experts of this rank have chosen, to all their places. Every thread of the block calls
// it.
SYMMEM_FN void spread(const Dispatch& p, Shared& shared) {
  const u32 count = Shape(p.lane, p.routed).groups();
  for (u32 i = thread_index(); i < count && i < SHARED_GROUPS; i += block_size()) {
    const Group group = group_of(p, count, i);
    shared.starts[i] = group.start, shared.ends[i] = group.end;
  }
  block_sync();
  u32 pieces = 0;
  for (u32 i = 0; i < p.payload_count; i++) pieces += pieces_here(p.payloads[i]);
  if (pieces == 0 || !is_worker()) return;
  const u64 warps = (u64)grid_size() * (workers() / 32);
  u64 next = block_index() + (u64)grid_size() * warp_index(), before = 0;
#pragma unroll 1
  for (u32 i = 0; i < count; i++) {
    const Group group = i < SHARED_GROUPS ? Group{shared.starts[i], shared.ends[i]} : group_of(p, count, i);
    const u64 end = before + (group.end - group.start + 31) / 32 * pieces;
#pragma unroll 1
    for (; next < end; next += warps) {
      const u64 batch = quotient(next - before, pieces);
      spread_rows(p, group.start + batch * 32, group.end, PartOfRow(p.payloads, (u32)(next - before - batch * pieces)));
    }
    before = end;
  }
}

// ----------------------------------------------------------------------------------- dispatch

template <bool AT_HAND> SYMMEM_FN void dispatch(const Dispatch& p, Shared& shared, Headers& headers) {
  const Lane& lane = p.lane;
  const bool anew = p.indices != 0;
  const Given given{p.indices, p.weights, p.count, p.source_rows, p.index};
  const u64 last = anew ? tokens_of(given) : tokens_again(lane, p.routed, p.source_rows);
  Counts<AT_HAND> m(p, shared, given, last);
  // Before the epoch is known.
  if (anew) count_all(m);
  Step step{};
  // A lane may be closed between two threads' looks; warps go on whole.
  if (block_any(!enter(lane, step))) return;
  if (!await_clear(lane, step)) return;
  m.parity = step.parity;
  m.keep_own(0, m.words);
  bool ok = anew ? meet(m, step, headers) : agree(lane, step, headers), moves = false;
  if (ok) {
    const Verdict verdict = anew ? judge(m) : Verdict{};
    moves = verdict.rank == 0;
    if (moves) {
      if (anew) place_part(m);
      if (is_worker()) {
        send_tokens(m.tokens, p.payloads, p.payload_count);
        if (anew) send_records(m.tokens, Records{p.record_peers, p.record_offset, p.record_bytes});
      } else if (anew && block_index() == 0) {
        tell(m);
      }
      // By rank, every place has the row itself.
      if (m.tokens.shape.by_rank) {
        ok = part(lane, step);
      } else {
        ok = part_of_all(lane, step);
        if (ok) spread(p, shared);
      }
    } else {
      if (block_index() == 0) refuse(m, verdict);
      // Of long messages block 0 has raised flags, which other blocks poll: then all do.
      if (m.is_staged()) ok = part(lane, step);
    }
  }
  const bool of_group = p.routed.group_completion != 0;
  ok = complete(lane, of_group, step, ok);
  // A resend has no messages.
  exit(lane, step, ok, Used{ALL, m.is_staged() || !anew ? 0 : m.words, moves || m.is_staged() || of_group});
}
__device__ __attribute__((noinline)) inline void dispatch_many(const Dispatch& p, Shared& shared, Headers headers) { dispatch<false>(p, shared, headers); }

SYMMEM_FN void run(const Dispatch& p) {
  SYMMEM_SHARED(Shared, shared);
  if (!begin(p.lane)) return;
  Headers headers(p.lane, sync_thread());
  if (SYMMEM_LIKELY(Counts<true>::fits(p))) dispatch<true>(p, shared, headers);
  else dispatch_many(p, shared, headers);
}

}  // namespace routing
}  // namespace symmem

extern "C" __global__ void __launch_bounds__(288, 1) dispatch(const SYMMEM_ARGS symmem::Dispatch plan) {
  symmem::fetch_arguments(plan);
  symmem::routing::run(plan);
}
