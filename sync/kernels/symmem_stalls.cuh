// symmem_stalls.cuh: delays of one rank at one step, for tests. Included by symmem_sync.cuh, in kernels that
// are compiled with SYMMEM_STALLS, and by tests that name a step.

#ifndef SYMMEM_STALLS_CUH
#define SYMMEM_STALLS_CUH

#include "symmem_lane.cuh"

namespace symmem {

// The steps at which a test can delay one rank, as the crate's module `stalls` has them.
enum Stall : u32 {
  STALL_ENTER,
  STALL_AWAIT_READERS,
  STALL_PUBLISH_HEADER,
  STALL_PUT_PACKET,
  STALL_POLL_PACKET,
  STALL_WRITE_STAGING,
  STALL_RAISE_FLAG,
  STALL_AWAIT_FLAG,
  STALL_READ_STAGING,
  STALL_COMPARE,
  STALL_SCRUB,
  STALL_EXIT,
  STALL_REPORT,
  STALL_ARRIVE,
  STALL_AWAIT_ARRIVALS,
  STALL_AWAIT_EMPTY,
  STALL_PUT_DATA,
  STALL_FILL_SLOT,
  STALL_AWAIT_FULL,
  STALL_EMPTY_SLOT,
  STALL_RESET,
  STALL_AWAIT_RESET
};

// No stall is longer.
constexpr u64 MOST_STALL_NS = 60000000000;

// At CONTROL_STALL: the step + 1 and at the first of how many comings (u32 each), the nanoseconds (u64), how
// often a thread came to the step and how often one was delayed (u32 each).
__device__ __attribute__((noinline)) inline void stall(u64 page, u32 step) {
  const Pair set = load_pair(pointer<void>(page + CONTROL_STALL));
  const u32 every = (u32)(set.a >> 32);
  if ((u32)set.a != step + 1) return;
  u32* counts = pointer<u32>(page + CONTROL_STALL + 16);
  if (every == 0) return;
  if (fetch_increment(counts, ~0u) % every != 0) return;
  fetch_increment(counts + 1, ~0u);
  const u64 since = clock_ns(), most = set.b < MOST_STALL_NS ? set.b : MOST_STALL_NS;
  // It ends with the test's wish for it, and once the group has failed.
  while (load_relaxed(pointer<u32>(page + CONTROL_STALL)) == step + 1 && load_relaxed(pointer<u32>(page + CONTROL_ABORT)) == 0 &&
         clock_ns() - since < most) {
  }
}

}  // namespace symmem

#endif  // SYMMEM_STALLS_CUH
