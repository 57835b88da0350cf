// landing.cu: dispatch and combine in halves.
//
// A landing has room for whatever a rank may send, so that nothing is told first. Each half is an operation of its
// own on one lane, and those follow each other: whose header of a receive half is there has ended the send half
// before it, so that no other word says that rows have come. A peer that is in a send half has its landing free.

#include "combine.cuh"

namespace symmem {

namespace routing {

// Does `body` once every rank is in the same call. What it has stored is there for whoever sees this rank in the
// next one.
template <class Body> SYMMEM_FN void half(const Lane& lane, const Routed& routed, Body body) {
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  Step step{};
  // A lane may be closed between two threads' looks; warps go on whole.
  if (block_any(!enter(lane, step))) return;
  if (!await_clear(lane, step)) return;
  bool ok = agree(lane, step, headers);
  if (ok) {
    body();
    block_sync();
    if (!is_worker()) fence_system();
  }
  const bool of_group = routed.group_completion != 0;
  ok = complete(lane, of_group, step, ok);
  exit(lane, step, ok, Used{ALL, 0, of_group});
}

// ----------------------------------------------------------------------------------- dispatch

// How many rows went to each rank of the window, by the block's threads.
SYMMEM_FN void store_arrivals(const DispatchSend& p, const Tokens& t, u32 base, const Finding& wrong) {
  for (u32 i = thread_index(); i < WINDOW && base + i < t.shape.world; i += block_size()) {
    u64* words = pointer<u64>(pointer<const u64>(p.arrival_peers)[base + i] + p.arrival_offset) + p.lane.rank * (sizeof(Arrival) / 8);
    store_element<u64>(words, wrong.what != 0 ? 0 : t.counted.total[i]);
    store_element<u64>(words + 1, wrong.what), store_element<u64>(words + 2, wrong.value), store_element<u64>(words + 3, wrong.limit);
  }
}

SYMMEM_FN void dispatch_send(const DispatchSend& p) {
  SYMMEM_SHARED(Counted, counted);
  half(p.lane, p.routed, [&] {
    const Given given{p.indices, p.weights, p.count, p.source_rows, p.index};
    const Tokens t(p.lane, p.routed, given, tokens_of(given), counted);
#pragma unroll 1
    for (u32 base = 0; base < p.lane.world; base += WINDOW) {
      const Finding wrong = look_at(t, count_rows(t, base));
      if (block_index() == 0) store_arrivals(p, t, base, wrong);
      if (warp_index() == 0) place_tokens(t, base);
      block_sync();
    }
    if (block_index() == 0 && thread_index() == 0) store_element<u64>(pointer<u64>(p.routed.tokens), t.count);
    if (!is_worker()) return;
    send_records(t, Records{p.record_peers, p.record_offset, p.record_bytes});
    send_tokens(t, &p.payload, 1);
  });
}

// How many rows have come from each rank; none, if any rank's tokens were wrong. By one warp.
SYMMEM_FN void take_arrivals(const DispatchReceive& p) {
  const u32 world = p.lane.world;
  auto word = [&](u32 source, u32 i) { return load_element<u64>(pointer<u64>(p.arrivals) + source * (sizeof(Arrival) / 8) + i); };
  u64 wrong = NOTHING;
  for (u32 r = warp_thread(); r < world && wrong == NOTHING; r += 32)
    if (word(r, 1) != 0) wrong = r;
  wrong = of_warp(wrong, least);
  u64* groups = pointer<u64>(p.routed.groups);
  for (u32 r = warp_thread(); r < world; r += 32) {
    store_element<u64>(groups + r, wrong == NOTHING ? word(r, 0) : 0);
    store_element<u64>(groups + world + r, r * p.routed.max_tokens);
  }
  if (wrong == NOTHING || warp_thread() != 0) return;
  const u32 r = (u32)wrong;
  store_element<u64>(pointer<u64>(p.routed.tokens), 0);
  tell_host(p.routed.status, Verdict{wrong + 1, Finding{word(r, 1), word(r, 2), word(r, 3)}});
}

SYMMEM_FN void dispatch_receive(const DispatchReceive& p) {
  half(p.lane, p.routed, [&] {
    if (block_index() == 0 && warp_index() == 0) take_arrivals(p);
  });
}

// ------------------------------------------------------------------------------------ combine

// What was made of each rank's rows, to that rank's landing, in this rank's place there: by pieces of all ranks'
// rows, those of the next rank first.
SYMMEM_FN void send_back(const CombineSend& p) {
  const Lane& lane = p.lane;
  const u64 place = p.routed.max_tokens * p.row, warps = (u64)grid_size() * (workers() / 32);
  u64 next = block_index() + (u64)grid_size() * warp_index(), before = 0;
  auto send = [&](u32 target) {
    // Whoever wrote that, there is room for no more on either side; a negative count is none.
    const u64 told = load_element<u64>(pointer<u64>(p.routed.groups) + target);
    const u64 bytes = told >> 63 ? 0 : least(told, p.routed.max_tokens) * p.row;
    const u64 from = p.rows + target * place, to = pointer<const u64>(p.peers)[target] + p.offset + lane.rank * place;
    const u64 end = before + pieces_of(bytes);
    for (; next < end; next += warps) {
      SYMMEM_STALL_WARP(lane.host, STALL_PUT_DATA);
      const u64 at = (next - before) * PIECE;
      copy_piece(from + at, to + at, (u32)least(bytes - at, PIECE));
    }
    before = end;
  };
  for_peers<0>(lane, send);
  send(lane.rank);
}

SYMMEM_FN void combine_send(const CombineSend& p) {
  half(p.lane, p.routed, [&] {
    if (is_worker()) send_back(p);
  });
}

SYMMEM_FN void combine_receive(const CombineReceive& p) {
  const Combine& c = p.combine;
  half(c.lane, c.routed, [&] {
    // Row i of this rank's place at a rank has come back as row i of that rank's place here.
    const u64 row = row_bytes(c), place = c.routed.max_tokens * row, mine = c.lane.rank * place;
    if (is_worker()) sum_all(c, [&](u64 at) { return p.rows + rank_of(at) * place - mine + row_of(at) * row; });
  });
}

}  // namespace routing
}  // namespace symmem

#define SYMMEM_KERNEL(name, Args)                                                                  \
  extern "C" __global__ void __launch_bounds__(288, 1) name(const SYMMEM_ARGS symmem::Args plan) { \
    symmem::fetch_arguments(plan);                                                                 \
    symmem::routing::name(plan);                                                                   \
  }

SYMMEM_KERNEL(dispatch_send, DispatchSend)
SYMMEM_KERNEL(dispatch_receive, DispatchReceive)
SYMMEM_KERNEL(combine_send, CombineSend)
SYMMEM_KERNEL(combine_receive, CombineReceive)
