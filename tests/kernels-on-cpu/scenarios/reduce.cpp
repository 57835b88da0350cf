// reduce.cpp: all-reduce, reduce and reduce-scatter by every algorithm, and reduce-scatter of blocks. Sums of
// f32, whose last bits tell in which order ranks were folded.

#include <cstring>

#include "operations.h"

using namespace symmem;

extern "C" {
void reduce_packets_0(const Plan);
void reduce_packets_2(const Plan);
void reduce_packets_4(const Plan);
void reduce_lines_0(const Plan);
void reduce_lines_2(const Plan);
void reduce_lines_4(const Plan);
void reduce_pushed_0(const Plan);
void reduce_pushed_2(const Plan);
void reduce_pushed_4(const Plan);
void reduce_two_shot_0(const Plan);
void reduce_two_shot_2(const Plan);
void reduce_two_shot_4(const Plan);
void reduce_blocks(const Plan);
}

namespace sim {

namespace {

using KernelFn = void (*)(const Plan);

enum Algorithm { BY_PACKETS, BY_LINES, PUSHED, TWO_SHOT };
enum Kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER };

constexpr u32 ELEMENT = 4;

// The sum of what all ranks have at `at`, in rank order, as bits.
u32 sum(const std::vector<std::vector<u32>>& data, u64 at) {
  float total = __builtin_bit_cast(float, data[0][at]);
  for (size_t r = 1; r < data.size(); r++) total += __builtin_bit_cast(float, data[r][at]);
  return total != total ? 0x7fffffff : __builtin_bit_cast(u32, total);
}

std::vector<u32> any_data(Random& random, u64 count) {
  std::vector<u32> data(count);
  // Magnitudes of which sums lose bits; now and then anything, NaNs and infinities too.
  for (u32& d : data) d = random.one_in(64) ? (u32)random.next() : ((u32)random.next() & 0x81ffffff) | 0x3e000000;
  return data;
}

// ------------------------------------------------------------------------------- parts

struct Reducing : Operation {
  Algorithm algorithm;
  Kind kind;
  u32 world, root;
  u64 count;
  bool in_place, together, plain;
  u32 blocks, workers;
  u64 chunk;
  KernelFn kernel;
  std::vector<u64> outputs;
  std::vector<std::vector<u32>> data;  // by rank

  u64 part() const { return count * ELEMENT; }
  bool receives(u32 r) const { return kind != REDUCE || r == root; }

  Reducing(Random& random, const Setting& setting, Algorithm algorithm);

  void prepare(u32 r) override {
    std::memcpy(in[r].begin(), data[r].data(), in[r].bytes());
    if (!in_place) out[r].poison();
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    Plan p{};
    p.lane = lane;
    p.input = in[r].address();
    p.output = receives(r) ? outputs[r] : p.input;
    p.bytes = p.row = part();
    p.in = {kind == REDUCE_SCATTER ? part() : 0, part()};
    p.out = {0, part()};
    p.root = kind == REDUCE ? root : EVERY_RANK;
    p.receives = receives(r), p.group_completion = together, p.plain = plain;
    if (algorithm == TWO_SHOT) p.peers = (u64)outputs.data();
    u32 grid = blocks;
    if (algorithm == PUSHED || algorithm == TWO_SHOT) {
      u64 slice = algorithm == PUSHED ? part() : (part() + 128 * world - 1) / (128 * world) * 128;
      Cut cut = Cut::of(slice, chunk, blocks, 1, 4);
      cut.apply(p);
      grid = cut.blocks;
    }
    group.machine.launch(r, grid, workers + 32, [p, kernel = kernel] { kernel(p); });
  }

  void check(u32 r) override {
    const u64 first = kind == REDUCE_SCATTER ? count * r : 0;
    const u32* results = pointer<const u32>(outputs[r]);
    for (u64 i = 0; i < count && receives(r); i++) {
      u32 expected = sum(data, first + i);
      CHECK(results[i] == expected, "element %llu is %08x, not %08x", i, results[i], expected);
    }
    CHECK(receives(r) || in_place || out[r].is_poison(), "an output that is none was written");
    bool replaced = in_place && receives(r);
    CHECK(replaced || std::memcmp(in[r].begin(), data[r].data(), in[r].bytes()) == 0, "its input was written");
  }
};

Reducing::Reducing(Random& random, const Setting& setting, Algorithm algorithm)
    : algorithm(algorithm), world(setting.world), root(random.below(setting.world)) {
  bool all_only = algorithm == TWO_SHOT || algorithm == BY_LINES;
  kind = all_only ? ALL_REDUCE : (Kind)random.below(3);
  count = random.of({0, 1, 2, 3, 4, 5, 31, 32, 33, 64, 100, 128, 257, 400, 1000});
  u64 offset = random.one_in(2) ? 0 : ELEMENT * random.below(4);
  if (algorithm == BY_LINES) count = count / 4 * 4, offset = 0;
  in_place = random.one_in(2), together = random.one_in(3);
  in_stream = random.one_in(2);
  if (in_stream && random.one_in(4)) replays = random.between(1, 3);
  blocks = random.between(1, 4);
  workers = algorithm == BY_LINES ? 32 * random.between(1, 2) : random.of({1u, 2u, 3u, 32u});
  chunk = 128 << random.below(3);
  plain = offset % 16 == 0 && (kind != REDUCE_SCATTER || part() % 16 == 0);
  // The kernels for a number of ranks move whole vectors alone; those for any do so as well.
  u32 width = plain && part() % 16 == 0 && (world == 2 || world == 4) && !random.one_in(3) ? world : 0;
  const KernelFn kernels[4][3] = {{reduce_packets_0, reduce_packets_2, reduce_packets_4},
                                  {reduce_lines_0, reduce_lines_2, reduce_lines_4},
                                  {reduce_pushed_0, reduce_pushed_2, reduce_pushed_4},
                                  {reduce_two_shot_0, reduce_two_shot_2, reduce_two_shot_4}};
  kernel = kernels[algorithm][width / 2];
  name = format("algorithm %d, kind %d, count %llu, offset %llu, in place %d, root %u, together %d, %u blocks of %u, chunks of %llu, width %u, in stream %d, replays %u",
                algorithm, kind, count, offset, in_place, root, together, blocks, workers, chunk, width, in_stream, replays);
  for (u32 r = 0; r < world; r++) {
    data.push_back(any_data(random, count * (kind == REDUCE_SCATTER ? world : 1)));
    in.emplace_back(data[r].size() * ELEMENT, offset);
    if (!in_place) out.emplace_back(part(), offset);
    outputs.push_back(in_place ? in[r].address() + (kind == REDUCE_SCATTER ? part() * r : 0) : out[r].address());
  }
}

// ------------------------------------------------------------------------------- blocks

// Columns of a matrix of all ranks, each for one of them.
struct Scattering : Operation {
  u32 world, grid, workers;
  u64 rows, stride, chunk;
  bool together;
  std::vector<std::vector<u32>> data;
  struct Columns {
    u64 first, count;
    u32 owner;
    u64 output;  // offset in the owner's
  };
  std::vector<Columns> columns;
  std::vector<std::vector<Block>> lists;

  Scattering(Random& random, const Setting& setting) : world(setting.world), rows(random.between(1, 5)) {
    grid = random.between(1, 3), workers = random.of({1u, 32u});
    chunk = 128 << random.below(3);
    together = random.one_in(3), in_stream = random.one_in(2);
    u64 offset = ELEMENT * random.below(4), width = 0;
    std::vector<u64> owned(world);
    for (u32 i = random.between(1, 7); i != 0; i--) {
      Columns c{width, random.one_in(4) ? 0 : random.below(150), random.below(world), 0};
      c.output = owned[c.owner];
      owned[c.owner] += rows * c.count * ELEMENT;
      width += c.count;
      columns.push_back(c);
    }
    stride = width + random.below(9);
    for (u32 r = 0; r < world; r++) {
      data.push_back(any_data(random, rows * stride));
      in.emplace_back(data[r].size() * ELEMENT, offset);
      out.emplace_back(owned[r], offset);
    }
    for (u32 r = 0; r < world; r++) {
      u64 first = 0;
      lists.emplace_back();
      for (const Columns& c : columns) {
        Block b{};
        b.first = first, b.at = c.first * ELEMENT, b.bytes = rows * c.count * ELEMENT, b.row = c.count * ELEMENT;
        b.stride = rows == 1 ? b.row : stride * ELEMENT;
        b.owner = c.owner, b.output = c.owner == r ? out[r].address() + c.output : 0;
        first += (b.bytes + chunk - 1) / chunk;
        lists[r].push_back(b);
      }
    }
    name = format("%zu blocks, %llu rows of %llu, %u blocks of %u, chunks of %llu, together %d, in stream %d", columns.size(), rows,
                  stride, grid, workers, chunk, together, in_stream);
  }

  void prepare(u32 r) override {
    std::memcpy(in[r].begin(), data[r].data(), in[r].bytes());
    out[r].poison();
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    Plan p{};
    p.lane = lane, p.input = in[r].address();
    u64 chunks = 0;
    for (const Block& b : lists[r]) {
      p.bytes += b.bytes;
      chunks += (b.bytes + chunk - 1) / chunk;
    }
    p.row = p.bytes, p.in = p.out = {0, p.bytes};
    p.root = EVERY_RANK, p.group_completion = together;
    p.blocks = (u64)lists[r].data(), p.block_count = lists[r].size();
    Cut cut = Cut::of(chunks * chunk, chunk, grid, 1, 4);
    cut.apply(p);
    group.machine.launch(r, cut.blocks, workers + 32, [p] { reduce_blocks(p); });
  }

  void check(u32 r) override {
    for (const Columns& c : columns) {
      if (c.owner != r) continue;
      const u32* results = pointer<const u32>(out[r].address() + c.output);
      for (u64 y = 0; y < rows; y++)
        for (u64 x = 0; x < c.count; x++) {
          u32 expected = sum(data, y * stride + c.first + x), found = results[y * c.count + x];
          CHECK(found == expected, "row %llu, column %llu is %08x, not %08x", y, c.first + x, found, expected);
        }
    }
    CHECK(std::memcmp(in[r].begin(), data[r].data(), in[r].bytes()) == 0, "its input was written");
  }
};

// ------------------------------------------------------------------------------- scenarios

template <class Any> void some(Random& random, const Schedule& schedule, Any any) {
  Setting setting = any_setting(random);
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(3, 7); i != 0; i--) operations.add(any(setting));
  operations.run();
}

template <Algorithm A> void reducing(Random& random, const Schedule& schedule) {
  some(random, schedule, [&](const Setting& s) { return std::make_unique<Reducing>(random, s, A); });
}
void blocks(Random& random, const Schedule& schedule) {
  some(random, schedule, [&](const Setting& s) { return std::make_unique<Scattering>(random, s); });
}
std::unique_ptr<Operation> any(Random& random, const Setting& s) {
  if (random.one_in(5)) return std::make_unique<Scattering>(random, s);
  return std::make_unique<Reducing>(random, s, (Algorithm)random.below(4));
}
void mixed(Random& random, const Schedule& schedule) {
  some(random, schedule, [&](const Setting& s) { return any(random, s); });
}
void stalls(Random& random, const Schedule& schedule) {
  with_stalls(random, schedule, [&](const Setting& s) { return any(random, s); });
}

}  // namespace

extern const Named SCENARIOS[] = {{"packets", reducing<BY_PACKETS>}, {"lines", reducing<BY_LINES>}, {"pushed", reducing<PUSHED>},
                                  {"two_shot", reducing<TWO_SHOT>},  {"blocks", blocks},         {"mixed", mixed},
                                  {"stalls", stalls}, {nullptr, nullptr}};

}  // namespace sim
