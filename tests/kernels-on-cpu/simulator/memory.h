// memory.h: what threads of GPUs see of memory.
//
// One memory of all ranks, and a buffer of pending stores for each block. A store waits in its block's
// buffer, where the thread that made it sees it, and after a barrier of the block all of its threads;
// everybody else sees it once it has drained. What is pending drains in any order, but:
//
//   - stores to overlapping bytes, of which one thread knew both, keep their order;
//   - what a thread stores after a fence drains after everything that it knew of at the fence, and so does
//     a release store after everything before it.
//
// A load may find an older value than memory has: as long as the reader has not acquired a word that was
// stored later, nor met a thread that had, nor read that word newer before, nor known of the newer store.
//
// That is weaker than many machines and nowhere weaker than PTX's and HSA's models: what drained is
// visible to all at once (stores reach no two ranks at different times), and an atomic update drains all
// that its thread knows of.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "random.h"

namespace sim {

constexpr uint64_t NEVER = ~0ull;

// How a run treats its stores and loads.
struct Weakness {
  uint32_t capacity;  // pending stores of a block; 0: every store is visible at once
  uint32_t drain;     // one is drained in one of so many rounds
  uint32_t stale;     // one of so many loads takes an older value, where it may; 0: none
};

// A store on its way.
struct Pending {
  uint64_t id;      // ascends
  uint64_t known;   // since when the whole block knows of it, or NEVER
  uint64_t after;   // what its thread knew of then drains first; 0 for nothing
  uint64_t actor, meetings;
  uint64_t at;
  uint32_t bytes;
  uint8_t data[128];
};

// What the threads of one block have stored and others may not see yet.
struct Buffer {
  uint64_t id = 0;
  std::vector<Pending> pending;
};

// A thread, as memory knows it.
struct Actor {
  uint64_t id = 0;
  Buffer* buffer = nullptr;
  uint64_t fence = 0;     // the id of its last
  uint64_t horizon = 0;   // what drained until then it sees
  uint64_t newest = 0;    // the time of the newest store of which it read anything
  uint64_t meetings = 0;  // barriers of its block
  std::unordered_map<uint64_t, uint64_t> read;  // by word: the time of the newest store that it read there
};

class Memory {
 public:
  Memory(Weakness weakness, Random& random) : weakness_(weakness), random_(random) {}

  void begin(Actor& actor, Buffer& buffer);
  // From now on the thread sees whatever drained.
  void refresh(Actor& actor) { actor.horizon = now_; }
  void load(Actor& actor, uint64_t at, void* into, uint32_t bytes, bool acquires);
  void store(Actor& actor, uint64_t at, const void* from, uint32_t bytes, bool releases);
  void fence(Actor& actor);
  template <class Next> uint32_t update(Actor& actor, uint64_t at, Next next) {
    release(actor);
    uint32_t found;
    __builtin_memcpy(&found, reinterpret_cast<void*>(at), sizeof found);
    uint32_t value = next(found);
    if (value != found) write(actor.id, actor.buffer->id, actor.meetings, at, &value, sizeof value);
    actor.horizon = now_;
    return found;
  }
  // All threads of a block have come to a barrier.
  void meet(Buffer& buffer, const std::vector<Actor*>& actors);

  // Now and then.
  void drain(Buffer& buffer) {
    if (!buffer.pending.empty() && random_.one_in(weakness_.drain)) drain_one(buffer);
  }
  // A kernel ends.
  void flush(Buffer& buffer) {
    while (!buffer.pending.empty()) drain_one(buffer);
  }
  // Nobody runs: nothing is old any more.
  void forget() { words_.clear(); }

 private:
  // A value that a word had, and who replaced it.
  struct Version {
    uint64_t until, actor, buffer, meetings;
    uint64_t value;
  };
  using Versions = std::vector<Version>;

  uint64_t earliest(const Actor& actor, uint64_t word, const Versions& versions) const;
  void release(const Actor& actor);
  void drain_one(Buffer& buffer);
  bool may_drain(const Buffer& buffer, const Pending& store) const;
  void write(uint64_t actor, uint64_t buffer, uint64_t meetings, uint64_t at, const void* from, uint32_t bytes);

  Weakness weakness_;
  Random& random_;
  uint64_t now_ = 1, last_id_ = 0, last_actor_ = 0;
  std::unordered_map<uint64_t, Versions> words_;
};

}  // namespace sim
