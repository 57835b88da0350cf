#include "operations.h"

namespace sim {

void Operations::checked(Operation& operation, u32 rank) {
  try {
    group_.check_healthy(rank);
    operation.check(rank);
  } catch (const Failed& failed) {
    throw Failed(format("%s: rank %u of %u: %s", operation.name.c_str(), rank, group_.world, failed.what()));
  }
}

void Operations::add(std::unique_ptr<Operation> operation) {
  Operation& op = *operation;
  u64 signature = 0x5157000000000000 + all_.size() * 0x100010001;
  op.runs.resize(group_.world * MAX_BLOCKS);
  for (u32 r = 0; r < group_.world; r++) {
    if (!op.in_stream) op.prepare(r);
    Lane lane = group_.next(r, signature);
    if (op.replays != 0) lane.issue = 0, lane.runs = (u64)&op.runs[r * MAX_BLOCKS];
    for (u32 i = 0; i < (op.replays == 0 ? 1 : op.replays); i++) {
      if (op.in_stream) group_.machine.host(r, [&op, r] { op.prepare(r); });
      op.launch(group_, r, lane);
      if (!op.in_stream) continue;
      group_.machine.host(r, [this, &op, r] {
        checked(op, r);
        // Both are this rank's again: what comes now is too late.
        for (auto* side : op.sides)
          if (!side->empty()) (*side)[r].poison();
      });
    }
  }
  all_.push_back(std::move(operation));
}

void Operations::run() {
  group_.machine.run();
  for (u32 r = 0; r < group_.world; r++) {
    group_.check_healthy(r);
    for (u32 b = 0; b < MAX_BLOCKS; b++) {
      const u32 epoch = group_.records(r)[b].epoch, expected = group_.records(0)->epoch;
      CHECK(epoch == expected, "rank %u: block %u is at epoch %u, not %u", r, b, epoch, expected);
    }
  }
  for (auto& op : all_) {
    for (u32 r = 0; r < group_.world; r++) {
      if (!op->in_stream) checked(*op, r);
      for (auto* side : op->sides) {
        if (side->empty()) continue;
        CHECK((*side)[r].guards_hold(), "%s: rank %u: bytes outside were written", op->name.c_str(), r);
        CHECK(!op->in_stream || (*side)[r].is_poison(), "%s: rank %u: written after the end", op->name.c_str(), r);
      }
    }
  }
}

Setting any_setting(Random& random) {
  Setting s;
  s.world = random.of({2u, 2u, 3u, 3u, 4u, 4u, 1u, 9u});
  s.epoch = random.of({4u, 5u, 0x3ffffffdu, EPOCH_MAX - 2});
  s.checked = random.one_in(3);
  return s;
}

void plant_stale(Group& group, const Setting& setting) {
  if (setting.epoch < 0x3ffffff0) return;
  u32 scrubbed = setting.epoch < 0x40000000 ? 0x40000000 : EPOCH_MIN;
  group.plant(scrubbed + 2);
  group.plant(scrubbed + 3);
}

}  // namespace sim
