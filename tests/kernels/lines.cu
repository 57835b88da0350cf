// Lines that are stored over and over while they are loaded: whether any was torn.

#include "symmem.cuh"

using namespace symmem;

struct Lines {
  u64 lines;   // 16 for each warp
  u64 counts;  // of loads that found something else than the load before, and of torn lines: u64 each
  u64 rounds;
};

#ifdef SYMMEM_HAS_LINES

SYMMEM_FN u64 place(const Lines& args) {
  return args.lines + ((u64)block_index() * block_size() + thread_index()) / 32 * 2048 + thread_index() % 32 * 16;
}

// Every word of a line is the number of the round.
extern "C" __global__ void __launch_bounds__(256) store_lines(const SYMMEM_ARGS Lines args) {
  const u64 at = place(args);
  for (u32 n = 1; n <= args.rounds; n++) {
    warp_sync();
    for (u32 k = 0; k < 4; k++) store_line(reinterpret_cast<void*>(at + k * 512), Vector{{n, n, n, n}});
  }
}

extern "C" __global__ void __launch_bounds__(256) load_lines(const SYMMEM_ARGS Lines args) {
  __shared__ u32 first[256];
  const u64 at = place(args);
  u64 changes = 0, torn = 0;
  u32 last = 0;
  for (u64 n = 0; n < args.rounds; n++) {
    for (u32 k = 0; k < 4; k++) {
      const Vector v = load_line(reinterpret_cast<void*>(at + k * 512));
      first[thread_index()] = v.w[0];
      warp_sync();
      const u32 of_line = first[thread_index() / 8 * 8];
      for (u32 i = 0; i < 4; i++) torn += v.w[i] != of_line;
      changes += k == 0 && v.w[0] != last;
      if (k == 0) last = v.w[0];
      warp_sync();
    }
  }
  u64* counts = reinterpret_cast<u64*>(args.counts);
  atomicAdd(counts, changes);
  atomicAdd(counts + 1, torn);
}

#endif
