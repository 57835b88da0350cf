// vdev.cu: all-to-all-v with splits on the device.
//
// All ranks tell each other their splits; with those every block knows where every row goes, and whether all fit.
// No row is stored before all have come and the calls are equal. Rows go from the input straight to their place;
// then blocks of equal index tell each other that theirs are there.

#include "vdev.cuh"

namespace symmem {
namespace vdev {

// ---------------------------------------------------------------------------------- verdict

// The first rank whose splits are wrong; else the first whose output has no room. Makes the entries of all
// ranks on the way. Every thread of the block calls it, and all blocks of all ranks get the same.
SYMMEM_FN Verdict judge(const Matrix& m) {
  const Verdict found = first_finding(m);
  if (found.rank != 0) return found;
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

// What is told of a call that moves nothing, by block 0.
SYMMEM_FN void refuse(const Matrix& m, const Verdict& verdict) {
  for (u32 i = thread_index(); i < 2 * m.splits; i += block_size()) store_element<u64>(pointer<u64>(m.p.out_splits) + i, 0);
  if (thread_index() == 0) tell_host(m.p.status, verdict);
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
  if (warp_thread() == 0) count_dropped(m.p.status, dropped);
}

// ------------------------------------------------------------------------------------- rows

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
  m.wrong = check(m);
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
    ok = part(lane, step);
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
