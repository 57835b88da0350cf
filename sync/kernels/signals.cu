// signals.cu: signals and barriers as kernels.
//
// The steps are those of the crate's `protocol::barrier` and `protocol::slot`, on words that lie in each
// reader's memory. Whatever a call waits for, it is one warp that waits, by the clock and this rank's
// control page in host memory; where it gives up, it says so there and breaks the channel. A failure of
// the group is none of a channel's.

#include "symmem_sync.cuh"

using namespace symmem;

namespace {

// ------------------------------------------------------------------------------- arguments

// One call on one channel. Addresses are this rank's.
struct alignas(16) Signal {
  u64 peers[8];    // by rank: where its workspace begins; own included. Of at most 8 ranks
  u64 table;       // array of the same, of any number of ranks
  u64 own;         // this rank's
  u64 slots_back;  // from a workspace's beginning back to the channel's slots in the pad: u32 [sender]
  u64 barriers;    // from a workspace's beginning to the channel's barrier words: u64 [writer]
  u64 state;       // the channel
  u64 arrivals;    // counts the blocks of a put that have stored: u32
  u64 fault;       // in host memory: what happened to the channel, then a mask of ranks
  u64 any_fault;   // in host memory: set once some channel has had a fault
  u64 lost;        // in host memory: mask of ranks that are gone
  u64 cancel;      // in host memory: u32 that ends the wait once it is not 0; 0 for none
  u64 deadline_ns;  // bound on the wait, from its first look
  u64 launch;      // the Bounds of each run, in a graph; 0 for none
  u32 rank, world;
  u32 channel;
  u32 peer;        // the other rank of a put or wait
  u32 patience;    // factor on the bound of a launch of a graph
  u32 reserved[3];
};

// A put of data with its signal.
struct alignas(16) Put {
  Signal signal;
  u64 source, target, bytes, reserved;
};

// Where this rank stands on a channel.
struct alignas(16) Channel {
  u32 generation, epoch, state, reserved;
};

static_assert(sizeof(Signal) == 192 && sizeof(Put) == 224 && sizeof(Channel) == 16, "as the host has them");

constexpr u32 OPEN = 0, BROKEN = 1, RESETTING = 2;
constexpr u32 EMPTY = 0, FULL = 1;
constexpr u32 CALL_BARRIER = 1, CALL_PUT = 2, CALL_WAIT = 3, CALL_RESET = 4, CALL_PUT_WITH_SIGNAL = 5;
constexpr u32 FAULT_TIMED_OUT = 1, FAULT_LOST = 2, FAULT_CANCELLED = 3, FAULT_BROKEN = 4;

#ifdef SYMMEM_STALLS
// This rank's control page in host memory.
SYMMEM_FN u64 page_of(const Signal& s) { return s.lost - CONTROL_LOST; }
#endif
SYMMEM_FN u64 workspace_of(const Signal& s, u32 rank) {
  return s.world <= 8 ? s.peers[rank] : pointer<const u64>(s.table)[rank];
}
// The word by which `writer` tells `reader` that it arrived.
SYMMEM_FN u64* barrier_word(const Signal& s, u32 writer, u64 reader) {
  return pointer<u64>(reader + s.barriers) + writer;
}
SYMMEM_FN u32* slot(const Signal& s, u32 sender, u32 receiver) {
  return pointer<u32>(workspace_of(s, receiver) - s.slots_back) + sender;
}

SYMMEM_FN Channel load_channel(const Signal& s) {
  Pair p = load_pair(pointer<void>(s.state));
  return {(u32)p.a, (u32)(p.a >> 32), (u32)p.b, 0};
}
// `stand` is that of a barrier word.
SYMMEM_FN void store_channel(const Signal& s, u64 stand, u32 state) {
  store_pair(pointer<void>(s.state), Pair{stand >> 32 | stand << 32, state});
}
SYMMEM_FN u32* state_of(const Signal& s) { return &pointer<Channel>(s.state)->state; }
SYMMEM_FN u32* epoch_of(const Signal& s) { return &pointer<Channel>(s.state)->epoch; }

// A barrier word: 32 bits of generation, 32 of epoch.
SYMMEM_FN u64 stand(u32 generation, u32 epoch) { return (u64)generation << 32 | epoch; }
// The next meeting of the same generation.
SYMMEM_FN u64 after(u64 stand) { return (stand & ~0xffffffffull) | (u32)(stand + 1); }
// The first meeting of the next generation.
SYMMEM_FN u64 renewed(u64 stand) { return ((stand >> 32) + 1) << 32; }

// ------------------------------------------------------------------------------- waiting

// Decides, look by look, whether a wait goes on. Data first: a cause ends the wait only if two looks find
// it, with a poll between them that missed. By value: a kernel's stack would be memory.
struct Patience {
  u64 since = 0;
  u32 looks = 0, seen = 0;
};
struct Look {
  Patience patience;
  u32 why;  // the wait ends: a FAULT_*, 0 if it goes on
};

SYMMEM_FN bool is_lost(const Signal& s, u32 rank) {
  return load_acquire(pointer<u64>(s.lost) + rank / 64) >> (rank % 64) & 1;
}

// Looks at everything but the data of a wait for a word of `writer`.
__device__ __attribute__((noinline)) Look look(const Signal& s, Patience p, u32 writer) {
  u64 now = clock_ns();
  if (p.since == 0) p.since = now;
  Bounds bounds = bounds_of(s);
  u32 found = 0;
  if (p.looks % 16 == 0 || p.seen != 0) {
    if (is_lost(s, writer)) found = FAULT_LOST;
    else if (bounds.cancel != 0 && load_acquire(pointer<u32>(bounds.cancel)) != 0) found = FAULT_CANCELLED;
  }
  if (found == 0 && now - p.since > bounds.deadline_ns) found = FAULT_TIMED_OUT;
  return {{p.since, p.looks + 1, found}, found == p.seen ? found : 0};
}

// Polls until `ready()`; else why the wait for a word of `writer` ended.
template <class Ready> SYMMEM_FN u32 await(const Signal& s, Patience& patience, u32 writer, Ready ready) {
#ifdef SYMMEM_UNBOUNDED  // for measuring what the bounds cost
  while (!ready()) {
  }
  return 0;
#else
  for (;;) {
#pragma unroll 1
    for (u32 i = 0; i < MISSES; i++)
      if (ready()) return 0;
    Look found = look(s, patience, writer);
    if (found.why != 0) return found.why;
    patience = found.patience;
  }
#endif
}

// Whether a peer's word says that it came to this rank's barrier. It may be at the next one, having left
// this one without this rank's seeing it arrive.
SYMMEM_FN bool has_come(u64 mine, u64 theirs) { return theirs == mine || theirs == after(mine); }
// Whether it says that it came to the meeting of a reset that this rank is at.
SYMMEM_FN bool has_met(u64 mine, u64 theirs) {
  return has_come(mine, theirs) || ((u32)mine == 1 && theirs == renewed(mine));
}

// Whether a call that stands at `mine` lacks a word of a rank.
SYMMEM_FN bool is_missing(const Signal& s, u32 call, u64 mine, u32 rank) {
  if (call != CALL_BARRIER && call != CALL_RESET) return rank == s.peer;
  if (rank == s.rank) return false;
  u64 theirs = load_acquire(barrier_word(s, rank, s.own));
  return !(call == CALL_BARRIER ? has_come(mine, theirs) : has_met(mine, theirs));
}

// Tells this rank's host how a call ended. One thread.
__device__ __attribute__((noinline)) void report(const Signal& s, u32 call, u32 why, u64 mine) {
  u64* fault = pointer<u64>(s.fault);
  for (u32 word = 0; word < (s.world + 63) / 64; word++) {
    u64 mask = 0;
    for (u32 rank = 64 * word; why != FAULT_BROKEN && rank < s.world && rank < 64 * word + 64; rank++)
      if (is_missing(s, call, mine, rank) && (why != FAULT_LOST || is_lost(s, rank))) mask |= 1ull << (rank % 64);
    store_relaxed(fault + 1 + word, mask);
  }
  store_release(fault, (u64)(call << 8 | why) << 32 | s.channel);
  store_release(pointer<u64>(s.any_fault), 1ull);
}

// ------------------------------------------------------------------------------- slots

// Waits until a slot is in a state. Whether it is; where not, that is on record and the channel broken.
// One thread.
SYMMEM_FN bool await_slot(const Signal& s, u32 call, const u32* word, u32 state) {
  u32 why = FAULT_BROKEN;
  if (load_relaxed(state_of(s)) == OPEN) {
    Patience patience;
    why = await(s, patience, s.peer, [=] { return load_acquire(word) == state; });
    if (why == 0) return true;
    if (load_relaxed(state_of(s)) == OPEN) store_relaxed(state_of(s), BROKEN);
  }
  report(s, call, why, 0);
  return false;
}

// ------------------------------------------------------------------------------- data

template <class U> SYMMEM_FN void copy_elements(u64 target, u64 source, u64 bytes, u64 first, u64 step) {
  for (u64 i = first; i < bytes / sizeof(U); i += step)
    store_element(pointer<U>(target) + i, load_element<U>(pointer<U>(source) + i));
}

// Copies by many threads, of which this is number `first` of `step`, in units of 16 bytes where both
// ends can be aligned to them, else in the largest that they can.
SYMMEM_FN void copy(u64 target, u64 source, u64 bytes, u64 first, u64 step) {
  u64 apart = (target ^ source) & 15;
  u64 unit = apart == 0 ? 16 : apart & (0 - apart);
  u64 head = (0 - target) & (unit - 1);
  head = head < bytes ? head : bytes;
  copy_elements<u8>(target, source, head, first, step);
  target += head, source += head, bytes -= head;
  if (unit == 16) {
    u64 vectors = bytes / 16, i = first;
    for (; i + 3 * step < vectors; i += 4 * step) {
      Vector v[4];
#pragma unroll
      for (u32 k = 0; k < 4; k++) v[k] = load_vector(pointer<void>(source + 16 * (i + k * step)));
#pragma unroll
      for (u32 k = 0; k < 4; k++) store_vector(pointer<void>(target + 16 * (i + k * step)), v[k]);
    }
    for (; i < vectors; i += step)
      store_vector(pointer<void>(target + 16 * i), load_vector(pointer<void>(source + 16 * i)));
  } else if (unit == 8) {
    copy_elements<u64>(target, source, bytes, first, step);
  } else if (unit == 4) {
    copy_elements<u32>(target, source, bytes, first, step);
  } else if (unit == 2) {
    copy_elements<u16>(target, source, bytes, first, step);
  } else {
    copy_elements<u8>(target, source, bytes, first, step);
  }
  u64 whole = bytes / unit * unit;
  copy_elements<u8>(target + whole, source + whole, bytes - whole, first, step);
}

// Counts the blocks that come here; whether this one is the last of `blocks`, after which the count is
// zero again. What the others did before happens before that.
SYMMEM_FN bool is_last(u32* count, u32 blocks) { return fetch_increment(count, blocks - 1) + 1 == blocks; }

// ------------------------------------------------------------------------------- resetting

// Stores this rank's word for every peer.
SYMMEM_FN void publish(const Signal& s, u64 word) {
  for (u32 r = 0; r < s.world; r++)
    if (r != s.rank) store_release(barrier_word(s, s.rank, workspace_of(s, r)), word);
}

}  // namespace

// ------------------------------------------------------------------------------- kernels

// All are launched as one block of one warp, but for the put of data. Each waits for the kernel before it in
// the stream, so that it can be launched as its dependent.

// Thread p tells rank p, and waits for it; threads of a larger group do so for several.
extern "C" __global__ void __launch_bounds__(32) symmem_barrier(const SYMMEM_ARGS Signal s) {
  fetch_arguments(s);
  wait_for_previous_kernel();
  Channel c = load_channel(s);
  if (c.state != OPEN) {
    if (thread_index() == 0) report(s, CALL_BARRIER, FAULT_BROKEN, 0);
    return;
  }
  u64 mine = stand(c.generation, c.epoch + 1);
  SYMMEM_STALL_WARP(page_of(s), STALL_ARRIVE);
  for (u32 r = thread_index(); r < s.world; r += block_size())
    if (r != s.rank) store_release(barrier_word(s, s.rank, workspace_of(s, r)), mine);
  // All have read it.
  warp_sync();
  if (thread_index() == 0) store_relaxed(epoch_of(s), c.epoch + 1);
  SYMMEM_STALL_WARP(page_of(s), STALL_AWAIT_ARRIVALS);
  Patience patience;
  u32 why = 0;
  for (u32 r = thread_index(); r < s.world && why == 0; r += block_size()) {
    const u64* word = barrier_word(s, r, s.own);
    if (r != s.rank) why = await(s, patience, r, [=] { return has_come(mine, load_acquire(word)); });
  }
  allow_next_kernel();
  if (!block_any(why != 0)) return;
  // The most specific cause that any thread found.
  bool lost = block_any(why == FAULT_LOST), cancelled = block_any(why == FAULT_CANCELLED);
  if (thread_index() != 0) return;
  report(s, CALL_BARRIER, lost ? FAULT_LOST : cancelled ? FAULT_CANCELLED : FAULT_TIMED_OUT, mine);
  store_relaxed(state_of(s), BROKEN);
}

// Fills the slot to the peer once it is empty.
extern "C" __global__ void __launch_bounds__(32) symmem_put_signal(const SYMMEM_ARGS Signal s) {
  wait_for_previous_kernel();
  if (thread_index() != 0) return;
  u32* word = slot(s, s.rank, s.peer);
  SYMMEM_STALL(page_of(s), STALL_AWAIT_EMPTY);
  if (!await_slot(s, CALL_PUT, word, EMPTY)) return;
  SYMMEM_STALL(page_of(s), STALL_FILL_SLOT);
  store_release(word, FULL);
}

// Empties the slot from the peer once it is full.
extern "C" __global__ void __launch_bounds__(32) symmem_wait_signal(const SYMMEM_ARGS Signal s) {
  wait_for_previous_kernel();
  if (thread_index() != 0) return;
  u32* word = slot(s, s.peer, s.rank);
  SYMMEM_STALL(page_of(s), STALL_AWAIT_FULL);
  if (!await_slot(s, CALL_WAIT, word, FULL)) return;
  SYMMEM_STALL(page_of(s), STALL_EMPTY_SLOT);
  store_release(word, EMPTY);
}

// Waits until the slot to the peer is empty: what goes before a put of many blocks.
extern "C" __global__ void __launch_bounds__(32) symmem_await_empty(const SYMMEM_ARGS Signal s) {
  wait_for_previous_kernel();
  if (thread_index() != 0) return;
  SYMMEM_STALL(page_of(s), STALL_AWAIT_EMPTY);
  await_slot(s, CALL_PUT_WITH_SIGNAL, slot(s, s.rank, s.peer), EMPTY);
}

// Copies the data and fills the slot. One block waits for the slot itself; of several none does: the
// kernel before has, and found the channel broken or broke it where the wait ended early.
extern "C" __global__ void __launch_bounds__(512) symmem_put_with_signal(const SYMMEM_ARGS Put put) {
  wait_for_previous_kernel();
  const Signal& s = put.signal;
  u32* word = slot(s, s.rank, s.peer);
  SYMMEM_STALL(page_of(s), STALL_AWAIT_EMPTY);
  bool ready = true;
  if (thread_index() == 0)
    ready = grid_size() > 1 ? load_relaxed(state_of(s)) == OPEN : await_slot(s, CALL_PUT_WITH_SIGNAL, word, EMPTY);
  if (block_any(!ready)) return;
  u64 threads = (u64)block_size() * grid_size(), me = (u64)block_index() * block_size() + thread_index();
  SYMMEM_STALL(page_of(s), STALL_PUT_DATA);
  copy(put.target, put.source, put.bytes, me, threads);
  block_sync();
  if (thread_index() != 0) return;
  SYMMEM_STALL(page_of(s), STALL_FILL_SLOT);
  // What this block stored is visible to the whole system before its arrival is.
  fence_system();
  if (is_last(pointer<u32>(s.arrivals), grid_size())) store_release(word, FULL);
}

// The collective repair of a channel: two meetings in the next generation, between which each rank empties
// its own slots. Until it is done the channel stays broken; one that was given up is resumed by the next.
extern "C" __global__ void __launch_bounds__(32) symmem_reset_channel(const SYMMEM_ARGS Signal s) {
  wait_for_previous_kernel();
  if (thread_index() != 0) return;
  Channel c = load_channel(s);
  u64 mine = stand(c.generation, c.epoch);
  SYMMEM_STALL(page_of(s), STALL_RESET);
  if (c.state != RESETTING) {
    mine = renewed(mine);
    publish(s, mine);
  }
  Patience patience;
  for (;;) {
    SYMMEM_STALL(page_of(s), STALL_AWAIT_RESET);
    u32 why = 0;
    for (u32 r = 0; r < s.world && why == 0; r++) {
      const u64* word = barrier_word(s, r, s.own);
      if (r != s.rank) why = await(s, patience, r, [=] { return has_met(mine, load_acquire(word)); });
    }
    if (why != 0) {
      report(s, CALL_RESET, why, mine);
      return store_channel(s, mine, RESETTING);
    }
    if ((u32)mine == 0) {
      for (u32 sender = 0; sender < s.world; sender++) store_release(slot(s, sender, s.rank), EMPTY);
      mine = after(mine);
    } else {
      // A peer completed this reset, broke the channel again by waiting for this rank, and is at the
      // next: this call is this rank's part in that one.
      bool behind = false;
      for (u32 r = 0; r < s.world; r++)
        behind |= r != s.rank && load_acquire(barrier_word(s, r, s.own)) == renewed(mine);
      if (!behind) return store_channel(s, mine, OPEN);
      mine = renewed(mine);
    }
    publish(s, mine);
  }
}
