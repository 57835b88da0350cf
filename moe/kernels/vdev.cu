// vdev.cu: all-to-all-v with splits on the device.
//
// Block 0 of every rank tells every peer its splits; every block of the peer reads them, and with those of all
// ranks knows where every row goes, and whether all fit. A message says that its writer is in the call, so that
// its output may be written: no row is stored before all have come and the calls are equal. Rows go from the
// input straight to their place; then blocks of equal index tell each other that theirs are there.
//
// Messages stay where they are until the second operation after this one, so that nobody copies them who has
// read them.

#include "vdev.cuh"

namespace symmem {
namespace vdev {

// What flags say.
constexpr u32 MESSAGE = 1, ROWS = 2;

// --------------------------------------------------------------------------------- messages

// This rank's message to every peer, by the workers of block 0.
SYMMEM_FN void send_message(const Matrix& m, const Step& step) {
  const Lane& lane = m.p.lane;
  for (u32 i = thread_index(); i < m.words; i += workers()) {
    const u64 word = m.own_word(i);
    for_peers<0>(lane, [&](u32 r) {
      if (m.staged) {
        SYMMEM_STALL(lane.host, STALL_WRITE_STAGING);
        store_element<u64>(pointer<u64>(staging_to(lane, step.parity, r)) + i, word);
      } else {
        SYMMEM_STALL(lane.host, STALL_PUT_PACKET);
        store_pair(pointer<void>(packets_to(lane, step.parity, r) + i * 16ull), Pair{step.tag | (word & 0xffffffff), step.tag | word >> 32});
      }
    });
  }
}

// All messages in packets, by the workers of a block; false if one did not come. A thread has several words
// under way at once.
SYMMEM_FN bool take_packets(const Matrix& m, const Step& step) {
  constexpr u32 U = 4;
  const Lane& lane = m.p.lane;
  const u32 n = workers(), count = m.world * m.words;
  Gate gate;
  SYMMEM_STALL(lane.host, STALL_POLL_PACKET);
  for (u32 at = thread_index(); at < count; at += U * n) {
    u64 words[U];
    u32 missing = m.me;
    auto ready = [&] {
      bool here = true;
#pragma unroll
      for (u32 k = 0; k < U; k++) {
        const u32 source = (at + k * n) / m.words, i = at + k * n - source * m.words;
        if (at + k * n >= count || source == m.me) continue;
        const Pair found = load_pair(pointer<void>(packets_from(lane, step.parity, source) + i * 16ull));
        words[k] = (found.a & 0xffffffff) | found.b << 32;
        if (found.a >> 32 == step.epoch && found.b >> 32 == step.epoch) continue;
        here = false, missing = source;
      }
      return here;
    };
    if (!await_of(lane, step.epoch, gate, [&] { return missing; }, ready)) return false;
#pragma unroll
    for (u32 k = 0; k < U; k++) {
      const u32 source = (at + k * n) / m.words, i = at + k * n - source * m.words;
      if (at + k * n < count) m.keep(source, i, source == m.me ? m.own_word(i) : words[k]);
    }
  }
  return true;
}

// Whether the message of a peer is in staging: block 0 says so to all blocks.
SYMMEM_FN bool poll_message(const Lane& lane, const Step& step, u32 writer) {
  const u64 found = load_acquire(flag_at(lane, lane.own, step.parity, writer, 0));
  return found >> 32 == step.epoch && (u32)found >= MESSAGE;
}

// Tells every peer, and takes what they tell, all in the same call; false if one is not, or does not come.
// Every thread of the block calls it, and all get the same answer.
SYMMEM_FN bool meet(const Matrix& m, const Step& step, Headers& headers) {
  const Lane& lane = m.p.lane;
  if (!is_worker()) headers.publish(lane, step);
  if (block_index() == 0) {
    if (is_worker()) send_message(m, step);
    if (m.staged) {
      block_sync();
      if (!is_worker()) raise_flags(lane, step, MESSAGE);
    }
  }
  bool ok = true;
  if (!is_worker()) ok = headers.compare(lane, step, [&](u32 r) { return !m.staged || poll_message(lane, step, r); });
  else if (!m.staged) ok = take_packets(m, step);
  return !block_any(!ok);
}

// ---------------------------------------------------------------------------------- verdict

// Why nothing moves, and for whom: 1 + the rank, or 0.
struct Verdict {
  u64 rank;
  Finding why;
};

// The first rank whose splits are wrong; else the first whose output has no room. Makes the entries of all
// ranks on the way. Every thread of the block calls it, and all blocks of all ranks get the same.
SYMMEM_FN Verdict judge(const Matrix& m) {
  u64 wrong = NOTHING;
  for (u32 r = warp_thread(); r < m.world && wrong == NOTHING; r += 32)
    if (m.word(r, 1) != 0) wrong = r;
  wrong = of_warp(wrong, least);
  if (wrong != NOTHING) {
    const u32 r = (u32)wrong;
    return Verdict{wrong + 1, Finding{m.word(r, 1), m.word(r, 2), m.word(r, 3)}};
  }
  const u32 warps = workers() / 32;
  if (is_worker()) {
    u64 overflow = NOTHING, needed = 0;
#pragma unroll 1
    for (u32 target = warp_index(); target < m.world; target += warps) {
      const u64 rows = place_own(m, target);
      if (overflow == NOTHING && rows > m.capacity(target)) overflow = target, needed = rows;
    }
    if (warp_thread() == 0) m.shared.overflow[warp_index()] = overflow, m.shared.needed[warp_index()] = needed;
  }
  block_sync();
  u64 overflow = NOTHING, needed = 0;
  for (u32 w = 0; w < warps; w++)
    if (m.shared.overflow[w] < overflow) overflow = m.shared.overflow[w], needed = m.shared.needed[w];
  if (overflow == NOTHING || m.p.drop) return Verdict{0, {}};
  return Verdict{overflow + 1, finding(OVERFLOW, 0, needed, m.capacity((u32)overflow))};
}

// What is told of a call that moves nothing, by block 0. Kernels of a lane write its status one after the other.
SYMMEM_FN void refuse(const Matrix& m, const Verdict& verdict) {
  for (u32 i = thread_index(); i < 2 * m.splits; i += block_size()) store_element<u64>(pointer<u64>(m.p.out_splits) + i, 0);
  if (thread_index() != 0) return;
  Status* status = pointer<Status>(m.p.status);
  // Unless the host has yet to take what is there.
  if (load_acquire(&status->rank) != 0) return;
  store_relaxed(&status->what, verdict.why.what);
  store_relaxed(&status->value, verdict.why.value);
  store_relaxed(&status->limit, verdict.why.limit);
  store_release(&status->rank, verdict.rank);
}

// The splits that this rank receives, and how many rows are dropped, by one warp.
SYMMEM_FN void put_splits(const Matrix& m) {
  const u64 capacity = m.capacity(m.me);
  u64* out = pointer<u64>(m.p.out_splits);
  u64 dropped = 0;
  place(m, m.me, [&](u32 major, u64 at) {
    if (major >= m.majors()) return;
#pragma unroll 1
    for (u32 minor = 0; minor < m.minors(); minor++) {
      const u64 rows = m.rows_at(m.me, major, minor), kept = kept_rows(rows, at, capacity);
      const u64 i = (u64)major * m.minors() + minor;
      store_element<u64>(out + i, kept);
      store_element<u64>(out + m.splits + i, least(at, ~0ull >> 1));
      at = add(at, rows), dropped = add(dropped, rows - kept);
    }
  });
  dropped = of_warp(dropped, add);
  u64* count = &pointer<Status>(m.p.status)->dropped;
  if (warp_thread() == 0 && dropped != 0) store_relaxed(count, load_relaxed(count) + dropped);
}

// ------------------------------------------------------------------------------------- rows

// Copies at most a piece, by a warp: by vectors where an address allows them, on either side.
SYMMEM_FN void copy_piece(u64 from, u64 to, u32 bytes) {
  constexpr u32 U = PIECE / 512;
  const u32 first = warp_thread() * 16;
  const bool loads = from % 16 == 0, stores = to % 16 == 0;
  Vector v[U];
  if (bytes == PIECE && loads && stores) {
#pragma unroll
    for (u32 k = 0; k < U; k++) v[k] = load_vector(pointer<void>(from + first + k * 512));
#pragma unroll
    for (u32 k = 0; k < U; k++) store_vector(pointer<void>(to + first + k * 512), v[k]);
    return;
  }
  const Runs source = runs_of(from, PIECE, PIECE), target = runs_of(to, PIECE, PIECE);
#pragma unroll
  for (u32 k = 0; k < U; k++) {
    const u32 at = first + k * 512;
    if (at + 16 <= bytes && loads) v[k] = load_vector(pointer<void>(from + at));
    else if (at < bytes) v[k] = load_any(source, at, bytes);
  }
#pragma unroll
  for (u32 k = 0; k < U; k++) {
    const u32 at = first + k * 512;
    if (at + 16 <= bytes && stores) store_vector(pointer<void>(to + at), v[k]);
    else if (at < bytes) store_any(target, at, bytes, v[k]);
  }
}

// The last bin that begins at a piece, or before it.
SYMMEM_FN u32 bin_of(const Matrix& m, u32 target, u64 piece, u32 low) {
  u32 high = m.minor - 1;
  while (low < high) {
    const u32 middle = low + (high - low + 1) / 2;
    if (m.first_piece(target, middle) <= piece) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Rows to all ranks, piece by piece: the pieces of the next rank first, this rank's own last, dealt out to the
// warps of all blocks in turns, so that none has two more than another.
SYMMEM_FN void send_rows(const Matrix& m) {
  const Vdev& p = m.p;
  const u64 warps = (u64)grid_size() * (workers() / 32);
  u64 next = block_index() + (u64)grid_size() * warp_index(), before = 0;
  auto send = [&](u32 target, u64 output) {
    const u64 end = before + m.first_piece(target, m.minor);
    u32 bin = 0;
    for (; next < end; next += warps) {
      SYMMEM_STALL_WARP(p.lane.host, STALL_PUT_DATA);
      const u64 piece = next - before;
      bin = bin_of(m, target, piece, bin);
      const Entry entry = m.entry(target, bin);
      const u64 at = (piece - entry.first) * PIECE, left = entry.bytes - at;
      copy_piece(p.input + entry.from + at, output + entry.to + at, left < PIECE ? (u32)left : PIECE);
    }
    before = end;
  };
  for_peers<0>(p.lane, [&](u32 r) { send(r, pointer<const u64>(p.peers)[r] + p.peer_offset); });
  send(m.me, p.output);
}

SYMMEM_FN void exchange(const Vdev& p) {
  SYMMEM_SHARED(Shared, shared);
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  Matrix m(p, shared);
  // Before the epoch is known.
  m.own = check(m);
  Step step{};
  // A lane may be closed between two threads' looks; warps go on whole.
  if (block_any(!enter(lane, step))) return;
  if (!await_clear(lane, step)) return;
  m.parity = step.parity;
  bool ok = meet(m, step, headers);
  if (ok) {
    const Verdict verdict = judge(m);
    if (verdict.rank != 0) {
      if (block_index() == 0) refuse(m, verdict);
    } else if (is_worker()) {
      send_rows(m);
    } else if (block_index() == 0) {
      put_splits(m);
    }
    block_sync();
    if (!is_worker()) {
      Gate gate;
      raise_flags(lane, step, ROWS);
      ok = await_flags(lane, step, gate, ROWS);
    }
  }
  ok = complete(lane, p.group_completion != 0, step, ok);
  exit(lane, step, ok, Used{ALL, m.staged ? 0 : m.words, true});
}

}  // namespace vdev
}  // namespace symmem

extern "C" __global__ void __launch_bounds__(288, 1) all_to_all_vdev(const SYMMEM_ARGS symmem::Vdev plan) {
  symmem::fetch_arguments(plan);
  symmem::vdev::exchange(plan);
}
