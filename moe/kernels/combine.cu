// combine.cu: experts' rows back to their tokens, which reads them where they lie in their ranks' memory.
//
// Whoever is in the call has its rows ready; nobody leaves it before all have read them.

#include "combine.cuh"

namespace symmem {
namespace routing {

SYMMEM_FN void combine(const Combine& p) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  Step step{};
  if (block_any(!enter(lane, step))) return;
  if (!await_clear(lane, step)) return;
  bool ok = agree(lane, step, headers);
  if (ok) {
    const u64 row = row_bytes(p);
    if (is_worker())
      sum_all(p, [&](u64 place) { return pointer<const u64>(p.peers)[rank_of(place)] + p.offset + row_of(place) * row; });
    ok = part(lane, step);
  }
  ok = complete(lane, p.routed.group_completion != 0, step, ok);
  exit(lane, step, ok, Used{ALL, 0, true});
}

}  // namespace routing
}  // namespace symmem

extern "C" __global__ void __launch_bounds__(288, 1) combine(const SYMMEM_ARGS symmem::Combine plan) {
  symmem::fetch_arguments(plan);
  symmem::routing::combine(plan);
}
