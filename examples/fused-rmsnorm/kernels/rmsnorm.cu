// All-reduce, residual and RMSNorm in one kernel, and the last two by themselves to compare with.
//
// For each token: x = the sum of all ranks' inputs in rank order, in f32, rounded to bf16 (what the
// library's all-reduce gives, bit for bit); h = bf16(x + residual), which is the new residual;
// output = bf16(h / sqrt(mean(h^2) + epsilon) * weight).
//
// One shot: each block pushes its tokens' rows into every peer's staging and raises a flag a token;
// whoever has all ranks' flags of a token has its rows in memory of its own.

#include "symmem_sync.cuh"

using namespace symmem;

constexpr u32 THREADS = 256;
// Vectors of 8 elements that a thread has of a row.
constexpr u32 MOST = 4;

struct alignas(16) Norm {
  u64 residual;  // bf16 [tokens][hidden], replaced
  u64 weight;    // bf16 [hidden]
  u64 output;    // bf16 [tokens][hidden]
  u32 tokens, hidden;
  float epsilon;
  u32 reserved[3];
};

struct alignas(16) Fused {
  Lane lane;
  Norm norm;
  u64 input;  // bf16 [tokens][hidden], this rank's
  u64 reserved;
};

struct alignas(16) Unfused {
  Norm norm;
  u64 input;  // bf16 [tokens][hidden], the sum
  u64 reserved;
};

SYMMEM_FN float widen(u32 code) { return __uint_as_float(code << 16); }

// To the nearest, ties to even.
SYMMEM_FN u32 narrow(float value) {
  u32 bits = __float_as_uint(value);
  return value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff;
}

// 8 elements.
struct Floats {
  float f[8];
};

SYMMEM_FN Floats unpack(const Vector& v) {
  Floats all;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    all.f[2 * i] = widen(v.w[i] & 0xffff);
    all.f[2 * i + 1] = widen(v.w[i] >> 16);
  }
  return all;
}

SYMMEM_FN Vector pack(const Floats& all) {
  Vector v;
#pragma unroll
  for (u32 i = 0; i < 4; i++) v.w[i] = narrow(all.f[2 * i]) | narrow(all.f[2 * i + 1]) << 16;
  return v;
}

// Every thread of the block calls it, and gets the sum of all.
SYMMEM_FN float block_sum(float mine) {
  __shared__ float warps[THREADS / 32];
#pragma unroll
  for (u32 d = 16; d != 0; d /= 2) mine += __shfl_xor_sync(~0u, mine, d);
  block_sync();  // the last sum has been read
  if (thread_index() % 32 == 0) warps[thread_index() / 32] = mine;
  block_sync();
  float sum = 0;
#pragma unroll
  for (u32 w = 0; w < THREADS / 32; w++) sum += warps[w];
  return sum;
}

// Residual and RMSNorm of one token, whose sum is `sum(v)` for each vector of its row.
template <class Sum> SYMMEM_FN void normalise(const Norm& n, u32 token, Sum sum) {
  const u32 vectors = n.hidden / 8;
  const u64 row = (u64)token * n.hidden * 2;
  Floats h[MOST];
  float squares = 0;
#pragma unroll
  for (u32 k = 0; k < MOST; k++) {
    u32 v = thread_index() + k * THREADS;
    if (v >= vectors) continue;
    Floats x = sum(v), residual = unpack(load_vector(pointer<void>(n.residual + row + v * 16)));
#pragma unroll
    for (u32 i = 0; i < 8; i++) x.f[i] += residual.f[i];
    Vector rounded = pack(x);
    store_vector(pointer<void>(n.residual + row + v * 16), rounded);
    h[k] = unpack(rounded);
#pragma unroll
    for (u32 i = 0; i < 8; i++) squares += h[k].f[i] * h[k].f[i];
  }
  float scale = rsqrtf(block_sum(squares) / (float)n.hidden + n.epsilon);
#pragma unroll
  for (u32 k = 0; k < MOST; k++) {
    u32 v = thread_index() + k * THREADS;
    if (v >= vectors) continue;
    Floats weight = unpack(load_vector(pointer<void>(n.weight + v * 16)));
#pragma unroll
    for (u32 i = 0; i < 8; i++) h[k].f[i] = h[k].f[i] * scale * weight.f[i];
    store_vector(pointer<void>(n.output + row + v * 16), pack(h[k]));
  }
}

// Copies this block's rows to every peer, and says so row by row.
SYMMEM_FN void push(const Fused& a, const Step& step) {
  const Lane& lane = a.lane;
  const u32 vectors = a.norm.hidden / 8;
  u32 raised = 0;
  for (u32 token = block_index(); token < a.norm.tokens; token += grid_size()) {
    const u64 row = (u64)token * a.norm.hidden * 2;
    for (u32 v = thread_index(); v < vectors; v += THREADS) {
      Vector mine = load_vector(pointer<void>(a.input + row + v * 16));
      for (u32 r = 0; r < lane.world; r++)
        if (r != lane.rank)
          store_vector(pointer<void>(staging_to(lane, step.parity, r) + row + v * 16), mine);
    }
    // Each thread's own stores, before any thread says that all are made.
    fence_system();
    block_sync();
    raised++;
    for (u32 r = thread_index(); r < lane.world; r += THREADS)
      if (r != lane.rank) raise(lane, step, r, raised);
  }
}

// Awaits, adds and normalises this block's rows; false if a peer's did not come.
SYMMEM_FN bool reduce(const Fused& a, const Step& step) {
  const Lane& lane = a.lane;
  u32 count = 0;
  for (u32 token = block_index(); token < a.norm.tokens; token += grid_size()) {
    const u64 row = (u64)token * a.norm.hidden * 2;
    count++;
    bool here = true;
    for (u32 r = thread_index(); r < lane.world; r += THREADS) {
      Gate gate;
      if (r != lane.rank) here = here && await_flag(lane, step, gate, r, count);
    }
    if (block_any(!here)) return false;
    normalise(a.norm, token, [&](u32 v) {
      Floats sum;
      for (u32 r = 0; r < lane.world; r++) {
        u64 from = r == lane.rank ? a.input : staging_from(lane, step.parity, r);
        Floats theirs = unpack(load_vector(pointer<void>(from + row + v * 16)));
#pragma unroll
        for (u32 i = 0; i < 8; i++) sum.f[i] = r == 0 ? theirs.f[i] : sum.f[i] + theirs.f[i];
      }
      return unpack(pack(sum));
    });
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(THREADS) fused(const SYMMEM_ARGS Fused a) {
  const Lane& lane = a.lane;
  fetch_arguments(a);
  if (!begin(lane)) return;
  Headers headers(lane, thread_index());
  Step step;
  if (!enter(lane, step)) return;
  bool ok = !block_any(!await_clear(lane, step));
  if (ok) {
    if (thread_index() < 32) headers.publish(lane, step);
    push(a, step);
    ok = reduce(a, step);
  }
  // That all ranks made the same call, before any of them reports success.
  if (ok && thread_index() < 32) ok = headers.compare(lane, step, [](u32) { return true; });
  exit(lane, step, ok, Used{ALL, 0, true});
}

extern "C" __global__ void __launch_bounds__(THREADS) unfused(const SYMMEM_ARGS Unfused a) {
  wait_for_previous_kernel();
  for (u32 token = block_index(); token < a.norm.tokens; token += grid_size())
    normalise(a.norm, token, [&](u32 v) {
      return unpack(load_vector(pointer<void>(a.input + (u64)token * a.norm.hidden * 2 + v * 16)));
    });
}
