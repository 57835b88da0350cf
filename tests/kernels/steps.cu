// The suite's own kernels on devices: the counterparts, by name, of the functions in
// src/suite/streams/kernels.rs. Written on the public headers alone, as a user's are.

#include "symmem_sync.cuh"

using namespace symmem;

// A step on one word, with a number or another word.
struct Step8 {
  u64 word, other;
};

// Every rank's word, gathered by every rank.
struct alignas(16) Exchange {
  Lane lane;
  u64 input, output;
};

// A test that fails still ends.
constexpr u64 PATIENT_NS = 20000000000;

extern "C" __global__ void __launch_bounds__(64) hold(const SYMMEM_ARGS Step8 step) {
  u64 since = clock_ns();
  while (load_acquire(pointer<u64>(step.word)) == 0 && clock_ns() - since < PATIENT_NS) {
  }
}

extern "C" __global__ void __launch_bounds__(64) add(const SYMMEM_ARGS Step8 step) {
  u64* word = pointer<u64>(step.word);
  store_release(word, load_acquire(word) * 10 + step.other);
}

extern "C" __global__ void __launch_bounds__(64) copy(const SYMMEM_ARGS Step8 step) {
  store_release(pointer<u64>(step.word), load_acquire(pointer<u64>(step.other)));
}

// The words of all ranks, by the second warp; the first has the headers.
SYMMEM_FN bool gather(const Exchange& e, const Step& step, u32 t) {
  const Lane& lane = e.lane;
  u64 mine = load_relaxed(pointer<u64>(e.input));
  Pair packet = {step.tag | (u32)mine, step.tag | mine >> 32};
  for (u32 r = t; r < lane.world; r += 32)
    if (r != lane.rank) store_pair(pointer<void>(packets_to(lane, step.parity, r)), packet);
  for (u32 r = t; r < lane.world; r += 32) {
    u64 theirs = mine;
    if (r != lane.rank) {
      Pair found = {};
      auto ready = [&] {
        found = load_pair(pointer<void>(packets_from(lane, step.parity, r)));
        return found.a >> 32 == step.epoch && found.b >> 32 == step.epoch;
      };
      Gate gate;
      if (!await(lane, step.epoch, gate, r, ready)) return false;
      theirs = (u32)found.a | found.b << 32;
    }
    store_relaxed(pointer<u64>(e.output) + r, theirs);
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(64) exchange(const SYMMEM_ARGS Exchange e) {
  const Lane& lane = e.lane;
  if (lane.world == 1) {
    if (thread_index() == 0) store_relaxed(pointer<u64>(e.output), load_relaxed(pointer<u64>(e.input)));
    return;
  }
  if (!begin(lane)) return;
  Headers headers(lane, thread_index());
  Step step;
  if (!enter(lane, step)) return;
  bool ok = await_clear(lane, step);
  if (ok && thread_index() >= 32) {
    ok = gather(e, step, thread_index() - 32);
  } else if (ok) {
    headers.publish(lane, step);
    ok = headers.compare(lane, step, [](u32) { return true; });
  }
  exit(lane, step, ok, Used{ALL, 1, false});
}
