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

// The sum of what each rank has, in rank order, as bits.
template <class Of> u32 sum(u32 world, Of of) {
  float total = __builtin_bit_cast(float, of(0));
  for (u32 r = 1; r < world; r++) total += __builtin_bit_cast(float, of(r));
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
      u32 expected = sum(world, [&](u32 q) { return data[q][first + i]; });
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

// Columns of two matrices of all ranks, each for one of them. The second matrix lies anywhere, with rows of
// each rank's own distance.
struct Scattering : Operation {
  using Memory = std::vector<Bytes>;  // by rank

  u32 world, grid, workers;
  u64 rows, chunk;
  bool together;
  u64 strides[2];
  std::vector<std::vector<u32>> data[2];  // by matrix and rank
  Memory second;
  struct Columns {
    u32 matrix;
    u64 first, count;
    u32 owner;
    u64 output;  // offset in the owner's
    u64 gap;     // between rows there
    bool in_place;
  };
  std::vector<Columns> columns;
  std::vector<std::vector<Block>> lists;

  u64 stride(u32 matrix, u32 r) const { return strides[matrix] + (matrix == 0 ? 0 : r); }
  // Where columns begin on a rank.
  u64 start(const Columns& c, u32 r) { return (c.matrix == 0 ? in : second)[r].address() + c.first * ELEMENT; }
  u64 result(const Columns& c) { return c.in_place ? start(c, c.owner) : out[c.owner].address() + c.output; }
  u64 result_stride(const Columns& c) const { return c.in_place ? stride(c.matrix, c.owner) : c.count + c.gap; }

  Scattering(Random& random, const Setting& setting) : world(setting.world), rows(random.between(1, 5)) {
    grid = random.between(1, 3), workers = random.of({1u, 32u});
    chunk = 128 << random.below(3);
    together = random.one_in(3), in_stream = random.one_in(2);
    u64 offset = ELEMENT * random.below(4), widths[2] = {};
    // Results without gaps, and of one matrix, half the time.
    const u32 matrices = random.between(1, 2), gaps = random.of({1u, 9u});
    std::vector<u64> owned(world);
    for (u32 i = random.between(1, 7); i != 0; i--) {
      Columns c{random.below(matrices), 0, random.one_in(4) ? 0 : random.below(150), random.below(world), 0, random.below(gaps), false};
      c.in_place = gaps > 1 && random.one_in(4);
      c.first = widths[c.matrix], c.output = owned[c.owner];
      owned[c.owner] += rows * (c.count + c.gap) * ELEMENT;
      widths[c.matrix] += c.count;
      columns.push_back(c);
    }
    for (u32 m = 0; m < 2; m++) {
      strides[m] = widths[m] + random.below(9);
      for (u32 r = 0; r < world; r++) {
        data[m].push_back(any_data(random, rows * stride(m, r)));
        (m == 0 ? in : second).emplace_back(data[m][r].size() * ELEMENT, m == 0 ? offset : ELEMENT * random.below(4));
      }
    }
    for (u32 r = 0; r < world; r++) out.emplace_back(owned[r], offset);
    for (u32 r = 0; r < world; r++) {
      u64 first = 0;
      lists.emplace_back();
      for (const Columns& c : columns) {
        Block b{};
        b.first = first, b.at = start(c, r) - in[r].address(), b.bytes = rows * c.count * ELEMENT, b.row = c.count * ELEMENT;
        b.stride = rows == 1 ? b.row : stride(c.matrix, r) * ELEMENT;
        b.owner = c.owner, b.output = c.owner == r ? result(c) : 0;
        b.output_stride = rows == 1 ? b.row : result_stride(c) * ELEMENT;
        first += (b.bytes + chunk - 1) / chunk;
        lists[r].push_back(b);
      }
    }
    name = format("%zu blocks of %u matrices, %llu rows of %llu and %llu, gaps below %u, %u blocks of %u, chunks of %llu, together %d, in stream %d",
                  columns.size(), matrices, rows, strides[0], strides[1], gaps, grid, workers, chunk, together, in_stream);
  }

  void prepare(u32 r) override {
    std::memcpy(in[r].begin(), data[0][r].data(), in[r].bytes());
    std::memcpy(second[r].begin(), data[1][r].data(), second[r].bytes());
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

  // Compares all memory with what was there and the results of this rank's columns; gaps are nobody's.
  void check(u32 r) override {
    Memory* const memories[] = {&in, &second, &out};
    std::vector<u8> expected[3];
    for (u32 m = 0; m < 3; m++) {
      const u64 bytes = (*memories[m])[r].bytes();
      if (m == 2) expected[m].assign(bytes, Bytes::POISON);
      else expected[m].assign((u8*)data[m][r].data(), (u8*)data[m][r].data() + bytes);
    }
    for (const Columns& c : columns) {
      if (c.owner != r) continue;
      const u32 m = c.in_place ? c.matrix : 2;
      u8* results = expected[m].data() + (result(c) - (*memories[m])[r].address());
      for (u64 y = 0; y < rows; y++)
        for (u64 x = 0; x < c.count; x++) {
          const u32 total = sum(world, [&](u32 q) { return data[c.matrix][q][y * stride(c.matrix, q) + c.first + x]; });
          std::memcpy(results + (y * result_stride(c) + x) * ELEMENT, &total, ELEMENT);
        }
    }
    for (u32 m = 0; m < 3; m++) {
      Bytes& memory = (*memories[m])[r];
      for (u64 i = 0; i < memory.bytes(); i++)
        CHECK(memory.begin()[i] == expected[m][i], "byte %llu of memory %u is %02x, not %02x", i, m, memory.begin()[i], expected[m][i]);
    }
    CHECK(second[r].guards_hold(), "bytes outside of the second matrix were written");
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
