// group.h: the memory of a group of ranks, one lane of each, as kernels are given it.

#pragma once

#include <memory>
#include <vector>

#include "machine.h"
#include "plan.cuh"
#include "symmem_stalls.cuh"

namespace sim {

using namespace symmem;

constexpr u32 MAX_BLOCKS = 8, PACKETS = 512, LINES = 64;
constexpr u64 STAGING = 16384;

// No test waits as long by the machine's clock, unless it sets its own bound.
constexpr u64 LONG_NS = 1ull << 50;

struct Setting {
  u32 world = 2;
  u32 epoch = 4;
  bool checked = false;
  u64 deadline_ns = LONG_NS;
  u32 packets = PACKETS;  // of each writer and parity
  bool apart = false;     // each rank on a host of its own
};

// What a rank's host reads of a failure.
struct Record {
  u32 reason, lane, reporter, culprit, operation, epoch;
  u64 mine[2], theirs[2], missing;

  bool operator==(const Record& other) const { return __builtin_memcmp(this, &other, sizeof *this) == 0; }
};

class Group {
 public:
  Group(Machine& machine, const Setting& setting);

  Machine& machine;
  const u32 world;

  // The lane as rank `r`'s next operation is given it.
  Lane next(u32 r, u64 signature);

  bool has_failed(u32 r) const { return word(r, CONTROL_ABORT) != 0; }
  bool is_stale(u32 r) const { return word(r, CONTROL_STALE) != 0; }
  // In host memory, or in the rank's own.
  Record record(u32 r, bool own = false) const;
  // The words of the host's page of rank `r`, for what the host writes there.
  u32& word(u32 r, u64 offset) const { return *pointer<u32>(host(r) + offset); }
  u64& mask(u32 r, u64 offset) const { return *pointer<u64>(host(r) + offset); }
  u32& claim(u32 r) const { return *pointer<u32>(lane(r) - CONTROL + CONTROL_CLAIM); }
  EpochRecord* records(u32 r) const { return pointer<EpochRecord>(lane(r)); }

  // Delays rank `r` for some time at one of `every` times that a thread of it comes to a step; ends that, and
  // says how often.
  void stall(u32 r, u32 step, u32 every, u64 ns);
  u32 end_stall(u32 r);

  // What operations of these epochs have left long ago, in every word that peers write.
  void plant(u32 epoch);

  // Checks that the rank knows of no failure.
  void check_healthy(u32 r) const;

 private:
  // From the beginning of a workspace to its lane: the control page.
  static constexpr u64 CONTROL = 4096;

  struct Rank {
    std::vector<u64> workspace, host, hosts;
    u64 issued = 0;
  };
  u64 lane(u32 r) const { return table_[r]; }
  u64 host(u32 r) const { return hosts_[r]; }

  Setting setting_;
  Lane shape_{};  // what all ranks agree on
  std::vector<Rank> ranks_;
  std::vector<u64> table_, hosts_;
};

// How chunks are dealt out: what `collectives::gpu::shape` computes.
struct Cut {
  u32 blocks, rounds, last, slots, ahead;
  u64 chunk, slice;

  // A ring of `ring` slots, or as many as are needed.
  static Cut of(u64 slice, u64 chunk, u32 most_blocks, u32 ahead, u32 ring);
  void apply(Plan& plan) const;
};

// Memory of a user: bytes between guards, at a multiple of 16 and an offset.
class Bytes {
 public:
  explicit Bytes(u64 bytes, u64 offset = 0);
  u8* begin() { return at_; }
  u64 address() const { return (u64)at_; }
  u64 bytes() const { return bytes_; }
  void fill(Random& random);
  void poison() { __builtin_memset(at_, POISON, bytes_); }
  bool is_poison() const;
  bool guards_hold() const;

  static constexpr u8 POISON = 0xee;

 private:
  static constexpr u64 GUARD = 32;
  std::unique_ptr<u8[]> storage_;
  u8* at_;
  u64 bytes_;
};

#define CHECK(condition, ...) \
  if (!(condition)) throw ::sim::Failed(::sim::format(__VA_ARGS__))

// Steps of the protocols, for scenarios that delay one rank at each.
struct Steps {
  u32 first, last;
};

// Runs `attempt(rank, step)` for each rank of `world` and each step, again until that rank was delayed there as
// it says: so that none is forgotten.
template <class Attempt> void each_stall(u32 world, Steps steps, Attempt attempt) {
  for (u32 step = steps.first; step <= steps.last; step++)
    for (u32 r = 0; r < world; r++) {
      u32 delayed = 0;
      for (u32 i = 0; i < 200 && delayed == 0; i++) delayed = attempt(r, step);
      CHECK(delayed != 0, "rank %u of %u never came to step %u", r, world, step);
    }
}

// How long: until all others have done what they can without it.
constexpr u64 STALL_NS = 200000;

// A test: everything but the schedule is drawn from `random`.
using Scenario = void (*)(Random& random, const Schedule& schedule);
struct Named {
  const char* name;
  Scenario run;
};

}  // namespace sim
