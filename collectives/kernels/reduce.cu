// Operations that reduce data: all-reduce, reduce, reduce-scatter. One element type for each compilation
// (SYMMEM_DTYPE), and one operator (SYMMEM_OP) or all.
//
// Ranks are folded in the order 0, 1, 2 ... whatever the algorithm. A part is what one rank gets
// reduced; where all get the same, the step of the input is 0. Kernels end in the number of ranks that
// they are for, 0 for any.

#include "lines.cuh"
#include "numerics.cuh"
#include "plan.cuh"

namespace symmem {

using Reduction = Fold<SYMMEM_DTYPE, OP>;

// Vectors of each rank that a thread has in flight.
__device__ constexpr u32 unroll(u32 world, bool two_shot = false) {
  return world == 2 && two_shot ? 8 : world == 2 || world == 4 ? 4 : 2;
}
// As many where the number of ranks is not known, but for accumulators that would fill the registers.
constexpr u32 UNROLL_ANY = sizeof(Reduction) <= 32 ? 4 : 2;

// Whether what this rank has is reduced by rank `r`.
SYMMEM_FN bool feeds(const Plan& p, u32 r) { return p.root == EVERY_RANK || p.root == r; }

// Headers to whoever reduces; and to all, where completion is the group's.
SYMMEM_FN void publish(const Plan& p, Headers& headers, const Step& step) {
  headers.publish(p.lane, step, [&](u32 r) { return feeds(p, r) || p.group_completion; });
}
// Headers of whoever is reduced.
template <class Also> SYMMEM_FN bool compare(const Plan& p, Headers& headers, const Step& step, Also also) {
  if (!p.receives && !p.group_completion) return true;
  return headers.compare(p.lane, step, also);
}

// ---------------------------------------------------------------------------------- packets

// Of two ranks, in their order.
SYMMEM_FN Vector fold_both(const Plan& p, const Vector& own, const Vector& theirs) {
  const bool is_first = p.lane.rank == 0;
  Vector first, second;
#pragma unroll
  for (u32 i = 0; i < 4; i++) first.w[i] = is_first ? own.w[i] : theirs.w[i], second.w[i] = is_first ? theirs.w[i] : own.w[i];
  Reduction fold;
  fold.first(first);
  fold.next(second, p.op);
  return fold.result(2, p.op);
}

// Vector `v` of all ranks, folded: this rank's own and what the others sent. False if a wait ended
// without it: then the result means nothing. It is computed in any case, since a way around it costs those who do
// not take it.
template <u32 W>
SYMMEM_FN bool fold_packets(const Plan& p, const Step& step, Gate& gate, u64 v, const Vector& own, Vector& result) {
  const Lane& lane = p.lane;
  SYMMEM_STALL(lane.host, STALL_POLL_PACKET);
  auto slot = [&](u32 r) { return packets_from(lane, step.parity, r) + packet_of(v) * 16; };
  if constexpr (W == 2) {
    const u32 peer = 1 - lane.rank;
    const u64 at = slot(peer);
    Vector theirs;
    const bool ok = await(lane, step.epoch, gate, peer, [&] { return poll(at, step.epoch, theirs); });
    result = fold_both(p, own, theirs);
    return ok;
  }
  Reduction fold;
  if constexpr (W != 0) {
    // All at once: one round of loads where everything is there.
    Vector all[W];
    u32 missing = 0;
    auto ready = [&] {
      missing = W;
#pragma unroll
      for (u32 r = 0; r < W; r++)
        if (r != lane.rank && !poll(slot(r), step.epoch, all[r])) missing = r;
      return missing == W;
    };
    const bool ok = await_of(lane, step.epoch, gate, [&] { return missing; }, ready);
#pragma unroll
    for (u32 r = 0; r < W; r++) {
      Vector theirs = r == lane.rank ? own : all[r];
      if (r == 0) fold.first(theirs);
      else fold.next(theirs, p.op);
    }
    result = fold.result(lane.world, p.op);
    return ok;
  } else {
#pragma unroll 1
    for (u32 r = 0; r < lane.world; r++) {
      Vector theirs = own;
      auto ready = [&] { return poll(slot(r), step.epoch, theirs); };
      if (r != lane.rank && !await(lane, step.epoch, gate, r, ready)) return false;
      if (r == 0) fold.first(theirs);
      else fold.next(theirs, p.op);
    }
    result = fold.result(lane.world, p.op);
    return true;
  }
}

// The vectors from `first` on that a thread moves in packets one by one: of any length, at any address.
__device__ __attribute__((noinline)) inline void put_narrow(const Plan& p, Step step, u64 first, u64 stride) {
  const Lane& lane = p.lane;
  for_peers<0>(lane, [&](u32 r) {
    if (!feeds(p, r)) return;
    SYMMEM_STALL(lane.host, STALL_PUT_PACKET);
    u64 slots = packets_to(lane, step.parity, r);
    Runs from = input_part(p, p.in.step ? r : 0);
    for (u64 v = first; v * 16 < p.bytes; v += stride) put(slots + packet_of(v) * 16, step.tag, load_any(from, v * 16, p.bytes));
  });
}
__device__ __attribute__((noinline)) inline bool take_narrow(const Plan& p, Step step, u64 first, u64 stride) {
  const Lane& lane = p.lane;
  Runs own = input_part(p, p.in.step ? lane.rank : 0), out = output_part(p, p.output, 0);
  Gate gate;
  for (u64 v = first; v * 16 < p.bytes; v += stride) {
    Vector result;
    if (!fold_packets<0>(p, step, gate, v, load_any(own, v * 16, p.bytes), result)) return false;
    store_any(out, v * 16, p.bytes, result);
  }
  return true;
}

// Every rank's data travels in packets; nobody waits for anything else. For a known number of ranks,
// whole vectors at addresses of theirs only.
template <u32 W> SYMMEM_FN void reduce_packets(const Plan& p) {
  const Lane& lane = p.lane;
  const u64 whole = W || p.plain ? p.bytes / 16 : 0, stride = (u64)grid_size() * workers();
  const u64 first = (u64)block_index() * workers() + thread_index();
  const u64 own = p.input + p.in.step * lane.rank;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  // Under way before the epoch is known.
  Vector ahead = {};
  if (is_worker() && first < whole) ahead = load_vector(pointer<void>(own + first * 16));
  Step step;
  if (!enter(lane, step)) return;
  bool ok = await_clear(lane, step);
  if (is_worker() && ok) {
    for_peers<W>(lane, [&](u32 r) {
      if (!feeds(p, r)) return;
      SYMMEM_STALL(lane.host, STALL_PUT_PACKET);
      const u64 slots = packets_to<W>(lane, step.parity, r);
      const u64 from = p.input + p.in.step * r;
      if (first < whole) put(slots + packet_of(first) * 16, step.tag, p.in.step == 0 ? ahead : load_vector(pointer<void>(from + first * 16)));
      for (u64 v = first + stride; v < whole; v += stride)
        put(slots + packet_of(v) * 16, step.tag, load_vector(pointer<void>(from + v * 16)));
    });
    if (W == 0 && whole * 16 < p.bytes) put_narrow(p, step, whole + first, stride);
    Gate gate;
    for (u64 v = first; ok && p.receives && v < whole; v += stride) {
      if (v != first) ahead = load_vector(pointer<void>(own + v * 16));
      Vector result;
      ok = fold_packets<W>(p, step, gate, v, ahead, result);
      if (ok) store_vector(pointer<void>(p.output + v * 16), result);
    }
    if (W == 0 && ok && p.receives && whole * 16 < p.bytes) ok = take_narrow(p, step, whole + first, stride);
  } else if (ok) {
    publish(p, headers, step);
    ok = compare(p, headers, step, [](u32) { return true; });
  }
  ok = complete(p, step, ok);
  exit(lane, step, ok, packets_used(p, p.receives ? ALL : NONE));
}

// ------------------------------------------------------------------------------------- lines

#ifdef SYMMEM_HAS_LINES

// The vectors of warp `u` of all ranks, folded into `own`. False if a wait ended without them, as `fold_packets`.
template <u32 W> SYMMEM_FN bool fold_lines(const Plan& p, const Step& step, Gate& gate, u64 u, Lines& own) {
  const Lane& lane = p.lane;
  auto take = [&](u32 r, Lines& theirs) {
    SYMMEM_STALL_WARP(lane.host, STALL_POLL_PACKET);
    const u64 lines = lines_from(lane, step.parity, r);
    return await<true>(lane, step.epoch, gate, r, [&] { return theirs.poll(lines, u, step.epoch); });
  };
  if constexpr (W == 2) {
    // One vector at a time, of one peer.
    Lines theirs;
    const bool ok = take(1 - lane.rank, theirs);
#pragma unroll
    for (u32 k = 0; k < 4; k++) own.v[k] = fold_both(p, own.v[k], theirs.v[k]);
    return ok;
  } else {
    Reduction fold[4];
#pragma unroll 1
    for (u32 r = 0; r < lane.world; r++) {
      Lines theirs = own;
      if (r != lane.rank && !take(r, theirs)) return false;
#pragma unroll
      for (u32 k = 0; k < 4; k++) {
        if (r == 0) fold[k].first(theirs.v[k]);
        else fold[k].next(theirs.v[k], p.op);
      }
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) own.v[k] = fold[k].result(lane.world, p.op);
    return true;
  }
}

// As reduce_packets, of an all-reduce, for whole vectors at addresses of theirs.
template <u32 W> SYMMEM_FN void reduce_lines(const Plan& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  const u64 count = p.bytes / 16, units = (count + Lines::VECTORS - 1) / Lines::VECTORS;
  const u64 warps = workers() / 32, stride = grid_size() * warps, first = block_index() * warps + thread_index() / 32;
  const Lines::Row input{p.input, count};
  Lines mine = {};
  if (is_worker() && first < units) mine.load(input, first);
  Step step;
  if (!enter(lane, step)) return;
  bool ok = await_clear(lane, step);
  if (is_worker() && ok) {
    Gate gate;
    // What goes now is folded a turn later: the link is never without work, and what comes has had the time.
    Lines before = {};
#pragma unroll 1
    for (u64 u = first; ok && u < units + stride; u += stride) {
      const Lines now = mine;
      if (u + stride < units) mine.load(input, u + stride);
      if (u < units)
        for_peers<W>(lane, [&](u32 r) {
          SYMMEM_STALL_WARP(lane.host, STALL_PUT_PACKET);
          now.put(lines_to<W>(lane, step.parity, r), u, step.epoch);
        });
      if (u >= first + stride) {
        ok = fold_lines<W>(p, step, gate, u - stride, before);
        if (ok) before.store(Lines::Row{p.output, count}, u - stride);
      }
      before = now;
    }
  } else if (ok) {
    publish(p, headers, step);
    ok = compare(p, headers, step, [](u32) { return true; });
  }
  ok = complete(p, step, ok);
  const bool together = p.group_completion;
  exit(lane, step, ok, Used{ALL, 0, false, together, together, NONE, 0, (u32)(units * 16)});
}

#endif

// ------------------------------------------------------------------------------------ chunks

__device__ __attribute__((noinline)) inline void push_narrow(const Plan& p, u64 part, Chunk chunk, u64 to, u32 first) {
  Runs from = runs_of(part, p.row, p.in.stride);
  for (u64 v = first + thread_index(); v * 16 < chunk.length; v += workers())
    store_vector(pointer<void>(to + v * 16), load_any(from, chunk.start + v * 16, p.bytes));
}

// `U` vectors, `n` apart.
template <u32 U> SYMMEM_FN void load_vectors(u64 from, u32 n, Vector (&v)[U]) {
#pragma unroll
  for (u32 k = 0; k < U; k++) v[k] = load_vector(pointer<void>(from + k * n * 16ull));
}
template <u32 U> SYMMEM_FN void store_vectors(u64 to, u32 n, const Vector (&v)[U]) {
#pragma unroll
  for (u32 k = 0; k < U; k++) store_vector(pointer<void>(to + k * n * 16ull), v[k]);
}

// Copies a chunk of a part of this rank's input into a peer's staging. `early` says that its first
// vectors have been loaded.
template <u32 W, u32 U> SYMMEM_FN void push(const Plan& p, u64 part, const Chunk& chunk, u64 to, bool has_early, const Vector (&early)[U]) {
  const u32 n = workers(), count = W || p.plain ? (u32)(chunk.length / 16) : 0;
  const u64 from = part + chunk.start;
  u32 at = thread_index();
  if (W != 0 && has_early && U * n <= count) {
    store_vectors<U>(to + at * 16ull, n, early);
    at += U * n;
  }
  for (; at + (U - 1) * n < count; at += U * n) {
    Vector v[U];
    load_vectors<U>(from + at * 16ull, n, v);
    store_vectors<U>(to + at * 16ull, n, v);
  }
#pragma unroll 1
  for (; at < count; at += n) store_vector(pointer<void>(to + at * 16ull), load_vector(pointer<void>(from + at * 16ull)));
  if (W == 0 && count * 16ull < chunk.length) push_narrow(p, part, chunk, to, count);
}

// Where results go: to this rank's output, and to all others' where it is told where those are.
template <bool ALL_OUTPUTS, u32 W> SYMMEM_FN void store_result(const Plan& p, u64 logical, const Vector& v) {
  if constexpr (ALL_OUTPUTS)
    for_peers<W>(p.lane, [&](u32 r) { store_vector(pointer<void>(peer_buffer(p, r) + logical), v); });
  store_vector(pointer<void>(p.output + logical), v);
}

template <bool ALL_OUTPUTS>
__device__ __attribute__((noinline)) inline void fold_narrow(const Plan& p, u64 part, Chunk chunk, u32 parity, u64 place, u32 first) {
  Runs own = runs_of(part, p.row, p.in.stride), out = output_part(p, p.output, 0);
  for (u64 v = first + thread_index(); v * 16 < chunk.length; v += workers()) {
    u64 at = chunk.start + v * 16;
    Reduction fold;
#pragma unroll 1
    for (u32 r = 0; r < p.lane.world; r++) {
      Vector theirs = r == p.lane.rank ? load_any(own, at, p.bytes) : load_once(pointer<void>(staging_from(p.lane, parity, r) + place + v * 16));
      if (r == 0) fold.first(theirs);
      else fold.next(theirs, p.op);
    }
    Vector result = fold.result(p.lane.world, p.op);
    if (ALL_OUTPUTS)
      for_peers<0>(p.lane, [&](u32 r) { store_any(output_part(p, peer_buffer(p, r), 0), at, p.bytes, result); });
    store_any(out, at, p.bytes, result);
  }
}

// Folds `U` vectors of all ranks, `n` apart, and stores the results.
template <u32 W, u32 U, bool ALL_OUTPUTS>
SYMMEM_FN void fold_vectors(const Plan& p, u64 own, u32 parity, u64 place, u64 logical, u32 n) {
  Vector v[W][U];
#pragma unroll
  for (u32 r = 0; r < W; r++) {
    const u64 from = r == p.lane.rank ? own : staging_from(p.lane, parity, r) + place;
#pragma unroll
    for (u32 k = 0; k < U; k++) v[r][k] = load_once(pointer<void>(from + k * n * 16ull));
  }
#pragma unroll
  for (u32 k = 0; k < U; k++) {
    Reduction fold;
    fold.first(v[0][k]);
#pragma unroll
    for (u32 r = 1; r < W; r++) fold.next(v[r][k], p.op);
    store_result<ALL_OUTPUTS, W>(p, logical + k * n * 16ull, fold.result(W, p.op));
  }
}

// As `fold_vectors`, of any number of ranks: `U` vectors of one rank at a time.
template <u32 U, bool ALL_OUTPUTS>
SYMMEM_FN void fold_any(const Plan& p, u64 own, u32 parity, u64 place, u64 logical, u32 n) {
  Reduction fold[U];
#pragma unroll 1
  for (u32 r = 0; r < p.lane.world; r++) {
    const u64 from = r == p.lane.rank ? own : staging_from(p.lane, parity, r) + place;
    Vector v[U];
#pragma unroll
    for (u32 k = 0; k < U; k++) v[k] = load_once(pointer<void>(from + k * n * 16ull));
#pragma unroll
    for (u32 k = 0; k < U; k++) {
      if (r == 0) fold[k].first(v[k]);
      else fold[k].next(v[k], p.op);
    }
  }
#pragma unroll
  for (u32 k = 0; k < U; k++) store_result<ALL_OUTPUTS, 0>(p, logical + k * n * 16ull, fold[k].result(p.lane.world, p.op));
}

// Folds a chunk of all ranks, which is staged `place` into each rank's staging.
template <u32 W, bool ALL_OUTPUTS>
SYMMEM_FN void fold_chunk(const Plan& p, u64 part, const Chunk& chunk, u32 parity, u64 place) {
  SYMMEM_STALL(p.lane.host, STALL_READ_STAGING);
  u32 count = 0;
  if constexpr (W != 0) {
    constexpr u32 U = unroll(W, ALL_OUTPUTS);
    const u32 n = workers();
    count = (u32)(chunk.length / 16);
    u32 at = thread_index();
    for (; at + (U - 1) * n < count; at += U * n)
      fold_vectors<W, U, ALL_OUTPUTS>(p, part + chunk.start + at * 16ull, parity, place + at * 16ull, chunk.start + at * 16ull, n);
#pragma unroll 1
    for (; at < count; at += n)
      fold_vectors<W, 1, ALL_OUTPUTS>(p, part + chunk.start + at * 16ull, parity, place + at * 16ull, chunk.start + at * 16ull, n);
  } else if (p.plain) {
    constexpr u32 U = UNROLL_ANY;
    const u32 n = workers();
    count = (u32)(chunk.length / 16);
    u32 at = thread_index();
    for (; at + (U - 1) * n < count; at += U * n)
      fold_any<U, ALL_OUTPUTS>(p, part + chunk.start + at * 16ull, parity, place + at * 16ull, chunk.start + at * 16ull, n);
    if constexpr (U > 1) {
#pragma unroll 1
      for (; at < count; at += n)
        fold_any<1, ALL_OUTPUTS>(p, part + chunk.start + at * 16ull, parity, place + at * 16ull, chunk.start + at * 16ull, n);
    }
  }
  if (W == 0 && count * 16ull < chunk.length) fold_narrow<ALL_OUTPUTS>(p, part, chunk, parity, place, count);
}

// Every rank pushes its input into the staging of every other (or each part into that of the rank that
// gets it), chunk by chunk, and folds what it got.
//
// Round j of a block pushes its chunk j and folds its chunk j - ahead. A raised flag j + 1 says that
// chunk j is there, and that the chunk which the round before folded has been read. A ring of
// 2 * ahead + 2 slots is therefore never written before it was read.
//
// Where one rank reduces, the others only push; its flags tell them which slots of its ring are free.
//
// In a two-shot every rank does so with a slice, and stores its results into all ranks' outputs, which
// are symmetric memory; one more flag says that all results are there. In place, a chunk of a peer's
// output is replaced only after that peer's flag has said that it was pushed; and none is before that
// peer is known to be in the same call.
template <u32 W, bool TWO_SHOT> SYMMEM_FN void reduce_chunks(const Plan& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  const u32 count = p.rounds - (block_index() >= p.last), rounds = count + p.ahead;
  // Slices are multiples of 128 bytes; the last ones may be short, or empty.
  auto chunk = [&](u32 r, u32 c) {
    if constexpr (!TWO_SHOT) return chunk_of(p, c, 0, p.bytes);
    u64 stop = p.slice * (r + 1);
    return chunk_of(p, c, p.slice * r, stop < p.bytes ? stop : p.bytes);
  };
  // The first of the next rank's chunk, under way before the epoch is known.
  constexpr u32 U = unroll(W, TWO_SHOT);
  const u32 next = lane.rank + 1 < lane.world ? lane.rank + 1 : 0;
  Vector early[U] = {};
  if constexpr (W != 0) {
    const Chunk c = chunk(next, 0);
    if (is_worker() && c.length >= U * workers() * 16ull)
      load_vectors<U>(p.input + p.in.step * next + c.start + thread_index() * 16ull, workers(), early);
  }
  Step step;
  if (!enter(lane, step)) return;
  if (!await_clear(lane, step)) return;
  bool ok = true;
  if (!is_worker()) publish(p, headers, step);
  Gate gate;
  Ring pushed(p), folded(p);
  for (u32 j = 0; j < rounds; j++) {
    if (!p.receives && j >= p.slots && j < count) {
      // Chunk j goes where chunk j - slots was.
      const u32 free = j + p.ahead + 2 - p.slots;
      if (!is_worker()) ok = await_flags(lane, step, gate, free, [&](u32 r) { return feeds(p, r); });
      if (block_any(!ok)) {
        ok = false;
        break;
      }
    }
    if (is_worker() && j < count) {
      for_peers<W>(lane, [&](u32 r) {
        if (!feeds(p, r)) return;
        SYMMEM_STALL(lane.host, STALL_WRITE_STAGING);
        u64 to = staging_to<W>(lane, step.parity, r) + pushed.at;
        push<W, U>(p, p.input + p.in.step * r, chunk(r, j), to, j == 0 && r == next, early);
      });
      pushed.advance(p);
    }
    const bool folds = j >= p.ahead && p.receives;
    const u32 c = j - p.ahead;
    if (folds && !is_worker()) {
      if (c == 0) ok = headers.compare(lane, step, [&](u32 r) { return poll_flag(lane, step, r, 1); });
      else ok = await_flags(lane, step, gate, c + 1);
    }
    if (block_any(!ok)) {
      ok = false;
      break;
    }
    // Beside each other: the fence before the flags takes as long as a chunk's fold.
    if (!is_worker()) {
      if (j < count) raise_flags(lane, step, j + 1, [&](u32 r) { return p.receives || feeds(p, r); });
    } else if (folds) {
      fold_chunk<W, TWO_SHOT>(p, p.input + p.in.step * lane.rank, chunk(lane.rank, c), step.parity, folded.at);
      folded.advance(p);
    }
  }
  if (TWO_SHOT) block_sync();
  if (!is_worker() && ok) {
    // A block without a chunk has compared nothing yet, nor has a rank that reduces nothing.
    if (count == 0 || !p.receives) {
      ok = compare(p, headers, step, [](u32) { return true; });
    } else if (TWO_SHOT) {
      raise_flags(lane, step, count + 1);
      ok = await_flags(lane, step, gate, count + 1);
    }
  }
  ok = complete(p, step, ok);
  // The one that reduces tells the others which slots are free.
  const bool together = p.group_completion, raised = p.rounds != 0;
  exit(lane, step, ok, Used{p.receives ? ALL : NONE, 0, raised, together, together, raised && !p.receives ? p.root : NONE});
}

// -------------------------------------------------------------------------- blocks, pieces

// Folds the bytes `start..start + length` of runs of `end` bytes, which are staged `place` into each rank's
// staging.
__device__ __attribute__((noinline)) inline void fold_runs(const Plan& p, Runs own, Runs out, u64 start, u64 length, u64 end, u32 parity, u64 place) {
  const Lane& lane = p.lane;
  SYMMEM_STALL(lane.host, STALL_READ_STAGING);
  for (u64 v = thread_index(); v * 16 < length; v += workers()) {
    Reduction fold;
#pragma unroll 1
    for (u32 r = 0; r < lane.world; r++) {
      Vector theirs = r == lane.rank ? load_any(own, start + v * 16, end) : load_once(pointer<void>(staging_from(lane, parity, r) + place + v * 16));
      if (r == 0) fold.first(theirs);
      else fold.next(theirs, p.op);
    }
    store_any(out, start + v * 16, end, fold.result(lane.world, p.op));
  }
}

// A chunk of one of the blocks: numbers ascend through all of them.
struct BlockChunk {
  const Block* block;
  u64 start, length;
};

// A walk through the blocks, by ascending numbers of chunks.
struct Walk {
  const Block* block;
  const Block* end;

  SYMMEM_FN explicit Walk(const Plan& p) : block(pointer<const Block>(p.blocks)), end(block + p.block_count) {}

  SYMMEM_FN BlockChunk next(const Plan& p, u64 number) {
    while (block + 1 < end && block[1].first <= number) block++;
    u64 start = (number - block->first) * p.chunk, left = block->bytes - start;
    return BlockChunk{block, start, left < p.chunk ? left : p.chunk};
  }
};

// Every rank pushes each chunk of each block into the staging of the block's owner, which folds it: the
// rounds of `reduce_chunks`, in which every rank may have something for every other.
SYMMEM_FN void reduce_blocks(const Plan& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  const u32 count = p.rounds - (block_index() >= p.last), rounds = count + p.ahead;
  Step step;
  if (!enter(lane, step)) return;
  if (!await_clear(lane, step)) return;
  bool ok = true;
  if (!is_worker()) headers.publish(lane, step);
  Gate gate;
  Ring pushed(p), folded(p);
  Walk push(p), fold(p);
  auto number = [](u32 c) { return block_index() + (u64)c * grid_size(); };
  for (u32 j = 0; j < rounds; j++) {
    if (is_worker() && j < count) {
      const BlockChunk chunk = push.next(p, number(j));
      const Block& b = *chunk.block;
      if (b.owner != lane.rank) {
        SYMMEM_STALL(lane.host, STALL_WRITE_STAGING);
        const u64 to = staging_to(lane, step.parity, (u32)b.owner) + pushed.at;
        const Runs from = runs_of(p.input + b.at, b.row, b.stride);
        for (u64 v = thread_index(); v * 16 < chunk.length; v += workers())
          store_vector(pointer<void>(to + v * 16), load_any(from, chunk.start + v * 16, b.bytes));
      }
      pushed.advance(p);
    }
    if (j < count) {
      block_sync();
      if (!is_worker()) raise_flags(lane, step, j + 1);
    }
    if (j >= p.ahead) {
      const u32 c = j - p.ahead;
      if (!is_worker()) {
        if (c == 0) ok = headers.compare(lane, step, [&](u32 r) { return poll_flag(lane, step, r, 1); });
        else ok = await_flags(lane, step, gate, c + 1);
      }
      if (block_any(!ok)) {
        ok = false;
        break;
      }
      if (is_worker()) {
        const BlockChunk chunk = fold.next(p, number(c));
        const Block& b = *chunk.block;
        if (b.owner == lane.rank)
          fold_runs(p, runs_of(p.input + b.at, b.row, b.stride), runs_of(b.output, b.row, b.output_stride), chunk.start, chunk.length, b.bytes, step.parity, folded.at);
        folded.advance(p);
      }
    }
  }
  if (!is_worker() && ok && count == 0) ok = headers.compare(lane, step, [](u32) { return true; });
  ok = complete(p, step, ok);
  exit(lane, step, ok, Used{ALL, 0, p.rounds != 0, p.group_completion != 0});
}

// Folds what copy engines have brought from all ranks into the staging of parity 0, between the kernels
// in which ranks meet and part.
SYMMEM_FN void reduce_staged(const Plan& p) {
  const Lane& lane = p.lane;
  wait_for_previous_kernel();
  Step step;
  if (!reenter(lane, step) || !is_worker()) return;
  const u32 count = p.rounds - (block_index() >= p.last);
  const Runs own = runs_of(p.input, p.bytes, p.bytes), out = runs_of(p.output, p.bytes, p.bytes);
  for (u32 c = 0; c < count; c++) {
    const Chunk chunk = chunk_of(p, c, 0, p.bytes);
    fold_runs(p, own, out, chunk.start, chunk.length, p.bytes, 0, chunk.start);
  }
}

template <u32 W> SYMMEM_FN void reduce_pushed(const Plan& p) { reduce_chunks<W, false>(p); }
template <u32 W> SYMMEM_FN void reduce_two_shot(const Plan& p) { reduce_chunks<W, true>(p); }

}  // namespace symmem

#define SYMMEM_KERNEL(name, body)                                                            \
  extern "C" __global__ void __launch_bounds__(288, 1) name(const SYMMEM_ARGS symmem::Plan plan) { \
    symmem::fetch_arguments(plan);                                                          \
    symmem::body(plan);                                                                     \
  }
#define SYMMEM_KERNELS(W)                              \
  SYMMEM_KERNEL(reduce_packets_##W, reduce_packets<W>) \
  SYMMEM_KERNEL(reduce_pushed_##W, reduce_pushed<W>)   \
  SYMMEM_KERNEL(reduce_two_shot_##W, reduce_two_shot<W>)

SYMMEM_KERNELS(0)
// Of one operator, for a known number of ranks.
#ifdef SYMMEM_OP
SYMMEM_KERNELS(2)
SYMMEM_KERNELS(4)
SYMMEM_KERNELS(8)
#ifdef SYMMEM_HAS_LINES
SYMMEM_KERNEL(reduce_lines_0, reduce_lines<0>)
SYMMEM_KERNEL(reduce_lines_2, reduce_lines<2>)
SYMMEM_KERNEL(reduce_lines_4, reduce_lines<4>)
SYMMEM_KERNEL(reduce_lines_8, reduce_lines<8>)
#endif
#endif
SYMMEM_KERNEL(reduce_blocks, reduce_blocks)
SYMMEM_KERNEL(reduce_staged, reduce_staged)
