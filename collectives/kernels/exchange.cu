// exchange.cu: all-gather, broadcast, all-to-all. Moves bytes and changes none.
//
// Every source has a part for each reader, or one for all where the step of its input is 0. All ranks
// read; all are sources, or the root alone is.

#include "plan.cuh"

namespace symmem {

SYMMEM_FN bool is_source(const Plan& p, u32 r) { return p.root == EVERY_RANK || p.root == r; }
// Whether this rank takes anything from a peer.
SYMMEM_FN bool consumes(const Plan& p) { return p.root == EVERY_RANK || p.root != p.lane.rank; }

// Whose words an operation leaves with this rank.
SYMMEM_FN u32 writers_of(const Plan& p) { return p.root == EVERY_RANK ? ALL : p.root == p.lane.rank ? NONE : p.root; }

// Headers to whom this rank has data for; and to all, where completion is the group's.
SYMMEM_FN void publish(const Plan& p, Headers& headers, const Step& step) {
  const bool every = is_source(p, p.lane.rank) || p.group_completion;
  headers.publish(p.lane, step, [&](u32) { return every; });
}
// Headers of sources. Of other ranks, of which block 0 alone shows one, only `others` says whether.
template <class Also> SYMMEM_FN bool compare(const Plan& p, Headers& headers, const Step& step, bool others, Also also) {
  auto block_of = [&](u32 r) {
    if (is_source(p, r) || p.group_completion) return block_index();
    return others ? 0 : NO_BLOCK;
  };
  return headers.compare(p.lane, step, block_of, also);
}

// ---------------------------------------------------------------------------------- copying

// A range of runs, by offsets from its start, which are far from 2^31.
struct Span {
  u64 base, stride, row, skip;

  SYMMEM_FN Span(const Runs& runs, u64 start) : stride(runs.stride), row(runs.row) {
    const bool gaps = stride != row;
    const u64 before = gaps ? start / row : 0;
    base = runs.base + (gaps ? before * stride : start);
    skip = gaps ? start - before * row : 0;
  }
  SYMMEM_FN u64 at(u32 offset) const {
    if (stride == row) return base + offset;
    const u64 from = skip + offset;
    const u64 runs = row >> 31 ? from >= row : (u32)from / (u32)row;
    return base + runs * stride + (from - runs * row);
  }
};

// What `copy` does of what is not whole vectors.
__device__ __attribute__((noinline)) inline void copy_narrow(Runs from, Runs to, u64 start, u64 length, u64 end, u64 first) {
  for (u64 at = first + thread_index() * 16ull; at < length; at += workers() * 16ull)
    store_any(to, start + at, end, load_any(from, start + at, end));
}

// Copies the bytes `start..start + length`, at most a chunk, of `end` in all, by the workers of a block.
SYMMEM_FN void copy(const Runs& from, const Runs& to, u64 start, u64 length, u64 end) {
  constexpr u32 U = 4;
  const u32 n = workers(), whole = from.width == 16 && to.width == 16 ? (u32)(length / 16) : 0;
  if (whole != 0) {
    const Span source(from, start), target(to, start);
    u32 at = thread_index();
    for (; at + (U - 1) * n < whole; at += U * n) {
      Vector v[U];
#pragma unroll
      for (u32 k = 0; k < U; k++) v[k] = load_vector(pointer<void>(source.at((at + k * n) * 16)));
#pragma unroll
      for (u32 k = 0; k < U; k++) store_vector(pointer<void>(target.at((at + k * n) * 16)), v[k]);
    }
#pragma unroll 1
    for (; at < whole; at += n) store_vector(pointer<void>(target.at(at * 16)), load_vector(pointer<void>(source.at(at * 16))));
  }
  if (whole * 16ull < length) copy_narrow(from, to, start, length, end, whole * 16ull);
}

// What this rank has for itself.
SYMMEM_FN void keep_own(const Plan& p, u64 start, u64 length) {
  if (!is_source(p, p.lane.rank)) return;
  const Runs from = input_part(p, p.lane.rank), to = output_part(p, p.output, p.lane.rank);
  // In place it is there.
  if (from.base != to.base) copy(from, to, start, length, p.bytes);
}

// ---------------------------------------------------------------------------------- packets

SYMMEM_FN Vector load_one(const Plan& p, const Runs& from, u64 v) {
  return p.plain && v * 16 + 16 <= p.bytes ? load_vector(pointer<void>(from.base + v * 16)) : load_any(from, v * 16, p.bytes);
}
SYMMEM_FN void store_one(const Plan& p, const Runs& to, u64 v, const Vector& value) {
  if (p.plain && v * 16 + 16 <= p.bytes) store_vector(pointer<void>(to.base + v * 16), value);
  else store_any(to, v * 16, p.bytes, value);
}

// Everything travels in packets; nobody waits for anything else. A thread has sent its vectors of all
// parts before it stores one, which in place replaces another.
SYMMEM_FN void exchange_packets(const Plan& p) {
  const Lane& lane = p.lane;
  const u64 vectors = (p.bytes + 15) / 16, stride = (u64)grid_size() * workers();
  const u64 first = (u64)block_index() * workers() + thread_index();
  const bool source = is_source(p, lane.rank);
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  // Under way before the epoch is known.
  const Runs own = input_part(p, lane.rank);
  Vector ahead = {};
  if (is_worker() && source && first < vectors) ahead = load_one(p, own, first);
  Step step;
  if (!enter(lane, step)) return;
  bool ok = await_clear(lane, step);
  if (is_worker() && ok) {
    if (source)
      for_peers<0>(lane, [&](u32 r) {
        SYMMEM_STALL(lane.host, STALL_PUT_PACKET);
        const u64 slots = packets_to(lane, step.parity, r);
        const Runs from = input_part(p, r);
        for (u64 v = first; v < vectors; v += stride)
          put(slots + packet_of(v) * 16, step.tag, p.in.step == 0 && v == first ? ahead : load_one(p, from, v));
      });
    const Runs kept = output_part(p, p.output, lane.rank);
    if (source && own.base != kept.base)
      for (u64 v = first; v < vectors; v += stride) store_one(p, kept, v, v == first ? ahead : load_one(p, own, v));
    Gate gate;
    for_peers<0>(lane, [&](u32 r) {
      if (!is_source(p, r)) return;
      SYMMEM_STALL(lane.host, STALL_POLL_PACKET);
      const u64 slots = packets_from(lane, step.parity, r);
      const Runs to = output_part(p, p.output, r);
      for (u64 v = first; ok && v < vectors; v += stride) {
        Vector value;
        ok = await(lane, step.epoch, gate, r, [&] { return poll(slots + packet_of(v) * 16, step.epoch, value); });
        if (ok) store_one(p, to, v, value);
      }
    });
  } else if (ok) {
    publish(p, headers, step);
    ok = compare(p, headers, step, false, [](u32) { return true; });
  }
  ok = complete(p, step, ok);
  exit(lane, step, ok, packets_used(p, writers_of(p)));
}

// ----------------------------------------------------------------------------------- chunks

// Every source pushes its parts into the staging of their readers, chunk by chunk; those copy them out.
//
// Round j of a block pushes its chunk j and takes its chunk j - ahead. A raised flag j + 1 says that chunk
// j is there, and that the chunk which the round before took has been read, so that a ring of 2 * ahead + 2
// slots is never written before it was read. Who only pushes waits for readers' flags for that alone.
SYMMEM_FN void exchange_staged(const Plan& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  const u32 count = p.rounds - (block_index() >= p.last), rounds = count + p.ahead;
  const bool source = is_source(p, lane.rank), takes = consumes(p);
  Step step;
  if (!enter(lane, step)) return;
  if (!await_clear(lane, step)) return;
  bool ok = true;
  if (!is_worker()) publish(p, headers, step);
  Gate gate;
  Ring pushed(p), taken(p);
  for (u32 j = 0; j < rounds; j++) {
    if (!takes && j >= p.slots && j < count) {
      // Chunk j goes where chunk j - slots was.
      if (!is_worker()) ok = await_flags(lane, step, gate, j + p.ahead + 2 - p.slots);
      if (block_any(!ok)) {
        ok = false;
        break;
      }
    }
    if (is_worker() && source && j < count) {
      const Chunk chunk = chunk_of(p, j, 0, p.bytes);
      for_peers<0>(lane, [&](u32 r) {
        SYMMEM_STALL(lane.host, STALL_WRITE_STAGING);
        const u64 to = staging_to(lane, step.parity, r) + pushed.at;
        copy(input_part(p, r), runs_of(to - chunk.start, p.bytes, p.bytes), chunk.start, chunk.length, p.bytes);
      });
      keep_own(p, chunk.start, chunk.length);
      pushed.advance(p);
    }
    if (j < count) {
      block_sync();
      if (!is_worker()) raise_flags(lane, step, j + 1, [&](u32 r) { return source || is_source(p, r); });
    }
    if (j >= p.ahead && takes) {
      const u32 c = j - p.ahead;
      if (!is_worker()) {
        auto sent = [&](u32 r) { return is_source(p, r); };
        if (c == 0) ok = compare(p, headers, step, false, [&](u32 r) { return !sent(r) || poll_flag(lane, step, r, 1); });
        else ok = await_flags(lane, step, gate, c + 1, sent);
      }
      if (block_any(!ok)) {
        ok = false;
        break;
      }
      if (is_worker()) {
        const Chunk chunk = chunk_of(p, c, 0, p.bytes);
        for_peers<0>(lane, [&](u32 r) {
          if (!is_source(p, r)) return;
          SYMMEM_STALL(lane.host, STALL_READ_STAGING);
          const u64 from = staging_from(lane, step.parity, r) + taken.at;
          copy(runs_of(from - chunk.start, p.bytes, p.bytes), output_part(p, p.output, r), chunk.start, chunk.length, p.bytes);
        });
        taken.advance(p);
      }
    }
  }
  // A block without a chunk has compared nothing yet, nor has a rank that takes nothing.
  if (!is_worker() && ok && (count == 0 || !takes)) ok = compare(p, headers, step, false, [](u32) { return true; });
  ok = complete(p, step, ok);
  // Readers tell a source which slots are free.
  const bool together = p.group_completion, raised = p.rounds != 0;
  exit(lane, step, ok, Used{writers_of(p), 0, raised, together, together, raised && source ? ALL : NONE});
}

// ----------------------------------------------------------------------------------- direct

// Every source stores its parts into their readers' outputs, which are symmetric memory, once it has
// seen that those are in the same call.
SYMMEM_FN void exchange_direct(const Plan& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  const u32 count = p.rounds - (block_index() >= p.last);
  const bool source = is_source(p, lane.rank);
  Step step;
  if (!enter(lane, step)) return;
  if (!await_clear(lane, step)) return;
  bool ok = true;
  if (is_worker()) {
    for (u32 c = 0; c < count; c++) {
      const Chunk chunk = chunk_of(p, c, 0, p.bytes);
      keep_own(p, chunk.start, chunk.length);
    }
  } else {
    publish(p, headers, step);
    ok = compare(p, headers, step, source, [](u32) { return true; });
  }
  ok = !block_any(!ok);
  if (is_worker() && ok && source) {
    for (u32 c = 0; c < count; c++) {
      const Chunk chunk = chunk_of(p, c, 0, p.bytes);
      for_peers<0>(lane, [&](u32 r) {
        copy(input_part(p, r), output_part(p, peer_buffer(p, r), lane.rank), chunk.start, chunk.length, p.bytes);
      });
    }
  }
  if (ok) {
    block_sync();
    if (!is_worker()) {
      if (source) raise_flags(lane, step, 1);
      Gate gate;
      ok = await_flags(lane, step, gate, 1, [&](u32 r) { return is_source(p, r); });
    }
  }
  ok = complete(p, step, ok);
  // A source has seen a header of every peer.
  exit(lane, step, ok, Used{writers_of(p), 0, true, p.group_completion != 0, source || p.group_completion});
}

// ------------------------------------------------------------------------------ copy engines

// The beginning of an operation whose payload copy engines move: all ranks are in it after this, and
// their inputs are there. One block.
SYMMEM_FN void exchange_meet(const Plan& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  Step step;
  if (!enter(lane, step)) return;
  if (!await_clear(lane, step) || is_worker()) return;
  headers.publish(lane, step);
  headers.compare(lane, step, [](u32) { return true; });
}

// Its end: all ranks have copied what they need of this rank's input. One block.
SYMMEM_FN void exchange_part(const Plan& p) {
  const Lane& lane = p.lane;
  wait_for_previous_kernel();
  Step step;
  if (!reenter(lane, step)) return;
  bool ok = true;
  if (!is_worker()) {
    Gate gate;
    raise_flags(lane, step, 1);
    ok = await_flags(lane, step, gate, 1);
  }
  exit(lane, step, ok, Used{ALL, 0, true});
}

}  // namespace symmem

#define SYMMEM_KERNEL(name)                                                                        \
  extern "C" __global__ void __launch_bounds__(288, 1) name(const SYMMEM_ARGS symmem::Plan plan) { \
    symmem::fetch_arguments(plan);                                                                 \
    symmem::name(plan);                                                                            \
  }

SYMMEM_KERNEL(exchange_packets)
SYMMEM_KERNEL(exchange_staged)
SYMMEM_KERNEL(exchange_direct)
SYMMEM_KERNEL(exchange_meet)
SYMMEM_KERNEL(exchange_part)
