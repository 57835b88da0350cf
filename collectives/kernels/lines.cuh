// lines.cuh: payload in lines that arrive whole.

#ifndef SYMMEM_LINES_CUH
#define SYMMEM_LINES_CUH

#include "symmem_lane.cuh"

#ifdef SYMMEM_HAS_LINES

namespace symmem {

// Lines of 128 bytes that arrive whole, 124 bytes of payload beside 4 of the epoch: half as much on the link
// as packets whose words each prove themselves, and no fence. A warp moves 124 vectors in 16 lines: of each
// eight threads, seven one in every of their four lines, and the last one three, whose fourth words are in
// its fourth line.
struct Lines {
  Vector v[4];

  // Vectors that follow each other.
  struct Row {
    u64 from, count;
    SYMMEM_FN bool has(u64 vector) const { return vector < count; }
    SYMMEM_FN void* at(u64 vector) const { return pointer<void>(from + vector * 16); }
  };

  static constexpr u32 VECTORS = 124, BYTES = 16 * 128;

  static SYMMEM_FN u32 me() { return thread_index() % 32; }
  static SYMMEM_FN bool is_last() { return me() % 8 == 7; }
  // This thread's vectors of the 124 of warp `u`: the first, and how far apart they are.
  template <class Index> static SYMMEM_FN Index first(Index u) { return u * VECTORS + (is_last() ? 112 + me() / 8 * 3 : me() / 8 * 7 + me() % 8); }
  static SYMMEM_FN u32 apart() { return is_last() ? 1 : 28; }

  // Of the vectors of `rows`, those of warp `u`: which there are, and where, by their index among all.
  template <class Rows, class Index> SYMMEM_FN void load(const Rows& rows, Index u) {
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      const Index vector = first(u) + k * apart();
      v[k] = rows.has(vector) && !(k == 3 && is_last()) ? load_vector(rows.at(vector)) : Vector{};
    }
  }
  template <class Rows, class Index> SYMMEM_FN void store(const Rows& rows, Index u) const {
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      const Index vector = first(u) + k * apart();
      if (rows.has(vector) && !(k == 3 && is_last())) store_vector(rows.at(vector), v[k]);
    }
  }
  // By all threads of the warp at once.
  SYMMEM_FN void put(u64 lines, u64 u, u32 epoch) const {
    const u64 to = lines + u * BYTES + me() * 16;
    warp_sync();
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      const Vector odd = k < 3 ? Vector{{v[k].w[0], v[k].w[1], v[k].w[2], epoch}} : Vector{{v[0].w[3], v[1].w[3], v[2].w[3], epoch}};
      store_line(pointer<void>(to + k * 512), is_last() ? odd : v[k]);
    }
  }
  SYMMEM_FN bool poll(u64 lines, u64 u, u32 epoch) {
    const u64 from = lines + u * BYTES + me() * 16;
    Vector p[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) p[k] = load_line(pointer<void>(from + k * 512));
    const u32 differs = (p[0].w[3] ^ epoch) | (p[1].w[3] ^ epoch) | (p[2].w[3] ^ epoch) | (p[3].w[3] ^ epoch);
#pragma unroll
    for (u32 k = 0; k < 4; k++) v[k] = k < 3 && is_last() ? Vector{{p[k].w[0], p[k].w[1], p[k].w[2], p[3].w[k]}} : p[k];
    return warp_all(!is_last() || differs == 0);
  }
};

}  // namespace symmem

#endif

#endif  // SYMMEM_LINES_CUH
