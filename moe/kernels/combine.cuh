// combine.cuh: sums of the rows of tokens, wherever those lie; the same bits as `WeightedSum` of the crate below.

#ifndef SYMMEM_COMBINE_CUH
#define SYMMEM_COMBINE_CUH

#include "routing.cuh"

namespace symmem {

namespace routing {

// Rows that a warp has on their way at once, 16 bytes of each for a thread.
constexpr u32 FLIGHT = 8;

// Bytes of a row that a warp sums at a time.
constexpr u32 COLUMNS = 512;

// One vector of a sum under way.
template <int D> struct Sum {
  static constexpr u32 COUNT = 16 / Size<D>::value;
  float acc[COUNT];

  static SYMMEM_FN float widened(const Vector& v, u32 i) { return Convert<D>::widen((u32)Fold<D, SUM>::element(v, i)); }

  // The product and the sum are rounded each.
  SYMMEM_FN void add(const Vector& v, float weight, bool is_first) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
      const float product = weight * widened(v, i);
      acc[i] = is_first ? product : acc[i] + product;
    }
  }
  SYMMEM_FN Vector result() const {
    constexpr u32 size = Size<D>::value;
    Vector v = {};
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) v.w[i * size / 4] |= Convert<D>::narrow(acc[i]) << (8 * (i * size % 4));
    return v;
  }
};

// Of a row at `at`, the bytes of one thread from `column` on.
SYMMEM_FN Vector load_part(u64 at, u64 column, u64 end) {
  if (at % 16 == 0 && column + 16 <= end) return load_vector(pointer<void>(at + column));
  return column < end ? load_any(runs_of(at, end, end), column, end) : Vector{};
}

// Sums columns of the rows of a token, by a warp. `address(place)` is where a row lies.
template <int D, class Address>
SYMMEM_FN void sum_columns(const Combine& p, u64 token, u64 first, u64 end, Address address) {
  const u32 each = p.routed.choices;
  const u64* places = pointer<const u64>(p.routed.places) + token * each;
  const u64 column = first + warp_thread() * 16;
  const bool by_rank = p.routed.layout == RANK_MAJOR;
  Sum<D> sum{};
  bool is_first = true;
  u32 k = 0;
  u64 least_place = 0;
#pragma unroll 1
  for (bool more = true; more;) {
    u64 at[FLIGHT];
    float weight[FLIGHT];
#pragma unroll
    for (u32 i = 0; i < FLIGHT; i++) {
      u64 place = NOWHERE;
      weight[i] = 1.0f;
      if (by_rank) {
        // One row of each rank, in the order of ranks: the next one after the last.
        if (least_place != NOWHERE) {
          for (u32 c = warp_thread(); c < each; c += 32) {
            const u64 found = load_element<u64>(places + c);
            if (found >= least_place) place = least(place, found);
          }
          place = of_warp(place, least);
          least_place = place == NOWHERE ? NOWHERE : place + 1;
        }
      } else if (k < each) {
        place = load_element<u64>(places + k);
        if (p.weights != 0) weight[i] = float_of(load_element<u32>(pointer<u32>(p.weights) + token * each + k));
        k++;
      }
      at[i] = place == NOWHERE ? 0 : address(place);
    }
    more = by_rank ? least_place != NOWHERE : k < each;
    Vector v[FLIGHT];
#pragma unroll
    for (u32 i = 0; i < FLIGHT; i++)
      if (at[i] != 0) v[i] = load_part(at[i], column, end);
#pragma unroll
    for (u32 i = 0; i < FLIGHT; i++) {
      if (at[i] == 0) continue;
      sum.add(v[i], weight[i], is_first);
      is_first = false;
    }
  }
  const Vector result = is_first ? Vector{} : sum.result();
  const u64 to = p.output + token * end;
  if (to % 16 == 0 && column + 16 <= end) store_vector(pointer<void>(to + column), result);
  else if (column < end) store_any(runs_of(to, end, end), column, end, result);
}

// The sums of all tokens, dealt out to the workers of all blocks.
template <int D, class Address> SYMMEM_FN void sum_tokens(const Combine& p, Address address) {
  const u64 tokens = tokens_again(p.lane, p.routed, p.output_rows), end = p.row * Size<D>::value;
  const u64 chunks = quotient(end + COLUMNS - 1, COLUMNS), warps = (u64)grid_size() * (workers() / 32);
#pragma unroll 1
  for (u64 item = block_index() + (u64)grid_size() * warp_index(); item < tokens * chunks; item += warps) {
    SYMMEM_STALL_WARP(p.lane.host, STALL_READ_STAGING);
    const u64 token = quotient(item, chunks);
    sum_columns<D>(p, token, (item - token * chunks) * COLUMNS, end, address);
  }
}
template <class Address> SYMMEM_FN void sum_all(const Combine& p, Address address) {
  switch (p.dtype) {
    case F32: return sum_tokens<F32>(p, address);
    case F16: return sum_tokens<F16>(p, address);
    case BF16: return sum_tokens<BF16>(p, address);
    case F8E4M3: return sum_tokens<F8E4M3>(p, address);
    default: return sum_tokens<F8E5M2>(p, address);
  }
}

SYMMEM_FN u64 row_bytes(const Combine& p) { return p.row * (p.dtype == F32 ? 4 : p.dtype == F16 || p.dtype == BF16 ? 2 : 1); }

}  // namespace routing
}  // namespace symmem

#endif  // SYMMEM_COMBINE_CUH
