// routing.cpp: dispatches, the same again, and combines, alone and among other operations, against the model.

#include "exchanging.h"
#include "routing.h"

extern "C" {
void dispatch(const symmem::Dispatch);
void combine(const symmem::Combine);
}

namespace sim {

namespace {

constexpr u64 BEFORE = 80;  // bytes of an allocation before what is in it

// A routing of all ranks.
struct Table {
  RoutingShape shape;
  bool in_stream, together;
  std::vector<Kept> kept;
  std::vector<Bytes> records;
  std::vector<u64> record_peers, dropped;
  std::shared_ptr<const Routes> last;  // of the last dispatch that was added
  std::vector<u64> last_rows;

  Table(Random& random, const Setting& setting);
};

Table::Table(Random& random, const Setting& setting) {
  RoutingShape& s = shape;
  s.world = setting.world;
  s.experts = random.of({1u, 2u, 3u, 5u, 8u, 12u, 20u, 37u});
  s.each = random.of({1u, 2u, 2u, 3u, 4u, 9u});
  s.max_tokens = random.of({0u, 1u, 2u, 5u, 8u, 11u});
  if (s.max_tokens * s.each > 40) s.max_tokens = 3;
  s.layout = random.between(COMPACT, RANK_MAJOR), s.drop = random.one_in(3);
  const u64 most = s.world * s.max_tokens * s.each;
  switch (s.layout) {
    case COMPACT:
      s.rows = random.of({0u, 0u, 1u, 4u, 7u});
      s.capacity = most + s.rows * s.groups();
      if (random.one_in(4)) s.capacity = random.below((u32)s.capacity + 1);
      break;
    case PADDED:
      s.rows = random.one_in(3) ? random.below((u32)most / 2 + 1) : most;
      if (s.rows * s.groups() > 400) s.rows = 400 / s.groups();
      s.capacity = s.rows * s.groups();
      break;
    default: s.capacity = s.world * s.max_tokens;
  }
  in_stream = random.one_in(2), together = random.one_in(4);
  for (u32 r = 0; r < s.world; r++) {
    kept.emplace_back(s);
    records.emplace_back(s.capacity * s.record_bytes(), 8 * random.below(2));
    record_peers.push_back(records[r].address() - BEFORE);
  }
  dropped.resize(s.world);
}

// One tensor that travels: where its rows begin in what a rank sends and receives.
struct Carried {
  u32 type;  // what is quantised
  u64 elements, source_row, row, source, target, scales, scale_row;
};

// A dispatch, or the same tokens' rows again.
struct Dispatching : Operation {
  std::shared_ptr<Table> table;
  bool anew;
  u32 blocks, workers, index;
  bool weighted, counted;
  std::vector<Carried> carried;
  std::vector<Choosing> rounds;
  std::vector<std::shared_ptr<const Routes>> expected;
  std::vector<std::vector<u8>> data;
  std::vector<u64> peers, rows;
  u64 weights_at, count_at;
  std::vector<u32> run;

  Dispatching(Random& random, std::shared_ptr<Table> table, bool anew);
  void draw_tensors(Random& random, u64& sent, u64& received);

  const RoutingShape& shape() const { return table->shape; }

  void prepare(u32 r) override {
    const RoutingShape& s = shape();
    std::memcpy(in[r].begin(), data[r].data(), data[r].size());
    out[r].poison();
    if (!anew) return;
    const Choosing& c = rounds[run[r] % rounds.size()];
    table->records[r].poison();
    for (u64 i = 0; i < rows[r] * s.each; i++) std::memcpy(more_in[r].begin() + i * index, &c.choices[r][i], index);
    std::memcpy(more_in[r].begin() + weights_at, c.weights[r].data(), c.weights[r].size() * 4);
    std::memcpy(more_in[r].begin() + count_at, &c.count[r], 8);
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    const RoutingShape& s = shape();
    Dispatch p{};
    p.lane = lane, p.routed = table->kept[r].routed(s, table->together);
    for (size_t i = 0; i < carried.size(); i++) {
      const Carried& c = carried[i];
      Payload& to = p.payloads[i];
      to.source = in[r].address() + c.source, to.target = out[r].address() + c.target;
      to.peers = (u64)peers.data(), to.offset = BEFORE + c.target;
      to.source_row = c.source_row, to.row = c.row, to.dtype = c.type;
      if (c.type == BYTES) continue;
      to.scales = out[r].address() + c.scales, to.scale_peers = (u64)peers.data(), to.scale_offset = BEFORE + c.scales, to.scale_row = c.scale_row;
    }
    p.payload_count = (u32)carried.size(), p.source_rows = rows[r], p.index = anew ? index : 0, p.drop = s.drop;
    if (anew) p.indices = more_in[r].address();
    if (anew && weighted) p.weights = more_in[r].address() + weights_at;
    if (anew && counted) p.count = more_in[r].address() + count_at;
    p.records = table->records[r].address(), p.record_peers = (u64)table->record_peers.data(), p.record_offset = BEFORE;
    p.record_bytes = s.record_bytes();
    group.machine.launch(r, blocks, workers + 32, [p] { dispatch(p); });
  }

  void check(u32 r) override {
    const RoutingShape& s = shape();
    const u32 round = run[r]++ % (u32)expected.size();
    const Routes& e = *expected[round];
    Kept& kept = table->kept[r];
    if (anew) kept.take(e), table->dropped[r] += e.dropped[r];
    kept.check(s, e, r);
    CHECK(kept.status.dropped == table->dropped[r], "%llu rows dropped, not %llu", kept.status.dropped, table->dropped[r]);
    // All bytes, those between rows and tensors too.
    std::vector<u8> image(out[r].bytes(), Bytes::POISON);
    for (u64 i = 0; i < s.capacity; i++) {
      const Row& row = e.received[r][i];
      for (const Carried& c : carried) {
        if (!row.is_used || c.row == 0) continue;
        const u8* from = data[row.source].data() + c.source + row.token * c.source_row;
        u8* to = &image[c.target + i * c.row];
        if (c.type == BYTES) std::memcpy(to, from, c.row);
        else quantise(c.type, from, c.elements, to, pointer<float>((u64)&image[c.scales + i * c.scale_row]));
      }
    }
    for (u64 i = 0; i < image.size(); i++)
      CHECK(out[r].begin()[i] == image[i], "byte %llu of what it received is %x, not %x", i, out[r].begin()[i], image[i]);
    CHECK(std::memcmp(in[r].begin(), data[r].data(), data[r].size()) == 0, "its input was written");
    if (!anew) return;
    const u64 stride = s.record_bytes() / 8;
    for (u64 i = 0; i < s.capacity; i++) {
      std::vector<u64> words(stride, 0x0101010101010101ull * Bytes::POISON);
      if (e.received[r][i].is_used) words = record_of(s, rounds[round], e.received[r][i], r, weighted);
      for (u64 k = 0; k < stride; k++) {
        const u64 found = pointer<u64>(table->records[r].address())[i * stride + k];
        CHECK(found == words[k], "word %llu of the record of row %llu is %llx, not %llx", k, i, found, words[k]);
      }
    }
    CHECK(table->records[r].guards_hold(), "bytes outside of its records were written");
  }
};

void Dispatching::draw_tensors(Random& random, u64& sent, u64& received) {
  const RoutingShape& s = shape();
  sent = received = 0;
  for (u32 n = random.of({1u, 1u, 2u, 4u}); n != 0; n--) {
    Carried c{};
    if (carried.empty() && random.one_in(2)) c.type = random.between(OF_F32, OF_BF16);
    c.elements = c.type != BYTES ? random.of({1, 5, 127, 128, 129, 300}) : random.of({0, 1, 2, 3, 7, 16, 16, 17, 48, 100, 128});
    if (c.type == BYTES && n == 1 && s.capacity < 20 && random.one_in(4)) c.elements = random.of({2048, 2100, 4096});
    const u64 size = c.type == BYTES ? 1 : size_of(c.type);
    c.row = c.elements, c.source_row = c.elements * size, c.scale_row = c.type != BYTES ? 4 * ((c.elements + 127) / 128) : 0;
    const u64 gap = random.one_in(2) ? 0 : random.below(16);
    c.source = (sent + 15) / 16 * 16 + gap / size * size, c.target = (received + 15) / 16 * 16 + gap;
    sent = c.source + s.max_tokens * c.source_row, received = c.target + s.capacity * c.row;
    if (c.type != BYTES) c.scales = (received + 3) / 4 * 4, received = c.scales + s.capacity * c.scale_row;
    carried.push_back(c);
  }
}

Dispatching::Dispatching(Random& random, std::shared_ptr<Table> of, bool anew) : table(std::move(of)), anew(anew) {
  const RoutingShape& s = shape();
  in_stream = table->in_stream;
  blocks = random.between(1, 3), workers = random.of({32u, 32u, 64u});
  index = random.of({4u, 8u}), weighted = random.one_in(2), counted = random.one_in(3);
  if (in_stream && random.one_in(4)) replays = random.between(1, 3);
  u64 sent, received;
  draw_tensors(random, sent, received);
  for (u32 r = 0; r < s.world; r++) {
    rows.push_back(anew ? random.of<u64>({s.max_tokens, s.max_tokens, random.below((u32)s.max_tokens + 1)}) : s.max_tokens);
    if (!anew && random.one_in(2)) rows[r] = table->last_rows[r];
  }
  if (anew) {
    for (u32 i = 0; i < std::max(1u, replays); i++) {
      rounds.emplace_back(random, s, rows, counted, random.one_in(8));
      if (index == 8 && random.one_in(30))
        for (auto& choices : rounds[i].choices)
          if (!choices.empty()) choices[0] = 1ll << 33;
      expected.push_back(std::make_shared<const Routes>(Routes::of(s, rounds[i], index)));
    }
    table->last = expected.back(), table->last_rows = rows;
  } else {
    expected.push_back(table->last);
  }
  u64 most = 0;
  for (u32 r = 0; r < s.world; r++) most = std::max(most, rows[r] * s.each);
  weights_at = (most * index + 7) / 8 * 8, count_at = weights_at + (most * 4 + 7) / 8 * 8;
  for (u32 r = 0; r < s.world; r++) {
    in.emplace_back(sent), out.emplace_back(received), more_in.emplace_back(count_at + 8);
    auto& mine = data.emplace_back(sent);
    for (u8& byte : mine) byte = (u8)random.next();
    for (const Carried& c : carried) {
      // Numbers of so few bits that a block's scale is far off.
      const bool tiny = c.type == OF_F32 && random.one_in(4);
      for (u64 i = 0; c.type != BYTES && i < s.max_tokens * c.elements; i++)
        store_code(c.type, &mine[c.source + i * size_of(c.type)], tiny ? (u32)random.next() & 0x80000fff : any_code(random, c.type));
    }
    peers.push_back(out[r].address() - BEFORE);
  }
  run.resize(s.world);
  name = format("%s, layout %u of %llu, %u experts, %u of up to %llu tokens, room for %llu, drop %u, %zu tensors, the first of %u of %llu, together %d, %u blocks of %u, in stream %d, replays %u",
                anew ? "dispatch" : "resend", s.layout, s.rows, s.experts, s.each, s.max_tokens, s.capacity, s.drop, carried.size(), carried[0].type,
                carried[0].elements, table->together, blocks, workers, in_stream, replays);
}

struct Combining : Operation {
  std::shared_ptr<Table> table;
  std::shared_ptr<const Routes> routes;
  u32 type, blocks, workers;
  u64 elements;
  bool weighted;
  std::vector<u64> peers, output_rows;
  std::vector<std::vector<u8>> data;
  std::vector<std::vector<float>> weights;

  Combining(Random& random, std::shared_ptr<Table> of) : table(std::move(of)), routes(table->last) {
    const RoutingShape& s = table->shape;
    in_stream = table->in_stream;
    if (in_stream && random.one_in(4)) replays = random.between(1, 2);
    type = random.of<u32>({OF_F32, OF_F32, OF_F16, OF_BF16, OF_E4M3, OF_E5M2});
    elements = random.of({0, 1, 3, 4, 8, 16, 17, 31, 64, 129, 150});
    weighted = s.layout != RANK_MAJOR && random.one_in(2);
    blocks = random.between(1, 3), workers = random.of({32u, 32u, 64u});
    const u64 row = elements * size_of(type), offset = random.one_in(2) ? 0 : random.below(16) / size_of(type) * size_of(type);
    for (u32 r = 0; r < s.world; r++) {
      output_rows.push_back(table->last_rows[r] + random.below(2));
      in.emplace_back(s.capacity * row, offset), out.emplace_back(output_rows[r] * row, random.one_in(2) ? 0 : offset);
      more_in.emplace_back(output_rows[r] * s.each * 4);
      auto& mine = data.emplace_back(s.capacity * row);
      for (u64 i = 0; i < s.capacity * elements; i++) store_code(type, &mine[i * size_of(type)], any_code(random, type));
      auto& factors = weights.emplace_back();
      for (u64 i = 0; i < output_rows[r] * s.each; i++) factors.push_back(decode(OF_F32, any_code(random, OF_F32)));
      peers.push_back(in[r].address() - BEFORE);
    }
    name = format("combine, layout %u, %u experts, %u of up to %llu tokens, type %u, rows of %llu at %llu, weighted %d, together %d, %u blocks of %u, in stream %d, replays %u",
                  s.layout, s.experts, s.each, s.max_tokens, type, elements, offset, weighted, table->together, blocks, workers, in_stream, replays);
  }

  void prepare(u32 r) override {
    std::memcpy(in[r].begin(), data[r].data(), data[r].size());
    std::memcpy(more_in[r].begin(), weights[r].data(), weights[r].size() * 4);
    out[r].poison();
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    Combine p{};
    p.lane = lane, p.routed = table->kept[r].routed(table->shape, table->together);
    p.peers = (u64)peers.data(), p.offset = BEFORE, p.row = elements;
    p.output = out[r].address(), p.output_rows = output_rows[r], p.dtype = type;
    if (weighted) p.weights = more_in[r].address();
    group.machine.launch(r, blocks, workers + 32, [p] { combine(p); });
  }

  void check(u32 r) override {
    const RoutingShape& s = table->shape;
    const u64 row = elements * size_of(type);
    std::vector<u8> image(out[r].bytes(), Bytes::POISON);
    for (u64 token = 0; token < routes->tokens[r] && row != 0; token++) {
      std::vector<std::pair<float, const u8*>> parts;
      for (auto [place, k] : summed_places(s, routes->places[r], token))
        parts.push_back({weighted ? weights[r][token * s.each + k] : 1.0f, data[place >> 48].data() + (place & 0xffffffffffff) * row});
      sum_rows(type, parts, elements, &image[token * row]);
    }
    for (u64 i = 0; i < image.size(); i++)
      CHECK(out[r].begin()[i] == image[i], "byte %llu of row %llu is %x, not %x", i % row, i / row, out[r].begin()[i], image[i]);
    CHECK(std::memcmp(in[r].begin(), data[r].data(), data[r].size()) == 0, "its rows were written");
  }
};

// ------------------------------------------------------------------------------------ scenarios

// A dispatch and what goes with it: more of it, others in between.
void add_some(Random& random, const Setting& setting, Operations& operations, bool mixed) {
  auto table = std::make_shared<Table>(random, setting);
  // Checked at their ends, dispatches of one routing would find what the last one has left.
  for (u32 n = table->in_stream ? random.between(1, 2) : 1; n != 0; n--) {
    operations.add(std::make_unique<Dispatching>(random, table, true));
    for (u32 more = random.below(4); more != 0; more--) {
      if (random.one_in(2)) operations.add(std::make_unique<Combining>(random, table));
      else if (random.one_in(2)) operations.add(std::make_unique<Dispatching>(random, table, false));
      else if (mixed) operations.add(std::make_unique<Exchanging>(random, setting, (Algorithm)random.between(setting.packets == PACKETS ? 0 : 1, 3)));
    }
  }
}

void run_some(Random& random, const Schedule& schedule, bool mixed) {
  const Setting setting = some_setting(random);
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(1, 3); i != 0; i--) add_some(random, setting, operations, mixed);
  operations.run();
}
void routed(Random& random, const Schedule& schedule) { run_some(random, schedule, false); }
void mixed(Random& random, const Schedule& schedule) { run_some(random, schedule, true); }

std::unique_ptr<Operation> any_routed(Random& random, const Setting& setting) {
  auto table = std::make_shared<Table>(random, setting);
  auto first = std::make_unique<Dispatching>(random, table, true);
  if (random.one_in(2)) return first;
  for (Kept& kept : table->kept) kept.places.poison();
  return std::make_unique<Combining>(random, table);
}

// One rank never comes: all name it, and nobody's output was written.
void time_out(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 4), setting.epoch = 4, setting.deadline_ns = 4000000;
  const u32 late = random.below(setting.world);
  auto op = any_routed(random, setting);
  fail_in(random, schedule, setting, *op, late, false, [&](u32 r, const Record& found) {
    CHECK(found.reason == REASON_TIMED_OUT && found.missing == 1u << late, "reason %u, missing %llx, not rank %u", found.reason, found.missing, late);
    CHECK(op->out[r].is_poison() && op->out[r].guards_hold(), "rank %u: written without having heard of all", r);
  });
}

// One rank is in another call: all learn of it, and of two nobody's output was written.
void mismatch(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 4), setting.epoch = 4;
  const u32 odd = random.below(setting.world);
  auto op = any_routed(random, setting);
  fail_in(random, schedule, setting, *op, odd, true, [&](u32 r, const Record& found) {
    CHECK(found.reason == REASON_CALL_MISMATCH, "rank %u: reason %u", r, found.reason);
    CHECK(found.reporter == odd + 1 || found.culprit == odd + 1, "reported by %u about %u, not %u", found.reporter, found.culprit, odd + 1);
    CHECK(op->out[r].guards_hold(), "rank %u: bytes outside were written", r);
    CHECK(setting.world != 2 || op->out[r].is_poison(), "rank %u: rows were stored in calls that differ", r);
  });
}

// Each rank is delayed at each step, those of rows included.
void stalls(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 3);
  for (const Steps steps : {Steps{STALL_ENTER, STALL_EXIT}, Steps{STALL_PUT_DATA, STALL_PUT_DATA}})
    each_stall(setting.world, steps, [&](u32 r, u32 step) {
      setting.epoch = 0x3ffffffd + random.below(3), setting.packets = step == STALL_PUT_PACKET || step == STALL_POLL_PACKET ? 512 : random.of({16u, 512u});
      Place place(random, schedule, setting);
      place.group.stall(r, step, random.of({1u, 2u, 5u, 17u}), STALL_NS);
      Operations operations(place.group);
      for (u32 i = random.between(1, 2); i != 0; i--) add_some(random, setting, operations, true);
      operations.run();
      return place.group.end_stall(r);
    });
}

}  // namespace

extern const Named SCENARIOS[] = {{"routed", routed},     {"mixed", mixed},   {"time_out", time_out},
                                  {"mismatch", mismatch}, {"stalls", stalls}, {nullptr, nullptr}};

}  // namespace sim
