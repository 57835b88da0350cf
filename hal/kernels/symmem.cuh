// symmem.cuh: what kernels on symmetric memory are made of.
//
// Public. CUDA C++17 that also compiles as HIP; includes nothing, so that it compiles with NVRTC,
// nvcc, hipRTC and clang alike.
//
// Does: name threads and blocks, load and store words with a memory order at system scope, move
// 16-byte vectors and packets, read the clock.
// Does not: know what a rank or an epoch is (symmem_sync.cuh), or how types are reduced.
//
// Memory that a peer may write is touched by the functions below only: plain loads may be cached
// for the length of a kernel, and a compiler may move them.
//
// Sources: PTX ISA, "Memory Consistency Model", "ld", "st", "fence"; LLVM "AMDGPU memory model".

#ifndef SYMMEM_CUH
#define SYMMEM_CUH

#if defined(__HIP__) || defined(__HIPCC__)
#define SYMMEM_HIP 1
#endif

#ifdef SYMMEM_HIP
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(...) __attribute__((amdgpu_flat_work_group_size(1, SYMMEM_FIRST(__VA_ARGS__, 0))))
#define SYMMEM_FIRST(first, ...) first
#endif
#define SYMMEM_ARGS
#else
#define SYMMEM_ARGS __grid_constant__
#endif

#define SYMMEM_LIKELY(x) __builtin_expect(!!(x), 1)
#define SYMMEM_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define SYMMEM_FN __device__ __attribute__((always_inline)) inline

namespace symmem {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "an LP64 device");

// ---------------------------------------------------------------------------------- threads

#ifdef SYMMEM_HIP
SYMMEM_FN u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
SYMMEM_FN u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }
// From the dispatch packet and the implicit arguments of code object version 5.
SYMMEM_FN u32 block_size() {
  return ((const __attribute__((address_space(4))) u16*)__builtin_amdgcn_implicitarg_ptr())[6];
}
SYMMEM_FN u32 grid_size() {
  return ((const __attribute__((address_space(4))) u32*)__builtin_amdgcn_implicitarg_ptr())[0];
}
SYMMEM_FN void block_sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// The 32 threads of a warp come here before one goes on, and see what they have stored; they are in one wave.
SYMMEM_FN void warp_sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
// What the thread of that index in its warp says. All 32 come here.
SYMMEM_FN u32 warp_read(u32 mine, u32 thread) {
  return __builtin_amdgcn_ds_bpermute((thread_index() % 64 / 32 * 32 + thread) * 4, mine);
}
// A bit for each thread of the warp that has the same value. All 32 come here.
SYMMEM_FN u32 warp_match(u32 mine) {
  u32 same = 0;
  for (u32 i = 0; i < 32; i++) same |= (u32)(warp_read(mine, i) == mine) << i;
  return same;
}
// A bit for each thread of the warp that says so. All 32 come here.
SYMMEM_FN u32 warp_vote(bool mine) { return (u32)(__builtin_amdgcn_ballot_w64(mine) >> (thread_index() % 64 / 32 * 32)); }
SYMMEM_FN u32 count_ones(u32 bits) { return (u32)__builtin_popcount(bits); }
#else
SYMMEM_FN u32 thread_index() { return threadIdx.x; }
SYMMEM_FN u32 block_index() { return blockIdx.x; }
SYMMEM_FN u32 block_size() { return blockDim.x; }
SYMMEM_FN u32 grid_size() { return gridDim.x; }
SYMMEM_FN void block_sync() { __syncthreads(); }
// The 32 threads of a warp come here before one goes on, and see what they have stored.
SYMMEM_FN void warp_sync() { __syncwarp(); }
// Whether all of them say so. All get the same answer.
SYMMEM_FN bool warp_all(bool mine) { return __all_sync(~0u, mine); }
// A bit for each thread of the warp that has the same value. All 32 come here.
SYMMEM_FN u32 warp_match(u32 mine) { return __match_any_sync(~0u, mine); }
// A bit for each thread of the warp that says so. All 32 come here.
SYMMEM_FN u32 warp_vote(bool mine) { return __ballot_sync(~0u, mine); }
SYMMEM_FN u32 count_ones(u32 bits) { return __popc(bits); }
// What the thread of that index in its warp says. All 32 come here.
SYMMEM_FN u32 warp_read(u32 mine, u32 thread) { return __shfl_sync(~0u, mine, (int)thread); }
#endif
SYMMEM_FN u64 warp_read(u64 mine, u32 thread) {
  const u32 low = warp_read((u32)mine, thread);
  return low | (u64)warp_read((u32)(mine >> 32), thread) << 32;
}

// A variable of a block, that its threads share: one a kernel.
#define SYMMEM_SHARED(type, name) __shared__ type name

// Adds to a word of such a variable, which several threads do at once.
SYMMEM_FN void shared_add(u32* at, u32 value) {
#ifdef SYMMEM_HIP
  __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  asm volatile("red.relaxed.cta.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#endif
}

// A kernel's arguments lie in memory of constants that no multiprocessor has at hand when the kernel starts:
// reads of every 64 bytes a word, all at once and before anything is awaited, so that no later use waits.
template <class Args> SYMMEM_FN void fetch_arguments(const Args& args) {
#ifndef SYMMEM_HIP
  u64 all = 0;
#pragma unroll
  for (u32 i = 0; i < sizeof(Args) / 8; i += 8) all ^= reinterpret_cast<const u64*>(&args)[i];
  // A use that does nothing: reads of which nothing follows are left out.
  asm volatile("{ .reg .pred p; setp.eq.u64 p, %0, 0; @p nanosleep.u32 0; }" ::"l"(all));
#endif
}

// Programmatic dependent launch: waits until the kernel before this one in the stream has ended and
// its stores are visible. Nothing where the kernel was not launched so.
SYMMEM_FN void wait_for_previous_kernel() {
#if !defined(SYMMEM_HIP) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream be set up. It still waits for this one's end.
SYMMEM_FN void allow_next_kernel() {
#if !defined(SYMMEM_HIP) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Nanoseconds since some moment, the same for all blocks of a device.
SYMMEM_FN u64 clock_ns() {
#ifdef SYMMEM_HIP
  // The constant-speed counter runs at 100 MHz on gfx90a and gfx942.
  return __builtin_readsteadycounter() * 10;
#else
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#endif
}

// ---------------------------------------------------------------- words, at system scope

#ifdef SYMMEM_HIP

template <class T> SYMMEM_FN T load_relaxed(const T* at) {
  return __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <class T> SYMMEM_FN T load_acquire(const T* at) {
  return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <class T> SYMMEM_FN void store_relaxed(T* at, T value) {
  __hip_atomic_store(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <class T> SYMMEM_FN void store_release(T* at, T value) {
  __hip_atomic_store(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
// Replaces `expected`; returns what was found.
SYMMEM_FN u32 compare_exchange(u32* at, u32 expected, u32 value) {
  __hip_atomic_compare_exchange_strong(at, &expected, value, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE,
                                       __HIP_MEMORY_SCOPE_SYSTEM);
  return expected;
}
// Sets bits; returns what was there. For words of this device alone.
SYMMEM_FN u32 fetch_or(u32* at, u32 bits) {
  return __hip_atomic_fetch_or(at, bits, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
// Counts one up, from `most` to zero; returns what was there. For words of this device alone.
SYMMEM_FN u32 fetch_increment(u32* at, u32 most) {
  return __builtin_amdgcn_atomic_inc32(at, most, __ATOMIC_ACQ_REL, "agent");
}
SYMMEM_FN void fence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

#else

SYMMEM_FN u32 load_relaxed(const u32* at) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
SYMMEM_FN u64 load_relaxed(const u64* at) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
SYMMEM_FN u32 load_acquire(const u32* at) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
SYMMEM_FN u64 load_acquire(const u64* at) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
SYMMEM_FN void store_relaxed(u32* at, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
SYMMEM_FN void store_relaxed(u64* at, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
SYMMEM_FN void store_release(u32* at, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
SYMMEM_FN void store_release(u64* at, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
// Replaces `expected`; returns what was found.
SYMMEM_FN u32 compare_exchange(u32* at, u32 expected, u32 value) {
  u32 found;
  asm volatile("atom.acq_rel.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(found) : "l"(at), "r"(expected), "r"(value) : "memory");
  return found;
}
// Sets bits; returns what was there. For words of this device alone.
SYMMEM_FN u32 fetch_or(u32* at, u32 bits) {
  u32 found;
  asm volatile("atom.acq_rel.gpu.global.or.b32 %0, [%1], %2;" : "=r"(found) : "l"(at), "r"(bits) : "memory");
  return found;
}
// Counts one up, from `most` to zero; returns what was there. For words of this device alone.
SYMMEM_FN u32 fetch_increment(u32* at, u32 most) {
  u32 found;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(found) : "l"(at), "r"(most) : "memory");
  return found;
}
SYMMEM_FN void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

#endif

// ------------------------------------------------------------------------ packets, vectors

// 16 bytes, as words.
struct alignas(16) Vector {
  u32 w[4];
};

// Two words that arrive whole, each by itself; a packet's reader checks both.
struct Pair {
  u64 a, b;
};

#ifdef SYMMEM_HIP

SYMMEM_FN void store_pair(void* at, Pair p) {
  store_relaxed(static_cast<u64*>(at), p.a);
  store_relaxed(static_cast<u64*>(at) + 1, p.b);
}
SYMMEM_FN Pair load_pair(const void* at) {
  return {load_relaxed(static_cast<const u64*>(at)), load_relaxed(static_cast<const u64*>(at) + 1)};
}
// Payload that was acquired, or that only this rank writes.
SYMMEM_FN Vector load_vector(const void* at) { return *static_cast<const Vector*>(at); }
SYMMEM_FN void store_vector(void* at, Vector v) { *static_cast<Vector*>(at) = v; }
// The same, for what is not read again soon.
SYMMEM_FN Vector load_once(const void* at) {
  Vector v;
  for (int i = 0; i < 4; i++) v.w[i] = __builtin_nontemporal_load(static_cast<const u32*>(at) + i);
  return v;
}

#else

SYMMEM_FN void store_pair(void* at, Pair p) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(p.a), "l"(p.b) : "memory");
}
SYMMEM_FN Pair load_pair(const void* at) {
  Pair p;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(p.a), "=l"(p.b) : "l"(at) : "memory");
  return p;
}
// 16 bytes that arrive whole (sm_70 and later).
#define SYMMEM_HAS_WHOLE_VECTORS 1
SYMMEM_FN void store_whole(void* at, Vector v) {
  asm volatile(
      "{\n .reg .b64 low, high;\n .reg .b128 all;\n mov.b64 low, {%1, %2};\n mov.b64 high, {%3, %4};\n"
      " mov.b128 all, {low, high};\n st.relaxed.sys.global.b128 [%0], all;\n}"
      ::"l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
SYMMEM_FN Vector load_whole(const void* at) {
  Vector v;
  asm volatile(
      "{\n .reg .b64 low, high;\n .reg .b128 all;\n ld.relaxed.sys.global.b128 all, [%4];\n"
      " mov.b128 {low, high}, all;\n mov.b64 {%0, %1}, low;\n mov.b64 {%2, %3}, high;\n}"
      : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
  return v;
}

// What eight threads of a warp store by one `store_line` at the places of a line, 128 bytes at a multiple of
// as many, arrives whole, and is seen whole by eight that load it so: over NVLink, and within a device. Not
// said by the memory model, but by how such stores travel; the suite looks for lines that were torn.
#define SYMMEM_HAS_LINES 1
SYMMEM_FN void store_line(void* at, Vector v) { store_whole(at, v); }
SYMMEM_FN Vector load_line(const void* at) { return load_whole(at); }

// Payload that was acquired, or that only this rank writes.
SYMMEM_FN Vector load_vector(const void* at) {
  Vector v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
  return v;
}
SYMMEM_FN void store_vector(void* at, Vector v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
// The same, for what is not read again soon.
SYMMEM_FN Vector load_once(const void* at) {
  Vector v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(at) : "memory");
  return v;
}

#endif

SYMMEM_FN bool is_aligned(const void* at, u64 bytes) { return (reinterpret_cast<u64>(at) & (bytes - 1)) == 0; }

// One element of payload, at an address aligned to U.
template <class U> SYMMEM_FN U load_element(const void* at) { return *static_cast<const volatile U*>(at); }
template <class U> SYMMEM_FN void store_element(void* at, U value) { *static_cast<volatile U*>(at) = value; }

// `count` elements of U, count * sizeof(U) <= 16, at an address aligned to U; the rest is zero.
template <class U> SYMMEM_FN Vector load_elements(const void* at, u32 count) {
  Vector v = {};
  U* parts = reinterpret_cast<U*>(&v);
#pragma unroll
  for (u32 i = 0; i < 16 / sizeof(U); i++)
    if (i < count) parts[i] = load_element<U>(static_cast<const U*>(at) + i);
  return v;
}
template <class U> SYMMEM_FN void store_elements(void* at, Vector v, u32 count) {
  const U* parts = reinterpret_cast<const U*>(&v);
#pragma unroll
  for (u32 i = 0; i < 16 / sizeof(U); i++)
    if (i < count) store_element(static_cast<U*>(at) + i, parts[i]);
}

}  // namespace symmem

#endif  // SYMMEM_CUH
