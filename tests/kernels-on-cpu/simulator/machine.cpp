#include "machine.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>

#include "symmem.cuh"

namespace sim {

namespace {

constexpr size_t STACK = 64 << 10;
constexpr uint32_t WARP = 32;

// Rounds without the end of a kernel, after which a run hangs. No wait of a test takes nearly as many.
constexpr uint32_t HANG = 50000;

// Rounds for which warps keep their speeds.
constexpr uint32_t PHASE = 32;

jmp_buf scheduler;

}  // namespace

// Counted from a block's end: its last 32 threads are one, however many there are.
struct Warp {
  uint32_t alive = 0, came = 0, meetings = 0;
  bool all = true, answer = true;
  uint8_t lines[WARP / 8][128];  // on their way
  uint64_t values[WARP];

  void complete_if_all() {
    if (came == alive) came = 0, meetings++, answer = all, all = true;
  }
};

struct ThreadBlock {
  Kernel* kernel;
  uint32_t index, alive, came = 0;
  uint64_t meetings = 0;
  bool any = false, answer = false;
  bool allows_next = false;
  Buffer buffer;
  std::vector<Actor*> actors;
  std::vector<Warp> warps;
  std::vector<uint64_t> shared;
};

struct Fiber {
  ThreadBlock* block;
  Warp* warp;
  uint32_t thread;
  std::unique_ptr<char[]> stack;
  Actor actor;
  uint64_t last_read = 0;
  bool is_started = false, is_done = false;
  ucontext_t start;
  jmp_buf point;
};

struct Kernel {
  uint32_t blocks, threads;
  std::function<void()> body;
  Kernel* previous = nullptr;  // until it has ended
  uint32_t alive = 0;
  std::vector<uint32_t> slowness;  // by warp
  std::deque<ThreadBlock> grid;
  std::deque<Fiber> fibers;
};

struct Item {
  uint32_t blocks = 0, threads = 0;
  std::function<void()> act;          // a thread of a kernel, if there are blocks; else the host
  std::function<bool()> condition;
};

struct Stream {
  std::deque<Item> items;
  std::deque<std::unique_ptr<Kernel>> kernels;
};

std::string format(const char* text, ...) {
  char buffer[1000];
  va_list arguments;
  va_start(arguments, text);
  vsnprintf(buffer, sizeof buffer, text, arguments);
  va_end(arguments);
  return buffer;
}

Schedule Schedule::drawn(Random& random) {
  Schedule s{};
  s.memory.capacity = random.of({0u, 3u, 12u, 48u});
  s.memory.drain = random.of({1u, 4u, 16u});
  s.memory.stale = random.of({0u, 2u, 8u});
  s.pause = random.of({1u, 3u, 10u});
  s.imbalance = random.of({1u, 4u, 24u});
  s.tick_ns = 1000;
  return s;
}

std::string Schedule::text() const {
  return format("%u pending stores, drained in 1 of %u rounds, 1 of %u loads old, 1 of %u pauses, warps %u times slower",
                memory.capacity, memory.drain, memory.stale, pause, imbalance);
}

Machine* Machine::running = nullptr;

Machine::Machine(Schedule schedule, uint64_t seed) : schedule_(schedule), random_(seed), memory_(schedule.memory, random_) {
  running = this;
}
Machine::~Machine() { running = nullptr; }

Stream& Machine::stream(uint32_t index) {
  while (index >= streams_.size()) streams_.push_back(std::make_unique<Stream>());
  return *streams_[index];
}
void Machine::launch(uint32_t stream, uint32_t blocks, uint32_t threads, std::function<void()> body) {
  this->stream(stream).items.push_back({blocks, threads, std::move(body), {}});
}
void Machine::host(uint32_t stream, std::function<void()> act) { this->stream(stream).items.push_back({0, 0, std::move(act), {}}); }
void Machine::await(uint32_t stream, std::function<bool()> condition) {
  this->stream(stream).items.push_back({0, 0, [] {}, std::move(condition)});
}

// ------------------------------------------------------------------------------- streams

// Begins what may begin and ends what has; whether anything did.
bool Machine::advance(Stream& stream) {
  auto& kernels = stream.kernels;
  bool any = false;
  if (!kernels.empty() && kernels.front()->alive == 0) {
    for (ThreadBlock& block : kernels.front()->grid) memory_.flush(block.buffer);
    for (Fiber& fiber : kernels.front()->fibers) stacks_.push_back(std::move(fiber.stack));
    kernels.pop_front();
    if (!kernels.empty()) kernels.front()->previous = nullptr;
    any = true;
  }
  while (!stream.items.empty()) {
    Item& item = stream.items.front();
    if (item.blocks == 0) {
      if (!kernels.empty() || (item.condition && !item.condition())) break;
      item.act();
      stream.items.pop_front();
      any = true;
      continue;
    }
    if (kernels.size() == 2) break;
    if (!kernels.empty()) {
      bool allowed = true;
      for (const ThreadBlock& block : kernels.front()->grid) allowed &= block.allows_next || block.alive == 0;
      if (!allowed || !random_.one_in(4)) break;
    }
    auto kernel = std::make_unique<Kernel>();
    kernel->blocks = item.blocks, kernel->threads = item.threads, kernel->body = std::move(item.act);
    kernel->alive = item.blocks * item.threads;
    kernel->previous = kernels.empty() ? nullptr : kernels.front().get();
    for (uint32_t b = 0; b < item.blocks; b++) {
      ThreadBlock& block = kernel->grid.emplace_back();
      block.kernel = kernel.get(), block.index = b, block.alive = item.threads;
      block.buffer.id = ++last_buffer_;
      block.warps.resize((item.threads + WARP - 1) / WARP);
      for (uint32_t t = 0; t < item.threads; t++) {
        Fiber& fiber = kernel->fibers.emplace_back();
        fiber.block = &block, fiber.thread = t;
        fiber.warp = &block.warps[(item.threads - 1 - t) / WARP];
        fiber.warp->alive++;
        memory_.begin(fiber.actor, block.buffer);
        block.actors.push_back(&fiber.actor);
        if (stacks_.empty()) stacks_.emplace_back(new char[STACK]);
        fiber.stack = std::move(stacks_.back());
        stacks_.pop_back();
      }
    }
    kernels.push_back(std::move(kernel));
    stream.items.pop_front();
    any = true;
  }
  return any;
}

void Machine::run() {
  for (uint32_t idle = 0, round = 0;; round++) {
    bool empty = true, progress = false;
    uint32_t first = random_.below((uint32_t)streams_.size() + 1);
    for (size_t i = 0; i < streams_.size(); i++) {
      Stream& stream = *streams_[(first + i) % streams_.size()];
      progress |= advance(stream);
      for (auto& kernel : stream.kernels) {
        if (round % PHASE == 0 || kernel->slowness.empty()) {
          kernel->slowness.resize((kernel->blocks * kernel->threads + WARP - 1) / WARP);
          for (uint32_t& s : kernel->slowness) s = random_.one_in(2) ? 1 : random_.between(1, schedule_.imbalance);
        }
        run_threads(*kernel);
        for (ThreadBlock& block : kernel->grid) memory_.drain(block.buffer);
      }
      empty &= stream.items.empty() && stream.kernels.empty();
      if (!fault_.empty()) throw Failed(fault_);
    }
    for (auto& look : watchers_) look();
    if (empty) break;
    clock_ns_ += schedule_.tick_ns;
    idle = progress ? 0 : idle + 1;
    if (idle > HANG) {
      std::string which;
      for (size_t i = 0; i < streams_.size(); i++)
        if (!streams_[i]->kernels.empty()) which += format(" %zu", i);
      throw Failed("kernels hang in streams" + which);
    }
  }
  memory_.forget();
}

// ------------------------------------------------------------------------------- threads

void Machine::run_threads(Kernel& kernel) {
  for (size_t i = 0; i < kernel.fibers.size(); i++) {
    Fiber& fiber = kernel.fibers[i];
    if (fiber.is_done || (kernel.slowness[i / WARP] > 1 && !random_.one_in(kernel.slowness[i / WARP]))) continue;
    resume(fiber);
    if (!fault_.empty()) return;
  }
}

void Machine::enter() {
  Machine& machine = *running;
  machine.current_->block->kernel->body();
  machine.end(*machine.current_);
  _longjmp(scheduler, 1);
}

// A thread's first entry costs system calls; its others do not.
void Machine::resume(Fiber& fiber) {
  current_ = &fiber;
  if (_setjmp(scheduler) == 0) {
    if (fiber.is_started) _longjmp(fiber.point, 1);
    fiber.is_started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = STACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
    setcontext(&fiber.start);
  }
}

void Machine::pause() {
  if (_setjmp(current_->point) == 0) _longjmp(scheduler, 1);
}

void Machine::maybe_pause() {
  if (random_.one_in(schedule_.pause)) pause();
}

void Machine::end(Fiber& fiber) {
  fiber.is_done = true;
  fiber.block->kernel->alive--;
  ThreadBlock& block = *fiber.block;
  // Whoever has ended is not waited for.
  if (--fiber.warp->alive != 0) fiber.warp->complete_if_all();
  if (--block.alive != 0 && block.came == block.alive) complete_meeting(block);
}

bool Machine::meet(bool mine) {
  ThreadBlock& block = *current_->block;
  uint64_t meeting = block.meetings;
  block.any |= mine;
  if (++block.came == block.alive) complete_meeting(block);
  while (block.meetings == meeting) pause();
  // Nobody leaves the next meeting before this thread has come to it.
  return block.answer;
}

bool Machine::meet_warp(bool mine) {
  Warp& warp = *current_->warp;
  const uint32_t meeting = warp.meetings;
  warp.all &= mine;
  warp.came++;
  warp.complete_if_all();
  while (warp.meetings == meeting) pause();
  // Nobody leaves the next meeting before this thread has come to it.
  return warp.answer;
}

uint64_t Machine::read_warp(uint64_t mine, uint32_t thread) {
  Warp& warp = *current_->warp;
  if (warp.alive != WARP || thread >= WARP) fail("a warp that is not whole exchanges values");
  warp.values[current_->thread % WARP] = mine;
  meet_warp(true);
  const uint64_t found = warp.values[thread];
  meet_warp(true);
  return found;
}

void* Machine::shared(uint64_t bytes) {
  std::vector<uint64_t>& shared = current_->block->shared;
  if (shared.empty()) shared.resize((bytes + 15) / 8, 0xbadbadbadbadbadb);
  return shared.data() + (reinterpret_cast<uint64_t>(shared.data()) % 16 != 0);
}

// The first of eight threads stores for all, and loads for all.
void Machine::store_line(uint64_t at, const void* from) {
  const uint32_t t = current_->thread % WARP;
  uint8_t(&line)[128] = current_->warp->lines[t / 8];
  std::memcpy(line + t % 8 * 16, from, 16);
  meet_warp(true);
  if (t % 8 == 0) memory_.store(current_->actor, at, line, sizeof line, false);
  meet_warp(true);
}
void Machine::load_line(uint64_t at, void* into) {
  const uint32_t t = current_->thread % WARP;
  uint8_t(&line)[128] = current_->warp->lines[t / 8];
  meet_warp(true);
  if (t % 8 == 0) memory_.load(current_->actor, at, line, sizeof line, false);
  meet_warp(true);
  std::memcpy(into, line + t % 8 * 16, 16);
}

void Machine::complete_meeting(ThreadBlock& block) {
  block.answer = block.any;
  block.any = false, block.came = 0;
  block.meetings++;
  memory_.meet(block.buffer, block.actors);
}

void Machine::wait_for_previous() {
  while (current_->block->kernel->previous) pause();
  memory_.refresh(current_->actor);
}

void Machine::allow_next() { current_->block->allows_next = true; }

void Machine::fail(std::string what) {
  if (fault_.empty()) fault_ = std::move(what);
  for (;;) pause();
}

}  // namespace sim

// ------------------------------------------------------------------------------- symmem.cuh

namespace symmem {

using sim::Machine;

namespace machine {

void load(const void* at, void* into, u32 bytes, bool acquires) {
  Machine& m = *Machine::running;
  sim::Fiber& fiber = m.fiber();
  expect_aligned(at, bytes);
  // Whoever polls lets others run.
  if (fiber.last_read == (u64)at) m.pause();
  else m.maybe_pause();
  fiber.last_read = (u64)at;
  m.memory().load(fiber.actor, (u64)at, into, bytes, acquires);
}
void store(void* at, const void* from, u32 bytes, bool releases) {
  Machine& m = *Machine::running;
  expect_aligned(at, bytes);
  m.maybe_pause();
  m.memory().store(m.fiber().actor, (u64)at, from, bytes, releases);
}
// At the places of a line, by a warp of 32 that ends with its block's workers.
void expect_line(const void* at) {
  u32 t = thread_index() % 32;
  if ((u64)at % 128 != t % 8 * 16) Machine::running->fail(sim::format("thread %u at %p is at no place of a line", t, at));
}
void store_line(void* at, const void* from) {
  expect_line(at);
  Machine::running->maybe_pause();
  Machine::running->store_line((u64)at & ~127ull, from);
}
void load_line(const void* at, void* into) {
  expect_line(at);
  // Whoever polls lets others run.
  Machine::running->pause();
  Machine::running->load_line((u64)at & ~127ull, into);
}
void fence() { Machine::running->memory().fence(Machine::running->fiber().actor); }
u32 update(u32* at, u32 (*next)(u32, u32, u32), u32 a, u32 b) {
  Machine& m = *Machine::running;
  m.maybe_pause();
  return m.memory().update(m.fiber().actor, (u64)at, [&](u32 found) { return next(found, a, b); });
}
bool meet(bool mine) { return Machine::running->meet(mine); }
u64 read(u64 mine, u32 thread) { return Machine::running->read_warp(mine, thread); }
void* shared(u64 bytes) { return Machine::running->shared(bytes); }
void expect_aligned(const void* at, u64 bytes) {
  if ((u64)at % bytes != 0) Machine::running->fail(sim::format("an access of %llu bytes at %p", bytes, at));
}

}  // namespace machine

u32 thread_index() { return Machine::running->fiber().thread; }
u32 block_index() { return Machine::running->fiber().block->index; }
u32 block_size() { return Machine::running->fiber().block->kernel->threads; }
u32 grid_size() { return Machine::running->fiber().block->kernel->blocks; }
u64 clock_ns() { return Machine::running->clock_ns(); }
void warp_sync() { Machine::running->meet_warp(true); }
bool warp_all(bool mine) { return Machine::running->meet_warp(mine); }
void wait_for_previous_kernel() { Machine::running->wait_for_previous(); }
void allow_next_kernel() { Machine::running->allow_next(); }

}  // namespace symmem
