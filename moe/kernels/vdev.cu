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

// The first rank whose splits are wrong; else the first whose output has no room. Places all bins on the way, one
// pair of ranks for each warp. Every thread of the block calls it, and all blocks of all ranks get the same.
template <bool AT_HAND> SYMMEM_FN Verdict judge(const Matrix<AT_HAND>& m) {
  const Verdict found = first_finding(m);
  if (found.rank != 0) return found;
  const u32 warps = workers() / 32;
  if (is_worker()) {
    u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
    for (u32 task = warp_index(); task < 2 * m.world; task += warps) {
      const bool takes = task >= m.world;
      const u32 rank = takes ? task - m.world : task;
      Act act = ENTER;
      if (takes) {
        if (m.most_lines == 0 || rank == m.me) continue;
        const u32 count = vectors_of(m, rank, m.me);
        if (warp_thread() == 0) m.shared.in[rank] = count;
        if (count == DIRECT || count == 0) continue;
        act = TAKE;
      } else if (m.goes_in_lines(rank)) {
        act = NEED;
      }
      const u64 rows = walk(m, takes ? rank : m.me, takes ? m.me : rank, act);
      if (!takes && overflow == NOTHING && rows > m.capacity(rank)) overflow = rank, needed = rows;
    }
    if (warp_thread() == 0) m.shared.overflow[warp_index()] = overflow, m.shared.needed[warp_index()] = needed;
  }
  block_sync();
  u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
  for (u32 w = 0; w < warps; w++)
    if (m.shared.overflow[w] < overflow) overflow = m.shared.overflow[w], needed = m.shared.needed[w];
  if (overflow == NOTHING || m.p.drop) return Verdict{0, {}};
  return Verdict{overflow + 1, finding(OVERFLOW, 0, needed, m.capacity((u32)overflow))};
}

// What is told of a call that moves nothing, by block 0.
template <bool AT_HAND> SYMMEM_FN void refuse(const Matrix<AT_HAND>& m, const Verdict& verdict) {
#pragma unroll 1
  for (u32 i = thread_index(); i < 2 * m.splits; i += block_size()) store_element<u64>(pointer<u64>(m.p.out_splits) + i, 0);
  if (thread_index() == 0) tell_host(m.p.status, verdict);
}

// ------------------------------------------------------------------------------------- rows

// The last bin that begins at `at`, or before it: of those from `low` on, by where they begin.
template <bool AT_HAND, class First> SYMMEM_FN u32 bin_of(const Matrix<AT_HAND>& m, First first, u64 at, u32 low) {
  u32 high = m.minor - 1;
  while (low < high) {
    const u32 middle = low + (high - low + 1) / 2;
    if (first(middle) <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

// One target's pieces, in the order in which a warp sends some of them.
struct Pieces {
  u32 target, bin;
  u64 before, end;  // of all pieces: those of targets before, and of this one and those
  u64 output;
};

template <bool AT_HAND> SYMMEM_FN void send_piece(const Matrix<AT_HAND>& m, Pieces& of, u64 index) {
  SYMMEM_STALL_WARP(m.lane.host, STALL_PUT_DATA);
  const u64 piece = index - of.before;
  of.bin = bin_of(m, [&](u32 bin) { return m.first_piece(of.target, bin); }, piece, of.bin);
  const Entry entry = m.entry(of.target, of.bin);
  const u64 at = (piece - entry.first) * PIECE;
  copy_piece(m.p.input + entry.from + at, of.output + entry.to + at, (u32)least(entry.bytes - at, PIECE));
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

// The vectors of one warp, which belong together at `base` if the first and the last of them are of one run, at an
// address of theirs; else each of them has a place of its own, `at(vector)`, or none, which is 0.
template <class At> SYMMEM_FN void load_lines(Lines& lines, bool together, u64 base, u64 u, u64 count, At at) {
  if (SYMMEM_LIKELY(together && base % 16 == 0)) return lines.load(base, u, count);
#pragma unroll
  for (u32 k = 0; k < 4; k++) {
    const u64 from = at(Lines::first(u) + k * Lines::apart());
    lines.v[k] = from != 0 && !(k == 3 && Lines::is_last()) ? load_any(runs_of(from, 16, 16), 0, 16) : Vector{};
  }
}
template <class At> SYMMEM_FN void store_lines(const Lines& lines, bool together, u64 base, u64 u, u64 count, At at) {
  if (SYMMEM_LIKELY(together && base % 16 == 0)) return lines.store(base, u, count);
#pragma unroll
  for (u32 k = 0; k < 4; k++) {
    const u64 to = at(Lines::first(u) + k * Lines::apart());
    if (to != 0 && !(k == 3 && Lines::is_last())) store_any(runs_of(to, 16, 16), 0, 16, lines.v[k]);
  }
}

// Warp by warp, what goes in lines, to the next rank first, or comes; `act(rank, warp, vectors)` says whether all
// goes on.
template <class Count, class Act> SYMMEM_FN bool each_lines(const Matrix<true>& m, Count count, Act act) {
  const u32 warps = grid_size() * (workers() / 32);
  u32 next = block_index() + grid_size() * warp_index(), before = 0;
  bool ok = true;
  for_peers<0>(m.lane, [&](u32 r) {
    const u32 vectors = count(r), end = before + (vectors + Lines::VECTORS - 1) / Lines::VECTORS;
    for (; ok && next < end; next += warps) ok = act(r, next - before, vectors);
    before = end;
  });
  return ok;
}

SYMMEM_FN void send_lines(const Matrix<true>& m, const Step& step) {
  auto count = [&](u32 r) { return m.goes_in_lines(r) ? m.shared.out[r] : 0; };
  each_lines(m, count, [&](u32 r, u32 u, u32 vectors) {
    const Entry* entries = m.shared.entries + r * (m.minor + 1);
    auto first = [&](u32 bin) { return entries[bin].first; };
    const u64 begin = u * Lines::VECTORS, end = least(begin + Lines::VECTORS, vectors);
    const u32 bin = bin_of(m, first, begin, 0);
    auto base = [&](u32 bin) { return m.p.input + entries[bin].from - entries[bin].first * 16; };
    Lines lines;
    load_lines(lines, end <= first(bin + 1), base(bin), u, vectors, [&](u64 at) { return at < end ? base(bin_of(m, first, at, bin)) + at * 16 : 0; });
    SYMMEM_STALL_WARP(m.lane.host, STALL_PUT_PACKET);
    lines.put(lines_to(m.lane, step.parity, r), u, step.epoch);
    return true;
  });
}

// False if a wait ended without its rows.
SYMMEM_FN bool take_lines(const Matrix<true>& m, const Step& step) {
  Gate gate;
  auto count = [&](u32 r) { return m.comes_in_lines(r) ? m.shared.in[r] : 0; };
  return each_lines(m, count, [&](u32 r, u32 u, u32 vectors) {
    Lines lines;
    const u64 from = lines_from(m.lane, step.parity, r);
    SYMMEM_STALL_WARP(m.lane.host, STALL_POLL_PACKET);
    if (!await<true>(m.lane, step.epoch, gate, r, [&] { return lines.poll(from, u, step.epoch); })) return false;
    const Run* runs = m.shared.runs + r * (m.minor + 1);
    auto first = [&](u32 bin) { return runs[bin].first; };
    const u64 begin = u * Lines::VECTORS, end = least(begin + Lines::VECTORS, vectors);
    const u32 bin = bin_of(m, first, begin, 0);
    auto base = [&](u32 bin) { return m.p.output + runs[bin].to - runs[bin].first * 16; };
    auto place = [&](u64 at) -> u64 {
      if (at >= end) return 0;
      const u32 of = bin_of(m, first, at, bin);
      return at < runs[of].end ? base(of) + at * 16 : 0;
    };
    store_lines(lines, end <= runs[bin].end, base(bin), u, vectors, place);
    return true;
  });
}

#else

SYMMEM_FN void send_lines(const Matrix<true>&, const Step&) {}
SYMMEM_FN bool take_lines(const Matrix<true>&, const Step&) { return true; }

#endif

// Sends what goes in lines. Every thread of the block calls it.
SYMMEM_FN void send_few(const Matrix<true>& m, const Step& step) {
  if (m.most_lines == 0) return;
  if (is_worker()) {
#pragma unroll 1
    for (u32 target = warp_index(); target < m.world; target += workers() / 32) {
      if (target == m.me) continue;
      const u32 count = vectors_of(m, m.me, target);
      if (warp_thread() == 0) m.shared.out[target] = count;
      if (count != DIRECT && count != 0) walk(m, m.me, target, SEND);
    }
  }
  block_sync();
  // Of wrong splits nothing goes.
  if (is_worker() && m.wrong.what == 0) send_lines(m, step);
}

// Moves all else, once the verdict is that all goes; false if what was to come has not. Every thread of the block
// calls it.
template <bool AT_HAND> SYMMEM_FN bool move_rows(const Matrix<AT_HAND>& m, const Step& step) {
  bool ok = true;
  if (is_worker()) {
    send_rows(m);
    if constexpr (AT_HAND) ok = m.most_lines == 0 || take_lines(m, step);
  } else if (block_index() == 0) {
    walk(m, m.me, m.me, TELL);
  }
  bool direct = false;
#pragma unroll 1
  for (u32 r = 0; r < m.world; r++) direct |= r != m.me && !(m.goes_in_lines(r) && m.comes_in_lines(r));
  if (!direct) return ok;
  auto to = [&](u32 r) { return !m.goes_in_lines(r); };
  auto from = [&](u32 r) { return !m.comes_in_lines(r); };
  return part(m.lane, step, to, from) && ok;
}

template <bool AT_HAND> SYMMEM_FN void exchange(const Vdev& p, Shared& shared, Headers& headers) {
  const Lane& lane = p.lane;
  Matrix<AT_HAND> m(p, shared);
  // On its way while the epoch is.
  const u64 ahead = thread_index() < m.splits ? m.own_split(thread_index()) : 0;
  Step step{};
  const bool entered = enter(lane, step);
  // A lane may be closed between two threads' looks; warps go on whole.
  if (block_any(!entered)) return;
  m.begin(step);
  m.wrong = check(m, ahead);
  m.keep_own(0, HEAD);
  if (!await_clear(lane, step)) return;
  announce(m, step, headers);
  if constexpr (AT_HAND) send_few(m, step);
  bool ok = hear(m, step, headers), moves = false;
  if (ok) {
    const Verdict verdict = judge(m);
    moves = verdict.rank == 0;
    if (moves) ok = move_rows(m, step);
    else if (block_index() == 0) refuse(m, verdict);
    // Of long messages block 0 has raised flags, which other blocks poll: then all do.
    if (!moves && m.staged) ok = part(lane, step);
  }
  const bool of_group = p.group_completion != 0;
  ok = complete(lane, of_group, step, ok);
  exit(lane, step, ok, Used{ALL, m.staged ? 0 : m.words, moves || m.staged || of_group});
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
