// exchanging.h: calls of the kernels of exchange.cu, by every algorithm; copy engines are the host.

#pragma once

#include <cstring>

#include "operations.h"

using namespace symmem;

extern "C" {
void exchange_packets(const Plan);
void exchange_staged(const Plan);
void exchange_direct(const Plan);
void exchange_meet(const Plan);
void exchange_part(const Plan);
}

namespace sim {

enum Algorithm { BY_PACKETS, STAGED, DIRECT, COPIES };
// All-to-all of rows: each has a piece for every rank, or each rank's rows follow each other.
enum Kind { ALL_GATHER, BROADCAST, ALL_TO_ALL, FROM_ROWS, TO_ROWS };

struct Exchanging : Operation {
  Algorithm algorithm;
  Kind kind;
  u32 world, root, blocks, workers;
  u64 rows, row, chunk;
  bool in_place, together, plain;
  Pitch from, to;
  std::vector<u64> inputs, outputs;
  std::vector<std::vector<u8>> data;  // by rank

  u64 part() const { return rows * row; }

  Exchanging(Random& random, const Setting& setting, Algorithm algorithm);

  void prepare(u32 r) override {
    if (!out.empty()) out[r].poison();
    std::memcpy(pointer<void>(inputs[r]), data[r].data(), data[r].size());
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    Plan p{};
    p.lane = lane;
    p.input = inputs[r], p.output = outputs[r];
    p.bytes = part(), p.row = row, p.in = from, p.out = to;
    p.plain = plain, p.group_completion = together, p.receives = 1;
    p.root = kind == BROADCAST ? root : EVERY_RANK;
    if (algorithm == DIRECT) p.peers = (u64)outputs.data();
    if (algorithm == STAGED) Cut::of(part(), chunk, blocks, 1, 4).apply(p);
    if (algorithm == DIRECT) Cut::of(part(), chunk, blocks, 0, 1).apply(p);
    u32 grid = algorithm == STAGED || algorithm == DIRECT ? Cut::of(part(), chunk, blocks, 0, 1).blocks : blocks;
    auto kernel = algorithm == BY_PACKETS ? exchange_packets : algorithm == STAGED ? exchange_staged : exchange_direct;
    if (algorithm != COPIES) return group.machine.launch(r, grid, workers + 32, [p, kernel] { kernel(p); });
    group.machine.launch(r, 1, 64, [p] { exchange_meet(p); });
    group.machine.host(r, [this, r] {
      for (u32 q = 0; q < world; q++)
        if (u64 at = outputs[r] + part() * q; at != inputs[q]) std::memcpy(pointer<void>(at), pointer<void>(inputs[q]), part());
    });
    group.machine.launch(r, 1, 64, [p] { exchange_part(p); });
  }

  void check(u32 r) override {
    for (u32 q = 0; q < world; q++)
      for (u64 y = 0; y < rows; y++) {
        const u8* found = pointer<u8>(outputs[r] + to.step * q + to.stride * y);
        const u8* sent = kind == ALL_GATHER ? data[q].data() : kind == BROADCAST ? data[root].data() : data[q].data() + from.step * r + from.stride * y;
        CHECK(std::memcmp(found, sent, row) == 0, "row %llu from rank %u is wrong", y, q);
      }
    CHECK(in_place || std::memcmp(in[r].begin(), data[r].data(), data[r].size()) == 0, "its input was written");
  }
};

inline Exchanging::Exchanging(Random& random, const Setting& setting, Algorithm algorithm)
    : algorithm(algorithm), world(setting.world), root(random.below(setting.world)) {
  kind = algorithm == COPIES ? ALL_GATHER : (Kind)random.of({0, 1, 1, 1, 2, 3, 4});
  const bool by_rows = kind >= FROM_ROWS;
  rows = by_rows ? random.below(6) : 1;
  row = random.of({0, 1, 2, 3, 7, 8, 15, 16, 17, 32, 48, 64, 100, 128, 129, 256, 1000, 1024, 2048, 3000, 4000, 4096});
  if (by_rows) row = row > 300 ? row % 256 : row;
  u64 offset = random.one_in(2) ? 0 : random.below(16);
  blocks = random.between(1, 4), workers = random.of({1u, 2u, 3u, 32u});
  chunk = 128 << random.below(3);
  together = random.one_in(3), in_stream = random.one_in(2);
  if (in_stream && algorithm != COPIES && random.one_in(4)) replays = random.between(1, 3);
  // An all-to-all is in place where all of what is sent has left before anything comes: in packets.
  in_place = !by_rows && (kind != ALL_TO_ALL || algorithm == BY_PACKETS) && random.one_in(2);
  const u64 one = part(), all = part() * world;
  switch (kind) {
    case ALL_GATHER: from = {0, row}, to = {one, row}; break;
    case BROADCAST: from = to = {0, row}; break;
    case ALL_TO_ALL: from = to = {one, row}; break;
    case FROM_ROWS: from = {row, row * world}, to = {one, row}; break;
    case TO_ROWS: from = {one, row}, to = {row, row * world}; break;
  }
  if (rows <= 1) from.stride = to.stride = row;
  plain = offset % 16 == 0 && from.stride == row && to.stride == row && from.step % 16 == 0 && to.step % 16 == 0;
  const u64 sent = kind == ALL_GATHER || kind == BROADCAST ? one : all, received = kind == BROADCAST ? one : all;
  for (u32 r = 0; r < world; r++) {
    out.emplace_back(received, offset);
    outputs.push_back(out[r].address());
    if (!in_place) in.emplace_back(sent, offset);
    inputs.push_back(!in_place ? in[r].address() : outputs[r] + (kind == ALL_GATHER ? one * r : 0));
    data.emplace_back(sent);
    for (u8& byte : data[r]) byte = (u8)random.next();
  }
  name = format("algorithm %d, kind %d, %llu rows of %llu, offset %llu, in place %d, root %u, together %d, %u blocks of %u, chunks of %llu, in stream %d, replays %u",
                algorithm, kind, rows, row, offset, in_place, root, together, blocks, workers, chunk, in_stream, replays);
}

}  // namespace sim
