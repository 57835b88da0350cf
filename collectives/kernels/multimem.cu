// multimem.cu: all-reduce, reduce and all-gather by the switch: one address that stands for all ranks'
// memory (a multicast object), through which a load reduces and a store reaches every rank.
//
// In what order the switch adds is its own business: these kernels promise no bits, and are for groups
// of relaxed determinism. From sm_90 on; nothing elsewhere.
//
// `input` and `output` are multicast addresses of what they read and write on all ranks, all of whole
// vectors.

#include "plan.cuh"

namespace symmem {

#if !defined(SYMMEM_HIP) && __CUDA_ARCH__ >= 900

// The sum of all ranks' vectors, accumulated in f32.
enum Sum { SUM_F32, SUM_F16, SUM_BF16 };

template <Sum S> SYMMEM_FN Vector load_sum(u64 at) {
  Vector v;
  if constexpr (S == SUM_F32)
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
  else if constexpr (S == SUM_F16)
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
  else
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
  return v;
}

// Into every rank's memory. Bits: whatever type they are of.
SYMMEM_FN void store_everywhere(u64 at, const Vector& v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

// What all of these are: ranks meet, since inputs are read and outputs written once all are in the call;
// `move` moves the vectors of a range; ranks part, once every rank's stores have been made.
template <class Move> SYMMEM_FN void between_all(const Plan& p, u64 start, u64 stop, Move move) {
  const Lane& lane = p.lane;
  if (!begin(lane)) return;
  Headers headers(lane, sync_thread());
  Step step;
  if (!enter(lane, step)) return;
  if (!await_clear(lane, step)) return;
  bool ok = true;
  if (!is_worker()) {
    headers.publish(lane, step);
    ok = headers.compare(lane, step, [](u32) { return true; });
  }
  ok = !block_any(!ok);
  if (ok && is_worker()) {
    const u64 stride = (u64)grid_size() * workers() * 16;
    constexpr u32 U = 4;
    u64 at = start + ((u64)block_index() * workers() + thread_index()) * 16;
    for (; at + (U - 1) * stride < stop; at += U * stride) move(at, stride, U);
    for (; at < stop; at += stride) move(at, stride, 1u);
  }
  if (ok) {
    block_sync();
    if (!is_worker()) {
      Gate gate;
      raise_flags(lane, step, 1);
      ok = await_flags(lane, step, gate, 1);
    }
  }
  exit(lane, step, ok, Used{ALL, 0, true});
}

// Each rank sums a slice and stores it on all.
template <Sum S> SYMMEM_FN void multimem_all_reduce(const Plan& p) {
  const u64 start = p.slice * p.lane.rank, stop = start + p.slice;
  between_all(p, start, stop < p.bytes ? stop : p.bytes, [&](u64 at, u64 stride, u32 count) {
    Vector v[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++)
      if (k < count) v[k] = load_sum<S>(p.input + at + k * stride);
#pragma unroll
    for (u32 k = 0; k < 4; k++)
      if (k < count) store_everywhere(p.output + at + k * stride, v[k]);
  });
}

// The root sums all; its output is its own memory.
template <Sum S> SYMMEM_FN void multimem_reduce(const Plan& p) {
  between_all(p, 0, p.receives ? p.bytes : 0, [&](u64 at, u64 stride, u32 count) {
    Vector v[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++)
      if (k < count) v[k] = load_sum<S>(p.input + at + k * stride);
#pragma unroll
    for (u32 k = 0; k < 4; k++)
      if (k < count) store_vector(pointer<void>(p.output + at + k * stride), v[k]);
  });
}

// Each rank stores its block, from its own memory, on all.
SYMMEM_FN void multimem_all_gather(const Plan& p) {
  const u64 block = p.output + p.out.step * p.lane.rank;
  between_all(p, 0, p.bytes, [&](u64 at, u64 stride, u32 count) {
    Vector v[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++)
      if (k < count) v[k] = load_vector(pointer<void>(p.input + at + k * stride));
#pragma unroll
    for (u32 k = 0; k < 4; k++)
      if (k < count) store_everywhere(block + at + k * stride, v[k]);
  });
}

#endif

}  // namespace symmem

#if !defined(SYMMEM_HIP) && __CUDA_ARCH__ >= 900

#define SYMMEM_KERNEL(name, body)                                                                  \
  extern "C" __global__ void __launch_bounds__(288, 1) name(const SYMMEM_ARGS symmem::Plan plan) { \
    symmem::fetch_arguments(plan);                                                                 \
    symmem::body(plan);                                                                            \
  }

SYMMEM_KERNEL(multimem_all_reduce_f32, multimem_all_reduce<symmem::SUM_F32>)
SYMMEM_KERNEL(multimem_all_reduce_f16, multimem_all_reduce<symmem::SUM_F16>)
SYMMEM_KERNEL(multimem_all_reduce_bf16, multimem_all_reduce<symmem::SUM_BF16>)
SYMMEM_KERNEL(multimem_reduce_f32, multimem_reduce<symmem::SUM_F32>)
SYMMEM_KERNEL(multimem_reduce_f16, multimem_reduce<symmem::SUM_F16>)
SYMMEM_KERNEL(multimem_reduce_bf16, multimem_reduce<symmem::SUM_BF16>)
SYMMEM_KERNEL(multimem_all_gather, multimem_all_gather)

#endif
