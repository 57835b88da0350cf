// failures.cpp: what ranks report of calls that differ, do not come, overlap, are cancelled, outlive their
// lane. By all-gathers and broadcasts in packets; what fails a wait is the same for all kernels.

#include <algorithm>
#include <cstring>

#include "operations.h"

using namespace symmem;

extern "C" {
void exchange_packets(const Plan);
void exchange_direct(const Plan);
}

namespace sim {

namespace {

constexpr u64 PART = 48;

// All-gathers of `PART` bytes, or broadcasts from a root, in memory of its own: each rank's input is all
// bytes 1 + rank.
class Calls {
 public:
  explicit Calls(Group& group, u32 root = EVERY_RANK) : group_(group), root_(root) {
    for (u32 r = 0; r < group.world; r++) {
      in_.emplace_back(PART);
      std::memset(in_[r].begin(), 1 + r, PART);
      out_.emplace_back(PART * (root == EVERY_RANK ? group.world : 1));
      out_[r].poison();
      outputs_.push_back(out_[r].address());
    }
  }

  Lane lane(u32 r) { return group_.next(r, 0xca11); }
  void launch(u32 r, const Lane& lane, u32 stream) {
    Plan p{};
    p.lane = lane, p.input = in_[r].address(), p.output = out_[r].address();
    p.bytes = p.row = PART;
    p.in = {0, PART}, p.out = {root_ == EVERY_RANK ? PART : 0, PART};
    p.root = root_, p.receives = 1, p.plain = 1;
    group_.machine.launch(stream, 2, 34, [p] { exchange_packets(p); });
  }
  void launch(u32 r) { launch(r, lane(r), r); }
  void launch_all() {
    for (u32 r = 0; r < group_.world; r++) launch(r);
  }
  void launch_all_but(u32 late) {
    for (u32 r = 0; r < group_.world; r++)
      if (r != late) launch(r);
  }
  // Kernels that store into peers' outputs, or into nobody's.
  void launch_direct(u32 r) {
    Plan p{};
    p.lane = lane(r), p.input = in_[r].address(), p.output = out_[r].address();
    p.bytes = p.row = PART, p.in = {0, PART}, p.out = {PART, PART};
    p.root = EVERY_RANK, p.receives = 1, p.plain = 1, p.peers = (u64)outputs_.data();
    Cut::of(PART, 128, 1, 0, 1).apply(p);
    group_.machine.launch(r, 1, 34, [p] { exchange_direct(p); });
  }
  bool is_untouched(u32 r) const { return out_[r].is_poison(); }
  void check_guards() const {
    for (u32 r = 0; r < group_.world; r++) CHECK(out_[r].guards_hold(), "rank %u: bytes outside were written", r);
  }

 private:
  Group& group_;
  u32 root_;
  std::vector<Bytes> in_, out_;
  std::vector<u64> outputs_;
};

// What hosts see of a failure while kernels still run: whole records, and one for all.
class Reports {
 public:
  explicit Reports(Group& group) : group_(group), first_(group.world) {
    group.machine.watch([this] {
      for (u32 r = 0; r < group_.world; r++)
        if (group_.has_failed(r) && !first_[r]) first_[r] = std::make_unique<Record>(group_.record(r));
    });
  }

  // That every rank has failed, and what all of them say.
  Record all() const {
    for (u32 r = 0; r < group_.world; r++) {
      CHECK(group_.has_failed(r), "rank %u does not know of the failure", r);
      CHECK(*first_[r] == group_.record(r), "rank %u: a record that was not whole when it was announced", r);
      CHECK(*first_[r] == *first_[0], "ranks 0 and %u report %u and %u", r, first_[0]->reason, first_[r]->reason);
      CHECK(*first_[r] == group_.record(r, true), "rank %u: another record in its own memory", r);
    }
    // Others may have ended well before, or not have come yet.
    for (u32 b = 0; b < MAX_BLOCKS; b++)
      CHECK(group_.records(first_[0]->reporter - 1)[b].entry == ENTRY_FAILED, "the lane of who reports is open");
    return *first_[0];
  }

 private:
  Group& group_;
  std::vector<std::unique_ptr<Record>> first_;
};

Setting some_ranks(Random& random, u64 deadline_ns = LONG_NS) {
  Setting s;
  s.world = random.between(2, 4);
  s.epoch = random.between(4, 5);
  s.deadline_ns = deadline_ns;
  return s;
}

// ------------------------------------------------------------------------------- scenarios

// One rank's call differs from the others': every rank learns that, its own included, with both words.
void mismatch(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random);
  setting.apart = random.one_in(3);
  const u32 odd = random.below(setting.world);
  const bool rooted = random.one_in(2), replayed = random.one_in(3);
  std::vector<u64> runs(setting.world * MAX_BLOCKS);
  Place place(random, schedule, setting);
  Reports reports(place.group);
  Calls calls(place.group, rooted ? random.below(setting.world) : EVERY_RANK);
  for (u32 i = random.below(3); i != 0; i--) calls.launch_all();
  for (u32 r = 0; r < setting.world; r++) {
    Lane lane = calls.lane(r);
    u64* own = &runs[r * MAX_BLOCKS];
    if (replayed) lane.runs = (u64)own;
    // One run too many of a graph, or another call.
    if (r == odd && replayed) std::fill_n(own, MAX_BLOCKS, 1);
    else if (r == odd) lane.signature++;
    calls.launch(r, lane, r);
  }
  // A rank whose data nobody took shows at the latest two operations later.
  calls.launch_all();
  calls.launch_all();
  place.machine.run();
  Record found = reports.all();
  CHECK(found.reason == REASON_CALL_MISMATCH, "reason %u", found.reason);
  CHECK(found.reporter == odd + 1 || found.culprit == odd + 1, "reported by %u about %u, not %u", found.reporter, found.culprit, odd + 1);
  const u64 apart = replayed ? found.mine[1] ^ found.theirs[1] : found.mine[0] ^ found.theirs[0];
  CHECK(apart != 0, "equal words are reported as a difference");
  calls.check_guards();
}

// One rank does not come to so many operations, after some that all came to: every rank names it alone.
Record never_comes(u32 late, u32 operations, Random& random, Place& place, Calls& calls, const Reports& reports) {
  for (u32 i = random.below(3); i != 0; i--) calls.launch_all();
  for (; operations != 0; operations--) calls.launch_all_but(late);
  place.machine.run();
  const Record found = reports.all();
  CHECK(found.reason == REASON_TIMED_OUT && found.missing == 1u << late, "reason %u, missing %llx, not rank %u", found.reason, found.missing, late);
  CHECK(found.epoch == place.group.records(found.reporter - 1)->epoch, "epoch %u", found.epoch);
  return found;
}

// One rank never comes, and finds in its pages what the others say of it.
void time_out(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random, 2000000);
  const u32 late = random.below(setting.world);
  Place place(random, schedule, setting);
  Reports reports(place.group);
  Calls calls(place.group);
  const Record found = never_comes(late, 1, random, place, calls, reports);
  // It comes after all: the others' data may still be there; the next call learns of the failure from its
  // pages, and what follows finds the lane closed.
  for (u32 i = 0; i < 3; i++) calls.launch(late);
  place.machine.run();
  CHECK(place.group.is_stale(late), "an operation began on a closed lane");
  CHECK(reports.all() == found, "a report was replaced");
  calls.check_guards();
}

// One rank does not come to a broadcast, which nobody needs it for: the next operations wait for it, before
// any rank shows a header, and name nobody else.
void time_out_of_a_reader(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random, 2000000);
  const u32 late = random.below(setting.world), root = (late + random.between(1, setting.world - 1)) % setting.world;
  Place place(random, schedule, setting);
  Reports reports(place.group);
  Calls calls(place.group, root);
  never_comes(late, 3, random, place, calls, reports);
  calls.check_guards();
}

// One rank is delayed at any step, for longer than the bound: all say that it is missing, it too, and nothing
// hangs. And one that reports: who is missing is another.
void stalls(Random& random, const Schedule& schedule) {
  const Setting setting = some_ranks(random, 2000000);
  const u32 steps[] = {STALL_ENTER, STALL_AWAIT_READERS, STALL_PUBLISH_HEADER, STALL_PUT_PACKET, STALL_POLL_PACKET, STALL_COMPARE, STALL_EXIT, STALL_REPORT};
  each_stall(setting.world, {0, sizeof steps / sizeof *steps - 1}, [&](u32 r, u32 i) {
    Place place(random, schedule, setting);
    Reports reports(place.group);
    Calls calls(place.group);
    const bool reports_itself = steps[i] == STALL_REPORT;
    const u32 late = reports_itself ? (r + 1) % setting.world : r;
    place.group.stall(r, steps[i], 1, reports_itself ? STALL_NS : LONG_NS);
    for (u32 k = 0; k < 3; k++)
      for (u32 q = 0; q < setting.world; q++)
        if (!reports_itself || q != late) calls.launch(q);
    place.machine.run();
    const Record found = reports.all();
    CHECK(found.reason == REASON_TIMED_OUT && found.missing == 1u << late, "at step %u of rank %u: reason %u, missing %llx", steps[i], r, found.reason, found.missing);
    return place.group.end_stall(r);
  });
}

// As `time_out`, in a graph: the launch of the graph bounds the waits, not what it was captured with.
void launch_bounds(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random);
  Place place(random, schedule, setting);
  Reports reports(place.group);
  Calls calls(place.group);
  u32 token = 0;
  const bool by_token = random.one_in(2);
  alignas(16) Bounds bounds{by_token ? LONG_NS : 500000, by_token ? (u64)&token : 0};
  for (u32 r = 1; r < setting.world; r++) {
    Lane lane = calls.lane(r);
    lane.launch = (u64)&bounds, lane.patience = 3;
    calls.launch(r, lane, r);
  }
  place.machine.host(0, [&] { token = 1; });
  place.machine.run();
  Record found = reports.all();
  CHECK(found.reason == (by_token ? REASON_CANCELLED : REASON_TIMED_OUT), "reason %u", found.reason);
  CHECK(by_token || place.machine.clock_ns() > 3 * bounds.deadline_ns, "given up after %llu ns", (u64)place.machine.clock_ns());
}

// The host cancels, or says that a rank is lost, or has left.
void host_ends_wait(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random);
  const u32 absent = random.below(setting.world), how = random.below(3);
  Place place(random, schedule, setting);
  Group& group = place.group;
  Reports reports(group);
  Calls calls(group);
  calls.launch_all();
  u32 token = 0;
  for (u32 r = 0; r < setting.world; r++) {
    if (r == absent) continue;
    Lane lane = calls.lane(r);
    lane.cancel = (u64)&token;
    calls.launch(r, lane, r);
  }
  place.machine.host(setting.world, [&] {
    if (how == 0) token = 1;
    for (u32 r = 0; r < setting.world; r++) {
      if (how >= 1) group.mask(r, CONTROL_LOST) |= 1u << absent;
      if (how == 2) group.mask(r, control_left(setting.world)) |= 1u << absent;
    }
  });
  place.machine.run();
  Record found = reports.all();
  const u32 expected[] = {REASON_CANCELLED, REASON_PEER_LOST, REASON_PEER_LEFT};
  CHECK(found.reason == expected[how], "reason %u, not %u", found.reason, expected[how]);
  // A token ends whatever wait there is.
  CHECK(how == 0 || found.culprit == absent + 1, "about %u, not %u", found.culprit, absent + 1);
}

// Two operations at once on one lane of one rank. The second finds the first under way, before any peer
// could come to it.
void busy(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random);
  setting.checked = true;
  const u32 twice = random.below(setting.world);
  Place place(random, schedule, setting);
  Group& group = place.group;
  Reports reports(group);
  Calls calls(group);
  for (u32 stream : {twice, setting.world}) calls.launch(twice, calls.lane(twice), stream);
  for (u32 r = 0; r < setting.world; r++) {
    if (r == twice) continue;
    place.machine.await(r, [&group, twice] { return group.has_failed(twice); });
    calls.launch(r);
  }
  place.machine.run();
  Record found = reports.all();
  CHECK(found.reason == REASON_LANE_BUSY && found.culprit == twice + 1, "reason %u about %u", found.reason, found.culprit);
}

// A graph outlives its lane: its kernels say so and touch nothing.
void stale(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random);
  setting.checked = random.one_in(2);
  Place place(random, schedule, setting);
  Calls calls(place.group);
  const u32 why = random.of({ENTRY_FAILED, ENTRY_RETIRED});
  for (u32 r = 0; r < setting.world; r++)
    for (u32 b = 0; b < MAX_BLOCKS; b++) place.group.records(r)[b].entry = why;
  for (u32 r = 0; r < setting.world; r++) random.one_in(2) ? calls.launch(r) : calls.launch_direct(r);
  place.machine.run();
  for (u32 r = 0; r < setting.world; r++) {
    CHECK(place.group.is_stale(r) && !place.group.has_failed(r), "rank %u does not say that its lane is closed", r);
    CHECK(calls.is_untouched(r), "rank %u: a stale graph has stored", r);
    CHECK(place.group.records(r)->epoch == setting.epoch, "rank %u: a stale graph has advanced the epoch", r);
  }
}

// The rank that claimed the report died before it wrote it: the others settle for their own.
void adoption(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random, 1000000);
  setting.world = random.between(3, 4);
  Schedule quick = schedule;
  quick.tick_ns = 4000000;
  Place place(random, quick, setting);
  Calls calls(place.group);
  const u32 dead = random.below(setting.world);
  place.group.claim(0) = dead + 1;
  calls.launch_all_but(dead);
  place.machine.run();
  for (u32 r = 0; r < setting.world; r++) {
    if (r == dead || (r == 0 && dead != 0)) continue;
    CHECK(place.group.has_failed(r), "rank %u has no record", r);
    Record found = place.group.record(r);
    CHECK(found.reason == REASON_TIMED_OUT && found.reporter == r + 1 && found.missing >> dead & 1, "rank %u: reason %u by %u, missing %llx", r,
          found.reason, found.reporter, found.missing);
  }
}

// As many ranks as need the tables instead of the arrays in the arguments.
void large(Random& random, const Schedule& schedule) {
  Setting setting = some_ranks(random, 2000000);
  setting.world = 9;
  Place place(random, schedule, setting);
  Reports reports(place.group);
  Calls calls(place.group);
  calls.launch_all();
  calls.launch_all_but(8);
  place.machine.run();
  Record found = reports.all();
  CHECK(found.reason == REASON_TIMED_OUT && found.missing == 1u << 8, "reason %u, missing %llx", found.reason, found.missing);
}

}  // namespace

extern const Named SCENARIOS[] = {{"mismatch", mismatch},
                                  {"time_out", time_out},
                                  {"time_out_of_a_reader", time_out_of_a_reader},
                                  {"launch_bounds", launch_bounds},
                                  {"host_ends_wait", host_ends_wait},
                                  {"busy", busy},
                                  {"stale", stale},
                                  {"stalls", stalls}, {"adoption", adoption},
                                  {"large", large},
                                  {nullptr, nullptr}};

}  // namespace sim
