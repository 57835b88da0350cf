// symmem_sync.cuh: lanes, in kernels.
//
// Public. The steps and their names are those of the crate's module `protocol`, which the models
// prove; here they run on words that lie in each reader's memory, where symmem_lane.cuh says.
//
// A kernel of one operation, on any number of blocks:
//
//   if (!begin(lane)) return;               // every thread
//   Headers headers(lane, thread);          // every thread; of the warp that is to publish, below 32
//   Step step;
//   if (!enter(lane, step)) return;         // every thread, before any store that a peer sees
//   ok = await_clear(lane, step);           // every thread, before one stores
//   headers.publish(...), headers.compare(...)   // by that warp: this block's, and the peers'
//   ... put / poll packets, or store payload, raise and await flags ...
//   exit(lane, step, ok, used);             // every thread, after the last read of peers' words
//
// A wait polls its data, and every 1024 misses looks at the clock and this rank's control page, every
// 16th of those at the page in host memory. It gives up by recording why in every rank's pages; the
// kernel then ends, and the lane is dead. Nothing traps.

#ifndef SYMMEM_SYNC_CUH
#define SYMMEM_SYNC_CUH

#include "symmem_lane.cuh"

// SYMMEM_STALL(page, step): this thread is about to take a step. `page` is its rank's control page in host
// memory, in which a test says who waits: empty where kernels are not compiled for that.
#ifdef SYMMEM_STALLS
#include "symmem_stalls.cuh"
#define SYMMEM_STALL(page, step) ::symmem::stall(page, step)
// Of a warp, which goes on together.
#define SYMMEM_STALL_WARP(page, step) (::symmem::stall(page, step), ::symmem::warp_sync())
#else
#define SYMMEM_STALL(page, step)
#define SYMMEM_STALL_WARP(page, step)
#endif

namespace symmem {

// -------------------------------------------------------------------------------- failing

// Why a wait ends without its data where the group has failed already: else one of REASON_*.
constexpr u32 ABORTED = ~0u;

// A bit for each peer whose block 0 has not come to `epoch`, and `writer`'s. While this rank has shown no
// header of that epoch, since it waits for readers of the one before: who has not come to that one.
SYMMEM_FN u64 missing_mask(const Lane& lane, u32 epoch, u32 writer, u32 word) {
  auto shown = [&](u32 at, u32 r) {
    return (u32)(load_relaxed(pointer<u64>(header_at(lane, lane.own, at & 1, r, 0)) + 3) >> 32);
  };
  const u32 awaited = shown(epoch, lane.rank) == epoch ? epoch : previous_epoch(epoch);
  u64 mask = 0;
  for (u32 r = word * 64; r < lane.world && r < word * 64 + 64; r++)
    if (r != lane.rank && (r == writer || shown(awaited, r) != awaited)) mask |= 1ull << (r % 64);
  return mask;
}

// What is reported. The headers are those of a mismatch: signature and issue of each.
struct Report {
  u32 reason, culprit;  // culprit: 1 + the rank that it is about
  u64 mine[2], theirs[2];
};

// Writes a record and releases the page's abort word.
__device__ __attribute__((noinline)) inline void publish_record(const Lane& lane, u64 page, u32 epoch, const Report& report) {
  u64* words = pointer<u64>(page + control_record(lane.world));
  u32 reporter = lane.rank + 1;
  u64 fixed[7] = {report.reason | (u64)lane.index << 32,
                  reporter | (u64)report.culprit << 32,
                  lane.operation | (u64)epoch << 32,
                  report.mine[0],
                  report.mine[1],
                  report.theirs[0],
                  report.theirs[1]};
  for (int i = 0; i < 7; i++) store_relaxed(words + i, fixed[i]);
  for (u32 i = 0; i < control_masks(lane.world); i++)
    store_relaxed(words + 7 + i, report.reason == REASON_TIMED_OUT ? missing_mask(lane, epoch, report.culprit - 1, i) : 0);
  store_release(pointer<u32>(page + CONTROL_ABORT), 1u);
}

// Copies the record of this rank's page in device memory to that in host memory: a reporter on another
// host reaches only the former. Any number of threads may, which all write the same.
SYMMEM_FN void adopt_record(const Lane& lane, u64 own) {
  const u64* from = pointer<const u64>(own + control_record(lane.world));
  u64* to = pointer<u64>(lane.host + control_record(lane.world));
  for (u32 i = 0; i < 7 + control_masks(lane.world); i++) store_relaxed(to + i, load_relaxed(from + i));
  store_release(pointer<u32>(lane.host + CONTROL_ABORT), 1u);
}

// Lets no operation begin on this rank's lane.
SYMMEM_FN void close_lane(const Lane& lane, u32 why) {
  for (u32 b = 0; b < lane.max_blocks; b++) {
    u32* entry = &epoch_record(lane, b)->entry;
    if (load_relaxed(entry) == ENTRY_OPEN) store_relaxed(entry, why);
  }
}

// How long a rank that lost the race to report waits for the record of the winner, before it settles
// for its own; twice as long where it cannot.
constexpr u64 ADOPTION_NS = 2000000000;

// Reports a failure of the group, unless another was first: then waits, for a bounded time, until this
// rank's host can read that. The lane is closed afterwards. Any number of threads may come.
__device__ __attribute__((noinline)) inline void give_up(const Lane& lane, u32 epoch, const Report& report) {
  SYMMEM_STALL(lane.host, STALL_REPORT);
  u64 own = lane.own - lane.workspace_back, arbiter = lane_of(lane, 0) - lane.workspace_back;
  u32 me = lane.rank + 1;
  if (load_acquire(pointer<u32>(own + CONTROL_ABORT)) == 0) {
    u32 claimant = compare_exchange(pointer<u32>(arbiter + CONTROL_CLAIM), 0u, me);
    if (claimant == 0) {
      for (u32 r = 0; r < lane.world; r++) {
        u64 page = lane_of(lane, r) - lane.workspace_back;
        // The arbiter's is claimed; another that is belongs to a rank that settled for its own record.
        if (r != 0 && compare_exchange(pointer<u32>(page + CONTROL_CLAIM), 0u, me) != 0) continue;
        // The host's first: whoever finds the other one relies on it, where there is one.
        u64 host = pointer<const u64>(lane.hosts)[r];
        if (host != 0) publish_record(lane, host, epoch, report);
        publish_record(lane, page, epoch, report);
      }
    } else if (claimant == me) {
      // Another thread of this rank reports; its kernel does not end before it has.
      return close_lane(lane, ENTRY_FAILED);
    }
  }
  // Another rank reports, or has: its record comes to this rank's host page before its end.
  u64 since = clock_ns();
  while (load_acquire(pointer<u32>(lane.host + CONTROL_ABORT)) == 0) {
    if (load_acquire(pointer<u32>(own + CONTROL_ABORT)) != 0) {
      adopt_record(lane, own);
      break;
    }
    u64 waited = clock_ns() - since;
    if (waited < ADOPTION_NS) continue;
    // It ended between its claim and its record: this rank settles for its own.
    if (compare_exchange(pointer<u32>(own + CONTROL_CLAIM), 0u, me) == 0) {
      publish_record(lane, lane.host, epoch, report);
      publish_record(lane, own, epoch, report);
    } else if (waited > 2 * ADOPTION_NS) {
      break;
    }
  }
  close_lane(lane, ENTRY_FAILED);
}

// Of what is about one rank's words.
__device__ __attribute__((noinline)) inline void give_up(const Lane& lane, u32 epoch, u32 reason, u32 rank) {
  give_up(lane, epoch, Report{reason, rank + 1, {}, {}});
}

// ------------------------------------------------------------------------------- waiting

// Polls between two looks.
constexpr u32 MISSES = 1024;

// Decides, look by look, whether a wait goes on. Data first: a cause ends the wait only if two looks
// find it, with a poll between them that missed.
struct Gate {
  u64 since = 0;
  u32 looks = 0, seen = 0;
};

struct Look {
  Gate gate;
  u32 ended;  // why, or 0
};

// In place of a gate's looks once its wait has ended.
constexpr u32 ENDED = ~0u;

// What ends the waits of one run.
struct Bounds {
  u64 deadline_ns, cancel;
};

// Those of `args`, or of the launch of the graph that it is in. Both read when a wait misses, not before.
template <class Args> SYMMEM_FN Bounds bounds_of(const Args& args) {
  Bounds bounds = {args.deadline_ns, args.cancel};
  if (args.launch != 0) {
    Pair launch = load_pair(pointer<void>(args.launch));
    if (launch.a != 0) bounds = {launch.a * args.patience, launch.b};
  }
  return bounds;
}

// Looks at everything but the data, for a wait for a word of `writer`.
SYMMEM_FN Look look(const Lane& lane, Gate gate, u32 writer) {
  u64 now = clock_ns();
  if (gate.since == 0) gate.since = now;
  Bounds bounds = bounds_of(lane);
  u32 found = 0;
  if (load_acquire(pointer<u32>(lane.own - lane.workspace_back + CONTROL_ABORT)) != 0) {
    found = ABORTED;
  } else if (gate.looks % 16 == 0 || gate.seen != 0) {
    u64 bit = 1ull << (writer % 64), word = 8ull * (writer / 64);
    if (load_acquire(pointer<u32>(lane.host + CONTROL_ABORT)) != 0) {
      found = ABORTED;
    } else if (load_acquire(pointer<u64>(lane.host + CONTROL_LOST + word)) & bit) {
      u64 left = load_relaxed(pointer<u64>(lane.host + control_left(lane.world) + word));
      found = left & bit ? REASON_PEER_LEFT : REASON_PEER_LOST;
    } else if (bounds.cancel != 0 && load_acquire(pointer<u32>(bounds.cancel)) != 0) {
      found = REASON_CANCELLED;
    }
  }
  if (found == 0 && now - gate.since > bounds.deadline_ns) found = REASON_TIMED_OUT;
  u32 ended = found == gate.seen ? found : 0;
  return Look{Gate{gate.since, gate.looks + 1, found}, ended};
}

// A look, and the record of why a wait ends, if it does: a call, so that what takes no time in a kernel takes no
// place between what does.
template <bool TOGETHER>
__device__ __attribute__((noinline)) inline Gate go_on(const Lane& lane, u32 epoch, Gate gate, u32 missing) {
  bool ended = false;
  if (!TOGETHER || thread_index() % 32 == 0) {
    Look found = look(lane, gate, missing);
    gate = found.gate;
    ended = found.ended != 0;
    if (SYMMEM_UNLIKELY(ended)) give_up(lane, epoch, found.ended, missing);
  }
#ifdef SYMMEM_HAS_LINES
  if constexpr (TOGETHER) ended = !warp_all(!ended);
#endif
  if (ended) gate.looks = ENDED;
  return gate;
}

// Polls until `ready()`; false if the wait for a word of rank `writer()` ended without it, which is then
// on record. TOGETHER: by the 32 threads of a warp, to whom `ready()` is the same; one looks for all.
template <bool TOGETHER = false, class Writer, class Ready>
SYMMEM_FN bool await_of(const Lane& lane, u32 epoch, Gate& gate, Writer writer, Ready ready) {
#ifdef SYMMEM_UNBOUNDED  // for measuring what the bounds cost
  while (!ready()) {
  }
  return true;
#else
  u32 misses = 0;
#pragma unroll 1
  while (!ready()) {
    if (SYMMEM_LIKELY(++misses % MISSES != 0)) continue;
    gate = go_on<TOGETHER>(lane, epoch, gate, writer());
    if (gate.looks == ENDED) break;
  }
  // One way out of the loop: a second one costs whoever takes the first.
  return gate.looks != ENDED;
#endif
}
template <bool TOGETHER = false, class Ready>
SYMMEM_FN bool await(const Lane& lane, u32 epoch, Gate& gate, u32 writer, Ready ready) {
  return await_of<TOGETHER>(lane, epoch, gate, [&] { return writer; }, ready);
}

// ----------------------------------------------------------------------------- operations

// One operation under way, as every thread of a block knows it.
struct Step {
  u32 epoch;
  u32 parity;
  u64 tag;       // the epoch in the upper half of a word
  u32 settled;   // whether this rank may store into any peer's words at once
};

SYMMEM_FN bool scrub_due(u32 epoch) { return (epoch & ~1u) == 2 || (epoch & ~1u) == 0x40000000; }

// Whether any thread of the block says so. Every thread calls it.
SYMMEM_FN bool block_any(bool mine) {
#ifdef SYMMEM_HIP
  __shared__ u32 any;
  block_sync();
  if (thread_index() == 0) any = 0;
  block_sync();
  if (mine) any = 1;
  block_sync();
  return any != 0;
#else
  return __syncthreads_or(mine);
#endif
}

// The entry of a closed lane: a graph that outlived it.
__device__ __attribute__((noinline)) inline void enter_closed(const Lane& lane) {
  if (thread_index() == 0) store_relaxed(pointer<u32>(lane.host + CONTROL_STALE), 1u);
}

// In checked mode: sets the busy bit of every record that this block owns. False where an operation
// was under way.
__device__ __attribute__((noinline)) inline bool claim(const Lane& lane) {
  EpochRecord* record = epoch_record(lane, block_index());
  u32 epoch = load_relaxed(&record->epoch);
  // Of a closed lane `enter` tells.
  bool open = load_relaxed(&record->entry) == ENTRY_OPEN, busy = false;
  block_sync();
  if (!open) return true;
  for (u32 b = block_index() + thread_index() * grid_size(); b < lane.max_blocks; b += block_size() * grid_size()) {
    u32 found = fetch_or(&epoch_record(lane, b)->epoch, EPOCH_BUSY);
    busy |= found != epoch || (found & EPOCH_BUSY) != 0;
  }
  busy = block_any(busy);
  if (busy && thread_index() == 0) give_up(lane, epoch & ~EPOCH_BUSY, REASON_LANE_BUSY, lane.rank);
  return !busy;
}

// Before anything else: waits for the kernel before, and in checked mode for nobody: false where an
// operation is under way on the lane. Every thread of the block calls it.
SYMMEM_FN bool begin(const Lane& lane) {
  wait_for_previous_kernel();
  return SYMMEM_LIKELY(lane.checked == 0) || claim(lane);
}

// Every thread of the block calls it, before it stores anything that a peer sees. False where no
// operation may begin.
SYMMEM_FN bool enter(const Lane& lane, Step& step) {
  SYMMEM_STALL(lane.host, STALL_ENTER);
  Pair p = load_pair(epoch_record(lane, block_index()));
  if (SYMMEM_UNLIKELY((u32)p.b != ENTRY_OPEN)) {
    enter_closed(lane);
    return false;
  }
  u32 epoch = (u32)p.a & ~EPOCH_BUSY;
  step = Step{epoch, epoch & 1, (u64)epoch << 32, (u32)(p.a >> 32)};
  return true;
}

// As `enter`, in a later kernel of an operation. False where the lane was closed meanwhile, which is
// on record.
SYMMEM_FN bool reenter(const Lane& lane, Step& step) {
  Pair p = load_pair(epoch_record(lane, block_index()));
  u32 epoch = (u32)p.a & ~EPOCH_BUSY;
  step = Step{epoch, epoch & 1, (u64)epoch << 32, (u32)(p.a >> 32)};
  return (u32)p.b == ENTRY_OPEN;
}

// Waits until `reader` has come to the epoch before: then this rank may store into its words.
SYMMEM_FN bool await_reader(const Lane& lane, const Step& step, Gate& gate, u32 reader) {
  u32 before = previous_epoch(step.epoch);
  u64* last = pointer<u64>(header_at(lane, lane.own, before & 1, reader, 0)) + 3;
  // It may have come further: then the word is of this epoch's successor.
  return await(lane, step.epoch, gate, reader, [&] {
    u32 found = load_acquire(last) >> 32;
    return found == before || found == next_epoch(step.epoch);
  });
}

// A header: signature and issue.
struct Shown {
  Pair signature, issue;

  SYMMEM_FN bool is_of(u32 epoch) const {
    return signature.a >> 32 == epoch && signature.b >> 32 == epoch && issue.a >> 32 == epoch && issue.b >> 32 == epoch;
  }
  static SYMMEM_FN u64 word(Pair p) { return (p.a & 0xffffffff) | p.b << 32; }
};

SYMMEM_FN Shown header_of(const Lane& lane, u32 parity, u32 writer, u32 block) {
  const u64* at = pointer<const u64>(header_at(lane, lane.own, parity, writer, block));
  return Shown{load_pair(at), load_pair(at + 2)};
}

// Waits for all readers, whose calls of the epoch before have not been compared, and compares those.
// Of one that has come further, the header is gone; it compares this rank's.
__device__ __attribute__((noinline)) inline bool await_readers(const Lane& lane, Step step) {
  const u32 before = previous_epoch(step.epoch);
  const Shown mine = header_of(lane, before & 1, lane.rank, 0);
  Gate gate;
#pragma unroll 1
  for (u32 r = 0; r < lane.world; r++) {
    if (r == lane.rank) continue;
    if (!await_reader(lane, step, gate, r)) return false;
    Shown theirs;
    auto whole = [&] {
      theirs = header_of(lane, before & 1, r, 0);
      return theirs.is_of(before) || theirs.issue.b >> 32 != before;
    };
    if (!await(lane, step.epoch, gate, r, whole)) return false;
    if (!mine.is_of(before) || !theirs.is_of(before)) continue;
    Report report{REASON_CALL_MISMATCH, r + 1, {}, {}};
    report.mine[0] = Shown::word(mine.signature), report.mine[1] = Shown::word(mine.issue);
    report.theirs[0] = Shown::word(theirs.signature), report.theirs[1] = Shown::word(theirs.issue);
    if (report.mine[0] == report.theirs[0] && report.mine[1] == report.theirs[1]) continue;
    give_up(lane, before, report);
    return false;
  }
  return true;
}

// Waits until this rank may store into all peers' words: at once, but after operations in which it
// consumed nothing of some. Every thread of the block calls it, and all get the same answer.
SYMMEM_FN bool await_clear(const Lane& lane, const Step& step) {
  SYMMEM_STALL(lane.host, STALL_AWAIT_READERS);
  return SYMMEM_LIKELY(step.settled) || !block_any(!await_readers(lane, step));
}

// Two headers differ: reports both, once all of the other is there.
__device__ __attribute__((noinline)) inline void mismatch(const Lane& lane, Step step, u32 writer, u32 block, u64 issue) {
  Gate gate;
  Shown theirs;
  auto whole = [&] {
    theirs = header_of(lane, step.parity, writer, block);
    return theirs.is_of(step.epoch);
  };
  if (!await(lane, step.epoch, gate, writer, whole)) return;
  give_up(lane, step.epoch,
          Report{REASON_CALL_MISMATCH, writer + 1, {lane.signature, issue},
                 {Shown::word(theirs.signature), Shown::word(theirs.issue)}});
}

// Of a rank whose header is not awaited.
constexpr u32 NO_BLOCK = ~0u;

// A block's header, to every peer and of every peer, by the 32 threads of one warp: two for each peer,
// of which one has the signature and one the issue.
struct Headers {
  u64 issue;  // what this block's header says after the signature
  Pair mine;
  u32 t;  // of the warp; of no other below 32
  Gate gate;

  // Before `enter`: of a node in a graph, the run's number is on its way while the epoch is.
  SYMMEM_FN Headers(const Lane& lane, u32 thread) : issue(lane.issue), mine{}, t(thread) {
    if (t < 32 && lane.runs != 0) issue = REPLAY | (load_relaxed(pointer<u64>(lane.runs) + block_index()) + 1);
  }

  // After this rank may store into all peers' words: to those to whom this block sends data, `feeds(r)`;
  // to all of block 0, and to this rank itself, which compares it later if it must.
  template <class Feeds> SYMMEM_FN void publish(const Lane& lane, const Step& step, Feeds feeds) {
    SYMMEM_STALL(lane.host, STALL_PUBLISH_HEADER);
    if (lane.runs != 0) {
      // All have read it.
      warp_sync();
      if (t == 0) store_relaxed(pointer<u64>(lane.runs) + block_index(), issue & ~REPLAY);
    }
    u64 value = t % 2 ? issue : lane.signature;
    mine = Pair{step.tag | (value & 0xffffffff), step.tag | value >> 32};
    for (u32 r = t / 2; r < lane.world; r += 16)
      if (block_index() == 0 || (r != lane.rank && feeds(r)))
        store_pair(pointer<void>(header_at(lane, lane_of(lane, r), step.parity, lane.rank, block_index()) + t % 2 * 16), mine);
  }
  SYMMEM_FN void publish(const Lane& lane, const Step& step) {
    publish(lane, step, [](u32) { return true; });
  }

  // Waits for those of the peers of which it is to see a block's, `block_of(r)`, and until `also(r)` for
  // each; false if one differs or did not come.
  template <class BlockOf, class Also>
  SYMMEM_FN bool compare(const Lane& lane, const Step& step, BlockOf block_of, Also also) {
    SYMMEM_STALL(lane.host, STALL_COMPARE);
    for (u32 r = t / 2; r < lane.world; r += 16) {
      const u32 block = block_of(r);
      if (r == lane.rank || block == NO_BLOCK) continue;
      const void* at = pointer<void>(header_at(lane, lane.own, step.parity, r, block) + t % 2 * 16);
      Pair found = {};
      auto ready = [&] {
        found = load_pair(at);
        // Whoever is in another call may never do what else is awaited.
        return found.a >> 32 == step.epoch && found.b >> 32 == step.epoch && (found.a != mine.a || found.b != mine.b || also(r));
      };
      if (!await(lane, step.epoch, gate, r, ready)) return false;
      if (SYMMEM_LIKELY(found.a == mine.a && found.b == mine.b)) continue;
      mismatch(lane, step, r, block, issue);
      return false;
    }
    return true;
  }
  // Those of all peers' blocks of this index.
  template <class Also> SYMMEM_FN bool compare(const Lane& lane, const Step& step, Also also) {
    return compare(lane, step, [](u32) { return block_index(); }, also);
  }
};

// Tells a peer that all stores up to `count` of this block are made. The caller has fenced them at
// system scope.
SYMMEM_FN void raise(const Lane& lane, const Step& step, u32 reader, u32 count) {
  SYMMEM_STALL(lane.host, STALL_RAISE_FLAG);
  store_relaxed(flag_at(lane, lane_of(lane, reader), step.parity, lane.rank, block_index()), step.tag | count);
}

// Whether the block of equal index of `writer` has raised `count`; acquires what it stored before.
SYMMEM_FN bool poll_flag(const Lane& lane, const Step& step, u32 writer, u32 count) {
  u64 found = load_acquire(flag_at(lane, lane.own, step.parity, writer, block_index()));
  return found >> 32 == step.epoch && (u32)found >= count;
}
SYMMEM_FN bool await_flag(const Lane& lane, const Step& step, Gate& gate, u32 writer, u32 count) {
  SYMMEM_STALL(lane.host, STALL_AWAIT_FLAG);
  return await(lane, step.epoch, gate, writer, [&] { return poll_flag(lane, step, writer, count); });
}

// Sets of ranks, beside one rank.
constexpr u32 ALL = ~0u, NONE = ~1u;

// What an operation leaves in this rank's words of its parity.
struct Used {
  u32 writers;  // ALL, NONE, or the one rank whose words this one has awaited
  u32 packets;  // slots of each, from the first on
  bool flags;   // whether they raised flags
  bool together = false;  // whether all blocks of all ranks have shown headers and raised flags
  bool heard = false;     // whether this rank has awaited a word of every peer, whoever the writers are
  u32 raisers = NONE;     // ALL, NONE, or the one rank that has raised flags beside the writers
  u32 tail = 0;           // of the 64 slots after `packets`, so many of each half are used as well
  u32 lines = 0;          // of each, from the first on
};
// Zeroes the block's share of what earlier epochs left in this parity's words: of all words that no
// peer writes in this epoch, since other blocks may still wait for those.
__device__ __attribute__((noinline)) inline void scrub(const Lane& lane, Step step, Used used) {
  u64 own = lane.own, threads = (u64)block_size() * grid_size();
  u64 me = (u64)block_index() * block_size() + thread_index();
  auto is_of = [](u32 set, u32 rank) { return set == ALL || set == rank; };
  for (u32 w = 0; w < lane.world; w++) {
    SYMMEM_STALL(lane.host, STALL_SCRUB);
    const bool writes = is_of(used.writers, w);
    const bool raises = used.together || (writes && used.flags) || is_of(used.raisers, w);
    if (w != lane.rank) {
      u64* packet = pointer<u64>(packets_from(lane, step.parity, w));
      for (u64 i = me; i < 2ull * lane.packet_count; i += threads) {
        const u32 slot = (u32)(i / 2);
        const bool is_used = slot < used.packets || (slot - used.packets < 64 && slot % 32 < used.tail);
        if (!writes || !is_used) store_relaxed(packet + i, 0ull);
      }
      u64* line = pointer<u64>(lines_from(lane, step.parity, w));
      for (u64 i = (writes ? 16ull * used.lines : 0) + me; i < 16ull * lane.line_count; i += threads) store_relaxed(line + i, 0ull);
    }
    u64* flag = flag_at(lane, own, step.parity, w, 0);
    for (u64 b = (raises ? grid_size() : 0) + me; b < lane.max_blocks; b += threads) store_relaxed(flag + b, 0ull);
    // Block 0 of every rank publishes a header in every operation.
    u64* header = pointer<u64>(header_at(lane, own, step.parity, w, 0));
    for (u64 i = 4ull * (writes || used.together ? grid_size() : 1) + me; i < 4ull * lane.max_blocks; i += threads)
      store_relaxed(header + i, 0ull);
  }
  fence_system();
}

// Ends the operation on this block. Every thread calls it, after its last read of what peers wrote,
// and says whether all went well for it. False if the block failed: its lane is dead then.
SYMMEM_FN bool exit(const Lane& lane, const Step& step, bool ok, const Used& used) {
  allow_next_kernel();
  if (block_any(!ok)) return false;
  if (SYMMEM_UNLIKELY(scrub_due(step.epoch))) scrub(lane, step, used);
  SYMMEM_STALL(lane.host, STALL_EXIT);
  u64 next = next_epoch(step.epoch) | (u64)(used.writers == ALL || used.heard) << 32;
  for (u32 b = block_index() + thread_index() * grid_size(); b < lane.max_blocks; b += block_size() * grid_size())
    store_relaxed(reinterpret_cast<u64*>(epoch_record(lane, b)), next);
  return true;
}

}  // namespace symmem

#endif  // SYMMEM_SYNC_CUH
