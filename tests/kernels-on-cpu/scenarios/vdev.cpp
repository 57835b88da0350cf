// vdev.cpp: all-to-all-v in all three forms, of splits of every sort, alone and among other operations, against
// a model that places row by row.

#include <algorithm>

#include "exchanging.h"
#include "vdev.cuh"

extern "C" void all_to_all_vdev(const symmem::Vdev);

namespace sim {

namespace {

using Wide = __int128;

constexpr Wide MOST = ~0ull;
constexpr i64 HUGE_SPLIT = (i64)(~0ull >> 1);

enum Form { FLAT, BY_EXPERT, BACK };

// What one run of a call is given, by rank and split.
struct Round {
  std::vector<std::vector<i64>> splits, offsets;
};

// What becomes of it: why it is refused, or what each rank gets.
struct Expected {
  u64 rank = 0, what = 0, value = 0, limit = 0;
  std::vector<std::vector<u8>> output;
  std::vector<std::vector<i64>> out_splits;
  std::vector<u64> dropped;
};

struct Routing : Operation {
  Form form;
  u32 world, minor, splits, blocks, workers;
  u64 row, align, offset;
  bool drop, together;
  std::vector<u64> input_rows, capacity, peers;
  std::vector<std::vector<u8>> data;
  std::vector<Round> rounds;
  std::vector<Expected> expected;  // by round
  std::vector<vdev::Status> status;
  std::vector<u64> dropped;
  std::vector<u32> run;  // by rank
  std::vector<char> untaken;  // whether the host has yet to take what is in its status

  static constexpr u64 BEFORE = 80;  // bytes of an allocation before its output

  Routing(Random& random, const Setting& setting, u32 most_splits);

  u32 input(u32 target, u32 bin) const { return form == BACK ? bin * world + target : target * minor + bin; }
  void draw(Random& random, Round& round);
  void spoil(Random& random, Round& round);
  // The rows of a split on the rank that it comes to, in the order of its output: source and bin of each.
  std::vector<std::pair<u32, u32>> order() const {
    std::vector<std::pair<u32, u32>> all;
    for (u32 major = 0; major < splits; major++) all.push_back(form == BACK ? std::pair(major / minor, major % minor) : std::pair(major % world, major / world));
    return all;
  }
  Wide place(const Round& round, u32 target, std::vector<Wide>& at) const;
  Expected expect(const Round& round) const;

  void prepare(u32 r) override {
    const Round& round = rounds[run[r] % rounds.size()];
    std::memcpy(in[r].begin(), data[r].data(), data[r].size());
    std::memcpy(more_in[r].begin(), round.splits[r].data(), splits * 8);
    if (form == BACK) std::memcpy(more_in[r].begin() + splits * 8, round.offsets[r].data(), splits * 8);
    out[r].poison(), more_out[r].poison();
    if (untaken[r]) status[r].rank = 77, status[r].what = status[r].value = status[r].limit = 5;
  }

  void launch(Group& group, u32 r, const Lane& lane) override {
    Vdev p{};
    p.lane = lane;
    p.input = in[r].address(), p.output = out[r].address();
    p.in_splits = more_in[r].address(), p.in_offsets = form == BACK ? p.in_splits + splits * 8 : 0;
    p.out_splits = more_out[r].address(), p.status = (u64)&status[r];
    p.peers = (u64)peers.data(), p.peer_offset = BEFORE;
    p.row = row, p.input_rows = input_rows[r], p.capacity = capacity[r], p.align = align;
    // As many as make the rows of some pairs go in lines, and not those of others.
    const u64 most = std::min<u64>(LINES / 16 * 1984, 4000 / std::max(1u, world - 1));
    p.most_lines = row == 0 || row % 16 != 0 ? 0 : most / row;
    p.minor = minor, p.by_bin = form == BACK, p.drop = drop, p.group_completion = together;
    group.machine.launch(r, blocks, workers + 32, [p] { all_to_all_vdev(p); });
    // Hosts look while kernels run.
    group.machine.watch([this, r] {
      if (status[r].rank == 0) return;
      auto is = [&](const Expected& e) { return tells(r, e); };
      CHECK(std::any_of(expected.begin(), expected.end(), is), "rank %u: a verdict that was not whole when it was told", r);
    });
  }

  // Whether a rank's status says what it must.
  bool tells(u32 r, const Expected& e) const {
    const vdev::Status& s = status[r];
    if (untaken[r]) return s.rank == 77 && s.what == 5 && s.value == 5 && s.limit == 5;
    return s.rank == e.rank && (e.rank == 0 || (s.what == e.what && s.value == e.value && s.limit == e.limit));
  }

  void check(u32 r) override {
    const Expected& e = expected[run[r] % rounds.size()];
    vdev::Status& found = status[r];
    CHECK(tells(r, e), "said of rank %d: %llx of %lld in %lld, not of rank %d: %llx of %lld in %lld, untaken %d", (int)found.rank - 1, found.what,
          found.value, found.limit, (int)e.rank - 1, e.what, e.value, e.limit, untaken[r]);
    found.rank = 0;
    const i64* out_splits = pointer<i64>(more_out[r].address());
    for (u32 i = 0; i < 2 * splits; i++)
      CHECK(out_splits[i] == e.out_splits[r][i], "output split %u of %u is %lld, not %lld", i, splits, (long long)out_splits[i], (long long)e.out_splits[r][i]);
    for (u64 i = 0; i < out[r].bytes(); i++)
      CHECK(out[r].begin()[i] == e.output[r][i], "byte %llu of row %llu is %x, not %x", i % row, i / row, out[r].begin()[i], e.output[r][i]);
    dropped[r] += e.dropped[r];
    CHECK(found.dropped == dropped[r], "%llu rows dropped, not %llu", found.dropped, dropped[r]);
    const Round& round = rounds[run[r] % rounds.size()];
    CHECK(std::memcmp(in[r].begin(), data[r].data(), data[r].size()) == 0, "its input was written");
    CHECK(std::memcmp(more_in[r].begin(), round.splits[r].data(), splits * 8) == 0, "its splits were written");
    run[r]++;
  }
};

// ----------------------------------------------------------------------------------- the model

// Where the rows of each split begin, in the order of a target's output; how many it needs.
Wide Routing::place(const Round& round, u32 target, std::vector<Wide>& at) const {
  const u32 minors = form == BACK ? minor : world;
  Wide next = 0, start = 0, needed = 0;
  at.clear();
  for (auto [source, bin] : order()) {
    if (at.size() % minors == 0) start = next;
    at.push_back(next);
    next += round.splits[source][input(target, bin)];
    if (round.splits[source][input(target, bin)] > 0) needed = next;
    if (at.size() % minors != 0 || align == 0) continue;
    next = start + std::max<Wide>((next - start + align - 1) / align, 1) * align;
  }
  return std::min(needed, MOST);
}

Expected Routing::expect(const Round& round) const {
  Expected e;
  for (u32 r = 0; r < world && e.rank == 0; r++) {
    Wide sum = 0;
    for (u32 i = 0; i < splits && e.rank == 0; i++)
      if (round.splits[r][i] < 0) e = Expected{r + 1, 2 | (u64)i << 8, (u64)round.splits[r][i], input_rows[r], {}, {}, {}};
    for (u32 i = 0; i < splits && e.rank == 0; i++) {
      const i64 split = round.splits[r][i];
      if (form != BACK) {
        sum += split;
        continue;
      }
      const i64 from = round.offsets[r][i];
      const u64 end = from < 0 ? ~0ull : (u64)std::min<Wide>((Wide)from + split, MOST);
      if (split > 0 && end > input_rows[r]) e = Expected{r + 1, 4 | (u64)i << 8, end, input_rows[r], {}, {}, {}};
    }
    if (e.rank == 0 && sum > (Wide)input_rows[r]) e = Expected{r + 1, 3, (u64)std::min(sum, MOST), input_rows[r], {}, {}, {}};
  }
  std::vector<Wide> at;
  for (u32 r = 0; r < world && e.rank == 0 && !drop; r++)
    if (Wide needed = place(round, r, at); needed > (Wide)capacity[r]) e = Expected{r + 1, 1, (u64)needed, capacity[r], {}, {}, {}};
  for (u32 r = 0; r < world; r++) {
    Bytes poison(out[r].bytes());
    e.output.emplace_back(poison.begin(), poison.begin() + out[r].bytes());
    e.out_splits.emplace_back(2 * splits);
    e.dropped.push_back(0);
    if (e.rank != 0) continue;
    place(round, r, at);
    u32 i = 0;
    for (auto [source, bin] : order()) {
      const u32 split = input(r, bin);
      u64 from = form == BACK ? (u64)round.offsets[source][split] : 0;
      for (u32 before = 0; form != BACK && before < split; before++) from += round.splits[source][before];
      const Wide to = at[i], rows = round.splits[source][split];
      const u64 kept = (u64)std::max<Wide>(0, std::min(rows, (Wide)capacity[r] - to));
      if (kept != 0 && row != 0) std::memcpy(&e.output[r][(u64)to * row], &data[source][from * row], kept * row);
      e.out_splits[r][i] = (i64)kept;
      e.out_splits[r][splits + i] = (i64)std::min<Wide>(to, HUGE_SPLIT);
      e.dropped[r] = (u64)std::min<Wide>((Wide)e.dropped[r] + rows - kept, MOST);
      i++;
    }
  }
  return e;
}

// ---------------------------------------------------------------------------------------- data

Routing::Routing(Random& random, const Setting& setting, u32 most_splits) : world(setting.world) {
  form = (Form)random.below(3);
  minor = form == FLAT ? 1 : random.of({1u, 2u, 3u, 4u, 7u, 12u, 33u, 70u});
  minor = std::clamp(minor, 1u, std::max(1u, most_splits / world));
  splits = world * minor;
  align = form == FLAT ? 0 : form == BACK ? random.of({0u, 0u, 0u, 4u}) : random.of({1u, 1u, 2u, 8u, 0u});
  row = random.of({0, 1, 2, 3, 7, 8, 15, 16, 16, 17, 32, 48, 64, 100, 128, 129, 256, 1000});
  offset = random.one_in(2) ? 0 : random.below(16);
  blocks = random.between(1, 3), workers = random.of({32u, 32u, 64u});
  drop = random.one_in(3), together = random.one_in(3), in_stream = random.one_in(2);
  if (in_stream && random.one_in(3)) replays = random.between(1, 3);
  // Rows without bytes can be any number.
  const bool any_number = row == 0 && random.one_in(2);
  for (u32 r = 0; r < world; r++) input_rows.push_back(any_number ? (u64)HUGE_SPLIT : row == 0 ? 20 : random.below((u32)std::min<u64>(5000 / row, 60) + 1));
  rounds.resize(std::max(1u, replays));
  for (Round& round : rounds) draw(random, round);
  std::vector<Wide> at;
  for (u32 r = 0; r < world; r++) {
    Wide needed = 0;
    for (const Round& round : rounds) needed = std::max(needed, place(round, r, at));
    const Wide fits = random.of({needed, needed, needed, needed + 1 + random.below(5), needed / 2, needed / 4, needed > 0 ? needed - 1 : 0});
    // Most calls fit.
    capacity.push_back((u64)std::min<Wide>(drop || random.one_in(world) ? fits : std::max(fits, needed), row == 0 ? MOST : 1000));
    out.emplace_back(capacity[r] * row, offset);
    more_out.emplace_back(2 * splits * 8);
    in.emplace_back(input_rows[r] * row, random.one_in(2) ? 0 : random.below(16));
    more_in.emplace_back((form == BACK ? 2 : 1) * splits * 8);
    data.emplace_back(input_rows[r] * row);
    for (u8& byte : data[r]) byte = (u8)random.next();
    peers.push_back(out[r].address() - BEFORE);
    untaken.push_back(random.one_in(8));
  }
  for (Round& round : rounds) {
    if (random.one_in(4)) spoil(random, round);
    expected.push_back(expect(round));
  }
  status.resize(world), dropped.resize(world), run.resize(world);
  name = format("form %d, %u bins, rows of %llu, aligned %llu, offset %llu, drop %d, together %d, %u blocks of %u, in stream %d, replays %u",
                form, minor, row, align, offset, drop, together, blocks, workers, in_stream, replays);
}

void Routing::draw(Random& random, Round& round) {
  const u32 mode = random.below(5);
  for (u32 r = 0; r < world; r++) {
    std::vector<i64> split(splits), from(splits);
    u64 left = input_rows[r];
    // Nothing; all for one bin of one rank, the same of all; some for each.
    if (mode == 1) split[random.one_in(2) ? 0 : random.below(splits)] = (i64)left;
    for (u32 i = 0; i < splits && mode > 1; i++) {
      const u64 wanted = random.of<u64>({0, 0, 1, 2, 3, 5, left / 4, left / 2});
      split[i] = (i64)std::min(wanted, left);
      left -= split[i];
    }
    for (u32 i = 0; i < splits; i++) {
      const u64 room = input_rows[r] - split[i];
      from[i] = split[i] == 0 ? (i64)random.next() : (i64)random.below((u32)std::min<u64>(room, 1000) + 1);
    }
    round.splits.push_back(split), round.offsets.push_back(from);
  }
}

// Makes the splits of a rank or two wrong.
void Routing::spoil(Random& random, Round& round) {
  for (u32 n = random.between(1, 2); n != 0; n--) {
    const u32 r = random.below(world), i = random.below(splits);
    i64 &split = round.splits[r][i], &from = round.offsets[r][i];
    switch (random.below(4)) {
      case 0: split = random.one_in(2) ? -1 : (i64)(1ull << 63); break;
      case 1: split = (i64)std::min<u64>(input_rows[r] + 1, HUGE_SPLIT); break;
      case 2: split = HUGE_SPLIT; break;
      default: split = std::max<i64>(split, 1), from = random.of<i64>({-1, HUGE_SPLIT, (i64)input_rows[r]});
    }
  }
}

// ------------------------------------------------------------------------------------ scenarios

Setting some_setting(Random& random) {
  Setting s = any_setting(random);
  s.world = random.of({1u, 2u, 2u, 3u, 3u, 4u, 5u});
  return s;
}

void packets(Random& random, const Schedule& schedule) {
  const Setting setting = some_setting(random);
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(2, 5); i != 0; i--) operations.add(std::make_unique<Routing>(random, setting, 150));
  operations.run();
}

// Messages that are too long for packets, and some that are not.
void staged(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.packets = 16;
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(2, 5); i != 0; i--) operations.add(std::make_unique<Routing>(random, setting, 150));
  operations.run();
}

std::unique_ptr<Operation> any(Random& random, const Setting& setting) {
  if (random.one_in(2)) return std::make_unique<Routing>(random, setting, 40);
  const u32 first = setting.packets == PACKETS ? 0 : 1;
  return std::make_unique<Exchanging>(random, setting, (Algorithm)random.between(first, 3));
}

void mixed(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  if (random.one_in(2)) setting.packets = 16;
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(3, 7); i != 0; i--) operations.add(any(random, setting));
  operations.run();
}

// More ranks than a warp has threads.
void large(Random& random, const Schedule& schedule) {
  Setting setting;
  setting.world = 34;
  Place place(random, schedule, setting);
  Operations operations(place.group);
  auto routing = std::make_unique<Routing>(random, setting, 68);
  routing->blocks = 1, routing->workers = 32;
  operations.add(std::move(routing));
  operations.run();
}

// One rank never comes: all name it, and nobody's output was written.
void time_out(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 4), setting.epoch = 4, setting.deadline_ns = 4000000, setting.packets = random.of({16u, 512u});
  const u32 late = random.below(setting.world);
  Place place(random, schedule, setting);
  Routing routing(random, setting, 40);
  for (u32 r = 0; r < setting.world; r++) {
    routing.prepare(r);
    if (r != late) routing.launch(place.group, r, place.group.next(r, 0xca11));
  }
  place.machine.run();
  for (u32 r = 0; r < setting.world; r++) {
    const Record found = place.group.record(r);
    CHECK(place.group.has_failed(r), "rank %u does not know of the failure", r);
    CHECK(found.reason == REASON_TIMED_OUT && found.missing == 1u << late, "reason %u, missing %llx, not rank %u", found.reason, found.missing, late);
    CHECK(routing.out[r].is_poison() && routing.more_out[r].is_poison(), "rank %u: written without having heard of all", r);
    CHECK(routing.out[r].guards_hold() && routing.more_out[r].guards_hold(), "rank %u: bytes outside were written", r);
    CHECK(routing.status[r].rank == (routing.untaken[r] ? 77 : 0) && routing.status[r].dropped == 0, "rank %u: a verdict", r);
  }
}

// Runs each rank's call, of which one is another: all learn of that.
template <class Its> void learn_of(Place& place, u32 world, u32 odd, Its its) {
  for (u32 r = 0; r < world; r++) {
    its(r).prepare(r);
    its(r).launch(place.group, r, place.group.next(r, 0xca11 + (r == odd)));
  }
  place.machine.run();
  for (u32 r = 0; r < world; r++) {
    const Record found = place.group.record(r);
    CHECK(place.group.has_failed(r) && found.reason == REASON_CALL_MISMATCH, "rank %u: reason %u", r, found.reason);
    CHECK(found.reporter == odd + 1 || found.culprit == odd + 1, "reported by %u about %u, not %u", found.reporter, found.culprit, odd + 1);
  }
}

// One rank is in another call: all learn of it, and nobody's output was written.
void mismatch(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 4), setting.epoch = 4;
  const u32 odd = random.below(setting.world);
  Place place(random, schedule, setting);
  Routing routing(random, setting, 40);
  learn_of(place, setting.world, odd, [&](u32) -> Operation& { return routing; });
  for (u32 r = 0; r < setting.world; r++)
    CHECK(routing.out[r].guards_hold() && routing.more_out[r].guards_hold(), "rank %u: bytes outside were written", r);
  CHECK(setting.world != 2 || (routing.out[0].is_poison() && routing.out[1].is_poison()), "rows were stored in calls that differ");
}

// One rank is in a call of another kind, which sends nothing of what the others wait for: they learn of it no later.
void another_kind(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 4), setting.epoch = 4, setting.packets = random.of({16u, 512u});
  const u32 odd = random.below(setting.world);
  Place place(random, schedule, setting);
  Routing routing(random, setting, 40);
  Exchanging exchanging(random, setting, random.of({STAGED, DIRECT}));
  learn_of(place, setting.world, odd, [&](u32 r) -> Operation& { return r == odd ? (Operation&)exchanging : routing; });
  for (u32 r = 0; r < setting.world; r++)
    CHECK(r == odd || (routing.out[r].is_poison() && routing.out[r].guards_hold()), "rank %u: rows of a call that only some are in", r);
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
      for (u32 i = random.between(3, 5); i != 0; i--) operations.add(any(random, setting));
      operations.run();
      return place.group.end_stall(r);
    });
}

// Where lanes scrub, one block of a rank is so late with its messages that others have ended: in kernels that
// can be delayed.
void late_blocks(Random& random, const Schedule& schedule) {
  Setting setting = some_setting(random);
  setting.world = random.between(2, 3), setting.epoch = 0x3ffffffe + random.below(3);
  Place place(random, schedule, setting);
  place.group.stall(random.below(setting.world), STALL_POLL_PACKET, random.of({50u, 100u, 1000u}), STALL_NS);
  Operations operations(place.group);
  for (u32 i = 3; i != 0; i--) {
    auto routing = std::make_unique<Routing>(random, setting, 20);
    routing->blocks = 3;
    operations.add(std::move(routing));
  }
  operations.run();
}

}  // namespace

extern const Named SCENARIOS[] = {{"packets", packets}, {"staged", staged},     {"mixed", mixed},   {"large", large},
                                  {"time_out", time_out}, {"mismatch", mismatch}, {"another_kind", another_kind}, {"stalls", stalls},
                                  {"late_blocks", late_blocks}, {nullptr, nullptr}};

}  // namespace sim
