// payload.cuh: payload of any length at any address, and how the warps of a block share an operation: of
// this crate's kernels, and of those of the layers above.

#ifndef SYMMEM_PAYLOAD_CUH
#define SYMMEM_PAYLOAD_CUH

#include "symmem_sync.cuh"

namespace symmem {

// --------------------------------------------------------------------------------- accesses

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

// ------------------------------------------------------------------------------------ warps

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

// The step after all others of an operation whose completion is the whole group's.
constexpr u32 COMPLETED = 1u << 30;

__device__ __attribute__((noinline)) inline bool await_completion(const Lane& lane, Step step) {
  Gate gate;
  raise_flags(lane, step, COMPLETED);
  return await_flags(lane, step, gate, COMPLETED);
}

// Where completion is the whole group's, waits until the blocks of this index of all ranks are done.
// Every thread of the block calls it, after its last access to any payload.
SYMMEM_FN bool complete(const Lane& lane, bool of_group, const Step& step, bool ok) {
  if (SYMMEM_LIKELY(!of_group)) return ok;
  if (block_any(!ok)) return false;
  return is_worker() || await_completion(lane, step);
}

}  // namespace symmem

#endif  // SYMMEM_PAYLOAD_CUH
