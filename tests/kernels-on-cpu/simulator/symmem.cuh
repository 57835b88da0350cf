// symmem.cuh, as kernels on a CPU see it: the functions of `hal/kernels/symmem.cuh` by the same names,
// on the simulated machine. It stands before that folder on the include path.

#ifndef SYMMEM_CUH
#define SYMMEM_CUH

#define __device__
#define __global__
#define __launch_bounds__(...)
#define SYMMEM_ARGS
#define SYMMEM_LIKELY(x) (x)
#define SYMMEM_UNLIKELY(x) (x)
#define SYMMEM_FN inline
// No instructions that convert.
#define SYMMEM_SOFT_FLOATS 1

namespace symmem {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

// What the machine does for the thread that is running.
namespace machine {

// At most 8 bytes within a word of 8, or 16 that move whole.
void load(const void* at, void* into, u32 bytes, bool acquires);
void store(void* at, const void* from, u32 bytes, bool releases);
void fence();
// Replaces a word by what `next` makes of it; returns what was found. Acquires and releases.
u32 update(u32* at, u32 (*next)(u32 found, u32 a, u32 b), u32 a, u32 b);
// 16 bytes of a thread, whose warp does the same at once: eight of them are a line, which moves whole.
void store_line(void* at, const void* from);
void load_line(const void* at, void* into);
// What a thread of the warp says.
u64 read(u64 mine, u32 thread);
// Memory of a block.
void* shared(u64 bytes);
// The threads of a block meet; whether any of them said so.
bool meet(bool mine);
void expect_aligned(const void* at, u64 bytes);

}  // namespace machine

u32 thread_index();
u32 block_index();
u32 block_size();
u32 grid_size();
u64 clock_ns();
void warp_sync();
bool warp_all(bool mine);
template <class Args> void fetch_arguments(const Args&) {}
void wait_for_previous_kernel();
void allow_next_kernel();

inline u32 warp_read(u32 mine, u32 thread) { return (u32)machine::read(mine, thread); }
inline u64 warp_read(u64 mine, u32 thread) { return machine::read(mine, thread); }
inline u32 warp_match(u32 mine) {
  u32 same = 0;
  for (u32 i = 0; i < 32; i++) same |= (u32)(warp_read(mine, i) == mine) << i;
  return same;
}
inline u32 warp_vote(bool mine) {
  const u32 t = thread_index() % 32;
  u32 bits = (u32)mine << t;
  for (u32 step = 1; step < 32; step *= 2) bits |= warp_read(bits, t ^ step);
  return bits;
}
inline u32 count_ones(u32 bits) { return (u32)__builtin_popcount(bits); }
#define SYMMEM_SHARED(type, name) type& name = *static_cast<type*>(machine::shared(sizeof(type)))

inline void shared_add(u32* at, u32 value) { *at += value; }

inline void block_sync() { machine::meet(false); }

template <class T> T load_relaxed(const T* at) {
  T value;
  machine::load(at, &value, sizeof value, false);
  return value;
}
template <class T> T load_acquire(const T* at) {
  T value;
  machine::load(at, &value, sizeof value, true);
  return value;
}
template <class T> void store_relaxed(T* at, T value) { machine::store(at, &value, sizeof value, false); }
template <class T> void store_release(T* at, T value) { machine::store(at, &value, sizeof value, true); }
inline u32 compare_exchange(u32* at, u32 expected, u32 value) {
  return machine::update(at, [](u32 found, u32 e, u32 v) { return found == e ? v : found; }, expected, value);
}
inline u32 fetch_or(u32* at, u32 bits) {
  return machine::update(at, [](u32 found, u32 b, u32) { return found | b; }, bits, 0);
}
inline u32 fetch_increment(u32* at, u32 most) {
  return machine::update(at, [](u32 found, u32 m, u32) { return found >= m ? 0 : found + 1; }, most, 0);
}
inline void fence_system() { machine::fence(); }

struct alignas(16) Vector {
  u32 w[4];
};
struct Pair {
  u64 a, b;
};

// Whole each word by itself, as `v2.b64` and `v4.u32` are: their halves may arrive apart.
inline void store_pair(void* at, Pair p) {
  machine::expect_aligned(at, 16);
  store_relaxed(static_cast<u64*>(at), p.a);
  store_relaxed(static_cast<u64*>(at) + 1, p.b);
}
inline Pair load_pair(const void* at) {
  machine::expect_aligned(at, 16);
  u64 a = load_relaxed(static_cast<const u64*>(at)), b = load_relaxed(static_cast<const u64*>(at) + 1);
  return {a, b};
}
inline void store_vector(void* at, Vector v) { store_pair(at, __builtin_bit_cast(Pair, v)); }
inline Vector load_vector(const void* at) { return __builtin_bit_cast(Vector, load_pair(at)); }
inline Vector load_once(const void* at) { return load_vector(at); }

#define SYMMEM_HAS_WHOLE_VECTORS 1
inline void store_whole(void* at, Vector v) {
  machine::expect_aligned(at, 16);
  machine::store(at, &v, sizeof v, false);
}
inline Vector load_whole(const void* at) {
  machine::expect_aligned(at, 16);
  Vector v;
  machine::load(at, &v, sizeof v, false);
  return v;
}

// What eight threads of a warp store or load at once, at the places of a line of 128 bytes.
#define SYMMEM_HAS_LINES 1
inline void store_line(void* at, Vector v) { machine::store_line(at, &v); }
inline Vector load_line(const void* at) {
  Vector v;
  machine::load_line(at, &v);
  return v;
}

template <class U> U load_element(const void* at) { return load_relaxed(static_cast<const U*>(at)); }
template <class U> void store_element(void* at, U value) { store_relaxed(static_cast<U*>(at), value); }

inline bool is_aligned(const void* at, u64 bytes) { return (reinterpret_cast<u64>(at) & (bytes - 1)) == 0; }

}  // namespace symmem

inline int __syncthreads_or(int mine) { return symmem::machine::meet(mine != 0); }

#endif  // SYMMEM_CUH
