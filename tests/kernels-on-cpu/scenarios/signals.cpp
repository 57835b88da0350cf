// signals.cpp: barriers, slots, puts with a signal, and the repair of a channel.

// Its structs are its own, so that what uses it is compiled with it.
#include "signals.cu"

#include <cstring>

#include "group.h"

namespace sim {

namespace {

constexpr u32 CHANNELS = 2;

// Pads and the words of channels of all ranks.
class Ranks {
 public:
  Ranks(Machine& machine, u32 world, u64 deadline_ns) : machine(machine), world(world), deadline_ns_(deadline_ns), ranks_(world) {
    for (Rank& rank : ranks_) {
      // The pad's slots, u32, then the workspace's words, u64, in one allocation.
      rank.memory.assign(CHANNELS * world * 2, 0);
      workspaces_.push_back((u64)(rank.memory.data() + CHANNELS * world));
    }
  }

  Machine& machine;
  const u32 world;

  Signal signal(u32 r, u32 channel, u32 peer = 0) {
    Rank& rank = ranks_[r];
    Signal s{};
    for (u32 i = 0; i < world && world <= 8; i++) s.peers[i] = workspaces_[i];
    s.table = (u64)workspaces_.data();
    s.own = workspaces_[r];
    s.slots_back = (CHANNELS - channel) * world * 4;
    s.barriers = channel * world * 8;
    s.state = (u64)&rank.channels[channel];
    s.arrivals = (u64)&rank.arrivals[peer];
    s.fault = (u64)&rank.faults[channel * 2];
    s.any_fault = (u64)&rank.any_fault;
    s.lost = (u64)&rank.page[CONTROL_LOST / 8];
    s.cancel = (u64)&rank.cancel;
    s.deadline_ns = deadline_ns_;
    s.rank = r, s.world = world, s.channel = channel, s.peer = peer, s.patience = 1;
    return s;
  }

  void launch(u32 r, void (*kernel)(const Signal), const Signal& s) {
    machine.launch(r, 1, 32, [=] { kernel(s); });
  }
  void host(u32 r, std::function<void()> act) { machine.host(r, std::move(act)); }
  u64 fault(u32 r, u32 channel) const { return ranks_[r].faults[channel * 2]; }
  u64 missing(u32 r, u32 channel) const { return ranks_[r].faults[channel * 2 + 1]; }
  u64& lost(u32 r) { return ranks_[r].page[CONTROL_LOST / 8]; }
  u64* stall(u32 r) { return &ranks_[r].page[CONTROL_STALL / 8]; }
  u32& cancel(u32 r) { return ranks_[r].cancel; }

  void check_healthy() const {
    for (u32 r = 0; r < world; r++)
      for (u32 c = 0; c < CHANNELS; c++)
        CHECK(fault(r, c) == 0, "rank %u of %u: a fault on channel %u: %llx, ranks %llx", r, world, c, fault(r, c) >> 32, missing(r, c));
  }

 private:
  struct Rank {
    std::vector<u64> memory;
    alignas(16) Channel channels[CHANNELS] = {};
    u32 arrivals[16] = {};
    u64 faults[2 * CHANNELS] = {}, any_fault = 0;
    alignas(16) u64 page[CONTROL_LOST / 8 + 2] = {};
    u32 cancel = 0;
  };
  u64 deadline_ns_;
  std::vector<Rank> ranks_;
  std::vector<u64> workspaces_;
};

u32 some_world(Random& random) { return random.of({2u, 2u, 3u, 4u, 9u, 1u}); }

// ------------------------------------------------------------------------------- scenarios

// What every rank stored in all others' memory before a barrier is there after it.
void barrier(Random& random, const Schedule& schedule) {
  Machine machine(schedule, random.next());
  Ranks ranks(machine, some_world(random), LONG_NS);
  const u32 world = ranks.world, rounds = random.between(2, 6);
  std::vector<u32> words(world * rounds * world);
  auto word = [&](u32 reader, u32 round, u32 writer) -> u32& { return words[(reader * rounds + round) * world + writer]; };
  for (u32 i = 0; i < rounds; i++)
    for (u32 r = 0; r < world; r++) {
      ranks.host(r, [=, &word] {
        for (u32 q = 0; q < world; q++) word(q, i, r) = 1;
      });
      ranks.launch(r, symmem_barrier, ranks.signal(r, i % 3 == 2));
      ranks.host(r, [=, &word] {
        for (u32 q = 0; q < world; q++) CHECK(word(r, i, q) == 1, "rank %u left barrier %u before rank %u came", r, i, q);
      });
    }
  machine.run();
  ranks.check_healthy();
}

// Each rank signals the next one: a wait ends after its put, and the put after next only after the wait.
void slots(Random& random, const Schedule& schedule) {
  Machine machine(schedule, random.next());
  Ranks ranks(machine, random.between(2, 4), LONG_NS);
  const u32 world = ranks.world, rounds = random.between(2, 5);
  std::vector<u32> begun(world), waited(world);
  for (u32 i = 1; i <= rounds; i++)
    for (u32 r = 0; r < world; r++) {
      const u32 next = (r + 1) % world, before = (r + world - 1) % world;
      ranks.host(r, [=, &begun] { begun[r] = i; });
      ranks.launch(r, symmem_put_signal, ranks.signal(r, 1, next));
      ranks.launch(r, symmem_wait_signal, ranks.signal(r, 1, before));
      ranks.host(r, [=, &begun] { CHECK(begun[before] >= i, "rank %u: signal %u came before it was put", r, i); });
    }
  machine.run();
  ranks.check_healthy();
}

// Data is there once its signal is, of any length, at any address, by any number of blocks.
void put_with_signal(Random& random, const Schedule& schedule) {
  Machine machine(schedule, random.next());
  Ranks ranks(machine, random.between(2, 4), LONG_NS);
  const u32 world = ranks.world, rounds = random.between(2, 5);
  std::vector<std::unique_ptr<Bytes>> kept;
  auto buffer = [&](u64 bytes, u64 offset) {
    kept.push_back(std::make_unique<Bytes>(bytes, offset));
    return kept.back().get();
  };
  for (u32 i = 0; i < rounds; i++) {
    const u64 bytes = random.of({0, 1, 3, 15, 16, 17, 100, 1000, 3000});
    const u32 blocks = random.between(1, 3), threads = random.of({1u, 3u, 32u});
    for (u32 r = 0; r < world; r++) {
      const u32 next = (r + 1) % world, before = (r + world - 1) % world;
      Bytes* source = buffer(bytes, random.below(16));
      Bytes* target = buffer(bytes, random.below(16));
      source->fill(random);
      const Put put{ranks.signal(r, 0, next), source->address(), target->address(), bytes, 0};
      // The peer of the wait below finds this rank's target by this order.
      ranks.host(r, [target] { target->poison(); });
      if (blocks > 1) ranks.launch(r, symmem_await_empty, put.signal);
      machine.launch(r, blocks, threads, [=] { symmem_put_with_signal(put); });
      ranks.launch(r, symmem_wait_signal, ranks.signal(r, 0, before));
      const size_t theirs = 2 * ((size_t)i * world + before);
      ranks.host(r, [=, &kept] {
        const bool equal = std::memcmp(kept[theirs]->begin(), kept[theirs + 1]->begin(), bytes) == 0;
        CHECK(equal, "rank %u: put %u of %llu bytes by %u blocks of %u is not there", r, i, bytes, blocks, threads);
      });
    }
  }
  machine.run();
  ranks.check_healthy();
  for (const auto& one : kept) CHECK(one->guards_hold(), "bytes outside were written");
}

// A rank does not come to a barrier: the others say so, and what follows on the channel fails at once, until
// all have reset it. What was in slots is gone then.
void repair(Random& random, const Schedule& schedule) {
  Machine machine(schedule, random.next());
  Ranks ranks(machine, random.between(2, 4), 2000000);
  const u32 world = ranks.world, late = random.below(world), other = (late + 1) % world;
  ranks.launch(other, symmem_put_signal, ranks.signal(other, 1, late));
  for (u32 r = 0; r < world; r++)
    if (r != late) ranks.launch(r, symmem_barrier, ranks.signal(r, 1));
  machine.run();
  for (u32 r = 0; r < world; r++) {
    const u64 expected = r == late ? 0 : (u64)(CALL_BARRIER << 8 | FAULT_TIMED_OUT) << 32 | 1;
    CHECK(ranks.fault(r, 1) == expected, "rank %u reports %llx, not %llx", r, ranks.fault(r, 1), expected);
    CHECK(r == late || ranks.missing(r, 1) == 1u << late, "rank %u misses %llx, not rank %u", r, ranks.missing(r, 1), late);
    CHECK(ranks.fault(r, 0) == 0, "rank %u: another channel has failed", r);
  }
  ranks.launch(other, symmem_barrier, ranks.signal(other, 1));
  machine.run();
  CHECK((u32)(ranks.fault(other, 1) >> 32) == (CALL_BARRIER << 8 | FAULT_BROKEN), "a broken channel was used");
  for (u32 r = 0; r < world; r++) {
    ranks.launch(r, symmem_reset_channel, ranks.signal(r, 1));
    ranks.launch(r, symmem_barrier, ranks.signal(r, 1));
    ranks.host(r, [=, &ranks] { CHECK(*pointer<u32>(ranks.signal(r, 1).own - ranks.signal(r, 1).slots_back + 4 * other) == EMPTY, "rank %u: a slot is full after a reset", r); });
  }
  machine.run();
  for (u32 r = 0; r < world; r++) {
    CHECK(ranks.signal(r, 1).state && pointer<Channel>(ranks.signal(r, 1).state)->state == OPEN, "the channel of rank %u is not open", r);
    CHECK(r == other || ranks.fault(r, 1) >> 40 != CALL_RESET, "the reset of rank %u failed", r);
  }
}

// The host ends a wait: by the token, or by saying that the peer is lost.
void host_ends_wait(Random& random, const Schedule& schedule) {
  Machine machine(schedule, random.next());
  Ranks ranks(machine, random.between(2, 4), LONG_NS);
  const bool lost = random.one_in(2), slot = random.one_in(2);
  ranks.launch(0, slot ? symmem_wait_signal : symmem_barrier, ranks.signal(0, 0, 1));
  for (u32 r = 2; r < ranks.world && !slot; r++) ranks.launch(r, symmem_barrier, ranks.signal(r, 0));
  machine.host(ranks.world, [&] {
    for (u32 r = 0; r < ranks.world; r++) lost ? (void)(ranks.lost(r) = 2) : (void)(ranks.cancel(r) = 1);
  });
  machine.run();
  const u64 expected = (u64)((slot ? CALL_WAIT : CALL_BARRIER) << 8 | (lost ? FAULT_LOST : FAULT_CANCELLED)) << 32;
  CHECK(ranks.fault(0, 0) == expected, "reported as %llx, not %llx", ranks.fault(0, 0), expected);
  // Others may be on their way.
  CHECK(lost || slot ? ranks.missing(0, 0) == 2 : ranks.missing(0, 0) & 2, "it misses %llx", ranks.missing(0, 0));
}

// As the others, with one rank delayed at a step.
void stalls(Random& random, const Schedule& schedule) {
  const u32 world = random.between(2, 3);
  each_stall(world, {STALL_ARRIVE, STALL_AWAIT_RESET}, [&](u32 late, u32 step) {
    Machine machine(schedule, random.next());
    Ranks ranks(machine, world, LONG_NS);
    u64* stall = ranks.stall(late);
    stall[0] = (u64)random.of({1u, 2u, 3u}) << 32 | (step + 1), stall[1] = STALL_NS;
    const u64 bytes = random.of({0, 1, 17, 600});
    std::vector<u32> begun(world), repaired(world);
    std::vector<std::unique_ptr<Bytes>> sources, targets;
    for (u32 r = 0; r < world; r++) {
      sources.push_back(std::make_unique<Bytes>(bytes, r));
      sources[r]->fill(random);
      targets.push_back(std::make_unique<Bytes>(bytes, 3));
    }
    for (u32 i = 1; i <= 2; i++)
      for (u32 r = 0; r < world; r++) {
        const u32 next = (r + 1) % world, before = (r + world - 1) % world;
        ranks.host(r, [=, &begun] { begun[r] = i; });
        ranks.launch(r, symmem_barrier, ranks.signal(r, 0));
        ranks.host(r, [=, &begun] {
          for (u32 q = 0; q < world; q++) CHECK(begun[q] >= i, "rank %u left barrier %u before rank %u came", r, i, q);
        });
        ranks.launch(r, symmem_put_signal, ranks.signal(r, 1, next));
        ranks.launch(r, symmem_wait_signal, ranks.signal(r, 1, before));
        ranks.host(r, [=, &begun] { CHECK(begun[before] >= i, "rank %u: signal %u came before it was put", r, i); });
        const u32 blocks = random.between(1, 2);
        if (blocks > 1) ranks.launch(r, symmem_await_empty, ranks.signal(r, 1, next));
        Put put{ranks.signal(r, 1, next), sources[r]->address(), targets[next]->address(), bytes, 0};
        machine.launch(r, blocks, 32, [put] { symmem_put_with_signal(put); });
        ranks.launch(r, symmem_wait_signal, ranks.signal(r, 1, before));
        ranks.host(r, [=, &sources, &targets] {
          CHECK(std::memcmp(targets[r]->begin(), sources[before]->begin(), bytes) == 0, "rank %u: the data of rank %u is not there", r, before);
          CHECK(targets[r]->guards_hold(), "rank %u: bytes outside were written", r);
          targets[r]->poison();
        });
        // Nobody puts the next data before all have looked at this.
        ranks.launch(r, symmem_barrier, ranks.signal(r, 0));
        ranks.launch(r, symmem_reset_channel, ranks.signal(r, 1));
      }
    machine.run();
    ranks.check_healthy();
    return (u32)(stall[2] >> 32);
  });
}

}  // namespace

extern const Named SCENARIOS[] = {{"barrier", barrier}, {"slots", slots},     {"put_with_signal", put_with_signal},
                                  {"repair", repair},   {"host_ends_wait", host_ends_wait}, {"stalls", stalls}, {nullptr, nullptr}};

}  // namespace sim
