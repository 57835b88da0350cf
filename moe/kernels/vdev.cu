// vdev.cu: all-to-all-v with splits on the device.
//
// All ranks tell each other their splits; with those every block knows where every row goes, and whether all fit.
// No row is stored in an output before all have come and the calls are equal. Many rows go from the input straight
// to their place; then blocks of equal index tell each other that theirs are there. Few rows go in lines, together
// with the splits: their receiver knows where they belong by the time they come. For each pair of ranks both know
// from the splits which it is.

#include "vdev.cuh"

namespace symmem {
namespace vdev {

// ---------------------------------------------------------------------------------- verdict

// The first rank whose splits are wrong; else the first whose output has no room, unless rows are dropped then.
// Places all rows on the way. Every thread of the block calls it, and all blocks of all ranks get the same.
SYMMEM_FN Verdict judge(const Matrix<true>& m) { return SYMMEM_UNLIKELY(block_any(place_rows(m))) ? settle(m) : Verdict{}; }
SYMMEM_FN Verdict judge(const Matrix<false>& m) {
  const Verdict found = first_finding(m);
  if (found.rank != 0) return found;
  const u32 warps = workers() / 32;
  if (is_worker()) {
    u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
    for (u32 target = warp_index(); target < m.world; target += warps) {
      const u64 rows = walk(m, target, false);
      if (overflow == NOTHING && rows > m.capacity(target)) overflow = target, needed = rows;
    }
    // By warp.
    if (warp_thread() == 0) m.shared.totals[warp_index()] = overflow, m.shared.lengths[warp_index()] = needed;
  }
  block_sync();
  u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
  for (u32 w = 0; w < warps; w++)
    if (m.shared.totals[w] < overflow) overflow = m.shared.totals[w], needed = m.shared.lengths[w];
  if (overflow == NOTHING || m.p.drop) return Verdict{};
  return Verdict{overflow + 1, finding(OVERFLOW, 0, needed, m.capacity((u32)overflow))};
}

// What is told of a call that moves nothing, by block 0.
template <bool AT_HAND> SYMMEM_FN void refuse(const Matrix<AT_HAND>& m, const Verdict& verdict) {
#pragma unroll 1
  for (u32 i = thread_index(); i < 2 * m.splits; i += block_size()) store_element<u64>(pointer<u64>(m.p.out_splits) + i, 0);
  if (thread_index() == 0) tell_host(m.p.status, verdict);
}

// ------------------------------------------------------------------------------------- rows

// The last bin that begins at `at` or before it, by where they begin, from `low` on, which does. By a warp.
template <class First> SYMMEM_FN u32 bin_of(u32 bins, First first, u64 at, u32 low) {
#pragma unroll 1
  for (;;) {
    const u32 bin = low + warp_thread(), found = count_ones(warp_vote(bin < bins && first(bin) <= at));
    low += found - 1;
    if (SYMMEM_LIKELY(found != 32)) return low;
  }
}

// One target's pieces, in the order in which a warp sends some of them.
struct Pieces {
  u32 target, bin;
  u64 before, end;  // of all pieces: those of targets before, and of this one and those
  u64 output;
};

// Bytes of a bin's piece: of rows that are kept, once it is known which are.
SYMMEM_FN u32 part_of(const Entry& entry, u64 offset) { return offset < entry.bytes ? (u32)least(entry.bytes - offset, PIECE) : 0; }

// Where a piece is in its bin, where it lies in the input, and where it goes.
struct Move {
  u64 offset, from, to;
  u32 bytes;
};
template <bool AT_HAND> SYMMEM_FN Move move_of(const Matrix<AT_HAND>& m, Pieces& of, u64 index) {
  const u64 piece = index - of.before;
  of.bin = bin_of(m.minor, [&](u32 bin) { return m.first_piece(of.target, bin); }, piece, of.bin);
  const Entry entry = m.entry(of.target, of.bin);
  const u64 offset = (piece - entry.first) * PIECE;
  return Move{offset, m.p.input + entry.from + offset, of.output + entry.to + offset, part_of(entry, offset)};
}

template <bool AT_HAND> SYMMEM_FN void send_piece(const Matrix<AT_HAND>& m, Pieces& of, u64 index) {
  SYMMEM_STALL_WARP(m.lane.host, STALL_PUT_DATA);
  const Move move = move_of(m, of, index);
  copy_piece(move.from, move.to, move.bytes);
}

// Rows straight to their places: the pieces of the next rank first, and between them this rank's own, which
// takes no link. Dealt out to the warps of all blocks in turns, so that none has two more than another.
template <bool AT_HAND> SYMMEM_FN void send_rows(const Matrix<AT_HAND>& m) {
  const Vdev& p = m.p;
  const u64 warps = (u64)grid_size() * (workers() / 32), own = m.first_piece(m.me, m.minor);
  u64 away = 0;
  for_peers<0>(p.lane, [&](u32 r) {
    if (!m.goes_in_lines(r)) away += m.first_piece(r, m.minor);
  });
  Pieces mine{m.me, 0, 0, own, p.output}, theirs{m.me, 0, 0, 0, 0};
  const u64 paired = 2 * least(own, away);
  u64 turn = block_index() + (u64)grid_size() * warp_index();
  // A warp's place among all moves on by one from round to round, so that it has some of either.
#pragma unroll 1
  for (u64 round = 0; round < own + away; round += warps, turn = turn + 1 < warps ? turn + 1 : 0) {
    const u64 at = round + turn;
    if (at >= own + away) continue;
    const u64 index = at < paired ? at / 2 : at - paired / 2;
    const bool is_mine = at < paired ? at % 2 != 0 : own > away;
    while (!is_mine && index >= theirs.end) {
      const u32 r = theirs.target + 1 < m.world ? theirs.target + 1 : 0;
      const u64 count = m.goes_in_lines(r) ? 0 : m.first_piece(r, m.minor);
      theirs = Pieces{r, 0, theirs.end, theirs.end + count, pointer<const u64>(p.peers)[r] + p.peer_offset};
    }
    Pieces of = is_mine ? mine : theirs;
    send_piece(m, of, index);
    if (is_mine) mine.bin = of.bin;
    else theirs.bin = of.bin;
  }
}

#ifdef SYMMEM_HAS_LINES

// One side's lines, of which each warp of all blocks has some: those of the next rank first.
struct Units {
  u32 next;        // of this warp
  u32 distance;    // from this rank to the one whose they are,
  u32 begin, end;  // and which those are

  SYMMEM_FN Units() : next(block_index() + grid_size() * warp_index()), distance(0), begin(0), end(0) {}

  // Whether there is another one, by how many vectors each rank has.
  SYMMEM_FN bool find(const Matrix<true>& m, const u32* counts) {
    while (next >= end) {
      if (distance + 1 >= m.world) return false;
      distance++;
      const u32 count = counts[rank(m)];
      begin = end;
      end += count == DIRECT ? 0 : (count + Lines::VECTORS - 1) / Lines::VECTORS;
    }
    return true;
  }
  SYMMEM_FN u32 rank(const Matrix<true>& m) const { return m.me + distance < m.world ? m.me + distance : m.me + distance - m.world; }
  SYMMEM_FN u32 take() {
    const u32 unit = next - begin;
    next += grid_size() * (workers() / 32);
    return unit;
  }
};

// Vectors of a warp, of rows that go to a rank or come from one, by where those of each bin begin.
struct Outgoing {
  const Entry* entries;
  u64 input;

  SYMMEM_FN Outgoing(const Matrix<true>& m, u32 rank) : entries(m.shared.entries + rank * (m.minor + 1)), input(m.p.input) {}
  SYMMEM_FN u32 first(u32 bin) const { return (u32)entries[bin].first; }
  SYMMEM_FN u32 end(u32 bin) const { return first(bin + 1); }
  // Where the first of all vectors would be, were they all of the bin.
  SYMMEM_FN u64 base(u32 bin) const { return input + entries[bin].from - entries[bin].first * 16; }
};
struct Incoming {
  const Run* runs;
  u64 output;

  SYMMEM_FN Incoming(const Matrix<true>& m, u32 rank) : runs(m.shared.runs + rank * (m.minor + 1)), output(m.p.output) {}
  SYMMEM_FN u32 first(u32 bin) const { return runs[bin].first; }
  // Of those that are kept.
  SYMMEM_FN u32 end(u32 bin) const { return runs[bin].end; }
  SYMMEM_FN u64 base(u32 bin) const { return output + runs[bin].to - runs[bin].first * 16ull; }
};

// Where a warp's vectors are: of two bins, mostly, or of one that is both.
struct Span {
  u64 low, high;               // the base of either
  u32 low_end, high_end, all;  // what each ends with, and the warp's vectors
  u32 next;                    // the first of the other bin
  bool is_simple;              // whether there are no more bins, and all are at addresses of vectors

  template <class Rows> SYMMEM_FN Span(const Rows& rows, u32 bins, u32 u, u32 count) {
    const u32 begin = u * Lines::VECTORS;
    all = begin + Lines::VECTORS < count ? begin + Lines::VECTORS : count;
    auto first = [&](u32 bin) { return rows.first(bin); };
    u32 bin = bin_of(bins, first, begin, 0);
    low = high = rows.base(bin), low_end = high_end = rows.end(bin), next = rows.first(bin + 1);
    if (next < all) {
      bin = bin_of(bins, first, next, bin + 1);
      high = rows.base(bin), high_end = rows.end(bin);
    }
    is_simple = all <= rows.first(bin + 1) && (low | high) % 16 == 0;
  }
  // Whether it is one of them, and is kept.
  SYMMEM_FN bool has(u32 vector) const { return vector < all && vector < (vector < next ? low_end : high_end); }
  SYMMEM_FN void* at(u32 vector) const { return pointer<void>((vector < next ? low : high) + vector * 16ull); }
};

// Vectors of many bins, or at addresses of none: one by one.
template <class Rows> SYMMEM_FN u32 scattered_bin(const Rows& rows, u32 bins, u32 vector) {
  u32 low = 0, high = bins - 1;
  while (low < high) {
    const u32 middle = low + (high - low + 1) / 2;
    if (rows.first(middle) <= vector) low = middle;
    else high = middle - 1;
  }
  return low;
}
__device__ __attribute__((noinline)) inline Lines load_scattered(const Matrix<true> m, u32 rank, u32 u) {
  const Outgoing rows(m, rank);
  Lines lines{};
#pragma unroll
  for (u32 k = 0; k < 4; k++) {
    const u32 at = Lines::first(u) + k * Lines::apart();
    if (at >= m.shared.out[rank] || (k == 3 && Lines::is_last())) continue;
    lines.v[k] = load_any(runs_of(rows.base(scattered_bin(rows, m.minor, at)) + at * 16ull, 16, 16), 0, 16);
  }
  return lines;
}
__device__ __attribute__((noinline)) inline void store_scattered(const Matrix<true> m, u32 rank, u32 u, Lines lines) {
  const Incoming rows(m, rank);
#pragma unroll
  for (u32 k = 0; k < 4; k++) {
    const u32 at = Lines::first(u) + k * Lines::apart();
    if (at >= m.shared.in[rank] || (k == 3 && Lines::is_last())) continue;
    const u32 bin = scattered_bin(rows, m.minor, at);
    if (at < rows.end(bin)) store_any(runs_of(rows.base(bin) + at * 16ull, 16, 16), 0, 16, lines.v[k]);
  }
}

SYMMEM_FN void send_unit(const Matrix<true>& m, u32 epoch, u32 rank, u32 u) {
  const Span span(Outgoing(m, rank), m.minor, u, m.shared.out[rank]);
  Lines lines;
  if (SYMMEM_LIKELY(span.is_simple)) lines.load(span, u);
  else lines = load_scattered(m, rank, u);
  SYMMEM_STALL_WARP(m.lane.host, STALL_PUT_PACKET);
  lines.put(lines_to(m.lane, epoch & 1, rank), u, epoch);
}

// False if the wait ended without it.
SYMMEM_FN bool take_unit(const Matrix<true>& m, const Step& step, Gate& gate, u32 rank, u32 u) {
  const Span span(Incoming(m, rank), m.minor, u, m.shared.in[rank]);
  Lines lines;
  const u64 from = lines_from(m.lane, step.parity, rank);
  SYMMEM_STALL_WARP(m.lane.host, STALL_POLL_PACKET);
  if (!await<true>(m.lane, step.epoch, gate, rank, [&] { return lines.poll(from, u, step.epoch); })) return false;
  if (SYMMEM_LIKELY(span.is_simple)) lines.store(span, u);
  else store_scattered(m, rank, u, lines);
  return true;
}

#else

struct Units {
  SYMMEM_FN bool find(const Matrix<true>&, const u32*) { return false; }
  SYMMEM_FN u32 rank(const Matrix<true>&) const { return 0; }
  SYMMEM_FN u32 take() { return 0; }
};
SYMMEM_FN void send_unit(const Matrix<true>&, u32, u32, u32) {}
SYMMEM_FN bool take_unit(const Matrix<true>&, const Step&, Gate&, u32, u32) { return true; }

#endif

// The rows of one call on their way. By the workers of the block.
template <bool AT_HAND> struct Moves {
  const Matrix<AT_HAND>& m;
  bool direct;  // whether all go straight to their places, with this rank's own
  Units sends;
  // A piece of this rank's own rows, which is here before it is known where it goes.
  Pieces mine;
  u64 own, piece, offset;  // in its bin
  Piece held;

  SYMMEM_FN Moves(const Matrix<AT_HAND>& m) : m(m), direct(true), mine{m.me, 0, 0, 0, m.p.output}, own(0), piece(block_index() + (u64)grid_size() * warp_index()), offset(0) {}

  // Once this rank's splits have been looked at.
  SYMMEM_FN void begin(const Step& step) {
    if constexpr (AT_HAND) {
      direct = m.is_direct();
      if (sends.find(m, m.shared.out)) send_unit(m, step.epoch, sends.rank(m), sends.take());
      if (direct) return;
      own = m.first_piece(m.me, m.minor);
      hold();
    }
  }
  SYMMEM_FN void hold() {
    if (piece >= own) return;
    const Move move = move_of(m, mine, piece);
    held.load(move.from, move.bytes);
    offset = move.offset;
  }

  // Once the verdict is that they go; false if what was to come has not.
  SYMMEM_FN bool finish(const Step& step) {
    if (direct) send_rows(m);
    bool ok = true;
    if constexpr (AT_HAND) {
      Units takes;
      Gate gate;
      bool more = true;
      // What goes now comes a turn later: the link is never without work.
#pragma unroll 1
      while (ok && more) {
        more = sends.find(m, m.shared.out);
        if (more) send_unit(m, step.epoch, sends.rank(m), sends.take());
        if (piece < own) {
          SYMMEM_STALL_WARP(m.lane.host, STALL_PUT_DATA);
          const Entry entry = m.entry(m.me, mine.bin);
          held.store(m.p.output + entry.to + offset, part_of(entry, offset));
          piece += (u64)grid_size() * (workers() / 32);
          hold();
          more = true;
        }
        if (takes.find(m, m.shared.in)) {
          ok = take_unit(m, step, gate, takes.rank(m), takes.take());
          more = true;
        }
      }
    }
    return ok;
  }
};

// Tells the ranks to whom rows were stored directly, and awaits those that have stored some here.
template <bool AT_HAND> SYMMEM_FN bool part_directly(const Matrix<AT_HAND>& m, const Step& step, bool ok) {
  if (!m.is_direct()) return ok;
  auto to = [&](u32 r) { return !m.goes_in_lines(r); };
  auto from = [&](u32 r) { return !m.comes_in_lines(r); };
  return part(m.lane, step, to, from) && ok;
}

// Looks at this rank's own splits, which are at hand then, if any are. Every thread of the block calls it, and all
// get the same.
SYMMEM_FN Finding look_at(const Matrix<false>& m, const Ahead&) { return find_wrong(m); }
SYMMEM_FN Finding look_at(const Matrix<true>& m, const Ahead& ahead) {
  if (SYMMEM_LIKELY(!block_any(begin_rows(m, ahead)))) return Finding{};
  const Finding found = find_wrong(m);
  // Unless the caller has changed them meanwhile.
  return found.what != 0 ? found : finding(OUTSIDE_INPUT, 0, 0, m.p.input_rows);
}

template <bool AT_HAND> SYMMEM_FN void exchange(const Vdev& p, Shared& shared, Headers& headers) {
  const Lane& lane = p.lane;
  Matrix<AT_HAND> m(p, shared);
  // On its way while the epoch is.
  const Ahead ahead(m);
  Step step{};
  const bool entered = enter(lane, step);
  // A lane may be closed between two threads' looks; warps go on whole.
  if (block_any(!entered)) return;
  m.begin(step);
  m.wrong = look_at(m, ahead);
  m.keep_own(0, HEAD);
  if (!await_clear(lane, step)) return;
  announce(m, step, headers);
  // Few rows are on their way before this rank has heard of any other. Of wrong splits none goes.
  Moves<AT_HAND> moving(m);
  if (is_worker() && m.wrong.what == 0) moving.begin(step);
  bool ok = hear(m, step, headers), moves = false;
  if (ok) {
    const Verdict verdict = judge(m);
    moves = verdict.rank == 0;
    if (moves) {
      // What `judge` has placed is there for all.
      if (is_worker()) ok = moving.finish(step);
      // What is at hand has been told with its places.
      if constexpr (!AT_HAND)
        if (!is_worker() && block_index() == 0) walk(m, m.me, true);
      ok = part_directly(m, step, ok);
    } else if (block_index() == 0) {
      refuse(m, verdict);
    }
    // Of long messages block 0 has raised flags, which other blocks poll: then all do.
    if (!moves && m.is_staged()) ok = part(lane, step);
  }
  const bool of_group = p.group_completion != 0;
  ok = complete(lane, of_group, step, ok);
  exit(lane, step, ok, Used{ALL, m.is_staged() ? 0 : m.words, moves || m.is_staged() || of_group});
}
__device__ __attribute__((noinline)) inline void exchange_many(const Vdev& p, Shared& shared, Headers headers) { exchange<false>(p, shared, headers); }

SYMMEM_FN void run(const Vdev& p) {
  SYMMEM_SHARED(Shared, shared);
  if (!begin(p.lane)) return;
  Headers headers(p.lane, sync_thread());
  if (SYMMEM_LIKELY(Matrix<true>::fits(p))) exchange<true>(p, shared, headers);
  else exchange_many(p, shared, headers);
}

}  // namespace vdev
}  // namespace symmem

extern "C" __global__ void __launch_bounds__(288, 1) all_to_all_vdev(const SYMMEM_ARGS symmem::Vdev plan) {
  symmem::fetch_arguments(plan);
  symmem::vdev::run(plan);
}
