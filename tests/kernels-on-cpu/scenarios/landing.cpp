// landing.cpp: dispatch and combine in halves, two results alive at a time and other operations in between,
// against the model.

#include "exchanging.h"
#include "routing.h"

extern "C" {
void dispatch_send(const symmem::DispatchSend);
void dispatch_receive(const symmem::DispatchReceive);
void combine_send(const symmem::CombineSend);
void combine_receive(const symmem::CombineReceive);
}

namespace sim {

namespace {

constexpr u64 BEFORE = 80;  // bytes of an allocation before what is in it

// Memory of all ranks that peers write.
struct Symmetric {
  std::vector<Bytes> of;
  std::vector<u64> peers;

  void add(u64 bytes, u64 offset) {
    of.emplace_back(bytes, offset);
    peers.push_back(of.back().address() - BEFORE);
  }
};

// One landing, and what the send that it belongs to has put there.
struct Slot {
  std::vector<Kept> kept;
  Symmetric rows, scales, records, arrivals, back;
  std::shared_ptr<const Routes> routes;
  std::shared_ptr<const Choosing> choosing;
  std::shared_ptr<const std::vector<std::vector<u8>>> x, made;  // what went there, and what came back
  bool weighted = false;
};

struct Landing {
  RoutingShape shape;
  u32 type;
  u64 elements;
  bool quantised, in_stream, together;
  Slot slots[2];

  u64 row() const { return elements * size_of(type); }
  u64 scale_row() const { return quantised ? 4 * ((elements + 127) / 128) : 0; }
  u64 sent_row() const { return quantised ? elements : row(); }

  Landing(Random& random, const Setting& setting) {
    RoutingShape& s = shape;
    s.world = setting.world, s.layout = RANK_MAJOR;
    s.experts = random.of({1u, 2u, 3u, 5u, 8u, 12u});
    s.each = random.of({1u, 2u, 2u, 3u, 4u, 9u});
    s.max_tokens = random.of({0u, 1u, 2u, 5u, 8u, 11u});
    if (s.max_tokens * s.each > 40) s.max_tokens = 3;
    s.capacity = s.world * s.max_tokens;
    type = random.of<u32>({OF_F32, OF_F16, OF_BF16, OF_E4M3});
    quantised = type <= OF_BF16 && random.one_in(2);
    elements = random.of({0, 1, 3, 4, 8, 16, 31, 64, 129, 200});
    in_stream = random.one_in(2), together = random.one_in(4);
    for (Slot& slot : slots)
      for (u32 r = 0; r < s.world; r++) {
        const u64 offset = random.one_in(2) ? 0 : 4;
        slot.kept.emplace_back(s);
        slot.rows.add(s.capacity * sent_row(), offset), slot.scales.add(s.capacity * scale_row(), 0);
        slot.records.add(s.capacity * s.record_bytes(), 0), slot.arrivals.add(s.world * sizeof(Arrival), 0);
        slot.back.add(s.capacity * row(), offset);
      }
  }
};

// What all halves have in common.
struct Half : Operation {
  std::shared_ptr<Landing> landing;
  Slot& slot;
  u32 blocks, workers;

  Half(Random& random, std::shared_ptr<Landing> of, u32 index) : landing(std::move(of)), slot(landing->slots[index]) {
    in_stream = landing->in_stream;
    if (in_stream && random.one_in(5)) replays = random.between(1, 2);
    blocks = random.between(1, 3), workers = random.of({32u, 32u, 64u});
  }
  const RoutingShape& shape() const { return landing->shape; }
  Routed routed(u32 r) { return slot.kept[r].routed(shape(), landing->together); }
  void named(const char* what) {
    const RoutingShape& s = shape();
    name = format("%s %d, %u experts, %u of up to %llu tokens, type %u, quantised %d, rows of %llu, together %d, %u blocks of %u, in stream %d, replays %u", what,
                  &slot != landing->slots, s.experts, s.each, s.max_tokens, landing->type, landing->quantised, landing->elements, landing->together, blocks, workers,
                  in_stream, replays);
  }
  std::shared_ptr<std::vector<std::vector<u8>>> any_rows(Random& random, u64 rows) {
    auto all = std::make_shared<std::vector<std::vector<u8>>>();
    for (u32 r = 0; r < shape().world; r++) {
      auto& mine = all->emplace_back(rows * landing->row());
      for (u64 i = 0; i < rows * landing->elements; i++) store_code(landing->type, &mine[i * size_of(landing->type)], any_code(random, landing->type));
    }
    return all;
  }
};

struct Sending : Half {
  u32 index;
  bool counted, weighted;
  std::shared_ptr<const Choosing> choosing;
  std::shared_ptr<const std::vector<std::vector<u8>>> x;
  u64 weights_at, count_at;

  Sending(Random& random, std::shared_ptr<Landing> of, u32 at) : Half(random, std::move(of), at) {
    const RoutingShape& s = shape();
    index = random.of({4u, 8u}), counted = random.one_in(3), weighted = random.one_in(2);
    std::vector<u64> rows;
    for (u32 r = 0; r < s.world; r++) rows.push_back(random.of<u64>({s.max_tokens, random.below((u32)s.max_tokens + 1)}));
    choosing = std::make_shared<const Choosing>(random, s, rows, counted, random.one_in(8));
    auto routes = std::make_shared<Routes>(Routes::of(s, *choosing, index));
    for (u32 r = 0; r < s.world && routes->rank != 0; r++)
      for (u32 source = 0; source < s.world; source++) routes->groups[r][s.world + source] = (i64)(source * s.max_tokens);
    x = any_rows(random, s.max_tokens);
    slot.routes = routes, slot.choosing = choosing, slot.x = x, slot.weighted = weighted, slot.made = nullptr;
    weights_at = (s.max_tokens * s.each * index + 7) / 8 * 8, count_at = weights_at + (s.max_tokens * s.each * 4 + 7) / 8 * 8;
    const u64 offset = random.one_in(2) ? 0 : 4;
    for (u32 r = 0; r < s.world; r++) in.emplace_back(s.max_tokens * landing->row(), offset), more_in.emplace_back(count_at + 8);
    named("dispatch to");
  }

  void prepare(u32 r) override {
    std::memcpy(in[r].begin(), (*x)[r].data(), (*x)[r].size());
    for (u64 i = 0; i < choosing->choices[r].size(); i++) std::memcpy(more_in[r].begin() + i * index, &choosing->choices[r][i], index);
    std::memcpy(more_in[r].begin() + weights_at, choosing->weights[r].data(), choosing->weights[r].size() * 4);
    std::memcpy(more_in[r].begin() + count_at, &choosing->count[r], 8);
    // This rank is not in the call yet: whatever comes now is too early.
    for (Symmetric* all : {&slot.rows, &slot.scales, &slot.records, &slot.arrivals}) all->of[r].poison();
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    const RoutingShape& s = shape();
    DispatchSend p{};
    p.lane = lane, p.routed = routed(r);
    Payload& to = p.payload;
    to.source = in[r].address(), to.target = slot.rows.of[r].address(), to.peers = (u64)slot.rows.peers.data(), to.offset = BEFORE;
    to.source_row = landing->row(), to.row = landing->sent_row();
    if (landing->quantised) {
      to.dtype = landing->type, to.scales = slot.scales.of[r].address(), to.scale_peers = (u64)slot.scales.peers.data();
      to.scale_offset = BEFORE, to.scale_row = landing->scale_row();
    }
    p.indices = more_in[r].address(), p.index = index, p.source_rows = choosing->rows[r];
    if (weighted) p.weights = more_in[r].address() + weights_at;
    if (counted) p.count = more_in[r].address() + count_at;
    p.record_peers = (u64)slot.records.peers.data(), p.record_offset = BEFORE, p.record_bytes = s.record_bytes();
    p.arrival_peers = (u64)slot.arrivals.peers.data(), p.arrival_offset = BEFORE;
    group.machine.launch(r, blocks, workers + 32, [p] { dispatch_send(p); });
  }

  void check(u32 r) override { CHECK(std::memcmp(in[r].begin(), (*x)[r].data(), (*x)[r].size()) == 0, "its input was written"); }
};

struct Receiving : Half {
  std::shared_ptr<const Routes> routes = slot.routes;
  std::shared_ptr<const Choosing> choosing = slot.choosing;
  std::shared_ptr<const std::vector<std::vector<u8>>> x = slot.x;
  bool weighted = slot.weighted;

  Receiving(Random& random, std::shared_ptr<Landing> of, u32 at) : Half(random, std::move(of), at) { named("receive of"); }

  void prepare(u32 r) override { slot.kept[r].groups.poison(); }
  void launch(Group& group, u32 r, const Lane& lane) override {
    DispatchReceive p{};
    p.lane = lane, p.routed = routed(r), p.arrivals = slot.arrivals.of[r].address();
    group.machine.launch(r, 1, workers + 32, [p] { dispatch_receive(p); });
  }

  void check(u32 r) override {
    const RoutingShape& s = shape();
    const Routes& e = *routes;
    slot.kept[r].take(e), slot.kept[r].check(s, e, r);
    for (Symmetric* all : {&slot.rows, &slot.scales, &slot.records, &slot.arrivals}) CHECK(all->of[r].guards_hold(), "bytes outside of the landing were written");
    if (e.rank != 0) return;
    std::vector<u8> rows(slot.rows.of[r].bytes(), Bytes::POISON), scales(slot.scales.of[r].bytes(), Bytes::POISON);
    std::vector<u64> records(slot.records.of[r].bytes() / 8, 0x0101010101010101ull * Bytes::POISON);
    for (u64 i = 0; i < s.capacity; i++) {
      const Row& row = e.received[r][i];
      if (!row.is_used) continue;
      const u8* from = (*x)[row.source].data() + row.token * landing->row();
      if (landing->quantised) quantise(landing->type, from, landing->elements, &rows[i * landing->sent_row()], pointer<float>((u64)scales.data() + i * landing->scale_row()));
      else if (landing->row() != 0) std::memcpy(&rows[i * landing->row()], from, landing->row());
      const std::vector<u64> record = record_of(s, *choosing, row, r, weighted);
      std::copy(record.begin(), record.end(), records.begin() + (long)(i * record.size()));
    }
    CHECK(std::memcmp(slot.rows.of[r].begin(), rows.data(), rows.size()) == 0, "rows are wrong");
    CHECK(std::memcmp(slot.scales.of[r].begin(), scales.data(), scales.size()) == 0, "scales are wrong");
    CHECK(std::memcmp(slot.records.of[r].begin(), records.data(), records.size() * 8) == 0, "records are wrong");
  }
};

struct SendingBack : Half {
  std::shared_ptr<const std::vector<std::vector<u8>>> made;

  SendingBack(Random& random, std::shared_ptr<Landing> of, u32 at) : Half(random, std::move(of), at) {
    slot.made = made = any_rows(random, shape().capacity);
    const u64 offset = random.one_in(2) ? 0 : 4;
    for (u32 r = 0; r < shape().world; r++) in.emplace_back(shape().capacity * landing->row(), offset);
    named("combine to");
  }
  void prepare(u32 r) override {
    std::memcpy(in[r].begin(), (*made)[r].data(), (*made)[r].size());
    slot.back.of[r].poison();
  }
  void launch(Group& group, u32 r, const Lane& lane) override {
    CombineSend p{};
    p.lane = lane, p.routed = routed(r), p.rows = in[r].address(), p.row = landing->row();
    p.peers = (u64)slot.back.peers.data(), p.offset = BEFORE;
    group.machine.launch(r, blocks, workers + 32, [p] { combine_send(p); });
  }
  void check(u32 r) override { CHECK(std::memcmp(in[r].begin(), (*made)[r].data(), (*made)[r].size()) == 0, "its rows were written"); }
};

struct ReceivingBack : Half {
  std::shared_ptr<const Routes> routes = slot.routes;
  std::shared_ptr<const std::vector<std::vector<u8>>> made = slot.made;
  std::vector<u64> output_rows;

  ReceivingBack(Random& random, std::shared_ptr<Landing> of, u32 at) : Half(random, std::move(of), at) {
    const u64 offset = random.one_in(2) ? 0 : 4;
    for (u32 r = 0; r < shape().world; r++) {
      output_rows.push_back(slot.choosing->rows[r] + random.below(2));
      out.emplace_back(output_rows[r] * landing->row(), offset);
    }
    named("sum of");
  }
  void prepare(u32 r) override { out[r].poison(); }
  void launch(Group& group, u32 r, const Lane& lane) override {
    CombineReceive p{};
    p.combine.lane = lane, p.combine.routed = routed(r), p.combine.row = landing->elements, p.combine.dtype = landing->type;
    p.combine.output = out[r].address(), p.combine.output_rows = output_rows[r], p.rows = slot.back.of[r].address();
    group.machine.launch(r, blocks, workers + 32, [p] { combine_receive(p); });
  }
  void check(u32 r) override {
    const RoutingShape& s = shape();
    const u64 row = landing->row();
    std::vector<u8> image(out[r].bytes(), Bytes::POISON);
    for (u64 token = 0; token < routes->tokens[r] && row != 0; token++) {
      std::vector<std::pair<float, const u8*>> parts;
      for (auto [place, k] : summed_places(s, routes->places[r], token)) parts.push_back({1.0f, (*made)[place >> 48].data() + (place & 0xffffffffffff) * row});
      sum_rows(landing->type, parts, landing->elements, &image[token * row]);
    }
    for (u64 i = 0; i < image.size(); i++)
      CHECK(out[r].begin()[i] == image[i], "byte %llu of row %llu is %x, not %x", i % row, i / row, out[r].begin()[i], image[i]);
    CHECK(slot.back.of[r].guards_hold(), "bytes outside of the landing were written");
  }
};

// ------------------------------------------------------------------------------------ scenarios

// Halves of up to two results in any order that callers may have, and other operations in between.
void add_halves(Random& random, const Setting& setting, Operations& operations) {
  auto landing = std::make_shared<Landing>(random, setting);
  // Checked at their ends, results of one landing would find what the last one has left.
  u32 sends = landing->in_stream ? random.between(1, 4) : random.between(1, 2), next = 0;
  u32 stage[2] = {};  // halves of each that are issued; 0: free
  for (u32 steps = random.between(4, 12); steps != 0; steps--) {
    const u32 i = random.below(2);
    if (random.one_in(5)) operations.add(std::make_unique<Exchanging>(random, setting, (Algorithm)random.between(setting.packets == PACKETS ? 0 : 1, 3)));
    if (stage[next] == 0 && sends != 0 && (i == next || stage[i] == 0)) {
      operations.add(std::make_unique<Sending>(random, landing, next));
      stage[next] = 1, next = 1 - next, sends--;
      continue;
    }
    switch (stage[i]) {
      case 1: operations.add(std::make_unique<Receiving>(random, landing, i)); break;
      case 2: operations.add(std::make_unique<SendingBack>(random, landing, i)); break;
      case 3: operations.add(std::make_unique<ReceivingBack>(random, landing, i)); break;
      default: continue;
    }
    stage[i] = stage[i] == 3 || (stage[i] > 1 && random.one_in(8)) ? 0 : stage[i] + 1;
  }
}

void halves(Random& random, const Schedule& schedule) {
  const Setting setting = some_setting(random);
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(1, 2); i != 0; i--) add_halves(random, setting, operations);
  operations.run();
}

// One rank is in another call, or in none: nobody's landing is written.
void failing(Random& random, const Schedule& schedule, bool comes) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 4), setting.epoch = 4;
  if (!comes) setting.deadline_ns = 4000000;
  const u32 odd = random.below(setting.world);
  auto landing = std::make_shared<Landing>(random, setting);
  Slot& slot = landing->slots[0];
  std::unique_ptr<Operation> op = std::make_unique<Sending>(random, landing, 0);
  for (u32 r = 0; r < setting.world; r++) {
    for (Symmetric* all : {&slot.rows, &slot.scales, &slot.records, &slot.arrivals, &slot.back}) all->of[r].poison();
    for (u32 source = 0; source < setting.world; source++) pointer<i64>(slot.kept[r].groups.address())[source] = (i64)landing->shape.max_tokens;
  }
  if (random.one_in(2)) op = std::make_unique<SendingBack>(random, landing, 0);
  fail_in(random, schedule, setting, *op, odd, comes, [&](u32 r, const Record& found) {
    CHECK(found.reason == (comes ? REASON_CALL_MISMATCH : REASON_TIMED_OUT), "rank %u: reason %u", r, found.reason);
    for (Symmetric* all : {&slot.rows, &slot.scales, &slot.records, &slot.arrivals, &slot.back}) {
      CHECK(all->of[r].guards_hold(), "rank %u: bytes outside were written", r);
      CHECK((comes && setting.world != 2) || all->of[r].is_poison(), "rank %u: rows were stored in calls that differ", r);
    }
  });
}
void mismatch(Random& random, const Schedule& schedule) { failing(random, schedule, true); }
void time_out(Random& random, const Schedule& schedule) { failing(random, schedule, false); }

// Each rank is delayed at each step of a half.
void stalls(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 3);
  for (const Steps steps : {Steps{STALL_ENTER, STALL_PUBLISH_HEADER}, Steps{STALL_READ_STAGING, STALL_EXIT}, Steps{STALL_PUT_DATA, STALL_PUT_DATA}})
    each_stall(setting.world, steps, [&](u32 r, u32 step) {
      setting.epoch = 0x3ffffffd + random.below(3);
      Place place(random, schedule, setting);
      place.group.stall(r, step, random.of({1u, 2u, 5u, 17u}), STALL_NS);
      Operations operations(place.group);
      add_halves(random, setting, operations);
      operations.run();
      return place.group.end_stall(r);
    });
}

}  // namespace

extern const Named SCENARIOS[] = {{"halves", halves}, {"mismatch", mismatch}, {"time_out", time_out}, {"stalls", stalls}, {nullptr, nullptr}};

}  // namespace sim
