// machine.h: GPUs without one. Every thread of every kernel is a fiber; a schedule drawn from a seed says
// which runs, for how long, and what of its stores the others see (memory.h).
//
// Streams are in order, as those of a device are; a kernel behind another may begin once that allows it
// (programmatic dependent launch), and then waits where it says so. Which ranks a stream, a kernel or an
// address belong to is the business of whoever launches.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory.h"
#include "random.h"

namespace sim {

// What a check found. The run ends.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

__attribute__((format(printf, 1, 2))) std::string format(const char* text, ...);

// How a run goes.
struct Schedule {
  Weakness memory;
  uint32_t pause;      // one of so many loads and stores pauses its thread
  uint32_t imbalance;  // how much slower than others a warp may be
  uint64_t tick_ns;    // by which the clock advances in a round

  static Schedule drawn(Random& random);
  std::string text() const;
};

struct Fiber;
struct ThreadBlock;
struct Kernel;
struct Item;
struct Stream;

class Machine {
 public:
  Machine(Schedule schedule, uint64_t seed);
  ~Machine();

  // All of these in the order of a stream. A kernel's body is what one thread does.
  void launch(uint32_t stream, uint32_t blocks, uint32_t threads, std::function<void()> body);
  void host(uint32_t stream, std::function<void()> act);
  void await(uint32_t stream, std::function<bool()> condition);
  // What looks at memory now and then, as a host thread does.
  void watch(std::function<void()> look) { watchers_.push_back(std::move(look)); }

  // Until all streams are empty.
  void run();

  uint64_t clock_ns() const { return clock_ns_; }
  const Schedule& schedule() const { return schedule_; }

  // Of the thread that is running.
  static Machine* running;
  Fiber& fiber() { return *current_; }
  Memory& memory() { return memory_; }
  void pause();
  void maybe_pause();
  bool meet(bool mine);
  // Whether all of the warp say so.
  bool meet_warp(bool mine);
  uint64_t read_warp(uint64_t mine, uint32_t thread);
  // Of the block, as large as whoever asks first says; it holds anything before.
  void* shared(uint64_t bytes);
  void store_line(uint64_t at, const void* from);
  void load_line(uint64_t at, void* into);
  void wait_for_previous();
  void allow_next();
  void fail(std::string what);

 private:
  Stream& stream(uint32_t index);
  bool advance(Stream& stream);
  void run_threads(Kernel& kernel);
  void resume(Fiber& fiber);
  void end(Fiber& fiber);
  void complete_meeting(ThreadBlock& block);
  static void enter();

  Schedule schedule_;
  Random random_;
  Memory memory_;
  uint64_t clock_ns_ = 1, last_buffer_ = 0;
  Fiber* current_ = nullptr;
  std::string fault_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::function<void()>> watchers_;
  std::vector<std::unique_ptr<char[]>> stacks_;
};

}  // namespace sim
