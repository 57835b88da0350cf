// All-reduce, residual and RMSNorm in one kernel, and the last two by themselves to compare with.
//
// For each token: x = the sum of all ranks' inputs in rank order, in f32, rounded to bf16 (what the
// library's all-reduce gives, bit for bit); h = bf16(x + residual), which is the new residual;
// output = bf16(h / sqrt(mean(h^2) + epsilon) * weight).
//
// One shot, in packets: each 16 bytes that travel are 8 of a row and twice the epoch, so that whoever finds
// the epoch has the data, without a fence or a flag. Each thread stores its vectors of a row for every peer,
// and awaits the same vectors of every peer.

#include "symmem_sync.cuh"

using namespace symmem;

constexpr u32 THREADS = 512;
// Vectors of 8 elements that a thread has of a row.
constexpr u32 MOST = 2;

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

// Every thread of the block calls it, and gets the sum of all; false if it is not `ok` for each of them.
SYMMEM_FN bool block_sum(float mine, bool ok, float& sum) {
  __shared__ float warps[THREADS / 32];
#pragma unroll
  for (u32 d = 16; d != 0; d /= 2) mine += __shfl_xor_sync(~0u, mine, d);
  // All have also read the last sum.
  if (block_any(!ok)) return false;
  if (thread_index() % 32 == 0) warps[thread_index() / 32] = mine;
  block_sync();
  sum = 0;
#pragma unroll
  for (u32 w = 0; w < THREADS / 32; w++) sum += warps[w];
  return true;
}

// Residual and RMSNorm of one token, of which `sum(v, x)` says each vector `v` of its row; false, with nothing
// stored, where it could not.
template <class Sum> SYMMEM_FN bool normalise(const Norm& n, u32 token, Sum sum) {
  const u32 vectors = n.hidden / 8;
  const u64 row = (u64)token * n.hidden * 2;
  Vector h[MOST];
  float squares = 0, total;
  bool ok = true;
#pragma unroll
  for (u32 k = 0; k < MOST; k++) {
    u32 v = thread_index() + k * THREADS;
    if (v >= vectors) continue;
    Floats residual = unpack(load_vector(pointer<void>(n.residual + row + v * 16))), x;
    ok = ok && sum(v, x);
#pragma unroll
    for (u32 i = 0; i < 8; i++) x.f[i] += residual.f[i];
    h[k] = pack(x);
    x = unpack(h[k]);
#pragma unroll
    for (u32 i = 0; i < 8; i++) squares += x.f[i] * x.f[i];
  }
  if (!block_sum(squares, ok, total)) return false;
  float scale = rsqrtf(total / (float)n.hidden + n.epsilon);
#pragma unroll
  for (u32 k = 0; k < MOST; k++) {
    u32 v = thread_index() + k * THREADS;
    if (v >= vectors) continue;
    Floats weight = unpack(load_vector(pointer<void>(n.weight + v * 16))), x = unpack(h[k]);
#pragma unroll
    for (u32 i = 0; i < 8; i++) x.f[i] = x.f[i] * scale * weight.f[i];
    store_vector(pointer<void>(n.residual + row + v * 16), h[k]);
    store_vector(pointer<void>(n.output + row + v * 16), pack(x));
  }
  return true;
}

// Vector `i` of all tokens in two packets: its halves, as far apart as there are vectors, so that what
// neighbouring threads store is adjacent.
SYMMEM_FN u64 all_vectors(const Norm& n) { return (u64)n.tokens * (n.hidden / 8); }
SYMMEM_FN void put(u64 packets, const Norm& n, u64 i, u64 tag, const Vector& v) {
  store_pair(pointer<void>(packets + i * 16), Pair{tag | v.w[0], tag | v.w[1]});
  store_pair(pointer<void>(packets + (all_vectors(n) + i) * 16), Pair{tag | v.w[2], tag | v.w[3]});
}
SYMMEM_FN bool poll(u64 packets, const Norm& n, u64 i, u32 epoch, Vector& v) {
  Pair low = load_pair(pointer<void>(packets + i * 16));
  Pair high = load_pair(pointer<void>(packets + (all_vectors(n) + i) * 16));
  v = Vector{{(u32)low.a, (u32)low.b, (u32)high.a, (u32)high.b}};
  return low.a >> 32 == epoch && low.b >> 32 == epoch && high.a >> 32 == epoch && high.b >> 32 == epoch;
}

// This block's rows, to every peer.
SYMMEM_FN void push(const Fused& a, const Step& step) {
  const Lane& lane = a.lane;
  const u32 vectors = a.norm.hidden / 8;
  for (u32 token = block_index(); token < a.norm.tokens; token += grid_size())
    for (u32 v = thread_index(); v < vectors; v += THREADS) {
      const u64 i = (u64)token * vectors + v;
      const Vector mine = load_vector(pointer<void>(a.input + i * 16));
      for (u32 r = 0; r < lane.world; r++)
        if (r != lane.rank) put(packets_to(lane, step.parity, r), a.norm, i, step.tag, mine);
    }
}

// Awaits, adds and normalises this block's rows; false if a peer's did not come.
SYMMEM_FN bool reduce(const Fused& a, const Step& step) {
  const Lane& lane = a.lane;
  Gate gate;
  for (u32 token = block_index(); token < a.norm.tokens; token += grid_size()) {
    auto sum = [&](u32 v, Floats& all) {
      const u64 i = (u64)token * (a.norm.hidden / 8) + v;
      for (u32 r = 0; r < lane.world; r++) {
        Vector theirs;
        auto ready = [&] { return poll(packets_from(lane, step.parity, r), a.norm, i, step.epoch, theirs); };
        if (r == lane.rank) theirs = load_vector(pointer<void>(a.input + i * 16));
        else if (!await(lane, step.epoch, gate, r, ready)) return false;
        const Floats next = unpack(theirs);
#pragma unroll
        for (u32 e = 0; e < 8; e++) all.f[e] = r == 0 ? next.f[e] : all.f[e] + next.f[e];
      }
      all = unpack(pack(all));
      return true;
    };
    if (!normalise(a.norm, token, sum)) return false;
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) fused(const SYMMEM_ARGS Fused a) {
  const Lane& lane = a.lane;
  fetch_arguments(a);
  if (!begin(lane)) return;
  Headers headers(lane, thread_index());
  Step step;
  if (!enter(lane, step)) return;
  bool ok = !block_any(!await_clear(lane, step));
  if (ok) {
    push(a, step);
    if (thread_index() < 32) headers.publish(lane, step);
    ok = reduce(a, step);
  }
  // That all ranks made the same call, before any of them reports success.
  if (ok && thread_index() < 32) ok = headers.compare(lane, step, [](u32) { return true; });
  exit(lane, step, ok, Used{ALL, (u32)(2 * all_vectors(a.norm)), false});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) unfused(const SYMMEM_ARGS Unfused a) {
  wait_for_previous_kernel();
  for (u32 token = block_index(); token < a.norm.tokens; token += grid_size())
    normalise(a.norm, token, [&](u32 v, Floats& all) {
      all = unpack(load_vector(pointer<void>(a.input + (u64)token * a.norm.hidden * 2 + v * 16)));
      return true;
    });
}
