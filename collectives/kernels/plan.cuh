// plan.cuh: the argument block of every kernel of this crate, and how payload is reached.

#ifndef SYMMEM_PLAN_CUH
#define SYMMEM_PLAN_CUH

#include "symmem_sync.cuh"

namespace symmem {

// How the parts lie in a buffer: one rank's begins `step` after that of the rank before, and its runs
// begin `stride` after each other.
struct Pitch {
  u64 step, stride;
};

// Everything that an executor needs; it validates and chooses nothing. Lengths are in bytes.
struct alignas(16) Plan {
  Lane lane;
  u64 input, output;  // addresses
  u64 bytes;          // a part: rows of `row` bytes
  u64 row;
  Pitch in, out;
  u64 peers;          // array: by rank, where what this rank reaches into is mapped; 0 where all is staged
  u64 peer_offset;    // where rank 0's buffer begins in that
  u64 peer_step;      // how much further each next rank's does
  u64 slice;          // of a part, that one rank reduces: in a two-shot; else the part
  u64 chunk;          // of a slice, that a block moves at a time: a multiple of 16
  u32 rounds;         // chunks of block 0
  u32 last;           // blocks that have as many; the others have one less
  u32 slots;          // chunks of staging that a block has for each writer, in a ring
  u32 ahead;          // how many chunks are under way before the first is awaited
  u32 root;           // the one rank that all is for, or from; EVERY_RANK for none
  u32 receives;       // whether this rank gets a result
  u32 group_completion;  // whether all ranks have completed when this one has
  u32 plain;          // whether inputs and outputs, peers' included, are whole vectors at addresses of theirs
  u64 blocks;         // array of Block, of an operation that is given any
  u64 block_count;
  u32 op;             // the operator, of a kernel that has several
  u32 reserved;
};

// A range of a rank's input of which one rank gets the reduction: runs of `row` bytes, `stride` apart.
struct alignas(16) Block {
  u64 first;   // chunks of all blocks before
  u64 at;      // where it begins, from where the input does; maybe in another allocation
  u64 bytes;
  u64 row, stride;
  u64 output;  // where its owner's result goes
  u64 owner;
  u64 output_stride;  // how far apart the result's runs are
};

constexpr u32 EVERY_RANK = ~0u;

// Where rank `r`'s buffer that this rank reaches into begins.
SYMMEM_FN u64 peer_buffer(const Plan& p, u32 r) {
  return pointer<const u64>(p.peers)[r] + p.peer_offset + p.peer_step * r;
}

// Runs of equal length, `stride` apart; the bytes of all runs, one after the other, are its logical
// range.
struct Runs {
  u64 base, row, stride;
  u32 width;  // bytes of the widest access that all addresses allow, at most 16

  // The run that a byte is in. By a division of 32 bits where that does.
  SYMMEM_FN u64 before(u64 logical) const {
    return (logical | row) >> 32 ? logical / row : (u32)logical / (u32)row;
  }
  SYMMEM_FN u64 at(u64 logical) const {
    if (stride == row) return base + logical;
    return base + before(logical) * (stride - row) + logical;
  }
  // Bytes from there to the end of the run.
  SYMMEM_FN u64 left(u64 logical) const {
    return stride == row ? ~0ull : (before(logical) + 1) * row - logical;
  }
};

SYMMEM_FN Runs runs_of(u64 base, u64 row, u64 stride) {
  u64 bits = stride == row ? base : base | row | stride;
  u32 width = bits & 15 ? (u32)(bits & (~bits + 1)) & 15 : 16;
  return Runs{base, row, stride, width};
}
SYMMEM_FN Runs input_part(const Plan& p, u32 r) { return runs_of(p.input + p.in.step * r, p.row, p.in.stride); }
SYMMEM_FN Runs output_part(const Plan& p, u64 output, u32 r) {
  return runs_of(output + p.out.step * r, p.row, p.out.stride);
}

// At most 16 bytes at an address, by accesses of `U`.
template <class U> SYMMEM_FN Vector load_parts(u64 at, u32 bytes) {
  Vector v = {};
#pragma unroll
  for (u32 i = 0; i < 16 / sizeof(U); i++) {
    if (i * sizeof(U) >= bytes) continue;
    u64 part = load_element<U>(pointer<U>(at) + i);
    if constexpr (sizeof(U) == 8) {
      v.w[2 * i] = (u32)part;
      v.w[2 * i + 1] = (u32)(part >> 32);
    } else {
      v.w[i * sizeof(U) / 4] |= (u32)part << (8 * (i * sizeof(U) % 4));
    }
  }
  return v;
}
template <class U> SYMMEM_FN void store_parts(u64 at, u32 bytes, const Vector& v) {
#pragma unroll
  for (u32 i = 0; i < 16 / sizeof(U); i++) {
    if (i * sizeof(U) >= bytes) continue;
    u64 part;
    if constexpr (sizeof(U) == 8) part = v.w[2 * i] | (u64)v.w[2 * i + 1] << 32;
    else part = v.w[i * sizeof(U) / 4] >> (8 * (i * sizeof(U) % 4));
    store_element(pointer<U>(at) + i, (U)part);
  }
}

// The vector that begins at a multiple of 16 of a logical range of `end` bytes, zeros after its end:
// wherever it lies, however long it is. Byte by byte only where a run ends in it.
__device__ __attribute__((noinline)) inline Vector load_any(Runs runs, u64 logical, u64 end) {
  const u32 bytes = end - logical < 16 ? (u32)(end - logical) : 16;
  const u64 at = runs.at(logical);
  if (bytes > runs.left(logical)) {
    Vector v = {};
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) {
      const u32 byte = load_element<u8>(pointer<u8>(runs.at(logical + i))) << (8 * (i % 4));
#pragma unroll
      for (u32 k = 0; k < 4; k++) v.w[k] |= i / 4 == k ? byte : 0;
    }
    return v;
  }
  const u64 bits = at | bytes;
  if (bits % 16 == 0) return load_vector(pointer<void>(at));
  if (bits % 8 == 0) return load_parts<u64>(at, bytes);
  if (bits % 4 == 0) return load_parts<u32>(at, bytes);
  if (bits % 2 == 0) return load_parts<u16>(at, bytes);
  return load_parts<u8>(at, bytes);
}
__device__ __attribute__((noinline)) inline void store_any(Runs runs, u64 logical, u64 end, Vector v) {
  const u32 bytes = end - logical < 16 ? (u32)(end - logical) : 16;
  const u64 at = runs.at(logical);
  if (bytes > runs.left(logical)) {
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) {
      u32 word = v.w[0];
#pragma unroll
      for (u32 k = 1; k < 4; k++) word = i / 4 == k ? v.w[k] : word;
      store_element(pointer<u8>(runs.at(logical + i)), (u8)(word >> (8 * (i % 4))));
    }
    return;
  }
  const u64 bits = at | bytes;
  if (bits % 16 == 0) return store_vector(pointer<void>(at), v);
  if (bits % 8 == 0) return store_parts<u64>(at, bytes, v);
  if (bits % 4 == 0) return store_parts<u32>(at, bytes, v);
  if (bits % 2 == 0) return store_parts<u16>(at, bytes, v);
  store_parts<u8>(at, bytes, v);
}

// Packets of 8 bytes each carry the vectors of a range. The two of a vector are a warp apart, so that a
// warp's stores follow each other.
SYMMEM_FN u64 packet_of(u64 vector) { return vector / 32 * 64 + vector % 32; }

SYMMEM_FN void put(u64 slot, u64 tag, const Vector& v) {
  store_pair(pointer<void>(slot), Pair{tag | v.w[0], tag | v.w[1]});
  store_pair(pointer<void>(slot + 512), Pair{tag | v.w[2], tag | v.w[3]});
}
SYMMEM_FN bool poll(u64 slot, u32 epoch, Vector& v) {
  Pair low = load_pair(pointer<void>(slot)), high = load_pair(pointer<void>(slot + 512));
  v = Vector{{(u32)low.a, (u32)low.b, (u32)high.a, (u32)high.b}};
  u32 differs = (u32)(low.a >> 32) ^ epoch | (u32)(low.b >> 32) ^ epoch | (u32)(high.a >> 32) ^ epoch | (u32)(high.b >> 32) ^ epoch;
  return differs == 0;
}

// The peers of this rank, beginning with the next one, so that not all store to one at a time.
template <u32 W, class Act> SYMMEM_FN void for_peers(const Lane& lane, Act act) {
  if constexpr (W != 0) {
#pragma unroll
    for (u32 k = 1; k < W; k++) act((lane.rank + k) % W);
  } else {
#pragma unroll 1
    for (u32 k = 1; k < lane.world; k++) act(lane.rank + k < lane.world ? lane.rank + k : lane.rank + k - lane.world);
  }
}

// The last warp of a block publishes headers, awaits flags and raises them; the others move payload.
SYMMEM_FN u32 workers() { return block_size() - 32; }
SYMMEM_FN bool is_worker() { return thread_index() < workers(); }
SYMMEM_FN u32 sync_thread() { return thread_index() - workers(); }

// The flags of one block's rounds, by its sync warp: each thread serves ranks of its own, of those that
// are `of`.
template <class Of> SYMMEM_FN bool await_flags(const Lane& lane, const Step& step, Gate& gate, u32 count, Of of) {
  for (u32 r = sync_thread(); r < lane.world; r += 32)
    if (r != lane.rank && of(r) && !await_flag(lane, step, gate, r, count)) return false;
  return true;
}
template <class To> SYMMEM_FN void raise_flags(const Lane& lane, const Step& step, u32 count, To to) {
  if (sync_thread() >= lane.world) return;
  fence_system();
  for (u32 r = sync_thread(); r < lane.world; r += 32)
    if (r != lane.rank && to(r)) raise(lane, step, r, count);
}
SYMMEM_FN bool await_flags(const Lane& lane, const Step& step, Gate& gate, u32 count) {
  return await_flags(lane, step, gate, count, [](u32) { return true; });
}
SYMMEM_FN void raise_flags(const Lane& lane, const Step& step, u32 count) {
  raise_flags(lane, step, count, [](u32) { return true; });
}

// The bytes `start..start + length` of a part.
struct Chunk {
  u64 start, length;
};

// Chunk `c` of this block, of the bytes `start..stop`: that of index block + c * grid.
SYMMEM_FN Chunk chunk_of(const Plan& p, u32 c, u64 start, u64 stop) {
  u64 at = start + (block_index() + (u64)c * grid_size()) * p.chunk;
  u64 left = at < stop ? stop - at : 0;
  return Chunk{at, left < p.chunk ? left : p.chunk};
}

// A place in the ring of chunks that a block has for each writer.
struct Ring {
  u64 at, first, end;

  SYMMEM_FN Ring(const Plan& p) {
    at = first = (u64)block_index() * p.slots * p.chunk;
    end = first + p.slots * p.chunk;
  }
  SYMMEM_FN void advance(const Plan& p) {
    at += p.chunk;
    if (at == end) at = first;
  }
};

// The step after all others of an operation whose completion is the whole group's.
constexpr u32 COMPLETED = 1u << 30;

__device__ __attribute__((noinline)) inline bool await_completion(const Lane& lane, Step step) {
  Gate gate;
  raise_flags(lane, step, COMPLETED);
  return await_flags(lane, step, gate, COMPLETED);
}

// Where completion is the whole group's, waits until the blocks of this index of all ranks are done.
// Every thread of the block calls it, after its last access to any payload.
SYMMEM_FN bool complete(const Plan& p, const Step& step, bool ok) {
  if (SYMMEM_LIKELY(!p.group_completion)) return ok;
  if (block_any(!ok)) return false;
  return is_worker() || await_completion(p.lane, step);
}

// What an operation in packets leaves, of which `writers` are the ranks whose packets this one has taken.
SYMMEM_FN Used packets_used(const Plan& p, u32 writers) {
  const u64 vectors = (p.bytes + 15) / 16;
  const bool together = p.group_completion;
  return Used{writers, (u32)(vectors / 32 * 64), false, together, together, NONE, (u32)(vectors % 32)};
}

}  // namespace symmem

#endif  // SYMMEM_PLAN_CUH
