// operations.h: calls of all ranks on one lane, one after the other, and what each must have done.

#pragma once

#include <string>

#include "group.h"

namespace sim {

// One call: memory of every rank, data in it, and what must be there afterwards.
struct Operation {
  // Whether hosts fill and check its memory in the order of their streams: then nothing may come early or
  // late; else kernels of operations follow each other, and overlap as far as they allow it.
  bool in_stream = true;
  // How often it runs, as one node of a graph; 0: it is in none.
  u32 replays = 0;
  std::vector<u64> runs;  // of that node, by rank and block
  std::string name;
  std::vector<Bytes> in, out;  // by rank; those in place have no `out`
  std::vector<Bytes> more_in, more_out;  // of those that have more than one

  std::vector<Bytes>* sides[4] = {&in, &out, &more_in, &more_out};

  virtual ~Operation() = default;
  // Fills the inputs with what it keeps for that, and poisons the outputs.
  virtual void prepare(u32 rank) = 0;
  virtual void launch(Group& group, u32 rank, const Lane& lane) = 0;
  // Throws `Failed`.
  virtual void check(u32 rank) = 0;
};

// Operations of one run, in the order in which all ranks issue them.
class Operations {
 public:
  explicit Operations(Group& group) : group_(group) {}

  void add(std::unique_ptr<Operation> operation);
  // Runs all; results must be right, and nothing else written.
  void run();

 private:
  void checked(Operation& operation, u32 rank);

  Group& group_;
  std::vector<std::unique_ptr<Operation>> all_;
};

// A machine, and a group on it.
struct Place {
  Machine machine;
  Group group;

  Place(Random& random, const Schedule& schedule, const Setting& setting)
      : machine(schedule, random.next()), group(machine, setting) {}
};

// Runs some operations again and again, each time with a rank delayed at a step of lanes: all ranks at all
// steps.
template <class Any> void with_stalls(Random& random, const Schedule& schedule, Any any) {
  Setting setting;
  setting.world = random.between(2, 3);
  each_stall(setting.world, {STALL_ENTER, STALL_EXIT}, [&](u32 r, u32 step) {
    // Where a lane scrubs, since that is a step too.
    setting.epoch = 0x3ffffffd + random.below(3), setting.checked = random.one_in(3);
    Place place(random, schedule, setting);
    place.group.stall(r, step, random.of({1u, 2u, 5u, 17u}), STALL_NS);
    Operations operations(place.group);
    for (u32 i = random.between(4, 6); i != 0; i--) operations.add(any(setting));
    operations.run();
    return place.group.end_stall(r);
  });
}

// Ranks, the epoch to begin at and checked mode; shortly before an epoch that scrubs, now and then.
Setting any_setting(Random& random);
// What operations left long ago, where `setting` is shortly before a scrub.
void plant_stale(Group& group, const Setting& setting);

}  // namespace sim
