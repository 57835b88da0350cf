#include "group.h"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

u64 up(u64 value, u64 multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

// ------------------------------------------------------------------------------- lanes

Group::Group(Machine& machine, const Setting& setting) : machine(machine), world(setting.world), setting_(setting), ranks_(setting.world) {
  // As `sync::gpu::layout` lays out a lane.
  u64 pairs = 2ull * world, peers = 2ull * std::max(world - 1, 1u);
  shape_.headers = up(MAX_BLOCKS * sizeof(EpochRecord), 128);
  shape_.flags = shape_.headers + pairs * MAX_BLOCKS * 32;
  shape_.packets = up(shape_.flags + pairs * MAX_BLOCKS * 8, 128);
  shape_.lines = up(shape_.packets + peers * setting.packets * 16, 128);
  shape_.line_count = LINES;
  shape_.staging = shape_.lines + peers * LINES * 128;
  shape_.staging_unit = STAGING;
  shape_.packet_count = setting.packets;
  shape_.max_blocks = MAX_BLOCKS;
  shape_.world = world;
  shape_.workspace_back = CONTROL;
  shape_.deadline_ns = setting.deadline_ns;
  shape_.checked = setting.checked;
  shape_.patience = 1;
  for (Rank& rank : ranks_) {
    rank.workspace.assign((CONTROL + shape_.staging + peers * STAGING) / 8 + 16, 0);
    rank.host.assign(CONTROL / 8, 0);
    table_.push_back(up((u64)rank.workspace.data(), 128) + CONTROL);
    hosts_.push_back((u64)rank.host.data());
  }
  for (u32 r = 0; r < world; r++) {
    ranks_[r].hosts = setting.apart ? std::vector<u64>(world, 0) : hosts_;
    ranks_[r].hosts[r] = host(r);
  }
  for (u32 r = 0; r < world; r++)
    for (u32 b = 0; b < MAX_BLOCKS; b++) records(r)[b] = EpochRecord{setting.epoch, 1, ENTRY_OPEN, 0};
}

Lane Group::next(u32 r, u64 signature) {
  Lane l = shape_;
  l.own = lane(r);
  for (u32 i = 0; i < world && world <= 8; i++) l.peers[i] = lane(i);
  l.table = (u64)table_.data();
  l.host = host(r);
  l.hosts = (u64)ranks_[r].hosts.data();
  l.signature = signature;
  l.issue = ++ranks_[r].issued;
  l.rank = r;
  l.operation = 1;
  return l;
}

Record Group::record(u32 r, bool own) const {
  const u64* words = pointer<const u64>((own ? lane(r) - CONTROL : host(r)) + control_record(world));
  auto low = [](u64 word) { return (u32)word; };
  auto high = [](u64 word) { return (u32)(word >> 32); };
  return Record{low(words[0]), high(words[0]), low(words[1]), high(words[1]), low(words[2]), high(words[2]),
                {words[3], words[4]}, {words[5], words[6]}, words[7]};
}

void Group::stall(u32 r, u32 step, u32 every, u64 ns) {
  mask(r, CONTROL_STALL) = (u64)every << 32 | (step + 1);
  mask(r, CONTROL_STALL + 8) = ns;
  mask(r, CONTROL_STALL + 16) = 0;
}

u32 Group::end_stall(u32 r) {
  mask(r, CONTROL_STALL) = 0;
  return (u32)(mask(r, CONTROL_STALL + 16) >> 32);
}

void Group::plant(u32 epoch) {
  u64 tag = (u64)epoch << 32, parity = epoch & 1;
  for (u32 r = 0; r < world; r++) {
    u64* flags = pointer<u64>(lane(r) + shape_.flags);
    for (u64 i = 0; i < world * MAX_BLOCKS; i++) flags[parity * world * MAX_BLOCKS + i] = tag | 1000;
    u64* headers = pointer<u64>(lane(r) + shape_.headers);
    for (u64 i = 0; i < world * MAX_BLOCKS * 4; i++) headers[parity * world * MAX_BLOCKS * 4 + i] = tag | 0xbad;
    u64* packets = pointer<u64>(lane(r) + shape_.packets);
    u64 words = (world - 1) * setting_.packets * 2;
    for (u64 i = 0; i < words; i++) packets[parity * words + i] = tag | 0xbad;
    u32* lines = pointer<u32>(lane(r) + shape_.lines);
    words = (world - 1) * LINES * 32;
    for (u64 i = 0; i < words; i++) lines[parity * words + i] = epoch;
  }
}

void Group::check_healthy(u32 r) const {
  Record found = record(r);
  CHECK(!has_failed(r), "failed: reason %u, about rank %d, in epoch %u; %llx, %llx is not %llx, %llx", found.reason, (int)found.culprit - 1,
        found.epoch, found.mine[0], found.mine[1], found.theirs[0], found.theirs[1]);
  CHECK(!is_stale(r), "found its lane closed");
}

// ------------------------------------------------------------------------------- shapes

Cut Cut::of(u64 slice, u64 chunk, u32 most_blocks, u32 ahead, u32 ring) {
  u64 chunks = (slice + chunk - 1) / chunk;
  Cut cut{(u32)std::clamp<u64>(chunks, 1, most_blocks), 0, 0, 0, ahead, chunk, slice};
  cut.rounds = (u32)((chunks + cut.blocks - 1) / cut.blocks);
  cut.last = cut.rounds == 0 ? cut.blocks : (u32)(chunks - (u64)(cut.rounds - 1) * cut.blocks);
  cut.slots = std::max(1u, std::min(ring, cut.rounds));
  CHECK(cut.slots * chunk * cut.blocks <= STAGING, "a test's rings: %u of %u times %llu", cut.blocks, cut.slots, chunk);
  return cut;
}

void Cut::apply(Plan& plan) const {
  plan.slice = slice, plan.chunk = chunk, plan.rounds = rounds, plan.last = last, plan.slots = slots, plan.ahead = ahead;
}

// ------------------------------------------------------------------------------- memory

Bytes::Bytes(u64 bytes, u64 offset) : storage_(new u8[bytes + offset + 2 * GUARD + 32]), bytes_(bytes) {
  at_ = pointer<u8>(up((u64)storage_.get() + GUARD, 16) + offset);
  std::memset(at_ - GUARD, POISON, bytes + 2 * GUARD);
}
void Bytes::fill(Random& random) {
  for (u64 i = 0; i < bytes_; i++) at_[i] = (u8)random.next();
}
bool Bytes::is_poison() const {
  return std::all_of(at_, at_ + bytes_, [](u8 byte) { return byte == POISON; });
}
bool Bytes::guards_hold() const {
  auto whole = [](const u8* from, u64 bytes) { return std::all_of(from, from + bytes, [](u8 byte) { return byte == POISON; }); };
  return whole(at_ - GUARD, GUARD) && whole(at_ + bytes_, GUARD);
}

}  // namespace sim
