// messages.cuh: how ranks tell each other how many rows they have for whom, before a row moves; and how rows move
// then.
//
// Block 0 of every rank sends every peer one message, of as many words everywhere; every block of the peer reads
// all of them and computes for itself what follows: none waits for another of its grid before rows move. A message
// also says that its writer is in the call, so that its output may be written. Messages stay where they are until
// the second operation after this one, so that nobody copies them who has read them.

#ifndef SYMMEM_MESSAGES_CUH
#define SYMMEM_MESSAGES_CUH

#include "payload.cuh"

namespace symmem {
namespace messages {

// What became of a call. The host reads it, and clears `rank`.
struct alignas(16) Status {
  u64 rank;  // 1 + the rank that it is about, written last
  u64 what, value, limit;
  u64 dropped;  // rows so far
};

// Why nothing moves.
struct Finding {
  u64 what, value, limit;
};
constexpr u64 OVERFLOW = 1, NEGATIVE = 2, PAST_INPUT = 3, OUTSIDE_INPUT = 4, NO_EXPERT = 5, WRONG_TOKENS = 6;
SYMMEM_FN Finding finding(u64 code, u64 index, u64 value, u64 limit) { return Finding{code | index << 8, value, limit}; }

// For whom: 1 + the rank, or 0.
struct Verdict {
  u64 rank;
  Finding why;
};

// Words of a message before those that count rows: one of the operation's own, and a finding.
constexpr u32 HEAD = 4;

// Bytes that a warp moves at a time.
constexpr u32 PIECE = 2048;
SYMMEM_FN u64 pieces_of(u64 bytes) { return (bytes + PIECE - 1) / PIECE; }

constexpr u64 NOTHING = ~0ull;

constexpr u32 MOST_WARPS = 9;

// What flags say.
constexpr u32 MESSAGE = 1, ROWS = 2;

// ------------------------------------------------------------------------------------- sums

// Those of rows saturate: no output has room for as many.
SYMMEM_FN u64 add(u64 a, u64 b) { return a + b < a ? ~0ull : a + b; }
SYMMEM_FN u64 least(u64 a, u64 b) { return a < b ? a : b; }
SYMMEM_FN u64 most(u64 a, u64 b) { return a > b ? a : b; }

// By 32 bits where that does.
SYMMEM_FN u64 quotient(u64 a, u64 b) { return (a | b) >> 32 ? a / b : (u32)a / (u32)b; }
SYMMEM_FN u64 remainder(u64 a, u64 b) { return (a | b) >> 32 ? a % b : (u32)a % (u32)b; }

SYMMEM_FN u32 warp_index() { return thread_index() / 32; }
SYMMEM_FN u32 warp_thread() { return thread_index() % 32; }

// Functions out of line take what describes a call by value: of something whose address is known elsewhere no
// register keeps a part, and what is shared, or an argument of the kernel, is read as memory of any sort. Loops stay
// loops, since kernels go through most of this code once.

// Of the values of a warp's threads, by all of them.
template <class T, class Join> SYMMEM_FN T of_warp(T mine, Join join) {
#pragma unroll 1
  for (u32 step = 1; step < 32; step *= 2) mine = join(mine, warp_read(mine, warp_thread() ^ step));
  return mine;
}
// The sum of the values of the threads before this one, and of all.
SYMMEM_FN u64 sum_before(u64 mine, u64& all) {
  const u32 t = warp_thread();
#pragma unroll 1
  for (u32 step = 1; step < 32; step *= 2) {
    const u64 lower = warp_read(mine, t < step ? t : t - step);
    if (t >= step) mine = add(mine, lower);
  }
  all = warp_read(mine, 31);
  const u64 before = warp_read(mine, t == 0 ? 0 : t - 1);
  return t == 0 ? 0 : before;
}

SYMMEM_FN u64 kept_rows(u64 rows, u64 at, u64 end) { return at < end ? least(rows, end - at) : 0; }

// --------------------------------------------------------------------------------- messages

// What the ranks have told each other. `M` says what this rank tells: `own_word(i)`. AT_HAND: all of it is shared by
// the block; else what peers have told is in staging, by every block the same.
template <class M, bool AT_HAND> struct Messages {
  const Lane& lane;
  u64* at_hand;
  u32 parity, world, me;
  u32 words;  // of a rank

  SYMMEM_FN Messages(const Lane& lane, u32 words, u64* at_hand)
      : lane(lane), at_hand(at_hand), parity(0), world(lane.world), me(lane.rank), words(words) {}

  // Whether messages are too long for packets.
  SYMMEM_FN bool is_staged() const { return !AT_HAND && words > lane.packet_count; }

  SYMMEM_FN u64 own(u32 i) const { return static_cast<const M*>(this)->own_word(i); }
  SYMMEM_FN u64* staged_words(u32 source) const { return pointer<u64>(staging_from(lane, parity, source)); }

  SYMMEM_FN u64 word(u32 source, u32 i) const {
    if constexpr (AT_HAND) return at_hand[source * words + i];
    else return source == me ? own(i) : load_element<u64>(staged_words(source) + i);
  }
  SYMMEM_FN void keep(u32 source, u32 i, u64 value) const {
    if constexpr (AT_HAND) at_hand[source * words + i] = value;
    else store_element<u64>(staged_words(source) + i, value);
  }
  // Has this rank's own words `first..end` at hand, before the block's threads meet and before any word is asked for.
  SYMMEM_FN void keep_own(u32 first, u32 end) const {
    if constexpr (AT_HAND)
      for (u32 i = first + thread_index(); i < end; i += block_size()) keep(me, i, own(i));
  }
};

// Whether messages of so many words are at hand where there is room for as many as `room`.
SYMMEM_FN bool fit_at_hand(const Lane& lane, u32 words, u32 room) { return words <= lane.packet_count && (u64)lane.world * words <= room; }

// This rank's message to every peer, by the workers of block 0.
template <class M> SYMMEM_FN void send_message(const M& m, const Step& step) {
  const Lane& lane = m.lane;
#pragma unroll 1
  for (u32 i = thread_index(); i < m.words; i += workers()) {
    const u64 word = m.own(i);
    for_peers<0>(lane, [&](u32 r) {
      if (m.is_staged()) {
        SYMMEM_STALL(lane.host, STALL_WRITE_STAGING);
        store_element<u64>(pointer<u64>(staging_to(lane, step.parity, r)) + i, word);
      } else {
        SYMMEM_STALL(lane.host, STALL_PUT_PACKET);
        store_pair(pointer<void>(packets_to(lane, step.parity, r) + i * 16ull), Pair{step.tag | (word & 0xffffffff), step.tag | word >> 32});
      }
    });
  }
}

// All messages in packets, by a block; false if one did not come. Most are short: then they are the sync warp's, while
// the others do what needs none. A thread has the words of several peers under way at once.
template <class M> SYMMEM_FN bool take_packets(const M& m, const Step& step) {
  constexpr u32 U = 4;
  const Lane& lane = m.lane;
  Gate gate;
  SYMMEM_STALL(lane.host, STALL_POLL_PACKET);
#pragma unroll 1
  for (u32 i = is_worker() ? 32 + thread_index() : sync_thread(); i < m.words; i += block_size()) {
#pragma unroll 1
    for (u32 first = 0; first < m.world; first += U) {
      u64 words[U];
      u32 missing = m.me;
      auto ready = [&] {
        bool here = true;
#pragma unroll
        for (u32 k = 0; k < U; k++) {
          const u32 source = first + k;
          if (source >= m.world || source == m.me) continue;
          const Pair found = load_pair(pointer<void>(packets_from(lane, step.parity, source) + i * 16ull));
          words[k] = (found.a & 0xffffffff) | found.b << 32;
          if (found.a >> 32 == step.epoch && found.b >> 32 == step.epoch) continue;
          here = false, missing = source;
        }
        return here;
      };
      if (!await_of(lane, step.epoch, gate, [&] { return missing; }, ready)) return false;
#pragma unroll
      for (u32 k = 0; k < U; k++)
        if (first + k < m.world && first + k != m.me) m.keep(first + k, i, words[k]);
    }
  }
  return true;
}

// Whether the message of a peer is in staging: block 0 says so to all blocks.
SYMMEM_FN bool poll_message(const Lane& lane, const Step& step, u32 writer) {
  const u64 found = load_acquire(flag_at(lane, lane.own, step.parity, writer, 0));
  return found >> 32 == step.epoch && (u32)found >= MESSAGE;
}

// Tells every peer. Every thread of the block calls it.
template <class M> SYMMEM_FN void announce(const M& m, const Step& step, Headers& headers) {
  if (!is_worker()) headers.publish(m.lane, step);
  if (block_index() != 0) return;
  if (is_worker()) send_message(m, step);
  if (!m.is_staged()) return;
  block_sync();
  if (!is_worker()) raise_flags(m.lane, step, MESSAGE);
}

// Takes what the peers tell, all in the same call; false if one is not, or does not come. Every thread of the
// block calls it, and all get the same answer.
template <class M> SYMMEM_FN bool hear(const M& m, const Step& step, Headers& headers) {
  const Lane& lane = m.lane;
  bool ok = true;
  // Headers first: a peer in another call may send nothing that is waited for here.
  if (!is_worker()) ok = headers.compare(lane, step, [&](u32 r) { return !m.is_staged() || poll_message(lane, step, r); });
  if (ok && !m.is_staged()) ok = take_packets(m, step);
  return !block_any(!ok);
}

template <class M> SYMMEM_FN bool meet(const M& m, const Step& step, Headers& headers) {
  announce(m, step, headers);
  return hear(m, step, headers);
}

// Of calls that tell nothing: whether all ranks are in the same one. What they stored in operations before it is
// there then. Every thread of the block calls it, and all get the same answer.
SYMMEM_FN bool agree(const Lane& lane, const Step& step, Headers& headers) {
  bool ok = true;
  if (!is_worker()) {
    // Nor is a header a releasing store: what kernels before this one stored must be there for whoever sees it.
    fence_system();
    headers.publish(lane, step);
    ok = headers.compare(lane, step, [](u32) { return true; });
    // Headers are no acquiring loads.
    fence_system();
  }
  return !block_any(!ok);
}

// Tells those peers to whom this block has stored rows, `to`, that they are there, and awaits those of the peers
// that have stored some here, `from`. Every thread of the block calls it, and the sync warp says whether all have
// come.
template <class To, class From> SYMMEM_FN bool part(const Lane& lane, const Step& step, To to, From from) {
  block_sync();
  if (is_worker()) return true;
  Gate gate;
  raise_flags(lane, step, ROWS, to);
  return await_flags(lane, step, gate, ROWS, from);
}
SYMMEM_FN bool part(const Lane& lane, const Step& step) {
  auto all = [](u32) { return true; };
  return part(lane, step, all, all);
}

// The same to and from all blocks of all ranks, this one's own too: every thread of the block calls it, and all get
// the same answer. What any of them has stored is there then.
SYMMEM_FN bool part_of_all(const Lane& lane, const Step& step) {
  block_sync();
  if (!is_worker()) {
    raise_flags(lane, step, ROWS);
    if (sync_thread() == 0) raise(lane, step, lane.rank, ROWS);
  }
  const u32 blocks = grid_size(), flags = lane.world * blocks;
  bool ok = true;
  Gate gate;
  SYMMEM_STALL(lane.host, STALL_AWAIT_FLAG);
  for (u32 i = thread_index(); ok && i < flags; i += block_size()) {
    const u32 writer = i / blocks;
    const u64* flag = flag_at(lane, lane.own, step.parity, writer, i - writer * blocks);
    ok = await(lane, step.epoch, gate, writer, [&] {
      const u64 found = load_acquire(flag);
      return found >> 32 == step.epoch && (u32)found >= ROWS;
    });
  }
  return !block_any(!ok);
}

// ---------------------------------------------------------------------------------- verdict

// The first rank that has found something wrong with what it was given. By whole warps.
template <class M> SYMMEM_FN Verdict first_finding(const M& m) {
  u64 wrong = NOTHING;
  for (u32 r = warp_thread(); r < m.world && wrong == NOTHING; r += 32)
    if (m.word(r, 1) != 0) wrong = r;
  wrong = of_warp(wrong, least);
  if (wrong == NOTHING) return Verdict{};
  const u32 r = (u32)wrong;
  return Verdict{wrong + 1, Finding{m.word(r, 1), m.word(r, 2), m.word(r, 3)}};
}

// Writes why nothing moves, by one thread. Kernels of a lane write its status one after the other.
SYMMEM_FN void tell_host(u64 at, const Verdict& verdict) {
  Status* status = pointer<Status>(at);
  // Unless the host has yet to take what is there.
  if (load_acquire(&status->rank) != 0) return;
  store_relaxed(&status->what, verdict.why.what);
  store_relaxed(&status->value, verdict.why.value);
  store_relaxed(&status->limit, verdict.why.limit);
  store_release(&status->rank, verdict.rank);
}

// Counts rows that were dropped, by one thread.
SYMMEM_FN void count_dropped(u64 at, u64 dropped) {
  u64* count = &pointer<Status>(at)->dropped;
  if (dropped != 0) store_relaxed(count, load_relaxed(count) + dropped);
}

// ------------------------------------------------------------------------------------- rows

// At most a piece, of which each thread of a warp has some: whole pieces at addresses of vectors fast.
struct Piece {
  static constexpr u32 U = PIECE / 512;
  Vector v[U];

  static SYMMEM_FN u32 first() { return warp_thread() * 16; }
  static SYMMEM_FN bool is_whole(u64 address, u32 bytes) { return bytes == PIECE && address % 16 == 0; }

  SYMMEM_FN void load(u64 from, u32 bytes);
  SYMMEM_FN void store(u64 to, u32 bytes) const;
};

__device__ __attribute__((noinline)) inline Piece load_narrow(u64 from, u32 bytes) {
  const Runs source = runs_of(from, PIECE, PIECE);
  Piece piece;
#pragma unroll
  for (u32 k = 0; k < Piece::U; k++) {
    const u32 at = Piece::first() + k * 512;
    if (at + 16 <= bytes && from % 16 == 0) piece.v[k] = load_vector(pointer<void>(from + at));
    else if (at < bytes) piece.v[k] = load_any(source, at, bytes);
  }
  return piece;
}
__device__ __attribute__((noinline)) inline void store_narrow(u64 to, u32 bytes, Piece piece) {
  const Runs target = runs_of(to, PIECE, PIECE);
#pragma unroll
  for (u32 k = 0; k < Piece::U; k++) {
    const u32 at = Piece::first() + k * 512;
    if (at + 16 <= bytes && to % 16 == 0) store_vector(pointer<void>(to + at), piece.v[k]);
    else if (at < bytes) store_any(target, at, bytes, piece.v[k]);
  }
}
SYMMEM_FN void Piece::load(u64 from, u32 bytes) {
  if (SYMMEM_LIKELY(is_whole(from, bytes))) {
#pragma unroll
    for (u32 k = 0; k < U; k++) v[k] = load_vector(pointer<void>(from + first() + k * 512));
  } else {
    *this = load_narrow(from, bytes);
  }
}
SYMMEM_FN void Piece::store(u64 to, u32 bytes) const {
  if (SYMMEM_LIKELY(is_whole(to, bytes))) {
#pragma unroll
    for (u32 k = 0; k < U; k++) store_vector(pointer<void>(to + first() + k * 512), v[k]);
  } else {
    store_narrow(to, bytes, *this);
  }
}

SYMMEM_FN void copy_piece(u64 from, u64 to, u32 bytes) {
  Piece piece;
  piece.load(from, bytes);
  piece.store(to, bytes);
}

}  // namespace messages
}  // namespace symmem

#endif  // SYMMEM_MESSAGES_CUH
